//! Scalar functions at double precision, and finding them in graphs that spell them out.
//!
//! A function such as GELU has many spellings. Rather than match each, a region of element-wise
//! operators that depends on one value alone is evaluated at sample points and compared with the
//! functions that have a kernel.

use super::graph::{Binary, Graph, Op, Unary, ValueId};
use super::simplify::Links;
use crate::engine::kernels::Scale;

/// How many operators deep a region is searched.
const DEPTH_MAX: usize = 12;

/// As far as numbers go, so that a bound somewhere is seen.
const SAMPLES: [f64; 39] = [
    -1e38, -1e12, -1e6, -1e4, -300.0, -100.0, -40.0, -20.0, -8.0, -5.0, -3.5, -3.0, -2.9, -2.0,
    -1.3, -1.0, -0.5, -0.1, -1e-3, 0.0, 1e-3, 0.1, 0.7, 1.0, 1.7, 2.5, 3.0, 3.1, 4.0, 5.9, 6.1,
    10.0, 50.0, 100.0, 300.0, 1e4, 1e6, 1e12, 1e38,
];

/// How far from a function a spelling of it may be, over the function's value: constants of single precision
/// make that of a tail.
const RELATIVE_MAX: f64 = 2e-6;
/// The same where the value is nearly 0: what cancellation leaves at double precision. An addend that keeps a
/// logarithm finite, such as 1e-7, is more.
const ABSOLUTE_MAX: f64 = 1e-12;

/// `f(x)`. The error function is good to 1e-14, the rest to double precision.
pub fn eval(f: Unary, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // f32::max and min drop a NaN operand; these keep it.
    let clip = |x: f64, lo: f64, hi: f64| {
        if x < lo {
            lo
        } else if x > hi {
            hi
        } else {
            x
        }
    };
    match f {
        Unary::Relu => clip(x, 0.0, f64::INFINITY),
        Unary::Clip(lo, hi) => clip(x, lo.into(), hi.into()),
        Unary::HardSwish => x * clip(x / 6.0 + 0.5, 0.0, 1.0),
        Unary::HardSigmoid(a, b) => clip(f64::from(a) * x + f64::from(b), 0.0, 1.0),
        Unary::Silu => x * sigmoid(x),
        Unary::Sigmoid => sigmoid(x),
        Unary::Tanh => x.tanh(),
        Unary::GeluErf => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Unary::GeluTanh => {
            let c = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * x * (1.0 + (c * (x + 0.044715 * x * x * x)).tanh())
        }
        Unary::LeakyRelu(a) => {
            if x < 0.0 {
                f64::from(a) * x
            } else {
                x
            }
        }
        Unary::Exp => x.exp(),
        Unary::Ln => x.ln(),
        Unary::Erf => erf(x),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Recip => 1.0 / x,
        Unary::Square => x * x,
        Unary::Abs => x.abs(),
        Unary::Neg => -x,
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Affine(a, b) => f64::from(a) * x + f64::from(b),
        Unary::FakeQuant { scale, zero, lo, hi } => {
            let s = Scale { scale, zero_point: zero };
            s.dequantized(s.quantized(x as f32, lo, hi)).into()
        }
    }
}

/// The error function, by its series near zero and by a continued fraction beyond.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a > 6.0 {
        return x.signum();
    }
    let two_by_root_pi = std::f64::consts::FRAC_2_SQRT_PI;
    if a < 2.5 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-17 * sum.abs() && n < 200.0 {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        return two_by_root_pi * sum;
    }
    let mut fraction = 0.0;
    for k in (1..=60).rev() {
        fraction = 0.5 * f64::from(k) / (a + fraction);
    }
    let tail = (-a * a).exp() / (a + fraction) * 0.5 * two_by_root_pi;
    x.signum() * (1.0 - tail)
}

/// Evaluates the region between `leaf` and `v` at `x`, unless something else feeds it.
fn eval_region(
    graph: &Graph,
    links: &Links,
    v: ValueId,
    leaf: ValueId,
    x: f64,
    depth: usize,
) -> Option<f64> {
    if v == leaf {
        return Some(x);
    }
    if let Some(c) = graph.values[v].scalar() {
        return Some(c.into());
    }
    let node = links.node(graph, v).filter(|_| depth > 0)?;
    let of = |slot: usize| eval_region(graph, links, node.inputs[slot], leaf, x, depth - 1);
    match node.op {
        Op::Unary(f) => Some(eval(f, of(0)?)),
        Op::Binary(op) => {
            let (a, b) = (of(0)?, of(1)?);
            Some(match op {
                Binary::Add => a + b,
                Binary::Sub => a - b,
                Binary::Mul => a * b,
                Binary::Div => a / b,
                Binary::Min => a.min(b),
                Binary::Max => a.max(b),
                Binary::Pow => a.powf(b),
            })
        }
        _ => None,
    }
}

/// Values that `v` depends on through element-wise operators, nearest first.
fn ancestors(graph: &Graph, links: &Links, v: ValueId) -> Vec<ValueId> {
    let mut seen = vec![v];
    let mut ring = vec![v];
    for _ in 0..DEPTH_MAX {
        let mut next = vec![];
        for v in ring {
            let Some(node) = links.node(graph, v) else { continue };
            if matches!(node.op, Op::Unary(_) | Op::Binary(_)) {
                for &input in &node.inputs {
                    if graph.values[input].konst.is_none() && !seen.contains(&input) {
                        seen.push(input);
                        next.push(input);
                    }
                }
            }
        }
        ring = next;
    }
    seen.remove(0);
    seen
}

/// Replaces spelled-out functions by one operator.
pub fn recognise(graph: &mut Graph) {
    let known = [Unary::GeluErf, Unary::GeluTanh, Unary::Silu, Unary::HardSwish, Unary::Sigmoid];
    for i in (0..graph.nodes.len()).rev() {
        if i >= graph.nodes.len() {
            continue;
        }
        let links = Links::of(graph);
        let node = &graph.nodes[i];
        if !matches!(node.op, Op::Unary(_) | Op::Binary(_)) {
            continue;
        }
        let out = node.outputs[0];
        let region = ancestors(graph, &links, out);
        if region.len() < 2 {
            continue;
        }
        let hit = region.iter().find_map(|&leaf| {
            if graph.values[leaf].shape != graph.values[out].shape {
                return None;
            }
            let values: Option<Vec<f64>> = SAMPLES
                .iter()
                .map(|&x| eval_region(graph, &links, out, leaf, x, DEPTH_MAX))
                .collect();
            let values = values?;
            let f = known.iter().copied().find(|&f| {
                SAMPLES.iter().zip(&values).all(|(&x, &v)| {
                    let want = eval(f, x);
                    (v - want).abs() <= RELATIVE_MAX * want.abs() + ABSOLUTE_MAX
                })
            })?;
            Some((leaf, f))
        });
        if let Some((leaf, f)) = hit {
            graph.nodes[i].op = Op::Unary(f);
            graph.nodes[i].inputs = vec![leaf];
            graph.nodes[i].operator = format!("{f:?}");
            graph.sweep();
        }
    }
}
