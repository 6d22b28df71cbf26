use super::simulated::{Server, SimPort};
use super::*;
use crate::lab::sample::percentile;
use crate::lab::schedule::{Plan, Profile};
use crate::units::DType;

pub(super) fn plan(profile: Profile, rate_per_s: f64, span_s: f64) -> Vec<Arrival> {
    let plan = Plan { profile, rate_per_s, span_s, seed: 3, rows: 1, rows_max: 1 };
    plan.schedule().unwrap()
}

fn open(server: Server, schedule: &[Arrival]) -> (Ran, Vec<Record>) {
    let mut records = vec![Record::default(); schedule.len()];
    let ran =
        open_loop(&mut SimPort::new(server, 1), schedule, &mut records, Nanos(10_000_000_000));
    (ran, records)
}

fn closed(server: Server, concurrency: usize, span: Nanos) -> (Ran, Vec<Record>) {
    let mut records = vec![Record::default(); 100_000];
    let mut port = SimPort::new(server, 1);
    let ran = closed_loop(&mut port, concurrency, 1, span, &mut records, Nanos(10_000_000_000));
    records.truncate(ran.sent);
    (ran, records)
}

fn latencies(records: &[Record]) -> Vec<u64> {
    records.iter().map(|r| r.done.since(r.planned).0).collect()
}

#[test]
fn every_request_leaves_at_its_time_and_ends_once() {
    let schedule = plan(Profile::Poisson, 500.0, 4.0);
    let (ran, records) = open(Server::default(), &schedule);
    assert_eq!((ran.sent, ran.broken), (schedule.len(), None));
    for (record, arrival) in records.iter().zip(&schedule) {
        assert_eq!(record.planned, arrival.at);
        assert_eq!(record.end, End::Answered);
        assert!(record.sent.since(record.planned).0 <= 1);
        let receipt = record.receipt.unwrap();
        let server = receipt.queue_ns.0 + receipt.compute_infer_ns.0;
        assert_eq!(record.done.since(record.sent).0, server);
    }
}

#[test]
fn an_open_loop_shows_a_stall_that_a_closed_loop_hides() {
    let second = 1_000_000_000;
    let stall = Some((Nanos(3 * second), Nanos(3 * second + second / 2)));
    let server = Server { stall, ..Server::default() };
    let schedule = plan(Profile::Steady, 100.0, 20.0);
    let (_, open) = open(server.clone(), &schedule);
    let p999_open = percentile(&mut latencies(&open), 999);
    let p98_open = percentile(&mut latencies(&open), 980);
    // Fifty requests were due in half a second: the first waits for all of it, the last for little.
    assert!(p999_open > 480_000_000, "{p999_open}");
    assert!(p98_open > 100_000_000, "{p98_open}");
    let (_, closed) = closed(server, 1, Nanos(20 * second));
    let mut times = latencies(&closed);
    let p999_closed = percentile(&mut times, 999);
    assert_eq!(p999_closed, 1_000_000, "one request in 20,000 met it");
    assert!(*times.last().unwrap() > 480_000_000);
}

#[test]
fn a_generator_that_can_not_keep_up_shows_its_lag() {
    // A send takes 30 us, so that 50,000 a second are beyond this generator.
    let server = Server { send_cost: Nanos(30_000), service: Nanos(1_000), ..Server::default() };
    let schedule = plan(Profile::Steady, 50_000.0, 1.0);
    let (ran, records) = open(server, &schedule);
    assert_eq!(ran.sent, schedule.len());
    let mut lags: Vec<u64> = records.iter().map(|r| r.sent.since(r.planned).0).collect();
    assert!(percentile(&mut lags, 500) > 100_000_000);
}

#[test]
fn a_server_that_dies_leaves_what_was_measured() {
    let server = Server { dies_at: Some(Nanos(3_000_000_000)), ..Server::default() };
    let schedule = plan(Profile::Steady, 100.0, 10.0);
    let (ran, records) = open(server, &schedule);
    assert!(ran.broken.is_some());
    assert!((190..=201).contains(&ran.sent), "{}", ran.sent);
    assert!(records[..180].iter().all(|r| r.end == End::Answered));
    assert!(records[ran.sent..].iter().all(|r| r.end == End::Waiting && !r.was_sent));
}

#[test]
fn refusals_are_ends_with_their_code() {
    let server = Server { in_system_max: 2, ..Server::default() };
    let schedule = plan(Profile::Steady, 4000.0, 0.5);
    let (ran, records) = open(server, &schedule);
    assert_eq!(ran.sent, 2000);
    let refused = records.iter().filter(|r| r.end == End::Failed(300)).count();
    assert!((1400..1600).contains(&refused), "{refused}");
}

#[test]
fn a_closed_loop_keeps_its_number_in_flight() {
    let server = Server { workers: 4, ..Server::default() };
    for (concurrency, rate) in [(1, 1000), (4, 4000), (16, 4000)] {
        let (ran, records) = closed(server.clone(), concurrency, Nanos(1_000_000_000));
        assert!(ran.sent.abs_diff(rate) <= 2 * concurrency, "{concurrency}: {}", ran.sent);
        assert!(records.iter().all(|r| r.end == End::Answered && r.planned == r.sent));
    }
    // It stops where its records end.
    let mut records = vec![Record::default(); 10];
    let mut port = SimPort::new(Server::default(), 1);
    let ran = closed_loop(&mut port, 2, 1, Nanos(1 << 40), &mut records, Nanos(1 << 30));
    assert_eq!(ran.sent, 10);
    assert!(records.iter().all(|r| r.end == End::Answered));
}

#[test]
fn payloads_repeat_the_rows_given_or_are_random_by_seed() {
    let given = Rows { dtype: DType::U8, row_bytes: 3, data: vec![1, 2, 3, 4, 5, 6] };
    let floats = Rows { dtype: DType::F32, row_bytes: 8, data: Vec::new() };
    let inputs = [given, floats];
    let payloads = Payloads::new(&inputs, [1, 3], 5);
    assert_eq!(&payloads.get(0, 1)[..3], [1, 2, 3]);
    assert_eq!(&payloads.get(1, 1)[..3], [4, 5, 6]);
    assert_eq!(payloads.get(0, 1).len(), 8 + 8);
    // Nine bytes, up to the next multiple of eight, three rows of two floats.
    assert_eq!(payloads.get(0, 3).len(), 16 + 24);
    assert_eq!(&payloads.get(0, 3)[..9], [1, 2, 3, 4, 5, 6, 1, 2, 3]);
    for float in payloads.get(0, 3)[16..].chunks(4) {
        let float = f32::from_le_bytes(float.try_into().unwrap());
        assert!((-1.0..1.0).contains(&float));
    }
    assert_eq!(payloads, Payloads::new(&inputs, [1, 3], 5));
    assert_ne!(payloads, Payloads::new(&inputs, [1, 3], 6));
    assert!(payloads.get(0, 2).is_empty() && payloads.get(0, 9).is_empty());
}
