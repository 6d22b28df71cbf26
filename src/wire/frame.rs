//! Framing on a byte stream: the bytes around a header, apart from what it means.

use crate::limits::{FRAME_HEADER_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX, FRAME_PREFIX_BYTES};
use serde::Serialize;

/// First byte of every frame.
pub const MAGIC: u8 = 0xC1;
/// Longest head (prefix and header) in bytes.
pub const HEAD_BYTES_MAX: usize = FRAME_PREFIX_BYTES + FRAME_HEADER_BYTES_MAX;

/// Fields of the prefix.
mod field {
    use core::ops::Range;
    pub const MAGIC: usize = 0;
    pub const HEADER_LEN: usize = 1;
    pub const RESERVED: Range<usize> = 2..4;
    pub const PAYLOAD_LEN: Range<usize> = 4..8;
}

/// Why bytes are not a frame. The stream can't be trusted after any of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum FrameError {
    /// The first byte is not [`MAGIC`].
    BadMagic {
        /// The byte.
        got: u8,
    },
    /// The reserved field is not zero.
    BadReserved {
        /// The field.
        got: u16,
    },
    /// A header of no bytes.
    EmptyHeader,
    /// The payload is over the limit.
    PayloadTooLong {
        /// Bytes announced.
        len: u32,
        /// Bytes allowed.
        max: u32,
    },
}

impl core::fmt::Display for FrameError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            FrameError::BadMagic { got } => {
                write!(f, "a frame begins with 0x{MAGIC:02X}, not with 0x{got:02X}")
            }
            FrameError::BadReserved { got } => {
                write!(f, "the reserved field of a frame is 0x{got:04X}; it must be 0")
            }
            FrameError::EmptyHeader => f.write_str("a frame without a header"),
            FrameError::PayloadTooLong { len, max } => {
                write!(f, "a frame announces {len} bytes of payload; at most {max} are allowed")
            }
        }
    }
}

impl core::error::Error for FrameError {}

/// The first 8 bytes of a frame, understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Prefix {
    /// Bytes of the header, at least 1.
    pub header_len: u8,
    /// Bytes of the payload after the header, at most
    /// [`FRAME_PAYLOAD_BYTES_MAX`](crate::limits::FRAME_PAYLOAD_BYTES_MAX).
    pub payload_len: u32,
}

impl Prefix {
    /// Reads a prefix. Errors are found at the earliest byte that shows them, so a peer that speaks
    /// something else is noticed at its first byte. Never panics.
    pub fn decode(bytes: &[u8; FRAME_PREFIX_BYTES]) -> Result<Prefix, FrameError> {
        check_partial(bytes)?;
        let [.., a, b, c, d] = *bytes;
        Ok(Prefix {
            header_len: bytes[field::HEADER_LEN],
            payload_len: u32::from_le_bytes([a, b, c, d]),
        })
    }
    /// Writes the prefix.
    pub fn encode(self) -> [u8; FRAME_PREFIX_BYTES] {
        let mut bytes = [0; FRAME_PREFIX_BYTES];
        bytes[field::MAGIC] = MAGIC;
        bytes[field::HEADER_LEN] = self.header_len;
        bytes[field::PAYLOAD_LEN].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes
    }
    /// Bytes of prefix and header.
    pub const fn head_len(self) -> usize {
        FRAME_PREFIX_BYTES + self.header_len as usize
    }
}

/// Checks as much of a prefix as there is.
fn check_partial(bytes: &[u8]) -> Result<(), FrameError> {
    if let Some(&got) = bytes.get(field::MAGIC)
        && got != MAGIC
    {
        return Err(FrameError::BadMagic { got });
    }
    if bytes.get(field::HEADER_LEN) == Some(&0) {
        return Err(FrameError::EmptyHeader);
    }
    if let Some(&[a, b]) = bytes.get(field::RESERVED)
        && (a, b) != (0, 0)
    {
        return Err(FrameError::BadReserved { got: u16::from_le_bytes([a, b]) });
    }
    if let Some(&[a, b, c, d]) = bytes.get(field::PAYLOAD_LEN) {
        let len = u32::from_le_bytes([a, b, c, d]);
        let max = FRAME_PAYLOAD_BYTES_MAX as u32;
        if len > max {
            return Err(FrameError::PayloadTooLong { len, max });
        }
    }
    Ok(())
}

/// A head found at the start of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Head<'a> {
    /// The header's bytes.
    pub header: &'a [u8],
    /// Bytes of payload that follow the head.
    pub payload_len: u32,
    /// Bytes of prefix and header.
    pub head_len: usize,
}

/// Finds a head at the start of `bytes`; `None` if there are not enough bytes yet. Never panics.
pub fn parse_head(bytes: &[u8]) -> Result<Option<Head<'_>>, FrameError> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<FRAME_PREFIX_BYTES>() else {
        check_partial(bytes)?;
        return Ok(None);
    };
    let prefix = Prefix::decode(prefix)?;
    Ok(rest.get(..prefix.header_len as usize).map(|header| Head {
        header,
        payload_len: prefix.payload_len,
        head_len: prefix.head_len(),
    }))
}

/// Why a message was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum EncodeError {
    /// The message, or the buffer given, is too long or too short for a head.
    HeaderTooLong {
        /// Bytes that were there for the header.
        max: usize,
    },
    /// The payload is over the limit.
    PayloadTooLong {
        /// Bytes.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
}

impl core::fmt::Display for EncodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            EncodeError::HeaderTooLong { max } => {
                write!(f, "the message does not fit the {max} bytes there are for a header")
            }
            EncodeError::PayloadTooLong { len, max } => {
                write!(f, "a payload of {len} bytes; at most {max} are allowed")
            }
        }
    }
}

impl core::error::Error for EncodeError {}

/// Writes prefix and header of `message` to the start of `out`; the caller sends `payload_len`
/// bytes after them. Returns the bytes written, at most [`HEAD_BYTES_MAX`].
pub fn encode_head<T: Serialize>(
    message: &T,
    payload_len: usize,
    out: &mut [u8],
) -> Result<usize, EncodeError> {
    if payload_len > FRAME_PAYLOAD_BYTES_MAX {
        return Err(EncodeError::PayloadTooLong { len: payload_len, max: FRAME_PAYLOAD_BYTES_MAX });
    }
    let Some((prefix, rest)) = out.split_first_chunk_mut::<FRAME_PREFIX_BYTES>() else {
        return Err(EncodeError::HeaderTooLong { max: 0 });
    };
    let max = rest.len().min(FRAME_HEADER_BYTES_MAX);
    let header_len = postcard::to_slice(message, &mut rest[..max])
        .map_err(|_| EncodeError::HeaderTooLong { max })?
        .len();
    *prefix = Prefix { header_len: header_len as u8, payload_len: payload_len as u32 }.encode();
    Ok(FRAME_PREFIX_BYTES + header_len)
}

/// Gathers prefix and header from a stream that comes in pieces of any size. Holds the head and
/// nothing else: the payload is the caller's.
#[derive(Debug, Clone)]
pub struct HeadDecoder {
    bytes: [u8; HEAD_BYTES_MAX],
    len: usize,
}

impl Default for HeadDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl HeadDecoder {
    /// Before the first byte of a frame.
    pub const fn new() -> Self {
        HeadDecoder { bytes: [0; HEAD_BYTES_MAX], len: 0 }
    }
    /// Whether some bytes of a head are here.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Bytes that the head still needs, as far as is known: first those of the prefix. Zero once
    /// the head is whole.
    pub fn missing(&self) -> usize {
        let want = match self.len {
            0..FRAME_PREFIX_BYTES => FRAME_PREFIX_BYTES,
            _ => FRAME_PREFIX_BYTES + self.bytes[field::HEADER_LEN] as usize,
        };
        want.saturating_sub(self.len)
    }
    /// Takes bytes until the head is whole or `bytes` are used up; returns how many it took. Takes
    /// none once the head is whole: [`head`](Self::head) it, then [`clear`](Self::clear).
    pub fn feed(&mut self, bytes: &[u8]) -> Result<usize, FrameError> {
        let mut taken = 0;
        // First what is missing of the prefix, then of the header.
        loop {
            let missing = self.missing();
            let places = self.bytes.iter_mut().skip(self.len).take(missing);
            let before = taken;
            for (place, &byte) in places.zip(bytes.iter().skip(taken)) {
                *place = byte;
                taken += 1;
            }
            if taken == before {
                return Ok(taken);
            }
            self.len += taken - before;
            let prefix = self.len.min(FRAME_PREFIX_BYTES);
            check_partial(self.bytes.get(..prefix).unwrap_or_default())?;
        }
    }
    /// The head, once it is whole.
    pub fn head(&self) -> Option<Head<'_>> {
        if self.missing() > 0 {
            return None;
        }
        let (prefix, rest) = self.bytes.split_first_chunk::<FRAME_PREFIX_BYTES>()?;
        let header_len = usize::from(prefix[field::HEADER_LEN]);
        let [.., a, b, c, d] = *prefix;
        Some(Head {
            header: rest.get(..header_len)?,
            payload_len: u32::from_le_bytes([a, b, c, d]),
            head_len: FRAME_PREFIX_BYTES + header_len,
        })
    }
    /// Begins the next frame.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}
