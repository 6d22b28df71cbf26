//! What an end says on the line.

use super::{Endpoint, NEVER, OVERHEAD, Outgoing, Phase, Ring, before};
use crate::limits::{LINK_CHECK_BYTES, LINK_FRAME_BYTES_MAX, LINK_HEADER_BYTES};
use crate::wire::link::VERSION;
use crate::wire::link::cobs::Encoder;
use crate::wire::link::crc::Crc;
use crate::wire::link::frame::{Header, Kind, OFFER_BYTES, Offer};

impl<R: AsRef<[u8]> + AsMut<[u8]>, T: AsRef<[u8]> + AsMut<[u8]>> Endpoint<R, T> {
    /// Writes bytes for the line to `out`; returns how many. 0: nothing is to be said for now.
    pub fn transmit(&mut self, now: u64, out: &mut [u8]) -> usize {
        self.pass(now);
        let mut n = 0;
        for place in out {
            if !self.outgoing.is_some() {
                if !self.begin_frame() {
                    // Whatever comes next begins after a pause, in which the line may have rung.
                    self.lead = true;
                    break;
                }
                if core::mem::take(&mut self.lead) {
                    *place = 0;
                    n += 1;
                    continue;
                }
            }
            let (len, mut encoder) = (self.outgoing.len(), self.outgoing.encoder);
            // There is one, until the encoder is done.
            *place = encoder.next(len, |i| self.outgoing.byte(i, &self.ring)).unwrap_or(0);
            self.outgoing.encoder = encoder;
            n += 1;
            if encoder.is_done() {
                self.counters.frames_sent += 1;
                self.ring.release(self.flow.acked);
                if self.outgoing.is_data() {
                    if self.flow.timed.is_none() && self.flow.next == self.flow.sent {
                        (self.flow.timed, self.flow.timed_us) = (Some(self.flow.sent), 0);
                    }
                    self.arm();
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
        let waiting = usize::from(self.ring.end().wrapping_sub(self.flow.next));
        let allowed = self.flow.edge.wrapping_sub(self.flow.next) as i16;
        let allowed = allowed.max(0) as usize;
        let full = self.peer_frame - OVERHEAD;
        let len = waiting.min(allowed).min(full);
        // A frame cut short by the window, or by a writer that is not done, waits while others are
        // in flight: their acknowledgement brings room.
        let in_flight = self.flow.next != self.flow.acked;
        let short = len < full && (len < waiting || (self.flow.more && self.ring.room() > 0));
        let may_wait = in_flight || (self.flow.more && len == waiting && self.ring.room() > 0);
        if short && may_wait { 0 } else { len }
    }
    fn begin_frame(&mut self) -> bool {
        let mut header = Header {
            kind: Kind::Ack,
            count: 0,
            session: self.session,
            seq: self.flow.next,
            ack: self.flow.received,
            credit: self.room,
        };
        let mut offer = None;
        let mut len = 0;
        let due = &mut self.due;
        if let Some(session) = due.reset.take() {
            header = Header { kind: Kind::Reset, session, seq: 0, ack: 0, credit: 0, count: 0 };
        } else if core::mem::take(&mut due.open) {
            header = Header { kind: Kind::Open, session: 0, seq: 0, ack: 0, ..header };
            offer = Some(VERSION);
        } else if self.phase != Phase::Up {
            return false;
        } else if core::mem::take(&mut due.accept) {
            header.kind = Kind::Accept;
            offer = Some(self.version);
        } else if let Some(count) = due.nak.take() {
            (header.kind, header.count) = (Kind::Nak, count);
            due.ack = false;
        } else {
            len = self.data_len();
            let due = &mut self.due;
            if len > 0 {
                (header.kind, header.count) = (Kind::Data, self.flow.count);
            } else if core::mem::take(&mut due.ping) {
                header.kind = Kind::Ping;
            } else if !due.ack {
                if self.timer == NEVER && self.ring.end() != self.flow.next {
                    // The peer has no room: somebody must look again.
                    self.timer = self.patience().saturating_sub(self.silent);
                }
                return false;
            }
            due.ack = false;
        }
        if !matches!(header.kind, Kind::Open | Kind::Reset) {
            self.told_edge = self.flow.received.wrapping_add(self.room);
        }
        self.frame(header, offer, len);
        if len > 0 {
            self.flow.count = self.flow.count.wrapping_add(1);
            if before(self.flow.next, self.flow.sent) {
                self.counters.retransmits += 1;
            }
            self.flow.next = self.flow.next.wrapping_add(len as u16);
            if before(self.flow.sent, self.flow.next) {
                self.flow.sent = self.flow.next;
            }
        }
        true
    }
    /// Makes the frame that goes out next, with an offer of this version if there is one.
    fn frame(&mut self, header: Header, version: Option<u8>, len: usize) {
        let frame = &mut self.outgoing;
        frame.head_len = LINK_HEADER_BYTES as u8;
        let (head, place) = frame.head.split_at_mut(LINK_HEADER_BYTES);
        copy(&header.encode(), head);
        if let Some(version) = version {
            let own = self.decoder.capacity().min(LINK_FRAME_BYTES_MAX) as u16;
            let offer = Offer { version, frame_bytes_max: own, nonce: self.nonce };
            copy(&offer.encode(), place);
            frame.head_len += OFFER_BYTES as u8;
        }
        (frame.from, frame.payload_len) = (header.seq, len as u16);
        frame.encoder = Encoder::new();
        let mut crc = Crc::new();
        for i in 0..frame.len() - LINK_CHECK_BYTES {
            crc.add_byte(frame.byte(i, &self.ring));
        }
        frame.check = crc.value().to_le_bytes();
    }
}

/// As many bytes as both have.
fn copy(from: &[u8], to: &mut [u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

impl Outgoing {
    /// Bytes of the frame, its checksum included.
    fn len(&self) -> usize {
        usize::from(self.head_len) + usize::from(self.payload_len) + LINK_CHECK_BYTES
    }
    /// One of them: of the head, of the payload, of the checksum.
    #[inline(never)]
    fn byte<B: AsRef<[u8]> + AsMut<[u8]>>(&self, i: usize, ring: &Ring<B>) -> u8 {
        let head = usize::from(self.head_len);
        if i < head {
            return self.head.get(i).copied().unwrap_or(0);
        }
        let i = i - head;
        match i.checked_sub(self.payload_len.into()) {
            Some(i) => self.check.get(i).copied().unwrap_or(0),
            None => ring.byte(self.from.wrapping_add(i as u16)),
        }
    }
}
