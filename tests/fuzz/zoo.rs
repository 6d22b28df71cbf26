//! Small models, a few operators each, which mutation makes others of.

use super::onnx::{Axis, Message, floats, integers, model, named, tensor, with_int, with_ints};

const BATCH: Axis = Axis::Open("batch");

fn n(operator: &str, inputs: &[&str], output: &str) -> Message {
    named(operator, output, inputs, &[output])
}

fn weights(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i % 7) as f32 / 7.0 - 0.4).collect()
}

/// All of them, by name.
pub fn models() -> Vec<(String, Vec<u8>)> {
    let mut all = vec![];
    let mut add = |name: &str, row: &[u64], nodes: &[Message]| {
        let mut axes = vec![BATCH];
        axes.extend(row.iter().map(|&n| Axis::Len(n)));
        // No shape is declared, so that a changed one is no lie.
        let end = Message::default().bytes(1, "y");
        all.push((name.to_string(), model(nodes, &[tensor("x", &axes)], &[end])));
    };
    let image = [2, 6, 6];
    let w = || floats("w", &[2, 2, 3, 3], &weights(36));
    let same = |m: Message| with_ints(m, "pads", &[1, 1, 1, 1]);
    add("conv", &image, &[w(), same(n("Conv", &["x", "w"], "c")), n("Relu", &["c"], "y")]);
    add(
        "strided conv",
        &image,
        &[w(), with_ints(same(n("Conv", &["x", "w"], "y")), "strides", &[2, 2])],
    );
    add(
        "depthwise",
        &image,
        &[
            floats("w", &[2, 1, 3, 3], &weights(18)),
            with_int(with_ints(n("Conv", &["x", "w"], "y"), "dilations", &[2, 2]), "group", 2),
        ],
    );
    add(
        "transposed conv",
        &image,
        &[w(), with_ints(n("ConvTranspose", &["x", "w"], "y"), "strides", &[2, 2])],
    );
    for pool in ["MaxPool", "AveragePool"] {
        let pooled = with_ints(same(n(pool, &["x"], "y")), "kernel_shape", &[3, 3]);
        add(pool, &image, &[with_ints(pooled, "strides", &[2, 2])]);
    }
    add("global pool", &image, &[n("GlobalAveragePool", &["x"], "y")]);
    add(
        "pad",
        &image,
        &[integers("p", &[8], &[0, 0, 1, 1, 0, 0, 2, 2]), n("Pad", &["x", "p"], "y")],
    );
    add(
        "resize",
        &image,
        &[
            floats("none", &[0], &[]),
            floats("scales", &[4], &[1.0, 1.0, 2.0, 2.0]),
            n("Resize", &["x", "none", "scales"], "y"),
        ],
    );
    add(
        "norm",
        &image,
        &[floats("s", &[2], &[1.0, 2.0]), n("BatchNormalization", &["x", "s", "s", "s", "s"], "y")],
    );
    add(
        "gemm",
        &[4],
        &[
            floats("w", &[4, 3], &weights(12)),
            floats("b", &[3], &weights(3)),
            n("Gemm", &["x", "w", "b"], "g"),
            with_int(n("Softmax", &["g"], "y"), "axis", 1),
        ],
    );
    add(
        "attention",
        &[3, 4],
        &[
            with_ints(n("Transpose", &["x"], "t"), "perm", &[0, 2, 1]),
            n("MatMul", &["x", "t"], "p"),
            with_int(n("Softmax", &["p"], "a"), "axis", 2),
            n("MatMul", &["a", "x"], "y"),
        ],
    );
    add(
        "shapes",
        &[3, 4],
        &[
            integers("to", &[3], &[0, 4, 3]),
            n("Reshape", &["x", "to"], "r"),
            integers("last", &[1], &[3]),
            n("Unsqueeze", &["r", "last"], "u"),
            n("Squeeze", &["u", "last"], "s"),
            with_int(n("Flatten", &["s"], "y"), "axis", 1),
        ],
    );
    add(
        "parts",
        &[6],
        &[
            integers("from", &[1], &[1]),
            integers("to", &[1], &[5]),
            n("Slice", &["x", "from", "to", "from"], "s"),
            with_int(named("Split", "cut", &["s"], &["a", "b"]), "axis", 1),
            with_int(n("Concat", &["b", "a", "x"], "y"), "axis", 1),
        ],
    );
    add(
        "lookup",
        &[4],
        &[
            with_int(n("Cast", &["x"], "i"), "to", 7),
            floats("table", &[3, 4], &weights(12)),
            with_int(n("Gather", &["table", "i"], "g"), "axis", 0),
            integers("axes", &[1], &[2]),
            n("ReduceSum", &["g", "axes"], "y"),
        ],
    );
    add(
        "from its shape",
        &[4],
        &[
            n("Shape", &["x"], "s"),
            n("ConstantOfShape", &["s"], "z"),
            n("Add", &["x", "z"], "a"),
            integers("to", &[3], &[2, 1, 4]),
            n("Expand", &["a", "s"], "e"),
            integers("times", &[2], &[1, 2]),
            n("Tile", &["e", "times"], "y"),
        ],
    );
    add(
        "choices",
        &[6],
        &[
            integers("k", &[1], &[2]),
            named("TopK", "top", &["x", "k"], &["v", "i"]),
            n("Greater", &["v", "v"], "c"),
            n("Where", &["c", "v", "v"], "w"),
            integers("axis", &[], &[1]),
            n("CumSum", &["w", "axis"], "y"),
        ],
    );
    for f in ["Sigmoid", "Tanh", "Erf", "HardSwish", "Elu", "Softplus", "LeakyRelu", "LogSoftmax"] {
        add(f, &[5], &[n(f, &["x"], "y")]);
    }
    for (f, gates) in [("LSTM", 4u64), ("GRU", 3), ("RNN", 1)] {
        let shape = [1, gates * 4, 4];
        let len = (gates * 16) as usize;
        add(
            f,
            &[3, 4],
            &[
                with_ints(n("Transpose", &["x"], "t"), "perm", &[1, 0, 2]),
                floats("w", &shape, &weights(len)),
                floats("r", &shape, &weights(len)),
                with_int(named(f, "layer", &["t", "w", "r"], &["all"]), "hidden_size", 4),
                integers("one", &[1], &[1]),
                n("Squeeze", &["all", "one"], "s"),
                with_ints(n("Transpose", &["s"], "y"), "perm", &[1, 0, 2]),
            ],
        );
    }
    all
}
