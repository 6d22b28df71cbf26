//! Half precision on the processor: what is compared, told, and refused. The models are made here.

use super::onnx::{Axis, Message, node, tensor, with_int};
use super::{Scratch, refusals};
use corelane::engine::ort::precision::PrecisionError;
use corelane::engine::{EngineErrorKind, PlanIndex};
use corelane::model::check::values;
use corelane::model::npy::{self, Array};
use corelane::model::{LoadedModel, Manifest, ModelError};
use corelane::units::DType;
use std::error::Error;
use std::path::Path;

const INPUTS: u64 = 4;
const CLASSES: u64 = 5;
/// ONNX's numbers of the element types.
const F32: u64 = 1;
const F16: u64 = 10;

/// Weights of a layer, the same each time, up to `largest`.
fn weights(largest: f32) -> Vec<f32> {
    let at = |i: u64| ((i * 37 % 101) as f32 / 50.0 - 1.0) * largest;
    (0..INPUTS * CLASSES).map(at).collect()
}

/// A node of a name of its own.
fn named(name: &str, operator: &str, inputs: &[&str], output: &str) -> Message {
    let mut node = Message::default();
    for input in inputs {
        node = node.bytes(1, input);
    }
    node.bytes(2, output).bytes(3, name).bytes(4, operator)
}

/// A file: nodes, the matrix `w`, and an output of a name.
fn file(nodes: &[Message], w: (u64, Vec<u8>), output: &str) -> Vec<u8> {
    let mut graph = Message::default();
    for node in nodes {
        graph = graph.bytes(1, node);
    }
    let matrix = Message::default().int(1, INPUTS).int(1, CLASSES).int(2, w.0);
    let matrix = matrix.bytes(8, "w").bytes(9, w.1);
    let rows = |name: &str, len: u64| tensor(name, &[Axis::Open("n"), Axis::Len(len)]);
    let graph = graph.bytes(2, "test").bytes(5, matrix);
    let graph = graph.bytes(11, rows("x", INPUTS)).bytes(12, rows(output, CLASSES));
    let opset = Message::default().int(2, 13);
    Message::default().int(1, 8).bytes(7, graph).bytes(8, opset).as_ref().to_vec()
}

/// `y = clip(x w)`, whose bounds are those of the type.
fn single(w: &[f32]) -> Vec<u8> {
    let nodes = [node("MatMul", &["x", "w"], "m"), node("Clip", &["m"], "y")];
    file(&nodes, (F32, w.iter().flat_map(|v| v.to_le_bytes()).collect()), "y")
}

/// What a file in half precision is.
#[derive(Clone, Copy)]
enum Made {
    /// As it should be. `Clip` is what the processor computes in half precision.
    Good,
    /// With another output than the model has.
    OtherOutput,
    /// Nothing in it that the processor computes in half precision.
    Widened,
}

fn half(w: &[f32], made: Made) -> Vec<u8> {
    let w: Vec<u8> = w.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect();
    let last = match made {
        Made::Widened => node("Relu", &["m"], "c"),
        _ => node("Clip", &["m"], "c"),
    };
    let output = match made {
        Made::OtherOutput => "z",
        _ => "y",
    };
    let nodes = [
        with_int(named("to_half", "Cast", &["x"], "h"), "to", F16),
        node("MatMul", &["h", "w"], "m"),
        last,
        with_int(named("to_single", "Cast", &["c"], output), "to", F32),
    ];
    file(&nodes, (F16, w), output)
}

/// A model directory.
fn directory(name: &str, single: &[u8], half: Option<&[u8]>, more: &str) -> Scratch {
    let scratch = Scratch::new(name);
    std::fs::write(scratch.0.join("model.onnx"), single).unwrap();
    if let Some(half) = half {
        std::fs::write(scratch.0.join("model_fp16.onnx"), half).unwrap();
    }
    let manifest = format!(
        "name = 'half'\nengine = 'ort'\nbatch_sizes = [1, 4]\n[ort]\nprecision = 'fp16'\n{more}"
    );
    std::fs::write(scratch.0.join("manifest.toml"), manifest).unwrap();
    scratch
}

fn load(dir: &Path, library: &Path) -> Result<LoadedModel, ModelError> {
    let mut manifest = Manifest::read(dir).unwrap_or_else(|e| panic!("{e}"));
    manifest.ort.library = Some(library.into());
    LoadedModel::load(manifest)
}

fn npy(rows: usize, values: &[f32]) -> Vec<u8> {
    npy::write(&Array {
        dtype: DType::F32,
        shape: vec![rows, values.len() / rows],
        data: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    })
}

#[test]
fn half_precision_is_compared_with_single_and_told() {
    let Some(library) = refusals() else { return };
    let w = weights(1.0);
    let dir = directory("half", &single(&w), Some(&half(&w, Made::Good)), "");
    // Goldens of single precision: they are compared within what half precision may differ.
    let rows: Vec<f32> = (0..2 * INPUTS).map(|i| i as f32 / 3.0 - 1.0).collect();
    let answers: Vec<f32> = (rows.chunks(INPUTS as usize))
        .flat_map(|row| {
            let dot = |class: usize| {
                row.iter().enumerate().map(|(i, x)| x * w[i * CLASSES as usize + class]).sum()
            };
            (0..CLASSES as usize).map(dot).collect::<Vec<f32>>()
        })
        .collect();
    std::fs::create_dir(dir.0.join("golden")).unwrap();
    std::fs::write(dir.0.join("golden/input_0.npy"), npy(2, &rows)).unwrap();
    std::fs::write(dir.0.join("golden/output_0.npy"), npy(2, &answers)).unwrap();

    let loaded = load(&dir.0, library).unwrap_or_else(|e| panic!("{e}"));
    assert!(loaded.batching.enabled, "{:?}", loaded.batching);
    assert_eq!((loaded.golden_rows, loaded.manifest.tolerance), (2, 1e-2));
    let report = loaded.engine.backend().unwrap().backend_precision.clone().unwrap();
    println!("{report}");
    assert_eq!((report.wanted, report.golden_rows, report.random_rows), ("fp16", 2, 16));
    assert!(report.from.ends_with("model_fp16.onnx"), "{report}");
    // Half precision has 11 bits: there is a difference, and it is small.
    assert!(report.largest_difference > 1e-6 && report.largest_difference < 2e-3, "{report}");
    assert!(report.mean_difference > 0.0 && report.mean_difference < report.largest_difference);
    assert!(report.top1_agreement.is_some_and(|share| share > 0.9), "{report}");
    assert_eq!(report.half_nodes, Some(1), "{report}");
    assert!(report.nodes > 2, "{report}");
    let json = serde_json::to_value(loaded.inspect()).unwrap();
    assert_eq!(json["backend_precision"]["wanted"], "fp16");
    assert_eq!(json["backend_precision"]["largest_difference"], report.largest_difference);
    assert_eq!(json["precision"][0], report.to_string());

    // It is the file in half precision that answers.
    let mut instance = loaded.engine.instance().unwrap();
    let row: Vec<u8> = rows[..INPUTS as usize].iter().flat_map(|v| v.to_le_bytes()).collect();
    instance.input_mut(PlanIndex(0), 0)[..row.len()].copy_from_slice(&row);
    instance.infer(PlanIndex(0)).unwrap();
    for value in values(DType::F32, &instance.output(PlanIndex(0), 0)[..CLASSES as usize * 4]) {
        assert_eq!(value, half::f16::from_f64(value).to_f64(), "not a half");
    }
}

#[test]
fn half_precision_that_strays_or_is_none_is_refused_with_its_figures() {
    let Some(library) = refusals() else { return };
    let (small, large) = (weights(1.0), weights(60_000.0));
    let good = half(&small, Made::Good);
    let refuse = |name: &str, single: &[u8], half: Option<&[u8]>, more: &str| {
        let dir = directory(name, single, half, more);
        let error = load(&dir.0, library).err().unwrap_or_else(|| panic!("{name} was loaded"));
        let said = error.to_string();
        let ModelError::Engine { source, .. } = error else { panic!("{said}") };
        assert_eq!(source.kind(), EngineErrorKind::Precision, "{said}");
        (source, said)
    };
    let kind = |source: &corelane::engine::EngineError| match source.source() {
        Some(e) => format!("{:?}", e.downcast_ref::<PrecisionError>().expect("typed")),
        None => panic!("no source"),
    };

    // Sums beyond 65504, the largest half.
    let overflow = half(&large, Made::Good);
    let (source, said) = refuse("overflow", &single(&large), Some(&overflow), "");
    let Some(PrecisionError::Strays(report)) = source.source().unwrap().downcast_ref() else {
        panic!("{said}")
    };
    assert!(report.largest_difference > 0.1 && report.tolerance == 1e-2, "{report}");
    assert!(report.mean_difference > 0.0 && report.top1_agreement.is_some(), "{report}");
    assert!(said.contains(&report.to_string()) && said.contains("fp16_tolerance"), "{said}");
    println!("{said}");

    // Good halves, but none may differ.
    let (_, said) = refuse("strict", &single(&small), Some(&good), "fp16_tolerance = 0");
    assert!(said.contains("(at most 0.0e0)"), "{said}");

    let (source, said) = refuse("none", &single(&small), None, "");
    assert!(kind(&source).starts_with("NoWay"), "{said}");
    assert!(said.contains("from cpu") && said.contains("MODEL_fp16.onnx"), "{said}");

    let (source, said) = refuse("gone", &single(&small), Some(&good), "fp16_file = 'gone.onnx'");
    assert!(kind(&source).starts_with("Io") && said.contains("gone.onnx"), "{said}");

    let cut = &good[..good.len() / 2];
    let (source, said) = refuse("cut", &single(&small), Some(cut), "");
    assert!(kind(&source).starts_with("Model") && said.contains("model_fp16.onnx"), "{said}");

    let other = half(&small, Made::OtherOutput);
    let (source, said) = refuse("other", &single(&small), Some(&other), "");
    assert!(kind(&source).starts_with("Interface"), "{said}");
    assert!(said.contains("output 0 is \"z\"") && said.contains("\"y\""), "{said}");

    let widened = half(&small, Made::Widened);
    let (source, said) = refuse("widened", &single(&small), Some(&widened), "");
    assert!(kind(&source).starts_with("NotHalf") && said.contains("nodes on cpu"), "{said}");
}
