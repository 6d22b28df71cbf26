//! The I/O thread's loop.

mod control;
mod doors;
mod lone;
mod pressure;
mod serial;
mod signature;
mod sleep;
mod timer;

use super::conn::{Closed, Conn, Core, Door as Way, Submitted, Turn};
use super::desk::{ReloadDesk, StatsDesk};
use super::link::Link;
use super::listen::{self, SocketFile};
use super::loopback::Hub;
use super::replies::Flushed;
use super::serial::Serial;
use super::table::Table;
use super::timers::Timers;
use super::{BindError, Control, DRAIN, STOP, Served, ServerOptions, bump};
use crate::limits::FRAME_BODY_BYTES_MAX;
use crate::queue::Failure;
use crate::queue::completion::{CompletionReceiver, IoWaker};
use crate::sys::clock;
use crate::sys::events::{Event, tell};
use crate::sys::sync::{Arc, Ordering};
use crate::units::Nanos;
use lone::Lone;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use signature::with_signature;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;
use timer::Timer;

const WAKER: Token = Token(0);
const UNIX: Token = Token(1);
const TCP: Token = Token(2);
const TIMER: Token = Token(3);
const CONNS: usize = 4;

/// Connections accepted in one turn of the loop.
const ACCEPTS_PER_TURN: usize = 32;
/// How long to wait after the system refused to accept.
const ACCEPT_PAUSE: Nanos = Nanos(100_000_000);
/// How long to wait before a connection that should close is looked at again.
const CLOSE_PAUSE: Nanos = Nanos(1_000_000);
/// How often answers are looked for that nobody announced, while any request is held.
const SWEEP: Nanos = Nanos(1_000_000_000);
/// Turns of the loop that may pass without asking the kernel for events.
const UNASKED_MAX: u32 = 8;
/// Send buffer asked of the kernel, so that a large answer takes few turns.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// What a loop is made from.
pub(super) struct Parts {
    pub options: ServerOptions,
    pub models: Vec<Served>,
    pub completions: Vec<CompletionReceiver>,
    pub waker: Arc<IoWaker>,
    pub desk: StatsDesk,
    pub reload: Option<ReloadDesk>,
    pub control: Arc<Control>,
    pub hub: Arc<Hub>,
}

/// A listening socket.
struct Door {
    fd: OwnedFd,
    /// There may be someone to accept.
    open: bool,
}

pub(super) struct Io {
    poll: Poll,
    events: Events,
    core: Core,
    conns: Box<[Conn]>,
    free: Vec<u16>,
    /// Connections open, by their way in.
    open: [u16; 4],
    timers: Timers,
    /// No connection at or above this position is open.
    high: u16,
    /// A worker holds a socket that is wanted here: its answer must be told.
    eager: bool,
    /// Consecutive times that the loop found work without asking the kernel.
    unasked: u32,
    /// Connections with something to send.
    dirty: Vec<u16>,
    /// Connections with something to read.
    queued: VecDeque<u16>,
    /// Connections in memory.
    memory: Vec<u16>,
    completions: Vec<CompletionReceiver>,
    waker: Arc<IoWaker>,
    desk: StatsDesk,
    hub: Arc<Hub>,
    unix: Option<Door>,
    /// Removes the file when dropped.
    socket_file: Option<SocketFile>,
    tcp: Option<Door>,
    tcp_address: Option<SocketAddr>,
    allowed_uids: Option<Vec<u32>>,
    serial: Vec<Serial>,
    accept_again: Option<Nanos>,
    next_sweep: Nanos,
    spin: Nanos,
    timer: Timer,
    lone: Lone,
}

impl Io {
    pub fn new(parts: Parts) -> Result<Io, BindError> {
        let Parts { options, models, completions, waker, desk, reload, control, hub } = parts;
        let system = |what: &str| {
            let what = what.to_string();
            move |source| BindError::Io { what, source }
        };
        let unix = options.unix.as_ref().map(listen::unix).transpose()?;
        let tcp = options.tcp.as_ref().map(listen::tcp).transpose()?;
        let table = Table::new(&models);
        let models = models.into_iter().map(with_signature).collect::<Result<_, _>>()?;
        let random = std::fs::File::open("/dev/urandom").map_err(system("/dev/urandom"))?;
        let nanos = |time: Duration| Nanos(time.as_nanos().min(u64::MAX as u128 / 4) as u64);
        let max = options.connections_max;
        let poll = Poll::new().map_err(system("the poller"))?;
        let register = |fd: &dyn AsFd, token| {
            let raw = fd.as_fd().as_raw_fd();
            poll.registry()
                .register(&mut SourceFd(&raw), token, Interest::READABLE)
                .map_err(system("the poller"))
        };
        register(&waker.fd(), WAKER)?;
        let timer = Timer::new().map_err(system("a timer"))?;
        register(&timer, TIMER)?;
        if let Some((fd, _)) = &unix {
            register(fd, UNIX)?;
        }
        if let Some((fd, _)) = &tcp {
            register(fd, TCP)?;
        }
        let tcp_address = tcp.as_ref().map(|(_, address)| *address);
        let (unix, socket_file) = match unix {
            Some((fd, file)) => (Some(Door { fd, open: true }), Some(file)),
            None => (None, None),
        };
        let mut seed = [0; 4];
        std::io::Read::read_exact(&mut (&random), &mut seed).map_err(system("/dev/urandom"))?;
        let seed = u32::from_ne_bytes(seed);
        let ports = options.serial.iter().cloned();
        let serial: Vec<Serial> =
            ports.map(|port| Serial::open(port, seed)).collect::<Result<_, _>>()?;
        let (spin, has_serial) = (options.spin, !serial.is_empty());
        let io = Io {
            poll,
            events: Events::with_capacity(max + 8 + serial.len()),
            core: Core {
                models,
                table,
                control,
                key: options.tcp.as_ref().and_then(|tcp| tcp.key.clone()),
                in_flight_max: options.in_flight_max,
                arrivals: options.arrivals.clone(),
                half_frame: nanos(options.half_frame),
                write_stall: nanos(options.write_stall),
                draining: false,
                now: clock::now(),
                lent: None,
                stats_wanted: false,
                reload,
                ask_again: Nanos(0),
                submitted: Submitted::default(),
                seat_is_away: false,
                random,
            },
            conns: (0..max).map(|_| Conn::new(options.in_flight_max)).collect(),
            free: (0..max as u16).rev().collect(),
            open: [0; 4],
            timers: Timers::new(max),
            high: 0,
            eager: false,
            unasked: 0,
            dirty: Vec::with_capacity(max),
            queued: VecDeque::with_capacity(max),
            memory: Vec::with_capacity(max),
            completions,
            waker,
            desk,
            hub,
            unix,
            socket_file,
            tcp: tcp.map(|(fd, _)| Door { fd, open: true }),
            tcp_address,
            allowed_uids: options.unix.and_then(|unix| unix.allowed_uids),
            serial,
            accept_again: None,
            next_sweep: Nanos(0),
            spin: nanos(options.spin),
            timer,
            lone: Lone::new(options.workers_tend && spin == Duration::ZERO && !has_serial),
        };
        for i in 0..io.serial.len() {
            io.register_serial(i).map_err(system("the poller"))?;
        }
        Ok(io)
    }
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp_address
    }

    /// Turns until it is stopped, or has drained.
    pub fn run(&mut self) {
        loop {
            self.take_all();
            match self.core.control.phase.load(Ordering::Acquire) {
                STOP => break,
                DRAIN if !self.core.draining => {
                    self.begin_drain();
                    continue;
                }
                DRAIN if self.free.len() == self.conns.len() => break,
                _ => {}
            }
            if self.lone.goes_to_worker() {
                self.leave_seat();
            } else {
                self.sleep();
            }
        }
        self.core.now = clock::now();
        self.take_completions();
        for at in 0..self.conns.len() as u16 {
            let conn = &self.conns[at as usize];
            conn.give_up(&self.core, at, conn.untaken_ends());
            self.close(at);
            while self.conns[at as usize].link.is_some() {
                // A worker is just sending there; it tells when it has.
                self.wait(Some(Duration::from_millis(1)));
                self.core.now = clock::now();
                self.take_completions();
                self.close(at);
            }
        }
        self.close_doors();
        // The rest of the shutdown may allocate and free.
        crate::sys::alloc::set_hot(false);
        self.socket_file = None;
        self.hub.close();
    }

    /// Whoever connects from now on is refused by the kernel, or was never accepted.
    fn close_doors(&mut self) {
        if let Some(file) = &mut self.socket_file {
            file.remove();
        }
        (self.unix, self.tcp) = (None, None);
    }

    /// Does all that is there to do.
    fn take_all(&mut self) {
        self.core.now = clock::now();
        self.take_completions();
        self.take_deadlines();
        self.take_memory();
        self.take_stats();
        self.take_reloads();
        self.take_doors();
        self.take_serial();
        self.take_reads();
        self.take_timeouts();
        self.flush();
        self.flush_serial();
        self.note_company();
    }

    fn begin_drain(&mut self) {
        self.core.draining = true;
        let connections = (self.conns.len() - self.free.len()) as u16;
        tell(Event::Draining { connections });
        self.close_doors();
        for at in 0..self.conns.len() as u16 {
            self.conns[at as usize].reload_is_not_waited_for(&self.core);
            // What lies there already is read before the goodbye, and refused.
            self.enqueue(at);
            self.mark(at);
        }
    }

    /// Puts a connection on the list to flush.
    fn mark(&mut self, at: u16) {
        let conn = &mut self.conns[at as usize];
        if conn.link.is_some() && !conn.dirty {
            conn.dirty = true;
            self.dirty.push(at);
        }
    }
    /// Puts a connection on the list to read.
    fn enqueue(&mut self, at: u16) {
        let conn = &mut self.conns[at as usize];
        if conn.link.is_some() && !conn.queued {
            conn.queued = true;
            self.queued.push_back(at);
        }
    }

    fn take_completions(&mut self) {
        for i in 0..self.completions.len() {
            while let Some(completion) = self.completions[i].receive() {
                if let Some((at, done, held)) = self.core.table.done(completion) {
                    self.conns[held.conn as usize].ended(&mut self.core, (at, held), Ok(done));
                    self.mark(held.conn);
                }
            }
        }
        if self.core.table.held() > 0 && self.core.now >= self.next_sweep {
            if self.next_sweep != Nanos(0) {
                while let Some((at, done, held)) = self.core.table.find_done() {
                    self.conns[held.conn as usize].ended(&mut self.core, (at, held), Ok(done));
                    self.mark(held.conn);
                }
            }
            self.next_sweep = self.core.now.after(SWEEP);
        }
    }

    /// Ends requests whose deadline passed while they waited.
    fn take_deadlines(&mut self) {
        while let Some(at) = self.core.table.expired(self.core.now) {
            let Some((ticket, held)) = self.core.table.remove(at) else { return };
            match ticket.cancel_queued(Failure::DeadlineExpired) {
                Ok(()) => {
                    let end = Err(Failure::DeadlineExpired);
                    self.conns[held.conn as usize].ended(&mut self.core, (at, held), end);
                    self.mark(held.conn);
                }
                // It runs already: its answer comes.
                Err(ticket) => self.core.table.restore(at, ticket),
            }
        }
    }

    fn take_memory(&mut self) {
        if !self.hub.take_dirty() {
            return;
        }
        for i in 0..self.memory.len() {
            let at = self.memory[i];
            let touched = match &self.conns[at as usize].link {
                Some(Link::Memory(end)) => end.take_touched(),
                _ => false,
            };
            if touched {
                self.enqueue(at);
                self.mark(at);
            }
        }
        while let Some(end) = self.hub.accept() {
            let taken = if self.core.draining { None } else { self.free.pop() };
            let Some(at) = taken else {
                let (code, ab, text) = self.no_place();
                self.turn_away(&Link::Memory(end), code, ab, text);
                continue;
            };
            self.memory.push(at);
            self.admit(at, Link::Memory(end), Way::Memory, false);
        }
    }

    fn take_stats(&mut self) {
        if std::mem::take(&mut self.core.stats_wanted) {
            self.desk.want();
        }
        if !self.desk.is_new() {
            return;
        }
        let mut page = [0; FRAME_BODY_BYTES_MAX];
        let mut len = 0;
        self.desk.read(|text| {
            len = text.len();
            page[..len].copy_from_slice(text);
        });
        for at in 0..self.high {
            let conn = &mut self.conns[at as usize];
            if conn.waits_for_stats() {
                conn.stats(&page[..len]);
                self.mark(at);
            }
        }
    }

    // --- connections ---

    fn take_reads(&mut self) {
        for _ in 0..self.queued.len() {
            let Some(at) = self.queued.pop_front() else { return };
            let conn = &mut self.conns[at as usize];
            conn.queued = false;
            if conn.link.is_none() {
                continue;
            }
            let turn = conn.read(&mut self.core, at);
            self.timers.set(at, conn.next_timeout());
            match turn {
                Ok(Turn::Drained) => conn.is_read_dry = self.core.draining,
                Ok(Turn::More) => self.enqueue(at),
                Ok(Turn::Full) => conn.paused = true,
                Ok(Turn::WantsSlot(model)) => {
                    self.ask_for_slot(model);
                    self.enqueue(at);
                }
                Err(Closed) => {
                    self.close(at);
                    continue;
                }
            }
            self.mark(at);
        }
    }

    fn flush(&mut self) {
        while let Some(at) = self.dirty.pop() {
            let conn = &mut self.conns[at as usize];
            conn.dirty = false;
            if conn.link.is_none() {
                continue;
            }
            let flushed = conn.flush(&self.core);
            self.timers.set(at, conn.next_timeout());
            match flushed {
                Err(Closed) => {
                    self.close(at);
                    continue;
                }
                Ok(Flushed::Lent) => self.eager = true,
                Ok(flushed) => {
                    let blocked = flushed != Flushed::All;
                    if let Some(Link::Serial(_)) = &conn.link {
                        conn.wants_write = blocked;
                    }
                    if blocked != conn.wants_write
                        && let Some(raw) = conn.link.as_ref().and_then(Link::raw_fd)
                    {
                        conn.wants_write = blocked;
                        let interest = if blocked {
                            Interest::READABLE | Interest::WRITABLE
                        } else {
                            Interest::READABLE
                        };
                        let token = Token(CONNS + at as usize);
                        let _ =
                            self.poll.registry().reregister(&mut SourceFd(&raw), token, interest);
                    }
                    if conn.replies.has_room() {
                        self.core.stats_wanted |= std::mem::take(&mut conn.stats_missed);
                        if conn.paused {
                            conn.paused = false;
                            self.enqueue(at);
                        }
                    }
                }
            }
        }
    }

    fn take_timeouts(&mut self) {
        while let Some(at) = self.timers.take(self.core.now) {
            bump(&self.core.control.counters.timer_looks_total, 1);
            let conn = &mut self.conns[at as usize];
            let due = |conn: &Conn| conn.next_timeout().filter(|_| conn.link.is_some());
            if due(conn).is_some_and(|until| until <= self.core.now) {
                match conn.check_timeouts(&self.core, at) {
                    Ok(()) => self.mark(at),
                    Err(Closed) => self.close(at),
                }
            }
            // One that can't be closed yet, since a worker is sending there, is looked at again.
            let soon = self.core.now.after(CLOSE_PAUSE);
            self.timers.set(at, due(&self.conns[at as usize]).map(|until| until.max(soon)));
        }
    }
}
