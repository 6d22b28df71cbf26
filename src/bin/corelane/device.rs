//! `corelane bench device`: the standard card of a board.

use crate::args::BenchDeviceArgs;
use crate::exit::{Code, Exit, Outcome};
use crate::out::{out, outln};
use crate::progress::Progress;
use crate::{models, tensors};
use corelane::board::{Machine, check, identify, resolve};
use corelane::config::ModelEntry;
use corelane::lab::device::{self, Card, CardModel};
use corelane::lab::{run::Percentiles, synthetic};
use corelane::model::Manifest;
use corelane::sys::{affinity, clock};
use corelane::units::{CoreId, Nanos};
use std::path::{Path, PathBuf};

/// Where models are looked for.
const MODELS: &str = "models";

/// The board that is measured.
struct Measured {
    name: Option<String>,
    workers: Option<Vec<CoreId>>,
    /// Why rows of this machine don't belong into the board's file.
    no_rows: Option<String>,
}

/// Runs the command.
pub fn run(args: &BenchDeviceArgs) -> Outcome {
    if let Some(out) = args.out.as_ref().filter(|out| out.exists()) {
        let text = format!("{} is there already; --out FILE names another", out.display());
        return Err(Exit::new(Code::Usage, text));
    }
    let board = board(args)?;
    let allowed = affinity::allowed().map_err(|e| Exit::new(Code::Config, e))?;
    let cores = match (&args.cores, board.workers) {
        (Some(list), _) => list.0.clone(),
        (None, Some(workers)) => workers,
        (None, None) => allowed,
    };
    let mut loaded = Vec::new();
    for path in paths(args)? {
        loaded.push(load(&path)?);
    }
    let figures = device::figures(&loaded);
    let budget = Nanos(u64::from(args.budget_s) * 1_000_000_000);
    let time_box = device::time_box(figures, budget).ok_or_else(|| {
        let text = format!(
            "{figures} figures in {} s leave too little time for each; give a larger --budget-s or fewer \
             models",
            args.budget_s
        );
        Exit::new(Code::Usage, text)
    })?;
    let mut progress = Progress::new(figures);
    let mut begun = false;
    let measured = device::measure(&loaded, &cores, time_box, |what| {
        if std::mem::replace(&mut begun, true) {
            progress.step();
        }
        progress.tell(what);
    });
    drop(progress);
    let card = measured.map_err(|e| Exit::new(Code::Failure, e))?;
    let card = Card { board: board.name, ..card };
    let text = serde_json::to_string_pretty(&card).map_err(|e| Exit::new(Code::Failure, e))?;
    if let Some(out) = &args.out {
        let at = |e| Exit::new(Code::Failure, format_args!("{}: {e}", out.display()));
        let mut file = std::fs::File::create_new(out).map_err(at)?;
        std::io::Write::write_all(&mut file, text.as_bytes()).map_err(at)?;
    }
    if args.json {
        outln!("{}", serde_json::to_string(&card).map_err(|e| Exit::new(Code::Failure, e))?);
        return Ok(());
    }
    out!("{}", table(&card));
    match board.no_rows {
        None => out!("\nrows for the board's file:\n\n{}", card.board_rows()),
        Some(why) => outln!("\nno rows for a board's file: {why}"),
    }
    if let Some(out) = &args.out {
        outln!("written to {}", out.display());
    }
    Ok(())
}

fn board(args: &BenchDeviceArgs) -> Result<Measured, Exit> {
    let machine = Machine::here();
    let Some(asked) = &args.board else {
        let found = identify(&machine).ok().map(|f| f.board);
        let no_rows = match &found {
            Some(board) => format!("--board {} was not asked for", board.name),
            None => "this machine is no board that is known".into(),
        };
        return Ok(Measured {
            name: found.filter(|b| !b.fallback).map(|b| b.name),
            workers: None,
            no_rows: Some(no_rows),
        });
    };
    let board = resolve(asked, &machine).map_err(|e| Exit::new(Code::Config, e))?.board;
    let check = check(&board, &machine);
    if !check.differences.is_empty() {
        // A figure of another machine in a board's file would be a lie.
        let text = format!(
            "this machine is not as board {} says: {}; without --board it is measured as it is",
            board.name,
            check.differences_text()
        );
        return Err(Exit::new(Code::Config, text));
    }
    let no_rows = board
        .fallback
        .then(|| format!("{} stands for many machines, and has no figures of one", board.name));
    Ok(Measured { name: Some(board.name), workers: Some(check.got.workers), no_rows })
}

fn paths(args: &BenchDeviceArgs) -> Result<Vec<PathBuf>, Exit> {
    if !args.models.is_empty() {
        return Ok(args.models.clone());
    }
    let mut found: Vec<PathBuf> = std::fs::read_dir(MODELS)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|dir| dir.join(Manifest::FILE).is_file())
        .collect();
    if found.is_empty() {
        let text = format!("no models: {MODELS}/ has none here; name their directories");
        return Err(Exit::new(Code::Usage, text));
    }
    found.sort();
    found.push(synthetic::NAME.into());
    Ok(found)
}

fn load(path: &Path) -> Result<CardModel, Exit> {
    let start = clock::now();
    let setup = models::load(&ModelEntry::new(path), None)?;
    let load = clock::now().since(start);
    let mut golden = true;
    let rows = setup.engine.signature().inputs.iter().enumerate().map(|(k, spec)| {
        let array = tensors::read_npy(&path.join(format!("golden/input_{k}.npy"))).ok();
        let row = array.filter(|a| a.dtype == spec.dtype && a.data.len() >= spec.row_bytes());
        golden &= row.is_some();
        row.map_or_else(|| vec![0; spec.row_bytes()], |a| a.data[..spec.row_bytes()].to_vec())
    });
    let rows = rows.collect();
    Ok(CardModel { setup, load, rows, golden })
}

fn table(card: &Card) -> String {
    use std::fmt::Write;
    let span = tensors::span;
    let mut out = format!(
        "corelane {} on {}, Linux {}, cores {}{}\n",
        card.version,
        card.board.as_ref().unwrap_or(&card.machine),
        card.kernel,
        card.cores,
        if card.slow_governors.is_empty() {
            String::new()
        } else {
            format!("; governors: {}", card.slow_governors.join(", "))
        }
    );
    for m in &card.models {
        let _ = writeln!(
            out,
            "{} (engine {}, {} rows): loaded in {}; {} allocator calls while it served{}",
            m.name,
            m.engine,
            m.input,
            span(m.load_ns),
            m.hot_path_allocations.map_or("unknown".into(), |n| n.to_string()),
            if m.allocation_free { "" } else { " (the engine does not promise none)" }
        );
        let _ = writeln!(
            out,
            "  {:>5} {:>10} {:>10} {:>10} {:>10} {:>9}",
            "batch", "p50", "p99", "infer p50", "a row", "requests"
        );
        for b in &m.batches {
            let _ = writeln!(
                out,
                "  {:>5} {:>10} {:>10} {:>10} {:>10} {:>9}",
                b.batch,
                span(b.request.p50_ns),
                span(b.request.p99_ns),
                span(b.infer.p50_ns),
                span(b.request.p50_ns / b.batch as u64),
                b.request.count
            );
        }
        let t = &m.throughput;
        let _ = writeln!(
            out,
            "  {:.0} rows/s of one worker, {:.0} of all ({}), in batches of {}: efficiency {:.2}",
            t.one_rows_per_s,
            t.all_rows_per_s,
            affinity::core_list(&t.cores),
            t.batch,
            t.efficiency
        );
    }
    let both = |p: &Percentiles| format!("p50 {}, p99 {}", span(p.p50_ns), span(p.p99_ns));
    for way in &card.ways {
        let told = match (&way.round_trip, &way.absent) {
            (Some(trip), _) => both(trip),
            (None, why) => format!("not measured: {}", why.as_deref().unwrap_or("unknown")),
        };
        let _ =
            writeln!(out, "{}, {} B, no compute: {told} [{}]", way.way, way.bytes, way.placement);
    }
    let _ = writeln!(out, "wake-up: {} [{}]", both(&card.wake_up), card.wake_up_placement);
    let _ = writeln!(
        out,
        "peak memory {}; {} allocator calls of engines that promise none; took {}",
        card.peak_memory_bytes
            .map_or("unknown".into(), |n| format!("{:.1} MiB", n as f64 / 1048576.0)),
        card.hot_path_allocations.map_or("unknown".into(), |n| n.to_string()),
        span(card.took_ns)
    );
    out
}
