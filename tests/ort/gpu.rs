//! What needs an NVIDIA GPU, its driver, and a library with the CUDA provider. Elsewhere each test says
//! why it is skipped. These have not been run yet: no machine with a GPU was at hand.

use super::{library, model_dir, rows, settings};
use corelane::engine::{EngineKind, PlanIndex};
use corelane::model::check::values;
use corelane::model::{LoadedModel, Manifest};
use std::path::PathBuf;

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
