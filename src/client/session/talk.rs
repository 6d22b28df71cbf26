//! The conversation: what may be said, what it is in bytes, and which request a reply answers.

use super::{Infer, Kind, SessionError, State};
use crate::limits::ENCODINGS_BYTES_MAX;
use crate::units::RequestId;
use crate::wire::{
    self, EncodeError, EncodingsError, HealthKind, Reader, ServerLimits, TensorEncoding, Writer,
};

/// Numbers of the other messages that a client writes or looks for.
pub(in crate::client) mod number {
    pub const HELLO: u8 = 0;
    pub const AUTH: u8 = 1;
    pub const CANCEL: u8 = 4;
    pub const GOODBYE: u8 = 9;
    pub const OPEN_ENCODED: u8 = 10;
    pub const RELOAD: u8 = 11;
    pub const HELLO_OK: u8 = 0;
    pub const CHALLENGE: u8 = 1;
    pub const ERROR: u8 = 4;
}

/// The reply whose head is here, as far as a session looks at it.
#[derive(Debug, Clone)]
pub(in crate::client) struct Noted<'a> {
    pub number: u8,
    pub id: Option<RequestId>,
    /// What follows the id.
    pub fields: Reader<'a>,
}

/// Something can't be, and [`Talk::fault`] says what: moving a whole [`SessionError`] from call to call is
/// much code for a small core.
#[derive(Debug, Clone, Copy)]
pub(in crate::client) struct Fault;

/// What is said and not said yet, apart from the bytes that say it.
#[derive(Debug, Clone)]
pub(in crate::client) struct Talk<const N: usize> {
    pub(super) state: State,
    pub(super) version: u8,
    pub(super) limits: Option<ServerLimits>,
    pub(super) in_flight: heapless::Vec<(RequestId, Kind), N>,
    next_id: u32,
    /// Of the last [`Fault`].
    pub(super) fault: SessionError,
}

impl<const N: usize> Talk<N> {
    pub(super) const NEW: Self = Talk {
        state: State::Start,
        version: 0,
        limits: None,
        in_flight: heapless::Vec::new(),
        next_id: 1,
        fault: SessionError::WrongState,
    };

    /// What was wrong last.
    pub(in crate::client) const fn fault(&self) -> SessionError {
        self.fault
    }
    /// Whether requests may be sent.
    pub(in crate::client) const fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }
    /// Whether the server owes its answer to the hello.
    pub(in crate::client) const fn is_greeting(&self) -> bool {
        matches!(self.state, State::Greeting)
    }
    /// Whether the server wants a proof of its key.
    pub(in crate::client) const fn is_challenged(&self) -> bool {
        matches!(self.state, State::Challenged { .. })
    }
    pub(super) fn reset(&mut self) {
        self.state = State::Start;
        self.version = 0;
        self.limits = None;
        self.in_flight.clear();
        self.next_id = 1;
    }
    pub(super) fn is_in_flight(&self, id: RequestId) -> bool {
        self.in_flight.iter().any(|(other, _)| *other == id)
    }
    fn must(&mut self, allowed: bool) -> Result<(), Fault> {
        if !allowed {
            self.fault = SessionError::WrongState;
            return Err(Fault);
        }
        Ok(())
    }
    /// Ends a head; its length.
    #[inline(never)]
    fn written(&mut self, head: Writer<'_>, payload_len: usize) -> Result<usize, Fault> {
        head.end(payload_len).map_err(|error| {
            self.fault = SessionError::Encode(error);
            Fault
        })
    }
    pub(in crate::client) fn hello(&mut self, name: &str, out: &mut [u8]) -> Result<usize, Fault> {
        self.must(matches!(self.state, State::Start))?;
        let mut head = Writer::new(out, number::HELLO);
        head.byte(wire::VERSION_MIN);
        head.byte(wire::VERSION_MAX);
        head.bytes(name.as_bytes());
        let n = self.written(head, 0)?;
        self.state = State::Greeting;
        Ok(n)
    }
    pub(super) fn auth(&mut self, proof: &[u8], out: &mut [u8]) -> Result<usize, Fault> {
        self.must(matches!(self.state, State::Challenged { .. }))?;
        let mut head = Writer::new(out, number::AUTH);
        head.raw(proof);
        let n = self.written(head, 0)?;
        self.state = State::Greeting;
        Ok(n)
    }
    /// Begins a request: its id, and its head up to the id.
    #[inline(never)]
    fn begin<'o>(
        &mut self,
        kind: Kind,
        number: u8,
        payload_len: usize,
        out: &'o mut [u8],
    ) -> Result<Writer<'o>, Fault> {
        self.must(self.is_ready())?;
        let mut max = N;
        if let Some(limits) = &self.limits {
            let (len, bytes) = (payload_len, limits.payload_bytes_max as usize);
            if len > bytes {
                let error = EncodeError::PayloadTooLong { len, max: bytes };
                self.fault = SessionError::Encode(error);
                return Err(Fault);
            }
            if kind == Kind::Infer {
                max = max.min(limits.in_flight_max.into());
            }
        }
        let len = self.in_flight.len();
        if len >= max {
            self.fault = SessionError::InFlight { len, max };
            return Err(Fault);
        }
        while self.is_in_flight(RequestId(self.next_id)) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let mut head = Writer::new(out, number);
        head.varint(self.next_id);
        Ok(head)
    }
    /// Ends a request's head; the id and the head's length.
    #[inline(never)]
    fn end(
        &mut self,
        kind: Kind,
        head: Writer<'_>,
        payload_len: usize,
    ) -> Result<(RequestId, usize), Fault> {
        let n = self.written(head, payload_len)?;
        let id = RequestId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        // There was room when it began.
        let _ = self.in_flight.push((id, kind));
        Ok((id, n))
    }
    /// Whether the server speaks the first version that has a message.
    fn needs(&mut self, needed: u8) -> Result<(), Fault> {
        let version = self.version;
        if self.is_ready() && version < needed {
            self.fault = SessionError::VersionTooLow { version, needed };
            return Err(Fault);
        }
        Ok(())
    }
    /// A request to reload; its reply has the number of statistics.
    pub(super) fn reload(
        &mut self,
        name: &str,
        out: &mut [u8],
    ) -> Result<(RequestId, usize), Fault> {
        self.needs(3)?;
        let mut head = self.begin(Kind::Stats, number::RELOAD, 0, out)?;
        head.bytes(name.as_bytes());
        self.end(Kind::Stats, head, 0)
    }
    /// A request for a model, of the later kind where there is a list.
    pub(in crate::client) fn open(
        &mut self,
        name: &str,
        list: Option<&[TensorEncoding]>,
        out: &mut [u8],
    ) -> Result<(RequestId, usize), Fault> {
        let (mut number, mut len) = (Kind::Open as u8, 0);
        if let Some(list) = list {
            number = number::OPEN_ENCODED;
            len = list.iter().map(TensorEncoding::entry_len).sum();
            if len > ENCODINGS_BYTES_MAX {
                let max = ENCODINGS_BYTES_MAX;
                self.fault = SessionError::Encodings(EncodingsError::TooLong { max });
                return Err(Fault);
            }
            self.needs(2)?;
        }
        let mut head = self.begin(Kind::Open, number, 0, out)?;
        head.bytes(name.as_bytes());
        if let Some(list) = list {
            head.varint(len as u32);
            for tensor in list {
                let entry = tensor.entry();
                head.raw(entry.get(..tensor.entry_len()).unwrap_or_default());
            }
        }
        self.end(Kind::Open, head, 0)
    }
    pub(in crate::client) fn infer(
        &mut self,
        infer: &Infer,
        payload_len: usize,
        out: &mut [u8],
    ) -> Result<(RequestId, usize), Fault> {
        let mut head = self.begin(Kind::Infer, Kind::Infer as u8, payload_len, out)?;
        head.varint(infer.model.0.into());
        head.varint(infer.rows.0.into());
        head.varint(infer.deadline.0);
        head.byte(infer.priority.0);
        self.end(Kind::Infer, head, payload_len)
    }
    /// A request that is nothing but its id.
    pub(super) fn only_id(
        &mut self,
        kind: Kind,
        out: &mut [u8],
    ) -> Result<(RequestId, usize), Fault> {
        let head = self.begin(kind, kind as u8, 0, out)?;
        self.end(kind, head, 0)
    }
    pub(super) fn health(
        &mut self,
        kind: HealthKind,
        out: &mut [u8],
    ) -> Result<(RequestId, usize), Fault> {
        let mut head = self.begin(Kind::Health, Kind::Health as u8, 0, out)?;
        head.byte(kind as u8);
        self.end(Kind::Health, head, 0)
    }
    pub(in crate::client) fn cancel(
        &mut self,
        id: RequestId,
        out: &mut [u8],
    ) -> Result<usize, Fault> {
        self.must(self.is_ready())?;
        let mut head = Writer::new(out, number::CANCEL);
        head.varint(id.0);
        self.written(head, 0)
    }
    pub(super) fn goodbye(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        self.must(self.is_ready())?;
        let n = self.written(Writer::new(out, number::GOODBYE), 0)?;
        self.state = State::Leaving;
        Ok(n)
    }

    /// Takes note of a reply: what it changes, and which request it answers.
    pub(super) fn note<'a>(&mut self, header: &'a [u8]) -> Result<Noted<'a>, Fault> {
        let mut fields = Reader::new(header);
        let number = fields.number();
        let id = fields.reply_id(number);
        let greeting = self.is_greeting();
        let ready = matches!(self.state, State::Ready | State::Leaving);
        let mut expected = true;
        match (number, id) {
            (number::HELLO_OK, _) if greeting => {
                self.version = fields.byte();
                self.limits = Some(ServerLimits::read(&mut fields));
                self.state = State::Ready;
                expected = (wire::VERSION_MIN..=wire::VERSION_MAX).contains(&self.version);
            }
            (number::CHALLENGE, _) if greeting => {
                self.state = State::Challenged { nonce: fields.array() };
            }
            (number::GOODBYE, _) if ready => self.state = State::Leaving,
            (number::ERROR, None) => {}
            (number, Some(id)) => {
                // It answers a request: with an error, or as the request asked.
                let answered = self.in_flight.iter().position(|&(other, kind)| {
                    other == id && (number == number::ERROR || ready && kind as u8 == number)
                });
                expected = answered.is_some();
                // The last takes its place.
                if let Some(at) = answered
                    && let Some(last) = self.in_flight.pop()
                    && let Some(place) = self.in_flight.get_mut(at)
                {
                    *place = last;
                }
            }
            (_, None) => expected = false,
        }
        if !expected {
            self.fault = SessionError::Unexpected { number, id };
            return Err(Fault);
        }
        Ok(Noted { number, id, fields })
    }
}
