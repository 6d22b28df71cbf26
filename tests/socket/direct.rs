//! Answers that a worker sends by itself, to requests that the I/O thread read.

use crate::support::*;
use corelane::runtime::ModelSetup;
use corelane::transport::ServerOptions;
use corelane::units::Rows;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Where the I/O thread reads all requests.
fn serve(models: Vec<ModelSetup>) -> Fixture {
    serve_with(models, ServerOptions { workers_tend: false, ..ServerOptions::default() })
}

#[test]
fn a_lone_request_costs_few_system_calls() {
    const REQUESTS: u64 = 2_000;
    let fixture = serve(vec![model("m", 64, &[1], Duration::ZERO)]);
    let mut client = fixture.client();
    let m = client.open("m").unwrap();
    let counters = fixture.server().shared_counters();
    let calls = || {
        let io = [&counters.reads_total, &counters.writes_total, &counters.sleeps_total];
        io.map(|counter| counter.load(Ordering::Relaxed))
    };
    let parks = || fixture.runtime.stats().workers[0].parks;
    let (before, parks_before) = (calls(), parks());
    for n in 0..REQUESTS {
        let payload = [(n % 200) as u8; 64];
        let answer = client.infer(&m, Rows(1), &payload).unwrap();
        assert_eq!(answer.payload, payload);
        client.give_back(answer.payload);
    }
    let (after, parks) = (calls(), parks() - parks_before);
    let [reads, writes, sleeps] = [0, 1, 2].map(|i| after[i] - before[i]);
    let direct = counters.direct_answers_total.load(Ordering::Relaxed);
    println!(
        "{REQUESTS} requests: {reads} reads, {writes} writes, {sleeps} sleeps of the I/O thread, \
         {parks} of the worker; {direct} answers sent by the worker"
    );
    // Whatever the scheduler does: one read and one write each, and the last may not be told yet.
    assert!(reads <= REQUESTS + 2, "{reads} reads");
    assert!((REQUESTS - 1..=REQUESTS + 1).contains(&writes), "{writes} writes");
    // One sleep until the request comes, and one more where the worker's answer was not its own to
    // send; a few for the sweep.
    assert!(sleeps <= 2 * REQUESTS - direct + REQUESTS / 20, "{sleeps} sleeps");
    assert!(parks <= REQUESTS + 2, "{parks} parks");
    assert!(direct > 0, "no answer came from the worker");
    fixture.still_serves();
}

#[test]
fn an_answer_that_is_not_put_away_yet_takes_no_slot_that_others_need() {
    let fixture = serve(vec![model("m", 64, &[1], Duration::ZERO)]);
    let queue = fixture.runtime.shared().models[0].queue.clone();
    // One worker and no batches: beside those that wait one runs, and one is filled or read.
    let needed = queue.spec().max_queue_size as usize + 2;
    let mut client = fixture.client();
    let m = client.open("m").unwrap();
    let mut kept = 0;
    for n in 0..200u8 {
        client.infer(&m, Rows(1), &[n; 64]).unwrap();
        // The I/O thread sleeps on, and may keep the slot of the answer that the worker sent.
        let leases: Vec<_> = std::iter::from_fn(|| queue.lease(Rows(1)).ok()).collect();
        assert!(leases.len() >= needed, "{} of {needed} slots", leases.len());
        kept += usize::from(leases.len() < queue.slots());
    }
    println!("{kept} of 200 answers kept their slot");
    assert!(kept > 0, "no answer came from the worker");
    fixture.still_serves();
}

#[test]
fn an_id_may_be_used_again_once_its_answer_is_there() {
    let fixture = serve(vec![model("m", 64, &[1], Duration::ZERO)]);
    let mut raw = fixture.greeted();
    for n in 0..3_000u32 {
        let payload = vec![(n % 200) as u8; 64];
        raw.send(&infer(7, 0, 1, &payload));
        // The answer may be here before the I/O thread has heard of it.
        assert_eq!(raw.hear(), Heard::Answer { id: 7, rows: 1, payload });
    }
    fixture.still_serves();
}

#[test]
fn what_a_socket_does_not_take_of_a_direct_answer_follows_in_order() {
    const ROW: usize = 60_000;
    let fixture = serve(vec![model("m", ROW, &[1], Duration::ZERO)]);
    let mut raw = fixture.greeted();
    let counters = fixture.server().shared_counters();
    // One at a time, so that each may be answered by the worker, and none is read: at some point the
    // socket is full in the middle of a frame, and soon after that the server takes no more requests.
    let mut requests = 0;
    let taken = |requests: u32| {
        counters.frames_total.load(Ordering::Relaxed) > requests as u64
            && fixture.runtime.shared().models[0].queue.outstanding() == 0
    };
    let patience = Duration::from_millis(500);
    while requests < 60 {
        raw.send(&infer(requests, 0, 1, &vec![requests as u8; ROW]));
        requests += 1;
        let start = Instant::now();
        while !taken(requests) && start.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !taken(requests) {
            break;
        }
    }
    raw.send(&ping(1_000));
    let (mut answers, mut pongs) = (Vec::new(), 0);
    while answers.len() < requests as usize || pongs == 0 {
        match raw.hear() {
            Heard::Answer { id, rows: 1, payload } => {
                assert_eq!(payload, vec![id as u8; ROW]);
                answers.push(id);
            }
            Heard::Pong(1_000) => pongs += 1,
            other => panic!("{other:?}"),
        }
    }
    answers.sort();
    assert_eq!(answers, (0..requests).collect::<Vec<_>>());
    let direct = counters.direct_answers_total.load(Ordering::Relaxed);
    assert!(direct > 0, "no answer came from the worker");
    fixture.still_serves();
}

#[test]
fn clients_that_leave_while_a_worker_answers_cost_only_their_connection() {
    let fixture = serve(vec![model("m", 60_000, &[1], Duration::ZERO)]);
    for n in 0..300u32 {
        let mut raw = fixture.greeted();
        raw.send(&infer(n, 0, 1, &vec![1; 60_000]));
        if n % 3 == 0 {
            assert!(matches!(raw.hear(), Heard::Answer { .. }));
        }
        // Closed at once, or with the answer on its way.
        drop(raw);
    }
    fixture.still_serves();
}
