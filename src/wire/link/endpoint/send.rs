//! What an end says on the line.

use super::{Endpoint, OVERHEAD, Outgoing, Phase, before};
use crate::limits::{LINK_CHECK_BYTES, LINK_FRAME_BYTES_MAX, LINK_HEADER_BYTES};
use crate::wire::link::VERSION;
use crate::wire::link::cobs::Encoder;
use crate::wire::link::crc::Crc;
use crate::wire::link::frame::{Header, Kind, OFFER_BYTES, Offer};

impl<R: AsRef<[u8]> + AsMut<[u8]>, T: AsRef<[u8]> + AsMut<[u8]>> Endpoint<R, T> {
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
}
