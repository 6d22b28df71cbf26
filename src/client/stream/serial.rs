//! A serial line as a stream: the link's initiator over a terminal.

use crate::limits::{LINK_FRAME_BYTES_MAX, SERIAL_BUFFER_BYTES};
use crate::sys::clock;
use crate::sys::terminal::open_serial;
use crate::units::Nanos;
use crate::wire::link::{DownReason, Endpoint, LinkEvent, LinkOptions, Role, SerialOptions};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::CString;
use std::io::{self, IoSlice, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Bytes moved between terminal and link at a time.
const CHUNK: usize = 512;
/// Reads at a time, so that a line that never falls silent keeps nobody from its end.
const READS_PER_TURN: usize = 16;

/// A line with a session of the link on it: one connection.
#[derive(Debug)]
pub(in crate::client) struct SerialStream {
    fd: OwnedFd,
    link: Endpoint<Box<[u8]>, Box<[u8]>>,
    /// The server's stream, not taken yet; no longer than the room that the server was told.
    received: VecDeque<u8>,
    /// Bytes for the terminal that it did not take yet.
    out: [u8; CHUNK],
    out_at: usize,
    out_len: usize,
    down: Option<DownReason>,
    recv_timeout: Option<Duration>,
}

fn system(options: &SerialOptions, errno: Errno) -> io::Error {
    let (kind, text) = match errno {
        Errno::WOULDBLOCK | Errno::BUSY => {
            (io::ErrorKind::ResourceBusy, "another process has it open".to_owned())
        }
        Errno::OPNOTSUPP => (
            io::ErrorKind::Unsupported,
            "the device does not take this speed or flow control".to_owned(),
        ),
        Errno::NOTTY => (io::ErrorKind::InvalidInput, "it is no serial device".to_owned()),
        errno => (io::Error::from(errno).kind(), errno.to_string()),
    };
    io::Error::new(kind, format!("{options}: {text}"))
}

fn us(now: Nanos) -> u64 {
    now.0 / 1_000
}

/// The instant after `timeout` from now; `None`: never.
fn deadline(timeout: Option<Duration>) -> Option<Nanos> {
    let ns = u64::try_from(timeout?.as_nanos()).ok()?;
    Some(clock::now().after(Nanos(ns)))
}

impl SerialStream {
    /// Opens the port for this process alone, and brings a session up.
    ///
    /// # Errors
    /// The system's; `TimedOut` if no server answers on the line in time.
    pub fn connect(options: &SerialOptions, timeout: Option<Duration>) -> io::Result<Self> {
        let path = CString::new(options.path.as_os_str().as_bytes())?;
        let fd = open_serial(&path, options.baud, options.rts_cts)
            .map_err(|errno| system(options, errno))?;
        let line = LinkOptions {
            receive_window: SERIAL_BUFFER_BYTES as u16,
            ..LinkOptions::new(options.baud)
        };
        let buffer = |len: usize| vec![0; len].into_boxed_slice();
        let (receive, send) = (buffer(LINK_FRAME_BYTES_MAX), buffer(SERIAL_BUFFER_BYTES));
        let now = clock::now();
        // Unlike that of the process before, or of another at the same time.
        let seed = (now.0 as u32).wrapping_mul(0x9E37_79B1) ^ std::process::id();
        let mut link =
            Endpoint::new(Role::Initiator, line, receive, send, seed).map_err(io::Error::other)?;
        link.open(us(now));
        let mut stream = SerialStream {
            fd,
            link,
            received: VecDeque::with_capacity(SERIAL_BUFFER_BYTES),
            out: [0; CHUNK],
            out_at: 0,
            out_len: 0,
            down: None,
            recv_timeout: None,
        };
        let until = deadline(timeout);
        loop {
            stream.turn()?;
            if stream.link.is_up() {
                return Ok(stream);
            }
            if !stream.wait(until)? {
                let after = timeout.unwrap_or_default();
                let text = format!(
                    "{options}: no server answered on the line within {after:?}: {}",
                    stream.silence(options.baud)
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        }
    }

    /// What most likely keeps a session from coming up.
    fn silence(&self, baud: u32) -> String {
        let heard = self.link.counters();
        match (heard.bytes_received, heard.frames_received) {
            (0, _) => {
                "nothing came from it; is a server on it (its own `serial`), and is each side's TX \
                       wired to the other's RX, with ground?"
                    .into()
            }
            (bytes, 0) => format!(
                "{bytes} bytes came, but no whole frame; is its speed {baud} baud, with 8 data bits and no \
                 parity, and is nobody else speaking on it, such as a console?"
            ),
            (_, frames) => format!(
                "{frames} frames came, but none that opens a session; is the other side a server, and do \
                 frames from here reach it whole?"
            ),
        }
    }

    /// Moves bytes between terminal and link as far as that goes at once.
    fn turn(&mut self) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        for _ in 0..READS_PER_TURN {
            let n = match rustix::io::read(&self.fd, &mut chunk) {
                Ok(0) => return Err(gone()),
                Ok(n) => n,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(Errno::IO) => return Err(gone()),
                Err(errno) => return Err(errno.into()),
            };
            self.take(&chunk[..n]);
        }
        let now = us(clock::now());
        // Whoever reads or writes here waits for the server.
        self.link.set_waiting(true, now);
        if let Some(reason) = self.link.poll(now) {
            self.down = Some(reason);
        }
        self.flush()
    }
    fn take(&mut self, mut bytes: &[u8]) {
        let now = us(clock::now());
        loop {
            let (taken, event) = self.link.receive(now, bytes);
            bytes = &bytes[taken..];
            match event {
                None => return,
                Some(LinkEvent::Up) => {}
                Some(LinkEvent::Down(reason)) => self.down = Some(reason),
                Some(LinkEvent::Data(data)) => {
                    self.received.extend(data);
                    self.tell_room();
                }
            }
        }
    }
    fn tell_room(&mut self) {
        self.link.set_room(SERIAL_BUFFER_BYTES - self.received.len());
    }
    /// Writes what the link has to say.
    fn flush(&mut self) -> io::Result<()> {
        loop {
            if self.out_at == self.out_len {
                self.out_len = self.link.transmit(us(clock::now()), &mut self.out);
                self.out_at = 0;
            }
            if self.out_len == 0 {
                return Ok(());
            }
            match rustix::io::write(&self.fd, &self.out[self.out_at..self.out_len]) {
                Ok(n) => self.out_at += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::IO) => return Err(gone()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    /// Waits for the terminal, or until the link has something to do. False: it is `until`.
    fn wait(&self, until: Option<Nanos>) -> io::Result<bool> {
        let now = clock::now();
        if until.is_some_and(|until| until <= now) {
            return Ok(false);
        }
        let link = self.link.next_timeout().map(|us| Nanos(us.saturating_mul(1_000)));
        let next = [until, link].into_iter().flatten().min();
        let left = next.map(|at| at.since(now).0);
        let timeout = left.map(|ns| rustix::time::Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as _,
        });
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, self.out_at < self.out_len);
        match poll(&mut [PollFd::new(&self.fd, flags)], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }
    /// Why nothing can be sent any more.
    fn broken(&self) -> io::Result<()> {
        match self.down {
            None => Ok(()),
            Some(reason) => {
                let text = format!("the link's session ended: {reason}");
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, text))
            }
        }
    }
    /// Sends what the link takes at once; `WouldBlock` if that is nothing.
    pub fn try_send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.turn()?;
        self.broken()?;
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut n = 0;
        for part in parts {
            let more = total - n > self.link.send_room();
            n += self.link.send(part, more || n + part.len() < total);
        }
        self.flush()?;
        if n == 0 && total > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(n)
    }
    /// Receives; waits if `wait`, as long as the timeout says. 0: the server ended the session.
    pub fn recv(&mut self, buffer: &mut [u8], wait: bool) -> io::Result<usize> {
        let until = deadline(self.recv_timeout);
        loop {
            self.turn()?;
            if !self.received.is_empty() {
                let n = self.received.read(buffer)?;
                self.tell_room();
                self.flush()?;
                return Ok(n);
            }
            if self.down == Some(DownReason::PeerReset) {
                return Ok(0);
            }
            self.broken()?;
            if !wait || !self.wait(until)? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }
    /// Waits until it can be read or written; false if the time ran out.
    pub fn wait_either(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let until = deadline(timeout);
        loop {
            self.turn()?;
            if !self.received.is_empty() || self.down.is_some() || self.link.send_room() > 0 {
                return Ok(true);
            }
            if !self.wait(until)? {
                return Ok(false);
            }
        }
    }
    pub fn set_recv_timeout(&mut self, timeout: Option<Duration>) {
        self.recv_timeout = timeout;
    }
}

impl Drop for SerialStream {
    fn drop(&mut self) {
        // The server need not wait for a silence; if the terminal takes nothing now, it will.
        self.link.close();
        let _ = self.flush();
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the serial device is gone")
}
