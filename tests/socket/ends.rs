//! How requests end: full queues, deadlines, cancels, drains.

use crate::lone::{Gate, WAIT, gated};
use crate::support::*;
use corelane::client::{Address, Client, ClientError, Infer, Model, Options};
use corelane::transport::{ServerOptions, UnixOptions};
use corelane::units::{CloseReason, Micros, Priority, RequestId, Rows};
use corelane::wire::{self, ErrorCode, HEAD_BYTES_MAX, Reply, Request, ServerLimits};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

fn with(model: &Model, deadline: u32) -> Infer {
    Infer { model: model.id, rows: Rows(1), deadline: Micros(deadline), priority: Priority(0) }
}

#[test]
fn a_full_queue_is_an_error_with_its_numbers() {
    let mut slow = model("m", 8, &[1], Duration::from_millis(60));
    slow.max_queue_size = 3;
    let fixture = serve(vec![slow]);
    let mut client = fixture.client();
    let m = client.open("m").unwrap();
    let tickets: Vec<_> = (0..20u8).map(|n| client.submit(&m, Rows(1), &[n; 8]).unwrap()).collect();
    let (mut answered, mut refused) = (0, 0);
    for (n, ticket) in tickets.into_iter().enumerate() {
        match client.wait(ticket) {
            Ok(answer) => {
                assert_eq!(answer.payload, [n as u8; 8]);
                answered += 1;
            }
            Err(ClientError::Server(error)) => {
                assert_eq!((error.code(), error.b), (Some(ErrorCode::QueueFull), 3));
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(answered >= 3 && refused >= 1 && answered + refused == 20);
    fixture.still_serves();
}

#[test]
fn a_deadline_that_passes_in_the_queue_is_answered_before_the_running_batch() {
    // The worker is busy with the first request when the others' deadlines pass. Admission knows the
    // service time and would refuse a deadline that can't be met, so the one behind is in a model of
    // its own, which is fast by its own measure.
    let fixture = serve(vec![
        model("slow", 8, &[1], Duration::from_millis(400)),
        model("fast", 8, &[1], Duration::ZERO),
    ]);
    let mut raw = fixture.greeted();
    raw.send(&infer(1, 0, 1, &[1; 8]));
    fixture.until("the worker has the slow request", |f| f.is_running(0));
    raw.send(&infer_with(2, 1, 1, 50_000, 0, &[2; 8]));
    raw.send(&infer_with(3, 1, 1, 20_000, 0, &[3; 8]));
    raw.send(&infer_with(4, 1, 1, 0, 0, &[4; 8]));
    for (expected, allowed) in [(3, 20_000), (2, 50_000)] {
        let Heard::Error { id, code, a, b } = raw.hear() else { panic!("an error is due") };
        assert_eq!((id, code, b), (Some(expected), ErrorCode::DeadlineExpired, allowed));
        assert!(a >= allowed, "waited {a} of {allowed} us");
    }
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: vec![1; 8] });
    assert_eq!(raw.hear(), Heard::Answer { id: 4, rows: 1, payload: vec![4; 8] });
    fixture.still_serves();
}

#[test]
fn a_deadline_that_can_not_be_met_is_refused_at_once() {
    let fixture = serve(vec![model("m", 8, &[1], Duration::from_millis(20))]);
    let mut client = fixture.client();
    let m = client.open("m").unwrap();
    for n in 0..3 {
        client.infer(&m, Rows(1), &[n; 8]).unwrap();
    }
    let ticket = client.submit_with(with(&m, 100), &[1; 8]).unwrap();
    let ClientError::Server(error) = client.wait(ticket).unwrap_err() else { panic!("refused") };
    assert_eq!((error.code(), error.b), (Some(ErrorCode::DeadlineUnmeetable), 100));
    assert!(error.a > 100);
    fixture.still_serves();
}

#[test]
fn a_cancel_ends_what_waits_and_not_what_runs() {
    let fixture = serve(vec![model("m", 8, &[1], Duration::from_millis(200))]);
    let mut raw = fixture.greeted();
    raw.send(&infer(1, 0, 1, &[1; 8]));
    fixture.until("the worker has the first", |f| f.is_running(0));
    raw.send(&infer(2, 0, 1, &[2; 8]));
    let cancel = |id| frame(&Request::Cancel { id: RequestId(id) }, &[]);
    raw.send(&[cancel(2), cancel(1), cancel(99)].concat());
    raw.expect_error(Some(2), ErrorCode::Cancelled, 0, 0);
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: vec![1; 8] });
    raw.still_talks();
    fixture.still_serves();
}

#[test]
fn a_goodbye_waits_for_what_is_in_flight() {
    let fixture = serve(vec![model("m", 8, &[1], Duration::from_millis(20))]);
    let mut raw = fixture.greeted();
    raw.send(&[infer(1, 0, 1, &[1; 8]), infer(2, 0, 1, &[2; 8])].concat());
    raw.send(&frame(&Request::Goodbye, &[]));
    raw.send(&infer(3, 0, 1, &[3; 8]));
    raw.expect_error(Some(3), ErrorCode::UnexpectedMessage, 3, 0);
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: vec![1; 8] });
    assert_eq!(raw.hear(), Heard::Answer { id: 2, rows: 1, payload: vec![2; 8] });
    assert_eq!(raw.hear(), Heard::Goodbye);
    raw.closed();
    // A client that shuts its side after the goodbye still gets its answers.
    let mut raw = fixture.greeted();
    raw.send(&[infer(1, 0, 1, &[1; 8]), frame(&Request::Goodbye, &[])].concat());
    raw.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: vec![1; 8] });
    assert_eq!(raw.hear(), Heard::Goodbye);
    raw.closed();
    fixture.still_serves();
}

#[test]
fn a_drain_loses_no_accepted_request() {
    let mut fixture = serve(vec![model("m", 8, &[1, 4], Duration::from_millis(5))]);
    let mut clients: Vec<_> = (0..4).map(|_| fixture.client()).collect();
    let mut tickets = Vec::new();
    for client in &mut clients {
        let m = client.open("m").unwrap();
        let mine: Vec<_> =
            (0..10u8).map(|n| client.submit(&m, Rows(1), &[n; 8]).unwrap()).collect();
        tickets.push((m, mine));
    }
    let frames =
        |f: &Fixture| f.server().counters().frames_total.load(std::sync::atomic::Ordering::Relaxed);
    // Four hellos, four opens, forty requests.
    fixture.until("all requests have arrived", |f| frames(f) == 48);
    let mut idle = fixture.greeted();
    let mut half = fixture.greeted();
    half.send(&infer(1, 0, 1, &[1; 8])[..12]);
    // A goodbye would be no answer to their hello.
    let mut strangers = [fixture.raw(), fixture.raw()];
    strangers[1].send(&frame(&HELLO, &[])[..5]);
    let connections = |f: &Fixture| {
        f.server().counters().connections_total.load(std::sync::atomic::Ordering::Relaxed)
    };
    fixture.until("all are let in", |f| connections(f) == 8);
    fixture.server().drain();
    for (client, (_, tickets)) in clients.iter_mut().zip(&tickets) {
        for (n, &ticket) in tickets.iter().enumerate() {
            assert_eq!(client.wait(ticket).unwrap().payload, [n as u8; 8]);
        }
    }
    assert_eq!(idle.hear(), Heard::Goodbye);
    idle.closed();
    assert_eq!(half.hear(), Heard::Goodbye);
    half.closed();
    for stranger in &mut strangers {
        stranger.expect_error(None, ErrorCode::ShuttingDown, 0, 0);
        stranger.closed();
    }
    drop(clients);
    let server = fixture.server.take().unwrap();
    server.join();
    assert!(!fixture.path.exists());
    let refused = Client::connect(&fixture.address(), Options::default());
    assert!(matches!(refused, Err(ClientError::Io(_))), "{refused:?}");
    let report = fixture.runtime.drain(PATIENCE);
    assert!(report.clean);
    assert_eq!(corelane::sys::alloc::hot_calls(), 0);
}

#[test]
fn a_drain_waits_for_no_company() {
    let mut patient = model("m", 8, &[1, 4], Duration::ZERO);
    // Longer than anybody waits for a test.
    patient.batch.max_queue_delay = Micros(3_600_000_000);
    let mut fixture = serve(vec![patient]);
    let mut client = fixture.client();
    let m = client.open("m").unwrap();
    let ticket = client.submit(&m, Rows(1), &[7; 8]).unwrap();
    fixture.until("it waits", |f| f.runtime.shared().models[0].queue.outstanding() == 1);
    let server = fixture.server.take().unwrap();
    assert!(fixture.runtime.drain_with(server, PATIENCE).clean);
    let answer = client.wait(ticket).unwrap();
    assert_eq!((answer.payload, answer.receipt.close_reason), (vec![7; 8], CloseReason::Drain));
}

#[test]
fn the_next_server_has_the_path_while_this_one_drains() {
    let gate = std::sync::Arc::new(Gate::default());
    let mut old = serve(vec![gated("m", &gate)]);
    let mut raw = old.greeted();
    let mut row = vec![0; 64];
    row[0] = WAIT;
    raw.send(&infer(1, 0, 1, &row));
    old.until("it runs", |f| f.is_running(0));
    old.server().drain();
    old.until("the path is free", |f| !f.path.exists());
    let unix = Some(UnixOptions::new(&old.path));
    let options = ServerOptions { unix, ..ServerOptions::default() };
    let new = serve_with(vec![model("m", 8, &[1], Duration::ZERO)], options);
    gate.open();
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: row });
    drop(raw);
    old.server.take().unwrap().join();
    assert_eq!(corelane::sys::alloc::hot_calls(), 0);
    // The file there is not the old one's.
    new.still_serves();
}

/// A reader that takes nothing, and 40 answers of which the kernel holds a part.
fn with_a_dead_reader(options: ServerOptions) -> (Fixture, Raw<UnixStream>) {
    let fixture = serve_with(vec![wide("m", 200_000)], options);
    let mut dead = fixture.greeted();
    let all: Vec<u8> = (0..40u8).flat_map(|id| infer(id.into(), 0, 1, &[id; 8])).collect();
    dead.send(&all);
    let answered = |f: &Fixture| f.runtime.stats().models[0].inference_request_success;
    fixture.until("all are answered", |f| answered(f) == 40);
    (fixture, dead)
}

/// Answers that come whole.
fn whole_answers(raw: &mut Raw<UnixStream>) -> u64 {
    std::iter::from_fn(|| raw.try_hear().ok()).filter(|h| matches!(h, Heard::Answer { .. })).count()
        as u64
}

#[test]
fn answers_that_nobody_takes_are_counted_by_a_drain() {
    // Given up by the reader's time, and by the drain's.
    let write_stall = Duration::from_millis(300);
    let hasty = ServerOptions { write_stall, ..ServerOptions::default() };
    for (options, patience) in
        [(hasty, PATIENCE), (ServerOptions::default(), Duration::from_millis(100))]
    {
        let (mut fixture, mut dead) = with_a_dead_reader(options);
        let server = fixture.server.take().unwrap();
        let counters = server.shared_counters();
        let report = fixture.runtime.drain_with(server, patience);
        assert!(!report.clean && report.left == 0 && report.unread > 0, "{report:?}");
        let counted = counters.answers_given_up_total.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(counted, report.unread);
        assert_eq!(whole_answers(&mut dead) + report.unread, 40);
        assert_eq!(corelane::sys::alloc::hot_calls(), 0);
    }
}

#[test]
fn a_drain_that_is_cut_short_while_peers_close_has_lost_nothing() {
    let mut fixture = serve(vec![model("m", 8, &[1], Duration::ZERO)]);
    let mut raw = fixture.greeted();
    raw.send(&infer(1, 0, 1, &[1; 8]));
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: vec![1; 8] });
    let server = fixture.server.take().unwrap();
    // It was told goodbye, and does not close.
    let report = fixture.runtime.drain_while(server, PATIENCE, || raw.hear() != Heard::Goodbye);
    assert_eq!((report.clean, report.left, report.unread), (true, 0, 0));
}

#[test]
fn requests_that_come_during_a_drain_are_told() {
    let fixture = serve(vec![model("m", 8, &[1], Duration::from_millis(300))]);
    let mut raw = fixture.greeted();
    raw.send(&infer(1, 0, 1, &[1; 8]));
    let outstanding = |f: &Fixture| f.runtime.shared().models[0].queue.outstanding();
    fixture.until("the request is accepted", |f| outstanding(f) == 1);
    fixture.server().drain();
    fixture.until("the door is closed", |f| UnixStream::connect(&f.path).is_err());
    raw.send(&infer(2, 0, 1, &[2; 8]));
    raw.expect_error(Some(2), ErrorCode::ShuttingDown, 0, 0);
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: vec![1; 8] });
    assert_eq!(raw.hear(), Heard::Goodbye);
    raw.closed();
    assert_eq!(corelane::sys::alloc::hot_calls(), 0);
}

/// Whatever the server has read of it when the drain begins.
#[test]
fn what_was_sent_before_a_drain_is_answered_or_refused() {
    for _ in 0..20 {
        let fixture = serve(vec![model("m", 8, &[1], Duration::ZERO)]);
        let mut all: Vec<_> = (0..4).map(|_| fixture.greeted()).collect();
        let requests: Vec<u8> = (1..=8).flat_map(|id| infer(id, 0, 1, &[1; 8])).collect();
        all.iter_mut().for_each(|raw| raw.send(&requests));
        fixture.server().drain();
        for raw in &mut all {
            let mut ended: Vec<u32> = (0..8)
                .map(|_| match raw.hear() {
                    Heard::Answer { id, .. } => id,
                    Heard::Error { id: Some(id), code: ErrorCode::ShuttingDown, .. } => id,
                    other => panic!("{other:?}"),
                })
                .collect();
            ended.sort_unstable();
            assert!(ended.into_iter().eq(1..=8));
            assert_eq!(raw.hear(), Heard::Goodbye);
            raw.closed();
        }
    }
}

#[test]
fn a_server_that_is_dropped_closes_everything() {
    let mut fixture = serve(vec![model("m", 8, &[1], Duration::from_millis(50))]);
    let mut raw = fixture.greeted();
    raw.send(&infer(1, 0, 1, &[1; 8]));
    drop(fixture.server.take());
    raw.closed();
    fixture.all_slots_come_back(0);
}

/// A server that is played here: it answers the hello by `bytes`, and is talked to by its end of the connection.
fn played(bytes: &[u8]) -> (Result<Client, ClientError>, UnixStream) {
    let path = socket_path();
    let listener = UnixListener::bind(&path).unwrap();
    let bytes = bytes.to_vec();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 64]).unwrap() > 0);
        stream.write_all(&bytes).unwrap();
        stream
    });
    let client = Client::connect(&Address::Unix(path.clone()), Options::default());
    std::fs::remove_file(&path).unwrap();
    (client, serving.join().unwrap())
}

#[test]
fn a_client_that_was_told_goodbye_says_that_the_server_shuts_down() {
    let frame = |reply: Reply<'_>| {
        let mut head = [0; HEAD_BYTES_MAX];
        let n = wire::encode_head(&reply, 0, &mut head).unwrap();
        head[..n].to_vec()
    };
    let limits = ServerLimits { payload_bytes_max: 1000, in_flight_max: 3, models: 1 };
    let hello = frame(Reply::HelloOk { version: wire::VERSION_MAX, limits });
    let goodbye = frame(Reply::Goodbye);
    let shuts_down = |error: ClientError| {
        assert!(matches!(error, ClientError::ShuttingDown), "{error:?}");
        assert_eq!(error.code(), Some(ErrorCode::ShuttingDown));
        assert_eq!(error.to_string(), "the server is shutting down");
    };
    // In one piece with the answer to the hello.
    let (client, _stream) = played(&[&hello[..], &goodbye].concat());
    shuts_down(client.unwrap_err());
    // It crosses a request; the next one is not sent.
    let (client, mut stream) = played(&hello);
    let mut client = client.unwrap();
    stream.write_all(&goodbye).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    shuts_down(client.open("m").unwrap_err());
    shuts_down(client.ping().unwrap_err());
    assert!(client.goodbye().unwrap().is_empty());
    // The server is gone before the request.
    let (client, mut stream) = played(&hello);
    let mut client = client.unwrap();
    stream.write_all(&goodbye).unwrap();
    drop(stream);
    shuts_down(client.open("m").unwrap_err());
    // Without a goodbye all that is known is that it closed.
    let (client, stream) = played(&hello);
    drop(stream);
    let error = client.unwrap().open("m").unwrap_err();
    assert!(matches!(error, ClientError::Closed), "{error:?}");
}
