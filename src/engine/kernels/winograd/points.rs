//! Interpolation points and their transforms, spelled out. The coefficients are exact fractions; each point's
//! row is scaled by a power of two, which the weights take back.

use super::super::simd::Simd;

/// Longest tile, in one direction.
pub(super) const N: usize = 8;

/// A set of interpolation points, in one direction.
pub(super) trait Points {
    /// Outputs of a tile.
    const OUTPUTS: usize;
    /// Taps of the kernel.
    const TAPS: usize;
    /// Points, and inputs of a tile.
    const SIZE: usize;
    /// Transforms `SIZE` inputs to points.
    fn input<S: Simd>(x: [S::V; N]) -> [S::V; N];
    /// Transforms `SIZE` points to `OUTPUTS` outputs.
    fn output<S: Simd>(x: [S::V; N]) -> [S::V; N];
    /// Transforms `TAPS` weights to points.
    fn weights(w: &[f64]) -> [f64; N];
}

/// Points 0, 1, -1, infinity: 2 outputs of a kernel of 3.
#[derive(Debug, Clone, Copy)]
pub(super) struct F23;

impl Points for F23 {
    const OUTPUTS: usize = 2;
    const TAPS: usize = 3;
    const SIZE: usize = 4;

    #[inline(always)]
    fn input<S: Simd>(x: [S::V; N]) -> [S::V; N] {
        let mut y = x;
        y[0] = S::sub(x[2], x[0]);
        y[1] = S::add(x[1], x[2]);
        y[2] = S::sub(x[2], x[1]);
        y[3] = S::sub(x[3], x[1]);
        y
    }
    #[inline(always)]
    fn output<S: Simd>(x: [S::V; N]) -> [S::V; N] {
        let mut y = x;
        y[0] = S::add(S::add(x[0], x[1]), x[2]);
        y[1] = S::add(S::sub(x[1], x[2]), x[3]);
        y
    }
    fn weights(w: &[f64]) -> [f64; N] {
        let mut y = [0.0; N];
        y[0] = -w[0];
        y[1] = w[0] / 2.0 + w[1] / 2.0 + w[2] / 2.0;
        y[2] = w[0] / 2.0 - w[1] / 2.0 + w[2] / 2.0;
        y[3] = w[2] * 1.0;
        y
    }
}

/// Points 0, 1, -1, 1/2, -2, infinity: 4 outputs of a kernel of 3.
#[derive(Debug, Clone, Copy)]
pub(super) struct F43;

impl Points for F43 {
    const OUTPUTS: usize = 4;
    const TAPS: usize = 3;
    const SIZE: usize = 6;

    #[inline(always)]
    fn input<S: Simd>(x: [S::V; N]) -> [S::V; N] {
        let mut y = x;
        y[0] = S::add(
            S::fma(
                x[3],
                S::splat(1.5),
                S::fma(x[2], S::splat(-2.0), S::fma(x[1], S::splat(-1.5), x[0])),
            ),
            x[4],
        );
        y[1] = S::fma(x[3], S::splat(2.5), S::fma(x[2], S::splat(0.5), S::sub(x[4], x[1])));
        y[2] = S::add(S::fma(x[3], S::splat(0.5), S::fma(x[2], S::splat(-2.5), x[1])), x[4]);
        y[3] = S::fma(x[3], S::splat(2.0), S::sub(S::fma(x[1], S::splat(-2.0), x[4]), x[2]));
        y[4] = S::fma(x[3], S::splat(-0.5), S::sub(S::fma(x[1], S::splat(0.5), x[4]), x[2]));
        y[5] = S::add(
            S::fma(
                x[4],
                S::splat(1.5),
                S::fma(x[3], S::splat(-2.0), S::fma(x[2], S::splat(-1.5), x[1])),
            ),
            x[5],
        );
        y
    }
    #[inline(always)]
    fn output<S: Simd>(x: [S::V; N]) -> [S::V; N] {
        let mut y = x;
        y[0] = S::add(S::add(S::add(S::add(x[0], x[1]), x[2]), x[3]), x[4]);
        y[1] = S::fma(x[4], S::splat(-2.0), S::fma(x[3], S::splat(0.5), S::sub(x[1], x[2])));
        y[2] = S::fma(x[4], S::splat(4.0), S::fma(x[3], S::splat(0.25), S::add(x[1], x[2])));
        y[3] = S::add(
            S::fma(x[4], S::splat(-8.0), S::fma(x[3], S::splat(0.125), S::sub(x[1], x[2]))),
            x[5],
        );
        y
    }
    fn weights(w: &[f64]) -> [f64; N] {
        let mut y = [0.0; N];
        y[0] = w[0] * 1.0;
        y[1] = w[0] / 3.0 + w[1] / 3.0 + w[2] / 3.0;
        y[2] = -w[0] / 3.0 + w[1] / 3.0 - w[2] / 3.0;
        y[3] = w[0] * -16.0 / 15.0 + w[1] * -8.0 / 15.0 + w[2] * -4.0 / 15.0;
        y[4] = w[0] / 15.0 + w[1] * -2.0 / 15.0 + w[2] * 4.0 / 15.0;
        y[5] = w[2] * 1.0;
        y
    }
}

/// Points 0, 1, -1, 2, -2, 1/2, -1/2, infinity: 4 outputs of a kernel of 5.
#[derive(Debug, Clone, Copy)]
pub(super) struct F45;

impl Points for F45 {
    const OUTPUTS: usize = 4;
    const TAPS: usize = 5;
    const SIZE: usize = 8;

    #[inline(always)]
    fn input<S: Simd>(x: [S::V; N]) -> [S::V; N] {
        let mut y = x;
        y[0] = S::fma(
            x[6],
            S::splat(0.5),
            S::fma(
                x[4],
                S::splat(-2.625),
                S::fma(x[2], S::splat(2.625), S::mul(x[0], S::splat(-0.5))),
            ),
        );
        y[1] = S::fma(
            x[6],
            S::splat(0.5),
            S::fma(
                x[5],
                S::splat(0.5),
                S::fma(
                    x[4],
                    S::splat(-2.125),
                    S::fma(
                        x[3],
                        S::splat(-2.125),
                        S::fma(x[2], S::splat(0.5), S::mul(x[1], S::splat(0.5))),
                    ),
                ),
            ),
        );
        y[2] = S::fma(
            x[6],
            S::splat(0.5),
            S::fma(
                x[5],
                S::splat(-0.5),
                S::fma(
                    x[4],
                    S::splat(-2.125),
                    S::fma(
                        x[3],
                        S::splat(2.125),
                        S::fma(x[2], S::splat(0.5), S::mul(x[1], S::splat(-0.5))),
                    ),
                ),
            ),
        );
        y[3] = S::fma(
            x[5],
            S::splat(2.0),
            S::fma(
                x[4],
                S::splat(-1.25),
                S::fma(
                    x[3],
                    S::splat(-2.5),
                    S::fma(x[2], S::splat(0.25), S::fma(x[1], S::splat(0.5), x[6])),
                ),
            ),
        );
        y[4] = S::fma(
            x[5],
            S::splat(-2.0),
            S::fma(
                x[4],
                S::splat(-1.25),
                S::fma(
                    x[3],
                    S::splat(2.5),
                    S::fma(x[2], S::splat(0.25), S::fma(x[1], S::splat(-0.5), x[6])),
                ),
            ),
        );
        y[5] = S::fma(
            x[6],
            S::splat(0.5),
            S::fma(
                x[5],
                S::splat(0.25),
                S::fma(
                    x[4],
                    S::splat(-2.5),
                    S::fma(x[3], S::splat(-1.25), S::fma(x[2], S::splat(2.0), x[1])),
                ),
            ),
        );
        y[6] = S::fma(
            x[6],
            S::splat(0.5),
            S::fma(
                x[5],
                S::splat(-0.25),
                S::fma(
                    x[4],
                    S::splat(-2.5),
                    S::fma(
                        x[3],
                        S::splat(1.25),
                        S::fma(x[2], S::splat(2.0), S::mul(x[1], S::splat(-1.0))),
                    ),
                ),
            ),
        );
        y[7] = S::fma(
            x[7],
            S::splat(0.5),
            S::fma(
                x[5],
                S::splat(-2.625),
                S::fma(x[3], S::splat(2.625), S::mul(x[1], S::splat(-0.5))),
            ),
        );
        y
    }
    #[inline(always)]
    fn output<S: Simd>(x: [S::V; N]) -> [S::V; N] {
        let mut y = x;
        y[0] = S::add(
            S::add(S::add(S::add(S::add(S::add(x[0], x[1]), x[2]), x[3]), x[4]), x[5]),
            x[6],
        );
        y[1] = S::fma(
            x[6],
            S::splat(-0.5),
            S::fma(
                x[5],
                S::splat(0.5),
                S::fma(x[4], S::splat(-2.0), S::fma(x[3], S::splat(2.0), S::sub(x[1], x[2]))),
            ),
        );
        y[2] = S::fma(
            x[6],
            S::splat(0.25),
            S::fma(
                x[5],
                S::splat(0.25),
                S::fma(x[4], S::splat(4.0), S::fma(x[3], S::splat(4.0), S::add(x[1], x[2]))),
            ),
        );
        y[3] = S::add(
            S::fma(
                x[6],
                S::splat(-0.125),
                S::fma(
                    x[5],
                    S::splat(0.125),
                    S::fma(x[4], S::splat(-8.0), S::fma(x[3], S::splat(8.0), S::sub(x[1], x[2]))),
                ),
            ),
            x[7],
        );
        y
    }
    fn weights(w: &[f64]) -> [f64; N] {
        let mut y = [0.0; N];
        y[0] = w[0] * -2.0;
        y[1] = w[0] * -4.0 / 9.0
            + w[1] * -4.0 / 9.0
            + w[2] * -4.0 / 9.0
            + w[3] * -4.0 / 9.0
            + w[4] * -4.0 / 9.0;
        y[2] = w[0] * -4.0 / 9.0
            + w[1] * 4.0 / 9.0
            + w[2] * -4.0 / 9.0
            + w[3] * 4.0 / 9.0
            + w[4] * -4.0 / 9.0;
        y[3] =
            w[0] / 90.0 + w[1] / 45.0 + w[2] * 2.0 / 45.0 + w[3] * 4.0 / 45.0 + w[4] * 8.0 / 45.0;
        y[4] =
            w[0] / 90.0 - w[1] / 45.0 + w[2] * 2.0 / 45.0 + w[3] * -4.0 / 45.0 + w[4] * 8.0 / 45.0;
        y[5] = w[0] * 64.0 / 45.0
            + w[1] * 32.0 / 45.0
            + w[2] * 16.0 / 45.0
            + w[3] * 8.0 / 45.0
            + w[4] * 4.0 / 45.0;
        y[6] = w[0] * 64.0 / 45.0
            + w[1] * -32.0 / 45.0
            + w[2] * 16.0 / 45.0
            + w[3] * -8.0 / 45.0
            + w[4] * 4.0 / 45.0;
        y[7] = w[4] * 2.0;
        y
    }
}
