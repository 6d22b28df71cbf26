//! Operators at the ends of their range, against references at double precision.

use super::onnx::{Axis, Message, constant, model, named, node, tensor, typed_tensor};
use super::onnx::{integers as whole, with_float, with_int, with_ints};
use super::{BATCH, load};
use corelane::engine::{Engine, EngineKind, PlanIndex, RunError};
use corelane::model::check::values;

const INT64: u64 = 7;
const FLOAT: u64 = 1;
pub(super) const OURS: [EngineKind; 2] = [EngineKind::Tract, EngineKind::Plan];

fn bytes<const N: usize, T: Copy>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| to(v)).collect()
}

pub(super) fn floats(values: &[f32]) -> Vec<u8> {
    bytes(values, f32::to_le_bytes)
}

fn integers(values: &[i64]) -> Vec<u8> {
    bytes(values, i64::to_le_bytes)
}

/// What two rows make of `inputs`, the first output.
pub(super) fn infer(engine: &dyn Engine, inputs: &[Vec<u8>]) -> Result<Vec<f64>, RunError> {
    let mut instance = engine.instance().unwrap();
    for (i, input) in inputs.iter().enumerate() {
        instance.input_mut(PlanIndex(1), i)[..input.len()].copy_from_slice(input);
    }
    instance.infer(PlanIndex(1))?;
    let spec = &engine.signature().outputs[0];
    Ok(values(spec.dtype, &instance.output(PlanIndex(1), 0)[..2 * spec.row_bytes()]))
}

pub(super) fn two_rows(kind: EngineKind, file: &[u8]) -> Box<dyn Engine> {
    load(kind, file, &[1, 2]).unwrap_or_else(|e| panic!("{}: {e}", kind.name()))
}

/// One node of a function over rows of six, of which `columns` are left.
fn function(node: Message, columns: u64) -> Vec<u8> {
    let (x, y) = ([BATCH, Axis::Len(6)], [BATCH, Axis::Len(columns)]);
    model(&[node], &[tensor("x", &x)], &[tensor("y", &y)])
}

fn log_sum_exp(row: &[f64]) -> f64 {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if top.is_infinite() {
        top
    } else {
        top + row.iter().map(|x| (x - top).exp()).sum::<f64>().ln()
    }
}

#[test]
fn functions_hold_at_the_ends_of_the_range() {
    type Row<'a> = &'a dyn Fn(&[f64]) -> Vec<f64>;
    let soft_plus: Row = &|row| row.iter().map(|x| x.max(0.0) + (-x.abs()).exp().ln_1p()).collect();
    let celu: Row =
        &|row| row.iter().map(|x| x.max(0.0) + (2.5 * ((x / 2.5).exp() - 1.0)).min(0.0)).collect();
    let log_softmax: Row = &|row| row.iter().map(|x| x - log_sum_exp(row)).collect();
    let reduced: Row = &|row| vec![log_sum_exp(row)];
    let reduce = with_ints(node("ReduceLogSumExp", &["x"], "y"), "axes", &[1]);
    let cases: [(&str, Vec<u8>, Row); 4] = [
        ("Softplus", function(node("Softplus", &["x"], "y"), 6), soft_plus),
        ("Celu", function(with_float(node("Celu", &["x"], "y"), "alpha", 2.5), 6), celu),
        ("LogSoftmax", function(node("LogSoftmax", &["x"], "y"), 6), log_softmax),
        ("ReduceLogSumExp", function(reduce, 1), reduced),
    ];
    let far = [-1000.0, -100.0, -1.0, 0.25, 89.5, 1000.0];
    let near = [5000.0, 4999.0, 4990.0, 4800.0, 1.0, -3.0f32];
    let low = [f32::NEG_INFINITY; 6];
    let small = [-0.5, 0.5, 1.5, -88.0, -90.0, 2.0];
    for (name, file, reference) in &cases {
        for kind in OURS {
            let engine = two_rows(kind, file);
            for rows in [[far, near], [small, far]] {
                let got = infer(&*engine, &[floats(rows.as_flattened())]).unwrap();
                let want: Vec<f64> =
                    rows.iter().flat_map(|row| reference(&row.map(f64::from))).collect();
                assert_eq!(got.len(), want.len());
                for (got, want) in got.iter().zip(&want) {
                    let off = (got - want).abs() / want.abs().max(1.0);
                    assert!(off < 1e-6, "{name} on {}: {got} for {want}", kind.name());
                }
            }
            if *name == "ReduceLogSumExp" {
                let got = infer(&*engine, &[floats([low, far].as_flattened())]).unwrap();
                assert_eq!(got, [f64::NEG_INFINITY, 1000.0], "{}", kind.name());
            }
        }
    }
}

#[test]
fn an_infinity_is_softplus_of_itself_and_nan_stays() {
    for kind in OURS {
        let engine = two_rows(kind, &function(node("Softplus", &["x"], "y"), 6));
        let rows = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 0.0, 20.0].repeat(2);
        let got = infer(&*engine, &[floats(&rows)]).unwrap();
        assert_eq!(got[..2], [f64::INFINITY, 0.0], "{}", kind.name());
        assert!(got[2].is_nan());
        assert_eq!(got[3], f64::from(f32::MAX));
    }
}

#[test]
fn the_lesser_and_the_greater_keep_nan() {
    // A row and a column of it, so that no vector kernel takes them.
    for operator in ["Min", "Max"] {
        let (x, y) = ([BATCH, Axis::Len(2), Axis::Len(1)], [BATCH, Axis::Len(1), Axis::Len(2)]);
        let z = [BATCH, Axis::Len(2), Axis::Len(2)];
        let file = model(
            &[node(operator, &["x", "y"], "z")],
            &[tensor("x", &x), tensor("y", &y)],
            &[tensor("z", &z)],
        );
        let engine = two_rows(EngineKind::Plan, &file);
        let (x, y) = ([f32::NAN, 1.0, 1.0, 2.0], [1.0, f32::NAN, 3.0, 0.0]);
        let got = infer(&*engine, &[floats(&x), floats(&y)]).unwrap();
        let nan: Vec<bool> = got.iter().map(|v| v.is_nan()).collect();
        assert_eq!(nan, [true, true, false, true, false, false, false, false], "{operator}");
    }
}

/// Nodes that make `y` of `x`, with rows of four.
fn four(nodes: &[Message]) -> Vec<u8> {
    let row = [BATCH, Axis::Len(4)];
    model(nodes, &[tensor("x", &row)], &[tensor("y", &row)])
}

/// `operator` of `x` and a constant.
fn with(operator: &str, x: &str, c: f32, y: &str) -> [Message; 2] {
    let name = format!("{y}.constant");
    [constant(&name, FLOAT, &[], c.to_le_bytes()), named(operator, y, &[x, &name], &[y])]
}

#[test]
fn a_large_number_that_is_added_and_taken_off_rounds() {
    let x = [1.4, 2.6, -0.7, 0.5, 1.5, 2.5, -3.5, 100.25f32];
    for magic in [12_582_912.0f32, 1e8, 70_000.0] {
        let nodes = [with("Add", "x", magic, "t"), with("Sub", "t", magic, "y")].concat();
        let want = x.map(|x| f64::from((x + magic) - magic));
        for kind in OURS {
            let got = infer(&*two_rows(kind, &four(&nodes)), &[floats(&x)]).unwrap();
            assert_eq!(got, want, "{} by {magic}", kind.name());
        }
    }
}

#[test]
fn divisions_are_as_good_as_what_reads_them_needs() {
    let tiny = 1e-39f32;
    let x = [0.0, tiny, 2.0 * tiny, 1.0, -1.0, -5.0 * tiny, 1e-30, f32::INFINITY];
    let [constant, divide] = with("Div", "x", 49.0, "t");
    let floor = vec![constant, divide, named("Floor", "f", &["t"], &["y"])];
    let whole = [49.0, 48.0, 98.0, 147.0, -49.0, 4900.0, 0.0, 1.0f32];
    for (nodes, x, want) in [
        (with("Div", "x", tiny, "y").to_vec(), x, x.map(|x| f64::from(x / tiny))),
        (floor, whole, whole.map(|x| f64::from((x / 49.0).floor()))),
    ] {
        for kind in OURS {
            let got = infer(&*two_rows(kind, &four(&nodes)), &[floats(&x)]).unwrap();
            assert_eq!(got, want, "{}", kind.name());
        }
    }
}

#[test]
fn strides_choose_from_what_they_are_given() {
    let (x, y) = ([BATCH, Axis::Len(1), Axis::Len(12)], |n| [BATCH, Axis::Len(1), Axis::Len(n)]);
    let ones = |name, n: usize| constant(name, FLOAT, &[1, 1, n as u64], floats(&vec![1.0; n]));
    let second = with_ints(named("Conv", "s", &["t", "one"], &["y"]), "strides", &[2]);
    // A sum of three, from the second on, every other one.
    let sums = [
        ones("three", 3),
        with_ints(named("Conv", "c", &["x", "three"], &["sums"]), "dilations", &[2]),
        whole("from", &[1], &[1]),
        whole("to", &[1], &[7]),
        whole("axis", &[1], &[2]),
        named("Slice", "t", &["sums", "from", "to", "axis"], &["t"]),
    ];
    let shares = [with_int(named("Softmax", "t", &["x"], &["t"]), "axis", 2)];
    let both = |nodes: &[Message], n| {
        let nodes = [nodes, &[ones("one", 1), second.clone()]].concat();
        model(&nodes, &[tensor("x", &x)], &[tensor("y", &y(n))])
    };
    let row: Vec<f64> = (0..12).map(|i| f64::from(i * i % 7) * 0.25).collect();
    let sum: f64 = row.iter().map(|x| x.exp()).sum();
    for (file, want) in [
        (both(&sums, 3), (0..3).map(|j| (0..3).map(|k| row[1 + 2 * j + 2 * k]).sum()).collect()),
        (both(&shares, 6), (0..6).map(|j| row[2 * j].exp() / sum).collect::<Vec<f64>>()),
    ] {
        for kind in OURS {
            let x: Vec<f32> = row.iter().map(|&x| x as f32).collect();
            let got = infer(&*two_rows(kind, &file), &[floats(&x.repeat(2))]).unwrap();
            assert_eq!(got.len(), 2 * want.len());
            for (got, want) in got.iter().zip(want.repeat(2)) {
                assert!((got - want).abs() < 1e-6, "{}: {got} for {want}", kind.name());
            }
        }
    }
}

#[test]
fn products_of_what_is_repeated_add_up_all_of_it() {
    let ones = |name, shape: &[u64]| {
        let len = shape.iter().product::<u64>() as usize;
        constant(name, FLOAT, shape, floats(&vec![1.0; len]))
    };
    let nodes = [
        whole("from", &[1], &[0]),
        whole("to", &[1], &[1]),
        whole("axis", &[1], &[1]),
        named("Slice", "s", &["x", "from", "to", "axis"], &["s"]),
        whole("times", &[2], &[1, 2]),
        named("Tile", "t", &["s", "times"], &["t"]),
        ones("w", &[2, 8]),
        ones("b", &[1, 8]),
        named("Gemm", "g", &["t", "w", "b"], &["g"]),
        ones("v", &[8, 4]),
        ones("c", &[1]),
        named("Gemm", "y", &["g", "v", "c"], &["y"]),
    ];
    let x = [0.5, 9.0, 9.0, 9.0, -3.0, 9.0, 9.0, 9.0f32];
    let want = [0.5, -3.0].map(|x| [8.0 * (2.0 * x + 1.0) + 1.0; 4]).concat();
    for kind in OURS {
        let got = infer(&*two_rows(kind, &four(&nodes)), &[floats(&x)]).unwrap();
        assert_eq!(got, want, "{}", kind.name());
    }
}

#[test]
fn integers_divided_by_zero_are_zero() {
    let row = [BATCH, Axis::Len(3)];
    let ends = |name| typed_tensor(name, INT64, &row);
    let file = model(&[node("Div", &["x", "y"], "z")], &[ends("x"), ends("y")], &[ends("z")]);
    for kind in OURS {
        let engine = two_rows(kind, &file);
        let x = integers(&[7, -7, 0, 9, i64::MIN, 5]);
        let got = infer(&*engine, &[x.clone(), integers(&[0, 2, 0, 3, 0, -5])]).unwrap();
        assert_eq!(got, [0.0, -3.0, 0.0, 3.0, 0.0, -1.0], "{}", kind.name());
        let got = infer(&*engine, &[x, integers(&[1, 2, 3, 3, 1, 5])]).unwrap();
        assert_eq!(got, [7.0, -3.0, 0.0, 3.0, i64::MIN as f64, 1.0], "{}", kind.name());
    }
}

/// NaN where there is none.
fn same(got: &[f64], want: &[Option<f64>], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(want.map_or(got.is_nan(), |want| *got == want), "{what}: {got} at {i}");
    }
}

#[test]
fn an_index_outside_spoils_its_own_row_alone() {
    let (data, places) = ([BATCH, Axis::Len(4)], [BATCH, Axis::Len(2), Axis::Len(1)]);
    let by_rows = model(
        &[with_int(node("GatherND", &["x", "i"], "y"), "batch_dims", 1)],
        &[tensor("x", &data), typed_tensor("i", INT64, &places)],
        &[tensor("y", &[BATCH, Axis::Len(2)])],
    );
    let fixed = model(
        &[
            constant("i", INT64, &[3], integers(&[1, -1, 5])),
            with_int(node("Gather", &["x", "i"], "y"), "axis", 1),
        ],
        &[tensor("x", &data)],
        &[tensor("y", &[BATCH, Axis::Len(3)])],
    );
    let table: Vec<f32> = (0..6).map(|i| i as f32).collect();
    let lookup = model(
        &[constant("t", FLOAT, &[3, 2], floats(&table)), node("Gather", &["t", "i"], "y")],
        &[typed_tensor("i", INT64, &[BATCH])],
        &[tensor("y", &[BATCH, Axis::Len(2)])],
    );
    let x = floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    for kind in OURS {
        let name = kind.name();
        let engine = two_rows(kind, &by_rows);
        let got = infer(&*engine, &[x.clone(), integers(&[-1, 7, -4, 2])]).unwrap();
        same(&got, &[Some(3.0), None, Some(4.0), Some(6.0)], name);
        let engine = two_rows(kind, &fixed);
        let got = infer(&*engine, std::slice::from_ref(&x)).unwrap();
        same(&got, &[Some(1.0), Some(3.0), None, Some(5.0), Some(7.0), None], name);
        let engine = two_rows(kind, &lookup);
        let got = infer(&*engine, &[integers(&[3, -1])]).unwrap();
        same(&got, &[None, None, Some(4.0), Some(5.0)], name);
        let got = infer(&*engine, &[integers(&[i64::MIN, i64::MAX])]).unwrap();
        same(&got, &[None; 4], name);
    }
}

#[test]
fn an_index_outside_of_integers_is_an_error_of_the_run() {
    let (data, places) = ([BATCH, Axis::Len(4)], [BATCH, Axis::Len(2), Axis::Len(1)]);
    let file = model(
        &[with_int(node("GatherND", &["x", "i"], "y"), "batch_dims", 1)],
        &[typed_tensor("x", INT64, &data), typed_tensor("i", INT64, &places)],
        &[typed_tensor("y", INT64, &[BATCH, Axis::Len(2)])],
    );
    let x = integers(&[10, 11, 12, 13, 14, 15, 16, 17]);
    for kind in OURS {
        let engine = two_rows(kind, &file);
        let bad = infer(&*engine, &[x.clone(), integers(&[0, 4, 0, 0])]);
        assert!(matches!(bad, Err(RunError::Step { .. })), "{}: {bad:?}", kind.name());
        let got = infer(&*engine, &[x.clone(), integers(&[-1, 0, 1, -4])]).unwrap();
        assert_eq!(got, [13.0, 10.0, 15.0, 14.0], "{}", kind.name());
    }
}

#[test]
fn a_one_hot_index_outside_sets_nothing() {
    for axis in [1, 2] {
        let out = if axis == 1 { [4, 2] } else { [2, 4] };
        let file = model(
            &[
                constant("depth", INT64, &[1], integers(&[4])),
                constant("values", FLOAT, &[2], floats(&[-1.0, 2.0])),
                with_int(node("OneHot", &["i", "depth", "values"], "y"), "axis", axis),
            ],
            &[typed_tensor("i", INT64, &[BATCH, Axis::Len(2)])],
            &[tensor("y", &[BATCH, Axis::Len(out[0]), Axis::Len(out[1])])],
        );
        let indices = [0, -1, 4, -5];
        for kind in OURS {
            let engine = two_rows(kind, &file);
            let got = infer(&*engine, &[integers(&indices)]).unwrap();
            for (n, index) in indices.into_iter().enumerate() {
                for class in 0..4 {
                    let hot = index == class || index + 4 == class;
                    let (row, place, class) = (n / 2, n % 2, class as usize);
                    let at = if axis == 1 { class * 2 + place } else { place * 4 + class };
                    let want = if hot { 2.0 } else { -1.0 };
                    assert_eq!(got[row * 8 + at], want, "{} {axis}: {index} {class}", kind.name());
                }
            }
        }
    }
}

#[test]
fn numbers_of_8_bits_lie_as_the_graph_says() {
    const INT8: u64 = 3;
    // What a convolution makes may lie with its channels together; what leaves here has them apart.
    let weights = [[1.0, 2.0], [-1.0, 0.5], [3.0, -2.0]];
    let nodes = [
        constant("w", FLOAT, &[3, 2, 1, 1], floats(weights.as_flattened())),
        constant("scale", FLOAT, &[], floats(&[0.25])),
        constant("zero", INT8, &[], [1]),
        node("Conv", &["x", "w"], "y"),
        node("QuantizeLinear", &["y", "scale", "zero"], "q"),
    ];
    let shape = |channels| [BATCH, Axis::Len(channels), Axis::Len(2), Axis::Len(2)];
    let file = model(&nodes, &[tensor("x", &shape(2))], &[typed_tensor("q", INT8, &shape(3))]);
    let x: Vec<f32> = (0..16).map(|i| i as f32 - 6.5).collect();
    let want: Vec<f64> = (0..24)
        .map(|i| {
            let (row, channel, pixel) = (i / 12, i / 4 % 3, i % 4);
            let of = |input: usize| x[row * 8 + input * 4 + pixel];
            let y = weights[channel][0] * of(0) + weights[channel][1] * of(1);
            f64::from(((y / 0.25).round_ties_even() + 1.0).clamp(-128.0, 127.0))
        })
        .collect();
    for kind in OURS {
        let engine = two_rows(kind, &file);
        assert_eq!(infer(&*engine, &[floats(&x)]).unwrap(), want, "{}", kind.name());
    }
}
