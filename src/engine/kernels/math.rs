//! Vector forms of the elementary functions.
//!
//! Coefficients are minimax fits (relative error below 5e-9 before rounding) made for these
//! intervals. The errors stated are in units in the last place of the result, against `f64`; the
//! tests hold them over a dense sweep.

use super::simd::Simd;

/// `a[0] + a[1] x + ...` by Horner's rule.
#[inline(always)]
fn poly<S: Simd, const N: usize>(x: S::V, a: [f32; N]) -> S::V {
    let mut acc = S::splat(a[N - 1]);
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        acc = S::fma(acc, x, S::splat(a[i]));
    }
    acc
}

/// `exp(x)`: at most 2 ulp where the result is normal; infinity above 88.73, gradual to 0 below -87.
#[inline(always)]
pub(super) fn exp<S: Simd>(x: S::V) -> S::V {
    // x = n ln 2 + r; exp x = 2^n exp r, with 2^n in two factors, so that n may be 128 or below -126.
    let x = S::min(S::splat(89.0), S::max(S::splat(-104.0), x));
    let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
    let r = S::fma(n, S::splat(-0.693_359_4), x); // exact in 9 bits, so the product is too
    let r = S::fma(n, S::splat(2.121_944_4e-4), r);
    let q =
        poly::<S, 5>(r, [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_71, 0.001_381_461_3]);
    let p = S::add(S::fma(S::mul(r, r), q, r), S::splat(1.0));
    let n1 = S::round(S::mul(n, S::splat(0.5)));
    let n2 = S::sub(n, n1);
    S::mul(S::mul(p, S::pow2(n1)), S::pow2(n2))
}

/// `exp(x)` for `x <= 0`, where results below 1e-38 may be 0: at most 2 ulp.
#[inline(always)]
pub(super) fn exp_neg<S: Simd>(x: S::V) -> S::V {
    let x = S::max(S::splat(-87.0), x);
    let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
    let r = S::fma(n, S::splat(-0.693_359_4), x);
    let r = S::fma(n, S::splat(2.121_944_4e-4), r);
    let q =
        poly::<S, 5>(r, [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_71, 0.001_381_461_3]);
    let p = S::add(S::fma(S::mul(r, r), q, r), S::splat(1.0));
    S::mul(p, S::pow2(n))
}

/// `1 / (1 + exp(-x))`: at most 4 ulp above -87; below that the result is under 2e-38.
#[inline(always)]
pub(super) fn sigmoid<S: Simd>(x: S::V) -> S::V {
    // With e = exp(-|x|): 1 / (1 + e) for positive x, e / (1 + e) for negative. No overflow.
    let e = exp_neg::<S>(S::sub(S::splat(0.0), S::abs(x)));
    let num = S::select(S::lt(x, S::splat(0.0)), e, S::splat(1.0));
    S::div(num, S::add(S::splat(1.0), e))
}

/// `tanh(x)`: at most 3 ulp.
#[inline(always)]
pub(super) fn tanh<S: Simd>(x: S::V) -> S::V {
    let a = S::abs(x);
    let z = S::mul(x, x);
    let q = poly::<S, 5>(
        z,
        [-0.333_332_8, 0.133_314_42, -0.053_739_715, 0.020_639_088, -0.005_704_987_3],
    );
    let small = S::fma(S::mul(x, z), q, x);
    let e = exp_neg::<S>(S::mul(S::splat(-2.0), a));
    let big = S::div(S::sub(S::splat(1.0), e), S::add(S::splat(1.0), e));
    S::select(S::lt(a, S::splat(0.625)), small, S::copysign(big, x))
}

/// `tanh(x)` for the gates of recurrent layers, where only the absolute error counts: at most 4e-7, by one
/// quotient of polynomials on -8..8, beyond which it is 1 to within that error.
#[inline(always)]
pub(super) fn gate_tanh<S: Simd>(x: S::V) -> S::V {
    // The bound goes second, so NaN stays.
    let x = S::min(S::splat(8.0), S::max(S::splat(-8.0), x));
    let z = S::mul(x, x);
    let p = poly::<S, 5>(z, [1.0, 0.134_445_01, 0.003_571_602_3, 2.189_473_3e-5, 1.523_051_7e-8]);
    let q = poly::<S, 5>(z, [1.0, 0.467_778_3, 0.026_164_46, 0.000_341_129_9, 8.522_487e-7]);
    S::div(S::mul(x, p), q)
}

/// `1 / (1 + exp(-x))` for the same: absolute error at most 3e-7.
#[inline(always)]
pub(super) fn gate_sigmoid<S: Simd>(x: S::V) -> S::V {
    let half = S::splat(0.5);
    S::fma(half, gate_tanh::<S>(S::mul(half, x)), half)
}

/// Below it `x * sigmoid(x)` and both forms of GELU are as good as 0, their limit, which is also what is made of
/// negative infinity. The factor `x` stops there, since the other one does not get below 1e-38. (The bound goes
/// first, so that NaN stays.)
const FLAT: f32 = -100.0;

/// `erf(x)`: at most 3 ulp.
#[inline(always)]
pub(super) fn erf<S: Simd>(x: S::V) -> S::V {
    let a = S::abs(x);
    let z = S::mul(x, x);
    let q = poly::<S, 7>(
        z,
        [
            0.128_379_17,
            -0.376_126_26,
            0.112_835_854,
            -0.026_853_813,
            0.005_188_328_7,
            -0.000_801_02,
            7.853_883e-5,
        ],
    );
    let small = S::fma(x, q, x);
    // erfc(a) = exp(P(a)) on 0.9..3.95; beyond, erf rounds to 1. The bound goes second, so NaN stays.
    let t = S::min(S::splat(4.0), a);
    let p = poly::<S, 7>(
        t,
        [
            -0.000_166_447_77,
            -1.127_797_2,
            -0.636_976_06,
            -0.104_113_676,
            0.022_315_213,
            -0.003_065_490_2,
            0.000_198_219_66,
        ],
    );
    let big = S::sub(S::splat(1.0), exp_neg::<S>(p));
    S::select(S::lt(a, S::splat(0.95)), small, S::copysign(big, x))
}

/// `x / 2 * (1 + erf(x / sqrt 2))`: absolute error at most 3e-7 * max(1, |x|). Only that counts here, so that
/// `erf` is one quotient of polynomials, and 1 where it is so to within that error.
#[inline(always)]
pub(super) fn gelu_erf<S: Simd>(x: S::V) -> S::V {
    let z = S::mul(x, x);
    let p = poly::<S, 6>(
        z,
        [0.797_884_5, 0.065_871_656, 0.009_255_992, 0.000_320_67, 1.275_813_5e-5, 4.810_054e-8],
    );
    let q = poly::<S, 6>(
        z,
        [1.0, 0.249_224_1, 0.028_138_85, 0.001_836_574_2, 7.135_25e-5, 1.237_167_9e-6],
    );
    let e = S::div(S::mul(x, p), q);
    let e = S::select(S::lt(S::abs(x), S::splat(5.3)), e, S::copysign(S::splat(1.0), x));
    let h = S::mul(S::max(S::splat(FLAT), x), S::splat(0.5));
    S::fma(h, e, h)
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`: absolute error at most 3e-7 * max(1, |x|).
#[inline(always)]
pub(super) fn gelu_tanh<S: Simd>(x: S::V) -> S::V {
    // 0.5 (1 + tanh u) = sigmoid(2 u).
    let x3 = S::mul(S::mul(x, x), x);
    let u = S::mul(S::splat(1.595_769_2), S::fma(S::splat(0.044_715), x3, x));
    S::mul(S::max(S::splat(FLAT), x), sigmoid::<S>(u))
}

/// `x * sigmoid(x)`: at most 5 ulp above -87; below that the result is under 2e-36.
#[inline(always)]
pub(super) fn silu<S: Simd>(x: S::V) -> S::V {
    S::mul(S::max(S::splat(FLAT), x), sigmoid::<S>(x))
}

/// `min(max(alpha * x + beta, 0), 1)`
#[inline(always)]
pub(super) fn hardsigmoid<S: Simd>(x: S::V, alpha: f32, beta: f32) -> S::V {
    let y = S::fma(S::splat(alpha), x, S::splat(beta));
    S::min(S::splat(1.0), S::max(S::splat(0.0), y))
}

/// `x * min(max(x / 6 + 0.5, 0), 1)`
#[inline(always)]
pub(super) fn hardswish<S: Simd>(x: S::V) -> S::V {
    S::mul(x, hardsigmoid::<S>(x, 1.0 / 6.0, 0.5))
}

/// `x` where positive, else `alpha * x`.
#[inline(always)]
pub(super) fn leaky_relu<S: Simd>(x: S::V, alpha: f32) -> S::V {
    S::select(S::lt(x, S::splat(0.0)), S::mul(x, S::splat(alpha)), x)
}
