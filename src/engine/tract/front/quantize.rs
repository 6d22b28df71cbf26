//! QuantizeLinear by its definition, for both engines.
//!
//! tract's own multiplies by the reciprocal of the scale, so that a tie may go to the other side; its sum with
//! the zero point wraps; and its declutter passes put what lies between DequantizeLinear and QuantizeLinear
//! into tables and 8-bit forms of operators which lose the scale. They know only their own operator, so that
//! they let this one be.

use crate::engine::kernels::{Quantised, Scale};
use tract_onnx::pb::NodeProto;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::*;
use tract_onnx::tract_hir::internal::{
    Expansion, InferenceResult, Solver, TensorProxy, check_input_arity, check_output_arity,
};

/// `saturate(round_half_to_even(x / scale) + zero_point)`, as 8-bit integers.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantize {
    /// One of all, or one of each position of the axis.
    scales: Vec<Scale>,
    axis: usize,
    to: DatumType,
}

// A scale is compared as it was read, and one that is NaN is refused.
impl Eq for Quantize {}

impl Quantize {
    /// Step and zero point, where all elements have the same.
    pub fn scale(&self) -> Option<Scale> {
        if let [scale] = self.scales[..] { Some(scale) } else { None }
    }

    fn run<T: Quantised + Datum>(&self, x: &Tensor) -> TractResult<Tensor> {
        let x = x.cast_to::<f32>()?;
        let mut y = Tensor::zero_dt(self.to, x.shape())?;
        let inner = match self.scale() {
            Some(_) => x.len(),
            None => x.shape()[self.axis + 1..].iter().product(),
        };
        let x = x.try_as_plain_ram()?;
        let x = x.as_slice::<f32>()?.chunks(inner.max(1));
        let mut to = y.try_as_plain_ram_mut()?;
        let to = to.as_slice_mut::<T>()?.chunks_mut(inner.max(1));
        for ((x, y), s) in x.zip(to).zip(self.scales.iter().cycle()) {
            for (x, y) in x.iter().zip(y) {
                *y = T::from_i32(s.quantized(*x, T::LO, T::HI) as i32);
            }
        }
        Ok(y)
    }
}

impl Op for Quantize {
    fn name(&self) -> StaticName {
        "QuantizeLinear".into()
    }

    op_as_typed_op!();
}

impl EvalOp for Quantize {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let x = args_1!(inputs);
        let y = match self.to {
            DatumType::I8 => self.run::<i8>(&x)?,
            _ => self.run::<u8>(&x)?,
        };
        Ok(tvec!(y.into_tvalue()))
    }
}

impl TypedOp for Quantize {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let x = inputs[0];
        if self.scales.len() > 1 {
            let len = x.shape.get(self.axis).context("the scales lie along no axis")?;
            let scales = self.scales.len();
            ensure!(
                len.to_usize().is_ok_and(|len| len == scales),
                "there are {scales} scales along axis {}, which has the length {len}",
                self.axis
            );
        }
        Ok(tvec!(self.to.fact(x.shape.clone())))
    }

    as_op!();
}

/// What a node of a file becomes.
#[derive(Debug, Clone)]
pub(super) struct QuantizeLinear {
    axis: i64,
    zero_point: bool,
}

impl QuantizeLinear {
    /// Reads a node, of a file whose forms of quantisation were looked at (`quantize_forms`).
    ///
    /// # Errors
    /// An attribute of another type.
    pub(super) fn read(node: &NodeProto) -> TractResult<QuantizeLinear> {
        let zero_point = node.input.get(2).is_some_and(|name| !name.is_empty());
        Ok(QuantizeLinear { axis: node.get_attr_opt("axis")?.unwrap_or(1), zero_point })
    }
}

impl Expansion for QuantizeLinear {
    fn name(&self) -> StaticName {
        "QuantizeLinear".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 2 + usize::from(self.zero_point))?;
        check_output_arity(outputs, 1)?;
        s.equals(&inputs[1].datum_type, f32::datum_type())?;
        if self.zero_point {
            s.equals(&outputs[0].datum_type, &inputs[2].datum_type)?;
        } else {
            s.equals(&outputs[0].datum_type, u8::datum_type())?;
        }
        s.equals(&inputs[0].shape, &outputs[0].shape)?;
        Ok(())
    }

    fn wire(
        &self,
        name: &str,
        model: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let konst = |slot: usize, what: &str| {
            let fact = model.outlet_fact(inputs[slot])?;
            fact.konst.clone().with_context(|| format!("{what} of QuantizeLinear must be constant"))
        };
        let steps = konst(1, "the scale")?;
        let steps = steps.try_as_plain_ram()?.as_slice::<f32>()?.to_vec();
        let (to, zeros) = if self.zero_point {
            let zero = konst(2, "the zero point")?;
            let zeros = zero.cast_to::<i32>()?;
            (zero.datum_type(), zeros.try_as_plain_ram()?.as_slice::<i32>()?.to_vec())
        } else {
            (u8::datum_type(), vec![0])
        };
        ensure!(
            matches!(to, DatumType::I8 | DatumType::U8),
            "QuantizeLinear to {to:?} is not supported: only int8 and uint8 are"
        );
        let len = steps.len().max(zeros.len());
        ensure!(
            [steps.len(), zeros.len()].iter().all(|&n| n == len || n == 1),
            "QuantizeLinear has {} scales and {} zero points",
            steps.len(),
            zeros.len()
        );
        ensure!(steps.iter().all(|&s| s > 0.0), "a scale of QuantizeLinear must be above 0");
        let scales = (0..len)
            .map(|i| Scale { scale: steps[i % steps.len()], zero_point: zeros[i % zeros.len()] })
            .collect();
        let rank = model.outlet_fact(inputs[0])?.rank() as i64;
        let axis = if self.axis < 0 { self.axis + rank } else { self.axis };
        ensure!(
            len == 1 || (0..rank).contains(&axis),
            "QuantizeLinear has its scales along axis {axis} of {rank}"
        );
        let op = Quantize { scales, axis: axis.max(0) as usize, to };
        model.wire_node(name, op, &inputs[..1])
    }
}
