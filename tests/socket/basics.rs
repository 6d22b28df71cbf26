//! The ways to use it.

use crate::support::*;
use corelane::client::{Client, ClientError, Infer, Options};
use corelane::transport::{ServerOptions, TcpOptions, UnixOptions};
use corelane::units::{Micros, Priority, Rows};
use corelane::wire::{ErrorCode, HealthKind, Key};
use std::time::Duration;

fn fast() -> Duration {
    Duration::from_micros(20)
}

#[test]
fn a_client_does_everything() {
    let fixture = serve(vec![
        model("small", 64, &[1, 2, 4, 8], fast()),
        model("large", 30_000, &[1, 4], fast()),
    ]);
    let mut client = fixture.client();
    let names: Vec<String> = client.models().unwrap().into_iter().map(|m| m.2).collect();
    assert_eq!(names, ["small", "large"]);
    let small = client.open("small").unwrap();
    assert_eq!(small.inputs[0].name, "x");
    assert_eq!(small.inputs[0].row_shape, [64]);
    assert_eq!((small.rows_max, small.priority_levels, small.batched), (Rows(4), 2, true));
    let large = client.open("large").unwrap();
    for rows in 1..=4u16 {
        for (model, byte) in [(&small, 3u8), (&large, 4)] {
            let payload = vec![byte + rows as u8; model.input_len(rows as usize)];
            let answer = client.infer(model, Rows(rows), &payload).unwrap();
            assert_eq!(answer.rows, Rows(rows));
            assert_eq!(answer.payload, payload);
            assert!(answer.receipt.batch_size >= Rows(rows));
            assert_eq!(answer.payload.len(), model.output_len(rows as usize));
        }
    }
    assert!(client.health(HealthKind::Live).unwrap());
    assert!(client.health(HealthKind::Ready).unwrap());
    client.ping().unwrap();
    let stats: serde_json::Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
    assert_eq!(stats["models"][0]["inference_request_success"], 4);
    // Statistics are made afresh for each question.
    client.infer(&small, Rows(1), &[1; 64]).unwrap();
    let stats: serde_json::Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
    assert_eq!(stats["models"][0]["inference_request_success"], 5);
    fixture.still_serves();
}

#[test]
fn many_in_flight_come_back_to_whom_they_belong() {
    let fixture =
        serve(vec![model("small", 64, &[1, 8], fast()), model("large", 30_000, &[1, 4], fast())]);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let address = fixture.address();
            scope.spawn(move || {
                let mut client = Client::connect(&address, Options::default()).unwrap();
                let models = [client.open("small").unwrap(), client.open("large").unwrap()];
                for round in 0..30u8 {
                    let mut tickets = Vec::new();
                    for n in 0..12u8 {
                        let model = &models[(n % 4 == 0) as usize];
                        let byte = thread * 50 + (round * 5 + n) % 50;
                        let payload = vec![byte; model.input_len(1)];
                        tickets.push((client.submit(model, Rows(1), &payload).unwrap(), payload));
                    }
                    assert!(client.in_flight() <= 12);
                    // Backwards, so that answers must be kept for later.
                    for (ticket, payload) in tickets.into_iter().rev() {
                        let answer = client.wait(ticket).unwrap();
                        assert_eq!(answer.payload, payload);
                        client.give_back(answer.payload);
                    }
                }
                assert_eq!(client.in_flight(), 0);
            });
        }
    });
    fixture.still_serves();
}

#[test]
fn waiting_for_any_and_saying_goodbye_lose_nothing() {
    let fixture = serve(vec![model("m", 8, &[1], Duration::from_millis(2))]);
    let mut client = fixture.client();
    let m = client.open("m").unwrap();
    let tickets: Vec<_> = (0..10u8).map(|n| client.submit(&m, Rows(1), &[n; 8]).unwrap()).collect();
    let mut seen = Vec::new();
    for _ in 0..5 {
        let (ticket, answer) = client.wait_any().unwrap();
        seen.push((ticket, answer.unwrap().payload[0]));
    }
    for (ticket, answer) in client.goodbye().unwrap() {
        seen.push((ticket, answer.unwrap().payload[0]));
    }
    seen.sort();
    let expected: Vec<_> = tickets.into_iter().zip(0..10u8).collect();
    assert_eq!(seen, expected);
    fixture.still_serves();
}

#[test]
fn what_came_early_counts_until_it_is_handed_out() {
    let fixture = serve(vec![model("small", 64, &[1], fast())]);
    let mut client = fixture.client();
    let small = client.open("small").unwrap();
    let first = client.submit(&small, Rows(1), &[1; 64]).unwrap();
    let second = client.submit(&small, Rows(1), &[2; 64]).unwrap();
    client.wait(second).unwrap();
    // Its answer may be here already, beside the second one.
    assert_eq!(client.in_flight(), 1);
    assert_eq!(client.wait_any().unwrap().0, first);
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn timeouts_of_the_client_leave_the_request_in_flight() {
    let fixture = serve(vec![model("m", 8, &[1], Duration::from_millis(100))]);
    let mut client = fixture.client();
    let m = client.open("m").unwrap();
    let ticket = client.submit(&m, Rows(1), &[5; 8]).unwrap();
    let result = client.wait_timeout(ticket, Duration::from_millis(1));
    assert!(matches!(result, Err(ClientError::TimedOut { .. })), "{result:?}");
    assert_eq!(client.wait(ticket).unwrap().payload, [5; 8]);
    assert!(matches!(client.wait(ticket), Err(ClientError::NoSuchTicket(_))));
    fixture.still_serves();
}

#[test]
fn errors_of_requests_reach_the_client_typed() {
    let fixture = serve(vec![model("m", 8, &[1, 4], fast())]);
    let mut client = fixture.client();
    let m = client.open("m").unwrap();
    assert_eq!(client.open("nobody").unwrap_err().code(), Some(ErrorCode::UnknownModel));
    let bad = client.infer(&m, Rows(1), &[BAD_ROW; 8]).unwrap_err();
    assert_eq!(bad.code(), Some(ErrorCode::ModelFailed));
    let ClientError::Server(error) = client.infer(&m, Rows(5), &[1; 40]).unwrap_err() else {
        panic!("a server's error");
    };
    assert_eq!((error.code(), error.a, error.b), (Some(ErrorCode::WrongRows), 5, 4));
    let request = Infer { model: m.id, rows: Rows(1), deadline: Micros(0), priority: Priority(3) };
    let ticket = client.submit_with(request, &[1; 8]).unwrap();
    assert_eq!(client.wait(ticket).unwrap_err().code(), Some(ErrorCode::BadPriority));
    assert_eq!(client.infer(&m, Rows(2), &[9; 16]).unwrap().payload, [9; 16]);
    fixture.still_serves();
}

#[test]
fn tcp_without_a_key_serves_loopback() {
    let tcp = TcpOptions::new("127.0.0.1:0".parse().unwrap());
    let options = ServerOptions { tcp: Some(tcp), ..ServerOptions::default() };
    let fixture = serve_with(vec![model("m", 5000, &[1, 4], fast())], options);
    let address = format!("tcp:{}", fixture.server().tcp_address().unwrap()).parse().unwrap();
    let mut client = Client::connect(&address, Options::default()).unwrap();
    let m = client.open("m").unwrap();
    assert_eq!(client.infer(&m, Rows(4), &[8; 20_000]).unwrap().payload, [8; 20_000]);
    fixture.still_serves();
}

#[test]
fn tcp_with_a_key_asks_for_the_proof() {
    let key = Key::new(b"a key of sufficient length").unwrap();
    let tcp = TcpOptions {
        address: "127.0.0.1:0".parse().unwrap(),
        allow_remote: false,
        key: Some(key.clone()),
    };
    let options = ServerOptions { tcp: Some(tcp), ..ServerOptions::default() };
    let fixture = serve_with(vec![model("m", 8, &[1], fast())], options);
    let address = format!("tcp:{}", fixture.server().tcp_address().unwrap()).parse().unwrap();
    let with = |key| Client::connect(&address, Options { key, ..Options::default() });
    let mut client = with(Some(key)).unwrap();
    let m = client.open("m").unwrap();
    client.infer(&m, Rows(1), &[8; 8]).unwrap();
    let wrong = Key::new(b"another key of the same kind").unwrap();
    assert_eq!(with(Some(wrong)).unwrap_err().code(), Some(ErrorCode::AuthFailed));
    assert!(matches!(with(None), Err(ClientError::KeyWanted)));
    // The Unix socket is protected by its mode, and asks for no key.
    fixture.still_serves();
    // Without the proof nothing is served.
    let stream = std::net::TcpStream::connect(fixture.server().tcp_address().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut raw = Raw::new(stream);
    raw.send(&frame(&HELLO, &[]));
    let Heard::Challenge(first) = raw.hear() else { panic!("a challenge is due") };
    raw.send(&ping(1));
    raw.expect_error(None, ErrorCode::AuthRequired, 0, 0);
    raw.closed();
    let stream = std::net::TcpStream::connect(fixture.server().tcp_address().unwrap()).unwrap();
    let mut raw = Raw::new(stream);
    raw.send(&frame(&HELLO, &[]));
    let Heard::Challenge(second) = raw.hear() else { panic!("a challenge is due") };
    assert_ne!(first, second, "a nonce is used once");
}

#[test]
fn a_server_that_is_not_ready_says_so() {
    let fixture = serve(vec![model("m", 8, &[1], fast())]);
    fixture.server().set_ready(false);
    let mut client = fixture.client();
    let m = client.open("m").unwrap();
    assert!(client.health(HealthKind::Live).unwrap());
    assert!(!client.health(HealthKind::Ready).unwrap());
    assert_eq!(client.infer(&m, Rows(1), &[1; 8]).unwrap_err().code(), Some(ErrorCode::NotReady));
    fixture.server().set_ready(true);
    assert!(client.health(HealthKind::Ready).unwrap());
    client.infer(&m, Rows(1), &[1; 8]).unwrap();
    fixture.still_serves();
}

#[test]
fn spinning_for_completions_changes_nothing_but_time() {
    let options = ServerOptions {
        spin: Duration::from_micros(50),
        unix: Some(UnixOptions::new(socket_path())),
        ..ServerOptions::default()
    };
    let fixture = serve_with(vec![model("m", 8, &[1, 4], fast())], options);
    let mut client = fixture.client();
    let m = client.open("m").unwrap();
    for n in 0..200u8 {
        assert_eq!(client.infer(&m, Rows(1), &[n % 100; 8]).unwrap().payload, [n % 100; 8]);
    }
    fixture.still_serves();
}
