//! When an inference takes its slot, and what a connection gives up to others who need it: the slot of a
//! payload that is not whole, or its own place.

use super::encoded::Decoding;
use super::requests::Coming;
use super::{Conn, Core, Incoming, Phase};
use crate::limits::{LATE_SLOT_PAYLOAD_BYTES_MAX, PRESSURE_GRACE_MS};
use crate::queue::{Lease, Refusal, RefusalReason};
use crate::transport::bump;
use crate::units::{ModelId, Nanos, Rows};
use crate::wire::ErrorCode;

/// How far a payload may be behind before others get its slot.
const GRACE: Nanos = Nanos(PRESSURE_GRACE_MS * 1_000_000);

/// An inference whose head was read.
#[derive(Debug)]
pub(super) struct Due {
    pub coming: Coming,
    pub rows: Rows,
    /// The connection's view that it travels by, if it travels encoded.
    pub view: Option<u8>,
    pub payload_len: usize,
    /// When its head was read.
    pub since: Nanos,
}

impl Due {
    /// Whether its slot can wait: the payload is short, and so far only `here` bytes of it came.
    pub fn is_late(&self, here: usize) -> bool {
        self.payload_len <= LATE_SLOT_PAYLOAD_BYTES_MAX && here < self.payload_len
    }
}

impl Conn {
    /// Whether nothing is known of it but that it came: the hello or the proof is due.
    pub fn is_stranger(&self) -> bool {
        matches!(self.phase, Phase::Hello | Phase::Challenged { .. })
    }
    /// Says that its place goes to another.
    pub fn evict(&mut self, core: &Core) {
        let ms = core.now.since(self.since).0 / 1_000_000;
        let text = format_args!("the hello is late, and others wait for the place");
        self.fatal(core, ErrorCode::TimedOut, (ms, 0), text);
    }
    /// Takes the slot of what is due, or refuses it. Returns the model where others are to be asked for
    /// a slot first.
    pub(super) fn take_slot(&mut self, core: &mut Core) -> Option<ModelId> {
        let Incoming::Due(due) = &self.incoming else { return None };
        let (id, model, len) = (due.coming.id, due.coming.model, due.payload_len);
        let queue = &core.models[model.0 as usize].served.queue;
        let asked = std::mem::take(&mut self.others_were_asked);
        if !asked && core.now >= core.ask_again && !queue.has_free_slot() {
            self.others_were_asked = true;
            return Some(model);
        }
        let leased = queue.lease(due.rows);
        let Incoming::Due(due) =
            std::mem::replace(&mut self.incoming, Incoming::Skip { left: len })
        else {
            return None;
        };
        match leased {
            Ok(lease) => self.fill(core, lease, due),
            Err(refusal) => self.refusal(core, id, refusal),
        }
        None
    }

    fn fill(&mut self, core: &mut Core, mut lease: Lease, due: Due) {
        let (rows, payload_len) = (lease.rows(), due.payload_len);
        let expected = match due.view {
            Some(view) => self.views[view as usize].input_len(&lease),
            None => lease.input_mut().len(),
        };
        if payload_len != expected {
            lease.queue().count_refusal(RefusalReason::WrongPayloadLength);
            let text = format_args!(
                "{payload_len} bytes of payload; {rows} rows of this model are {expected}"
            );
            let (id, ab) = (due.coming.id, (payload_len as u64, expected as u64));
            return self.error(core, Some(id), ErrorCode::WrongPayloadLength, ab, text);
        }
        let decoding = due.view.map(Decoding::new);
        if decoding.is_some() {
            // It is decoded from the buffer.
            self.long_payloads = false;
        }
        self.incoming = Incoming::Payload { lease, filled: 0, decoding, due };
    }

    /// Since when the payload of `model` that is coming has been behind, if it has been for longer than
    /// is allowed while others wait for its slot.
    pub fn behind_since(&self, model: ModelId, now: Nanos) -> Option<Nanos> {
        let Incoming::Payload { due, .. } = &self.incoming else { return None };
        // It must be told.
        if due.coming.model != model || !self.replies.has_room() {
            return None;
        }
        let allowed = Nanos(self.payload_here() as u64 * self.byte_ns_max);
        Some(due.since.after(GRACE).after(allowed)).filter(|&at| at <= now)
    }

    /// Bytes of the payload that came.
    fn payload_here(&self) -> usize {
        match &self.incoming {
            Incoming::Payload { decoding: Some(decoding), .. } => decoding.taken(),
            Incoming::Payload { filled, .. } => *filled,
            _ => 0,
        }
    }

    /// Gives the slot of the payload that is coming to others; the rest of it is not wanted any more.
    pub fn give_slot_up(&mut self, core: &Core) {
        let here = self.payload_here();
        let incoming = std::mem::replace(&mut self.incoming, Incoming::Head);
        let Incoming::Payload { lease, due, .. } = incoming else {
            self.incoming = incoming;
            return;
        };
        self.incoming = Incoming::Skip { left: due.payload_len - here };
        let queue = lease.queue();
        queue.count_refusal(RefusalReason::QueueFull);
        let (queued, max) = (queue.queued(), queue.spec().max_queue_size);
        let (code, a, b) = super::refusal_code(Refusal::QueueFull { queued, max });
        let text = format_args!("the payload came so slowly that others got its slot");
        self.error(core, Some(due.coming.id), code, (a as u64, b as u64), text);
        bump(&core.control.counters.slots_reclaimed_total, 1);
    }
}
