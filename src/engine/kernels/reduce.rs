//! Reductions, softmax and normalisation.

use super::Kernels;
use super::isa::Op;
use super::math;
use super::simd::Simd;

/// What a reduction computes over its axis. NaN in, NaN out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Sum.
    Sum,
    /// Sum over the length of the axis.
    Mean,
    /// Sum of squares.
    SumSquares,
    /// Greatest.
    Max,
    /// Least.
    Min,
}

struct ReduceOp<'a> {
    op: Reduction,
    dims: [usize; 3],
    x: &'a [f32],
    y: &'a mut [f32],
}

#[derive(Clone, Copy)]
struct Combine(Reduction);

impl Combine {
    #[inline(always)]
    fn start(self) -> f32 {
        match self.0 {
            Reduction::Max => f32::NEG_INFINITY,
            Reduction::Min => f32::INFINITY,
            _ => 0.0,
        }
    }
    #[inline(always)]
    fn vector<S: Simd>(self, acc: S::V, x: S::V) -> S::V {
        match self.0 {
            Reduction::Sum | Reduction::Mean => S::add(acc, x),
            Reduction::SumSquares => S::fma(x, x, acc),
            // The second operand comes back if either is NaN; a NaN once there has to stay.
            Reduction::Max => S::select(S::ordered(acc), S::max(acc, x), acc),
            Reduction::Min => S::select(S::ordered(acc), S::min(acc, x), acc),
        }
    }
    #[inline(always)]
    fn scalar(self, acc: f32, x: f32) -> f32 {
        match self.0 {
            Reduction::Sum | Reduction::Mean => acc + x,
            Reduction::SumSquares => acc + x * x,
            Reduction::Max => {
                if acc.is_nan() || acc > x {
                    acc
                } else {
                    x
                }
            }
            Reduction::Min => {
                if acc.is_nan() || acc < x {
                    acc
                } else {
                    x
                }
            }
        }
    }
    /// Merges the lanes of `v` into one number, in the order of lanes.
    #[inline(always)]
    fn lanes<S: Simd>(self, v: S::V) -> f32 {
        match self.0 {
            Reduction::Max | Reduction::Min => {
                let mut lanes = [0.0f32; 16];
                // SAFETY: no set has more than 16 lanes.
                unsafe { S::store(lanes.as_mut_ptr(), v) };
                let mut acc = self.start();
                for &x in lanes.iter().take(S::LANES) {
                    acc = self.scalar(acc, x);
                }
                acc
            }
            _ => S::hsum(v),
        }
    }
}

impl Op for ReduceOp<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let [outer, len, inner] = self.dims;
        let scale = if self.op == Reduction::Mean { 1.0 / len as f32 } else { 1.0 };
        // One match outside all loops, so that each loop is of one kind.
        macro_rules! kind {
            ($($kind:ident)*) => {
                match self.op {
                    $(Reduction::$kind => {
                        let f = Combine(Reduction::$kind);
                        for o in 0..outer {
                            let x = &self.x[o * len * inner..][..len * inner];
                            if inner == 1 {
                                self.y[o] = last_axis::<S>(f, x) * scale;
                            } else {
                                let y = &mut self.y[o * inner..][..inner];
                                middle_axis::<S>(f, x, len, inner, scale, y);
                            }
                        }
                    })*
                }
            };
        }
        kind!(Sum Mean SumSquares Max Min)
    }
}

#[inline(always)]
fn last_axis<S: Simd>(f: Combine, x: &[f32]) -> f32 {
    let mut acc = [S::splat(f.start()); 4];
    let mut i = 0;
    let p = x.as_ptr();
    // SAFETY: whole vectors, while they fit in `x`.
    unsafe {
        while i + 4 * S::LANES <= x.len() {
            for (j, a) in acc.iter_mut().enumerate() {
                *a = f.vector::<S>(*a, S::load(p.add(i + j * S::LANES)));
            }
            i += 4 * S::LANES;
        }
        while i + S::LANES <= x.len() {
            acc[0] = f.vector::<S>(acc[0], S::load(p.add(i)));
            i += S::LANES;
        }
    }
    // The four sums were squared already, if they are of squares.
    let merge = Combine(if f.0 == Reduction::SumSquares { Reduction::Sum } else { f.0 });
    let a = merge.vector::<S>(merge.vector::<S>(acc[0], acc[1]), merge.vector::<S>(acc[2], acc[3]));
    let mut total = merge.lanes::<S>(a);
    for &v in &x[i..] {
        total = f.scalar(total, v);
    }
    total
}

#[inline(always)]
fn middle_axis<S: Simd>(
    f: Combine,
    x: &[f32],
    len: usize,
    inner: usize,
    scale: f32,
    y: &mut [f32],
) {
    let mut c = 0;
    while c < inner {
        let n = S::LANES.min(inner - c);
        // SAFETY: row `i < len` of `x` has `n` floats from `c`, and so has `y`.
        unsafe {
            let p = x.as_ptr().add(c);
            let mut acc = S::splat(f.start());
            if n == S::LANES {
                for i in 0..len {
                    acc = f.vector::<S>(acc, S::load(p.add(i * inner)));
                }
                S::store(y.as_mut_ptr().add(c), S::mul(acc, S::splat(scale)));
            } else {
                for i in 0..len {
                    acc = f.vector::<S>(acc, S::load_part(p.add(i * inner), n));
                }
                S::store_part(y.as_mut_ptr().add(c), S::mul(acc, S::splat(scale)), n);
            }
        }
        c += n;
    }
}

/// Reduces the middle axis of `x`, of shape `[outer, len, inner]`, into `y` of `[outer, inner]`. A last axis
/// is reduced with `inner` 1, the pixels of NHWC images with `[batch, pixels, channels]`.
///
/// An empty axis gives 0 (`Mean`: NaN), negative infinity (`Max`) or infinity (`Min`).
///
/// # Panics
/// If a length does not fit the shape.
pub fn reduce(kernels: &Kernels, op: Reduction, dims: [usize; 3], x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), dims.iter().product::<usize>(), "reduce: input");
    assert_eq!(y.len(), dims[0] * dims[2], "reduce: output");
    kernels.checked.dispatch(ReduceOp { op, dims, x, y });
}

struct SoftmaxOp {
    rows: usize,
    cols: usize,
    x: *const f32,
    y: *mut f32,
}

impl Op for SoftmaxOp {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        for r in 0..self.rows {
            let n = self.cols;
            // SAFETY: both are valid for `rows * cols` floats; whole vectors while they fit, then parts.
            unsafe {
                let (x, y) = (self.x.add(r * n), self.y.add(r * n));
                let mut best = S::splat(f32::NEG_INFINITY);
                let mut i = 0;
                while i + S::LANES <= n {
                    best = S::max(best, S::load(x.add(i)));
                    i += S::LANES;
                }
                let mut top = S::hmax(best);
                while i < n {
                    top = top.max(*x.add(i));
                    i += 1;
                }
                // All negative infinity: exp(-inf - -inf) would be NaN there, and is, as in IEEE.
                let t = S::splat(top);
                let mut sum = S::splat(0.0);
                i = 0;
                while i + S::LANES <= n {
                    let e = math::exp_neg::<S>(S::sub(S::load(x.add(i)), t));
                    S::store(y.add(i), e);
                    sum = S::add(sum, e);
                    i += S::LANES;
                }
                let mut total = S::hsum(sum);
                if i < n {
                    let e = math::exp_neg::<S>(S::sub(S::load_part(x.add(i), n - i), t));
                    S::store_part(y.add(i), e, n - i);
                    while i < n {
                        total += *y.add(i);
                        i += 1;
                    }
                }
                let inv = S::splat(1.0 / total);
                i = 0;
                while i + S::LANES <= n {
                    S::store(y.add(i), S::mul(S::load(y.add(i)), inv));
                    i += S::LANES;
                }
                if i < n {
                    S::store_part(y.add(i), S::mul(S::load_part(y.add(i), n - i), inv), n - i);
                }
            }
        }
    }
}

/// Softmax over each of `rows` rows of `cols`: `exp(x - max) / sum`. Results below 1e-38 of the greatest may
/// be 1e-38 of it. NaN in a row makes the whole row NaN.
///
/// # Panics
/// If a slice does not have `rows * cols` floats.
pub fn softmax(kernels: &Kernels, rows: usize, cols: usize, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), rows * cols, "softmax: input");
    assert_eq!(y.len(), rows * cols, "softmax: output");
    kernels.checked.dispatch(SoftmaxOp { rows, cols, x: x.as_ptr(), y: y.as_mut_ptr() });
}

/// [`softmax`] in place.
///
/// # Panics
/// If the slice does not have `rows * cols` floats.
pub fn softmax_inplace(kernels: &Kernels, rows: usize, cols: usize, x: &mut [f32]) {
    assert_eq!(x.len(), rows * cols, "softmax: input");
    let y = x.as_mut_ptr();
    kernels.checked.dispatch(SoftmaxOp { rows, cols, x: y, y });
}

/// Layer normalisation over the last axis.
#[derive(Debug, Clone, Copy)]
pub struct LayerNorm<'a> {
    /// Factor per column; none for 1.
    pub gamma: Option<&'a [f32]>,
    /// Summand per column; none for 0.
    pub beta: Option<&'a [f32]>,
    /// Added to the variance.
    pub epsilon: f32,
}

struct NormOp<'a> {
    rows: usize,
    cols: usize,
    x: *const f32,
    y: *mut f32,
    p: LayerNorm<'a>,
}

impl Op for NormOp<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let n = self.cols;
        let whole = n - n % S::LANES;
        let scale = 1.0 / n as f32;
        let gamma = self.p.gamma.map_or(core::ptr::null(), <[f32]>::as_ptr);
        let beta = self.p.beta.map_or(core::ptr::null(), <[f32]>::as_ptr);
        for r in 0..self.rows {
            // SAFETY: `x` and `y` are valid for `rows * cols` floats, gamma and beta (if any) for `cols`.
            unsafe {
                let (x, y) = (self.x.add(r * n), self.y.add(r * n));
                let mut acc = S::splat(0.0);
                let mut i = 0;
                while i < whole {
                    acc = S::add(acc, S::load(x.add(i)));
                    i += S::LANES;
                }
                let mut total = S::hsum(acc);
                while i < n {
                    total += *x.add(i);
                    i += 1;
                }
                let mean = total * scale;
                let m = S::splat(mean);
                acc = S::splat(0.0);
                i = 0;
                while i < whole {
                    let d = S::sub(S::load(x.add(i)), m);
                    acc = S::fma(d, d, acc);
                    i += S::LANES;
                }
                let mut total = S::hsum(acc);
                while i < n {
                    let d = *x.add(i) - mean;
                    total += d * d;
                    i += 1;
                }
                let inv = 1.0 / (total * scale + self.p.epsilon).sqrt();
                let inv_v = S::splat(inv);
                i = 0;
                while i < whole {
                    let mut v = S::mul(S::sub(S::load(x.add(i)), m), inv_v);
                    if !gamma.is_null() {
                        v = S::mul(v, S::load(gamma.add(i)));
                    }
                    if !beta.is_null() {
                        v = S::add(v, S::load(beta.add(i)));
                    }
                    S::store(y.add(i), v);
                    i += S::LANES;
                }
                while i < n {
                    let mut v = (*x.add(i) - mean) * inv;
                    if !gamma.is_null() {
                        v *= *gamma.add(i);
                    }
                    if !beta.is_null() {
                        v += *beta.add(i);
                    }
                    *y.add(i) = v;
                    i += 1;
                }
            }
        }
    }
}

fn norm(kernels: &Kernels, rows: usize, cols: usize, p: LayerNorm<'_>, x: *const f32, y: *mut f32) {
    for (what, v) in [("gamma", p.gamma), ("beta", p.beta)] {
        assert!(v.is_none_or(|v| v.len() == cols), "layer_norm: {what} must have {cols} values");
    }
    kernels.checked.dispatch(NormOp { rows, cols, x, y, p });
}

/// `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta` over each of `rows` rows of `cols`. The variance
/// is taken around the mean, in a second pass.
///
/// # Panics
/// If a length does not fit.
pub fn layer_norm(
    kernels: &Kernels,
    rows: usize,
    cols: usize,
    p: LayerNorm<'_>,
    x: &[f32],
    y: &mut [f32],
) {
    assert_eq!(x.len(), rows * cols, "layer_norm: input");
    assert_eq!(y.len(), rows * cols, "layer_norm: output");
    norm(kernels, rows, cols, p, x.as_ptr(), y.as_mut_ptr());
}

/// [`layer_norm`] in place.
///
/// # Panics
/// If a length does not fit.
pub fn layer_norm_inplace(
    kernels: &Kernels,
    rows: usize,
    cols: usize,
    p: LayerNorm<'_>,
    x: &mut [f32],
) {
    assert_eq!(x.len(), rows * cols, "layer_norm: input");
    let y = x.as_mut_ptr();
    norm(kernels, rows, cols, p, y, y);
}
