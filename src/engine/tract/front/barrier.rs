//! What keeps tract's declutter passes from what they do wrong across operators.
//!
//! - They take the stride out of a convolution, and pull it up through what makes the input: over a slice that
//!   does not start at a multiple of it into another convolution, whose stride forgets the start, and over a
//!   softmax along the very axis. So nothing is pulled out of a node that strides.
//! - They see through the repetition of an axis of length 1, and a chain of products over it adds up one term.

use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::*;
use tract_onnx::tract_core::ops::array::{DynTile, MultiBroadcastTo, StridedSlice, Tile};
use tract_onnx::tract_core::ops::cnn::Conv;
use tract_onnx::tract_core::ops::einsum::EinSum;

/// Its input, in which no axis is known again.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Barrier;

impl Op for Barrier {
    fn name(&self) -> StaticName {
        "Barrier".into()
    }

    op_as_typed_op!();
}

impl EvalOp for Barrier {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        Ok(inputs)
    }
}

impl TypedOp for Barrier {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(inputs[0].without_value()))
    }

    as_op!();
}

/// Whether `outlet` is made by repeating something.
fn repeats(model: &TypedModel, outlet: OutletId) -> bool {
    let mut node = model.node(outlet.node);
    while node.op_is::<AxisOp>() {
        node = model.node(node.inputs[0].node);
    }
    node.op_is::<Tile>() || node.op_is::<DynTile>() || node.op_is::<MultiBroadcastTo>()
}

/// Puts a barrier before each node that strides, and each product of what is repeated.
///
/// # Errors
/// What the graph library says of it.
pub(super) fn raise(model: &mut TypedModel) -> TractResult<()> {
    for id in 0..model.nodes().len() {
        let node = model.node(id);
        let strides = node.op_is::<StridedSlice>()
            || node
                .op_as::<Conv>()
                .is_some_and(|conv| conv.pool_spec.strides().iter().any(|&stride| stride > 1));
        let product = node.op_is::<EinSum>();
        for (slot, input) in node.inputs.clone().into_iter().enumerate() {
            let wanted = strides && slot == 0 || product && repeats(model, input);
            if !wanted || model.outlet_fact(input)?.konst.is_some() {
                continue;
            }
            let name = format!("{}.barrier.{slot}", model.node(id).name);
            let behind = model.wire_node(name, Barrier, &[input])?[0];
            model.add_edge(behind, InletId::new(id, slot))?;
        }
    }
    Ok(())
}
