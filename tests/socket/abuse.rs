//! The ways to misuse it: each costs the guilty request, or the guilty connection, and nothing else.

use crate::support::*;
use corelane::transport::ServerOptions;
use corelane::units::{ModelId, RequestId};
use corelane::wire::{ErrorCode, Request};
use std::io::{Read, Write};
use std::time::Duration;

fn echo() -> Vec<corelane::runtime::ModelSetup> {
    vec![model("m", 16, &[1, 4], Duration::ZERO)]
}

#[test]
fn a_bad_request_costs_itself_only() {
    let fixture = serve(echo());
    let mut raw = fixture.greeted();
    let mut bystander = fixture.greeted();
    let open = |name: &'static str| frame(&Request::Open { id: RequestId(1), name }, &[]);
    use ErrorCode::*;
    // What it is, the frame, and the error's id, code and numbers.
    type Case = (&'static str, Vec<u8>, Option<u32>, ErrorCode, u64, u64);
    let cases: Vec<Case> = vec![
        ("no such name", open("nobody"), Some(1), UnknownModel, 0, 1),
        ("no such number", infer(2, 7, 1, &[0; 16]), Some(2), UnknownModel, 7, 1),
        ("no rows", infer(3, 0, 0, &[]), Some(3), WrongRows, 0, 4),
        ("no rows, with a payload", infer(3, 0, 0, &[0; 16]), Some(3), WrongRows, 0, 4),
        ("too many rows", infer(4, 0, 5, &[0; 80]), Some(4), WrongRows, 5, 4),
        ("most rows of all", infer(4, 0, u16::MAX, &[0; 80]), Some(4), WrongRows, 65535, 4),
        ("short payload", infer(5, 0, 1, &[0; 15]), Some(5), WrongPayloadLength, 15, 16),
        ("long payload", infer(5, 0, 1, &[0; 17]), Some(5), WrongPayloadLength, 17, 16),
        ("no payload", infer(5, 0, 1, &[]), Some(5), WrongPayloadLength, 0, 16),
        (
            "huge payload",
            infer(5, 0, 1, &vec![0; 3 << 20]),
            Some(5),
            WrongPayloadLength,
            3 << 20,
            16,
        ),
        ("no such priority", infer_with(6, 0, 1, 0, 3, &[0; 16]), Some(6), BadPriority, 3, 2),
        (
            "a deadline of more than an hour",
            infer_with(7, 0, 1, 3_600_000_001, 0, &[0; 16]),
            Some(7),
            BadDeadline,
            3_600_000_001,
            3_600_000_000,
        ),
        ("no such message", frame_of(&[10], &[]), None, Malformed, 10, 0),
        ("no such message, with a payload", frame_of(&[99, 1], &[0; 5000]), None, Malformed, 99, 0),
        ("a message cut short", frame_of(&[6], &[]), None, Malformed, 6, 0),
        ("a message too long", frame_of(&[6, 1, 1], &[]), None, Malformed, 6, 0),
        ("an impossible text", frame_of(&[2, 1, 250, b'x'], &[]), None, Malformed, 2, 0),
        ("a ping with a payload", frame_of(&[6, 8], &[1; 9]), Some(8), WrongPayloadLength, 9, 0),
        ("a second hello", frame(&HELLO, &[]), None, UnexpectedMessage, 0, 0),
        (
            "a proof that nobody asked for",
            frame(&Request::Auth { proof: [0; 32] }, &[]),
            None,
            UnexpectedMessage,
            1,
            0,
        ),
    ];
    for (what, bytes, id, code, a, b) in &cases {
        // In one piece, and byte by byte where it is short.
        raw.send(bytes);
        assert_eq!(raw.hear(), Heard::Error { id: *id, code: *code, a: *a, b: *b }, "{what}");
        raw.still_talks();
        if bytes.len() < 200 {
            for byte in bytes {
                raw.send(&[*byte]);
            }
            assert_eq!(raw.hear(), Heard::Error { id: *id, code: *code, a: *a, b: *b }, "{what}");
        }
        raw.send(&infer(9, 0, 1, &[6; 16]));
        assert_eq!(raw.hear(), Heard::Answer { id: 9, rows: 1, payload: vec![6; 16] }, "{what}");
        bystander.still_talks();
    }
    // All at once: every one gets its error, in any order.
    let all: Vec<u8> = cases.iter().flat_map(|case| case.1.clone()).collect();
    raw.send(&all);
    let mut heard: Vec<_> = (0..cases.len()).map(|_| format!("{:?}", raw.hear())).collect();
    let mut expected: Vec<_> = cases
        .iter()
        .map(|&(_, _, id, code, a, b)| format!("{:?}", Heard::Error { id, code, a, b }))
        .collect();
    heard.sort();
    expected.sort();
    assert_eq!(heard, expected);
    assert_eq!(fixture.server().counters().errors_of(UnexpectedMessage), 5 + 1);
    fixture.still_serves();
}

#[test]
fn not_a_number_and_any_other_bits_pass_through() {
    let fixture = serve(echo());
    let mut raw = fixture.greeted();
    let mut payload = f32::NAN.to_le_bytes().repeat(2);
    payload.extend(f32::INFINITY.to_le_bytes());
    payload.extend((-0.0f32).to_le_bytes());
    raw.send(&infer(1, 0, 1, &payload));
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload });
    fixture.still_serves();
}

#[test]
fn broken_framing_closes_the_connection_after_an_error() {
    let fixture = serve(echo());
    let too_long = (64 << 20) + 1u32;
    let mut oversized = vec![0xC1, 1, 0, 0];
    oversized.extend(too_long.to_le_bytes());
    let cases: Vec<(&[u8], ErrorCode, u64, u64)> = vec![
        (b"GET / HTTP/1.1\r\nHost: corelane\r\n\r\n", ErrorCode::Malformed, b'G' as u64, 0),
        (&[0; 100], ErrorCode::Malformed, 0, 0),
        (&[0xC1, 0, 0, 0, 0, 0, 0, 0], ErrorCode::Malformed, 0, 0),
        (&[0xC1, 1, 1, 0, 0, 0, 0, 0, 9], ErrorCode::Malformed, 1, 0),
        (&oversized, ErrorCode::FrameTooLong, too_long as u64, 64 << 20),
    ];
    for (bytes, code, a, b) in cases {
        for greeted in [false, true] {
            let mut raw = if greeted { fixture.greeted() } else { fixture.raw() };
            raw.send(bytes);
            raw.expect_error(None, code, a, b);
            raw.closed();
        }
    }
    // Requests before the damage are answered still.
    let mut raw = fixture.greeted();
    raw.send(&[infer(1, 0, 1, &[3; 16]), vec![0xFF; 50]].concat());
    let mut heard = [format!("{:?}", raw.hear()), format!("{:?}", raw.hear())];
    heard.sort();
    assert!(heard[0].starts_with("Answer { id: 1"), "{heard:?}");
    assert!(heard[1].contains("Malformed"), "{heard:?}");
    raw.closed();
    fixture.still_serves();
}

#[test]
fn the_hello_comes_first_and_versions_must_meet() {
    let fixture = serve(echo());
    let mut raw = fixture.raw();
    raw.send(&ping(1));
    raw.expect_error(None, ErrorCode::UnexpectedMessage, 6, 0);
    raw.closed();
    let mut raw = fixture.raw();
    raw.send(&frame(&Request::Hello { version_min: 4, version_max: 9, client: "" }, &[]));
    raw.expect_error(None, ErrorCode::UnsupportedVersion, 1, 3);
    raw.closed();
    let mut raw = fixture.raw();
    raw.send(&frame_of(&[77], &[]));
    raw.expect_error(None, ErrorCode::Malformed, 77, 0);
    raw.closed();
    let mut raw = fixture.raw();
    raw.send(&frame(&Request::Hello { version_min: 0, version_max: 200, client: "new" }, &[]));
    assert_eq!(raw.hear(), Heard::HelloOk);
    fixture.still_serves();
}

#[test]
fn a_duplicate_id_is_refused_and_the_first_goes_on() {
    let fixture = serve(vec![model("m", 16, &[1], Duration::from_millis(100))]);
    let mut raw = fixture.greeted();
    raw.send(&[infer(1, 0, 1, &[1; 16]), infer(1, 0, 1, &[2; 16])].concat());
    raw.expect_error(Some(1), ErrorCode::DuplicateRequestId, 1, 0);
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: vec![1; 16] });
    // Then the id is free again; and another connection's ids are its own.
    raw.send(&infer(1, 0, 1, &[3; 16]));
    let mut other = fixture.greeted();
    other.send(&infer(1, 0, 1, &[4; 16]));
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: vec![3; 16] });
    assert_eq!(other.hear(), Heard::Answer { id: 1, rows: 1, payload: vec![4; 16] });
    fixture.still_serves();
}

#[test]
fn too_many_in_flight_is_refused_with_the_numbers() {
    let options = ServerOptions { in_flight_max: 2, ..ServerOptions::default() };
    let fixture = serve_with(vec![model("m", 16, &[1], Duration::from_millis(50))], options);
    let mut raw = fixture.greeted();
    let three: Vec<u8> = (1..=3).flat_map(|id| infer(id, 0, 1, &[id as u8; 16])).collect();
    raw.send(&three);
    raw.expect_error(Some(3), ErrorCode::TooManyInFlight, 2, 2);
    for id in [1, 2] {
        assert_eq!(raw.hear(), Heard::Answer { id, rows: 1, payload: vec![id as u8; 16] });
    }
    fixture.still_serves();
}

#[test]
fn half_a_frame_and_a_silent_caller_are_given_up() {
    let options =
        ServerOptions { half_frame: Duration::from_millis(60), ..ServerOptions::default() };
    let fixture = serve_with(echo(), options);
    let mut idle = fixture.greeted();
    for cut in [1, 7, 9, 12, 20] {
        let mut raw = fixture.greeted();
        raw.send(&infer(1, 0, 1, &[1; 16])[..cut]);
        raw.expect_error(None, ErrorCode::TimedOut, 60, 0);
        raw.closed();
    }
    // Nothing said, and half a hello.
    for cut in [0, 5] {
        let mut raw = fixture.raw();
        raw.send(&frame(&HELLO, &[])[..cut]);
        raw.expect_error(None, ErrorCode::TimedOut, 60, 0);
        raw.closed();
    }
    // A frame in slow pieces is not half sent as long as it is whole in time, and a connection
    // between frames may be silent for ever.
    let mut slow = fixture.greeted();
    for byte in ping(3) {
        slow.send(&[byte]);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(slow.hear(), Heard::Pong(3));
    idle.still_talks();
    fixture.still_serves();
}

#[test]
fn disconnects_in_mid_request_give_the_slots_back() {
    let fixture = serve(vec![model("m", 16, &[1, 4], Duration::from_millis(1))]);
    for round in 0..150u32 {
        let mut raw = fixture.greeted();
        let whole: Vec<u8> = (0..8).flat_map(|id| infer(id, 0, 1, &[1; 16])).collect();
        let cut = (round as usize * 37) % whole.len();
        raw.send(&whole[..cut]);
        if round % 3 == 0 {
            let _ = raw.stream.shutdown(std::net::Shutdown::Write);
        }
    }
    fixture.all_slots_come_back(0);
    let open = |f: &Fixture| {
        f.server().counters().connections_open.load(std::sync::atomic::Ordering::Relaxed)
    };
    fixture.until("all connections are gone", |f| open(f) == 0);
    fixture.still_serves();
}

#[test]
fn a_reader_that_takes_nothing_is_given_up_and_others_are_served() {
    let options =
        ServerOptions { write_stall: Duration::from_millis(300), ..ServerOptions::default() };
    let fixture = serve_with(vec![model("m", 200_000, &[1], Duration::ZERO)], options);
    let mut dead = fixture.greeted();
    let request = infer(0, 0, 1, &vec![1; 200_000]);
    // More answers than the kernel holds; nobody reads them.
    for id in 0..40u8 {
        let mut bytes = request.clone();
        bytes[9] = id;
        if dead.stream.write_all(&bytes).is_err() {
            break;
        }
    }
    let mut other = fixture.client();
    let m = other.open("m").unwrap();
    for n in 0..20u8 {
        let row = vec![n; 200_000];
        assert_eq!(other.infer(&m, corelane::units::Rows(1), &row).unwrap().payload, row);
    }
    let open = |f: &Fixture| {
        f.server().counters().connections_open.load(std::sync::atomic::Ordering::Relaxed)
    };
    fixture.until("the dead reader is given up", |f| open(f) == 1);
    fixture.still_serves();
}

#[test]
fn a_slow_reader_gets_everything() {
    let fixture = serve(vec![model("m", 50_000, &[1], Duration::ZERO)]);
    let mut raw = fixture.greeted();
    for id in 1..=30u8 {
        raw.send(&infer(id as u32, 0, 1, &vec![id; 50_000]));
    }
    std::thread::sleep(Duration::from_millis(100));
    let mut ids: Vec<u32> = (1..=30)
        .map(|n| {
            std::thread::sleep(Duration::from_millis(n % 3));
            let Heard::Answer { id, rows: 1, payload } = raw.hear() else { panic!("an answer") };
            assert_eq!(payload, vec![id as u8; 50_000]);
            id
        })
        .collect();
    ids.sort();
    assert_eq!(ids, (1..=30).collect::<Vec<_>>());
    fixture.still_serves();
}

#[test]
fn a_flood_that_nobody_reads_is_bounded_and_others_are_served() {
    let options =
        ServerOptions { write_stall: Duration::from_millis(300), ..ServerOptions::default() };
    let fixture = serve_with(echo(), options);
    let mut flood = fixture.greeted();
    flood.stream.set_nonblocking(true).unwrap();
    let pings: Vec<u8> = (0..2000).flat_map(ping).collect();
    let mut sent = 0usize;
    let mut refused = 0;
    let mut other = fixture.greeted();
    while refused < 200 {
        match flood.stream.write(&pings[sent % pings.len()..]) {
            Ok(n) => sent += n,
            Err(_) => refused += 1,
        }
        other.still_talks();
        assert!(sent < 64 << 20, "the server reads on though nobody reads its answers");
    }
    let open = |f: &Fixture| {
        f.server().counters().connections_open.load(std::sync::atomic::Ordering::Relaxed)
    };
    fixture.until("the flood is given up", |f| open(f) == 1);
    fixture.still_serves();
}

#[test]
fn a_flood_that_is_read_gets_every_answer() {
    let fixture = serve(echo());
    let mut raw = fixture.greeted();
    let mut writer = raw.stream.try_clone().unwrap();
    let count = 50_000u32;
    let thread = std::thread::spawn(move || {
        let bytes: Vec<u8> = (0..count).flat_map(ping).collect();
        writer.write_all(&bytes).unwrap();
    });
    for id in 0..count {
        assert_eq!(raw.hear(), Heard::Pong(id));
    }
    thread.join().unwrap();
    fixture.still_serves();
}

#[test]
fn many_questions_for_statistics_are_answered_or_refused() {
    let fixture = serve(echo());
    let mut raw = fixture.greeted();
    let bytes: Vec<u8> =
        (0..20).flat_map(|id| frame(&Request::Stats { id: RequestId(id) }, &[])).collect();
    raw.send(&bytes);
    let mut answered = 0;
    for _ in 0..20 {
        match raw.hear() {
            Heard::Other(5, Some(_), payload) => {
                serde_json::from_slice::<serde_json::Value>(&payload).unwrap();
                answered += 1;
            }
            Heard::Error { code: ErrorCode::TooManyInFlight, a: 1, b: 1, id: Some(_) } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(answered >= 1);
    fixture.still_serves();
}

#[test]
fn an_infer_to_the_highest_numbers_is_harmless() {
    let fixture = serve(echo());
    let mut raw = fixture.greeted();
    let request = Request::Infer {
        id: RequestId(u32::MAX),
        model: ModelId(u16::MAX),
        rows: corelane::units::Rows(u16::MAX),
        deadline: corelane::units::Micros(u32::MAX),
        priority: corelane::units::Priority(u8::MAX),
    };
    raw.send(&frame(&request, &[0; 10]));
    raw.expect_error(Some(u32::MAX), ErrorCode::UnknownModel, 65535, 1);
    raw.send(&frame(&Request::Cancel { id: RequestId(u32::MAX) }, &[]));
    raw.still_talks();
    let mut nothing = [0; 1];
    raw.stream.set_nonblocking(true).unwrap();
    assert!(raw.stream.read(&mut nothing).is_err(), "a cancel has no answer");
    fixture.still_serves();
}

#[test]
fn what_is_refused_before_the_queue_is_counted_by_its_reason() {
    let mut small = model("m", 8, &[1, 4], Duration::from_millis(20));
    small.max_queue_size = 8;
    let options = ServerOptions { in_flight_max: 2, ..ServerOptions::default() };
    let fixture = serve_with(vec![small], options);
    let counts = || {
        let stats = fixture.runtime.stats();
        stats.models[0].inference_request_failure.clone()
    };
    let before = counts();
    let mut raw = fixture.greeted();
    let row = [1u8; 8];
    // Each once more than the one before it, so that no two are mixed up.
    let refusals = [
        ("wrong_payload_length", infer(1, 0, 1, &row[..7])),
        ("wrong_rows", infer(1, 0, 0, &[])),
        ("bad_priority", infer_with(1, 0, 1, 0, 3, &row)),
        ("timeout_too_long", infer_with(1, 0, 1, u32::MAX, 0, &row)),
    ];
    for (times, (_, bytes)) in refusals.iter().enumerate() {
        for _ in 0..=times {
            raw.send(bytes);
            assert!(matches!(raw.hear(), Heard::Error { id: Some(1), .. }));
        }
    }
    for _ in 0..3 {
        raw.send(&infer(1, 9, 1, &row));
        raw.expect_error(Some(1), ErrorCode::UnknownModel, 9, 1);
    }
    // In one piece, so that no answer comes in between: two in flight, the same id again, and one too
    // many. A worker may answer the first before the errors are sent.
    raw.send(&[1, 2, 2, 3].map(|id| infer(id, 0, 1, &row)).concat());
    let mut heard: Vec<String> = (0..4).map(|_| format!("{:?}", raw.hear())).collect();
    heard.sort();
    let answer = |id| format!("{:?}", Heard::Answer { id, rows: 1, payload: row.to_vec() });
    let error = |id, code, a, b| format!("{:?}", Heard::Error { id: Some(id), code, a, b });
    let duplicate = error(2, ErrorCode::DuplicateRequestId, 2, 0);
    let many = error(3, ErrorCode::TooManyInFlight, 2, 2);
    assert_eq!(heard, [answer(1), answer(2), duplicate, many]);
    fixture.server().set_ready(false);
    raw.send(&infer(4, 0, 1, &row));
    raw.expect_error(Some(4), ErrorCode::NotReady, 0, 0);
    fixture.server().set_ready(true);
    let after = counts();
    let grown: Vec<(&str, u64)> = after
        .iter()
        .map(|(reason, n)| (*reason, n - before[reason]))
        .filter(|(_, n)| *n > 0)
        .collect();
    let mut wanted = vec![
        ("wrong_payload_length", 1),
        ("wrong_rows", 2),
        ("bad_priority", 3),
        ("timeout_too_long", 4),
        ("duplicate_request_id", 1),
        ("too_many_in_flight", 1),
        ("not_ready", 1),
    ];
    wanted.sort();
    let mut grown = grown;
    grown.sort();
    assert_eq!(grown, wanted);
    let unknown = &fixture.server().counters().unknown_model_total;
    assert_eq!(unknown.load(std::sync::atomic::Ordering::Relaxed), 3);
    drop(raw);
    fixture.still_serves();
}
