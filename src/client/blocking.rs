//! A blocking client over a Unix socket or TCP.

use super::session::{Event, Infer, Session, SessionError, State};
use super::stream::{Address, Stream};
use super::types::{Answer, ClientError, Model, Options, ServerError, TensorInfo, Ticket};
use crate::limits::IN_FLIGHT_PER_CONNECTION_MAX;
use crate::units::{Micros, ModelId, Priority, Receipt, RequestId, Rows};
use crate::wire::{self, Encoding, HEAD_BYTES_MAX, HealthKind, Place, Reply, TensorEncoding};
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

/// Bytes that are read at once; longer payloads are read straight into the answer.
const READ_BYTES: usize = 64 * 1024;
/// Payload buffers kept for later answers.
const POOL_LEN_MAX: usize = 64;

/// The part of a reply that outlives its bytes.
#[derive(Debug)]
enum Outcome {
    Answer { rows: Rows, receipt: Receipt },
    Opened { model: ModelId, rows_max: Rows, priority_levels: u8, timeout: Micros },
    Health(bool),
    Models { count: u16 },
    Plain,
    Error(ServerError),
}

/// Whether it ends a request for an inference.
fn is_end(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answer { .. } | Outcome::Error(_))
}

/// A blocking connection to a server. Requests may be in flight by the hundred: [`submit`] them,
/// and [`wait`] for each, in any order.
///
/// Sending never deadlocks against a server that waits for its answers to be read: while the socket
/// takes no more, answers are read.
///
/// [`submit`]: Self::submit
/// [`wait`]: Self::wait
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    session: Session<IN_FLIGHT_PER_CONNECTION_MAX>,
    options: Options,
    recv_timeout: Option<Duration>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Whether the last reply had a payload that is better not read into `buffer`.
    long_payloads: bool,
    /// The reply whose payload is coming: its id, outcome, payload, and how much of that is here.
    current: Option<(RequestId, Outcome, Vec<u8>, usize)>,
    done: Vec<(RequestId, Outcome, Vec<u8>)>,
    pool: Vec<Vec<u8>>,
    /// The connection's own error, said before it closes.
    last_words: Option<ServerError>,
    /// Whether the server has said goodbye.
    told_goodbye: bool,
}

impl Client {
    /// Connects and greets.
    pub fn connect(address: &Address, options: Options) -> Result<Client, ClientError> {
        let stream = Stream::connect(address, options.timeout)?;
        let mut client = Client {
            stream,
            session: Session::new(),
            options,
            recv_timeout: None,
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            long_payloads: false,
            current: None,
            done: Vec::new(),
            pool: Vec::new(),
            last_words: None,
            told_goodbye: false,
        };
        let mut head = [0; HEAD_BYTES_MAX];
        let n = client.session.hello(&client.options.name, &mut head)?;
        client.send(&head[..n], &[])?;
        let deadline = client.deadline();
        loop {
            match client.session.state() {
                State::Ready => return Ok(client),
                // It came together with the answer to the hello.
                State::Leaving => return Err(ClientError::ShuttingDown),
                State::Challenged { nonce } => {
                    let key = client.options.key.as_ref().ok_or(ClientError::KeyWanted)?;
                    let n = client.session.auth(key.prove(&nonce), &mut head)?;
                    client.send(&head[..n], &[])?;
                }
                _ => client.receive(deadline)?,
            }
        }
    }

    fn deadline(&self) -> Option<(Instant, Duration)> {
        self.options.timeout.map(|timeout| (Instant::now() + timeout, timeout))
    }

    /// Sends a frame; reads answers while the socket takes no more.
    fn send(&mut self, head: &[u8], payload: &[u8]) -> Result<(), ClientError> {
        let total = head.len() + payload.len();
        let mut sent = 0;
        while sent < total {
            let parts = [
                IoSlice::new(&head[sent.min(head.len())..]),
                IoSlice::new(&payload[sent.saturating_sub(head.len())..]),
            ];
            match self.stream.try_send(&parts) {
                Ok(n) => sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.stream.wait_either(self.options.timeout)? {
                        let after = self.options.timeout.unwrap_or_default();
                        return Err(ClientError::TimedOut { after });
                    }
                    self.receive_once(false)?;
                }
                Err(error) => {
                    // The server may have said why before it closed.
                    while self.read(false).is_ok() {}
                    return Err(self.ended(error.into()));
                }
            }
        }
        Ok(())
    }

    /// Reads once, if there is something, and takes it in; `wait`: for that, as long as the receive timeout says.
    fn receive_once(&mut self, wait: bool) -> Result<(), ClientError> {
        match self.read(wait) {
            Err(ClientError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error @ ClientError::Closed) => Err(self.ended(error)),
            result => result,
        }
    }

    /// Waits for bytes until `deadline`, and takes them in.
    fn receive(&mut self, deadline: Option<(Instant, Duration)>) -> Result<(), ClientError> {
        if let Some(words) = self.last_words.take() {
            return Err(ClientError::Server(words));
        }
        if let Some((at, whole)) = deadline {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ClientError::TimedOut { after: whole });
            }
            // One system call for many waits of the same length; a quarter more is near enough.
            let fits = self.recv_timeout.is_some_and(|set| set >= left && set <= left + left / 4);
            if !fits {
                self.stream.set_recv_timeout(Some(left.max(Duration::from_micros(1))))?;
                self.recv_timeout = Some(left);
            }
        } else if self.recv_timeout.is_some() {
            self.stream.set_recv_timeout(None)?;
            self.recv_timeout = None;
        }
        self.receive_once(true)
    }

    /// Reads once, and takes in what came.
    fn read(&mut self, wait: bool) -> Result<(), ClientError> {
        let remaining = self.session.payload_remaining() as usize;
        if let Some((_, _, payload, here)) = &mut self.current
            && remaining > 0
        {
            let n = self.stream.recv(&mut payload[*here..*here + remaining], wait)?;
            if n == 0 {
                return Err(ClientError::Closed);
            }
            *here += n;
            self.session.payload_taken(n as u32);
            self.finish_current();
            return Ok(());
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.end == self.buffer.len() {
            // Never with bytes left over: `digest` takes everything.
            self.start = 0;
            self.end = 0;
        }
        // Where payloads are long, little more than a head is read here, so that the payload goes
        // straight to where it is kept.
        let room = &mut self.buffer[self.end..];
        let ask = if self.long_payloads { room.len().min(HEAD_BYTES_MAX) } else { room.len() };
        let n = self.stream.recv(&mut room[..ask], wait)?;
        if n == 0 {
            return Err(ClientError::Closed);
        }
        self.end += n;
        self.digest()
    }

    /// Why the connection ended: what the server said before, else `error`.
    fn ended(&mut self, error: ClientError) -> ClientError {
        match (self.last_words.take(), error) {
            (Some(words), _) => ClientError::Server(words),
            (None, ClientError::Closed) if self.told_goodbye => ClientError::ShuttingDown,
            (None, error) => error,
        }
    }

    /// Why a request can't be sent.
    fn unsent(&self, error: SessionError) -> ClientError {
        match error {
            SessionError::WrongState if self.told_goodbye => ClientError::ShuttingDown,
            error => error.into(),
        }
    }

    fn finish_current(&mut self) {
        if self.session.payload_remaining() == 0
            && let Some((id, outcome, mut payload, here)) = self.current.take()
        {
            payload.truncate(here);
            self.done.push((id, outcome, payload));
        }
    }

    /// Turns the bytes read into outcomes.
    fn digest(&mut self) -> Result<(), ClientError> {
        loop {
            let (taken, event) = self.session.feed(&self.buffer[self.start..self.end])?;
            match event {
                None => {
                    self.start += taken;
                    return Ok(());
                }
                Some(Event::Payload { bytes, .. }) => {
                    if let Some((_, _, payload, here)) = &mut self.current {
                        payload[*here..*here + bytes.len()].copy_from_slice(bytes);
                        *here += bytes.len();
                    }
                }
                Some(Event::Reply { reply, payload_len }) => {
                    self.long_payloads = payload_len as usize > READ_BYTES / 4;
                    self.told_goodbye |= matches!(reply, Reply::Goodbye);
                    let id = reply.id();
                    let outcome = match reply {
                        Reply::Answer { rows, receipt, .. } => Outcome::Answer { rows, receipt },
                        Reply::Opened { model, rows_max, priority_levels, timeout, .. } => {
                            Outcome::Opened { model, rows_max, priority_levels, timeout }
                        }
                        Reply::Health { ok, .. } => Outcome::Health(ok),
                        Reply::Models { count, .. } => Outcome::Models { count },
                        Reply::Error { code, text, a, b, .. } => {
                            Outcome::Error(ServerError { number: code, text: text.into(), a, b })
                        }
                        _ => Outcome::Plain,
                    };
                    match (id, outcome) {
                        (Some(id), outcome) => {
                            let mut payload = self.pool.pop().unwrap_or_default();
                            payload.resize(payload_len as usize, 0);
                            self.current = Some((id, outcome, payload, 0));
                        }
                        (None, Outcome::Error(error)) => self.last_words = Some(error),
                        (None, _) => {}
                    }
                }
            }
            self.start += taken;
            self.finish_current();
        }
    }

    /// Waits for the reply with this id.
    fn reply(
        &mut self,
        id: RequestId,
        deadline: Option<(Instant, Duration)>,
    ) -> Result<(Outcome, Vec<u8>), ClientError> {
        loop {
            if let Some(at) = self.done.iter().position(|(other, ..)| *other == id) {
                let (_, outcome, payload) = self.done.swap_remove(at);
                return match outcome {
                    Outcome::Error(error) => {
                        self.give_back(payload);
                        Err(ClientError::Server(error))
                    }
                    outcome => Ok((outcome, payload)),
                };
            }
            let coming = self.current.as_ref().is_some_and(|(other, ..)| *other == id);
            if !coming && !self.session.is_in_flight(id) {
                return Err(ClientError::NoSuchTicket(Ticket(id)));
            }
            self.receive(deadline)?;
        }
    }

    /// Sends a request without payload and waits for its reply.
    fn ask(
        &mut self,
        write: impl FnOnce(
            &mut Session<IN_FLIGHT_PER_CONNECTION_MAX>,
            &mut [u8],
        ) -> Result<(RequestId, usize), SessionError>,
    ) -> Result<(Outcome, Vec<u8>), ClientError> {
        let mut head = [0; HEAD_BYTES_MAX];
        let written = write(&mut self.session, &mut head);
        let (id, n) = written.map_err(|e| self.unsent(e))?;
        self.send(&head[..n], &[])?;
        let deadline = self.deadline();
        self.reply(id, deadline)
    }

    /// Asks for a model by name.
    pub fn open(&mut self, name: &str) -> Result<Model, ClientError> {
        self.open_encoded(name, &[])
    }
    /// Asks for a model by name, the listed tensors to travel encoded:
    /// [`Model::encode_input`] and [`Model::decode_output`] convert whole payloads.
    pub fn open_encoded(
        &mut self,
        name: &str,
        tensors: &[TensorEncoding],
    ) -> Result<Model, ClientError> {
        let (outcome, payload) = self.ask(|session, out| match tensors {
            [] => session.open(name, out),
            _ => session.open_encoded(name, tensors, out),
        })?;
        let Outcome::Opened { model, rows_max, priority_levels, timeout } = outcome else {
            return Err(ClientError::Body);
        };
        let signature = wire::Signature::decode(&payload).map_err(|_| ClientError::Body)?;
        // Lengths are computed later without checks, so they must not overflow for any row count.
        for tensors in [&signature.inputs, &signature.outputs] {
            let len = wire::payload_len(tensors, Rows(u16::MAX)).ok_or(ClientError::Body)?;
            usize::try_from(len).map_err(|_| ClientError::Body)?;
        }
        let encodings = |count: usize, place: fn(u8) -> Place| {
            let of = |at: usize| {
                let asked = tensors.iter().find(|asked| asked.place == place(at as u8));
                asked.map_or(Encoding::F32, |asked| asked.encoding)
            };
            (0..count).map(of).collect()
        };
        let info = |tensor: &wire::Tensor<'_>| TensorInfo {
            name: tensor.name.into(),
            dtype: tensor.dtype,
            row_shape: tensor.row_shape.iter().map(|&axis| axis as usize).collect(),
            row_bytes: tensor.row_bytes().unwrap_or(0) as usize,
        };
        Ok(Model {
            name: name.into(),
            id: model,
            rows_max,
            priority_levels,
            timeout,
            batched: signature.batched,
            inputs: signature.inputs.iter().map(info).collect(),
            outputs: signature.outputs.iter().map(info).collect(),
            input_encodings: encodings(signature.inputs.len(), Place::Input),
            output_encodings: encodings(signature.outputs.len(), Place::Output),
        })
    }

    /// Sends an inference with the model's default deadline and priority. `payload` holds the input
    /// tensors of `rows` rows; the server checks it.
    pub fn submit(
        &mut self,
        model: &Model,
        rows: Rows,
        payload: &[u8],
    ) -> Result<Ticket, ClientError> {
        let request = Infer { model: model.id, rows, deadline: Micros(0), priority: Priority(0) };
        self.submit_with(request, payload)
    }
    /// Sends an inference.
    pub fn submit_with(&mut self, request: Infer, payload: &[u8]) -> Result<Ticket, ClientError> {
        let mut head = [0; HEAD_BYTES_MAX];
        let written = self.session.infer(request, payload.len(), &mut head);
        let (id, n) = written.map_err(|e| self.unsent(e))?;
        self.send(&head[..n], payload)?;
        Ok(Ticket(id))
    }
    /// Waits for an answer, as long as the options say.
    pub fn wait(&mut self, ticket: Ticket) -> Result<Answer, ClientError> {
        let deadline = self.deadline();
        self.wait_deadline(ticket, deadline)
    }
    /// Waits for an answer at most so long; after [`ClientError::TimedOut`] the request is still in
    /// flight.
    pub fn wait_timeout(
        &mut self,
        ticket: Ticket,
        timeout: Duration,
    ) -> Result<Answer, ClientError> {
        self.wait_deadline(ticket, Some((Instant::now() + timeout, timeout)))
    }
    fn wait_deadline(
        &mut self,
        ticket: Ticket,
        deadline: Option<(Instant, Duration)>,
    ) -> Result<Answer, ClientError> {
        match self.reply(ticket.0, deadline)? {
            (Outcome::Answer { rows, receipt }, payload) => Ok(Answer { rows, receipt, payload }),
            _ => Err(ClientError::NoSuchTicket(ticket)),
        }
    }
    /// Waits, as long as the options say, for any inference to end.
    ///
    /// The outer error is the connection's, the inner one the request's.
    #[allow(clippy::type_complexity)]
    pub fn wait_any(&mut self) -> Result<(Ticket, Result<Answer, ServerError>), ClientError> {
        let deadline = self.deadline();
        loop {
            if let Some(at) = self.done.iter().position(|(_, outcome, _)| is_end(outcome)) {
                let (id, outcome, payload) = self.done.swap_remove(at);
                let result = match outcome {
                    Outcome::Answer { rows, receipt } => Ok(Answer { rows, receipt, payload }),
                    Outcome::Error(error) => Err(error),
                    _ => return Err(ClientError::Body),
                };
                return Ok((Ticket(id), result));
            }
            self.receive(deadline)?;
        }
    }
    /// Sends an inference and waits for its answer.
    pub fn infer(
        &mut self,
        model: &Model,
        rows: Rows,
        payload: &[u8],
    ) -> Result<Answer, ClientError> {
        let ticket = self.submit(model, rows, payload)?;
        self.wait(ticket)
    }
    /// Withdraws a request; [`wait`](Self::wait) for it still, for it ends with an error or with
    /// its answer.
    pub fn cancel(&mut self, ticket: Ticket) -> Result<(), ClientError> {
        let mut head = [0; HEAD_BYTES_MAX];
        let written = self.session.cancel(ticket.0, &mut head);
        let n = written.map_err(|e| self.unsent(e))?;
        self.send(&head[..n], &[])
    }
    /// Requests whose end was not handed out yet: in flight, or ended with an answer that came together
    /// with another one and is kept here.
    pub fn in_flight(&self) -> usize {
        let here = self.done.iter().map(|(_, outcome, _)| outcome);
        let coming = self.current.iter().map(|(_, outcome, ..)| outcome);
        self.session.in_flight() + here.chain(coming).filter(|o| is_end(o)).count()
    }
    /// Keeps a payload's buffer for a later answer, so that the client need not allocate.
    pub fn give_back(&mut self, payload: Vec<u8>) {
        if self.pool.len() < POOL_LEN_MAX && payload.capacity() > 0 {
            self.pool.push(payload);
        }
    }
    /// The server's statistics, as JSON text.
    pub fn stats(&mut self) -> Result<String, ClientError> {
        let (_, payload) = self.ask(|session, out| session.stats(out))?;
        String::from_utf8(payload).map_err(|_| ClientError::Body)
    }
    /// Has the server read a model's files again (every model's, with `None`) and serve what they hold now.
    /// Returns when that is done, or refused: JSON text with what came of it. The server's user and root may
    /// ask for it, on a Unix socket; give the options a timeout that loading fits in.
    pub fn reload(&mut self, model: Option<&str>) -> Result<String, ClientError> {
        if model == Some("") {
            return Err(ClientError::NoName);
        }
        let name = model.unwrap_or_default();
        let (_, payload) = self.ask(|session, out| session.reload(name, out))?;
        String::from_utf8(payload).map_err(|_| ClientError::Body)
    }
    /// Pings; returns the round-trip time.
    pub fn ping(&mut self) -> Result<Duration, ClientError> {
        let start = Instant::now();
        self.ask(|session, out| session.ping(out))?;
        Ok(start.elapsed())
    }
    /// Whether the server is live, or ready.
    pub fn health(&mut self, kind: HealthKind) -> Result<bool, ClientError> {
        match self.ask(|session, out| session.health(kind, out))? {
            (Outcome::Health(ok), _) => Ok(ok),
            _ => Err(ClientError::Body),
        }
    }
    /// The server's models: number, most rows of one request, name.
    pub fn models(&mut self) -> Result<Vec<(ModelId, Rows, String)>, ClientError> {
        let (outcome, payload) = self.ask(|session, out| session.models(out))?;
        let Outcome::Models { count } = outcome else { return Err(ClientError::Body) };
        let mut rest = payload.as_slice();
        let mut models = Vec::new();
        for _ in 0..count {
            let (entry, after) = wire::ModelEntry::decode(rest).map_err(|_| ClientError::Body)?;
            models.push((entry.model, entry.rows_max, entry.name.into()));
            rest = after;
        }
        Ok(models)
    }
    /// Says goodbye, waits until everything in flight is answered and the server closes, and
    /// returns the answers that nobody waited for.
    #[allow(clippy::type_complexity)]
    pub fn goodbye(mut self) -> Result<Vec<(Ticket, Result<Answer, ServerError>)>, ClientError> {
        // A server that has said it already reads no more.
        if !self.told_goodbye {
            let mut head = [0; HEAD_BYTES_MAX];
            let n = self.session.goodbye(&mut head)?;
            self.send(&head[..n], &[])?;
        }
        let deadline = self.deadline();
        loop {
            match self.receive(deadline) {
                Ok(()) => {}
                Err(ClientError::Closed | ClientError::ShuttingDown) => break,
                Err(error) => return Err(error),
            }
        }
        let ends = self.done.into_iter().filter_map(|(id, outcome, payload)| match outcome {
            Outcome::Answer { rows, receipt } => {
                Some((Ticket(id), Ok(Answer { rows, receipt, payload })))
            }
            Outcome::Error(error) => Some((Ticket(id), Err(error))),
            _ => None,
        });
        Ok(ends.collect())
    }
}
