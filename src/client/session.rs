//! The sans-I/O half of a client: requests become bytes, bytes become events.

mod talk;

pub(super) use talk::{Fault, Noted, Talk, number};

use crate::limits::{AUTH_NONCE_BYTES, AUTH_PROOF_BYTES};
use crate::units::{Micros, ModelId, Priority, RequestId, Rows};
use crate::wire::{
    EncodeError, EncodingsError, FrameError, HeadDecoder, HealthKind, MessageError, Reply,
    ServerLimits, TensorEncoding,
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

/// What an id in flight waits for. The numbers are those of the request and of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u8)]
pub enum Kind {
    /// [`Reply::Opened`].
    Open = 2,
    /// [`Reply::Answer`].
    Infer = 3,
    /// [`Reply::Stats`].
    Stats = 5,
    /// [`Reply::Pong`].
    Ping = 6,
    /// [`Reply::Health`].
    Health = 7,
    /// [`Reply::Models`].
    Models = 8,
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
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
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
    pub(super) talk: Talk<N>,
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
            talk: Talk::NEW,
            head: HeadDecoder::new(),
            head_done: false,
            payload_remaining: 0,
        }
    }
    /// Before the first byte of another connection.
    pub(super) fn reset(&mut self) {
        self.talk.reset();
        self.head.clear();
        self.head_done = false;
        self.payload_remaining = 0;
    }
    /// The error behind a fault.
    fn told<T>(&self, result: Result<T, Fault>) -> Result<T, SessionError> {
        result.map_err(|Fault| self.talk.fault)
    }
    /// Where the conversation stands.
    pub const fn state(&self) -> State {
        self.talk.state
    }
    /// The version that both speak; 0 until the server has said so.
    pub const fn version(&self) -> u8 {
        self.talk.version
    }
    /// What the server allows, once it has said so.
    pub const fn limits(&self) -> Option<ServerLimits> {
        self.talk.limits
    }
    /// Requests that wait for their reply.
    pub fn in_flight(&self) -> usize {
        self.talk.in_flight.len()
    }
    /// Whether `id` waits for its reply.
    pub fn is_in_flight(&self, id: RequestId) -> bool {
        self.talk.is_in_flight(id)
    }

    /// Writes the hello; `name` is for the server's log.
    pub fn hello(&mut self, name: &str, out: &mut [u8]) -> Result<usize, SessionError> {
        let result = self.talk.hello(name, out);
        self.told(result)
    }
    /// Writes the proof that answers the challenge.
    pub fn auth(
        &mut self,
        proof: [u8; AUTH_PROOF_BYTES],
        out: &mut [u8],
    ) -> Result<usize, SessionError> {
        let result = self.talk.auth(&proof, out);
        self.told(result)
    }

    /// Writes a request for a model by name. Returns the id and the bytes written, as all that follow.
    pub fn open(&mut self, name: &str, out: &mut [u8]) -> Result<(RequestId, usize), SessionError> {
        let result = self.talk.open(name, None, out);
        self.told(result)
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
        let result = self.talk.open(name, Some(tensors), out);
        self.told(result)
    }
    /// Writes the head of an inference; the caller sends `payload_len` bytes of tensors after it.
    pub fn infer(
        &mut self,
        infer: Infer,
        payload_len: usize,
        out: &mut [u8],
    ) -> Result<(RequestId, usize), SessionError> {
        let result = self.talk.infer(&infer, payload_len, out);
        self.told(result)
    }
    /// Writes a request for statistics.
    pub fn stats(&mut self, out: &mut [u8]) -> Result<(RequestId, usize), SessionError> {
        let result = self.talk.only_id(Kind::Stats, out);
        self.told(result)
    }
    /// Writes a request to read a model's files again (every model's, if `name` is empty) and to serve what
    /// they hold now; its answer comes as statistics do.
    ///
    /// # Errors
    /// Besides those of other requests: the server speaks a version before 3.
    pub fn reload(
        &mut self,
        name: &str,
        out: &mut [u8],
    ) -> Result<(RequestId, usize), SessionError> {
        let result = self.talk.reload(name, out);
        self.told(result)
    }
    /// Writes a ping.
    pub fn ping(&mut self, out: &mut [u8]) -> Result<(RequestId, usize), SessionError> {
        let result = self.talk.only_id(Kind::Ping, out);
        self.told(result)
    }
    /// Writes a question of health.
    pub fn health(
        &mut self,
        kind: HealthKind,
        out: &mut [u8],
    ) -> Result<(RequestId, usize), SessionError> {
        let result = self.talk.health(kind, out);
        self.told(result)
    }
    /// Writes a request for the list of models.
    pub fn models(&mut self, out: &mut [u8]) -> Result<(RequestId, usize), SessionError> {
        let result = self.talk.only_id(Kind::Models, out);
        self.told(result)
    }
    /// Writes the withdrawal of a request. The request stays in flight until its error or answer
    /// comes.
    pub fn cancel(&mut self, id: RequestId, out: &mut [u8]) -> Result<usize, SessionError> {
        let result = self.talk.cancel(id, out);
        self.told(result)
    }
    /// Writes the goodbye: no request may follow; answers still come.
    pub fn goodbye(&mut self, out: &mut [u8]) -> Result<usize, SessionError> {
        let result = self.talk.goodbye(out);
        self.told(result)
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
        let (taken, gathered) = match self.gather(bytes) {
            Ok(gathered) => gathered,
            Err(Fault) => return Err(self.talk.fault),
        };
        let event = match gathered {
            Gathered::Nothing => None,
            Gathered::Payload => {
                let bytes = bytes.get(..taken).unwrap_or_default();
                Some(Event::Payload { bytes, remaining: self.payload_remaining })
            }
            Gathered::Head { payload_len } => {
                let header = self.head.head().map_or(&[][..], |head| head.header);
                let reply = Reply::decode(header)?;
                if self.talk.note(header).is_err() {
                    return Err(self.talk.fault);
                }
                self.payload_remaining = payload_len;
                Some(Event::Reply { reply, payload_len })
            }
        };
        Ok((taken, event))
    }
    /// As [`feed`](Self::feed), for one who reads of the replies what is for him, gives `on` what comes,
    /// and stops where that says so.
    pub(super) fn hear(
        &mut self,
        mut bytes: &[u8],
        on: &mut dyn FnMut(Heard<'_>) -> bool,
    ) -> Result<bool, Fault> {
        loop {
            let (taken, gathered) = self.gather(bytes)?;
            let (piece, rest) = bytes.split_at_checked(taken).unwrap_or((bytes, &[]));
            bytes = rest;
            let goes_on = match gathered {
                Gathered::Nothing if taken == 0 => return Ok(true),
                Gathered::Nothing => true,
                Gathered::Payload => {
                    on(Heard::Payload { bytes: piece, remaining: self.payload_remaining })
                }
                Gathered::Head { payload_len } => {
                    let header = self.head.head().map_or(&[][..], |head| head.header);
                    let noted = self.talk.note(header)?;
                    self.payload_remaining = payload_len;
                    on(Heard::Reply { header, noted, payload_len })
                }
            };
            if !goes_on {
                return Ok(false);
            }
        }
    }
    /// Takes bytes of a payload, or of a head.
    fn gather(&mut self, bytes: &[u8]) -> Result<(usize, Gathered), Fault> {
        if self.payload_remaining > 0 {
            let n = bytes.len().min(self.payload_remaining as usize);
            self.payload_remaining -= n as u32;
            return Ok((n, if n == 0 { Gathered::Nothing } else { Gathered::Payload }));
        }
        if self.head_done {
            self.head.clear();
        }
        let taken = match self.head.feed(bytes) {
            Ok(taken) => taken,
            Err(error) => {
                self.talk.fault = SessionError::Frame(error);
                return Err(Fault);
            }
        };
        let head = self.head.head();
        self.head_done = head.is_some();
        let gathered = match head {
            Some(head) => Gathered::Head { payload_len: head.payload_len },
            None => Gathered::Nothing,
        };
        Ok((taken, gathered))
    }
}

enum Gathered {
    Nothing,
    Payload,
    Head { payload_len: u32 },
}

/// What the bytes of the server meant, with replies not read as a whole.
pub(super) enum Heard<'a> {
    Reply { header: &'a [u8], noted: Noted<'a>, payload_len: u32 },
    Payload { bytes: &'a [u8], remaining: u32 },
}
