//! Plain references that accumulate in `f64`, and a comparison that knows the size of the sums.

use super::super as crate_kernels;
use crate_kernels::{Activation, ConvParams};

/// A repeatable stream of floats in -1..1.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    pub fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next()).collect()
    }
}

/// A value and the sum of the magnitudes that went into it, which bounds its rounding error.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum {
    pub value: f64,
    pub size: f64,
}

impl Sum {
    pub fn add(&mut self, x: f64) {
        self.value += x;
        self.size += x.abs();
    }
}

pub fn erf(x: f64) -> f64 {
    // Maclaurin series where it converges without cancellation, continued fraction beyond.
    if x < 0.0 {
        return -erf(-x);
    }
    if x < 2.5 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-18 * sum {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let mut f = 0.0;
    for k in (1..=120).rev() {
        f = f64::from(k) / 2.0 / (x + f);
    }
    1.0 - (-x * x).exp() / (x + f) / std::f64::consts::PI.sqrt()
}

pub fn activate(act: Activation, x: f64) -> f64 {
    match act {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Clip { lo, hi } => x.max(lo.into()).min(hi.into()),
        Activation::LeakyRelu { alpha } => {
            if x < 0.0 {
                x * f64::from(alpha)
            } else {
                x
            }
        }
        Activation::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        Activation::HardSigmoid { alpha, beta } => {
            (f64::from(alpha) * x + f64::from(beta)).clamp(0.0, 1.0)
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + u.tanh())
        }
        // It jumps, so that it can't be held to a tolerance; its tests compare bits.
        Activation::Grid(grid) => unreachable!("{grid} has a reference of its own"),
    }
}

pub const ACTIVATIONS: [Activation; 12] = [
    Activation::None,
    Activation::Relu,
    Activation::Clip { lo: 0.0, hi: 6.0 },
    Activation::Clip { lo: -0.25, hi: f32::INFINITY },
    Activation::LeakyRelu { alpha: 0.1 },
    Activation::HardSwish,
    Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
    Activation::Silu,
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::GeluErf,
    Activation::GeluTanh,
];

/// Checks results against sums put through an activation (whose slope is at most about 1.1).
pub fn check(what: &str, got: &[f32], want: &[Sum], act: Activation, tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, w)) in got.iter().zip(want).enumerate() {
        let value = activate(act, w.value);
        let bound = tolerance * (w.size + value.abs() + 1e-30);
        assert!(
            (f64::from(g) - value).abs() <= bound,
            "{what}, element {i} of {}: got {g}, want {value}, allowed {bound:e}",
            got.len()
        );
    }
}

pub fn conv(
    p: &ConvParams,
    batch: usize,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    residual: Option<&[f32]>,
) -> Vec<Sum> {
    let (oh, ow) = p.output();
    let (cin_g, cout_g) = (p.c_in / p.groups, p.c_out / p.groups);
    let mut out = Vec::new();
    for n in 0..batch {
        for oy in 0..oh {
            for ox in 0..ow {
                for o in 0..p.c_out {
                    let mut s = Sum::default();
                    for ky in 0..p.kernel_h {
                        for kx in 0..p.kernel_w {
                            let y = (oy * p.stride_h + ky * p.dilation_h).wrapping_sub(p.pad_top);
                            let xx = (ox * p.stride_w + kx * p.dilation_w).wrapping_sub(p.pad_left);
                            if y >= p.height || xx >= p.width {
                                continue;
                            }
                            for c in 0..cin_g {
                                let at = ((n * p.height + y) * p.width + xx) * p.c_in;
                                let xv = x[at + o / cout_g * cin_g + c];
                                let wv = w[((o * cin_g + c) * p.kernel_h + ky) * p.kernel_w + kx];
                                s.add(f64::from(xv) * f64::from(wv));
                            }
                        }
                    }
                    if let Some(b) = bias {
                        s.add(b[o].into());
                    }
                    if let Some(r) = residual {
                        s.add(r[out.len()].into());
                    }
                    out.push(s);
                }
            }
        }
    }
    out
}
