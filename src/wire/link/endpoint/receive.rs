//! What an end makes of the line.

use super::{DATA_LINE_BYTES_MIN, Endpoint, NEVER, Phase, before};
use crate::limits::{
    LINK_FRAME_BYTES_MAX, LINK_FRAME_BYTES_MIN, LINK_HEADER_BYTES, LINK_WINDOW_BYTES_MAX,
};
use crate::wire::link::cobs::Damage;
use crate::wire::link::frame::{self, Header, Kind, Offer};
use crate::wire::link::{DownReason, LinkEvent, Role, VERSION};

impl<R: AsRef<[u8]> + AsMut<[u8]>, T: AsRef<[u8]> + AsMut<[u8]>> Endpoint<R, T> {
    /// Takes bytes of the line until something is to be told or they are used up; returns how many
    /// it took. Call it again with the rest. Never panics, whatever the bytes.
    pub fn receive(&mut self, now: u64, bytes: &[u8]) -> (usize, Option<LinkEvent<'_>>) {
        self.pass(now);
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
                Ok(len) => self.unit(len, line_bytes),
                Err(damage) => {
                    match damage {
                        Damage::TooLong { .. } => self.counters.oversize += 1,
                        Damage::CutShort => self.counters.crc_errors += 1,
                    }
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
                let (from, to) = (LINK_HEADER_BYTES + skip, LINK_HEADER_BYTES + payload);
                LinkEvent::Data(self.decoder.unit(len).get(from..to).unwrap_or_default())
            }
        }
    }
    /// Something on the line was no frame. If it may have been data, it is asked for again at once.
    fn damage(&mut self, line_bytes: u32) {
        self.damaged = true;
        if self.phase == Phase::Up && line_bytes >= DATA_LINE_BYTES_MIN {
            // It was most likely the next one, and the one after it is next now.
            self.due.nak = Some(self.flow.next_count);
            self.flow.next_count = self.flow.next_count.wrapping_add(1);
        }
    }
    fn unit(&mut self, len: usize, line_bytes: u32) -> Option<Told> {
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
            Kind::Open => offer.and_then(|offer| self.asked(header, offer)),
            Kind::Accept => offer.and_then(|offer| self.accepted(header, offer)),
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
                self.silent = 0;
                self.flow.probing = false;
                self.take_ack(header);
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
    fn asked(&mut self, header: Header, offer: Offer) -> Option<Told> {
        if self.role != Role::Acceptor || offer.version == 0 {
            return None;
        }
        if self.phase == Phase::Up && self.nonce == offer.nonce && !self.flow.touched {
            // The acceptance was lost.
            self.silent = 0;
            self.due.accept = true;
            return None;
        }
        self.reset_streams();
        self.session = self.session.wrapping_add(1).max(1);
        self.begin(header, offer);
        self.due.accept = true;
        Some(Told::Up)
    }
    /// The initiator gets a session.
    fn accepted(&mut self, header: Header, offer: Offer) -> Option<Told> {
        if self.role != Role::Initiator || offer.nonce != self.nonce || offer.version == 0 {
            return None;
        }
        match self.phase {
            Phase::Opening => {
                self.reset_streams();
                self.session = header.session;
                self.begin(header, offer);
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
    fn begin(&mut self, header: Header, offer: Offer) {
        self.phase = Phase::Up;
        self.nonce = offer.nonce;
        self.version = offer.version.min(VERSION);
        let peer = usize::from(offer.frame_bytes_max);
        self.peer_frame = peer.clamp(LINK_FRAME_BYTES_MIN, LINK_FRAME_BYTES_MAX);
        self.flow.edge = header.credit.min(LINK_WINDOW_BYTES_MAX as u16);
        (self.silent, self.unasked) = (0, 0);
    }
    fn take_ack(&mut self, header: Header) {
        let flight = self.flow.sent.wrapping_sub(self.flow.acked);
        let news = header.ack.wrapping_sub(self.flow.acked);
        if news > flight {
            // Not of this stream; the checksum makes it rare.
            return;
        }
        if news > 0 {
            self.flow.touched = true;
            self.flow.acked = header.ack;
            if let Some(position) = self.flow.timed
                && !before(self.flow.acked, position)
            {
                self.flow.round_trip.add(self.flow.timed_us);
                self.flow.timed = None;
            }
            if before(self.flow.next, self.flow.acked) {
                self.flow.next = self.flow.acked;
            }
            self.flow.tries = 0;
            if !(self.outgoing.is_some() && self.outgoing.is_data()) {
                self.ring.release(self.flow.acked);
            }
        }
        self.flow.edge = header.ack.wrapping_add(header.credit.min(LINK_WINDOW_BYTES_MAX as u16));
        if self.flow.acked == self.flow.sent {
            self.timer = NEVER;
        } else if news > 0 {
            self.arm();
        }
        if header.kind == Kind::Nak && before(self.flow.acked, self.flow.next) {
            // One that was not sent yet was counted too far: then it is about the latest.
            let in_round = self.flow.count.wrapping_sub(self.flow.round);
            let about = header.count.wrapping_sub(self.flow.round);
            let stale = about >= 128;
            if !stale && in_round > 0 {
                self.rewind();
            }
        }
    }
    fn data(&mut self, header: Header, len: usize, payload: usize) -> Option<Told> {
        self.flow.next_count = header.count.wrapping_add(1);
        if before(self.flow.received, header.seq) {
            // Something before it was lost, since a line does not reorder.
            self.due.nak = Some(header.count);
            return None;
        }
        self.due.ack = true;
        let skip = self.flow.received.wrapping_sub(header.seq) as usize;
        if skip >= payload {
            self.counters.duplicates += 1;
            return None;
        }
        let fresh = payload - skip;
        if fresh > usize::from(self.room) {
            // It did not ask, or the room went otherwise; it will ask.
            return None;
        }
        self.flow.touched = true;
        self.flow.received = self.flow.received.wrapping_add(fresh as u16);
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
