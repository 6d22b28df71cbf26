//! Files that are wrong, or ask for too much: each is refused by a typed error that says what and where.

use super::onnx::{
    Axis, Message, constant, file, floats, integers, model, named, tensor, typed_tensor, with_int,
    with_ints,
};
use super::{BATCH, load};
use corelane::engine::kernels::Isa;
use corelane::engine::{self, EngineErrorKind, EngineKind, LoadRequest};

const FOUR: [Axis; 2] = [BATCH, Axis::Len(4)];

fn n(operator: &str, inputs: &[&str], output: &str) -> Message {
    named(operator, output, inputs, &[output])
}

/// A model of `[batch, 4]` to `[batch, 4]`, as far as its declaration goes.
fn of(nodes: &[Message]) -> Vec<u8> {
    model(nodes, &[tensor("x", &FOUR)], &[tensor("y", &FOUR)])
}

/// A model of `[batch, 1, 4, 4]` images.
fn of_images(nodes: &[Message]) -> Vec<u8> {
    let axes = [BATCH, Axis::Len(1), Axis::Len(4), Axis::Len(4)];
    let any = [BATCH, Axis::Open("c"), Axis::Open("h"), Axis::Open("w")];
    model(nodes, &[tensor("x", &axes)], &[tensor("y", &any)])
}

fn refused(what: &str, bytes: &[u8], kind: EngineErrorKind, says: &[&str]) {
    for engine in [EngineKind::Plan, EngineKind::Tract] {
        match load(engine, bytes, &[1, 2]) {
            Ok(_) => panic!("{what}: {} takes it", engine.name()),
            Err(error) => {
                let text = error.to_string();
                assert_eq!(error.kind(), kind, "{what}: {text}");
                for word in says {
                    assert!(text.contains(word), "{what}: {word:?} is not in {text:?}");
                }
            }
        }
    }
}

#[test]
fn attributes_that_make_no_sense_are_refused_at_their_node() {
    let unsupported = EngineErrorKind::UnsupportedOperator;
    let minus = (-1i64) as u64;
    refused(
        "negative padding",
        &of(&[integers("p", &[4], &[0, -1, 0, 0]), n("Pad", &["x", "p"], "y")]),
        unsupported,
        &["Pad", "negative", "\"y\""],
    );
    let pool = with_ints(n("MaxPool", &["x"], "y"), "kernel_shape", &[2, 2]);
    refused(
        "negative padding of a pool",
        &of_images(&[with_ints(pool, "pads", &[0, 0, minus, 0])]),
        unsupported,
        &["pads", "negative", "\"y\""],
    );
    refused(
        "an axis that is not there",
        &of(&[with_int(n("Softmax", &["x"], "y"), "axis", 9)]),
        unsupported,
        &["Softmax", "axis 9", "\"y\""],
    );
    refused(
        "an axis twice",
        &of(&[with_ints(n("Transpose", &["x"], "y"), "perm", &[0, 0])]),
        unsupported,
        &["perm", "every axis once", "\"y\""],
    );
    let w = || floats("w", &[1, 1, 3, 3], &[1.0; 9]);
    refused(
        "a transposed convolution by its output",
        &of_images(&[
            w(),
            with_ints(
                with_ints(n("ConvTranspose", &["x", "w"], "y"), "strides", &[2, 2]),
                "output_shape",
                &[8, 8],
            ),
        ]),
        unsupported,
        &["output_shape", "output_padding", "\"y\""],
    );
    refused(
        "a stride of 0",
        &of_images(&[w(), with_ints(n("Conv", &["x", "w"], "y"), "strides", &[0, 1])]),
        unsupported,
        &["strides", "at least 1"],
    );
    refused(
        "no group",
        &of_images(&[w(), with_int(n("Conv", &["x", "w"], "y"), "group", 0)]),
        unsupported,
        &["group", "at least 1"],
    );
    refused(
        "another domain",
        &of(&[n("Relu", &["x"], "y").bytes(7, "my.domain")]),
        unsupported,
        &["my.domain", "\"y\""],
    );
    refused(
        "an attribute twice",
        &of(&[with_int(with_int(n("Softmax", &["x"], "y"), "axis", 1), "axis", 0)]),
        unsupported,
        &["\"axis\" twice", "\"y\""],
    );
}

#[test]
fn names_are_unique_and_known() {
    let malformed = EngineErrorKind::Malformed;
    let (x, y) = ([tensor("x", &FOUR)], tensor("y", &FOUR));
    let relu = [n("Relu", &["x"], "y")];
    let twice = model(&relu, &x, &[y.clone(), y.clone()]);
    refused("an output twice", &twice, malformed, &["output \"y\"", "twice"]);
    let none = model(&relu, &x, &[tensor("z", &FOUR)]);
    refused("an output of no node", &none, malformed, &["output \"z\"", "no node"]);
    let both = [n("Relu", &["x"], "y"), named("Tanh", "t", &["x"], &["y"])];
    refused("a tensor of two nodes", &of(&both), malformed, &["\"y\" is there twice", "\"t\""]);
    let inputs = model(&relu, &[x[0].clone(), x[0].clone()], &[y]);
    refused("an input twice", &inputs, malformed, &["input \"x\"", "twice"]);
}

#[test]
fn declarations_must_be_true() {
    let malformed = EngineErrorKind::Malformed;
    let relu = [n("Relu", &["x"], "y")];
    let declared = |y: Message| model(&relu, &[tensor("x", &FOUR)], &[y]);
    let double = declared(typed_tensor("y", 11, &FOUR));
    refused("another type", &double, malformed, &["\"y\"", "double", "float32"]);
    let longer = declared(tensor("y", &[BATCH, Axis::Len(5)]));
    refused("another length", &longer, malformed, &["\"y\"", "[batch, 5]", "[1, 4]"]);
    let deeper = declared(tensor("y", &[BATCH, Axis::Len(4), Axis::Len(1)]));
    refused("another rank", &deeper, malformed, &["\"y\"", "[batch, 4, 1]"]);
    let fixed = declared(tensor("y", &[Axis::Len(7), Axis::Len(4)]));
    refused("a batch of its own", &fixed, malformed, &["\"y\"", "[7, 4]"]);
    // What is left open is no lie.
    let open = declared(tensor("y", &[Axis::Open("n"), Axis::Open("m")]));
    assert!(load(EngineKind::Plan, &open, &[1, 2]).is_ok());
}

#[test]
fn operator_sets_are_those_that_are_read() {
    let malformed = EngineErrorKind::Malformed;
    let relu = [n("Relu", &["x"], "y")];
    let with =
        |opset: Option<u64>| file(opset, &relu, &[tensor("x", &FOUR)], &[tensor("y", &FOUR)]);
    for version in [0, 6, 99, u64::MAX] {
        refused("a version", &with(Some(version)), malformed, &["operator set", "7 to"]);
    }
    refused("none", &with(None), malformed, &["no operator set"]);
    assert!(load(EngineKind::Plan, &with(Some(17)), &[1, 2]).is_ok());
}

#[test]
fn what_has_no_elements_or_not_those_it_says_is_refused() {
    let malformed = EngineErrorKind::Malformed;
    let none = [BATCH, Axis::Len(0)];
    let relu = [n("Relu", &["x"], "y")];
    let empty = model(&relu, &[tensor("x", &none)], &[tensor("y", &none)]);
    refused("an input without elements", &empty, malformed, &["no elements", "\"x\""]);
    let short = [constant("c", 1, &[4], vec![0; 12]), n("Add", &["x", "c"], "y")];
    refused("a constant cut short", &of(&short), malformed, &["\"c\"", "[4]", "12 bytes"]);
    let negative = [constant("c", 1, &[u64::MAX], vec![0; 4]), n("Add", &["x", "c"], "y")];
    refused("a negative length", &of(&negative), malformed, &["\"c\"", "-1"]);
}

/// A hundred bytes that ask for a terabyte.
#[test]
fn what_constants_make_is_bounded() {
    let limit = EngineErrorKind::Limit;
    let million = 1 << 20;
    let large = || integers("s", &[2], &[million, million]);
    let zeros = [large(), n("ConstantOfShape", &["s"], "z"), n("Add", &["x", "z"], "y")];
    refused("zeros", &of(&zeros), limit, &["\"z\"", "bytes"]);
    let one = || floats("one", &[1, 1], &[1.0]);
    let wide = [large(), one(), n("Expand", &["one", "s"], "z"), n("Add", &["x", "z"], "y")];
    refused("a wide constant", &of(&wide), limit, &["\"z\"", "bytes"]);
    let tiled = [large(), one(), n("Tile", &["one", "s"], "z"), n("Add", &["x", "z"], "y")];
    refused("a tiled constant", &of(&tiled), limit, &["\"z\"", "bytes"]);
    let rows = [
        integers("r", &[2], &[1, million << 8]),
        n("Tile", &["x", "r"], "t"),
        n("ReduceMax", &["t"], "y"),
    ];
    refused("a wide intermediate", &of(&rows), limit, &["bytes"]);
}

/// A number in a file can make a small tensor a large one, within what any may take.
#[test]
fn what_the_arena_has_no_room_for_is_not_run() {
    let pads = || integers("p", &[4], &[0, 0, 0, 1 << 20]);
    let any = Message::default().bytes(1, "y");
    let file = |nodes: &[Message]| model(nodes, &[tensor("x", &FOUR)], std::slice::from_ref(&any));
    let within = [pads(), n("Pad", &["x", "p"], "wide"), n("ReduceMax", &["wide"], "y")];
    // Outputs lie outside the arena.
    let (inner, outer) = (file(&within), file(&[pads(), n("Pad", &["x", "p"], "y")]));
    let load = |bytes: &[u8], kind, arena_bytes_max| {
        let (bind_axes, bind_inputs) = (&[][..], &[][..]);
        let (batch_sizes, isa) = (&[1][..], Isa::detect());
        engine::load(
            kind,
            &LoadRequest { bytes, batch_sizes, bind_axes, bind_inputs, arena_bytes_max, isa },
        )
    };
    for (bytes, kind) in [&inner, &outer]
        .iter()
        .flat_map(|bytes| [EngineKind::Plan, EngineKind::Tract].map(|kind| (bytes, kind)))
    {
        assert!(load(bytes, kind, 8 << 20).is_ok(), "{}", kind.name());
        let error = load(bytes, kind, 1 << 20).err().expect("4 MiB are too much");
        assert_eq!(error.kind(), EngineErrorKind::Limit, "{error}");
        let text = error.to_string();
        for part in ["arena_bytes_max", "1048576", "41943"] {
            assert!(text.contains(part), "{}: no {part:?} in {text:?}", kind.name());
        }
    }
}

#[test]
fn quantisation_of_other_forms_says_what_it_has_and_what_is_supported() {
    let unsupported = EngineErrorKind::UnsupportedOperator;
    let scale = || floats("s", &[], &[0.5]);
    let zero = |elem_type, bytes: usize| constant("z", elem_type, &[], vec![0; bytes]);
    let quantised = |inputs: &[&str], q: fn(Message) -> Message| {
        let back = named("DequantizeLinear", "back", &["q", "s", "z8"], &["y"]);
        [constant("z8", 3, &[], [0]), q(named("QuantizeLinear", "quantise", inputs, &["q"])), back]
    };
    let same = |m| m;
    let of_q = |more: &[Message], inputs: &[&str], q| {
        of(&[&[scale()], more, &quantised(inputs, q)[..]].concat())
    };
    let blocked = |m| with_int(with_int(m, "axis", 1), "block_size", 32);
    refused(
        "blocks",
        &of_q(&[zero(3, 1)], &["x", "s", "z"], blocked),
        unsupported,
        &["QuantizeLinear", "block_size = 32", "one scale for the whole tensor", "\"quantise\""],
    );
    refused(
        "16 bits",
        &of_q(&[zero(5, 2)], &["x", "s", "z"], same),
        unsupported,
        &["zero point of element type int16", "uint8 or int8 is supported", "\"quantise\""],
    );
    refused(
        "8 bits by an attribute alone",
        &of_q(&[], &["x", "s"], |m| with_int(m, "output_dtype", 3)),
        unsupported,
        &["output_dtype = int8", "zero point of that type", "\"quantise\""],
    );
    refused(
        "half a scale",
        &of_q(&[constant("h", 10, &[], [0, 0x38]), zero(3, 1)], &["x", "h", "z"], same),
        unsupported,
        &["scale of element type float16", "float is supported", "\"quantise\""],
    );
    let wide = [
        scale(),
        constant("w", 5, &[4], [1, 0, 2, 0, 3, 0, 4, 0]),
        named("DequantizeLinear", "weights", &["w", "s"], &["v"]),
        n("Add", &["x", "v"], "y"),
    ];
    refused(
        "weights of 16 bits",
        &of(&wide),
        unsupported,
        &["input of element type int16", "uint8 or int8 or int32 is supported", "\"weights\""],
    );
    assert!(load(EngineKind::Plan, &of_q(&[zero(3, 1)], &["x", "s", "z"], same), &[1, 2]).is_ok());
}
