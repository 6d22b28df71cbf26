//! The doors of a runtime: one I/O thread that serves its models over sockets.

use super::end::nanos;
use super::{DrainReport, Refused, Runtime, stats};
use crate::queue::completion::CompletionReceiver;
use crate::sys::affinity::{self, AffinityError};
use crate::sys::clock;
use crate::sys::sync::{AtomicU64, Ordering};
use crate::transport::{BindError, Served, Server, ServerOptions, StatsDesk, TransportCounters};
use crate::units::{CoreId, Nanos};
use crate::wire::ErrorCode;
use std::fmt;
use std::sync::mpsc;
use std::time::Duration;

/// Why a runtime's doors did not open.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// A socket could not be opened.
    Bind(BindError),
    /// The I/O thread could not be pinned.
    Affinity(AffinityError),
    /// The system refused the I/O thread real-time options.
    RealTime(Refused),
    /// The system gave no thread.
    System(std::io::Error),
    /// The runtime's one I/O thread runs already, or somebody took its completion rings.
    Taken,
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Bind(e) => e.fmt(f),
            ServeError::Affinity(e) => write!(f, "the I/O thread: {e}"),
            ServeError::RealTime(e) => e.fmt(f),
            ServeError::System(e) => write!(f, "the system refused: {e}"),
            ServeError::Taken => f.write_str("the runtime has its one I/O thread already"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ServeError::Bind(e) => Some(e),
            ServeError::Affinity(e) => Some(e),
            ServeError::RealTime(e) => Some(e),
            ServeError::System(e) => Some(e),
            ServeError::Taken => None,
        }
    }
}

fn transport_stats(counters: &TransportCounters) -> serde_json::Value {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let errors: serde_json::Map<String, serde_json::Value> = ErrorCode::ALL
        .iter()
        .map(|&code| (code.name().to_owned(), counters.errors_of(code).into()))
        .collect();
    serde_json::json!({
        "connections_total": of(&counters.connections_total),
        "connections_open": of(&counters.connections_open),
        "frames_total": of(&counters.frames_total),
        "answers_total": of(&counters.answers_total),
        "received_bytes_total": of(&counters.received_bytes_total),
        "sent_bytes_total": of(&counters.sent_bytes_total),
        "reads_total": of(&counters.reads_total),
        "writes_total": of(&counters.writes_total),
        "link_resync_total": of(&counters.link_resync_total),
        "link_crc_error_total": of(&counters.link_crc_error_total),
        "link_oversize_total": of(&counters.link_oversize_total),
        "link_retransmit_total": of(&counters.link_retransmit_total),
        "link_received_bytes_total": of(&counters.link_received_bytes_total),
        "link_sent_bytes_total": of(&counters.link_sent_bytes_total),
        "timer_looks_total": of(&counters.timer_looks_total),
        "answers_given_up_total": of(&counters.answers_given_up_total),
        "slots_reclaimed_total": of(&counters.slots_reclaimed_total),
        "strangers_evicted_total": of(&counters.strangers_evicted_total),
        "sleeps_total": of(&counters.sleeps_total),
        "direct_answers_total": of(&counters.direct_answers_total),
        "lone_requests_total": of(&counters.lone_requests_total),
        "seat_loans_total": of(&counters.seat_loans_total),
        "unknown_model_total": of(&counters.unknown_model_total),
        "errors_total": errors,
    })
}

impl Runtime {
    /// The cores that the scheduler allows the calling thread and that have no worker: there I/O and
    /// housekeeping disturb nobody. Empty if there is none, or workers are not pinned.
    ///
    /// # Errors
    /// The scheduler does not tell the allowed cores.
    pub fn housekeeping_cores(&self) -> Result<Vec<CoreId>, AffinityError> {
        let workers: Vec<CoreId> = self.shared.workers.iter().filter_map(|(c, _)| *c).collect();
        if workers.len() < self.shared.workers.len() {
            return Ok(Vec::new());
        }
        let mut cores = affinity::allowed()?;
        cores.retain(|core| !workers.contains(core));
        Ok(cores)
    }

    /// Opens the doors: the thread `cl-io`, pinned to `io_core` if one is given, serves this
    /// runtime's models until the server is drained or dropped. Drop the server before the runtime.
    ///
    /// # Errors
    /// A door that can't be opened, a pin that did not take, or a second call.
    pub fn serve(
        &mut self,
        options: ServerOptions,
        io_core: Option<CoreId>,
    ) -> Result<Server, ServeError> {
        let (completions, waker): (Vec<CompletionReceiver>, _) =
            self.take_io().ok_or(ServeError::Taken)?;
        let models = self
            .shared
            .models
            .iter()
            .map(|m| Served { name: m.name.clone(), queue: m.queue.clone() })
            .collect();
        let shared = self.shared.clone();
        let desk = StatsDesk::spawn(waker.clone(), move |text| {
            text.push_str(&stats::told(&stats::snapshot(&shared)));
        })
        .map_err(ServeError::System)?;
        let (pinned, pin) = mpsc::channel();
        let options_of_thread = self.realtime.wanted.thread;
        let on_start = move || {
            let result = io_core.map_or(Ok(()), |core| affinity::restrict(&[core]));
            // The receiver waits below.
            let _ = pinned.send(result.map(|()| options_of_thread.apply("cl-io")));
        };
        let server = Server::start(options, models, completions, waker, desk, on_start)
            .map_err(ServeError::Bind)?;
        match pin.recv() {
            Ok(Ok(outcomes)) => {
                self.realtime.add(outcomes);
                self.realtime.check().map_err(ServeError::RealTime)?;
            }
            Ok(Err(error)) => return Err(ServeError::Affinity(error)),
            Err(_) => {
                let text = "the I/O thread ended while it started";
                return Err(ServeError::System(std::io::Error::other(text)));
            }
        }
        let counters = server.shared_counters();
        self.shared.add_stats("transport", move || transport_stats(&counters));
        server.set_ready(true);
        Ok(server)
    }

    /// Closes the doors, answers everything that was accepted and hands the answers over to their
    /// readers, for at most `patience`.
    pub fn drain_with(&self, server: Server, patience: Duration) -> DrainReport {
        self.drain_while(server, patience, || true)
    }

    /// The same, as long as `go_on` says so, which is asked again and again while clients are waited for.
    pub fn drain_while(
        &self,
        server: Server,
        patience: Duration,
        mut go_on: impl FnMut() -> bool,
    ) -> DrainReport {
        let end = clock::now().after(nanos(patience));
        let counters = server.shared_counters();
        let given_up = || counters.answers_given_up_total.load(Ordering::Relaxed);
        let before = given_up();
        server.drain();
        for model in &self.shared.models {
            model.queue.hurry();
        }
        let mut goes_on = true;
        while goes_on && !server.is_finished() && clock::now() < end {
            std::thread::sleep(Duration::from_micros(500));
            goes_on = go_on();
        }
        let left = if goes_on { end.since(clock::now()) } else { Nanos(0) };
        let DrainReport { left, .. } = self.drain(Duration::from_nanos(left.0));
        // Connections that only wait for their peers to close have nothing to lose.
        drop(server);
        let unread = given_up().wrapping_sub(before);
        DrainReport { clean: left == 0 && unread == 0, left, unread }
    }
}
