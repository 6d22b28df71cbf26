//! The alarm clock of a thread that sleeps in the poller.
//!
//! The poller's own timeout counts milliseconds, which would answer an expired deadline up to one late,
//! and it programs and clears a hardware timer in every sleep, which costs more than the rest of a
//! short one on a virtual machine. This one is set to the nanosecond, and stays set: as long as it
//! rings before the next instant that matters, it is left alone. Its worst is a needless look.

use crate::units::Nanos;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// A timer file descriptor, to be registered edge-triggered: each ring is an edge, so it is never read.
#[derive(Debug)]
pub(super) struct Timer {
    fd: OwnedFd,
    /// When it will ring; `Nanos(u64::MAX)` if it is not set.
    set_to: Nanos,
}

impl Timer {
    pub fn new() -> std::io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Timer { fd, set_to: Nanos(u64::MAX) })
    }

    /// Rings at `at` or sooner.
    pub fn ring_by(&mut self, at: Nanos) {
        if self.set_to <= at {
            return;
        }
        let value =
            Timespec { tv_sec: (at.0 / 1_000_000_000) as _, tv_nsec: (at.0 % 1_000_000_000) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // Cannot fail: the descriptor is a timer, and the time is in range. A zero would clear it, and
        // the clock has long left that.
        let _ = timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &once);
        self.set_to = at;
    }

    /// It has rung.
    pub fn rang(&mut self) {
        self.set_to = Nanos(u64::MAX);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
