//! Many who hold what others need: slots by half sent payloads, places by connections that say nothing.

use crate::support::*;
use corelane::transport::{ServerOptions, TcpOptions};
use corelane::wire::ErrorCode;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Nothing is given up by the clock alone within a test.
fn patient(connections_max: usize) -> ServerOptions {
    let half_frame = Duration::from_secs(600);
    ServerOptions { connections_max, half_frame, ..ServerOptions::default() }
}

fn tcp(fixture: &Fixture) -> Raw<TcpStream> {
    let stream = TcpStream::connect(fixture.server().tcp_address().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Raw::new(stream)
}

#[test]
fn half_of_a_short_payload_holds_no_slot() {
    let fixture = serve_with(vec![model("m", 16, &[1, 4], Duration::ZERO)], patient(100));
    let bytes = infer(7, 0, 1, &[9; 16]);
    let mut half: Vec<_> = (0..60)
        .map(|n| {
            let mut raw = fixture.greeted();
            raw.send(&bytes[..bytes.len() - 1 - n % 16]);
            raw
        })
        .collect();
    let received = &fixture.server().counters().received_bytes_total;
    let sent: usize = (0..60).map(|n| bytes.len() - 1 - n % 16 + frame(&HELLO, &[]).len()).sum();
    fixture.until("all is read", |_| received.load(Ordering::Relaxed) == sent as u64);
    fixture.all_slots_come_back(0);
    // Whole, each is answered.
    for (n, raw) in half.iter_mut().enumerate() {
        raw.send(&bytes[bytes.len() - 1 - n % 16..]);
        assert_eq!(raw.hear(), Heard::Answer { id: 7, rows: 1, payload: vec![9; 16] });
    }
    drop(half);
    fixture.still_serves();
}

#[test]
fn half_of_a_long_payload_holds_its_slot_until_others_need_it() {
    let row = 40_000;
    let mut big = model("big", row, &[1], Duration::ZERO);
    big.max_queue_size = 2;
    let fixture = serve_with(vec![big], patient(100));
    let slots = fixture.runtime.shared().models[0].queue.slots();
    let bytes = infer(7, 0, 1, &vec![9; row]);
    // Each holds a slot, and there are no more.
    let mut half: Vec<_> = (0..slots)
        .map(|n| {
            let mut raw = fixture.greeted();
            raw.send(&bytes[..500 + 300 * n]);
            raw
        })
        .collect();
    let queue = &fixture.runtime.shared().models[0].queue;
    fixture.until("all slots are held", |_| !queue.has_free_slot());
    // Refused while the others may still be about to send; served when they had their time.
    let mut other = fixture.greeted();
    fixture.until("the other is served", |_| {
        other.send(&infer(1, 0, 1, &vec![3; row]));
        match other.hear() {
            Heard::Answer { id: 1, payload, .. } => payload == vec![3; row],
            Heard::Error { id: Some(1), code: ErrorCode::QueueFull, b: 2, .. } => false,
            heard => panic!("{heard:?}"),
        }
    });
    let counters = fixture.server().counters();
    assert_eq!(counters.slots_reclaimed_total.load(Ordering::Relaxed), 1);
    // The one that was furthest behind was told, and its connection goes on.
    let guilty = &mut half[0];
    let Heard::Error { id: Some(7), code: ErrorCode::QueueFull, b: 2, .. } = guilty.hear() else {
        panic!("a refusal is due");
    };
    guilty.send(&bytes[500..]);
    guilty.still_talks();
    // Those who kept theirs are served.
    for (n, raw) in half.iter_mut().enumerate().skip(1) {
        raw.send(&bytes[500 + 300 * n..]);
        assert_eq!(raw.hear(), Heard::Answer { id: 7, rows: 1, payload: vec![9; row] });
    }
    drop((half, other));
    fixture.still_serves();
}

#[test]
fn who_says_no_hello_keeps_nobody_out() {
    let fixture = serve_with(vec![model("m", 8, &[1], Duration::ZERO)], patient(5));
    let mut friend = fixture.greeted();
    let mut silent: Vec<_> = (0..4).map(|_| fixture.raw()).collect();
    let open = |f: &Fixture| f.server().counters().connections_open.load(Ordering::Relaxed);
    fixture.until("all places are taken", |f| open(f) == 5);
    let mut came = Vec::new();
    fixture.until("four more are let in", |f| {
        let mut raw = f.raw();
        // It may be turned away before.
        let _ = raw.stream.write_all(&frame(&HELLO, &[]));
        match raw.hear() {
            Heard::HelloOk => came.push(raw),
            Heard::Error { code: ErrorCode::TooManyConnections, a: 5, b: 5, .. } => {}
            heard => panic!("{heard:?}"),
        }
        came.len() == 4
    });
    for raw in came.iter_mut().chain([&mut friend]) {
        raw.still_talks();
    }
    for raw in &mut silent {
        let Heard::Error { id: None, code: ErrorCode::TimedOut, .. } = raw.hear() else {
            panic!("told why");
        };
        raw.closed();
    }
    let evicted = &fixture.server().counters().strangers_evicted_total;
    assert_eq!(evicted.load(Ordering::Relaxed), 4);
    // Nobody is a stranger any more: nobody has to go.
    let mut late = fixture.raw();
    late.expect_error(None, ErrorCode::TooManyConnections, 5, 5);
    drop((friend, came));
    fixture.until("there is room", |f| open(f) == 0);
    fixture.still_serves();
}

#[test]
fn tcp_leaves_places_to_others() {
    let address = "127.0.0.1:0".parse().unwrap();
    let options = ServerOptions { tcp: Some(TcpOptions::new(address)), ..patient(8) };
    let fixture = serve_with(vec![model("m", 8, &[1], Duration::ZERO)], options);
    let mut held: Vec<_> = (0..6)
        .map(|_| {
            let mut raw = tcp(&fixture);
            raw.hello();
            raw
        })
        .collect();
    let mut seventh = tcp(&fixture);
    seventh.expect_error(None, ErrorCode::TooManyConnections, 6, 6);
    seventh.closed();
    let (mut a, mut b) = (fixture.greeted(), fixture.greeted());
    let mut ninth = fixture.raw();
    ninth.expect_error(None, ErrorCode::TooManyConnections, 8, 8);
    a.still_talks();
    b.still_talks();
    for raw in &mut held {
        raw.still_talks();
    }
    drop((held, a, b));
    let open = |f: &Fixture| f.server().counters().connections_open.load(Ordering::Relaxed);
    fixture.until("there is room", |f| open(f) == 0);
    fixture.still_serves();
}

#[test]
fn idle_connections_cost_no_looks() {
    let fixture = serve(vec![model("m", 8, &[1], Duration::ZERO)]);
    const IDLE: u64 = 200;
    const REQUESTS: u32 = 2_000;
    let mut idle: Vec<_> = (0..IDLE).map(|_| fixture.greeted()).collect();
    let mut busy = fixture.greeted();
    for id in 0..REQUESTS {
        busy.send(&infer(id, 0, 1, &[1; 8]));
        assert_eq!(busy.hear(), Heard::Answer { id, rows: 1, payload: vec![1; 8] });
    }
    let looks = fixture.server().counters().timer_looks_total.load(Ordering::Relaxed);
    // One for each connection's hello, once that would be late; one for the busy one every five seconds.
    assert!(looks <= 2 * IDLE, "{looks} looks for {REQUESTS} requests");
    for raw in &mut idle {
        raw.still_talks();
    }
    drop((idle, busy));
    fixture.still_serves();
}
