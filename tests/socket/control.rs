//! Requests to reload models: who may ask, who is told, and in which order.

use crate::support::{Fixture, Heard, PATIENCE, Raw, frame, model, serve, serve_with};
use corelane::limits::RELOADS_WAITING_REQUESTS_MAX;
use corelane::transport::{ReloadHandler, ServerOptions, TcpOptions};
use corelane::units::RequestId;
use corelane::wire::{ErrorCode, Request};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

const STATS: u8 = 5;

fn reload(id: u32, name: &str) -> Vec<u8> {
    frame(&Request::Reload { id: RequestId(id), name }, &[])
}

/// Says hello in version 3.
fn greet<S: Read + Write>(mut raw: Raw<S>) -> Raw<S> {
    raw.send(&frame(&Request::Hello { version_min: 1, version_max: 3, client: "" }, &[]));
    assert_eq!(raw.hear(), Heard::HelloOk);
    raw
}

/// A server whose reloads end when the test lets them: each tells of which model it is, and waits for its text.
fn held(options: ServerOptions) -> (Fixture, mpsc::Receiver<String>, mpsc::Sender<String>) {
    let (begun, begins) = mpsc::channel();
    let (end, ends) = mpsc::channel::<String>();
    let ends = Mutex::new(ends);
    let handler = ReloadHandler::new(move |model, text| {
        begun.send(model.unwrap_or("all").to_string()).unwrap();
        text.push_str(&ends.lock().unwrap().recv().unwrap());
    });
    let models = vec![model("a", 8, &[1], Duration::ZERO), model("b", 8, &[1], Duration::ZERO)];
    let fixture = serve_with(models, ServerOptions { reload: Some(handler), ..options });
    (fixture, begins, end)
}

fn told(id: u32, text: &str) -> Heard {
    Heard::Other(STATS, Some(id), text.into())
}

#[test]
fn each_request_is_answered_in_its_turn_and_others_meanwhile() {
    let (fixture, begins, end) = held(ServerOptions::default());
    let mut first = greet(fixture.raw());
    let mut second = greet(fixture.raw());
    first.send(&reload(7, "a"));
    assert_eq!(begins.recv_timeout(PATIENCE).unwrap(), "a");
    second.send(&reload(7, ""));
    second.still_talks();
    first.still_talks();
    // One at a time, also on one connection.
    assert!(begins.try_recv().is_err());
    first.send(&reload(8, "b"));
    first.expect_error(Some(8), ErrorCode::TooManyInFlight, 1, 1);
    first.send(&reload(9, "c"));
    first.expect_error(Some(9), ErrorCode::UnknownModel, 0, 2);
    end.send("[1]".into()).unwrap();
    assert_eq!(first.hear(), told(7, "[1]"));
    assert_eq!(begins.recv_timeout(PATIENCE).unwrap(), "all");
    end.send("[2]".into()).unwrap();
    assert_eq!(second.hear(), told(7, "[2]"));
    // Statistics go their own way.
    first.send(&frame(&Request::Stats { id: RequestId(3) }, &[]));
    assert!(matches!(first.hear(), Heard::Other(STATS, Some(3), text) if text.starts_with(b"{")));
    drop((first, second));
    fixture.still_serves();
}

#[test]
fn who_leaves_is_not_told_and_no_more_wait_than_there_is_room_for() {
    let (fixture, begins, end) = held(ServerOptions::default());
    let mut leaver = greet(fixture.raw());
    leaver.send(&reload(1, "a"));
    assert_eq!(begins.recv_timeout(PATIENCE).unwrap(), "a");
    drop(leaver);
    fixture.until("the connection is closed", |f| {
        f.server().counters().connections_open.load(std::sync::atomic::Ordering::Relaxed) == 0
    });
    // The next connection has its place, and asks under the same id.
    let mut others: Vec<_> =
        (0..=RELOADS_WAITING_REQUESTS_MAX).map(|_| greet(fixture.raw())).collect();
    let max = RELOADS_WAITING_REQUESTS_MAX;
    for (n, other) in others.iter_mut().enumerate() {
        other.send(&[reload(1, "b"), crate::support::ping(2)].concat());
        if n == max {
            other.expect_error(Some(1), ErrorCode::TooManyInFlight, max as u64, max as u64);
        }
        // Before the next one asks.
        assert_eq!(other.hear(), Heard::Pong(2));
    }
    end.send("[]".into()).unwrap();
    for (n, other) in others[..max].iter_mut().enumerate() {
        assert_eq!(begins.recv_timeout(PATIENCE).unwrap(), "b");
        end.send(format!("[{n}]")).unwrap();
        assert_eq!(other.hear(), told(1, &format!("[{n}]")));
    }
    drop(others);
    fixture.still_serves();
}

#[test]
fn only_its_own_user_and_root_may_ask_on_the_unix_socket() {
    let tcp = Some(TcpOptions::new("127.0.0.1:0".parse().unwrap()));
    let (fixture, _begins, _end) = held(ServerOptions { tcp, ..ServerOptions::default() });
    let nobody = u64::from(u32::MAX);
    let stream = TcpStream::connect(fixture.server().tcp_address().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut tcp = greet(Raw::new(stream));
    tcp.send(&reload(1, "a"));
    tcp.expect_error(Some(1), ErrorCode::NotAllowed, nobody, 0);
    tcp.still_talks();
    let mut memory = greet(Raw::new(fixture.server().loopback().connect().unwrap()));
    memory.send(&reload(1, ""));
    memory.expect_error(Some(1), ErrorCode::NotAllowed, nobody, 0);
    // A conversation of an earlier version does not know the message.
    let mut old = fixture.greeted();
    old.send(&reload(1, "a"));
    old.expect_error(None, ErrorCode::Malformed, 11, 0);
    old.still_talks();
    drop((tcp, memory, old));
    fixture.still_serves();
}

#[test]
fn a_server_whose_models_stay_says_so() {
    let fixture = serve(vec![model("a", 8, &[1], Duration::ZERO)]);
    let mut raw = greet(fixture.raw());
    raw.send(&reload(1, "a"));
    let uid = rustix::process::geteuid().as_raw().into();
    raw.expect_error(Some(1), ErrorCode::NotAllowed, uid, 0);
    drop(raw);
    fixture.still_serves();
}

#[test]
fn a_drain_does_not_wait_for_what_is_being_loaded() {
    let (mut fixture, begins, end) = held(ServerOptions::default());
    let mut raw = greet(fixture.raw());
    raw.send(&reload(1, "a"));
    assert_eq!(begins.recv_timeout(PATIENCE).unwrap(), "a");
    let mut client = fixture.client();
    let waits = std::thread::spawn(move || client.reload(Some("b")).unwrap_err());
    fixture.until("both are asked for", |f| {
        // Hello and request of each.
        f.server().counters().frames_total.load(std::sync::atomic::Ordering::Relaxed) == 4
    });
    let server = fixture.server.take().unwrap();
    server.drain();
    raw.expect_error(Some(1), ErrorCode::ShuttingDown, 0, 0);
    assert_eq!(raw.hear(), Heard::Goodbye);
    drop(raw);
    // What is promised, and no more: the process may end first.
    let told = waits.join().unwrap().to_string();
    assert!(told.contains("the server drains, and may end before the reload does"), "{told}");
    server.join();
    // Only now.
    end.send(String::new()).unwrap();
}
