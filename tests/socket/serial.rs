//! A serial port, as a pseudo-terminal: the same models, the same queue, no allocation; a line that
//! flips bits, a device that is unplugged and comes back, a client that restarts.

use crate::lone::{Gate, WAIT, gated};
use crate::support::{Fixture, HELLO, Heard, PATIENCE, frame, infer, model, serve_with, wide};
use corelane::client::serial::{
    Opening, Port, SerialClient, SerialError, SerialModel, SerialRequest,
};
use corelane::client::{self as blocking, Address, Options};
use corelane::sys::terminal::{hold_open, pseudo_terminal};
use corelane::transport::{BindError, SerialOptions, ServerOptions};
use corelane::units::{Micros, Rows};
use corelane::wire::link::{Endpoint, LinkEvent, LinkOptions, Role};
use corelane::wire::{ElementDecoder, Encoding, ErrorCode, Place, Scale, TensorEncoding};
use corelane::wire::{Reply, parse_head};
use embedded_time::fraction::Fraction;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const BAUD: u32 = 921_600;
const WITHIN: Micros = Micros(PATIENCE.as_micros() as u32);

struct StdClock(Instant);

impl embedded_time::Clock for StdClock {
    type T = u64;
    const SCALING_FACTOR: Fraction = Fraction::new(1, 1_000_000);
    fn try_now(&self) -> Result<embedded_time::Instant<Self>, embedded_time::clock::Error> {
        Ok(embedded_time::Instant::new(self.0.elapsed().as_micros() as u64))
    }
}

/// The client's end of the line. Once in `flip` bytes, both ways, one bit is flipped.
struct Line {
    fd: OwnedFd,
    _held: OwnedFd,
    flip: u64,
    state: u64,
    flipped: u64,
    /// Read no more than so many bytes in two milliseconds; 0: as they come.
    pace: usize,
}

impl Line {
    fn damage(&mut self, bytes: &mut [u8]) {
        for byte in bytes.iter_mut().filter(|_| self.flip > 0) {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            if self.state.is_multiple_of(self.flip) {
                *byte ^= 1 << ((self.state >> 32) % 8);
                self.flipped += 1;
            }
        }
    }
}

impl Port for Line {
    type Error = Errno;
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        let mut into = into;
        if self.pace > 0 {
            std::thread::sleep(Duration::from_millis(2));
            let few = into.len().min(self.pace);
            into = &mut into[..few];
        }
        match rustix::io::read(&self.fd, &mut *into) {
            Err(Errno::AGAIN | Errno::IO) => Ok(0),
            Ok(n) => {
                self.damage(&mut into[..n]);
                Ok(n)
            }
            Err(error) => Err(error),
        }
    }
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut bytes = bytes.to_vec();
        self.damage(&mut bytes);
        match rustix::io::write(&self.fd, &bytes) {
            Err(Errno::AGAIN) => Ok(0),
            result => result,
        }
    }
    fn idle(&mut self, micros: u64) {
        std::thread::sleep(Duration::from_micros(micros.min(200)));
    }
}

fn line() -> (Line, PathBuf) {
    let (fd, path) = pseudo_terminal().unwrap();
    rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::NONBLOCK).unwrap();
    let held = hold_open(fd.as_fd()).unwrap();
    (Line { fd, _held: held, flip: 0, state: 88_172_645_463_325_252, flipped: 0, pace: 0 }, path)
}

type Client = SerialClient<StdClock, [u8; 512], [u8; 2048]>;

fn client(seed: u32) -> Client {
    client_at(BAUD, seed)
}

fn client_at(baud: u32, seed: u32) -> Client {
    let options = LinkOptions::new(baud);
    SerialClient::new(StdClock(Instant::now()), options, [0; 512], [0; 2048], seed).unwrap()
}

fn open(
    client: &mut Client,
    line: &mut Line,
    name: &str,
) -> Result<SerialModel, SerialError<Errno>> {
    client.open(line, name, WITHIN)
}

fn echo(
    client: &mut Client,
    line: &mut Line,
    model: &SerialModel,
    n: u8,
) -> Result<(), SerialError<Errno>> {
    let len = model.input_len(Rows(1));
    let input: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(7) ^ n).collect();
    let mut output = vec![0; len];
    let request = SerialRequest::row(WITHIN);
    let answer = client.infer(line, model, request, input.iter().copied(), &mut |at, bytes| {
        output[at..at + bytes.len()].copy_from_slice(bytes);
    })?;
    assert_eq!(answer.rows, Rows(1));
    assert!(output == input, "another answer");
    Ok(())
}

fn fixture(path: impl Into<PathBuf>) -> Fixture {
    let serial = vec![SerialOptions { path: path.into(), baud: BAUD, rts_cts: false }];
    let models = vec![
        model("small", 64, &[1, 4], Duration::ZERO),
        model("large", 30_000, &[1], Duration::from_millis(1)),
    ];
    serve_with(models, ServerOptions { serial, ..ServerOptions::default() })
}

#[test]
fn a_serial_port_serves_the_same_models() {
    let (mut line, path) = line();
    let fixture = fixture(&path);
    let mut client = client(1);
    let unknown = open(&mut client, &mut line, "nobody").unwrap_err();
    assert_eq!(unknown.code(), Some(ErrorCode::UnknownModel));
    for name in ["small", "large"] {
        let model = open(&mut client, &mut line, name).unwrap();
        for n in 0..20 {
            echo(&mut client, &mut line, &model, n).unwrap();
        }
    }
    fixture.still_serves();
    // The port is nobody else's meanwhile.
    let serial = vec![SerialOptions { path, baud: BAUD, rts_cts: false }];
    let mut runtime = corelane::runtime::Runtime::builder()
        .unpinned(1)
        .model(model("small", 64, &[1], Duration::ZERO))
        .build()
        .unwrap();
    let refused =
        crate::support::start(&mut runtime, ServerOptions { serial, ..Default::default() });
    assert!(matches!(refused, Err(BindError::InUse { .. })), "{refused:?}");
}

#[test]
fn encoded_numbers_travel_a_serial_line() {
    let (mut line, path) = line();
    let serial = vec![SerialOptions { path, baud: BAUD, rts_cts: false }];
    let models =
        vec![crate::encoded::long("floats", 1_001), model("bytes", 64, &[1], Duration::ZERO)];
    let fixture = serve_with(models, ServerOptions { serial, ..ServerOptions::default() });
    let mut client = client(4);
    let encoding = Encoding::I8 { scale: Scale::new(0.5).unwrap(), zero_point: -100 };
    let encodings = [
        TensorEncoding { place: Place::Input(0), encoding: Encoding::F16 },
        TensorEncoding { place: Place::Output(0), encoding },
    ];
    let opening = Opening { name: "floats", encodings: &encodings };
    let model = client.open(&mut line, opening, WITHIN).unwrap();
    assert_eq!((model.input_len(Rows(1)), model.output_len(Rows(1))), (2_002, 1_001));
    // Only the output's encoding rounds, and saturates.
    let values = (0..1_001u16).map(|n| f32::from(n) * 0.25 - 20.0);
    let mut got = Vec::new();
    let mut decoder = ElementDecoder::new(encoding);
    line.flip = 5_000;
    for _ in 0..5 {
        got.clear();
        client
            .infer(
                &mut line,
                &model,
                SerialRequest::row(WITHIN),
                Encoding::F16.bytes(values.clone()),
                &mut |_, bytes| got.extend(bytes.iter().filter_map(|&byte| decoder.push(byte))),
            )
            .unwrap();
        assert_eq!(got.len(), 1_001);
        for (got, value) in got.iter().zip(values.clone()) {
            let nearest = value.clamp(-14.0, 113.5);
            assert!((got - nearest).abs() <= 0.25, "{got} for {value}");
        }
    }
    let encodings = [TensorEncoding { place: Place::Input(0), encoding }];
    let opening = Opening { name: "bytes", encodings: &encodings };
    let refused = client.open(&mut line, opening, WITHIN).unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::BadEncoding));
    assert!(matches!(refused, SerialError::Server { a: 0, b: 2, .. }), "{refused}");
    fixture.still_serves();
}

#[test]
fn several_ports_and_sockets_are_served_at_once() {
    const PORTS: usize = 3;
    let lines: Vec<(Line, PathBuf)> = (0..PORTS).map(|_| line()).collect();
    let serial = lines
        .iter()
        .map(|(_, path)| SerialOptions { path: path.clone(), baud: BAUD, rts_cts: false })
        .collect();
    let models = vec![
        model("small", 64, &[1, 4], Duration::ZERO),
        model("large", 30_000, &[1], Duration::from_millis(1)),
    ];
    let fixture = serve_with(models, ServerOptions { serial, ..ServerOptions::default() });
    std::thread::scope(|scope| {
        for (at, (mut line, _)) in lines.into_iter().enumerate() {
            scope.spawn(move || {
                // One line is bad; that is nobody else's trouble.
                line.flip = if at == 0 { 3_000 } else { 0 };
                let mut client = client(at as u32);
                for name in ["large", "small", "large"] {
                    let model = open(&mut client, &mut line, name).unwrap();
                    for n in 0..15u8 {
                        echo(&mut client, &mut line, &model, n + 50 * at as u8).unwrap();
                    }
                }
            });
        }
        for at in 0..2u8 {
            let mut client = fixture.client();
            scope.spawn(move || {
                let models = [client.open("small").unwrap(), client.open("large").unwrap()];
                for n in 0..100u8 {
                    let model = &models[usize::from(n % 4 == 0)];
                    let row = vec![n + 100 * at; model.input_len(1)];
                    let answer = client.infer(model, Rows(1), &row).unwrap();
                    assert!(answer.payload == row, "another answer");
                    client.give_back(answer.payload);
                }
            });
        }
    });
    fixture.still_serves();
}

#[test]
fn a_drain_answers_what_a_serial_line_has_in_flight() {
    let (mut line, path) = line();
    let serial = vec![SerialOptions { path, baud: BAUD, rts_cts: false }];
    let models = vec![model("slow", 64, &[1], Duration::from_millis(300))];
    let mut fixture = serve_with(models, ServerOptions { serial, ..ServerOptions::default() });
    let mut client = client(7);
    let slow = open(&mut client, &mut line, "slow").unwrap();
    let answered = std::thread::scope(|scope| {
        let (client, line, slow) = (&mut client, &mut line, &slow);
        let answered = scope.spawn(move || {
            let first = echo(client, line, slow, 3);
            // The next finds the session closed, or is told.
            let request = SerialRequest::row(Micros(2_000_000));
            let row = [0; 64];
            let late = client.infer(line, slow, request, row, &mut |_, _| {});
            (first, late)
        });
        fixture.until("the worker has the request", |f| f.is_running(0));
        fixture.server().drain();
        answered.join().unwrap()
    });
    answered.0.expect("what was accepted is answered");
    let late = answered.1.expect_err("nothing is accepted after a drain");
    let told = late.code() == Some(ErrorCode::ShuttingDown);
    let ended = matches!(
        late,
        SerialError::Link(_)
            | SerialError::StaleModel
            | SerialError::Deadline { .. }
            | SerialError::Session(_)
    );
    assert!(told || ended, "{late}");
    fixture.server.take().unwrap().join();
    let report = fixture.runtime.drain(PATIENCE);
    assert!(report.clean);
    assert_eq!(corelane::sys::alloc::hot_calls(), 0);
}

/// What the server has sent is on its way for seconds on a slow line: it waits for that.
#[test]
fn a_drain_waits_for_a_slow_line() {
    const SLOW: u32 = 9_600;
    let (mut line, path) = line();
    let serial = vec![SerialOptions { path, baud: SLOW, rts_cts: false }];
    let models = vec![model("m", 6_000, &[1], Duration::ZERO)];
    let mut fixture = serve_with(models, ServerOptions { serial, ..ServerOptions::default() });
    let mut client = client_at(SLOW, 9);
    let model = open(&mut client, &mut line, "m").unwrap();
    line.pace = 12;
    // Kept, since what a line that is unplugged still holds, such as an acknowledgement, is lost.
    let _line = std::thread::scope(|s| {
        let asked = s.spawn(move || (echo(&mut client, &mut line, &model, 5), line));
        let answered = |f: &Fixture| f.runtime.stats().models[0].inference_request_success;
        fixture.until("it is answered", |f| answered(f) == 1);
        fixture.server().drain();
        let (answered, line) = asked.join().unwrap();
        answered.expect("an answer that was sent arrives");
        line
    });
    let server = fixture.server.take().unwrap();
    let counters = server.shared_counters();
    server.join();
    assert_eq!(counters.answers_given_up_total.load(Ordering::Relaxed), 0);
    assert_eq!(corelane::sys::alloc::hot_calls(), 0);
}

/// A client that takes in, and acknowledges, no more than the test lets it.
struct Hand {
    line: Line,
    link: Endpoint<[u8; 512], [u8; 2048]>,
    started: Instant,
    heard: Vec<u8>,
}

impl Hand {
    /// One with a session, that has sent `bytes`, and whose peer has them.
    fn new(line: Line, bytes: &[u8]) -> Hand {
        let options = LinkOptions::new(BAUD);
        let link = Endpoint::new(Role::Initiator, options, [0; 512], [0; 2048], 5).unwrap();
        let mut hand = Hand { line, link, started: Instant::now(), heard: Vec::new() };
        hand.link.open(0);
        while !hand.link.is_up() {
            hand.turn();
        }
        assert_eq!(hand.link.send(bytes, false), bytes.len());
        hand
    }
    /// Says what there is to say, then takes in what has come.
    fn turn(&mut self) {
        let now = self.started.elapsed().as_micros() as u64;
        assert!(now < PATIENCE.as_micros() as u64, "nothing comes");
        assert_eq!(self.link.poll(now), None);
        let mut bytes = [0; 64];
        let n = self.link.transmit(now, &mut bytes);
        let mut rest = &bytes[..n];
        while !rest.is_empty() {
            let n = self.line.write(rest).unwrap();
            rest = &rest[n..];
        }
        let n = self.line.read(&mut bytes).unwrap();
        if n == 0 {
            self.line.idle(200);
        }
        let mut rest = &bytes[..n];
        while !rest.is_empty() {
            let (taken, event) = self.link.receive(now, rest);
            if let Some(LinkEvent::Data(data)) = event {
                self.heard.extend(data);
            }
            rest = &rest[taken..];
        }
    }
    /// Takes in frames until there are so many answers among them, and acknowledges what it has; answers it got.
    fn answers(&mut self, wanted: u64) -> u64 {
        loop {
            let (mut at, mut answers) = (0, 0);
            while let Ok(Some(head)) = parse_head(&self.heard[at..]) {
                at += head.head_len + head.payload_len as usize;
                let whole = at <= self.heard.len();
                let is_answer = matches!(Reply::decode(head.header), Ok(Reply::Answer { .. }));
                answers += u64::from(whole && is_answer);
                at = at.min(self.heard.len());
            }
            if answers >= wanted && !self.link.wants_transmit() {
                return answers;
            }
            self.turn();
        }
    }
}

/// What the client has not acknowledged it may not have, though the server has handed it to the line.
#[test]
fn answers_that_a_serial_line_does_not_acknowledge_are_given_up() {
    const REQUESTS: u32 = 8;
    // As the server stops, as its time is up, and as the client falls silent.
    for end in 0..3 {
        let (line, path) = line();
        let serial = vec![SerialOptions { path, baud: BAUD, rts_cts: false }];
        // More in all than the line's buffer holds, with others' answers between.
        let models = vec![wide("m", 1_500)];
        let mut fixture = serve_with(models, ServerOptions { serial, ..ServerOptions::default() });
        let requests = (1..=REQUESTS).flat_map(|id| infer(id, 0, 1, &[7; 8]));
        let all: Vec<u8> = frame(&HELLO, &[]).into_iter().chain(requests).collect();
        let mut client = Hand::new(line, &all);
        let got = client.answers(2);
        let answered = |f: &Fixture| f.runtime.stats().models[0].inference_request_success;
        fixture.until("all are answered", |f| answered(f) == u64::from(REQUESTS));
        let server = fixture.server.take().unwrap();
        let counters = server.shared_counters();
        let given_up = || counters.answers_given_up_total.load(Ordering::Relaxed);
        let left = u64::from(REQUESTS) - got;
        assert!(left > 0);
        if end == 2 {
            while given_up() == 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(given_up(), left, "{got} were taken");
            let report = fixture.runtime.drain_with(server, PATIENCE);
            assert_eq!((report.clean, report.unread), (true, 0), "that was before the drain");
        } else {
            let patience = [PATIENCE, Duration::from_millis(100)][end];
            let report = fixture.runtime.drain_with(server, patience);
            assert_eq!((report.clean, report.left, report.unread), (false, 0, left));
            assert_eq!(given_up(), left, "{got} were taken");
        }
        assert_eq!(corelane::sys::alloc::hot_calls(), 0);
    }
}

#[test]
fn who_comes_to_a_serial_line_in_a_drain_is_told() {
    let (mut line, path) = line();
    let serial = vec![SerialOptions { path, baud: BAUD, rts_cts: false }];
    let gate = Arc::new(Gate::default());
    let mut fixture =
        serve_with(vec![gated("m", &gate)], ServerOptions { serial, ..ServerOptions::default() });
    let mut raw = fixture.greeted();
    let mut row = vec![0; 64];
    row[0] = WAIT;
    raw.send(&infer(1, 0, 1, &row));
    fixture.until("it runs", |f| f.is_running(0));
    fixture.server().drain();
    let mut told = || open(&mut client(1), &mut line, "m").map(|_| ()).unwrap_err();
    let told = [told(), told(), told()];
    gate.open();
    assert!(told.iter().all(|t| t.code() == Some(ErrorCode::ShuttingDown)), "{told:?}");
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: row });
    drop(raw);
    fixture.server.take().unwrap().join();
    assert_eq!(corelane::sys::alloc::hot_calls(), 0);
}

#[test]
fn a_line_without_a_server_says_what_may_be_wrong() {
    let (line, path) = line();
    let address = Address::Serial(SerialOptions { path, baud: BAUD, rts_cts: false });
    let options = || Options { timeout: Some(Duration::from_millis(100)), ..Options::default() };
    let told = || blocking::Client::connect(&address, options()).unwrap_err().to_string();
    let silent = told();
    assert!(silent.contains("nothing came from it; is a server on it"), "{silent}");
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // As from another speed, or from a console.
                let _ = rustix::io::write(&line.fd, b"\xf8\x00login: ");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let noise = told();
        over.store(true, Ordering::Relaxed);
        assert!(noise.contains("no whole frame; is its speed 921600 baud"), "{noise}");
    });
}

#[test]
fn a_line_that_flips_bits_costs_time_and_nothing_else() {
    let (mut line, path) = line();
    let fixture = fixture(path);
    let mut client = client(2);
    let model = open(&mut client, &mut line, "large").unwrap();
    line.flip = 2_000;
    for n in 0..20 {
        echo(&mut client, &mut line, &model, n).unwrap();
    }
    assert!(line.flipped > 0);
    let counters = fixture.server().counters();
    let of = |counter: &corelane::sys::sync::AtomicU64| counter.load(Ordering::Relaxed);
    let damaged = of(&counters.link_crc_error_total) + of(&counters.link_oversize_total);
    assert!(damaged > 0 && of(&counters.link_resync_total) > 0);
    assert!(of(&counters.link_retransmit_total) > 0);
    line.flip = 0;
    echo(&mut client, &mut line, &model, 1).unwrap();
    fixture.still_serves();
}

#[test]
fn a_client_that_restarts_is_served_again() {
    let (mut line, path) = line();
    let fixture = fixture(path);
    for seed in 0..5 {
        let mut client = client(seed);
        let model = open(&mut client, &mut line, "small").unwrap();
        echo(&mut client, &mut line, &model, seed as u8).unwrap();
        // Half a frame is left on the line.
        rustix::io::write(&line.fd, &[5, 3, 9, 1, 7]).unwrap();
    }
    fixture.still_serves();
}

#[test]
fn a_port_that_is_unplugged_is_served_when_it_is_back() {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let link = std::env::temp_dir().join(format!("corelane-tty-{}-{n}", std::process::id()));
    let _ = std::fs::remove_file(&link);
    let (mut first, path) = line();
    std::os::unix::fs::symlink(path, &link).unwrap();
    let fixture = fixture(&link);
    let mut client = client(3);
    let model = open(&mut client, &mut first, "small").unwrap();
    echo(&mut client, &mut first, &model, 1).unwrap();
    std::fs::remove_file(&link).unwrap();
    drop(first);
    fixture.until("the connection of the lost port is closed", |f| {
        f.server().counters().connections_open.load(Ordering::Relaxed) == 0
    });
    let (mut second, path) = line();
    std::os::unix::fs::symlink(path, &link).unwrap();
    let model = open(&mut client, &mut second, "small").unwrap();
    echo(&mut client, &mut second, &model, 2).unwrap();
    fixture.still_serves();
    std::fs::remove_file(&link).unwrap();
}
