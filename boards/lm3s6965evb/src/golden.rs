//! The goldens of two models, in flash.

/// Rows of a model's input, and the answer to them.
pub struct Golden {
    /// The model's name.
    pub model: &'static str,
    /// How many rows.
    pub rows: u16,
    /// f32, little-endian.
    pub input: &'static [u8],
    /// f32, little-endian.
    pub output: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/golden.rs"));

/// Longest output.
pub const OUTPUT_BYTES_MAX: usize = 256;
const _: () = {
    let mut n = 0;
    while n < GOLDENS.len() {
        assert!(GOLDENS[n].output.len() <= OUTPUT_BYTES_MAX);
        n += 1;
    }
};

/// Largest [`Golden::mismatch`] of a right answer: the default of `tolerance` in a model's manifest.
pub const MISMATCH_MAX: f32 = 1e-5;

fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|&chunk| f32::from_le_bytes(chunk))
}

impl Golden {
    /// The largest difference of `answer` from the golden output, over the largest value of that; NaN if
    /// a number is one.
    pub fn mismatch(&self, answer: &[u8]) -> f32 {
        let (mut largest, mut worst) = (f32::MIN_POSITIVE, 0.0f32);
        for (want, got) in numbers(self.output).zip(numbers(answer)) {
            largest = largest.max(want.abs());
            let difference = (want - got).abs();
            // `max` would pass over it.
            if difference.is_nan() {
                return difference;
            }
            worst = worst.max(difference);
        }
        worst / largest
    }
}
