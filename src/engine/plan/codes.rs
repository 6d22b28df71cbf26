//! Which tensors of a quantised graph are kept as codes of 8 bits, and computed with as whole numbers.
//!
//! A convolution of 1x1 or depthwise, or a product with constant weights, takes codes and makes codes where its
//! input and its result are rounded to a grid and its weights are multiples of a step, channel by channel; so does
//! a sum of two tensors that such steps make. What else reads one of them has it decoded. Other convolutions stay
//! with floats: a first one, of three channels, took twice as long with codes, and later ones have Winograd's.

use super::graph::{Binary, Epilogue, Graph, Node, Op, Unary, ValueId};
use super::lower::{Shared, conv_params, floats};
use super::simplify::Links;
use crate::engine::kernels::{CodedConv, Codes, ConvParams};
use crate::units::DType;
use std::borrow::Cow;
use std::sync::Arc;

/// A value's codes.
#[derive(Clone, Copy)]
struct Coded {
    value: ValueId,
    codes: Codes,
    /// Whether a step makes them of codes.
    native: bool,
}

/// Rewrites `graph`, where that saves time with the kernels of `shared`.
pub fn encode(graph: &mut Graph, shared: &mut Shared) {
    if !shared.kernels.prefers_codes() {
        return;
    }
    let links = Links::of(graph);
    let nodes = std::mem::take(&mut graph.nodes);
    let mut coded: Vec<Option<Coded>> = vec![None; graph.values.len()];
    for node in &nodes {
        let out = node.outputs[0];
        let first = node.inputs.first().copied();
        let y = codes_of(&node.op);
        let native = y.and_then(|y| match &node.op {
            Op::Unary(_) => {
                let x = first.filter(|&x| links.uses[x] == 1)?;
                sum(graph, &nodes[links.producers[x]?], &coded, y)
            }
            _ => {
                let x = coded[first?]?;
                let conv = product(graph, node, (x.codes, y), shared)?;
                Some((Op::CodedConv(conv), vec![x.value]))
            }
        });
        if let (Some(codes), Some((op, inputs))) = (y, native) {
            let value = push(graph, node, op, inputs);
            let (op, inputs) = (Op::Decode(codes), vec![value]);
            graph.nodes.push(Node { op, inputs, ..node.clone() });
            coded[out] = Some(Coded { value, codes, native: true });
            continue;
        }
        graph.nodes.push(node.clone());
        // Codes too, in case that a product wants them.
        let reshaped = first.and_then(|x| coded[x]).filter(|_| matches!(node.op, Op::Reshape));
        let also = match (&node.op, y, reshaped) {
            (Op::Unary(_), Some(codes), _) => Some((codes, Op::Encode(codes), first)),
            (_, Some(codes), _) => Some((codes, Op::Encode(codes), Some(out))),
            (_, _, Some(Coded { value, codes, .. })) if pixels_to_rows(graph, first, out) => {
                Some((codes, Op::Reshape, Some(value)))
            }
            (_, _, Some(Coded { codes, .. })) => Some((codes, Op::Encode(codes), Some(out))),
            _ => None,
        };
        if let Some((codes, op, Some(from))) = also {
            let value = push(graph, node, op, vec![from]);
            coded[out] = Some(Coded { value, codes, native: false });
        }
    }
    graph.sweep();
}

/// Pushes a node that makes codes of the shape of what `node` makes.
fn push(graph: &mut Graph, node: &Node, op: Op, inputs: Vec<ValueId>) -> ValueId {
    let shape = graph.values[node.outputs[0]].shape.clone();
    let value = graph.value(&node.name, DType::U8, shape);
    graph.nodes.push(Node { op, inputs, outputs: vec![value], ..node.clone() });
    value
}

/// The codes of what an operator rounds its result to, if it does.
fn codes_of(op: &Op) -> Option<Codes> {
    let last = match op {
        Op::Conv(conv) => conv.epilogue.act,
        Op::Gemm(gemm) => gemm.epilogue.act,
        Op::Unary(f) => Some(*f),
        _ => None,
    };
    match last? {
        Unary::FakeQuant { scale, zero, lo, hi } => Codes::new(scale, lo - zero, hi - zero),
        _ => None,
    }
}

/// Whether a reshape makes images of one pixel rows of their channels: then codes lie as they do.
fn pixels_to_rows(graph: &Graph, x: Option<ValueId>, out: ValueId) -> bool {
    let shape = |v: ValueId| &graph.values[v].shape[..];
    match (x.map(shape), shape(out)) {
        (Some(&[n, c, 1, 1]), &[rows, columns]) => (n, c) == (rows, columns),
        _ => false,
    }
}

/// The product that `node` is, over codes and to codes, if it can be.
fn product(
    graph: &Graph,
    node: &Node,
    codes: (Codes, Codes),
    shared: &mut Shared,
) -> Option<Arc<CodedConv>> {
    if let Some(known) = shared.coded.get(&node.name) {
        return known.clone();
    }
    let plain = |e: &Epilogue| e.scale.is_none() && !e.residual;
    let shape = &graph.values[node.inputs[0]].shape;
    let (params, weights, bias) = match &node.op {
        Op::Conv(conv) if plain(&conv.epilogue) => {
            let params = conv_params(conv, shape)?;
            if !params.pointwise() && params.groups == 1 {
                return None;
            }
            (params, Cow::Borrowed(floats(&conv.weight).ok()?), &conv.epilogue.bias)
        }
        Op::Gemm(gemm) if plain(&gemm.epilogue) && shape.len() == 2 => {
            let (k, n, weights) = (gemm.k, gemm.n, floats(&gemm.weight).ok()?);
            let by_column = |i: usize| weights.get(i % k * n + i / k).copied();
            let weights = match gemm.transposed {
                true => Cow::Borrowed(weights),
                false => Cow::Owned((0..n * k).map(by_column).collect::<Option<Vec<f32>>>()?),
            };
            (ConvParams::new((1, 1), (k, n), (1, 1)), weights, &gemm.epilogue.bias)
        }
        _ => return None,
    };
    let made = CodedConv::new(&shared.kernels, params, &weights, bias.as_deref(), codes);
    let made = made.ok().map(Arc::new);
    shared.coded.insert(node.name.clone(), made.clone());
    made
}

/// The sum of codes that `add` is, rounded to codes `y`, if it is one of tensors that are made as codes.
fn sum(graph: &Graph, add: &Node, coded: &[Option<Coded>], y: Codes) -> Option<(Op, Vec<ValueId>)> {
    let (Op::Binary(Binary::Add), &[a, b]) = (&add.op, &add.inputs[..]) else { return None };
    let shape = |v: ValueId| &graph.values[v].shape;
    let (a, b) = match (coded[a]?, coded[b]?) {
        (x, z) if x.native && z.native && shape(a) == shape(b) => (x, z),
        _ => return None,
    };
    Some((Op::AddCodes([a.codes, b.codes, y]), vec![a.value, b.value]))
}
