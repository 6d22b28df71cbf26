//! One end of a link: the state machine that both sides share.

use super::cobs::{Damage, Decoder, Encoder};
use super::crc::Crc;
use super::frame::{self, Header, Kind, OFFER_BYTES, Offer};
use super::ring::Ring;
use super::{BufferTooSmall, Counters, DownReason, LinkEvent, LinkOptions, Role, VERSION};
use crate::limits::{
    LINK_BAUD_MIN, LINK_CHECK_BYTES, LINK_FRAME_BYTES_MAX, LINK_FRAME_BYTES_MIN, LINK_HEADER_BYTES,
    LINK_KEEP_ALIVE_MS, LINK_LATENCY_MS_MAX, LINK_OPEN_PAUSE_MS_MAX, LINK_SILENCE_MS_MAX,
    LINK_TRIES_MAX, LINK_WINDOW_BYTES_MAX,
};

/// Bytes of a frame besides its payload.
const OVERHEAD: usize = LINK_HEADER_BYTES + LINK_CHECK_BYTES;
/// On the line, no frame with a byte of payload is shorter.
const DATA_LINE_BYTES_MIN: u32 = OVERHEAD as u32 + 3;

/// Whether position `a` comes before position `b`.
const fn before(a: u16, b: u16) -> bool {
    (a.wrapping_sub(b) as i16) < 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
enum Phase {
    /// No session; the initiator does not ask for one.
    Down,
    /// The initiator asks for one.
    Opening { next_at: u64, pause: u64 },
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

/// The frame that is being written to the line.
#[derive(Debug, Clone, Copy)]
struct Outgoing {
    /// Header, and the offer where there is one.
    head: [u8; LINK_HEADER_BYTES + OFFER_BYTES],
    head_len: usize,
    /// Payload from the ring.
    from: u16,
    len: usize,
    check: [u8; LINK_CHECK_BYTES],
    encoder: Encoder,
    is_data: bool,
}

/// How long acknowledgements take, in microseconds: their mean and their spread, smoothed.
#[derive(Debug, Clone, Copy, Default)]
struct RoundTrip {
    mean: u32,
    spread: u32,
    known: bool,
}

impl RoundTrip {
    fn add(&mut self, sample: u64) {
        let sample = sample.min(u64::from(u32::MAX / 16)) as u32;
        if !self.known {
            *self = RoundTrip { mean: sample, spread: sample / 2, known: true };
            return;
        }
        self.spread = self.spread - self.spread / 4 + self.mean.abs_diff(sample) / 4;
        self.mean = self.mean - self.mean / 8 + sample / 8;
    }
    fn allowance(self) -> Option<u64> {
        self.known.then(|| u64::from(self.mean + 4 * self.spread))
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
    latency: u64,
    /// What a byte takes on the line (8N1), in sixteenths of a microsecond.
    byte_us_sixteenths: u32,
    decoder: Decoder<R>,
    ring: Ring<T>,
    phase: Phase,
    session: u16,
    nonce: u32,
    version: u8,
    /// The session's streams have moved.
    touched: bool,
    /// Longest frame that the peer takes.
    peer_frame: usize,
    due: Due,
    outgoing: Option<Outgoing>,
    /// The line may hold the beginning of something: a delimiter must come first.
    lead: bool,

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
    resend_at: Option<u64>,
    /// The position whose acknowledgement is timed, and since when.
    timed: Option<(u16, u64)>,
    round_trip: RoundTrip,

    // --- the peer's stream ---
    received: u16,
    /// The data frame that must come next, by its count.
    next_count: u8,
    /// Bytes after `received` that this side has room for.
    room: u16,
    /// The room that the peer was told last, as a position.
    told_edge: u16,

    last_heard: u64,
    last_ping: u64,
    /// The layer above waits for the peer.
    waiting: bool,
    probing: bool,
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
        for len in [receive.as_ref().len(), send.as_ref().len()] {
            if len < LINK_FRAME_BYTES_MIN {
                return Err(BufferTooSmall { len, min: LINK_FRAME_BYTES_MIN });
            }
        }
        let room = options.receive_window.min(LINK_WINDOW_BYTES_MAX as u16);
        let sixteenths = 160_000_000 / options.baud.max(LINK_BAUD_MIN);
        Ok(Endpoint {
            role,
            latency: u64::from(options.latency.0).min(LINK_LATENCY_MS_MAX * 1_000),
            byte_us_sixteenths: sixteenths,
            touched: false,
            decoder: Decoder::new(receive),
            ring: Ring::new(send),
            phase: Phase::Down,
            session: (seed ^ seed >> 16) as u16,
            nonce: seed,
            version: VERSION,
            peer_frame: LINK_FRAME_BYTES_MIN,
            due: Due::default(),
            outgoing: None,
            lead: true,
            acked: 0,
            next: 0,
            sent: 0,
            edge: 0,
            count: 0,
            round: 0,
            tries: 0,
            more: false,
            resend_at: None,
            timed: None,
            round_trip: RoundTrip::default(),
            received: 0,
            next_count: 0,
            room,
            told_edge: 0,
            last_heard: 0,
            last_ping: 0,
            waiting: false,
            probing: false,
            unit_bytes: 0,
            damaged: false,
            counters: Counters::default(),
        })
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
            self.reset_streams();
            self.phase = Phase::Opening { next_at: now, pause: self.patience() };
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
        if self.outgoing.take().is_some() {
            self.lead = true;
        }
        self.ring.clear();
        (self.acked, self.next, self.sent, self.edge) = (0, 0, 0, 0);
        (self.received, self.next_count, self.tries) = (0, 0, 0);
        (self.count, self.round) = (0, 0);
        (self.timed, self.round_trip) = (None, RoundTrip::default());
        (self.more, self.resend_at, self.touched) = (false, None, false);
        self.probing = false;
    }

    // --- the stream, as the layer above sees it ---

    /// Bytes of the stream that can be taken now; none without a session.
    pub fn send_room(&self) -> usize {
        if self.phase == Phase::Up { self.ring.room() } else { 0 }
    }
    /// Takes bytes of the stream, as many as there is room for; returns how many. `more` says that
    /// others follow at once, so that a frame may wait for them.
    pub fn send(&mut self, bytes: &[u8], more: bool) -> usize {
        if self.phase != Phase::Up {
            return 0;
        }
        self.more = more;
        self.ring.write(bytes)
    }
    /// Whether everything that was taken is acknowledged.
    pub fn all_acked(&self) -> bool {
        self.acked == self.ring.end()
    }
    /// Says how many bytes of the peer's stream there is room for.
    pub fn set_room(&mut self, bytes: usize) {
        self.room = bytes.min(LINK_WINDOW_BYTES_MAX) as u16;
        // The peer may be waiting for what it was not told yet.
        let opened = self.received.wrapping_add(self.room).wrapping_sub(self.told_edge);
        let told = self.told_edge.wrapping_sub(self.received);
        let frame = self.decoder.capacity().saturating_sub(OVERHEAD) as u16;
        if self.phase == Phase::Up && (opened as i16) > 0 && told < frame && opened >= frame / 2 {
            self.due.ack = true;
        }
    }
    /// Says whether the layer above waits for the peer: then signs of life are asked for, and a
    /// silent peer is given up.
    pub fn set_waiting(&mut self, waiting: bool, now: u64) {
        if waiting && !self.waiting {
            self.last_heard = self.last_heard.max(now);
        }
        self.waiting = waiting;
    }

    /// Asks for a sign of life if there was none for a while.
    pub fn probe(&mut self, now: u64) {
        let silent = now.saturating_sub(self.last_heard);
        if self.phase == Phase::Up && silent >= LINK_KEEP_ALIVE_MS * 1_000 {
            self.probing = true;
            self.due.ping = true;
        }
    }
    /// Whether [`probe`](Self::probe) still waits.
    pub fn is_probing(&self) -> bool {
        self.probing
    }
    /// How long the line takes for so many bytes of a stream, in microseconds, frames around them
    /// included.
    pub fn line_time(&self, bytes: usize) -> u64 {
        let line = self.line_us(bytes);
        line + line / (self.peer_frame / 32) as u64
    }

    // --- time ---

    /// How long the line takes for so many bytes, in microseconds.
    fn line_us(&self, bytes: usize) -> u64 {
        (bytes as u64 * u64::from(self.byte_us_sixteenths)) >> 4
    }
    /// How long to wait for an acknowledgement at most: the longest frame each way, what is in
    /// flight, and the allowance.
    fn patience(&self) -> u64 {
        let own = self.decoder.capacity().min(LINK_FRAME_BYTES_MAX);
        let flight = self.sent.wrapping_sub(self.acked) as usize;
        self.latency + self.line_us(2 * (own + self.peer_frame) + flight)
    }
    /// When [`poll`](Self::poll) must be called at the latest, if nothing else happens.
    pub fn next_timeout(&self) -> Option<u64> {
        match self.phase {
            Phase::Down => None,
            Phase::Opening { next_at, .. } => Some(next_at),
            Phase::Up => {
                let silence = self.last_heard.saturating_add(LINK_SILENCE_MS_MAX * 1_000);
                let over = (self.role == Role::Acceptor || self.waiting).then_some(silence);
                let ping = self.waiting.then(|| self.ping_at());
                [self.resend_at, over, ping].into_iter().flatten().min()
            }
        }
    }
    fn ping_at(&self) -> u64 {
        self.last_heard.max(self.last_ping).saturating_add(LINK_KEEP_ALIVE_MS * 1_000)
    }
    /// Looks at the clock. Returns why the session is over, if it is.
    pub fn poll(&mut self, now: u64) -> Option<DownReason> {
        match self.phase {
            Phase::Down => None,
            Phase::Opening { next_at, pause } => {
                if now >= next_at {
                    self.due.open = true;
                    let longer = (2 * pause).min(LINK_OPEN_PAUSE_MS_MAX * 1_000).max(pause);
                    self.phase = Phase::Opening { next_at: now + pause, pause: longer };
                }
                None
            }
            Phase::Up => {
                let silent = now.saturating_sub(self.last_heard);
                if (self.role == Role::Acceptor || self.waiting)
                    && silent >= LINK_SILENCE_MS_MAX * 1_000
                {
                    return Some(self.lose(DownReason::Silence));
                }
                if self.waiting && now >= self.ping_at() {
                    self.due.ping = true;
                    self.last_ping = now;
                }
                if self.resend_at.is_some_and(|at| at <= now) {
                    self.tries += 1;
                    if self.tries > LINK_TRIES_MAX {
                        return Some(self.lose(DownReason::NoProgress));
                    }
                    if self.acked == self.sent {
                        // Nothing in flight, and no room at the peer: it is asked for some.
                        self.due.ping = true;
                        self.tries = 0;
                        self.resend_at = Some(now + self.patience());
                    } else {
                        self.rewind();
                        self.arm(now);
                    }
                }
                None
            }
        }
    }
    fn lose(&mut self, reason: DownReason) -> DownReason {
        self.close();
        reason
    }
    fn arm(&mut self, now: u64) {
        let most = self.patience();
        let own = self.decoder.capacity().min(LINK_FRAME_BYTES_MAX);
        let wait = match self.round_trip.allowance() {
            Some(measured) => most.min(measured + self.line_us(own + self.peer_frame)),
            None => most,
        };
        self.resend_at = Some(now + (wait << self.tries.min(6)).min(8 * most));
    }
    fn rewind(&mut self) {
        self.next = self.acked;
        self.round = self.count;
        // What is sent twice can't be timed.
        self.timed = None;
        self.counters.rewinds += 1;
    }

    // --- the line, out ---

    /// Writes bytes for the line to `out`; returns how many. 0: nothing is to be said for now.
    pub fn transmit(&mut self, now: u64, out: &mut [u8]) -> usize {
        let mut n = 0;
        while n < out.len() {
            if self.outgoing.is_none() {
                if !self.begin_frame() {
                    // Whatever comes next begins after a pause, in which the line may have rung.
                    self.lead = true;
                    break;
                }
                if core::mem::take(&mut self.lead) {
                    out[n] = 0;
                    n += 1;
                    continue;
                }
            }
            let Some(frame) = &mut self.outgoing else { break };
            let (head, ring, check) = (&frame.head[..frame.head_len], &self.ring, &frame.check);
            let (from, len) = (frame.from, frame.len);
            let byte = |i: usize| match i.checked_sub(head.len()) {
                None => head[i],
                Some(i) if i < len => ring.byte(from.wrapping_add(i as u16)),
                Some(i) => check.get(i - len).copied().unwrap_or(0),
            };
            let total = head.len() + len + LINK_CHECK_BYTES;
            if let Some(byte) = frame.encoder.next(total, byte) {
                out[n] = byte;
                n += 1;
            }
            if frame.encoder.is_done() {
                let is_data = frame.is_data;
                self.outgoing = None;
                self.counters.frames_sent += 1;
                self.ring.release(self.acked);
                if is_data {
                    if self.timed.is_none() && self.next == self.sent {
                        self.timed = Some((self.sent, now));
                    }
                    self.arm(now);
                }
            }
        }
        self.counters.bytes_sent += n as u32;
        n
    }
    /// Whether [`transmit`](Self::transmit) has something to say.
    pub fn wants_transmit(&self) -> bool {
        let due = &self.due;
        self.outgoing.is_some()
            || due.reset.is_some()
            || due.open
            || due.accept
            || due.nak.is_some()
            || due.ack
            || due.ping
            || (self.phase == Phase::Up && self.data_len() > 0)
    }
    /// Bytes of the stream that the next frame would carry.
    fn data_len(&self) -> usize {
        let waiting = self.ring.end().wrapping_sub(self.next) as usize;
        let allowed = self.edge.wrapping_sub(self.next);
        let allowed = if (allowed as i16) < 0 { 0 } else { allowed as usize };
        let full = self.peer_frame - OVERHEAD;
        let len = waiting.min(allowed).min(full);
        // A frame cut short by the window, or by a writer that is not done, waits while others are
        // in flight: their acknowledgement brings room.
        let in_flight = self.next != self.acked;
        let short = len < full && (len < waiting || (self.more && self.ring.room() > 0));
        let may_wait = in_flight || (self.more && len == waiting && self.ring.room() > 0);
        if short && may_wait { 0 } else { len }
    }
    fn begin_frame(&mut self) -> bool {
        let mut header = Header {
            kind: Kind::Ack,
            count: 0,
            session: self.session,
            seq: self.next,
            ack: self.received,
            credit: self.room,
        };
        let mut offer = None;
        let mut len = 0;
        let own = self.decoder.capacity().min(LINK_FRAME_BYTES_MAX) as u16;
        let due = &mut self.due;
        if let Some(session) = due.reset.take() {
            header = Header { kind: Kind::Reset, session, seq: 0, ack: 0, credit: 0, count: 0 };
        } else if core::mem::take(&mut due.open) {
            header = Header { kind: Kind::Open, session: 0, seq: 0, ack: 0, ..header };
            offer = Some(Offer { version: VERSION, frame_bytes_max: own, nonce: self.nonce });
        } else if self.phase != Phase::Up {
            return false;
        } else if core::mem::take(&mut due.accept) {
            header.kind = Kind::Accept;
            offer = Some(Offer { version: self.version, frame_bytes_max: own, nonce: self.nonce });
        } else if let Some(count) = due.nak.take() {
            (header.kind, header.count) = (Kind::Nak, count);
            due.ack = false;
        } else {
            len = self.data_len();
            let due = &mut self.due;
            if len > 0 {
                (header.kind, header.count) = (Kind::Data, self.count);
            } else if core::mem::take(&mut due.ping) {
                header.kind = Kind::Ping;
            } else if !due.ack {
                if self.resend_at.is_none() && self.ring.end() != self.next {
                    // The peer has no room: somebody must look again.
                    self.resend_at = Some(self.last_heard + self.patience());
                }
                return false;
            }
            due.ack = false;
        }
        if matches!(header.kind, Kind::Accept | Kind::Data | Kind::Ack | Kind::Nak | Kind::Ping) {
            self.told_edge = self.received.wrapping_add(self.room);
        }
        self.outgoing = Some(self.frame(header, offer, len));
        if len > 0 {
            self.count = self.count.wrapping_add(1);
            if before(self.next, self.sent) {
                self.counters.retransmits += 1;
            }
            self.next = self.next.wrapping_add(len as u16);
            if before(self.sent, self.next) {
                self.sent = self.next;
            }
        }
        true
    }
    fn frame(&self, header: Header, offer: Option<Offer>, len: usize) -> Outgoing {
        let mut head = [0; LINK_HEADER_BYTES + OFFER_BYTES];
        head[..LINK_HEADER_BYTES].copy_from_slice(&header.encode());
        let mut head_len = LINK_HEADER_BYTES;
        if let Some(offer) = offer {
            head[LINK_HEADER_BYTES..].copy_from_slice(&offer.encode());
            head_len += OFFER_BYTES;
        }
        let (first, second) = self.ring.pieces(header.seq, len);
        let mut crc = Crc::new();
        crc.add(&head[..head_len]);
        crc.add(first);
        crc.add(second);
        Outgoing {
            head,
            head_len,
            from: header.seq,
            len,
            check: crc.value().to_le_bytes(),
            encoder: Encoder::new(),
            is_data: len > 0,
        }
    }

    // --- the line, in ---

    /// Takes bytes of the line until something is to be told or they are used up; returns how many
    /// it took. Call it again with the rest. Never panics, whatever the bytes.
    pub fn receive(&mut self, now: u64, bytes: &[u8]) -> (usize, Option<LinkEvent<'_>>) {
        let mut taken = 0;
        for &byte in bytes {
            taken += 1;
            self.unit_bytes = self.unit_bytes.saturating_add(1);
            let Some(unit) = self.decoder.push(byte) else {
                if byte == 0 {
                    self.unit_bytes = 0;
                }
                continue;
            };
            let line_bytes = core::mem::take(&mut self.unit_bytes);
            let told = match unit {
                Ok(len) => self.unit(now, len, line_bytes),
                Err(Damage::TooLong { .. }) => {
                    self.counters.oversize += 1;
                    self.damage(line_bytes);
                    None
                }
                Err(Damage::CutShort) => {
                    self.counters.crc_errors += 1;
                    self.damage(line_bytes);
                    None
                }
            };
            if let Some(told) = told {
                self.counters.bytes_received += taken as u32;
                return (taken, Some(self.tell(told)));
            }
        }
        self.counters.bytes_received += taken as u32;
        (taken, None)
    }
    fn tell(&self, told: Told) -> LinkEvent<'_> {
        match told {
            Told::Up => LinkEvent::Up,
            Told::Down(reason) => LinkEvent::Down(reason),
            Told::Data { len, skip, payload } => {
                let payload = &self.decoder.unit(len)[LINK_HEADER_BYTES..][..payload];
                LinkEvent::Data(&payload[skip..])
            }
        }
    }
    /// Something on the line was no frame. If it may have been data, it is asked for again at once.
    fn damage(&mut self, line_bytes: u32) {
        self.damaged = true;
        if self.phase == Phase::Up && line_bytes >= DATA_LINE_BYTES_MIN {
            // It was most likely the next one, and the one after it is next now.
            self.due.nak = Some(self.next_count);
            self.next_count = self.next_count.wrapping_add(1);
        }
    }
    fn unit(&mut self, now: u64, len: usize, line_bytes: u32) -> Option<Told> {
        let (header, payload) = match frame::parse(self.decoder.unit(len)) {
            Ok((header, payload)) => (header, payload),
            Err(_) => {
                self.counters.crc_errors += 1;
                self.damage(line_bytes);
                return None;
            }
        };
        self.counters.frames_received += 1;
        if core::mem::take(&mut self.damaged) {
            self.counters.resyncs += 1;
        }
        let payload_len = payload.len();
        let offer = Offer::decode(payload);
        match header.kind {
            Kind::Open => offer.and_then(|offer| self.asked(now, header, offer)),
            Kind::Accept => offer.and_then(|offer| self.accepted(now, header, offer)),
            _ if self.phase != Phase::Up || header.session != self.session => {
                if header.kind == Kind::Reset {
                    return None;
                }
                // An acceptor that began anew says so; an initiator asks for a session by itself.
                if self.role == Role::Acceptor {
                    self.due.reset = Some(header.session);
                }
                None
            }
            Kind::Reset => {
                self.phase = Phase::Down;
                self.reset_streams();
                Some(Told::Down(DownReason::PeerReset))
            }
            kind => {
                self.last_heard = now;
                self.probing = false;
                self.take_ack(now, header);
                match kind {
                    Kind::Data => self.data(header, len, payload_len),
                    Kind::Ping => {
                        self.due.ack = true;
                        None
                    }
                    _ => None,
                }
            }
        }
    }
    /// The acceptor is asked for a session.
    fn asked(&mut self, now: u64, header: Header, offer: Offer) -> Option<Told> {
        if self.role != Role::Acceptor || offer.version == 0 {
            return None;
        }
        if self.phase == Phase::Up && self.nonce == offer.nonce && !self.touched {
            // The acceptance was lost.
            self.last_heard = now;
            self.due.accept = true;
            return None;
        }
        self.reset_streams();
        self.session = self.session.wrapping_add(1).max(1);
        self.begin(now, header, offer);
        self.due.accept = true;
        Some(Told::Up)
    }
    /// The initiator gets a session.
    fn accepted(&mut self, now: u64, header: Header, offer: Offer) -> Option<Told> {
        if self.role != Role::Initiator || offer.nonce != self.nonce || offer.version == 0 {
            return None;
        }
        match self.phase {
            Phase::Opening { .. } => {
                self.reset_streams();
                self.session = header.session;
                self.begin(now, header, offer);
                Some(Told::Up)
            }
            Phase::Up if header.session != self.session => {
                self.phase = Phase::Down;
                self.reset_streams();
                Some(Told::Down(DownReason::PeerReset))
            }
            _ => None,
        }
    }
    fn begin(&mut self, now: u64, header: Header, offer: Offer) {
        self.phase = Phase::Up;
        self.nonce = offer.nonce;
        self.version = offer.version.min(VERSION);
        let peer = usize::from(offer.frame_bytes_max);
        self.peer_frame = peer.clamp(LINK_FRAME_BYTES_MIN, LINK_FRAME_BYTES_MAX);
        self.edge = header.credit.min(LINK_WINDOW_BYTES_MAX as u16);
        (self.last_heard, self.last_ping) = (now, now);
    }
    fn take_ack(&mut self, now: u64, header: Header) {
        let flight = self.sent.wrapping_sub(self.acked);
        let news = header.ack.wrapping_sub(self.acked);
        if news > flight {
            // Not of this stream; the checksum makes it rare.
            return;
        }
        if news > 0 {
            self.touched = true;
            self.acked = header.ack;
            if let Some((position, since)) = self.timed
                && !before(self.acked, position)
            {
                self.round_trip.add(now.saturating_sub(since));
                self.timed = None;
            }
            if before(self.next, self.acked) {
                self.next = self.acked;
            }
            self.tries = 0;
            if !self.outgoing.is_some_and(|frame| frame.is_data) {
                self.ring.release(self.acked);
            }
        }
        self.edge = header.ack.wrapping_add(header.credit.min(LINK_WINDOW_BYTES_MAX as u16));
        if self.acked == self.sent {
            self.resend_at = None;
        } else if news > 0 {
            self.arm(now);
        }
        if header.kind == Kind::Nak && before(self.acked, self.next) {
            // One that was not sent yet was counted too far: then it is about the latest.
            let in_round = self.count.wrapping_sub(self.round);
            let about = header.count.wrapping_sub(self.round);
            let stale = about >= 128;
            if !stale && in_round > 0 {
                self.rewind();
                self.arm(now);
            }
        }
    }
    fn data(&mut self, header: Header, len: usize, payload: usize) -> Option<Told> {
        self.next_count = header.count.wrapping_add(1);
        if before(self.received, header.seq) {
            // Something before it was lost, since a line does not reorder.
            self.due.nak = Some(header.count);
            return None;
        }
        self.due.ack = true;
        let skip = self.received.wrapping_sub(header.seq) as usize;
        if skip >= payload {
            self.counters.duplicates += 1;
            return None;
        }
        let fresh = payload - skip;
        if fresh > usize::from(self.room) {
            // It did not ask, or the room went otherwise; it will ask.
            return None;
        }
        self.touched = true;
        self.received = self.received.wrapping_add(fresh as u16);
        Some(Told::Data { len, skip, payload })
    }
}

/// A [`LinkEvent`] without the bytes that it borrows.
#[derive(Debug, Clone, Copy)]
enum Told {
    Up,
    Down(DownReason),
    Data { len: usize, skip: usize, payload: usize },
}
