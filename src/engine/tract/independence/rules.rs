//! What each operator does with rows that lie apart.

use super::{Digit, State, Walk, shape, value};
use crate::engine::tract::front::{numerics, quantize, window};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ops::{self, array, cnn, nn};
use tract_onnx::tract_hir::internal::*;

/// What is known of the outputs of `node`, of whose inputs at least one has rows.
///
/// # Errors
/// Why it is not known that the rows stay apart.
pub(super) fn apply(
    walk: &Walk<'_>,
    node: &TypedNode,
    twin: &TypedNode,
    states: &[State],
) -> TractResult<TVec<State>> {
    let op = &node.op;
    let first = states.first().copied().unwrap_or(State::Same);
    if let Some(scan) = node.op_as::<ops::scan::Scan>() {
        return recurrent(walk, node, scan, twin, states);
    }
    if node.op_is::<ops::gru_seq::GruSeq>() {
        return gru(walk, node, states);
    }
    if let Some(axis_op) = node.op_as::<AxisOp>() {
        return axes(walk, node, axis_op, first);
    }
    if let Some(einsum) = node.op_as::<ops::einsum::EinSum>() {
        return product(walk, node, einsum, states);
    }
    let axis = node.op_as::<array::Gather>().map(|gather| gather.axis);
    if let Some(axis) = axis.or_else(|| node.op_as::<numerics::Lookup>()?.axis()) {
        return gathered(walk, node, axis, states);
    }
    if let Some(topk) = node.op_as::<array::Topk>() {
        let digit = kept(first, &[topk.axis], "it chooses among rows")?;
        constant(&states[1..], "how many it chooses")?;
        return Ok(tvec!(State::Rows(digit); 2));
    }
    if let Some(pool) = node.op_as::<cnn::MaxPool>() {
        ensure!(pool.with_index_outputs.is_none(), "its indices count over the whole batch");
    }
    if let Some(spec) = window(node) {
        return image(node, spec, states);
    }
    if op.is::<ops::lstm_cell::LstmEpilogue>() || op.is::<ops::gru_cell::GruEpilogue>() {
        let digit = aligned(walk, node, states)?;
        let last = walk.many.outlet_fact(node.inputs[0])?.rank() - 1;
        ensure!(digit.axis != last, "its rows lie along the gates");
        return Ok(tvec!(State::Rows(digit); node.outputs.len()));
    }
    let digit = if op.is::<ops::element_wise::ElementWiseOp>()
        || op.is::<ops::binary::TypedBinOp>()
        || op.is::<numerics::Divide>()
        || op.is::<ops::cast::Cast>()
        || op.is::<ops::identity::Identity>()
        || op.is::<ops::logic::Iff>()
        || op.is::<quantize::Quantize>()
        || op.is::<ops::quant::DequantizeLinearF32>()
        || op.is::<array::MultiBroadcastTo>()
    {
        aligned(walk, node, states)?
    } else if let Some(reduce) = node.op_as::<nn::Reduce>() {
        kept(first, &reduce.axes, "it reduces over the rows")?
    } else if let Some(softmax) = node.op_as::<nn::Softmax>() {
        kept(first, &softmax.axes, "it normalises over the rows")?
    } else if let Some(norm) = node.op_as::<nn::RmsNorm>() {
        kept(first, &[norm.axis], "it normalises over the rows")?
    } else if let Some(sum) = node.op_as::<array::CumSum>() {
        constant(&states[1..], "its axis")?;
        kept(first, &[sum.axis], "it adds up rows")?
    } else if let Some(slice) = node.op_as::<array::Slice>() {
        kept(first, &[slice.axis], "it cuts along the rows")?
    } else if let Some(concat) = node.op_as::<array::TypedConcat>() {
        let digit = aligned(walk, node, states)?;
        kept(State::Rows(digit), &[concat.axis], "it joins along the rows")?
    } else if let Some(gather) = node.op_as::<array::GatherElements>() {
        let digit = aligned(walk, node, states)?;
        kept(State::Rows(digit), &[gather.axis], "it looks up other rows")?
    } else if let Some(pad) = node.op_as::<array::Pad>() {
        let padded: Vec<usize> = (0..pad.pads.len()).filter(|&a| pad.pads[a] != (0, 0)).collect();
        kept(first, &padded, "it pads along the rows")?
    } else if let Some(tile) = node.op_as::<array::Tile>() {
        let one = 1.to_dim();
        let tiled: Vec<usize> =
            (0..tile.multipliers.len()).filter(|&a| tile.multipliers[a] != one).collect();
        kept(first, &tiled, "it repeats rows")?
    } else if let Some(up) = node.op_as::<nn::NearestUpsample>() {
        let scaled: Vec<usize> = (0..up.scales.len()).filter(|&a| up.scales[a] != 1).collect();
        kept(first, &scaled, "it scales along the rows")?
    } else if op.is::<nn::resize::Resize>() {
        constant(&states[1..], "its scale")?;
        let (from, to) = (shape(walk.many, node.inputs[0])?, shape(walk.many, node.id.into())?);
        let scaled: Vec<usize> = (0..from.len()).filter(|&a| from[a] != to[a]).collect();
        kept(first, &scaled, "it scales along the rows")?
    } else if op.is::<array::Trilu>() {
        constant(&states[1..], "its diagonal")?;
        let rank = walk.many.outlet_fact(node.inputs[0])?.rank();
        kept(first, &[rank.saturating_sub(1), rank.saturating_sub(2)], "it cuts along the rows")?
    } else if let Some(hot) =
        node.op_as::<array::OneHot>().or_else(|| Some(&node.op_as::<numerics::Hot>()?.0))
    {
        let mut digit = rows(first)?;
        digit.axis += usize::from(digit.axis >= hot.axis);
        digit
    } else if let Some(slice) = node.op_as::<array::StridedSlice>() {
        return strided(walk, node, slice, states);
    } else {
        bail!("it is not known to keep rows apart");
    };
    ensure!(node.outputs.len() == 1, "it is not known to keep rows apart");
    Ok(tvec!(State::Rows(digit)))
}

fn rows(state: State) -> TractResult<Digit> {
    match state {
        State::Rows(digit) => Ok(digit),
        State::Same => bail!("rows choose among constants"),
    }
}

/// The digit of `state`, which must not lie along one of `axes`.
fn kept(state: State, axes: &[usize], why: &str) -> TractResult<Digit> {
    let digit = rows(state)?;
    ensure!(!axes.contains(&digit.axis), "{why}");
    Ok(digit)
}

fn constant(states: &[State], what: &str) -> TractResult<()> {
    ensure!(states.iter().all(|s| *s == State::Same), "rows decide {what}");
    Ok(())
}

/// The digit of all inputs of an operator that maps positions to the same positions: where one has
/// rows, the others have them at the same place, or are the same for each row.
fn aligned(walk: &Walk<'_>, node: &TypedNode, states: &[State]) -> TractResult<Digit> {
    let digits = states.iter().filter_map(|s| rows(*s).ok());
    let digit = digits.clone().next().context("no input has rows")?;
    ensure!(digits.clone().all(|d| d == digit), "its inputs have their rows along different axes");
    let rank = walk.many.outlet_fact(node.id.into())?.rank();
    for (input, state) in node.inputs.iter().zip(states) {
        ensure!(walk.many.outlet_fact(*input)?.rank() == rank, "its inputs have different ranks");
        if *state == State::Same {
            ensure!(
                walk.uniform(*input, digit.axis)?,
                "the constant {:?} differs from row to row",
                walk.many.node(input.node).name
            );
        }
    }
    Ok(digit)
}

/// Convolutions and pools: images lie along the first axis.
fn image(node: &TypedNode, spec: &cnn::PoolSpec, states: &[State]) -> TractResult<TVec<State>> {
    constant(&states[1..], "the weights")?;
    let digit = rows(states[0])?;
    ensure!(spec.data_format.has_n() && digit.axis == 0, "its rows don't lie along the images");
    ensure!(node.outputs.len() == 1, "it is not known to keep rows apart");
    Ok(tvec!(State::Rows(digit)))
}

/// Changes of the axes, which keep the elements.
fn axes(walk: &Walk<'_>, node: &TypedNode, op: &AxisOp, state: State) -> TractResult<TVec<State>> {
    let digit = rows(state)?;
    let (from, to) = (shape(walk.many, node.inputs[0])?, shape(walk.many, node.id.into())?);
    let digit = match op {
        AxisOp::Move(..) => {
            let axis = op.transform_axis(digit.axis).context("its rows get lost")?;
            Digit { axis, ..digit }
        }
        _ => reshaped(from, digit, to, walk.batch)
            .context("no axis of the new shape holds the rows whole")?,
    };
    Ok(tvec!(State::Rows(digit)))
}

/// Where the rows lie after a reshape, if within one axis.
pub(super) fn reshaped(from: &[usize], digit: Digit, to: &[usize], batch: usize) -> Option<Digit> {
    // Elements from one row to the next.
    let step = from[digit.axis + 1..].iter().product::<usize>() * digit.inner;
    let mut below = 1;
    for axis in (0..to.len()).rev() {
        if step == 0 || below == 0 || below > step {
            return None;
        }
        let inner = step / below;
        if step.is_multiple_of(below) && to[axis].is_multiple_of(batch * inner) && to[axis] > 0 {
            return Some(Digit { axis, outer: to[axis] / (batch * inner), inner });
        }
        below *= to[axis];
    }
    None
}

/// Sums of products: the axis of the rows must be in the result, and whatever else has that axis too
/// must have its rows there, or be the same along it.
fn product(
    walk: &Walk<'_>,
    node: &TypedNode,
    einsum: &ops::einsum::EinSum,
    states: &[State],
) -> TractResult<TVec<State>> {
    let (inputs, outputs) = einsum.axes.to_strs();
    let slot = states.iter().position(|s| *s != State::Same).context("no input has rows")?;
    let digit = rows(states[slot])?;
    let letter = inputs[slot].chars().nth(digit.axis).context("an axis without a name")?;
    let at = |axes: &str| -> Vec<usize> {
        axes.chars().enumerate().filter(|(_, c)| *c == letter).map(|(i, _)| i).collect()
    };
    for ((axes, state), input) in inputs.iter().zip(states).zip(&node.inputs) {
        let here = at(axes);
        match state {
            State::Rows(other) => ensure!(
                here == [other.axis] && (other.outer, other.inner) == (digit.outer, digit.inner),
                "it multiplies rows with each other"
            ),
            State::Same => {
                for axis in here {
                    ensure!(
                        walk.uniform(*input, axis)?,
                        "the constant {:?} differs from row to row",
                        walk.many.node(input.node).name
                    );
                }
            }
        }
    }
    let [axis] = at(&outputs[0])[..] else { bail!("it adds up rows") };
    Ok(tvec!(State::Rows(Digit { axis, ..digit })))
}

/// Lookups of rows' indices in a constant, or of constant indices within rows.
fn gathered(
    walk: &Walk<'_>,
    node: &TypedNode,
    axis: usize,
    states: &[State],
) -> TractResult<TVec<State>> {
    let digit = match (states[0], states[1]) {
        (State::Same, State::Rows(digit)) => Digit { axis: digit.axis + axis, ..digit },
        (State::Rows(digit), State::Same) => {
            ensure!(digit.axis != axis, "it chooses among rows");
            let rank = walk.many.outlet_fact(node.inputs[1])?.rank();
            let moved = if digit.axis < axis { digit.axis } else { digit.axis + rank - 1 };
            Digit { axis: moved, ..digit }
        }
        _ => bail!("rows look up in rows"),
    };
    Ok(tvec!(State::Rows(digit)))
}

/// Slices with constant bounds.
fn strided(
    walk: &Walk<'_>,
    node: &TypedNode,
    op: &array::StridedSlice,
    states: &[State],
) -> TractResult<TVec<State>> {
    constant(&states[1..], "where it cuts")?;
    ensure!(op.shrink_axis_mask == 0, "it drops axes");
    let digit = rows(states[0])?;
    let integers = |slot: usize| -> TractResult<Vec<i64>> {
        let value = value(walk.many, node.inputs[slot])?.context("its bounds are not known")?;
        let value = value.cast_to::<i64>()?;
        Ok(value.try_as_plain_ram()?.as_slice::<i64>()?.to_vec())
    };
    let rank = walk.many.outlet_fact(node.inputs[0])?.rank() as i64;
    let cut = match op.optional_axes_input {
        Some(slot) => integers(slot)?,
        None => (0..integers(1)?.len() as i64).collect(),
    };
    let (from, to) = (shape(walk.many, node.inputs[0])?, shape(walk.many, node.id.into())?);
    let place = cut.iter().position(|&a| a == digit.axis as i64 || a + rank == digit.axis as i64);
    if let Some(place) = place {
        let step = match op.optional_steps_input {
            Some(slot) => integers(slot)?.get(place).copied().unwrap_or(1),
            None => 1,
        };
        // As long as before and forwards: all of it.
        ensure!(step == 1 && from[digit.axis] == to[digit.axis], "it cuts along the rows");
    }
    Ok(tvec!(State::Rows(digit)))
}

/// A whole GRU: `x, w, r, [b], h0`, rows along axis 0 of `x`, `h0` and both outputs.
fn gru(walk: &Walk<'_>, node: &TypedNode, states: &[State]) -> TractResult<TVec<State>> {
    let digit = rows(states[0])?;
    ensure!(digit.axis == 0, "its rows don't lie along axis 0");
    let last = states.len() - 1;
    constant(&states[1..last], "the weights")?;
    match states[last] {
        State::Rows(state) => ensure!(state == digit, "its state has other rows"),
        State::Same => ensure!(
            walk.uniform(node.inputs[last], 0)?,
            "its initial state differs from row to row"
        ),
    }
    Ok(tvec!(State::Rows(digit); node.outputs.len()))
}

/// A loop over another axis: what goes round in it must have its rows where they were.
fn recurrent(
    walk: &Walk<'_>,
    node: &TypedNode,
    scan: &ops::scan::Scan,
    twin: &TypedNode,
    states: &[State],
) -> TractResult<TVec<State>> {
    use ops::scan::InputMapping;
    let alone = twin.op_as::<ops::scan::Scan>().context("it is another operation for one row")?;
    ensure!(
        format!("{:?}{:?}", scan.input_mapping, scan.skip)
            == format!("{:?}{:?}", alone.input_mapping, alone.skip)
            && format!("{:?}", scan.output_mapping) == format!("{:?}", alone.output_mapping),
        "it loops in another way for one row"
    );
    let mut why = None;
    // Constant initial states have their rows along the first axis or the second.
    for guess in 0..2 {
        let mut inner: Vec<State> = vec![];
        for (slot, (mapping, state)) in scan.input_mapping.iter().zip(states).enumerate() {
            inner.push(match (mapping, *state) {
                (InputMapping::Scan(info), State::Rows(digit)) => {
                    ensure!(digit.axis != info.axis, "it loops over the rows");
                    *state
                }
                (InputMapping::State, State::Same) => {
                    let input = node.inputs[slot];
                    let fits = shape(walk.many, input)?.get(guess) == Some(&walk.batch)
                        && walk.uniform(input, guess)?;
                    if !fits {
                        why.get_or_insert(format_err!("its initial state differs from row to row"));
                        break;
                    }
                    State::Rows(Digit { axis: guess, outer: 1, inner: 1 })
                }
                _ => *state,
            });
        }
        if inner.len() < states.len() {
            continue;
        }
        match round(walk, node, scan, alone, &inner) {
            Ok(outputs) => return Ok(outputs),
            Err(error) => why = Some(why.unwrap_or(error)),
        }
    }
    Err(why.unwrap_or_else(|| format_err!("it has no state")))
}

/// What comes out of a loop, if its body keeps the rows of its state where they are.
fn round(
    walk: &Walk<'_>,
    node: &TypedNode,
    scan: &ops::scan::Scan,
    alone: &ops::scan::Scan,
    inner: &[State],
) -> TractResult<TVec<State>> {
    let mut body = Walk::new(&alone.body, &scan.body, walk.batch)?;
    let results = body.run(inner)?;
    ensure!(results.len() == scan.output_mapping.len(), "its body has other outputs");
    let mut states =
        scan.input_mapping.iter().zip(inner).filter(|(m, _)| m.is_state()).map(|(_, s)| *s);
    let mut outputs = tvec!(None; node.outputs.len());
    for (mapping, result) in scan.output_mapping.iter().zip(results) {
        if mapping.state {
            ensure!(states.next() == Some(result), "its state does not keep its rows");
        }
        if let Some((slot, info)) = mapping.scan {
            ensure!(rows(result)?.axis != info.axis, "it joins along the rows");
            *outputs.get_mut(slot).context("a missing output")? = Some(result);
        }
        if let Some(slot) = mapping.last_value_slot {
            *outputs.get_mut(slot).context("a missing output")? = Some(result);
        }
    }
    outputs.into_iter().map(|o| o.context("an output that nothing fills")).collect()
}
