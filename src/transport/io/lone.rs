//! While one connection asks alone, the worker that runs its requests reads them, too: this thread
//! leaves its [seat](crate::queue::seat) to it.

use super::Io;
use crate::limits::{LONE_IDLE_MS_MAX, LONE_STREAK_COUNT_MIN};
use crate::queue::seat::{Connections, Next};
use crate::sys::sync::Ordering;
use crate::transport::{RUN, bump};
use crate::units::Nanos;

const IDLE_MAX: Nanos = Nanos(LONE_IDLE_MS_MAX * 1_000_000);

/// Whether one connection asks alone: one short request at a time, and nothing comes from others.
#[derive(Debug)]
pub(super) struct Lone {
    allowed: bool,
    conn: u16,
    /// Requests that it asked so, up to [`LONE_STREAK_COUNT_MIN`].
    streak: u32,
    /// When the last one was read.
    asked_at: Nanos,
    /// One was read in this turn, and woke a worker.
    asked: bool,
}

impl Lone {
    pub fn new(allowed: bool) -> Lone {
        Lone { allowed, conn: 0, streak: 0, asked_at: Nanos(0), asked: false }
    }
    fn is_steady(&self) -> bool {
        self.streak >= LONE_STREAK_COUNT_MIN
    }
    /// Whether the worker that has the request just read is to read the next.
    pub fn goes_to_worker(&self) -> bool {
        self.allowed && self.asked && self.is_steady()
    }
    /// Somebody else is here.
    pub fn has_company(&mut self) {
        self.streak = 0;
    }
    /// Something happened on a connection.
    pub fn heard(&mut self, conn: u16) {
        if conn != self.conn {
            self.has_company();
        }
    }
}

impl Io {
    /// Counts the turn's requests.
    pub(super) fn note_company(&mut self) {
        let submitted = std::mem::take(&mut self.core.submitted);
        let told = |at: u16| self.conns[at as usize].perhaps_answered().is_some();
        let answered = usize::from(self.core.lent.is_some_and(told));
        let lone = &mut self.lone;
        // A worker that was busy may be so for long.
        lone.asked = submitted.woke_worker;
        if self.core.table.held() > answered + 1 || submitted.count > 1 || submitted.is_long {
            lone.has_company();
        }
        if submitted.count == 0 {
            return;
        }
        lone.heard(submitted.conn);
        (lone.conn, lone.asked_at) = (submitted.conn, self.core.now);
        if submitted.count == 1 && !submitted.is_long && !lone.is_steady() {
            lone.streak += 1;
        }
        if self.core.seat_is_away {
            bump(&self.core.control.counters.lone_requests_total, u64::from(submitted.count));
        }
    }

    /// Leaves the seat to the worker that has the only request, until there is company.
    pub(super) fn leave_seat(&mut self) {
        let waker = self.waker.clone();
        if !waker.seat().is_allowed() {
            return self.sleep();
        }
        // Eager: whoever answers says so.
        if !self.may_sleep(true, || false) {
            return;
        }
        bump(&self.core.control.counters.seat_loans_total, 1);
        self.core.seat_is_away = true;
        if waker.seat().lend(self, waker.flag()) {
            // Whatever brought it home: not again at once.
            self.lone.has_company();
        }
        self.core.seat_is_away = false;
        waker.flag().cancel();
    }
}

/// In a worker's hands.
impl Connections for Io {
    fn turn(&mut self) -> Next {
        self.waker.flag().cancel();
        self.take_all();
        if self.core.now >= self.lone.asked_at.after(IDLE_MAX) {
            // What comes is no request, or nothing does: that is no worker's business.
            self.lone.has_company();
        }
        let runs = self.core.control.phase.load(Ordering::Acquire) == RUN;
        if runs && self.lone.is_steady() { Next::Stay } else { Next::Home }
    }

    fn wait(&mut self, until: Nanos, found: &dyn Fn() -> bool) -> Next {
        let idle_at = self.lone.asked_at.after(IDLE_MAX);
        let mut next = idle_at.min(until);
        if let Some(at) = self.next_instant() {
            next = next.min(at);
        }
        if self.may_sleep(true, found) {
            self.wait_until(Some(next));
        }
        if self.lone.is_steady() { Next::Stay } else { Next::Home }
    }
}
