//! Requests from beginning to end, over a port that does not block.

use super::{IN_FLIGHT, Port, Retries, SerialAnswer, SerialClient, SerialError, SerialEvent};
use super::{Opening, SerialModel, SerialRequest};
use crate::client::session::{Event, Infer, State};
use crate::units::{Micros, ModelId, RequestId};
use crate::wire::Reply;
use crate::wire::link::DownReason;
use embedded_time::Clock;

/// Bytes moved at a time from the port, and from an input.
const CHUNK: usize = 32;

/// Puts input into a chunk, no more than there is room for; says how much, and whether that was all.
/// The error is the length of an input that was too short.
type Fill<'f> = &'f mut dyn FnMut(usize, &mut [u8]) -> Result<(usize, bool), usize>;

/// When a request must have ended.
#[derive(Debug, Clone, Copy)]
struct Until {
    at: u64,
    allowed: Micros,
}

/// How a request ended, besides its answer.
#[derive(Debug, Clone, Copy)]
enum Failed {
    Server { number: u16, a: u64, b: u64 },
    Down(DownReason),
    OutputLength { len: usize, wanted: usize },
}

impl<E> From<Failed> for SerialError<E> {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Server { number, a, b } => SerialError::Server { number, a, b },
            Failed::Down(reason) => SerialError::Link(reason),
            Failed::OutputLength { len, wanted } => SerialError::OutputLength { len, wanted },
        }
    }
}

/// The end of a request by an event that is not its reply.
fn failed(event: &SerialEvent<'_>, id: RequestId) -> Option<Failed> {
    match *event {
        SerialEvent::Down(reason) => Some(Failed::Down(reason)),
        SerialEvent::Up => Some(Failed::Down(DownReason::PeerReset)),
        SerialEvent::Message(Event::Reply {
            reply: Reply::Error { id: of, code, a, b, .. },
            ..
        }) if of.is_none_or(|of| of == id) => Some(Failed::Server { number: code, a, b }),
        _ => None,
    }
}

impl<C, R, T> SerialClient<C, R, T>
where
    C: Clock,
    C::T: Into<u64>,
    R: AsRef<[u8]> + AsMut<[u8]>,
    T: AsRef<[u8]> + AsMut<[u8]>,
{
    fn until<E>(&mut self, allowed: Micros) -> Result<Until, SerialError<E>> {
        Ok(Until { at: self.now()? + u64::from(allowed.0), allowed })
    }

    /// One turn: moves bytes between the port and the link, both ways. Returns why the session
    /// ended, if it did by the clock.
    fn turn<P: Port>(
        &mut self,
        port: &mut P,
        until: Until,
        on: &mut dyn FnMut(SerialEvent<'_>),
    ) -> Result<Option<DownReason>, SerialError<P::Error>> {
        let mut chunk = [0; CHUNK];
        let read = port.read(&mut chunk).map_err(SerialError::Port)?.min(CHUNK);
        if read > 0 {
            self.receive(&chunk[..read], on)?;
        }
        let down = self.poll()?;
        let written = self.write(port)?;
        let now = self.now()?;
        if down.is_none() && port.cancelled() {
            return Err(SerialError::Cancelled);
        }
        if down.is_none() && now >= until.at {
            return Err(SerialError::Deadline { allowed: until.allowed });
        }
        if read == 0 && written == 0 {
            let next = self.next_timeout().unwrap_or(until.at).min(until.at);
            port.idle(next.saturating_sub(now));
        }
        Ok(down)
    }
    /// Gives the port what is to be sent, as much as it takes at once.
    fn write<P: Port>(&mut self, port: &mut P) -> Result<usize, SerialError<P::Error>> {
        if self.line_at == self.line_len {
            let now = self.now()?;
            self.line_len = self.link.transmit(now, &mut self.line) as u8;
            self.line_at = 0;
        }
        let bytes = &self.line[usize::from(self.line_at)..usize::from(self.line_len)];
        if bytes.is_empty() {
            return Ok(0);
        }
        let n = port.write(bytes).map_err(SerialError::Port)?.min(bytes.len());
        self.line_at += n as u8;
        Ok(n)
    }

    /// Brings a session up and the hello through, as often as it takes.
    fn ready<P: Port>(&mut self, port: &mut P, until: Until) -> Result<(), SerialError<P::Error>> {
        let now = self.now()?;
        // After a silence the server may have given the session up, or restarted: better to know
        // before a request is sent than to lose it.
        self.link.probe(now);
        if self.session.in_flight() >= IN_FLIGHT {
            self.connect()?;
        }
        loop {
            if self.link.is_down() {
                self.connect()?;
            }
            if self.session.state() == State::Ready && !self.link.is_probing() {
                return Ok(());
            }
            let mut refused = None;
            self.turn(port, until, &mut |event| {
                if let Some(Failed::Server { number, a, b }) = failed(&event, RequestId(0)) {
                    refused = Some(SerialError::Server { number, a, b });
                }
            })?;
            if let Some(error) = refused {
                return Err(error);
            }
        }
    }

    /// Opens a model by its name, or by an [`Opening`] with encodings; opening does nothing at the
    /// server, so it is begun again after the loss of a session, as long as there is time. `scratch`
    /// holds its signature meanwhile (a few hundred bytes; the error says if it is too short).
    ///
    /// # Errors
    /// There is no such model, or anything that [`infer`](Self::infer) may meet.
    pub fn open<'a, P: Port>(
        &mut self,
        port: &mut P,
        opening: impl Into<Opening<'a>>,
        scratch: &mut [u8],
        within: Micros,
    ) -> Result<SerialModel, SerialError<P::Error>> {
        let opening = opening.into();
        let until = self.until(within)?;
        loop {
            match self.open_once(port, opening, scratch, until) {
                Err(SerialError::Link(_)) => {}
                result => return result,
            }
        }
    }
    fn open_once<P: Port>(
        &mut self,
        port: &mut P,
        opening: Opening<'_>,
        scratch: &mut [u8],
        until: Until,
    ) -> Result<SerialModel, SerialError<P::Error>> {
        self.ready(port, until)?;
        let id = loop {
            if let Some(id) = self.request_open(opening)? {
                break id;
            }
            if let Some(reason) = self.turn(port, until, &mut |_| {})? {
                return Err(SerialError::Link(reason));
            }
        };
        let mut model = SerialModel::new(ModelId(0), self.generation);
        let (mut mine, mut len, mut whole, mut end) = (false, 0usize, false, None);
        while !whole {
            let down = self.turn(port, until, &mut |event| {
                end = end.or(failed(&event, id));
                match event {
                    SerialEvent::Message(Event::Reply { reply, payload_len }) => {
                        mine = reply.id() == Some(id);
                        if let Reply::Opened {
                            model: number,
                            rows_max,
                            priority_levels,
                            timeout,
                            ..
                        } = reply
                            && mine
                        {
                            model.id = number;
                            model.rows_max = rows_max;
                            model.priority_levels = priority_levels;
                            model.timeout = timeout;
                            whole = payload_len == 0;
                        }
                    }
                    SerialEvent::Message(Event::Payload { bytes, remaining }) if mine => {
                        if let Some(place) = scratch.get_mut(len..len + bytes.len()) {
                            place.copy_from_slice(bytes);
                        }
                        len += bytes.len();
                        whole = remaining == 0;
                    }
                    _ => {}
                }
            })?;
            if let Some(failed) = end.or(down.map(Failed::Down)) {
                return Err(failed.into());
            }
        }
        let max = scratch.len();
        let signature = scratch.get(..len).ok_or(SerialError::SignatureTooLong { len, max })?;
        model.describe(opening, signature).map_err(SerialError::Signature)?;
        Ok(model)
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
        let until = self.until(request.within)?;
        self.ready(port, until)?;
        if model.generation != self.generation {
            return Err(SerialError::StaleModel);
        }
        let input_len = model.input_len(request.rows);
        let output_len = model.output_len(request.rows);
        let infer = Infer {
            model: model.id,
            rows: request.rows,
            deadline: Micros(0),
            priority: request.priority,
        };
        let mut input = input.into_iter();
        let id = loop {
            // The server's time begins when it has everything, and the answer's way is not its.
            let left = until.at.saturating_sub(self.now()?);
            let way = self.link.line_time(input_len + output_len);
            let left = left.saturating_sub(way).clamp(1, u64::from(u32::MAX)) as u32;
            let infer =
                Infer { deadline: Micros(left.min(crate::limits::TIMEOUT_US_MAX)), ..infer };
            if let Some(id) = self.request_infer(infer, input_len)? {
                break id;
            }
            if let Some(reason) = self.turn(port, until, &mut |_| {})? {
                return Err(SerialError::Link(reason));
            }
        };
        let mut sent = 0;
        let result = self.exchange(
            port,
            (id, until),
            &mut |link_room, chunk| {
                let want = link_room.min(chunk.len()).min(input_len - sent);
                let mut n = 0;
                for (place, byte) in chunk[..want].iter_mut().zip(&mut input) {
                    *place = byte;
                    n += 1;
                }
                sent += n;
                if n < want { Err(sent) } else { Ok((n, sent == input_len)) }
            },
            (input_len, output_len),
            output,
        );
        if result.is_err() && self.session.is_in_flight(id) {
            if sent < input_len {
                // A frame without its end can't be taken back.
                self.disconnect();
            } else {
                // If there is no room for it, the server's own deadline ends the request.
                let _ = self.request_cancel::<P::Error>(id);
            }
        }
        if result.is_ok() && input.next().is_some() {
            return Err(SerialError::InputLength { len: input_len + 1, wanted: input_len });
        }
        result
    }

    /// Moves a request's input and its answer.
    fn exchange<P: Port>(
        &mut self,
        port: &mut P,
        (id, until): (RequestId, Until),
        fill: Fill<'_>,
        (input_len, output_len): (usize, usize),
        output: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<SerialAnswer, SerialError<P::Error>> {
        let mut all = input_len == 0;
        let (mut mine, mut answer, mut whole, mut end) = (false, None, false, None);
        loop {
            let mut chunk = [0; CHUNK];
            while !all && self.send_room() > 0 {
                let (n, last) = fill(self.send_room(), &mut chunk)
                    .map_err(|len| SerialError::InputLength { len, wanted: input_len })?;
                self.send_payload(&chunk[..n], !last);
                all = last;
            }
            let down = self.turn(port, until, &mut |event| {
                end = end.or(failed(&event, id));
                match event {
                    SerialEvent::Message(Event::Reply { reply, payload_len }) => {
                        mine = reply.id() == Some(id);
                        if let Reply::Answer { rows, receipt, .. } = reply
                            && mine
                        {
                            let len = payload_len as usize;
                            if len != output_len {
                                end = Some(Failed::OutputLength { len, wanted: output_len });
                                mine = false;
                            }
                            answer = Some(SerialAnswer { rows, receipt });
                            whole = len == 0;
                        }
                    }
                    SerialEvent::Message(Event::Payload { bytes, remaining }) if mine => {
                        output(output_len - remaining as usize - bytes.len(), bytes);
                        whole = remaining == 0;
                    }
                    _ => {}
                }
            })?;
            if let Some(failed) = end.or(down.map(Failed::Down)) {
                return Err(failed.into());
            }
            if let Some(answer) = answer
                && whole
            {
                return Ok(answer);
            }
        }
    }

    /// As [`infer`](Self::infer), made again as `retries` says; `input` gives the bytes anew each
    /// time, `model` is opened again after a new session.
    ///
    /// # Errors
    /// The last attempt's. All attempts together take no longer than `request.within`.
    #[allow(clippy::too_many_arguments)]
    pub fn infer_retrying<'a, P: Port, I: IntoIterator<Item = u8>>(
        &mut self,
        port: &mut P,
        (opening, model, scratch): (impl Into<Opening<'a>>, &mut SerialModel, &mut [u8]),
        request: SerialRequest,
        retries: Retries,
        mut input: impl FnMut() -> I,
        output: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<SerialAnswer, SerialError<P::Error>> {
        let opening = opening.into();
        let until = self.until::<P::Error>(request.within)?;
        let mut left = retries.times;
        loop {
            let within = until.at.saturating_sub(self.now()?) as u32;
            let result = if model.generation != self.generation || !self.link.is_up() {
                let opened = self.open(port, opening, scratch, Micros(within));
                opened.map(|opened| *model = opened).and(Err(SerialError::StaleModel))
            } else {
                let request = SerialRequest { within: Micros(within), ..request };
                self.infer(port, model, request, input(), output)
            };
            match result {
                // Opened anew, or to be: the request itself was not sent yet.
                Err(SerialError::StaleModel) => continue,
                Err(error) if left > 0 => {
                    let lost = matches!(error, SerialError::Link(_)) && retries.after_link_loss;
                    if !lost && !error.is_refused_for_now() {
                        return Err(error);
                    }
                    left -= 1;
                    let again = self.now::<P::Error>()? + u64::from(retries.pause.0);
                    while self.now::<P::Error>()? < again {
                        self.turn(port, until, &mut |_| {})?;
                    }
                }
                result => return result,
            }
        }
    }
}
