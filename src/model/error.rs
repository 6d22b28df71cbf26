//! Why a model could not be loaded.

use crate::engine::{EngineError, RunError};
use crate::model::npy::NpyError;
use crate::toml_errors::TomlError;
use std::fmt;
use std::path::PathBuf;

/// Why a model could not be loaded: what, where, and what would be right.
#[derive(Debug)]
#[non_exhaustive]
pub enum ModelError {
    /// A file can't be read.
    Io {
        /// The file.
        path: PathBuf,
        /// What it is for.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// A file is larger than what is read.
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The path is neither a model directory, nor a manifest, nor an ONNX file.
    NotAModel {
        /// The path.
        path: PathBuf,
    },
    /// The manifest is wrong.
    Manifest(TomlError),
    /// The name can't be a model's name.
    Name {
        /// The name.
        name: String,
        /// The manifest or model it comes from.
        path: PathBuf,
    },
    /// The model file is not the one that the manifest was written for.
    Hash {
        /// The model file.
        path: PathBuf,
        /// What the manifest says, in hexadecimal.
        wanted: String,
        /// What the file has.
        got: String,
    },
    /// The engine can't load it.
    Engine {
        /// The model file.
        path: PathBuf,
        /// Why.
        source: EngineError,
    },
    /// The tensors of the largest request or batch take more bytes than are served.
    Payload {
        /// The model's name.
        model: String,
        /// `"inputs"` or `"outputs"`.
        what: &'static str,
        /// Rows.
        rows: usize,
        /// Bytes that they take; `None` where they overflow.
        bytes: Option<usize>,
        /// The limit.
        max: usize,
    },
    /// A batch larger than the model's batch sizes is asked for.
    BatchSize {
        /// The model's name.
        model: String,
        /// Rows that are asked for.
        wanted: usize,
        /// The largest of the manifest's batch sizes.
        max: usize,
    },
    /// The labels don't fit the first output.
    Labels {
        /// The model's name.
        model: String,
        /// How many labels there are.
        labels: usize,
        /// Classes: the last axis of the first output.
        classes: usize,
    },
    /// A golden file can't be read.
    GoldenFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: NpyError,
    },
    /// A golden file does not have the shape or type that the model has.
    GoldenShape {
        /// The file.
        path: PathBuf,
        /// What the model has.
        wanted: String,
        /// What the file has.
        got: String,
    },
    /// The model does not answer as its golden outputs say.
    GoldenMismatch {
        /// The file with the golden output.
        path: PathBuf,
        /// The row.
        row: usize,
        /// Position of the worst element within the row.
        element: usize,
        /// What the file says.
        wanted: f64,
        /// What the model answered.
        got: f64,
        /// The difference over the largest value of the golden output.
        difference: f64,
        /// What `tolerance` allows.
        tolerance: f64,
    },
    /// A run failed while goldens were checked.
    Run {
        /// The model's name.
        model: String,
        /// The batch size.
        batch_size: usize,
        /// Why.
        source: RunError,
    },
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelError::Io { path, what, source } => {
                write!(f, "{}: can't read {what}: {source}", path.display())
            }
            ModelError::TooLarge { path, bytes, max } => {
                write!(f, "{}: {bytes} bytes, at most {max} are read", path.display())
            }
            ModelError::NotAModel { path } => write!(
                f,
                "{}: not a model; give a directory with manifest.toml or model.onnx, a manifest, or \
                 an .onnx file",
                path.display()
            ),
            ModelError::Manifest(error) => error.fmt(f),
            ModelError::Name { name, path } => write!(
                f,
                "{}: {name:?} can't be a model's name; it must have 1 to {} of the characters a-z, \
                 A-Z, 0-9, '_', '-' and '.'",
                path.display(),
                crate::limits::MODEL_NAME_LEN_MAX
            ),
            ModelError::Hash { path, wanted, got } => write!(
                f,
                "{}: sha256 is {got}, but the manifest says {wanted}: the file is damaged or another \
                 one",
                path.display()
            ),
            ModelError::Engine { path, source } => write!(f, "{}: {source}", path.display()),
            ModelError::Payload { model, what, rows, bytes, max } => {
                write!(f, "model {model}: the {what} of {rows} rows take ")?;
                match bytes {
                    Some(bytes) => write!(f, "{bytes} bytes")?,
                    None => f.write_str("more bytes than there are addresses")?,
                }
                write!(f, ", at most {max} are served; lower max_batch_size")
            }
            ModelError::BatchSize { model, wanted, max } => write!(
                f,
                "model {model}: max_batch_size is {wanted} here, but {max} in the model's manifest; \
                 compile larger batch sizes there, or ask for at most {max}"
            ),
            ModelError::Labels { model, labels, classes } => {
                write!(
                    f,
                    "model {model}: {labels} labels, but its first output has {classes} classes"
                )
            }
            ModelError::GoldenFile { path, source } => write!(f, "{}: {source}", path.display()),
            ModelError::GoldenShape { path, wanted, got } => {
                write!(f, "{}: holds {got}, but the model has {wanted}", path.display())
            }
            ModelError::GoldenMismatch {
                path,
                row,
                element,
                wanted,
                got,
                difference,
                tolerance,
            } => write!(
                f,
                "{}: the model answers {got} where row {row}, element {element} is {wanted}: a \
                 difference of {difference:.1e} of the largest value, {tolerance:.1e} is allowed",
                path.display()
            ),
            ModelError::Run { model, batch_size, source } => {
                write!(
                    f,
                    "model {model}: the check run at batch size {batch_size} failed: {source}"
                )
            }
        }
    }
}

impl std::error::Error for ModelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ModelError::Io { source, .. } => Some(source),
            ModelError::Manifest(source) => Some(source),
            ModelError::Engine { source, .. } => Some(source),
            ModelError::GoldenFile { source, .. } => Some(source),
            ModelError::Run { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<TomlError> for ModelError {
    fn from(error: TomlError) -> Self {
        ModelError::Manifest(error)
    }
}
