//! Recorded arrivals, as text: what `corelane record` writes and `replay` takes.
//!
//! ```text
//! # corelane trace 1
//! # model mlp
//! 0 1
//! 183220 1
//! 201774 4
//! ```
//! Each line is an arrival: nanoseconds since the first one, ascending, and rows. Payloads, where they
//! were recorded too, lie in a file beside it ([`payloads_file`]): the line `corelane payloads 1`, and
//! for each payload the arrival's number from 0, its length in bytes (each 32 bits, little-endian), and
//! the bytes as the protocol carries them.

use super::Arrival;
use crate::limits::{LAB_REQUESTS_MAX, TRACE_FILE_BYTES_MAX};
use crate::sys::files;
use crate::units::Nanos;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

/// The first line.
const MAGIC: &str = "# corelane trace 1";

/// The first line of payloads.
const PAYLOADS_MAGIC: &[u8] = b"corelane payloads 1\n";

/// Where the payloads of a trace lie.
pub fn payloads_file(trace: &Path) -> PathBuf {
    let mut name = trace.as_os_str().to_owned();
    name.push(".payloads");
    name.into()
}

/// The payloads of a trace, by the arrival's number; those that were not kept are empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordedPayloads(pub Vec<Vec<u8>>);

impl RecordedPayloads {
    /// Reads the payloads beside `trace`, which has so many arrivals; none if there is no such file.
    ///
    /// # Errors
    /// The file can't be read, or is not what the format says.
    pub fn read(trace: &Path, arrivals: usize) -> Result<Option<RecordedPayloads>, TraceError> {
        let path = payloads_file(trace);
        let bytes = match files::read(&path, TRACE_FILE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(TraceError::Io { path, source }),
        };
        let wrong = |what: String| TraceError::Payloads { path: path.clone(), what };
        let mut rest = bytes
            .strip_prefix(PAYLOADS_MAGIC)
            .ok_or_else(|| wrong("it must begin with the line \"corelane payloads 1\"".into()))?;
        let mut payloads = vec![Vec::new(); arrivals];
        while !rest.is_empty() {
            let at = bytes.len() - rest.len();
            let cut = || wrong(format!("the payload at byte {at} is cut off"));
            let (head, after) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
            let word =
                |n: usize| u32::from_le_bytes([head[n], head[n + 1], head[n + 2], head[n + 3]]);
            let (number, len) = (word(0) as usize, word(4) as usize);
            let payload = payloads.get_mut(number).ok_or_else(|| {
                wrong(format!(
                    "the payload at byte {at} is of arrival {number}; there are {arrivals}"
                ))
            })?;
            if after.len() < len {
                return Err(cut());
            }
            let (here, after) = after.split_at(len);
            *payload = here.to_vec();
            rest = after;
        }
        Ok(Some(RecordedPayloads(payloads)))
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = PAYLOADS_MAGIC.to_vec();
        for (number, payload) in self.0.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
            out.extend((number as u32).to_le_bytes());
            out.extend((payload.len() as u32).to_le_bytes());
            out.extend(payload);
        }
        out
    }
}

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
    /// The payloads are wrong.
    Payloads {
        /// The file.
        path: PathBuf,
        /// What is wrong.
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
            TraceError::Payloads { path, what } => write!(f, "{}: {what}", path.display()),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TraceError::Io { source, .. } => Some(source),
            TraceError::Line { .. } | TraceError::Payloads { .. } => None,
        }
    }
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read, or a line is not what the format says.
    pub fn read(path: &Path) -> Result<Trace, TraceError> {
        let text = files::read_any_text(path, TRACE_FILE_BYTES_MAX)
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
