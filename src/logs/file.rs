//! The log file, written.

use super::line::Wall;
use super::table::{Head, Level, Table};
use crate::limits::{LOG_FILE_BYTES_MIN, LOG_TEXT_BYTES_MAX};
use crate::sys::clock;
use crate::sys::records::ThreadName;
use crate::units::Nanos;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The first bytes of a log file, with the version of its layout.
pub(super) const MAGIC: &[u8; 8] = b"corelog1";
/// Bytes before a record's content: kind, thread, length.
pub(super) const RECORD_HEAD_BYTES: usize = 7;
pub(super) const THREAD: u8 = 1;
pub(super) const EVENT: u8 = 2;
pub(super) const LOST: u8 = 3;
pub(super) const MESSAGE: u8 = 4;
/// The number of those threads that have no ring; their names are in their messages.
pub(super) const NO_THREAD: u32 = u32::MAX;

/// Why a log file was not begun.
#[derive(Debug)]
#[non_exhaustive]
pub enum LogFileError {
    /// The system refused.
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something is there that is not a log file, and is not put aside.
    NotALog {
        /// Where.
        path: PathBuf,
    },
}

impl fmt::Display for LogFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogFileError::Io { path, source } => {
                write!(f, "the log file {} can't be written: {source}", path.display())
            }
            LogFileError::NotALog { path } => write!(
                f,
                "{} is there already and is no log file of corelane; remove it or choose another",
                path.display()
            ),
        }
    }
}

impl std::error::Error for LogFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LogFileError::Io { source, .. } => Some(source),
            LogFileError::NotALog { .. } => None,
        }
    }
}

/// Records on their way into the file.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// Events and messages among them.
    records: u64,
}

impl Batch {
    fn record(&mut self, kind: u8, thread: u32, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        debug_assert!(len <= u16::MAX as usize);
        self.bytes.push(kind);
        self.bytes.extend(thread.to_le_bytes());
        self.bytes.extend((len as u16).to_le_bytes());
        for part in parts {
            self.bytes.extend(*part);
        }
    }
    pub fn event(&mut self, thread: u32, record: &[u8]) {
        self.record(EVENT, thread, &[record]);
        self.records += 1;
    }
    pub fn lost(&mut self, thread: u32, at: Nanos, records: u64) {
        self.record(LOST, thread, &[&records.to_le_bytes(), &at.0.to_le_bytes()]);
    }
    pub fn message(&mut self, at: Nanos, level: Level, thread: &str, text: &str) {
        let thread = &thread[..thread.floor_char_boundary(u8::MAX as usize)];
        let text = &text[..text.floor_char_boundary(LOG_TEXT_BYTES_MAX)];
        let (at, head) = (at.0.to_le_bytes(), [level.number(), thread.len() as u8]);
        let parts: [&[u8]; 4] = [&at, &head, thread.as_bytes(), text.as_bytes()];
        self.record(MESSAGE, NO_THREAD, &parts);
        self.records += 1;
    }
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    /// So long that it is better written, so that files keep their bound.
    pub fn is_long(&self) -> bool {
        self.bytes.len() as u64 > LOG_FILE_BYTES_MIN / 4
    }
}

/// A log file that is being written.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    table: Table,
    /// Its length without what was written in part.
    bytes: u64,
    bytes_max: u64,
    /// Threads that it names.
    named: Vec<u32>,
    /// Records that it should hold and does not, in all.
    unwritten_total: u64,
    /// The same, since it last said so.
    untold: u64,
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

impl LogFile {
    /// Begins a file for the events in `table`. A log file that is there already is put aside as
    /// `path` with `.1`, as this one is when it would grow over `bytes_max`.
    ///
    /// # Errors
    /// It can't be written, or something else is there.
    pub fn create(path: &Path, table: Table, bytes_max: u64) -> Result<LogFile, LogFileError> {
        let failed = |source| LogFileError::Io { path: path.into(), source };
        match std::fs::metadata(path) {
            Ok(found) => {
                let mut start = [0; MAGIC.len()];
                // Not opened before it is known to be a file: a pipe would be waited for.
                let ours = found.is_file()
                    && (found.len() == 0
                        || File::open(path)
                            .and_then(|mut file| file.read_exact(&mut start))
                            .is_ok_and(|()| start == *MAGIC));
                if !ours {
                    return Err(LogFileError::NotALog { path: path.into() });
                }
                if found.len() > 0 {
                    std::fs::rename(path, beside(path, ".1")).map_err(failed)?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let (file, bytes) = begin(path, &table).map_err(failed)?;
        Ok(LogFile {
            path: path.into(),
            file,
            table,
            bytes,
            bytes_max,
            named: Vec::new(),
            unwritten_total: 0,
            untold: 0,
        })
    }

    /// Records that were to be written and are not, since the system refused.
    pub fn unwritten_total(&self) -> u64 {
        self.unwritten_total
    }

    /// Writes go here from now on.
    #[cfg(test)]
    pub(super) fn replace_for_test(&mut self, file: File) {
        self.file = file;
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Names the threads that it does not name yet, then writes a batch; one that can't be written is
    /// counted, and told in the file as soon as that can be.
    pub(super) fn write<'a>(
        &mut self,
        threads: impl Iterator<Item = &'a ThreadName> + Clone,
        batch: &Batch,
    ) {
        if self.try_write(threads, batch).is_err() {
            self.unwritten_total += batch.records;
            self.untold += batch.records;
        }
    }

    fn try_write<'a>(
        &mut self,
        threads: impl Iterator<Item = &'a ThreadName> + Clone,
        batch: &Batch,
    ) -> io::Result<()> {
        let head = RECORD_HEAD_BYTES as u64;
        let names: u64 = threads.clone().map(|thread| thread.name.len() as u64 + head).sum();
        let coming = batch.bytes.len() as u64 + names + 2 * 8 + head;
        if self.bytes + coming > self.bytes_max {
            self.put_aside()?;
        }
        let mut whole = Batch::default();
        let mut named = self.named.clone();
        for thread in threads {
            if !named.contains(&thread.number) {
                named.push(thread.number);
                let name = &thread.name[..thread.name.floor_char_boundary(u8::MAX as usize)];
                whole.record(THREAD, thread.number, &[name.as_bytes()]);
            }
        }
        if self.untold > 0 {
            whole.lost(NO_THREAD, clock::now(), self.untold);
        }
        whole.bytes.extend(&batch.bytes);
        // Also after a write that failed half way: what it left is written over.
        self.file.seek(SeekFrom::Start(self.bytes))?;
        if let Err(error) = self.file.write_all(&whole.bytes) {
            // A reader should not find half a record; if this fails too, the next write tries again.
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += whole.bytes.len() as u64;
        (self.named, self.untold) = (named, 0);
        Ok(())
    }

    fn put_aside(&mut self) -> io::Result<()> {
        // Whole before anything moves: where the disk is full, both files stay as they are.
        let next = beside(&self.path, ".new");
        let begun = begin(&next, &self.table);
        if begun.is_err() {
            let _ = std::fs::remove_file(&next);
        }
        let (file, bytes) = begun?;
        std::fs::rename(&self.path, beside(&self.path, ".1"))?;
        std::fs::rename(&next, &self.path)?;
        (self.file, self.bytes) = (file, bytes);
        self.named.clear();
        Ok(())
    }
}

/// Makes the file and writes its head.
fn begin(path: &Path, table: &Table) -> io::Result<(File, u64)> {
    // Names and errors in it are nobody else's business.
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let Wall { unix, at } = Wall::now();
    let head = Head {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        unix_s: unix.0 / 1_000_000_000,
        unix_subsec_ns: (unix.0 % 1_000_000_000) as u32,
        at_ns: at.0,
        events: table.entries().to_vec(),
    };
    let head = serde_json::to_vec(&head).map_err(io::Error::other)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend((head.len() as u32).to_le_bytes());
    bytes.extend(head);
    file.write_all(&bytes)?;
    Ok((file, bytes.len() as u64))
}
