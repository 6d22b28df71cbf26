use super::trace::{Trace, TraceError};
use super::*;
use std::path::Path;

fn plan(profile: Profile, rate_per_s: f64, span_s: f64) -> Plan {
    Plan { profile, rate_per_s, span_s, seed: 7, rows: 1, rows_max: 1 }
}

fn gaps(arrivals: &[Arrival]) -> Vec<f64> {
    arrivals.windows(2).map(|w| w[1].at.since(w[0].at).0 as f64).collect()
}

/// Mean and variation (standard deviation over mean).
fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let var = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    (mean, var.sqrt() / mean)
}

const RANDOM: [Profile; 3] =
    [Profile::Poisson, Profile::Bursty { on_ms: 50, off_ms: 150 }, Profile::HeavyTailed];

#[test]
fn a_seed_fixes_the_schedule_and_another_changes_it() {
    for profile in RANDOM {
        let a = plan(profile.clone(), 1000.0, 10.0);
        let b = Plan { seed: 8, ..a.clone() };
        assert_eq!(a.schedule().unwrap(), a.schedule().unwrap());
        assert_ne!(a.schedule().unwrap(), b.schedule().unwrap());
    }
    // The stream itself is pinned: a run of last year can be repeated.
    let first: Vec<u64> = plan(Profile::Poisson, 1000.0, 1.0).schedule().unwrap()[..4]
        .iter()
        .map(|a| a.at.0)
        .collect();
    assert_eq!(first, PINNED);
}

const PINNED: [u64; 4] = [101375, 1820056, 2203638, 4372567];

#[test]
fn every_profile_ascends_within_the_span_at_the_mean_rate() {
    for profile in RANDOM.into_iter().chain([Profile::Steady]) {
        let name = profile.name();
        let arrivals = plan(profile, 2000.0, 20.0).schedule().unwrap();
        assert!(arrivals.windows(2).all(|w| w[0].at <= w[1].at), "{name}");
        assert!(arrivals.last().unwrap().at.0 < 20_000_000_000, "{name}");
        let off = arrivals.len() as f64 / 40_000.0;
        assert!((0.97..1.03).contains(&off), "{name}: {off} of the rate");
    }
}

#[test]
fn gaps_are_distributed_as_the_profile_says() {
    let steady = gaps(&plan(Profile::Steady, 1000.0, 5.0).schedule().unwrap());
    assert!(steady.iter().all(|g| (g - 1e6).abs() < 2.0));
    let (mean, variation) =
        moments(&gaps(&plan(Profile::Poisson, 1000.0, 50.0).schedule().unwrap()));
    assert!(
        (mean / 1e6 - 1.0).abs() < 0.03 && (variation - 1.0).abs() < 0.03,
        "{mean} {variation}"
    );
    let heavy = gaps(&plan(Profile::HeavyTailed, 1000.0, 50.0).schedule().unwrap());
    let (mean, variation) = moments(&heavy);
    let longest = heavy.iter().fold(0.0f64, |a, b| a.max(*b));
    assert!((mean / 1e6 - 1.0).abs() < 0.03 && variation > 2.0, "{mean} {variation}");
    assert!(longest > 100.0 * mean, "{longest}");
}

#[test]
fn a_burst_is_silent_while_off() {
    let profile = Profile::Bursty { on_ms: 50, off_ms: 150 };
    let arrivals = plan(profile, 1000.0, 10.0).schedule().unwrap();
    assert!(arrivals.iter().all(|a| a.at.0 % 200_000_000 < 50_000_000));
    assert!(arrivals.iter().any(|a| a.at.0 > 9_800_000_000));
}

#[test]
fn heavy_rows_stay_within_their_bounds_and_reach_them() {
    let heavy = Plan { rows_max: 8, ..plan(Profile::HeavyTailed, 1000.0, 5.0) };
    let rows: Vec<u16> = heavy.schedule().unwrap().iter().map(|a| a.rows).collect();
    assert!(rows.iter().all(|r| (1..=8).contains(r)));
    let ones = rows.iter().filter(|r| **r == 1).count();
    assert!(ones > rows.len() / 2 && rows.contains(&8), "{ones}");
    let steady = Plan { rows: 3, rows_max: 8, ..plan(Profile::Steady, 10.0, 1.0) };
    assert!(steady.schedule().unwrap().iter().all(|a| a.rows == 3));
}

#[test]
fn a_ramp_rises_linearly_and_holds() {
    let stages = parse_stages("100/10/10,300/10/5").unwrap();
    let arrivals = plan(Profile::Ramp { stages }, 0.0, 0.0).schedule().unwrap();
    let within = |from: u64, to: u64| {
        arrivals
            .iter()
            .filter(|a| (from * 1_000_000_000..to * 1_000_000_000).contains(&a.at.0))
            .count()
    };
    // Areas under the rate: rise from 0 to 100, hold, rise to 300, hold.
    for (from, to, wanted) in
        [(0, 5, 125), (0, 10, 500), (10, 20, 1000), (20, 30, 2000), (30, 35, 1500)]
    {
        let got = within(from, to);
        assert!(got.abs_diff(wanted) <= 1, "{from} to {to} s: {got}, not {wanted}");
    }
    assert_eq!(arrivals.len(), 5000);
    assert!(arrivals.windows(2).all(|w| w[0].at < w[1].at));
    // A fall is a stage too.
    let stages = parse_stages("100/0/1,10/9/0").unwrap();
    let falling = plan(Profile::Ramp { stages }, 0.0, 0.0).schedule().unwrap();
    assert!(falling.len().abs_diff(100 + 495) <= 1, "{}", falling.len());
}

#[test]
fn what_makes_no_sense_is_refused_with_its_numbers() {
    let refused = |plan: Plan| plan.schedule().unwrap_err();
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 2e6] {
        let error = refused(plan(Profile::Poisson, rate, 1.0));
        assert!(matches!(error, ScheduleError::OutOfRange { what: "the rate", .. }), "{error:?}");
    }
    for span in [0.0, -3.0, f64::NAN, 1e9] {
        let error = refused(plan(Profile::Steady, 10.0, span));
        assert!(
            matches!(error, ScheduleError::OutOfRange { what: "the duration", .. }),
            "{error:?}"
        );
    }
    let max = LAB_REQUESTS_MAX as u64;
    assert_eq!(
        refused(plan(Profile::Steady, 1e6, 3600.0)),
        ScheduleError::TooMany { wanted: 3_600_000_000, max }
    );
    assert_eq!(refused(plan(Profile::Poisson, 0.1, 0.01)), ScheduleError::Empty);
    let burst = Profile::Bursty { on_ms: 0, off_ms: 1 };
    assert!(matches!(refused(plan(burst, 1.0, 1.0)), ScheduleError::OutOfRange { .. }));
    let empty = Profile::Ramp { stages: vec![] };
    assert!(matches!(refused(plan(empty, 1.0, 1.0)), ScheduleError::NeedsMore { .. }));
    let backwards =
        Profile::Ramp { stages: vec![Stage { rate_per_s: 1.0, rise_s: -1.0, hold_s: 2.0 }] };
    assert!(matches!(refused(plan(backwards, 1.0, 1.0)), ScheduleError::OutOfRange { .. }));
    for text in ["", "100", "100/1", "a/1/1", "1/1/1/1", "1/inf/1"] {
        assert!(parse_stages(text).is_err(), "{text:?}");
    }
}

#[test]
fn an_unknown_profile_names_the_nearest() {
    let error = Profile::from_name("busty").unwrap_err();
    assert!(error.to_string().contains("did you mean \"bursty\""), "{error}");
    let error = Profile::from_name("xyz").unwrap_err();
    assert!(error.to_string().contains("heavy-tailed"), "{error}");
    for name in PROFILES {
        match Profile::from_name(name) {
            Ok(profile) => assert_eq!(profile.name(), name),
            Err(error) => assert!(error.to_string().contains("takes"), "{error}"),
        }
    }
}

#[test]
fn a_trace_survives_its_file_and_wrong_lines_are_named() {
    let arrivals = plan(Profile::Poisson, 100.0, 2.0).schedule().unwrap();
    let trace = Trace { model: "mlp".into(), arrivals };
    let path = std::env::temp_dir().join(format!("corelane-trace-{}", std::process::id()));
    std::fs::write(&path, trace.text()).unwrap();
    assert_eq!(Trace::read(&path).unwrap(), trace);
    for (text, line, part) in [
        ("", 1, "begins with"),
        ("# corelane trace 2\n0 1\n", 1, "begins with"),
        ("# corelane trace 1\n0 1\n5\n", 3, "no arrival"),
        ("# corelane trace 1\n0 1\n5 0\n", 3, "no arrival"),
        ("# corelane trace 1\n0 1 2\n", 2, "no arrival"),
        ("# corelane trace 1\n9 1\n5 1\n", 3, "ascend"),
        ("# corelane trace 1\n# model x\n", 1, "no arrival"),
    ] {
        std::fs::write(&path, text).unwrap();
        match Trace::read(&path).unwrap_err() {
            TraceError::Line { line: at, what, .. } => {
                assert!(at == line && what.contains(part), "{text:?}: line {at}, {what}");
            }
            other => panic!("{other}"),
        }
    }
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(Trace::read(Path::new("/no/such/trace")), Err(TraceError::Io { .. })));
}
