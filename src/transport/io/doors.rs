//! Letting clients in, and turning them away.

use super::{ACCEPT_PAUSE, ACCEPTS_PER_TURN, CONNS, Io, SEND_BUFFER_BYTES, Way};
use crate::queue::handover::Reclaimed;
use crate::queue::outlet::Plug;
use crate::sys::events::{Event, tell};
use crate::sys::sync::Ordering;
use crate::transport::link::Link;
use crate::transport::{bump, conn, listen};
use crate::wire::{self, ErrorCode, HEAD_BYTES_MAX, Reply};
use mio::unix::SourceFd;
use mio::{Interest, Token};
use rustix::net::{SocketFlags, accept_with, sockopt};
use std::io::IoSlice;
use std::os::fd::AsRawFd;

const ALL_TAKEN: &str = "the server holds as many connections as it may";

impl Io {
    pub(super) fn take_doors(&mut self) {
        if self.accept_again.is_some_and(|at| at <= self.core.now) {
            self.accept_again = None;
            for door in [&mut self.unix, &mut self.tcp].into_iter().flatten() {
                door.open = true;
            }
        }
        self.accept(true);
        self.accept(false);
    }

    fn accept(&mut self, unix: bool) {
        for _ in 0..ACCEPTS_PER_TURN {
            let door = if unix { &mut self.unix } else { &mut self.tcp };
            let Some(door) = door.as_mut().filter(|door| door.open) else { return };
            let fd = match accept_with(&door.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(fd) => fd,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
                Err(rustix::io::Errno::AGAIN) => {
                    door.open = false;
                    return;
                }
                Err(_) => {
                    // Most likely no descriptor is left; someone may give one back.
                    door.open = false;
                    tell(Event::AcceptFailed { ns: ACCEPT_PAUSE.0 });
                    self.accept_again = Some(self.core.now.after(ACCEPT_PAUSE));
                    return;
                }
            };
            let uid = if unix { listen::peer_uid(&fd) } else { None };
            if unix
                && let Some(allowed) = &self.allowed_uids
                && !uid.is_some_and(|uid| allowed.contains(&uid))
            {
                let ab = (uid.unwrap_or(u32::MAX) as u64, 0);
                let text = "this user may not connect";
                self.turn_away(&Link::Bare(fd), ErrorCode::PeerNotAllowed, ab, text);
                continue;
            }
            let way = if unix { Way::Unix } else { Way::Tcp };
            let at = match self.place(way) {
                Ok(at) => at,
                Err(ab) => {
                    let (code, text) = (ErrorCode::TooManyConnections, ALL_TAKEN);
                    self.turn_away(&Link::Bare(fd), code, ab, text);
                    continue;
                }
            };
            if !unix {
                let _ = sockopt::set_tcp_nodelay(&fd, true);
            }
            let _ = sockopt::set_socket_send_buffer_size(&fd, SEND_BUFFER_BYTES);
            let raw = fd.as_raw_fd();
            let token = Token(CONNS + at as usize);
            let registered =
                self.poll.registry().register(&mut SourceFd(&raw), token, Interest::READABLE);
            if registered.is_err() {
                self.free.push(at);
                continue;
            }
            let wants_key = !unix && self.core.key.is_some();
            let plug = Plug::new(self.waker.outlets().clone(), at, fd);
            self.admit(at, Link::Socket(plug), way, wants_key);
            self.conns[at as usize].power.uid = uid;
        }
    }

    pub(super) fn admit(&mut self, at: u16, link: Link, way: Way, wants_key: bool) {
        let door = match &link {
            Link::Serial(_) => "a serial port",
            Link::Memory(_) => "this process",
            _ => "a socket",
        };
        tell(Event::ConnectionOpened { connection: at, door });
        let conn = &mut self.conns[at as usize];
        conn.open(link, way, wants_key, &self.core);
        self.timers.set(at, conn.next_timeout());
        self.open[way as usize] += 1;
        let counters = &self.core.control.counters;
        bump(&counters.connections_total, 1);
        bump(&counters.connections_open, 1);
        self.high = self.high.max(at + 1);
        self.enqueue(at);
    }

    /// Closes a connection, or lets it close when the worker that is sending there has told.
    pub(super) fn close(&mut self, at: u16) {
        let conn = &mut self.conns[at as usize];
        let Some(link) = &conn.link else { return };
        if link.plug().is_some_and(|plug| plug.reclaim() == Reclaimed::Sending) {
            // Closed when the worker has told.
            conn.hung_up = true;
            self.eager = true;
            return;
        }
        match link.raw_fd() {
            Some(raw) => {
                let _ = self.poll.registry().deregister(&mut SourceFd(&raw));
            }
            None if matches!(link, Link::Serial(_)) => self.serial_closed(at),
            None => self.memory.retain(|&other| other != at),
        }
        let conn = &mut self.conns[at as usize];
        conn.close(&mut self.core);
        self.open[conn.door as usize] -= 1;
        tell(Event::ConnectionClosed { connection: at });
        let open = &self.core.control.counters.connections_open;
        open.store(open.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        self.free.push(at);
        while self.high > 0 && self.conns[self.high as usize - 1].link.is_none() {
            self.high -= 1;
        }
    }

    /// Why there is no place for a connection that comes through no door: the error to tell it.
    pub(super) fn no_place(&self) -> (ErrorCode, (u64, u64), &'static str) {
        if self.core.draining {
            return (ErrorCode::ShuttingDown, (0, 0), "the server drains");
        }
        let all = self.conns.len() as u64;
        (ErrorCode::TooManyConnections, (all, all), ALL_TAKEN)
    }

    /// Says why, and closes.
    pub(super) fn turn_away(&self, link: &Link, code: ErrorCode, (a, b): (u64, u64), text: &str) {
        let mut head = [0; HEAD_BYTES_MAX];
        let reply = Reply::Error { id: None, code: code.number(), text, a, b };
        if let Ok(n) = wire::encode_head(&reply, 0, &mut head) {
            let _ = link.write(&[IoSlice::new(&head[..n])]);
        }
        link.finish();
        // What the peer said already would turn the close into a reset.
        let mut ignored = [0; 512];
        let _ = link.read(&mut [std::io::IoSliceMut::new(&mut ignored)]);
        conn::count_error(&self.core, code);
        tell(Event::ConnectionRefused { code: code.name(), a, b });
    }
}
