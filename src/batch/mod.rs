//! When a batch closes, and how large it is: a pure function of what waits, the clock, and the
//! measured service times. No I/O, no state; tested in simulated time.

use crate::limits::BATCH_SIZES_MAX;
use crate::units::{CloseReason, Micros, Nanos};

/// How a model wants to be batched (from its manifest).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchSettings {
    /// `max_batch_size`: rows, at most the largest compiled size.
    pub max_batch_size: u32,
    /// `preferred_batch_size`, ascending; empty for none.
    pub preferred_batch_size: heapless::Vec<u32, BATCH_SIZES_MAX>,
    /// `max_queue_delay_microseconds`: how long the oldest request may wait for company. 0: an idle
    /// worker takes what is there at once.
    pub max_queue_delay: Micros,
}

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Rows.
    pub rows: u32,
    /// When the oldest request was submitted.
    pub oldest_at: Nanos,
    /// The earliest deadline; `Nanos(u64::MAX)` if none.
    pub earliest_deadline: Nanos,
}

/// The measured cost of one compiled batch size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeCost {
    /// Rows.
    pub size: u32,
    /// Time of one run.
    pub time: Nanos,
}

/// What a worker should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Take up to so many rows and run them.
    Close {
        /// Rows.
        rows: u32,
        /// Why now.
        reason: CloseReason,
    },
    /// Wait for company, at most until this instant.
    Wait {
        /// When to decide again at the latest.
        until: Nanos,
    },
    /// Nothing waits.
    Nothing,
}

/// A larger batch must save at least this share of the time per row, in percent: within it the
/// measurement can't tell, and the smaller batch answers its first row earlier.
pub const BATCH_MUST_SAVE_PERCENT: u64 = 5;

/// The number of rows, at most `rows`, whose run costs the least time per row.
///
/// `costs` are ascending by size. A batch between two sizes is padded up, and pays the larger one's
/// time. A size that was not measured (time 0) is taken to cost nothing extra, so that it gets
/// measured.
#[inline]
pub fn best_rows(rows: u32, max_batch_size: u32, costs: &[SizeCost]) -> u32 {
    let rows = rows.min(max_batch_size).max(1);
    if rows == 1 {
        return 1;
    }
    let mut best = rows.min(1);
    let mut best_time = u64::MAX;
    let mut best_rows = 1u64;
    for cost in costs {
        let taken = rows.min(cost.size).max(1) as u64;
        // time / taken < best_time / best_rows * (100 - save) / 100, in integers.
        let better = best_time == u64::MAX
            || (cost.time.0 as u128 * best_rows as u128 * 100)
                < (best_time as u128 * taken as u128 * (100 - BATCH_MUST_SAVE_PERCENT) as u128)
            || (cost.time.0 == 0 && taken >= best_rows);
        if better {
            (best, best_time, best_rows) = (taken as u32, cost.time.0, taken);
        }
        if cost.size >= rows {
            break;
        }
    }
    best
}

/// The time that a run of `rows` rows takes.
pub fn time_of(rows: u32, costs: &[SizeCost]) -> Nanos {
    costs.iter().find(|c| c.size >= rows).or(costs.last()).map_or(Nanos(0), |c| c.time)
}

/// Decides for an idle worker that looks at a model's queue.
#[inline]
pub fn decide(
    settings: &BatchSettings,
    waiting: Waiting,
    costs: &[SizeCost],
    draining: bool,
    now: Nanos,
) -> Decision {
    if waiting.rows == 0 {
        return Decision::Nothing;
    }
    // The largest batch that pays if there were rows without end.
    let full = best_rows(u32::MAX, settings.max_batch_size, costs);
    let close = |rows: u32, reason| Decision::Close {
        rows: best_rows(rows, settings.max_batch_size, costs),
        reason,
    };
    if waiting.rows >= full {
        return Decision::Close { rows: full, reason: CloseReason::Full };
    }
    if draining {
        return close(waiting.rows, CloseReason::Drain);
    }
    if settings.max_queue_delay.0 == 0 {
        return close(waiting.rows, CloseReason::Idle);
    }
    let preferred = settings.preferred_batch_size.iter().rev().find(|&&p| p <= waiting.rows);
    if let Some(&rows) = preferred {
        return Decision::Close { rows, reason: CloseReason::Preferred };
    }
    let delay_ends = waiting.oldest_at.after(settings.max_queue_delay.into());
    if now >= delay_ends {
        return close(waiting.rows, CloseReason::Delay);
    }
    // The last instant at which a run of what is here still meets the earliest deadline, with a
    // quarter of the run as margin.
    let run = time_of(waiting.rows, costs).0;
    let latest_start = Nanos(waiting.earliest_deadline.0.saturating_sub(run + run / 4));
    if now >= latest_start {
        return close(waiting.rows, CloseReason::Deadline);
    }
    Decision::Wait { until: delay_ends.min(latest_start) }
}

#[cfg(test)]
mod tests;
