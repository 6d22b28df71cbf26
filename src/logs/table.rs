//! Which index is which event, and records read by it.

use crate::sys::events::{FIELDS_COUNT_MAX, FieldType, Kind, Value, write_message};
use crate::units::Nanos;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How serious something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something is broken.
    Error,
    /// Something is not as it should be.
    Warn,
    /// News.
    Info,
    /// For whoever looks for a cause.
    Debug,
    /// Every step.
    Trace,
}

impl Level {
    /// All, the most serious first.
    pub const ALL: [Level; 5] =
        [Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace];

    /// Its number in a log file, from 1.
    pub const fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The level with this number.
    pub fn from_number(number: u8) -> Option<Level> {
        Level::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

impl From<log::Level> for Level {
    fn from(level: log::Level) -> Level {
        Level::ALL[level as usize - 1]
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Error => "ERROR",
            Level::Warn => "WARN",
            Level::Info => "INFO",
            Level::Debug => "DEBUG",
            Level::Trace => "TRACE",
        })
    }
}

/// One event of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its index in records.
    pub index: u16,
    /// Its name.
    pub name: String,
    /// Its level.
    pub level: Level,
    /// Its text, where `{...}` stands for a field.
    pub format: String,
    /// Its fields: name and encoding, in the order of the text.
    pub fields: Vec<(String, FieldType)>,
}

impl Entry {
    /// An event of this program, whose statement has this index.
    pub fn new(index: u16, kind: &Kind) -> Entry {
        Entry {
            index,
            name: kind.name.into(),
            level: kind.level.into(),
            format: kind.format.into(),
            fields: kind.fields.iter().map(|&(name, kind)| (name.into(), kind)).collect(),
        }
    }
}

/// The events of a program, by their indices.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Table {
    /// In the order of their indices, each there once.
    entries: Vec<Entry>,
}

/// Why events make no table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableError {
    /// Two events have the same index.
    SameIndex {
        /// The index.
        index: u16,
        /// The names of both.
        names: [String; 2],
    },
    /// An event has more fields than any may have.
    Fields {
        /// Its name.
        name: String,
        /// Its fields.
        fields: usize,
        /// The most that there may be.
        max: usize,
    },
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableError::SameIndex { index, names: [a, b] } => {
                write!(f, "the events {a} and {b} have the same index, {index}")
            }
            TableError::Fields { name, fields, max } => {
                write!(f, "the event {name} has {fields} fields; at most {max} are read")
            }
        }
    }
}

impl std::error::Error for TableError {}

/// Why a record can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// Its index is no event's.
    UnknownIndex {
        /// The index.
        index: u16,
    },
    /// It ends before its fields do.
    Short {
        /// Its length in bytes.
        len: usize,
    },
    /// Bytes are left after its last field.
    Long {
        /// How many.
        left: usize,
    },
    /// A text in it is not UTF-8.
    NotText,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::UnknownIndex { index } => write!(f, "no event has index {index}"),
            RecordError::Short { len } => write!(f, "its {len} bytes end before its fields do"),
            RecordError::Long { left } => write!(f, "{left} bytes are left after its fields"),
            RecordError::NotText => f.write_str("a text in it is not UTF-8"),
        }
    }
}

impl std::error::Error for RecordError {}

/// An event as it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told<'a> {
    /// Which event.
    pub entry: &'a Entry,
    /// When, by the monotonic clock.
    pub at: Nanos,
    /// Its fields.
    pub values: heapless::Vec<Value<'a>, FIELDS_COUNT_MAX>,
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_message(f, &self.entry.format, &self.values)
    }
}

/// Bytes of a record that are not read yet.
struct Rest<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl<'a> Rest<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], RecordError> {
        let (taken, rest) =
            self.bytes.split_at_checked(n).ok_or(RecordError::Short { len: self.len })?;
        self.bytes = rest;
        Ok(taken)
    }
    fn number(&mut self, bytes: usize) -> Result<u64, RecordError> {
        let taken = self.take(bytes)?;
        Ok(taken.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte)))
    }
}

impl Table {
    /// A table.
    ///
    /// # Errors
    /// Two events have the same index, or one has too many fields.
    pub fn new(mut entries: Vec<Entry>) -> Result<Table, TableError> {
        entries.sort_by_key(|entry| entry.index);
        for pair in entries.windows(2) {
            if pair[0].index == pair[1].index {
                let names = [pair[0].name.clone(), pair[1].name.clone()];
                return Err(TableError::SameIndex { index: pair[0].index, names });
            }
        }
        if let Some(entry) = entries.iter().find(|e| e.fields.len() > FIELDS_COUNT_MAX) {
            return Err(TableError::Fields {
                name: entry.name.clone(),
                fields: entry.fields.len(),
                max: FIELDS_COUNT_MAX,
            });
        }
        Ok(Table { entries })
    }

    /// The events, in the order of their indices.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Reads a record.
    ///
    /// # Errors
    /// It is not one of an event in this table.
    pub fn read<'a>(&'a self, record: &'a [u8]) -> Result<Told<'a>, RecordError> {
        let mut rest = Rest { bytes: record, len: record.len() };
        let index = rest.number(2)? as u16;
        let at = Nanos(rest.number(8)?);
        let found = self.entries.binary_search_by_key(&index, |entry| entry.index);
        let entry = &self.entries[found.map_err(|_| RecordError::UnknownIndex { index })?];
        let mut values = heapless::Vec::new();
        for (_, kind) in &entry.fields {
            let value = match kind {
                FieldType::U8 => Value::Number(rest.number(1)?),
                FieldType::U16 => Value::Number(rest.number(2)?),
                FieldType::U32 => Value::Number(rest.number(4)?),
                FieldType::U64 => Value::Number(rest.number(8)?),
                FieldType::Str => {
                    let len = rest.number(4)? as usize;
                    let text = std::str::from_utf8(rest.take(len)?);
                    Value::Text(text.map_err(|_| RecordError::NotText)?)
                }
            };
            // There is room: the table was checked.
            let _ = values.push(value);
        }
        match rest.bytes.len() {
            0 => Ok(Told { entry, at, values }),
            left => Err(RecordError::Long { left }),
        }
    }
}

/// What a log file says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Version of the program that wrote it.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since 1970 by the wall clock when the file was begun.
    pub unix_s: u64,
    /// The rest of that second, in nanoseconds; 0 in files of versions that did not write it.
    #[serde(default)]
    pub unix_subsec_ns: u32,
    /// The monotonic clock at that moment, in nanoseconds.
    pub at_ns: u64,
    /// The events that may be in it.
    pub events: Vec<Entry>,
}
