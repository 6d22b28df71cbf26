//! Functions of elements, reductions, pooling, layouts, recurrent layers and conversions.

use super::super::{isa::Op, math, simd::Simd};
use super::reference::{ACTIVATIONS, Random, activate, erf};
use super::*;
use proptest::prelude::*;

/// Units in the last place between `got` and `want`, of the single-precision number nearest to `want`.
fn ulps(got: f32, want: f64) -> f64 {
    let near = want as f32;
    let ulp = f64::from(f32::from_bits(near.abs().to_bits() + 1)) - f64::from(near.abs());
    (f64::from(got) - want).abs() / ulp
}

/// The largest error in ulp of `f` over a dense sweep of `range`, and a check of lengths and in-place.
fn worst(kernels: &Kernels, op: Unary, range: (f64, f64), f: impl Fn(f64) -> f64) -> f64 {
    let n = 200_003;
    let x: Vec<f32> = (0..n)
        .map(|i| (range.0 + (range.1 - range.0) * f64::from(i) / f64::from(n - 1)) as f32)
        .collect();
    let mut y = vec![0.0; x.len()];
    unary(kernels, op, &x, &mut y);
    x.iter().zip(&y).map(|(&x, &y)| ulps(y, f(x.into()))).fold(0.0, f64::max)
}

#[test]
fn elementary_functions_are_within_their_ulps() {
    let act = Unary::Act;
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    for k in all() {
        let name = k.isa().name();
        let check = |what: &str, worst: f64, bound: f64| {
            assert!(worst <= bound, "{name} {what}: {worst} ulp, allowed {bound}");
        };
        check("exp", worst(&k, Unary::Exp, (-87.0, 88.7), f64::exp), 2.0);
        check("exp near 0", worst(&k, Unary::Exp, (-1e-3, 1e-3), f64::exp), 2.0);
        check("erf", worst(&k, Unary::Erf, (-5.0, 5.0), erf), 3.0);
        check("erf near 0", worst(&k, Unary::Erf, (-1e-3, 1e-3), erf), 3.0);
        check("tanh", worst(&k, act(Activation::Tanh), (-12.0, 12.0), f64::tanh), 3.0);
        check("tanh near 0", worst(&k, act(Activation::Tanh), (-1e-3, 1e-3), f64::tanh), 3.0);
        check("sigmoid", worst(&k, act(Activation::Sigmoid), (-86.0, 40.0), sigmoid), 4.0);
        check("silu", worst(&k, act(Activation::Silu), (-80.0, 40.0), |x| x * sigmoid(x)), 5.0);
        check("sqrt", worst(&k, Unary::Sqrt, (0.0, 1e6), f64::sqrt), 0.51);
        check("reciprocal", worst(&k, Unary::Reciprocal, (0.1, 1e3), |x| 1.0 / x), 0.51);
        check("rsqrt", worst(&k, Unary::Rsqrt, (0.1, 1e3), |x| 1.0 / x.sqrt()), 1.6);
        check("square", worst(&k, Unary::Square, (-1e3, 1e3), |x| x * x), 0.51);
    }
}

#[test]
fn activations_have_small_absolute_errors_and_keep_nan() {
    for k in all() {
        for act in ACTIVATIONS {
            let x: Vec<f32> = (0..4001).map(|i| (i - 2000) as f32 * 0.01).collect();
            let mut y = x.clone();
            unary_inplace(&k, Unary::Act(act), &mut y);
            let mut beside = vec![f32::NAN; x.len()];
            unary(&k, Unary::Act(act), &x, &mut beside);
            assert_eq!(beside, y, "{k:?} {act:?}");
            for (&x, &y) in x.iter().zip(&y) {
                let want = activate(act, x.into());
                let bound = 3e-7 * f64::from(x.abs()).max(1.0);
                assert!(
                    (f64::from(y) - want).abs() <= bound,
                    "{k:?} {act:?} at {x}: got {y}, want {want}"
                );
            }
            let mut y = [f32::NAN; 11];
            unary_inplace(&k, Unary::Act(act), &mut y);
            assert!(y.iter().all(|y| y.is_nan()), "{k:?} {act:?} of NaN");
        }
        let mut x = [f32::INFINITY, f32::NEG_INFINITY, 89.0, -200.0, -95.0];
        unary_inplace(&k, Unary::Exp, &mut x);
        assert_eq!(x[..4], [f32::INFINITY, 0.0, f32::INFINITY, 0.0], "{k:?}");
        assert!(
            (f64::from(x[4]) / (-95.0f64).exp() - 1.0).abs() < 1e-4,
            "{k:?}: exp into denormals"
        );
        for act in [Activation::Sigmoid, Activation::Tanh] {
            let mut x = [f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30];
            unary_inplace(&k, Unary::Act(act), &mut x);
            let lo = if act == Activation::Tanh { -1.0 } else { 0.0 };
            for (i, want) in [1.0, lo, 1.0, lo].into_iter().enumerate() {
                assert!((x[i] - want).abs() < 1e-37, "{k:?} {act:?}: {x:?}");
            }
        }
        for op in [Unary::Exp, Unary::Erf, Unary::Sqrt, Unary::Neg, Unary::Abs, Unary::Rsqrt] {
            let mut x = [f32::NAN; 3];
            unary_inplace(&k, op, &mut x);
            assert!(x.iter().all(|x| x.is_nan()), "{k:?} {op:?} of NaN");
        }
    }
}

fn binary_case(dims: [usize; 3], has: u8, op: u8, seed: u64) {
    const OPS: [Binary; 8] = [
        Binary::Add,
        Binary::Sub,
        Binary::RevSub,
        Binary::Mul,
        Binary::Div,
        Binary::RevDiv,
        Binary::Min,
        Binary::Max,
    ];
    let op = OPS[op as usize % 8];
    let shape = Broadcast { dims, has: [has & 1 != 0, has & 2 != 0, has & 4 != 0] };
    let mut r = Random::new(seed);
    let mut a = r.vec(shape.len());
    let mut b = r.vec(shape.second_len());
    if seed & 1 == 1 {
        a[seed as usize % shape.len()] = f32::NAN;
        b[seed as usize % shape.second_len()] = f32::NAN;
    }
    let [n, m, c] = dims;
    let len = |i: usize| if shape.has[i] { dims[i] } else { 1 };
    let mut want = vec![];
    for i in 0..n {
        for j in 0..m {
            for k in 0..c {
                let x = a[(i * m + j) * c + k];
                let y = b[(i % len(0) * len(1) + j % len(1)) * len(2) + k % len(2)];
                want.push(match op {
                    Binary::Add => x + y,
                    Binary::Sub => x - y,
                    Binary::RevSub => y - x,
                    Binary::Mul => x * y,
                    Binary::Div => x / y,
                    Binary::RevDiv => y / x,
                    _ if x.is_nan() || y.is_nan() => f32::NAN,
                    Binary::Min => x.min(y),
                    Binary::Max => x.max(y),
                });
            }
        }
    }
    for k in all() {
        let mut y = vec![0.0; shape.len()];
        binary(&k, op, shape, &a, &b, Activation::None, &mut y);
        let mut z = a.clone();
        binary_inplace(&k, op, shape, &mut z, &b, Activation::Relu);
        for (i, &w) in want.iter().enumerate() {
            assert!(y[i] == w || y[i].is_nan() && w.is_nan(), "{k:?} {op:?} {shape:?} at {i}");
            let w = if w < 0.0 { 0.0 } else { w };
            assert!(z[i] == w || z[i].is_nan() && w.is_nan(), "{k:?} {op:?} {shape:?} at {i}");
        }
    }
}

fn reduce_case(dims: [usize; 3], seed: u64) {
    let mut r = Random::new(seed);
    let x = r.vec(dims.iter().product());
    let [outer, len, inner] = dims;
    for k in all() {
        for op in
            [Reduction::Sum, Reduction::Mean, Reduction::SumSquares, Reduction::Max, Reduction::Min]
        {
            let mut y = vec![f32::NAN; outer * inner];
            reduce(&k, op, dims, &x, &mut y);
            for o in 0..outer {
                for i in 0..inner {
                    let v = (0..len).map(|j| f64::from(x[(o * len + j) * inner + i]));
                    let want = match op {
                        Reduction::Sum => v.sum(),
                        Reduction::Mean => v.sum::<f64>() / len as f64,
                        Reduction::SumSquares => v.map(|v| v * v).sum(),
                        Reduction::Max => v.fold(f64::NEG_INFINITY, f64::max),
                        Reduction::Min => v.fold(f64::INFINITY, f64::min),
                    };
                    let got = f64::from(y[o * inner + i]);
                    let bound = 1e-6 * len as f64;
                    assert!((got - want).abs() <= bound, "{k:?} {op:?} {dims:?}: {got} {want}");
                }
            }
            if !x.is_empty() {
                let mut x = x.clone();
                let at = seed as usize % x.len();
                x[at] = f32::NAN;
                reduce(&k, op, dims, &x, &mut y);
                for (j, y) in y.iter().enumerate() {
                    let hit = j == at / (len * inner) * inner + at % inner;
                    assert_eq!(y.is_nan(), hit, "{k:?} {op:?} {dims:?}: NaN at {at}");
                }
            }
        }
    }
}

fn rows_case(rows: usize, cols: usize, seed: u64) {
    let mut r = Random::new(seed);
    let x: Vec<f32> = r.vec(rows * cols).iter().map(|x| x * 20.0).collect();
    let (gamma, beta) = (r.vec(cols), r.vec(cols));
    for k in all() {
        let mut y = vec![0.0; x.len()];
        softmax(&k, rows, cols, &x, &mut y);
        let mut z = x.clone();
        softmax_inplace(&k, rows, cols, &mut z);
        assert_eq!(y, z);
        let p = LayerNorm { gamma: Some(&gamma), beta: Some(&beta), epsilon: 1e-5 };
        let mut l = vec![0.0; x.len()];
        layer_norm(&k, rows, cols, p, &x, &mut l);
        z.copy_from_slice(&x);
        layer_norm_inplace(&k, rows, cols, p, &mut z);
        assert_eq!(l, z);
        for i in 0..rows {
            let x: Vec<f64> = x[i * cols..][..cols].iter().map(|&x| x.into()).collect();
            let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = x.iter().map(|x| (x - top).exp()).sum();
            let mean = x.iter().sum::<f64>() / cols as f64;
            let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64;
            for j in 0..cols {
                let want = (x[j] - top).exp() / total;
                let got = f64::from(y[i * cols + j]);
                // The difference to the maximum, up to 40, is itself rounded.
                assert!((got - want).abs() <= 6e-6 * want + 1e-37, "{k:?} softmax {got} {want}");
                let d = (x[j] - mean) / (var + 1e-5).sqrt();
                let want = d * f64::from(gamma[j]) + f64::from(beta[j]);
                let got = f64::from(l[i * cols + j]);
                assert!((got - want).abs() <= 2e-5, "{k:?} layer_norm {rows}x{cols} {got} {want}");
            }
        }
    }
}

fn pool_case(p: PoolParams, batch: usize, seed: u64) {
    let mut r = Random::new(seed);
    let x = r.vec(batch * p.height * p.width * p.channels);
    let (oh, ow) = p.output();
    for k in all() {
        let mut y = vec![0.0; batch * oh * ow * p.channels];
        pool2d(&k, &p, batch, &x, &mut y);
        for (at, &got) in y.iter().enumerate() {
            let (c, rest) = (at % p.channels, at / p.channels);
            let (ox, oy, n) = (rest % ow, rest / ow % oh, rest / ow / oh);
            let (mut top, mut sum, mut inside, mut all) = (f64::NEG_INFINITY, 0.0, 0, 0);
            for ky in 0..p.kernel_h {
                for kx in 0..p.kernel_w {
                    let (y, xx) = (oy * p.stride_h + ky, ox * p.stride_w + kx);
                    let (hp, wp) = (p.pad_top + p.height, p.pad_left + p.width);
                    if y >= hp + p.pad_bottom || xx >= wp + p.pad_right {
                        continue;
                    }
                    all += 1;
                    if (p.pad_top..hp).contains(&y) && (p.pad_left..wp).contains(&xx) {
                        let row = n * p.height + y - p.pad_top;
                        let v = x[(row * p.width + xx - p.pad_left) * p.channels + c];
                        inside += 1;
                        top = top.max(v.into());
                        sum += f64::from(v);
                    }
                }
            }
            let want = match p.kind {
                PoolKind::Max => top,
                PoolKind::Average { count_include_pad: true } => sum / f64::from(all),
                PoolKind::Average { .. } => sum / f64::from(inside),
            };
            let got = f64::from(got);
            let same = (got - want).abs() < 1e-5 || got == want || got.is_nan() && want.is_nan();
            assert!(same, "{k:?} {p:?} at {at}: got {got}, want {want}");
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The functions of gates over whole vectors: hyperbolic tangents, then sigmoids.
struct Gates<'a>(&'a [f32], [&'a mut [f32]; 2]);

impl Op for Gates<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Gates(x, [tanh, sigmoid]) = self;
        for at in (0..x.len()).step_by(S::LANES) {
            let whole = at..at + S::LANES;
            let (x, t, s) = (&x[whole.clone()], &mut tanh[whole.clone()], &mut sigmoid[whole]);
            // SAFETY: all three have as many floats as a vector.
            unsafe {
                let x = S::load(x.as_ptr());
                S::store(t.as_mut_ptr(), math::gate_tanh::<S>(x));
                S::store(s.as_mut_ptr(), math::gate_sigmoid::<S>(x));
            }
        }
    }
}

#[test]
fn gates_are_within_their_absolute_errors() {
    let n: i32 = 1 << 19;
    let special = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, -0.0, f32::MAX, 1e-40, -90.0];
    let sweep = (0..n).map(|i| (i - n / 2) as f32 * (40.0 / n as f32));
    // Twice, for whole vectors of 16.
    let x: Vec<f32> = sweep.chain(special).chain(special).collect();
    for k in all() {
        let (mut tanh, mut sigmoids) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        k.checked.dispatch(Gates(&x, [&mut tanh, &mut sigmoids]));
        for ((&x, &t), &s) in x.iter().zip(&tanh).zip(&sigmoids) {
            let wide = f64::from(x);
            let name = k.isa().name();
            if x.is_nan() {
                assert!(t.is_nan() && s.is_nan(), "{name}: NaN became {t} and {s}");
                continue;
            }
            let (dt, ds) = (f64::from(t) - wide.tanh(), f64::from(s) - sigmoid(wide));
            assert!(dt.abs() <= 4e-7, "{name}: tanh {x} is {t}, wrong by {dt:e}");
            assert!(ds.abs() <= 3e-7, "{name}: sigmoid {x} is {s}, wrong by {ds:e}");
            assert!((-1.0..=1.0).contains(&t) && (0.0..=1.0).contains(&s), "{name}: {x}: {t}, {s}");
        }
    }
}

#[test]
fn gelu_is_within_its_absolute_error() {
    let n: i32 = 1 << 19;
    let special = [f32::INFINITY, f32::NAN, 0.0, -0.0, f32::MAX, f32::MIN, 1e-40, -1e-40, -90.0];
    let sweep = (0..n).map(|i| (i - n / 2) as f32 * (24.0 / n as f32));
    let x: Vec<f32> = sweep.chain(special).collect();
    for k in all() {
        let mut y = vec![f32::NAN; x.len()];
        unary(&k, Unary::Act(Activation::GeluErf), &x, &mut y);
        for (&x, &y) in x.iter().zip(&y) {
            let wide = f64::from(x);
            let want = wide / 2.0 * (1.0 + erf(wide / std::f64::consts::SQRT_2));
            let bound = 3e-7 * wide.abs().max(1.0);
            let right = f64::from(y) == want || (f64::from(y) - want).abs() <= bound;
            assert!(right || x.is_nan() && y.is_nan(), "{}: {x} gives {y}", k.isa().name());
        }
    }
}

/// Row `j` of a `[rows, k]` matrix times a vector.
fn dot(w: &[f32], j: usize, v: &[f64]) -> f64 {
    w[j * v.len()..][..v.len()].iter().zip(v).map(|(&w, v)| f64::from(w) * v).sum()
}

fn recurrent_case(steps: usize, batch: usize, input: usize, n: usize, opts: u8, seed: u64) {
    let mut r = Random::new(seed);
    let mut s = Sequence::step_first(steps, batch, input, n);
    s.reverse = opts & 1 != 0;
    if opts & 2 != 0 {
        (s.x_step, s.x_row, s.y_step, s.y_row) = (input, steps * input, n, steps * n);
    }
    let before = opts & 4 != 0;
    let x = r.vec(steps * batch * input);
    let (h0, c0) = (r.vec(batch * n), r.vec(batch * n));
    for lstm in [true, false] {
        let g = if lstm { 4 * n } else { 3 * n };
        let (w, rw) = (r.vec(g * input), r.vec(g * n));
        let bias = (opts & 8 != 0).then(|| r.vec(2 * g));
        let b = |i: usize| bias.as_ref().map_or(0.0, |b| f64::from(b[i]));
        let mut want = vec![0.0; steps * batch * n];
        let mut last = vec![];
        for row in 0..batch {
            let mut h: Vec<f64> = h0[row * n..][..n].iter().map(|&x| x.into()).collect();
            let mut c: Vec<f64> = c0[row * n..][..n].iter().map(|&x| x.into()).collect();
            for i in 0..steps {
                let t = if s.reverse { steps - 1 - i } else { i };
                let xt: Vec<f64> =
                    (0..input).map(|i| x[t * s.x_step + row * s.x_row + i].into()).collect();
                let from_x = |j: usize| dot(&w, j, &xt) + b(j);
                let from_h = |j: usize, h: &[f64]| dot(&rw, j, h) + b(g + j);
                let old = h.clone();
                if lstm {
                    for j in 0..n {
                        let gate = |q: usize| from_x(q * n + j) + from_h(q * n + j, &old);
                        c[j] = sigmoid(gate(2)) * c[j] + sigmoid(gate(0)) * gate(3).tanh();
                        h[j] = sigmoid(gate(1)) * c[j].tanh();
                    }
                } else {
                    let reset: Vec<f64> =
                        (n..2 * n).map(|j| sigmoid(from_x(j) + from_h(j, &old))).collect();
                    let scaled: Vec<f64> = reset.iter().zip(&old).map(|(r, h)| r * h).collect();
                    for j in 0..n {
                        let z = sigmoid(from_x(j) + from_h(j, &old));
                        let from_state = if before {
                            reset[j] * from_h(2 * n + j, &old)
                        } else {
                            from_h(2 * n + j, &scaled)
                        };
                        let new = (from_x(2 * n + j) + from_state).tanh();
                        h[j] = (1.0 - z) * new + z * old[j];
                    }
                }
                for (j, &v) in h.iter().enumerate() {
                    want[t * s.y_step + row * s.y_row + j] = v;
                }
            }
            last.extend(h);
        }
        for k in all() {
            let (mut h, mut c) = (h0.clone(), c0.clone());
            let mut y = vec![f32::NAN; steps * batch * n];
            if lstm {
                let cell = Lstm::new(&k, input, n, &w, &rw, bias.as_deref());
                let mut scratch = vec![f32::NAN; cell.scratch_len(steps, batch)];
                cell.run(&k, &s, &x, &mut h, &mut c, Some(&mut y), &mut scratch);
            } else {
                let cell = Gru::new(&k, (input, n), before, &w, &rw, bias.as_deref());
                let mut scratch = vec![f32::NAN; cell.scratch_len(steps, batch)];
                cell.run(&k, &s, &x, &mut h, Some(&mut y), &mut scratch);
            }
            let what = format!("{k:?} lstm {lstm} {s:?} {input}->{n}");
            for (got, want) in y.iter().zip(&want).chain(h.iter().zip(&last)) {
                assert!((f64::from(*got) - want).abs() < 2e-5, "{what}: got {got}, want {want}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn binary_broadcasts(n in 1usize..4, m in 1usize..5, c in 1usize..40, has in 0u8..8, op in 0u8..8, seed in any::<u64>()) {
        binary_case([n, m, c], has, op, seed);
    }

    #[test]
    fn reductions(outer in 1usize..4, len in 1usize..150, inner in 1usize..40, last in any::<bool>(), seed in any::<u64>()) {
        reduce_case([outer, len, if last { 1 } else { inner }], seed);
    }

    #[test]
    fn softmax_and_layer_norm(rows in 1usize..5, cols in 1usize..70, seed in any::<u64>()) {
        rows_case(rows, cols, seed);
    }

    #[test]
    fn pooling(
        hw in (1usize..9, 1usize..9), channels in 1usize..40, kernel in (1usize..4, 1usize..4), stride in (1usize..4, 1usize..4),
        pads in (0usize..3, 0usize..3, 0usize..3, 0usize..3), kind in 0u8..3, ceil_mode in any::<bool>(), batch in 1usize..3,
        seed in any::<u64>(),
    ) {
        let kind = match kind {
            0 => PoolKind::Max,
            n => PoolKind::Average { count_include_pad: n == 1 },
        };
        pool_case(PoolParams {
            kind, height: hw.0, width: hw.1, channels, kernel_h: kernel.0, kernel_w: kernel.1, stride_h: stride.0,
            stride_w: stride.1, pad_top: pads.0, pad_left: pads.1, pad_bottom: pads.2, pad_right: pads.3, ceil_mode,
        }, batch, seed);
    }

    #[test]
    fn recurrent(steps in 0usize..6, batch in 1usize..5, input in 1usize..9, n in 1usize..40, opts in 0u8..16, seed in any::<u64>()) {
        recurrent_case(steps, batch, input, n, opts, seed);
    }

    #[test]
    fn transposition(batch in 1usize..3, rows in 1usize..20, cols in 1usize..30, seed in any::<u64>()) {
        let x = Random::new(seed).vec(batch * rows * cols);
        for k in all() {
            let mut y = vec![0.0; x.len()];
            transpose(&k, batch, rows, cols, &x, &mut y);
            for (i, &v) in x.iter().enumerate() {
                let (c, r, b) = (i % cols, i / cols % rows, i / cols / rows);
                assert_eq!(y[(b * cols + c) * rows + r], v);
            }
        }
    }
}

#[test]
fn quantisation_rounds_half_to_even_and_saturates() {
    for k in all() {
        let s = Scale { scale: 0.5, zero_point: 3 };
        let x = [0.25, 0.75, 1.25, -0.25, -0.75, 1e9, -1e9, f32::INFINITY, 0.0, 10.0, 62.0, -65.5];
        let mut q = [0i8; 12];
        quantize(&k, s, &x, &mut q);
        assert_eq!(q, [3, 5, 5, 3, 1, 127, -128, 127, 3, 23, 127, -128], "{k:?}");
        let mut u = [0u8; 12];
        quantize(&k, s, &x, &mut u);
        assert_eq!(u, [3, 5, 5, 3, 1, 255, 0, 255, 3, 23, 127, 0], "{k:?}");
        let mut back = [0.0; 12];
        dequantize(&k, s, &q, &mut back);
        assert_eq!(back[..5], [0.0, 1.0, 1.0, 0.0, -1.0]);
        let grid = Grid::new(&k, s.scale, -128 - s.zero_point, 127 - s.zero_point).unwrap();
        let mut through = x;
        unary_inplace(&k, Unary::Act(Activation::Grid(grid)), &mut through);
        assert_eq!(through, back, "{k:?}");
    }
}

#[test]
fn halves_convert_exactly() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let mut single = vec![0.0; all.len()];
    half_to_single(&all, &mut single);
    assert_eq!(single[0x3C00], 1.0);
    assert_eq!(single[0x0001], 2.0f32.powi(-24));
    assert_eq!(single[0xFC00], f32::NEG_INFINITY);
    let mut back = vec![0; all.len()];
    single_to_half(&single, &mut back);
    for (i, x) in single.iter().enumerate() {
        assert!(x.is_nan() || back[i] == all[i], "{i:#x}");
    }
}
