//! From tract's typed graph (no declutter pass has run) to the intermediate representation.

mod products;
mod views;

use super::graph::{
    Binary, Conv, Epilogue, Fallback, Gemm, Graph, Node, Op, Pool, PoolKind, Recurrent, ReduceKind,
    Unary, Value, ValueId,
};
use crate::engine::tract::front::numerics::{Divide, Lookup};
use crate::engine::tract::front::quantize::Quantize;
use crate::engine::tract::front::{dtype_of, guarded};
use crate::engine::{EngineError, EngineErrorKind};
use crate::units::DType;
use std::collections::HashMap;
use std::sync::Arc;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ops;
use tract_onnx::tract_hir::internal::*;

/// Constants larger than this (elements) are not made at load from smaller ones.
const FOLDED_LEN_MAX: usize = 1 << 24;

struct Importer<'m> {
    model: &'m TypedModel,
    graph: Graph,
    map: HashMap<OutletId, ValueId>,
}

/// Imports `model`, whose shapes are all known.
///
/// # Errors
/// `Limit` where a shape overflows, `Untyped` where an element type can't be planned.
pub fn import(model: &TypedModel) -> Result<Graph, EngineError> {
    let mut importer = Importer { model, graph: Graph::default(), map: HashMap::new() };
    for &outlet in model.input_outlets().map_err(tract_failed)? {
        let (dtype, shape) = importer.fact(outlet)?;
        let name = model.node(outlet.node).name.clone();
        let half = dtype == DType::F16;
        let id = importer.graph.value(&name, dtype, shape.clone());
        importer.graph.inputs.push(id);
        let mut seen = id;
        if half {
            seen = importer.graph.value(&name, DType::F32, shape);
            importer.push(Op::Cast, vec![id], vec![seen], &name, "Cast");
        }
        importer.map.insert(outlet, seen);
    }
    for id in model.eval_order().map_err(tract_failed)? {
        let node = model.node(id);
        if importer.map.contains_key(&OutletId::new(id, 0)) {
            continue;
        }
        importer
            .node(node)
            .map_err(|e| if e.node().is_some() { e } else { e.at_node(&node.name) })?;
    }
    for &outlet in model.output_outlets().map_err(tract_failed)? {
        let (dtype, shape) = importer.fact(outlet)?;
        let mut id = importer.map[&outlet];
        if dtype == DType::F16 {
            let half = importer.graph.value("output", DType::F16, shape);
            importer.push(Op::Cast, vec![id], vec![half], "output", "Cast");
            id = half;
        }
        importer.graph.outputs.push(id);
    }
    Ok(importer.graph)
}

/// The element type in the graph: f16 is computed as f32.
fn widened(dtype: DType) -> DType {
    if dtype == DType::F16 { DType::F32 } else { dtype }
}

fn tract_failed(error: TractError) -> EngineError {
    EngineError::new(EngineErrorKind::Internal, format!("the graph library failed: {error:#}"))
}

impl Importer<'_> {
    fn fact(&self, outlet: OutletId) -> Result<(DType, Vec<usize>), EngineError> {
        let fact = self.model.outlet_fact(outlet).map_err(tract_failed)?;
        let name = &self.model.node(outlet.node).name;
        let dtype = dtype_of(fact.datum_type).ok_or_else(|| {
            EngineError::new(
                EngineErrorKind::Untyped,
                format!("element type {:?} can't be planned", fact.datum_type),
            )
            .at_node(name)
        })?;
        let shape = fact
            .shape
            .as_concrete()
            .ok_or_else(|| {
                EngineError::new(
                    EngineErrorKind::Untyped,
                    format!("shape {:?} is open", fact.shape),
                )
                .at_node(name)
            })?
            .to_vec();
        let bytes = shape.iter().try_fold(dtype.size_bytes(), |n, &d| n.checked_mul(d));
        if bytes.is_none_or(|b| b > isize::MAX as usize / 4) {
            return Err(EngineError::new(
                EngineErrorKind::Limit,
                format!("a tensor of shape {shape:?} overflows the address space"),
            )
            .at_node(name));
        }
        Ok((dtype, shape))
    }

    fn push(
        &mut self,
        op: Op,
        inputs: Vec<ValueId>,
        outputs: Vec<ValueId>,
        name: &str,
        operator: &str,
    ) {
        self.graph.nodes.push(Node {
            op,
            inputs,
            outputs,
            name: name.to_string(),
            operator: operator.to_string(),
        });
    }

    fn konst(&mut self, name: &str, tensor: Arc<Tensor>) -> Result<ValueId, EngineError> {
        let dtype = dtype_of(tensor.datum_type()).ok_or_else(|| {
            EngineError::new(
                EngineErrorKind::Untyped,
                format!("a constant of element type {:?} can't be planned", tensor.datum_type()),
            )
        })?;
        match self.graph.stored.iter_mut().find(|(stored, _)| *stored == dtype) {
            Some((_, elements)) => *elements += tensor.len(),
            None => self.graph.stored.push((dtype, tensor.len())),
        }
        let tensor = match tensor.datum_type() {
            DatumType::F16 => tensor.cast_to::<f32>().map_err(tract_failed)?.into_owned().into(),
            DatumType::TDim => tensor.cast_to::<i64>().map_err(tract_failed)?.into_owned().into(),
            _ => tensor,
        };
        self.graph.values.push(Value {
            dtype: widened(dtype),
            shape: tensor.shape().to_vec(),
            konst: Some(tensor),
            name: name.to_string(),
        });
        Ok(self.graph.values.len() - 1)
    }

    fn val(&self, id: ValueId) -> &Value {
        &self.graph.values[id]
    }

    /// Emits an operator with one output of `outlet`'s fact.
    fn emit(&mut self, node: &TypedNode, op: Op, inputs: Vec<ValueId>) -> Result<(), EngineError> {
        let (dtype, shape) = self.fact(node.id.into())?;
        let out = self.graph.value(&node.name, widened(dtype), shape);
        self.push(op, inputs, vec![out], &node.name, &node.op.name());
        self.map.insert(node.id.into(), out);
        Ok(())
    }

    fn alias(&mut self, node: &TypedNode, value: ValueId) {
        self.map.insert(node.id.into(), value);
    }

    /// Emits a reshape to `shape`, unless it is the shape already.
    fn reshaped(&mut self, x: ValueId, shape: Vec<usize>, name: &str) -> ValueId {
        if self.val(x).shape == shape {
            return x;
        }
        let out = self.graph.value(name, self.val(x).dtype, shape);
        self.push(Op::Reshape, vec![x], vec![out], name, "Reshape");
        out
    }

    /// Emits a permutation of axes, unless it is the identity.
    fn permuted(&mut self, x: ValueId, perm: Vec<usize>, name: &str) -> ValueId {
        if perm.iter().enumerate().all(|(i, &p)| i == p) {
            return x;
        }
        let shape = perm.iter().map(|&p| self.val(x).shape[p]).collect();
        let out = self.graph.value(name, self.val(x).dtype, shape);
        self.push(Op::Permute(perm), vec![x], vec![out], name, "Transpose");
        out
    }

    fn node(&mut self, node: &TypedNode) -> Result<(), EngineError> {
        if let Some(konst) = node.op_as::<ops::konst::Const>() {
            let id = self.konst(&node.name, konst.val().clone())?;
            self.alias(node, id);
            return Ok(());
        }
        let inputs: Vec<ValueId> = node.inputs.iter().map(|i| self.map[i]).collect();
        if !inputs.is_empty() && inputs.iter().all(|&i| self.val(i).konst.is_some()) {
            let len: usize = self.fact(node.id.into())?.1.iter().product();
            if len <= FOLDED_LEN_MAX && self.fold(node, &inputs)? {
                return Ok(());
            }
        }
        if self.lower(node, &inputs)? {
            return Ok(());
        }
        self.fallback(node, &inputs)
    }

    /// Evaluates a node whose inputs are constants.
    fn fold(&mut self, node: &TypedNode, inputs: &[ValueId]) -> Result<bool, EngineError> {
        let mut tensors: TVec<TValue> = tvec!();
        for (&input, outlet) in inputs.iter().zip(&node.inputs) {
            let wanted = self.model.outlet_fact(*outlet).map_err(tract_failed)?.datum_type;
            let konst = self.val(input).konst.clone().expect("the caller saw constants only");
            let tensor = if konst.datum_type() == wanted {
                konst
            } else {
                konst.cast_to_dt(wanted).map_err(tract_failed)?.into_owned().into()
            };
            tensors.push(tensor.into_tvalue());
        }
        match guarded("folding constants", || node.op.eval_out_of_plan(tensors)) {
            Ok(Some(outputs)) => {
                for (slot, output) in outputs.into_iter().enumerate() {
                    let id = self.konst(&node.name, output.into_arc_tensor())?;
                    self.map.insert(OutletId::new(node.id, slot), id);
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Emits the node in operators of our own; false where there is none.
    fn lower(&mut self, node: &TypedNode, inputs: &[ValueId]) -> Result<bool, EngineError> {
        let (out_type, out_shape) = self.fact(node.id.into())?;
        let out_type = widened(out_type);
        let float =
            out_type == DType::F32 && inputs.iter().all(|&i| self.val(i).dtype == DType::F32);
        let x = inputs.first().copied().unwrap_or(0);
        if let Some(axis_op) = node.op_as::<AxisOp>() {
            let value = match axis_op {
                AxisOp::Move(from, to) => {
                    let mut perm: Vec<usize> = (0..out_shape.len()).collect();
                    let moved = perm.remove(*from);
                    perm.insert(*to, moved);
                    self.permuted(x, perm, &node.name)
                }
                _ => self.reshaped(x, out_shape, &node.name),
            };
            self.alias(node, value);
        } else if let Some(cast) = node.op_as::<ops::cast::Cast>() {
            if dtype_of(cast.to).map(widened) == Some(self.val(x).dtype) {
                self.alias(node, x);
            } else if out_type == DType::F32 {
                self.emit(node, Op::Cast, vec![x])?;
            } else {
                return Ok(false);
            }
        } else if node.op_is::<ops::array::MultiBroadcastTo>() {
            if self.val(x).shape == out_shape {
                self.alias(node, x);
            } else if float && self.val(x).shape.len() == out_shape.len() {
                self.emit(node, Op::Broadcast, vec![x])?;
            } else {
                return Ok(false);
            }
        } else if let Some(op) = node.op_as::<ops::array::StridedSlice>() {
            return self.strided_slice(node, op, inputs, &out_shape);
        } else if let Some(binary) =
            node.op_as::<ops::binary::TypedBinOp>().or_else(|| Some(&node.op_as::<Divide>()?.0))
        {
            if matches!(binary.0.name(), "Eq" | "CompEq") {
                return self.one_hot(node, inputs, &out_shape);
            }
            if !float {
                return Ok(false);
            }
            let (op, swap) = match binary.0.name() {
                "Add" => (Binary::Add, false),
                "Sub" => (Binary::Sub, false),
                "SubF" => (Binary::Sub, true),
                "Mul" => (Binary::Mul, false),
                "Div" => (Binary::Div, false),
                "Min" => (Binary::Min, false),
                "Max" => (Binary::Max, false),
                "Pow" => (Binary::Pow, false),
                _ => return Ok(false),
            };
            let operands = if swap { vec![inputs[1], inputs[0]] } else { inputs.to_vec() };
            self.emit(node, Op::Binary(op), operands)?;
        } else if let Some(unary) = node.op_as::<ops::element_wise::ElementWiseOp>() {
            return self.unary(node, unary, x, float);
        } else if let Some(op) = node.op_as::<Quantize>() {
            let Some(s) = op.scale().filter(|_| self.val(x).dtype == DType::F32) else {
                return Ok(false);
            };
            self.emit(node, Op::Quantize { scale: s.scale, zero: s.zero_point }, vec![x])?;
        } else if let Some(op) = node.op_as::<ops::quant::DequantizeLinearF32>() {
            if !matches!(self.val(x).dtype, DType::I8 | DType::U8 | DType::I32) {
                return Ok(false);
            }
            self.emit(node, Op::Dequantize { scale: op.scale, zero: op.zero_point }, vec![x])?;
        } else if !float && !node.op_is::<Lookup>() {
            return Ok(false);
        } else if let Some(conv) = node.op_as::<ops::cnn::Conv>() {
            return self.conv(node, conv, inputs);
        } else if let Some(einsum) = node.op_as::<ops::einsum::EinSum>() {
            return self.einsum(node, einsum, inputs);
        } else if let Some(pool) = node.op_as::<ops::cnn::MaxPool>() {
            if pool.with_index_outputs.is_some() {
                return Ok(false);
            }
            return self.pool(node, &pool.pool_spec, PoolKind::Max, x);
        } else if let Some(pool) = node.op_as::<ops::cnn::SumPool>() {
            let kind = if pool.normalize {
                PoolKind::Average { include_pad: pool.count_include_pad }
            } else {
                PoolKind::Sum
            };
            return self.pool(node, &pool.pool_spec, kind, x);
        } else if let Some(reduce) = node.op_as::<ops::nn::Reduce>() {
            let (kind, scale) = match reduce.reducer {
                ops::nn::Reducer::Sum => (ReduceKind::Sum, 1.0),
                ops::nn::Reducer::Max => (ReduceKind::Max, 1.0),
                ops::nn::Reducer::Min => (ReduceKind::Min, 1.0),
                ops::nn::Reducer::Prod => (ReduceKind::Prod, 1.0),
                ops::nn::Reducer::MeanOfSquares => {
                    let count: usize = reduce.axes.iter().map(|&a| self.val(x).shape[a]).product();
                    (ReduceKind::SumSquares, 1.0 / count as f32)
                }
                _ => return Ok(false),
            };
            self.emit(node, Op::Reduce { kind, axes: reduce.axes.to_vec(), scale }, vec![x])?;
        } else if let Some(softmax) = node.op_as::<ops::nn::Softmax>() {
            if softmax.axes.len() != 1 || softmax.quant_output_dt.is_some() {
                return Ok(false);
            }
            let log = softmax.kind == ops::nn::SoftmaxKind::LogSoftmax;
            self.emit(node, Op::Softmax { axis: softmax.axes[0], scale: 1.0, log }, vec![x])?;
        } else if let Some(slice) = node.op_as::<ops::array::Slice>() {
            let Ok(start) = slice.start.to_usize() else { return Ok(false) };
            self.emit(node, Op::Slice { axis: slice.axis, start }, vec![x])?;
        } else if let Some(concat) = node.op_as::<ops::array::TypedConcat>() {
            self.emit(node, Op::Concat { axis: concat.axis }, inputs.to_vec())?;
        } else if let Some(axis) = node.op_as::<Lookup>().and_then(Lookup::axis) {
            return self.gather(node, axis, inputs, &out_shape);
        } else if let Some(pad) = node.op_as::<ops::array::Pad>() {
            let ops::array::PadMode::Constant(value) = &pad.mode else { return Ok(false) };
            let Ok(value) = value.cast_to_scalar::<f32>() else { return Ok(false) };
            self.emit(node, Op::Pad { pads: pad.pads.clone(), value }, vec![x])?;
        } else if let Some(up) = node.op_as::<ops::nn::NearestUpsample>() {
            if up.scales.len() != out_shape.len() {
                return Ok(false);
            }
            self.emit(node, Op::Upsample { scales: up.scales.to_vec() }, vec![x])?;
        } else {
            return self.recurrent(node, inputs);
        }
        Ok(true)
    }

    fn unary(
        &mut self,
        node: &TypedNode,
        unary: &ops::element_wise::ElementWiseOp,
        x: ValueId,
        float: bool,
    ) -> Result<bool, EngineError> {
        if !float {
            return Ok(false);
        }
        let op = match unary.0.name().as_str() {
            "Sigmoid" => Unary::Sigmoid,
            "Tanh" => Unary::Tanh,
            "HardSwish" => Unary::HardSwish,
            "Silu" => Unary::Silu,
            "GeluExact" => Unary::GeluErf,
            "GeluApproximate" => Unary::GeluTanh,
            "LeakyRelu" => match unary.0.downcast_ref::<ops::nn::LeakyRelu>() {
                Some(leaky) => Unary::LeakyRelu(leaky.alpha),
                None => return Ok(false),
            },
            "Exp" => Unary::Exp,
            "Ln" => Unary::Ln,
            "Erf" => Unary::Erf,
            "Sqrt" => Unary::Sqrt,
            "Rsqrt" => Unary::Rsqrt,
            "Recip" => Unary::Recip,
            "Square" => Unary::Square,
            "Abs" => Unary::Abs,
            "Neg" => Unary::Neg,
            "Floor" => Unary::Floor,
            "Ceil" => Unary::Ceil,
            _ => return Ok(false),
        };
        self.emit(node, Op::Unary(op), vec![x])?;
        Ok(true)
    }

    /// `x == [first, first + 1, ..]` where x has length 1 on the last axis.
    fn one_hot(
        &mut self,
        node: &TypedNode,
        inputs: &[ValueId],
        out_shape: &[usize],
    ) -> Result<bool, EngineError> {
        let (x, table) = if self.val(inputs[1]).konst.is_some() {
            (inputs[0], inputs[1])
        } else {
            (inputs[1], inputs[0])
        };
        let Some(konst) = self.val(table).konst.clone() else { return Ok(false) };
        let (Ok(values), Some(&count)) = (konst.cast_to::<i64>(), out_shape.last()) else {
            return Ok(false);
        };
        let Some(values) = values.as_plain_ram().and_then(|p| p.as_slice::<i64>().ok()) else {
            return Ok(false);
        };
        let counts = values.windows(2).all(|w| w[1] == w[0] + 1) && values.len() == count;
        let column = self.val(x).shape.last() == Some(&1)
            && self.val(x).shape[..out_shape.len() - 1] == out_shape[..out_shape.len() - 1];
        if !counts || !column || count == 0 || !matches!(self.val(x).dtype, DType::I32 | DType::I64)
        {
            return Ok(false);
        }
        let first = values[0];
        self.emit(node, Op::OneHot { first, count }, vec![x])?;
        Ok(true)
    }

    /// A graph of this node alone, for tract to run.
    fn fallback(&mut self, node: &TypedNode, inputs: &[ValueId]) -> Result<(), EngineError> {
        let name = node.op.name();
        let mut alone = TypedModel { symbols: self.model.symbols.clone(), ..TypedModel::default() };
        let (mut wires, mut computed, mut input_types) = (tvec!(), vec![], vec![]);
        let built = guarded("isolating a node", || {
            for (slot, (&input, outlet)) in inputs.iter().zip(&node.inputs).enumerate() {
                let fact = self.model.outlet_fact(*outlet)?.without_value();
                if let Some(konst) = &self.val(input).konst {
                    let konst = konst.cast_to_dt(fact.datum_type)?.into_owned();
                    wires.push(alone.add_const(format!("k{slot}"), konst)?);
                } else {
                    input_types.push(fact.datum_type);
                    wires.push(alone.add_source(format!("x{slot}"), fact)?);
                    computed.push(input);
                }
            }
            let outputs = alone.wire_node(&node.name, node.op.clone(), &wires)?;
            alone.select_output_outlets(&outputs)?;
            TypedSimplePlan::new(alone)
        });
        let plan = built.map_err(|failure| {
            failure
                .into_error(
                    EngineErrorKind::UnsupportedOperator,
                    &format!("operator {name} can't be planned"),
                )
                .at_node(&node.name)
        })?;
        let mut outputs = vec![];
        for slot in 0..node.outputs.len() {
            let (dtype, shape) = self.fact(OutletId::new(node.id, slot))?;
            let out = self.graph.value(&node.name, widened(dtype), shape);
            self.map.insert(OutletId::new(node.id, slot), out);
            outputs.push(out);
        }
        self.push(
            Op::Fallback(Fallback { plan, input_types }),
            computed,
            outputs,
            &node.name,
            &name,
        );
        Ok(())
    }
}

pub(super) type Geometry = ([usize; 2], [usize; 2], [usize; 2], [usize; 2], [usize; 2]);
