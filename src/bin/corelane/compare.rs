//! `corelane compare` and `corelane history`: runs side by side.

use crate::args::{CompareArgs, HistoryArgs};
use crate::exit::{Code, Exit, Outcome};
use crate::out::{out, outln};
use crate::tensors;
use corelane::lab::compare::{Comparison, Gate, compare};
use corelane::lab::flame::{self, FunctionChange};
use corelane::lab::history::History;
use corelane::lab::run::{Run, figures, folder, report};
use corelane::limits::TEXT_FILE_BYTES_MAX;
use corelane::sys::files;
use serde_json::json;
use std::path::{Path, PathBuf};

fn read(path: &Path) -> Result<Run, Exit> {
    folder::read(path).map_err(|e| Exit::new(Code::Usage, e))
}

/// Runs the command.
pub fn run(args: &CompareArgs) -> Outcome {
    let gate = match &args.gate {
        None => None,
        Some(path) => {
            let name = path.display().to_string();
            let text = files::read_any_text(path, TEXT_FILE_BYTES_MAX)
                .map_err(|e| Exit::new(Code::Usage, format_args!("the gate {name}: {e}")))?;
            Some(Gate::parse(&name, &text).map_err(|e| Exit::new(Code::Usage, e))?)
        }
    };
    let (base, new) = (read(&args.base)?, read(&args.new)?);
    let mut comparison = compare(&base, &new).map_err(|e| Exit::new(Code::Usage, e))?;
    if let (Some(gate), Some(path)) = (&gate, &args.gate) {
        let name = path.display().to_string();
        gate.check(&name, &comparison).map_err(|e| Exit::new(Code::Usage, e))?;
    }
    let broken = gate.map(|g| g.broken(&comparison)).unwrap_or_default();
    let profiles = flame::differences(
        (&comparison.base, &base, &folder_of(&args.base)),
        (&comparison.new, &new, &folder_of(&args.new)),
    );
    comparison.notes.extend(profiles.notes.iter().cloned());
    if args.json {
        let told = json!({
            "schema": 1, "headline": comparison.headline(), "comparison": comparison, "broken": broken,
            "functions": profiles.functions,
        });
        outln!("{told}");
    } else {
        out!("{}{}", table(&comparison), functions(&profiles.functions));
        for rule in &broken {
            outln!("BROKEN: {rule}");
        }
        outln!("{}", comparison.headline());
    }
    if let Some(dir) = &args.out {
        write(dir, args, &comparison, &broken, profiles)?;
    }
    if broken.is_empty() {
        return Ok(());
    }
    Err(Exit::new(Code::Failure, format_args!("the gate is broken: {}", broken.join("; "))))
}

fn table(comparison: &Comparison) -> String {
    use std::fmt::Write;
    let mut out = format!("{} against {}\n", comparison.new, comparison.base);
    for note in &comparison.notes {
        let _ = writeln!(out, "note: {note}");
    }
    let mut series = "";
    for c in &comparison.changes {
        if c.series != series {
            series = &c.series;
            let _ = writeln!(
                out,
                "{series}\n  {:<24} {:>12} {:>12} {:>9} {:>6}  verdict",
                "metric", "base", "new", "change", "p"
            );
        }
        let value = |v: f64| match c.metric.ends_with("_us") {
            true => tensors::span((v * 1e3) as u64),
            false => format!("{v:.2}"),
        };
        let _ = writeln!(
            out,
            "  {:<24} {:>12} {:>12} {:>+8.1}% {:>6.3}  {}{}",
            c.metric,
            value(c.base.median),
            value(c.new.median),
            c.percent,
            c.p_value,
            c.verdict.name(),
            if c.judged { "" } else { " (told, not judged)" }
        );
    }
    out
}

/// Functions that are printed of each series; the report has more.
const FUNCTIONS_PRINTED: usize = 8;

/// The functions whose shares of CPU time moved.
fn functions(all: &[FunctionChange]) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let mut series = "";
    let mut printed = 0;
    for c in all {
        if c.series != series {
            series = &c.series;
            printed = 0;
            let _ = writeln!(
                out,
                "{series}: functions by how far their share of CPU time moved\n  {:>8} {:>8} {:>9}  function",
                "base", "new", "points"
            );
        }
        if printed < FUNCTIONS_PRINTED && c.more_than_noise {
            printed += 1;
            let _ = writeln!(
                out,
                "  {:>7.1}% {:>7.1}% {:>+9.1}  {}",
                c.base_percent, c.new_percent, c.points, c.function
            );
        } else if printed == 0 {
            printed = FUNCTIONS_PRINTED;
            let _ = writeln!(out, "  none by more than the samples may vary");
        }
    }
    out
}

/// The folder of a run that was named by its folder or by its `metrics.json`.
fn folder_of(path: &Path) -> PathBuf {
    match path.is_dir() {
        true => path.to_path_buf(),
        false => path.parent().unwrap_or(Path::new(".")).to_path_buf(),
    }
}

fn write(
    dir: &Path,
    args: &CompareArgs,
    comparison: &Comparison,
    broken: &[String],
    profiles: flame::Differences,
) -> Outcome {
    let failed = |e: &dyn std::fmt::Display| Exit::new(Code::Failure, e);
    std::fs::create_dir_all(dir).map_err(|e| failed(&format_args!("{}: {e}", dir.display())))?;
    let (base, new) = (folder_of(&args.base), folder_of(&args.new));
    let mut overlaid = Vec::new();
    for series in comparison.changes.iter().map(|c| c.series.as_str()) {
        if overlaid.iter().any(|f: &figures::Figure| f.series == series) {
            continue;
        }
        overlaid.extend(figures::overlaid(
            series,
            (&comparison.base, &base),
            (&comparison.new, &new),
        ));
    }
    overlaid.extend(profiles.figures);
    for figure in &overlaid {
        let text = figure.plotly.to_string();
        folder::write(dir, &figure.file(), &text).map_err(|e| failed(&e))?;
    }
    let mut told = serde_json::to_value(comparison).map_err(|e| failed(&e))?;
    told["headline"] = json!(comparison.headline());
    told["broken"] = json!(broken);
    told["functions"] = json!(profiles.functions);
    let figures: Vec<_> = overlaid
        .iter()
        .map(|f| json!({"series": f.series, "name": f.name, "says": f.says, "plotly": f.plotly}))
        .collect();
    let data = json!({"comparison": told, "figures": figures});
    let title = format!("{} against {}", comparison.new, comparison.base);
    folder::write(dir, "comparison.json", &told.to_string()).map_err(|e| failed(&e))?;
    folder::write(dir, "report.html", &report::document(&title, &data)).map_err(|e| failed(&e))
}

/// Runs `history`.
pub fn history(args: &HistoryArgs) -> Outcome {
    let history = History::read(&args.dir).map_err(|e| Exit::new(Code::Usage, e))?;
    let metric = args.metric.as_str();
    let rows = history.of(metric);
    if rows.is_empty() {
        let text = format!(
            "no run in {} has the metric {metric:?}; there are {}",
            args.dir.display(),
            history.metrics().join(", ")
        );
        return Err(Exit::new(Code::Usage, text));
    }
    for row in &rows {
        outln!(
            "{:<24} {:<24} {:<16} {:>14.3}  ({:.3} to {:.3} over {} repeats){}",
            row.folder,
            row.label,
            row.series,
            row.spread.median,
            row.spread.min,
            row.spread.max,
            row.spread.repeats,
            if row.valid { "" } else { "  INVALID" }
        );
    }
    if let Some(dir) = &args.out {
        let failed = |e: &dyn std::fmt::Display| Exit::new(Code::Failure, e);
        std::fs::create_dir_all(dir)
            .map_err(|e| failed(&format_args!("{}: {e}", dir.display())))?;
        let figure = history.figure(metric);
        folder::write(dir, &figure.file(), &figure.plotly.to_string()).map_err(|e| failed(&e))?;
        let told = json!({"series": "", "name": figure.name, "says": figure.says, "plotly": figure.plotly});
        let title = format!("{metric} over {} runs", history.runs());
        let data = json!({"history": {"title": title}, "figures": [told]});
        folder::write(dir, "report.html", &report::document(&title, &data))
            .map_err(|e| failed(&e))?;
    }
    Ok(())
}
