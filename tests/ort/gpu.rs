//! What needs an NVIDIA GPU, its driver, and a library with the CUDA provider. Elsewhere each test says
//! why it is skipped. These have not been run yet: no machine with a GPU was at hand. What they do is done on
//! the processor too ([`the_same_on_the_processor`]), so that it is known to work.
//!
//! Figures are printed, and no test depends on them; `cargo bench --bench ort --features ort -- --provider
//! cuda --batch 1,8,32,64` compares with a bare loop.

use super::{Scratch, library, model_dir, refusals, rows, settings};
use corelane::engine::kernels::Isa;
use corelane::engine::ort::settings::Precision;
use corelane::engine::ort::{OrtSettings, Unbound};
use corelane::engine::{EngineErrorKind, EngineKind, Instance, LoadRequest, PlanIndex};
use corelane::lab::sample::percentile;
use corelane::limits::ARENA_BYTES_MAX_DEFAULT;
use corelane::model::check::values;
use corelane::model::{LoadedModel, Manifest, ModelError};
use corelane::sys::clock;
use corelane::units::DType;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

/// Batch sizes that are shown.
const SIZES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// How far a GPU may be from the processor, absolute, where answers are shares: it takes shorter products
/// unless told otherwise.
const FAR: f64 = 1e-2;

/// Whether the driver shows a GPU.
pub fn present() -> bool {
    std::fs::read_dir("/proc/driver/nvidia/gpus").is_ok_and(|mut gpus| gpus.next().is_some())
}

/// The library, where there is a GPU and the library can use it.
fn gpu_library() -> Option<PathBuf> {
    if !present() {
        println!("skipped: no NVIDIA GPU (/proc/driver/nvidia/gpus shows none)");
        return None;
    }
    let found = library::library()?;
    let (library, providers) = corelane::engine::ort::providers(Some(&found)).unwrap();
    if !providers.iter().any(|p| p == "CUDAExecutionProvider") {
        println!("skipped: {} has no CUDA provider", library.path.display());
        return None;
    }
    Some(found)
}

#[test]
fn cuda_computes_and_answers_as_the_processor() {
    let Some(found) = gpu_library() else { return };
    let load = |providers: &[&str]| {
        let mut manifest = Manifest::read(&model_dir("resnet8")).unwrap();
        manifest.engine = EngineKind::Ort;
        manifest.ort = settings(&found, providers);
        // Convolutions on a GPU use shorter products unless told otherwise.
        manifest.tolerance = 1e-2;
        LoadedModel::load(manifest).unwrap_or_else(|e| panic!("{e}"))
    };
    let (cuda, cpu) = (load(&["cuda", "cpu"]), load(&["cpu"]));
    let backend = cuda.engine.backend().unwrap();
    assert!(backend.backend_got.iter().any(|b| b.provider == "cuda" && b.nodes > 0), "{backend:?}");
    assert!(backend.backend_canary.is_some());
    assert_eq!(backend.backend_pinned, Some(true));
    let rows = rows(&cpu, cuda.engine.batch_sizes()[0]);
    let run = |model: &LoadedModel| {
        let mut instance = model.engine.instance().unwrap();
        instance.input_mut(PlanIndex(0), 0).copy_from_slice(&rows.concat());
        // Twice: the second run must see the bytes that were written last.
        instance.infer(PlanIndex(0)).unwrap();
        instance.input_mut(PlanIndex(0), 0).copy_from_slice(&rows.concat());
        instance.infer(PlanIndex(0)).unwrap();
        values(model.engine.signature().outputs[0].dtype, instance.output(PlanIndex(0), 0))
    };
    for (a, b) in run(&cuda).iter().zip(run(&cpu)) {
        assert!((a - b).abs() < 1e-2, "{a} on the GPU, {b} on the processor");
    }
}

/// The library, where it has TensorRT too.
fn tensorrt_library() -> Option<PathBuf> {
    let found = gpu_library()?;
    let (library, providers) = corelane::engine::ort::providers(Some(&found)).unwrap();
    if !providers.iter().any(|p| p == "TensorrtExecutionProvider") {
        println!("skipped: {} has no TensorRT provider", library.path.display());
        return None;
    }
    Some(found)
}

fn load(ort: OrtSettings, sizes: &[usize]) -> Result<LoadedModel, ModelError> {
    let mut manifest = Manifest::read(&model_dir("resnet8")).unwrap();
    manifest.engine = EngineKind::Ort;
    manifest.ort = ort;
    manifest.batch_sizes = sizes.to_vec();
    manifest.max_batch_size = sizes[sizes.len() - 1];
    manifest.preferred_batch_size = Vec::new();
    manifest.tolerance = FAR;
    LoadedModel::load(manifest)
}

fn run(instance: &mut dyn Instance, plan: usize, input: &[u8]) -> Vec<f64> {
    instance.input_mut(PlanIndex(plan), 0)[..input.len()].copy_from_slice(input);
    instance.infer(PlanIndex(plan)).unwrap();
    values(DType::F32, instance.output(PlanIndex(plan), 0))
}

fn same(got: &[f64], wanted: &[f64], what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (n, (a, b)) in got.iter().zip(wanted).enumerate() {
        assert!((a - b).abs() <= FAR, "{what}: value {n} is {a} instead of {b}");
    }
}

/// Median of 20 runs in nanoseconds, after 3 that don't count.
fn p50(mut run: impl FnMut()) -> u64 {
    let mut times = Vec::new();
    for n in 0..23 {
        let start = clock::now();
        run();
        if n >= 3 {
            times.push(clock::now().since(start).0);
        }
    }
    percentile(&mut times, 500)
}

/// Every batch size answers as the processor does, with bound tensors (as it is served) and without.
fn every_batch_size(library: &Path, providers: &[&str]) {
    let loaded = load(settings(library, providers), &SIZES).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(loaded.engine.batch_sizes(), SIZES, "{:?}", loaded.batching);
    let plan = LoadedModel::read(model_dir("resnet8")).unwrap();
    let mut reference = plan.engine.instance().unwrap();
    let rows = rows(&plan, SIZES[SIZES.len() - 1]);
    let wanted: Vec<Vec<f64>> = rows.iter().map(|r| run(&mut *reference, 0, r)).collect();
    let mut instance = loaded.engine.instance().unwrap();
    let bytes = std::fs::read(model_dir("resnet8").join("model.onnx")).unwrap();
    let request = LoadRequest {
        bytes: &bytes,
        batch_sizes: &SIZES,
        bind_axes: &[],
        bind_inputs: &[],
        arena_bytes_max: ARENA_BYTES_MAX_DEFAULT,
        isa: Isa::detect(),
    };
    let mut unbound = Unbound::new(&request, &settings(library, providers)).unwrap();
    for (n, &size) in SIZES.iter().enumerate() {
        let input = rows[..size].concat();
        let wanted = wanted[..size].concat();
        same(&run(&mut *instance, n, &input), &wanted, &format!("batch {size}, bound"));
        let answer = unbound.run(size, &[&input]).unwrap();
        same(&values(DType::F32, &answer[0]), &wanted, &format!("batch {size}, unbound"));
        let unbound_ns = p50(|| drop(unbound.run(size, &[&input]).unwrap()));
        let bound_ns = p50(|| drop(run(&mut *instance, n, &input)));
        let rate = |ns: u64| size as f64 * 1e9 / ns as f64;
        println!(
            "{providers:?}, batch {size}: bound p50 {} us, {:.0} rows/s; unbound {} us, {:.0} rows/s",
            bound_ns / 1000,
            rate(bound_ns),
            unbound_ns / 1000,
            rate(unbound_ns)
        );
    }
}

/// Two instances at once, each on a thread of its own, answer with their own rows.
fn two_instances(ort: OrtSettings) {
    let providers: Vec<String> = ort.providers.iter().map(ToString::to_string).collect();
    let what = format!("{}, graphs: {}", providers.join(", "), ort.cuda_graph);
    let loaded = load(ort, &[1, 8]).unwrap_or_else(|e| panic!("{e}"));
    let rows = rows(&loaded, 16);
    let inputs = [rows[..8].concat(), rows[8..].concat()];
    let wanted = inputs.each_ref().map(|input| {
        let mut instance = loaded.engine.instance().unwrap();
        run(&mut *instance, 1, input)
    });
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        for (input, wanted) in inputs.iter().zip(&wanted) {
            scope.spawn(|| {
                let mut instance = loaded.engine.instance().unwrap();
                together.wait();
                for _ in 0..50 {
                    same(&run(&mut *instance, 1, input), wanted, "beside another instance");
                }
                let ns = p50(|| drop(run(&mut *instance, 1, input)));
                println!("{what}: two at once, batch 8 p50 {} us each", ns / 1000);
            });
        }
    });
}

#[test]
fn the_same_on_the_processor() {
    let Some(library) = refusals() else { return };
    every_batch_size(library, &["cpu"]);
    two_instances(settings(library, &["cpu"]));
}

#[test]
fn cuda_at_every_batch_size() {
    let Some(found) = gpu_library() else { return };
    every_batch_size(&found, &["cuda", "cpu"]);
}

#[test]
fn two_instances_on_one_gpu() {
    let Some(found) = gpu_library() else { return };
    two_instances(settings(&found, &["cuda", "cpu"]));
}

/// Runs that are replayed answer as those that are not, at every batch size; two instances at once too.
#[test]
fn cuda_graphs_answer_as_runs_that_are_not_captured() {
    let Some(found) = gpu_library() else { return };
    let plain = || settings(&found, &["cuda", "cpu"]);
    let graphs = || OrtSettings { cuda_graph: true, ..plain() };
    let engines =
        [plain(), graphs()].map(|ort| load(ort, &SIZES).unwrap_or_else(|e| panic!("{e}")));
    for (engine, graph) in engines.iter().zip([false, true]) {
        let backend = engine.engine.backend().unwrap();
        assert_eq!(backend.backend_cuda_graph, Some(graph), "{backend:?}");
    }
    let rows = rows(&engines[0], SIZES[SIZES.len() - 1]);
    let [mut wanted, mut got] = engines.each_ref().map(|e| e.engine.instance().unwrap());
    // Twice, and other rows the second time: a graph must see the bytes that were written last.
    for turn in 0..2 {
        for (n, &size) in SIZES.iter().enumerate() {
            let mut of_turn = rows[..size].to_vec();
            of_turn.rotate_left(turn.min(size - 1));
            let input = of_turn.concat();
            let wanted = run(&mut *wanted, n, &input);
            same(&run(&mut *got, n, &input), &wanted, &format!("batch {size}, turn {turn}"));
        }
    }
    for (n, &size) in SIZES.iter().enumerate() {
        let input = rows[..size].concat();
        let (launched, replayed) =
            (p50(|| drop(run(&mut *wanted, n, &input))), p50(|| drop(run(&mut *got, n, &input))));
        println!(
            "batch {size}: launched p50 {} us, replayed {} us",
            launched / 1000,
            replayed / 1000
        );
    }
    two_instances(graphs());
}

/// While it waits for the GPU, a thread leaves its core to others.
#[test]
fn a_thread_sleeps_while_the_gpu_computes() {
    let Some(found) = gpu_library() else { return };
    let loaded = load(settings(&found, &["cuda", "cpu"]), &[64]).unwrap_or_else(|e| panic!("{e}"));
    let backend = loaded.engine.backend().unwrap();
    assert_eq!(backend.backend_sleeps, Some(true), "{backend:?}");
}

#[test]
fn a_gpu_without_enough_memory_is_named_with_what_is_free() {
    let Some(found) = gpu_library() else { return };
    let mut ort = settings(&found, &["cuda", "cpu"]);
    ort.gpu_memory_bytes_max = Some(4096);
    let error = load(ort, &SIZES).err().expect("4096 bytes are too few");
    let said = error.to_string();
    let ModelError::Engine { source, .. } = error else { panic!("{said}") };
    assert_eq!(source.kind(), EngineErrorKind::Limit, "{said}");
    assert!(said.contains("gpu_memory_bytes_max is 4096") && said.contains("are free"), "{said}");
    // Others are served.
    load(settings(&found, &["cuda", "cpu"]), &[1]).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn tensorrt_converts_to_half_precision_and_keeps_its_engines() {
    let Some(found) = tensorrt_library() else { return };
    let scratch = Scratch::new("engines");
    let ort = || OrtSettings {
        precision: Precision::Fp16,
        engine_cache: Some(scratch.0.clone()),
        ..settings(&found, &["tensorrt", "cuda", "cpu"])
    };
    let report = |model: &LoadedModel| model.engine.backend().unwrap().clone();
    let first = report(&load(ort(), &[1]).unwrap_or_else(|e| panic!("{e}")));
    let precision = first.backend_precision.unwrap();
    println!("{precision}");
    assert_eq!(precision.from, "tensorrt");
    assert!(precision.largest_difference > 0.0 && precision.golden_rows > 0, "{precision}");
    let kept = first.backend_engine_cache.unwrap();
    assert!(kept.engines > 0 && kept.reason.is_none(), "{kept:?}");
    let second = report(&load(ort(), &[1]).unwrap_or_else(|e| panic!("{e}")));
    assert_eq!(second.backend_engine_cache.unwrap(), kept, "the same directory and engines");
}
