//! A serial port: its terminal, and the link over it.

use super::{BindError, TransportCounters, bump};
use crate::limits::{FRAME_PREFIX_BYTES, LINK_FRAME_BYTES_MAX, SERIAL_BUFFER_BYTES};
use crate::sys::sync::Arc;
use crate::sys::terminal::open_serial;
use crate::units::{Micros, Nanos};
use crate::wire::link::{Counters, Endpoint, LinkEvent, LinkOptions, Role, SerialOptions};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::CString;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard};

/// Bytes moved between terminal and link at a time.
const CHUNK: usize = 512;
/// Reads of one port in one turn of the loop.
const READS_PER_TURN: usize = 16;
/// First and longest pause before a port that failed is opened again.
const REOPEN: (Nanos, Nanos) = (Nanos(100_000_000), Nanos(5_000_000_000));
/// What the peer's and our drivers and adapters may add to the line's own time.
const LATENCY: Micros = Micros(50_000);
/// Ends of requests in the bytes that wait for their acknowledgement: each is a frame of its own.
const UNACKED_ENDS_MAX: usize = SERIAL_BUFFER_BYTES / (FRAME_PREFIX_BYTES + 1);

/// What a turn of a port led to, for its connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Turned {
    /// A session began: an older connection is over, and a new one is here.
    pub up: bool,
    /// The session is over.
    pub down: bool,
    /// It is over because the peer was given up: it did not end it.
    pub given_up: bool,
}

/// The port's state; used by the I/O thread only.
#[derive(Debug)]
pub(super) struct Port {
    pub fd: Option<OwnedFd>,
    link: Endpoint<Box<[u8]>, Box<[u8]>>,
    /// The peer's stream, not taken by the connection yet; never longer than the room that the peer
    /// was told, so it never grows.
    received: VecDeque<u8>,
    /// Bytes that the link has taken of connections; wraps.
    taken: u32,
    /// Which of them end the end of a request that the peer has not acknowledged, by how many were taken then.
    unacked_ends: VecDeque<u32>,
    /// Bytes for the terminal that it did not take yet.
    out: [u8; CHUNK],
    out_at: usize,
    out_len: usize,
    /// The terminal may have bytes.
    pub readable: bool,
    /// The terminal takes nothing for now.
    pub blocked: bool,
    /// Nothing more is written: the session ends when all is acknowledged.
    finishing: bool,
    /// The connection is to see the end of the stream.
    ended: bool,
    counted: Counters,
    /// Times that the link came in step again, and damaged frames, not told yet.
    pub damage: (u32, u32),
    pub reopen_at: Option<Nanos>,
    pause: Nanos,
}

/// A port, shared by the loop and by the connection that it carries. Both live on the I/O thread, so
/// the lock is never contended; it is there because a connection may move with its server.
#[derive(Debug, Clone)]
pub(super) struct SerialEnd(Arc<Mutex<Port>>);

fn us(now: Nanos) -> u64 {
    now.0 / 1_000
}

impl SerialEnd {
    pub fn lock(&self) -> MutexGuard<'_, Port> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
    pub fn read(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut port = self.lock();
        let mut n = 0;
        for buffer in buffers {
            n += port.received.read(buffer)?;
        }
        port.tell_room();
        if n == 0 && !port.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(n)
    }
    pub fn write(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut port = self.lock();
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut n = 0;
        for buffer in buffers {
            let more = total - n > port.link.send_room();
            n += port.link.send(buffer, more || n + buffer.len() < total);
        }
        port.taken = port.taken.wrapping_add(n as u32);
        if n == 0 && total > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(n)
    }
    pub fn finish(&self) {
        self.lock().finishing = true;
    }
    /// The end of a request is all taken, `back` bytes before the last that was taken.
    pub fn end_is_taken(&self, back: usize) {
        let mut port = self.lock();
        debug_assert!(port.unacked_ends.len() < port.unacked_ends.capacity());
        let at = port.taken.wrapping_sub(back as u32);
        port.unacked_ends.push_back(at);
    }
    /// Ends of requests that were taken, and that the peer has not acknowledged.
    pub fn unacked_ends(&self) -> usize {
        self.lock().unacked_ends.len()
    }
}

/// A port with what is needed to open it.
#[derive(Debug)]
pub(super) struct Serial {
    pub options: SerialOptions,
    path: CString,
    pub end: SerialEnd,
    /// The connection that it carries.
    pub conn: Option<u16>,
}

impl Serial {
    pub fn open(options: SerialOptions, seed: u32) -> Result<Serial, BindError> {
        let name = format!("serial:{options}");
        let path = CString::new(options.path.as_os_str().as_bytes())
            .map_err(|e| BindError::Io { what: name.clone(), source: e.into() })?;
        let fd =
            open_serial(&path, options.baud, options.rts_cts).map_err(|errno| match errno {
                Errno::WOULDBLOCK | Errno::BUSY => BindError::InUse { address: name.clone() },
                Errno::OPNOTSUPP => BindError::Io {
                    what: format!("{name}: the device does not take this speed or flow control"),
                    source: errno.into(),
                },
                errno => BindError::Io { what: name.clone(), source: errno.into() },
            })?;
        let line = LinkOptions {
            baud: options.baud,
            latency: LATENCY,
            receive_window: SERIAL_BUFFER_BYTES as u16,
        };
        let buffer = |len: usize| vec![0; len].into_boxed_slice();
        let (receive, send) = (buffer(LINK_FRAME_BYTES_MAX), buffer(SERIAL_BUFFER_BYTES));
        let link = Endpoint::new(Role::Acceptor, line, receive, send, seed)
            .map_err(|e| BindError::Io { what: name, source: io::Error::other(e) })?;
        let port = Port {
            fd: Some(fd),
            link,
            received: VecDeque::with_capacity(SERIAL_BUFFER_BYTES),
            taken: 0,
            unacked_ends: VecDeque::with_capacity(UNACKED_ENDS_MAX),
            out: [0; CHUNK],
            out_at: 0,
            out_len: 0,
            readable: true,
            blocked: false,
            finishing: false,
            ended: false,
            counted: Counters::default(),
            damage: (0, 0),
            reopen_at: None,
            pause: REOPEN.0,
        };
        Ok(Serial { options, path, end: SerialEnd(Arc::new(Mutex::new(port))), conn: None })
    }
    /// Opens the port again, if its time has come. True: it is open, and new to the poller.
    pub fn reopen(&self, now: Nanos) -> bool {
        let mut port = self.end.lock();
        if port.fd.is_some() || port.reopen_at.is_none_or(|at| at > now) {
            return false;
        }
        match open_serial(&self.path, self.options.baud, self.options.rts_cts) {
            Ok(fd) => {
                (port.fd, port.reopen_at, port.pause) = (Some(fd), None, REOPEN.0);
                (port.readable, port.blocked) = (true, false);
                (port.out_at, port.out_len) = (0, 0);
                true
            }
            Err(_) => {
                port.reopen_at = Some(now.after(port.pause));
                port.pause = Nanos((port.pause.0 * 2).min(REOPEN.1.0));
                false
            }
        }
    }
    /// The slowest that the line may deliver a payload, in nanoseconds a byte.
    pub fn byte_ns_max(&self) -> u64 {
        // Four times the line's own time, for what is sent again.
        40_000_000_000 / u64::from(self.options.baud)
    }
}

impl Port {
    fn tell_room(&mut self) {
        let room = SERIAL_BUFFER_BYTES - self.received.len();
        self.link.set_room(room);
    }
    /// Whether the connection has something to read.
    pub fn has_received(&self) -> bool {
        !self.received.is_empty() || self.ended
    }
    /// Whether the link takes bytes of the connection.
    pub fn has_room(&self) -> bool {
        self.link.send_room() > 0
    }
    /// Whether there is something to do without an event.
    pub fn has_work(&self) -> bool {
        self.fd.is_some()
            && (self.readable
                || !self.blocked && (self.out_at < self.out_len || self.link.wants_transmit()))
    }
    /// The next instant at which something must be done without an event.
    pub fn next_instant(&self) -> Option<Nanos> {
        let link = self.link.next_timeout().map(|us| Nanos(us.saturating_mul(1_000)));
        if self.fd.is_some() { link } else { self.reopen_at }
    }
    /// The connection is gone.
    pub fn release(&mut self) {
        self.link.close();
        self.forget();
    }
    fn begin(&mut self) {
        self.forget();
        self.tell_room();
    }
    fn forget(&mut self) {
        self.received.clear();
        self.unacked_ends.clear();
        (self.finishing, self.ended) = (false, false);
    }
    /// Forgets the ends of requests that the peer has acknowledged by now.
    fn note_acks(&mut self) {
        let unacked = self.link.unacked_bytes();
        while let Some(&end) = self.unacked_ends.front()
            && self.taken.wrapping_sub(end) as usize >= unacked
        {
            self.unacked_ends.pop_front();
        }
    }
    /// Reads the terminal and looks at the clock. `Err`: the terminal is of no more use.
    pub fn receive(&mut self, now: Nanos, counters: &TransportCounters) -> Result<Turned, ()> {
        let mut turned = Turned::default();
        let mut chunk = [0; CHUNK];
        for _ in 0..READS_PER_TURN {
            let Some(fd) = self.fd.as_ref().filter(|_| self.readable) else { break };
            bump(&counters.reads_total, 1);
            let n = match rustix::io::read(fd, &mut chunk) {
                Ok(0) => return Err(()),
                Ok(n) => n,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    self.readable = false;
                    break;
                }
                Err(_) => return Err(()),
            };
            bump(&counters.received_bytes_total, n as u64);
            let mut bytes = &chunk[..n];
            loop {
                let (taken, event) = self.link.receive(us(now), bytes);
                bytes = &bytes[taken..];
                match event {
                    None => {
                        self.note_acks();
                        break;
                    }
                    Some(LinkEvent::Up) => {
                        turned = Turned { up: true, ..Turned::default() };
                        self.begin();
                    }
                    // The peer's doing: it waits for nothing more.
                    Some(LinkEvent::Down(_)) => {
                        turned = Turned { down: true, ..Turned::default() };
                        self.unacked_ends.clear();
                    }
                    Some(LinkEvent::Data(data)) => {
                        self.received.extend(data);
                        self.tell_room();
                        self.note_acks();
                    }
                }
            }
        }
        if self.link.poll(us(now)).is_some() {
            turned = Turned { down: true, given_up: true, ..Turned::default() };
        }
        if self.finishing && self.link.all_acked() {
            self.link.close();
            self.ended = true;
        }
        self.count(counters);
        Ok(turned)
    }
    /// Writes what the link has to say. `Err`: the terminal is of no more use.
    pub fn transmit(&mut self, now: Nanos, counters: &TransportCounters) -> Result<(), ()> {
        loop {
            if self.out_at == self.out_len {
                self.out_len = self.link.transmit(us(now), &mut self.out);
                self.out_at = 0;
            }
            let Some(fd) = &self.fd else { return Ok(()) };
            if self.out_len == 0 || self.blocked {
                return Ok(());
            }
            bump(&counters.writes_total, 1);
            match rustix::io::write(fd, &self.out[self.out_at..self.out_len]) {
                Ok(n) => {
                    self.out_at += n;
                    bump(&counters.sent_bytes_total, n as u64);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.blocked = true,
                Err(_) => return Err(()),
            }
        }
    }
    /// The terminal failed: it is closed, and opened again later.
    pub fn lose(&mut self, now: Nanos) {
        self.fd = None;
        self.reopen_at = Some(now.after(self.pause));
        self.release();
    }
    fn count(&mut self, counters: &TransportCounters) {
        let (new, old) = (*self.link.counters(), self.counted);
        self.damage.0 += new.resyncs.wrapping_sub(old.resyncs);
        self.damage.1 += new.crc_errors.wrapping_sub(old.crc_errors);
        self.counted = new;
        for (counter, new, old) in [
            (&counters.link_resync_total, new.resyncs, old.resyncs),
            (&counters.link_crc_error_total, new.crc_errors, old.crc_errors),
            (&counters.link_oversize_total, new.oversize, old.oversize),
            (&counters.link_retransmit_total, new.retransmits, old.retransmits),
            (&counters.link_received_bytes_total, new.bytes_received, old.bytes_received),
            (&counters.link_sent_bytes_total, new.bytes_sent, old.bytes_sent),
        ] {
            bump(counter, u64::from(new.wrapping_sub(old)));
        }
    }
}

const _: () = assert!(SERIAL_BUFFER_BYTES <= crate::limits::LINK_WINDOW_BYTES_MAX);
