//! Normalisations and softmax, spelled out in primitives.

use super::*;

/// Which single axis a constant varies along, against `shape`.
pub(super) fn varying_axis(graph: &Graph, c: ValueId, shape: &[usize]) -> Option<usize> {
    let value = &graph.values[c];
    let skipped = shape.len().checked_sub(value.shape.len())?;
    let mut long = value.shape.iter().enumerate().filter(|&(_, &d)| d != 1);
    let first = long.next()?.0;
    long.next().is_none().then_some(first + skipped)
}

/// `x` and the axis, if `v` is the mean of x along one axis.
pub(super) fn mean_of(graph: &Graph, links: &Links, v: ValueId) -> Option<(ValueId, usize)> {
    let node = links.node(graph, links.strip(graph, v))?;
    let Op::Reduce { kind: ReduceKind::Sum, ref axes, scale } = node.op else { return None };
    let x = node.inputs[0];
    let [axis] = axes[..] else { return None };
    let n = graph.values[x].shape[axis] as f32;
    ((scale * n - 1.0).abs() < 1e-6).then_some((x, axis))
}

/// `eps` if `v` is `1 / sqrt(variance of x along axis + eps)`, d being `x - mean`.
pub(super) fn rstd_of(
    graph: &Graph,
    links: &Links,
    v: ValueId,
    x: ValueId,
    d: ValueId,
    axis: usize,
) -> Option<f32> {
    let strip = |v| links.strip(graph, v);
    let unary = |v: ValueId| links.unary(graph, strip(v));
    let inner = match unary(v)? {
        (Unary::Rsqrt, inner) => inner,
        (Unary::Recip, root) => match unary(root)? {
            (Unary::Sqrt, inner) => inner,
            _ => return None,
        },
        _ => return None,
    };
    let (Unary::Affine(one, eps), mut variance) = unary(inner)? else { return None };
    if one != 1.0 {
        return None;
    }
    if let Some((Unary::Relu, inner)) = unary(variance) {
        variance = inner;
    }
    let variance = strip(variance);
    if let Some((square, at)) = mean_of(graph, links, variance) {
        return (unary(square)? == (Unary::Square, d) && at == axis).then_some(eps);
    }
    let (squares, mean2) = links.binary(graph, variance, Binary::Sub)?;
    let (square, at) = mean_of(graph, links, squares)?;
    let (Unary::Square, mean) = unary(mean2)? else { return None };
    let of_x = unary(square)? == (Unary::Square, x) && at == axis;
    (of_x && mean_of(graph, links, mean)? == (x, axis)).then_some(eps)
}

/// Finds layer normalisations spelled out in primitives.
pub(super) fn normalisations(graph: &mut Graph) {
    let links = Links::of(graph);
    let mut found: Vec<(usize, ValueId, Op)> = vec![];
    for i in (0..graph.nodes.len()).rev() {
        if found.iter().any(|(j, ..)| *j == i) {
            continue;
        }
        let node = &graph.nodes[i];
        let Op::Binary(op) = node.op else { continue };
        let shape = &graph.values[node.outputs[0]].shape;
        let (a, b) = (node.inputs[0], node.inputs[1]);
        let is_const = |v: ValueId| graph.values[v].floats().is_some();
        let (beta, scaled) = match op {
            Binary::Add if is_const(b) => (Some(b), a),
            Binary::Add if is_const(a) => (Some(a), b),
            Binary::Mul => (None, node.outputs[0]),
            _ => continue,
        };
        let scaled = links.strip(graph, scaled);
        let Some((p, q)) = links.binary(graph, scaled, Binary::Mul) else { continue };
        // Every way to read p * q as (d, rstd, gamma).
        let mut ways: Vec<(ValueId, ValueId, Option<ValueId>)> = vec![(p, q, None), (q, p, None)];
        for (u, v) in [(p, q), (q, p)] {
            if let Some((s, t)) = links.binary(graph, u, Binary::Mul) {
                if is_const(v) {
                    ways.extend([(s, t, Some(v)), (t, s, Some(v))]);
                }
                if is_const(s) {
                    ways.push((v, t, Some(s)));
                }
                if is_const(t) {
                    ways.push((v, s, Some(t)));
                }
            }
        }
        for (d, rstd, gamma) in ways {
            let Some((x, mean)) = links.binary(graph, d, Binary::Sub) else { continue };
            let Some((of, axis)) = mean_of(graph, &links, mean) else { continue };
            if of != x || graph.values[x].shape != *shape {
                continue;
            }
            let Some(eps) = rstd_of(graph, &links, rstd, x, d, axis) else { continue };
            let n = shape[axis];
            let read = |c: Option<ValueId>, fill: f32| match c {
                Some(c) => along(graph, c, shape, axis),
                None => Some(vec![fill; n]),
            };
            let aligned = |c: Option<ValueId>| {
                c.is_none_or(|c| varying_axis(graph, c, shape).is_none_or(|at| at == axis))
            };
            if !aligned(gamma) || !aligned(beta) {
                continue;
            }
            let (Some(gamma), Some(beta)) = (read(gamma, 1.0), read(beta, 0.0)) else { continue };
            let op = Op::LayerNorm { axis, eps, gamma: Arc::new(gamma), beta: Arc::new(beta) };
            found.push((i, x, op));
            break;
        }
    }
    for (i, x, op) in found {
        graph.nodes[i].op = op;
        graph.nodes[i].inputs = vec![x];
        graph.nodes[i].operator = "LayerNormalization".to_string();
    }
    graph.sweep();
}

/// Finds `exp(x - max(x)) / sum(exp(x - max(x)))`, and scales ahead of a softmax.
pub(super) fn softmaxes(graph: &mut Graph) {
    let links = Links::of(graph);
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        if let Op::Softmax { axis, scale, log } = node.op {
            if let Some((Unary::Affine(c, shift), x)) = links.unary(graph, node.inputs[0])
                && shift == 0.0
                && c > 0.0
            {
                graph.nodes[i].op = Op::Softmax { axis, scale: scale * c, log };
                graph.nodes[i].inputs = vec![x];
            }
            continue;
        }
        let Op::Binary(Binary::Div) = node.op else { continue };
        let (e, sum) = (node.inputs[0], links.strip(graph, node.inputs[1]));
        let Some(Op::Reduce { kind: ReduceKind::Sum, axes, scale }) =
            links.node(graph, sum).map(|n| &n.op)
        else {
            continue;
        };
        let of_e = links.node(graph, sum).is_some_and(|n| n.inputs[0] == e) && *scale == 1.0;
        let Some((Unary::Exp, shifted)) = links.unary(graph, e) else { continue };
        let Some((x, max)) = links.binary(graph, shifted, Binary::Sub) else { continue };
        let Some(Op::Reduce { kind: ReduceKind::Max, axes: of, .. }) =
            links.node(graph, links.strip(graph, max)).map(|n| &n.op)
        else {
            continue;
        };
        let max_of_x = links.node(graph, links.strip(graph, max)).is_some_and(|n| n.inputs[0] == x);
        if of_e && max_of_x && of == axes && axes.len() == 1 {
            let axis = axes[0];
            graph.nodes[i].op = Op::Softmax { axis, scale: 1.0, log: false };
            graph.nodes[i].inputs = vec![x];
            graph.nodes[i].operator = "Softmax".to_string();
        }
    }
    graph.sweep();
}
