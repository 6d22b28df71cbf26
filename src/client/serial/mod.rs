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

pub use port::{Bytes, EmbeddedIo, Port};
pub use types::{Opening, Retries, SerialAnswer, SerialError, SerialModel, SerialRequest};

use super::session::{Event, Infer, Session, State};
use crate::limits::{
    CLIENT_NAME_LEN_MAX, ENCODINGS_BYTES_MAX, FRAME_PREFIX_BYTES, MODEL_NAME_LEN_MAX,
};
use crate::units::RequestId;
use crate::wire::link::{
    BufferTooSmall, Counters, DownReason, Endpoint, LinkEvent, LinkOptions, Role,
};
use clock::Ticks;
use embedded_time::Clock;

/// Requests in flight: one that is waited for, and one that was given up and not answered yet.
const IN_FLIGHT: usize = 2;
/// Longest head of a hello, and of an open without encodings.
const HEAD_BYTES: usize = FRAME_PREFIX_BYTES + MODEL_NAME_LEN_MAX + 8;
/// Longest head of an open with encodings.
const ENCODED_HEAD_BYTES: usize = HEAD_BYTES + ENCODINGS_BYTES_MAX + 1;
/// Bytes given to a port at a time.
const LINE_BYTES: usize = 32;
const _: () = assert!(CLIENT_NAME_LEN_MAX <= MODEL_NAME_LEN_MAX);

/// What received bytes meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SerialEvent<'a> {
    /// A session of the link began; requests may be made once the state is [`State::Ready`]. Models
    /// must be opened again.
    Up,
    /// The session is over, with everything in flight.
    Down(DownReason),
    /// A message, or a piece of its payload.
    Message(Event<'a>),
}

/// One client of one line. `R` holds one received frame and `T` the unacknowledged bytes: arrays,
/// or borrowed slices. [`LINK_FRAME_BYTES_MIN`](crate::limits::LINK_FRAME_BYTES_MIN) bytes suffice for
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
        Ok(SerialClient {
            clock: Ticks::new(clock),
            link: Endpoint::new(Role::Initiator, options, receive, send, seed)?,
            session: Session::new(),
            generation: 0,
            line: [0; LINE_BYTES],
            line_at: 0,
            line_len: 0,
        })
    }
    /// Where the conversation stands; [`State::Start`] without a session.
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
        self.session = Session::new();
        self.link.open(now);
        Ok(())
    }
    /// Ends the session; the server withdraws what is in flight.
    pub fn disconnect(&mut self) {
        self.link.close();
        self.session = Session::new();
    }
    /// Looks at the clock; `Down` if the session is over.
    ///
    /// # Errors
    /// The clock does not run.
    pub fn poll<E>(&mut self) -> Result<Option<DownReason>, SerialError<E>> {
        let now = self.now()?;
        let greeting = self.session.state() == State::Greeting;
        let waiting = self.session.in_flight() > 0 || greeting || self.link.is_probing();
        self.link.set_waiting(waiting, now);
        let down = self.link.poll(now);
        if down.is_some() {
            self.session = Session::new();
        }
        Ok(down)
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
        mut bytes: &[u8],
        on: &mut dyn FnMut(SerialEvent<'_>),
    ) -> Result<(), SerialError<E>> {
        let now = self.now()?;
        loop {
            let (taken, event) = self.link.receive(now, bytes);
            bytes = &bytes[taken..];
            let broken = match event {
                None => return Ok(()),
                Some(LinkEvent::Up) => {
                    self.generation = self.generation.wrapping_add(1);
                    self.session = Session::new();
                    let mut head = [0; HEAD_BYTES];
                    let hello = self.session.hello("serial", &mut head);
                    on(SerialEvent::Up);
                    hello.map(|n| {
                        // The buffer is empty, and has room for a hello.
                        self.link.send(&head[..n], false);
                    })
                }
                Some(LinkEvent::Down(reason)) => {
                    self.session = Session::new();
                    on(SerialEvent::Down(reason));
                    Ok(())
                }
                Some(LinkEvent::Data(mut data)) => loop {
                    match self.session.feed(data) {
                        Err(error) => break Err(error),
                        Ok((0, None)) => break Ok(()),
                        Ok((n, event)) => {
                            data = &data[n..];
                            if let Some(event) = event {
                                on(SerialEvent::Message(event));
                            }
                        }
                    }
                },
            };
            if let Err(error) = broken {
                self.disconnect();
                return Err(error.into());
            }
        }
    }
    /// Bytes that [`send_payload`](Self::send_payload) takes now.
    pub fn send_room(&self) -> usize {
        self.link.send_room()
    }
    /// Asks for a model by name, perhaps with encodings. `None`: there is no room for the request yet.
    ///
    /// # Errors
    /// The state does not allow it, or the server does not know encodings.
    pub fn request_open<'a, E>(
        &mut self,
        opening: impl Into<Opening<'a>>,
    ) -> Result<Option<RequestId>, SerialError<E>> {
        let opening = opening.into();
        if opening.encodings.is_empty() {
            if self.send_room() < FRAME_PREFIX_BYTES + opening.name.len() + 8 {
                return Ok(None);
            }
            let mut head = [0; HEAD_BYTES];
            let (id, n) = self.session.open(opening.name, &mut head)?;
            self.link.send(&head[..n], false);
            return Ok(Some(id));
        }
        self.request_open_encoded(opening)
    }
    /// Kept apart, since the list takes stack.
    #[inline(never)]
    fn request_open_encoded<E>(
        &mut self,
        Opening { name, encodings }: Opening<'_>,
    ) -> Result<Option<RequestId>, SerialError<E>> {
        if self.send_room() < FRAME_PREFIX_BYTES + name.len() + 9 + 7 * encodings.len() {
            return Ok(None);
        }
        let mut head = [0; ENCODED_HEAD_BYTES];
        let (id, n) = self.session.open_encoded(name, encodings, &mut head)?;
        self.link.send(&head[..n], false);
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
        let mut head = [0; 32];
        if self.send_room() < head.len() {
            return Ok(None);
        }
        let (id, n) = self.session.infer(infer, payload_len, &mut head)?;
        self.link.send(&head[..n], payload_len > 0);
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
        let mut head = [0; 16];
        if self.send_room() < head.len() {
            return Ok(false);
        }
        let n = self.session.cancel(id, &mut head)?;
        self.link.send(&head[..n], false);
        Ok(true)
    }
}
