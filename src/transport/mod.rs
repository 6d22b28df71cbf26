//! Transports: the protocol over Unix sockets, TCP, serial ports and memory, on one event-driven I/O thread.
//!
//! # The way of a request
//! The head is parsed from the connection's read buffer; a slot of the model is leased; the payload
//! is read straight into the slot's input buffer and handed to the queue. The worker's completion
//! ring says when the answer is there; head and output go out by one gathering write, straight from
//! the slot, which is then freed. Small frames cost one read, and answers that are ready together
//! cost one write per connection; a long payload is read into its slot without passing through the
//! connection's buffer.
//!
//! A request with no company in the whole server takes a shorter way back: the connection's socket is
//! lent to the worker that runs it, which sends the answer itself, in one system call that never waits
//! (see [`outlet`](crate::queue::outlet)). Otherwise the worker would wake this thread and this thread
//! would write: two switches of threads for nothing. With company the answers go through this thread,
//! which gathers them, and the workers compute. Answers over
//! [`DIRECT_ANSWER_BYTES_MAX`](crate::limits::DIRECT_ANSWER_BYTES_MAX) always do: their copying would
//! hold a worker up. A worker never runs on this thread.
//!
//! # Who tends the connections
//! This thread, unless one connection asks alone: one request at a time, each run known to take at most
//! [`LONE_RUN_US_MAX`](crate::limits::LONE_RUN_US_MAX), and nothing from anybody else. After
//! [`LONE_STREAK_COUNT_MIN`](crate::limits::LONE_STREAK_COUNT_MIN) such requests this thread leaves its
//! [seat](crate::queue::seat) to the worker that has the last one. That worker then sleeps in the poller
//! instead of on its own word, reads the next request, runs it and sends the answer: two switches of
//! threads a round trip, as in a bare echo, where the way through this thread takes three. What comes
//! from anybody else (a second connection's bytes, a second request in flight, a model that takes longer,
//! somebody in process) sends the seat home first, or interrupts the sleep, as does a second without a
//! request. A worker that spins takes no seat, nor is it left where a model waits for company
//! (`max_queue_delay_microseconds`), where there are serial ports, or with
//! [`workers_tend`](ServerOptions::workers_tend) off.
//!
//! # Bounds
//! Everything is allocated at start: connections with their buffers, one entry for each slot. Once
//! the thread runs it calls no allocator, also on errors and disconnects (a disconnecting client in
//! memory frees its pipe on its own side). Per connection there are bounds on requests in flight,
//! bytes of replies that wait ([`CONNECTION_REPLY_BYTES_MAX`](crate::limits::CONNECTION_REPLY_BYTES_MAX)),
//! how long a frame may stay half sent, and how long a reader may take nothing. A connection whose
//! replies have no room is not read until they have. Answers that wait for a slow reader are copied
//! out of their slots as far as that room goes; longer ones hold their slots until the reader is
//! given up.
//!
//! # Under pressure
//! What nobody else needs may be held as long as the bounds allow; what others need may not. A short
//! payload ([`LATE_SLOT_PAYLOAD_BYTES_MAX`](crate::limits::LATE_SLOT_PAYLOAD_BYTES_MAX)) takes its slot
//! when all of it is there. A longer one is read into its slot; where no slot is left for another
//! request, the payload that is furthest behind
//! [`PAYLOAD_BYTES_PER_MS_MIN`](crate::limits::PAYLOAD_BYTES_PER_MS_MIN) gives its slot up, and its
//! request ends as `queue_full`. Where no place is left for another connection, the one that has owed its
//! hello (or its proof) longest gives its place up. TCP never takes the last quarter of all places where
//! there is a Unix socket, and sockets never take those of the serial ports.
//!
//! # Trust
//! A Unix socket is protected by its mode (0600 by default), and by a list of user ids if given.
//! TCP listens on loopback, or elsewhere with `allow_remote` and a pre-shared key; a key given is
//! asked for on loopback too. A serial line is trusted: no key is asked for on it.

mod arrivals;
mod conn;
mod desk;
mod fault;
mod instants;
mod io;
mod link;
mod listen;
mod loopback;
mod replies;
mod serial;
mod table;
#[cfg(test)]
mod tests;
mod timers;

pub use crate::wire::link::SerialOptions;
pub use arrivals::{Arrivals, Arrived};
pub(crate) use conn::{failure_code, refusal_code};
pub use desk::{ReloadHandler, StatsDesk};
pub use fault::{FaultPlan, Faulty};
pub use loopback::{Loopback, LoopbackStream};

use crate::limits::{
    CONNECTIONS_MAX, DESCRIPTORS_BESIDES_CONNECTIONS, HALF_FRAME_MS_MAX,
    IN_FLIGHT_PER_CONNECTION_MAX, MODEL_NAME_LEN_MAX, MODELS_MAX, SERIAL_LISTENERS_MAX,
    TENSOR_NAME_LEN_MAX, WRITE_STALL_MS_MAX,
};
use crate::queue::SharedQueue;
use crate::queue::completion::{CompletionReceiver, IoWaker};
use crate::sys::descriptors;
use crate::sys::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::wire::{ErrorCode, Key};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

/// A model as clients see it.
#[derive(Debug, Clone)]
pub struct Served {
    /// What clients open.
    pub name: String,
    /// Its queue. Its [`id`](crate::queue::ModelQueue::id) is its position in the list of models.
    pub queue: SharedQueue,
}

/// A Unix socket.
#[derive(Debug, Clone)]
pub struct UnixOptions {
    /// Where. A socket of a dead server is taken over; a live one is refused.
    pub path: PathBuf,
    /// Mode of the socket file.
    pub mode: u32,
    /// User ids that may connect; `None`: whoever the mode lets in.
    pub allowed_uids: Option<Vec<u32>>,
}

impl UnixOptions {
    /// A socket with mode 0600.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        UnixOptions { path: path.into(), mode: 0o600, allowed_uids: None }
    }
}

/// A TCP port.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// Where; port 0 takes a free one.
    pub address: SocketAddr,
    /// Allows an address that is not loopback; needs a key.
    pub allow_remote: bool,
    /// The pre-shared key that clients must prove.
    pub key: Option<Key>,
}

impl TcpOptions {
    /// A port without a key; the address must be loopback.
    pub fn new(address: SocketAddr) -> Self {
        TcpOptions { address, allow_remote: false, key: None }
    }
}

/// What a server listens on, and its bounds.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// A Unix socket.
    pub unix: Option<UnixOptions>,
    /// A TCP port.
    pub tcp: Option<TcpOptions>,
    /// Serial ports, at most [`SERIAL_LISTENERS_MAX`].
    pub serial: Vec<SerialOptions>,
    /// Connections in all, at most [`CONNECTIONS_MAX`].
    pub connections_max: usize,
    /// Requests in flight on one connection, at most [`IN_FLIGHT_PER_CONNECTION_MAX`].
    pub in_flight_max: usize,
    /// How long a frame, or the hello, may stay half sent.
    pub half_frame: Duration,
    /// How long a reader may take nothing.
    pub write_stall: Duration,
    /// How long the thread looks for completions before it sleeps, while requests are in flight.
    pub spin: Duration,
    /// Where arrivals are recorded, if they are.
    pub arrivals: Option<Arc<Arrivals>>,
    /// Whether a worker that sleeps when nothing waits may tend the connections while one of them asks
    /// one short thing at a time. Not where there are serial ports, or the thread spins.
    pub workers_tend: bool,
    /// Who loads models anew, if clients on the Unix socket may ask for it: those of the server's own user,
    /// and root's.
    pub reload: Option<ReloadHandler>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            unix: None,
            tcp: None,
            serial: Vec::new(),
            connections_max: CONNECTIONS_MAX,
            in_flight_max: IN_FLIGHT_PER_CONNECTION_MAX,
            half_frame: Duration::from_millis(HALF_FRAME_MS_MAX),
            write_stall: Duration::from_millis(WRITE_STALL_MS_MAX),
            spin: Duration::ZERO,
            arrivals: None,
            workers_tend: true,
            reload: None,
        }
    }
}

/// Why a server did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum BindError {
    /// A live server is there, or another program has the port.
    InUse {
        /// Where.
        address: String,
    },
    /// The path is taken by something that is not a socket.
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The address is not loopback, and `allow_remote` or the key is missing.
    NotLoopback {
        /// Where.
        address: SocketAddr,
    },
    /// A number in the options, or a name, is over its limit.
    Limit {
        /// What.
        what: &'static str,
        /// What it is.
        value: usize,
        /// The most that it may be.
        max: usize,
    },
    /// The process may not open as many files as that many connections need.
    Descriptors {
        /// Connections.
        connections: usize,
        /// Descriptors that they need, with all that are open or will be.
        needed: u64,
        /// Those that the process may have (RLIMIT_NOFILE).
        max: u64,
    },
    /// A model's id is not its position.
    ModelOrder {
        /// The position.
        position: usize,
    },
    /// The system refused.
    Io {
        /// What.
        what: String,
        /// Why.
        source: std::io::Error,
    },
}

impl std::fmt::Display for BindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BindError::InUse { address } => {
                write!(f, "{address} is in use by a live server; stop it or choose another")
            }
            BindError::NotASocket { path } => {
                write!(
                    f,
                    "{} exists and is not a socket; remove it or choose another",
                    path.display()
                )
            }
            BindError::NotLoopback { address } => write!(
                f,
                "{address} is not a loopback address; that takes a pre-shared key and allow_non_loopback \
                 (in code: allow_remote)"
            ),
            BindError::Limit { what, value, max } => {
                write!(f, "{what} is {value}; it must be 1 to {max}")
            }
            BindError::Descriptors { connections, needed, max } => write!(
                f,
                "{connections} connections need about {needed} file descriptors, and this process may \
                 have {max}; raise that (ulimit -n, or LimitNOFILE of its service) or lower \
                 connections_max"
            ),
            BindError::ModelOrder { position } => {
                write!(f, "the model at position {position} has another id")
            }
            BindError::Io { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BindError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Counters of the I/O thread; each is a statistic, written only by who tends the connections.
#[derive(Debug, Default)]
pub struct TransportCounters {
    /// Connections accepted.
    pub connections_total: AtomicU64,
    /// Connections open.
    pub connections_open: AtomicU64,
    /// Frames with a sound head.
    pub frames_total: AtomicU64,
    /// Answers handed to a connection.
    pub answers_total: AtomicU64,
    /// Bytes received.
    pub received_bytes_total: AtomicU64,
    /// Bytes sent.
    pub sent_bytes_total: AtomicU64,
    /// System calls that read.
    pub reads_total: AtomicU64,
    /// System calls that wrote.
    pub writes_total: AtomicU64,
    /// Times that a sound frame followed damage, over all serial ports.
    pub link_resync_total: AtomicU64,
    /// Frames of serial ports that were cut short or wrong in their checksum.
    pub link_crc_error_total: AtomicU64,
    /// Frames of serial ports over the limit.
    pub link_oversize_total: AtomicU64,
    /// Frames that were sent again on serial ports.
    pub link_retransmit_total: AtomicU64,
    /// Bytes that came from serial ports.
    pub link_received_bytes_total: AtomicU64,
    /// Bytes for serial ports.
    pub link_sent_bytes_total: AtomicU64,
    /// Connections whose timers were looked at.
    pub timer_looks_total: AtomicU64,
    /// Ends of accepted requests, most of them answers, that were given up: their reader took nothing for
    /// too long, or the server stopped before they were sent. On a serial line, also those that were sent and not
    /// acknowledged when the peer had been silent for too long, or the server stopped. A peer that leaves, or a port
    /// that fails, gives nothing up.
    pub answers_given_up_total: AtomicU64,
    /// Slots taken back from payloads that came too slowly, for other requests.
    pub slots_reclaimed_total: AtomicU64,
    /// Connections closed before their hello, for others.
    pub strangers_evicted_total: AtomicU64,
    /// Sleeps in the kernel.
    pub sleeps_total: AtomicU64,
    /// Answers that a worker sent by itself, whole or in part.
    pub direct_answers_total: AtomicU64,
    /// Inferences that a worker read by itself.
    pub lone_requests_total: AtomicU64,
    /// Times that the thread left its seat to a worker.
    pub seat_loans_total: AtomicU64,
    /// Inferences for a model that does not exist.
    pub unknown_model_total: AtomicU64,
    /// Errors sent, by their position in [`ErrorCode::ALL`].
    pub errors: [AtomicU64; ErrorCode::ALL.len()],
}

impl TransportCounters {
    /// Errors sent with this code.
    pub fn errors_of(&self, code: ErrorCode) -> u64 {
        let at = ErrorCode::ALL.iter().position(|&other| other == code);
        at.map_or(0, |at| self.errors[at].load(Ordering::Relaxed))
    }
}

/// Adds to a counter that only the calling thread writes, without a locked instruction.
fn bump(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

const RUN: u32 = 0;
const DRAIN: u32 = 1;
const STOP: u32 = 2;

/// What the handle and the thread share.
#[derive(Debug)]
struct Control {
    phase: AtomicU32,
    ready: AtomicBool,
    counters: Arc<TransportCounters>,
}

/// A running server. Dropping it stops the thread and closes all connections; to lose nothing,
/// [`drain`](Self::drain) first.
#[derive(Debug)]
pub struct Server {
    control: Arc<Control>,
    waker: Arc<IoWaker>,
    hub: Arc<loopback::Hub>,
    thread: Option<JoinHandle<()>>,
    tcp: Option<SocketAddr>,
}

impl Server {
    /// Opens the doors, allocates everything and starts the thread `cl-io`.
    ///
    /// `completions` are the receiving ends of all workers' rings, whose senders wake `waker`.
    /// `on_start` runs on the thread first (to pin it, say). The server says that it is not ready
    /// until [`set_ready`](Self::set_ready).
    ///
    /// # Errors
    /// A door that can't be opened, or a number over its limit.
    pub fn start(
        options: ServerOptions,
        models: Vec<Served>,
        completions: Vec<CompletionReceiver>,
        waker: Arc<IoWaker>,
        desk: StatsDesk,
        on_start: impl FnOnce() + Send + 'static,
    ) -> Result<Server, BindError> {
        check("connections_max", options.connections_max, CONNECTIONS_MAX)?;
        check("in_flight_max", options.in_flight_max, IN_FLIGHT_PER_CONNECTION_MAX)?;
        check("the number of serial ports", options.serial.len().max(1), SERIAL_LISTENERS_MAX)?;
        check("the number of models", models.len(), MODELS_MAX)?;
        check_descriptors(options.connections_max)?;
        for (position, model) in models.iter().enumerate() {
            check("the length of a model's name", model.name.len(), MODEL_NAME_LEN_MAX)?;
            if model.queue.id().0 as usize != position {
                return Err(BindError::ModelOrder { position });
            }
            let signature = model.queue.signature();
            for tensor in signature.inputs.iter().chain(&signature.outputs) {
                let len = tensor.name.len().max(1);
                check("the length of a tensor's name", len, TENSOR_NAME_LEN_MAX)?;
            }
        }
        let desk_of = |handler| desk::ReloadDesk::spawn(waker.clone(), handler);
        let reload = options.reload.clone().map(desk_of).transpose();
        let reload = reload
            .map_err(|source| BindError::Io { what: "the thread that reloads".into(), source })?;
        let control = Arc::new(Control {
            phase: AtomicU32::new(RUN),
            ready: AtomicBool::new(false),
            counters: Arc::default(),
        });
        let hub = loopback::Hub::new(waker.clone());
        let parts = io::Parts {
            options,
            models,
            completions,
            waker: waker.clone(),
            desk,
            reload,
            control: control.clone(),
            hub: hub.clone(),
        };
        let mut io = io::Io::new(parts)?;
        let tcp = io.tcp_address();
        let thread = std::thread::Builder::new()
            .name("cl-io".into())
            .spawn(move || {
                on_start();
                crate::sys::events::thread_starts();
                crate::sys::alloc::set_hot(true);
                io.run();
                crate::sys::alloc::set_hot(false);
            })
            .map_err(|source| BindError::Io { what: "the I/O thread".into(), source })?;
        Ok(Server { control, waker, hub, thread: Some(thread), tcp })
    }
    /// Where TCP listens, with the port that was found.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }
    /// Connections in memory to this server.
    pub fn loopback(&self) -> Loopback {
        Loopback(self.hub.clone())
    }
    /// Says whether requests are taken; if not, they get `not_ready`.
    pub fn set_ready(&self, ready: bool) {
        self.control.ready.store(ready, Ordering::Release);
    }
    /// The counters, for whoever reads them for longer.
    pub fn shared_counters(&self) -> Arc<TransportCounters> {
        self.control.counters.clone()
    }
    /// The counters.
    pub fn counters(&self) -> &TransportCounters {
        &self.control.counters
    }
    /// Makes the I/O thread turn once: its `sleeps_total` then grows, if it is alive.
    pub fn nudge(&self) {
        self.waker.wake_always();
    }
    /// Begins to drain: accepts no connection and no request, answers all that were accepted, says
    /// goodbye and closes. Returns at once; [`join`](Self::join) waits.
    pub fn drain(&self) {
        self.control.phase.store(DRAIN, Ordering::Release);
        self.waker.wake_always();
    }
    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
    /// Waits for the thread to end, which it does after a drain.
    pub fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.control.phase.store(STOP, Ordering::Release);
            self.waker.wake_always();
            let _ = thread.join();
        }
    }
}

/// Whether that many connections find descriptors, if nobody else takes them.
fn check_descriptors(connections: usize) -> Result<(), BindError> {
    let Some(max) = descriptors::limit() else { return Ok(()) };
    let besides = DESCRIPTORS_BESIDES_CONNECTIONS + connections;
    let needed = descriptors::open_count().unwrap_or(0) + besides as u64;
    if needed > max {
        return Err(BindError::Descriptors { connections, needed, max });
    }
    Ok(())
}

fn check(what: &'static str, value: usize, max: usize) -> Result<(), BindError> {
    if (1..=max).contains(&value) { Ok(()) } else { Err(BindError::Limit { what, value, max }) }
}
