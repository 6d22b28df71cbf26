//! Messages: the meaning of a frame's header, apart from its bytes.

use super::fields::Reader;
use crate::limits::{
    AUTH_NONCE_BYTES, AUTH_PROOF_BYTES, CLIENT_NAME_LEN_MAX, ENCODINGS_BYTES_MAX,
    ERROR_TEXT_LEN_MAX, MODEL_NAME_LEN_MAX,
};
use crate::units::{Micros, ModelId, Priority, Receipt, RequestId, Rows};
use serde::{Deserialize, Serialize};

/// Which question of health.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HealthKind {
    /// Is the process alive and its I/O thread turning?
    Live,
    /// Does it take requests: every model loaded, not draining?
    Ready,
}

/// Messages from a client to a server. The position of a variant is its number on the wire: new
/// ones are added at the end, none is moved or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Request<'a> {
    /// Number 0. The first message: the range of versions that the client speaks, both ends included.
    Hello {
        /// Lowest version.
        version_min: u8,
        /// Highest version.
        version_max: u8,
        /// A name for logs, at most [`CLIENT_NAME_LEN_MAX`] bytes; may be empty.
        client: &'a str,
    },
    /// Number 1. Answers a [`Reply::Challenge`].
    Auth {
        /// HMAC-SHA256 over the challenge; see the [module documentation](super).
        proof: [u8; AUTH_PROOF_BYTES],
    },
    /// Number 2. Asks for a model by name; answered by [`Reply::Opened`].
    Open {
        /// Echoed in the answer.
        id: RequestId,
        /// At most [`MODEL_NAME_LEN_MAX`] bytes.
        name: &'a str,
    },
    /// Number 3. Asks for an inference; the payload holds the input tensors.
    Infer {
        /// Unique among the connection's requests in flight.
        id: RequestId,
        /// From [`Reply::Opened`].
        model: ModelId,
        /// Rows in the payload, at least 1.
        rows: Rows,
        /// From the arrival of the whole request; 0 takes the model's default.
        deadline: Micros,
        /// 0 takes the model's default.
        priority: Priority,
    },
    /// Number 4. Withdraws a request. The request itself ends with [`Reply::Error`] `cancelled`, or with
    /// its answer if a worker had it already; this message has no answer of its own, and an
    /// unknown id is not an error.
    Cancel {
        /// Of the request to withdraw.
        id: RequestId,
    },
    /// Number 5. Asks for the statistics, as JSON text.
    Stats {
        /// Echoed in the answer.
        id: RequestId,
    },
    /// Number 6. Asks for a [`Reply::Pong`].
    Ping {
        /// Echoed in the answer.
        id: RequestId,
    },
    /// Number 7. Asks for health.
    Health {
        /// Echoed in the answer.
        id: RequestId,
        /// Which question.
        kind: HealthKind,
    },
    /// Number 8. Asks for the list of models.
    Models {
        /// Echoed in the answer.
        id: RequestId,
    },
    /// Number 9. The client sends nothing more; the server answers what is in flight, then closes.
    Goodbye,
    /// Number 10, from version 2 on. Asks for a model whose float32 tensors travel encoded; answered
    /// by [`Reply::Opened`], with a number that stands for the model and these encodings, or by an
    /// error that names the tensor.
    OpenEncoded {
        /// Echoed in the answer.
        id: RequestId,
        /// At most [`MODEL_NAME_LEN_MAX`] bytes.
        name: &'a str,
        /// [`Encodings`](super::Encodings), at most [`ENCODINGS_BYTES_MAX`] bytes. Tensors that are
        /// not listed travel as they are.
        encodings: &'a [u8],
    },
    /// Number 11, from version 3 on. Asks the server to read a model's files again and to serve what they
    /// hold now; answered by [`Reply::Stats`], whose payload then says in JSON what came of it, when the
    /// new version serves or is refused. Only on a Unix socket, and only for the server's own user and
    /// root.
    Reload {
        /// Echoed in the answer.
        id: RequestId,
        /// At most [`MODEL_NAME_LEN_MAX`] bytes; empty: every model.
        name: &'a str,
    },
}

/// What a server allows one connection; sent with [`Reply::HelloOk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ServerLimits {
    /// Longest payload of a frame, in bytes.
    pub payload_bytes_max: u32,
    /// Requests in flight on one connection.
    pub in_flight_max: u16,
    /// Models served.
    pub models: u16,
}

impl ServerLimits {
    pub(crate) fn read(fields: &mut Reader<'_>) -> Self {
        ServerLimits {
            payload_bytes_max: fields.u32(),
            in_flight_max: fields.u16(),
            models: fields.u16(),
        }
    }
}

/// Messages from a server to a client, numbered like [`Request`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Reply<'a> {
    /// Number 0. The hello is accepted.
    HelloOk {
        /// The version that both speak from here on.
        version: u8,
        /// What the server allows.
        limits: ServerLimits,
    },
    /// Number 1. The server wants a proof of the pre-shared key before it says `HelloOk`.
    Challenge {
        /// Fresh random bytes.
        nonce: [u8; AUTH_NONCE_BYTES],
    },
    /// Number 2. A model; the payload is its [`Signature`](super::Signature).
    Opened {
        /// Of the request.
        id: RequestId,
        /// Names the model in requests of this connection.
        model: ModelId,
        /// Most rows of one request.
        rows_max: Rows,
        /// Lowest priority (the largest number); 1 is the highest.
        priority_levels: u8,
        /// Deadline of requests that carry none; 0: none.
        timeout: Micros,
    },
    /// Number 3. An answer; the payload holds the output tensors.
    Answer {
        /// Of the request.
        id: RequestId,
        /// Rows in the payload, as many as were sent.
        rows: Rows,
        /// What happened to the request.
        receipt: Receipt,
    },
    /// Number 4. A request failed, or the connection did.
    Error {
        /// Of the request; `None` where the error is the connection's, or the request's header
        /// could not be read.
        id: Option<RequestId>,
        /// An [`ErrorCode`](super::ErrorCode)'s number, perhaps of a later version.
        code: u16,
        /// For people, at most [`ERROR_TEXT_LEN_MAX`] bytes.
        text: &'a str,
        /// First number; the code says of what.
        a: u64,
        /// Second number.
        b: u64,
    },
    /// Number 5. The payload is JSON text (UTF-8): the statistics, or what came of a reload.
    Stats {
        /// Of the request.
        id: RequestId,
    },
    /// Number 6. Answers a ping.
    Pong {
        /// Of the request.
        id: RequestId,
    },
    /// Number 7. Answers a question of health.
    Health {
        /// Of the request.
        id: RequestId,
        /// Which question.
        kind: HealthKind,
        /// The answer.
        ok: bool,
    },
    /// Number 8. The payload holds `count` [`ModelEntry`](super::ModelEntry)s.
    Models {
        /// Of the request.
        id: RequestId,
        /// Entries in the payload.
        count: u16,
    },
    /// Number 9. The server answered everything that it had accepted, and closes.
    Goodbye,
}

/// Why a header is not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum MessageError {
    /// No message of this version has this number.
    UnknownNumber {
        /// The header's first byte.
        number: u8,
    },
    /// The header ends early, or a field holds an impossible value.
    BadField {
        /// The message's number.
        number: u8,
    },
    /// The message ended before the header did.
    TrailingBytes {
        /// How many bytes are left over.
        extra: usize,
    },
    /// A text is over its limit.
    TextTooLong {
        /// Bytes.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
}

impl core::fmt::Display for MessageError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            MessageError::UnknownNumber { number } => write!(f, "no message has number {number}"),
            MessageError::BadField { number } => {
                write!(f, "message {number} is cut short or has an impossible field")
            }
            MessageError::TrailingBytes { extra } => {
                write!(f, "{extra} bytes follow the message in its header")
            }
            MessageError::TextTooLong { len, max } => {
                write!(f, "a text of {len} bytes; at most {max} are allowed")
            }
        }
    }
}

impl core::error::Error for MessageError {}

fn within(text: &str, max: usize) -> Result<(), MessageError> {
    if text.len() > max {
        return Err(MessageError::TextTooLong { len: text.len(), max });
    }
    Ok(())
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8], last: u8) -> Result<T, MessageError> {
    let number = bytes.first().copied().unwrap_or(0);
    match postcard::take_from_bytes::<T>(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(MessageError::TrailingBytes { extra: rest.len() }),
        Err(_) if number > last => Err(MessageError::UnknownNumber { number }),
        Err(_) => Err(MessageError::BadField { number }),
    }
}

impl<'a> Request<'a> {
    /// Largest number of this version.
    pub const NUMBER_MAX: u8 = 11;

    /// Reads a message from a whole header. Never panics, whatever the bytes.
    pub fn decode(header: &'a [u8]) -> Result<Request<'a>, MessageError> {
        let message = decode(header, Self::NUMBER_MAX)?;
        match message {
            Request::Hello { client, .. } => within(client, CLIENT_NAME_LEN_MAX)?,
            Request::Open { name, .. } | Request::Reload { name, .. } => {
                within(name, MODEL_NAME_LEN_MAX)?;
            }
            Request::OpenEncoded { name, encodings, .. } => {
                within(name, MODEL_NAME_LEN_MAX)?;
                if encodings.len() > ENCODINGS_BYTES_MAX {
                    return Err(MessageError::BadField { number: message.number() });
                }
            }
            _ => {}
        }
        Ok(message)
    }
    /// The message's number on the wire.
    pub const fn number(&self) -> u8 {
        match self {
            Request::Hello { .. } => 0,
            Request::Auth { .. } => 1,
            Request::Open { .. } => 2,
            Request::Infer { .. } => 3,
            Request::Cancel { .. } => 4,
            Request::Stats { .. } => 5,
            Request::Ping { .. } => 6,
            Request::Health { .. } => 7,
            Request::Models { .. } => 8,
            Request::Goodbye => 9,
            Request::OpenEncoded { .. } => 10,
            Request::Reload { .. } => 11,
        }
    }
    /// The first version that has the message.
    pub const fn version(&self) -> u8 {
        match self {
            Request::OpenEncoded { .. } => 2,
            Request::Reload { .. } => 3,
            _ => 1,
        }
    }
    /// The id that the message carries.
    pub const fn id(&self) -> Option<RequestId> {
        match *self {
            Request::Hello { .. } | Request::Auth { .. } | Request::Goodbye => None,
            Request::Open { id, .. }
            | Request::Infer { id, .. }
            | Request::Cancel { id }
            | Request::Stats { id }
            | Request::Ping { id }
            | Request::Health { id, .. }
            | Request::Models { id }
            | Request::OpenEncoded { id, .. }
            | Request::Reload { id, .. } => Some(id),
        }
    }
}

impl<'a> Reply<'a> {
    /// Largest number of this version.
    pub const NUMBER_MAX: u8 = 9;

    /// Reads a message from a whole header. Never panics, whatever the bytes.
    pub fn decode(header: &'a [u8]) -> Result<Reply<'a>, MessageError> {
        let mut fields = Reader::new(header);
        let first = header.first().copied().unwrap_or(0);
        let reply = match Reply::read(&mut fields) {
            Some(reply) if !fields.is_bad() => reply,
            _ if first > Self::NUMBER_MAX => {
                return Err(MessageError::UnknownNumber { number: first });
            }
            _ => return Err(MessageError::BadField { number: first }),
        };
        fields.end(first)?;
        if let Reply::Error { text, .. } = reply {
            within(text, ERROR_TEXT_LEN_MAX)?;
        }
        Ok(reply)
    }
    /// Reads the fields; `None` where one has an impossible value, and `fields` may be bad besides.
    fn read(fields: &mut Reader<'a>) -> Option<Reply<'a>> {
        let number = fields.number();
        let some_id = fields.reply_id(number);
        let id = some_id.unwrap_or_default();
        Some(match number {
            0 => Reply::HelloOk { version: fields.byte(), limits: ServerLimits::read(fields) },
            1 => Reply::Challenge { nonce: fields.array() },
            2 => Reply::Opened {
                id,
                model: ModelId(fields.u16()),
                rows_max: Rows(fields.u16()),
                priority_levels: fields.byte(),
                timeout: Micros(fields.u32()),
            },
            3 => Reply::Answer { id, rows: Rows(fields.u16()), receipt: fields.receipt() },
            4 => Reply::Error {
                id: some_id,
                code: fields.u16(),
                text: core::str::from_utf8(fields.bytes()).ok()?,
                a: fields.u64(),
                b: fields.u64(),
            },
            5 => Reply::Stats { id },
            6 => Reply::Pong { id },
            7 => {
                let kind = fields.one_of(&[HealthKind::Live, HealthKind::Ready], HealthKind::Live);
                Reply::Health { id, kind, ok: fields.flag() }
            }
            8 => Reply::Models { id, count: fields.u16() },
            9 => Reply::Goodbye,
            _ => return None,
        })
    }
    /// The message's number on the wire.
    pub const fn number(&self) -> u8 {
        match self {
            Reply::HelloOk { .. } => 0,
            Reply::Challenge { .. } => 1,
            Reply::Opened { .. } => 2,
            Reply::Answer { .. } => 3,
            Reply::Error { .. } => 4,
            Reply::Stats { .. } => 5,
            Reply::Pong { .. } => 6,
            Reply::Health { .. } => 7,
            Reply::Models { .. } => 8,
            Reply::Goodbye => 9,
        }
    }
    /// The id of the request that the message answers.
    pub const fn id(&self) -> Option<RequestId> {
        match *self {
            Reply::HelloOk { .. } | Reply::Challenge { .. } | Reply::Goodbye => None,
            Reply::Error { id, .. } => id,
            Reply::Opened { id, .. }
            | Reply::Answer { id, .. }
            | Reply::Stats { id }
            | Reply::Pong { id }
            | Reply::Health { id, .. }
            | Reply::Models { id, .. } => Some(id),
        }
    }
}

/// `text`, cut at a character so that it fits an error message.
pub fn error_text(text: &str) -> &str {
    let mut end = text.len().min(ERROR_TEXT_LEN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
