use super::*;
use crate::client::serial::SerialClient;
use crate::units::*;
use crate::wire::link::LinkOptions;
use crate::wire::{self, HEAD_BYTES_MAX, Reply, ServerLimits};
use embedded_time::fraction::Fraction;
use proptest::prelude::*;
use std::cell::Cell;
use std::convert::Infallible;

fn frame(reply: &Reply<'_>, payload: &[u8]) -> Vec<u8> {
    let mut out = [0; HEAD_BYTES_MAX];
    let n = wire::encode_head(reply, payload.len(), &mut out).unwrap();
    [&out[..n], payload].concat()
}

const LIMITS: ServerLimits = ServerLimits { payload_bytes_max: 1000, in_flight_max: 3, models: 1 };

fn hello_ok() -> Vec<u8> {
    frame(&Reply::HelloOk { version: 1, limits: LIMITS }, &[])
}

fn answer(id: RequestId, payload: &[u8]) -> Vec<u8> {
    let receipt = Receipt {
        queue_ns: Nanos(1),
        compute_input_ns: Nanos(2),
        compute_infer_ns: Nanos(3),
        compute_output_ns: Nanos(4),
        batch_size: Rows(1),
        close_reason: CloseReason::Idle,
        worker: WorkerId(0),
    };
    frame(&Reply::Answer { id, rows: Rows(1), receipt }, payload)
}

const INFER: Infer =
    Infer { model: ModelId(0), rows: Rows(1), deadline: Micros(0), priority: Priority(0) };

fn ready<const N: usize>() -> Session<N> {
    let mut session = Session::new();
    let mut out = [0; HEAD_BYTES_MAX];
    session.hello("test", &mut out).unwrap();
    let bytes = hello_ok();
    let (taken, event) = session.feed(&bytes).unwrap();
    assert_eq!(taken, bytes.len());
    assert!(matches!(event, Some(Event::Reply { reply: Reply::HelloOk { .. }, .. })));
    assert_eq!(session.state(), State::Ready);
    session
}

/// A reply's number, id and payload.
type Seen = (u8, Option<RequestId>, Vec<u8>);

/// Feeds `bytes` in pieces of `step`, and returns replies' numbers with ids and payloads.
fn digest<const N: usize>(
    session: &mut Session<N>,
    mut bytes: &[u8],
    step: usize,
) -> Result<Vec<Seen>, SessionError> {
    let mut seen: Vec<Seen> = Vec::new();
    while !bytes.is_empty() {
        let piece = &bytes[..step.min(bytes.len())];
        let (taken, event) = session.feed(piece)?;
        assert!(taken > 0 || event.is_some(), "no progress");
        match event {
            None => {}
            Some(Event::Reply { reply, .. }) => seen.push((reply.number(), reply.id(), vec![])),
            Some(Event::Payload { bytes, .. }) => {
                seen.last_mut().unwrap().2.extend_from_slice(bytes)
            }
        }
        bytes = &bytes[taken..];
    }
    Ok(seen)
}

#[test]
fn nothing_is_sent_before_the_hello_or_after_the_goodbye() {
    let mut out = [0; HEAD_BYTES_MAX];
    let mut session = Session::<4>::new();
    assert_eq!(session.ping(&mut out), Err(SessionError::WrongState));
    assert_eq!(session.auth([0; 32], &mut out), Err(SessionError::WrongState));
    let mut session = ready::<4>();
    assert_eq!(session.hello("again", &mut out), Err(SessionError::WrongState));
    session.goodbye(&mut out).unwrap();
    assert_eq!(session.ping(&mut out), Err(SessionError::WrongState));
    assert_eq!(session.cancel(RequestId(1), &mut out), Err(SessionError::WrongState));
}

#[test]
fn challenges_are_answered() {
    let mut out = [0; HEAD_BYTES_MAX];
    let mut session = Session::<4>::new();
    session.hello("test", &mut out).unwrap();
    session.feed(&frame(&Reply::Challenge { nonce: [9; 32] }, &[])).unwrap();
    assert_eq!(session.state(), State::Challenged { nonce: [9; 32] });
    let n = session.auth([3; 32], &mut out).unwrap();
    let head = wire::parse_head(&out[..n]).unwrap().unwrap();
    assert_eq!(wire::Request::decode(head.header), Ok(wire::Request::Auth { proof: [3; 32] }));
    session.feed(&hello_ok()).unwrap();
    assert_eq!(session.state(), State::Ready);
    assert_eq!(session.limits(), Some(LIMITS));
}

#[test]
fn answers_come_in_any_order_and_in_any_pieces() {
    for step in [1, 2, 3, 7, 64, 1000] {
        let mut session = ready::<8>();
        let mut out = [0; HEAD_BYTES_MAX];
        let (a, _) = session.infer(INFER, 10, &mut out).unwrap();
        let (b, _) = session.infer(INFER, 10, &mut out).unwrap();
        let (c, _) = session.ping(&mut out).unwrap();
        let error = frame(&Reply::Error { id: Some(a), code: 300, text: "full", a: 1, b: 1 }, &[]);
        let bytes = [answer(b, &[1, 2, 3]), frame(&Reply::Pong { id: c }, &[]), error].concat();
        assert_eq!(
            digest(&mut session, &bytes, step).unwrap(),
            [(3, Some(b), vec![1, 2, 3]), (6, Some(c), vec![]), (4, Some(a), vec![])]
        );
        assert_eq!(session.in_flight(), 0);
    }
}

#[test]
fn limits_are_kept() {
    let mut session = ready::<8>();
    let mut out = [0; HEAD_BYTES_MAX];
    assert_eq!(
        session.infer(INFER, 1001, &mut out),
        Err(SessionError::Encode(wire::EncodeError::PayloadTooLong { len: 1001, max: 1000 }))
    );
    for _ in 0..3 {
        session.infer(INFER, 1, &mut out).unwrap();
    }
    // The server's limit, then the session's own.
    assert_eq!(session.infer(INFER, 1, &mut out), Err(SessionError::InFlight { len: 3, max: 3 }));
    for _ in 0..5 {
        session.ping(&mut out).unwrap();
    }
    assert_eq!(session.ping(&mut out), Err(SessionError::InFlight { len: 8, max: 8 }));
}

#[test]
fn surprises_of_the_server_are_typed() {
    let mut out = [0; HEAD_BYTES_MAX];
    // An id that is not in flight; the wrong kind for an id; an answer before the hello.
    let mut session = ready::<8>();
    let unexpected = |number, id| SessionError::Unexpected { number, id: Some(RequestId(id)) };
    assert_eq!(session.feed(&answer(RequestId(77), &[])).unwrap_err(), unexpected(3, 77));
    let mut session = ready::<8>();
    let (id, _) = session.ping(&mut out).unwrap();
    assert_eq!(session.feed(&answer(id, &[])).unwrap_err(), unexpected(3, id.0));
    let mut session = Session::<8>::new();
    assert_eq!(
        session.feed(&hello_ok()).unwrap_err(),
        SessionError::Unexpected { number: 0, id: None }
    );
    // A version that was not offered.
    let mut session = Session::<8>::new();
    session.hello("", &mut out).unwrap();
    let later = frame(&Reply::HelloOk { version: 9, limits: LIMITS }, &[]);
    assert_eq!(session.feed(&later).unwrap_err(), SessionError::Unexpected { number: 0, id: None });
    let mut session = ready::<8>();
    assert!(matches!(session.feed(b"HTTP/1.1"), Err(SessionError::Frame(_))));
}

#[test]
fn addresses_are_read() {
    assert_eq!("unix:/run/x".parse(), Ok(Address::Unix("/run/x".into())));
    assert_eq!("tcp:127.0.0.1:80".parse(), Ok(Address::Tcp("127.0.0.1:80".into())));
    assert_eq!("tcp:[::1]:80".parse(), Ok(Address::Tcp("[::1]:80".into())));
    for bad in ["", "unix:", "tcp:80", "tcp::80", "tcp:host:port", "/run/x"] {
        assert!(bad.parse::<Address>().is_err(), "{bad}");
    }
    for text in ["tcp:a:1", "serial:/dev/ttyS1:921600", "serial:/dev/by-id/a:b:9600:rtscts"] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
    }
    let slow = "serial:/dev/ttyS1:12".parse::<Address>().unwrap_err().to_string();
    assert!(slow.contains("at least 300 baud"), "{slow}");
}

/// A clock of 32 bits that stands where it is put.
struct Hand<'a>(&'a Cell<u32>);

impl embedded_time::Clock for Hand<'_> {
    type T = u32;
    const SCALING_FACTOR: Fraction = Fraction::new(1, 1_000_000);
    fn try_now(&self) -> Result<embedded_time::Instant<Self>, embedded_time::clock::Error> {
        Ok(embedded_time::Instant::new(self.0.get()))
    }
}

#[test]
fn a_clock_may_wrap_around_and_does_not_leap_when_it_steps_back() {
    let hand = Cell::new(u32::MAX - 9);
    let options = LinkOptions::new(115_200);
    let mut client = SerialClient::new(Hand(&hand), options, [0; 64], [0; 64], 1).unwrap();
    let mut now = |at: u32| {
        hand.set(at);
        client.now::<Infallible>().unwrap()
    };
    assert_eq!(now(u32::MAX - 9), 0);
    assert_eq!(now(u32::MAX), 9);
    assert_eq!(now(990), 1_000, "over the wrap");
    assert_eq!(now(900), 1_000, "a step back");
    assert_eq!(now(910), 1_010);
    assert_eq!(now(u32::MAX - 50), 1_010, "a step back over the wrap");
    assert_eq!(now(0), 1_061);
    assert_eq!(now(3_000_000_000), 3_000_001_061, "50 minutes");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_always_progress(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        at in 0usize..60, value: u8, step in 1usize..50,
    ) {
        let mut session = ready::<8>();
        let mut out = [0; HEAD_BYTES_MAX];
        let (id, _) = session.infer(INFER, 4, &mut out).unwrap();
        let mut stream = [answer(id, &[1; 20]), bytes].concat();
        let at = at % stream.len();
        stream[at] = value;
        let _ = digest(&mut session, &stream, step);
    }
}

#[test]
fn encodings_are_asked_for_of_servers_that_know_them() {
    use crate::wire::{Encoding, Encodings, EncodingsError, Place, TensorEncoding};
    let mut out = [0; HEAD_BYTES_MAX];
    let f16 = TensorEncoding { place: Place::Output(0), encoding: Encoding::F16 };
    let mut session = Session::<4>::new();
    assert_eq!(session.open_encoded("m", &[f16], &mut out), Err(SessionError::WrongState));
    // This one speaks version 1.
    let mut session = ready::<4>();
    let low = SessionError::VersionTooLow { version: 1, needed: 2 };
    assert_eq!(session.open_encoded("m", &[f16], &mut out), Err(low));
    assert_eq!((session.in_flight(), session.version()), (0, 1));
    session.open("m", &mut out).unwrap();

    let mut session = Session::<4>::new();
    session.hello("test", &mut out).unwrap();
    session.feed(&frame(&Reply::HelloOk { version: 2, limits: LIMITS }, &[])).unwrap();
    let (id, n) = session.open_encoded("m", &[f16], &mut out).unwrap();
    let head = wire::parse_head(&out[..n]).unwrap().unwrap();
    match wire::Request::decode(head.header).unwrap() {
        wire::Request::OpenEncoded { id: sent, name: "m", encodings } => {
            assert_eq!(sent, id);
            assert!(Encodings::new(encodings).eq([Ok(f16)]));
        }
        other => panic!("{other:?}"),
    }
    let scale = crate::wire::Scale::new(1.0).unwrap();
    let i8 = TensorEncoding { encoding: Encoding::I8 { scale, zero_point: 0 }, ..f16 };
    let max = crate::limits::ENCODINGS_BYTES_MAX;
    let long = SessionError::Encodings(EncodingsError::TooLong { max });
    assert_eq!(session.open_encoded("m", &[i8; 17], &mut out), Err(long));
    // A server that takes up a version that nobody asked for.
    let mut session = Session::<4>::new();
    session.hello("test", &mut out).unwrap();
    let odd = frame(&Reply::HelloOk { version: wire::VERSION_MAX + 1, limits: LIMITS }, &[]);
    assert!(matches!(session.feed(&odd), Err(SessionError::Unexpected { number: 0, .. })));
}

/// What a session writes is what postcard makes of the message.
#[test]
fn requests_are_written_as_postcard_writes_them() {
    use crate::wire::{Encoding, HealthKind, Place, Request, Scale, TensorEncoding};
    let postcard = |message: &Request<'_>, payload_len| {
        let mut out = [0; HEAD_BYTES_MAX];
        let n = wire::encode_head(message, payload_len, &mut out).unwrap();
        out[..n].to_vec()
    };
    let mut out = [0; HEAD_BYTES_MAX];
    let mut session = Session::<256>::new();
    let n = session.hello("who", &mut out).unwrap();
    let (version_min, version_max) = (wire::VERSION_MIN, wire::VERSION_MAX);
    let hello = Request::Hello { version_min, version_max, client: "who" };
    assert_eq!(out[..n], postcard(&hello, 0));
    session.feed(&frame(&Reply::Challenge { nonce: [9; 32] }, &[])).unwrap();
    let n = session.auth([0xAB; 32], &mut out).unwrap();
    assert_eq!(out[..n], postcard(&Request::Auth { proof: [0xAB; 32] }, 0));
    let limits = ServerLimits { payload_bytes_max: 1 << 20, in_flight_max: 300, models: 1 };
    session.feed(&frame(&Reply::HelloOk { version: 2, limits }, &[])).unwrap();
    let scale = Scale::new(0.5).unwrap();
    let encodings = [
        TensorEncoding { place: Place::Input(0), encoding: Encoding::F16 },
        TensorEncoding {
            place: Place::Output(1),
            encoding: Encoding::I8 { scale, zero_point: -128 },
        },
        TensorEncoding { place: Place::Input(7), encoding: Encoding::F32 },
    ];
    let mut list = [0; crate::limits::ENCODINGS_BYTES_MAX];
    let len = wire::write_encodings(&encodings, &mut list).unwrap();
    let infer = |deadline, rows| Infer {
        model: ModelId(rows / 3),
        rows: Rows(rows),
        deadline: Micros(deadline),
        priority: Priority(3),
    };
    // Ids of one byte, and of two.
    for round in 0..20u32 {
        let (id, n) = session.open("model", &mut out).unwrap();
        assert_eq!(out[..n], postcard(&Request::Open { id, name: "model" }, 0));
        let (id, n) = session.open_encoded("m", &encodings, &mut out).unwrap();
        let open = Request::OpenEncoded { id, name: "m", encodings: &list[..len] };
        assert_eq!(out[..n], postcard(&open, 0));
        let asked = infer(u32::MAX >> round, u16::MAX >> (round % 16));
        let (id, n) = session.infer(asked, 1000 << (round % 8), &mut out).unwrap();
        let Infer { model, rows, deadline, priority } = asked;
        let message = Request::Infer { id, model, rows, deadline, priority };
        assert_eq!(out[..n], postcard(&message, 1000 << (round % 8)));
        let n = session.cancel(id, &mut out).unwrap();
        assert_eq!(out[..n], postcard(&Request::Cancel { id }, 0));
        let (id, n) = session.stats(&mut out).unwrap();
        assert_eq!(out[..n], postcard(&Request::Stats { id }, 0));
        let (id, n) = session.ping(&mut out).unwrap();
        assert_eq!(out[..n], postcard(&Request::Ping { id }, 0));
        let (id, n) = session.health(HealthKind::Ready, &mut out).unwrap();
        assert_eq!(out[..n], postcard(&Request::Health { id, kind: HealthKind::Ready }, 0));
        let (id, n) = session.models(&mut out).unwrap();
        assert_eq!(out[..n], postcard(&Request::Models { id }, 0));
    }
    let n = session.goodbye(&mut out).unwrap();
    assert_eq!(out[..n], postcard(&Request::Goodbye, 0));
    // What has no room is an error with the room there was.
    for room in 0..14 {
        let mut session = Session::<4>::new();
        let max = room - room.min(8);
        let short = SessionError::Encode(wire::EncodeError::HeaderTooLong { max });
        assert_eq!(session.hello("who", &mut vec![0; room]), Err(short), "{room}");
    }
}
