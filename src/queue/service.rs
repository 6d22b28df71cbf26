//! Measured service times: what the batch policy and admission reckon with.

use crate::limits::{BATCH_SIZES_MAX, CORE_KINDS_COUNT_MAX};
use crate::sys::sync::{AtomicU32, AtomicU64, Ordering};
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

/// Marks a time that was measured elsewhere, and by no worker yet.
const FOREIGN: u64 = 1 << 63;

/// Measured service time of each batch size on each kind of core, kept by the workers, read by policy
/// and admission.
///
/// On a machine with unlike cores a worker decides by the times of its own kind: what is worth waiting
/// for on a fast core may be too late on a slow one.
#[derive(Debug)]
pub struct ServiceTimes {
    /// Ascending; 0 after the last.
    sizes: [AtomicU32; BATCH_SIZES_MAX],
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
        let size = |i: usize| AtomicU32::new(sizes.get(i).map_or(0, |&size| size as u32));
        ServiceTimes { sizes: std::array::from_fn(size), kinds }
    }

    /// The same kinds of cores and sizes, without times.
    pub fn twin(&self) -> ServiceTimes {
        let workers: heapless::Vec<u64, CORE_KINDS_COUNT_MAX> =
            self.kinds.iter().map(|kind| kind.workers).collect();
        let sizes: heapless::Vec<usize, BATCH_SIZES_MAX> =
            self.sizes().iter().map(|&size| size as usize).collect();
        ServiceTimes::of_kinds(&sizes, &workers)
    }

    /// Begins anew, for a version with other `sizes`, with times that were measured on another core: the
    /// batch policy takes them for what they are, but no request is refused by them.
    ///
    /// Whoever reads meanwhile may see old and new numbers; workers must not write.
    pub fn restart(&self, sizes: &[usize], measured: &[Nanos]) {
        // Relaxed throughout: each number stands for itself, and a wrong mixture decides about one request.
        for (i, size) in self.sizes.iter().enumerate() {
            size.store(sizes.get(i).map_or(0, |&size| size as u32), Ordering::Relaxed);
            for kind in &self.kinds {
                let time = measured.get(i).map_or(0, |time| time.0 | FOREIGN);
                kind.ns[i].store(time, Ordering::Relaxed);
            }
        }
    }

    /// Compiled batch sizes, ascending.
    pub fn sizes(&self) -> heapless::Vec<u16, BATCH_SIZES_MAX> {
        let sizes = self.sizes.iter().map(|size| size.load(Ordering::Relaxed) as u16);
        sizes.take_while(|&size| size > 0).collect()
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
        Nanos(self.kind(kind).ns[i].load(Ordering::Relaxed) & !FOREIGN)
    }

    /// The same, if it was measured by a worker on that kind of core.
    fn known(&self, kind: usize, i: usize) -> Option<u64> {
        let ns = self.kind(kind).ns[i].load(Ordering::Relaxed);
        (ns & FOREIGN == 0).then_some(ns)
    }

    /// Takes in a measurement: an exponential average with weight 1/8. One sample weighs at most
    /// twice the average, so that a preempted run does not turn the policy around.
    pub fn observe(&self, kind: usize, i: usize, sample: Nanos) {
        let ns = &self.kind(kind).ns[i];
        let old = ns.load(Ordering::Relaxed);
        let new = if old == 0 {
            sample.0
        } else if old & FOREIGN != 0 {
            sample.0.min((old & !FOREIGN).saturating_mul(2))
        } else {
            let sample = sample.0.min(old.saturating_mul(2));
            old - old / 8 + sample / 8
        };
        // Relaxed, and a lost update between workers is harmless: an average of many.
        ns.store(new, Ordering::Relaxed);
    }

    /// The least time per row over all sizes, filled.
    fn best_per_row(&self, kind: usize) -> u64 {
        let per_row = self.sizes().into_iter().enumerate();
        per_row.filter_map(|(i, s)| Some(self.known(kind, i)? / s as u64)).min().unwrap_or(0)
    }

    /// How long a request of `rows` rows is estimated to take from now: the `ahead` rows before it,
    /// shared by `workers` (as bits) as fast as each of them can, and its own run on the fastest kind of
    /// core that serves. A lower bound: what can't be met by it can't be met.
    pub fn estimate(&self, rows: Rows, ahead: u64, workers: u64) -> Nanos {
        let sizes = self.sizes();
        let last = sizes.len().saturating_sub(1);
        let own = sizes.iter().position(|&s| s >= rows.0).unwrap_or(last);
        // What no worker has measured yet is no reason to refuse.
        let run_of = |kind: usize| self.known(kind, own).unwrap_or(0);
        if let [only] = self.kinds.as_slice() {
            let workers = (only.workers & workers).count_ones().max(1) as u64;
            return Nanos(ahead * self.best_per_row(0) / workers + run_of(0));
        }
        let mut run = u64::MAX;
        // Rows in a second, over all workers.
        let mut rate = 0u64;
        for (n, kind) in self.kinds.iter().enumerate() {
            let count = (kind.workers & workers).count_ones() as u64;
            if count > 0 {
                run = run.min(run_of(n));
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
