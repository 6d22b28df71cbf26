//! One frame: a header of fixed size, a payload, a checksum.

use super::crc::Crc;
use crate::limits::{LINK_CHECK_BYTES, LINK_HEADER_BYTES};

/// What a frame is for. The number is its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u8)]
pub enum Kind {
    /// The initiator asks for a session; the payload is an [`Offer`].
    Open = 1,
    /// The acceptor begins one; the payload is its [`Offer`], with the initiator's nonce.
    Accept = 2,
    /// A piece of the stream.
    Data = 3,
    /// Nothing but the acknowledgement.
    Ack = 4,
    /// An acknowledgement that asks for everything after it again.
    Nak = 5,
    /// Asks for an acknowledgement.
    Ping = 6,
    /// The session is over, or unknown here.
    Reset = 7,
}

impl Kind {
    const fn from_number(number: u8) -> Option<Kind> {
        Some(match number {
            1 => Kind::Open,
            2 => Kind::Accept,
            3 => Kind::Data,
            4 => Kind::Ack,
            5 => Kind::Nak,
            6 => Kind::Ping,
            7 => Kind::Reset,
            _ => return None,
        })
    }
}

/// Fields of the header.
mod field {
    use core::ops::Range;
    pub const KIND: usize = 0;
    pub const COUNT: usize = 1;
    pub const SESSION: Range<usize> = 2..4;
    pub const SEQ: Range<usize> = 4..6;
    pub const ACK: Range<usize> = 6..8;
    pub const CREDIT: Range<usize> = 8..10;
    /// The last four.
    pub const WORDS: Range<usize> = SESSION.start..CREDIT.end;
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// In [`Kind::Data`]: which of the sender's data frames it is, counted modulo 256, those that
    /// are sent again too. In [`Kind::Nak`]: which frame it is about. 0 in others.
    pub count: u8,
    /// Which session; 0 in [`Kind::Open`].
    pub session: u16,
    /// Position in the sender's stream: of the payload's first byte, or of the next to be sent.
    pub seq: u16,
    /// The position up to which the sender has received everything.
    pub ack: u16,
    /// Bytes after `ack` that the sender has room for.
    pub credit: u16,
}

fn word(bytes: &[u8], at: core::ops::Range<usize>) -> u16 {
    match bytes.get(at) {
        Some(&[low, high]) => u16::from_le_bytes([low, high]),
        _ => 0,
    }
}

impl Header {
    /// Writes the header.
    pub fn encode(self) -> [u8; LINK_HEADER_BYTES] {
        let mut bytes = [0; LINK_HEADER_BYTES];
        bytes[field::KIND] = self.kind as u8;
        bytes[field::COUNT] = self.count;
        let words = [self.session, self.seq, self.ack, self.credit];
        for (place, word) in bytes[field::WORDS].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
    fn decode(bytes: &[u8; LINK_HEADER_BYTES]) -> Option<Header> {
        Some(Header {
            kind: Kind::from_number(bytes[field::KIND])?,
            count: bytes[field::COUNT],
            session: word(bytes, field::SESSION),
            seq: word(bytes, field::SEQ),
            ack: word(bytes, field::ACK),
            credit: word(bytes, field::CREDIT),
        })
    }
}

/// Why a unit of the line is not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum LinkFrameError {
    /// Shorter than header and checksum.
    TooShort {
        /// Bytes.
        len: usize,
    },
    /// The checksum is wrong.
    Crc {
        /// What it says.
        got: u32,
        /// What the bytes give.
        want: u32,
    },
    /// The checksum is right, but this version has no such kind.
    UnknownKind {
        /// Its number.
        number: u8,
    },
}

/// Reads a unit as a frame: header and payload. Never panics, whatever the bytes.
pub fn parse(unit: &[u8]) -> Result<(Header, &[u8]), LinkFrameError> {
    let short = LinkFrameError::TooShort { len: unit.len() };
    let (body, check) = unit.split_last_chunk::<LINK_CHECK_BYTES>().ok_or(short)?;
    let (header, payload) = body.split_first_chunk::<LINK_HEADER_BYTES>().ok_or(short)?;
    let mut crc = Crc::new();
    crc.add(body);
    let (got, want) = (u32::from_le_bytes(*check), crc.value());
    if got != want {
        return Err(LinkFrameError::Crc { got, want });
    }
    let number = header[field::KIND];
    let header = Header::decode(header).ok_or(LinkFrameError::UnknownKind { number })?;
    Ok((header, payload))
}

/// What each side says of itself when a session begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Offer {
    /// Highest version of the link that the side speaks; in an accept the one that both use.
    pub version: u8,
    /// Longest unit that the side can receive: header, payload and checksum.
    pub frame_bytes_max: u16,
    /// Chosen by the initiator anew for each session.
    pub nonce: u32,
}

/// Bytes of an [`Offer`].
pub const OFFER_BYTES: usize = 7;

impl Offer {
    /// Writes the offer.
    pub fn encode(self) -> [u8; OFFER_BYTES] {
        let [a, b] = self.frame_bytes_max.to_le_bytes();
        let [c, d, e, f] = self.nonce.to_le_bytes();
        [self.version, a, b, c, d, e, f]
    }
    /// Reads an offer; bytes that a later version adds at the end are passed over.
    pub fn decode(payload: &[u8]) -> Option<Offer> {
        let [version, a, b, c, d, e, f] = *payload.first_chunk::<OFFER_BYTES>()?;
        Some(Offer {
            version,
            frame_bytes_max: u16::from_le_bytes([a, b]),
            nonce: u32::from_le_bytes([c, d, e, f]),
        })
    }
}
