//! The first service times: runs at start, until they are warm and one can tell how long they take.

use crate::engine::{Instance, PlanIndex, RunError};
use crate::sys::clock;
use crate::units::Nanos;

/// Timed runs per batch size, at most.
const TIMED_RUNS_MAX: usize = 8;
/// Once the timed runs of a batch size took so long, no more are made.
const TIMED_NS_MAX: Nanos = Nanos(200_000_000);
/// The two least times agree if they differ by no more than this part of the lesser.
const AGREE_PART: u64 = 8;

/// Runs `plan` so often that every later run finds it warm; how long a run takes.
///
/// # Errors
/// A run failed.
pub(super) fn warm(
    instance: &mut dyn Instance,
    plan: PlanIndex,
    runs: u32,
) -> Result<Nanos, RunError> {
    let mut last = None;
    for _ in 0..runs {
        let start = clock::now();
        instance.warm_up(plan)?;
        last = Some(clock::now().since(start));
    }
    service_time(last, || {
        let start = clock::now();
        instance.infer(plan)?;
        Ok(clock::now().since(start))
    })
}

/// How long a run takes: the least of several, `first` (the last one before) among them.
///
/// Whatever interrupts a run only ever makes it longer, and would make its batch size look not worth
/// its while. So one time is never believed: runs are timed until the two least agree, which two
/// interrupted ones would only by chance, or until there were many, or enough time has passed, which
/// ends a long model's after two.
fn service_time<E>(
    first: Option<Nanos>,
    mut timed: impl FnMut() -> Result<Nanos, E>,
) -> Result<Nanos, E> {
    let (mut least, mut second) = (first.unwrap_or(Nanos(u64::MAX)), Nanos(u64::MAX));
    let mut total = first.unwrap_or(Nanos(0));
    for n in 1..=TIMED_RUNS_MAX {
        let time = timed()?;
        total = total.after(time);
        (least, second) = (least.min(time), second.min(least.max(time)));
        let agree = second.0 != u64::MAX && second.0 - least.0 <= least.0 / AGREE_PART;
        let samples = n + usize::from(first.is_some());
        if samples >= 2 && (agree || total >= TIMED_NS_MAX) {
            break;
        }
    }
    Ok(least.max(Nanos(1)))
}

#[cfg(test)]
mod tests;
