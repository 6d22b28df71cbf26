//! One connection: from bytes to requests.

mod control;
mod encoded;
mod head;
mod requests;
mod sending;
mod slots;

pub(super) use requests::{Submitted, count_error};
pub(crate) use requests::{failure_code, refusal_code};

use super::arrivals::Arrivals;
use super::desk::ReloadDesk;
use super::link::Link;
use super::replies::Replies;
use super::table::Table;
use super::{Control, Served, bump};
use crate::limits::{
    AUTH_NONCE_BYTES, CONNECTION_READ_BYTES, ENCODED_OPENS_COUNT_MAX, PAYLOAD_BYTES_PER_MS_MIN,
};
use crate::queue::Lease;
use crate::sys::memory::LazyBytes;
use crate::sys::sync::Arc;
use crate::units::{ModelId, Nanos, RequestId};
use crate::wire::{HEAD_BYTES_MAX, Key};
use encoded::{Decoding, View};
use std::io::{self, IoSliceMut};

/// Bytes read ahead where payloads are long: any head.
const LONG_READ_AHEAD_BYTES: usize = HEAD_BYTES_MAX;
/// Reads of one connection before the others get their turn.
const READS_PER_TURN: usize = 16;

/// See [`PAYLOAD_BYTES_PER_MS_MIN`].
const BYTE_NS_MAX: u64 = 1_000_000 / PAYLOAD_BYTES_PER_MS_MIN;

/// What the connections share, all in the hands of who tends them.
#[derive(Debug)]
pub(super) struct Core {
    pub models: Box<[Model]>,
    pub table: Table,
    pub control: Arc<Control>,
    pub key: Option<Key>,
    pub in_flight_max: usize,
    pub arrivals: Option<Arc<Arrivals>>,
    pub half_frame: Nanos,
    pub write_stall: Nanos,
    pub draining: bool,
    /// The instant of this turn.
    pub now: Nanos,
    /// The connection whose socket is lent; one at most, since it is lent only for the answer of a
    /// request that nobody else's is held with.
    pub lent: Option<u16>,
    /// A connection asked for statistics since this was last looked at.
    pub stats_wanted: bool,
    /// Who loads models anew, if clients may ask for it.
    pub reload: Option<ReloadDesk>,
    /// No connection is asked for its slot before, since a moment ago none had one to give.
    pub ask_again: Nanos,
    /// Requests handed over in this turn.
    pub submitted: Submitted,
    /// A worker tends the connections.
    pub seat_is_away: bool,
    /// Fresh random bytes.
    pub random: std::fs::File,
}

/// A model, and what `Opened` says of it.
#[derive(Debug)]
pub(super) struct Model {
    pub served: Served,
    pub signature: Box<[u8]>,
}

/// Where the conversation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The hello is due.
    Hello,
    /// The proof is due.
    Challenged { nonce: [u8; AUTH_NONCE_BYTES], version: u8 },
    /// Requests are taken.
    Ready,
    /// The client said goodbye: what is in flight is answered, then the server says goodbye.
    Leaving,
    /// Everything is said: what is written is sent, what comes is dropped.
    Closing,
}

/// What the bytes to come belong to.
#[derive(Debug)]
enum Incoming {
    /// A head.
    Head,
    /// An inference that has no slot yet.
    Due(slots::Due),
    /// The payload of an inference, into its slot: as it comes, or decoded.
    Payload { lease: Lease, filled: usize, decoding: Option<Decoding>, due: slots::Due },
    /// A payload that nobody wants.
    Skip { left: usize },
}

/// Why a connection is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed;

/// How a turn of reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Everything there was is read; the next event will say when there is more.
    Drained,
    /// There may be more, after the others' turn.
    More,
    /// Replies must go out before more is read.
    Full,
    /// A request needs a slot of this model, and there is none: perhaps another connection's, whose
    /// payload does not come. Either way it is to be read again, and then knows.
    WantsSlot(ModelId),
}

/// By which door a connection came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    Unix,
    Tcp,
    Memory,
    Serial,
}

#[derive(Debug)]
pub(super) struct Conn {
    pub link: Option<Link>,
    pub door: Door,
    /// Since when it is open.
    pub since: Nanos,
    phase: Phase,
    /// The version of the protocol, from the hello on.
    version: u8,
    /// Models that were opened with encodings; requests name them by numbers after the models'.
    views: heapless::Vec<View, ENCODED_OPENS_COUNT_MAX>,
    wants_key: bool,
    /// The slowest payload that is not called half sent, in nanoseconds a byte.
    byte_ns_max: u64,
    buffer: LazyBytes,
    start: usize,
    end: usize,
    /// Whether the last frame had a payload that is better not read ahead.
    long_payloads: bool,
    incoming: Incoming,
    /// Other connections were asked for a slot for what is due.
    others_were_asked: bool,
    pub replies: Replies,
    ids: Vec<RequestId>,
    entries: Vec<u32>,
    /// The request for whose answer the socket was lent, by its entry.
    lent: Option<u32>,
    stats_for: Option<RequestId>,
    pub stats_missed: bool,
    pub power: control::Power,
    /// The read side has ended.
    eof: bool,
    /// The write side was shut down.
    finished: bool,
    /// The peer takes nothing more.
    pub hung_up: bool,
    /// The kernel said that the peer sends nothing more: the end is to be read, after what is there.
    pub peer_closed: bool,
    /// When the frame that is half here (or the hello that is due) is given up.
    half_until: Option<Nanos>,
    /// When the reader that takes nothing is given up.
    stall_until: Option<Nanos>,
    /// When the peer that does not close is given up.
    linger_until: Option<Nanos>,
    /// Bookkeeping of the loop: in the list to flush, in the list to read, registered for writing.
    pub dirty: bool,
    pub queued: bool,
    pub wants_write: bool,
    pub paused: bool,
    /// Since a drain began everything that there was has been read.
    pub is_read_dry: bool,
}

impl Conn {
    pub fn new(in_flight_max: usize) -> Self {
        Conn {
            link: None,
            door: Door::Memory,
            since: Nanos(0),
            phase: Phase::Hello,
            version: 0,
            views: heapless::Vec::new(),
            wants_key: false,
            byte_ns_max: BYTE_NS_MAX,
            buffer: LazyBytes::new(CONNECTION_READ_BYTES),
            start: 0,
            end: 0,
            long_payloads: false,
            incoming: Incoming::Head,
            others_were_asked: false,
            replies: Replies::new(in_flight_max),
            // One more, whose answer a worker has sent and not told yet.
            ids: Vec::with_capacity(in_flight_max + 1),
            entries: Vec::with_capacity(in_flight_max + 1),
            lent: None,
            stats_for: None,
            stats_missed: false,
            power: control::Power::default(),
            eof: false,
            finished: false,
            hung_up: false,
            peer_closed: false,
            half_until: None,
            stall_until: None,
            linger_until: None,
            dirty: false,
            queued: false,
            wants_write: false,
            paused: false,
            is_read_dry: false,
        }
    }
    pub fn open(&mut self, link: Link, door: Door, wants_key: bool, core: &Core) {
        self.link = Some(link);
        (self.door, self.since) = (door, core.now);
        self.others_were_asked = false;
        self.phase = Phase::Hello;
        self.wants_key = wants_key;
        self.byte_ns_max = BYTE_NS_MAX;
        (self.start, self.end) = (0, 0);
        self.long_payloads = false;
        (self.eof, self.finished, self.hung_up) = (false, false, false);
        self.peer_closed = false;
        (self.wants_write, self.paused) = (false, false);
        self.half_until = Some(core.now.after(core.half_frame));
        (self.stall_until, self.linger_until) = (None, None);
    }
    /// The line is so slow that payloads may take longer than on a socket.
    pub fn expect_slow_line(&mut self, byte_ns_max: u64) {
        self.byte_ns_max = self.byte_ns_max.max(byte_ns_max);
    }
    /// Gives everything back; requests in flight are withdrawn.
    pub fn close(&mut self, core: &mut Core) {
        self.link = None;
        self.incoming = Incoming::Head;
        self.replies.clear();
        self.ids.clear();
        if self.lent.take().is_some() {
            core.lent = None;
        }
        (self.stats_for, self.stats_missed) = (None, false);
        self.power = control::Power::default();
        self.views.clear();
        for at in self.entries.drain(..) {
            core.table.remove(at);
        }
    }
    /// When this connection must be looked at again, if nothing happens.
    pub fn next_timeout(&self) -> Option<Nanos> {
        [self.half_until, self.stall_until, self.linger_until].into_iter().flatten().min()
    }
    /// Requests that were accepted and whose end is not wholly sent, as far as the peer can know.
    pub fn in_flight(&self) -> usize {
        self.ids.len() + self.replies.endings() - usize::from(self.perhaps_answered().is_some())
    }
    /// Whether an answer that a worker sends by itself must be told at once.
    pub fn needs_news(&self) -> bool {
        self.lent.is_some() && self.phase != Phase::Ready
    }

    /// Reads and takes in what there is, within bounds.
    pub fn read(&mut self, core: &mut Core, at: u16) -> Result<Turn, Closed> {
        for _ in 0..READS_PER_TURN {
            if let Some(turn) = self.parse(core, at) {
                return Ok(turn);
            }
            let Some(link) = &self.link else { return Err(Closed) };
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            } else if self.start > 0 {
                // Part of a head, at most 262 bytes, or of a payload that waits for its slot.
                self.buffer.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            let direct: &mut [u8] = match &mut self.incoming {
                Incoming::Payload { lease, filled, decoding: None, .. } => {
                    &mut lease.input_mut()[*filled..]
                }
                _ => &mut [],
            };
            let direct_len = direct.len();
            // Where payloads are long, little more than a head is read ahead, so that the payload goes
            // straight into its slot; an encoded one is decoded from the buffer.
            let ahead = match self.long_payloads {
                true => self.buffer.len().min(self.end + LONG_READ_AHEAD_BYTES),
                false => self.buffer.len(),
            };
            let wanted = direct_len + ahead - self.end;
            let mut parts =
                [IoSliceMut::new(direct), IoSliceMut::new(&mut self.buffer[self.end..ahead])];
            let parts = if direct_len == 0 { &mut parts[1..] } else { &mut parts[..] };
            bump(&core.control.counters.reads_total, 1);
            let n = match link.read(parts) {
                Ok(0) => {
                    self.eof = true;
                    // What is half here will never be whole.
                    self.incoming = Incoming::Head;
                    (self.start, self.end) = (0, 0);
                    self.half_until = None;
                    if self.phase == Phase::Ready && link.may_end_one_way() {
                        // A peer that will ask nothing more, and may still read. One that is gone is
                        // known by its hanging up, now or when something is sent to it.
                        self.phase = Phase::Leaving;
                    }
                    // What was accepted is still answered, and what waits is still sent.
                    return match self.phase {
                        Phase::Leaving => Ok(Turn::Drained),
                        Phase::Closing if self.in_flight() > 0 || !self.replies.is_empty() => {
                            Ok(Turn::Drained)
                        }
                        _ => Err(Closed),
                    };
                }
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Turn::Drained);
                }
                Err(_) => return Err(Closed),
            };
            bump(&core.control.counters.received_bytes_total, n as u64);
            if let Incoming::Payload { filled, .. } = &mut self.incoming {
                *filled += n.min(direct_len);
            }
            self.end += n - n.min(direct_len);
            let end_is_told = matches!(link, Link::Socket(_)) && !self.peer_closed;
            if n < wanted && end_is_told {
                // A short read of a stream empties it; new bytes come with a new event. Not so the
                // end of the stream: its event may have come with these bytes, and in memory there is
                // one event for all that happened.
                return Ok(self.parse(core, at).unwrap_or(Turn::Drained));
            }
        }
        Ok(self.parse(core, at).unwrap_or(Turn::More))
    }

    /// Takes in what is in the buffer; why not all of it that is of use, if so.
    fn parse(&mut self, core: &mut Core, at: u16) -> Option<Turn> {
        loop {
            match &mut self.incoming {
                _ if self.phase == Phase::Closing => {
                    (self.start, self.end) = (0, 0);
                    return None;
                }
                Incoming::Skip { left } => {
                    let n = (*left).min(self.end - self.start);
                    *left -= n;
                    self.start += n;
                    if *left > 0 {
                        return None;
                    }
                    self.frame_is_whole();
                }
                Incoming::Due(due) => {
                    if due.is_late(self.end - self.start) {
                        return None;
                    }
                    if !self.replies.has_room() {
                        return Some(Turn::Full);
                    }
                    if let Some(model) = self.take_slot(core) {
                        return Some(Turn::WantsSlot(model));
                    }
                }
                Incoming::Payload { lease, decoding: Some(decoding), .. } => {
                    let bytes = &self.buffer[self.start..self.end];
                    let (n, whole) = decoding.take(&self.views, lease, bytes);
                    self.start += n;
                    if !whole {
                        return None;
                    }
                    if !self.replies.has_room() {
                        return Some(Turn::Full);
                    }
                    self.submit(core, at);
                    self.frame_is_whole();
                }
                Incoming::Payload { lease, filled, .. } => {
                    let to = &mut lease.input_mut()[*filled..];
                    let n = to.len().min(self.end - self.start);
                    to[..n].copy_from_slice(&self.buffer[self.start..self.start + n]);
                    *filled += n;
                    self.start += n;
                    if n < to.len() {
                        return None;
                    }
                    if !self.replies.has_room() {
                        return Some(Turn::Full);
                    }
                    self.submit(core, at);
                    self.frame_is_whole();
                }
                Incoming::Head => {
                    if self.start == self.end {
                        return None;
                    }
                    if !self.replies.has_room() {
                        return Some(Turn::Full);
                    }
                    // The header is read where it lies; nothing below touches the buffer.
                    let buffer = std::mem::take(&mut self.buffer);
                    let go_on = self.head(core, at, &buffer[self.start..self.end]);
                    self.buffer = buffer;
                    if !go_on {
                        return None;
                    }
                }
            }
        }
    }

    fn frame_is_whole(&mut self) {
        self.incoming = Incoming::Head;
        if matches!(self.phase, Phase::Ready | Phase::Leaving) {
            self.half_until = None;
        }
    }
}
