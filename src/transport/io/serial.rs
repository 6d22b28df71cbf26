//! Serial ports in the loop: each carries at most one connection, which its link's session begins.

use super::{CONNS, Io, Way};
use crate::sys::events::{self, tell};
use crate::transport::link::Link;
use crate::transport::serial::{Serial, Turned};
use crate::units::Nanos;
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Token};
use std::os::fd::AsRawFd;

/// Takes in what the poller says of a port.
pub(super) fn note_event(serial: &[Serial], i: usize, event: &Event) {
    let Some(serial) = serial.get(i) else { return };
    let mut port = serial.end.lock();
    port.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
    port.blocked &= !event.is_writable();
}

impl Io {
    fn serial_token(&self, i: usize) -> Token {
        Token(CONNS + self.conns.len() + i)
    }
    /// Tells the poller of a port that was opened.
    pub(super) fn register_serial(&self, i: usize) -> std::io::Result<()> {
        let port = self.serial[i].end.lock();
        let Some(fd) = &port.fd else { return Ok(()) };
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(
            &mut SourceFd(&fd.as_raw_fd()),
            self.serial_token(i),
            interest,
        )
    }
    /// Reads the ports, and begins and ends their connections.
    pub(super) fn take_serial(&mut self) {
        for i in 0..self.serial.len() {
            if self.serial[i].reopen(self.core.now) {
                if self.register_serial(i).is_err() {
                    self.lose_serial(i);
                    continue;
                }
                tell(events::Event::SerialFound { port: i as u8 });
            }
            let turned =
                self.serial[i].end.lock().receive(self.core.now, &self.core.control.counters);
            let Ok(turned) = turned else {
                self.lose_serial(i);
                continue;
            };
            let (times, frames) = std::mem::take(&mut self.serial[i].end.lock().damage);
            if frames > 0 {
                tell(events::Event::LinkDamaged { port: i as u8, frames });
            }
            if times > 0 {
                tell(events::Event::LinkResynced { port: i as u8, times });
            }
            if turned.given_up
                && let Some(at) = self.serial[i].conn
            {
                self.conns[at as usize].give_all_up(&self.core, at);
            }
            if turned != Turned::default() {
                self.end_serial(i, turned.down);
            }
            if turned.up {
                self.begin_serial(i);
            }
            let Some(at) = self.serial[i].conn else { continue };
            let port = self.serial[i].end.lock();
            let (received, room) = (port.has_received(), port.has_room());
            drop(port);
            if received && !self.conns[at as usize].paused {
                self.enqueue(at);
            }
            if room && self.conns[at as usize].wants_write {
                self.mark(at);
            }
        }
    }
    /// A session began: what came with it is the connection's.
    fn begin_serial(&mut self, i: usize) {
        let taken = if self.core.draining { None } else { self.free.pop() };
        let Some(at) = taken else {
            let link = Link::Serial(self.serial[i].end.clone());
            let (code, ab, text) = self.no_place();
            return self.turn_away(&link, code, ab, text);
        };
        self.serial[i].conn = Some(at);
        let slowest = self.serial[i].byte_ns_max();
        let link = Link::Serial(self.serial[i].end.clone());
        self.admit(at, link, Way::Serial, false);
        self.conns[at as usize].expect_slow_line(slowest);
    }
    /// Closes a port's connection, whose session is over.
    fn end_serial(&mut self, i: usize, release: bool) {
        if let Some(at) = self.serial[i].conn.take() {
            self.close(at);
        }
        if release {
            self.serial[i].end.lock().release();
        }
    }
    fn lose_serial(&mut self, i: usize) {
        let mut port = self.serial[i].end.lock();
        if let Some(fd) = &port.fd {
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd.as_raw_fd()));
        }
        port.lose(self.core.now);
        let pause = port.reopen_at.map_or(0, |at| at.since(self.core.now).0);
        tell(events::Event::SerialLost { port: i as u8, ns: pause });
        drop(port);
        self.end_serial(i, false);
    }
    /// The connection at `at` closes by itself: its port is free for the next session.
    pub(super) fn serial_closed(&mut self, at: u16) {
        for serial in &mut self.serial {
            if serial.conn == Some(at) {
                serial.conn = None;
                serial.end.lock().release();
            }
        }
    }
    /// Writes what the ports have to say.
    pub(super) fn flush_serial(&mut self) {
        for i in 0..self.serial.len() {
            let sent =
                self.serial[i].end.lock().transmit(self.core.now, &self.core.control.counters);
            if sent.is_err() {
                self.lose_serial(i);
            }
        }
    }
    pub(super) fn serial_has_work(&self) -> bool {
        self.serial.iter().any(|serial| serial.end.lock().has_work())
    }
    pub(super) fn serial_instant(&self) -> Option<Nanos> {
        self.serial.iter().filter_map(|serial| serial.end.lock().next_instant()).min()
    }
}
