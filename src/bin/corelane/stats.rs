//! `corelane stats`: a server's counters and stage histograms.

use crate::args::StatsArgs;
use crate::exit::{Code, Exit, Outcome};
use crate::out::{out, outln};
use crate::{link, tensors};
use serde_json::Value;
use std::time::Duration;

/// How often `--watch` asks.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Runs the command.
pub fn run(args: &StatsArgs) -> Outcome {
    let mut client = link::connect(&args.connect, args.psk_file.as_deref())?;
    loop {
        let text = client.stats().map_err(|e| link::lost(&args.connect, &e))?;
        if args.json {
            outln!("{text}");
        } else {
            let stats = serde_json::from_str(&text)
                .map_err(|e| Exit::new(Code::Failure, format_args!("the statistics: {e}")))?;
            out!("{}", render(&stats));
        }
        if !args.watch {
            return Ok(());
        }
        std::thread::sleep(WATCH_EVERY);
    }
}

/// The stages of a request, in their order.
pub const STAGES: [&str; 5] =
    ["queue", "compute_input", "compute_infer", "compute_output", "request"];

fn counts(value: &Value) -> String {
    let Some(map) = value.as_object() else { return "none".into() };
    let shown: Vec<String> = map
        .iter()
        .filter(|(_, n)| n.as_u64() != Some(0))
        .map(|(key, n)| format!("{key} {n}"))
        .collect();
    if shown.is_empty() { "none".into() } else { shown.join(", ") }
}

/// A snapshot for people.
pub fn render(stats: &Value) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let uptime = tensors::span(stats["uptime_ns"].as_u64().unwrap_or(0));
    let ready = if stats["ready"] == true { "ready" } else { "draining" };
    let _ = write!(out, "{ready}, up {uptime}");
    if let Some(n) = stats["hot_path_allocations_total"].as_u64() {
        let _ = write!(out, "; allocator calls on workers and I/O thread since ready: {n}");
    }
    out.push('\n');
    if let Some(bytes) = stats["too_long"].as_u64() {
        let _ = writeln!(
            out,
            "all of it takes {bytes} bytes, more than one answer may have: what says least is left out"
        );
    }
    for model in stats["models"].as_array().into_iter().flatten() {
        let _ = writeln!(
            out,
            "\n{} ({}): {} answered in {} runs, {} waiting, {} in the runtime",
            model["name"].as_str().unwrap_or("?"),
            model["engine"].as_str().unwrap_or("?"),
            model["inference_request_success"],
            model["exec_count"],
            model["queued"],
            model["outstanding"]
        );
        if model["version"].as_u64().is_some_and(|n| n > 1)
            || model["model_reload_error"].is_string()
        {
            let _ = writeln!(
                out,
                "  version {} ({}); reloads refused: {}",
                model["version"],
                model["version_hash"].as_str().unwrap_or("made by hand"),
                counts(&model["model_reload_failure_total"])
            );
        }
        if let Some(error) = model["model_reload_error"].as_str() {
            let _ = writeln!(out, "  the last reload: {error}");
        }
        if let Some(wanted) = model["backend_wanted"].as_array() {
            let list = |values: &[Value], text: &dyn Fn(&Value) -> String| {
                values.iter().map(text).collect::<Vec<_>>().join(", ")
            };
            let got = model["backend_got"].as_array().map_or(&[][..], Vec::as_slice);
            let _ = writeln!(
                out,
                "  computes: wanted {}, got {}",
                list(wanted, &|w| w.as_str().unwrap_or("?").to_string()),
                list(got, &|g| format!(
                    "{} ({})",
                    g["provider"].as_str().unwrap_or("?"),
                    g["nodes"]
                ))
            );
        }
        let precision = &model["backend_precision"];
        if let Some(wanted) = precision["wanted"].as_str() {
            let _ = writeln!(
                out,
                "  precision: {wanted} from {}, at load {} from single precision at most, {} on average",
                precision["from"].as_str().unwrap_or("?"),
                precision["largest_difference"],
                precision["mean_difference"]
            );
        }
        let _ = writeln!(out, "  without answer: {}", counts(&model["inference_request_failure"]));
        if model["shortened"] == true {
            let _ = writeln!(out, "  its details are left out");
            continue;
        }
        let _ = writeln!(out, "  batches closed by: {}", counts(&model["batch_closed"]));
        let _ = writeln!(out, "  runs by batch size: {}", counts(&model["batch_ran"]));
        out.push_str(&stage_table(model));
    }
    out.push('\n');
    for w in stats["workers"].as_array().into_iter().flatten() {
        let core = w["core"].as_u64().map_or("unpinned".into(), |c| format!("core {c}"));
        let _ = writeln!(
            out,
            "worker {}, {core}, {}: busy {}, spinning {}, slept {} times, rebuilt {} times",
            w["worker"],
            w["state"].as_str().unwrap_or("?"),
            tensors::span(w["busy_ns"].as_u64().unwrap_or(0)),
            tensors::span(w["spin_ns"].as_u64().unwrap_or(0)),
            w["parks"],
            w["rebuilds"]
        );
    }
    if let Some(extra) = stats["extra"].as_object() {
        for (name, value) in extra {
            let _ = writeln!(out, "{name}: {value}");
        }
    }
    out
}

/// The stage histograms of one model.
pub fn stage_table(model: &Value) -> String {
    use std::fmt::Write;
    let mut out = format!(
        "  {:<15} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10}\n",
        "stage", "count", "p50", "p90", "p99", "p99.9", "max"
    );
    for stage in STAGES {
        let s = &model[stage];
        let ns = |key: &str| tensors::span(s[key].as_u64().unwrap_or(0));
        let _ = writeln!(
            out,
            "  {stage:<15} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10}",
            s["count"].as_u64().unwrap_or(0),
            ns("p50_ns"),
            ns("p90_ns"),
            ns("p99_ns"),
            ns("p999_ns"),
            ns("max_ns")
        );
    }
    out
}
