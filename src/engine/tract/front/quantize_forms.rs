//! Forms of quantisation that the graph library reads over, or refuses without a word of what it has.

use super::verify::unsupported;
use crate::engine::EngineError;
use std::collections::HashMap;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{GraphProto, NodeProto};

/// Element types of scales that are read.
const SCALES: &[DataType] = &[DataType::Float];
/// Element types that are quantised to.
const QUANTISED: &[DataType] = &[DataType::Uint8, DataType::Int8];
/// Element types that are dequantised from: biases have 32 bits.
const DEQUANTISED: &[DataType] = &[DataType::Uint8, DataType::Int8, DataType::Int32];

/// Refuses a `QuantizeLinear` or `DequantizeLinear` of `graph` in blocks, or with element types other than those that
/// are computed. Types are known of constants; of what is computed the graph library finds them.
///
/// # Errors
/// `UnsupportedOperator`, with the node, what it has and what is supported.
pub(super) fn refuse_other_forms(graph: &GraphProto) -> Result<(), EngineError> {
    let quantises =
        |node: &&NodeProto| matches!(node.op_type.as_str(), "QuantizeLinear" | "DequantizeLinear");
    let mut nodes = graph.node.iter().filter(quantises).peekable();
    if nodes.peek().is_none() {
        return Ok(());
    }
    let types = constants(graph);
    nodes.try_for_each(|node| refuse(node, &types))
}

/// The element types of constants, by name.
fn constants(graph: &GraphProto) -> HashMap<&str, i32> {
    let stored = graph.initializer.iter().map(|t| (t.name.as_str(), t.data_type));
    let made = graph.node.iter().filter(|node| node.op_type == "Constant").filter_map(|node| {
        let tensor = node.attribute.iter().find_map(|a| a.t.as_ref())?;
        Some((node.output.first()?.as_str(), tensor.data_type))
    });
    stored.chain(made).collect()
}

fn refuse(node: &NodeProto, types: &HashMap<&str, i32>) -> Result<(), EngineError> {
    let number = |name: &str| match node.attribute.iter().find(|a| a.name == name) {
        None => Ok(0),
        Some(a) if a.r#type == AttributeType::Int as i32 => Ok(a.i),
        Some(_) => Err(unsupported(node, &format!("has a {name} that is no integer"))),
    };
    let blocks = number("block_size")?;
    if blocks != 0 {
        let what = format!(
            "has block_size = {blocks}; one scale for the whole tensor, or one for each element of an axis, is \
             supported"
        );
        return Err(unsupported(node, &what));
    }
    let quantises = node.op_type == "QuantizeLinear";
    let integers = if quantises { QUANTISED } else { DEQUANTISED };
    let zero_point = node.input.get(2).filter(|name| !name.is_empty());
    let wanted = number("output_dtype")?;
    if quantises && zero_point.is_none() && ![0, DataType::Uint8 as i64].contains(&wanted) {
        let what = format!(
            "has output_dtype = {} and no zero point; give it a zero point of that type",
            name_of(wanted as i32)
        );
        return Err(unsupported(node, &what));
    }
    let inputs = [
        ("scale", node.input.get(1), SCALES),
        ("zero point", zero_point, integers),
        ("input", node.input.first().filter(|_| !quantises), integers),
    ];
    for (what, input, known) in inputs {
        let Some(&found) = input.and_then(|name| types.get(name.as_str())) else { continue };
        if !known.iter().any(|&known| known as i32 == found) {
            let known: Vec<String> = known.iter().map(|&known| name_of(known as i32)).collect();
            let what = format!(
                "has a {what} of element type {}; {} is supported",
                name_of(found),
                known.join(" or ")
            );
            return Err(unsupported(node, &what));
        }
    }
    Ok(())
}

/// What ONNX calls an element type.
fn name_of(number: i32) -> String {
    match DataType::try_from(number) {
        Ok(known) => format!("{known:?}").to_lowercase(),
        Err(_) => format!("number {number}"),
    }
}
