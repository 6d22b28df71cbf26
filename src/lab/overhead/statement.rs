//! What telling an event costs the thread that tells it.

use super::{Effort, Error};
use crate::lab::sample::{Spread, percentile};
use crate::sys::events::{self, Event, tell};
use crate::sys::{affinity, clock, records};
use serde::Serialize;
use std::hint::black_box;

/// Statements between two readings of the clock, which costs about as much as one of them.
pub const STATEMENTS_PER_BLOCK: usize = 16;
/// What was set as goal for the p50 of a statement that is told, in nanoseconds.
pub const GOAL_NS: f64 = 100.0;

/// Time of one statement with five fields, one of them a short text.
#[derive(Debug, Clone, Serialize)]
pub struct Statement {
    /// The core that the thread was pinned to.
    pub core: u16,
    /// Statements in a block; a block's time over this is one sample.
    pub per_block: usize,
    /// p50 of a statement that is told, its record put into the ring, in nanoseconds.
    pub told_p50_ns: Spread,
    /// p50 of one whose level is not told.
    pub off_p50_ns: Spread,
    /// Records that were lost in the timed blocks; their cost is not that of the others.
    pub lost: u64,
    /// The goal for the median of `told_p50_ns`.
    pub goal_ns: f64,
}

fn block(n: u32) -> f64 {
    let start = clock::now();
    for i in 0..STATEMENTS_PER_BLOCK as u32 {
        let (model, rows) = (black_box(1), black_box(n + i));
        tell(Event::BatchRan { model, rows, requests: rows, reason: "full", ns: start.0 });
    }
    clock::now().since(start).0 as f64 / STATEMENTS_PER_BLOCK as f64
}

/// Measures on a thread of its own; `None` where events go nowhere.
pub(super) fn measure(effort: Effort) -> Result<Option<Statement>, Error> {
    if !events::is_installed() {
        return Ok(None);
    }
    let core = *affinity::allowed()?.last().ok_or("the scheduler allows no core")?;
    let blocks = effort.iterations.max(1);
    let timed = std::thread::Builder::new().name("cl-worker-lab".into()).spawn(move || {
        affinity::pin(core)?;
        events::thread_starts();
        let before = records::totals().lost;
        let (mut told, mut off) = (Vec::new(), Vec::new());
        for _ in 0..effort.repeats.max(1) {
            for (level, p50s) in
                [(log::LevelFilter::Debug, &mut told), (log::LevelFilter::Off, &mut off)]
            {
                events::set_level(level);
                let mut samples: Vec<u64> = (0..blocks as u32)
                    .map(|n| {
                        // Hundredths of a nanosecond, since a sample is a fraction.
                        let sample = (block(n) * 100.0) as u64;
                        // The reader's part: room for the next block.
                        records::drain(|_, _| {});
                        sample
                    })
                    .collect();
                p50s.push(percentile(&mut samples, 500) as f64 / 100.0);
            }
        }
        events::set_level(log::LevelFilter::Off);
        let lost = records::totals().lost - before;
        Ok::<_, affinity::AffinityError>((told, off, lost))
    })?;
    let (told, off, lost) = timed.join().map_err(|_| "the thread that tells panicked")??;
    Ok(Some(Statement {
        core: core.0,
        per_block: STATEMENTS_PER_BLOCK,
        told_p50_ns: Spread::of(&told),
        off_p50_ns: Spread::of(&off),
        lost,
        goal_ns: GOAL_NS,
    }))
}
