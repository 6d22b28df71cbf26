//! Clients that end their direction and read on: they asked, and get all answers.

use crate::lone::{Gate, WAIT, gated, until_lone};
use crate::support::*;
use corelane::transport::{ServerOptions, TcpOptions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A server of the model `m` on a Unix socket and on TCP.
fn both(row_bytes: usize, compute: Duration) -> Fixture {
    let tcp = Some(TcpOptions::new("127.0.0.1:0".parse().unwrap()));
    let models = vec![model("m", row_bytes, &[1, 4], compute)];
    serve_with(models, ServerOptions { tcp, ..ServerOptions::default() })
}

fn over_tcp(fixture: &Fixture) -> Raw<TcpStream> {
    let stream = TcpStream::connect(fixture.server().tcp_address().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut raw = Raw::new(stream);
    raw.hello();
    raw
}

/// Hears the answers to the requests 1 to `n`, each of its own byte, then the goodbye and the end.
fn hears_all(raw: &mut Raw<impl Read + Write>, n: u32, row_bytes: usize) {
    let mut ids: Vec<u32> = (0..n)
        .map(|_| {
            let Heard::Answer { id, rows: 1, payload } = raw.hear() else { panic!("an answer") };
            assert!(payload == vec![id as u8; row_bytes], "another's answer");
            id
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=n).collect::<Vec<_>>());
    assert_eq!(raw.hear(), Heard::Goodbye);
    raw.closed();
}

fn requests(n: u32, row_bytes: usize) -> Vec<u8> {
    (1..=n).flat_map(|id| infer(id, 0, 1, &vec![id as u8; row_bytes])).collect()
}

fn open(fixture: &Fixture) -> u64 {
    fixture.server().counters().connections_open.load(Ordering::Relaxed)
}

#[test]
fn all_that_was_asked_is_answered_over_unix_and_tcp() {
    let fixture = both(64, Duration::from_millis(3));
    for n in [0, 1, 30] {
        // Besides, what will never be whole: nothing, a piece of a head, a piece of a payload.
        for cut in [0, 5, 60] {
            let bytes = [requests(n, 64), infer(99, 0, 1, &[9; 64])[..cut].to_vec()].concat();
            let mut unix = fixture.greeted();
            unix.send(&bytes);
            unix.stream.shutdown(Shutdown::Write).unwrap();
            let mut tcp = over_tcp(&fixture);
            tcp.send(&bytes);
            tcp.stream.shutdown(Shutdown::Write).unwrap();
            hears_all(&mut unix, n, 64);
            hears_all(&mut tcp, n, 64);
        }
    }
    fixture.until("nobody is held", |f| open(f) == 0);
    fixture.still_serves();
}

#[test]
fn statistics_are_answered_too() {
    let fixture = both(64, Duration::ZERO);
    let mut raw = fixture.greeted();
    let id = corelane::units::RequestId(5);
    raw.send(&[requests(1, 64), frame(&corelane::wire::Request::Stats { id }, &[])].concat());
    raw.stream.shutdown(Shutdown::Write).unwrap();
    let heard = [raw.hear(), raw.hear()];
    assert!(heard.iter().any(|h| matches!(h, Heard::Answer { id: 1, .. })), "{heard:?}");
    assert!(heard.iter().any(|h| matches!(h, Heard::Other(_, Some(5), _))), "{heard:?}");
    assert_eq!(raw.hear(), Heard::Goodbye);
    raw.closed();
    fixture.still_serves();
}

#[test]
fn who_reads_slowly_gets_everything_and_who_reads_nothing_is_given_up() {
    const BYTES: usize = 100_000;
    let tcp = Some(TcpOptions::new("127.0.0.1:0".parse().unwrap()));
    let write_stall = Duration::from_millis(500);
    let options = ServerOptions { tcp, write_stall, ..ServerOptions::default() };
    let fixture = serve_with(vec![wide("m", BYTES)], options);
    let mut raw = fixture.greeted();
    raw.send(&requests(60, 8));
    raw.stream.shutdown(Shutdown::Write).unwrap();
    hears_all(&mut raw, 60, BYTES);
    let mut dead = fixture.greeted();
    dead.send(&requests(60, 8));
    dead.stream.shutdown(Shutdown::Write).unwrap();
    fixture.until("it is given up", |f| open(f) == 0);
    let given_up = fixture.server().counters().answers_given_up_total.load(Ordering::Relaxed);
    assert!((1..60).contains(&given_up), "{given_up} of 60");
    // The rest is the kernel's, and whole.
    let mut read = 0;
    while let Ok(Heard::Answer { .. }) = dead.try_hear() {
        read += 1;
    }
    assert_eq!(read + given_up, 60);
    fixture.all_slots_come_back(0);
    assert_eq!(corelane::sys::alloc::hot_calls(), 0);
}

#[test]
fn who_is_gone_wholly_gets_nothing_computed() {
    let gate = Arc::new(Gate::default());
    let fixture = serve(vec![gated("m", &gate)]);
    let mut raw = fixture.greeted();
    let mut row = vec![0; 64];
    row[0] = WAIT;
    raw.send(&infer(1, 0, 1, &row));
    fixture.until("it runs", |f| f.is_running(0));
    raw.send(&[infer(2, 0, 1, &[2; 64]), infer(3, 0, 1, &[3; 64])].concat());
    let queued = |f: &Fixture| f.runtime.shared().models[0].queue.queued();
    fixture.until("two wait", |f| queued(f) == 2);
    raw.stream.shutdown(Shutdown::Write).unwrap();
    // The end was read: nothing more is taken in, and they wait on.
    let turns = |f: &Fixture| f.server().counters().reads_total.load(Ordering::Relaxed);
    let before = turns(&fixture);
    fixture.greeted().still_talks();
    fixture.until("the server turned", |f| turns(f) > before);
    assert_eq!((queued(&fixture), fixture.runtime.shared().models[0].queue.outstanding()), (2, 3));
    drop(raw);
    fixture.until("they are withdrawn", |f| queued(f) == 0);
    gate.open();
    fixture.still_serves();
}

#[test]
fn a_drain_answers_them_like_others() {
    let gate = Arc::new(Gate::default());
    let mut fixture = serve(vec![gated("m", &gate)]);
    let mut raw = fixture.greeted();
    let mut row = vec![0; 64];
    row[0] = WAIT;
    raw.send(&infer(1, 0, 1, &row));
    fixture.until("it runs", |f| f.is_running(0));
    let mut early = fixture.greeted();
    early.send(&infer(2, 0, 1, &[2; 64]));
    early.stream.shutdown(Shutdown::Write).unwrap();
    fixture.until("two are accepted", |f| f.runtime.shared().models[0].queue.outstanding() == 2);
    let server = fixture.server.take().unwrap();
    let opened = std::cell::Cell::new(false);
    let report = fixture.runtime.drain_while(server, PATIENCE, || {
        // Once the doors are closed.
        if !opened.get() && UnixStream::connect(&fixture.path).is_err() {
            // One that ends its direction in the drain.
            raw.stream.shutdown(Shutdown::Write).unwrap();
            gate.open();
            opened.set(true);
        }
        true
    });
    assert_eq!((report.clean, report.left, report.unread), (true, 0, 0));
    for (raw, id, payload) in [(&mut raw, 1, row), (&mut early, 2, vec![2; 64])] {
        assert_eq!(raw.hear(), Heard::Answer { id, rows: 1, payload });
        assert_eq!(raw.hear(), Heard::Goodbye);
        raw.closed();
    }
    assert_eq!(corelane::sys::alloc::hot_calls(), 0);
}

#[test]
fn a_worker_that_reads_the_requests_does_the_same() {
    let gate = Arc::new(Gate::default());
    let fixture = serve(vec![gated("m", &gate)]);
    for round in 0..20u8 {
        let mut raw = fixture.greeted();
        until_lone(&fixture, &mut raw, 0, 64);
        raw.send(&infer(1, 0, 1, &[round; 64]));
        raw.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: vec![round; 64] });
        assert_eq!(raw.hear(), Heard::Goodbye);
        raw.closed();
    }
    // While the worker runs what it read.
    let mut raw = fixture.greeted();
    until_lone(&fixture, &mut raw, 0, 64);
    let mut row = vec![0; 64];
    row[0] = WAIT;
    raw.send(&infer(1, 0, 1, &row));
    fixture.until("it runs", |f| f.is_running(0));
    raw.stream.shutdown(Shutdown::Write).unwrap();
    gate.open();
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: row });
    assert_eq!(raw.hear(), Heard::Goodbye);
    raw.closed();
    fixture.still_serves();
}

/// The other end of the connection gone before it has read: on TCP that is known when something is sent.
#[test]
fn a_tcp_client_that_vanishes_costs_nobody_else_anything() {
    let fixture = both(64, Duration::from_micros(200));
    for _ in 0..30 {
        let mut raw = over_tcp(&fixture);
        raw.send(&requests(40, 64));
        drop(raw);
    }
    fixture.until("all are closed", |f| open(f) == 0);
    fixture.still_serves();
}
