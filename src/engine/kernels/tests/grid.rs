//! Rounding to the values that 8 bits can hold, in the bits of the plain formula.

use super::reference::Random;
use super::*;
use proptest::prelude::*;

/// Quantised and back, as ONNX spells it out.
fn through_8_bits(x: f32, scale: f32, zero: i32, (lo, hi): (i32, i32)) -> f32 {
    let q = (x / scale).round_ties_even() + zero as f32;
    if q.is_nan() { q } else { (q.clamp(lo as f32, hi as f32) - zero as f32) * scale }
}

fn rounds_in_place(kernels: &Kernels, grid: Grid, x: &[f32]) -> Vec<f32> {
    let mut y = x.to_vec();
    unary_inplace(kernels, Unary::Act(Activation::Grid(grid)), &mut y);
    y
}

/// Numbers around the middle between any two values, where alone two ways to divide could differ, and others.
fn inputs(scale: f32, zero: i32, (lo, hi): (i32, i32), random: &mut Random) -> Vec<f32> {
    let mut x = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN];
    for k in lo - zero - 2..=hi - zero + 1 {
        let middle = ((f64::from(k) + 0.5) * f64::from(scale)) as f32;
        x.extend((0..20).map(|i| f32::from_bits(middle.to_bits() + i - 10)));
    }
    x.extend((0..1000).map(|_| random.next() * scale * 300.0));
    x
}

fn grid_case(scale: f32, zero: i32, bounds: (i32, i32), seed: u64) {
    let x = inputs(scale, zero, bounds, &mut Random::new(seed));
    for k in all() {
        let grid = Grid::new(&k, scale, bounds.0 - zero, bounds.1 - zero).unwrap();
        for (&x, y) in x.iter().zip(rounds_in_place(&k, grid, &x)) {
            let want = through_8_bits(x, scale, zero, bounds);
            let same = y.to_bits() == want.to_bits() || y.is_nan() && want.is_nan();
            assert!(same, "{k:?} {grid} at {x:e}: got {y:e}, want {want:e}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn grids_round_as_quantising_does(
        mantissa in 0u32..1 << 23, exponent in 40u32..210, zero in 0i32..256, signed in any::<bool>(), seed in any::<u64>(),
    ) {
        let scale = f32::from_bits(exponent << 23 | mantissa);
        let least = if signed { -128 } else { 0 };
        grid_case(scale, zero + least, (least, least + 255), seed);
    }

    /// In whatever a product ends with, rounding is what it is after it.
    #[test]
    fn products_round_in_their_epilogue(
        hw in (1usize..9, 1usize..9), channels in (1usize..20, 1usize..40), kernel in 1usize..4, opts in 0u8..8,
        scale in 0.01f32..0.2, seed in any::<u64>(),
    ) {
        let mut r = Random::new(seed);
        let depthwise = opts & 1 != 0;
        let c_out = if depthwise { channels.0 } else { channels.1 };
        let mut p = ConvParams::new(hw, (channels.0, c_out), (kernel, kernel));
        (p.pad_top, p.pad_left, p.pad_bottom, p.pad_right) = (kernel / 2, kernel / 2, kernel / 2, kernel / 2);
        p.groups = if depthwise { p.c_in } else { 1 };
        let x = r.vec(2 * p.input_len());
        let w = r.vec(p.c_out * p.c_in / p.groups * kernel * kernel);
        let res = (opts & 2 != 0).then(|| r.vec(2 * p.output_len()));
        let columns = w.len() / p.c_in;
        for k in all() {
            let grid = Grid::new(&k, scale, -20, 107).unwrap();
            let conv = Conv2d::new(&k, p, &w, None).unwrap();
            let run = |act: Activation| {
                let mut y = vec![f32::NAN; 2 * p.output_len()];
                let mut scratch = vec![f32::NAN; conv.scratch_len(2)];
                conv.run(&k, 2, &x, res.as_deref(), act, &mut y, &mut scratch);
                y
            };
            let want = rounds_in_place(&k, grid, &run(Activation::None));
            prop_assert_eq!(run(Activation::Grid(grid)), want, "{:?} {:?} {:?}", k, conv.algorithm(), p);
            let packed = PackedMatMul::new(&k, p.c_in, columns, &w, false, None);
            let rows = x.len() / p.c_in;
            let run = |act: Activation| {
                let mut y = vec![f32::NAN; rows * columns];
                packed.run(&k, rows, &x, p.c_in, None, act, &mut y, columns);
                y
            };
            let want = rounds_in_place(&k, grid, &run(Activation::None));
            prop_assert_eq!(run(Activation::Grid(grid)), want, "{:?} {} rows", k, rows);
        }
    }
}

#[test]
fn a_grid_multiplies_only_where_that_divides() {
    let scales = [6.0 / 255.0, 0.02812, 0.0398, 1.0 / 3.0, 1e-6, 123.4];
    for k in all() {
        for scale in scales {
            let grid = Grid::new(&k, scale, -128, 127).unwrap();
            // Without FMA what is left of a quotient is lost.
            let fused = !matches!(k.isa(), Isa::Portable | Isa::Neon32);
            assert_eq!(grid.multiplies(), fused, "{k:?} {scale}");
        }
        // The inverse, or what is left, would be denormal.
        for scale in [1e-30, 1e30] {
            assert!(!Grid::new(&k, scale, -128, 127).unwrap().multiplies(), "{k:?} {scale}");
        }
    }
}

#[test]
fn steps_that_make_no_grid_are_refused() {
    let k = Kernels::best();
    for scale in [0.0, -0.5, f32::NAN, f32::INFINITY, 1e-40] {
        assert_eq!(Grid::new(&k, scale, -128, 127), None, "{scale}");
    }
    assert_eq!(Grid::new(&k, 0.5, 1, 0), None);
    assert_eq!(Grid::new(&k, 0.5, i32::MIN, 0), None);
    assert_eq!(Grid::new(&k, 0.5, -128, 127).unwrap().to_string(), "-128..=127*0.5");
}
