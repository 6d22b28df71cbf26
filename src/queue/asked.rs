//! What a client asks, beside the input: in the slot, and in the ring.

use crate::limits::{BATCH_ROWS_MAX, SLOTS_PER_MODEL_MAX};
use crate::sys::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{Nanos, Rows};

/// Who is told when a request is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Notify {
    /// A thread that waits on the slot itself (in-process).
    #[default]
    Waiter,
    /// The I/O thread, through the worker's completion ring.
    Io,
    /// As `Io`; but a worker that runs the request alone may answer through this
    /// [outlet](super::outlet), if it is still lent for the request by then.
    Outlet(u16),
}

impl Notify {
    fn to_number(self) -> u32 {
        match self {
            Notify::Waiter => 0,
            Notify::Io => 1,
            Notify::Outlet(at) => 2 + at as u32,
        }
    }
    fn from_number(number: u32) -> Notify {
        match number {
            0 => Notify::Waiter,
            1 => Notify::Io,
            at => Notify::Outlet((at - 2) as u16),
        }
    }
}

/// A request as the ring holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Queued {
    /// Its slot.
    pub index: u32,
    pub rows: Rows,
    /// Whether it has a deadline.
    pub timed: bool,
}

const INDEX_BITS: u32 = 12;
const ROWS_BITS: u32 = 11;
const _: () = assert!(SLOTS_PER_MODEL_MAX <= 1 << INDEX_BITS);
const _: () = assert!(BATCH_ROWS_MAX < 1 << ROWS_BITS);
const _: () = assert!(1 << (INDEX_BITS + ROWS_BITS + 1) < super::ring::IndexRing::VALUE_END);

impl Queued {
    #[inline]
    pub fn to_number(self) -> u32 {
        let timed = (self.timed as u32) << (INDEX_BITS + ROWS_BITS);
        timed | (self.rows.0 as u32) << INDEX_BITS | self.index
    }
    #[inline]
    pub fn from_number(number: u32) -> Queued {
        Queued {
            index: number & ((1 << INDEX_BITS) - 1),
            rows: Rows((number >> INDEX_BITS & ((1 << ROWS_BITS) - 1)) as u16),
            timed: number >> (INDEX_BITS + ROWS_BITS) != 0,
        }
    }
}

/// What the client writes at submission, ordered by the ring. Atomics, since a worker that only
/// peeks at the ring may read them too: a stale value is harmless, since taking the request goes
/// through the ring's cell.
#[derive(Debug, Default)]
pub(super) struct Asked {
    notify: AtomicU32,
    deadline: AtomicU64,
    submitted_at: AtomicU64,
    tag: AtomicU64,
}

impl Asked {
    #[inline]
    pub fn set(&self, notify: Notify, tag: u64, submitted_at: Nanos, deadline: Nanos) {
        self.notify.store(notify.to_number(), Ordering::Relaxed);
        self.deadline.store(deadline.0, Ordering::Relaxed);
        self.submitted_at.store(submitted_at.0, Ordering::Relaxed);
        self.tag.store(tag, Ordering::Relaxed);
    }
    pub fn tag(&self) -> u64 {
        self.tag.load(Ordering::Relaxed)
    }
    pub fn deadline(&self) -> Nanos {
        Nanos(self.deadline.load(Ordering::Relaxed))
    }
    pub fn submitted_at(&self) -> Nanos {
        Nanos(self.submitted_at.load(Ordering::Relaxed))
    }
    pub fn notify(&self) -> Notify {
        Notify::from_number(self.notify.load(Ordering::Relaxed))
    }
}
