//! The protocol, versions 1 to 3: the specification, and what reads and writes it.
//!
//! # Promise
//! The prefix of a frame, `Hello`, `Error` and the numbers of error codes are the same in every
//! version. No message changes its number or its fields; new messages and codes get new numbers at
//! the end, and new messages a new version, which the hello negotiates, so that a client knows what
//! it may send. Version 2 is version 1 and `OpenEncoded`; version 3 is version 2 and `Reload`.
//!
//! # Frames
//! On a byte stream (Unix socket, TCP) both directions carry frames without gaps. All integers of
//! the prefix are little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | magic, `0xC1` |
//! | 1 | length of the header, 1 to 255 |
//! | 2..4 | reserved, 0 |
//! | 4..8 | length of the payload, at most [`FRAME_PAYLOAD_BYTES_MAX`](crate::limits::FRAME_PAYLOAD_BYTES_MAX) |
//! | 8.. | header, then payload |
//!
//! The header is one message in postcard's encoding: the message's number, then its fields in
//! order. Integers wider than a byte are varints (7 bits a byte, low bits first, the high bit set on
//! all bytes but the last), `u8` and `bool` are one byte, a text is its length (varint) and UTF-8
//! bytes, an option is a byte 0, or 1 and the value, an array is its elements. The message must fill
//! the header. Messages and fields: [`Request`] (client to server) and [`Reply`] (server to client);
//! a serial link carries the same messages in other frames.
//!
//! # Conversation
//! 1. The client sends `Hello` with the range of versions that it speaks. The server answers
//!    `HelloOk` with the highest version in both ranges, or the error `unsupported_version`.
//!    A server with a pre-shared key answers `Challenge` first; the client sends `Auth` with
//!    HMAC-SHA256(key, "corelane v1 client" followed by the nonce). The proof admits the connection;
//!    nothing after it is encrypted or signed.
//!    On a serial line no key is asked for: who can reach its wires is trusted. Clients made for such lines
//!    answer a `Challenge` by an error.
//! 2. `Open` gives a model's number, its limits and its [`Signature`], so that later payloads carry
//!    neither names nor shapes.
//!    `OpenEncoded` (version 2) asks besides that float32 tensors travel [encoded](#encodings).
//! 3. `Infer` carries the tensors. Many may be in flight on one connection; answers come in any
//!    order and are matched by the request's id. Every `Infer` gets exactly one `Answer` or one
//!    `Error` with its id, also if it was cancelled. Every other request with an id gets one reply
//!    with that id, except `Cancel`, which gets none.
//! 4. `Reload` (version 3) replaces a model, or all of them, by what their files hold now. The answer comes
//!    when the new version serves, and with it every answer to a request that was sent after it; or when
//!    it is refused, and the former serves on. Numbers, limits and signatures that were told stay what
//!    they are.
//! 5. `Goodbye` from a client: no more requests; the server answers what is in flight, says
//!    `Goodbye` and closes. A server that drains does the same by itself: requests that arrive
//!    meanwhile get `shutting_down`. Where a client ends its direction of a socket only (a half-close), that
//!    is a goodbye: what is in flight is answered, then the server says `Goodbye` and closes. Where the
//!    connection is gone, or a serial session over, what is in flight is withdrawn. TCP tells the one from
//!    the other when something is sent: until then what is in flight is computed.
//!
//! # Payloads
//! `Infer` and `Answer`: the tensors of the signature in order, each `rows` rows of little-endian
//! elements without padding between rows, each tensor beginning at the next multiple of
//! [`TENSOR_ALIGN_BYTES`](crate::limits::TENSOR_ALIGN_BYTES) (8) from the payload's start, gap bytes
//! zero. `Opened`: a [`Signature`] in postcard. `Models`: `count` times a [`ModelEntry`] in postcard.
//! `Stats`: JSON text in UTF-8, at most [`FRAME_BODY_BYTES_MAX`](crate::limits::FRAME_BODY_BYTES_MAX)
//! bytes, where what says least is left out if all would not fit (`too_long` tells how much that is); in answer to
//! `Reload` an array with an object for each model: `model`, `ok`, and `changed`, `version`,
//! `version_hash` and `took_ns`, or `reason` and `error`, which is cut where the array would not fit. All other
//! messages: none.
//!
//! # Encodings
//! Where the wire is the latency, float32 tensors may travel as fewer bytes. `OpenEncoded` lists
//! tensors, each at most once: a byte with its position (from 0; the highest bit is set for an
//! output), a byte with the number of the [`Encoding`], and for `i8` the scale (float32) and the zero
//! point (one signed byte). The answer is `Opened` as ever, with the signature of the model as it is,
//! and with a number that stands for the model with these encodings on this connection: requests with
//! it send and receive the listed tensors encoded, requests with the number that `Open` gives do not.
//! The same list for the same model gets the same number; a connection may have
//! [`ENCODED_OPENS_COUNT_MAX`](crate::limits::ENCODED_OPENS_COUNT_MAX). Payloads follow the same rule, with the
//! encoded elements' size. What the server can't do is an error that names the tensor
//! (`bad_encoding`), and nothing is opened.
//!
//! | number | name | bytes | element |
//! |---|---|---|---|
//! | 0 | `f32` | 4 | as it is |
//! | 1 | `f16` | 2 | IEEE 754 half precision |
//! | 2 | `i8` | 1 | (element − zero point) · scale |
//!
//! Both scales come from the client, who has made the input and knows what it expects of the output;
//! the model's manifest need not say anything. The zero point costs one byte and is worth one bit for
//! data on one side of 0: an image of unsigned bytes travels as it is with the zero point −128 (each
//! byte minus 128), as does a softmax. Rounding, saturation and NaN are as [`Encoding`] says; an element
//! that was decoded and is encoded again the same way comes out the same.
//!
//! # Errors
//! The table of codes is [`ErrorCode`]. Where the framing is sound (the prefix is right), a bad
//! message costs only itself: its payload is skipped, the error is sent, the connection goes on.
//! Broken framing gets `malformed` or `frame_too_long`, and the connection closes.
//!
//! # Golden bytes
//! Whole frames, in hexadecimal; a test compares this table with the code.
//!
//! | message | bytes |
//! |---|---|
//! | `Hello 1..1 "cl"` | `c1 06 00 00 00 00 00 00 00 01 01 02 63 6c` |
//! | `Auth 32 times ab` | `c1 21 00 00 00 00 00 00 01 ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab` |
//! | `Open 1 "mlp"` | `c1 06 00 00 00 00 00 00 02 01 03 6d 6c 70` |
//! | `Infer 300, model 2, 1 row, 5000 us, priority 0, payload 01 02 03 04` | `c1 08 00 00 04 00 00 00 03 ac 02 02 01 88 27 00 01 02 03 04` |
//! | `Cancel 300` | `c1 03 00 00 00 00 00 00 04 ac 02` |
//! | `Stats 2` | `c1 02 00 00 00 00 00 00 05 02` |
//! | `Ping 7` | `c1 02 00 00 00 00 00 00 06 07` |
//! | `Health 8 ready` | `c1 03 00 00 00 00 00 00 07 08 01` |
//! | `Models 9` | `c1 02 00 00 00 00 00 00 08 09` |
//! | `Goodbye (client)` | `c1 01 00 00 00 00 00 00 09` |
//! | `OpenEncoded 1 "kws", input 0 f16, output 1 i8 0.5 zero -128` | `c1 10 00 00 00 00 00 00 0a 01 03 6b 77 73 09 00 01 81 02 00 00 00 3f 80` |
//! | `Reload 1 "mlp"` | `c1 06 00 00 00 00 00 00 0b 01 03 6d 6c 70` |
//! | `HelloOk 1, 67108864 bytes, 256 in flight, 3 models` | `c1 09 00 00 00 00 00 00 00 01 80 80 80 20 80 02 03` |
//! | `Challenge 32 times cd` | `c1 21 00 00 00 00 00 00 01 cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd cd` |
//! | `Opened 1, model 2, 8 rows, 1 level, 0 us, batched x f32[4] to y i64[1]` | `c1 06 00 00 0d 00 00 00 02 01 02 08 01 00 01 01 01 78 00 01 04 01 01 79 09 01 01` |
//! | `Answer 300, 1 row, 1000 2000 3000 4000 ns, batch 1, idle, worker 0, payload 05 06` | `c1 0f 00 00 02 00 00 00 03 ac 02 01 e8 07 d0 0f b8 17 a0 1f 01 04 00 05 06` |
//! | `Error 300 queue_full "full" 64 64` | `c1 0d 00 00 00 00 00 00 04 01 ac 02 ac 02 04 66 75 6c 6c 40 40` |
//! | `Error malformed "" 3 0` | `c1 06 00 00 00 00 00 00 04 00 64 00 03 00` |
//! | `Stats 2, payload {}` | `c1 02 00 00 02 00 00 00 05 02 7b 7d` |
//! | `Pong 7` | `c1 02 00 00 00 00 00 00 06 07` |
//! | `Health 8 ready true` | `c1 04 00 00 00 00 00 00 07 08 01 01` |
//! | `Models 9, one: 2, 8 rows, "mlp"` | `c1 03 00 00 06 00 00 00 08 09 01 02 08 03 6d 6c 70` |
//! | `Goodbye (server)` | `c1 01 00 00 00 00 00 00 09` |

#[cfg(feature = "std")]
mod auth;
mod body;
mod code;
mod encoding;
mod fields;
mod frame;
pub mod link;
mod message;
#[cfg(all(test, feature = "std"))]
mod tests;

#[cfg(feature = "std")]
pub use auth::{AUTH_CONTEXT, Key, KeyLengthError};
pub use body::{BodyError, ModelEntry, Signature, Tensor, payload_len, place};
pub use code::ErrorCode;
pub use encoding::{
    BadScale, Element, ElementDecoder, Encoding, Encodings, EncodingsError, NoEncoding, Place,
    Scale, TensorEncoding, write_encodings,
};
#[cfg(feature = "std")]
pub(crate) use encoding::{decode_le, encode_in_place};
pub(crate) use fields::{Reader, Writer};
pub use frame::{
    EncodeError, FrameError, HEAD_BYTES_MAX, Head, HeadDecoder, MAGIC, Prefix, encode_head,
    parse_head,
};
pub use message::{HealthKind, MessageError, Reply, Request, ServerLimits, error_text};

/// Lowest protocol version that this crate speaks.
pub const VERSION_MIN: u8 = 1;
/// Highest protocol version that this crate speaks.
pub const VERSION_MAX: u8 = 3;

/// The highest version in both ranges (both ends included); `None` if they do not meet.
pub fn negotiate(ours: (u8, u8), theirs: (u8, u8)) -> Option<u8> {
    let (low, high) = (ours.0.max(theirs.0), ours.1.min(theirs.1));
    (low <= high).then_some(high)
}
