//! The log file, read.

use super::file::{EVENT, LOST, MAGIC, MESSAGE, RECORD_HEAD_BYTES, THREAD};
use super::line::{Body, Line, Wall};
use super::table::{Head, Level, RecordError, Table, TableError};
use crate::limits::LOG_HEAD_BYTES_MAX;
use crate::units::Nanos;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};

/// Why a log file can't be read, or not further.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The system refused.
    Io(io::Error),
    /// There is nothing in it.
    Empty,
    /// It does not begin as a log file does.
    NotALog,
    /// It is of another layout.
    Layout {
        /// The digit after `corelog`.
        got: u8,
    },
    /// Its head is not what it should be.
    Head {
        /// Why.
        reason: String,
    },
    /// It ends within its head, or within a record.
    Cut {
        /// Where the part that is not whole begins, in bytes.
        at: u64,
    },
    /// A record is not what it should be.
    Record {
        /// Where it begins, in bytes.
        at: u64,
        /// Why.
        reason: String,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Io(source) => write!(f, "it can't be read: {source}"),
            ReadError::Empty => f.write_str("it is empty"),
            ReadError::NotALog => {
                f.write_str("it is no log file of corelane (serve --log-file makes one)")
            }
            ReadError::Layout { got } => write!(
                f,
                "its layout is {:?}; this version of corelane reads {:?}",
                char::from(*got),
                char::from(MAGIC[7])
            ),
            ReadError::Head { reason } => write!(f, "its head is damaged: {reason}"),
            ReadError::Cut { at } => write!(f, "it ends within what begins at byte {at}"),
            ReadError::Record { at, reason } => write!(f, "damaged at byte {at}: {reason}"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Io(source) => Some(source),
            _ => None,
        }
    }
}

/// A log file that is being read.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    at: u64,
    head: Head,
    table: Table,
    threads: BTreeMap<u32, String>,
    content: Vec<u8>,
}

/// Fills `to`; how many bytes there were.
fn fill(from: &mut impl Read, to: &mut [u8]) -> Result<usize, ReadError> {
    let mut filled = 0;
    while filled < to.len() {
        match from.read(&mut to[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ReadError::Io(error)),
        }
    }
    Ok(filled)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))
}

impl<R: Read> Reader<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// It is no log file, or none that this version reads.
    pub fn open(mut from: R) -> Result<Reader<R>, ReadError> {
        let mut start = [0; MAGIC.len() + 4];
        let n = fill(&mut from, &mut start)?;
        let (magic, len) = start.split_at(MAGIC.len());
        let (name, layout) = (&magic[..7], magic[7]);
        match n {
            0 => return Err(ReadError::Empty),
            _ if start[..n.min(7)] != MAGIC[..n.min(7)] => return Err(ReadError::NotALog),
            _ if n < start.len() => return Err(ReadError::Cut { at: 0 }),
            _ if name == &MAGIC[..7] && layout != MAGIC[7] => {
                return Err(ReadError::Layout { got: layout });
            }
            _ => {}
        }
        let len = number(len) as usize;
        if len > LOG_HEAD_BYTES_MAX {
            let reason = format!("{len} bytes; at most {LOG_HEAD_BYTES_MAX} are read");
            return Err(ReadError::Head { reason });
        }
        let mut text = vec![0; len];
        if fill(&mut from, &mut text)? < len {
            return Err(ReadError::Cut { at: 0 });
        }
        let damaged = |reason: String| ReadError::Head { reason };
        let head: Head = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        let table =
            Table::new(head.events.clone()).map_err(|e: TableError| damaged(e.to_string()))?;
        let at = (start.len() + len) as u64;
        Ok(Reader { from, at, head, table, threads: BTreeMap::new(), content: Vec::new() })
    }

    /// What the file says of itself.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The moment in which the file was begun, by which its instants are named.
    pub fn wall(&self) -> Wall {
        let unix = self.head.unix_s.saturating_mul(1_000_000_000);
        let unix = Nanos(unix.saturating_add(self.head.unix_subsec_ns.into()));
        Wall { unix, at: Nanos(self.head.at_ns) }
    }

    /// The next line; `None` at the end.
    ///
    /// # Errors
    /// The file can't be read further.
    #[allow(clippy::should_implement_trait)] // lines borrow the reader
    pub fn next(&mut self) -> Result<Option<Line<'_>>, ReadError> {
        loop {
            let at = self.at;
            let mut head = [0; RECORD_HEAD_BYTES];
            match fill(&mut self.from, &mut head)? {
                0 => return Ok(None),
                RECORD_HEAD_BYTES => {}
                _ => return Err(ReadError::Cut { at }),
            }
            let (kind, thread) = (head[0], number(&head[1..5]) as u32);
            self.content.resize(number(&head[5..]) as usize, 0);
            if fill(&mut self.from, &mut self.content)? < self.content.len() {
                return Err(ReadError::Cut { at });
            }
            self.at += (RECORD_HEAD_BYTES + self.content.len()) as u64;
            if kind == THREAD {
                let name = String::from_utf8_lossy(&self.content).into_owned();
                self.threads.insert(thread, name);
                continue;
            }
            let name = self.threads.get(&thread).map_or("?", String::as_str);
            return line(kind, name, &self.content, &self.table)
                .map(Some)
                .map_err(|reason| ReadError::Record { at, reason });
        }
    }
}

fn line<'a>(
    kind: u8,
    thread: &'a str,
    content: &'a [u8],
    table: &'a Table,
) -> Result<Line<'a>, String> {
    match kind {
        EVENT => {
            let told = table.read(content).map_err(|e: RecordError| e.to_string())?;
            Ok(Line::event(thread, told))
        }
        LOST if content.len() == 16 => {
            Ok(Line::lost(thread, Nanos(number(&content[8..])), number(&content[..8])))
        }
        MESSAGE => message(content).ok_or_else(|| "a message that is none".into()),
        _ => Err(format!("a record of kind {kind} with {} bytes", content.len())),
    }
}

fn message(content: &[u8]) -> Option<Line<'_>> {
    let (at, rest) = content.split_at_checked(8)?;
    let (&[level, len], rest) = rest.split_first_chunk()?;
    let (thread, text) = rest.split_at_checked(usize::from(len))?;
    Some(Line {
        at: Nanos(number(at)),
        level: Level::from_number(level)?,
        thread: std::str::from_utf8(thread).ok()?,
        body: Body::Message(std::str::from_utf8(text).ok()?),
    })
}
