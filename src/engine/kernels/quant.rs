//! Conversions: 8-bit quantised tensors and half precision.

use super::Kernels;
use super::isa::Op;
use super::simd::Simd;
use core::ops::Range;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An 8-bit element type.
pub trait Quantised: Copy + sealed::Sealed {
    /// Least value.
    const LO: i32;
    /// Greatest value.
    const HI: i32;
    /// As an integer.
    fn to_i32(self) -> i32;
    /// From an integer in range.
    fn from_i32(x: i32) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i8 {}
    impl Sealed for u8 {}
}

impl Quantised for i8 {
    const LO: i32 = -128;
    const HI: i32 = 127;
    #[inline(always)]
    fn to_i32(self) -> i32 {
        self.into()
    }
    #[inline(always)]
    fn from_i32(x: i32) -> i8 {
        x as i8
    }
}

impl Quantised for u8 {
    const LO: i32 = 0;
    const HI: i32 = 255;
    #[inline(always)]
    fn to_i32(self) -> i32 {
        self.into()
    }
    #[inline(always)]
    fn from_i32(x: i32) -> u8 {
        x as u8
    }
}

/// The step and zero point of a quantised tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Real value of one step.
    pub scale: f32,
    /// Which integer stands for 0.
    pub zero_point: i32,
}

/// 1.5 * 2^23: adding it rounds to integers, ties to even.
const MAGIC: f32 = 12_582_912.0;

impl Scale {
    /// ONNX QuantizeLinear of one number: `x / scale` to the nearest integer (half to even), plus the zero
    /// point, saturated to `lo..=hi`. Done in `f32`, whose integers are exact far beyond any 8-bit range. NaN
    /// stays.
    #[inline(always)]
    pub fn quantized(self, x: f32, lo: i32, hi: i32) -> f32 {
        let (lo, hi) = (lo as f32, hi as f32);
        // Clamped before rounding, so that the rounding trick's range is met; the clamp keeps NaN.
        let zero = self.zero_point as f32;
        let q = (x / self.scale).clamp(lo - zero - 1.0, hi - zero + 1.0);
        (((q + MAGIC) - MAGIC) + zero).clamp(lo, hi)
    }

    /// ONNX DequantizeLinear of one number.
    #[inline(always)]
    pub fn dequantized(self, q: f32) -> f32 {
        (q - self.zero_point as f32) * self.scale
    }
}

struct Quantize<'a, T> {
    s: Scale,
    x: &'a [f32],
    y: &'a mut [T],
}

impl<T: Quantised> Op for Quantize<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        for (y, &x) in self.y.iter_mut().zip(self.x) {
            *y = T::from_i32(self.s.quantized(x, T::LO, T::HI) as i32);
        }
    }
}

/// ONNX QuantizeLinear with one scale: round half to even, saturate. NaN becomes 0 of the integers.
///
/// # Panics
/// If the lengths differ.
pub fn quantize<T: Quantised>(kernels: &Kernels, s: Scale, x: &[f32], y: &mut [T]) {
    assert_eq!(x.len(), y.len(), "quantize: input and output");
    kernels.checked.dispatch(Quantize { s, x, y });
}

struct Dequantize<'a, T> {
    s: Scale,
    x: &'a [T],
    y: &'a mut [f32],
}

impl<T: Quantised> Op for Dequantize<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        for (y, &x) in self.y.iter_mut().zip(self.x) {
            *y = (x.to_i32() - self.s.zero_point) as f32 * self.s.scale;
        }
    }
}

/// ONNX DequantizeLinear with one scale. (Per channel, call it channel by channel, at load.)
///
/// # Panics
/// If the lengths differ.
pub fn dequantize<T: Quantised>(kernels: &Kernels, s: Scale, x: &[T], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "dequantize: input and output");
    kernels.checked.dispatch(Dequantize { s, x, y });
}

/// Multiples of a step between two bounds: the values that a tensor of 8 bits can hold. What rounds to them is
/// [`Activation::Grid`](super::Activation::Grid).
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    step: f32,
    /// `1 / step` where a quotient found by it rounds as a division's does, else 0.
    inverse: f32,
    lo: f32,
    hi: f32,
}

/// The largest multiple of the step that a bound may be: rounding by [`MAGIC`] is exact far beyond.
const STEPS_MAX: u32 = 1 << 16;

impl Grid {
    /// The multiples of `step` from `lo` to `hi` times it. None where there are no such: a step that is not
    /// positive and normal, `lo` above `hi`, or either more than 65536 steps from 0.
    pub fn new(kernels: &Kernels, step: f32, lo: i32, hi: i32) -> Option<Grid> {
        let within = lo <= hi && lo.unsigned_abs().max(hi.unsigned_abs()) <= STEPS_MAX;
        if !(step > 0.0 && step.is_normal() && within) {
            return None;
        }
        let divided = Grid { step, inverse: 0.0, lo: lo as f32, hi: hi as f32 };
        // Where neither a quotient nor what is left of it can be denormal.
        let moderate = (1e-18..1e18).contains(&step);
        let multiplied = Grid { inverse: 1.0 / step, ..divided };
        let agree = moderate && kernels.checked.dispatch(Agree(divided, multiplied, lo..hi));
        Some(if agree { multiplied } else { divided })
    }

    #[cfg(test)]
    pub(super) fn multiplies(&self) -> bool {
        self.inverse != 0.0
    }

    /// The least and the greatest value.
    pub(super) fn bounds(&self) -> (f32, f32) {
        (self.lo * self.step, self.hi * self.step)
    }

    /// The value nearest to `x` (in the middle, that of an even multiple), where `x` is within the bounds.
    #[inline(always)]
    pub(super) fn nearest<S: Simd>(self, x: S::V) -> S::V {
        let q = if self.inverse == 0.0 {
            S::div(x, S::splat(self.step))
        } else {
            // Faster than a division, which cores don't overlap: a quotient, and what is left, divided again.
            let inverse = S::splat(self.inverse);
            let q = S::mul(x, inverse);
            S::fma(S::fma(q, S::splat(-self.step), x), inverse, q)
        };
        let magic = S::splat(MAGIC);
        S::mul(S::sub(S::add(q, magic), magic), S::splat(self.step))
    }
}

/// As in `0..=255*0.5`.
impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}*{}", self.lo, self.hi, self.step)
    }
}

impl fmt::Debug for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Numbers on both sides of the middle between two multiples that [`Agree`] tries, half of them on each. Quotients
/// are found to within 2.5 of their last places with FMA or without, so that two of them can round to different
/// integers for fewer than half as many. Whole vectors of every set.
const TRIED: usize = 16;

/// Whether two grids, alike but for how they divide, round every number alike. `.2` are the multiples but the
/// last.
struct Agree(Grid, Grid, Range<i32>);

impl Op for Agree {
    type Out = bool;
    #[inline(always)]
    fn run<S: Simd>(self) -> bool {
        let Agree(one, other, multiples) = self;
        for k in multiples {
            let middle = ((f64::from(k) + 0.5) * f64::from(one.step)) as f32;
            let first = middle.to_bits() - (TRIED / 2) as u32;
            let x: [f32; TRIED] = core::array::from_fn(|i| f32::from_bits(first + i as u32));
            let mut rounded = [[0.0f32; TRIED]; 2];
            for (grid, to) in [one, other].into_iter().zip(&mut rounded) {
                for at in (0..TRIED).step_by(S::LANES) {
                    // SAFETY: a whole vector from `at` on: `TRIED` is a multiple of every `LANES`.
                    unsafe {
                        let v = grid.nearest::<S>(S::load(x.as_ptr().add(at)));
                        S::store(to.as_mut_ptr().add(at), v);
                    }
                }
            }
            if rounded[0] != rounded[1] {
                return false;
            }
        }
        true
    }
}

/// Half to single precision, exact. `x` holds the bits of IEEE halves.
///
/// # Panics
/// If the lengths differ.
pub fn half_to_single(x: &[u16], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "half_to_single: input and output");
    for (y, &x) in y.iter_mut().zip(x) {
        *y = half::f16::from_bits(x).to_f32();
    }
}

/// Single to half precision, to nearest even; too large becomes infinity.
///
/// # Panics
/// If the lengths differ.
pub fn single_to_half(x: &[f32], y: &mut [u16]) {
    assert_eq!(x.len(), y.len(), "single_to_half: input and output");
    for (y, &x) in y.iter_mut().zip(x) {
        *y = half::f16::from_f32(x).to_bits();
    }
}
