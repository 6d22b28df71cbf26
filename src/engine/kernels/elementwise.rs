//! Functions of one element, or of two with broadcasting.

use super::activation::{Activation, apply, apply_into};
use super::isa::Op;
use super::simd::Simd;
use super::{Kernels, math};
use serde::{Deserialize, Serialize};

/// A function of one element. NaN stays NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unary {
    /// An activation.
    Act(Activation),
    /// `exp(x)`, at most 2 ulp off.
    Exp,
    /// The error function, at most 3 ulp off.
    Erf,
    /// Square root, correctly rounded; NaN for negative numbers.
    Sqrt,
    /// `1 / x`, correctly rounded.
    Reciprocal,
    /// `1 / sqrt(x)`, two roundings.
    Rsqrt,
    /// `-x`
    Neg,
    /// `|x|`
    Abs,
    /// `x * x`
    Square,
    /// `scale * x + shift` (with FMA where the set has it).
    Affine {
        /// Factor.
        scale: f32,
        /// Summand.
        shift: f32,
    },
}

struct UnaryOp {
    op: Unary,
    x: *const f32,
    y: *mut f32,
    n: usize,
}

impl Op for UnaryOp {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let UnaryOp { op, x, y, n } = self;
        macro_rules! each {
            (|$v:ident| $f:expr) => {{
                let mut i = 0;
                while i + S::LANES <= n {
                    // SAFETY: `x` and `y` are valid for `n` floats (the makers' promise).
                    unsafe {
                        let $v = S::load(x.add(i));
                        S::store(y.add(i), $f);
                    }
                    i += S::LANES;
                }
                if i < n {
                    // SAFETY: as above, for the `n - i` floats left.
                    unsafe {
                        let $v = S::load_part(x.add(i), n - i);
                        S::store_part(y.add(i), $f, n - i);
                    }
                }
            }};
        }
        match op {
            // Applied by `activation::apply`.
            Unary::Act(_) => {}
            Unary::Exp => each!(|v| math::exp::<S>(v)),
            Unary::Erf => each!(|v| math::erf::<S>(v)),
            Unary::Sqrt => each!(|v| S::sqrt(v)),
            Unary::Reciprocal => each!(|v| S::div(S::splat(1.0), v)),
            Unary::Rsqrt => each!(|v| S::div(S::splat(1.0), S::sqrt(v))),
            Unary::Neg => each!(|v| S::sub(S::splat(-0.0), v)),
            Unary::Abs => each!(|v| S::abs(v)),
            Unary::Square => each!(|v| S::mul(v, v)),
            Unary::Affine { scale, shift } => {
                each!(|v| S::fma(v, S::splat(scale), S::splat(shift)))
            }
        }
    }
}

/// `y[i] = op(x[i])`.
///
/// # Panics
/// If the lengths differ.
pub fn unary(kernels: &Kernels, op: Unary, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "unary: input and output");
    if let Unary::Act(act) = op {
        return apply_into(kernels.checked, act, x, y);
    }
    kernels.checked.dispatch(UnaryOp { op, x: x.as_ptr(), y: y.as_mut_ptr(), n: x.len() });
}

/// `x[i] = op(x[i])`.
pub fn unary_inplace(kernels: &Kernels, op: Unary, x: &mut [f32]) {
    if let Unary::Act(act) = op {
        return apply(kernels.checked, act, x);
    }
    let y = x.as_mut_ptr();
    kernels.checked.dispatch(UnaryOp { op, x: y, y, n: x.len() });
}

/// A function of two elements. NaN in either gives NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `b - a`
    RevSub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
    /// `b / a`
    RevDiv,
    /// The lesser.
    Min,
    /// The greater.
    Max,
}

/// How the second operand of a [`Binary`] is repeated over a first one of shape `dims`: along each axis it
/// either has the axis's length, or 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broadcast {
    /// Shape of the first operand and of the result; merge axes that are broadcast alike. A long last
    /// axis is fastest.
    pub dims: [usize; 3],
    /// Whether the second operand has that axis; if not, its length there is 1.
    pub has: [bool; 3],
}

impl Broadcast {
    /// Operands of the same shape.
    pub fn same(len: usize) -> Broadcast {
        Broadcast { dims: [1, 1, len], has: [true; 3] }
    }
    /// One number for all.
    pub fn scalar(len: usize) -> Broadcast {
        Broadcast { dims: [1, 1, len], has: [false; 3] }
    }
    /// A vector along the last axis (channels), for all of `rows`.
    pub fn last_axis(rows: usize, channels: usize) -> Broadcast {
        Broadcast { dims: [1, rows, channels], has: [false, false, true] }
    }
    /// A number for each of `rows`, over their `columns`.
    pub fn per_row(rows: usize, columns: usize) -> Broadcast {
        Broadcast { dims: [1, rows, columns], has: [false, true, false] }
    }
    /// A vector of channels for each image: `[batch, 1, channels]` over `[batch, pixels, channels]`.
    pub fn per_image(batch: usize, pixels: usize, channels: usize) -> Broadcast {
        Broadcast { dims: [batch, pixels, channels], has: [true, false, true] }
    }
    /// Elements of the first operand.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Elements of the second operand.
    pub fn second_len(&self) -> usize {
        self.dims.iter().zip(self.has).map(|(&d, has)| if has { d } else { 1 }).product()
    }
}

struct BinaryOp<'a> {
    op: Binary,
    shape: Broadcast,
    a: *const f32,
    b: &'a [f32],
    y: *mut f32,
}

#[inline(always)]
fn nan_min<S: Simd>(a: S::V, b: S::V) -> S::V {
    S::select(S::ordered(a), S::min(a, b), a)
}

#[inline(always)]
fn nan_max<S: Simd>(a: S::V, b: S::V) -> S::V {
    S::select(S::ordered(a), S::max(a, b), a)
}

impl Op for BinaryOp<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let BinaryOp { op, shape, a, b, y } = self;
        let [n, m, c] = shape.dims;
        let inner = if shape.has[2] { c } else { 1 };
        let step_m = if shape.has[1] { inner } else { 0 };
        let step_n = if !shape.has[0] {
            0
        } else if shape.has[1] {
            m * inner
        } else {
            inner
        };
        macro_rules! rows {
            ($f:expr) => {
                for i in 0..n {
                    for j in 0..m {
                        let at = (i * m + j) * c;
                        let b = b[i * step_n + j * step_m..].as_ptr();
                        // SAFETY: `a` and `y` hold `n * m * c` floats, and `b` its own from there: the
                        // makers checked both lengths.
                        unsafe {
                            let (a, y) = (a.add(at), y.add(at));
                            let mut k = 0;
                            if shape.has[2] {
                                while k + S::LANES <= c {
                                    S::store(y.add(k), $f(S::load(a.add(k)), S::load(b.add(k))));
                                    k += S::LANES;
                                }
                                if k < c {
                                    let (x, z) = (
                                        S::load_part(a.add(k), c - k),
                                        S::load_part(b.add(k), c - k),
                                    );
                                    S::store_part(y.add(k), $f(x, z), c - k);
                                }
                            } else {
                                let z = S::splat(*b);
                                while k + S::LANES <= c {
                                    S::store(y.add(k), $f(S::load(a.add(k)), z));
                                    k += S::LANES;
                                }
                                if k < c {
                                    S::store_part(
                                        y.add(k),
                                        $f(S::load_part(a.add(k), c - k), z),
                                        c - k,
                                    );
                                }
                            }
                        }
                    }
                }
            };
        }
        match op {
            Binary::Add => rows!(S::add),
            Binary::Sub => rows!(S::sub),
            Binary::RevSub => rows!(|a, b| S::sub(b, a)),
            Binary::Mul => rows!(S::mul),
            Binary::Div => rows!(S::div),
            Binary::RevDiv => rows!(|a, b| S::div(b, a)),
            Binary::Min => rows!(nan_min::<S>),
            Binary::Max => rows!(nan_max::<S>),
        }
    }
}

/// `y = act(op(a, b))`, with `b` repeated over `a` as `shape` says.
///
/// # Panics
/// If a length does not fit the shape.
pub fn binary(
    kernels: &Kernels,
    op: Binary,
    shape: Broadcast,
    a: &[f32],
    b: &[f32],
    act: Activation,
    y: &mut [f32],
) {
    assert_eq!(a.len(), shape.len(), "binary: first operand");
    assert_eq!(b.len(), shape.second_len(), "binary: second operand");
    assert_eq!(y.len(), a.len(), "binary: result");
    if y.is_empty() {
        return;
    }
    kernels.checked.dispatch(BinaryOp { op, shape, a: a.as_ptr(), b, y: y.as_mut_ptr() });
    apply(kernels.checked, act, y);
}

/// `a = act(op(a, b))`, with `b` repeated over `a` as `shape` says.
///
/// # Panics
/// If a length does not fit the shape.
pub fn binary_inplace(
    kernels: &Kernels,
    op: Binary,
    shape: Broadcast,
    a: &mut [f32],
    b: &[f32],
    act: Activation,
) {
    assert_eq!(a.len(), shape.len(), "binary: first operand");
    assert_eq!(b.len(), shape.second_len(), "binary: second operand");
    if a.is_empty() {
        return;
    }
    let y = a.as_mut_ptr();
    kernels.checked.dispatch(BinaryOp { op, shape, a: y, b, y });
    apply(kernels.checked, act, a);
}
