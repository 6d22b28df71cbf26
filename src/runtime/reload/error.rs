//! Why a model was not reloaded.

use super::Difference;
use crate::model::ModelError;
use std::fmt;
use std::time::Duration;

/// Why a model was not reloaded. The former version serves on.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReloadError {
    /// No model of that name is served.
    UnknownModel {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The model was made by hand, so there is nothing to read again.
    NoSource {
        /// The model.
        model: String,
    },
    /// Its files can't be loaded, or do not pass the checks.
    Load {
        /// The model.
        model: String,
        /// What is wrong with them.
        source: Box<ModelError>,
    },
    /// Its files changed while they were read.
    FilesChanged {
        /// The model.
        model: String,
    },
    /// The new version differs in what is fixed while the runtime serves.
    Fixed {
        /// The model.
        model: String,
        /// In what.
        differences: Vec<Difference>,
    },
    /// There is not enough memory for both versions at once.
    Memory {
        /// The model.
        model: String,
        /// What it is for.
        what: &'static str,
        /// Bytes that it takes at the least.
        needed: usize,
        /// Bytes that the system has.
        available: usize,
    },
    /// An instance could not be made, or failed its warm-up.
    Instance {
        /// The model.
        model: String,
        /// Why.
        reason: String,
    },
    /// A worker stayed in a batch for so long that it was not waited for. Those that had taken the new version
    /// have been given the former one back; in between they may have answered by the new one.
    Worker {
        /// The model.
        model: String,
        /// The worker.
        worker: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// The runtime drains or ends.
    Stopping {
        /// The model.
        model: String,
    },
}

impl ReloadError {
    /// Every [`reason`](Self::reason) that is counted for a model.
    pub const REASONS: [&'static str; 10] = [
        "no_source",
        "load",
        "hash",
        "golden",
        "files_changed",
        "fixed",
        "memory",
        "instance",
        "worker",
        "stopping",
    ];

    /// Its name in metrics and in JSON.
    pub fn reason(&self) -> &'static str {
        match self {
            ReloadError::UnknownModel { .. } => "unknown_model",
            ReloadError::NoSource { .. } => "no_source",
            ReloadError::Load { source, .. } => match **source {
                ModelError::Hash { .. } => "hash",
                ModelError::GoldenFile { .. }
                | ModelError::GoldenShape { .. }
                | ModelError::GoldenMismatch { .. } => "golden",
                _ => "load",
            },
            ReloadError::FilesChanged { .. } => "files_changed",
            ReloadError::Fixed { .. } => "fixed",
            ReloadError::Memory { .. } => "memory",
            ReloadError::Instance { .. } => "instance",
            ReloadError::Worker { .. } => "worker",
            ReloadError::Stopping { .. } => "stopping",
        }
    }
}

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReloadError::UnknownModel { name, known } => {
                write!(f, "there is no model {name:?}; there are: {}", known.join(", "))
            }
            ReloadError::NoSource { model } => write!(
                f,
                "model {model}: it comes from no file that could be read again; only models of a path can \
                 be reloaded"
            ),
            ReloadError::Load { model, source } => {
                write!(f, "model {model}: the new version is not served: {source}")
            }
            ReloadError::FilesChanged { model } => write!(
                f,
                "model {model}: its files changed while they were read; put them in place whole (by \
                 renaming a directory), then reload again"
            ),
            ReloadError::Fixed { model, differences } => {
                write!(f, "model {model}: the new version is not served: ")?;
                for (n, difference) in differences.iter().enumerate() {
                    write!(f, "{}{difference}", if n == 0 { "" } else { "; " })?;
                }
                let signature = differences.iter().any(|d| d.is_signature);
                let what = if signature { "the signature" } else { "that" };
                write!(f, "; restart to change {what}")
            }
            ReloadError::Memory { model, what, needed, available } => write!(
                f,
                "model {model}: the new version is not served: {what} takes {needed} bytes at the least, \
                 {available} are there"
            ),
            ReloadError::Instance { model, reason } => {
                write!(f, "model {model}: the new version is not served: an instance: {reason}")
            }
            ReloadError::Worker { model, worker, waited } => write!(
                f,
                "model {model}: the new version is not served: worker {worker} did not end its batch within \
                 {waited:?}; the former version stays"
            ),
            ReloadError::Stopping { model } => {
                write!(f, "model {model}: the runtime drains, and loads nothing more")
            }
        }
    }
}

impl std::error::Error for ReloadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReloadError::Load { source, .. } => Some(&**source),
            _ => None,
        }
    }
}
