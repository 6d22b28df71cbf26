//! QuantizeLinear by its definition, and outputs that are one tensor.

use super::numerics::{OURS, floats, infer, two_rows};
use super::onnx::{
    Axis, Message, constant, integers, model, named, tensor, typed_tensor, with_int,
};
use super::{BATCH, load};
use corelane::engine::{EngineErrorKind, EngineKind, PlanIndex};

const FLOAT: u64 = 1;
const UINT8: u64 = 2;
const INT8: u64 = 3;

/// `QuantizeLinear(x, scale, zero)` or the way back, with constants of its own.
fn convert(operator: &str, x: &str, y: &str, scale: f32, zero: i32, dtype: u64) -> Vec<Message> {
    let names = [format!("{y}.scale"), format!("{y}.zero")];
    vec![
        constant(&names[0], FLOAT, &[], scale.to_le_bytes()),
        constant(&names[1], dtype, &[], [zero as u8]),
        named(operator, y, &[x, &names[0], &names[1]], &[y]),
    ]
}

fn quantise(x: &str, y: &str, scale: f32, zero: i32, dtype: u64) -> Vec<Message> {
    convert("QuantizeLinear", x, y, scale, zero, dtype)
}

fn dequantise(x: &str, y: &str, scale: f32, zero: i32, dtype: u64) -> Vec<Message> {
    convert("DequantizeLinear", x, y, scale, zero, dtype)
}

/// ONNX's definition.
fn definition(x: f32, scale: f32, zero: i32, dtype: u64) -> f64 {
    let (lo, hi) = if dtype == INT8 { (-128.0, 127.0) } else { (0.0, 255.0) };
    f64::from(((x / scale).round_ties_even() + zero as f32).clamp(lo, hi))
}

#[test]
fn eight_bits_are_those_of_a_division() {
    // Of the first, 15 of 120 ties fall to the other side of a product with the reciprocal.
    for (scale, zero, dtype) in
        [(0.003_107_819_f32, -23, INT8), (0.1, 100, UINT8), (1e-39, 0, INT8), (3e38, 3, UINT8)]
    {
        let ties = (-60..60).map(|k| ((f64::from(k) + 0.5) * f64::from(scale)) as f32);
        let ends = [3e7, -3e7, 1e30, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, -0.0];
        let x: Vec<f32> = ties.chain(ends).collect();
        let columns = [BATCH, Axis::Len(x.len() as u64)];
        let nodes = quantise("x", "q", scale, zero, dtype);
        let bytes = model(&nodes, &[tensor("x", &columns)], &[typed_tensor("q", dtype, &columns)]);
        let want: Vec<f64> = x.iter().map(|&x| definition(x, scale, zero, dtype)).collect();
        for kind in OURS {
            let got = infer(&*two_rows(kind, &bytes), &[floats(&x.repeat(2))]).unwrap();
            assert_eq!(got, want.repeat(2), "{} by {scale:e}", kind.name());
        }
    }
}

#[test]
fn a_channel_each_has_its_scale() {
    let nodes = [
        constant("s", FLOAT, &[2], floats(&[0.5, 0.1])),
        constant("z", INT8, &[2], [1, 0xFE]),
        named("QuantizeLinear", "q", &["x", "s", "z"], &["q"]),
    ];
    let shape = [BATCH, Axis::Len(2), Axis::Len(3)];
    let bytes = model(&nodes, &[tensor("x", &shape)], &[typed_tensor("q", INT8, &shape)]);
    let x = [0.25, 0.75, 1e9, 0.25, 0.35, -1e9f32];
    let want: Vec<f64> = (x.iter().enumerate())
        .map(|(i, &x)| definition(x, [0.5, 0.1][i / 3], [1, -2][i / 3], INT8))
        .collect();
    for kind in OURS {
        let got = infer(&*two_rows(kind, &bytes), &[floats(&x.repeat(2))]).unwrap();
        assert_eq!(got, want.repeat(2), "{}", kind.name());
    }
}

#[test]
fn what_lies_between_two_roundings_is_computed_as_it_is_written() {
    let row = [BATCH, Axis::Len(4)];
    let file = |nodes: Vec<Vec<Message>>| {
        model(&nodes.concat(), &[tensor("x", &row)], &[tensor("y", &row)])
    };
    let softmax = file(vec![
        quantise("x", "a", 0.1, 0, UINT8),
        dequantise("a", "b", 0.1, 0, UINT8),
        vec![with_int(named("Softmax", "c", &["b"], &["c"]), "axis", 1)],
        quantise("c", "d", 1.0 / 255.0, 0, UINT8),
        dequantise("d", "y", 1.0 / 255.0, 0, UINT8),
    ]);
    let another_type = file(vec![
        quantise("x", "a", 0.5, 3, INT8),
        dequantise("a", "b", 0.5, 3, INT8),
        quantise("b", "c", 0.5, 3, UINT8),
        dequantise("c", "y", 0.5, 3, UINT8),
    ]);
    let x = [1.0, 2.0, 3.0, 4.0, -2.5, -1.0, 0.2, 99.0f32];
    // Of ONNX Runtime 1.32.
    let sums = [8.0, 22.0, 60.0, 164.0, 0.0, 0.0, 0.0, 255.0].map(|q| q / 255.0);
    let halves = [1.0, 2.0, 3.0, 4.0, -1.5, -1.0, 0.0, 62.0];
    for kind in OURS {
        for (bytes, want) in [(&softmax, sums), (&another_type, halves)] {
            let got = infer(&*two_rows(kind, bytes), &[floats(&x)]).unwrap();
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < 1e-6, "{}: {got} for {want}", kind.name());
            }
        }
    }
}

#[test]
fn scales_that_are_none_are_refused_by_their_node() {
    let row = [BATCH, Axis::Len(4)];
    for (scale, dtype, says) in
        [(0.0, INT8, "above 0"), (f32::NAN, INT8, "above 0"), (-0.5, UINT8, "above 0")]
    {
        let nodes = quantise("x", "q", scale, 0, dtype);
        let bytes = model(&nodes, &[tensor("x", &row)], &[typed_tensor("q", dtype, &row)]);
        for kind in OURS {
            let error = load(kind, &bytes, &[1]).err().expect("must be refused");
            assert_eq!(error.kind(), EngineErrorKind::Untyped, "{error}");
            assert_eq!(error.node(), Some("q"), "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}

#[test]
fn outputs_that_are_one_tensor_are_served_each() {
    let shape = integers("shape", &[2], &[0, 4]);
    let nodes = [
        shape,
        named("Relu", "r", &["x"], &["a"]),
        named("Reshape", "s", &["a", "shape"], &["b"]),
        named("Identity", "i", &["b"], &["c"]),
        named("Identity", "j", &["x"], &["d"]),
    ];
    let row = [BATCH, Axis::Len(4)];
    let names = ["c", "a", "d", "b"];
    let bytes = model(&nodes, &[tensor("x", &row)], &names.map(|name| tensor(name, &row)));
    let x = [-1.0, 2.0, -3.0, 4.0, 5.0, -6.0, 7.0, -8.0f32];
    let relu = x.map(|x| x.max(0.0));
    for kind in [EngineKind::Tract, EngineKind::Plan] {
        let engine = two_rows(kind, &bytes);
        let signature = engine.signature();
        assert!(signature.outputs.iter().map(|o| o.name.as_str()).eq(names), "{signature:?}");
        assert_eq!(engine.independence(), Ok(()));
        let mut instance = engine.instance().unwrap();
        instance.input_mut(PlanIndex(1), 0)[..32].copy_from_slice(&floats(&x));
        instance.infer(PlanIndex(1)).unwrap();
        for (o, name) in names.into_iter().enumerate() {
            let want = if name == "d" { x } else { relu };
            let got = &instance.output(PlanIndex(1), o)[..32];
            assert_eq!(got, floats(&want), "{} {name}", kind.name());
        }
    }
}
