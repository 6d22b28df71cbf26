//! What is applied to a result before it is stored.

use super::isa::{Checked, Op};
use super::math;
use super::quant::Grid;
use super::simd::Simd;
use serde::{Deserialize, Serialize};

/// A function that a kernel applies to each of its results.
///
/// NaN stays NaN under every one of them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub enum Activation {
    /// The identity.
    #[default]
    None,
    /// `max(x, 0)`
    Relu,
    /// `min(max(x, lo), hi)`; `Relu6` is `Clip { lo: 0.0, hi: 6.0 }`.
    Clip {
        /// Lower bound; negative infinity for none.
        lo: f32,
        /// Upper bound; infinity for none.
        hi: f32,
    },
    /// `x` where positive, else `alpha * x`.
    LeakyRelu {
        /// Slope on the negative side.
        alpha: f32,
    },
    /// `x * min(max(x / 6 + 0.5, 0), 1)`
    HardSwish,
    /// `min(max(alpha * x + beta, 0), 1)`
    HardSigmoid {
        /// Slope.
        alpha: f32,
        /// Value at 0.
        beta: f32,
    },
    /// `x * sigmoid(x)`
    Silu,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `x / 2 * (1 + erf(x / sqrt 2))`
    GeluErf,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`
    GeluTanh,
    /// The nearest of the grid's values, in the middle between two that of an even multiple: what quantising
    /// to 8 bits and back makes of `x`, in the same bits.
    Grid(Grid),
}

/// The cheap activations in one form that a register tile applies without a branch per kind:
/// clamp, and what follows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fused {
    lo: f32,
    hi: f32,
    then: Then,
}

/// What follows the clamp.
#[derive(Debug, Clone, Copy)]
enum Then {
    Nothing,
    /// A multiplication by the hard sigmoid.
    Swish,
    /// To the nearest value; the clamp was to the outermost ones.
    Grid(Grid),
}

impl Activation {
    /// The part that the register tile applies, and whether that is all of it. If not, the function
    /// is applied afterwards, to so many panels at a time as stay in the first-level cache.
    pub(super) fn fused(self) -> (Fused, bool) {
        let all = Fused { lo: f32::NEG_INFINITY, hi: f32::INFINITY, then: Then::Nothing };
        match self {
            Activation::None => (all, true),
            Activation::Relu => (Fused { lo: 0.0, ..all }, true),
            Activation::Clip { lo, hi } => (Fused { lo, hi, ..all }, true),
            Activation::HardSwish => (Fused { then: Then::Swish, ..all }, true),
            Activation::Grid(grid) => {
                let (lo, hi) = grid.bounds();
                (Fused { lo, hi, then: Then::Grid(grid) }, true)
            }
            _ => (all, false),
        }
    }
}

/// Applies the cheap activations to a vector.
#[inline(always)]
pub(super) fn apply_fused<S: Simd>(f: Fused, v: S::V) -> S::V {
    // The operand order keeps NaN: `max` and `min` give their second operand then.
    let v = S::min(S::splat(f.hi), S::max(S::splat(f.lo), v));
    match f.then {
        Then::Nothing => v,
        Then::Swish => math::hardswish::<S>(v),
        Then::Grid(grid) => grid.nearest::<S>(v),
    }
}

/// Applies an activation to `rows` stretches of `cols` floats, one every `step`, `to` being `from` or all beside it.
/// An operation of its own, so that it is compiled once.
struct Apply {
    act: Activation,
    from: *const f32,
    to: *mut f32,
    rows: usize,
    cols: usize,
    step: usize,
}

/// Applies `act` to `y` in place.
pub(super) fn apply(isa: Checked, act: Activation, y: &mut [f32]) {
    // SAFETY: one stretch, all of `y`.
    unsafe { apply_rows(isa, act, y.as_mut_ptr(), (1, y.len(), 0)) }
}

/// `y[i] = act(x[i])`.
///
/// # Panics
/// If the lengths differ.
pub(super) fn apply_into(isa: Checked, act: Activation, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "activation: input and output");
    if act == Activation::None {
        y.copy_from_slice(x);
        return;
    }
    let (from, to) = (x.as_ptr(), y.as_mut_ptr());
    isa.dispatch(Apply { act, from, to, rows: 1, cols: x.len(), step: 0 });
}

/// Applies `act` in place to `(rows, cols, step)`: `rows` stretches of `cols` floats, one every `step`.
/// # Safety
/// Each stretch is valid for reading and writing, by nobody else meanwhile.
pub(super) unsafe fn apply_rows(
    isa: Checked,
    act: Activation,
    first: *mut f32,
    (rows, cols, step): (usize, usize, usize),
) {
    if act != Activation::None {
        isa.dispatch(Apply { act, from: first, to: first, rows, cols, step });
    }
}

impl Op for Apply {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Apply { act, from, to, rows, cols: n, step } = self;
        macro_rules! each {
            (|$v:ident| $f:expr) => {
                for row in 0..rows {
                    // SAFETY: stretches of `n` floats (the promise to `apply_rows`, and two slices in
                    // `apply_into`); what is read and written lies within them: `i + LANES <= n`, then the
                    // `n - i` from `i`.
                    unsafe {
                        let (x, y) = (from.add(row * step), to.add(row * step));
                        let mut i = 0;
                        while i + S::LANES <= n {
                            let $v = S::load(x.add(i));
                            S::store(y.add(i), $f);
                            i += S::LANES;
                        }
                        if i < n {
                            let $v = S::load_part(x.add(i), n - i);
                            S::store_part(y.add(i), $f, n - i);
                        }
                    }
                }
            };
        }
        match act {
            Activation::None => {}
            Activation::Relu
            | Activation::Clip { .. }
            | Activation::HardSwish
            | Activation::Grid(_) => {
                let (f, _) = act.fused();
                each!(|v| apply_fused::<S>(f, v));
            }
            Activation::LeakyRelu { alpha } => each!(|v| math::leaky_relu::<S>(v, alpha)),
            Activation::HardSigmoid { alpha, beta } => {
                each!(|v| math::hardsigmoid::<S>(v, alpha, beta));
            }
            Activation::Silu => each!(|v| math::silu::<S>(v)),
            Activation::Sigmoid => each!(|v| math::sigmoid::<S>(v)),
            Activation::Tanh => each!(|v| math::tanh::<S>(v)),
            Activation::GeluErf => each!(|v| math::gelu_erf::<S>(v)),
            Activation::GeluTanh => each!(|v| math::gelu_tanh::<S>(v)),
        }
    }
}
