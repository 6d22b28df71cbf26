//! Operators that tract computes otherwise than ONNX, or not at all, at the ends of their range: both
//! engines get them as they should be.
//!
//! | operator | tract | here |
//! |---|---|---|
//! | Softplus, `ln(1 + exp(x))` in any spelling | infinite from 89 on | `max(x, 0) + ln(1 + exp(-abs(x)))` |
//! | ReduceLogSumExp, `ln(sum(exp(x)))` | infinite from 89 on | the largest is subtracted first |
//! | LogSoftmax, `ln(softmax(x))` | as small as `ln` of the least number | `x - max - ln(sum)` |
//! | Celu | right for `alpha` 1 only | `max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))` |
//! | QuantizeLinear | ties by a rounded reciprocal, sums that wrap | as ONNX defines it (`front::quantize`) |
//! | integer Div and Mod | panic where the divisor is 0 | 0 there, as an ARM core divides |
//! | Div by a constant below 2.9e-39, or whose quotient is rounded | times the reciprocal: infinite, off by a place | a division |
//! | Gather, GatherND | panic, or another row's elements, for an index outside | NaN, or an error (below) |
//! | GatherND | panics for an index below 0 | counts from the end |
//! | OneHot | panics for an index outside | the value that means off |
//!
//! To ONNX an index outside its axis is an error of the whole run. Here it is one where the elements
//! are integers; floating-point elements that it selects are NaN, so that of a batch's rows only the one
//! with the bad index is spoilt, and visibly so.

use super::quantize::{Quantize, QuantizeLinear};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::*;
use tract_onnx::tract_core::ops::array::{Gather, GatherNd, OneHot};
use tract_onnx::tract_core::ops::binary::TypedBinOp;
use tract_onnx::tract_core::ops::cast::Cast;
use tract_onnx::tract_core::ops::element_wise::ElementWiseOp;
use tract_onnx::tract_core::ops::math;
use tract_onnx::tract_core::ops::nn::{Reduce, Reducer, Softmax, SoftmaxKind};
use tract_onnx::tract_hir::internal::{
    Expansion, InferenceResult, Solver, TensorProxy, check_input_arity, check_output_arity, expand,
};

/// Puts our forms of operators in the place of tract's where a file is parsed.
pub fn register(onnx: &mut tract_onnx::Onnx) {
    onnx.op_register.insert("Celu", |_, node| {
        let alpha: f32 = node.get_attr_opt("alpha")?.unwrap_or(1.0);
        Ok((expand(Celu(alpha)), vec![]))
    });
    onnx.op_register
        .insert("QuantizeLinear", |_, node| Ok((expand(QuantizeLinear::read(node)?), vec![])));
}

/// Rewrites what is wrong in a typed graph.
///
/// # Errors
/// What the graph library says of a rewriting that it refuses.
pub fn mend(model: &mut TypedModel) -> TractResult<()> {
    for id in model.eval_order()? {
        let safe: Option<Box<dyn TypedOp>> = safe_form(model, id)?;
        if let Some(op) = safe {
            model.node_mut(id).op = op;
        }
        if !element_wise(model, id, "Ln") {
            continue;
        }
        let patch = match soft_plus(model, id)? {
            None => match log_sum_exp(model, id)? {
                None => log_softmax(model, id)?,
                some => some,
            },
            some => some,
        };
        if let Some(patch) = patch {
            patch.apply(model)?;
        }
    }
    Ok(())
}

fn element_wise(model: &TypedModel, id: usize, name: &str) -> bool {
    model.node(id).op_as::<ElementWiseOp>().is_some_and(|op| op.0.name() == name)
}

/// The node that makes input `slot` of node `id`.
fn maker(model: &TypedModel, id: usize, slot: usize) -> Option<&TypedNode> {
    model.node(id).inputs.get(slot).map(|outlet| model.node(outlet.node))
}

/// A number of the type of `fact`, with as many axes.
fn number(value: f64, fact: &TypedFact) -> TractResult<Arc<Tensor>> {
    let number = tensor0(value).cast_to_dt(fact.datum_type)?.into_owned();
    Ok(number.broadcast_into_rank(fact.rank())?.into_arc_tensor())
}

/// `ln(1 + exp(x))` without overflow.
fn soft_plus(model: &TypedModel, ln: usize) -> TractResult<Option<TypedModelPatch>> {
    let Some(add) = maker(model, ln, 0).filter(|n| is_binary(n, "Add")) else { return Ok(None) };
    for (slot, other) in [(0, 1), (1, 0)] {
        let Some(exp) = maker(model, add.id, slot) else { continue };
        let one = &model.outlet_fact(add.inputs[other])?.konst;
        let one = one
            .as_ref()
            .is_some_and(|c| c.len() == 1 && c.cast_to_scalar::<f64>().is_ok_and(|c| c == 1.0));
        let fact = model.outlet_fact(ln.into())?;
        if !one || !element_wise(model, exp.id, "Exp") || !fact.datum_type.is_float() {
            continue;
        }
        let (x, name) = (exp.inputs[0], &model.node(ln).name);
        if model.outlet_fact(x)?.shape != fact.shape {
            continue;
        }
        let mut patch = TypedModelPatch::new("softplus");
        let from = patch.tap_model(model, x)?;
        let zero = patch.add_const(format!("{name}.zero"), number(0.0, fact)?)?;
        let one = patch.add_const(format!("{name}.one"), number(1.0, fact)?)?;
        let x = patch.wire_node(format!("{name}.abs"), math::abs(), &[from])?;
        let x = patch.wire_node(format!("{name}.neg"), math::neg(), &x)?;
        let x = patch.wire_node(format!("{name}.exp"), math::exp(), &x)?;
        let x = patch.wire_node(format!("{name}.plus_one"), math::add(), &[x[0], one])?;
        let small = patch.wire_node(format!("{name}.ln"), math::ln(), &x)?[0];
        let large = patch.wire_node(format!("{name}.relu"), math::max(), &[from, zero])?[0];
        let sum = patch.wire_node(name, math::add(), &[large, small])?[0];
        patch.shunt_outside(model, ln.into(), sum)?;
        return Ok(Some(patch));
    }
    Ok(None)
}

/// `ln(sum(exp(x)))` without overflow.
fn log_sum_exp(model: &TypedModel, ln: usize) -> TractResult<Option<TypedModelPatch>> {
    let Some(sum) = maker(model, ln, 0) else { return Ok(None) };
    let Some(reduce) = sum.op_as::<Reduce>().filter(|r| r.reducer == Reducer::Sum) else {
        return Ok(None);
    };
    let Some(exp) = maker(model, sum.id, 0).filter(|n| element_wise(model, n.id, "Exp")) else {
        return Ok(None);
    };
    let (x, name) = (exp.inputs[0], &model.node(ln).name);
    let fact = model.outlet_fact(ln.into())?;
    let finite = match fact.datum_type {
        DatumType::F16 => 65504.0,
        DatumType::F32 => f64::from(f32::MAX),
        DatumType::F64 => f64::MAX,
        _ => return Ok(None),
    };
    let mut patch = TypedModelPatch::new("logsumexp");
    let from = patch.tap_model(model, x)?;
    let axes = reduce.axes.clone();
    let largest = Reduce::new(axes.clone(), Reducer::Max);
    let m = patch.wire_node(format!("{name}.max"), largest, &[from])?[0];
    // An infinite one can't be subtracted from itself.
    let top = patch.add_const(format!("{name}.top"), number(finite, fact)?)?;
    let bottom = patch.add_const(format!("{name}.bottom"), number(-finite, fact)?)?;
    let m = patch.wire_node(format!("{name}.below"), math::min(), &[m, top])?[0];
    let m = patch.wire_node(format!("{name}.above"), math::max(), &[m, bottom])?[0];
    let x = patch.wire_node(format!("{name}.shift"), math::sub(), &[from, m])?;
    let x = patch.wire_node(format!("{name}.exp"), math::exp(), &x)?;
    let x = patch.wire_node(format!("{name}.sum"), Reduce::new(axes, Reducer::Sum), &x)?;
    let x = patch.wire_node(format!("{name}.ln"), math::ln(), &x)?[0];
    let sum = patch.wire_node(name, math::add(), &[x, m])?[0];
    patch.shunt_outside(model, ln.into(), sum)?;
    Ok(Some(patch))
}

/// `ln(softmax(x))` in one operator.
fn log_softmax(model: &TypedModel, ln: usize) -> TractResult<Option<TypedModelPatch>> {
    let Some(maker) = maker(model, ln, 0) else { return Ok(None) };
    let Some(softmax) = maker.op_as::<Softmax>() else { return Ok(None) };
    if softmax.quant_output_dt.is_some() || softmax.kind != SoftmaxKind::Softmax {
        return Ok(None);
    }
    let mut patch = TypedModelPatch::new("logsoftmax");
    let x = patch.tap_model(model, maker.inputs[0])?;
    let op = Softmax { kind: SoftmaxKind::LogSoftmax, ..softmax.clone() };
    let y = patch.wire_node(&model.node(ln).name, op, &[x])?[0];
    patch.shunt_outside(model, ln.into(), y)?;
    Ok(Some(patch))
}

fn is_binary(node: &TypedNode, name: &str) -> bool {
    node.op_as::<TypedBinOp>().is_some_and(|op| op.0.name() == name)
}

/// The form of an operator that no input makes panic; none if it has it already.
fn safe_form(model: &TypedModel, id: usize) -> TractResult<Option<Box<dyn TypedOp>>> {
    let node = model.node(id);
    let Some(&first) = node.inputs.first() else { return Ok(None) };
    let fact = model.outlet_fact(first)?;
    if !fact.is_plain() || !fact.datum_type.is_number() || fact.datum_type == TDim::datum_type() {
        return Ok(None);
    }
    Ok(if let Some(gather) = node.op_as::<Gather>() {
        Some(Box::new(Lookup(Select::Axis(gather.clone()))))
    } else if let Some(gather) = node.op_as::<GatherNd>() {
        Some(Box::new(Lookup(Select::Nd(gather.clone()))))
    } else if let Some(one_hot) = node.op_as::<OneHot>() {
        Some(Box::new(Hot(one_hot.clone())))
    } else if fact.datum_type.is_integer() && (is_binary(node, "Div") || is_binary(node, "Rem"))
        || is_binary(node, "Div") && needs_quotient(model, node)?
    {
        node.op_as::<TypedBinOp>().map(|op| Box::new(Divide(op.clone())) as Box<dyn TypedOp>)
    } else {
        None
    })
}

/// Celu, with `alpha`.
#[derive(Debug, Clone)]
struct Celu(f32);

impl Expansion for Celu {
    fn name(&self) -> StaticName {
        "Celu".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 1)?;
        check_output_arity(outputs, 1)?;
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        s.equals(&inputs[0].shape, &outputs[0].shape)?;
        Ok(())
    }

    fn wire(
        &self,
        name: &str,
        model: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let fact = model.outlet_fact(inputs[0])?.clone();
        let mut konst = |what: &str, value: f64| {
            model.add_const(format!("{name}.{what}"), number(value, &fact)?)
        };
        let (zero, one) = (konst("zero", 0.0)?, konst("one", 1.0)?);
        let alpha = konst("alpha", self.0.into())?;
        let x = model.wire_node(format!("{name}.over_alpha"), math::div(), &[inputs[0], alpha])?;
        let x = model.wire_node(format!("{name}.exp"), math::exp(), &x)?;
        let x = model.wire_node(format!("{name}.minus_one"), math::sub(), &[x[0], one])?;
        let x = model.wire_node(format!("{name}.by_alpha"), math::mul(), &[x[0], alpha])?;
        let low = model.wire_node(format!("{name}.low"), math::min(), &[zero, x[0]])?[0];
        let high = model.wire_node(format!("{name}.high"), math::max(), &[zero, inputs[0]])?[0];
        model.wire_node(name, math::add(), &[high, low])
    }
}

/// Whether tract's multiplication by the reciprocal won't do in the place of a division of floats: the
/// reciprocal is infinite, or what reads the quotient takes steps.
fn needs_quotient(model: &TypedModel, node: &TypedNode) -> TractResult<bool> {
    let divisor = &model.outlet_fact(node.inputs[1])?.konst;
    if let Some(divisor) = divisor.as_ref().filter(|d| d.datum_type() == f32::datum_type()) {
        let tiny = |&d: &f32| d != 0.0 && d.recip().is_infinite();
        if divisor.try_as_plain_ram()?.as_slice::<f32>()?.iter().any(tiny) {
            return Ok(true);
        }
    }
    let mut readers = node.outputs[0].successors.to_vec();
    while let Some(reader) = readers.pop() {
        let reader = model.node(reader.node);
        if reader.op_is::<AxisOp>() {
            readers.extend(&reader.outputs[0].successors);
        }
        let rounds = reader.op_as::<ElementWiseOp>().is_some_and(|op| {
            matches!(&*op.0.name(), "Floor" | "Ceil" | "Round" | "RoundHalfToEven")
        });
        let to_integer = reader.op_as::<Cast>().is_some_and(|cast| !cast.to.is_float());
        if rounds || to_integer || reader.op_is::<Quantize>() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A division that stays one; a quotient (or remainder) of integers is 0 where the divisor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divide(pub TypedBinOp);

impl Op for Divide {
    fn name(&self) -> StaticName {
        self.0.name()
    }

    op_as_typed_op!();
}

impl EvalOp for Divide {
    op_out_of_plan!();

    fn eval(&self, ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (a, b) = args_2!(inputs);
        if b.datum_type().is_float() {
            return self.0.eval(ctx, tvec!(a, b));
        }
        let width = b.datum_type().size_of();
        let zero = |element: &[u8]| element.iter().all(|&byte| byte == 0);
        if !b.as_bytes().chunks_exact(width).any(zero) {
            return self.0.eval(ctx, tvec!(a, b));
        }
        // 1 in the place of 0, and factors that make 0 of what that gives.
        let mut divisor = b.into_tensor();
        let mut factor = divisor.clone();
        let one = &one_of(width)[..width];
        let places = divisor.as_bytes_mut().chunks_exact_mut(width);
        for (d, f) in places.zip(factor.as_bytes_mut().chunks_exact_mut(width)) {
            f.copy_from_slice(one);
            if zero(d) {
                d.copy_from_slice(one);
                f.fill(0);
            }
        }
        let quotient = self.0.eval(ctx, tvec!(a, divisor.into_tvalue()))?.remove(0);
        math::mul().eval(ctx, tvec!(quotient, factor.into_tvalue()))
    }
}

/// The integer 1, of `width` bytes.
fn one_of(width: usize) -> [u8; 8] {
    // In the first bytes, whichever end comes first.
    if cfg!(target_endian = "big") {
        (1u64 << (64 - 8 * width)).to_be_bytes()
    } else {
        1u64.to_le_bytes()
    }
}

impl TypedOp for Divide {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        self.0.output_facts(inputs)
    }

    as_op!();
}

/// Which elements a lookup selects.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Select {
    Axis(Gather),
    Nd(GatherNd),
}

/// A lookup that looks at every index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup(Select);

impl Lookup {
    /// The axis, if one is looked up along.
    pub fn axis(&self) -> Option<usize> {
        match &self.0 {
            Select::Axis(gather) => Some(gather.axis),
            Select::Nd(_) => None,
        }
    }
}

impl Op for Lookup {
    fn name(&self) -> StaticName {
        match &self.0 {
            Select::Axis(gather) => gather.name(),
            Select::Nd(gather) => gather.name(),
        }
    }

    op_as_typed_op!();
}

/// `index` on an axis of `len`, those below 0 from its end.
fn within(index: i64, len: usize) -> Option<usize> {
    let from_start = if index < 0 { index.checked_add_unsigned(len as u64)? } else { index };
    usize::try_from(from_start).ok().filter(|&i| i < len)
}

impl EvalOp for Lookup {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (data, indices) = args_2!(inputs);
        let shape = data.shape();
        let index = indices.cast_to::<i64>()?;
        let index = index.try_as_plain_ram()?;
        let index = index.as_slice::<i64>()?;
        let product = |axes: &[usize]| axes.iter().product::<usize>();
        // What follows the axes that are looked up along lies side by side.
        let mut out: TVec<usize> = tvec!();
        let (block, places): (usize, Vec<Option<usize>>) = match &self.0 {
            Select::Axis(Gather { axis, .. }) => {
                let (before, len) = (&shape[..*axis], shape[*axis]);
                out.extend(before.iter().chain(indices.shape()).chain(&shape[axis + 1..]).copied());
                let rows = |outer: usize| {
                    index.iter().map(move |&i| within(i, len).map(|i| outer * len + i))
                };
                (product(&shape[axis + 1..]), (0..product(before)).flat_map(rows).collect())
            }
            Select::Nd(GatherNd { batch_dims }) => {
                let (&depth, before) = indices.shape().split_last().context("no last axis")?;
                let (along, after) = shape[*batch_dims..].split_at(depth);
                out.extend(before.iter().chain(after).copied());
                let each = product(&before[*batch_dims..]).max(1);
                let place = |(n, coordinates): (usize, &[i64])| {
                    (coordinates.iter().zip(along))
                        .try_fold(n / each, |place, (&i, &len)| Some(place * len + within(i, len)?))
                };
                (product(after), index.chunks_exact(depth.max(1)).enumerate().map(place).collect())
            }
        };
        let width = block * data.datum_type().size_of();
        let missing: Vec<u8> = match data.datum_type() {
            DatumType::F16 => f16::NAN.to_ne_bytes().repeat(block),
            DatumType::F32 => f32::NAN.to_ne_bytes().repeat(block),
            DatumType::F64 => f64::NAN.to_ne_bytes().repeat(block),
            _ => vec![],
        };
        let mut output = Tensor::zero_dt(data.datum_type(), &out)?;
        let (from, to) = (data.as_bytes(), output.as_bytes_mut());
        for (n, (to, place)) in to.chunks_exact_mut(width.max(1)).zip(&places).enumerate() {
            match place {
                Some(place) => to.copy_from_slice(&from[place * width..][..width]),
                None if missing.is_empty() => bail!("index {n} lies outside {shape:?}"),
                None => to.copy_from_slice(&missing),
            }
        }
        Ok(tvec!(output.into_tvalue()))
    }
}

impl TypedOp for Lookup {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        match &self.0 {
            Select::Axis(gather) => gather.output_facts(inputs),
            Select::Nd(gather) => gather.output_facts(inputs),
        }
    }

    as_op!();
}

/// One-hot rows, where an index outside sets nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hot(pub OneHot);

impl Op for Hot {
    fn name(&self) -> StaticName {
        self.0.name()
    }

    op_as_typed_op!();
}

impl EvalOp for Hot {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let OneHot { axis, dim, off, on } = &self.0;
        let input = args_1!(inputs);
        let mut shape: TVec<usize> = input.shape().into();
        shape.insert(*axis, *dim);
        let inner: usize = shape[axis + 1..].iter().product();
        let mut output = off.broadcast_scalar_to_shape(&shape)?;
        let index = input.cast_to::<i64>()?;
        let index = index.try_as_plain_ram()?;
        let (on, width) = (on.as_bytes(), off.datum_type().size_of());
        let to = output.as_bytes_mut();
        for (n, &i) in index.as_slice::<i64>()?.iter().enumerate() {
            let Some(i) = within(i, *dim) else { continue };
            let at = (n / inner * dim + i) * inner + n % inner;
            to[at * width..][..width].copy_from_slice(on);
        }
        Ok(tvec!(output.into_tvalue()))
    }
}

impl TypedOp for Hot {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        self.0.output_facts(inputs)
    }

    as_op!();
}
