//! What a blocking client takes and gives.

use super::session::SessionError;
use crate::units::{DType, Micros, ModelId, Receipt, RequestId, Rows};
use crate::wire::{ErrorCode, Key, place};
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
    /// The server refused the request, or reports that it failed.
    Server(ServerError),
    /// The conversation broke, or the request is not allowed now.
    Session(SessionError),
    /// A payload of the server is damaged.
    Body,
    /// The server wants a key and none was given.
    KeyWanted,
    /// No request in flight has this ticket, and no answer waits for it.
    NoSuchTicket(Ticket),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClientError::Io(error) => write!(f, "the socket failed: {error}"),
            ClientError::TimedOut { after } => write!(f, "no answer within {after:?}"),
            ClientError::Closed => f.write_str("the server closed the connection"),
            ClientError::Server(error) => write!(f, "{error}"),
            ClientError::Session(error) => write!(f, "{error}"),
            ClientError::Body => f.write_str("a payload of the server is damaged"),
            ClientError::KeyWanted => {
                f.write_str("the server wants a pre-shared key; give one in the options")
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
    /// The code of a server's error.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
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
    /// Inputs, in the payload's order.
    pub inputs: Vec<TensorInfo>,
    /// Outputs, in the payload's order.
    pub outputs: Vec<TensorInfo>,
}

/// `usize::MAX` where no payload could be so long.
fn payload_len(tensors: &[TensorInfo], rows: usize) -> usize {
    let end = tensors
        .iter()
        .try_fold(0, |end, t| place(end, t.row_bytes as u64, rows as u64).map(|(_, end)| end));
    end.and_then(|end| usize::try_from(end).ok()).unwrap_or(usize::MAX)
}

impl Model {
    /// Bytes of an input payload of `rows` rows.
    pub fn input_len(&self, rows: usize) -> usize {
        payload_len(&self.inputs, rows)
    }
    /// Bytes of an output payload of `rows` rows.
    pub fn output_len(&self, rows: usize) -> usize {
        payload_len(&self.outputs, rows)
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
