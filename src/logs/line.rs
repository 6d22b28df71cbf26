//! A line of the log, as text or JSON.

use super::table::{Level, Told};
use crate::sys::clock;
use crate::sys::events::Value;
use crate::units::Nanos;
use std::fmt::Write;
use std::str::FromStr;

/// How lines are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Wall-clock time (UTC), level, thread, text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// One moment by both clocks, so that instants of the monotonic one can be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wall {
    /// Nanoseconds since 1970.
    pub unix: Nanos,
    /// The monotonic clock at that moment.
    pub at: Nanos,
}

impl Wall {
    /// This moment.
    pub fn now() -> Wall {
        Wall { unix: clock::unix_now(), at: clock::now() }
    }

    /// Nanoseconds since 1970 at an instant of the monotonic clock.
    pub fn unix_ns(self, at: Nanos) -> u64 {
        self.unix.0.wrapping_add(at.0).wrapping_sub(self.at.0)
    }
}

/// An instant as RFC 3339 has it, in UTC, to the microsecond.
fn rfc3339(unix_ns: u64) -> String {
    let (us, s) = (unix_ns % 1_000_000_000 / 1_000, unix_ns / 1_000_000_000);
    let (days, s) = (s / 86_400, s % 86_400);
    // Years begin in March, so that the leap day is the last of its year; 400 of them have 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // From March on, five months have 153 days.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let (h, m, s) = (s / 3_600, s / 60 % 60, s % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{us:06}Z")
}

impl FromStr for Format {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            _ => Err(format!("{text:?} is no format; choose text or json")),
        }
    }
}

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<'a> {
    /// An event.
    Event(Told<'a>),
    /// A message.
    Message(&'a str),
    /// So many records of the thread were lost.
    Lost(u64),
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line<'a> {
    /// When, by the monotonic clock.
    pub at: Nanos,
    /// How serious.
    pub level: Level,
    /// The thread that told it.
    pub thread: &'a str,
    /// What.
    pub body: Body<'a>,
}

impl<'a> Line<'a> {
    /// The line of an event.
    pub fn event(thread: &'a str, told: Told<'a>) -> Line<'a> {
        Line { at: told.at, level: told.entry.level, thread, body: Body::Event(told) }
    }

    /// The line that says that records are missing.
    pub fn lost(thread: &'a str, at: Nanos, records: u64) -> Line<'a> {
        Line { at, level: Level::Warn, thread, body: Body::Lost(records) }
    }

    fn text(&self) -> String {
        match &self.body {
            Body::Event(told) => told.to_string(),
            Body::Message(text) => (*text).to_owned(),
            Body::Lost(records) => format!("{records} records before this were lost"),
        }
    }

    /// Appends the line to `out`, with its end; `wall` says what time it was.
    pub fn print(&self, format: Format, wall: Wall, out: &mut String) {
        let text = self.text();
        let unix_ns = wall.unix_ns(self.at);
        // Writing to a string does not fail.
        let _ = match format {
            Format::Text => {
                writeln!(out, "{} {:5} {}: {text}", rfc3339(unix_ns), self.level, self.thread)
            }
            Format::Json => writeln!(out, "{}", self.json(unix_ns, &text)),
        };
    }

    fn json(&self, unix_ns: u64, text: &str) -> serde_json::Value {
        let mut line = serde_json::json!({
            "at_ns": self.at.0,
            "unix_ns": unix_ns,
            "level": self.level,
            "thread": self.thread,
            "text": text,
        });
        match &self.body {
            Body::Event(told) => {
                line["event"] = told.entry.name.as_str().into();
                for ((name, _), value) in told.entry.fields.iter().zip(&told.values) {
                    line[name] = match value {
                        Value::Number(n) => (*n).into(),
                        Value::Text(text) => (*text).into(),
                    };
                }
            }
            Body::Message(_) => {}
            Body::Lost(records) => {
                line["event"] = "records_lost".into();
                line["records"] = (*records).into();
            }
        }
        line
    }
}
