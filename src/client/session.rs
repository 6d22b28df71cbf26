//! The sans-I/O half of a client: requests become bytes, bytes become events.

use crate::limits::{AUTH_NONCE_BYTES, AUTH_PROOF_BYTES, ENCODINGS_BYTES_MAX};
use crate::units::{Micros, ModelId, Priority, RequestId, Rows};
use crate::wire::{
    self, EncodeError, EncodingsError, FrameError, HeadDecoder, HealthKind, MessageError, Reply,
    Request, ServerLimits, TensorEncoding,
};

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum State {
    /// Nothing said yet: send [`Session::hello`].
    Start,
    /// The hello is sent.
    Greeting,
    /// The server wants [`Session::auth`].
    Challenged {
        /// What to prove the key over.
        nonce: [u8; AUTH_NONCE_BYTES],
    },
    /// Requests may be sent.
    Ready,
    /// The server, or [`Session::goodbye`], ended the conversation; answers may still come.
    Leaving,
}

/// What an id in flight waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Kind {
    /// [`Reply::Opened`].
    Open,
    /// [`Reply::Answer`].
    Infer,
    /// [`Reply::Stats`].
    Stats,
    /// [`Reply::Pong`].
    Ping,
    /// [`Reply::Health`].
    Health,
    /// [`Reply::Models`].
    Models,
}

/// Why a session can't go on, or can't send this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum SessionError {
    /// The server's bytes are not frames.
    Frame(FrameError),
    /// The server's header is not a message.
    Message(MessageError),
    /// The request does not fit a frame.
    Encode(EncodeError),
    /// The list of encodings does not fit the request.
    Encodings(EncodingsError),
    /// The request came with a later version of the protocol than the server speaks.
    VersionTooLow {
        /// What the server speaks.
        version: u8,
        /// What the request needs.
        needed: u8,
    },
    /// A request that the state does not allow.
    WrongState,
    /// As many requests are in flight as the session, or the server, allows.
    InFlight {
        /// In flight.
        len: usize,
        /// Allowed.
        max: usize,
    },
    /// The server answered an id that is not in flight, or with the wrong kind of message.
    Unexpected {
        /// Number of the message.
        number: u8,
        /// Its id.
        id: Option<RequestId>,
    },
}

impl core::fmt::Display for SessionError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SessionError::Frame(error) => write!(f, "the server sent no frame: {error}"),
            SessionError::Message(error) => write!(f, "the server sent no message: {error}"),
            SessionError::Encode(error) => write!(f, "the request can't be sent: {error}"),
            SessionError::Encodings(error) => write!(f, "the request can't be sent: {error}"),
            SessionError::VersionTooLow { version, needed } => write!(
                f,
                "the server speaks version {version} of the protocol; the request needs {needed}"
            ),
            SessionError::WrongState => {
                f.write_str("the request is not allowed now: the hello must be accepted first, and nothing follows a goodbye")
            }
            SessionError::InFlight { len, max } => {
                write!(f, "{len} requests are in flight; at most {max} may be")
            }
            SessionError::Unexpected { number, id: Some(id) } => {
                write!(f, "message {number} for request {id}, which does not wait for it")
            }
            SessionError::Unexpected { number, id: None } => {
                write!(f, "message {number} is not allowed now")
            }
        }
    }
}

impl core::error::Error for SessionError {}

impl From<FrameError> for SessionError {
    fn from(error: FrameError) -> Self {
        SessionError::Frame(error)
    }
}
impl From<MessageError> for SessionError {
    fn from(error: MessageError) -> Self {
        SessionError::Message(error)
    }
}
impl From<EncodingsError> for SessionError {
    fn from(error: EncodingsError) -> Self {
        SessionError::Encodings(error)
    }
}
impl From<EncodeError> for SessionError {
    fn from(error: EncodeError) -> Self {
        SessionError::Encode(error)
    }
}

/// What the bytes of the server meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A message; `payload_len` bytes of payload follow it as [`Event::Payload`].
    Reply {
        /// The message.
        reply: Reply<'a>,
        /// Bytes that follow.
        payload_len: u32,
    },
    /// A piece of the last message's payload.
    Payload {
        /// The bytes.
        bytes: &'a [u8],
        /// Bytes of the payload that are still to come.
        remaining: u32,
    },
}

/// An inference to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Infer {
    /// From [`Reply::Opened`].
    pub model: ModelId,
    /// Rows in the payload.
    pub rows: Rows,
    /// 0 takes the model's default.
    pub deadline: Micros,
    /// 0 takes the model's default; 1 is the highest.
    pub priority: Priority,
}

/// One conversation with a server, with at most `N` requests in flight. Does no I/O and knows no
/// clock: methods that send write a frame's head into `out` (at least
/// [`HEAD_BYTES_MAX`](crate::wire::HEAD_BYTES_MAX) bytes always suffice), and
/// [`feed`](Self::feed) turns received bytes into events.
///
/// Answers are matched by id, in any order. An id is in flight until the head of its reply is here.
#[derive(Debug, Clone)]
pub struct Session<const N: usize> {
    state: State,
    version: u8,
    limits: Option<ServerLimits>,
    in_flight: heapless::Vec<(RequestId, Kind), N>,
    next_id: u32,
    head: HeadDecoder,
    /// The head has been returned as an event and must be cleared before the next byte.
    head_done: bool,
    payload_remaining: u32,
}

impl<const N: usize> Default for Session<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Session<N> {
    /// Before the first byte of a connection.
    pub const fn new() -> Self {
        Session {
            state: State::Start,
            version: 0,
            limits: None,
            in_flight: heapless::Vec::new(),
            next_id: 1,
            head: HeadDecoder::new(),
            head_done: false,
            payload_remaining: 0,
        }
    }
    /// Where the conversation stands.
    pub const fn state(&self) -> State {
        self.state
    }
    /// The version that both speak; 0 until the server has said so.
    pub const fn version(&self) -> u8 {
        self.version
    }
    /// What the server allows, once it has said so.
    pub const fn limits(&self) -> Option<ServerLimits> {
        self.limits
    }
    /// Requests that wait for their reply.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
    /// Whether `id` waits for its reply.
    pub fn is_in_flight(&self, id: RequestId) -> bool {
        self.in_flight.iter().any(|(other, _)| *other == id)
    }

    /// Writes the hello; `name` is for the server's log.
    pub fn hello(&mut self, name: &str, out: &mut [u8]) -> Result<usize, SessionError> {
        if self.state != State::Start {
            return Err(SessionError::WrongState);
        }
        let (version_min, version_max) = (wire::VERSION_MIN, wire::VERSION_MAX);
        let message = Request::Hello { version_min, version_max, client: name };
        let n = wire::encode_head(&message, 0, out)?;
        self.state = State::Greeting;
        Ok(n)
    }
    /// Writes the proof that answers the challenge.
    pub fn auth(
        &mut self,
        proof: [u8; AUTH_PROOF_BYTES],
        out: &mut [u8],
    ) -> Result<usize, SessionError> {
        if !matches!(self.state, State::Challenged { .. }) {
            return Err(SessionError::WrongState);
        }
        let n = wire::encode_head(&Request::Auth { proof }, 0, out)?;
        self.state = State::Greeting;
        Ok(n)
    }

    /// Takes an id for a request of `kind`, lets `message` make it, and writes its head.
    fn send<'a>(
        &mut self,
        kind: Kind,
        payload_len: usize,
        out: &mut [u8],
        message: impl FnOnce(RequestId) -> Request<'a>,
    ) -> Result<(RequestId, usize), SessionError> {
        if self.state != State::Ready {
            return Err(SessionError::WrongState);
        }
        let allowed = self.limits.map_or(N, |limits| limits.in_flight_max as usize);
        let max = if kind == Kind::Infer { N.min(allowed) } else { N };
        if self.in_flight.len() >= max {
            return Err(SessionError::InFlight { len: self.in_flight.len(), max });
        }
        if let Some(limits) = self.limits
            && payload_len > limits.payload_bytes_max as usize
        {
            let max = limits.payload_bytes_max as usize;
            return Err(EncodeError::PayloadTooLong { len: payload_len, max }.into());
        }
        while self.is_in_flight(RequestId(self.next_id)) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = RequestId(self.next_id);
        let n = wire::encode_head(&message(id), payload_len, out)?;
        self.next_id = self.next_id.wrapping_add(1);
        // The length was checked above.
        let _ = self.in_flight.push((id, kind));
        Ok((id, n))
    }
    /// Writes a request for a model by name. Returns the id and the bytes written, as all that follow.
    pub fn open(&mut self, name: &str, out: &mut [u8]) -> Result<(RequestId, usize), SessionError> {
        self.send(Kind::Open, 0, out, |id| Request::Open { id, name })
    }
    /// Writes a request for a model by name whose listed tensors travel encoded.
    ///
    /// # Errors
    /// Besides those of [`open`](Self::open): the server speaks version 1, or the list is too long.
    pub fn open_encoded(
        &mut self,
        name: &str,
        tensors: &[TensorEncoding],
        out: &mut [u8],
    ) -> Result<(RequestId, usize), SessionError> {
        let mut list = [0; ENCODINGS_BYTES_MAX];
        let len = wire::write_encodings(tensors, &mut list)?;
        let encodings = &list[..len];
        let needed = Request::OpenEncoded { id: RequestId(0), name, encodings }.version();
        if self.state == State::Ready && self.version < needed {
            return Err(SessionError::VersionTooLow { version: self.version, needed });
        }
        self.send(Kind::Open, 0, out, |id| Request::OpenEncoded { id, name, encodings })
    }
    /// Writes the head of an inference; the caller sends `payload_len` bytes of tensors after it.
    pub fn infer(
        &mut self,
        infer: Infer,
        payload_len: usize,
        out: &mut [u8],
    ) -> Result<(RequestId, usize), SessionError> {
        let Infer { model, rows, deadline, priority } = infer;
        self.send(Kind::Infer, payload_len, out, |id| Request::Infer {
            id,
            model,
            rows,
            deadline,
            priority,
        })
    }
    /// Writes a request for statistics.
    pub fn stats(&mut self, out: &mut [u8]) -> Result<(RequestId, usize), SessionError> {
        self.send(Kind::Stats, 0, out, |id| Request::Stats { id })
    }
    /// Writes a ping.
    pub fn ping(&mut self, out: &mut [u8]) -> Result<(RequestId, usize), SessionError> {
        self.send(Kind::Ping, 0, out, |id| Request::Ping { id })
    }
    /// Writes a question of health.
    pub fn health(
        &mut self,
        kind: HealthKind,
        out: &mut [u8],
    ) -> Result<(RequestId, usize), SessionError> {
        self.send(Kind::Health, 0, out, |id| Request::Health { id, kind })
    }
    /// Writes a request for the list of models.
    pub fn models(&mut self, out: &mut [u8]) -> Result<(RequestId, usize), SessionError> {
        self.send(Kind::Models, 0, out, |id| Request::Models { id })
    }
    /// Writes the withdrawal of a request. The request stays in flight until its error or answer
    /// comes.
    pub fn cancel(&mut self, id: RequestId, out: &mut [u8]) -> Result<usize, SessionError> {
        if self.state != State::Ready {
            return Err(SessionError::WrongState);
        }
        Ok(wire::encode_head(&Request::Cancel { id }, 0, out)?)
    }
    /// Writes the goodbye: no request may follow; answers still come.
    pub fn goodbye(&mut self, out: &mut [u8]) -> Result<usize, SessionError> {
        if self.state != State::Ready {
            return Err(SessionError::WrongState);
        }
        let n = wire::encode_head(&Request::Goodbye, 0, out)?;
        self.state = State::Leaving;
        Ok(n)
    }

    /// Bytes of the current message's payload that are still to come.
    pub const fn payload_remaining(&self) -> u32 {
        self.payload_remaining
    }
    /// Bytes that the current head still needs as far as is known; 0 within a payload.
    pub fn head_missing(&self) -> usize {
        match (self.payload_remaining, self.head_done) {
            (0, true) => crate::limits::FRAME_PREFIX_BYTES,
            (0, false) => self.head.missing(),
            _ => 0,
        }
    }
    /// Says that the caller read `n` bytes of the payload by itself, past [`feed`](Self::feed).
    /// More than [`payload_remaining`](Self::payload_remaining) counts as all of it.
    pub fn payload_taken(&mut self, n: u32) {
        self.payload_remaining = self.payload_remaining.saturating_sub(n);
    }

    /// Takes received bytes; returns how many it took, and at most one event. Call it again with
    /// the rest until it takes nothing and returns no event. After an error the connection is of no
    /// use.
    ///
    /// Never panics, whatever the bytes.
    pub fn feed<'a>(
        &'a mut self,
        bytes: &'a [u8],
    ) -> Result<(usize, Option<Event<'a>>), SessionError> {
        if self.payload_remaining > 0 {
            let n = bytes.len().min(self.payload_remaining as usize);
            if n == 0 {
                return Ok((0, None));
            }
            self.payload_remaining -= n as u32;
            let event = Event::Payload { bytes: &bytes[..n], remaining: self.payload_remaining };
            return Ok((n, Some(event)));
        }
        if self.head_done {
            self.head.clear();
            self.head_done = false;
        }
        let mut taken = self.head.feed(bytes)?;
        taken += self.head.feed(&bytes[taken..])?;
        let Some(head) = self.head.head() else {
            return Ok((taken, None));
        };
        let payload_len = head.payload_len;
        let reply = Reply::decode(head.header)?;
        let unexpected = SessionError::Unexpected { number: reply.number(), id: reply.id() };
        let ready = matches!(self.state, State::Ready | State::Leaving);
        let kind = match reply {
            Reply::HelloOk { version, limits } if self.state == State::Greeting => {
                if !(wire::VERSION_MIN..=wire::VERSION_MAX).contains(&version) {
                    return Err(unexpected);
                }
                self.version = version;
                self.limits = Some(limits);
                self.state = State::Ready;
                None
            }
            Reply::Challenge { nonce } if self.state == State::Greeting => {
                self.state = State::Challenged { nonce };
                None
            }
            Reply::Goodbye if ready => {
                self.state = State::Leaving;
                None
            }
            Reply::Error { id: None, .. } => None,
            Reply::Opened { .. } if ready => Some(Kind::Open),
            Reply::Answer { .. } if ready => Some(Kind::Infer),
            Reply::Stats { .. } if ready => Some(Kind::Stats),
            Reply::Pong { .. } if ready => Some(Kind::Ping),
            Reply::Health { .. } if ready => Some(Kind::Health),
            Reply::Models { .. } if ready => Some(Kind::Models),
            Reply::Error { id: Some(id), .. } => {
                let at = self.in_flight.iter().position(|(other, _)| *other == id);
                self.in_flight.swap_remove(at.ok_or(unexpected)?);
                None
            }
            _ => return Err(unexpected),
        };
        if let (Some(kind), Some(id)) = (kind, reply.id()) {
            let at = self.in_flight.iter().position(|entry| *entry == (id, kind));
            self.in_flight.swap_remove(at.ok_or(unexpected)?);
        }
        self.head_done = true;
        self.payload_remaining = payload_len;
        Ok((taken, Some(Event::Reply { reply, payload_len })))
    }
}
