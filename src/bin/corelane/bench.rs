//! `corelane bench`: figures, each with what it is.

use crate::args::{BenchCommand, BenchEngineArgs, BenchOverheadArgs};
use crate::exit::{Code, Exit, Outcome};
use crate::out::outln;
use crate::{contention, device, hot, models, tensors};
use corelane::engine::fake::FakeEngine;
use corelane::engine::ort::settings::parse_providers;
use corelane::engine::{self, BackendReport, EngineKind, LoadRequest, PlanIndex};
use corelane::lab::overhead::{self, Effort};
use corelane::lab::rows::{PAIRS_MIN, RowCost, Rows, StepCost};
use corelane::lab::sample::percentile;
use corelane::limits::{LOG_RING_BYTES_DEFAULT, MODEL_FILE_BYTES_MAX};
use corelane::model::Manifest;
use corelane::model::check::golden_inputs;
use corelane::model::signature::TensorSpec;
use corelane::runtime::ModelSetup;
use corelane::sys::{affinity, alloc, clock, files};
use corelane::units::CoreId;
use serde::Serialize;

/// Runs before the clock counts.
const WARM_RUNS: usize = 5;

/// Runs the command.
pub fn run(command: &BenchCommand) -> Outcome {
    match command {
        BenchCommand::Engine(args) => engine(args),
        BenchCommand::Overhead(args) => overhead(args),
        BenchCommand::Contention(args) => contention::run(args),
        BenchCommand::Device(args) => device::run(args),
    }
}

/// What was measured, and where.
#[derive(Serialize)]
struct Subject {
    /// Layout version.
    schema: u32,
    model: String,
    engine: &'static str,
    batch: usize,
    /// Instruction set of the kernels, where the engine chooses one.
    isa: Option<String>,
    /// Where it computed, for an engine that can compute in several places.
    #[serde(flatten)]
    backend: Option<BackendReport>,
    /// The core that the one thread was pinned to.
    core: u16,
}

impl Subject {
    fn new(
        manifest: &Manifest,
        engine: &dyn engine::Engine,
        batch: usize,
        core: CoreId,
    ) -> Subject {
        Subject {
            schema: 1,
            model: manifest.name.clone(),
            engine: engine.kind().name(),
            batch,
            isa: engine.describe().isa,
            backend: engine.backend().cloned(),
            core: core.0,
        }
    }
}

/// Times of one engine at one batch size.
#[derive(Serialize)]
struct EngineReport {
    #[serde(flatten)]
    subject: Subject,
    iterations: usize,
    /// Whole runs, inputs and outputs in place, in the order in which they ran.
    run_ns: Vec<u64>,
    min_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
    /// Allocator calls of this program during the timed runs; those that ONNX Runtime makes through the
    /// C library are not among them.
    allocator_calls: u64,
    /// With `--profile`: the steps of the plan, timed one by one in runs of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    steps: Vec<StepReport>,
}

/// With `--per-row`: a batch beside its rows one by one.
#[derive(Serialize)]
struct PerRowReport {
    #[serde(flatten)]
    subject: Subject,
    /// How often both sides were timed.
    pairs: usize,
    /// Whether the last runs of both sides had the same bits.
    same_answers: bool,
    #[serde(flatten)]
    cost: RowCost,
    /// With `--profile`: the steps of both plans, in pairs of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    steps: Vec<StepCost>,
}

/// Time of one step of a plan.
#[derive(Serialize)]
struct StepReport {
    step: String,
    /// Floating point operations of a run.
    flops: u64,
    /// Median over the runs; all turns of the step in a run together.
    p50_ns: u64,
}

/// Runs of one batch size before the next one's turn.
const BLOCK_RUNS: usize = 10;

fn engine(args: &BenchEngineArgs) -> Outcome {
    let config = |e: &dyn std::fmt::Display| Exit::new(Code::Config, e);
    let failed = |e: engine::RunError| Exit::new(Code::Failure, e);
    let mut manifest = models::manifest(&args.model)?;
    manifest.isa = args.isa.or(manifest.isa);
    let core = match args.core {
        Some(core) => CoreId(core),
        None => {
            let allowed = affinity::allowed().map_err(|e| config(&e))?;
            *allowed.last().ok_or_else(|| config(&"the scheduler allows no core"))?
        }
    };
    let kind = args.engine.kind();
    fits_engine(args, kind)?;
    let bytes = match (kind, &manifest.fake) {
        (EngineKind::Fake, Some(_)) => Vec::new(),
        (EngineKind::Fake, None) | (_, Some(_)) => {
            let text = format!(
                "model {} and engine {} do not go together: engine fake runs models without a file, \
                 such as synthetic, and no other engine does",
                manifest.name,
                kind.name()
            );
            return Err(Exit::new(Code::Usage, text));
        }
        (_, None) => files::read(&manifest.file, MODEL_FILE_BYTES_MAX)
            .map_err(|e| config(&format_args!("{}: {e}", manifest.file.display())))?,
    };
    let mut settings = manifest.ort_settings();
    settings.library.clone_from(&args.onnxruntime);
    if !args.provider.is_empty() {
        settings.providers = parse_providers(&args.provider)
            .map_err(|e| Exit::new(Code::Usage, format_args!("--provider: {e}")))?;
    }
    let mut batches: Vec<usize> = args.batch.iter().map(|&b| usize::from(b)).collect();
    if args.per_row {
        batches.push(1);
    }
    batches.sort_unstable();
    batches.dedup();
    if args.per_row && batches == [1] {
        let text = "--per-row holds a batch against its rows: give a --batch above 1";
        return Err(Exit::new(Code::Usage, text));
    }
    let iterations = args.iterations as usize;
    if args.per_row && iterations < PAIRS_MIN {
        let text = format!(
            "--iterations {iterations}: --per-row gives the range of a median, which takes at least \
             {PAIRS_MIN} pairs"
        );
        return Err(Exit::new(Code::Usage, text));
    }
    let request = LoadRequest {
        bytes: &bytes,
        batch_sizes: &batches,
        bind_axes: &manifest.bind_axes,
        bind_inputs: &manifest.bind_inputs,
        arena_bytes_max: manifest.arena_bytes_max,
        isa: manifest.kernels(),
    };
    // Pinned before the engine looks at the machine, as a worker is.
    affinity::pin(core).map_err(|e| config(&e))?;
    let engine = match (kind, &manifest.fake) {
        (EngineKind::Ort, _) => engine::ort::load_with(&request, &settings, &|signature| {
            golden_inputs(&manifest, signature)
        }),
        (EngineKind::Fake, Some(fake)) => {
            let sizes: &[usize] = if fake.signature.batched { &batches } else { &[1] };
            FakeEngine::new(fake.signature.clone(), sizes, fake.compute)
                .map(|engine| Box::new(engine.with_work(fake.work)) as Box<dyn engine::Engine>)
        }
        (kind, _) => engine::load(kind, &request),
    }
    .map_err(|e| config(&e))?;
    if engine.batch_sizes() != batches {
        let text = format!("the model has no batch axis; it runs at batch 1, not {batches:?}");
        return Err(config(&text));
    }
    if args.profile && engine.steps(PlanIndex(0)).is_empty() {
        let text = format!("--profile times the steps of a plan: engine {} has none", kind.name());
        return Err(Exit::new(Code::Usage, text));
    }
    let mut instance = engine.instance().map_err(|e| config(&e))?;
    if args.per_row {
        return per_row(args, &manifest, &*engine, &mut *instance, core);
    }
    let mut golden = true;
    let mut reports = vec![];
    for (plan, &batch) in batches.iter().enumerate() {
        golden &= fill(&mut *instance, &*engine, &manifest, PlanIndex(plan), batch);
        instance.warm_up(PlanIndex(plan)).map_err(failed)?;
        reports.push(EngineReport {
            subject: Subject::new(&manifest, &*engine, batch, core),
            iterations,
            run_ns: Vec::with_capacity(iterations),
            min_ns: 0,
            p50_ns: 0,
            p99_ns: 0,
            allocator_calls: 0,
            steps: vec![],
        });
    }
    // Batch sizes take turns, so that a slow spell of the machine meets them all.
    while reports.iter().any(|r| r.run_ns.len() < iterations) {
        for (plan, report) in reports.iter_mut().enumerate() {
            let first = report.run_ns.is_empty();
            for _ in 0..if first { WARM_RUNS } else { 1 } {
                instance.infer(PlanIndex(plan)).map_err(failed)?;
            }
            let calls = alloc::hot_calls();
            for _ in 0..BLOCK_RUNS.min(iterations - report.run_ns.len()) {
                alloc::set_hot(true);
                let start = clock::now();
                let result = instance.infer(PlanIndex(plan));
                let time = clock::now().since(start);
                alloc::set_hot(false);
                result.map_err(failed)?;
                report.run_ns.push(time.0);
            }
            report.allocator_calls += alloc::hot_calls() - calls;
        }
    }
    for (plan, report) in reports.iter_mut().enumerate() {
        let mut sorted = report.run_ns.clone();
        report.min_ns = percentile(&mut sorted, 0);
        report.p50_ns = percentile(&mut sorted, 500);
        report.p99_ns = percentile(&mut sorted, 990);
        if args.profile {
            report.steps = profile(&*engine, &mut *instance, PlanIndex(plan), iterations)?;
        }
    }
    let alone = (reports.first().filter(|r| r.subject.batch == 1)).map(|r| r.p50_ns as f64);
    for report in &reports {
        if args.json {
            print_json(report)?;
            continue;
        }
        outln!(
            "{} on engine {}{}, batch {}, {iterations} runs on core {core} of {}: min {}, p50 {}, \
             p99 {}; {} allocator calls{}",
            report.subject.model,
            report.subject.engine,
            report.subject.isa.as_ref().map_or(String::new(), |isa| format!(" ({isa})")),
            report.subject.batch,
            if golden { "the first golden row" } else { "zeros" },
            tensors::span(report.min_ns),
            tensors::span(report.p50_ns),
            tensors::span(report.p99_ns),
            report.allocator_calls,
            match alone {
                Some(alone) if report.subject.batch > 1 => {
                    let row = report.p50_ns as f64 / report.subject.batch as f64;
                    format!("; a row takes {:.3} of its time alone", row / alone)
                }
                _ => String::new(),
            }
        );
        let all = report.steps.iter().map(|s| s.p50_ns).sum::<u64>().max(1);
        for (i, step) in report.steps.iter().enumerate() {
            outln!(
                "{i:>4} {:>10} {:>5.1} % {:>7.2} GFLOP/s  {}",
                tensors::span(step.p50_ns),
                step.p50_ns as f64 * 100.0 / all as f64,
                step.flops as f64 / step.p50_ns.max(1) as f64,
                step.step
            );
        }
    }
    Ok(())
}

/// Refuses what another engine would take.
fn fits_engine(args: &BenchEngineArgs, kind: EngineKind) -> Outcome {
    let of_one = [
        ("--provider", !args.provider.is_empty(), EngineKind::Ort),
        ("--onnxruntime", args.onnxruntime.is_some(), EngineKind::Ort),
        ("--isa", args.isa.is_some(), EngineKind::Plan),
    ];
    match of_one.iter().find(|(_, given, engine)| *given && kind != *engine) {
        Some((option, _, engine)) => {
            let text = format!(
                "{option} is for engine {}: engine {} takes none",
                engine.name(),
                kind.name()
            );
            Err(Exit::new(Code::Usage, text))
        }
        None => Ok(()),
    }
}

/// Each batch size beside its rows one by one.
fn per_row(
    args: &BenchEngineArgs,
    manifest: &Manifest,
    engine: &dyn engine::Engine,
    instance: &mut dyn engine::Instance,
    core: CoreId,
) -> Outcome {
    let failed = |e: engine::RunError| Exit::new(Code::Failure, e);
    let pairs = args.iterations as usize;
    let goldens: Vec<_> = (engine.signature().inputs.iter().enumerate())
        .map(|(k, spec)| golden_rows(manifest, k, spec))
        .collect();
    let golden = goldens.iter().all(Option::is_some);
    for (plan, &batch) in engine.batch_sizes().iter().enumerate() {
        fill(instance, engine, manifest, PlanIndex(plan), batch);
        instance.warm_up(PlanIndex(plan)).map_err(failed)?;
    }
    for (plan, &batch) in engine.batch_sizes().iter().enumerate().filter(|(_, b)| **b > 1) {
        let row = |k: usize, row: usize, bytes: &mut [u8]| {
            if let Some(golden) = &goldens[k] {
                let rows = golden.len() / bytes.len();
                bytes.copy_from_slice(&golden[row % rows * bytes.len()..][..bytes.len()]);
            }
        };
        // Batch size 1 is among the sizes.
        let Some(mut rows) = Rows::new(engine, PlanIndex(plan), row) else { continue };
        if args.profile && !rows.same_steps() {
            let text = format!(
                "--per-row --profile: the plans for 1 row and for {batch} are not made of the same steps"
            );
            return Err(Exit::new(Code::Failure, text));
        }
        let cost = rows.measure(instance, pairs).map_err(failed)?;
        let same_answers = rows.same_answers();
        let steps = match args.profile {
            true => rows.steps(instance, pairs).map_err(failed)?,
            false => vec![],
        };
        let report = PerRowReport {
            subject: Subject::new(manifest, engine, batch, core),
            pairs,
            same_answers,
            cost,
            steps,
        };
        if args.json {
            print_json(&report)?;
            continue;
        }
        let ratio = &report.cost.ratio;
        outln!(
            "{} on engine {}, batch {batch} beside its rows alone, {pairs} pairs of {} runs on core {core} of \
             {}: a row takes {:.3} of its time alone (95 %: {:.3} to {:.3}; quartiles {:.3} and {:.3}; of \
             minima {:.3}); alone p50 {}, in the batch {}; {} allocator calls; answers {}",
            report.subject.model,
            report.subject.engine,
            report.cost.repeats,
            if golden { "golden rows" } else { "zeros" },
            ratio.median,
            ratio.median_low,
            ratio.median_high,
            ratio.quartile_1,
            ratio.quartile_3,
            ratio.of_minima,
            tensors::span(percentile(&mut report.cost.alone_ns.clone(), 500) / batch as u64),
            tensors::span(percentile(&mut report.cost.batch_ns.clone(), 500) / batch as u64),
            report.cost.allocator_calls,
            if report.same_answers { "have the same bits" } else { "differ in bits" },
        );
        for (i, step) in report.steps.iter().enumerate() {
            outln!(
                "{i:>4} alone {:>10}, in the batch {:>10}: {:.3} ({:.3} to {:.3})  {}",
                tensors::span(step.alone_p50_ns / batch as u64),
                tensors::span(step.batch_p50_ns / batch as u64),
                step.ratio.median,
                step.ratio.quartile_1,
                step.ratio.quartile_3,
                step.step
            );
        }
    }
    Ok(())
}

/// Time of each step of a plan.
fn profile(
    engine: &dyn engine::Engine,
    instance: &mut dyn engine::Instance,
    plan: PlanIndex,
    iterations: usize,
) -> Result<Vec<StepReport>, Exit> {
    let steps = engine.steps(plan);
    let mut times = vec![Vec::with_capacity(iterations); steps.len()];
    let mut run = vec![0; steps.len()];
    for _ in 0..iterations {
        run.fill(0);
        instance.infer_profiled(plan, &mut run).map_err(|e| Exit::new(Code::Failure, e))?;
        for (times, &ns) in times.iter_mut().zip(&run) {
            times.push(ns);
        }
    }
    Ok((steps.into_iter().zip(&mut times))
        .map(|(s, times)| StepReport {
            step: s.text,
            flops: s.flops,
            p50_ns: percentile(times, 500),
        })
        .collect())
}

/// Fills every row with the model's first golden one; zeros where it has none. Returns which.
fn fill(
    instance: &mut dyn engine::Instance,
    engine: &dyn engine::Engine,
    manifest: &Manifest,
    plan: PlanIndex,
    batch: usize,
) -> bool {
    let mut golden = true;
    for (k, spec) in engine.signature().inputs.iter().enumerate() {
        let rows = golden_rows(manifest, k, spec);
        golden &= rows.is_some();
        let staging = &mut instance.input_mut(plan, k)[..batch * spec.row_bytes()];
        for to in staging.chunks_exact_mut(spec.row_bytes()) {
            match &rows {
                Some(rows) => to.copy_from_slice(&rows[..spec.row_bytes()]),
                None => to.fill(0),
            }
        }
    }
    golden
}

/// The model's golden rows of input `k`, if it has any that fit.
fn golden_rows(manifest: &Manifest, k: usize, spec: &TensorSpec) -> Option<Vec<u8>> {
    let array =
        tensors::read_npy(&manifest.dir.as_ref()?.join(format!("golden/input_{k}.npy"))).ok()?;
    (array.dtype == spec.dtype && array.data.len() >= spec.row_bytes()).then_some(array.data)
}

fn overhead(args: &BenchOverheadArgs) -> Outcome {
    let default = Effort::default();
    let effort = Effort {
        repeats: args.repeats.map_or(default.repeats, usize::from),
        iterations: args.iterations.map_or(default.iterations, |n| n as usize),
    };
    let setup = ModelSetup::read(&args.model).map_err(|e| Exit::new(Code::Config, e))?;
    if cfg!(feature = "hot-log") {
        // Nothing reads the rings here but the figure itself.
        hot::install(LOG_RING_BYTES_DEFAULT).map_err(|e| Exit::new(Code::Failure, e))?;
    }
    let report =
        overhead::measure(effort, Some(&setup)).map_err(|e| Exit::new(Code::Failure, e))?;
    if args.json {
        return print_json(&report);
    }
    outln!(
        "{}, cores {}; {} repeats of {} round trips, p50 in ns as median (least to largest)",
        report.machine,
        report.cores,
        report.repeats,
        report.iterations
    );
    for l in &report.latencies {
        outln!(
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
        outln!(
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
    if let Some(s) = &report.statement {
        outln!(
            "a log statement [pinned to core {}, in blocks of {}]: p50 {:.1} ns ({:.1} to {:.1}) where it \
             is told, {:.1} where its level is not; {} records lost; goal below {:.0}",
            s.core,
            s.per_block,
            s.told_p50_ns.median,
            s.told_p50_ns.min,
            s.told_p50_ns.max,
            s.off_p50_ns.median,
            s.lost,
            s.goal_ns
        );
    }
    Ok(())
}

fn print_json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string(value).map_err(|e| Exit::new(Code::Failure, e))?;
    outln!("{text}");
    Ok(())
}
