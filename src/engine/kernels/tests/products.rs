//! Matrix products and convolutions.

use super::reference::{ACTIVATIONS, Random, Sum, check, conv};
use super::*;
use proptest::prelude::*;

fn product(m: usize, k: usize, n: usize, at: impl Fn(usize, usize, usize) -> f64) -> Vec<Sum> {
    let mut out = vec![Sum::default(); m * n];
    for i in 0..m {
        for j in 0..n {
            for kk in 0..k {
                out[i * n + j].add(at(i, kk, j));
            }
        }
    }
    out
}

fn packed_case(m: usize, k: usize, n: usize, opts: u64, seed: u64) {
    let mut r = Random::new(seed);
    let transposed = opts & 1 == 1;
    let (lda, ldc) = (k + (opts as usize >> 1 & 3), n + (opts as usize >> 3 & 3));
    let act = ACTIVATIONS[opts as usize % ACTIVATIONS.len()];
    let (a, b) = (r.vec(m * lda), r.vec(k * n));
    let bias = (opts & 32 != 0).then(|| r.vec(n));
    let res = (opts & 64 != 0).then(|| r.vec(m * n));
    let mut want = product(m, k, n, |i, kk, j| {
        f64::from(a[i * lda + kk])
            * f64::from(if transposed { b[j * k + kk] } else { b[kk * n + j] })
    });
    for (i, w) in want.iter_mut().enumerate() {
        w.add(bias.as_ref().map_or(0.0, |b| b[i % n].into()));
        w.add(res.as_ref().map_or(0.0, |r| r[i].into()));
    }
    for kernels in all() {
        let w = PackedMatMul::new(&kernels, k, n, &b, transposed, bias.as_deref());
        let mut c = vec![f32::NAN; m * ldc];
        w.run(&kernels, m, &a, lda, res.as_deref(), act, &mut c, ldc);
        let what = format!("{} {m}x{k}x{n} {act:?}", kernels.isa().name());
        let dense: Vec<f32> = c.chunks(ldc.max(1)).flat_map(|row| &row[..n]).copied().collect();
        check(&what, &dense, &want, act, 2e-6);
        for row in c.chunks(ldc) {
            assert!(row[n..].iter().all(|x| x.is_nan()), "{what}: wrote between the rows");
        }
        // A row alone has the same bits as in a batch.
        let mut alone = vec![0.0; n];
        for i in 0..m {
            let res = res.as_ref().map(|r| &r[i * n..][..n]);
            w.run(&kernels, 1, &a[i * lda..], lda, res, act, &mut alone, n);
            let same = alone.iter().zip(&dense[i * n..]).all(|(x, y)| x.to_bits() == y.to_bits());
            assert!(same, "{what}: row {i} differs when computed alone");
        }
    }
}

fn dynamic_case(m: usize, k: usize, n: usize, opts: u64, seed: u64) {
    let mut r = Random::new(seed);
    let b_transposed = opts & 1 == 1;
    let ldb = if b_transposed { k } else { n } + (opts as usize >> 5 & 3);
    let p = MatMulParams {
        m,
        k,
        n,
        lda: k + (opts as usize >> 1 & 3),
        ldb,
        ldc: n + (opts as usize >> 3 & 3),
        b_transposed,
        alpha: 0.5 + r.next().abs(),
        act: ACTIVATIONS[opts as usize % ACTIVATIONS.len()],
    };
    let a = r.vec(m * p.lda);
    let b = r.vec(if b_transposed { n } else { k } * ldb);
    let want = product(m, k, n, |i, kk, j| {
        let b = if b_transposed { b[j * ldb + kk] } else { b[kk * ldb + j] };
        f64::from(p.alpha) * f64::from(a[i * p.lda + kk]) * f64::from(b)
    });
    for kernels in all() {
        let mut scratch = vec![f32::NAN; matmul_scratch_len(&kernels, &p)];
        let mut c = vec![f32::NAN; m * p.ldc];
        matmul(&kernels, &p, &a, &b, &mut c, &mut scratch);
        let dense: Vec<f32> = c.chunks(p.ldc).flat_map(|row| &row[..n]).copied().collect();
        check(&format!("{} {p:?}", kernels.isa().name()), &dense, &want, p.act, 2e-6);
    }
}

/// Whether a set has Winograd's transforms, and for so many channels, a multiple of 8.
fn has_winograd(kernels: &Kernels, p: &ConvParams) -> bool {
    match kernels.isa() {
        Isa::Portable | Isa::Neon32 => false,
        Isa::Neon | Isa::Avx2 => true,
        Isa::Avx512 => p.c_in >= 16 && p.c_out >= 16,
    }
}

fn conv_case(p: ConvParams, batch: usize, opts: u64, seed: u64) {
    conv_case_by(p, batch, opts, seed, None, 3e-6);
}

fn conv_case_by(
    p: ConvParams,
    batch: usize,
    opts: u64,
    seed: u64,
    algorithm: Option<ConvAlgorithm>,
    tolerance: f64,
) {
    let mut r = Random::new(seed);
    let act = ACTIVATIONS[opts as usize % ACTIVATIONS.len()];
    let x = r.vec(batch * p.input_len());
    let w = r.vec(p.c_out * p.c_in / p.groups * p.kernel_h * p.kernel_w);
    let bias = (opts & 1 != 0).then(|| r.vec(p.c_out));
    let res = (opts & 2 != 0).then(|| r.vec(batch * p.output_len()));
    let want = conv(&p, batch, &x, &w, bias.as_deref(), res.as_deref());
    for kernels in all() {
        if !has_winograd(&kernels, &p) && algorithm.is_some() {
            let made = Conv2d::with_algorithm(&kernels, p, &w, bias.as_deref(), algorithm);
            assert!(matches!(made, Err(KernelError::Geometry(_))), "{kernels:?} {p:?}");
            continue;
        }
        let c = Conv2d::with_algorithm(&kernels, p, &w, bias.as_deref(), algorithm).expect("valid");
        let what = format!("{} {:?} x{batch} {act:?} {p:?}", kernels.isa().name(), c.algorithm());
        assert_eq!(algorithm.unwrap_or(c.algorithm()), c.algorithm());
        let mut y = vec![f32::NAN; batch * p.output_len()];
        let mut scratch = vec![f32::NAN; c.scratch_len(batch)];
        c.run(&kernels, batch, &x, res.as_deref(), act, &mut y, &mut scratch);
        check(&what, &y, &want, act, tolerance);
        // An image alone has the same bits as in the batch.
        let (xi, yi) = (p.input_len(), p.output_len());
        let mut alone = vec![f32::NAN; yi];
        for n in 0..batch {
            let res = res.as_ref().map(|r| &r[n * yi..][..yi]);
            c.run(&kernels, 1, &x[n * xi..][..xi], res, act, &mut alone, &mut scratch);
            let same = alone.iter().zip(&y[n * yi..]).all(|(x, y)| x.to_bits() == y.to_bits());
            assert!(same, "{what}: image {n} differs when computed alone");
        }
    }
}

/// Pads, strides and dilations from the bits of `g`, kept so that at least one pixel comes out.
fn geometry(
    hw: (usize, usize),
    channels: (usize, usize),
    kernel: (usize, usize),
    groups: usize,
    g: u64,
) -> ConvParams {
    let bits = |at: u32, n: u64| (g >> at) as usize % n as usize;
    let mut p = ConvParams::new(hw, (channels.0 * groups, channels.1 * groups), kernel);
    p.groups = groups;
    (p.stride_h, p.stride_w) = (1 + bits(0, 3), 1 + bits(2, 3));
    (p.dilation_h, p.dilation_w) = (1 + bits(4, 2), 1 + bits(5, 3) / 2);
    (p.pad_top, p.pad_left) = (bits(8, 4), bits(10, 4));
    (p.pad_bottom, p.pad_right) = (bits(12, 4), bits(14, 4));
    p.height = p.height.max(p.dilation_h * (p.kernel_h - 1) + 1);
    p.width = p.width.max(p.dilation_w * (p.kernel_w - 1) + 1);
    p
}

#[test]
fn narrow_images_of_few_channels_are_padded_first() {
    let first = |hw, channels, kernel, stride, pads: (usize, usize, usize, usize)| {
        let mut p = ConvParams::new(hw, channels, kernel);
        (p.stride_h, p.stride_w) = (stride, stride);
        (p.pad_top, p.pad_left, p.pad_bottom, p.pad_right) = pads;
        p
    };
    let speech = first((49, 10), (1, 64), (10, 4), 2, (4, 1, 5, 1));
    let tiny = first((32, 32), (3, 16), (3, 3), 1, (1, 1, 1, 1));
    let wide = first((96, 96), (3, 8), (3, 3), 2, (0, 0, 1, 1));
    // Floats of scratch for one image, and for seven.
    for (p, one, seven) in
        [(speech, 58 * 12, 5 * 58 * 12), (tiny, 34 * 34 * 3, 34 * 34 * 3), (wide, 0, 0)]
    {
        for kernels in all() {
            let w = vec![0.0; p.c_out * p.c_in * p.kernel_h * p.kernel_w];
            let conv = Conv2d::new(&kernels, p, &w, None).expect("valid");
            assert_eq!(conv.algorithm(), ConvAlgorithm::Direct);
            assert_eq!((conv.scratch_len(1), conv.scratch_len(7)), (one, seven), "{p:?}");
            assert_eq!(conv.scratch_len(0), 0);
        }
        conv_case(p, 7, 3, 1);
        conv_case(p, 1, 8, 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn packed_matmul(m in 1usize..40, k in 0usize..70, n in 1usize..90, opts in any::<u64>(), seed in any::<u64>()) {
        packed_case(m, k, n, opts, seed);
    }

    #[test]
    fn dynamic_matmul(m in 1usize..40, k in 0usize..40, n in 1usize..70, opts in any::<u64>(), seed in any::<u64>()) {
        dynamic_case(m, k, n, opts, seed);
    }

    #[test]
    fn convolution(
        hw in (1usize..12, 1usize..14), channels in (1usize..20, 1usize..36), kernel in (1usize..6, 1usize..6),
        groups in 1usize..4, batch in 1usize..9, g in any::<u64>(), opts in any::<u64>(), seed in any::<u64>(),
    ) {
        conv_case(geometry(hw, channels, kernel, groups, g), batch, opts, seed);
    }

    /// Images of more pixels than a table holds pointers for, whose lines are alike but for the first and the
    /// last ones.
    #[test]
    fn convolution_over_many_lines(
        hw in (12usize..40, 3usize..30), channels in (1usize..5, 1usize..24), kernel in (1usize..6, 1usize..6),
        batch in 1usize..4, g in any::<u64>(), opts in any::<u64>(), seed in any::<u64>(),
    ) {
        conv_case(geometry(hw, channels, kernel, 1, g), batch, opts, seed);
    }

    #[test]
    fn depthwise_convolution(
        hw in (1usize..14, 1usize..24), channels in 2usize..50, kernel in (1usize..8, 1usize..8), batch in 1usize..4,
        g in any::<u64>(), opts in any::<u64>(), seed in any::<u64>(),
    ) {
        let mut kernel = kernel;
        if opts & 16 == 0 {
            kernel = if opts & 32 == 0 { (3, 3) } else { (5, 5) };
        }
        conv_case(geometry(hw, (1, 1), kernel, channels, g), batch, opts, seed);
    }

    #[test]
    fn winograd_convolution(
        hw in (1usize..13, 1usize..13), channels in (1usize..5, 1usize..5), shape in 0usize..4, batch in 1usize..4,
        pads in (0usize..3, 0usize..3, 0usize..3, 0usize..3), opts in any::<u64>(), seed in any::<u64>(),
    ) {
        let kernel = [(3, 3), (3, 3), (1, 3), (1, 5)][shape];
        let mut p = ConvParams::new(hw, (channels.0 * 8, channels.1 * 8), kernel);
        p.height = p.height.max(kernel.0);
        p.width = p.width.max(kernel.1);
        (p.pad_top, p.pad_left, p.pad_bottom, p.pad_right) = pads;
        let by = if shape == 0 { ConvAlgorithm::Winograd2 } else { ConvAlgorithm::Winograd4 };
        // Against the sum of the magnitudes of few products; the transforms' sums are larger.
        conv_case_by(p, batch, opts, seed, Some(by), 2e-5);
    }

    #[test]
    fn pointwise_convolution(
        hw in (1usize..12, 1usize..14), channels in (1usize..40, 1usize..50), batch in 1usize..4, opts in any::<u64>(),
        seed in any::<u64>(),
    ) {
        conv_case(ConvParams::new(hw, channels, (1, 1)), batch, opts, seed);
    }
}

#[test]
fn every_tile_height_and_column_tail() {
    // Of sets with tiles of 6 rows and panels of 16 columns, then of those with 10 and 32.
    let tiles = (1..=14).flat_map(|m| (1..=34).map(move |n| (m, n)));
    let large = (15..=26).flat_map(|m| [1, 15, 16, 17, 31, 32, 33].map(|n| (m, n)));
    let wide = (1..=14).flat_map(|m| [47, 48, 49, 63, 64, 65, 97, 128, 129].map(|n| (m, n)));
    for (m, n) in tiles.chain(large).chain(wide) {
        packed_case(m, 5, n, (m * 7 + n) as u64, (m * 100 + n) as u64);
    }
}

#[test]
fn more_rows_than_a_chunk() {
    packed_case(900, 3, 17, 0, 1);
    packed_case(70, 2000, 5, 96, 2);
    // Activations that come after some panels of all rows.
    packed_case(300, 3, 70, 106, 3);
    packed_case(37, 4, 250, 107, 4);
}

#[test]
fn nan_and_infinity_propagate() {
    for kernels in all() {
        for act in ACTIVATIONS {
            let w = PackedMatMul::new(&kernels, 3, 20, &[1.0; 60], false, None);
            let mut c = vec![0.0; 9 * 20];
            let mut a = vec![1.0; 27];
            a[3 * 4] = f32::NAN;
            w.run(&kernels, 9, &a, 3, None, act, &mut c, 20);
            for (i, row) in c.chunks(20).enumerate() {
                assert!(row.iter().all(|x| x.is_nan() == (i == 4)), "{kernels:?} {act:?} row {i}");
            }
        }
        let w = PackedMatMul::new(&kernels, 1, 1, &[1.0], false, None);
        let mut c = [0.0];
        w.run(&kernels, 1, &[f32::INFINITY], 1, None, Activation::None, &mut c, 1);
        assert_eq!(c[0], f32::INFINITY);
    }
}

/// Every count of steps that the loop for cores that run in order leaves over, and convolutions' runs.
#[cfg(target_arch = "aarch64")]
#[test]
fn in_order_loops_give_the_same_bits() {
    let neon = Kernels::new(Isa::Neon).expect("of every processor");
    let mut r = Random::new(5);
    for m in 3..=13 {
        for k in (0..=22).chain([64, 129]) {
            let (n, lda) = (37, k + m % 3);
            let (a, b, bias) = (r.vec(m * lda), r.vec(k * n), r.vec(n));
            let w = PackedMatMul::new(&neon, k, n, &b, false, Some(&bias));
            let [x, y] = [false, true].map(|in_order| {
                let mut c = vec![f32::NAN; m * n];
                let act = Activation::Relu;
                w.run(&neon.with_in_order(in_order), m, &a, lda, None, act, &mut c, n);
                c.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            assert_eq!(x, y, "{m} x {k} x {n}");
        }
    }
    let mut p = ConvParams::new((9, 11), (10, 40), (3, 3));
    (p.pad_top, p.pad_left, p.stride_w) = (1, 1, 2);
    let (x, w) = (r.vec(3 * p.input_len()), r.vec(40 * 10 * 9));
    let direct = Some(ConvAlgorithm::Direct);
    let conv = Conv2d::with_algorithm(&neon, p, &w, None, direct).expect("valid");
    let [y, z] = [false, true].map(|in_order| {
        let mut y = vec![f32::NAN; 3 * p.output_len()];
        let kernels = neon.with_in_order(in_order);
        conv.run(&kernels, 3, &x, None, Activation::None, &mut y, &mut []);
        y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    assert_eq!(y, z);
}

/// The loops of 32-bit ARM are assembly: what is seen here is that they run, and of which rounding they are.
#[cfg(target_arch = "arm")]
#[test]
fn neon32_rounds_as_portable_kernels_but_flushes_denormals() {
    let portable = Kernels::new(Isa::Portable).expect("runs anywhere");
    let Ok(neon) = Kernels::new(Isa::Neon32) else { return };
    let mut r = Random::new(3);
    for (m, k, n) in [(4, 64, 8), (9, 37, 50), (1, 30, 77), (2, 21, 31), (3, 5, 9)] {
        let (a, b, bias) = (r.vec(m * k), r.vec(k * n), r.vec(n));
        let [x, y] = [&portable, &neon].map(|kernels| {
            let w = PackedMatMul::new(kernels, k, n, &b, false, Some(&bias));
            let mut c = vec![f32::NAN; m * n];
            w.run(kernels, m, &a, k, None, Activation::None, &mut c, n);
            c.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        assert_eq!(x, y, "{m} x {k} x {n}");
    }
    let denormal = f32::MIN_POSITIVE / 4.0;
    for m in 1..=5 {
        let a = vec![denormal; m * 7];
        let [x, y] = [&portable, &neon].map(|kernels| {
            let w = PackedMatMul::new(kernels, 7, 40, &[1.0; 280], false, None);
            let mut c = vec![f32::NAN; m * 40];
            w.run(kernels, m, &a, 7, None, Activation::None, &mut c, 40);
            c
        });
        assert_eq!(x, vec![7.0 * denormal; m * 40]);
        assert_eq!(y, vec![0.0; m * 40]);
    }
}

#[test]
fn winograd_is_chosen_and_stays_within_a_few_millionths() {
    for (hw, c, kernel) in [((12, 12), 64, (3, 3)), ((1, 64), 64, (1, 5)), ((64, 1), 48, (5, 1))] {
        let mut p = ConvParams::new(hw, (c, c), kernel);
        let mut r = Random::new(7);
        p.pad_top = kernel.0 / 2;
        let (x, w) = (r.vec(p.input_len()), r.vec(c * c * kernel.0 * kernel.1));
        let want = conv(&p, 1, &x, &w, None, None);
        let top = want.iter().map(|s| s.value.abs()).fold(0.0, f64::max);
        for kernels in all() {
            let conv = Conv2d::new(&kernels, p, &w, None).expect("valid");
            if !has_winograd(&kernels, &p) {
                assert_eq!(conv.algorithm(), ConvAlgorithm::Direct);
                continue;
            }
            assert_eq!(conv.algorithm(), ConvAlgorithm::Winograd4, "{p:?}");
            let mut y = vec![0.0; p.output_len()];
            let mut scratch = vec![0.0; conv.scratch_len(1)];
            conv.run(&kernels, 1, &x, None, Activation::None, &mut y, &mut scratch);
            for (y, w) in y.iter().zip(&want) {
                assert!((f64::from(*y) - w.value).abs() <= 8e-6 * top, "{kernels:?} {p:?}");
            }
        }
    }
}

#[test]
fn winograd_spreads_nan_within_a_tile() {
    const C: usize = 16;
    let p = ConvParams::new((10, 10), (C, C), (3, 3));
    for kernels in all().filter(|kernels| has_winograd(kernels, &p)) {
        let wanted = Some(ConvAlgorithm::Winograd4);
        let conv =
            Conv2d::with_algorithm(&kernels, p, &[1.0; C * C * 9], None, wanted).expect("fits");
        let mut x = vec![1.0; p.input_len()];
        x[(3 * 10 + 3) * C] = f32::NAN;
        let mut y = vec![0.0; p.output_len()];
        let mut scratch = vec![0.0; conv.scratch_len(1)];
        conv.run(&kernels, 1, &x, None, Activation::Relu, &mut y, &mut scratch);
        for (i, y) in y.iter().enumerate() {
            let (oy, ox) = (i / (8 * C), i / C % 8);
            if (1..=3).contains(&oy) && (1..=3).contains(&ox) {
                assert!(y.is_nan(), "{kernels:?} at {oy} {ox}");
            }
            if oy > 5 || ox > 5 {
                assert!(!y.is_nan(), "{kernels:?} at {oy} {ox}");
            }
        }
    }
}

#[test]
fn bad_geometry_is_a_typed_error() {
    let kernels = Kernels::best();
    let mut p = ConvParams::new((4, 4), (4, 6), (3, 3));
    p.groups = 3;
    assert!(matches!(Conv2d::new(&kernels, p, &[], None), Err(KernelError::Geometry(_))));
    p.groups = 2;
    assert_eq!(
        Conv2d::new(&kernels, p, &[0.0; 7], None).unwrap_err(),
        KernelError::Length { what: "weights", want: 108, got: 7 }
    );
    let p = ConvParams::new((64, 64), (1, 1), (40, 40));
    assert!(matches!(
        Conv2d::new(&kernels, p, &[0.0; 1600], None),
        Err(KernelError::Taps { taps: 1600, .. })
    ));
}
