//! Requests from beginning to end, over a port that does not block.

use super::walk::Walk;
use super::{IN_FLIGHT, Port, Retries, SerialAnswer, SerialClient, SerialError, Told};
use super::{Opening, SerialModel, SerialRequest};
use crate::client::session::{Fault, Heard, Infer, Kind, Noted, SessionError, number};
use crate::limits::TIMEOUT_US_MAX;
use crate::units::{Micros, ModelId, RequestId, Rows};
use crate::wire::link::DownReason;
use embedded_time::Clock;

/// Bytes moved at a time from the port.
const CHUNK: usize = 32;

/// What a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Nothing but time.
    Time,
    /// A session that is ready; the loss of one is no end.
    Session,
    /// The model that was asked for.
    Opened,
    /// The answer.
    Answer,
}

/// Takes an answer's bytes as they come: where they belong in it, and they themselves.
type Output<'c> = dyn FnMut(usize, &[u8]) + 'c;

/// One call of the client's, with what it has so far. What ends it is kept here, so that what drives it
/// need only say whether it goes on: errors are large, and moving them up is code.
struct Call<'c, E> {
    /// The time when it was looked at last, and what was left then of what it may take.
    now: u64,
    left: u32,
    within: Micros,
    wanted: Wanted,
    id: RequestId,
    /// The message that is coming in is for this call; it is here as a whole.
    mine: bool,
    whole: bool,
    opening: Opening<'c>,
    walk: Walk,
    model: SerialModel,
    output: Option<&'c mut Output<'c>>,
    output_len: usize,
    /// Something ended it, which is the result then.
    failed: bool,
    result: Result<SerialAnswer, SerialError<E>>,
}

impl<'c, E> Call<'c, E> {
    #[inline(never)]
    fn new(within: Micros, opening: Opening<'c>) -> Self {
        Call {
            now: 0,
            left: within.0,
            within,
            wanted: Wanted::Time,
            id: RequestId(0),
            mine: false,
            whole: false,
            opening,
            walk: Walk::new(),
            model: SerialModel::new(0),
            output: None,
            output_len: 0,
            failed: false,
            result: Err(SerialError::Clock),
        }
    }
    /// Ends it, unless something did before. Always false: it does not go on.
    #[inline(never)]
    fn fail(&mut self, error: SerialError<E>) -> bool {
        if !self.failed {
            self.result = Err(error);
            self.failed = true;
        }
        false
    }
    fn want(&mut self, wanted: Wanted) {
        self.wanted = wanted;
        (self.mine, self.whole) = (false, false);
    }
    fn lost(&mut self, reason: DownReason) {
        if matches!(self.wanted, Wanted::Opened | Wanted::Answer) {
            self.fail(SerialError::Link(reason));
        }
    }
    /// Takes what the line brought. False: the conversation broke.
    fn hear(&mut self, told: Told<'_>) -> bool {
        match told {
            Told::Up => self.lost(DownReason::PeerReset),
            Told::Down(reason) => self.lost(reason),
            Told::Heard(_) if self.wanted == Wanted::Time => {}
            Told::Heard(Heard::Reply { noted, payload_len, .. }) => {
                self.mine = false;
                if noted.id.is_none_or(|id| id == self.id) {
                    return self.reply(noted, payload_len as usize);
                }
            }
            Told::Heard(Heard::Payload { bytes, remaining }) if self.mine => {
                self.payload(bytes, remaining as usize);
                self.whole = remaining == 0;
            }
            Told::Heard(_) => {}
        }
        true
    }
    /// Reads a reply to this call, or one about the connection. False: it is no message.
    fn reply(&mut self, noted: Noted<'_>, payload_len: usize) -> bool {
        const OPENED: u8 = Kind::Open as u8;
        const ANSWER: u8 = Kind::Infer as u8;
        let Noted { number: said, mut fields, .. } = noted;
        match (said, self.wanted) {
            (number::ERROR, _) => {
                let number = fields.u16();
                fields.bytes();
                let (a, b) = (fields.u64(), fields.u64());
                self.fail(SerialError::Server { number, a, b });
            }
            (OPENED, Wanted::Opened) => {
                self.model.id = ModelId(fields.u16());
                self.model.rows_max = Rows(fields.u16());
                self.model.priority_levels = fields.byte();
                self.model.timeout = Micros(fields.u32());
                self.mine = true;
            }
            (ANSWER, Wanted::Answer) => {
                let (len, wanted) = (payload_len, self.output_len);
                self.mine = len == wanted;
                if !self.mine {
                    self.fail(SerialError::OutputLength { len, wanted });
                }
                let rows = Rows(fields.u16());
                let receipt = fields.receipt();
                if !self.failed {
                    self.result = Ok(SerialAnswer { rows, receipt });
                }
            }
            // The session has read it.
            _ => return true,
        }
        self.whole |= self.mine && payload_len == 0;
        if let Err(error) = fields.end(said) {
            self.failed = false;
            return self.fail(SerialError::Session(SessionError::Message(error)));
        }
        true
    }
    fn payload(&mut self, bytes: &[u8], remaining: usize) {
        if self.wanted == Wanted::Answer {
            if let Some(output) = &mut self.output {
                output(self.output_len - remaining - bytes.len(), bytes);
            }
            return;
        }
        for &byte in bytes {
            if let Err(error) = self.walk.take(byte, &self.opening, &mut self.model) {
                self.fail(SerialError::Signature(error));
                return;
            }
        }
    }
}

impl<C, R, T> SerialClient<C, R, T>
where
    C: Clock,
    C::T: Into<u64>,
    R: AsRef<[u8]> + AsMut<[u8]>,
    T: AsRef<[u8]> + AsMut<[u8]>,
{
    /// Begins a call's time.
    fn begin<E>(&mut self, call: &mut Call<'_, E>) -> bool {
        let Ok(now) = self.clock.now() else { return call.fail(SerialError::Clock) };
        call.now = now;
        true
    }

    /// Ends a call by what was wrong in the conversation.
    #[inline(never)]
    fn broken<E>(&self, call: &mut Call<'_, E>) -> bool {
        call.fail(SerialError::Session(self.session.talk.fault()))
    }

    /// One turn: moves bytes between the port and the link, both ways. False if the call ended by it.
    #[inline(never)]
    fn turn<P: Port>(&mut self, port: &mut P, call: &mut Call<'_, P::Error>) -> bool {
        let mut chunk = [0; CHUNK];
        let read = match port.read(&mut chunk) {
            Ok(read) => read,
            Err(error) => return call.fail(SerialError::Port(error)),
        };
        let Ok(now) = self.clock.now() else { return call.fail(SerialError::Clock) };
        let took = u32::try_from(now.saturating_sub(call.now)).unwrap_or(u32::MAX);
        call.left = call.left.saturating_sub(took);
        call.now = now;
        let bytes = chunk.get(..read).unwrap_or(&chunk);
        if let Err(Fault) = self.take(now, bytes, &mut |told| call.hear(told)) {
            return self.broken(call);
        }
        if let Some(reason) = self.look(now) {
            call.lost(reason);
        }
        let written = match self.write(port, now) {
            Ok(written) => written,
            Err(error) => return call.fail(SerialError::Port(error)),
        };
        // What is here as a whole has come in time.
        if !call.whole {
            if port.cancelled() {
                call.fail(SerialError::Cancelled);
            }
            if call.left == 0 {
                call.fail(SerialError::Deadline { allowed: call.within });
            }
            if read == 0 && written == 0 && !call.failed {
                let left = u64::from(call.left);
                let next = self.next_timeout().map_or(left, |next| next.saturating_sub(now));
                port.idle(next.min(left));
            }
        }
        !call.failed
    }
    /// Gives the port what is to be sent, as much as it takes at once.
    fn write<P: Port>(&mut self, port: &mut P, now: u64) -> Result<usize, P::Error> {
        if self.line_at == self.line_len {
            self.line_len = self.link.transmit(now, &mut self.line) as u8;
            self.line_at = 0;
        }
        let (from, to) = (usize::from(self.line_at), usize::from(self.line_len));
        let bytes = self.line.get(from..to).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(0);
        }
        let n = port.write(bytes)?.min(bytes.len());
        self.line_at += n as u8;
        Ok(n)
    }

    /// Brings a session up and the hello through, as often as it takes.
    fn ready<P: Port>(&mut self, port: &mut P, call: &mut Call<'_, P::Error>) -> bool {
        call.want(Wanted::Session);
        call.id = RequestId(0);
        // After a silence the server may have given the session up, or restarted: better to know
        // before a request is sent than to lose it.
        self.link.probe(call.now);
        if self.session.in_flight() >= IN_FLIGHT {
            self.connect_at(call.now);
        }
        loop {
            if self.link.is_down() {
                self.connect_at(call.now);
            }
            if self.session.talk.is_ready() && !self.link.is_probing() {
                return true;
            }
            if self.session.talk.is_challenged() {
                self.disconnect();
                return call.fail(SerialError::KeyWanted);
            }
            if !self.turn(port, call) {
                return false;
            }
        }
    }

    /// Opens the call's model, again after the loss of a session.
    #[inline(never)]
    fn open_call<P: Port>(&mut self, port: &mut P, call: &mut Call<'_, P::Error>) -> bool {
        if let Some(error) = self.too_short_for(&call.opening) {
            return call.fail(error);
        }
        while !self.open_once(port, call) {
            if !matches!(call.result, Err(SerialError::Link(_))) {
                return false;
            }
            call.failed = false;
        }
        true
    }
    fn open_once<P: Port>(&mut self, port: &mut P, call: &mut Call<'_, P::Error>) -> bool {
        if !self.ready(port, call) {
            return false;
        }
        call.want(Wanted::Opened);
        call.walk = Walk::new();
        call.model = SerialModel::new(self.generation);
        call.id = loop {
            match self.ask_open(&call.opening) {
                Ok(Some(id)) => break id,
                Ok(None) => {}
                Err(Fault) => return self.broken(call),
            }
            if !self.turn(port, call) {
                return false;
            }
        };
        while !call.whole {
            if !self.turn(port, call) {
                return false;
            }
        }
        // An error may have come in the same piece of the line.
        if !call.walk.is_whole() {
            call.fail(SerialError::Signature(crate::wire::BodyError));
        }
        !call.failed
    }
    /// Opens a model by its name, or by an [`Opening`] with encodings; opening does nothing at the
    /// server, so it is begun again after the loss of a session, as long as there is time. The model's
    /// signature is read as it comes and not kept.
    ///
    /// # Errors
    /// There is no such model, the send buffer is too short for its name, or anything that
    /// [`infer`](Self::infer) may meet.
    pub fn open<'a, P: Port>(
        &mut self,
        port: &mut P,
        opening: impl Into<Opening<'a>>,
        within: Micros,
    ) -> Result<SerialModel, SerialError<P::Error>> {
        let mut call = Call::new(within, opening.into());
        if self.begin(&mut call) && self.open_call(port, &mut call) {
            return Ok(call.model);
        }
        Err(call.result.err().unwrap_or(SerialError::Clock))
    }

    /// Asks for one inference, and waits for its answer.
    #[inline(never)]
    fn infer_call<P: Port>(
        &mut self,
        port: &mut P,
        model: &SerialModel,
        request: SerialRequest,
        input: &mut dyn FnMut() -> Option<u8>,
        call: &mut Call<'_, P::Error>,
    ) -> bool {
        if !self.ready(port, call) {
            return false;
        }
        if model.generation != self.generation {
            return call.fail(SerialError::StaleModel);
        }
        let wanted = model.input_len(request.rows);
        call.output_len = model.output_len(request.rows);
        call.want(Wanted::Answer);
        // The server's time begins when it has everything, and the answer's way is not its.
        let way = self.link.line_time(wanted.saturating_add(call.output_len));
        let way = u32::try_from(way).unwrap_or(u32::MAX);
        call.id = loop {
            let left = call.left.saturating_sub(way);
            let deadline = Micros(left.clamp(1, TIMEOUT_US_MAX));
            let (model, rows, priority) = (model.id, request.rows, request.priority);
            match self.ask_infer(&Infer { model, rows, deadline, priority }, wanted) {
                Ok(Some(id)) => break id,
                Ok(None) => {}
                Err(Fault) => return self.broken(call),
            }
            if !self.turn(port, call) {
                return false;
            }
        };
        let mut len = 0;
        while !call.failed && !call.whole {
            while len < wanted && self.link.send_room() > 0 {
                let Some(byte) = input() else {
                    call.fail(SerialError::InputLength { len, wanted });
                    break;
                };
                len += 1;
                self.link.send(&[byte], len < wanted);
            }
            if !call.failed {
                self.turn(port, call);
            }
        }
        if call.failed && self.session.is_in_flight(call.id) {
            if len < wanted {
                // A frame without its end can't be taken back.
                self.disconnect();
            } else {
                // If there is no room for it, the server's own deadline ends the request.
                let _ = self.ask_cancel(call.id);
            }
        }
        if !call.failed && input().is_some() {
            call.fail(SerialError::InputLength { len: wanted + 1, wanted });
        }
        !call.failed
    }
    /// Sends an inference and waits for its answer. The input's bytes are as
    /// [`wire`](crate::wire#payloads) lays them out; `output` gets the answer's, in pieces, each
    /// with its position.
    ///
    /// # Errors
    /// A typed error, at the latest when `request.within` has passed. What `output` got before an
    /// error is not an answer.
    pub fn infer<P: Port>(
        &mut self,
        port: &mut P,
        model: &SerialModel,
        request: SerialRequest,
        input: impl IntoIterator<Item = u8>,
        output: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<SerialAnswer, SerialError<P::Error>> {
        let mut call = Call::new(request.within, Opening::from(""));
        let mut output = |at: usize, bytes: &[u8]| output(at, bytes);
        call.output = Some(&mut output);
        let mut input = input.into_iter();
        if self.begin(&mut call) {
            self.infer_call(port, model, request, &mut || input.next(), &mut call);
        }
        call.result
    }

    /// As [`infer`](Self::infer), made again as `retries` says; `input` gives the bytes anew each
    /// time, `model` is opened again after a new session.
    ///
    /// # Errors
    /// The last attempt's. All attempts together take no longer than `request.within`.
    pub fn infer_retrying<'a, P: Port, I: IntoIterator<Item = u8>>(
        &mut self,
        port: &mut P,
        (opening, model): (impl Into<Opening<'a>>, &mut SerialModel),
        request: SerialRequest,
        retries: Retries,
        mut input: impl FnMut() -> I,
        output: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<SerialAnswer, SerialError<P::Error>> {
        let mut call = Call::new(request.within, opening.into());
        let mut output = |at: usize, bytes: &[u8]| output(at, bytes);
        call.output = Some(&mut output);
        let mut left = retries.times;
        let mut on = self.begin(&mut call);
        while on {
            if model.generation != self.generation || !self.link.is_up() {
                if self.open_call(port, &mut call) {
                    *model = call.model.clone();
                    continue;
                }
            } else {
                let mut input = input().into_iter();
                let input: &mut dyn FnMut() -> Option<u8> = &mut || input.next();
                if self.infer_call(port, model, request, input, &mut call) {
                    break;
                }
            }
            on = self.again(port, retries, &mut left, &mut call);
        }
        call.result
    }
    /// Whether a call that failed is made again: after its pause, and with its error forgotten.
    #[inline(never)]
    fn again<P: Port>(
        &mut self,
        port: &mut P,
        retries: Retries,
        left: &mut u8,
        call: &mut Call<'_, P::Error>,
    ) -> bool {
        match &call.result {
            // To be opened anew: the request itself was not sent yet.
            Err(SerialError::StaleModel) => {
                call.failed = false;
                return true;
            }
            Err(SerialError::Link(_)) if retries.after_link_loss => {}
            Err(error) if error.is_refused_for_now() => {}
            _ => return false,
        }
        if *left == 0 {
            return false;
        }
        *left -= 1;
        call.failed = false;
        call.want(Wanted::Time);
        let until = call.left.saturating_sub(retries.pause.0);
        while call.left > until {
            if !self.turn(port, call) {
                return false;
            }
        }
        true
    }
}
