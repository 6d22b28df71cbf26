//! `corelane bench contention`: latency against requests in flight, with one worker and with all.

use crate::args::BenchContentionArgs;
use crate::bench_target::{self, Opened, failed};
use crate::exit::{Code, Exit, Outcome};
use crate::load;
use crate::out::{out, outln};
use crate::progress::Progress;
use corelane::config::{Config, ModelEntry, Workers};
use corelane::lab::run::{Load, Repeat, Run, Series, folder};
use corelane::lab::watch::Detail;
use corelane::limits::SLOTS_PER_MODEL_MAX;
use corelane::sys::affinity;
use corelane::units::{CoreId, Nanos};

/// How long requests are sent before each repeat, not counted.
const WARM_UP: Nanos = Nanos(100_000_000);

/// The workers of one curve.
struct Side {
    name: &'static str,
    cores: Vec<CoreId>,
    opened: Opened,
    /// By concurrency.
    measured: Vec<(Vec<Repeat>, Vec<Detail>)>,
}

/// Runs the command.
pub fn run(args: &BenchContentionArgs) -> Outcome {
    let usage = |text: String| Exit::new(Code::Usage, text);
    if !(args.duration > 0.0 && args.duration.is_finite()) {
        return Err(usage(format!("the duration is {}; it must be above 0", args.duration)));
    }
    let mut points = args.concurrency.clone();
    points.sort_unstable();
    points.dedup();
    if points.len() < 2 {
        return Err(usage("a curve has two points at least: --concurrency 1,8".into()));
    }
    let folders = args.out.as_ref().map(|out| [out.join("one-worker"), out.join("all-workers")]);
    for dir in folders.iter().flatten() {
        folder::create(dir).map_err(|e| Exit::new(Code::Usage, e))?;
    }
    let cores = match &args.cores {
        Some(list) => list.0.clone(),
        None => affinity::allowed().map_err(|e| Exit::new(Code::Config, e))?,
    };
    let last = cores.last().copied().ok_or_else(|| usage("--cores names no core".into()))?;
    let mut sides = vec![side("one-worker", vec![last], &points, args)?];
    if cores.len() > 1 {
        sides.push(side("all-workers", cores, &points, args)?);
    }
    measure(&mut sides, &points, args)?;
    let mut runs = Vec::new();
    for (n, side) in sides.iter_mut().enumerate() {
        let mut run = load::empty_run(&side.opened, &label(&args.label, side.name));
        let mut details = Vec::new();
        for (concurrency, (repeats, detail)) in points.iter().zip(side.measured.drain(..)) {
            let name = format!("closed-{concurrency}");
            run.series.push(Series::new(name, load_of(*concurrency, args), repeats));
            details.push(detail);
        }
        load::finish(&mut run);
        if let Some(folders) = &folders {
            load::write(&folders[n], &run, &details)?;
        }
        runs.push(run);
    }
    tell(&runs, &sides, args)?;
    for side in sides {
        drop(side.opened.bench);
        drop(side.opened.runtime);
    }
    runs.iter().try_for_each(load::outcome)
}

fn label(label: &str, side: &str) -> String {
    if label.is_empty() { side.into() } else { format!("{label} {side}") }
}

fn load_of(concurrency: u16, args: &BenchContentionArgs) -> Load {
    Load::Closed { concurrency: usize::from(concurrency), span_s: args.duration, rows: 1 }
}

fn side(
    name: &'static str,
    cores: Vec<CoreId>,
    points: &[u16],
    args: &BenchContentionArgs,
) -> Result<Side, Exit> {
    let most = points.last().copied().unwrap_or(1).into();
    let entry = ModelEntry {
        max_batch_size: Some(args.max_batch_size.into()),
        // So that every request in flight may wait.
        max_queue_size: Some(u32::max(64, most).min(SLOTS_PER_MODEL_MAX as u32 - 1)),
        ..ModelEntry::new(&args.model)
    };
    let config =
        Config { workers: Workers::Cores(cores.clone()), models: vec![entry], ..Config::default() };
    let opened = bench_target::in_process(&config, WARM_UP)?;
    let measured = points.iter().map(|_| Default::default()).collect();
    Ok(Side { name, cores, opened, measured })
}

/// Both sides in turns at each point, each repeat in the other order, so that a machine that changes
/// meanwhile changes for both.
fn measure(sides: &mut [Side], points: &[u16], args: &BenchContentionArgs) -> Outcome {
    let repeats = usize::from(args.repeats);
    let mut progress = Progress::new(repeats * points.len() * sides.len());
    for n in 0..repeats {
        for (at, concurrency) in points.iter().enumerate() {
            for turn in 0..sides.len() {
                let k = if n % 2 == 0 { turn } else { sides.len() - 1 - turn };
                let side = &mut sides[k];
                progress.tell(&format!("{}, {concurrency} in flight", side.name));
                let load = load_of(*concurrency, args);
                let opened = &side.opened;
                let (repeat, detail) =
                    opened.bench.repeat(&load, n as u64, &opened.how).map_err(|e| failed(&e))?;
                side.measured[at].0.push(repeat);
                side.measured[at].1.push(detail);
                progress.step();
            }
        }
    }
    Ok(())
}

fn tell(runs: &[Run], sides: &[Side], args: &BenchContentionArgs) -> Outcome {
    if args.json {
        let told = serde_json::json!({"schema": 1, "runs": runs});
        outln!("{told}");
        return Ok(());
    }
    outln!(
        "{} on {}, batches of at most {}; closed loop, medians of {} repeats of {} s",
        runs[0].target.model,
        runs[0].machine.name,
        args.max_batch_size,
        args.repeats,
        args.duration
    );
    for (run, side) in runs.iter().zip(sides) {
        outln!(
            "{}: workers on cores {}, generator on {}",
            side.name,
            affinity::core_list(&side.cores),
            match side.opened.how.core {
                Some(core) => format!("core {core}"),
                None => "no core of its own: it naps between looks, 50 us".into(),
            }
        );
        out!("{}", load::verdicts(run));
    }
    let most =
        |run: &Run| run.sweep.as_ref()?.points.last().map(|p| (p.concurrency, p.throughput_per_s));
    if let [one, all] = runs
        && let (Some((n, one)), Some((_, all))) = (most(one), most(all))
    {
        outln!(
            "all {} workers answer {:.2} times as much as one at {n} in flight",
            sides[1].cores.len(),
            all / one
        );
    } else if runs.len() == 1 {
        outln!("one core is allowed, so that one worker is all there are");
    }
    Ok(())
}
