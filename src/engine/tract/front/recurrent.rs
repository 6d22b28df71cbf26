//! What the graph library reads over in recurrent operators: it would compute something else without
//! a word, so it is refused.

use super::verify::unsupported;
use crate::engine::EngineError;
use tract_onnx::pb::{AttributeProto, NodeProto};

/// Refuses a recurrent node with an attribute that would be ignored.
///
/// # Errors
/// `UnsupportedOperator`, with the node and the attribute.
pub(super) fn refuse_what_is_ignored(node: &NodeProto) -> Result<(), EngineError> {
    let Some(activations) = default_activations(node) else { return Ok(()) };
    match node.attribute.iter().find_map(|a| ignored(a, activations)) {
        Some(what) => Err(unsupported(
            node,
            &format!("with {what} is not supported; export the model without it"),
        )),
        None => Ok(()),
    }
}

/// The activations of one direction that ONNX has where none are given; `None` if the node is not
/// recurrent.
fn default_activations(node: &NodeProto) -> Option<&'static [&'static str]> {
    match node.op_type.as_str() {
        "LSTM" => Some(&["Sigmoid", "Tanh", "Tanh"]),
        "GRU" => Some(&["Sigmoid", "Tanh"]),
        "RNN" => Some(&["Tanh"]),
        _ => None,
    }
}

fn ignored(attribute: &AttributeProto, defaults: &[&str]) -> Option<String> {
    match attribute.name.as_str() {
        "direction" if attribute.s == b"reverse" => Some("direction = reverse".into()),
        "clip" if attribute.f != 0.0 => Some(format!("clip = {}", attribute.f)),
        "input_forget" if attribute.i != 0 => Some("input_forget".into()),
        "activations" => {
            let given: Vec<_> =
                attribute.strings.iter().map(|s| String::from_utf8_lossy(s)).collect();
            // For each direction; ONNX doesn't mind the case.
            let usual = given.len().is_multiple_of(defaults.len())
                && given
                    .iter()
                    .zip(defaults.iter().cycle())
                    .all(|(g, d)| g.eq_ignore_ascii_case(d));
            (!usual).then(|| format!("activations = {given:?}"))
        }
        _ => None,
    }
}
