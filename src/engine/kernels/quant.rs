//! Conversions: 8-bit quantised tensors and half precision.

use super::Kernels;
use super::isa::Op;
use super::simd::Simd;

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

/// `x / scale` to the nearest integer (half to even), plus the zero point, saturated. Done in `f32`, whose
/// integers are exact far beyond the range.
#[inline(always)]
fn to_grid<T: Quantised>(x: f32, s: Scale) -> f32 {
    let (lo, hi) = (T::LO as f32, T::HI as f32);
    // Clamped before rounding, so that the rounding trick's range is met; the clamp keeps NaN.
    let zero = s.zero_point as f32;
    let q = (x / s.scale).clamp(lo - zero - 1.0, hi - zero + 1.0);
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to integers, ties to even
    (((q + MAGIC) - MAGIC) + zero).clamp(lo, hi)
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
            *y = T::from_i32(to_grid::<T>(x, self.s) as i32);
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

struct Requantize<'a> {
    s: Scale,
    signed: bool,
    x: &'a mut [f32],
}

impl Op for Requantize<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let s = self.s;
        let zero = s.zero_point as f32;
        if self.signed {
            for x in self.x {
                *x = (to_grid::<i8>(*x, s) - zero) * s.scale;
            }
        } else {
            for x in self.x {
                *x = (to_grid::<u8>(*x, s) - zero) * s.scale;
            }
        }
    }
}

/// QuantizeLinear followed by DequantizeLinear, in place and in `f32`: the same values as through 8 bits.
/// NaN stays NaN.
pub fn quantize_dequantize(kernels: &Kernels, s: Scale, signed: bool, x: &mut [f32]) {
    kernels.checked.dispatch(Requantize { s, signed, x });
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
