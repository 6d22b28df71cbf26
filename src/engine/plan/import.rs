//! From tract's typed graph (no declutter pass has run) to the intermediate representation.

use super::graph::{
    Binary, Conv, Epilogue, Fallback, Gemm, Graph, Node, Op, Pool, PoolKind, Recurrent, ReduceKind,
    Unary, Value, ValueId,
};
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
        } else if let Some(binary) = node.op_as::<ops::binary::TypedBinOp>() {
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
        } else if let Some(op) = node.op_as::<ops::quant::DequantizeLinearF32>() {
            if !matches!(self.val(x).dtype, DType::I8 | DType::U8 | DType::I32) {
                return Ok(false);
            }
            self.emit(node, Op::Dequantize { scale: op.scale, zero: op.zero_point }, vec![x])?;
        } else if !float && !node.op_is::<ops::array::Gather>() {
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
        } else if let Some(gather) = node.op_as::<ops::array::Gather>() {
            return self.gather(node, gather.axis, inputs, &out_shape);
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
        if let Some(q) = unary.0.downcast_ref::<ops::quant::QuantizeLinearI8>() {
            if self.val(x).dtype != DType::F32 {
                return Ok(false);
            }
            let op = Op::Quantize { inverse: q.scale, zero: i32::from(q.zero_point) };
            self.emit(node, op, vec![x])?;
            return Ok(true);
        }
        if let Some(q) = unary.0.downcast_ref::<ops::quant::QuantizeLinearU8>() {
            if self.val(x).dtype != DType::F32 {
                return Ok(false);
            }
            let op = Op::Quantize { inverse: q.scale, zero: i32::from(q.zero_point) };
            self.emit(node, op, vec![x])?;
            return Ok(true);
        }
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

    fn conv(
        &mut self,
        node: &TypedNode,
        conv: &ops::cnn::Conv,
        inputs: &[ValueId],
    ) -> Result<bool, EngineError> {
        use ops::cnn::KernelFormat;
        use ops::nn::DataFormat;
        let spec = &conv.pool_spec;
        let rank = spec.kernel_shape.len();
        if conv.q_params.is_some()
            || conv.kernel_fmt != KernelFormat::OIHW
            || spec.data_format != DataFormat::NCHW
            || !(rank == 1 || rank == 2)
        {
            return Ok(false);
        }
        let (Some(weight), Some(bias)) =
            (self.val(inputs[1]).konst.clone(), self.val(inputs[2]).floats().map(<[f32]>::to_vec))
        else {
            return Ok(false);
        };
        let Some((kernel, stride, dilation, before, after)) =
            geometry(spec, &self.val(inputs[0]).shape[2..])
        else {
            return Ok(false);
        };
        let out_channels = spec.output_channels;
        let bias = match bias.len() {
            1 if bias[0] == 0.0 => None,
            1 => Some(vec![bias[0]; out_channels]),
            n if n == out_channels => Some(bias),
            _ => return Ok(false),
        };
        let conv = Conv {
            weight,
            kernel,
            stride,
            dilation,
            before,
            after,
            groups: conv.group,
            out_channels,
            epilogue: Epilogue { bias, ..Epilogue::default() },
        };
        let (_, out_shape) = self.fact(node.id.into())?;
        let mut x = inputs[0];
        if rank == 1 {
            let s = self.val(x).shape.clone();
            x = self.reshaped(x, vec![s[0], s[1], 1, s[2]], &node.name);
        }
        let plane = match out_shape[..] {
            [n, c, w] => vec![n, c, 1, w],
            _ => out_shape.clone(),
        };
        let out = self.graph.value(&node.name, DType::F32, plane);
        self.push(Op::Conv(conv), vec![x], vec![out], &node.name, "Conv");
        let out = self.reshaped(out, out_shape, &node.name);
        self.alias(node, out);
        Ok(true)
    }

    fn pool(
        &mut self,
        node: &TypedNode,
        spec: &ops::cnn::PoolSpec,
        kind: PoolKind,
        x: ValueId,
    ) -> Result<bool, EngineError> {
        let rank = spec.kernel_shape.len();
        if spec.data_format != ops::nn::DataFormat::NCHW || !(rank == 1 || rank == 2) {
            return Ok(false);
        }
        let Some((kernel, stride, dilation, before, after)) =
            geometry(spec, &self.val(x).shape[2..])
        else {
            return Ok(false);
        };
        let (_, out_shape) = self.fact(node.id.into())?;
        let s = self.val(x).shape.clone();
        // A window over the whole image without padding is a reduction.
        if s.len() == 4
            && kernel == [s[2], s[3]]
            && before == [0, 0]
            && after == [0, 0]
            && out_shape[2..] == [1, 1]
        {
            let (kind, scale) = match kind {
                PoolKind::Max => (ReduceKind::Max, 1.0),
                PoolKind::Average { .. } => (ReduceKind::Sum, 1.0 / (s[2] * s[3]) as f32),
                PoolKind::Sum => (ReduceKind::Sum, 1.0),
            };
            self.emit(node, Op::Reduce { kind, axes: vec![2, 3], scale }, vec![x])?;
            return Ok(true);
        }
        let pool = Pool { kind, kernel, stride, dilation, before, after };
        let mut x = x;
        if rank == 1 {
            x = self.reshaped(x, vec![s[0], s[1], 1, s[2]], &node.name);
        }
        let plane = match out_shape[..] {
            [n, c, w] => vec![n, c, 1, w],
            _ => out_shape.clone(),
        };
        let out = self.graph.value(&node.name, DType::F32, plane);
        self.push(Op::Pool(pool), vec![x], vec![out], &node.name, &node.op.name());
        let out = self.reshaped(out, out_shape, &node.name);
        self.alias(node, out);
        Ok(true)
    }

    /// A product of two tensors, as a matrix product between permutations and reshapes.
    fn einsum(
        &mut self,
        node: &TypedNode,
        einsum: &ops::einsum::EinSum,
        inputs: &[ValueId],
    ) -> Result<bool, EngineError> {
        if inputs.len() != 2 || einsum.q_params.is_some() {
            return Ok(false);
        }
        let (ins, outs) = einsum.axes.to_strs();
        let (a, b, c): (Vec<char>, Vec<char>, Vec<char>) =
            (ins[0].chars().collect(), ins[1].chars().collect(), outs[0].chars().collect());
        let distinct = |s: &[char]| s.iter().enumerate().all(|(i, ch)| !s[..i].contains(ch));
        let known = c.iter().all(|ch| a.contains(ch) || b.contains(ch));
        if ![&a, &b, &c].iter().all(|s| distinct(s)) || !known {
            return Ok(false);
        }
        let size = |ch: char, this: &Self| {
            let dim = |s: &[char], id: ValueId| {
                s.iter().position(|&x| x == ch).map(|p| this.val(id).shape[p])
            };
            dim(&a, inputs[0]).into_iter().chain(dim(&b, inputs[1])).max().unwrap_or(1)
        };
        // Axes that broadcast (1 against n) are left to tract.
        for (s, id) in [(&a, inputs[0]), (&b, inputs[1])] {
            for (p, &ch) in s.iter().enumerate() {
                if self.val(id).shape[p] != size(ch, self) {
                    return Ok(false);
                }
            }
        }
        // An axis of one operand alone that is not in the result would be summed: not a product.
        if a.iter().any(|ch| !b.contains(ch) && !c.contains(ch))
            || b.iter().any(|ch| !a.contains(ch) && !c.contains(ch))
        {
            return Ok(false);
        }
        let const_a = self.val(inputs[0]).konst.is_some();
        // A constant goes to the right: C' = B' A'.
        let (l, r, lx, rx) = if const_a {
            (b.clone(), a.clone(), inputs[1], inputs[0])
        } else {
            (a.clone(), b.clone(), inputs[0], inputs[1])
        };
        let pick = |s: &[char], f: &dyn Fn(char) -> bool| -> Vec<char> {
            s.iter().copied().filter(|&ch| f(ch)).collect()
        };
        let batch = pick(&c, &|ch| l.contains(&ch) && r.contains(&ch));
        let m = pick(&l, &|ch| c.contains(&ch) && !r.contains(&ch));
        let n = pick(&r, &|ch| c.contains(&ch) && !l.contains(&ch));
        let k = pick(&l, &|ch| r.contains(&ch) && !c.contains(&ch));
        let dims = |s: &[char], this: &Self| -> Vec<usize> {
            s.iter().map(|&ch| size(ch, this)).collect()
        };
        let (bd, md, nd, kd) = (dims(&batch, self), dims(&m, self), dims(&n, self), dims(&k, self));
        let [ms, ns, ks] = [&md, &nd, &kd].map(|d| d.iter().product::<usize>());
        let order = |s: &[char], want: &[char]| -> Vec<usize> {
            want.iter()
                .map(|ch| s.iter().position(|x| x == ch).expect("axes were sorted above"))
                .collect()
        };
        let name = node.name.clone();
        let konst = self.val(rx).konst.clone();
        let product = if let (Some(weight), true) = (konst, batch.is_empty()) {
            // Weights as [k, n] or [n, k], whichever they lie in already.
            let kn: Vec<char> = k.iter().chain(&n).copied().collect();
            let nk: Vec<char> = n.iter().chain(&k).copied().collect();
            let (weight, transposed) = if r == nk && r != kn {
                (weight, true)
            } else if r == kn {
                (weight, false)
            } else {
                let permuted =
                    weight.into_tensor().permute_axes(&order(&r, &kn)).map_err(tract_failed)?;
                (permuted.into_arc_tensor(), false)
            };
            let lk: Vec<char> = m.iter().chain(&k).copied().collect();
            let left = self.permuted(lx, order(&l, &lk), &name);
            let mut left_shape = md.clone();
            left_shape.push(ks);
            let left = self.reshaped(left, left_shape, &name);
            let gemm = Gemm { weight, transposed, k: ks, n: ns, epilogue: Epilogue::default() };
            let mut shape = md.clone();
            shape.push(ns);
            let out = self.graph.value(&name, DType::F32, shape);
            self.push(Op::Gemm(gemm), vec![left], vec![out], &name, "MatMul");
            out
        } else {
            let side = |first: &[char], second: &[char]| -> Vec<char> {
                batch.iter().chain(first).chain(second).copied().collect()
            };
            // The batch axes stay apart: they need not lie side by side in memory.
            let with = |x: usize, y: usize| bd.iter().copied().chain([x, y]).collect::<Vec<_>>();
            let left = self.permuted(lx, order(&l, &side(&m, &k)), &name);
            let left = self.reshaped(left, with(ms, ks), &name);
            let right = self.permuted(rx, order(&r, &side(&k, &n)), &name);
            let right = self.reshaped(right, with(ks, ns), &name);
            let out = self.graph.value(&name, DType::F32, with(ms, ns));
            self.push(Op::MatMul { scale: 1.0 }, vec![left, right], vec![out], &name, "MatMul");
            out
        };
        let full: Vec<usize> = bd.iter().chain(&md).chain(&nd).copied().collect();
        let have: Vec<char> = batch.iter().chain(&m).chain(&n).copied().collect();
        let product = self.reshaped(product, full, &name);
        let product = self.permuted(product, order(&have, &c), &name);
        self.alias(node, product);
        Ok(true)
    }

    fn strided_slice(
        &mut self,
        node: &TypedNode,
        op: &ops::array::StridedSlice,
        inputs: &[ValueId],
        out_shape: &[usize],
    ) -> Result<bool, EngineError> {
        let ints = |this: &Self, slot: usize| -> Option<Vec<i64>> {
            let konst = this.val(inputs[slot]).konst.clone()?;
            let ints = konst.cast_to::<i64>().ok()?;
            Some(ints.as_plain_ram()?.as_slice::<i64>().ok()?.to_vec())
        };
        let (Some(begin), Some(end)) = (ints(self, 1), ints(self, 2)) else { return Ok(false) };
        let axes = match op.optional_axes_input {
            Some(slot) => ints(self, slot),
            None => Some((0..begin.len() as i64).collect()),
        };
        let steps = match op.optional_steps_input {
            Some(slot) => ints(self, slot),
            None => Some(vec![1; begin.len()]),
        };
        let (Some(axes), Some(steps)) = (axes, steps) else { return Ok(false) };
        if op.begin_mask != 0
            || op.end_mask != 0
            || op.shrink_axis_mask != 0
            || steps.iter().any(|&s| s != 1)
        {
            return Ok(false);
        }
        let mut x = inputs[0];
        let rank = self.val(x).shape.len() as i64;
        if self.val(x).dtype != DType::F32 && self.val(x).shape != out_shape {
            return Ok(false);
        }
        for ((&axis, &begin), &end) in axes.iter().zip(&begin).zip(&end) {
            let axis = if axis < 0 { axis + rank } else { axis } as usize;
            let len = self.val(x).shape[axis] as i64;
            let clamp = |v: i64| if v < 0 { (v + len).max(0) } else { v.min(len) };
            let (begin, end) = (clamp(begin), clamp(end));
            if begin == 0 && end == len {
                continue;
            }
            let mut shape = self.val(x).shape.clone();
            shape[axis] = (end - begin).max(0) as usize;
            let out = self.graph.value(&node.name, DType::F32, shape);
            let op = Op::Slice { axis, start: begin as usize };
            self.push(op, vec![x], vec![out], &node.name, "Slice");
            x = out;
        }
        if self.val(x).shape != out_shape {
            return Ok(false);
        }
        self.alias(node, x);
        Ok(true)
    }

    /// A constant index is a slice; a constant table is a lookup.
    fn gather(
        &mut self,
        node: &TypedNode,
        axis: usize,
        inputs: &[ValueId],
        out_shape: &[usize],
    ) -> Result<bool, EngineError> {
        let (data, indices) = (inputs[0], inputs[1]);
        if self.val(data).dtype != DType::F32 {
            return Ok(false);
        }
        if let Some(konst) = self.val(indices).konst.clone() {
            let Ok(index) = konst.cast_to_scalar::<i64>() else { return Ok(false) };
            if konst.len() != 1 {
                return Ok(false);
            }
            let mut shape = self.val(data).shape.clone();
            let start = if index < 0 { index + shape[axis] as i64 } else { index };
            if !(0..shape[axis] as i64).contains(&start) {
                return Ok(false);
            }
            shape[axis] = 1;
            let out = self.graph.value(&node.name, DType::F32, shape);
            let op = Op::Slice { axis, start: start as usize };
            self.push(op, vec![data], vec![out], &node.name, "Gather");
            let out = self.reshaped(out, out_shape.to_vec(), &node.name);
            self.alias(node, out);
            return Ok(true);
        }
        let integer = matches!(self.val(indices).dtype, DType::I32 | DType::I64);
        let shape = self.val(data).shape.clone();
        let Some(rows) =
            self.val(data).floats().filter(|_| axis == 0 && integer && !shape.is_empty())
        else {
            return Ok(false);
        };
        let width: usize = shape[1..].iter().product();
        let mut table = rows.to_vec();
        // An index outside is an error in ONNX; a row of NaN makes it visible in the answer.
        table.resize(table.len() + width, f32::NAN);
        let op = Op::Embed { table: Arc::new(table), width, first: 0 };
        self.emit(node, op, vec![indices])?;
        Ok(true)
    }

    fn recurrent(&mut self, node: &TypedNode, inputs: &[ValueId]) -> Result<bool, EngineError> {
        use ops::scan::{InputMapping, Scan};
        let (lstm, hidden, has_bias, chunk, outlets): (
            bool,
            usize,
            bool,
            isize,
            [Option<usize>; 3],
        );
        if let Some(gru) = node.op_as::<ops::gru_seq::GruSeq>() {
            if gru.projected || gru.packed_r.is_some() {
                return Ok(false);
            }
            (lstm, hidden, has_bias, chunk) = (false, gru.hidden, gru.has_bias, gru.chunk);
            outlets = [Some(0), Some(1), None];
        } else if let Some(scan) = node.op_as::<Scan>() {
            let cell = scan.body.nodes().iter().find_map(|n| {
                n.op_as::<ops::lstm_cell::LstmEpilogue>()
                    .map(|c| (true, c.hidden))
                    .or_else(|| n.op_as::<ops::gru_cell::GruEpilogue>().map(|c| (false, c.hidden)))
            });
            let Some((is_lstm, h)) = cell else { return Ok(false) };
            let InputMapping::Scan(info) = scan.input_mapping[0] else { return Ok(false) };
            let states = scan.input_mapping.iter().filter(|m| m.is_state()).count();
            let full = scan.input_mapping.len() - 1 - states;
            if !(full == 2 || full == 3)
                || states != 1 + usize::from(is_lstm)
                || info.chunk.abs() != 1
            {
                return Ok(false);
            }
            (lstm, hidden, has_bias, chunk) = (is_lstm, h, full == 3, info.chunk);
            let c = if is_lstm { scan.output_mapping[1].last_value_slot } else { None };
            outlets = [
                scan.output_mapping[0].scan.map(|(slot, _)| slot),
                scan.output_mapping[0].last_value_slot,
                c,
            ];
        } else {
            return Ok(false);
        }
        let (Some(w), Some(r)) =
            (self.val(inputs[1]).konst.clone(), self.val(inputs[2]).konst.clone())
        else {
            return Ok(false);
        };
        let bias =
            if has_bias { self.val(inputs[3]).floats().map(<[f32]>::to_vec) } else { Some(vec![]) };
        let state = |slot: usize| -> Option<Option<Vec<f32>>> {
            let floats = self.val(inputs[slot]).floats()?.to_vec();
            Some(if floats.iter().all(|&x| x == 0.0) { None } else { Some(floats) })
        };
        let first = 3 + usize::from(has_bias);
        let (Some(bias), Some(h0)) = (bias, state(first)) else { return Ok(false) };
        let c0 = if lstm {
            let Some(c0) = state(first + 1) else { return Ok(false) };
            c0
        } else {
            None
        };
        let [batch, time, _] = self.val(inputs[0]).shape[..] else { return Ok(false) };
        let shapes = [vec![batch, time, hidden], vec![batch, 1, hidden], vec![batch, 1, hidden]];
        let mut outputs = vec![];
        for (shape, outlet) in shapes.into_iter().zip(outlets).take(if lstm { 3 } else { 2 }) {
            let out = self.graph.value(&node.name, DType::F32, shape);
            outputs.push(out);
            if let Some(slot) = outlet.filter(|&slot| slot < node.outputs.len()) {
                let (_, wanted) = self.fact(OutletId::new(node.id, slot))?;
                let out = self.reshaped(out, wanted, &node.name);
                self.map.insert(OutletId::new(node.id, slot), out);
            }
        }
        let op = Recurrent { lstm, w, r, bias, hidden, reverse: chunk < 0, h0, c0 };
        let operator = if lstm { "LSTM" } else { "GRU" };
        // A reshape of an output was pushed before its producer: keep the order runnable.
        let at = self.graph.nodes.iter().position(|n| n.inputs.iter().any(|i| outputs.contains(i)));
        self.push(Op::Recurrent(Box::new(op)), vec![inputs[0]], outputs, &node.name, operator);
        if let Some(at) = at {
            let node = self.graph.nodes.pop().expect("it was pushed above");
            self.graph.nodes.insert(at, node);
        }
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

type Geometry = ([usize; 2], [usize; 2], [usize; 2], [usize; 2], [usize; 2]);

/// Kernel, strides, dilations, padding before and after, as two axes.
fn geometry(spec: &ops::cnn::PoolSpec, image: &[usize]) -> Option<Geometry> {
    let padding = spec.computed_padding(image);
    let two = |s: &[usize], fill: usize| -> Option<[usize; 2]> {
        match *s {
            [w] => Some([fill, w]),
            [h, w] => Some([h, w]),
            _ => None,
        }
    };
    let before: Vec<usize> = padding.iter().map(|p| p.pad_before).collect();
    let after: Vec<usize> = padding.iter().map(|p| p.pad_after).collect();
    Some((
        two(&spec.kernel_shape, 1)?,
        two(&spec.strides(), 1)?,
        two(&spec.dilations(), 1)?,
        two(&before, 0)?,
        two(&after, 0)?,
    ))
}
