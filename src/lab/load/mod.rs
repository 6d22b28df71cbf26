//! The load generator: one thread that sends by a schedule, or keeps a number of requests in flight.
//!
//! **Open loop**: requests leave when the schedule says so, whatever the answers do, and a latency
//! counts from the *planned* send. A server that stops for a while is then seen by every request that
//! was due meanwhile. The generator's own lag (actual send after planned send) is measured for each
//! request; where it is not small, the run is invalid. **Closed loop**: a request is sent when
//! another was answered, and a latency counts from the actual send.
//!
//! While it runs, the generator calls no allocator: every record, buffer and payload is made before.

mod frames;
mod local;
mod payload;
#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;

pub use frames::{ConnectError, Connection, FramePort, Opened};
pub use local::LocalPort;
pub use payload::{Payloads, Rows};

use crate::lab::schedule::Arrival;
use crate::sys::alloc;
use crate::units::{Nanos, Receipt};

/// Requests that are sent before answers are looked for again.
const SENDS_PER_TURN: usize = 16;
/// The run begins so long after the call, so that the first request is not late already.
const LEAD: Nanos = Nanos(1_000_000);
/// How often a waiting generator looks up although nothing is due.
const LOOK_UP: Nanos = Nanos(10_000_000);

/// What a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum End {
    /// No answer (yet).
    #[default]
    Waiting,
    /// Answered.
    Answered,
    /// Refused or failed: an error code's number.
    Failed(u16),
}

/// One request of a run. Instants count from the start of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// When it was to be sent; in a closed loop, when it was sent.
    pub planned: Nanos,
    /// When it was handed over; meaningless unless `was_sent`.
    pub sent: Nanos,
    /// When its end was seen; meaningless while it waits.
    pub done: Nanos,
    /// Rows.
    pub rows: u16,
    /// Whether it was handed over.
    pub was_sent: bool,
    /// Whether it was due and the other side took no more: connections full, or too many in flight.
    pub was_blocked: bool,
    /// What it came to.
    pub end: End,
    /// The server's receipt, where it was answered.
    pub receipt: Option<Receipt>,
}

/// The connection to the server broke, or the server left the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(
    /// What happened.
    pub String,
);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}

/// Where ends are written.
pub struct Ends<'r> {
    records: &'r mut [Record],
    start: Nanos,
    count: usize,
}

impl Ends<'_> {
    /// Notes the end of request `index`, seen at `at` (of the port's clock).
    pub fn note(&mut self, index: u32, at: Nanos, end: End, receipt: Option<Receipt>) {
        if let Some(record) = self.records.get_mut(index as usize) {
            record.done = at.since(self.start);
            record.end = end;
            record.receipt = receipt;
            self.count += 1;
        }
    }
}

/// The way to the server. Nothing here blocks but [`wait`](Self::wait).
pub trait Port {
    /// The clock that the run is measured by.
    fn now(&self) -> Nanos;
    /// Hands request `index` over; `false` if the other side takes no more now.
    ///
    /// # Errors
    /// The connection is lost.
    fn send(&mut self, index: u32, rows: u16) -> Result<bool, Broken>;
    /// Takes in what has come, and sends on what was cut short.
    ///
    /// # Errors
    /// The connection is lost.
    fn turn(&mut self, ends: &mut Ends<'_>) -> Result<(), Broken>;
    /// Waits until something has come, or until `until`; may return early.
    fn wait(&mut self, until: Nanos);
    /// Requests handed over and not ended.
    fn in_flight(&self) -> usize;
}

/// How a run went, beside its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Start, on the port's clock; records count from here.
    pub start: Nanos,
    /// From the start to the last end, or to where it was given up.
    pub span: Nanos,
    /// Requests that were handed over.
    pub sent: usize,
    /// Why it stopped early.
    pub broken: Option<Broken>,
    /// Calls into the system allocator by the generator (and by workers and I/O, where they are in
    /// this process) during the run.
    pub allocator_calls: u64,
}

/// Counts allocator calls while it lives; the thread is hot meanwhile.
struct Quiet(u64);

impl Quiet {
    fn begin() -> Quiet {
        let before = alloc::hot_calls();
        alloc::set_hot(true);
        Quiet(before)
    }
    fn end(self) -> u64 {
        alloc::set_hot(false);
        alloc::hot_calls() - self.0
    }
}

/// Sends `schedule` and waits for the answers, for at most `patience` after the last planned send.
/// `records` has one entry for each arrival and is overwritten.
///
/// # Panics
/// If `records` is shorter than the schedule.
pub fn open_loop(
    port: &mut (impl Port + ?Sized),
    schedule: &[Arrival],
    records: &mut [Record],
    patience: Nanos,
) -> Ran {
    assert!(records.len() >= schedule.len(), "a record for each arrival");
    for (record, arrival) in records.iter_mut().zip(schedule) {
        *record = Record { planned: arrival.at, rows: arrival.rows, ..Record::default() };
    }
    let quiet = Quiet::begin();
    let start = port.now().after(LEAD);
    let last = schedule.last().map_or(start, |a| start.after(a.at));
    let mut ends = Ends { records, start, count: 0 };
    let mut next = 0;
    let mut broken = None;
    while next < schedule.len() || port.in_flight() > 0 {
        let step = (|| -> Result<(), Broken> {
            port.turn(&mut ends)?;
            let mut full = false;
            for _ in 0..SENDS_PER_TURN {
                let Some(arrival) = schedule.get(next) else { break };
                let now = port.now();
                let due = start.after(arrival.at);
                if now < due {
                    break;
                }
                if !port.send(next as u32, arrival.rows)? {
                    ends.records[next].was_blocked = true;
                    full = true;
                    break;
                }
                let record = &mut ends.records[next];
                record.sent = now.since(start);
                record.was_sent = true;
                next += 1;
            }
            let now = port.now();
            let look_up = now.after(LOOK_UP);
            let until = match schedule.get(next) {
                Some(arrival) if !full => start.after(arrival.at).min(look_up),
                _ => look_up,
            };
            if until > now {
                port.wait(until);
            }
            Ok(())
        })();
        if let Err(error) = step {
            broken = Some(error);
            break;
        }
        if port.now() > last.after(patience) {
            break;
        }
    }
    Ran { start, span: port.now().since(start), sent: next, broken, allocator_calls: quiet.end() }
}

/// Keeps `concurrency` requests of `rows` rows in flight for `span`, or until the records are used
/// up; waits for the last answers for at most `patience`.
pub fn closed_loop(
    port: &mut (impl Port + ?Sized),
    concurrency: usize,
    rows: u16,
    span: Nanos,
    records: &mut [Record],
    patience: Nanos,
) -> Ran {
    let quiet = Quiet::begin();
    let start = port.now();
    let end = start.after(span);
    let mut ends = Ends { records, start, count: 0 };
    let mut next = 0;
    let mut broken = None;
    loop {
        let step = (|| -> Result<bool, Broken> {
            port.turn(&mut ends)?;
            let mut now = port.now();
            while now < end && next < ends.records.len() && port.in_flight() < concurrency {
                let at = now.since(start);
                if !port.send(next as u32, rows)? {
                    break;
                }
                ends.records[next] =
                    Record { planned: at, sent: at, rows, was_sent: true, ..Record::default() };
                next += 1;
                now = port.now();
            }
            let over = now >= end || next == ends.records.len();
            if over && (port.in_flight() == 0 || now > end.after(patience)) {
                return Ok(false);
            }
            port.wait(now.after(LOOK_UP));
            Ok(true)
        })();
        match step {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                broken = Some(error);
                break;
            }
        }
    }
    Ran { start, span: port.now().since(start), sent: next, broken, allocator_calls: quiet.end() }
}
