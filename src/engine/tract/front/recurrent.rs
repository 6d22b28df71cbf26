//! What the graph library reads over in recurrent operators: it would compute something else without
//! a word, so it is refused.

use crate::engine::{EngineError, EngineErrorKind};
use tract_onnx::pb::{AttributeProto, ModelProto, NodeProto};

/// Refuses recurrent nodes with an attribute that would be ignored.
///
/// # Errors
/// `UnsupportedOperator`, with the node and the attribute.
pub(super) fn refuse_what_is_ignored(model: &ModelProto) -> Result<(), EngineError> {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    for node in nodes {
        let Some(activations) = default_activations(node) else { continue };
        let ignored = node.attribute.iter().find_map(|a| ignored(a, activations));
        if let Some(what) = ignored {
            return Err(EngineError::new(
                EngineErrorKind::UnsupportedOperator,
                format!(
                    "operator {} with {what} is not supported; export the model without it",
                    node.op_type
                ),
            )
            .at_node(&node.name));
        }
    }
    Ok(())
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
