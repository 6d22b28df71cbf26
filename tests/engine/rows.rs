//! What the graph shows of the independence of rows: the models that batch, and operators one by one.

use super::onnx::{
    Axis, Message, constant, floats, integers, model, named, tensor, with_int, with_ints,
};
use super::{BATCH, Dir, engines, load, shared};
use corelane::engine::EngineKind;

#[test]
fn every_shared_model_is_shown_to_keep_its_rows_apart() {
    let Some(dir) = shared() else { return };
    let mut count = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "onnx") {
            continue;
        }
        let engine = load(EngineKind::Plan, &std::fs::read(&path).unwrap(), &[1, 2, 8])
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(engine.batch_sizes(), [1, 2, 8], "{}", path.display());
        assert_eq!(engine.independence(), Ok(()), "{}", path.display());
        count += 1;
    }
    assert!(count >= 13, "{count} models");
}

/// Nodes that make `y` of `x`, both of which have rows of `len`.
struct Case {
    what: &'static str,
    row: &'static [u64],
    nodes: Vec<Message>,
    /// The node that is named where rows meet; empty where they don't.
    blamed: &'static str,
}

fn case(
    what: &'static str,
    row: &'static [u64],
    nodes: impl Into<Vec<Message>>,
    blamed: &'static str,
) -> Case {
    Case { what, row, nodes: nodes.into(), blamed }
}

fn bytes(case: &Case) -> Vec<u8> {
    let mut axes = vec![BATCH];
    axes.extend(case.row.iter().map(|&n| Axis::Len(n)));
    model(&case.nodes, &[tensor("x", &axes)], &[tensor("y", &axes)])
}

fn n(operator: &str, inputs: &[&str], output: &str) -> Message {
    named(operator, output, inputs, &[output])
}

fn axis(node: Message, axis: i64) -> Message {
    with_int(node, "axis", axis as u64)
}

fn perm(input: &str, output: &str, perm: &[u64]) -> Message {
    with_ints(n("Transpose", &[input], output), "perm", perm)
}

fn cast(input: &str, output: &str, to: u64) -> Message {
    with_int(n("Cast", &[input], output), "to", to)
}

/// `float(shape(x)[0])`, which is the number of rows.
fn count() -> [Message; 4] {
    [
        n("Shape", &["x"], "s"),
        integers("zero", &[], &[0]),
        n("Gather", &["s", "zero"], "b"),
        cast("b", "count", 1),
    ]
}

fn weights(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i % 7) as f32 / 7.0 - 0.4).collect()
}

fn together() -> Vec<Case> {
    let mut cases = vec![
        case("softmax over the rows", &[4], [axis(n("Softmax", &["x"], "y"), 0)], "y"),
        case(
            "a sum over the rows",
            &[4],
            [
                integers("axes", &[1], &[0]),
                n("ReduceSum", &["x", "axes"], "m"),
                n("Add", &["x", "m"], "y"),
            ],
            "m",
        ),
        case(
            "sums from row to row",
            &[4],
            [integers("first", &[], &[0]), n("CumSum", &["x", "first"], "y")],
            "y",
        ),
        case(
            "rows as columns",
            &[4],
            [perm("x", "t", &[1, 0]), n("MatMul", &["x", "t"], "p"), n("MatMul", &["p", "x"], "y")],
            "p",
        ),
        case(
            "the first row for all",
            &[4],
            [
                integers("index", &[1], &[0]),
                axis(n("Gather", &["x", "index"], "g"), 0),
                n("Add", &["x", "g"], "y"),
            ],
            "g",
        ),
        case(
            "a shape that mixes",
            &[4],
            [
                integers("flat", &[2], &[4, -1]),
                n("Reshape", &["x", "flat"], "r"),
                axis(n("Softmax", &["r"], "q"), 0),
                integers("back", &[2], &[-1, 4]),
                n("Reshape", &["q", "back"], "y"),
            ],
            "",
        ),
    ];
    let mut mean = count().to_vec();
    mean.push(n("Div", &["x", "count"], "y"));
    cases.push(case("the number of rows", &[4], mean, "y"));
    let mut places = vec![n("Shape", &["x"], "s")];
    places.extend([
        integers("zero", &[], &[0]),
        integers("one", &[], &[1]),
        n("Gather", &["s", "zero"], "b"),
        n("Range", &["zero", "b", "one"], "r"),
        cast("r", "f", 1),
        integers("axes", &[1], &[1]),
        n("Unsqueeze", &["f", "axes"], "u"),
        n("Add", &["x", "u"], "y"),
    ]);
    cases.push(case("the place in the batch", &[4], places, "y"));
    cases
}

fn apart() -> Vec<Case> {
    vec![
        case("softmax within a row", &[4], [axis(n("Softmax", &["x"], "y"), -1)], ""),
        case(
            "a product, rows merged with another axis",
            &[3, 4],
            [
                integers("flat", &[2], &[-1, 4]),
                n("Reshape", &["x", "flat"], "r"),
                floats("w", &[4, 4], &weights(16)),
                n("MatMul", &["r", "w"], "p"),
                integers("back", &[3], &[-1, 3, 4]),
                n("Reshape", &["p", "back"], "q"),
                n("Tanh", &["q"], "y"),
            ],
            "",
        ),
        case(
            "attention",
            &[3, 4],
            [
                perm("x", "t", &[0, 2, 1]),
                n("MatMul", &["x", "t"], "p"),
                axis(n("Softmax", &["p"], "a"), -1),
                n("MatMul", &["a", "x"], "y"),
            ],
            "",
        ),
        case(
            "there and back",
            &[3, 4],
            [perm("x", "t", &[1, 0, 2]), n("Relu", &["t"], "r"), perm("r", "y", &[1, 0, 2])],
            "",
        ),
        case(
            "a lookup",
            &[4],
            [
                cast("x", "i", 7),
                floats("table", &[3, 4], &weights(12)),
                axis(n("Gather", &["table", "i"], "g"), 0),
                integers("axes", &[1], &[2]),
                with_int(n("ReduceSum", &["g", "axes"], "y"), "keepdims", 0),
            ],
            "",
        ),
        case(
            "a convolution and a pool",
            &[2, 6, 6],
            [
                floats("w", &[2, 2, 3, 3], &weights(36)),
                with_ints(n("Conv", &["x", "w"], "c"), "pads", &[1, 1, 1, 1]),
                with_ints(
                    with_ints(n("MaxPool", &["c"], "y"), "kernel_shape", &[3, 3]),
                    "pads",
                    &[1, 1, 1, 1],
                ),
            ],
            "",
        ),
        case(
            "parts and their sum",
            &[4],
            [
                axis(named("Split", "cut", &["x"], &["a", "b"]), 1),
                axis(n("Concat", &["b", "a"], "c"), 1),
                n("Add", &["x", "c"], "y"),
            ],
            "",
        ),
        case("a recurrent layer", &[5, 4], recurrent("LSTM", 4), ""),
        case("another recurrent layer", &[5, 4], recurrent("GRU", 3), ""),
        case("a whole recurrent layer", &[5, 4], whole("GRU"), ""),
    ]
}

/// A layer over the time of `[batch, time, 4]`.
fn recurrent(operator: &str, gates: u64) -> Vec<Message> {
    let (w, r) = ([1, gates * 4, 4], [1, gates * 4, 4]);
    let len = (gates * 16) as usize;
    let layer = named(operator, "layer", &["t", "w", "r"], &["all"]);
    vec![
        perm("x", "t", &[1, 0, 2]),
        floats("w", &w, &weights(len)),
        floats("r", &r, &weights(len)),
        with_int(layer, "hidden_size", 4),
        integers("one", &[1], &[1]),
        n("Squeeze", &["all", "one"], "s"),
        perm("s", "y", &[1, 0, 2]),
    ]
}

fn whole(operator: &str) -> Vec<Message> {
    let mut nodes = recurrent(operator, 3);
    let layer = named(operator, "layer", &["t", "w", "r"], &["all"]);
    nodes[3] = with_int(with_int(layer, "hidden_size", 4), "linear_before_reset", 1);
    nodes
}

#[test]
fn rows_that_meet_are_found_whatever_their_values() {
    for case in together() {
        for kind in [EngineKind::Plan, EngineKind::Tract] {
            let engine = load(kind, &bytes(&case), &[1, 2, 3])
                .unwrap_or_else(|e| panic!("{}: {e}", case.what));
            assert!(engine.signature().batched, "{}", case.what);
            let why = engine.independence().expect_err(case.what);
            println!("{}: {why}", case.what);
            assert!(
                why.contains(&format!("node {:?}", case.blamed)) || case.blamed.is_empty(),
                "{why}"
            );
        }
    }
}

#[test]
fn rows_that_stay_apart_are_shown_to() {
    for case in apart() {
        for kind in [EngineKind::Plan, EngineKind::Tract] {
            let engine = load(kind, &bytes(&case), &[1, 2, 3])
                .unwrap_or_else(|e| panic!("{}: {e}", case.what));
            assert!(engine.signature().batched, "{}", case.what);
            assert_eq!(engine.independence(), Ok(()), "{}", case.what);
        }
    }
}

/// Rows that meet only where a value is above 1000: no row that is tried shows it.
#[test]
fn a_model_that_mixes_some_values_is_served_unbatched_unless_asserted() {
    let case = case(
        "a threshold",
        &[4],
        [
            with_ints(n("ReduceMax", &["x"], "m"), "axes", &[0]),
            floats("thousand", &[], &[1000.0]),
            n("Sub", &["m", "thousand"], "d"),
            n("Relu", &["d"], "r"),
            n("Add", &["x", "r"], "y"),
        ],
        "m",
    );
    let plain = Dir::new("threshold", &bytes(&case), "max_batch_size = 4");
    let asserted = Dir::new(
        "threshold-asserted",
        &bytes(&case),
        "max_batch_size = 4\nrows_independent = true",
    );
    for kind in engines() {
        let loaded = plain.load(kind).unwrap_or_else(|e| panic!("{e}"));
        let batching = &loaded.batching;
        assert!(!batching.enabled && batching.got == 1 && batching.wanted == 4, "{batching:?}");
        assert_eq!(loaded.engine.batch_sizes(), [1]);
        let reason = batching.reason.as_ref().unwrap();
        assert!(reason.contains("node \"m\"") && reason.contains("rows_independent"), "{reason}");
        let loaded = asserted.load(kind).unwrap_or_else(|e| panic!("{e}"));
        assert!(loaded.batching.enabled, "{:?}", loaded.batching);
        assert!(loaded.batching.max_difference.is_some(), "rows are compared all the same");
        assert!(loaded.batching.unproven.unwrap().contains("node \"m\""));
    }
}

/// A constant that differs from row to row, at one batch size by chance: no batch.
#[test]
fn a_constant_for_each_row_is_no_batch() {
    let each = constant(
        "c",
        1,
        &[2, 4],
        weights(8).iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>(),
    );
    let case = case("a constant", &[4], [each, n("Add", &["x", "c"], "y")], "y");
    for kind in [EngineKind::Plan, EngineKind::Tract] {
        let Ok(engine) = load(kind, &bytes(&case), &[1, 2]) else { continue };
        assert!(!engine.signature().batched || engine.independence().is_err());
    }
}
