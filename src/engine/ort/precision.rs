//! Half precision: where it comes from, and how far its answers are from those of single precision.
//!
//! The reference is the model file as it is, on the processor. Golden rows and [`RANDOM_ROWS`] random ones,
//! the same each time, run alone on both; the model is refused where an answer differs by more than is
//! allowed. Random rows take their elements from the golden ones, so that they are within what the model
//! expects; without goldens floats are within -1 to 1, and whole numbers 0 or 1.

use crate::engine::{EngineError, EngineErrorKind, Instance, PlanIndex, PrecisionReport, RunError};
use crate::model::signature::{Signature, TensorSpec, values};
use crate::units::DType;
use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};
use std::fmt;
use std::path::PathBuf;

/// Random rows that are compared.
pub const RANDOM_ROWS: usize = 16;
/// Golden rows that are compared at most.
pub const GOLDEN_ROWS_MAX: usize = 16;
/// Seed of the random rows.
const SEED: u64 = 0x16F1;

/// Why a model is not served in half precision.
#[derive(Debug)]
#[non_exhaustive]
pub enum PrecisionError {
    /// Neither a file in half precision nor a provider that converts by itself.
    NoWay {
        /// The providers that are asked for.
        providers: String,
        /// Those that did not take, and why.
        missing: String,
    },
    /// The file can't be read.
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is larger than what is read.
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The file is no model that could be loaded.
    Model {
        /// The file.
        path: PathBuf,
        /// Why.
        source: EngineError,
    },
    /// The file does not take or give what the model file does.
    Interface {
        /// The file.
        path: PathBuf,
        /// What differs: first the file's, then the model's.
        what: String,
    },
    /// Nothing is computed in half precision.
    NotHalf {
        /// Where half precision was to come from.
        from: String,
        /// Who ran how many nodes.
        got: String,
    },
    /// A run failed while answers were compared.
    Run {
        /// `"half"` or `"single"`.
        precision: &'static str,
        /// Why.
        source: RunError,
    },
    /// Answers differ by more than is allowed.
    Strays(Box<PrecisionReport>),
}

impl fmt::Display for PrecisionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrecisionError::NoWay { providers, missing } => {
                write!(
                    f,
                    "precision fp16 can't be had from {providers}: give the model in half precision \
                     (inputs and outputs as they are) as MODEL_fp16.onnx beside MODEL.onnx, or by \
                     fp16_file, or ask for provider tensorrt, which converts by itself"
                )?;
                if !missing.is_empty() {
                    write!(f, " (missing: {missing})")?;
                }
                Ok(())
            }
            PrecisionError::Io { path, source } => {
                write!(
                    f,
                    "the model in half precision, {}, can't be read: {source}",
                    path.display()
                )
            }
            PrecisionError::TooLarge { path, bytes, max } => {
                write!(f, "{}: {bytes} bytes, at most {max} are read", path.display())
            }
            PrecisionError::Model { path, source } => write!(f, "{}: {source}", path.display()),
            PrecisionError::Interface { path, what } => write!(
                f,
                "{}: {what}; convert the model with its inputs and outputs kept as they are",
                path.display()
            ),
            PrecisionError::NotHalf { from, got } => write!(
                f,
                "precision fp16 is asked for, but with {from} no node computes in half precision \
                 ({got}): the provider widens it, and would only lose digits"
            ),
            PrecisionError::Run { precision, source } => {
                write!(f, "a run in {precision} precision failed: {source}")
            }
            PrecisionError::Strays(report) => {
                write!(f, "half precision strays too far: {report}; fp16_tolerance sets the limit")
            }
        }
    }
}

impl std::error::Error for PrecisionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PrecisionError::Io { source, .. } => Some(source),
            PrecisionError::Model { source, .. } => Some(source),
            PrecisionError::Run { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<PrecisionError> for EngineError {
    fn from(error: PrecisionError) -> EngineError {
        EngineError::new(EngineErrorKind::Precision, error.to_string()).caused_by(error)
    }
}

/// One row: the bytes of each input, in the signature's order.
pub type InputRow = Vec<Vec<u8>>;

/// Random rows for `signature`, the same each time, of elements that the golden rows have.
pub fn random_rows(signature: &Signature, goldens: &[InputRow], count: usize) -> Vec<InputRow> {
    let mut random = Pcg32::seed_from_u64(SEED);
    let row = |_| {
        let inputs = signature.inputs.iter().enumerate();
        inputs.map(|(i, spec)| random_input(spec, i, goldens, &mut random)).collect()
    };
    (0..count).map(row).collect()
}

fn random_input(
    spec: &TensorSpec,
    input: usize,
    goldens: &[InputRow],
    random: &mut Pcg32,
) -> Vec<u8> {
    let size = spec.dtype.size_bytes();
    let mut bytes = Vec::with_capacity(spec.row_bytes());
    for _ in 0..spec.row_len() {
        let word = random.next_u32();
        if goldens.is_empty() {
            bytes.extend(made_up(spec.dtype, word).iter().take(size));
            continue;
        }
        let golden = &goldens[word as usize % goldens.len()][input];
        let element = random.next_u32() as usize % spec.row_len();
        bytes.extend(&golden[element * size..][..size]);
    }
    bytes
}

/// An element from a random word, little-endian.
fn made_up(dtype: DType, word: u32) -> [u8; 8] {
    let unit = f64::from(word) / f64::from(1u32 << 31) - 1.0;
    let mut element = [0; 8];
    match dtype {
        DType::F32 => element[..4].copy_from_slice(&(unit as f32).to_le_bytes()),
        DType::F64 => element = unit.to_le_bytes(),
        DType::F16 => element[..2].copy_from_slice(&half::f16::from_f64(unit).to_le_bytes()),
        _ => element[0] = (word & 1) as u8,
    }
    element
}

/// The outputs of each row, run alone on the first plan of `instance`, as numbers.
pub fn run_alone(
    instance: &mut dyn Instance,
    signature: &Signature,
    rows: &[InputRow],
) -> Result<Vec<Vec<Vec<f64>>>, RunError> {
    let plan = PlanIndex(0);
    let mut answers = Vec::new();
    for row in rows {
        for (i, bytes) in row.iter().enumerate() {
            instance.input_mut(plan, i)[..bytes.len()].copy_from_slice(bytes);
        }
        instance.infer(plan)?;
        let outputs = signature.outputs.iter().enumerate();
        answers.push(
            outputs
                .map(|(o, spec)| values(spec.dtype, &instance.output(plan, o)[..spec.row_bytes()]))
                .collect(),
        );
    }
    Ok(answers)
}

/// How far answers are from others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Over each output's largest value; infinite where only one of the two is a number.
    pub largest_difference: f64,
    /// Likewise, the mean over all elements.
    pub mean_difference: f64,
    /// Share of the places whose largest class is the same; `None` where there are no classes.
    pub top1_agreement: Option<f64>,
}

/// Compares answers (row, output, element) of half precision with those of single precision.
pub fn compare(signature: &Signature, single: &[Vec<Vec<f64>>], half: &[Vec<Vec<f64>>]) -> Figures {
    let (mut largest, mut sum, mut count) = (0f64, 0f64, 0usize);
    for output in 0..signature.outputs.len() {
        let values = single.iter().flat_map(|row| &row[output]);
        let scale = values.filter(|v| v.is_finite()).fold(0f64, |m, v| m.max(v.abs()));
        let scale = if scale > 0.0 { scale } else { 1.0 };
        for (a, b) in single.iter().zip(half) {
            for (&a, &b) in a[output].iter().zip(&b[output]) {
                let difference = difference(a, b) / scale;
                largest = largest.max(difference);
                sum += difference;
                count += 1;
            }
        }
    }
    Figures {
        largest_difference: largest,
        mean_difference: sum / count.max(1) as f64,
        top1_agreement: agreement(signature, single, half),
    }
}

fn difference(a: f64, b: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        0.0
    } else if a.is_finite() && b.is_finite() {
        (a - b).abs()
    } else {
        f64::INFINITY
    }
}

/// Classes are the last axis of the first output; whatever is before it are places.
fn agreement(
    signature: &Signature,
    single: &[Vec<Vec<f64>>],
    half: &[Vec<Vec<f64>>],
) -> Option<f64> {
    let classes = signature.outputs.first()?.row_shape.last().copied().filter(|&n| n > 1)?;
    let (mut same, mut places) = (0usize, 0usize);
    for (a, b) in single.iter().zip(half) {
        for (a, b) in a[0].chunks_exact(classes).zip(b[0].chunks_exact(classes)) {
            places += 1;
            // Where several classes are largest, either is right.
            same += usize::from(top(a).is_some_and(|class| Some(b[class]) == top_value(b)));
        }
    }
    (places > 0).then(|| same as f64 / places as f64)
}

/// The first class with the largest value; none where a value is no number.
fn top(values: &[f64]) -> Option<usize> {
    let largest = top_value(values)?;
    values.iter().position(|&v| v == largest)
}

fn top_value(values: &[f64]) -> Option<f64> {
    values.iter().try_fold(f64::NEG_INFINITY, |m, &v| (!v.is_nan()).then(|| m.max(v)))
}

#[cfg(test)]
mod tests;
