//! `corelane inspect`: what a model is, and how it would be run.

use crate::args::InspectArgs;
use crate::exit::{Code, Exit, Outcome};
use corelane::model::load::TensorInfo;
use corelane::model::{Inspection, LoadedModel};

/// Runs the command.
pub fn run(args: &InspectArgs) -> Outcome {
    let model = LoadedModel::read(&args.model).map_err(|e| Exit::new(Code::Config, e))?;
    let mut inspection = model.inspect();
    if !args.plan {
        inspection.description.steps.clear();
    }
    if args.json {
        let text = serde_json::to_string(&inspection).map_err(|e| Exit::new(Code::Failure, e))?;
        println!("{text}");
    } else {
        print!("{}", render(&inspection));
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

fn render(i: &Inspection) -> String {
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
    let _ = writeln!(out, "  weights   {}, shared by all workers", bytes(d.weight_bytes));
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
    for step in &d.steps {
        let _ = writeln!(out, "  {step}");
    }
    out
}
