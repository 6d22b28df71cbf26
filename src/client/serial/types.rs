//! What a serial client takes and gives.

use crate::client::session::SessionError;
use crate::limits::{
    ENCODINGS_BYTES_MAX, FRAME_PREFIX_BYTES, MODEL_NAME_LEN_MAX, TENSOR_ALIGN_BYTES, TENSORS_MAX,
};
use crate::units::{Micros, ModelId, Priority, Receipt, Rows};
use crate::wire::link::DownReason;
use crate::wire::{BodyError, Encoding, ErrorCode, Place, TensorEncoding};
use core::convert::Infallible;

/// Why a request has no answer. `E` is the port's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum SerialError<E = Infallible> {
    /// The port failed.
    Port(E),
    /// The clock does not run.
    Clock,
    /// The link's session ended; the request may or may not have been executed, and is not repeated
    /// by itself.
    Link(DownReason),
    /// The time was up.
    Deadline {
        /// What was allowed.
        allowed: Micros,
    },
    /// [`Port::cancelled`](super::Port::cancelled) said so.
    Cancelled,
    /// The server refused the request, or reports that it failed. It was not executed unless the
    /// code says so.
    Server {
        /// The code's number; [`SerialError::code`] has its meaning.
        number: u16,
        /// First number; the code says of what.
        a: u64,
        /// Second number.
        b: u64,
    },
    /// The conversation broke; the link's session was ended.
    Session(SessionError),
    /// The server wants a proof of a pre-shared key, which this client does not have: a serial line is
    /// trusted, and corelane's own server asks for no key on one. The link's session was ended.
    KeyWanted,
    /// The model was opened in an earlier session: open it again.
    StaleModel,
    /// The input has another length than the model's rows.
    InputLength {
        /// Bytes that it gave, or one more than wanted.
        len: usize,
        /// Bytes wanted.
        wanted: usize,
    },
    /// The answer has another length than the model's rows.
    OutputLength {
        /// Bytes announced.
        len: usize,
        /// Bytes wanted.
        wanted: usize,
    },
    /// The send buffer can never hold the request's head.
    SendBufferTooShort {
        /// The buffer's bytes.
        len: usize,
        /// The fewest that will do.
        min: usize,
    },
    /// The model's signature is damaged.
    Signature(BodyError),
}

impl<E> SerialError<E> {
    /// The code of a server's error.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            SerialError::Server { number, .. } => ErrorCode::from_number(*number),
            _ => None,
        }
    }
    /// Whether the request was certainly not executed and may be taken later.
    pub fn is_refused_for_now(&self) -> bool {
        // By its number: what all the others mean is a table that a microcontroller need not have.
        const FULL: u16 = ErrorCode::QueueFull.number();
        const NOT_READY: u16 = ErrorCode::NotReady.number();
        const IN_FLIGHT: u16 = ErrorCode::TooManyInFlight.number();
        matches!(self, SerialError::Server { number: FULL | NOT_READY | IN_FLIGHT, .. })
    }
}

impl<E: core::fmt::Debug> core::fmt::Display for SerialError<E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SerialError::Port(error) => write!(f, "the port failed: {error:?}"),
            SerialError::Clock => f.write_str("the clock does not run"),
            SerialError::Link(reason) => write!(f, "the link's session ended: {reason}"),
            SerialError::Deadline { allowed } => write!(f, "no answer within {allowed} us"),
            SerialError::Cancelled => f.write_str("cancelled"),
            SerialError::Server { number, a, b } => match self.code() {
                Some(code) => write!(f, "{code} ({a}, {b})"),
                None => write!(f, "error {number} ({a}, {b})"),
            },
            SerialError::Session(error) => write!(f, "{error}"),
            SerialError::KeyWanted => f.write_str(
                "the server wants a pre-shared key; clients on a serial line have none, and corelane's server asks them for none",
            ),
            SerialError::StaleModel => {
                f.write_str("the model was opened in an earlier session: open it again")
            }
            SerialError::InputLength { len, wanted } => {
                write!(f, "an input of {len} bytes; the model's rows are {wanted}")
            }
            SerialError::OutputLength { len, wanted } => {
                write!(f, "an answer of {len} bytes; the model's rows are {wanted}")
            }
            SerialError::SendBufferTooShort { len, min } => write!(
                f,
                "a send buffer of {len} bytes; to open this model it must have at least {min}"
            ),
            SerialError::Signature(error) => write!(f, "{error}"),
        }
    }
}

impl<E: core::fmt::Debug> core::error::Error for SerialError<E> {}

impl<E> From<SessionError> for SerialError<E> {
    fn from(error: SessionError) -> Self {
        SerialError::Session(error)
    }
}

/// A model to open: its name, and how its float32 tensors are to travel (those that are not listed: as
/// they are). A name alone is one too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Opening<'a> {
    /// The model's name.
    pub name: &'a str,
    /// How tensors travel; see [`wire`](crate::wire#encodings).
    pub encodings: &'a [TensorEncoding],
}

impl<'a> From<&'a str> for Opening<'a> {
    fn from(name: &'a str) -> Self {
        Opening { name, encodings: &[] }
    }
}

impl Opening<'_> {
    /// Most bytes of the request's head, as far as the protocol allows its name and list at all.
    pub(super) fn head_len_max(&self) -> usize {
        let list = match self.encodings.len() {
            0 => 0,
            n => 1 + (7 * n).min(ENCODINGS_BYTES_MAX),
        };
        FRAME_PREFIX_BYTES + self.name.len().min(MODEL_NAME_LEN_MAX) + 8 + list
    }
    pub(super) fn encoding(&self, place: Place) -> Encoding {
        let asked = self.encodings.iter().find(|asked| asked.place == place);
        asked.map_or(Encoding::F32, |asked| asked.encoding)
    }
}

/// A model of the server, opened in one session of the link.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SerialModel {
    pub(super) id: ModelId,
    pub(super) generation: u16,
    /// Most rows of one request.
    pub rows_max: Rows,
    /// Lowest priority; 1 is the highest.
    pub priority_levels: u8,
    /// Deadline of requests that carry none; 0: none.
    pub timeout: Micros,
    /// Whether requests may have several rows.
    pub batched: bool,
    pub(super) inputs: Sizes,
    pub(super) outputs: Sizes,
}

/// Bytes of one row of each tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(super) struct Sizes {
    row_bytes: [u32; TENSORS_MAX],
    len: u8,
}

impl Sizes {
    const NONE: Sizes = Sizes { row_bytes: [0; TENSORS_MAX], len: 0 };

    fn payload_len(&self, rows: Rows) -> usize {
        let rows = usize::from(rows.0);
        let mut end = 0usize;
        for &bytes in self.row_bytes.iter().take(self.len.into()) {
            end = end.next_multiple_of(TENSOR_ALIGN_BYTES);
            end = end.saturating_add((bytes as usize).saturating_mul(rows));
        }
        end
    }
    pub(super) const fn len(&self) -> u8 {
        self.len
    }
    pub(super) fn push(&mut self, row_bytes: u32) {
        if let Some(place) = self.row_bytes.get_mut(usize::from(self.len)) {
            *place = row_bytes;
            self.len += 1;
        }
    }
}

impl SerialModel {
    pub(super) const fn new(generation: u16) -> Self {
        SerialModel {
            id: ModelId(0),
            generation,
            rows_max: Rows(0),
            priority_levels: 0,
            timeout: Micros(0),
            batched: false,
            inputs: Sizes::NONE,
            outputs: Sizes::NONE,
        }
    }
    /// Bytes of an input payload of `rows` rows, as it travels.
    pub fn input_len(&self, rows: Rows) -> usize {
        self.inputs.payload_len(rows)
    }
    /// Bytes of an output payload of `rows` rows, as it travels.
    pub fn output_len(&self, rows: Rows) -> usize {
        self.outputs.payload_len(rows)
    }
    pub(super) fn sizes(&mut self, outputs: bool) -> &mut Sizes {
        if outputs { &mut self.outputs } else { &mut self.inputs }
    }
}

/// An inference to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SerialRequest {
    /// Rows in the input.
    pub rows: Rows,
    /// How long the whole may take, the line's time included.
    pub within: Micros,
    /// 0 takes the model's default; 1 is the highest.
    pub priority: Priority,
}

impl SerialRequest {
    /// One row at the model's default priority.
    pub const fn row(within: Micros) -> Self {
        SerialRequest { rows: Rows(1), within, priority: Priority(0) }
    }
}

/// An answer, besides its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SerialAnswer {
    /// Rows, as many as were sent.
    pub rows: Rows,
    /// What happened to the request at the server.
    pub receipt: Receipt,
}

/// How often, and when, a request is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Retries {
    /// Times that it is made again after the first.
    pub times: u8,
    /// Pause before each.
    pub pause: Micros,
    /// Whether it is made again after the link's session ended. The server may then have executed it
    /// already; for a model, whose answer depends on its input only, that costs time and nothing else.
    pub after_link_loss: bool,
}
