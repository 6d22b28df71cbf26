use super::*;
use crate::lab::load::simulated::Server;
use crate::lab::run::tests::simulated;
use crate::units::Nanos;

/// A server whose single services vary by 5 %, and whose repeats vary by 1 %.
fn server(service_us: u64) -> Server {
    Server { service: Nanos(service_us * 1000), jitter: 0.05, drift: 0.01, ..Server::default() }
}

fn run(service_us: u64, seed: u64) -> Run {
    simulated(&server(service_us), 400.0, 4.0, 5, seed)
}

#[test]
fn two_runs_of_the_same_build_show_no_difference_and_ten_percent_is_found() {
    let (mut quiet, mut found) = (0, 0);
    let pairs = 40;
    for pair in 0..pairs {
        let base = run(1000, 2 * pair);
        let again = run(1000, 2 * pair + 1);
        quiet += u64::from(compare(&base, &again).unwrap().differences().count() == 0);
        let slower = run(1100, 2 * pair + 1001);
        let comparison = compare(&base, &slower).unwrap();
        found += u64::from(comparison.differences().any(|c| c.verdict == Verdict::Worse));
    }
    println!("{quiet} of {pairs} pairs of the same build: no difference; 10 % found in {found}");
    assert!(quiet * 10 >= pairs * 9, "{quiet} of {pairs}");
    assert!(found * 10 >= pairs * 9, "{found} of {pairs}");
}

#[test]
fn the_rank_test_is_exact() {
    let apart = rank_test(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]);
    assert!((apart - 2.0 / 252.0).abs() < 1e-12, "{apart}");
    // Known from tables of the Mann-Whitney test: U = 2 at 5 and 5 has p = 0.0317.
    let near = rank_test(&[1.0, 2.0, 3.0, 4.0, 7.5], &[5.0, 7.0, 8.0, 9.0, 10.0]);
    assert!((near - 8.0 / 252.0).abs() < 1e-12, "{near}");
    assert_eq!(rank_test(&[1.0; 5], &[1.0; 5]), 1.0);
    assert_eq!(rank_test(&[], &[1.0]), 1.0);
    assert_eq!(rank_test(&[1.0, 3.0], &[2.0, 2.0]), 1.0);
    // The approximation takes over without a jump.
    let a: Vec<f64> = (0..9).map(f64::from).collect();
    let b: Vec<f64> = (0..9).map(|n| f64::from(n) + 3.2).collect();
    let exact = rank_test(&a, &b);
    let n = 9.0;
    let u = 9.0 * 9.0 / 2.0 - {
        let pairs = a.iter().flat_map(|x| b.iter().map(move |y| x > y));
        pairs.filter(|greater| *greater).count() as f64
    };
    let z: f64 = u / (n * n * 19.0 / 12.0f64).sqrt();
    let approximate = 2.0 * (1.0 - normal(z));
    assert!((exact - approximate).abs() < 0.01, "{exact} {approximate}");
}

#[test]
fn under_the_same_distribution_p_values_are_as_small_as_they_say() {
    use rand_pcg::Pcg32;
    use rand_pcg::rand_core::{Rng, SeedableRng};
    let mut random = Pcg32::seed_from_u64(11);
    let mut draw = || -> Vec<f64> { (0..5).map(|_| f64::from(random.next_u32())).collect() };
    let small = (0..4000).filter(|_| rank_test(&draw(), &draw()) <= ALPHA).count();
    // At five a side the largest p-value within ALPHA is 4 of 252.
    let expected = 4000.0 * 4.0 / 252.0;
    assert!((small as f64 - expected).abs() < 4.0 * expected.sqrt(), "{small}, not {expected}");
}

#[test]
fn few_repeats_say_so_and_small_effects_are_none() {
    let few = |seed| simulated(&server(1000), 400.0, 1.0, 3, seed);
    let comparison = compare(&few(1), &few(2)).unwrap();
    assert!(comparison.changes.iter().all(|c| c.verdict == Verdict::TooFewRepeats));
    assert!(comparison.headline().starts_with("too few repeats"));
    // Two percent on a server without noise: surely there, and surely not worth a word.
    let exact = |us: u64| {
        let server = Server { service: Nanos(us * 1000), ..Server::default() };
        simulated(&server, 200.0, 2.0, 5, 1)
    };
    let comparison = compare(&exact(1000), &exact(1020)).unwrap();
    let infer = comparison.changes.iter().find(|c| c.metric == "compute_infer_p50_us").unwrap();
    assert!(infer.p_value < ALPHA && infer.verdict == Verdict::NoDifference, "{infer:?}");
}

#[test]
fn a_machine_that_changed_too_makes_a_change_unclear() {
    let base = run(1000, 1);
    let mut slower = run(1200, 2);
    let yardstick = |run: &mut Run, ns: u64| {
        run.series[0].repeats.iter_mut().for_each(|r| r.yardstick_ns = Some(ns));
    };
    let mut with = base.clone();
    yardstick(&mut with, 1000);
    yardstick(&mut slower, 1010);
    assert!(compare(&with, &slower).unwrap().headline().starts_with("worse"));
    yardstick(&mut slower, 1150);
    let comparison = compare(&with, &slower).unwrap();
    assert!(comparison.headline().starts_with("unclear"), "{}", comparison.headline());
    assert!(comparison.notes.iter().any(|n| n.contains("+15 %")), "{:?}", comparison.notes);
    // A machine that was faster makes a slowdown only worse.
    yardstick(&mut slower, 800);
    assert!(compare(&with, &slower).unwrap().headline().starts_with("worse"));
}

#[test]
fn a_machine_that_was_busy_at_times_in_both_runs_does_not_hide_a_change() {
    let (mut base, mut slower) = (run(1000, 1), run(1200, 2));
    let yardsticks = |run: &mut Run, all: [u64; 5]| {
        run.series[0].repeats.iter_mut().zip(all).for_each(|(r, ns)| r.yardstick_ns = Some(ns));
    };
    // Medians 15 % apart, and the values mixed.
    yardsticks(&mut base, [1000, 1300, 1000, 1000, 1300]);
    yardsticks(&mut slower, [1300, 1000, 1150, 1300, 1000]);
    let comparison = compare(&base, &slower).unwrap();
    assert!(comparison.headline().starts_with("worse"), "{}", comparison.headline());
    // The same medians, and the values apart.
    yardsticks(&mut base, [1000, 1010, 1000, 1000, 990]);
    yardsticks(&mut slower, [1150, 1160, 1150, 1150, 1140]);
    let comparison = compare(&base, &slower).unwrap();
    assert!(comparison.headline().starts_with("unclear"), "{}", comparison.headline());
}

#[test]
fn what_can_not_be_compared_is_refused_with_the_difference() {
    let base = run(1000, 1);
    let refused = |change: fn(&mut Run)| {
        let mut new = base.clone();
        change(&mut new);
        compare(&base, &new).unwrap_err().to_string()
    };
    assert!(refused(|r| r.target.model = "other".into()).contains("the model: m in the base"));
    assert!(refused(|r| r.target.signature = "x".into()).contains("inputs"));
    assert!(refused(|r| r.series[0].name = "bursty".into()).contains("no series in common"));
    let text = refused(|r| {
        if let Load::Open { plan } = &mut r.series[0].load {
            plan.rate_per_s = 401.0;
        }
    });
    assert!(text.contains("400.0") && text.contains("401.0"), "{text}");
}

fn gate(text: &str) -> Gate {
    Gate::parse("gate.toml", text).unwrap()
}

/// Two series, of which the second is slower by `percent`.
fn two(percent: u64) -> (Run, Run) {
    let mut base = run(1000, 1);
    let mut new = run(1000, 2);
    let add = |to: &mut Run, us: u64, seed: u64| {
        let mut series = run(us, seed).series.remove(0);
        series.name = "bursty".into();
        to.series.push(series);
    };
    add(&mut base, 1000, 3);
    add(&mut new, 1000 + 10 * percent, 4);
    (base, new)
}

#[test]
fn a_gate_finds_a_slowdown_of_one_profile_only() {
    let (base, new) = two(20);
    let comparison = compare(&base, &new).unwrap();
    let worse: Vec<&str> = comparison.differences().map(|c| c.series.as_str()).collect();
    assert!(!worse.is_empty() && worse.iter().all(|s| *s == "bursty"), "{worse:?}");
    let broken = gate("latency_p50 = \"10%\"\nthroughput = \"5%\"").broken(&comparison);
    assert!(broken.len() == 1 && broken[0].starts_with("bursty latency_p50_us"), "{broken:?}");
    // A rule for the profile replaces the general one there.
    let text = "latency_p50 = \"10%\"\n[profile.bursty]\nlatency_p50 = \"500%\"";
    assert_eq!(gate(text).broken(&comparison), Vec::<String>::new());
    let text = "latency_p50 = \"500%\"\n[profile.bursty]\nlatency_p50 = \"1%\"";
    assert_eq!(gate(text).broken(&comparison).len(), 1);
    // What no run has is not kept.
    let broken = gate("latency_p42 = \"10%\"").broken(&comparison);
    assert!(broken[0].contains("is in no run"), "{broken:?}");
    let (base, new) = two(0);
    let comparison = compare(&base, &new).unwrap();
    assert_eq!(gate("latency_p99 = \"10%\"").broken(&comparison), Vec::<String>::new());
}

/// The first half of the story: a cache whose lock is held while the model runs. Two workers then do no
/// more than one, at a rate that needs more than one.
#[test]
fn a_lock_around_the_model_fails_the_gate() {
    let measured = |one_lock: bool, seed: u64| {
        let server = Server { workers: 2, one_lock, ..server(4500) };
        simulated(&server, 300.0, 2.0, 5, seed)
    };
    let (plain, locked) = (measured(false, 1), measured(true, 2));
    let comparison = compare(&plain, &locked).unwrap();
    let p99 = comparison.changes.iter().find(|c| c.metric == "latency_p99_us").unwrap();
    assert!(p99.verdict == Verdict::Worse && p99.percent > 400.0, "{p99:?}");
    let broken = gate("latency_p99 = \"10%\"").broken(&comparison);
    assert!(broken.len() == 1 && broken[0].starts_with("poisson latency_p99_us"), "{broken:?}");
    // At a rate that one worker holds, the lock hardly shows: only load finds it.
    let calm = |one_lock: bool| {
        let server = Server { workers: 2, one_lock, ..server(4500) };
        simulated(&server, 20.0, 20.0, 5, 1)
    };
    let changes = compare(&calm(false), &calm(true)).unwrap().changes;
    let p50 = changes.iter().find(|c| c.metric == "latency_p50_us").unwrap();
    assert_eq!(p50.verdict, Verdict::NoDifference, "{p50:?}");
}

/// The second half of the story: payloads are copied once more, which costs something for each row
/// beyond the first. Steady requests have one row and don't notice; heavy-tailed ones do.
#[test]
fn an_extra_payload_copy_is_found_on_the_heavy_tailed_profile_only() {
    use crate::lab::schedule::{Plan, Profile};
    let measured = |per_row_us: u64, seed: u64| {
        let server = Server { per_row: Nanos(per_row_us * 1000), ..server(300) };
        let mut run = simulated(&server, 200.0, 1.0, 1, seed);
        run.series.clear();
        for (profile, rows_max) in [(Profile::Steady, 1), (Profile::HeavyTailed, 32)] {
            let name = profile.name().to_string();
            let plan = Plan { profile, rate_per_s: 400.0, span_s: 5.0, seed: 1, rows: 1, rows_max };
            run.series.push(crate::lab::run::tests::series(&server, name, &plan, 5, seed));
        }
        run
    };
    let comparison = compare(&measured(20, 1), &measured(40, 2)).unwrap();
    let worse: Vec<&Change> =
        comparison.differences().filter(|c| c.verdict == Verdict::Worse).collect();
    assert!(worse.iter().any(|c| c.metric == "latency_p99_us"), "{worse:?}");
    assert!(worse.iter().all(|c| c.series == "heavy-tailed"), "{worse:?}");
    let broken = gate("latency_p99 = \"10%\"").broken(&comparison);
    assert!(
        broken.len() == 1 && broken[0].starts_with("heavy-tailed latency_p99_us"),
        "{broken:?}"
    );
}

#[test]
fn an_invalid_run_does_not_pass_a_gate() {
    let (base, mut new) = two(0);
    new.valid = false;
    new.findings.push(crate::lab::run::Finding::invalid("generator_lag", "late"));
    let comparison = compare(&base, &new).unwrap();
    let broken = gate("latency_p99 = \"10%\"").broken(&comparison);
    assert!(broken.len() == 1 && broken[0].contains("INVALID"), "{broken:?}");
}

#[test]
fn a_gate_that_makes_no_sense_is_refused_with_its_line() {
    for (text, part) in [
        ("", "latency_p99"),
        ("latency_p99 = 10", "text"),
        ("latency_p99 = \"ten\"", "no percentage"),
        ("a = \"1%\"\nb = \"-1%\"", "line 2"),
        ("[profile]\nx = \"1%\"", "table"),
    ] {
        let error = Gate::parse("gate.toml", text).unwrap_err().to_string();
        assert!(error.contains(part), "{text:?}: {error}");
    }
}
