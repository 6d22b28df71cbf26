//! Activations over all that a float can be.

use super::reference::{ACTIVATIONS, activate};
use super::*;

/// Every sign and exponent, each with several mantissas, and what is no number.
fn everywhere() -> Vec<f32> {
    let mantissas = [0u32, 1, 0x12_3456, 0x40_0000, 0x5a_5a5a, 0x7f_ffff];
    let bits = (0..512u32).flat_map(|top| mantissas.map(|mantissa| top << 23 | mantissa));
    bits.map(f32::from_bits).collect()
}

#[test]
fn activations_hold_from_the_least_float_to_the_greatest() {
    let x = everywhere();
    assert!(x.contains(&f32::MIN) && x.contains(&f32::INFINITY) && x.contains(&f32::from_bits(1)));
    for k in all() {
        for act in ACTIVATIONS {
            let mut y = vec![0.0; x.len()];
            unary(&k, Unary::Act(act), &x, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                let want = activate(act, x.into());
                // Far out the functions are flat or straight, so that the error no longer grows with `x`.
                let bound = 4e-7 * want.abs() + 3e-7 * f64::from(x.abs()).clamp(1.0, 10.0);
                let near = f64::from(y) == want || (f64::from(y) - want).abs() <= bound;
                let right = if x.is_nan() {
                    y.is_nan()
                } else if want.is_nan() {
                    // Infinity times 0: the formula's answer, or the limit.
                    y.is_nan() || y.abs() < 1e-35
                } else if want.abs() > f64::from(f32::MAX) {
                    y.abs() >= f32::MAX && f64::from(y).signum() == want.signum()
                } else {
                    near
                };
                assert!(right, "{} {act:?} of {x:e}: {y:e}, not {want:e}", k.isa().name());
            }
        }
    }
}
