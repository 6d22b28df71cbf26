//! From a path to a model that is loaded and verified.
//!
//! Loading reads the manifest, checks the file's hash, lets the engine compile every batch size and
//! show from the graph that rows are independent, compares answers with the goldens, and compares rows
//! computed in a batch with the same rows computed alone. It runs on the thread that calls it, never on a worker.
//!
//! With a [cache](crate::model::cache) of the very model, what was compiled and found then is taken from
//! there, and one row is computed again.

use crate::engine::fake::FakeEngine;
use crate::engine::{self, Description, Engine, EngineKind, LoadRequest};
use crate::limits::{FRAME_PAYLOAD_BYTES_MAX, MODEL_FILE_BYTES_MAX, TENSOR_ALIGN_BYTES};
use crate::model::cache::{Cache, CacheState, CacheStatus};
use crate::model::check::{self, Checked};
use crate::model::error::ModelError;
use crate::model::manifest::{FakeSection, Manifest};
use crate::model::signature::TensorSpec;
use crate::model::version::version_hash;
use crate::sys::{files, region};
use crate::units::Nanos;
use sha2::Digest;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Whether a model's requests are batched, and if not why.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct BatchingStatus {
    /// Whether batches of more than one row are formed.
    pub enabled: bool,
    /// Why not.
    pub reason: Option<String>,
    /// `max_batch_size` that the manifest asked for.
    pub wanted: usize,
    /// Largest batch size that is served.
    pub got: usize,
    /// Largest difference between a row in a batch and the same row alone, over the largest value;
    /// `None` where nothing was compared.
    pub max_difference: Option<f64>,
    /// Why the structure of the graph does not show that rows are independent; `None` where it does, or
    /// where there are no batches to show it for.
    pub unproven: Option<String>,
}

/// How long the parts of loading took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct LoadTimes {
    /// Reading the file and its hash.
    pub read_ns: Nanos,
    /// Parsing and compiling, all batch sizes.
    pub compile_ns: Nanos,
    /// Goldens and batch independence.
    pub check_ns: Nanos,
}

/// A model that is loaded and verified.
pub struct LoadedModel {
    /// How it is served: the manifest, with batch sizes reduced to what holds.
    pub manifest: Manifest,
    /// What runs it.
    pub engine: Arc<dyn Engine>,
    /// Whether it batches, and if not why.
    pub batching: BatchingStatus,
    /// Rows whose golden outputs were compared; 0 where there are none.
    pub golden_rows: usize,
    /// Largest difference from the goldens, over the largest value.
    pub golden_difference: Option<f64>,
    /// Hash of the file, in hexadecimal; `None` for the `fake` engine.
    pub sha256: Option<String>,
    /// How long loading took.
    pub times: LoadTimes,
    /// Whether it comes from a compiled cache.
    pub cache: CacheStatus,
}

/// An input or output as `inspect` prints it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct TensorInfo {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: &'static str,
    /// Axes of the whole tensor: `"batch"` or a length each.
    pub shape: Vec<String>,
    /// Bytes of one row.
    pub row_bytes: usize,
}

/// What `inspect` prints of a loaded model.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Inspection {
    /// Name.
    pub name: String,
    /// What runs it.
    pub engine: EngineKind,
    /// The ONNX file; `None` for the `fake` engine.
    pub file: Option<String>,
    /// Hash of the file.
    pub sha256: Option<String>,
    /// Inputs.
    pub inputs: Vec<TensorInfo>,
    /// Outputs.
    pub outputs: Vec<TensorInfo>,
    /// Which axis of every input and output is the batch; `None` if there is none.
    pub batch_axis: Option<usize>,
    /// Compiled batch sizes.
    pub batch_sizes: Vec<usize>,
    /// Whether it batches, and if not why.
    pub batching: BatchingStatus,
    /// Labels of the first output's classes: how many.
    pub labels: usize,
    /// Rows whose golden outputs were compared.
    pub golden_rows: usize,
    /// Largest difference from the goldens, over the largest value.
    pub golden_difference: Option<f64>,
    /// What `tolerance` allows.
    pub tolerance: f64,
    /// How long loading took.
    pub times: LoadTimes,
    /// Whether it comes from a compiled cache, and what was checked then.
    pub cache: CacheStatus,
    /// Operators, memory and weights.
    #[serde(flatten)]
    pub description: Description,
}

/// A model whose file is read, and not loaded yet.
pub struct ReadModel {
    manifest: Manifest,
    source: Source,
    read_ns: Nanos,
}

impl ReadModel {
    /// Reads the model file of `manifest`.
    ///
    /// # Errors
    /// `Io`, `TooLarge`, `Hash`.
    pub fn new(manifest: Manifest) -> Result<ReadModel, ModelError> {
        let started = Instant::now();
        let source = Source::read(&manifest)?;
        Ok(ReadModel { manifest, source, read_ns: nanos(started) })
    }

    /// How it is to be served.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Which [version](version_hash) it is.
    pub fn version_hash(&self) -> String {
        version_hash(&self.manifest, self.source.sha256().as_deref())
    }

    /// Bytes of the model file.
    pub fn file_bytes(&self) -> usize {
        match &self.source {
            Source::File { bytes, .. } => bytes.len(),
            Source::Fake(_) => 0,
        }
    }
}

impl LoadedModel {
    /// Loads and verifies the model in `path`: a model directory, a manifest, or an ONNX file.
    ///
    /// # Errors
    /// Every kind of [`ModelError`].
    pub fn read(path: impl AsRef<Path>) -> Result<LoadedModel, ModelError> {
        Self::load(Manifest::read(path.as_ref())?)
    }

    /// Loads and verifies the model of `manifest`.
    ///
    /// # Errors
    /// Every kind of [`ModelError`] but those of [`Manifest::read`].
    pub fn load(manifest: Manifest) -> Result<LoadedModel, ModelError> {
        Self::of(ReadModel::new(manifest)?)
    }

    /// Loads and verifies a model that is read already.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn of(read: ReadModel) -> Result<LoadedModel, ModelError> {
        let ReadModel { mut manifest, source, read_ns } = read;
        manifest.tolerance = manifest.allowed_difference();
        let wanted = manifest.max_batch_size;
        let started = Instant::now();
        let cache = source.sha256().and_then(|hash| Cache::of(&manifest, &hash));
        let mut status = CacheStatus::OFF;
        let mut hit = None;
        if let Some(cache) = &cache {
            status.file = Some(cache.path().to_path_buf());
            match cache.read(&manifest) {
                Ok(found) => hit = found,
                Err(why) => {
                    event!(
                        warn,
                        "model {}: the compiled cache is not used: {}",
                        manifest.name,
                        why
                    );
                    status.reason = Some(why);
                }
            }
        }
        let mut reason = None;
        let (engine, checked, compile_ns, check_ns) = match hit {
            Some(hit) => {
                status.state = CacheState::Used;
                if !hit.engine.signature().batched {
                    manifest.limit_batches(1);
                    reason = Some(NOT_A_BATCH.to_string());
                }
                // The file was compiled for this very manifest, so that its verdict holds.
                (hit.engine, hit.checked, nanos(started), Nanos(0))
            }
            None => {
                let mut engine = source.compile(&manifest)?;
                let mut compile_ns = nanos(started);
                check_payload(&manifest, &*engine)?;
                if !engine.signature().batched {
                    manifest.limit_batches(1);
                    reason = Some(NOT_A_BATCH.to_string());
                }
                let unproven = match engine.independence() {
                    Err(why) if manifest.max_batch_size > 1 => Some(why.to_string()),
                    _ => None,
                };
                let started = Instant::now();
                let trusted = unproven.is_none() || manifest.rows_independent;
                let sizes = if trusted { engine.batch_sizes() } else { &[1] };
                let mut checked = check::check(&manifest, &*engine, sizes)?;
                if let (Some(why), false) = (&unproven, trusted) {
                    checked.refused = Some(not_shown(why));
                }
                checked.unproven = unproven;
                let check_ns = nanos(started);
                if checked.refused.is_some() {
                    manifest.limit_batches(1);
                    let started = Instant::now();
                    engine = source.compile(&manifest)?;
                    compile_ns.0 += nanos(started).0;
                }
                if let Some(cache) = &cache {
                    status.state = CacheState::Written;
                    if let Err(why) = cache.write(&*engine, &checked) {
                        event!(warn, "model {}: no compiled cache is kept: {}", manifest.name, why);
                        (status.state, status.reason) = (CacheState::NotKept, Some(why));
                    }
                }
                (engine, checked, compile_ns, check_ns)
            }
        };
        check_payload(&manifest, &*engine)?;
        check_labels(&manifest, &*engine)?;
        let Checked { golden_rows, golden_difference, max_difference, refused, unproven } = checked;
        if let Some(why) = refused {
            manifest.limit_batches(1);
            reason = Some(why);
        }
        if manifest.max_batch_size == 1 && reason.is_none() {
            reason = Some("max_batch_size is 1".to_string());
        }
        let batching = BatchingStatus {
            enabled: manifest.max_batch_size > 1,
            reason,
            wanted,
            got: manifest.max_batch_size,
            max_difference,
            unproven,
        };
        let sha256 = source.sha256();
        // The graph and the file are gone; what the allocator keeps of them goes too.
        drop(source);
        region::trim();
        Ok(LoadedModel {
            manifest,
            engine,
            batching,
            golden_rows,
            golden_difference,
            sha256,
            times: LoadTimes { read_ns, compile_ns, check_ns },
            cache: status,
        })
    }

    /// What `inspect` prints.
    pub fn inspect(&self) -> Inspection {
        let signature = self.engine.signature();
        let info = |t: &TensorSpec| TensorInfo {
            name: t.name.clone(),
            dtype: t.dtype.name(),
            shape: signature
                .batched
                .then(|| "batch".to_string())
                .into_iter()
                .chain(t.row_shape.iter().map(usize::to_string))
                .collect(),
            row_bytes: t.row_bytes(),
        };
        let real = self.engine.kind() != EngineKind::Fake;
        Inspection {
            name: self.manifest.name.clone(),
            engine: self.engine.kind(),
            file: real.then(|| self.manifest.file.display().to_string()),
            sha256: self.sha256.clone(),
            inputs: signature.inputs.iter().map(info).collect(),
            outputs: signature.outputs.iter().map(info).collect(),
            batch_axis: signature.batched.then_some(0),
            batch_sizes: self.engine.batch_sizes().to_vec(),
            batching: self.batching.clone(),
            labels: self.manifest.labels.len(),
            golden_rows: self.golden_rows,
            golden_difference: self.golden_difference,
            tolerance: self.manifest.tolerance,
            times: self.times,
            cache: self.cache.clone(),
            description: self.engine.describe(),
        }
    }
}

fn nanos(since: Instant) -> Nanos {
    Nanos(since.elapsed().as_nanos().min(u64::MAX as u128) as u64)
}

/// Why a model without a batch axis is not batched.
const NOT_A_BATCH: &str = "axis 0 of its inputs and outputs is not a batch";

/// Why a model is not batched whose structure does not show that its rows are independent.
fn not_shown(why: &str) -> String {
    format!(
        "the graph does not show that the rows of a batch are independent: {why}; if they are, say \
         rows_independent = true in the manifest"
    )
}

/// What an engine is compiled from.
enum Source {
    File { bytes: Vec<u8>, sha256: String },
    Fake(FakeSection),
}

impl Source {
    fn read(manifest: &Manifest) -> Result<Source, ModelError> {
        if let (EngineKind::Fake, Some(section)) = (manifest.engine, &manifest.fake) {
            return Ok(Source::Fake(section.clone()));
        }
        let path = &manifest.file;
        let io = |source| ModelError::Io { path: path.clone(), what: "the model file", source };
        let bytes = std::fs::metadata(path).map_err(io)?.len();
        if bytes > MODEL_FILE_BYTES_MAX {
            return Err(ModelError::TooLarge {
                path: path.clone(),
                bytes,
                max: MODEL_FILE_BYTES_MAX,
            });
        }
        let bytes = files::read(path, MODEL_FILE_BYTES_MAX).map_err(io)?;
        let got = sha256_hex(&bytes);
        match &manifest.sha256 {
            Some(wanted) if *wanted != got => {
                Err(ModelError::Hash { path: path.clone(), wanted: wanted.clone(), got })
            }
            _ => Ok(Source::File { bytes, sha256: got }),
        }
    }

    fn compile(&self, manifest: &Manifest) -> Result<Arc<dyn Engine>, ModelError> {
        let engine = match self {
            Source::File { bytes, .. } => {
                let request = LoadRequest {
                    bytes,
                    batch_sizes: &manifest.batch_sizes,
                    bind_axes: &manifest.bind_axes,
                    bind_inputs: &manifest.bind_inputs,
                    arena_bytes_max: manifest.arena_bytes_max,
                    isa: manifest.kernels(),
                };
                match manifest.engine {
                    EngineKind::Ort => {
                        let goldens = |signature: &_| check::golden_inputs(manifest, signature);
                        engine::ort::load_with(&request, &manifest.ort_settings(), &goldens)
                    }
                    kind => engine::load(kind, &request),
                }
            }
            Source::Fake(section) => {
                let sizes: &[usize] =
                    if section.signature.batched { &manifest.batch_sizes } else { &[1] };
                FakeEngine::new(section.signature.clone(), sizes, section.compute)
                    .map(|fake| fake.with_work(section.work).with_fault(section.fault))
                    .map(|fake| Box::new(fake) as Box<dyn Engine>)
            }
        };
        let engine =
            engine.map_err(|source| ModelError::Engine { path: manifest.file.clone(), source })?;
        Ok(Arc::from(engine))
    }

    fn sha256(&self) -> Option<String> {
        match self {
            Source::File { sha256, .. } => Some(sha256.clone()),
            Source::Fake(_) => None,
        }
    }
}

/// The SHA-256 of `bytes`, in lower case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Refuses tensors that no request could carry, before anything of that size is allocated.
fn check_payload(manifest: &Manifest, engine: &dyn Engine) -> Result<(), ModelError> {
    let signature = engine.signature();
    let rows = engine.batch_sizes().last().copied().unwrap_or(1);
    for (what, tensors) in [("inputs", &signature.inputs), ("outputs", &signature.outputs)] {
        let bytes = tensors.iter().try_fold(0usize, |sum, t| {
            t.row_bytes().checked_mul(rows)?.checked_add(TENSOR_ALIGN_BYTES)?.checked_add(sum)
        });
        if bytes.is_none_or(|b| b > FRAME_PAYLOAD_BYTES_MAX) {
            return Err(ModelError::Payload {
                model: manifest.name.clone(),
                what,
                rows,
                bytes,
                max: FRAME_PAYLOAD_BYTES_MAX,
            });
        }
    }
    Ok(())
}

fn check_labels(manifest: &Manifest, engine: &dyn Engine) -> Result<(), ModelError> {
    let labels = manifest.labels.len();
    let classes = engine.signature().outputs[0].row_shape.last().copied().unwrap_or(1);
    if labels > 0 && labels != classes {
        return Err(ModelError::Labels { model: manifest.name.clone(), labels, classes });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
