//! Types and shapes of a graph, found before anything is computed that has no bound.
//!
//! The graph library computes what depends on constants while it infers types, and looks at how large
//! that became afterwards; a file of a hundred bytes can ask for any amount of memory so. Here the same
//! inference runs node by node, and the shape of a result is asked for before its values are.

use super::{internal, verify};
use crate::engine::{EngineError, EngineErrorKind};
use crate::limits::GRAPH_FOLDED_BYTES_MAX;
use std::collections::BTreeSet;
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::infer::Factoid;
use tract_onnx::tract_hir::internal::*;

/// Steps for each node after which a graph is given up: facts only ever become more precise, so a sound
/// graph takes a few.
const STEPS_PER_NODE_MAX: usize = 64;

/// Infers types and shapes as far as they go.
///
/// # Errors
/// `Limit` where constants make too much, with the node; `Untyped` where inference fails.
pub(super) fn infer(model: &mut InferenceModel) -> Result<(), EngineError> {
    let mut open: BTreeSet<usize> = (0..model.nodes().len()).collect();
    // Bytes of each node, and of all; a sum over the limit ends this at once.
    let mut folded = vec![0u64; model.nodes().len()];
    let mut total = 0u64;
    let mut steps = open.len().saturating_mul(STEPS_PER_NODE_MAX);
    while let Some(id) = open.pop_first() {
        if steps == 0 {
            return Err(EngineError::new(
                EngineErrorKind::Limit,
                "types and shapes are not found in a bounded number of steps",
            ));
        }
        steps -= 1;
        let name = model.node(id).name.clone();
        let bytes = weigh(model, id).map_err(|e| e.at_node(&name))?;
        total = (total - std::mem::replace(&mut folded[id], bytes)).saturating_add(bytes);
        if total > GRAPH_FOLDED_BYTES_MAX {
            return Err(EngineError::new(
                EngineErrorKind::Limit,
                format!(
                    "what is computed from constants takes {total} bytes or more, the limit is \
                     {GRAPH_FOLDED_BYTES_MAX}"
                ),
            )
            .at_node(&name));
        }
        let changed = step(model, id).map_err(|e| {
            let message = format!("types and shapes can't be inferred: {e:#}");
            EngineError::new(EngineErrorKind::Untyped, message).at_node(&name)
        })?;
        for (outlet, fact) in changed {
            model.set_outlet_fact(outlet, fact).map_err(internal)?;
            open.extend(
                model.node(outlet.node).outputs[outlet.slot].successors.iter().map(|s| s.node),
            );
            if outlet.node != id {
                open.insert(outlet.node);
            }
        }
    }
    Ok(())
}

/// Bytes that a node will compute from constants; 0 where it can't yet, or won't.
fn weigh(model: &InferenceModel, id: usize) -> Result<u64, EngineError> {
    let node = model.node(id);
    let (inputs, outputs) = model.node_facts(id).map_err(internal)?;
    if inputs.is_empty() || inputs.iter().any(|i| i.value.concretize().is_none()) {
        return Ok(0);
    }
    let outlets = node.op.observe_outlets(model, node).map_err(internal)?;
    let observed = outlets.iter().map(|o| model.outlet_fact(*o));
    let observed = observed.collect::<TractResult<_>>().map_err(internal)?;
    let mut op = node.op.clone();
    // Whatever is wrong with it, the step itself will say.
    let Ok((_, shapes, _)) = op.infer_facts(inputs, outputs, observed) else { return Ok(0) };
    let mut bytes = 0u64;
    for fact in &shapes {
        let shape = fact.shape.as_concrete_finite().map_err(internal)?;
        let Some(shape) = shape else { continue };
        let datum_type = fact.datum_type.concretize().unwrap_or(DatumType::F32);
        let one = verify::bounded(&shape, datum_type)
            .ok_or_else(|| verify::too_large("what is computed from constants", &shape))?;
        bytes = bytes.saturating_add(one);
    }
    Ok(bytes)
}

/// Infers at one node; what became known.
fn step(model: &mut InferenceModel, id: usize) -> TractResult<Vec<(OutletId, InferenceFact)>> {
    let outlets = model.node(id).op.observe_outlets(model, model.node(id))?;
    let observed: Vec<InferenceFact> =
        outlets.iter().map(|o| model.outlet_fact(*o).cloned()).collect::<TractResult<_>>()?;
    let (inputs, outputs) = model.node_facts(id)?;
    ensure!(
        model.node(id).op.nboutputs()? == outputs.len(),
        "the operator has {} outputs, the node {}",
        model.node(id).op.nboutputs()?,
        outputs.len()
    );
    let inputs: Vec<InferenceFact> = inputs.into_iter().cloned().collect();
    let outputs: Vec<InferenceFact> = outputs.into_iter().cloned().collect();
    let found = model.node_mut(id).op.infer(
        inputs.iter().collect(),
        outputs.iter().collect(),
        observed.iter().collect(),
    )?;
    let node = model.node(id);
    let places = node
        .inputs
        .iter()
        .copied()
        .zip(&found.0)
        .chain((0..node.outputs.len()).map(|slot| OutletId::new(id, slot)).zip(&found.1))
        .chain(outlets.iter().copied().zip(&found.2));
    let mut changed = vec![];
    for (outlet, fact) in places {
        let known = model.outlet_fact(outlet)?;
        let both = known.unify(fact)?;
        if both != *known {
            changed.push((outlet, both));
        }
    }
    Ok(changed)
}
