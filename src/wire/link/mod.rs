//! The serial link: a reliable stream of bytes over a line that drops, flips and invents them.
//!
//! What the stream carries is the same as on a socket: the frames and messages of
//! [`wire`](crate::wire). One link is one connection. A UART is full duplex and keeps the order of
//! bytes, and nothing else is asked of it.
//!
//! # Frames
//! On the line, zero bytes are delimiters and appear nowhere else: each frame is stuffed by COBS
//! (Cheshire and Baker: blocks of a code byte `n` and `n - 1` bytes without a zero; a zero follows a
//! block unless its code is 255 or it is the last). Empty units are nothing. A sender puts a
//! delimiter before a frame too, if the line was idle before it. Integers are little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | kind |
//! | 1 | count: in `Data` which of the sender's data frames it is, in `Nak` which one it is about; otherwise 0 |
//! | 2..4 | session; 0 in `Open` |
//! | 4..6 | `seq`: position in the sender's stream of the payload's first byte, or of the next to be sent |
//! | 6..8 | `ack`: position up to which the sender has received everything |
//! | 8..10 | credit: bytes after `ack` that the sender has room for, at most 32767 |
//! | 10.. | payload |
//! | last 4 | CRC-32C (Castagnoli) of all before it |
//!
//! Positions count bytes modulo 65536; data frames are counted modulo 256, those sent again too. Kinds: 1 `Open`, 2 `Accept`, 3 `Data`, 4 `Ack`, 5 `Nak`,
//! 6 `Ping`, 7 `Reset`. Only `Data` (a piece of the stream), `Open` and `Accept` (version, longest
//! frame in two bytes, nonce in four) have a payload.
//!
//! **Why 32 bits of checksum.** A checksum of n bits lets one damaged frame in 2^n pass. At one flip
//! in 1000 bytes a fifth of all frames of 240 bytes is damaged: with 16 bits, a busy line of 921600
//! baud (380 such frames a second) would hand over a wrong tensor every 15 minutes; with 32 bits
//! once in 1.7 years, and at one flip in 10000 bytes once in 15. The two more bytes are 0.8 % of a
//! frame. Castagnoli's polynomial finds any 5 flipped bits up to 655 bytes (Koopman 2002), but a
//! flip of a stuffing byte moves others, so only the first argument counts. The table takes 64 bytes.
//!
//! # Reading the line
//! Whatever comes is read up to the next delimiter, and dropped if it is too long (nothing is kept
//! of it, and its tail is not taken for a frame), cut short, or wrong in its checksum. There is no
//! other state that bytes could lead into: one sound frame after one delimiter is understood.
//!
//! # Sessions
//! The initiator (a microcontroller) sends `Open` with a nonce, again and again with growing pauses,
//! until `Accept` brings the nonce back with a number for the session. Both streams begin at
//! position 0. Each side sends frames no longer than the other's longest. `Open` with the nonce of a
//! session whose streams are untouched is a repetition, and is accepted again; any other begins
//! a new session, and the old one is over: the initiator restarted. A frame of a session that the
//! acceptor does not have is answered by `Reset`: the acceptor restarted. A session is also over if
//! the same bytes were sent [`LINK_RESEND_TIMES_MAX`](crate::limits::LINK_RESEND_TIMES_MAX) times without progress,
//! or after [`LINK_SILENCE_MS_MAX`](crate::limits::LINK_SILENCE_MS_MAX) without a sound frame while
//! something is waited for (the acceptor always waits). What was in flight then ends in an error at
//! the initiator, and is withdrawn at the acceptor; the link never sends it again by itself.
//!
//! # The streams
//! A side sends at most the credit beyond `ack`. Bytes are kept until they are acknowledged. The
//! receiver takes the bytes at its position, drops what it has had already (so nothing is taken
//! twice: a request is executed at most once), and answers each `Data` by an `Ack`, unless its own
//! `Data` carries it. Since a line does not reorder, a gap is a loss: it is answered by `Nak` at once,
//! as is a damaged frame that was long enough for data. `Nak` says which data frame it is about: the
//! one behind the gap, or the one that should have come where the damage was. If that was sent since
//! the sender went back last, it goes back to `ack`; if before, that loss is being repaired already.
//! Going back instead of filling holes costs the frames that were on their way, few on a line without
//! much latency, and lets a receiver do with the memory of one frame. Where no answer comes at all,
//! the sender goes back after a time that follows from the line's speed and from how long
//! acknowledgements took, and doubles it each time.
//!
//! A side that waits for the other sends `Ping` each
//! [`LINK_KEEP_ALIVE_MS`](crate::limits::LINK_KEEP_ALIVE_MS) of silence; `Ack` answers it.
//!
//! # Golden bytes
//! What the line carries, delimiters included, in hexadecimal; a test compares this table with the
//! code.
//!
//! | frame | bytes |
//! |---|---|
//! | `Open`, credit 512; version 1, frames of 254 bytes, nonce 01020304 | `02 01 01 01 01 01 01 01 01 04 02 01 fe 09 04 03 02 01 78 ae db 65 00` |
//! | `Accept`, session 7, credit 4096; version 1, frames of 1024 bytes, nonce 01020304 | `02 02 02 07 01 01 01 01 01 03 10 01 06 04 04 03 02 01 04 47 72 1e 00` |
//! | `Data`, count 5, session 7, seq 0, ack 0, credit 512: c1 00 02 | `04 03 05 07 01 01 01 01 01 03 02 c1 06 02 7d 03 a5 44 00` |
//! | `Ack`, session 7, seq 0, ack 3, credit 4093 | `02 04 02 07 01 01 02 03 07 fd 0f 98 21 7e 82 00` |
//! | `Nak`, about 6, session 7, seq 0, ack 300, credit 4096 | `04 05 06 07 01 01 03 2c 01 06 10 90 f0 bd 2d 00` |
//! | `Ping`, session 7, seq 3, ack 0, credit 512 | `02 06 02 07 02 03 01 01 01 06 02 7e ba 2e 7c 00` |
//! | `Reset`, session 7 | `02 07 02 07 01 01 01 01 01 01 05 f6 7a ff 62 00` |

mod cobs;
mod crc;
mod endpoint;
mod frame;
#[cfg(feature = "std")]
mod port;
mod ring;
mod types;

pub use cobs::{Damage, Decoder, encode, encoded_len_max};
pub use crc::crc32c;
pub use endpoint::Endpoint;
pub use frame::{Header, Kind, LinkFrameError, OFFER_BYTES, Offer, parse};
#[cfg(feature = "std")]
pub use port::SerialOptions;
pub use types::{BufferTooSmall, Counters, DownReason, LinkEvent, LinkOptions, Role};

/// Version of the link that this crate speaks.
pub const VERSION: u8 = 1;
