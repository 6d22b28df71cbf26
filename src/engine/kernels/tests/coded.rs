//! Convolutions of codes against sums of plain integers.

use super::reference::Random;
use super::*;
use proptest::prelude::*;

/// As [`CodedConv`] has it, spelt out: whole weights `w` times `steps[channel]`, whole biases in steps of the sums.
struct Case {
    p: ConvParams,
    w: Vec<i32>,
    steps: Vec<f32>,
    bias: Vec<i32>,
    x: Codes,
    y: Codes,
}

/// From the bounds that a test chose.
fn codes(step: f32, lo: i32, hi: i32) -> Codes {
    Codes::new(step, lo, hi).expect("0 within, at most 256 of them")
}

impl Case {
    fn new(p: ConvParams, r: &mut Random) -> Case {
        let each = p.c_in / p.groups * p.kernel_h * p.kernel_w;
        let mut whole = |most: f32| (r.next() * (most + 0.99)) as i32;
        let mut w: Vec<i32> = (0..p.c_out * each).map(|_| whole(127.0)).collect();
        // A step is told by the largest weight.
        w.chunks_mut(each).for_each(|row| row[0] = 127);
        let bias = (0..p.c_out).map(|_| whole(2000.0)).collect();
        let lo = -(whole(127.0) + 128);
        let steps = (0..p.c_out).map(|_| 0.001 + r.next().abs() * 0.01).collect();
        let size = (each as f32).sqrt();
        let y = codes(0.02 * size, -90, 165);
        Case { p, w, steps, bias, x: codes(0.013, lo, lo + 255), y }
    }

    /// The sum of a result, in whole steps.
    fn sum(&self, x: &[u8], (n, oy, ox, c): (usize, usize, usize, usize)) -> i64 {
        let p = &self.p;
        let (cin, cout) = (p.c_in / p.groups, p.c_out / p.groups);
        let mut sum = i64::from(self.bias[c]);
        for ky in 0..p.kernel_h {
            for kx in 0..p.kernel_w {
                let y = (oy * p.stride_h + ky * p.dilation_h).wrapping_sub(p.pad_top);
                let column = (ox * p.stride_w + kx * p.dilation_w).wrapping_sub(p.pad_left);
                if y >= p.height || column >= p.width {
                    continue;
                }
                for i in 0..cin {
                    let at = ((n * p.height + y) * p.width + column) * p.c_in + c / cout * cin + i;
                    let w = self.w[((c * cin + i) * p.kernel_h + ky) * p.kernel_w + kx];
                    let zero = i32::from(self.x.zero());
                    sum += i64::from(w * (i32::from(x[at]) - zero));
                }
            }
        }
        sum
    }

    fn check(&self, batch: usize, seed: u64) {
        let (p, mut r) = (&self.p, Random::new(seed));
        let each = self.w.len() / p.c_out;
        let weights: Vec<f32> =
            (self.w.iter().enumerate()).map(|(i, &w)| w as f32 * self.steps[i / each]).collect();
        let step = |c: usize| f64::from(self.steps[c]) * f64::from(self.x.step());
        let bias: Vec<f32> =
            (self.bias.iter().enumerate()).map(|(c, &b)| (f64::from(b) * step(c)) as f32).collect();
        let x: Vec<u8> =
            (0..batch * p.input_len()).map(|_| (r.next() * 128.0 + 128.0) as u8).collect();
        let (oh, ow) = p.output();
        for kernels in all() {
            let conv = CodedConv::new(&kernels, *p, &weights, Some(&bias), (self.x, self.y))
                .expect("whole weights");
            let mut scratch = vec![f32::NAN; conv.scratch_len(batch)];
            let mut y = vec![0xAA; batch * p.output_len()];
            conv.run(&kernels, batch, &x, &mut y, &mut scratch);
            for (i, &got) in y.iter().enumerate() {
                let (pixel, c) = (i / p.c_out, i % p.c_out);
                let at = (pixel / (oh * ow), pixel / ow % oh, pixel % ow, c);
                // Rounded once: within a hair of the middle either neighbour will do.
                let exact = self.sum(&x, at) as f64 * step(c) / f64::from(self.y.step());
                let bounded = exact.clamp(-90.0, 165.0) + 90.0;
                let off = (f64::from(got) - bounded).abs();
                assert!(
                    off <= 0.5 + 1e-3,
                    "{kernels:?} {p:?} {at:?}: got {got}, exactly {bounded}"
                );
            }
            // An image alone has the bits that it has in a batch.
            for n in 0..batch {
                let mut alone = vec![0; p.output_len()];
                let image = &x[n * p.input_len()..][..p.input_len()];
                conv.run(&kernels, 1, image, &mut alone, &mut scratch);
                assert_eq!(alone, y[n * p.output_len()..][..p.output_len()], "{kernels:?} {p:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products_of_codes_are_exact(m in 1usize..70, k in 1usize..50, n in 1usize..70, seed in any::<u64>()) {
        let p = ConvParams::new((1, 1), (k, n), (1, 1));
        Case::new(p, &mut Random::new(seed)).check(m, seed ^ 1);
    }

    #[test]
    fn convolutions_of_codes_are_exact(
        size in (1usize..9, 1usize..9),
        channels in (1usize..9, 1usize..20),
        kernel in (1usize..4, 1usize..4),
        stride in (1usize..3, 1usize..3),
        dilation in (1usize..3, 1usize..3),
        pads in (0usize..3, 0usize..3, 0usize..3, 0usize..3),
        batch in 1usize..4,
        seed in any::<u64>(),
    ) {
        let p = placed(ConvParams::new(size, channels, kernel), stride, dilation, pads);
        prop_assume!(p.output().0 * p.output().1 > 0);
        Case::new(p, &mut Random::new(seed)).check(batch, seed ^ 1);
    }

    #[test]
    fn depthwise_convolutions_of_codes_are_exact(
        size in (1usize..13, 1usize..13),
        channels in 2usize..40,
        kernel in (1usize..6, 1usize..6),
        stride in (1usize..3, 1usize..3),
        dilation in (1usize..3, 1usize..3),
        pads in (0usize..3, 0usize..3, 0usize..3, 0usize..3),
        batch in 1usize..3,
        seed in any::<u64>(),
    ) {
        let p = ConvParams { groups: channels, ..ConvParams::new(size, (channels, channels), kernel) };
        let p = placed(p, stride, dilation, pads);
        prop_assume!(p.output().0 * p.output().1 > 0);
        Case::new(p, &mut Random::new(seed)).check(batch, seed ^ 1);
    }

    #[test]
    fn codes_are_of_the_nearest_value(len in 0usize..40, lo in -255i32..1, seed in any::<u64>()) {
        let (step, hi) = (0.037, lo + 255);
        let mut r = Random::new(seed);
        let mut value = || r.next() * step * 300.0;
        let x: Vec<f32> = (0..len).map(|_| value()).collect();
        let other = codes(0.021, -7, 100);
        let values = |of: Codes, codes: &[u8]| -> Vec<f32> {
            codes.iter().map(|&c| (i32::from(c) - i32::from(of.zero())) as f32 * of.step()).collect()
        };
        let nearest = |x: f32| ((x / step).round_ties_even() as i32).clamp(lo, hi) - lo;
        for k in all() {
            let of = codes(step, lo, hi);
            let mut y = vec![0xAA; len];
            encode(&k, of, &x, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                prop_assert_eq!(i32::from(y), nearest(x), "{:?} at {}", k, x);
            }
            let mut back = vec![f32::NAN; len];
            decode(&k, of, &y, &mut back);
            prop_assert_eq!(&back, &values(of, &y));
            let b: Vec<u8> = y.iter().map(|&y| y / 3).collect();
            let mut sum = vec![0xAA; len];
            add_codes(&k, [of, other, of], &y, &b, &mut sum);
            for (i, (a, b)) in back.iter().zip(values(other, &b)).enumerate() {
                let exact = (f64::from(a + b) / f64::from(step)).clamp(lo.into(), hi.into());
                let off = (f64::from(sum[i]) + f64::from(lo) - exact).abs();
                prop_assert!(off <= 0.5 + 1e-3, "{:?} of {} and {}: {}", k, a, b, sum[i]);
            }
        }
    }
}

fn placed(
    p: ConvParams,
    (stride_h, stride_w): (usize, usize),
    (dilation_h, dilation_w): (usize, usize),
    (pad_top, pad_left, pad_bottom, pad_right): (usize, usize, usize, usize),
) -> ConvParams {
    ConvParams {
        stride_h,
        stride_w,
        dilation_h,
        dilation_w,
        pad_top,
        pad_left,
        pad_bottom,
        pad_right,
        ..p
    }
}

#[test]
fn the_shapes_of_a_network_are_exact() {
    let mut seed = 3;
    for (m, k, n) in [(50, 16, 96), (13, 960, 160), (1, 1280, 1000), (49, 320, 40), (400, 3, 17)] {
        seed += 1;
        let p = ConvParams::new((1, 1), (k, n), (1, 1));
        Case::new(p, &mut Random::new(seed)).check(m, seed);
    }
}

#[test]
fn what_is_not_whole_is_refused_with_the_reason() {
    let k = Kernels::best();
    let p = ConvParams::new((1, 1), (3, 1), (1, 1));
    let (x, y) = (codes(0.1, -128, 127), codes(0.1, 0, 255));
    let made = |p: ConvParams, w: &[f32], bias: Option<&[f32]>| {
        CodedConv::new(&k, p, w, bias, (x, y)).map(|_| ())
    };
    assert_eq!(made(p, &[0.5, -1.0, 0.25], None), Ok(()));
    assert_eq!(made(p, &[0.0; 3], Some(&[7.0])), Ok(()));
    let geometry = |made: Result<(), KernelError>, reason: &str| match made {
        Err(KernelError::Geometry(text)) => assert!(text.contains(reason), "{text}"),
        other => panic!("{other:?}"),
    };
    geometry(made(p, &[0.5, 0.333, 1.0], None), "multiples");
    geometry(made(p, &[f32::NAN, 0.5, 1.0], None), "multiples");
    geometry(made(p, &[1.0, 1.0, 1.0], Some(&[1e12])), "too large");
    geometry(made(p, &[1.0, 1.0, 1.0], Some(&[f32::NAN])), "too large");
    let grouped = ConvParams { groups: 2, ..ConvParams::new((1, 1), (4, 4), (1, 1)) };
    geometry(made(grouped, &[1.0; 8], None), "one channel");
    let short = KernelError::Length { what: "weights", want: 3, got: 2 };
    assert_eq!(made(p, &[1.0; 2], None), Err(short));
    // 257 values, no zero, no step.
    for (step, lo, hi) in [(0.1, -128, 128), (0.1, 1, 20), (0.0, -1, 1), (f32::NAN, -1, 1)] {
        assert_eq!(Codes::new(step, lo, hi), None, "{step} {lo} {hi}");
    }
}
