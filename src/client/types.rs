//! What a blocking client takes and gives.

use super::session::SessionError;
use crate::units::{DType, Micros, ModelId, Receipt, RequestId, Rows};
use crate::wire::{Encoding, ErrorCode, Key, decode_le, encode_in_place, place};
use std::io;
use std::time::Duration;

/// An error that the server sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// Its number; [`code`](Self::code) has its meaning.
    pub number: u16,
    /// For people.
    pub text: String,
    /// First number; the code says of what.
    pub a: u64,
    /// Second number.
    pub b: u64,
}

impl ServerError {
    /// The code, if this version knows the number.
    pub fn code(&self) -> Option<ErrorCode> {
        ErrorCode::from_number(self.number)
    }
}

impl std::fmt::Display for ServerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.code() {
            Some(code) => write!(f, "{code}: {}", self.text),
            None => write!(f, "error {}: {}", self.number, self.text),
        }
    }
}

impl std::error::Error for ServerError {}

/// What went wrong between a client and its server.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The socket failed.
    Io(io::Error),
    /// Nothing came within the time given. The request is still in flight.
    TimedOut {
        /// How long was waited.
        after: Duration,
    },
    /// The server closed the connection.
    Closed,
    /// The server has said goodbye: it has answered all that it had accepted, and accepts nothing more.
    ShuttingDown,
    /// The server refused the request, or reports that it failed.
    Server(ServerError),
    /// The conversation broke, or the request is not allowed now.
    Session(SessionError),
    /// A payload of the server is damaged.
    Body,
    /// The server wants a key and none was given.
    KeyWanted,
    /// A payload has another length than the model's rows.
    PayloadLength {
        /// Bytes.
        len: usize,
        /// Bytes of the rows.
        wanted: usize,
    },
    /// A model is named by an empty text, which would stand for all of them.
    NoName,
    /// No request in flight has this ticket, and no answer waits for it.
    NoSuchTicket(Ticket),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClientError::Io(error) => write!(f, "the connection failed: {error}"),
            ClientError::TimedOut { after } => write!(f, "no answer within {after:?}"),
            ClientError::Closed => f.write_str("the server closed the connection"),
            ClientError::ShuttingDown => f.write_str("the server is shutting down"),
            ClientError::Server(error) => write!(f, "{error}"),
            ClientError::Session(error) => write!(f, "{error}"),
            ClientError::Body => f.write_str("a payload of the server is damaged"),
            ClientError::KeyWanted => {
                f.write_str("the server wants a pre-shared key; give one in the options")
            }
            ClientError::PayloadLength { len, wanted } => {
                write!(f, "a payload of {len} bytes; the model's rows are {wanted}")
            }
            ClientError::NoName => {
                f.write_str("a model's name can't be empty; leave it out to mean all models")
            }
            ClientError::NoSuchTicket(ticket) => {
                write!(f, "no request with ticket {} is in flight", ticket.0)
            }
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ClientError::Io(error) => Some(error),
            ClientError::Server(error) => Some(error),
            ClientError::Session(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => ClientError::Closed,
            _ => ClientError::Io(error),
        }
    }
}
impl From<SessionError> for ClientError {
    fn from(error: SessionError) -> Self {
        ClientError::Session(error)
    }
}

impl ClientError {
    /// The code of a server's error, and of its goodbye.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            ClientError::ShuttingDown => Some(ErrorCode::ShuttingDown),
            ClientError::Server(error) => error.code(),
            _ => None,
        }
    }
}

/// How to connect.
#[derive(Debug, Clone)]
pub struct Options {
    /// For the server's log, at most 32 bytes.
    pub name: String,
    /// The pre-shared key, if the server wants one.
    pub key: Option<Key>,
    /// How long to wait for the connection and for each reply; `None`: for ever.
    pub timeout: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Options { name: "corelane".into(), key: None, timeout: Some(Duration::from_secs(30)) }
    }
}

/// One input or output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Axes of one row.
    pub row_shape: Vec<usize>,
    /// Bytes of one row.
    pub row_bytes: usize,
}

/// A model of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// The name asked for.
    pub name: String,
    /// Its number on this connection.
    pub id: ModelId,
    /// Most rows of one request.
    pub rows_max: Rows,
    /// Lowest priority; 1 is the highest.
    pub priority_levels: u8,
    /// Deadline of requests that carry none; 0: none.
    pub timeout: Micros,
    /// Whether requests may have several rows.
    pub batched: bool,
    /// Inputs, in the payload's order, as the model has them.
    pub inputs: Vec<TensorInfo>,
    /// Outputs, in the payload's order, as the model has them.
    pub outputs: Vec<TensorInfo>,
    /// How each input travels.
    pub input_encodings: Vec<Encoding>,
    /// How each output travels.
    pub output_encodings: Vec<Encoding>,
}

/// Bytes of one row as it travels.
fn row_bytes(tensor: &TensorInfo, encoding: Encoding) -> u64 {
    match tensor.dtype {
        DType::F32 => (tensor.row_bytes / 4 * encoding.element_bytes()) as u64,
        _ => tensor.row_bytes as u64,
    }
}

/// Where each tensor begins and ends in a payload of `rows` rows. `None` where no payload could be so
/// long.
fn spans(
    tensors: &[TensorInfo],
    encodings: &[Encoding],
    rows: usize,
) -> Option<Vec<std::ops::Range<usize>>> {
    let mut end = 0;
    let each = tensors.iter().zip(encodings).map(|(tensor, &encoding)| {
        let (from, to) = place(end, row_bytes(tensor, encoding), rows as u64)?;
        end = to;
        Some(usize::try_from(from).ok()?..usize::try_from(to).ok()?)
    });
    each.collect()
}

/// `usize::MAX` where no payload could be so long.
fn payload_len(tensors: &[TensorInfo], encodings: &[Encoding], rows: usize) -> usize {
    let mut end = 0u64;
    for (tensor, &encoding) in tensors.iter().zip(encodings) {
        let Some((_, to)) = place(end, row_bytes(tensor, encoding), rows as u64) else {
            return usize::MAX;
        };
        end = to;
    }
    usize::try_from(end).unwrap_or(usize::MAX)
}

impl Model {
    /// Bytes of an input payload of `rows` rows, as it travels.
    pub fn input_len(&self, rows: usize) -> usize {
        payload_len(&self.inputs, &self.input_encodings, rows)
    }
    /// Bytes of an output payload of `rows` rows, as it travels.
    pub fn output_len(&self, rows: usize) -> usize {
        payload_len(&self.outputs, &self.output_encodings, rows)
    }
    /// The payload to send for one that holds the inputs as the model has them.
    ///
    /// # Errors
    /// [`ClientError::PayloadLength`]: it has another length than `rows` rows.
    pub fn encode_input(&self, rows: usize, mut payload: Vec<u8>) -> Result<Vec<u8>, ClientError> {
        let plain = plain(&self.inputs, rows, payload.len())?;
        let travelling = spans(&self.inputs, &self.input_encodings, rows).unwrap_or_default();
        let mut end = 0;
        for (i, (from, to)) in plain.into_iter().zip(travelling).enumerate() {
            payload[end..to.start].fill(0);
            if self.inputs[i].dtype == DType::F32 {
                let n = from.len() / 4;
                let encoding = self.input_encodings[i];
                encode_in_place(encoding, &mut payload, from.start, to.start, n);
            } else {
                payload.copy_within(from, to.start);
            }
            end = to.end;
        }
        payload.truncate(end);
        Ok(payload)
    }
    /// The outputs as the model has them, of a payload that was received.
    ///
    /// # Errors
    /// [`ClientError::PayloadLength`]: it has another length than `rows` rows.
    pub fn decode_output(&self, rows: usize, payload: &[u8]) -> Result<Vec<u8>, ClientError> {
        let wanted = self.output_len(rows);
        if payload.len() != wanted {
            return Err(ClientError::PayloadLength { len: payload.len(), wanted });
        }
        let travelled = spans(&self.outputs, &self.output_encodings, rows).unwrap_or_default();
        let as_is = vec![Encoding::F32; self.outputs.len()];
        let plain = spans(&self.outputs, &as_is, rows).unwrap_or_default();
        let mut out = vec![0; plain.last().map_or(0, |span| span.end)];
        for (i, (from, to)) in travelled.into_iter().zip(plain).enumerate() {
            if self.outputs[i].dtype == DType::F32 {
                decode_le(self.output_encodings[i], &payload[from], &mut out[to]);
            } else {
                out[to].copy_from_slice(&payload[from]);
            }
        }
        Ok(out)
    }
}

/// Where each tensor lies in a payload of `len` bytes that is not encoded.
fn plain(
    tensors: &[TensorInfo],
    rows: usize,
    len: usize,
) -> Result<Vec<std::ops::Range<usize>>, ClientError> {
    let as_is = vec![Encoding::F32; tensors.len()];
    let wanted = payload_len(tensors, &as_is, rows);
    match spans(tensors, &as_is, rows) {
        Some(spans) if wanted == len => Ok(spans),
        _ => Err(ClientError::PayloadLength { len, wanted }),
    }
}

/// A request in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub RequestId);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Rows, as many as were sent.
    pub rows: Rows,
    /// What happened to the request.
    pub receipt: Receipt,
    /// The output tensors.
    pub payload: Vec<u8>,
}
