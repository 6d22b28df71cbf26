//! What workers and the I/O thread tell of what they do: plain values, handed to whoever installed a
//! [`Sink`]. Nobody did: nothing is told, and a statement costs one load and a comparison.
//!
//! No text is made where something happens. An [`Event`] has a number, a level and at most four fields;
//! its text is a [`Kind`]'s format, filled in by [`write_message`] wherever it is read. The `corelane`
//! command encodes events with defmt into rings of their own ([`records`](super::records)) and prints
//! them on a housekeeping thread. A program that links the crate can have them through the `log`
//! facade, by [`install`]`(`[`FACADE`]`)`: then its logger runs on the worker, and whether that
//! allocates or waits is the logger's doing.

use super::sync::{AtomicU32, Ordering};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};
use std::sync::OnceLock;

/// Text in an event: a name from a fixed list, never made for the purpose.
pub type Text = &'static str;

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// A text.
    Text(&'a str),
}

/// How a field is encoded: numbers with their lowest byte first, a text as its length in four bytes
/// and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FieldType {
    /// One byte.
    U8,
    /// Two bytes.
    U16,
    /// Four bytes.
    U32,
    /// Eight bytes.
    U64,
    /// A text.
    Str,
}

/// A field's type, as events are declared with it.
pub trait Field: Copy + Default {
    /// How it is encoded.
    const TYPE: FieldType;
    /// Its value.
    fn value(self) -> Value<'static>;
}

macro_rules! numbers {
    ($($rust:ty => $encoded:ident,)+) => { $(
        impl Field for $rust {
            const TYPE: FieldType = FieldType::$encoded;
            fn value(self) -> Value<'static> {
                Value::Number(u64::from(self))
            }
        }
    )+ };
}
numbers! { u8 => U8, u16 => U16, u32 => U32, u64 => U64, }

impl Field for Text {
    const TYPE: FieldType = FieldType::Str;
    fn value(self) -> Value<'static> {
        Value::Text(self)
    }
}

/// Calls the macro `$then` with the list of all events: level, variant, name, format, fields in the
/// order in which the format names them. One list for the type, for its texts, and for the command's
/// defmt statements.
#[doc(hidden)]
#[macro_export]
macro_rules! corelane_events {
    ($then:ident) => {
        $then! {
            /// A worker looks for requests from here on.
            debug WorkerServes "worker_serves" "worker {=u8} serves {=u16} models" { worker: u8, models: u16 }
            /// A worker runs the next version of a model from here on.
            debug VersionTaken "version_taken" "worker {=u8} runs the next version of model {=u16}" { worker: u8, model: u16 }
            /// A worker sleeps, since nothing waits.
            trace WorkerSlept "worker_slept" "slept {=u64} ns" { ns: u64 }
            /// A batch was run.
            debug BatchRan "batch_ran" "model {=u16}: {=u32} rows of {=u32} requests, closed by {=str}, took {=u64} ns" { model: u16, rows: u32, requests: u32, reason: Text, ns: u64 }
            /// A request was answered.
            trace RequestAnswered "request_answered" "model {=u16}: {=u16} rows answered {=u64} ns after they came" { model: u16, rows: u16, ns: u64 }
            /// A request ended without an answer, and its client is the reason, or time was.
            debug RequestDropped "request_dropped" "model {=u16}: a request ended after {=u64} ns: {=str}" { model: u16, ns: u64, reason: Text }
            /// A request ended before it ran: its client gave it up, or its time was over.
            debug RequestWithdrawn "request_withdrawn" "connection {=u16}: request {=u32} ended: {=str}" { connection: u16, request: u32, reason: Text }
            /// A request ended without an answer, and the model is the reason.
            warn RequestFailed "request_failed" "model {=u16}: a request failed: {=str}" { model: u16, reason: Text }
            /// The engine panicked; whether there is a fresh instance (1) or none is left (0).
            error EnginePanicked "engine_panicked" "model {=u16}: the engine panicked; fresh instances: {=u8}" { model: u16, rebuilt: u8 }
            /// A client is in.
            debug ConnectionOpened "connection_opened" "connection {=u16} opened by {=str}" { connection: u16, door: Text }
            /// A client is gone.
            debug ConnectionClosed "connection_closed" "connection {=u16} closed" { connection: u16 }
            /// A client was not let in.
            warn ConnectionRefused "connection_refused" "a connection was refused: {=str} ({=u64}, {=u64})" { code: Text, a: u64, b: u64 }
            /// A client was told an error after which its connection ends.
            warn ConnectionFailed "connection_failed" "a connection ends: {=str} ({=u64}, {=u64})" { code: Text, a: u64, b: u64 }
            /// A client takes nothing, or the server stops: it does not get what is left.
            warn AnswersGivenUp "answers_given_up" "connection {=u16} is closed with {=u64} answers that it did not take" { connection: u16, answers: u64 }
            /// A client was told an error.
            debug RequestRefused "request_refused" "a request was refused: {=str} ({=u64}, {=u64})" { code: Text, a: u64, b: u64 }
            /// A request was read whole, and is offered to its queue.
            trace RequestRead "request_read" "connection {=u16}: request {=u32} for model {=u16}" { connection: u16, request: u32, model: u16 }
            /// Sound frames came after damage on a serial line.
            debug LinkResynced "link_resynced" "serial port {=u8}: in step again after damage, {=u32} times" { port: u8, times: u32 }
            /// Frames of a serial line were wrong.
            debug LinkDamaged "link_damaged" "serial port {=u8}: {=u32} frames were damaged" { port: u8, frames: u32 }
            /// A serial port does not work, or is gone; it is opened again later.
            warn SerialLost "serial_lost" "serial port {=u8} is lost; it is opened again after {=u64} ns" { port: u8, ns: u64 }
            /// A serial port works again.
            info SerialFound "serial_found" "serial port {=u8} is open again" { port: u8 }
            /// The system accepts no connection for now; most likely no descriptor is left.
            warn AcceptFailed "accept_failed" "the system refuses connections; tried again after {=u64} ns" { ns: u64 }
            /// Nothing more is accepted.
            info Draining "draining" "draining {=u16} connections" { connections: u16 }
        }
    };
}

macro_rules! levels {
    (error) => {
        log::Level::Error
    };
    (warn) => {
        log::Level::Warn
    };
    (info) => {
        log::Level::Info
    };
    (debug) => {
        log::Level::Debug
    };
    (trace) => {
        log::Level::Trace
    };
}

/// What is the same for all events of a variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Its name in JSON.
    pub name: &'static str,
    /// Its level.
    pub level: log::Level,
    /// Its text, in defmt's notation: `{=u32}` stands for a field.
    pub format: &'static str,
    /// Its fields: name and encoding, in the order of the text.
    pub fields: &'static [(&'static str, FieldType)],
}

/// Fields of an event, at most.
pub const FIELDS_COUNT_MAX: usize = 5;

macro_rules! declare {
    ($($(#[$doc:meta])* $level:ident $variant:ident $name:literal $format:literal
        { $($field:ident: $type:ty),* })+) => {
        /// Something that happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)] // the fields' names are their meaning; units are in the text
        pub enum Event { $($(#[$doc])* $variant { $($field: $type),* },)+ }

        /// All kinds, in the order of their numbers.
        pub const KINDS: &[Kind] = &[$(Kind {
            name: $name,
            level: levels!($level),
            format: $format,
            fields: &[$((stringify!($field), <$type as Field>::TYPE)),*],
        },)+];

        impl Event {
            /// Its level.
            #[inline(always)]
            pub const fn level(self) -> log::Level {
                match self { $(Event::$variant { .. } => levels!($level),)+ }
            }
            /// Its name in JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Event::$variant { .. } => $name,)+ }
            }
            /// Its text, in defmt's notation.
            pub const fn format(self) -> &'static str {
                match self { $(Event::$variant { .. } => $format,)+ }
            }
            /// Its fields' values, in the order of the text.
            pub fn values(self) -> heapless::Vec<Value<'static>, FIELDS_COUNT_MAX> {
                match self {
                    $(Event::$variant { $($field),* } => {
                        const { assert!(0 $(+ { let _ = stringify!($field); 1 })* <= FIELDS_COUNT_MAX) };
                        [$($field.value()),*].into_iter().collect()
                    })+
                }
            }
            /// One event of each kind, with fields of zeros, in the order of [`KINDS`].
            pub fn samples() -> Vec<Event> {
                vec![$(Event::$variant { $($field: <$type>::default()),* },)+]
            }
        }
    };
}
corelane_events!(declare);

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_message(f, self.format(), &self.values())
    }
}

/// Writes a text with its values: each `{...}` of `format` is the next one. A value that is missing
/// is a question mark.
///
/// # Errors
/// Those of `out`.
pub fn write_message(out: &mut impl Write, format: &str, values: &[Value<'_>]) -> fmt::Result {
    let mut values = values.iter();
    let mut rest = format;
    while let Some((text, after)) = rest.split_once('{') {
        out.write_str(text)?;
        match values.next() {
            Some(Value::Number(n)) => write!(out, "{n}")?,
            Some(Value::Text(text)) => out.write_str(text)?,
            None => out.write_char('?')?,
        }
        rest = after.split_once('}').map_or("", |(_, rest)| rest);
    }
    out.write_str(rest)
}

/// Who takes events.
#[derive(Debug, Clone, Copy)]
pub struct Sink {
    /// Called on a thread that will tell events, before it serves: the place to allocate what it takes.
    pub thread: fn(),
    /// Takes an event on the thread that tells it, which serves: it must not wait, and should not
    /// allocate.
    pub event: fn(Event),
}

/// Passes events to the `log` facade, target `corelane::events`.
pub const FACADE: Sink = Sink {
    thread: || {},
    event: |event| log::log!(target: "corelane::events", event.level(), "{event}"),
};

static SINK: OnceLock<Sink> = OnceLock::new();
/// Events up to this level are told; 0 is none. A setting: it is paired with nothing.
static LEVEL: AtomicU32 = AtomicU32::new(0);

/// There is a sink already, and it stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Installed;

impl fmt::Display for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("events have a sink already; a process has one")
    }
}

impl std::error::Error for Installed {}

/// Has events given to `sink`, once for the whole process. Nothing is told before [`set_level`].
/// Threads that serve already are not announced to it.
///
/// # Errors
/// There is one already.
pub fn install(sink: Sink) -> Result<(), Installed> {
    SINK.set(sink).map_err(|_| Installed)
}

/// Has events up to `level` told from now on.
pub fn set_level(level: log::LevelFilter) {
    LEVEL.store(level as u32, Ordering::Relaxed);
}

/// Up to which level events are told.
pub fn level() -> log::LevelFilter {
    let number = LEVEL.load(Ordering::Relaxed) as usize;
    log::LevelFilter::iter().nth(number).unwrap_or(log::LevelFilter::Off)
}

/// Whether there is a sink.
pub fn is_installed() -> bool {
    SINK.get().is_some()
}

/// Announces the calling thread to the sink.
pub(crate) fn thread_starts() {
    if let Some(sink) = SINK.get() {
        (sink.thread)();
    }
}

/// Tells an event, if its level is told.
#[inline(always)]
pub fn tell(event: Event) {
    if event.level() as u32 <= LEVEL.load(Ordering::Relaxed) {
        pass(event);
    }
}

#[inline(never)]
fn pass(event: Event) {
    if let Some(sink) = SINK.get() {
        (sink.event)(event);
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
