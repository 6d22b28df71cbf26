//! What the threads that serve tell ([`events`](crate::sys::events)), and what everybody else logs:
//! printed as text or JSON lines, or kept in a file that [`Reader`] reads.
//!
//! A thread that serves puts records into a ring of its own ([`records`](crate::sys::records)); the
//! thread `cl-log` ([`Keeper`]) takes them out, a few times a second, and does all the rest. Lines are
//! printed by yet another thread, `cl-print`, since whoever reads them may be slow, or not read at all:
//! nobody else waits for him, and lines for which there is no room meanwhile are counted as lost. A record
//! is a defmt frame without further encoding:
//!
//! | bytes | what |
//! |---|---|
//! | 2 | the statement's index; a [`Table`] says which event that is |
//! | 8 | nanoseconds of the monotonic clock |
//! | ... | the fields, as the table says |
//!
//! Numbers are little-endian. The indices are addresses in the program that wrote them, found out when
//! it starts by telling every event once. So neither a linker script nor the program's symbols are
//! needed, the program may be stripped and position independent, and a file, which carries its table,
//! is read by any other build of corelane.
//!
//! # The file
//! It begins with `corelog1` and a length (4 bytes) of a head in JSON: the program's `version`, its
//! `pid`, the wall clock's `unix_s` and `unix_subsec_ns` and the monotonic clock's `at_ns` when the file was
//! begun, and the table as `events`. Records follow, each with a head of 7 bytes: its kind, the number of a thread
//! (4), its length (2).
//!
//! | kind | content |
//! |---|---|
//! | 1 | the name of a thread, before its first record |
//! | 2 | an event: a frame as above |
//! | 3 | so many records (8) were lost here, told at (8) |
//! | 4 | a message: at (8), level (1: 1 is error, 5 is trace), length of the thread's name (1), name, text |
//!
//! A file that reached its largest size is put aside as `FILE.1`, and the one before is gone.

mod file;
mod keeper;
mod line;
mod panics;
mod printer;
mod reader;
mod table;
#[cfg(test)]
mod tests;

pub use file::{LogFile, LogFileError};
pub use keeper::{Counts, Keeper, Output};
pub use line::{Body, Format, Line, Wall};
pub use reader::{ReadError, Reader};
pub use table::{Entry, Head, Level, RecordError, Table, TableError, Told};

use crate::limits::{LOG_FILE_BYTES_DEFAULT, LOG_RING_BYTES_DEFAULT};
use std::path::PathBuf;

/// What becomes of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How lines are printed.
    pub format: Format,
    /// The file that takes events in place of standard error, and messages besides.
    pub file: Option<PathBuf>,
    /// The size at which the file is put aside, in bytes.
    pub file_bytes_max: u64,
    /// Bytes of the ring of each thread that serves.
    pub ring_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            format: Format::Text,
            file: None,
            file_bytes_max: LOG_FILE_BYTES_DEFAULT,
            ring_bytes: LOG_RING_BYTES_DEFAULT,
        }
    }
}
