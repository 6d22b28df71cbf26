//! `corelane bench`: figures, each with what it is.

use crate::args::{BenchCommand, BenchEngine, BenchEngineArgs, BenchOverheadArgs};
use crate::exit::{Code, Exit, Outcome};
use crate::tensors;
use corelane::engine::{self, EngineKind, LoadRequest, PlanIndex};
use corelane::lab::overhead::{self, Effort};
use corelane::lab::sample::percentile;
use corelane::model::Manifest;
use corelane::runtime::ModelSetup;
use corelane::sys::{affinity, alloc, clock};
use corelane::units::CoreId;
use serde::Serialize;

/// Runs before the clock counts.
const WARM_RUNS: usize = 5;

/// Runs the command.
pub fn run(command: &BenchCommand) -> Outcome {
    match command {
        BenchCommand::Engine(args) => engine(args),
        BenchCommand::Overhead(args) => overhead(args),
    }
}

/// Times of one engine at one batch size.
#[derive(Serialize)]
struct EngineReport {
    /// Layout version.
    schema: u32,
    model: String,
    engine: &'static str,
    batch: usize,
    /// Instruction set of the kernels, where the engine chooses one.
    isa: Option<String>,
    /// The core that the one thread was pinned to.
    core: u16,
    iterations: usize,
    /// Whole runs, inputs and outputs in place, in the order in which they ran.
    run_ns: Vec<u64>,
    min_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
    /// Allocator calls during the timed runs.
    allocator_calls: u64,
}

fn engine(args: &BenchEngineArgs) -> Outcome {
    let config = |e: &dyn std::fmt::Display| Exit::new(Code::Config, e);
    let manifest = Manifest::read(&args.model).map_err(|e| config(&e))?;
    let core = match args.core {
        Some(core) => CoreId(core),
        None => {
            let allowed = affinity::allowed().map_err(|e| config(&e))?;
            *allowed.last().ok_or_else(|| config(&"the scheduler allows no core"))?
        }
    };
    let bytes = std::fs::read(&manifest.file)
        .map_err(|e| config(&format_args!("{}: {e}", manifest.file.display())))?;
    let kind = match args.engine {
        BenchEngine::Plan => EngineKind::Plan,
        BenchEngine::Tract => EngineKind::Tract,
    };
    let batch = usize::from(args.batch);
    let request = LoadRequest {
        bytes: &bytes,
        batch_sizes: &[batch],
        bind_axes: &manifest.bind_axes,
        bind_inputs: &manifest.bind_inputs,
        arena_bytes_max: manifest.arena_bytes_max,
    };
    // Pinned before the engine looks at the machine, as a worker is.
    affinity::pin(core).map_err(|e| config(&e))?;
    let engine = engine::load(kind, &request).map_err(|e| config(&e))?;
    if engine.batch_sizes() != [batch] {
        let text = format!("the model has no batch axis; it runs at batch 1, not {batch}");
        return Err(config(&text));
    }
    let mut instance = engine.instance().map_err(|e| config(&e))?;
    let golden = fill(&mut *instance, &*engine, &manifest, batch);
    let failed = |e: engine::RunError| Exit::new(Code::Failure, e);
    instance.warm_up(PlanIndex(0)).map_err(failed)?;
    for _ in 0..WARM_RUNS {
        instance.infer(PlanIndex(0)).map_err(failed)?;
    }
    let iterations = args.iterations as usize;
    let mut run_ns = Vec::with_capacity(iterations);
    let calls = alloc::hot_calls();
    for _ in 0..iterations {
        alloc::set_hot(true);
        let start = clock::now();
        let result = instance.infer(PlanIndex(0));
        let time = clock::now().since(start);
        alloc::set_hot(false);
        result.map_err(failed)?;
        run_ns.push(time.0);
    }
    let allocator_calls = alloc::hot_calls() - calls;
    let mut sorted = run_ns.clone();
    let report = EngineReport {
        schema: 1,
        model: manifest.name,
        engine: kind.name(),
        batch,
        isa: engine.describe().isa,
        core: core.0,
        iterations,
        min_ns: percentile(&mut sorted, 0),
        p50_ns: percentile(&mut sorted, 500),
        p99_ns: percentile(&mut sorted, 990),
        run_ns,
        allocator_calls,
    };
    if args.json {
        return print_json(&report);
    }
    println!(
        "{} on engine {}{}, batch {batch}, {iterations} runs on core {core} of {}: min {}, p50 {}, \
         p99 {}; {} allocator calls",
        report.model,
        report.engine,
        report.isa.as_ref().map_or(String::new(), |isa| format!(" ({isa})")),
        if golden { "the first golden row" } else { "zeros" },
        tensors::span(report.min_ns),
        tensors::span(report.p50_ns),
        tensors::span(report.p99_ns),
        report.allocator_calls
    );
    Ok(())
}

/// Fills every row with the model's first golden one; zeros where it has none. Returns which.
fn fill(
    instance: &mut dyn engine::Instance,
    engine: &dyn engine::Engine,
    manifest: &Manifest,
    batch: usize,
) -> bool {
    let mut golden = true;
    for (k, spec) in engine.signature().inputs.iter().enumerate() {
        let array = manifest
            .dir
            .as_ref()
            .and_then(|dir| tensors::read_npy(&dir.join(format!("golden/input_{k}.npy"))).ok());
        let row = array.filter(|a| a.dtype == spec.dtype && a.data.len() >= spec.row_bytes());
        golden &= row.is_some();
        let staging = &mut instance.input_mut(PlanIndex(0), k)[..batch * spec.row_bytes()];
        for to in staging.chunks_exact_mut(spec.row_bytes()) {
            match &row {
                Some(row) => to.copy_from_slice(&row.data[..spec.row_bytes()]),
                None => to.fill(0),
            }
        }
    }
    golden
}

fn overhead(args: &BenchOverheadArgs) -> Outcome {
    let default = Effort::default();
    let effort = Effort {
        repeats: args.repeats.map_or(default.repeats, usize::from),
        iterations: args.iterations.map_or(default.iterations, |n| n as usize),
    };
    let setup = ModelSetup::read(&args.model).map_err(|e| Exit::new(Code::Config, e))?;
    let report =
        overhead::measure(effort, Some(&setup)).map_err(|e| Exit::new(Code::Failure, e))?;
    if args.json {
        return print_json(&report);
    }
    println!(
        "{}, cores {}; {} repeats of {} round trips, p50 in ns as median (least to largest)",
        report.machine, report.cores, report.repeats, report.iterations
    );
    for l in &report.latencies {
        println!(
            "{} [{}]: {:.0} ({:.0} to {:.0}), floor {:.0}; ratio {:.2} ({:.2} to {:.2}), goal at most {}",
            l.name,
            l.placement,
            l.p50_ns.median,
            l.p50_ns.min,
            l.p50_ns.max,
            l.floor_p50_ns.median,
            l.ratio.median,
            l.ratio.min,
            l.ratio.max,
            l.goal
        );
    }
    for c in &report.comparisons {
        println!(
            "{} [{}]: {:.0} and {:.0} {}; ratio {:.2} ({:.2} to {:.2}), goal {}",
            c.name,
            c.placement,
            c.a.median,
            c.b.median,
            c.unit,
            c.ratio.median,
            c.ratio.min,
            c.ratio.max,
            c.goal
        );
    }
    Ok(())
}

fn print_json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string(value).map_err(|e| Exit::new(Code::Failure, e))?;
    println!("{text}");
    Ok(())
}
