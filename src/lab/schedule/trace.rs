//! Recorded arrivals, as text: what `corelane record` writes and `replay` takes.
//!
//! ```text
//! # corelane trace 1
//! # model mlp
//! 0 1
//! 183220 1
//! 201774 4
//! ```
//! Each line is an arrival: nanoseconds since the first one, ascending, and rows.

use super::Arrival;
use crate::limits::LAB_REQUESTS_MAX;
use crate::units::Nanos;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

/// The first line.
const MAGIC: &str = "# corelane trace 1";

/// A recorded trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The model that was asked.
    pub model: String,
    /// The arrivals, ascending.
    pub arrivals: Vec<Arrival>,
}

/// Why a file is no trace.
#[derive(Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// The file can't be read.
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is wrong.
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what would be right.
        what: String,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::Io { path, source } => {
                write!(f, "the trace {} can't be read: {source}", path.display())
            }
            TraceError::Line { path, line, what } => {
                write!(f, "{}, line {line}: {what}", path.display())
            }
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TraceError::Io { source, .. } => Some(source),
            TraceError::Line { .. } => None,
        }
    }
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read, or a line is not what the format says.
    pub fn read(path: &Path) -> Result<Trace, TraceError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TraceError::Io { path: path.into(), source })?;
        Trace::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Trace, TraceError> {
        let wrong = |line: usize, what: String| TraceError::Line { path: path.into(), line, what };
        if text.lines().next() != Some(MAGIC) {
            return Err(wrong(1, format!("a trace begins with {MAGIC:?}")));
        }
        let mut trace = Trace { model: String::new(), arrivals: Vec::new() };
        for (n, line) in text.lines().enumerate().skip(1) {
            if let Some(comment) = line.strip_prefix('#') {
                if let Some(model) = comment.trim().strip_prefix("model ") {
                    trace.model = model.trim().into();
                }
                continue;
            }
            if line.trim().is_empty() {
                continue;
            }
            let mut words = line.split_whitespace();
            let arrival = (|| {
                let at = Nanos(words.next()?.parse().ok()?);
                let rows = words.next()?.parse().ok().filter(|rows| *rows > 0)?;
                words.next().is_none().then_some(Arrival { at, rows })
            })();
            let Some(arrival) = arrival else {
                return Err(wrong(
                    n + 1,
                    format!("{line:?} is no arrival; write NANOSECONDS ROWS"),
                ));
            };
            if trace.arrivals.last().is_some_and(|last| last.at > arrival.at) {
                return Err(wrong(n + 1, "arrivals must ascend".into()));
            }
            if trace.arrivals.len() == LAB_REQUESTS_MAX {
                return Err(wrong(n + 1, format!("more than {LAB_REQUESTS_MAX} arrivals")));
            }
            trace.arrivals.push(arrival);
        }
        if trace.arrivals.is_empty() {
            return Err(wrong(1, "there is no arrival".into()));
        }
        Ok(trace)
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let mut out = format!("{MAGIC}\n# model {}\n", self.model);
        for a in &self.arrivals {
            // Writing to a text does not fail.
            let _ = writeln!(out, "{} {}", a.at.0, a.rows);
        }
        out
    }
}
