//! When the loop sleeps, and what the kernel tells it then.

use super::{CONNS, Io, TCP, TIMER, UNASKED_MAX, UNIX, WAKER, serial};
use crate::sys::clock;
use crate::sys::sync::spin_turn;
use crate::transport::bump;
use crate::units::Nanos;
use mio::Token;
use std::time::Duration;

impl Io {
    /// Whether something is there that needs no event.
    pub(super) fn has_work(&self) -> bool {
        !self.queued.is_empty()
            || !self.dirty.is_empty()
            || self.completions.iter().any(|ring| !ring.is_empty())
            || self.hub.is_dirty()
            || self.desk.is_new()
            || self.core.stats_wanted
            || self.serial_has_work()
            || [&self.unix, &self.tcp].into_iter().flatten().any(|door| door.open)
    }

    /// The next instant at which something must be done without an event.
    pub(super) fn next_instant(&self) -> Option<Nanos> {
        let sweep = (self.core.table.held() > 0).then_some(self.next_sweep);
        let deadline = self.core.table.next_deadline();
        [deadline, self.accept_again, sweep, self.serial_instant(), self.timers.next()]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn sleep(&mut self) {
        if self.has_work() {
            return self.go_on();
        }
        if self.spin != Nanos(0) && self.core.table.held() > 0 {
            let until = clock::now().after(self.spin);
            while clock::now() < until {
                if self.has_work() {
                    return self.go_on();
                }
                spin_turn();
            }
        }
        let next = self.next_instant();
        let eager = std::mem::take(&mut self.eager)
            || self.core.draining
            || self.core.lent.is_some_and(|at| self.conns[at as usize].needs_news());
        if self.may_sleep(eager, || false) {
            self.wait_until(next);
        }
    }

    /// Announces the sleep, and looks once more, at what `found` says too. If there is something the sleep is
    /// off, and the next turn [goes on](Self::go_on).
    pub(super) fn may_sleep(&mut self, eager: bool, found: impl Fn() -> bool) -> bool {
        self.waker.flag().announce(eager);
        if !self.has_work() && !found() {
            return true;
        }
        self.waker.flag().cancel();
        self.go_on();
        false
    }

    /// Waits for events, or until `next`.
    pub(super) fn wait_until(&mut self, next: Option<Nanos>) {
        match next {
            Some(at) if at <= clock::now() => self.wait(Some(Duration::ZERO)),
            Some(at) => {
                self.timer.ring_by(at);
                self.wait(None);
            }
            None => self.wait(None),
        }
    }

    /// There is work: another turn, without asking the kernel for more. Others' requests wait there
    /// meanwhile, but not for long.
    pub(super) fn go_on(&mut self) {
        self.unasked += 1;
        if self.unasked >= UNASKED_MAX {
            self.wait(Some(Duration::ZERO));
        }
    }

    pub(super) fn wait(&mut self, timeout: Option<Duration>) {
        self.unasked = 0;
        bump(&self.core.control.counters.sleeps_total, 1);
        let polled = self.poll.poll(&mut self.events, timeout);
        self.waker.flag().cancel();
        if polled.is_err() {
            // A signal; nothing was reported.
            return;
        }
        for event in self.events.iter() {
            match event.token() {
                WAKER => {}
                TIMER => self.timer.rang(),
                UNIX => {
                    self.lone.has_company();
                    if let Some(door) = &mut self.unix {
                        door.open = true;
                    }
                }
                TCP => {
                    self.lone.has_company();
                    if let Some(door) = &mut self.tcp {
                        door.open = true;
                    }
                }
                Token(token) if token >= CONNS + self.conns.len() => {
                    serial::note_event(&self.serial, token - CONNS - self.conns.len(), event);
                }
                Token(token) => {
                    let at = (token - CONNS) as u16;
                    self.lone.heard(at);
                    let conn = &mut self.conns[at as usize];
                    if conn.link.is_none() {
                        continue;
                    }
                    if event.is_error() || event.is_write_closed() {
                        conn.hung_up = true;
                    }
                    conn.peer_closed |= event.is_read_closed();
                    if (event.is_readable() || event.is_read_closed()) && !conn.queued {
                        conn.queued = true;
                        self.queued.push_back(at);
                    }
                    if (event.is_writable() || conn.hung_up) && !conn.dirty {
                        conn.dirty = true;
                        self.dirty.push(at);
                    }
                }
            }
        }
    }
}
