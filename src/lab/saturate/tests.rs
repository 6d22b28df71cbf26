use super::*;
use crate::lab::load::simulated::{Server, SimPort};
use crate::lab::load::{self, Record};
use crate::lab::run::analysis;
use crate::lab::schedule::{Plan, Profile};
use crate::lab::system::Machine;
use crate::lab::validity::{self, Around};
use crate::units::Nanos;

fn probe(server: &Server, goal: Goal, profile: Profile, rate_per_s: f64) -> Probe {
    let plan = Plan { profile, rate_per_s, span_s: 20.0, seed: 5, rows: 1, rows_max: 1 };
    let schedule = plan.schedule().unwrap();
    let mut records = vec![Record::default(); schedule.len()];
    let mut port = SimPort::new(server.clone(), 1);
    let ran = load::open_loop(&mut port, &schedule, &mut records, Nanos(1 << 40));
    let mut repeat = analysis::repeat(&records, &ran);
    repeat.findings = validity::of_repeat(&repeat, true, &Around::default(), &Machine::default());
    let detail = Detail::new(&records[..ran.sent], ran.start, Vec::new());
    judge(goal, rate_per_s, &repeat, &detail)
}

fn saturation(server: &Server, goal: Goal, profile: Profile, first: f64) -> Saturation {
    let probe = |rate| Ok::<_, ()>(probe(server, goal, profile.clone(), rate));
    search(goal, first, 1e6, probe).unwrap()
}

const P99_20_MS: Goal = Goal { percentile: "p99", bound_ns: 20_000_000 };

#[test]
fn a_server_of_constant_gaps_saturates_at_its_capacity() {
    // One millisecond each, four workers: exactly 4000 a second, from any first guess.
    let server = Server { workers: 4, ..Server::default() };
    for first in [10.0, 3000.0, 20_000.0] {
        let found = saturation(&server, P99_20_MS, Profile::Steady, first);
        let rate = found.rate_per_s.unwrap();
        assert!((3840.0..=4001.0).contains(&rate), "{first}: {found:?}");
        assert!(found.beyond_per_s.unwrap() > 3999.0 && found.ended_early.is_none());
    }
}

#[test]
fn poisson_arrivals_saturate_where_theory_says() {
    // M/D/1 with 1 ms of service. By Erlang's exact law of waiting (summed below), the p99 of the
    // sojourn reaches 10 ms near a load of 0.79.
    let goal = Goal { percentile: "p99", bound_ns: 10_000_000 };
    let found = saturation(&Server::default(), goal, Profile::Poisson, 100.0);
    let rate = found.rate_per_s.unwrap();
    let theory = (500..1000)
        .map(f64::from)
        .take_while(|rate| p99_of_m_d_1(rate / 1000.0) + 1.0 <= 10.0)
        .last()
        .unwrap();
    assert!((rate / theory - 1.0).abs() < 0.08, "{rate} found, {theory} by theory");
}

/// The 99th percentile of the wait in an M/D/1 queue at `load`, in service times (Erlang 1909).
fn p99_of_m_d_1(load: f64) -> f64 {
    let within = |t: f64| {
        let sum: f64 = (0..=t.floor() as u32)
            .map(|k| {
                let x = load * (f64::from(k) - t);
                let factorial: f64 = (1..=k).map(f64::from).product();
                x.powi(k as i32) * (-x).exp() / factorial
            })
            .sum();
        (1.0 - load) * sum
    };
    let mut t = 0.0;
    // Beyond some ten service times the sum cancels too much; the bound is within.
    while t < 12.0 && within(t) < 0.99 {
        t += 0.01;
    }
    t
}

#[test]
fn a_bound_that_nothing_holds_is_said() {
    let goal = Goal { percentile: "p99", bound_ns: 500_000 };
    let found = saturation(&Server::default(), goal, Profile::Steady, 100.0);
    assert_eq!(found.rate_per_s, None);
    assert_eq!(found.ended_early.as_deref(), Some("no rate holds the bound"));
}

#[test]
fn a_queue_that_grows_does_not_hold_even_within_the_bound() {
    // 2 % over capacity for 20 s: 400 ms of queue in the end, the bound is a second.
    let goal = Goal { percentile: "p99", bound_ns: 1_000_000_000 };
    let over = probe(&Server::default(), goal, Profile::Steady, 1020.0);
    assert!(!over.held && over.why.as_deref().unwrap().contains("grows"), "{over:?}");
    let below = probe(&Server::default(), goal, Profile::Steady, 990.0);
    assert!(below.held, "{below:?}");
}

#[test]
fn refusals_do_not_hold() {
    let server = Server { in_system_max: 4, ..Server::default() };
    let over = probe(&server, P99_20_MS, Profile::Steady, 1500.0);
    assert!(over.why.unwrap().contains("failed (queue_full)"));
}

#[test]
fn a_generator_that_lags_ends_the_search() {
    let server = Server {
        service: Nanos(1_000),
        workers: 8,
        send_cost: Nanos(500_000),
        ..Server::default()
    };
    let found = saturation(&server, P99_20_MS, Profile::Steady, 500.0);
    let why = found.ended_early.unwrap();
    assert!(why.contains("the generator could not keep"), "{why}");
    assert!(found.beyond_per_s.is_none());
    // What it can send holds: 2000 a second.
    let rate = found.rate_per_s.unwrap();
    assert!((1_500.0..2_100.0).contains(&rate), "{rate}");
    // So too where the first guess is far beyond that.
    let found = saturation(&server, P99_20_MS, Profile::Steady, 50_000.0);
    let why = found.ended_early.unwrap();
    assert!(why.contains("the generator could not keep"), "{why}");
    let again = found.rate_per_s.unwrap();
    assert!((again / rate - 1.0).abs() < 0.1, "{again} and {rate}");
}

#[test]
fn a_first_rate_that_does_not_hold_is_searched_downward() {
    // A hundredth of the first guess.
    let server = Server { workers: 1, ..Server::default() };
    let found = saturation(&server, P99_20_MS, Profile::Steady, 100_000.0);
    let rate = found.rate_per_s.unwrap();
    assert!((950.0..=1001.0).contains(&rate), "{found:?}");
    assert!(found.ended_early.is_none() && found.beyond_per_s.unwrap() > 999.0);
}
