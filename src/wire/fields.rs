//! Fields of messages, one by one, in postcard's encoding: what half one reads and writes headers with.
//! postcard's own code is made anew for each type and each of its fields, which costs a microcontroller
//! several kilobytes; a test holds this file to it.

use super::frame::{EncodeError, Prefix};
use super::message::MessageError;
use crate::limits::{FRAME_HEADER_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX, FRAME_PREFIX_BYTES};
use crate::units::{CloseReason, Nanos, Receipt, RequestId, Rows, WorkerId};
use core::slice::Iter;

/// Reads fields. After the first that can't be, it gives zeros and knows that it is [`bad`](Self::is_bad).
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    rest: Iter<'a, u8>,
    bad: bool,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes.iter(), bad: false }
    }
    /// What was not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest.as_slice()
    }
    /// Whether a field was cut short or had an impossible value.
    pub const fn is_bad(&self) -> bool {
        self.bad
    }
    pub fn byte(&mut self) -> u8 {
        match self.rest.next() {
            Some(&byte) => byte,
            None => {
                self.bad = true;
                0
            }
        }
    }
    /// A varint of at most `len_max` bytes, the last of them at most `last_max`.
    #[inline(never)]
    fn varint(&mut self, len_max: u8, last_max: u8) -> u64 {
        let bytes = self.rest();
        let mut len = 0;
        loop {
            let byte = self.byte();
            len += 1;
            if len == len_max && byte > last_max {
                self.bad = true;
                break;
            }
            if byte < 0x80 {
                break;
            }
        }
        let bytes = bytes.get(..usize::from(len)).unwrap_or_default();
        // From the last: shifts by a constant are cheap where a word has 32 bits.
        bytes.iter().rev().fold(0, |value, &byte| value << 7 | u64::from(byte & 0x7F))
    }
    pub fn u16(&mut self) -> u16 {
        self.varint(3, 3) as u16
    }
    pub fn u32(&mut self) -> u32 {
        self.varint(5, 15) as u32
    }
    pub fn u64(&mut self) -> u64 {
        self.varint(10, 1)
    }
    /// A bool, or whether an option has its value.
    pub fn flag(&mut self) -> bool {
        let byte = self.byte();
        self.bad |= byte > 1;
        byte == 1
    }
    /// The bytes of a text, or of bytes.
    pub fn bytes(&mut self) -> &'a [u8] {
        let len = usize::try_from(self.u64()).unwrap_or(usize::MAX);
        match self.rest().split_at_checked(len) {
            Some((bytes, rest)) => {
                self.rest = rest.iter();
                bytes
            }
            None => {
                self.bad = true;
                &[]
            }
        }
    }
    /// One of a few, by its number.
    pub fn one_of<T: Copy>(&mut self, all: &[T], otherwise: T) -> T {
        match all.get(self.u32() as usize) {
            Some(&one) => one,
            None => {
                self.bad = true;
                otherwise
            }
        }
    }
    /// The number of a message; one above 255 is no message's.
    pub fn number(&mut self) -> u8 {
        u8::try_from(self.u32()).unwrap_or(u8::MAX)
    }
    /// The id that a reply of this number begins with.
    pub fn reply_id(&mut self, number: u8) -> Option<RequestId> {
        let has_id = match number {
            2 | 3 | 5..=8 => true,
            4 => self.flag(),
            _ => false,
        };
        has_id.then(|| RequestId(self.u32()))
    }
    pub fn receipt(&mut self) -> Receipt {
        Receipt {
            queue_ns: Nanos(self.u64()),
            compute_input_ns: Nanos(self.u64()),
            compute_infer_ns: Nanos(self.u64()),
            compute_output_ns: Nanos(self.u64()),
            batch_size: Rows(self.u16()),
            close_reason: self.one_of(&CloseReason::ALL, CloseReason::Idle),
            worker: WorkerId(self.byte()),
        }
    }
    /// Whether the fields were sound, and were all.
    pub fn end(&self, number: u8) -> Result<(), MessageError> {
        match self.rest().len() {
            _ if self.bad => Err(MessageError::BadField { number }),
            0 => Ok(()),
            extra => Err(MessageError::TrailingBytes { extra }),
        }
    }
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        core::array::from_fn(|_| self.byte())
    }
}

/// Writes a frame's head: its prefix last, since that has the length of what follows it.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    /// Bytes written, also those that had no room.
    len: usize,
}

impl<'a> Writer<'a> {
    /// Begins a message with its number.
    pub fn new(out: &'a mut [u8], number: u8) -> Self {
        let mut writer = Writer { out, len: FRAME_PREFIX_BYTES };
        writer.byte(number);
        writer
    }
    #[inline(never)]
    pub fn byte(&mut self, byte: u8) {
        if let Some(place) = self.out.get_mut(self.len) {
            *place = byte;
        }
        self.len += 1;
    }
    #[inline(never)]
    pub fn varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }
    /// Bytes without their count.
    #[inline(never)]
    pub fn raw(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.byte(byte);
        }
    }
    /// A text, or bytes: their count, then they.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.varint(bytes.len() as u32);
        self.raw(bytes);
    }
    /// Writes the prefix; returns the length of the head.
    ///
    /// # Errors
    /// It has no room, or the payload is over the limit.
    pub fn end(self, payload_len: usize) -> Result<usize, EncodeError> {
        if payload_len > FRAME_PAYLOAD_BYTES_MAX {
            let max = FRAME_PAYLOAD_BYTES_MAX;
            return Err(EncodeError::PayloadTooLong { len: payload_len, max });
        }
        let header_len = self.len - FRAME_PREFIX_BYTES;
        let room = self.out.len().saturating_sub(FRAME_PREFIX_BYTES);
        let max = room.min(FRAME_HEADER_BYTES_MAX);
        match self.out.first_chunk_mut() {
            Some(prefix) if header_len <= max => {
                let (header_len, payload_len) = (header_len as u8, payload_len as u32);
                *prefix = Prefix { header_len, payload_len }.encode();
                Ok(self.len)
            }
            _ => Err(EncodeError::HeaderTooLong { max }),
        }
    }
}
