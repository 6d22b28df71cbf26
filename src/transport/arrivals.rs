//! When inferences arrived, and of how many rows: the last ones, in a ring of fixed memory.
//!
//! The I/O thread writes; any thread reads. No payload is kept.

use crate::limits::ARRIVALS_ENTRIES_MAX;
use crate::sys::sync::{AtomicU64, Ordering};
use crate::units::{ModelId, Nanos, Rows};

/// One inference that arrived, whether it was accepted or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// When its head was read.
    pub at: Nanos,
    /// The model.
    pub model: ModelId,
    /// Its rows.
    pub rows: Rows,
}

/// The ring. One writer.
#[derive(Debug)]
pub struct Arrivals {
    /// Instant, and model and rows in one word.
    entries: Box<[(AtomicU64, AtomicU64)]>,
    /// Arrivals so far, those that were overwritten included.
    count: AtomicU64,
}

impl Arrivals {
    /// A ring of `entries`, at least 1 and at most [`ARRIVALS_ENTRIES_MAX`].
    pub fn new(entries: usize) -> Arrivals {
        let entries = entries.clamp(1, ARRIVALS_ENTRIES_MAX);
        let empty = |_| (AtomicU64::new(0), AtomicU64::new(0));
        Arrivals { entries: (0..entries).map(empty).collect(), count: AtomicU64::new(0) }
    }

    /// Arrivals so far.
    pub fn total(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Notes an arrival. Called by the I/O thread only.
    pub(super) fn note(&self, arrived: Arrived) {
        let count = self.count.load(Ordering::Relaxed);
        let (at, what) = &self.entries[(count % self.entries.len() as u64) as usize];
        at.store(arrived.at.0, Ordering::Relaxed);
        what.store(u64::from(arrived.model.0) << 16 | u64::from(arrived.rows.0), Ordering::Relaxed);
        // Release, with the acquire of readers: they see whole entries below the count.
        self.count.store(count + 1, Ordering::Release);
    }

    /// The arrivals that are still there, oldest first. Those that may have been overwritten while
    /// this read are left out.
    pub fn read(&self) -> Vec<Arrived> {
        let len = self.entries.len() as u64;
        let end = self.total();
        let start = end.saturating_sub(len);
        let mut read: Vec<Arrived> = (start..end)
            .map(|n| {
                let (at, what) = &self.entries[(n % len) as usize];
                let what = what.load(Ordering::Acquire);
                Arrived {
                    at: Nanos(at.load(Ordering::Acquire)),
                    model: ModelId((what >> 16) as u16),
                    rows: Rows(what as u16),
                }
            })
            .collect();
        // The writer may be in the middle of one more than it has counted.
        let now = self.total();
        let lost = if now == end { 0 } else { (now + 1 - len.min(now + 1)).saturating_sub(start) };
        read.drain(..(lost as usize).min(read.len()));
        read
    }
}
