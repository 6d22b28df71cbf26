//! What is wrong with a file, or would be read over, before the graph library sees it, and what is wrong
//! with a typed graph before anything of its size is made.

use super::{dtype_of, internal, quantize_forms, recurrent};
use crate::engine::{EngineError, EngineErrorKind};
use crate::limits::{GRAPH_NODES_COUNT_MAX, GRAPH_TENSOR_BYTES_MAX};
use std::collections::HashSet;
use tract_onnx::pb::tensor_shape_proto::dimension::Value as Dim;
use tract_onnx::pb::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, type_proto};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ops::konst::Const;
use tract_onnx::tract_core::ops::{array, cnn, nn};

/// Versions of the default operator set that are read: before the first, operators broadcast by
/// attributes that would be read over; after the last, operators may have changed.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=26;

/// Domains whose operators are read.
const DOMAINS: [&str; 5] = ["", "ai.onnx", "ai.onnx.ml", "com.microsoft", "ai.onnx.contrib"];

fn malformed(message: String) -> EngineError {
    EngineError::new(EngineErrorKind::Malformed, message)
}

/// The error of an operator that is `what`.
pub(super) fn unsupported(node: &NodeProto, what: &str) -> EngineError {
    let message = format!("operator {} {what}", node.op_type);
    EngineError::new(EngineErrorKind::UnsupportedOperator, message).at_node(called(node))
}

/// What a node is called: its name, or that of its first output.
fn called(node: &NodeProto) -> &str {
    if node.name.is_empty() { node.output.first().map_or("", String::as_str) } else { &node.name }
}

/// Checks a file that was decoded.
///
/// # Errors
/// `Malformed`, `UnsupportedOperator` and `Limit`, with the node or tensor and what would be right.
pub(super) fn file(model: &ModelProto) -> Result<(), EngineError> {
    let Some(graph) = &model.graph else {
        return Err(malformed("the file has no graph".into()));
    };
    let default = |d: &str| d.is_empty() || d == "ai.onnx";
    let versions: Vec<i64> =
        model.opset_import.iter().filter(|o| default(&o.domain)).map(|o| o.version).collect();
    match versions[..] {
        [version] if OPSETS.contains(&version) => {}
        [version] => {
            return Err(malformed(format!(
                "operator set {version} is not read; {} to {} are: convert the model",
                OPSETS.start(),
                OPSETS.end()
            )));
        }
        [] => return Err(malformed("the file names no operator set (opset_import)".into())),
        [..] => return Err(malformed("the file names several default operator sets".into())),
    }
    let mut nodes = 0;
    let mut graphs = vec![graph];
    while let Some(graph) = graphs.pop() {
        nodes += graph.node.len() + graph.initializer.len();
        if nodes > GRAPH_NODES_COUNT_MAX {
            return Err(EngineError::new(
                EngineErrorKind::Limit,
                format!(
                    "the graph has {nodes} nodes and constants or more, the limit is {GRAPH_NODES_COUNT_MAX}"
                ),
            ));
        }
        names(graph)?;
        graph.initializer.iter().try_for_each(|t| stored(t, &t.name))?;
        quantize_forms::refuse_other_forms(graph)?;
        for node in &graph.node {
            self::node(node)?;
            for attribute in &node.attribute {
                graphs.extend(&attribute.g);
                graphs.extend(&attribute.graphs);
            }
        }
    }
    Ok(())
}

/// Every tensor has one name and one origin.
fn names(graph: &GraphProto) -> Result<(), EngineError> {
    let mut known: HashSet<&str> = HashSet::new();
    let twice = |what: &str, name: &str| {
        malformed(format!("{what} {name:?} is there twice; names must be unique"))
    };
    let inputs: HashSet<&str> = graph.input.iter().map(|i| i.name.as_str()).collect();
    if inputs.len() < graph.input.len() {
        let mut seen = HashSet::new();
        let again = graph.input.iter().find(|i| !seen.insert(&i.name));
        return Err(twice("input", again.map_or("", |i| &i.name)));
    }
    for tensor in &graph.initializer {
        if tensor.name.is_empty() {
            return Err(malformed("a constant has no name".into()));
        }
        if !known.insert(&tensor.name) {
            return Err(twice("constant", &tensor.name));
        }
    }
    known.extend(&inputs);
    for node in &graph.node {
        for output in node.output.iter().filter(|o| !o.is_empty()) {
            if !known.insert(output) {
                return Err(twice("tensor", output).at_node(called(node)));
            }
        }
    }
    let mut outputs = HashSet::new();
    for output in &graph.output {
        if !known.contains(output.name.as_str()) {
            let message = format!("output {:?} is computed by no node", output.name);
            return Err(malformed(message));
        }
        if !outputs.insert(&output.name) {
            return Err(twice("output", &output.name));
        }
    }
    Ok(())
}

/// A constant must have as many elements as its shape says.
fn stored(tensor: &TensorProto, name: &str) -> Result<(), EngineError> {
    let wrong = |what: String| Err(malformed(format!("constant {name:?} {what}")));
    let len = tensor.dims.iter().try_fold(1u64, |len, &d| len.checked_mul(u64::try_from(d).ok()?));
    let Some(len) = len else {
        return wrong(format!("has the shape {:?}, which is none", tensor.dims));
    };
    // Element types by ONNX's numbers, and how many bytes each has in raw form.
    let size: u64 = match tensor.data_type {
        2 | 3 | 9 => 1,
        4 | 5 | 10 => 2,
        1 | 6 | 12 => 4,
        7 | 11 | 13 => 8,
        _ => 0,
    };
    let raw = tensor.raw_data.len() as u64;
    if raw > 0 {
        if size > 0 && len.checked_mul(size) != Some(raw) {
            return wrong(format!("of shape {:?} has {raw} bytes of data", tensor.dims));
        }
        return Ok(());
    }
    if tensor.data_location == Some(1) {
        return wrong("is in another file; store the model as one file".into());
    }
    let given = match tensor.data_type {
        1 => tensor.float_data.len(),
        2..=6 | 9 | 10 | 12 => tensor.int32_data.len(),
        7 | 13 => tensor.int64_data.len(),
        8 => tensor.string_data.len(),
        11 => tensor.double_data.len(),
        // Refused by its type.
        _ => return Ok(()),
    } as u64;
    // Unsigned integers may be stored in a list of their own.
    let given = given.max(tensor.uint64_data.len() as u64);
    if given != len {
        return wrong(format!("of shape {:?} has {given} elements", tensor.dims));
    }
    Ok(())
}

fn node(node: &NodeProto) -> Result<(), EngineError> {
    if !DOMAINS.contains(&node.domain.as_str()) {
        return Err(unsupported(
            node,
            &format!(
                "of the domain {:?} is not supported; export the model without it",
                node.domain
            ),
        ));
    }
    recurrent::refuse_what_is_ignored(node)?;
    let mut seen = HashSet::new();
    if let Some(again) = node.attribute.iter().find(|a| !seen.insert(&a.name)) {
        return Err(unsupported(node, &format!("has the attribute {:?} twice", again.name)));
    }
    for attribute in &node.attribute {
        self::attribute(node, attribute)?;
        for tensor in attribute.t.iter().chain(&attribute.tensors) {
            stored(tensor, called(node))?;
        }
    }
    Ok(())
}

/// Attributes that the graph library would take at their word, or read over.
fn attribute(node: &NodeProto, attribute: &AttributeProto) -> Result<(), EngineError> {
    let values = &attribute.ints;
    let positive = |values: &[i64]| values.iter().all(|v| (1..=i64::from(i32::MAX)).contains(v));
    let wrong = |what: &str| {
        Err(unsupported(node, &format!("has {} = {values:?}; {what}", attribute.name)))
    };
    match (node.op_type.as_str(), attribute.name.as_str()) {
        ("Transpose", "perm") => {
            let mut sorted = values.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..values.len() as i64) {
                return wrong("it must name every axis once");
            }
        }
        ("ConvTranspose", "output_shape") if !values.is_empty() => {
            return wrong("this is not supported: give pads and output_padding instead");
        }
        (_, "pads") if values.iter().any(|v| !(0..=i64::from(i32::MAX)).contains(v)) => {
            return wrong("negative padding is not supported, use Slice");
        }
        (_, "strides" | "dilations" | "kernel_shape") if !positive(values) => {
            return wrong("each must be at least 1");
        }
        ("Conv" | "ConvTranspose" | "ConvInteger" | "QLinearConv", "group")
            if !(1..=i64::from(i32::MAX)).contains(&attribute.i) =>
        {
            let what = format!("has group = {}; it must be at least 1", attribute.i);
            return Err(unsupported(node, &what));
        }
        _ => {}
    }
    Ok(())
}

/// Bytes of a tensor of `shape`, unless they overflow or are more than any tensor may have.
pub(super) fn bounded(shape: &[usize], datum_type: DatumType) -> Option<u64> {
    let bytes = shape
        .iter()
        .try_fold(datum_type.size_of().max(1) as u64, |n, &d| n.checked_mul(d as u64))?;
    (bytes <= GRAPH_TENSOR_BYTES_MAX).then_some(bytes)
}

/// A tensor that is too large.
pub(super) fn too_large(what: &str, shape: &[usize]) -> EngineError {
    EngineError::new(
        EngineErrorKind::Limit,
        format!(
            "{what} has the shape {shape:?}, which takes more than {GRAPH_TENSOR_BYTES_MAX} bytes"
        ),
    )
}

/// Checks a graph whose shapes are all known.
///
/// # Errors
/// `Malformed`, `UnsupportedOperator` or `Limit`, with the node.
pub(super) fn typed(model: &TypedModel) -> Result<(), EngineError> {
    for node in model.nodes() {
        for output in &node.outputs {
            let Some(shape) = output.fact.shape.as_concrete() else { continue };
            if bounded(shape, output.fact.datum_type).is_none() {
                return Err(too_large("a tensor", shape).at_node(&node.name));
            }
            // Constants without elements stand for what is not given.
            if !node.op_is::<Const>() && shape.contains(&0) {
                let message = format!("a tensor of shape {shape:?} has no elements");
                return Err(malformed(message).at_node(&node.name));
            }
        }
        operator(model, node)?;
    }
    Ok(())
}

/// Checks that no tensor that `model` computes is larger than all that it computes may be (`arena_bytes_max`):
/// to run it would take more, and long.
///
/// # Errors
/// `Limit`, with the node and both numbers.
pub(in crate::engine::tract) fn within(
    model: &TypedModel,
    batch: usize,
    arena_bytes_max: usize,
) -> Result<(), EngineError> {
    for node in model.nodes().iter().filter(|node| !node.op_is::<Const>()) {
        for fact in node.outputs.iter().map(|output| &output.fact) {
            let Some(shape) = fact.shape.as_concrete() else { continue };
            // What is larger than any tensor may be was refused when the graph was typed.
            let Some(bytes) = bounded(shape, fact.datum_type) else { continue };
            if bytes > arena_bytes_max as u64 {
                let message = format!(
                    "batch size {batch} makes a tensor of shape {shape:?}, which takes {bytes} bytes; the \
                     limit (arena_bytes_max) is {arena_bytes_max}"
                );
                return Err(EngineError::new(EngineErrorKind::Limit, message).at_node(&node.name));
            }
        }
    }
    Ok(())
}

/// The window of a convolution or a pool.
pub(in crate::engine::tract) fn window(node: &TypedNode) -> Option<&cnn::PoolSpec> {
    let conv = node.op_as::<cnn::Conv>().map(|op| &op.pool_spec);
    let deconv = || node.op_as::<cnn::Deconv>().map(|op| &op.pool_spec);
    let max = || node.op_as::<cnn::MaxPool>().map(|op| &op.pool_spec);
    let sum = || node.op_as::<cnn::SumPool>().map(|op| &op.pool_spec);
    conv.or_else(deconv).or_else(max).or_else(sum)
}

/// Axes that the graph library does not check.
fn operator(model: &TypedModel, node: &TypedNode) -> Result<(), EngineError> {
    let Some(input) = node.inputs.first() else { return Ok(()) };
    let rank = model.outlet_fact(*input).map_err(internal)?.rank();
    let axes: TVec<usize> = if let Some(softmax) = node.op_as::<nn::Softmax>() {
        softmax.axes.clone()
    } else if let Some(reduce) = node.op_as::<nn::Reduce>() {
        reduce.axes.clone()
    } else if let Some(gather) = node.op_as::<array::Gather>() {
        tvec![gather.axis]
    } else if let Some(concat) = node.op_as::<array::TypedConcat>() {
        tvec![concat.axis]
    } else if let Some(slice) = node.op_as::<array::Slice>() {
        tvec![slice.axis]
    } else if let Some(sum) = node.op_as::<array::CumSum>() {
        tvec![sum.axis]
    } else if let Some(topk) = node.op_as::<array::Topk>() {
        tvec![topk.axis]
    } else if let Some(gather) = node.op_as::<array::GatherElements>() {
        tvec![gather.axis]
    } else if let Some(norm) = node.op_as::<nn::RmsNorm>() {
        tvec![norm.axis]
    } else {
        tvec![]
    };
    let name = node.op.name();
    let refused = |what: String| {
        Err(EngineError::new(EngineErrorKind::UnsupportedOperator, what).at_node(&node.name))
    };
    if let Some(axis) = axes.iter().find(|&&a| a >= rank) {
        return refused(format!("operator {name} works along axis {axis} of a tensor with {rank}"));
    }
    if axes.iter().collect::<HashSet<_>>().len() < axes.len() {
        return refused(format!("operator {name} names an axis twice in {axes:?}"));
    }
    let spatial = |spec: &cnn::PoolSpec| {
        spec.kernel_shape.len() + 1 + usize::from(spec.data_format.has_n()) == rank
    };
    if let Some(spec) = window(node).filter(|spec| !spatial(spec)) {
        let axes = spec.kernel_shape.len();
        return refused(format!(
            "operator {name} has a window of {axes} axes over a tensor with {rank}, not {}",
            axes + 2
        ));
    }
    if let Some(pad) = node.op_as::<array::Pad>() {
        // Negative amounts went through an unsigned type.
        let large = |n: usize| n > i32::MAX as usize;
        if pad.pads.iter().any(|&(a, b)| large(a) || large(b)) {
            return refused(
                "operator Pad with negative amounts is not supported, use Slice".into(),
            );
        }
        if pad.pads.len() != rank {
            return refused(format!("operator Pad pads {} axes of {rank}", pad.pads.len()));
        }
    }
    Ok(())
}

/// Checks the graph for one row against what the file declares its outputs to be.
///
/// # Errors
/// `Malformed`, with the output, what is declared and what is computed.
pub(super) fn declared(
    graph: &GraphProto,
    one: &TypedModel,
    batch: bool,
) -> Result<(), EngineError> {
    let outlets = one.output_outlets().map_err(internal)?;
    for (declared, outlet) in graph.output.iter().zip(outlets) {
        let Some(type_proto::Value::TensorType(tensor)) =
            declared.r#type.as_ref().and_then(|t| t.value.as_ref())
        else {
            continue;
        };
        let fact = one.outlet_fact(*outlet).map_err(internal)?;
        let wrong = |declared_as: String, computed: String| {
            malformed(format!(
                "output {:?} is declared as {declared_as}, but the graph computes {computed}",
                declared.name
            ))
        };
        let known = tract_onnx::pb::tensor_proto::DataType::try_from(tensor.elem_type)
            .ok()
            .filter(|_| tensor.elem_type != 0);
        if let Some(dtype) = known {
            let wanted = DatumType::try_from(dtype).ok().and_then(dtype_of);
            let got = dtype_of(fact.datum_type);
            if got.is_some() && wanted != got {
                let got = got.map_or("", |d| d.name());
                return Err(wrong(format!("{dtype:?}").to_lowercase(), got.into()));
            }
        }
        let Some(shape) = &tensor.shape else { continue };
        let computed = fact.shape.as_concrete().unwrap_or_default();
        let same = shape.dim.len() == computed.len()
            && shape.dim.iter().zip(computed).all(|(dim, &len)| match dim.value {
                Some(Dim::DimValue(n)) if n > 0 => n == len as i64,
                _ => true,
            });
        if !same {
            let text: Vec<String> = shape
                .dim
                .iter()
                .map(|dim| match &dim.value {
                    Some(Dim::DimValue(n)) => n.to_string(),
                    Some(Dim::DimParam(name)) => name.clone(),
                    None => "?".into(),
                })
                .collect();
            return Err(wrong(
                format!("[{}]", text.join(", ")),
                format!("{computed:?}{}", if batch { " for one row" } else { "" }),
            ));
        }
    }
    Ok(())
}
