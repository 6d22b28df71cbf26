//! Operators that move data or are rare: plain loops over strides, in safe Rust.

use super::functions;
use super::graph::{Binary, Pool, PoolKind, Unary};
use crate::engine::kernels;
use serde::{Deserialize, Serialize};

/// Axes of a loop nest. More are refused when a graph is lowered.
pub const AXES_MAX: usize = 8;

/// A copy between two strided views.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// Length, source stride and destination stride of each axis, outermost first.
    pub axes: Vec<(usize, usize, usize)>,
    /// First source word.
    pub from: usize,
    /// First destination word.
    pub to: usize,
}

impl Copy {
    /// Drops axes of length 1 and joins axes that lie one after the other in both views.
    pub fn new(
        axes: impl IntoIterator<Item = (usize, usize, usize)>,
        from: usize,
        to: usize,
    ) -> Copy {
        let mut joined: Vec<(usize, usize, usize)> = vec![];
        for axis in axes {
            if axis.0 == 1 {
                continue;
            }
            if let Some(last) = joined.last_mut()
                && last.1 == axis.1 * axis.0
                && last.2 == axis.2 * axis.0
            {
                *last = (last.0 * axis.0, axis.1, axis.2);
                continue;
            }
            joined.push(axis);
        }
        Copy { axes: joined, from, to }
    }

    /// Matrices, rows and columns, if this transposes matrices that lie one after the other.
    pub fn transposed(&self) -> Option<(usize, usize, usize)> {
        let (batch, inner) = match self.axes[..] {
            [outer, a, b] if outer.1 == a.0 * b.0 && outer.2 == outer.1 => (outer.0, [a, b]),
            [a, b] => (1, [a, b]),
            _ => return None,
        };
        let [(cols, 1, to), (rows, from, 1)] = inner else { return None };
        (to == rows && from == cols && self.from == 0 && self.to == 0)
            .then_some((batch, rows, cols))
    }

    /// Copies.
    ///
    /// # Panics
    /// If a view reaches beyond its slice.
    pub fn run(&self, src: &[f32], dst: &mut [f32]) {
        nest(&self.axes, self.from, self.to, &mut |axes, from, to| match *axes {
            [] => dst[to] = src[from],
            [(len, 1, 1)] => dst[to..to + len].copy_from_slice(&src[from..from + len]),
            [(len, 0, 1)] => dst[to..to + len].fill(src[from]),
            [(len, s, d)] => {
                for i in 0..len {
                    dst[to + i * d] = src[from + i * s];
                }
            }
            [(rows, rs, rd), (len, s, d)] => {
                transpose(src, dst, (from, to), (rows, rs, rd), (len, s, d))
            }
            _ => {}
        });
    }
}

/// Two axes, in tiles so that both sides stay in cache.
fn transpose(
    src: &[f32],
    dst: &mut [f32],
    (from, to): (usize, usize),
    (rows, rs, rd): (usize, usize, usize),
    (len, s, d): (usize, usize, usize),
) {
    if s == 1 && d == 1 {
        for r in 0..rows {
            dst[to + r * rd..][..len].copy_from_slice(&src[from + r * rs..][..len]);
        }
        return;
    }
    const TILE: usize = 16;
    let mut r0 = 0;
    while r0 < rows {
        let r1 = (r0 + TILE).min(rows);
        let mut c0 = 0;
        while c0 < len {
            let c1 = (c0 + TILE).min(len);
            for r in r0..r1 {
                for c in c0..c1 {
                    dst[to + r * rd + c * d] = src[from + r * rs + c * s];
                }
            }
            c0 = c1;
        }
        r0 = r1;
    }
}

/// Calls `f` with the last two axes and their offsets, for every position of the others.
fn nest(
    axes: &[(usize, usize, usize)],
    from: usize,
    to: usize,
    f: &mut impl FnMut(&[(usize, usize, usize)], usize, usize),
) {
    let outer = axes.len().saturating_sub(2);
    let mut at = [0usize; AXES_MAX];
    if axes.iter().any(|a| a.0 == 0) {
        return;
    }
    loop {
        let (mut s, mut d) = (from, to);
        for (i, axis) in axes[..outer].iter().enumerate() {
            s += at[i] * axis.1;
            d += at[i] * axis.2;
        }
        f(&axes[outer..], s, d);
        let mut i = outer;
        loop {
            if i == 0 {
                return;
            }
            i -= 1;
            at[i] += 1;
            if at[i] < axes[i].0 {
                break;
            }
            at[i] = 0;
        }
    }
}

/// A binary operator over strided operands; the output is dense in the order of the axes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broadcast {
    /// Length, and strides of a and b, of each axis, outermost first.
    pub axes: Vec<(usize, usize, usize)>,
}

impl Broadcast {
    /// Joins axes that both operands pass over in one stride.
    pub fn new(axes: impl IntoIterator<Item = (usize, usize, usize)>) -> Broadcast {
        Broadcast { axes: Copy::new(axes, 0, 0).axes }
    }

    /// The form that the vector kernels take: a dense, b repeated along some of at most three axes.
    pub fn vector(&self, op: Binary) -> Option<(kernels::Binary, kernels::Broadcast)> {
        let op = match op {
            Binary::Add => kernels::Binary::Add,
            Binary::Sub => kernels::Binary::Sub,
            Binary::Mul => kernels::Binary::Mul,
            Binary::Div => kernels::Binary::Div,
            Binary::Min => kernels::Binary::Min,
            Binary::Max => kernels::Binary::Max,
            Binary::Pow => return None,
        };
        let (mut dense, mut second) = (1, 1);
        let (mut dims, mut has) = ([1; 3], [true; 3]);
        let skipped = dims.len().checked_sub(self.axes.len())?;
        for (i, &(len, a, b)) in self.axes.iter().enumerate().rev() {
            if a != dense || !(b == 0 || b == second) {
                return None;
            }
            dims[skipped + i] = len;
            has[skipped + i] = b != 0;
            dense *= len;
            second *= if b == 0 { 1 } else { len };
        }
        Some((op, kernels::Broadcast { dims, has }))
    }

    /// `y = a op b`.
    pub fn run(&self, op: Binary, a: &[f32], b: &[f32], y: &mut [f32]) {
        let mut at = 0;
        rows(&self.axes, &mut |(len, sa, sb), a0, b0| {
            let y = &mut y[at..at + len];
            at += len;
            match (sa, sb) {
                (1, 1) => zip(op, &a[a0..a0 + len], &b[b0..b0 + len], y),
                (1, 0) => each(op, &a[a0..a0 + len], b[b0], y),
                _ => {
                    for (i, y) in y.iter_mut().enumerate() {
                        *y = op.eval(a[a0 + i * sa], b[b0 + i * sb]);
                    }
                }
            }
        });
    }

    /// `y = y op b`, y being a.
    pub fn run_in_place(&self, op: Binary, b: &[f32], y: &mut [f32]) {
        let mut at = 0;
        rows(&self.axes, &mut |(len, _, sb), _, b0| {
            let y = &mut y[at..at + len];
            at += len;
            match sb {
                1 => zip_in_place(op, &b[b0..b0 + len], y),
                0 => each_in_place(op, b[b0], y),
                _ => {
                    for (i, y) in y.iter_mut().enumerate() {
                        *y = op.eval(*y, b[b0 + i * sb]);
                    }
                }
            }
        });
    }
}

/// Calls `f` with the last axis and offsets, for every position of the others.
fn rows(axes: &[(usize, usize, usize)], f: &mut impl FnMut((usize, usize, usize), usize, usize)) {
    match *axes {
        [] => f((1, 1, 1), 0, 0),
        [axis] => f(axis, 0, 0),
        _ => nest(axes, 0, 0, &mut |axes, a, b| {
            let (outer, inner) = (axes[0], axes[1]);
            for i in 0..outer.0 {
                f(inner, a + i * outer.1, b + i * outer.2);
            }
        }),
    }
}

macro_rules! per_op {
    ($op:expr, |$f:ident| $body:expr) => {
        match $op {
            Binary::Add => {
                let $f = |a: f32, b: f32| a + b;
                $body
            }
            Binary::Sub => {
                let $f = |a: f32, b: f32| a - b;
                $body
            }
            Binary::Mul => {
                let $f = |a: f32, b: f32| a * b;
                $body
            }
            Binary::Div => {
                let $f = |a: f32, b: f32| a / b;
                $body
            }
            op => {
                let $f = |a: f32, b: f32| op.eval(a, b);
                $body
            }
        }
    };
}

fn zip(op: Binary, a: &[f32], b: &[f32], y: &mut [f32]) {
    per_op!(op, |f| y.iter_mut().zip(a).zip(b).for_each(|((y, &a), &b)| *y = f(a, b)));
}

fn each(op: Binary, a: &[f32], b: f32, y: &mut [f32]) {
    per_op!(op, |f| y.iter_mut().zip(a).for_each(|(y, &a)| *y = f(a, b)));
}

fn zip_in_place(op: Binary, b: &[f32], y: &mut [f32]) {
    per_op!(op, |f| y.iter_mut().zip(b).for_each(|(y, &b)| *y = f(*y, b)));
}

fn each_in_place(op: Binary, b: f32, y: &mut [f32]) {
    per_op!(op, |f| y.iter_mut().for_each(|y| *y = f(*y, b)));
}

/// A function without a vector kernel, in place.
pub fn unary(f: Unary, y: &mut [f32]) {
    match f {
        Unary::Floor => y.iter_mut().for_each(|y| *y = y.floor()),
        Unary::Ceil => y.iter_mut().for_each(|y| *y = y.ceil()),
        Unary::Ln => y.iter_mut().for_each(|y| *y = y.ln()),
        f => y.iter_mut().for_each(|y| *y = functions::eval(f, f64::from(*y)) as f32),
    }
}

/// `y[o, i]` is the product over n of `x[o, n, i]`.
pub fn product(x: &[f32], (outer, n, inner): (usize, usize, usize), y: &mut [f32]) {
    for o in 0..outer {
        let y = &mut y[o * inner..(o + 1) * inner];
        y.fill(1.0);
        for k in 0..n {
            let x = &x[(o * n + k) * inner..][..inner];
            y.iter_mut().zip(x).for_each(|(y, &x)| *y *= x);
        }
    }
}

/// Layer normalisation along the middle of `[outer, n, inner]`; `sums` has `2 * inner` words.
pub fn layer_norm_middle(
    x: &[f32],
    (outer, n, inner): (usize, usize, usize),
    (eps, gamma, beta): (f32, &[f32], &[f32]),
    sums: &mut [f32],
    y: &mut [f32],
) {
    let (mean, rstd) = sums[..2 * inner].split_at_mut(inner);
    for o in 0..outer {
        let x = &x[o * n * inner..][..n * inner];
        let y = &mut y[o * n * inner..][..n * inner];
        mean.fill(0.0);
        for row in x.chunks_exact(inner) {
            mean.iter_mut().zip(row).for_each(|(m, &x)| *m += x);
        }
        mean.iter_mut().for_each(|m| *m /= n as f32);
        rstd.fill(0.0);
        for row in x.chunks_exact(inner) {
            for ((r, &m), &x) in rstd.iter_mut().zip(mean.iter()).zip(row) {
                *r += (x - m) * (x - m);
            }
        }
        rstd.iter_mut().for_each(|r| *r = 1.0 / (*r / n as f32 + eps).sqrt());
        for (k, (row, out)) in x.chunks_exact(inner).zip(y.chunks_exact_mut(inner)).enumerate() {
            let (g, b) = (gamma[k], beta[k]);
            for (((y, &x), &m), &r) in out.iter_mut().zip(row).zip(mean.iter()).zip(rstd.iter()) {
                *y = (x - m) * (r * g) + b;
            }
        }
    }
}

/// Logarithm of the softmax of each row of `n`, in place.
pub fn log_softmax(y: &mut [f32], n: usize) {
    for row in y.chunks_exact_mut(n) {
        let max = row.iter().fold(f32::NEG_INFINITY, |m, &x| if m >= x { m } else { x });
        let sum: f32 = row.iter().map(|&x| (x - max).exp()).sum();
        let log = sum.ln();
        // One after the other: their sum would be rounded at the largest.
        row.iter_mut().for_each(|y| *y = (*y - max) - log);
    }
}

/// Rows of a table by index; an index outside takes the last row, which is for that. Where it
/// `wraps`, negative indices count from the end of the other rows.
pub fn embed(
    table: &[f32],
    width: usize,
    (first, wraps): (i64, bool),
    index: impl Iterator<Item = i64>,
    y: &mut [f32],
) {
    let last = table.len() / width - 1;
    for (y, i) in y.chunks_exact_mut(width).zip(index) {
        let i = if wraps && i < 0 { i.saturating_add(last as i64) } else { i };
        let row = usize::try_from(i.saturating_sub(first)).unwrap_or(last).min(last);
        y.copy_from_slice(&table[row * width..][..width]);
    }
}

/// Pooling over NHWC.
pub fn pool(pool: &Pool, [n, h, w, c]: [usize; 4], [oh, ow]: [usize; 2], x: &[f32], y: &mut [f32]) {
    for b in 0..n {
        for (i, y) in y[b * oh * ow * c..][..oh * ow * c].chunks_exact_mut(c).enumerate() {
            let (oy, ox) = (i / ow, i % ow);
            let max = pool.kind == PoolKind::Max;
            y.fill(if max { f32::NEG_INFINITY } else { 0.0 });
            let (mut count, mut padded) = (0, 0);
            for ky in 0..pool.kernel[0] {
                for kx in 0..pool.kernel[1] {
                    let at = |o: usize, s: usize, k: usize, d: usize, p: usize| {
                        (o * s + k * d).checked_sub(p)
                    };
                    let iy = at(oy, pool.stride[0], ky, pool.dilation[0], pool.before[0])
                        .filter(|&i| i < h);
                    let ix = at(ox, pool.stride[1], kx, pool.dilation[1], pool.before[1])
                        .filter(|&i| i < w);
                    let reach =
                        |o: usize, s: usize, k: usize, d: usize, len: usize| o * s + k * d < len;
                    let (h1, w1) =
                        (h + pool.before[0] + pool.after[0], w + pool.before[1] + pool.after[1]);
                    padded += usize::from(
                        reach(oy, pool.stride[0], ky, pool.dilation[0], h1)
                            && reach(ox, pool.stride[1], kx, pool.dilation[1], w1),
                    );
                    let (Some(iy), Some(ix)) = (iy, ix) else { continue };
                    count += 1;
                    let x = &x[((b * h + iy) * w + ix) * c..][..c];
                    for (y, &x) in y.iter_mut().zip(x) {
                        if !max {
                            *y += x;
                        } else if x > *y || x.is_nan() {
                            *y = x;
                        }
                    }
                }
            }
            let divisor = match pool.kind {
                PoolKind::Average { include_pad: false } => count,
                PoolKind::Average { include_pad: true } => padded,
                _ => continue,
            };
            y.iter_mut().for_each(|y| *y /= divisor as f32);
        }
    }
}
