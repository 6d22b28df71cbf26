use super::*;
use crate::engine::kernels::Isa;
use crate::engine::{EngineErrorKind, PlanIndex};
use std::path::PathBuf;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models")
}

/// A copy of `models/mlp` that may be damaged, removed when dropped.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Copy {
        let dir = std::env::temp_dir().join(format!("corelane-load-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        copy_dir(&models().join("mlp"), &dir);
        Copy(dir)
    }
    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    fn error(&self) -> ModelError {
        LoadedModel::read(&self.0).err().expect("loading must fail")
    }
    /// Drops the manifest, so that the hash is not looked at.
    fn without_manifest(self) -> Self {
        std::fs::remove_file(self.file("manifest.toml")).unwrap();
        self
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_model_is_computed_by_the_kernels_that_its_manifest_names() {
    let mut manifest = Manifest::read(&models().join("mlp")).unwrap();
    for isa in Isa::ALL {
        manifest.isa = Some(isa);
        match LoadedModel::load(manifest.clone()) {
            Ok(model) => assert_eq!(model.engine.describe().isa.as_deref(), Some(isa.name())),
            Err(error) => {
                let text = format!("this processor can't run {} kernels", isa.name());
                assert!(!isa.available() && error.to_string().contains(&text), "{error}");
            }
        }
    }
}

#[test]
fn a_model_is_loaded_and_verified() {
    let model = LoadedModel::read(models().join("mlp")).unwrap();
    assert_eq!(model.manifest.name, "mlp");
    assert!(model.batching.enabled, "{:?}", model.batching);
    assert_eq!(model.golden_rows, 4);
    assert!(model.golden_difference.unwrap() <= 1e-5);
    assert!(model.batching.max_difference.unwrap() <= 1e-5);
    let json = serde_json::to_value(model.inspect()).unwrap();
    assert_eq!(json["inputs"][0]["shape"], serde_json::json!(["batch", "64"]));
    assert_eq!(json["batch_axis"], 0);
    assert_eq!(json["batching"]["got"], 32);
    assert!(!json["operators"].as_array().unwrap().is_empty());
}

#[test]
fn a_bare_file_is_loaded_without_goldens() {
    let mut manifest = Manifest::read(&models().join("mlp/model.onnx")).unwrap();
    manifest.limit_batches(2);
    let model = LoadedModel::load(manifest).unwrap();
    assert_eq!(model.golden_rows, 0);
    assert!(model.batching.enabled && model.batching.max_difference.is_some());
}

#[test]
fn another_file_than_the_manifest_says_is_refused() {
    let copy = Copy::new("hash");
    let mut bytes = std::fs::read(copy.file("model.onnx")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(copy.file("model.onnx"), &bytes).unwrap();
    let error = copy.error();
    let ModelError::Hash { wanted, got, .. } = &error else { panic!("{error}") };
    assert_eq!(*got, sha256_hex(&bytes));
    assert!(error.to_string().contains(wanted) && error.to_string().contains(got));
}

#[test]
fn missing_truncated_and_foreign_files_are_typed_errors() {
    let copy = Copy::new("damaged").without_manifest();
    let path = copy.file("model.onnx");
    let bytes = std::fs::read(&path).unwrap();
    for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let error = copy.error();
        let ModelError::Engine { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), EngineErrorKind::Malformed, "cut at {cut}: {error}");
    }
    std::fs::write(&path, b"#!/bin/sh\necho not a model\n").unwrap();
    let ModelError::Engine { source, .. } = copy.error() else { panic!("not an engine error") };
    assert_eq!(source.kind(), EngineErrorKind::Malformed);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(copy.error(), ModelError::NotAModel { .. }));
    std::fs::write(copy.file("manifest.toml"), "").unwrap();
    assert!(matches!(copy.error(), ModelError::Io { what: "the model file", .. }));
}

#[test]
fn a_model_that_answers_otherwise_than_its_goldens_is_refused() {
    let copy = Copy::new("golden");
    let path = copy.file("golden/output_0.npy");
    let mut golden = std::fs::read(&path).unwrap();
    let at = golden.len() - 4;
    golden[at..].copy_from_slice(&1000f32.to_le_bytes());
    std::fs::write(&path, golden).unwrap();
    let error = copy.error();
    let ModelError::GoldenMismatch { row: 0, element: 9, wanted, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(wanted, 1000.0);
}

#[test]
fn a_wrong_golden_row_in_a_batch_is_the_models_fault() {
    let copy = Copy::new("golden-row");
    let path = copy.file("golden/batch4/output_0.npy");
    let mut golden = std::fs::read(&path).unwrap();
    let at = golden.len() - 4;
    golden[at..].copy_from_slice(&1000f32.to_le_bytes());
    std::fs::write(&path, golden).unwrap();
    let error = copy.error();
    assert!(matches!(&error, ModelError::GoldenMismatch { row: 3, element: 9, .. }), "{error}");
}

#[test]
fn goldens_of_another_shape_are_refused() {
    let copy = Copy::new("golden-shape");
    std::fs::copy(models().join("resnet8/golden/input_0.npy"), copy.file("golden/input_0.npy"))
        .unwrap();
    let error = copy.error();
    assert!(matches!(&error, ModelError::GoldenShape { .. }), "{error}");
    assert!(error.to_string().contains("float32 rows of [64]"), "{error}");
    std::fs::write(copy.file("golden/input_0.npy"), b"junk").unwrap();
    assert!(matches!(copy.error(), ModelError::GoldenFile { .. }));
    std::fs::remove_file(copy.file("golden/input_0.npy")).unwrap();
    assert!(matches!(copy.error(), ModelError::Io { what: "a golden file", .. }));
}

#[test]
fn labels_must_fit_the_classes() {
    let copy = Copy::new("labels");
    std::fs::write(copy.file("manifest.toml"), "labels = ['a', 'b']").unwrap();
    let error = copy.error();
    assert!(matches!(error, ModelError::Labels { labels: 2, classes: 10, .. }), "{error}");
}

#[test]
fn a_bound_batch_axis_means_no_batching() {
    let copy = Copy::new("bound");
    std::fs::remove_dir_all(copy.file("golden")).unwrap();
    std::fs::write(copy.file("manifest.toml"), "bind_axes = { batch = 3 }").unwrap();
    let model = LoadedModel::read(&copy.0).unwrap();
    assert!(!model.batching.enabled);
    assert_eq!((model.batching.wanted, model.batching.got), (8, 1));
    assert!(model.batching.reason.unwrap().contains("axis 0"));
    assert_eq!(model.manifest.max_request_rows, 1);
    assert_eq!(model.engine.signature().inputs[0].row_shape, [3, 64]);
}

#[test]
fn the_fake_engine_is_made_from_its_manifest() {
    let copy = Copy::new("fake");
    std::fs::remove_dir_all(copy.file("golden")).unwrap();
    let text = "engine = 'fake'\nmax_batch_size = 2\n[fake]\ninputs = [{ name = 'x', shape = [2] }]\n\
                outputs = [{ name = 'y', shape = [2] }]\n";
    std::fs::write(copy.file("manifest.toml"), text).unwrap();
    let model = LoadedModel::read(&copy.0).unwrap();
    assert!(model.batching.enabled && model.sha256.is_none());
    let mut instance = model.engine.instance().unwrap();
    instance.input_mut(PlanIndex(1), 0)[8..].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    instance.infer(PlanIndex(1)).unwrap();
    assert_eq!(instance.output(PlanIndex(1), 0)[8..], [1, 2, 3, 4, 5, 6, 7, 8]);
}
