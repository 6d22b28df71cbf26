//! What the manifest binds, and the axis that is left for the batch.

use super::{guarded, internal, open_axis};
use crate::engine::{EngineError, EngineErrorKind};
use std::collections::HashMap;
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::infer::{Factoid, InferenceOp};

/// Gives open axes the lengths that the manifest has for them.
pub(super) fn bind_all_axes(
    model: &mut InferenceModel,
    bind_axes: &[(String, usize)],
) -> Result<(), EngineError> {
    let mut subs = HashMap::new();
    for (name, length) in bind_axes {
        let known = model.symbols.get(name).filter(|symbol| {
            model.nodes().iter().flat_map(|n| &n.outputs).any(|o| {
                o.fact
                    .shape
                    .dims()
                    .any(|d| d.concretize().is_some_and(|d: TDim| d.symbols().contains(symbol)))
            })
        });
        let Some(symbol) = known else {
            return Err(EngineError::new(
                EngineErrorKind::Manifest,
                format!("bind_axes names {name:?}, but no input has an open axis of that name"),
            ));
        };
        if *length == 0 {
            return Err(EngineError::new(
                EngineErrorKind::Manifest,
                format!("bind_axes gives {name:?} the length 0; it must be at least 1"),
            ));
        }
        subs.insert(symbol, length.to_dim());
    }
    model.set_symbols(&subs).map_err(internal)
}

/// Makes an input a constant; one whose shape is still open is noted in `fills`.
pub(super) fn bind_input(
    model: &mut InferenceModel,
    name: &str,
    value: f64,
    fills: &mut Vec<(String, f64)>,
) -> Result<(), EngineError> {
    let inputs = model.input_outlets().map_err(internal)?.to_vec();
    let Some(outlet) = inputs.iter().copied().find(|o| model.node(o.node).name == name) else {
        let names: Vec<&str> = inputs.iter().map(|o| model.node(o.node).name.as_str()).collect();
        return Err(EngineError::new(
            EngineErrorKind::Manifest,
            format!("bind_inputs names {name:?}, but the inputs are {names:?}"),
        ));
    };
    let fact = model.outlet_fact(outlet).map_err(internal)?.clone();
    let concrete = fact.shape.as_concrete_finite().map_err(internal)?;
    let (Some(dtype), Some(shape)) = (fact.datum_type.concretize(), concrete) else {
        fills.push((name.to_string(), value));
        return Ok(());
    };
    let tensor = guarded("binding an input", || {
        tensor0(value).cast_to_dt(dtype)?.into_owned().broadcast_scalar_to_shape(&shape)
    })
    .map_err(|f| {
        f.into_error(EngineErrorKind::Manifest, "a bound input can't take its value").at_node(name)
    })?
    .into_arc_tensor();
    let konst = tract_onnx::tract_core::ops::konst::Const::new(tensor.clone()).map_err(internal)?;
    let bound = InferenceFact::from(TypedFact::try_from(tensor).map_err(internal)?);
    let node = model.node_mut(outlet.node);
    node.op = Box::new(konst) as Box<dyn InferenceOp>;
    node.outputs[0].fact = bound;
    let rest: Vec<OutletId> = inputs.into_iter().filter(|o| *o != outlet).collect();
    model.set_input_outlets(&rest).map_err(internal)
}

/// Finds the symbol on axis 0 of every input that is still open, naming it where the file does
/// not, and refuses any other open axis.
pub(super) fn find_batch(
    model: &mut InferenceModel,
    fills: &[(String, f64)],
) -> Result<Option<Symbol>, EngineError> {
    let inputs = model.input_outlets().map_err(internal)?.to_vec();
    let mut batch: Option<Symbol> = None;
    for &outlet in &inputs {
        let name = model.node(outlet.node).name.clone();
        let Some(rank) = model.outlet_fact(outlet).map_err(internal)?.shape.rank().concretize()
        else {
            return Err(EngineError::new(
                EngineErrorKind::Untyped,
                format!(
                    "input {name:?} has no shape at all; export the model with its input shapes"
                ),
            ));
        };
        for axis in 0..rank as usize {
            let fact = model.outlet_fact(outlet).map_err(internal)?;
            let dim = fact.shape.dim(axis).and_then(|d| d.concretize());
            let symbols: Vec<Symbol> = match &dim {
                Some(dim) => dim.symbols().into_iter().collect(),
                // An axis without a name: the batch if it is axis 0, else nothing can bind it.
                None if axis == 0 => {
                    let symbol =
                        batch.clone().unwrap_or_else(|| model.symbols.new_with_prefix("batch"));
                    let mut fact = fact.clone();
                    fact.shape.set_dim(0, symbol.to_dim());
                    model.set_outlet_fact(outlet, fact).map_err(internal)?;
                    batch = Some(symbol);
                    continue;
                }
                None => {
                    return Err(EngineError::new(
                        EngineErrorKind::Untyped,
                        format!(
                            "axis {axis} of input {name:?} is open and has no name, so bind_axes can't \
                             give its length; export the model with a named or a fixed axis"
                        ),
                    ));
                }
            };
            let whole =
                dim.as_ref().is_some_and(|d| symbols.len() == 1 && *d == symbols[0].to_dim());
            match (axis, symbols.as_slice(), &batch) {
                (_, [], _) => {}
                (0, [symbol], None) if whole => batch = Some(symbol.clone()),
                (0, [symbol], Some(known)) if whole && symbol == known => {}
                _ if fills.iter().any(|(fill, _)| *fill == name)
                    && symbols.iter().all(|s| Some(s) == batch.as_ref()) => {}
                _ => return Err(open_axis("input", &name, &symbols)),
            }
        }
    }
    Ok(batch)
}
