use super::*;
use crate::lab::system::CoreState;

fn good() -> Repeat {
    let mut repeat =
        Repeat { planned: 20_000, sent: 20_000, answered: 20_000, ..Repeat::default() };
    repeat.latency.count = 20_000;
    repeat.latency.p50_ns = 1_000_000;
    repeat.lag.p99_ns = 50_000;
    repeat
}

fn around() -> Around {
    let core = |busy_ticks| CoreState {
        busy_ticks,
        all_ticks: 10 * busy_ticks,
        frequency_khz: Some(1_000_000),
        throttled_count: Some(3),
    };
    let state =
        |busy| State { cores: [(0, core(busy)), (1, core(busy))].into(), ..State::default() };
    Around {
        before: state(100),
        after: state(200),
        server_ticks_before: [(1, 50)].into(),
        server_ticks_after: [(1, 148)].into(),
        frequencies_khz: [(1, (1_000_000, 990_000))].into(),
        worker_cores: vec![Some(1)],
        debug_build: false,
    }
}

fn machine(governor: &str) -> Machine {
    Machine { governors: [(1, governor.to_string())].into(), ..Machine::default() }
}

/// Ids and severities.
fn ids(repeat: &Repeat, is_open: bool, around: &Around, governor: &str) -> Vec<(String, Severity)> {
    let found = of_repeat(repeat, is_open, around, &machine(governor));
    found.into_iter().map(|f| (f.id, f.severity)).collect()
}

#[track_caller]
fn only(found: Vec<(String, Severity)>, id: &str, severity: Severity) {
    assert_eq!(found, [(id.to_string(), severity)]);
}

#[test]
fn a_good_run_has_no_finding() {
    assert_eq!(ids(&good(), true, &around(), "performance"), []);
}

#[test]
fn each_fault_of_the_generator_is_found() {
    use Severity::{Invalid, Warning};
    let check = |change: fn(&mut Repeat), id: &str, severity| {
        let mut repeat = good();
        change(&mut repeat);
        only(ids(&repeat, true, &around(), "performance"), id, severity);
    };
    check(|r| r.lag.p99_ns = 100_001, "generator_lag", Invalid);
    check(|r| r.sent = 19_999, "generator_lag", Invalid);
    check(|r| r.blocked = 201, "blocked", Invalid);
    check(|r| r.broken = Some("gone".into()), "broken", Invalid);
    check(|r| r.answered = 0, "no_answer", Invalid);
    check(|r| r.unanswered = 1, "unanswered", Warning);
    check(|r| r.generator_allocator_calls = 1, "generator_allocates", Warning);
    check(|r| r.latency.count = 9_999, "too_few_samples", Warning);
    // A tenth of a long latency is no harm, and a closed loop has no schedule to keep.
    let mut slow = good();
    slow.latency.p50_ns = 10_000_000;
    slow.lag.p99_ns = 900_000;
    assert_eq!(ids(&slow, true, &around(), "performance"), []);
    let mut late = good();
    late.lag.p99_ns = u64::MAX;
    assert_eq!(ids(&late, false, &around(), "performance"), []);
}

#[test]
fn each_fault_of_the_machine_is_found() {
    use Severity::{Invalid, Warning};
    let check = |change: fn(&mut Around), id: &str, severity| {
        let mut around = around();
        change(&mut around);
        only(ids(&good(), true, &around, "performance"), id, severity);
    };
    only(ids(&good(), true, &around(), "powersave"), "governor", Warning);
    check(|a| a.debug_build = true, "debug_build", Invalid);
    check(|a| a.worker_cores.push(None), "unpinned_workers", Warning);
    check(|a| a.frequencies_khz = [(1, (2_000_000, 1_500_000))].into(), "frequency", Warning);
    check(
        |a| a.after.cores.get_mut(&1).unwrap().throttled_count = Some(4),
        "thermal_throttling",
        Invalid,
    );
    check(|a| a.server_ticks_after = [(1, 60)].into(), "other_load", Warning);
    check(|a| a.after.pi_throttled = Some(0x1), "undervoltage", Invalid);
    check(|a| a.after.pi_throttled = Some(0x1_0000), "undervoltage", Invalid);
    check(|a| a.after.pi_throttled = Some(0x4), "thermal_throttling", Invalid);
    check(|a| a.after.pi_throttled = Some(0x2), "frequency_capped", Invalid);
    check(
        |a| (a.before.pi_throttled, a.after.pi_throttled) = (Some(0x5_0000), Some(0x1_0000)),
        "undervoltage",
        Warning,
    );
    check(|a| a.after.undervoltage_alarm = Some(true), "undervoltage", Invalid);
}

#[test]
fn too_few_samples_are_named_by_percentile() {
    let mut repeat = good();
    repeat.latency.count = 900;
    let found = of_repeat(&repeat, true, &around(), &machine("performance"));
    assert!(found[0].text.contains("p99, p999"), "{}", found[0].text);
}
