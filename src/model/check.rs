//! What is verified at load by running: goldens, and that a batch never changes an answer.
//!
//! This is the second line. The first is the structure of the graph, which shows for every input what
//! rows can show only for themselves ([`Engine::independence`]); a model must pass both.
//!
//! Rows come from the goldens (`golden/input_K.npy`, `golden/output_K.npy`, and the same in
//! `golden/batch*/`, K in the signature's order). A model without goldens gets two made-up rows, one
//! with a single golden row gets a second with the same elements in reverse order, so that the
//! values stay within what the model expects.
//!
//! Up to [`ALONE_ROWS`] rows run alone; then each larger batch size runs once, with the rows in turn.
//! A row in a batch must equal the same row alone within `tolerance` of the output's largest value
//! (kernels add up in another order for another shape, so equal bits are not asked for).

use crate::engine::quiet::caught;
use crate::engine::{Engine, EngineError, Instance, PlanIndex, RunError};
use crate::limits::NPY_FILE_BYTES_MAX;
use crate::model::error::ModelError;
use crate::model::manifest::Manifest;
use crate::model::npy::{self, Array};
pub use crate::model::signature::values;
use crate::model::signature::{Signature, TensorSpec};
use crate::sys::files;
use crate::units::DType;
use std::path::{Path, PathBuf};

/// Rows that are computed alone, to be compared with the same rows in batches.
pub const ALONE_ROWS: usize = 2;
/// Golden rows that are compared at most; more would only make loading slow.
pub const GOLDEN_ROWS_MAX: usize = 16;

/// What [`check`] found.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Checked {
    /// Golden rows that were compared.
    pub golden_rows: usize,
    /// Largest difference from a golden, over the largest value.
    pub golden_difference: Option<f64>,
    /// Largest difference between a row in a batch and alone, over the largest value.
    pub max_difference: Option<f64>,
    /// Why the model must not be batched, if it must not.
    pub refused: Option<String>,
    /// Why the structure of the graph does not show that rows are independent, if it does not.
    pub unproven: Option<String>,
}

struct Golden {
    /// Elements of each output.
    outputs: Vec<Vec<f64>>,
    /// File of each output, for errors.
    paths: Vec<PathBuf>,
    /// Row in that file.
    row: usize,
}

struct Row {
    inputs: Vec<Vec<u8>>,
    golden: Option<Golden>,
    /// Whether its golden was compared.
    compared: bool,
    /// Elements of each output, computed alone.
    alone: Option<Vec<Vec<f64>>>,
}

/// Checks goldens at batch size 1 and in batches, and batch independence at each of `sizes`, the first
/// of the engine's batch sizes.
///
/// # Errors
/// `GoldenFile`, `GoldenShape`, `GoldenMismatch`; `Run` where a golden row can't be run alone;
/// `Engine` where no instance can be made. Rows that a batch changes are no error: they are a reason
/// in [`Checked::refused`].
pub fn check(
    manifest: &Manifest,
    engine: &dyn Engine,
    sizes: &[usize],
) -> Result<Checked, ModelError> {
    let signature = engine.signature();
    let mut rows = match &manifest.dir {
        Some(dir) => golden_rows(&dir.join("golden"), signature)?,
        None => vec![],
    };
    if rows.is_empty() && sizes.len() == 1 {
        return Ok(Checked {
            golden_rows: 0,
            golden_difference: None,
            max_difference: None,
            refused: None,
            unproven: None,
        });
    }
    complete(&mut rows, signature);
    let instance = engine.instance().map_err(|source: EngineError| ModelError::Engine {
        path: manifest.file.clone(),
        source,
    })?;
    let scales = golden_scales(&rows, signature);
    let mut checker = Checker {
        manifest,
        signature,
        instance,
        rows,
        scales,
        golden_difference: None,
        max_difference: None,
    };
    let refused = checker.run(sizes)?;
    Ok(Checked {
        golden_rows: checker.rows.iter().filter(|r| r.compared).count(),
        golden_difference: checker.golden_difference,
        max_difference: checker.max_difference,
        refused,
        unproven: None,
    })
}

struct Checker<'a> {
    manifest: &'a Manifest,
    signature: &'a Signature,
    instance: Box<dyn Instance>,
    rows: Vec<Row>,
    /// Largest value of each output.
    scales: Vec<f64>,
    golden_difference: Option<f64>,
    max_difference: Option<f64>,
}

impl Checker<'_> {
    /// `Ok(Some(reason))` where batching must stay off.
    fn run(&mut self, sizes: &[usize]) -> Result<Option<String>, ModelError> {
        for r in 0..self.rows.len().min(ALONE_ROWS) {
            if let Err(source) = self.alone(r)? {
                return Ok(Some(format!("it could not be checked: run alone, {source}")));
            }
        }
        let alone = self.rows.iter().filter_map(|r| r.alone.as_ref());
        for outputs in alone {
            for (scale, values) in self.scales.iter_mut().zip(outputs) {
                *scale = largest(values).max(*scale);
            }
        }
        let mut reason = None;
        for (index, &size) in sizes.iter().enumerate().skip(1) {
            reason = self.batch(PlanIndex(index), size)?;
            if reason.is_some() {
                break;
            }
        }
        for r in 0..self.rows.len() {
            if self.rows[r].golden.is_some() && !self.rows[r].compared {
                let _ = self.alone(r)?;
            }
        }
        Ok(reason)
    }

    /// Runs row `r` alone and compares its golden. The inner error is a run that failed for a row
    /// that has no golden.
    fn alone(&mut self, r: usize) -> Result<Result<(), RunError>, ModelError> {
        let outputs = match self.infer(PlanIndex(0), 1, &[r]) {
            Ok(mut rows) => rows.swap_remove(0),
            Err(source) if self.rows[r].golden.is_some() => {
                return Err(ModelError::Run {
                    model: self.manifest.name.clone(),
                    batch_size: 1,
                    source,
                });
            }
            Err(source) => return Ok(Err(source)),
        };
        let Some(worst) = self.golden_worst(r, &outputs) else {
            self.rows[r].alone = Some(outputs);
            return Ok(Ok(()));
        };
        self.golden_difference = Some(worst.difference.max(self.golden_difference.unwrap_or(0.0)));
        self.rows[r].compared = true;
        if worst.difference > self.manifest.tolerance {
            return Err(self.mismatch(r, &worst, &outputs));
        }
        self.rows[r].alone = Some(outputs);
        Ok(Ok(()))
    }

    /// Runs one batch with the rows in turn; `Some(reason)` if a row is not what it is alone.
    fn batch(&mut self, plan: PlanIndex, size: usize) -> Result<Option<String>, ModelError> {
        let order: Vec<usize> = (0..size).map(|i| (i + 1) % self.rows.len()).collect();
        let results = match self.infer(plan, size, &order) {
            Ok(results) => results,
            Err(error) => return Ok(Some(format!("a run at batch size {size} failed: {error}"))),
        };
        for (place, (&r, outputs)) in order.iter().zip(&results).enumerate() {
            if self.rows[r].alone.is_none() {
                let Some(worst) = self.golden_worst(r, outputs) else { continue };
                if worst.difference <= self.manifest.tolerance {
                    let known = self.golden_difference.unwrap_or(0.0);
                    self.golden_difference = Some(worst.difference.max(known));
                    self.rows[r].compared = true;
                    continue;
                }
                // Is it the model or the batch? Alone will tell.
                if let Err(source) = self.alone(r)? {
                    return Ok(Some(format!("it could not be checked: run alone, {source}")));
                }
            }
            let Some(alone) = &self.rows[r].alone else { continue };
            let worst = worst(alone, outputs, &self.scales);
            self.max_difference = Some(worst.difference.max(self.max_difference.unwrap_or(0.0)));
            if worst.difference > self.manifest.tolerance {
                return Ok(Some(format!(
                    "at batch size {size}, row {place} of output {:?} differs from the same row \
                     alone by {:.1e} of the largest value; {:.1e} is allowed",
                    self.signature.outputs[worst.output].name,
                    worst.difference,
                    self.manifest.tolerance
                )));
            }
        }
        Ok(None)
    }

    /// Runs `plan` on the rows numbered in `order`; each row's outputs, as numbers.
    fn infer(
        &mut self,
        plan: PlanIndex,
        size: usize,
        order: &[usize],
    ) -> Result<Vec<Vec<Vec<f64>>>, RunError> {
        for (i, spec) in self.signature.inputs.iter().enumerate() {
            let staging = &mut self.instance.input_mut(plan, i)[..size * spec.row_bytes()];
            for (to, &r) in staging.chunks_exact_mut(spec.row_bytes()).zip(order) {
                to.copy_from_slice(&self.rows[r].inputs[i]);
            }
        }
        match caught(|| self.instance.infer(plan)) {
            Ok(result) => result?,
            Err(_) => return Err(RunError::Panic),
        }
        let row_of = |place: usize| -> Vec<Vec<f64>> {
            let outputs = self.signature.outputs.iter().enumerate();
            outputs
                .map(|(o, spec)| {
                    let bytes = self.instance.output(plan, o);
                    values(spec.dtype, &bytes[place * spec.row_bytes()..][..spec.row_bytes()])
                })
                .collect()
        };
        Ok((0..order.len()).map(row_of).collect())
    }

    fn golden_worst(&self, r: usize, outputs: &[Vec<f64>]) -> Option<Worst> {
        let golden = self.rows[r].golden.as_ref()?;
        Some(worst(&golden.outputs, outputs, &self.scales))
    }

    fn mismatch(&self, r: usize, worst: &Worst, outputs: &[Vec<f64>]) -> ModelError {
        let Some(golden) = &self.rows[r].golden else { unreachable!("only golden rows mismatch") };
        ModelError::GoldenMismatch {
            path: golden.paths[worst.output].clone(),
            row: golden.row,
            element: worst.element,
            wanted: golden.outputs[worst.output][worst.element],
            got: outputs[worst.output][worst.element],
            difference: worst.difference,
            tolerance: self.manifest.tolerance,
        }
    }
}

/// The element that differs most.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Worst {
    output: usize,
    element: usize,
    /// Over the output's largest value; absolute where that is 0; infinite where only one of the
    /// two is a number.
    difference: f64,
}

fn worst(wanted: &[Vec<f64>], got: &[Vec<f64>], scales: &[f64]) -> Worst {
    let mut worst = Worst { output: 0, element: 0, difference: 0.0 };
    for (output, (wanted, got)) in wanted.iter().zip(got).enumerate() {
        let scale = if scales[output] > 0.0 { scales[output] } else { 1.0 };
        for (element, (&a, &b)) in wanted.iter().zip(got).enumerate() {
            let difference = if a == b || (a.is_nan() && b.is_nan()) {
                0.0
            } else if a.is_finite() && b.is_finite() {
                (a - b).abs() / scale
            } else {
                f64::INFINITY
            };
            if difference > worst.difference {
                worst = Worst { output, element, difference };
            }
        }
    }
    worst
}

fn largest(values: &[f64]) -> f64 {
    values.iter().map(|v| v.abs()).filter(|v| v.is_finite()).fold(0.0, f64::max)
}

fn golden_scales(rows: &[Row], signature: &Signature) -> Vec<f64> {
    let mut scales = vec![0.0f64; signature.outputs.len()];
    for golden in rows.iter().filter_map(|r| r.golden.as_ref()) {
        for (scale, values) in scales.iter_mut().zip(&golden.outputs) {
            *scale = largest(values).max(*scale);
        }
    }
    scales
}

/// The inputs of all golden rows, each row's in the signature's order; none where there are none, or they
/// can't be read ([`check`] says why).
pub fn golden_inputs(manifest: &Manifest, signature: &Signature) -> Vec<Vec<Vec<u8>>> {
    let rows = manifest.dir.as_ref().map(|dir| golden_rows(&dir.join("golden"), signature));
    rows.and_then(Result::ok).unwrap_or_default().into_iter().map(|row| row.inputs).collect()
}

/// All distinct golden rows: of `dir`, then of its `batch*` directories.
fn golden_rows(dir: &Path, signature: &Signature) -> Result<Vec<Row>, ModelError> {
    let mut dirs = vec![dir.to_path_buf()];
    if let Ok(entries) = std::fs::read_dir(dir) {
        let mut batches: Vec<PathBuf> = entries
            .filter_map(|e| e.ok().map(|e| e.path()))
            .filter(|p| p.is_dir())
            .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("batch")))
            .collect();
        batches.sort();
        dirs.extend(batches);
    }
    let mut rows: Vec<Row> = Vec::new();
    for dir in dirs {
        if !dir.join("input_0.npy").exists() && !dir.join("output_0.npy").exists() {
            continue;
        }
        for row in golden_set(&dir, signature)? {
            if rows.len() < GOLDEN_ROWS_MAX && !rows.iter().any(|r| r.inputs == row.inputs) {
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

fn golden_set(dir: &Path, signature: &Signature) -> Result<Vec<Row>, ModelError> {
    let read = |name: String, spec: &TensorSpec| -> Result<(PathBuf, Array, usize), ModelError> {
        let path = dir.join(name);
        let io = |source| ModelError::Io { path: path.clone(), what: "a golden file", source };
        let bytes = files::read(&path, NPY_FILE_BYTES_MAX).map_err(io)?;
        let array = npy::read(&bytes)
            .map_err(|source| ModelError::GoldenFile { path: path.clone(), source })?;
        let rows = match (signature.batched, array.shape.split_first()) {
            (false, _) if array.shape == spec.row_shape => Some(1),
            (true, Some((&rows, rest))) if *rest == spec.row_shape[..] && rows > 0 => Some(rows),
            _ => None,
        };
        match rows {
            Some(rows) if array.dtype == spec.dtype => Ok((path, array, rows)),
            _ => Err(ModelError::GoldenShape {
                path,
                wanted: format!(
                    "{} {}{:?}",
                    spec.dtype,
                    if signature.batched { "rows of " } else { "" },
                    spec.row_shape
                ),
                got: format!("{} {:?}", array.dtype, array.shape),
            }),
        }
    };
    let tensors = |what: &str, specs: &[TensorSpec]| {
        let all = specs.iter().enumerate();
        all.map(|(k, spec)| read(format!("{what}_{k}.npy"), spec)).collect::<Result<Vec<_>, _>>()
    };
    let inputs = tensors("input", &signature.inputs)?;
    let outputs = tensors("output", &signature.outputs)?;
    let count = inputs[0].2;
    if let Some((path, array, rows)) = inputs.iter().chain(&outputs).find(|t| t.2 != count) {
        return Err(ModelError::GoldenShape {
            path: path.clone(),
            wanted: format!("{count} rows, as in input_0.npy,"),
            got: format!("{rows} rows ({} {:?})", array.dtype, array.shape),
        });
    }
    let row_of = |array: &Array, row: usize| {
        let len = array.data.len() / count;
        array.data[row * len..(row + 1) * len].to_vec()
    };
    Ok((0..count)
        .map(|row| Row {
            inputs: inputs.iter().map(|(_, array, _)| row_of(array, row)).collect(),
            golden: Some(Golden {
                outputs: outputs
                    .iter()
                    .map(|(_, array, _)| values(array.dtype, &row_of(array, row)))
                    .collect(),
                paths: outputs.iter().map(|(path, ..)| path.clone()).collect(),
                row,
            }),
            compared: false,
            alone: None,
        })
        .collect())
}

/// The outputs for one made-up row, the same each time.
///
/// # Errors
/// Where the engine can't run it.
pub fn sample(engine: &dyn Engine) -> Result<Vec<Vec<u8>>, String> {
    let signature = engine.signature();
    let mut instance = engine.instance().map_err(|e| e.to_string())?;
    for (i, spec) in signature.inputs.iter().enumerate() {
        let row = made_up(spec, i as u64);
        instance.input_mut(PlanIndex(0), i)[..row.len()].copy_from_slice(&row);
    }
    caught(|| instance.infer(PlanIndex(0)))
        .unwrap_or(Err(RunError::Panic))
        .map_err(|e| format!("a made-up row can't be run: {e}"))?;
    let outputs = signature.outputs.iter().enumerate();
    Ok(outputs
        .map(|(o, spec)| instance.output(PlanIndex(0), o)[..spec.row_bytes()].to_vec())
        .collect())
}

/// Whether two answers to one row are the same within `tolerance` of each output's largest value.
pub fn alike(engine: &dyn Engine, was: &[Vec<u8>], is: &[Vec<u8>], tolerance: f64) -> bool {
    let numbers = |outputs: &[Vec<u8>]| -> Vec<Vec<f64>> {
        let specs = engine.signature().outputs.iter();
        specs.zip(outputs).map(|(spec, bytes)| values(spec.dtype, bytes)).collect()
    };
    let (was, is) = (numbers(was), numbers(is));
    let scales: Vec<f64> = was.iter().map(|values| largest(values)).collect();
    let lengths = |v: &[Vec<f64>]| v.iter().map(Vec::len).collect::<Vec<_>>();
    lengths(&was) == lengths(&is) && worst(&was, &is, &scales).difference <= tolerance
}

/// Makes sure that there are at least [`ALONE_ROWS`] rows.
fn complete(rows: &mut Vec<Row>, signature: &Signature) {
    let made = |inputs| Row { inputs, golden: None, compared: false, alone: None };
    let made_up_row = |row: usize| -> Vec<Vec<u8>> {
        let inputs = signature.inputs.iter().enumerate();
        inputs.map(|(i, spec)| made_up(spec, (row * 100 + i) as u64)).collect()
    };
    while rows.len() < ALONE_ROWS && rows.iter().all(|r| r.golden.is_none()) {
        let row = made_up_row(rows.len());
        rows.push(made(row));
    }
    while rows.len() < ALONE_ROWS {
        let reversed = signature.inputs.iter().zip(&rows[0].inputs);
        let inputs = reversed
            .map(|(spec, bytes)| {
                bytes.chunks_exact(spec.dtype.size_bytes()).rev().flatten().copied().collect()
            })
            .collect();
        rows.push(made(inputs));
    }
}

/// A row of made-up values: numbers within -1 to 1, integers 0 or 1; the same each time.
fn made_up(spec: &TensorSpec, seed: u64) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        // xorshift64: enough to tell rows apart.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(spec.row_bytes());
    for _ in 0..spec.row_len() {
        let random = next() >> 40;
        let number = random as f64 / (1u64 << 23) as f64 - 1.0;
        match spec.dtype {
            DType::F32 => bytes.extend((number as f32).to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f64(number).to_le_bytes()),
            DType::F64 => bytes.extend(number.to_le_bytes()),
            integer => {
                bytes.push((random & 1) as u8);
                bytes.resize(bytes.len() + integer.size_bytes() - 1, 0);
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
