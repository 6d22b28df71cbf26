//! What waits to be sent on one connection.

use super::link::Link;
use super::{TransportCounters, bump};
use crate::limits::{CONNECTION_REPLY_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use crate::queue::Done;
use crate::queue::outlet::ANSWER_HEAD_BYTES;
use crate::sys::memory::LazyBytes;
use crate::wire::{HEAD_BYTES_MAX, Reply, encode_head, parse_head};
use std::collections::VecDeque;
use std::io::{self, IoSlice};

/// The most that a frame may be answered with at once.
const REPLY_BYTES_MAX: usize = HEAD_BYTES_MAX + FRAME_BODY_BYTES_MAX;
/// Parts of one gathering write.
const PARTS_MAX: usize = 64;

/// The end of an accepted request: its head, and its output where it still lies in the slot.
#[derive(Debug)]
struct Ending {
    head: [u8; ANSWER_HEAD_BYTES],
    head_len: u8,
    done: Option<Done>,
    /// Bytes of the output that are sent.
    output_len: usize,
}

impl Ending {
    fn len(&self) -> usize {
        self.head_len as usize + self.output().len()
    }
    fn output(&self) -> &[u8] {
        self.done.as_ref().map_or(&[], |done| &done.output()[..self.output_len])
    }
}

/// The reply whose bytes go out next.
#[derive(Debug, Clone, Copy, Default)]
struct Next {
    /// Bytes of it that are not sent; 0: it begins there, and nobody has looked.
    left: usize,
    is_answer: bool,
}

impl Next {
    /// The one that `bytes` begin with.
    fn of(bytes: &[u8]) -> Next {
        let Ok(Some(head)) = parse_head(bytes) else {
            debug_assert!(false, "replies are whole frames");
            return Next { left: bytes.len(), is_answer: false };
        };
        let is_answer = matches!(Reply::decode(head.header), Ok(Reply::Answer { .. }));
        Next { left: head.head_len + head.payload_len as usize, is_answer }
    }
}

/// Frames to send: small replies by value, and endings of accepted requests. Their order is free,
/// since ids tell them apart; what must not happen is that a frame begins within another. So: the
/// ending that is half sent goes first, then all replies, then the other endings.
#[derive(Debug)]
pub(super) struct Replies {
    bytes: LazyBytes,
    start: usize,
    end: usize,
    endings: VecDeque<Ending>,
    /// Bytes of the first ending that are sent already.
    sent: usize,
    /// Answers among the bytes, copied there out of their slots.
    spilled: usize,
    next: Next,
}

/// How a flush ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Nothing waits.
    All,
    /// A worker is sending on this connection; it will tell.
    Lent,
    /// The peer takes no more for now.
    Blocked {
        /// Whether something was taken.
        progress: bool,
    },
}

impl Replies {
    pub fn new(in_flight_max: usize) -> Self {
        Replies {
            bytes: LazyBytes::new(CONNECTION_REPLY_BYTES_MAX),
            start: 0,
            end: 0,
            endings: VecDeque::with_capacity(in_flight_max + 2),
            sent: 0,
            spilled: 0,
            next: Next::default(),
        }
    }
    /// Forgets everything; slots go back.
    pub fn clear(&mut self) {
        self.bytes_are_sent();
        self.sent = 0;
        self.endings.clear();
    }
    fn bytes_are_sent(&mut self) {
        (self.start, self.end) = (0, 0);
        (self.spilled, self.next) = (0, Next::default());
    }
    pub fn is_empty(&self) -> bool {
        self.start == self.end && self.endings.is_empty()
    }
    /// Requests that ended and are not wholly sent.
    pub fn endings(&self) -> usize {
        self.endings.len()
    }
    /// The same, with the answers that were copied out of their slots.
    pub fn unsent_ends(&self) -> usize {
        self.endings.len() + self.spilled
    }
    /// Whether any one frame can be answered.
    pub fn has_room(&self) -> bool {
        self.bytes.len() - (self.end - self.start) >= REPLY_BYTES_MAX
    }
    /// Space for `n` bytes at the end of the replies.
    fn space(&mut self, n: usize) -> Option<&mut [u8]> {
        if self.bytes.len() - (self.end - self.start) < n {
            return None;
        }
        if self.bytes.len() - self.end < n {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        Some(&mut self.bytes[self.end..self.end + n])
    }
    /// Adds a reply. Returns false if there is no room, which [`has_room`](Self::has_room) tells
    /// before.
    pub fn push(&mut self, reply: &Reply<'_>, payload: &[u8]) -> bool {
        let Some(space) = self.space(HEAD_BYTES_MAX + payload.len()) else { return false };
        let Ok(n) = encode_head(reply, payload.len(), space) else { return false };
        space[n..n + payload.len()].copy_from_slice(payload);
        self.end += n + payload.len();
        true
    }
    /// Adds the end of an accepted request: an answer with its slot and the bytes of the slot's output
    /// to send, or a failure. Always fits, since requests in flight are bounded.
    ///
    /// `sent` bytes of it are sent already: then it goes before all others.
    pub fn push_ending(&mut self, reply: &Reply<'_>, done: Option<(Done, usize)>, sent: usize) {
        let output_len = done.as_ref().map_or(0, |(_, len)| *len);
        let done = done.map(|(done, _)| done);
        let mut ending = Ending { head: [0; ANSWER_HEAD_BYTES], head_len: 0, done, output_len };
        let payload_len = ending.output().len();
        let mut written = encode_head(reply, payload_len, &mut ending.head);
        if let (Err(_), Reply::Error { id, code, a, b, .. }) = (written, *reply) {
            let short = Reply::Error { id, code, text: "", a, b };
            written = encode_head(&short, 0, &mut ending.head);
        }
        debug_assert!(written.is_ok(), "heads of endings are short");
        ending.head_len = written.unwrap_or(0) as u8;
        debug_assert!(self.endings.len() < self.endings.capacity());
        if sent == 0 {
            self.endings.push_back(ending);
        } else {
            debug_assert_eq!(self.sent, 0, "two frames are half sent");
            self.endings.push_front(ending);
            self.sent = sent;
        }
    }

    /// Sends as much as is taken.
    pub fn flush(&mut self, link: &Link, counters: &TransportCounters) -> io::Result<Flushed> {
        let mut progress = false;
        while !self.is_empty() {
            let mut total = 0;
            let written = {
                let mut parts: heapless::Vec<IoSlice<'_>, PARTS_MAX> = heapless::Vec::new();
                let mut endings = self.endings.iter();
                if self.sent > 0
                    && let Some(first) = endings.next()
                {
                    let head = &first.head[..first.head_len as usize];
                    let _ = parts.push(IoSlice::new(&head[self.sent.min(head.len())..]));
                    let after = self.sent.saturating_sub(head.len());
                    let _ = parts.push(IoSlice::new(&first.output()[after..]));
                }
                let _ = parts.push(IoSlice::new(&self.bytes[self.start..self.end]));
                for ending in endings {
                    if parts.len() + 2 > PARTS_MAX {
                        break;
                    }
                    let _ = parts.push(IoSlice::new(&ending.head[..ending.head_len as usize]));
                    if !ending.output().is_empty() {
                        let _ = parts.push(IoSlice::new(ending.output()));
                    }
                }
                for part in &parts {
                    total += part.len();
                }
                bump(&counters.writes_total, 1);
                link.write(&parts)
            };
            match written {
                Ok(0) if total > 0 => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    progress = true;
                    bump(&counters.sent_bytes_total, n as u64);
                    self.advance(n, link);
                    if n < total {
                        // The rest would only be refused: a stream takes what it has room for.
                        self.spill();
                        return Ok(Flushed::Blocked { progress });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.spill();
                    return Ok(Flushed::Blocked { progress });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Flushed::All)
    }

    /// Counts `n` bytes as sent over `link`, in the order in which [`flush`](Self::flush) gathers, and tells it
    /// where ends of requests end.
    fn advance(&mut self, mut n: usize, link: &Link) {
        if self.sent > 0
            && let Some(first) = self.endings.front()
        {
            let rest = first.len() - self.sent;
            if n < rest {
                self.sent += n;
                return;
            }
            n -= rest;
            self.sent = 0;
            self.endings.pop_front();
            link.end_is_taken(n);
        }
        let replies = n.min(self.end - self.start);
        n -= replies;
        self.advance_replies(replies, |back| link.end_is_taken(n + back));
        while n > 0
            && let Some(first) = self.endings.front()
        {
            if n < first.len() {
                self.sent = n;
                return;
            }
            n -= first.len();
            self.endings.pop_front();
            link.end_is_taken(n);
        }
    }

    /// The same for the replies; `answer_is_taken` is told of each answer among them, and how many of the `n` bytes
    /// came after it.
    fn advance_replies(&mut self, mut n: usize, answer_is_taken: impl Fn(usize)) {
        let all = n == self.end - self.start;
        // Only where the reader is slow: which of them are wholly sent.
        while n > 0 && !(all && self.spilled == 0) {
            if self.next.left == 0 {
                self.next = Next::of(&self.bytes[self.start..self.end]);
            }
            let part = n.min(self.next.left);
            self.next.left -= part;
            self.start += part;
            n -= part;
            if self.next.left == 0 && self.next.is_answer {
                self.spilled -= 1;
                answer_is_taken(n);
            }
        }
        if all {
            self.bytes_are_sent();
        }
    }

    /// Copies answers that wait for a slow reader out of their slots, while the replies have room,
    /// so that the slots serve others.
    fn spill(&mut self) {
        let mut at = (self.sent > 0) as usize;
        while let Some(ending) = self.endings.get(at) {
            let len = ending.len();
            if ending.done.is_none() {
                // It holds no slot.
                at += 1;
                continue;
            }
            if self.bytes.len() - (self.end - self.start) < len {
                return;
            }
            let Some(ending) = self.endings.remove(at) else { return };
            self.spilled += 1;
            let Some(space) = self.space(len) else { return };
            let head_len = ending.head_len as usize;
            space[..head_len].copy_from_slice(&ending.head[..head_len]);
            space[head_len..].copy_from_slice(ending.output());
            self.end += len;
        }
    }
}
