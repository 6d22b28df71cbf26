//! One end of a link: the state machine that both sides share.

mod receive;
mod send;

use super::cobs::{Decoder, Encoder};
use super::frame::OFFER_BYTES;
use super::ring::Ring;
use super::{BufferTooSmall, Counters, DownReason, LinkOptions, Role, VERSION};
use crate::limits::{
    LINK_BAUD_MIN, LINK_CHECK_BYTES, LINK_FRAME_BYTES_MAX, LINK_FRAME_BYTES_MIN, LINK_HEADER_BYTES,
    LINK_KEEP_ALIVE_MS, LINK_LATENCY_MS_MAX, LINK_OPEN_PAUSE_MS_MAX, LINK_RESEND_TIMES_MAX,
    LINK_SILENCE_MS_MAX, LINK_WINDOW_BYTES_MAX,
};

const KEEP_ALIVE_US: u32 = LINK_KEEP_ALIVE_MS as u32 * 1_000;
const SILENCE_US_MAX: u32 = LINK_SILENCE_MS_MAX as u32 * 1_000;
const OPEN_PAUSE_US_MAX: u32 = LINK_OPEN_PAUSE_MS_MAX as u32 * 1_000;
const LATENCY_US_MAX: u32 = LINK_LATENCY_MS_MAX as u32 * 1_000;
/// Longest that the line is ever reckoned with, 16 minutes: sums of such spans fit their 32 bits.
const LINE_US_MAX: u32 = 1_000_000_000;
/// Bytes of a frame besides its payload.
const OVERHEAD: usize = LINK_HEADER_BYTES + LINK_CHECK_BYTES;
/// On the line, no frame with a byte of payload is shorter.
const DATA_LINE_BYTES_MIN: u32 = OVERHEAD as u32 + 3;

/// Whether position `a` comes before position `b`.
const fn before(a: u16, b: u16) -> bool {
    (a.wrapping_sub(b) as i16) < 0
}

/// The time left of a timer that does not run.
const NEVER: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No session; the initiator does not ask for one.
    Down,
    /// The initiator asks for one.
    Opening,
    /// There is one.
    Up,
}

/// What must be said, besides data.
#[derive(Debug, Clone, Copy, Default)]
struct Due {
    reset: Option<u16>,
    accept: bool,
    open: bool,
    nak: Option<u8>,
    ack: bool,
    ping: bool,
}

/// The frame that is being written to the line, or was last.
#[derive(Debug, Clone, Copy)]
struct Outgoing {
    /// Header, and the offer where there is one.
    head: [u8; LINK_HEADER_BYTES + OFFER_BYTES],
    head_len: u8,
    /// The payload, from the ring.
    payload_len: u16,
    from: u16,
    check: [u8; LINK_CHECK_BYTES],
    encoder: Encoder,
}

impl Outgoing {
    const NONE: Outgoing = Outgoing {
        head: [0; LINK_HEADER_BYTES + OFFER_BYTES],
        head_len: 0,
        payload_len: 0,
        from: 0,
        check: [0; LINK_CHECK_BYTES],
        encoder: Encoder::done(),
    };
    /// Whether it is not over.
    fn is_some(&self) -> bool {
        !self.encoder.is_done()
    }
    const fn is_data(&self) -> bool {
        self.payload_len > 0
    }
}

/// Where both streams of a session stand.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    // --- our stream ---
    /// Everything before it is acknowledged.
    acked: u16,
    /// The next to be sent.
    next: u16,
    /// The furthest that was ever sent.
    sent: u16,
    /// The peer has room up to here.
    edge: u16,
    /// Of the next data frame.
    count: u8,
    /// Of the first data frame since the sender went back last.
    round: u8,
    tries: u8,
    /// More of the stream comes at once: a short frame may wait for it.
    more: bool,
    /// The position whose acknowledgement is timed, and since how long it is.
    timed: Option<u16>,
    timed_us: u32,
    round_trip: RoundTrip,

    // --- the peer's stream ---
    received: u16,
    /// The data frame that must come next, by its count.
    next_count: u8,

    /// The streams have moved.
    touched: bool,
    probing: bool,
}

/// How long acknowledgements take, in microseconds: their mean and their spread, smoothed.
#[derive(Debug, Clone, Copy, Default)]
struct RoundTrip {
    mean: u32,
    spread: u32,
    known: bool,
}

impl RoundTrip {
    fn add(&mut self, sample: u32) {
        let sample = sample.min(u32::MAX / 16);
        if !self.known {
            *self = RoundTrip { mean: sample, spread: sample / 2, known: true };
            return;
        }
        self.spread = self.spread - self.spread / 4 + self.mean.abs_diff(sample) / 4;
        self.mean = self.mean - self.mean / 8 + sample / 8;
    }
    fn allowance(self) -> Option<u32> {
        self.known.then(|| self.mean + 4 * self.spread)
    }
}

/// One end of a link: bytes of the line in and out, a stream of bytes in and out. It does no I/O
/// and reads no clock: every call that needs the time is given it, in microseconds of any
/// monotonic clock.
///
/// `R` holds one received frame (its length is the longest frame that this side can receive), `T`
/// the bytes of the stream that wait for their acknowledgement.
#[derive(Debug, Clone)]
pub struct Endpoint<R, T> {
    role: Role,
    /// The time of the latest call. Instants are 64 bits and never wrap; what is kept besides are spans, of
    /// 32 bits of microseconds (over an hour), which is less work for a small core.
    now: u64,
    latency: u32,
    /// What a byte takes on the line (8N1), in sixteenths of a microsecond.
    byte_us_sixteenths: u32,
    decoder: Decoder<R>,
    ring: Ring<T>,
    phase: Phase,
    session: u16,
    nonce: u32,
    version: u8,
    /// Pause before a session is asked for again.
    pause: u32,
    /// Longest frame that the peer takes.
    peer_frame: usize,
    flow: Flow,
    due: Due,
    outgoing: Outgoing,
    /// The line may hold the beginning of something: a delimiter must come first.
    lead: bool,

    /// Bytes after `received` that this side has room for.
    room: u16,
    /// The room that the peer was told last, as a position.
    told_edge: u16,

    /// Until a session is asked for again, or what is not acknowledged is sent again.
    timer: u32,
    /// Since the last sound frame of the session.
    silent: u32,
    /// Since the last ping.
    unasked: u32,
    /// The layer above waits for the peer.
    waiting: bool,
    /// Bytes of the unit that is coming in.
    unit_bytes: u32,
    damaged: bool,
    counters: Counters,
}

impl<R: AsRef<[u8]> + AsMut<[u8]>, T: AsRef<[u8]> + AsMut<[u8]>> Endpoint<R, T> {
    /// An end without a session. Both buffers must have at least [`LINK_FRAME_BYTES_MIN`] bytes;
    /// `receive` is useful up to [`LINK_FRAME_BYTES_MAX`], `send` up to [`LINK_WINDOW_BYTES_MAX`].
    /// `seed` makes session numbers (or nonces) of this life unlike those of the last one: random
    /// where there is randomness, otherwise a count of boots or a free-running timer.
    ///
    /// # Errors
    /// A buffer is too small.
    pub fn new(
        role: Role,
        options: LinkOptions,
        receive: R,
        send: T,
        seed: u32,
    ) -> Result<Self, BufferTooSmall> {
        Self::check(&receive, &send)?;
        Ok(Self::over(role, options, receive, send, seed))
    }
    /// Whether both buffers are long enough.
    pub(crate) fn check(receive: &R, send: &T) -> Result<(), BufferTooSmall> {
        let len = receive.as_ref().len().min(send.as_ref().len());
        if len < LINK_FRAME_BYTES_MIN {
            return Err(BufferTooSmall { len, min: LINK_FRAME_BYTES_MIN });
        }
        Ok(())
    }
    /// An end over buffers that are long enough. Apart from [`new`](Self::new), so that a client can be made
    /// where it is to be, and not in a result that is moved: that takes stack and code.
    pub(crate) fn over(role: Role, options: LinkOptions, receive: R, send: T, seed: u32) -> Self {
        let room = options.receive_window.min(LINK_WINDOW_BYTES_MAX as u16);
        let sixteenths = 160_000_000 / options.baud.max(LINK_BAUD_MIN);
        Endpoint {
            role,
            now: 0,
            latency: options.latency.0.min(LATENCY_US_MAX),
            byte_us_sixteenths: sixteenths,
            pause: 0,
            flow: Flow::default(),
            decoder: Decoder::new(receive),
            ring: Ring::new(send),
            phase: Phase::Down,
            session: (seed ^ seed >> 16) as u16,
            nonce: seed,
            version: VERSION,
            peer_frame: LINK_FRAME_BYTES_MIN,
            due: Due::default(),
            outgoing: Outgoing::NONE,
            lead: true,
            room,
            told_edge: 0,
            timer: NEVER,
            silent: 0,
            unasked: 0,
            waiting: false,
            unit_bytes: 0,
            damaged: false,
            counters: Counters::default(),
        }
    }
    /// Whether there is a session.
    pub fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }
    /// Whether there is no session, and none is asked for.
    pub fn is_down(&self) -> bool {
        self.phase == Phase::Down
    }
    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
    /// Longest payload of a frame that this side sends.
    pub fn fragment_len_max(&self) -> usize {
        self.peer_frame - OVERHEAD
    }
    /// Asks for a session (initiator only); what an earlier one had in flight is lost.
    pub fn open(&mut self, now: u64) {
        if self.role == Role::Initiator {
            self.nonce = self.nonce.wrapping_mul(0x9E37_79B1).wrapping_add(0x7F4A_7C15);
            self.pass(now);
            self.reset_streams();
            self.phase = Phase::Opening;
            (self.timer, self.pause) = (0, self.patience());
        }
    }
    /// Ends the session and says so to the peer.
    pub fn close(&mut self) {
        if self.phase == Phase::Up {
            self.due = Due { reset: Some(self.session), ..Due::default() };
        }
        self.phase = Phase::Down;
        self.reset_streams_but_due();
    }
    fn reset_streams(&mut self) {
        self.due = Due::default();
        self.reset_streams_but_due();
    }
    fn reset_streams_but_due(&mut self) {
        if self.outgoing.is_some() {
            self.outgoing.encoder = Encoder::done();
            self.lead = true;
        }
        self.ring.clear();
        self.flow = Flow::default();
        self.timer = NEVER;
    }

    // --- the stream, as the layer above sees it ---

    /// Bytes of the stream that can be taken now; none without a session.
    pub fn send_room(&self) -> usize {
        if self.phase == Phase::Up { self.ring.room() } else { 0 }
    }
    /// Bytes of the stream that can be taken at most, before any is acknowledged.
    pub fn send_capacity(&self) -> usize {
        self.ring.capacity()
    }
    /// Takes bytes of the stream, as many as there is room for; returns how many. `more` says that
    /// others follow at once, so that a frame may wait for them.
    pub fn send(&mut self, bytes: &[u8], more: bool) -> usize {
        if self.phase != Phase::Up {
            return 0;
        }
        self.flow.more = more;
        self.ring.write(bytes)
    }
    /// Whether everything that was taken is acknowledged.
    pub fn all_acked(&self) -> bool {
        self.unacked_bytes() == 0
    }
    /// Bytes of the stream that were taken and are not acknowledged.
    pub fn unacked_bytes(&self) -> usize {
        self.ring.end().wrapping_sub(self.flow.acked).into()
    }
    /// Says how many bytes of the peer's stream there is room for.
    pub fn set_room(&mut self, bytes: usize) {
        self.room = bytes.min(LINK_WINDOW_BYTES_MAX) as u16;
        // The peer may be waiting for what it was not told yet.
        let opened = self.flow.received.wrapping_add(self.room).wrapping_sub(self.told_edge);
        let told = self.told_edge.wrapping_sub(self.flow.received);
        let frame = self.decoder.capacity().saturating_sub(OVERHEAD) as u16;
        if self.phase == Phase::Up && (opened as i16) > 0 && told < frame && opened >= frame / 2 {
            self.due.ack = true;
        }
    }
    /// Says whether the layer above waits for the peer: then signs of life are asked for, and a
    /// silent peer is given up.
    pub fn set_waiting(&mut self, waiting: bool, now: u64) {
        self.pass(now);
        if waiting && !self.waiting {
            self.silent = 0;
        }
        self.waiting = waiting;
    }

    /// Asks for a sign of life if there was none for a while.
    pub fn probe(&mut self, now: u64) {
        self.pass(now);
        if self.phase == Phase::Up && self.silent >= KEEP_ALIVE_US {
            self.flow.probing = true;
            self.due.ping = true;
        }
    }
    /// Whether [`probe`](Self::probe) still waits.
    pub fn is_probing(&self) -> bool {
        self.flow.probing
    }
    /// How long the line takes for so many bytes of a stream, in microseconds, frames around them
    /// included; at most half an hour.
    pub fn line_time(&self, bytes: usize) -> u64 {
        let line = self.line_us(bytes);
        // A frame of 32 bytes is half overhead, and one twice as long half of that.
        let (mut around, mut frame) = (line, self.peer_frame);
        while frame >= 64 {
            (around, frame) = (around / 2, frame.div_ceil(2));
        }
        u64::from(line + around)
    }

    // --- time ---

    /// Lets the time pass up to `now`; an earlier one is no time at all.
    #[inline(never)]
    fn pass(&mut self, now: u64) {
        let us = u32::try_from(now.saturating_sub(self.now)).unwrap_or(u32::MAX);
        self.now = self.now.max(now);
        if self.timer != NEVER {
            self.timer = self.timer.saturating_sub(us);
        }
        for since in [&mut self.silent, &mut self.unasked, &mut self.flow.timed_us] {
            *since = since.saturating_add(us);
        }
    }
    /// How long the line takes for so many bytes, in microseconds.
    #[inline(never)]
    fn line_us(&self, bytes: usize) -> u32 {
        let us = (bytes as u64 * u64::from(self.byte_us_sixteenths)) >> 4;
        us.min(LINE_US_MAX.into()) as u32
    }
    /// How long to wait for an acknowledgement at most: the longest frame each way, what is in
    /// flight, and the allowance.
    #[inline(never)]
    fn patience(&self) -> u32 {
        let own = self.decoder.capacity().min(LINK_FRAME_BYTES_MAX);
        let flight = usize::from(self.flow.sent.wrapping_sub(self.flow.acked));
        self.latency + self.line_us(2 * (own + self.peer_frame) + flight)
    }
    /// When [`poll`](Self::poll) must be called at the latest, if nothing else happens.
    pub fn next_timeout(&self) -> Option<u64> {
        let mut left = self.timer;
        if self.phase == Phase::Up {
            if self.is_watching() {
                left = left.min(SILENCE_US_MAX.saturating_sub(self.silent));
            }
            if self.waiting {
                left = left.min(self.ping_in());
            }
        }
        (left != NEVER).then(|| self.now + u64::from(left))
    }
    fn ping_in(&self) -> u32 {
        KEEP_ALIVE_US.saturating_sub(self.silent.min(self.unasked))
    }
    /// Whether a silent peer is given up.
    fn is_watching(&self) -> bool {
        self.role == Role::Acceptor || self.waiting
    }
    /// Looks at the clock. Returns why the session is over, if it is.
    pub fn poll(&mut self, now: u64) -> Option<DownReason> {
        self.pass(now);
        match self.phase {
            Phase::Down => {}
            Phase::Opening => {
                if self.timer == 0 {
                    self.due.open = true;
                    self.timer = self.pause;
                    self.pause = (2 * self.pause).min(OPEN_PAUSE_US_MAX).max(self.pause);
                }
            }
            Phase::Up => {
                if self.is_watching() && self.silent >= SILENCE_US_MAX {
                    return self.lose(DownReason::Silence);
                }
                if self.waiting && self.ping_in() == 0 {
                    self.due.ping = true;
                    self.unasked = 0;
                }
                if self.timer == 0 {
                    self.flow.tries += 1;
                    if self.flow.tries > LINK_RESEND_TIMES_MAX {
                        return self.lose(DownReason::NoProgress);
                    }
                    if self.flow.acked == self.flow.sent {
                        // Nothing in flight, and no room at the peer: it is asked for some.
                        self.due.ping = true;
                        self.flow.tries = 0;
                        self.timer = self.patience();
                    } else {
                        self.rewind();
                    }
                }
            }
        }
        None
    }
    fn lose(&mut self, reason: DownReason) -> Option<DownReason> {
        self.close();
        Some(reason)
    }
    #[inline(never)]
    fn arm(&mut self) {
        let most = self.patience();
        let own = self.decoder.capacity().min(LINK_FRAME_BYTES_MAX);
        let mut wait = match self.flow.round_trip.allowance() {
            Some(measured) => most.min(measured + self.line_us(own + self.peer_frame)),
            None => most,
        };
        for _ in 0..self.flow.tries.min(6) {
            wait = wait.saturating_mul(2).min(most.saturating_mul(8));
        }
        self.timer = wait.min(NEVER - 1);
    }
    #[inline(never)]
    fn rewind(&mut self) {
        self.flow.next = self.flow.acked;
        self.flow.round = self.flow.count;
        // What is sent twice can't be timed.
        self.flow.timed = None;
        self.counters.rewinds += 1;
        self.arm();
    }
}
