//! Measured service times: what the batch policy and admission reckon with.

use crate::limits::{BATCH_SIZES_MAX, CORE_KINDS_COUNT_MAX};
use crate::sys::sync::{AtomicU64, Ordering};
use crate::units::{Nanos, Rows};

/// Times of the workers on one kind of core, on lines of their own: workers write them with every
/// batch, and what lies beside them is read with every request.
#[derive(Debug)]
#[repr(align(128))]
struct Kind {
    /// Which workers, as bits.
    workers: u64,
    ns: [AtomicU64; BATCH_SIZES_MAX],
}

/// Measured service time of each batch size on each kind of core, kept by the workers, read by policy
/// and admission.
///
/// On a machine with unlike cores a worker decides by the times of its own kind: what is worth waiting
/// for on a fast core may be too late on a slow one.
#[derive(Debug)]
pub struct ServiceTimes {
    sizes: heapless::Vec<u16, BATCH_SIZES_MAX>,
    kinds: heapless::Vec<Kind, CORE_KINDS_COUNT_MAX>,
}

impl ServiceTimes {
    /// Times of the compiled `sizes` (ascending) on cores of one kind, with the first measurements.
    pub fn new(sizes: &[usize], first: &[Nanos]) -> Self {
        let times = ServiceTimes::of_kinds(sizes, &[u64::MAX]);
        for (i, t) in first.iter().enumerate().take(BATCH_SIZES_MAX) {
            times.kinds[0].ns[i].store(t.0, Ordering::Relaxed);
        }
        times
    }

    /// Times on several kinds of cores: the workers of each, as bits. Those beyond
    /// [`CORE_KINDS_COUNT_MAX`] are not told apart from the last.
    pub fn of_kinds(sizes: &[usize], workers: &[u64]) -> Self {
        let mut kinds = heapless::Vec::new();
        for &workers in workers {
            let kind = Kind { workers, ns: std::array::from_fn(|_| AtomicU64::new(0)) };
            if let Err(over) = kinds.push(kind) {
                let last: &mut Kind = kinds.last_mut().expect("there is room for one");
                last.workers |= over.workers;
            }
        }
        let sizes = sizes.iter().take(BATCH_SIZES_MAX).map(|&s| s as u16).collect();
        ServiceTimes { sizes, kinds }
    }

    /// Compiled batch sizes, ascending.
    pub fn sizes(&self) -> &[u16] {
        &self.sizes
    }

    /// Kinds of cores.
    pub fn kinds(&self) -> usize {
        self.kinds.len()
    }

    fn kind(&self, kind: usize) -> &Kind {
        &self.kinds[kind.min(self.kinds.len() - 1)]
    }

    /// The time of the `i`-th size on a kind of core.
    pub fn get(&self, kind: usize, i: usize) -> Nanos {
        Nanos(self.kind(kind).ns[i].load(Ordering::Relaxed))
    }

    /// Takes in a measurement: an exponential average with weight 1/8. One sample weighs at most
    /// twice the average, so that a preempted run does not turn the policy around.
    pub fn observe(&self, kind: usize, i: usize, sample: Nanos) {
        let ns = &self.kind(kind).ns[i];
        let old = ns.load(Ordering::Relaxed);
        let new = if old == 0 {
            sample.0
        } else {
            let sample = sample.0.min(old.saturating_mul(2));
            old - old / 8 + sample / 8
        };
        // Relaxed, and a lost update between workers is harmless: an average of many.
        ns.store(new, Ordering::Relaxed);
    }

    /// The least time per row over all sizes, filled.
    fn best_per_row(&self, kind: usize) -> u64 {
        let per_row = self.sizes.iter().enumerate();
        per_row.map(|(i, &s)| self.get(kind, i).0 / s.max(1) as u64).min().unwrap_or(0)
    }

    /// How long a request of `rows` rows is estimated to take from now: the `ahead` rows before it,
    /// shared by `workers` (as bits) as fast as each of them can, and its own run on the fastest kind of
    /// core that serves. A lower bound: what can't be met by it can't be met.
    pub fn estimate(&self, rows: Rows, ahead: u64, workers: u64) -> Nanos {
        let last = self.sizes.len().saturating_sub(1);
        let own = self.sizes.iter().position(|&s| s >= rows.0).unwrap_or(last);
        if let [only] = self.kinds.as_slice() {
            let workers = (only.workers & workers).count_ones().max(1) as u64;
            return Nanos(ahead * self.best_per_row(0) / workers + self.get(0, own).0);
        }
        let mut run = u64::MAX;
        // Rows in a second, over all workers.
        let mut rate = 0u64;
        for (n, kind) in self.kinds.iter().enumerate() {
            let count = (kind.workers & workers).count_ones() as u64;
            if count > 0 {
                run = run.min(self.get(n, own).0);
                let per_second = 1_000_000_000 / self.best_per_row(n).max(1);
                rate = rate.saturating_add(count * per_second.max(1));
            }
        }
        if rate == 0 {
            return Nanos(0);
        }
        Nanos(ahead.saturating_mul(1_000_000_000) / rate + run)
    }
}
