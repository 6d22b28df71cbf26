use super::*;
use crate::batch::{SizeCost, best_rows};
use std::convert::Infallible;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// The service time that runs of these times give, and how many of them were made.
fn of(first: Option<u64>, times: &[u64]) -> (u64, usize) {
    let mut runs = 0;
    let time = service_time::<Infallible>(first.map(Nanos), || {
        runs += 1;
        Ok(Nanos(times[runs - 1]))
    });
    let Ok(time) = time;
    (time.0, runs)
}

#[test]
fn two_runs_that_agree_are_enough() {
    assert_eq!(of(Some(100 * US), &[98 * US]), (98 * US, 1));
    assert_eq!(of(None, &[100 * US, 101 * US]), (100 * US, 2));
}

#[test]
fn an_interruption_is_not_taken_for_the_service_time() {
    // Of the last run before, which takes 40 us; of a timed one; of all but two.
    assert_eq!(of(Some(6 * MS), &[40 * US, 41 * US]), (40 * US, 2));
    assert_eq!(of(Some(40 * US), &[6 * MS, 41 * US]), (40 * US, 2));
    assert_eq!(of(Some(6 * MS), &[9 * MS, 4 * MS, 41 * US, 3 * MS, 40 * US]), (40 * US, 5));
    // One run of 2 ms and more is believed as little as a short one.
    assert_eq!(of(Some(12 * MS), &[3 * MS, 3 * MS + 1]), (3 * MS, 2));
}

#[test]
fn batching_looks_profitable_though_its_first_run_was_interrupted() {
    let (one, eight) = (of(Some(MS), &[MS]).0, of(Some(30 * MS), &[3 * MS, 3 * MS]).0);
    let costs = [SizeCost { size: 1, time: Nanos(one) }, SizeCost { size: 8, time: Nanos(eight) }];
    assert_eq!(best_rows(8, 8, &costs), 8);
}

#[test]
fn runs_are_bounded_in_number_and_in_time() {
    // Each half as long as the one before: no two ever agree.
    let halves: Vec<u64> = (0..32).map(|n| (100 * MS) >> n).collect();
    let (time, runs) = of(None, &halves[4..]);
    assert_eq!((time, runs), (halves[4 + TIMED_RUNS_MAX - 1], TIMED_RUNS_MAX));
    // A long model is run once more than it was warmed up, however its times differ.
    assert_eq!(of(Some(900 * MS), &[600 * MS]), (600 * MS, 1));
    assert_eq!(of(None, &[900 * MS, 600 * MS]), (600 * MS, 2));
}

#[test]
fn a_run_that_takes_no_time_is_still_measured() {
    assert_eq!(of(None, &[0, 0]), (1, 2));
}

#[test]
fn a_failed_run_ends_it() {
    assert_eq!(service_time(None, || Err("no")), Err("no"));
}
