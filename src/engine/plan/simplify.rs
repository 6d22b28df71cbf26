//! Rewrites of the graph before it is lowered: what tract's typed graph spells out in primitive
//! operators becomes one operator again, and what follows a product is folded into it.

mod norms;

use super::functions;
use super::graph::{Binary, Epilogue, Graph, Node, Op, ReduceKind, Unary, ValueId};
use crate::engine::kernels::Scale;
use crate::units::DType;
use std::sync::Arc;

/// Runs all rewrites.
pub fn simplify(graph: &mut Graph) {
    merge_quantisation(graph);
    scalars_to_unary(graph);
    sink_reshapes(graph);
    merge_scales(graph);
    merge_unaries(graph);
    functions::recognise(graph);
    norms::normalisations(graph);
    norms::softmaxes(graph);
    merge_unaries(graph);
    graph.sweep();
    fold_pads(graph);
    sink_reshapes(graph);
    fold_epilogues(graph);
    scales_into_weights(graph);
    one_hots(graph);
    graph.sweep();
}

/// Producer and use count of every value, for as long as the graph is not changed.
pub(super) struct Links {
    pub producers: Vec<Option<usize>>,
    pub uses: Vec<usize>,
}

impl Links {
    pub fn of(graph: &Graph) -> Links {
        Links { producers: graph.producers(), uses: graph.uses() }
    }
    pub fn node<'g>(&self, graph: &'g Graph, v: ValueId) -> Option<&'g Node> {
        self.producers[v].map(|i| &graph.nodes[i])
    }
    /// The unary function that makes `v`, and of what.
    pub fn unary(&self, graph: &Graph, v: ValueId) -> Option<(Unary, ValueId)> {
        let node = self.node(graph, v)?;
        if let Op::Unary(f) = node.op { Some((f, node.inputs[0])) } else { None }
    }
    /// The operands, if `op` makes `v`.
    pub fn binary(&self, graph: &Graph, v: ValueId, op: Binary) -> Option<(ValueId, ValueId)> {
        let node = self.node(graph, v)?;
        match node.op {
            Op::Binary(o) if o == op => Some((node.inputs[0], node.inputs[1])),
            _ => None,
        }
    }
    /// `v`, or what it was before reshapes that only add or drop axes of length 1.
    pub fn strip(&self, graph: &Graph, mut v: ValueId) -> ValueId {
        while let Some(node) = self.node(graph, v) {
            let x = node.inputs.first().copied().unwrap_or(v);
            if !matches!(node.op, Op::Reshape) || !unit_reshape(graph, x, v) {
                break;
            }
            v = x;
        }
        v
    }
}

fn unit_reshape(graph: &Graph, from: ValueId, to: ValueId) -> bool {
    let long = |v: ValueId| graph.values[v].shape.iter().filter(|&&d| d != 1);
    long(from).eq(long(to))
}

/// Quantise then dequantise is one function of f32.
fn merge_quantisation(graph: &mut Graph) {
    let links = Links::of(graph);
    for i in 0..graph.nodes.len() {
        let Op::Dequantize { scale, zero } = graph.nodes[i].op else { continue };
        let q = graph.nodes[i].inputs[0];
        let Some(producer) = links.node(graph, q) else { continue };
        let Op::Quantize { scale: q_scale, zero: q_zero } = producer.op else { continue };
        if (q_scale, q_zero) != (scale, zero) {
            continue;
        }
        let (lo, hi) = match graph.values[q].dtype {
            DType::I8 => (-128, 127),
            DType::U8 => (0, 255),
            _ => continue,
        };
        let x = producer.inputs[0];
        graph.nodes[i].op = Op::Unary(Unary::FakeQuant { scale, zero, lo, hi });
        graph.nodes[i].inputs = vec![x];
    }
    graph.sweep();
}

/// Binary operators with one scalar constant become unary functions; `x * x` a square.
fn scalars_to_unary(graph: &mut Graph) {
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        let Op::Binary(op) = node.op else { continue };
        let (a, b) = (node.inputs[0], node.inputs[1]);
        let out = &graph.values[node.outputs[0]].shape;
        if op == Binary::Mul && a == b {
            graph.nodes[i].op = Op::Unary(Unary::Square);
            graph.nodes[i].inputs = vec![a];
            continue;
        }
        let (x, c, left) = if let Some(c) = graph.values[b].scalar() {
            (a, c, false)
        } else if let Some(c) = graph.values[a].scalar() {
            (b, c, true)
        } else {
            continue;
        };
        if graph.values[x].shape != *out {
            continue;
        }
        let unary = match (op, left) {
            (Binary::Add, _) => Unary::Affine(1.0, c),
            (Binary::Mul, _) => Unary::Affine(c, 0.0),
            (Binary::Sub, false) => Unary::Affine(1.0, -c),
            (Binary::Sub, true) => Unary::Affine(-1.0, c),
            (Binary::Div, false) if divides(graph, node.outputs[0], c) => {
                Unary::Affine(1.0 / c, 0.0)
            }
            (Binary::Max, _) if c == 0.0 => Unary::Relu,
            (Binary::Max, _) => Unary::Clip(c, f32::INFINITY),
            (Binary::Min, _) => Unary::Clip(f32::NEG_INFINITY, c),
            (Binary::Pow, false) if c == 2.0 => Unary::Square,
            (Binary::Pow, false) if c == 0.5 => Unary::Sqrt,
            (Binary::Pow, false) if c == 1.0 => Unary::Affine(1.0, 0.0),
            (Binary::Pow, false) if c == -1.0 => Unary::Recip,
            _ => continue,
        };
        graph.nodes[i].op = Op::Unary(unary);
        graph.nodes[i].inputs = vec![x];
    }
}

/// Whether a multiplication by `1 / c` makes as good a `v` as the division by `c` that the graph has. A quotient
/// may round to another number then, which matters to what takes steps: 49 times the reciprocal of 49 is below 1.
fn divides(graph: &Graph, v: ValueId, c: f32) -> bool {
    let inverse = 1.0 / c;
    let exact =
        inverse.is_normal() && inverse.to_bits().trailing_zeros() >= f32::MANTISSA_DIGITS - 1;
    inverse.is_finite() && (exact || !steps(graph, v))
}

/// Whether a reader of `v` jumps from number to number, or may.
fn steps(graph: &Graph, v: ValueId) -> bool {
    use Unary::{Ceil, FakeQuant, Floor};
    graph.nodes.iter().filter(|n| n.inputs.contains(&v)).any(|reader| match reader.op {
        Op::Unary(Floor | Ceil | FakeQuant { .. })
        | Op::Quantize { .. }
        | Op::Cast
        | Op::Fallback(_) => true,
        Op::Reshape | Op::Permute(_) => steps(graph, reader.outputs[0]),
        _ => false,
    })
}

/// The shape of `c`, broadcast against `from`, as it must be to broadcast against `to`, where the
/// two differ by axes of length 1 only. `None` if `c` is long where `from` is not.
fn shape_across(c: &[usize], from: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    if c.len() > from.len() {
        return None;
    }
    let padded: Vec<usize> =
        std::iter::repeat_n(1, from.len() - c.len()).chain(c.iter().copied()).collect();
    let mut long = Vec::new();
    for (&c, &f) in padded.iter().zip(from) {
        if f != 1 {
            long.push(c);
        } else if c != 1 {
            return None;
        }
    }
    let mut long = long.into_iter();
    to.iter().map(|&t| if t == 1 { Some(1) } else { long.next() }).collect()
}

/// Moves element-wise operators ahead of reshapes, so that they meet what made the elements.
fn sink_reshapes(graph: &mut Graph) {
    loop {
        let links = Links::of(graph);
        let mut moved = false;
        for i in 0..graph.nodes.len() {
            let node = &graph.nodes[i];
            let slot = match node.op {
                Op::Unary(_) => 0,
                Op::Binary(_) if graph.values[node.inputs[1]].floats().is_some() => 0,
                Op::Binary(_) if graph.values[node.inputs[0]].floats().is_some() => 1,
                _ => continue,
            };
            let d = node.inputs[slot];
            let Some(reshape) = links.node(graph, d).filter(|n| matches!(n.op, Op::Reshape)) else {
                continue;
            };
            let x = reshape.inputs[0];
            let out = node.outputs[0];
            if links.uses[d] != 1 || graph.values[out].shape != graph.values[d].shape {
                continue;
            }
            let mut inputs = node.inputs.clone();
            inputs[slot] = x;
            if let Op::Binary(_) = node.op {
                let c = node.inputs[1 - slot];
                if !unit_reshape(graph, x, d) {
                    continue;
                }
                let (value, from, to) =
                    (&graph.values[c], &graph.values[d].shape, &graph.values[x].shape);
                let Some(shape) = shape_across(&value.shape, from, to) else { continue };
                let floats = value.floats().expect("the slot was chosen by it").to_vec();
                let name = value.name.clone();
                inputs[1 - slot] = graph.floats(&name, shape, &floats);
            }
            let (name, shape) = (graph.nodes[i].name.clone(), graph.values[x].shape.clone());
            let early = graph.value(&name, DType::F32, shape);
            let node = &mut graph.nodes[i];
            node.inputs = inputs;
            node.outputs = vec![early];
            let reshape = Node {
                op: Op::Reshape,
                inputs: vec![early],
                outputs: vec![out],
                name,
                operator: "Reshape".to_string(),
            };
            graph.nodes.insert(i + 1, reshape);
            moved = true;
            break;
        }
        if !moved {
            break;
        }
        graph.sweep();
    }
}

/// Multiplications by a scalar after a reduction belong to it.
fn merge_scales(graph: &mut Graph) {
    loop {
        let links = Links::of(graph);
        let found = (0..graph.nodes.len()).find_map(|i| {
            let node = &graph.nodes[i];
            let Op::Unary(Unary::Affine(c, shift)) = node.op else { return None };
            let p = links.producers[node.inputs[0]]?;
            let takes = matches!(
                graph.nodes[p].op,
                Op::Reduce { kind: ReduceKind::Sum | ReduceKind::SumSquares, .. }
                    | Op::MatMul { .. }
            );
            (shift == 0.0 && takes && links.uses[node.inputs[0]] == 1).then_some((i, p, c))
        });
        let Some((i, p, c)) = found else { break };
        match &mut graph.nodes[p].op {
            Op::Reduce { scale, .. } | Op::MatMul { scale } => *scale *= c,
            _ => unreachable!("only these were chosen"),
        }
        let out = graph.nodes[i].outputs[0];
        let from = graph.nodes[i].inputs[0];
        graph.nodes.remove(i);
        graph.replace(out, from);
    }
}

/// Whether adding `first` and then `then` is meant to round: a large number that is taken off again leaves
/// what its places can hold.
fn rounds(first: f32, then: f32) -> bool {
    first.abs() >= 65536.0 && (first + then).abs() < 0.25 * first.abs()
}

/// One function for two in a row, where there is one.
fn compose(first: Unary, then: Unary) -> Option<Unary> {
    use Unary::{Affine, Clip, FakeQuant, HardSigmoid, Recip, Relu, Rsqrt, Sqrt};
    let clip = |u: Unary| match u {
        Relu => Some((0.0, f32::INFINITY)),
        Clip(lo, hi) => Some((lo, hi)),
        _ => None,
    };
    if let (Some((lo, hi)), Some((lo2, hi2))) = (clip(first), clip(then)) {
        let (lo, hi) = (lo.max(lo2).min(hi2), hi.min(hi2).max(lo2));
        return Some(if lo == 0.0 && hi == f32::INFINITY { Relu } else { Clip(lo, hi) });
    }
    match (first, then) {
        (Affine(a, b), Affine(c, d)) if !rounds(b * c, d) => Some(Affine(a * c, b * c + d)),
        (Affine(a, b), Clip(lo, hi)) if lo == 0.0 && hi == 1.0 => Some(HardSigmoid(a, b)),
        (Sqrt, Recip) => Some(Rsqrt),
        (
            FakeQuant { scale, zero, lo, hi },
            FakeQuant { scale: scale2, zero: zero2, lo: lo2, hi: hi2 },
        ) if (scale, zero) == (scale2, zero2) => {
            Some(FakeQuant { scale, zero, lo: lo.max(lo2).min(hi2), hi: hi.min(hi2).max(lo2) })
        }
        // 0 is on the grid, if it is within the bounds.
        (FakeQuant { scale, zero, lo, hi }, Relu) if (lo..=hi).contains(&zero) => {
            Some(FakeQuant { scale, zero, lo: zero, hi })
        }
        (_, FakeQuant { scale, zero, lo, hi }) => {
            let (least, most) = clip(first).filter(|(least, most)| least <= most)?;
            // Rounding keeps order, so what is clipped before it may be clipped after it.
            let to_grid = |x| Scale { scale, zero_point: zero }.quantized(x, lo, hi) as i32;
            Some(FakeQuant { scale, zero, lo: to_grid(least), hi: to_grid(most) })
        }
        _ => None,
    }
}

fn merge_unaries(graph: &mut Graph) {
    loop {
        let links = Links::of(graph);
        let mut change = None;
        for (i, node) in graph.nodes.iter().enumerate() {
            let Op::Unary(then) = node.op else { continue };
            let x = node.inputs[0];
            let nothing = then == Unary::Affine(1.0, 0.0)
                || then == Unary::Clip(f32::NEG_INFINITY, f32::INFINITY);
            if nothing && !graph.inputs.contains(&x) {
                change = Some((i, None, x));
                break;
            }
            let Some((first, source)) = links.unary(graph, x) else { continue };
            if links.uses[x] == 1
                && let Some(both) = compose(first, then)
            {
                change = Some((i, Some(both), source));
                break;
            }
        }
        match change {
            None => break,
            Some((i, Some(both), source)) => {
                graph.nodes[i].op = Op::Unary(both);
                graph.nodes[i].inputs = vec![source];
            }
            Some((i, None, x)) => {
                let out = graph.nodes[i].outputs[0];
                graph.nodes.remove(i);
                graph.replace(out, x);
            }
        }
        graph.sweep();
    }
}

/// The constant as one value for each position of `axis` of `shape`, if it varies along that axis
/// alone (or not at all).
fn along(graph: &Graph, c: ValueId, shape: &[usize], axis: usize) -> Option<Vec<f32>> {
    let value = &graph.values[c];
    let floats = value.floats()?;
    if floats.len() == 1 {
        return Some(vec![floats[0]; shape[axis]]);
    }
    let skipped = shape.len().checked_sub(value.shape.len())?;
    let fits = value
        .shape
        .iter()
        .enumerate()
        .all(|(i, &d)| if i + skipped == axis { d == shape[axis] } else { d == 1 });
    fits.then(|| floats.to_vec())
}

/// Zero padding of the image ahead of a convolution.
fn fold_pads(graph: &mut Graph) {
    let links = Links::of(graph);
    for i in 0..graph.nodes.len() {
        let x = match graph.nodes[i].op {
            Op::Conv(_) => graph.nodes[i].inputs[0],
            _ => continue,
        };
        let Some(node) = links.node(graph, x) else { continue };
        let Op::Pad { ref pads, value } = node.op else { continue };
        if pads.len() != 4
            || pads[0] != (0, 0)
            || pads[1] != (0, 0)
            || value != 0.0
            || links.uses[x] != 1
        {
            continue;
        }
        let (pads, source) = (pads.clone(), node.inputs[0]);
        if let Op::Conv(conv) = &mut graph.nodes[i].op {
            for axis in 0..2 {
                conv.before[axis] += pads[2 + axis].0;
                conv.after[axis] += pads[2 + axis].1;
            }
        }
        graph.nodes[i].inputs[0] = source;
    }
    graph.sweep();
}

fn epilogue(op: &mut Op) -> Option<&mut Epilogue> {
    match op {
        Op::Conv(conv) => Some(&mut conv.epilogue),
        Op::Gemm(gemm) => Some(&mut gemm.epilogue),
        _ => None,
    }
}

enum Fold {
    Scale(Vec<f32>),
    Shift(Vec<f32>),
    Act(Unary),
    Residual(ValueId),
}

/// What the node `e`, the only reader of the product `v`, could be folded as.
fn foldable(graph: &Graph, v: ValueId, e: &Node, channel: usize) -> Option<Fold> {
    let shape = &graph.values[v].shape;
    let channels = shape[channel];
    match e.op {
        Op::Unary(Unary::Affine(a, 0.0)) => Some(Fold::Scale(vec![a; channels])),
        Op::Unary(Unary::Affine(1.0, b)) => Some(Fold::Shift(vec![b; channels])),
        Op::Unary(f) => Some(Fold::Act(f)),
        Op::Binary(op) => {
            if graph.values[e.outputs[0]].shape != *shape {
                return None;
            }
            let left = e.inputs[1] == v;
            let other = if left { e.inputs[0] } else { e.inputs[1] };
            if other == v {
                return None;
            }
            let Some(values) = along(graph, other, shape, channel) else {
                let same =
                    graph.values[other].shape == *shape && graph.values[other].dtype == DType::F32;
                let free = graph.values[other].konst.is_none();
                return (op == Binary::Add && same && free).then_some(Fold::Residual(other));
            };
            match op {
                Binary::Mul => Some(Fold::Scale(values)),
                Binary::Add => Some(Fold::Shift(values)),
                Binary::Sub if !left => Some(Fold::Shift(values.iter().map(|x| -x).collect())),
                Binary::Div if !left && values.iter().all(|&x| (1.0 / x).is_finite()) => {
                    Some(Fold::Scale(values.iter().map(|x| 1.0 / x).collect()))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Folds what follows a convolution or matrix product into it.
fn fold_epilogues(graph: &mut Graph) {
    let mut i = 0;
    let mut links = Links::of(graph);
    while i < graph.nodes.len() {
        let channel = match graph.nodes[i].op {
            Op::Conv(_) => 1,
            Op::Gemm(_) => graph.values[graph.nodes[i].outputs[0]].shape.len() - 1,
            _ => {
                i += 1;
                continue;
            }
        };
        let v = graph.nodes[i].outputs[0];
        let reader = graph.nodes.iter().position(|n| n.inputs.contains(&v));
        let fold = match reader {
            Some(r) if links.uses[v] == 1 => {
                foldable(graph, v, &graph.nodes[r], channel).map(|f| (r, f))
            }
            _ => None,
        };
        let Some((r, fold)) = fold else {
            i += 1;
            continue;
        };
        let e = epilogue(&mut graph.nodes[i].op).expect("it is a product");
        let open = e.act.is_none();
        match fold {
            Fold::Scale(c) if open && !e.residual => {
                e.scale = Some(match e.scale.take() {
                    Some(s) => s.iter().zip(&c).map(|(a, b)| a * b).collect(),
                    None => c.clone(),
                });
                if let Some(bias) = &mut e.bias {
                    bias.iter_mut().zip(&c).for_each(|(b, c)| *b *= c);
                }
            }
            Fold::Shift(c)
                if open && !e.bias.iter().flatten().zip(&c).any(|(&bias, &c)| rounds(bias, c)) =>
            {
                match &mut e.bias {
                    Some(bias) => bias.iter_mut().zip(&c).for_each(|(b, c)| *b += c),
                    None => e.bias = Some(c),
                }
            }
            Fold::Act(f) if open => e.act = Some(f),
            Fold::Residual(other) if open && !e.residual => {
                e.residual = true;
                graph.nodes[i].inputs.push(other);
            }
            _ => {
                i += 1;
                continue;
            }
        }
        // The product takes the place of its reader, where all operands are known.
        let out = graph.nodes[r].outputs[0];
        graph.nodes[i].outputs = vec![out];
        let moved = graph.nodes[i].inputs.len() > 1;
        if moved {
            let node = graph.nodes[i].clone();
            graph.nodes[r] = node;
            graph.nodes.remove(i);
        } else {
            graph.nodes.remove(r);
        }
        links = Links::of(graph);
    }
}

/// A factor of a computed product moves into the weights that made one of its operands.
fn scales_into_weights(graph: &mut Graph) {
    let links = Links::of(graph);
    for i in 0..graph.nodes.len() {
        let Op::MatMul { scale: c } = graph.nodes[i].op else { continue };
        if c == 1.0 {
            continue;
        }
        for slot in 0..2 {
            let mut v = graph.nodes[i].inputs[slot];
            while let Some(p) = links.producers[v]
                && links.uses[v] == 1
                && matches!(graph.nodes[p].op, Op::Reshape | Op::Permute(_))
            {
                v = graph.nodes[p].inputs[0];
            }
            let Some(p) = links.producers[v].filter(|_| links.uses[v] == 1) else { continue };
            let Op::Gemm(gemm) = &mut graph.nodes[p].op else { continue };
            let n = gemm.n;
            let e = &mut gemm.epilogue;
            if e.act.is_some() || e.residual {
                continue;
            }
            let scale = e.scale.get_or_insert_with(|| vec![1.0; n]);
            scale.iter_mut().chain(e.bias.iter_mut().flatten()).for_each(|s| *s *= c);
            graph.nodes[i].op = Op::MatMul { scale: 1.0 };
            break;
        }
    }
}

/// A one-hot row times a matrix is a lookup, and so is whatever was folded into the product.
fn one_hots(graph: &mut Graph) {
    let links = Links::of(graph);
    for i in 0..graph.nodes.len() {
        let Op::Gemm(gemm) = &graph.nodes[i].op else { continue };
        if gemm.epilogue.residual {
            continue;
        }
        let Some(cast) = links.node(graph, graph.nodes[i].inputs[0]) else { continue };
        let hot =
            if matches!(cast.op, Op::Cast) { links.node(graph, cast.inputs[0]) } else { None };
        let Some((first, count, index)) = hot.and_then(|n| match n.op {
            Op::OneHot { first, count } => Some((first, count, n.inputs[0])),
            _ => None,
        }) else {
            continue;
        };
        let Some(weight) = gemm.weight.as_plain_ram().and_then(|w| w.as_slice::<f32>().ok()) else {
            continue;
        };
        if gemm.k != count {
            continue;
        }
        let (n, e) = (gemm.n, &gemm.epilogue);
        let mut table = vec![0.0f32; (count + 1) * n];
        for row in 0..=count {
            for column in 0..n {
                let w = match (row < count, gemm.transposed) {
                    (false, _) => 0.0,
                    (true, false) => weight[row * n + column],
                    (true, true) => weight[column * count + row],
                };
                let x = w * e.scale.as_ref().map_or(1.0, |s| s[column])
                    + e.bias.as_ref().map_or(0.0, |b| b[column]);
                table[row * n + column] =
                    e.act.map_or(x, |f| functions::eval(f, f64::from(x)) as f32);
            }
        }
        graph.nodes[i].op = Op::Embed { table: Arc::new(table), width: n, first, wraps: false };
        graph.nodes[i].inputs = vec![index];
        graph.nodes[i].operator = "OneHot*MatMul".to_string();
    }
}
