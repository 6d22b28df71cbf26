//! Front end of both engines that read ONNX: bytes to a typed graph with every shape known.
//!
//! A file is parsed once ([`parse`]); [`Parsed::typed`] then gives the graph for one batch size as
//! tract typed it, and [`Parsed::concretise`] the same after tract's declutter passes.

#[path = "front/barrier.rs"]
mod barrier;
#[path = "front/bind.rs"]
mod bind;
#[path = "front/bounds.rs"]
mod bounds;
#[path = "front/numerics.rs"]
pub mod numerics;
#[path = "front/quantize.rs"]
pub mod quantize;
#[path = "front/quantize_forms.rs"]
mod quantize_forms;
#[path = "front/recurrent.rs"]
mod recurrent;
#[path = "front/verify.rs"]
mod verify;

pub(super) use verify::{window, within};

use super::independence;
use crate::engine::{EngineError, EngineErrorKind, quiet};
use crate::limits::{BATCH_ROWS_MAX, ROW_AXES_MAX, TENSOR_NAME_LEN_MAX, TENSORS_MAX};
use crate::model::signature::{Signature, TensorSpec};
use crate::units::DType;
use std::collections::HashMap;
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::unimpl::UnimplementedOp;

/// A parsed model: its signature, and what is needed to type it at any batch size.
pub struct Parsed {
    /// Inputs (without those bound to a constant) and outputs, per row.
    pub signature: Signature,
    /// The graph before typing, with everything bound but the batch.
    inference: InferenceModel,
    /// The typed graph with the batch still a symbol, where tract can type it so.
    symbolic: Option<TypedModel>,
    /// The typed graph for one row, from which the signature was read.
    one: Option<TypedModel>,
    batch: Option<Symbol>,
    fills: Vec<(String, f64)>,
    /// What the file calls its outputs. (A graph has one label for two that are one tensor.)
    outputs: Vec<String>,
}

/// Parses `bytes` (an ONNX file).
///
/// `bind_axes` gives lengths to open axes other than the batch, by their symbol; `bind_inputs`
/// turns inputs into constants (one value, broadcast over the whole tensor).
///
/// # Errors
/// `Malformed` for what is not a whole ONNX model, `UnsupportedOperator`, `Untyped` for axes or
/// types that stay open (the message names the symbol and the manifest key), `Manifest` for
/// bindings that name nothing in the model, `Limit` for too many or too large tensors.
pub fn parse(
    bytes: &[u8],
    bind_axes: &[(String, usize)],
    bind_inputs: &[(String, f64)],
) -> Result<Parsed, EngineError> {
    let mut onnx = tract_onnx::onnx().with_ignore_value_info(true);
    numerics::register(&mut onnx);
    let malformed = |failure: Failure| {
        failure.into_error(
            EngineErrorKind::Malformed,
            "not a valid ONNX model (truncated, damaged, or not ONNX)",
        )
    };
    let proto = guarded("parsing the file", || onnx.proto_model_for_read(&mut &bytes[..]))
        .map_err(malformed)?;
    verify::file(&proto)?;
    let mut model =
        guarded("parsing the file", || onnx.model_for_proto_model(&proto)).map_err(malformed)?;
    refuse_unimplemented(&model)?;
    bind::bind_all_axes(&mut model, bind_axes)?;
    let mut fills = Vec::new();
    for (name, value) in bind_inputs {
        bind::bind_input(&mut model, name, *value, &mut fills)?;
    }
    let batch = bind::find_batch(&mut model, &fills)?;
    let mut parsed = Parsed {
        signature: Signature { inputs: vec![], outputs: vec![], batched: false },
        inference: model,
        symbolic: None,
        one: None,
        batch,
        fills,
        outputs: proto.graph.iter().flat_map(|g| &g.output).map(|o| o.name.clone()).collect(),
    };
    // tract's recurrent operators panic under a symbolic batch; they are typed per batch size.
    let recurrent = parsed
        .inference
        .nodes()
        .iter()
        .any(|n| matches!(n.op.name().as_ref(), "LSTM" | "GRU" | "RNN"));
    if parsed.batch.is_some() && !recurrent {
        let mut open = parsed.inference.clone();
        contained("inferring types and shapes", || bounds::infer(&mut open))?;
        parsed.symbolic = guarded("typing the graph", || open.into_typed())
            .ok()
            .and_then(|m| guarded("binding inputs", || parsed.fill_inputs(m)).ok());
    }
    let one = parsed.typed_at(1)?;
    if let Some(graph) = &proto.graph {
        verify::declared(graph, &one, parsed.batch.is_some())?;
    }
    parsed.signature = parsed.read_signature(&one)?;
    parsed.one = Some(one);
    Ok(parsed)
}

impl Parsed {
    /// The graph at `batch` rows, as tract types it: no declutter pass has run, every shape is
    /// known. `batch` must be 1 where the signature is not batched.
    ///
    /// # Errors
    /// `Batch` where the graph can't do that size, `Untyped` where types or shapes stay open.
    pub fn typed(&self, batch: usize) -> Result<TypedModel, EngineError> {
        if batch == 0 || batch > BATCH_ROWS_MAX {
            return Err(EngineError::new(
                EngineErrorKind::Limit,
                format!("batch size {batch} is not within 1 to {BATCH_ROWS_MAX}"),
            ));
        }
        if batch != 1 && !self.signature.batched {
            return Err(EngineError::new(
                EngineErrorKind::Batch,
                format!("batch size {batch}: axis 0 of the model is not a batch, only 1 will do"),
            ));
        }
        match &self.one {
            Some(one) if batch == 1 => Ok(one.clone()),
            _ => self.typed_at(batch),
        }
    }

    /// Shows that each row of `many`, which is [`typed`](Self::typed) for `batch` rows, is computed
    /// from the same row of the inputs alone, and as it is computed for one row.
    ///
    /// # Errors
    /// What can't be shown, and at which node.
    pub fn prove_rows_independent(&self, many: &TypedModel, batch: usize) -> Result<(), String> {
        let Some(one) = &self.one else { return Err("there is no graph for one row".into()) };
        guarded("following its rows", || independence::prove(one, many, batch))
            .map_err(|failure| failure.0)
    }

    /// As [`typed`](Self::typed), after tract's declutter passes.
    ///
    /// # Errors
    /// As [`typed`](Self::typed).
    pub fn concretise(&self, batch: usize) -> Result<TypedModel, EngineError> {
        declutter(self.typed(batch)?)
    }

    fn typed_at(&self, batch: usize) -> Result<TypedModel, EngineError> {
        let subs: HashMap<Symbol, TDim> =
            self.batch.iter().map(|symbol| (symbol.clone(), batch.to_dim())).collect();
        if let Some(symbolic) = &self.symbolic {
            refuse_large(symbolic, &subs)?;
        }
        let mut model = match &self.symbolic {
            Some(symbolic) => match guarded("binding the batch", || symbolic.set_symbols(&subs)) {
                Ok(model) => model,
                Err(_) => self.typed_from_inference(&subs)?,
            },
            None => self.typed_from_inference(&subs)?,
        };
        refuse_open_shapes(&model)?;
        verify::typed(&model)?;
        guarded("rewriting the graph", || numerics::mend(&mut model)).map_err(|failure| {
            failure.into_error(EngineErrorKind::Untyped, "operators can't be made right")
        })?;
        Ok(model)
    }

    fn typed_from_inference(
        &self,
        subs: &HashMap<Symbol, TDim>,
    ) -> Result<TypedModel, EngineError> {
        let at = |failure: Failure| {
            failure.into_error(EngineErrorKind::Untyped, "types and shapes can't be inferred")
        };
        let mut model = self.inference.clone();
        guarded("binding the batch", || model.set_symbols(subs)).map_err(at)?;
        contained("inferring types and shapes", || bounds::infer(&mut model))?;
        guarded("typing the graph", || self.fill_inputs(model.into_typed()?)).map_err(at)
    }

    /// Turns bound inputs whose shape was open before typing into constants.
    fn fill_inputs(&self, mut model: TypedModel) -> TractResult<TypedModel> {
        for (name, value) in &self.fills {
            let id = model.node_id_by_name(name)?;
            let fact = model.outlet_fact(OutletId::new(id, 0))?.clone();
            let one = tensor0(*value).cast_to_dt(fact.datum_type)?.into_owned();
            let scalar = one.broadcast_into_rank(fact.rank())?.into_arc_tensor();
            let konst = model.add_const(format!("{name}.value"), scalar)?;
            let full = model.wire_node(
                format!("{name}.fill"),
                tract_onnx::tract_core::ops::array::MultiBroadcastTo { shape: fact.shape.clone() },
                &[konst],
            )?[0];
            let inputs: Vec<OutletId> =
                model.input_outlets()?.iter().copied().filter(|o| o.node != id).collect();
            model.set_input_outlets(&inputs)?;
            let successors = model.node(id).outputs[0].successors.clone();
            for inlet in successors {
                model.add_edge(full, inlet)?;
            }
        }
        model.into_compact()
    }

    /// What a row is, from the graph for one row.
    fn read_signature(&self, one: &TypedModel) -> Result<Signature, EngineError> {
        let outlets = one.input_outlets().map_err(internal)?;
        let names: Vec<String> = outlets.iter().map(|o| one.node(o.node).name.clone()).collect();
        let inputs = specs(one, outlets, &names, "input")?;
        let outlets = one.output_outlets().map_err(internal)?;
        let outputs = specs(one, outlets, &self.outputs, "output")?;
        let batched = match (&self.batch, &self.symbolic) {
            (None, _) => false,
            (Some(batch), Some(symbolic)) => leads(symbolic, batch).map_err(internal)?,
            // Only typing it for two rows can tell.
            (Some(_), None) => self
                .typed_at(2)
                .and_then(|two| scales(one, &two).map_err(internal))
                .unwrap_or(false),
        };
        let row = |mut spec: TensorSpec| {
            if batched {
                spec.row_shape.remove(0);
            }
            spec
        };
        let signature = Signature {
            inputs: inputs.into_iter().map(row).collect(),
            outputs: outputs.into_iter().map(row).collect(),
            batched,
        };
        for spec in signature.inputs.iter().chain(&signature.outputs) {
            if spec.row_shape.len() > ROW_AXES_MAX {
                return Err(EngineError::new(
                    EngineErrorKind::Limit,
                    format!(
                        "{:?} has {} axes a row, the limit is {ROW_AXES_MAX}",
                        spec.name,
                        spec.row_shape.len()
                    ),
                ));
            }
        }
        Ok(signature)
    }
}

/// [`Parsed::prove_rows_independent`] of the file `bytes` for each of `batch_sizes`, for an engine that
/// does not read the graph itself.
///
/// # Errors
/// What can't be shown, be it for want of an operator that can be read.
pub fn follow_rows(
    bytes: &[u8],
    bind_axes: &[(String, usize)],
    bind_inputs: &[(String, f64)],
    batch_sizes: &[usize],
) -> Result<(), String> {
    let unread = |e: EngineError| format!("the graph can't be read to follow its rows: {e}");
    let parsed = parse(bytes, bind_axes, bind_inputs).map_err(unread)?;
    for &batch in batch_sizes.iter().filter(|&&n| n > 1) {
        let many = parsed.typed(batch).map_err(unread)?;
        parsed.prove_rows_independent(&many, batch)?;
    }
    Ok(())
}

/// Runs tract's declutter passes, but for what they do wrong to strides.
///
/// # Errors
/// `Untyped` where they fail.
pub fn declutter(mut model: TypedModel) -> Result<TypedModel, EngineError> {
    let decluttered = guarded("decluttering the graph", || {
        barrier::raise(&mut model)?;
        model.into_decluttered()
    });
    decluttered.map_err(|failure| {
        failure.into_error(EngineErrorKind::Untyped, "the graph can't be simplified")
    })
}

/// Whether axis 0 of every input and output is `batch`, and no other axis depends on it.
fn leads(symbolic: &TypedModel, batch: &Symbol) -> TractResult<bool> {
    let mut outlets = symbolic.input_outlets()?.iter().chain(symbolic.output_outlets()?);
    outlets.try_fold(true, |all, outlet| {
        let shape = &symbolic.outlet_fact(*outlet)?.shape;
        let first = shape.first().is_some_and(|axis| *axis == batch.to_dim());
        let rest = shape.iter().skip(1).all(|axis| !axis.symbols().contains(batch));
        Ok(all && first && rest)
    })
}

/// Whether axis 0 of every input and output is `n` at batch `n`, all else equal.
fn scales(one: &TypedModel, two: &TypedModel) -> TractResult<bool> {
    let outlets = |m: &TypedModel| -> TractResult<Vec<TVec<usize>>> {
        m.input_outlets()?
            .iter()
            .chain(m.output_outlets()?)
            .map(|o| m.outlet_fact(*o)?.shape.as_concrete().map(|s| s.into()).context("open shape"))
            .collect()
    };
    Ok(outlets(one)?.iter().zip(outlets(two)?).all(|(a, b)| {
        a.len() == b.len() && a.first() == Some(&1) && b.first() == Some(&2) && a[1..] == b[1..]
    }))
}

fn specs(
    model: &TypedModel,
    outlets: &[OutletId],
    names: &[String],
    what: &str,
) -> Result<Vec<TensorSpec>, EngineError> {
    if outlets.is_empty() || outlets.len() > TENSORS_MAX {
        return Err(EngineError::new(
            EngineErrorKind::Limit,
            format!("the model has {} {what}s, 1 to {TENSORS_MAX} are served", outlets.len()),
        ));
    }
    outlets
        .iter()
        .zip(names)
        .map(|(outlet, name)| {
            if name.len() > TENSOR_NAME_LEN_MAX {
                return Err(EngineError::new(
                    EngineErrorKind::Limit,
                    format!(
                        "{what} name {name:?} has {} bytes, the limit is {TENSOR_NAME_LEN_MAX}",
                        name.len()
                    ),
                ));
            }
            let fact = model.outlet_fact(*outlet).map_err(internal)?;
            let dtype = dtype_of(fact.datum_type).ok_or_else(|| {
                EngineError::new(
                    EngineErrorKind::Untyped,
                    format!(
                        "{what} {name:?} has element type {:?}, which can't travel",
                        fact.datum_type
                    ),
                )
            })?;
            let row_shape = fact.shape.as_concrete().map(<[usize]>::to_vec).ok_or_else(|| {
                open_axis(
                    what,
                    name,
                    &fact.shape.iter().flat_map(|d| d.symbols()).collect::<Vec<_>>(),
                )
            })?;
            if bytes_of(&row_shape, dtype.size_bytes()).is_none() {
                return Err(EngineError::new(
                    EngineErrorKind::Limit,
                    format!("{what} {name:?} of shape {row_shape:?} overflows the address space"),
                ));
            }
            if row_shape.contains(&0) {
                return Err(EngineError::new(
                    EngineErrorKind::Malformed,
                    format!("{what} {name:?} of shape {row_shape:?} has no elements"),
                ));
            }
            Ok(TensorSpec { name: name.clone(), dtype, row_shape })
        })
        .collect()
}

/// Bytes of a tensor, unless they overflow a signed size.
fn bytes_of(shape: &[usize], element: usize) -> Option<usize> {
    let len = shape.iter().try_fold(element, |len, &axis| len.checked_mul(axis))?;
    (len <= isize::MAX as usize).then_some(len)
}

/// The element type as corelane names it; `None` for text, quantised pairs and the like.
pub fn dtype_of(datum_type: DatumType) -> Option<DType> {
    Some(match datum_type.unquantized() {
        DatumType::F32 => DType::F32,
        DatumType::F16 => DType::F16,
        DatumType::F64 => DType::F64,
        DatumType::I8 => DType::I8,
        DatumType::U8 => DType::U8,
        DatumType::I16 => DType::I16,
        DatumType::U16 => DType::U16,
        DatumType::I32 => DType::I32,
        DatumType::U32 => DType::U32,
        // Symbolic dimensions travel as the integers that they are once bound.
        DatumType::I64 | DatumType::TDim => DType::I64,
        DatumType::U64 => DType::U64,
        DatumType::Bool => DType::Bool,
        _ => return None,
    })
}

/// The name of the operator behind a node that tract could not read.
fn refuse_unimplemented(model: &InferenceModel) -> Result<(), EngineError> {
    for node in model.nodes() {
        if node.op.as_op().is::<UnimplementedOp>() {
            let name = node.op.name();
            let operator = name.trim_start_matches("Unimplemented(").trim_end_matches(')');
            return Err(EngineError::new(
                EngineErrorKind::UnsupportedOperator,
                format!("operator {operator} is not supported; export the model without it"),
            )
            .at_node(&node.name));
        }
    }
    Ok(())
}

/// Refuses tensors that would be too large with `subs`, before any is made.
fn refuse_large(model: &TypedModel, subs: &HashMap<Symbol, TDim>) -> Result<(), EngineError> {
    for node in model.nodes() {
        for output in &node.outputs {
            let dims = output.fact.shape.iter().map(|d| Ok(d.substitute_all(subs)?.to_i64()?));
            // Axes that stay open are told of when all are bound.
            let Ok(dims) = dims.collect::<TractResult<Vec<i64>>>() else { continue };
            let shape: Vec<usize> = dims.into_iter().map(|d| d.max(0) as usize).collect();
            if verify::bounded(&shape, output.fact.datum_type).is_none() {
                return Err(verify::too_large("a tensor", &shape).at_node(&node.name));
            }
        }
    }
    Ok(())
}

fn refuse_open_shapes(model: &TypedModel) -> Result<(), EngineError> {
    for node in model.nodes() {
        for output in &node.outputs {
            let symbols: Vec<Symbol> = output.fact.shape.iter().flat_map(|d| d.symbols()).collect();
            if !symbols.is_empty() {
                return Err(
                    open_axis("the output of", &node.op.name(), &symbols).at_node(&node.name)
                );
            }
        }
    }
    Ok(())
}

fn open_axis(what: &str, name: &str, symbols: &[Symbol]) -> EngineError {
    let names: Vec<String> = symbols.iter().map(|s| s.to_string()).collect();
    EngineError::new(
        EngineErrorKind::Untyped,
        format!(
            "{what} {name:?} has an open axis ({}) that is not the batch; give its length in the \
             manifest: bind_axes = {{ {} = N }}",
            names.join(", "),
            names.first().map_or("axis", String::as_str)
        ),
    )
}

fn internal(error: impl Into<TractError>) -> EngineError {
    EngineError::new(EngineErrorKind::Internal, "the graph library failed")
        .caused_by(text(&error.into()))
}

fn text(error: &TractError) -> String {
    error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A failure of the graph library: an error, or a panic turned into one.
pub(crate) struct Failure(String);

impl Failure {
    /// A typed error with `message`, the cause kept, and the node and operator if the cause names
    /// them.
    pub(crate) fn into_error(self, kind: EngineErrorKind, message: &str) -> EngineError {
        let short: String = self.0.chars().take(400).collect();
        let mut error = EngineError::new(kind, format!("{message}: {short}"));
        if let Some(node) = named_node(&self.0) {
            error = error.at_node(node);
        }
        error.caused_by(self.0)
    }
}

/// The node that a message of the graph library names, as in `node #12 "conv_3" Conv`.
fn named_node(message: &str) -> Option<String> {
    let after = message.split("node #").nth(1)?;
    let from = after.find('"')? + 1;
    let len = after[from..].find('"')?;
    Some(after[from..from + len].to_string())
}

/// Runs `f`, turning an error or a panic of the graph library into a [`Failure`].
pub(crate) fn guarded<T>(what: &str, f: impl FnOnce() -> TractResult<T>) -> Result<T, Failure> {
    match quiet::caught(f) {
        Ok(result) => result.map_err(|error| Failure(text(&error))),
        Err(said) => Err(Failure(format!("a panic while {what}: {said}"))),
    }
}

/// Runs `f`, turning a panic into an error.
///
/// # Errors
/// What `f` returns; `Internal` where it panicked.
pub(crate) fn contained<T>(
    what: &str,
    f: impl FnOnce() -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    quiet::caught(f).unwrap_or_else(|said| {
        let message = format!("a panic while {what}: {said}");
        Err(EngineError::new(EngineErrorKind::Internal, message))
    })
}

#[cfg(test)]
#[path = "front_tests.rs"]
mod tests;
