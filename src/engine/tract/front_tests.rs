use super::*;
use std::path::PathBuf;

fn shared() -> Option<PathBuf> {
    let dir = std::env::var_os("CORELANE_SHARED_MODELS")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/models"));
    if dir.is_dir() {
        return Some(dir);
    }
    println!("skipped: no ../shared/models");
    None
}

#[test]
fn signatures_are_read_per_row() {
    let Some(dir) = shared() else { return };
    let bytes = std::fs::read(dir.join("magika.onnx")).unwrap();
    let parsed = parse(&bytes, &[], &[]).unwrap();
    assert!(parsed.signature.batched);
    assert_eq!(parsed.signature.inputs[0].name, "bytes");
    assert_eq!(parsed.signature.inputs[0].dtype, DType::I32);
    assert_eq!(parsed.signature.inputs[0].row_shape, [2048]);
    assert_eq!(parsed.signature.outputs[0].name, "target_label");
    assert_eq!(parsed.signature.outputs[0].row_shape, [214]);
    for batch in [1, 3] {
        let model = parsed.typed(batch).unwrap();
        let outlet = model.output_outlets().unwrap()[0];
        assert_eq!(model.outlet_fact(outlet).unwrap().shape.as_concrete().unwrap(), [batch, 214]);
    }
}

#[test]
fn damaged_files_are_malformed() {
    let Some(dir) = shared() else { return };
    let bytes = std::fs::read(dir.join("mlp.onnx")).unwrap();
    for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        let error = parse(&bytes[..cut], &[], &[]).err().map(|e| e.kind());
        assert_eq!(error, Some(EngineErrorKind::Malformed), "cut at {cut}");
    }
}

#[test]
fn bindings_that_name_nothing_are_refused() {
    let Some(dir) = shared() else { return };
    let bytes = std::fs::read(dir.join("mlp.onnx")).unwrap();
    let error = parse(&bytes, &[("sequence".into(), 4)], &[]).err().unwrap();
    assert_eq!(error.kind(), EngineErrorKind::Manifest);
    assert!(error.to_string().contains("sequence"));
    let error = parse(&bytes, &[], &[("mask".into(), 1.0)]).err().unwrap();
    assert_eq!(error.kind(), EngineErrorKind::Manifest);
    let error = parse(&bytes, &[("batch".into(), 0)], &[]).err().unwrap();
    assert_eq!(error.kind(), EngineErrorKind::Manifest);
}

#[test]
fn a_bound_batch_makes_a_model_of_one_row() {
    let Some(dir) = shared() else { return };
    let bytes = std::fs::read(dir.join("mlp.onnx")).unwrap();
    let parsed = parse(&bytes, &[("batch".into(), 3)], &[]).unwrap();
    assert!(!parsed.signature.batched);
    assert_eq!(parsed.signature.inputs[0].row_shape, [3, 64]);
    assert_eq!(parsed.typed(2).err().unwrap().kind(), EngineErrorKind::Batch);
}

#[test]
fn recurrent_attributes_that_would_be_ignored_are_refused() {
    use tract_onnx::pb::{AttributeProto, NodeProto};
    let node = |op_type: &str, attribute: AttributeProto| NodeProto {
        name: "rnn_1".into(),
        op_type: op_type.into(),
        attribute: vec![attribute],
        ..NodeProto::default()
    };
    let named = |name: &str| AttributeProto { name: name.into(), ..AttributeProto::default() };
    let direction = |s: &str| AttributeProto { s: s.into(), ..named("direction") };
    let activations = |all: &[&str]| AttributeProto {
        strings: all.iter().map(|s| s.as_bytes().to_vec()).collect(),
        ..named("activations")
    };
    let refused = [
        ("LSTM", direction("reverse"), "direction = reverse"),
        ("GRU", activations(&["Sigmoid", "Relu"]), "Relu"),
        ("LSTM", activations(&["Sigmoid", "Tanh", "Tanh", "Tanh", "Tanh", "Tanh"]), "activations"),
        ("RNN", AttributeProto { f: 0.5, ..named("clip") }, "clip = 0.5"),
        ("LSTM", AttributeProto { i: 1, ..named("input_forget") }, "input_forget"),
    ];
    for (op_type, attribute, said) in refused {
        let error = recurrent::refuse_what_is_ignored(&node(op_type, attribute)).unwrap_err();
        assert_eq!(error.kind(), EngineErrorKind::UnsupportedOperator);
        let text = error.to_string();
        assert!(text.contains(said) && text.contains("rnn_1") && text.contains(op_type), "{text}");
    }
    let taken = [
        ("LSTM", direction("bidirectional")),
        ("GRU", activations(&["Sigmoid", "tanh", "Sigmoid", "Tanh"])),
        ("LSTM", AttributeProto { i: 64, ..named("hidden_size") }),
        ("Conv", direction("reverse")),
    ];
    for (op_type, attribute) in taken {
        recurrent::refuse_what_is_ignored(&node(op_type, attribute)).unwrap();
    }
}
