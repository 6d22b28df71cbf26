//! What is counted, in fixed memory: stage histograms and counters per model and worker.
//!
//! A worker is the only writer of its own block, with relaxed atomics (a load and a store, no
//! read-modify-write); readers add the blocks up. Names follow Triton's, `nv_` replaced by
//! `corelane_`.

pub mod http;

use crate::limits::BATCH_SIZES_MAX;
use crate::queue::Failure;
use crate::sys::sync::{AtomicU64, Ordering};
use crate::units::{CloseReason, Nanos};
use serde::Serialize;

/// Sub-buckets per power of two: 32, so a bucket is at most 3.2 % wide.
const SUB_BITS: u32 = 5;
/// Values up to 2^40 ns (18 minutes); longer ones count in the last bucket.
const OCTAVES: u32 = 40 - SUB_BITS;
const BUCKETS: usize = ((OCTAVES + 1) << SUB_BITS) as usize;

/// A histogram of nanoseconds: log-linear buckets (as HdrHistogram's), one writer.
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }
}

#[inline]
fn bucket_of(ns: u64) -> usize {
    if ns < 1 << SUB_BITS {
        return ns as usize;
    }
    let octave = 63 - ns.leading_zeros() - SUB_BITS;
    let sub = (ns >> octave) - (1 << SUB_BITS);
    ((((octave + 1) << SUB_BITS) as u64 + sub) as usize).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn bucket_top(index: usize) -> u64 {
    let (octave, sub) = (index as u64 >> SUB_BITS, index as u64 & ((1 << SUB_BITS) - 1));
    if octave == 0 { sub } else { (((1 << SUB_BITS) + sub + 1) << (octave - 1)) - 1 }
}

#[inline]
fn add(counter: &AtomicU64, n: u64) {
    // Single writer: a load and a store are enough, and cheaper than a locked add.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl Histogram {
    /// Takes in one value. Single writer.
    #[inline]
    pub fn record(&self, value: Nanos) {
        add(&self.buckets[bucket_of(value.0)], 1);
        add(&self.sum, value.0);
        if value.0 > self.max.load(Ordering::Relaxed) {
            self.max.store(value.0, Ordering::Relaxed);
        }
    }
}

/// Percentiles of one or more histograms, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Values.
    pub count: u64,
    /// Their sum.
    pub sum_ns: u64,
    /// Median, to within a bucket (3.2 %).
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Largest value, exact.
    pub max_ns: u64,
}

/// Adds histograms up and reads the percentiles off.
pub fn summarise<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Summary {
    let mut buckets = vec![0u64; BUCKETS];
    let mut out = Summary::default();
    for h in histograms {
        for (sum, b) in buckets.iter_mut().zip(h.buckets.iter()) {
            *sum += b.load(Ordering::Relaxed);
        }
        out.sum_ns = out.sum_ns.wrapping_add(h.sum.load(Ordering::Relaxed));
        out.max_ns = out.max_ns.max(h.max.load(Ordering::Relaxed));
    }
    out.count = buckets.iter().sum();
    let percentile = |permille: u64| {
        let rank = (out.count * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (i, n) in buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return bucket_top(i).min(out.max_ns);
            }
        }
        0
    };
    if out.count > 0 {
        out.p50_ns = percentile(500);
        out.p90_ns = percentile(900);
        out.p99_ns = percentile(990);
        out.p999_ns = percentile(999);
    }
    out
}

/// One worker's block for one model.
#[derive(Default)]
pub struct LaneStats {
    /// Per request: from submission to being taken.
    pub queue: Histogram,
    /// Per batch: gathering rows.
    pub compute_input: Histogram,
    /// Per batch: running the model.
    pub compute_infer: Histogram,
    /// Per batch: scattering rows.
    pub compute_output: Histogram,
    /// Per request: from submission to the answer.
    pub request: Histogram,
    /// Requests answered with success.
    pub success: AtomicU64,
    /// Rows answered with success.
    pub inference_count: AtomicU64,
    /// Runs of the engine.
    pub exec_count: AtomicU64,
    /// Requests that failed, by reason.
    pub failure: [AtomicU64; Failure::ALL.len()],
    /// Batches, by close reason.
    pub closed: [AtomicU64; CloseReason::ALL.len()],
    /// Batches, by the compiled size that ran.
    pub ran: [AtomicU64; BATCH_SIZES_MAX],
}

impl LaneStats {
    /// Adds to a counter. Single writer.
    #[inline]
    pub fn bump(counter: &AtomicU64, n: u64) {
        add(counter, n);
    }
}

/// One worker's own counters.
#[derive(Default)]
pub struct WorkerStats {
    /// What it does: see [`WorkerPhase`].
    pub phase: AtomicU64,
    /// Nanoseconds spent running batches.
    pub busy_ns: AtomicU64,
    /// Nanoseconds spent spinning for work.
    pub spin_ns: AtomicU64,
    /// Times it went to sleep.
    pub parks: AtomicU64,
    /// 1 while answers are given that are not counted yet; see [`settle`](Self::settle).
    pub counting: AtomicU64,
    /// Engine instances rebuilt after a panic.
    pub rebuilds: AtomicU64,
    /// The system's number of its thread; 0 until it is ready.
    pub thread: AtomicU64,
    /// Its page faults until it was ready.
    pub faults_at_ready: AtomicU64,
}

/// Pauses of [`WorkerStats::settle`] at most, and the length of each.
const SETTLE_PAUSES_MAX: u32 = 100;
const SETTLE_PAUSE: std::time::Duration = std::time::Duration::from_micros(100);

impl WorkerStats {
    /// Waits until every answer that the caller has seen is counted. A worker counts right after it
    /// answers, so that nearly always there is nothing to wait for; one that the scheduler has taken
    /// its core from is waited for some milliseconds. Not for threads that serve requests.
    pub fn settle(&self) {
        for _ in 0..SETTLE_PAUSES_MAX {
            // Acquire, with the worker's release: its counts are visible.
            if self.counting.load(Ordering::Acquire) == 0 {
                return;
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
    }
}

/// What a worker does at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerPhase {
    /// Loading and warming up.
    Starting = 0,
    /// Looking or spinning for work.
    Idle = 1,
    /// Asleep.
    Parked = 2,
    /// Running a batch.
    Running = 3,
    /// Ended.
    Stopped = 4,
}

impl WorkerPhase {
    /// The phase of its number.
    pub fn from_number(n: u64) -> Self {
        match n {
            0 => WorkerPhase::Starting,
            1 => WorkerPhase::Idle,
            2 => WorkerPhase::Parked,
            3 => WorkerPhase::Running,
            _ => WorkerPhase::Stopped,
        }
    }
}

#[cfg(test)]
mod tests;
