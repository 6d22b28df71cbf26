//! `corelane inspect`: what a model is, and how it would be run.

use crate::args::InspectArgs;
use crate::exit::{Code, Exit, Outcome};
use crate::out::{out, outln};
use crate::{models, tensors};
use corelane::engine::{BackendReport, BackendUse, PlanIndex, Profile};
use corelane::model::load::TensorInfo;
use corelane::model::{CacheState, Inspection, LoadedModel};

/// Runs of the first batch size that `--plan` times.
const TIMED_RUNS: usize = 20;

/// What `--json` prints.
#[derive(serde::Serialize)]
struct Report {
    #[serde(flatten)]
    inspection: Inspection,
    /// How long the steps of the first batch size take, with `--plan`.
    profile: Option<Profile>,
}

/// Runs the command.
pub fn run(args: &InspectArgs) -> Outcome {
    let mut manifest = models::manifest(&args.model)?;
    manifest.cache_dir.clone_from(&args.cache);
    let model = LoadedModel::load(manifest).map_err(|e| Exit::new(Code::Config, e))?;
    let mut report = Report { inspection: model.inspect(), profile: None };
    if args.plan {
        let timed = model.engine.profile(PlanIndex(0), TIMED_RUNS);
        report.profile = timed.map_err(|e| Exit::new(Code::Failure, e))?;
    } else {
        report.inspection.description.steps.clear();
    }
    if args.json {
        let text = serde_json::to_string(&report).map_err(|e| Exit::new(Code::Failure, e))?;
        outln!("{text}");
    } else {
        out!("{}", render(&report.inspection, report.profile.as_ref()));
    }
    Ok(())
}

fn bytes(n: usize) -> String {
    match n {
        _ if n < 10 << 10 => format!("{n} B"),
        _ if n < 10 << 20 => format!("{:.1} KiB", n as f64 / 1024.0),
        _ => format!("{:.1} MiB", n as f64 / 1_048_576.0),
    }
}

/// What was asked for, and what computes where.
fn backend_lines(b: &BackendReport) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let _ = writeln!(out, "  library   ONNX Runtime {}, {}", b.backend_version, b.backend_library);
    let got: Vec<String> = b.backend_got.iter().map(BackendUse::to_string).collect();
    let _ = writeln!(out, "  wanted    {}", b.backend_wanted.join(", "));
    let _ = writeln!(out, "  got       {}", got.join(", "));
    for m in &b.backend_missing {
        let _ = writeln!(out, "  missing   {}: {}", m.provider, m.reason);
    }
    if let Some(c) = &b.backend_canary {
        let (got, cpu) = (tensors::span(c.got_ns.0), tensors::span(c.cpu_ns.0));
        let _ = writeln!(out, "  canary    batch {}: {got}, on the processor {cpu}", c.batch_size);
    }
    let flags = [
        (b.backend_pinned, "requests in pinned memory"),
        (b.backend_sleeps, "workers sleep while it computes"),
        (b.backend_cuda_graph, "runs are CUDA graphs"),
    ];
    for (flag, what) in flags {
        if let Some(flag) = flag {
            let _ = writeln!(out, "  GPU       {what}: {}", if flag { "yes" } else { "no" });
        }
    }
    if let Some(c) = &b.backend_engine_cache {
        let _ = match (&c.dir, &c.reason) {
            (Some(dir), _) => writeln!(out, "  engines   {} kept in {dir}", c.engines),
            (None, why) => {
                writeln!(out, "  engines   not kept: {}", why.as_deref().unwrap_or("not asked for"))
            }
        };
    }
    out
}

fn render(i: &Inspection, profile: Option<&Profile>) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let d = &i.description;
    let isa = d.isa.as_ref().map_or(String::new(), |isa| format!(", kernels for {isa}"));
    let _ = writeln!(out, "{} (engine {}{isa})", i.name, i.engine.name());
    if let Some(file) = &i.file {
        let _ = writeln!(out, "  file      {file}");
    }
    if let Some(hash) = &i.sha256 {
        let _ = writeln!(out, "  sha256    {hash}");
    }
    if let Some(backend) = &d.backend {
        out.push_str(&backend_lines(backend));
    }
    let tensors = |what: &str, list: &[TensorInfo], out: &mut String| {
        for t in list {
            let shape = t.shape.join(", ");
            let row = bytes(t.row_bytes);
            let _ = writeln!(out, "  {what:<9} {} {} ({shape}), {row} a row", t.name, t.dtype);
        }
    };
    tensors("input", &i.inputs, &mut out);
    tensors("output", &i.outputs, &mut out);
    let batching = match (&i.batching.enabled, &i.batching.reason) {
        (true, _) => format!("on, sizes {:?}", i.batch_sizes),
        (false, Some(reason)) => format!("off: {reason}"),
        (false, None) => "off".into(),
    };
    let _ = writeln!(out, "  batching  {batching}");
    if let (true, Some(why)) = (i.batching.enabled, &i.batching.unproven) {
        let _ = writeln!(out, "  rows      independent as the manifest asserts; not shown: {why}");
    }
    if let Some(difference) = i.batching.max_difference {
        let _ = writeln!(
            out,
            "  checked   a row in a batch is within {difference:.1e} of the same row alone \
             (of the largest value; {:.1e} is allowed)",
            i.tolerance
        );
    }
    if let Some(difference) = i.golden_difference {
        let _ = writeln!(
            out,
            "  goldens   {} rows, within {difference:.1e} of the largest value",
            i.golden_rows
        );
    }
    if i.labels > 0 {
        let _ = writeln!(out, "  labels    {}", i.labels);
    }
    let whose = if d.weights_shared { "shared by all workers" } else { "each worker has its own" };
    let _ = writeln!(out, "  weights   {}, {whose}", bytes(d.weight_bytes));
    for note in &d.precision {
        let _ = writeln!(out, "  precision {note}");
    }
    let from = match (i.cache.state, &i.cache.file, &i.cache.reason) {
        (CacheState::Off, ..) | (_, None, _) => None,
        (CacheState::Used, Some(file), _) => {
            Some(format!("used, with what was checked then: {}", file.display()))
        }
        (CacheState::Written, Some(file), None) => Some(format!("written: {}", file.display())),
        (CacheState::Written, Some(file), Some(why)) => {
            Some(format!("written anew: {} ({why})", file.display()))
        }
        (CacheState::NotKept, _, why) => {
            Some(format!("not kept: {}", why.as_deref().unwrap_or("")))
        }
    };
    if let Some(from) = from {
        let _ = writeln!(out, "  cache     {from}");
    }
    let heap = if d.allocation_free { "never" } else { "on every run" };
    let _ = writeln!(out, "  allocator called {heap} once warm");
    let _ = writeln!(
        out,
        "\n  {:>10} {:>12} {:>12} {:>12}",
        "batch size", "arena", "at least", "staging"
    );
    for m in &d.memory {
        let known = |n: Option<usize>| n.map_or("not known".into(), bytes);
        let _ = writeln!(
            out,
            "  {:>10} {:>12} {:>12} {:>12}",
            m.batch_size,
            known(m.arena_bytes),
            known(m.arena_lower_bound_bytes),
            bytes(m.staging_bytes)
        );
    }
    let _ = writeln!(out, "\n  {:>5}  {:<32} run by", "count", "operator");
    for o in &d.operators {
        let _ = writeln!(out, "  {:>5}  {:<32} {}", o.count, o.operator, o.implementation);
    }
    if let Some(p) = profile {
        let total: u64 = p.step_ns.iter().sum();
        let _ = writeln!(
            out,
            "\n  batch {}, times of {} runs on zeros (medians; {:.1} us in all, {} % of it in fallbacks)",
            p.batch_size,
            p.runs,
            total as f64 / 1e3,
            p.fallback_percent
        );
        for (ns, step) in p.step_ns.iter().zip(&p.steps) {
            let share = *ns as f64 * 100.0 / total.max(1) as f64;
            let _ = writeln!(out, "  {:>9.1} us {share:>5.1} %  {step}", *ns as f64 / 1e3);
        }
        let _ = writeln!(out);
    }
    for step in &d.steps {
        let _ = writeln!(out, "  {step}");
    }
    out
}
