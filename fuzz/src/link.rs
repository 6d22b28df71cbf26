//! Both ends of a link and the client over it, driven by a script: frames of each other, frames of
//! nobody, noise, requests and replies, and time. Never a panic, and never a state that a quiet line
//! does not lead out of.

use super::Reached;
use super::messages::{header, link_frame};
use super::script::{Script, frame, reply, request};
use corelane::client::serial::{Opening, SerialClient, SerialError, SerialEvent};
use corelane::client::{Event, Infer, State};
use corelane::units::{Micros, ModelId, Priority, RequestId, Rows};
use corelane::wire::link::{Endpoint, LinkEvent, LinkOptions, Role};
use corelane::wire::{Encoding, HeadDecoder, Place, Reply, Request, ServerLimits, TensorEncoding};
use embedded_time::fraction::Fraction;
use std::cell::Cell;
use std::rc::Rc;

const BAUD: u32 = 921_600;

type End = Endpoint<[u8; 128], [u8; 256]>;

fn options() -> LinkOptions {
    LinkOptions { receive_window: 256, ..LinkOptions::new(BAUD) }
}

fn end(role: Role) -> End {
    Endpoint::new(role, options(), [0; 128], [0; 256], 1).expect("the buffers are long enough")
}

/// Gives `bytes` to `to`, and its stream to `on`.
fn hear(
    to: &mut End,
    now: u64,
    mut bytes: &[u8],
    reached: &mut Reached,
    on: &mut dyn FnMut(&[u8]),
) {
    while !bytes.is_empty() {
        let (taken, event) = to.receive(now, bytes);
        assert!(taken > 0, "no progress");
        bytes = &bytes[taken..];
        match event {
            Some(LinkEvent::Up) => reached.sessions += 1,
            Some(LinkEvent::Data(data)) => {
                reached.stream_bytes += data.len() as u64;
                on(data);
            }
            _ => {}
        }
    }
}

fn said(from: &mut End, now: u64) -> Vec<u8> {
    let mut line = vec![0; 512];
    let n = from.transmit(now, &mut line);
    line.truncate(n);
    line
}

/// A server's reader of the stream, as far as the requests' heads.
struct Reader {
    head: HeadDecoder,
    skip: usize,
    broken: bool,
}

impl Reader {
    fn new() -> Self {
        Reader { head: HeadDecoder::new(), skip: 0, broken: false }
    }
    fn read(&mut self, mut data: &[u8], reached: &mut Reached) {
        while !data.is_empty() && !self.broken {
            if self.skip > 0 {
                let n = self.skip.min(data.len());
                self.skip -= n;
                data = &data[n..];
                continue;
            }
            match self.head.feed(data) {
                Ok(n) => data = &data[n..],
                Err(_) => self.broken = true,
            }
            let Some(head) = self.head.head() else { continue };
            reached.heads += 1;
            self.skip = head.payload_len as usize;
            if let Ok(request) = Request::decode(head.header) {
                reached.requests += 1;
                reached.infers += u64::from(matches!(request, Request::Infer { .. }));
            }
            self.head.clear();
        }
    }
}

/// Two ends and a line between them.
pub fn endpoints(input: &[u8]) -> Reached {
    let mut reached = Reached::default();
    let mut script = Script(input);
    let (mut client, mut server) = (end(Role::Initiator), end(Role::Acceptor));
    let (mut reader, mut now) = (Reader::new(), 0u64);
    client.open(now);
    // Most scripts begin with a session.
    if script.below(8) > 0 {
        for _ in 0..2 {
            client.poll(now);
            let line = said(&mut client, now);
            hear(&mut server, now, &line, &mut reached, &mut |_| {});
            let line = said(&mut server, now);
            hear(&mut client, now, &line, &mut reached, &mut |_| {});
        }
        assert!(client.is_up() && server.is_up());
    }
    while !script.is_over() {
        let to_server = script.below(4) > 0;
        let (from, to) = match to_server {
            true => (&mut client, &mut server),
            false => (&mut server, &mut client),
        };
        let mut line = match script.below(12) {
            0 => script.bytes(48).to_vec(),
            1 => vec![0; script.below(48)],
            2 | 3 => {
                let (header, payload) = (header(&mut script), script.bytes(48));
                link_frame(&mut script, header, payload)
            }
            4 => {
                now += u64::from(script.short()) * [1, 10, 100, 1000][script.below(4)];
                from.poll(now);
                to.poll(now);
                Vec::new()
            }
            5 => {
                match script.below(6) {
                    0 => from.close(),
                    1 => from.open(now),
                    2 => to.set_room(script.short() as usize % 300),
                    3 => from.set_waiting(true, now),
                    4 => from.probe(now),
                    _ => from.set_waiting(false, now),
                }
                Vec::new()
            }
            6 => said(from, now),
            _ => {
                let (request, payload) = request(&mut script);
                let bytes = frame(&mut script, &request, &payload);
                let more = script.below(4) == 0;
                if from.send_room() >= bytes.len() {
                    assert_eq!(from.send(&bytes, more), bytes.len());
                }
                said(from, now)
            }
        };
        if script.below(8) == 0 {
            script.damage(&mut line);
        }
        let sessions = reached.sessions;
        let mut data = Vec::new();
        hear(to, now, &line, &mut reached, &mut |piece| data.extend(piece));
        if sessions != reached.sessions || reader.broken {
            reader = Reader::new();
        }
        if to_server {
            reader.read(&data, &mut reached);
        }
    }
    reached.frames += u64::from(server.counters().frames_received);
    reached.frames += u64::from(client.counters().frames_received);
    // The noise stops: a new session carries bytes, if there is room for them.
    server.set_room(256);
    client.close();
    client.open(now);
    let (mut got, mut sent) = (Vec::<u8>::new(), false);
    for _ in 0..100 {
        now += 100_000;
        client.poll(now);
        let line = said(&mut client, now);
        server.poll(now);
        let mut ignored = Reached::default();
        // What was on its way when the old session ended may come first.
        hear(&mut server, now, &line, &mut ignored, &mut |piece| got.extend(piece));
        let line = said(&mut server, now);
        hear(&mut client, now, &line, &mut ignored, &mut |_| {});
        if client.is_up() && !sent {
            got.clear();
            assert_eq!(client.send(b"ping", false), 4);
            sent = true;
        }
        if got == b"ping" && client.all_acked() {
            return reached;
        }
    }
    panic!("a quiet line carries nothing: {got:?}");
}

#[derive(Debug, Clone)]
struct Time(Rc<Cell<u64>>);

impl embedded_time::Clock for Time {
    type T = u64;
    const SCALING_FACTOR: Fraction = Fraction::new(1, 1_000_000);
    fn try_now(&self) -> Result<embedded_time::Instant<Self>, embedded_time::clock::Error> {
        Ok(embedded_time::Instant::new(self.0.get()))
    }
}

type Client = SerialClient<Time, [u8; 128], [u8; 256]>;

/// What the client made of the server's messages.
#[derive(Default)]
struct Heard {
    reached: Reached,
    payload: u32,
}

impl Heard {
    fn take(&mut self, event: SerialEvent<'_>) {
        match event {
            SerialEvent::Up => {
                self.reached.sessions += 1;
                self.payload = 0;
            }
            SerialEvent::Down(_) => self.payload = 0,
            SerialEvent::Message(Event::Reply { reply, payload_len }) => {
                assert_eq!(self.payload, 0, "a reply within a payload");
                self.payload = payload_len;
                self.reached.replies += 1;
                self.reached.answers += u64::from(matches!(reply, Reply::Answer { .. }));
            }
            SerialEvent::Message(Event::Payload { bytes, remaining }) => {
                assert_eq!(remaining + bytes.len() as u32, self.payload, "payload out of nowhere");
                self.payload = remaining;
                self.reached.stream_bytes += bytes.len() as u64;
            }
        }
    }
}

/// The client of a serial line, and a server that says anything.
pub fn client(input: &[u8]) -> Reached {
    let mut script = Script(input);
    let time = Time(Rc::new(Cell::new(0)));
    let mut client: Client = SerialClient::new(time.clone(), options(), [0; 128], [0; 256], 1)
        .expect("the buffers are long enough");
    let mut server = end(Role::Acceptor);
    let mut heard = Heard::default();
    let (mut ids, mut ignored) = (Vec::new(), Reached::default());
    let mut requests = 0u64;
    client.connect::<()>().expect("the clock runs");
    let i8 = "i8:0.5:-128".parse::<Encoding>().expect("an encoding");
    let encodings = [TensorEncoding { place: Place::Input(0), encoding: i8 }];
    // Most scripts begin with a session and a greeting.
    let begun = script.below(8) > 0;
    if begun {
        let _: Result<_, SerialError> = client.poll();
        exchange(&mut client, &mut server, &time, &mut heard, &mut ignored);
        let version = 1 + script.byte() % 2;
        let limits = ServerLimits { payload_bytes_max: 1 << 20, in_flight_max: 4, models: 3 };
        let hello = frame(&mut Script(&[]), &Reply::HelloOk { version, limits }, &[]);
        server.send(&hello, false);
        exchange(&mut client, &mut server, &time, &mut heard, &mut ignored);
        assert_eq!(client.state(), State::Ready);
    }
    while !script.is_over() {
        match script.below(12) {
            0 => {
                let more = u64::from(script.short()) * [1, 10, 100, 1000][script.below(4)];
                time.0.set(time.0.get() + more);
                let _: Result<_, SerialError> = client.poll();
                server.poll(time.0.get());
                heard.payload = if client.state() == State::Start { 0 } else { heard.payload };
            }
            1 => {
                let opening = match script.below(2) {
                    0 => Opening::from("mlp"),
                    _ => Opening { name: "mlp", encodings: &encodings },
                };
                if let Ok(Some(id)) = client.request_open::<()>(opening) {
                    requests += 1;
                    ids.push(id);
                }
            }
            2 | 3 => {
                let infer = Infer {
                    model: ModelId(script.short() % 4),
                    rows: Rows(1),
                    deadline: Micros(script.short().into()),
                    priority: Priority(0),
                };
                let payload = script.bytes(48);
                if client.send_room() >= 48 + payload.len()
                    && let Ok(Some(id)) = client.request_infer::<()>(infer, payload.len())
                {
                    requests += 1;
                    heard.reached.infers += 1;
                    ids.push(id);
                    assert_eq!(client.send_payload(payload, false), payload.len());
                }
            }
            4 => {
                let id = ids.last().copied().unwrap_or(RequestId(1));
                let _ = client.request_cancel::<()>(id);
            }
            5 => {
                // Noise, or a frame of nobody.
                let line = match script.below(2) {
                    0 => script.bytes(48).to_vec(),
                    _ => {
                        let (header, payload) = (header(&mut script), script.bytes(48));
                        link_frame(&mut script, header, payload)
                    }
                };
                listen(&mut client, &line, &mut heard);
            }
            6 if script.below(8) == 0 => {
                client.connect::<()>().expect("the clock runs");
                heard.payload = 0;
            }
            7 if script.below(8) == 0 => server.close(),
            _ => {
                let at = script.below(4);
                let id = match ids.get(ids.len().wrapping_sub(1 + at)) {
                    Some(id) => *id,
                    None => RequestId(script.byte().into()),
                };
                let (reply, payload) = reply(&mut script, id, 2);
                let bytes = frame(&mut script, &reply, &payload);
                if server.send_room() >= bytes.len() {
                    server.send(&bytes, false);
                }
            }
        }
        exchange(&mut client, &mut server, &time, &mut heard, &mut ignored);
    }
    heard.reached.frames += u64::from(client.counters().frames_received);
    heard.reached.requests += requests;
    // The noise stops: a new session gets as far as the hello.
    client.disconnect();
    client.connect::<()>().expect("the clock runs");
    heard.payload = 0;
    for _ in 0..100 {
        time.0.set(time.0.get() + 100_000);
        let _: Result<_, SerialError> = client.poll();
        server.poll(time.0.get());
        exchange(&mut client, &mut server, &time, &mut heard, &mut ignored);
        if client.state() == State::Greeting {
            return heard.reached;
        }
    }
    panic!("a quiet line leads to no session");
}

fn listen(client: &mut Client, line: &[u8], heard: &mut Heard) {
    // After an error the session is over, and the rest of the line is for the next.
    if client.receive::<()>(line, &mut |event| heard.take(event)).is_err() {
        assert_eq!(client.state(), State::Start);
        heard.payload = 0;
    }
}

fn exchange(
    client: &mut Client,
    server: &mut End,
    time: &Time,
    heard: &mut Heard,
    ignored: &mut Reached,
) {
    for _ in 0..4 {
        let mut line = [0; 512];
        let n = client.transmit::<()>(&mut line).expect("the clock runs");
        hear(server, time.0.get(), &line[..n], ignored, &mut |_| {});
        let line = said(server, time.0.get());
        if n == 0 && line.is_empty() {
            return;
        }
        listen(client, &line, heard);
    }
}
