//! Repeated measurements and what is said of them.

use serde::{Deserialize, Serialize};

/// A figure over several repeats: median, least and largest. Never a single number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Median over the repeats.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// How many repeats.
    pub repeats: usize,
}

impl Spread {
    /// Of at least one value.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        assert!(n > 0, "a spread of nothing");
        let median =
            if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 };
        Spread { median, min: sorted[0], max: sorted[n - 1], repeats: n }
    }

    /// Of the ratios of pairs measured in the same repeat.
    ///
    /// # Panics
    /// If there is none, or the lengths differ.
    pub fn of_ratios(ours: &[f64], floor: &[f64]) -> Spread {
        assert_eq!(ours.len(), floor.len(), "ratios are of pairs");
        let ratios: Vec<f64> = ours.iter().zip(floor).map(|(a, b)| a / b).collect();
        Spread::of(&ratios)
    }
}

/// The `permille`-th percentile of `values` (nearest rank); sorts them.
///
/// # Panics
/// If there is none.
pub fn percentile(values: &mut [u64], permille: usize) -> u64 {
    values.sort_unstable();
    let rank = (values.len() * permille).div_ceil(1000).max(1);
    values[rank - 1]
}

#[cfg(test)]
mod tests;
