//! Whether the rows of a batch are independent, shown from the structure of the graph.
//!
//! Comparing rows in a batch with rows alone (`model::check`) finds what those rows show: a model whose
//! rows meet in some range of values only passes. So the graph itself is followed, from the inputs to
//! the outputs. For every tensor it is known where its rows lie ([`Digit`]), and every operator must be
//! one that provably keeps them apart; whatever is not known to do so is named.
//!
//! That a row gets the answer that it gets alone needs more: the graph for many rows must compute for
//! each of them what the graph for one row computes. So every node is also held against the node of the
//! same name there: the same operator and attributes, the same constants (or, along the batch, the same
//! for each row), and the same shape but for the batch.

#[path = "independence/rules.rs"]
mod rules;

use std::collections::{HashMap, HashSet};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ops;
use tract_onnx::tract_core::ops::konst::Const;
use tract_onnx::tract_hir::internal::*;

/// Where rows lie: the position along `axis`, divided by `inner`, modulo the batch, is the row. The axis
/// has the length `outer * batch * inner`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Digit {
    axis: usize,
    outer: usize,
    inner: usize,
}

/// What is known of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It depends on no input.
    Same,
    /// Its rows lie apart.
    Rows(Digit),
}

/// Shows that in `many`, the graph for `batch` rows, each row of the outputs depends on the same row of
/// the inputs alone, and as in `one`, the graph for one row.
///
/// # Errors
/// What can't be shown, and at which node.
pub(super) fn prove(one: &TypedModel, many: &TypedModel, batch: usize) -> TractResult<()> {
    let inputs = many.input_outlets()?.len();
    let row = State::Rows(Digit { axis: 0, outer: 1, inner: 1 });
    let outputs = Walk::new(one, many, batch)?.run(&vec![row; inputs])?;
    for (outlet, state) in many.output_outlets()?.iter().zip(outputs) {
        let name = many.outlet_label(*outlet).unwrap_or(&many.node(outlet.node).name);
        match state {
            State::Same => bail!("output {name:?} depends on no input, so it has no rows"),
            state if state == row => {}
            State::Rows(_) => bail!("the rows of output {name:?} are not along axis 0"),
        }
    }
    Ok(())
}

/// A graph that is being followed.
struct Walk<'m> {
    one: &'m TypedModel,
    many: &'m TypedModel,
    batch: usize,
    /// The node of each name in the graph for one row.
    names: HashMap<&'m str, usize>,
    states: HashMap<OutletId, State>,
    /// Inputs that are the same for each row, and alone: what a loop hands to its body.
    given: HashSet<OutletId>,
}

impl<'m> Walk<'m> {
    fn new(one: &'m TypedModel, many: &'m TypedModel, batch: usize) -> TractResult<Walk<'m>> {
        ensure!(batch > 1, "one row is no batch");
        let names = one.nodes().iter().map(|n| (n.name.as_str(), n.id)).collect();
        Ok(Walk { one, many, batch, names, states: HashMap::new(), given: HashSet::new() })
    }

    /// What is known of the outputs if `inputs` is known of the inputs.
    fn run(&mut self, inputs: &[State]) -> TractResult<TVec<State>> {
        ensure!(self.many.input_outlets()?.len() == inputs.len(), "another number of inputs");
        for (outlet, state) in self.many.input_outlets()?.iter().zip(inputs) {
            self.twin(self.many.node(outlet.node))?;
            self.know(*outlet, *state)?;
            if *state == State::Same {
                self.given.insert(*outlet);
            }
        }
        for id in self.many.eval_order()? {
            let node = self.many.node(id);
            if self.states.contains_key(&OutletId::new(id, 0)) {
                continue;
            }
            if node.op_is::<Const>() {
                self.states.insert(id.into(), State::Same);
                continue;
            }
            let states = self.node(node).with_context(|| about(node))?;
            ensure!(states.len() == node.outputs.len(), "{} has other outputs", about(node));
            for (slot, state) in states.into_iter().enumerate() {
                self.know(OutletId::new(id, slot), state).with_context(|| about(node))?;
            }
        }
        self.many
            .output_outlets()?
            .iter()
            .map(|o| self.states.get(o).copied().context("an output that nothing computes"))
            .collect()
    }

    /// Notes what is known of `outlet`, if its shape says so too.
    fn know(&mut self, outlet: OutletId, state: State) -> TractResult<()> {
        if let State::Rows(digit) = state {
            let many = shape(self.many, outlet)?;
            let len = digit.outer * self.batch * digit.inner;
            ensure!(many.get(digit.axis) == Some(&len), "it changes the length of the batch axis");
            let node = self.many.node(outlet.node);
            let twin = OutletId::new(self.twin(node)?.id, outlet.slot);
            let mut row = many.to_vec();
            row[digit.axis] /= self.batch;
            let alone = shape(self.one, twin)?;
            ensure!(
                row == alone,
                "a row of it has the shape {row:?} in a batch of {} and {alone:?} alone",
                self.batch
            );
        }
        self.states.insert(outlet, state);
        Ok(())
    }

    /// The node of the graph for one row that has the same name.
    fn twin(&self, node: &TypedNode) -> TractResult<&'m TypedNode> {
        let id = self.names.get(node.name.as_str());
        Ok(self.one.node(*id.context("the graph for one row has no such node")?))
    }

    fn node(&self, node: &TypedNode) -> TractResult<TVec<State>> {
        ensure!(!node.inputs.is_empty(), "it makes values of its own");
        let states: TVec<State> = node
            .inputs
            .iter()
            .map(|i| self.states.get(i).copied().context("it reads what nothing computes"))
            .collect::<TractResult<_>>()?;
        let random = ["Random", "Multinomial", "Bernoulli"];
        ensure!(!random.iter().any(|r| node.op.name().contains(r)), "it makes values of its own");
        let twin = match self.twin(node) {
            Ok(twin) => twin,
            // Constants are compared where rows meet them.
            Err(_) if states.iter().all(|s| *s == State::Same) => {
                return Ok(tvec!(State::Same; node.outputs.len()));
            }
            Err(e) => return Err(e),
        };
        let known = node.outputs.iter().all(|o| o.fact.konst.is_some());
        if known || states.iter().all(|s| *s == State::Same) {
            return Ok(tvec!(State::Same; node.outputs.len()));
        }
        self.same_node(node, twin, &states)?;
        rules::apply(self, node, twin, &states)
    }

    /// Whether `twin` does with its inputs what `node` does.
    fn same_node(&self, node: &TypedNode, twin: &TypedNode, states: &[State]) -> TractResult<()> {
        let other = "it is another operation for one row";
        ensure!(node.op.name() == twin.op.name() && node.inputs.len() == twin.inputs.len(), other);
        // What these say are shapes, which are compared where they are noted.
        let shapes = node.op_as::<AxisOp>().is_some_and(|op| matches!(op, AxisOp::Reshape(..)))
            || node.op_is::<ops::array::MultiBroadcastTo>()
            || node.op_is::<ops::scan::Scan>();
        ensure!(shapes || format!("{:?}", node.op) == format!("{:?}", twin.op), other);
        for ((input, alone), state) in node.inputs.iter().zip(&twin.inputs).zip(states) {
            if *state == State::Same {
                self.same_constant(*input, *alone)?;
                continue;
            }
            let (name, known) = (&self.many.node(input.node).name, &self.one.node(alone.node).name);
            ensure!(name == known && input.slot == alone.slot, "it reads {known:?} for one row");
        }
        Ok(())
    }

    /// Whether two constants are the same but for axes along which nothing varies.
    fn same_constant(&self, many: OutletId, one: OutletId) -> TractResult<()> {
        if self.same_source(many, one)? {
            return Ok(());
        }
        let (Some(a), Some(b)) = (value(self.many, many)?, value(self.one, one)?) else {
            bail!("it reads {:?}, whose values are not known", self.many.node(many.node).name);
        };
        if Arc::ptr_eq(&a, &b) || a == b {
            return Ok(());
        }
        let name = &self.many.node(many.node).name;
        let varies =
            || format!("it reads the constant {name:?}, which depends on the number of rows");
        ensure!(a.rank() == b.rank() && a.datum_type() == b.datum_type(), varies());
        let mut cut = (*a).clone();
        for axis in 0..a.rank() {
            if a.shape()[axis] != b.shape()[axis] {
                ensure!(uniform(&a, axis)? && b.shape()[axis] <= a.shape()[axis], varies());
                cut = cut.slice(axis, 0, b.shape()[axis])?;
            }
        }
        ensure!(cut == *b, varies());
        Ok(())
    }

    /// Whether two constants are computed in the same way from the same.
    fn same_source(&self, many: OutletId, one: OutletId) -> TractResult<bool> {
        let mut seen = HashSet::new();
        let mut stack = vec![(many, one)];
        while let Some((many, one)) = stack.pop() {
            if !seen.insert((many, one)) {
                continue;
            }
            let (a, b) = (self.many.node(many.node), self.one.node(one.node));
            if self.given.contains(&many) {
                if a.name != b.name || shape(self.many, many)? != shape(self.one, one)? {
                    return Ok(false);
                }
                continue;
            }
            let same = match (a.op_as::<Const>(), b.op_as::<Const>()) {
                (Some(a), Some(b)) => Arc::ptr_eq(a.val(), b.val()) || a.val() == b.val(),
                (None, None) => {
                    many.slot == one.slot
                        && !a.inputs.is_empty()
                        && a.inputs.len() == b.inputs.len()
                        && a.op.name() == b.op.name()
                        && format!("{:?}", a.op) == format!("{:?}", b.op)
                }
                _ => false,
            };
            if !same {
                return Ok(false);
            }
            stack.extend(a.inputs.iter().copied().zip(b.inputs.iter().copied()));
        }
        Ok(true)
    }

    /// Whether the constant `outlet` is the same all along `axis`.
    fn uniform(&self, outlet: OutletId, axis: usize) -> TractResult<bool> {
        if shape(self.many, outlet)?.get(axis) == Some(&1) {
            return Ok(true);
        }
        match value(self.many, outlet)? {
            Some(value) => uniform(&value, axis),
            None => Ok(false),
        }
    }
}

fn about(node: &TypedNode) -> String {
    format!("node {:?} ({})", node.name, node.op.name())
}

fn shape(model: &TypedModel, outlet: OutletId) -> TractResult<&[usize]> {
    model.outlet_fact(outlet)?.shape.as_concrete().context("an open shape")
}

/// Constants larger than this (elements) are not computed to be looked at.
const LOOKED_AT_LEN_MAX: usize = 1 << 22;

/// The value of an outlet that depends on no input, computed where the graph does not have it.
fn value(model: &TypedModel, outlet: OutletId) -> TractResult<Option<Arc<Tensor>>> {
    // Depth first, without recursion: chains may be long.
    let mut known: HashMap<OutletId, Arc<Tensor>> = HashMap::new();
    let mut stack = vec![outlet];
    while let Some(&top) = stack.last() {
        let node = model.node(top.node);
        let fact = model.outlet_fact(top)?;
        if known.contains_key(&top) {
            stack.pop();
        } else if let Some(konst) = node.op_as::<Const>() {
            known.insert(top, konst.val().clone());
        } else if let Some(konst) = &fact.konst {
            known.insert(top, konst.clone());
        } else if let Some(open) = node.inputs.iter().find(|i| !known.contains_key(i)) {
            stack.push(*open);
        } else {
            let len = shape(model, top)?.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
            if node.inputs.is_empty() || len.is_none_or(|len| len > LOOKED_AT_LEN_MAX) {
                return Ok(None);
            }
            let inputs = node.inputs.iter().map(|i| known[i].clone().into_tvalue()).collect();
            let Some(outputs) = node.op.eval_out_of_plan(inputs)? else { return Ok(None) };
            for (slot, output) in outputs.into_iter().enumerate() {
                known.insert(OutletId::new(node.id, slot), output.into_arc_tensor());
            }
        }
    }
    Ok(known.remove(&outlet))
}

/// Whether a tensor is the same all along `axis`.
fn uniform(tensor: &Tensor, axis: usize) -> TractResult<bool> {
    let Some(&len) = tensor.shape().get(axis) else { return Ok(false) };
    let Some(plain) = tensor.as_plain_ram() else { return Ok(false) };
    if len <= 1 {
        return Ok(true);
    }
    if !tensor.datum_type().is_copy() {
        return Ok(false);
    }
    let bytes = plain.as_bytes();
    let step = tensor.shape()[axis + 1..].iter().product::<usize>() * tensor.datum_type().size_of();
    if step == 0 {
        return Ok(true);
    }
    let mut blocks = bytes.chunks_exact(step * len);
    Ok(blocks.all(|block| block[step..].chunks_exact(step).all(|part| part == &block[..step])))
}
