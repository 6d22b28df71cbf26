//! A line of the log, as text or JSON.

use super::table::{Level, Told};
use crate::sys::events::Value;
use crate::units::Nanos;
use std::fmt::Write;
use std::str::FromStr;

/// How lines are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Seconds, level, thread, text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
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

    /// Appends the line to `out`, with its end.
    pub fn print(&self, format: Format, out: &mut String) {
        let text = self.text();
        // Writing to a string does not fail.
        let _ = match format {
            Format::Text => {
                let (s, us) = (self.at.0 / 1_000_000_000, self.at.0 % 1_000_000_000 / 1_000);
                writeln!(out, "{s}.{us:06} {:5} {}: {text}", self.level, self.thread)
            }
            Format::Json => writeln!(out, "{}", self.json(&text)),
        };
    }

    fn json(&self, text: &str) -> serde_json::Value {
        let mut line = serde_json::json!({
            "at_ns": self.at.0,
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
