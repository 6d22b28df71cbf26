//! The client of a serial link, for a microcontroller without OS and heap.
//!
//! [`SerialClient`] is a state machine over a link ([`wire::link`](crate::wire::link)) and a
//! [`Session`]: bytes of the line go in by [`receive`](SerialClient::receive) and come out by
//! [`transmit`](SerialClient::transmit). The methods that take a [`Port`] drive it until a request has
//! ended: [`open`](SerialClient::open), [`infer`](SerialClient::infer). Input comes from any iterator
//! of bytes and output goes to a closure, piece by piece, so neither needs to be in memory as a whole;
//! what is held are one received frame and the sent bytes that wait for their acknowledgement, in
//! the two buffers given.

mod blocking;
mod clock;
mod port;
mod types;
mod walk;

pub use port::{Bytes, EmbeddedIo, Port};
pub use types::{Opening, Retries, SerialAnswer, SerialError, SerialModel, SerialRequest};

use super::session::{Event, Fault, Heard, Infer, Session, State};
use crate::limits::{
    ENCODINGS_BYTES_MAX, FRAME_PREFIX_BYTES, LINK_FRAME_BYTES_MIN, MODEL_NAME_LEN_MAX,
};
use crate::units::RequestId;
use crate::wire::Reply;
use crate::wire::link::{
    BufferTooSmall, Counters, DownReason, Endpoint, LinkEvent, LinkOptions, Role,
};
use clock::Ticks;
use embedded_time::Clock;

/// Requests in flight: one that is waited for, and one that was given up and not answered yet.
const IN_FLIGHT: usize = 2;
/// The name in the server's log.
const NAME: &str = "serial";
/// Longest head of a hello, of an inference and of a withdrawal: none is longer than the shortest buffer.
const HEAD_BYTES: usize = LINK_FRAME_BYTES_MIN;
/// Longest head of an open, with as many encodings as there can be.
const OPEN_HEAD_BYTES: usize = FRAME_PREFIX_BYTES + MODEL_NAME_LEN_MAX + ENCODINGS_BYTES_MAX + 9;
/// Bytes given to a port at a time.
const LINE_BYTES: usize = 32;
const _: () = assert!(FRAME_PREFIX_BYTES + NAME.len() + 4 <= HEAD_BYTES);
const _: () = assert!(FRAME_PREFIX_BYTES + (1 + 5 + 3 + 3 + 5 + 1) <= HEAD_BYTES);

/// What received bytes meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SerialEvent<'a> {
    /// A session of the link began; requests may be made once the state is [`State::Ready`]. Models
    /// must be opened again.
    Up,
    /// The session is over, with everything in flight.
    Down(DownReason),
    /// A message, or a piece of its payload.
    Message(Event<'a>),
}

/// As [`SerialEvent`], with what a session has heard.
enum Told<'a> {
    Up,
    Down(DownReason),
    Heard(Heard<'a>),
}

/// One client of one line. `R` holds one received frame and `T` the unacknowledged bytes: arrays,
/// or borrowed slices. [`LINK_FRAME_BYTES_MIN`] bytes suffice for
/// each; about 256 and 512 keep the line busy.
#[derive(Debug)]
pub struct SerialClient<C: Clock, R, T> {
    clock: Ticks<C>,
    link: Endpoint<R, T>,
    session: Session<IN_FLIGHT>,
    /// Counts sessions, so that models of an earlier one are noticed.
    generation: u16,
    /// Bytes for the line that the port did not take yet.
    line: [u8; LINE_BYTES],
    line_at: u8,
    line_len: u8,
}

impl<C, R, T> SerialClient<C, R, T>
where
    C: Clock,
    C::T: Into<u64>,
    R: AsRef<[u8]> + AsMut<[u8]>,
    T: AsRef<[u8]> + AsMut<[u8]>,
{
    /// A client without a session. `seed` should differ from boot to boot; see
    /// [`Endpoint::new`].
    ///
    /// # Errors
    /// A buffer is too small.
    pub fn new(
        clock: C,
        options: LinkOptions,
        receive: R,
        send: T,
        seed: u32,
    ) -> Result<Self, BufferTooSmall> {
        Endpoint::check(&receive, &send)?;
        Ok(SerialClient {
            clock: Ticks::new(clock),
            link: Endpoint::over(Role::Initiator, options, receive, send, seed),
            session: Session::new(),
            generation: 0,
            line: [0; LINE_BYTES],
            line_at: 0,
            line_len: 0,
        })
    }
    /// Where the conversation stands; [`State::Start`] without a session. After [`State::Challenged`], which
    /// no server of corelane's says on a serial line, there is nothing to do but to disconnect.
    pub fn state(&self) -> State {
        self.session.state()
    }
    /// What happened on the link.
    pub fn counters(&self) -> &Counters {
        self.link.counters()
    }
    /// Microseconds of the client's clock since it was first read.
    ///
    /// # Errors
    /// The clock does not run.
    pub fn now<E>(&mut self) -> Result<u64, SerialError<E>> {
        self.clock.now().map_err(|_| SerialError::Clock)
    }

    // --- sans I/O ---

    /// Asks for a new session of the link; whatever an old one had in flight is over.
    ///
    /// # Errors
    /// The clock does not run.
    pub fn connect<E>(&mut self) -> Result<(), SerialError<E>> {
        let now = self.now()?;
        self.connect_at(now);
        Ok(())
    }
    fn connect_at(&mut self, now: u64) {
        self.session.reset();
        self.link.open(now);
    }
    /// Ends the session; the server withdraws what is in flight.
    pub fn disconnect(&mut self) {
        self.link.close();
        self.session.reset();
    }
    /// Looks at the clock; `Down` if the session is over.
    ///
    /// # Errors
    /// The clock does not run.
    pub fn poll<E>(&mut self) -> Result<Option<DownReason>, SerialError<E>> {
        let now = self.now()?;
        Ok(self.look(now))
    }
    fn look(&mut self, now: u64) -> Option<DownReason> {
        let greeting = self.session.talk.is_greeting();
        let waiting = self.session.in_flight() > 0 || greeting || self.link.is_probing();
        self.link.set_waiting(waiting, now);
        let down = self.link.poll(now);
        if down.is_some() {
            self.session.reset();
        }
        down
    }
    /// The instant ([`now`](Self::now)) at which [`poll`](Self::poll) must be called, if nothing else
    /// happens.
    pub fn next_timeout(&self) -> Option<u64> {
        self.link.next_timeout()
    }
    /// Writes bytes for the line to `out`; returns how many. 0: nothing is to be said for now.
    ///
    /// # Errors
    /// The clock does not run.
    pub fn transmit<E>(&mut self, out: &mut [u8]) -> Result<usize, SerialError<E>> {
        let now = self.now()?;
        Ok(self.link.transmit(now, out))
    }
    /// Takes bytes of the line, and gives `on` what they mean.
    ///
    /// # Errors
    /// The conversation broke: the session was ended. Or the clock does not run.
    pub fn receive<E>(
        &mut self,
        bytes: &[u8],
        on: &mut dyn FnMut(SerialEvent<'_>),
    ) -> Result<(), SerialError<E>> {
        let now = self.now()?;
        let mut broken = None;
        let result = self.take(now, bytes, &mut |told| {
            on(match told {
                Told::Up => SerialEvent::Up,
                Told::Down(reason) => SerialEvent::Down(reason),
                Told::Heard(Heard::Payload { bytes, remaining }) => {
                    SerialEvent::Message(Event::Payload { bytes, remaining })
                }
                Told::Heard(Heard::Reply { header, payload_len, .. }) => {
                    match Reply::decode(header) {
                        Ok(reply) => SerialEvent::Message(Event::Reply { reply, payload_len }),
                        Err(error) => {
                            broken = Some(error);
                            return false;
                        }
                    }
                }
            });
            true
        });
        match broken {
            Some(error) => Err(SerialError::Session(error.into())),
            None => self.told(result),
        }
    }
    /// Takes bytes of the line, and gives `on` what they mean; it says whether the session goes on.
    #[inline(never)]
    fn take(
        &mut self,
        now: u64,
        bytes: &[u8],
        on: &mut dyn FnMut(Told<'_>) -> bool,
    ) -> Result<(), Fault> {
        match self.take_all(now, bytes, on) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.disconnect();
                Ok(())
            }
            Err(fault) => {
                self.disconnect();
                Err(fault)
            }
        }
    }
    fn take_all(
        &mut self,
        now: u64,
        mut bytes: &[u8],
        on: &mut dyn FnMut(Told<'_>) -> bool,
    ) -> Result<bool, Fault> {
        loop {
            let (taken, event) = self.link.receive(now, bytes);
            bytes = bytes.get(taken..).unwrap_or_default();
            let goes_on = match event {
                None => return Ok(true),
                Some(LinkEvent::Up) => {
                    self.generation = self.generation.wrapping_add(1);
                    self.session.reset();
                    let mut head = [0; HEAD_BYTES];
                    let n = self.session.talk.hello(NAME, &mut head)?;
                    // The buffer is empty, and has room for a hello.
                    self.say(&head, n, false);
                    on(Told::Up)
                }
                Some(LinkEvent::Down(reason)) => {
                    self.session.reset();
                    on(Told::Down(reason))
                }
                Some(LinkEvent::Data(data)) => {
                    self.session.hear(data, &mut |heard| on(Told::Heard(heard)))?
                }
            };
            if !goes_on {
                return Ok(false);
            }
        }
    }
    /// The error behind a fault.
    fn told<A, E>(&self, result: Result<A, Fault>) -> Result<A, SerialError<E>> {
        result.map_err(|Fault| SerialError::Session(self.session.talk.fault()))
    }
    /// Gives the link the first `n` bytes of a message.
    fn say(&mut self, bytes: &[u8], n: usize, more: bool) {
        self.link.send(bytes.get(..n).unwrap_or_default(), more);
    }
    /// Bytes that [`send_payload`](Self::send_payload) takes now.
    pub fn send_room(&self) -> usize {
        self.link.send_room()
    }
    /// Asks for a model by name, perhaps with encodings. `None`: there is no room for the request yet.
    ///
    /// # Errors
    /// The state does not allow it, the server does not know encodings, or the send buffer is too short
    /// for the name and the encodings.
    pub fn request_open<'a, E>(
        &mut self,
        opening: impl Into<Opening<'a>>,
    ) -> Result<Option<RequestId>, SerialError<E>> {
        let opening = opening.into();
        match self.too_short_for(&opening) {
            Some(error) => Err(error),
            None => {
                let asked = self.ask_open(&opening);
                self.told(asked)
            }
        }
    }
    /// The error of a send buffer that can never hold the request for a model.
    fn too_short_for<E>(&self, opening: &Opening<'_>) -> Option<SerialError<E>> {
        let (len, min) = (self.link.send_capacity(), opening.head_len_max());
        (len < min).then_some(SerialError::SendBufferTooShort { len, min })
    }
    // The list of encodings takes stack: not in the frame of what waits for the answer.
    #[inline(never)]
    fn ask_open(&mut self, opening: &Opening<'_>) -> Result<Option<RequestId>, Fault> {
        if self.send_room() < opening.head_len_max() {
            return Ok(None);
        }
        let mut head = [0; OPEN_HEAD_BYTES];
        let list = Some(opening.encodings).filter(|list| !list.is_empty());
        // A name longer than any may be has no room.
        let out = head.get_mut(..opening.head_len_max()).unwrap_or_default();
        let (id, n) = self.session.talk.open(opening.name, list, out)?;
        self.say(&head, n, false);
        Ok(Some(id))
    }
    /// Sends the head of an inference, after which exactly `payload_len` bytes must follow by
    /// [`send_payload`](Self::send_payload). `None`: there is no room for it yet.
    ///
    /// # Errors
    /// The state does not allow it, or too much is in flight.
    pub fn request_infer<E>(
        &mut self,
        infer: Infer,
        payload_len: usize,
    ) -> Result<Option<RequestId>, SerialError<E>> {
        let asked = self.ask_infer(&infer, payload_len);
        self.told(asked)
    }
    fn ask_infer(&mut self, infer: &Infer, payload_len: usize) -> Result<Option<RequestId>, Fault> {
        let mut head = [0; HEAD_BYTES];
        if self.send_room() < head.len() {
            return Ok(None);
        }
        let (id, n) = self.session.talk.infer(infer, payload_len, &mut head)?;
        self.say(&head, n, payload_len > 0);
        Ok(Some(id))
    }
    /// Takes bytes of the payload; returns how many. `more`: others follow at once.
    pub fn send_payload(&mut self, bytes: &[u8], more: bool) -> usize {
        self.link.send(bytes, more)
    }
    /// Withdraws a request whose payload was sent as a whole; it still ends in an error or an
    /// answer. False: there is no room for that now.
    ///
    /// # Errors
    /// The state does not allow it.
    pub fn request_cancel<E>(&mut self, id: RequestId) -> Result<bool, SerialError<E>> {
        let asked = self.ask_cancel(id);
        self.told(asked)
    }
    fn ask_cancel(&mut self, id: RequestId) -> Result<bool, Fault> {
        let mut head = [0; HEAD_BYTES];
        // A number and an id.
        if self.send_room() < FRAME_PREFIX_BYTES + 6 {
            return Ok(false);
        }
        let n = self.session.talk.cancel(id, &mut head)?;
        self.say(&head, n, false);
        Ok(true)
    }
}
