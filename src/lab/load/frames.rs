//! The way to a server: connections that never block.

use super::{Broken, End, Ends, Payloads, Port};
use crate::client::{Address, Event, Infer, Session, SessionError, State, TensorInfo};
use crate::limits::IN_FLIGHT_PER_CONNECTION_MAX;
use crate::sys::clock;
use crate::sys::sync::{Arc, spin_turn};
use crate::transport::LoopbackStream;
use crate::units::{Micros, ModelId, Nanos, Priority, Receipt, RequestId, Rows};
use crate::wire::{self, ErrorCode, HEAD_BYTES_MAX, Key, Reply};
use rustix::event::{PollFd, PollFlags, poll};
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 * 1024;
/// Frames through memory are put together up to this length, to be written at once.
const WHOLE_BYTES_MAX: usize = 4096;
/// Longest wait for a connection and its greeting.
const GREETING: Nanos = Nanos(10_000_000_000);
/// Connections are polled together up to this number.
const CONNECTIONS_POLLED: usize = 256;

/// Why there is no connection, or no model behind it.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The socket failed.
    Io(io::Error),
    /// The server said no.
    Refused {
        /// Its code.
        code: u16,
        /// Its words.
        text: String,
    },
    /// The server wants a key and none was given.
    KeyWanted,
    /// A serial line, which carries one connection: a load generator needs one for the statistics besides.
    Line,
    /// The conversation broke.
    Broken(String),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Io(error) => write!(f, "the socket failed: {error}"),
            ConnectError::Refused { code, text } => match ErrorCode::from_number(*code) {
                Some(code) => write!(f, "{code}: {text}"),
                None => write!(f, "error {code}: {text}"),
            },
            ConnectError::KeyWanted => {
                f.write_str("the server wants a pre-shared key; give one (--psk-file)")
            }
            ConnectError::Line => f.write_str(
                "a serial line carries one connection, and measuring takes several; `infer --repeat` times requests over one",
            ),
            ConnectError::Broken(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ConnectError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        ConnectError::Io(error)
    }
}

impl From<Broken> for ConnectError {
    fn from(error: Broken) -> Self {
        ConnectError::Broken(error.0)
    }
}

impl From<SessionError> for ConnectError {
    fn from(error: SessionError) -> Self {
        ConnectError::Broken(error.to_string())
    }
}

enum Link {
    Unix(UnixStream),
    Tcp(TcpStream),
    Memory(LoopbackStream, Vec<u8>),
}

impl Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Link::Unix(stream) => stream.read(buffer),
            Link::Tcp(stream) => stream.read(buffer),
            Link::Memory(stream, _) => stream.read(buffer).map_err(would_block),
        }
    }
    fn write(&mut self, head: &[u8], payload: &[u8]) -> io::Result<usize> {
        let parts = [IoSlice::new(head), IoSlice::new(payload)];
        match self {
            Link::Unix(stream) => stream.write_vectored(&parts),
            Link::Tcp(stream) => stream.write_vectored(&parts),
            Link::Memory(stream, whole) => {
                whole.clear();
                whole.extend_from_slice(&head[..head.len().min(WHOLE_BYTES_MAX)]);
                let room = WHOLE_BYTES_MAX - whole.len();
                whole.extend_from_slice(&payload[..payload.len().min(room)]);
                stream.write(whole).map_err(would_block)
            }
        }
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Link::Unix(stream) => Some(stream.as_fd()),
            Link::Tcp(stream) => Some(stream.as_fd()),
            Link::Memory(..) => None,
        }
    }
}

/// A pipe in memory with no patience says `TimedOut`.
fn would_block(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::TimedOut => io::ErrorKind::WouldBlock.into(),
        _ => error,
    }
}

/// What an event of the session meant, without its bytes.
enum Heard {
    Answer(RequestId, Receipt),
    Error(u16, String),
    Failed(RequestId, u16),
    Opened { model: ModelId, rows_max: Rows, in_flight_max: usize },
    Goodbye,
    Nothing,
}

/// One connection that has said hello.
pub struct Connection {
    link: Link,
    session: Session<IN_FLIGHT_PER_CONNECTION_MAX>,
    buffer: Box<[u8]>,
    len: usize,
    /// A frame that is not wholly sent: its head, its request, and bytes sent.
    head: [u8; HEAD_BYTES_MAX],
    unsent: Option<(usize, u32, u16, usize)>,
    /// Requests in flight.
    waiting: Vec<(RequestId, u32)>,
    /// The request whose answer's payload is coming.
    coming: Option<(u32, End, Option<Receipt>)>,
}

/// What a model's opening says.
pub struct Opened {
    /// Its number.
    pub model: ModelId,
    /// Most rows of one request.
    pub rows_max: u16,
    /// Requests in flight on one connection.
    pub in_flight_max: usize,
    /// Inputs.
    pub inputs: Vec<TensorInfo>,
    /// Whether requests may have several rows.
    pub batched: bool,
}

impl Connection {
    /// Connects to a server's socket.
    ///
    /// # Errors
    /// The address can't be reached, or the server said no.
    pub fn open(address: &Address, key: Option<&Key>) -> Result<Connection, ConnectError> {
        let link = match address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Link::Unix(stream)
            }
            Address::Tcp(address) => {
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                let timeout = Duration::from_nanos(GREETING.0);
                let stream = address.to_socket_addrs()?.find_map(|a| {
                    TcpStream::connect_timeout(&a, timeout).map_err(|e| last = e).ok()
                });
                let stream = stream.ok_or(last)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Link::Tcp(stream)
            }
            Address::Serial(_) => return Err(ConnectError::Line),
        };
        Connection::greet(link, key)
    }

    /// Greets a server in this process through memory.
    ///
    /// # Errors
    /// The server said no.
    pub fn in_memory(mut stream: LoopbackStream) -> Result<Connection, ConnectError> {
        stream.set_timeout(Some(Duration::ZERO));
        Connection::greet(Link::Memory(stream, Vec::with_capacity(WHOLE_BYTES_MAX)), None)
    }

    fn greet(link: Link, key: Option<&Key>) -> Result<Connection, ConnectError> {
        let mut connection = Connection {
            link,
            session: Session::new(),
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            len: 0,
            head: [0; HEAD_BYTES_MAX],
            unsent: None,
            waiting: Vec::with_capacity(IN_FLIGHT_PER_CONNECTION_MAX),
            coming: None,
        };
        let mut head = [0; HEAD_BYTES_MAX];
        let n = connection.session.hello("corelane-load", &mut head)?;
        connection.say(&head[..n])?;
        loop {
            match connection.session.state() {
                State::Ready => return Ok(connection),
                State::Challenged { nonce } => {
                    let key = key.ok_or(ConnectError::KeyWanted)?;
                    let n = connection.session.auth(key.prove(&nonce), &mut head)?;
                    connection.say(&head[..n])?;
                }
                _ => {
                    connection.hear()?;
                }
            }
        }
    }

    /// Asks for a model.
    ///
    /// # Errors
    /// The server does not know it, or the conversation broke.
    pub fn model(&mut self, name: &str) -> Result<Opened, ConnectError> {
        let mut head = [0; HEAD_BYTES_MAX];
        let (_, n) = self.session.open(name, &mut head)?;
        self.say(&head[..n])?;
        let mut body = Vec::new();
        let (model, rows_max, in_flight_max) = loop {
            if let Heard::Opened { model, rows_max, in_flight_max } = self.hear_into(&mut body)? {
                break (model, rows_max, in_flight_max);
            }
        };
        while self.session.payload_remaining() > 0 {
            self.hear_into(&mut body)?;
        }
        let broken = || ConnectError::Broken("the server's signature is damaged".into());
        let signature = wire::Signature::decode(&body).map_err(|_| broken())?;
        let inputs = signature
            .inputs
            .iter()
            .map(|tensor| TensorInfo {
                name: tensor.name.into(),
                dtype: tensor.dtype,
                row_shape: tensor.row_shape.iter().map(|&axis| axis as usize).collect(),
                row_bytes: tensor.row_bytes().unwrap_or(0) as usize,
            })
            .collect();
        Ok(Opened {
            model,
            rows_max: rows_max.0,
            in_flight_max,
            inputs,
            batched: signature.batched,
        })
    }

    /// Sends a small frame, waiting as long as a greeting may take.
    fn say(&mut self, mut bytes: &[u8]) -> Result<(), ConnectError> {
        let end = clock::now().after(GREETING);
        while !bytes.is_empty() {
            match self.link.write(bytes, &[]) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.pause(end)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn hear(&mut self) -> Result<Heard, ConnectError> {
        self.hear_into(&mut Vec::new())
    }

    /// Waits for one event; payload bytes go to `body`.
    fn hear_into(&mut self, body: &mut Vec<u8>) -> Result<Heard, ConnectError> {
        let end = clock::now().after(GREETING);
        loop {
            let (taken, heard) = step(&mut self.session, &self.buffer[..self.len], Some(body))?;
            self.buffer.copy_within(taken..self.len, 0);
            self.len -= taken;
            match heard {
                Some(Heard::Error(code, text)) => {
                    return Err(ConnectError::Refused { code, text });
                }
                Some(heard) => return Ok(heard),
                None if taken > 0 => continue,
                None => {}
            }
            match self.link.read(&mut self.buffer[self.len..]) {
                Ok(0) => return Err(ConnectError::Broken("the server closed".into())),
                Ok(n) => self.len += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.pause(end)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn pause(&self, end: Nanos) -> Result<(), ConnectError> {
        if clock::now() >= end {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        std::thread::park_timeout(Duration::from_micros(100));
        Ok(())
    }

    /// Sends what is left of the frame; whether it is gone.
    fn flush(&mut self, payloads: &Payloads) -> Result<bool, Broken> {
        let Some((head_len, index, rows, mut sent)) = self.unsent else { return Ok(true) };
        let payload = payloads.get(index, rows);
        let whole = head_len + payload.len();
        while sent < whole {
            let head = &self.head[sent.min(head_len)..head_len];
            let rest = &payload[sent.saturating_sub(head_len)..];
            match self.link.write(head, rest) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.unsent = Some((head_len, index, rows, sent));
                    return Ok(false);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Broken(format!("the connection broke: {e}"))),
            }
        }
        self.unsent = None;
        Ok(true)
    }

    fn take_index(&mut self, id: RequestId) -> Option<u32> {
        let at = self.waiting.iter().position(|(other, _)| *other == id)?;
        Some(self.waiting.swap_remove(at).1)
    }

    /// Reads what is there.
    fn receive(&mut self, ends: &mut Ends<'_>) -> Result<(), Broken> {
        loop {
            let n = match self.link.read(&mut self.buffer[self.len..]) {
                Ok(0) => return Err(Broken("the server closed the connection".into())),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Broken(format!("the connection broke: {e}"))),
            };
            let now = clock::now();
            self.len += n;
            let whole = self.len == self.buffer.len();
            let mut start = 0;
            loop {
                let bytes = &self.buffer[start..self.len];
                let (taken, heard) = step(&mut self.session, bytes, None)?;
                start += taken;
                match heard {
                    Some(Heard::Answer(id, receipt)) => {
                        let index = self.take_index(id);
                        self.coming = index.map(|i| (i, End::Answered, Some(receipt)));
                    }
                    Some(Heard::Failed(id, code)) => {
                        let index = self.take_index(id);
                        self.coming = index.map(|i| (i, End::Failed(code), None));
                    }
                    Some(Heard::Error(code, text)) => {
                        return Err(Broken(format!(
                            "the server ends the connection: {code}, {text}"
                        )));
                    }
                    Some(Heard::Goodbye) => {
                        return Err(Broken("the server says goodbye: it is shutting down".into()));
                    }
                    Some(_) => {}
                    None if taken == 0 => break,
                    None => {}
                }
                if self.session.payload_remaining() == 0
                    && let Some((index, end, receipt)) = self.coming.take()
                {
                    ends.note(index, now, end, receipt);
                }
            }
            self.buffer.copy_within(start..self.len, 0);
            self.len -= start;
            if !whole {
                return Ok(());
            }
        }
    }
}

/// Feeds a session and says what it made of the bytes. Allocates only for a connection's error.
fn step(
    session: &mut Session<IN_FLIGHT_PER_CONNECTION_MAX>,
    bytes: &[u8],
    body: Option<&mut Vec<u8>>,
) -> Result<(usize, Option<Heard>), Broken> {
    let in_flight_max = session
        .limits()
        .map_or(1, |l| usize::from(l.in_flight_max))
        .min(IN_FLIGHT_PER_CONNECTION_MAX);
    let (taken, event) = session.feed(bytes).map_err(|e| Broken(e.to_string()))?;
    let heard = match event {
        None => return Ok((taken, None)),
        Some(Event::Payload { bytes, .. }) => {
            if let Some(body) = body {
                body.extend_from_slice(bytes);
            }
            Heard::Nothing
        }
        Some(Event::Reply { reply, .. }) => match reply {
            Reply::Answer { id, receipt, .. } => Heard::Answer(id, receipt),
            Reply::Opened { model, rows_max, .. } => {
                Heard::Opened { model, rows_max, in_flight_max }
            }
            Reply::Error { id: Some(id), code, .. } if body.is_none() => Heard::Failed(id, code),
            Reply::Error { code, text, .. } => Heard::Error(code, text.into()),
            Reply::Goodbye => Heard::Goodbye,
            _ => Heard::Nothing,
        },
    };
    Ok((taken, Some(heard)))
}

/// Several connections to one model of a server.
pub struct FramePort {
    connections: Vec<Connection>,
    infer: Infer,
    payloads: Arc<Payloads>,
    in_flight: usize,
    in_flight_max: usize,
    next: usize,
    spin: Nanos,
    can_sleep: bool,
}

impl FramePort {
    /// A way over `connections`, which are not empty.
    ///
    /// `spin`: how long before a planned send the thread stops sleeping; `u64::MAX` never sleeps.
    /// Connections in memory can't be slept on.
    pub fn new(
        connections: Vec<Connection>,
        opened: &Opened,
        payloads: Arc<Payloads>,
        timeout: Micros,
        priority: Priority,
        spin: Nanos,
    ) -> FramePort {
        let can_sleep = connections.len() <= CONNECTIONS_POLLED
            && connections.iter().all(|c| c.link.fd().is_some());
        FramePort {
            connections,
            infer: Infer { model: opened.model, rows: Rows(1), deadline: timeout, priority },
            payloads,
            in_flight: 0,
            in_flight_max: opened.in_flight_max.max(1),
            next: 0,
            spin,
            can_sleep,
        }
    }
}

impl Port for FramePort {
    fn now(&self) -> Nanos {
        clock::now()
    }

    fn send(&mut self, index: u32, rows: u16) -> Result<bool, Broken> {
        let infer = Infer { rows: Rows(rows), ..self.infer };
        let payload_len = self.payloads.get(index, rows).len();
        for _ in 0..self.connections.len() {
            let at = self.next;
            self.next = (at + 1) % self.connections.len();
            let connection = &mut self.connections[at];
            if connection.unsent.is_some() || connection.session.in_flight() >= self.in_flight_max {
                continue;
            }
            let (id, n) = connection
                .session
                .infer(infer, payload_len, &mut connection.head)
                .map_err(|e| Broken(e.to_string()))?;
            connection.waiting.push((id, index));
            connection.unsent = Some((n, index, rows, 0));
            self.in_flight += 1;
            connection.flush(&self.payloads)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn turn(&mut self, ends: &mut Ends<'_>) -> Result<(), Broken> {
        let before = ends.count;
        for connection in &mut self.connections {
            connection.flush(&self.payloads)?;
            if !connection.waiting.is_empty() || connection.coming.is_some() {
                connection.receive(ends)?;
            }
        }
        self.in_flight -= ends.count - before;
        Ok(())
    }

    fn wait(&mut self, until: Nanos) {
        let left = until.since(clock::now());
        if !self.can_sleep || left <= self.spin {
            spin_turn();
            return;
        }
        let left = left.0 - self.spin.0;
        let timeout = rustix::time::Timespec {
            tv_sec: (left / 1_000_000_000) as _,
            tv_nsec: (left % 1_000_000_000) as _,
        };
        let mut fds = heapless::Vec::<PollFd<'_>, CONNECTIONS_POLLED>::new();
        for connection in &self.connections {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, connection.unsent.is_some());
            if let Some(fd) = connection.link.fd() {
                let _ = fds.push(PollFd::from_borrowed_fd(fd, flags));
            }
        }
        // Every result means "look again".
        let _ = poll(&mut fds, Some(&timeout));
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}
