//! A run's folder: writing it, and reading `metrics.json` back.

use super::{KIND, Run, SCHEMA};
use crate::limits::RUN_FILE_BYTES_MAX;
use crate::sys::files;
use hdrhistogram::Histogram;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

/// The file that makes a folder a run.
pub const METRICS: &str = "metrics.json";
/// Steps of the percentile text for each halving of the distance to 100 %.
const TICKS_PER_HALF: u32 = 5;

/// Why a folder is no run, or could not be written.
#[derive(Debug)]
#[non_exhaustive]
pub enum FolderError {
    /// A file or directory can't be read or written.
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no `metrics.json`, or it is not a run's.
    NotARun {
        /// The folder.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A run of a layout that this version does not read.
    Schema {
        /// The folder.
        path: PathBuf,
        /// Its schema.
        found: u64,
    },
}

impl fmt::Display for FolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FolderError::Io { doing, path, source } => {
                write!(f, "{} can't be {doing}: {source}", path.display())
            }
            FolderError::NotARun { path, why } => {
                write!(f, "{} is not a run's folder: {why}", path.display())
            }
            FolderError::Schema { path, found } => write!(
                f,
                "{} has schema {found}; this version reads schema {SCHEMA}: measure again, or use \
                 the version that wrote it",
                path.display()
            ),
        }
    }
}

impl std::error::Error for FolderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FolderError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Makes the folder; it may be there already if it holds no run.
///
/// # Errors
/// It can't be made, or holds a run.
pub fn create(dir: &Path) -> Result<(), FolderError> {
    let io = |source| FolderError::Io { doing: "made", path: dir.into(), source };
    std::fs::create_dir_all(dir).map_err(io)?;
    if dir.join(METRICS).exists() {
        return Err(io(std::io::Error::new(
            std::io::ErrorKind::AlreadyExists,
            "it holds a run already; choose another folder",
        )));
    }
    Ok(())
}

/// Writes one file of the folder. A file that could not be written whole is removed.
///
/// # Errors
/// The system's, with the path: a full disk, say.
pub fn write(dir: &Path, name: &str, content: &str) -> Result<(), FolderError> {
    let path = dir.join(name);
    let written = std::fs::File::create(&path).and_then(|mut file| {
        std::io::Write::write_all(&mut file, content.as_bytes())?;
        // A full disk may show only here.
        file.sync_all()
    });
    written.map_err(|source| {
        // Half a file would be taken for a whole one.
        if std::fs::metadata(&path).is_ok_and(|m| m.is_file()) {
            let _ = std::fs::remove_file(&path);
        }
        FolderError::Io { doing: "written", path, source }
    })
}

/// Reads a run back. `path` is the folder, or its `metrics.json`.
///
/// # Errors
/// It is not a run's, or of another schema.
pub fn read(path: &Path) -> Result<Run, FolderError> {
    let file = if path.is_dir() { path.join(METRICS) } else { path.to_path_buf() };
    let not = |why: String| FolderError::NotARun { path: path.into(), why };
    let text =
        files::read_text(&file, RUN_FILE_BYTES_MAX).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => not(format!("there is no {}", file.display())),
            _ => FolderError::Io { doing: "read", path: file.clone(), source },
        })?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| not(format!("{METRICS} is no JSON: {e}")))?;
    if value["kind"] != KIND {
        return Err(not(format!("{METRICS} does not say that it is a {KIND}")));
    }
    match value["schema"].as_u64() {
        Some(schema) if schema == u64::from(SCHEMA) => {}
        Some(found) => return Err(FolderError::Schema { path: path.into(), found }),
        None => return Err(not(format!("{METRICS} has no schema"))),
    }
    serde_json::from_value(value).map_err(|e| not(format!("{METRICS} is damaged: {e}")))
}

/// A histogram of latencies with three significant digits.
pub fn histogram(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("three digits are within 0 to 5");
    for value in values {
        // It grows as it must; any time that a run can have fits.
        let _ = histogram.record(value.max(1));
    }
    histogram
}

/// HdrHistogram's percentile text, in microseconds.
pub fn percentile_text(histogram: &Histogram<u64>) -> String {
    let mut out = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
    let us = |ns: f64| ns / 1e3;
    let mut seen = 0;
    for step in histogram.iter_quantiles(TICKS_PER_HALF) {
        seen += step.count_since_last_iteration();
        let value = us(step.value_iterated_to() as f64);
        let at = step.quantile_iterated_to();
        // Writing to a text does not fail.
        let _ = if at < 1.0 {
            writeln!(out, "{value:12.3} {at:1.12} {seen:10} {:14.2}", 1.0 / (1.0 - at))
        } else {
            writeln!(out, "{value:12.3} {at:1.12} {seen:10}            inf")
        };
    }
    let _ = write!(
        out,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]\n\
         #[Max     = {:12.3}, Total count    = {:12}]\n\
         #[Buckets = {:12}, SubBuckets     = {:12}]\n",
        us(histogram.mean()),
        us(histogram.stdev()),
        us(histogram.max() as f64),
        histogram.len(),
        histogram.buckets(),
        2048
    );
    out
}
