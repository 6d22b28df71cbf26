//! Tensors of 8 bits: what a code stands for, and weights as whole numbers.

use super::aligned::AlignedBuf;
use super::conv::KernelError;
use super::isa::Op;
use super::quant::{Scale, dequantize};
use super::simd::Simd;
use super::{Kernels, cast};
use serde::{Deserialize, Serialize};

/// What the bytes of a tensor stand for: `c` for `(c + lo) * step`, from 0 to `hi - lo`.
///
/// ONNX's `int8` and `uint8` are both of this form: the code is what the integer has above the least one that
/// the tensor can hold.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Codes {
    step: f32,
    lo: i16,
    hi: i16,
}

impl Codes {
    /// The multiples of `step` from `lo` to `hi` times it. None where there are no such: a step that is not positive
    /// and normal, more of them than 8 bits tell apart, or 0 not among them.
    pub fn new(step: f32, lo: i32, hi: i32) -> Option<Codes> {
        let zero_within = lo <= 0 && 0 <= hi;
        if !(step > 0.0 && step.is_normal() && zero_within && hi.checked_sub(lo)? <= 255) {
            return None;
        }
        Some(Codes { step, lo: lo.try_into().ok()?, hi: hi.try_into().ok()? })
    }

    /// The value of one step.
    pub fn step(&self) -> f32 {
        self.step
    }

    /// Which code stands for 0.
    pub fn zero(&self) -> u8 {
        // Within 0 and 255, by `new`.
        -self.lo as u8
    }

    /// The multiple of the step that code 0 stands for.
    pub(super) fn first(&self) -> i16 {
        self.lo
    }

    /// The multiple furthest from 0, as far as it is from it.
    fn largest(&self) -> i64 {
        i64::from((-self.lo).max(self.hi))
    }
}

/// Whole numbers that are `weights`, each to the bit, when multiplied by the step that comes with them: the
/// largest step that has such numbers within a byte's range and its negative. None where there is none.
///
/// The graph library hands over what a graph of 8 bits makes of its weights, floats; these are what they were, or
/// as good.
fn multiples(weights: &[f32]) -> Option<(f32, Vec<i16>)> {
    let largest = weights.iter().fold(0.0f32, |most, w| most.max(w.abs()));
    if largest == 0.0 {
        return Some((1.0, vec![0; weights.len()]));
    }
    for count in 1..=255u8 {
        let quotient = largest / f32::from(count);
        // Its neighbours too: the largest weight was rounded.
        for bits in [0, 1, -1i32] {
            let step = f32::from_bits(quotient.to_bits().wrapping_add_signed(bits));
            if !step.is_normal() {
                return None;
            }
            let whole = |&w: &f32| {
                let n = (w / step).round();
                (n * step == w && n.abs() <= 255.0).then_some(n as i16)
            };
            if let Some(whole) = weights.iter().map(whole).collect() {
                return Some((step, whole));
            }
        }
    }
    None
}

/// From whole sums to codes, for each channel: `(sum + bias) * factor + rest`, rounded once and bounded.
///
/// What of the bias is a whole number of the sums' steps is one, added where they are; the rest is nearly nothing
/// in a graph that was quantised as a whole.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ends {
    pub(super) factor: AlignedBuf,
    pub(super) rest: AlignedBuf,
    pub(super) x: Codes,
    pub(super) y: Codes,
}

impl Ends {
    /// Bytes of the buffers.
    pub(super) fn bytes(&self) -> usize {
        self.factor.bytes() + self.rest.bytes()
    }

    /// The view that kernels take, from channel `from`.
    pub(super) fn at(&self, from: usize) -> End {
        End {
            factor: self.factor[from..].as_ptr(),
            rest: self.rest[from..].as_ptr(),
            lo: self.y.lo.into(),
            hi: self.y.hi.into(),
            zero: self.y.zero().into(),
            x_zero: self.x.zero().into(),
        }
    }
}

/// [`Ends`], by pointer.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    factor: *const f32,
    rest: *const f32,
    lo: f32,
    hi: f32,
    zero: i32,
    /// The code of the input that stands for 0.
    pub(super) x_zero: f32,
}

impl End {
    /// What makes codes of sums of the `LANES` channels from `channel`.
    /// # Safety
    /// There are a vector's factors and rests from `channel`.
    #[inline(always)]
    pub(super) unsafe fn of<S: Simd>(&self, channel: usize) -> Rounding<S> {
        // SAFETY: the caller's promise.
        let (factor, rest) =
            unsafe { (S::load(self.factor.add(channel)), S::load(self.rest.add(channel))) };
        let (lo, hi) = (S::splat(self.lo), S::splat(self.hi));
        Rounding { factor, rest, lo, hi, zero: S::integers(self.zero) }
    }
}

/// What makes codes of sums, of a vector of channels.
#[derive(Clone, Copy)]
pub(super) struct Rounding<S: Simd> {
    factor: S::V,
    rest: S::V,
    lo: S::V,
    hi: S::V,
    zero: S::I,
}

impl<S: Simd> Rounding<S> {
    /// The multiples of the step that sums are, not rounded, but bounded.
    #[inline(always)]
    fn multiples(&self, sums: S::V) -> S::V {
        S::min(self.hi, S::max(self.lo, S::fma(sums, self.factor, self.rest)))
    }

    /// Stores the codes of sums; if `PART`, of the first `n < LANES`.
    /// # Safety
    /// `p` is valid for writing so many.
    #[inline(always)]
    pub(super) unsafe fn store<const PART: bool>(&self, p: *mut u8, sums: S::V, n: usize) {
        let v = self.multiples(sums);
        // SAFETY: the caller's promise; bounded, and with the zero's code, lanes are codes.
        unsafe {
            if PART {
                S::store_bytes_part(p, v, self.zero, n)
            } else {
                S::store_bytes(p, v, self.zero)
            }
        }
    }

    /// Stores the codes of the sums of two vectors of channels, these and the `next`.
    /// # Safety
    /// `p` is valid for writing `2 * LANES` codes.
    #[inline(always)]
    pub(super) unsafe fn store_twice(&self, next: &Rounding<S>, p: *mut u8, sums: [S::V; 2]) {
        let v = [self.multiples(sums[0]), next.multiples(sums[1])];
        // SAFETY: as in `store`.
        unsafe { S::store_bytes_twice(p, v, self.zero) }
    }
}

/// Weights of output channels as whole numbers, and what makes codes of their sums.
pub(super) struct Whole {
    /// One row a channel.
    pub(super) weights: Vec<Vec<i16>>,
    /// One a channel.
    pub(super) bias: Vec<i32>,
    pub(super) ends: Ends,
    /// The largest magnitude that a sum can have.
    pub(super) largest: i64,
}

impl Whole {
    /// Of `channels` channels with as many weights each, padded to `padded` (zeros), over codes `x`.
    ///
    /// # Errors
    /// `Geometry` where weights are not multiples of a step, or sums can overflow.
    pub(super) fn new(
        (channels, padded): (usize, usize),
        weights: &[f32],
        bias: Option<&[f32]>,
        x: Codes,
        y: Codes,
    ) -> Result<Whole, KernelError> {
        let mut whole = Whole {
            weights: Vec::with_capacity(channels),
            bias: Vec::with_capacity(channels),
            ends: Ends {
                factor: AlignedBuf::zeroed(padded),
                rest: AlignedBuf::zeroed(padded),
                x,
                y,
            },
            largest: 0,
        };
        let each = weights.len() / channels.max(1);
        for channel in 0..channels {
            let (step, row) = multiples(&weights[channel * each..][..each])
                .ok_or(KernelError::Geometry("the weights are not multiples of a step"))?;
            let step = f64::from(step) * f64::from(x.step);
            let bias = bias.map_or(0.0, |b| f64::from(b[channel]));
            let steps = (bias / step).round();
            let size: i64 = row.iter().map(|&w| i64::from(w).abs()).sum();
            // What is far too large saturates.
            let largest = (size * x.largest()).saturating_add(steps.abs() as i64);
            if steps.is_nan() || largest > i64::from(i32::MAX) {
                return Err(KernelError::Geometry("the sums are too large for 32 bits"));
            }
            whole.largest = whole.largest.max(largest);
            whole.bias.push(steps as i32);
            whole.ends.factor[channel] = (step / f64::from(y.step)) as f32;
            whole.ends.rest[channel] = ((bias - steps * step) / f64::from(y.step)) as f32;
            whole.weights.push(row);
        }
        Ok(whole)
    }
}

/// Integers of 32 bits in a buffer of words.
pub(super) fn integers(values: impl ExactSizeIterator<Item = i32>) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(values.len());
    let words = cast::bytes_mut(&mut buf).as_chunks_mut::<4>().0;
    for (word, value) in words.iter_mut().zip(values) {
        *word = value.to_ne_bytes();
    }
    buf
}

struct Encode<'a> {
    to: Codes,
    x: &'a [f32],
    y: &'a mut [u8],
}

impl Op for Encode<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Encode { to, x, y } = self;
        let (step, zero) = (S::splat(to.step), S::integers(to.zero().into()));
        let (lo, hi) = (S::splat(to.lo.into()), S::splat(to.hi.into()));
        let (mut at, n) = (0, x.len());
        // SAFETY: `x` and `y` are as long; whole vectors while they fit, then what is left.
        unsafe {
            while at < n {
                let part = n - at < S::LANES;
                let from = x.as_ptr().add(at);
                let v = if part { S::load_part(from, n - at) } else { S::load(from) };
                let v = S::min(S::max(S::div(v, step), lo), hi);
                let to = y.as_mut_ptr().add(at);
                if part {
                    S::store_bytes_part(to, v, zero, n - at)
                } else {
                    S::store_bytes(to, v, zero)
                }
                at += S::LANES;
            }
        }
    }
}

/// The code of what is nearest to each of `x` (in the middle, of an even multiple), where it is within bounds. Of NaN
/// some code.
///
/// # Panics
/// If the lengths differ.
pub fn encode(kernels: &Kernels, to: Codes, x: &[f32], y: &mut [u8]) {
    assert_eq!(x.len(), y.len(), "encode: input and output");
    kernels.checked.dispatch(Encode { to, x, y });
}

/// What each of `x` stands for.
///
/// # Panics
/// If the lengths differ.
pub fn decode(kernels: &Kernels, from: Codes, x: &[u8], y: &mut [f32]) {
    let scale = Scale { scale: from.step, zero_point: from.zero().into() };
    dequantize(kernels, scale, x, y);
}

struct Add<'a> {
    codes: [Codes; 3],
    a: &'a [u8],
    b: &'a [u8],
    y: &'a mut [u8],
}

impl Op for Add<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Add { codes: [from_a, from_b, to], a, b, y } = self;
        // In steps of the result.
        let share = |codes: Codes| f64::from(codes.step) / f64::from(to.step);
        let first = |codes: Codes| f64::from(codes.lo) * share(codes);
        let (by_a, by_b) = (S::splat(share(from_a) as f32), S::splat(share(from_b) as f32));
        let offset = S::splat((first(from_a) + first(from_b)) as f32);
        let zero = S::integers(to.zero().into());
        let (lo, hi) = (S::splat(to.lo.into()), S::splat(to.hi.into()));
        let (mut at, n) = (0, y.len());
        // SAFETY: all three are as long; whole vectors while they fit, then what is left.
        unsafe {
            while at < n {
                let part = n - at < S::LANES;
                let load = |p: *const u8| match part {
                    true => S::load_bytes_part(p.add(at), n - at),
                    false => S::load_bytes(p.add(at)),
                };
                let v = S::fma(load(b.as_ptr()), by_b, S::fma(load(a.as_ptr()), by_a, offset));
                let v = S::min(S::max(v, lo), hi);
                let to = y.as_mut_ptr().add(at);
                if part {
                    S::store_bytes_part(to, v, zero, n - at)
                } else {
                    S::store_bytes(to, v, zero)
                }
                at += S::LANES;
            }
        }
    }
}

/// The codes of sums, element by element: those of `a`, of `b`, and of the result.
///
/// # Panics
/// If the lengths differ.
pub fn add_codes(kernels: &Kernels, codes: [Codes; 3], a: &[u8], b: &[u8], y: &mut [u8]) {
    assert_eq!((a.len(), b.len()), (y.len(), y.len()), "add_codes: inputs and output");
    kernels.checked.dispatch(Add { codes, a, b, y });
}
