//! What is done with one fuzzed input: one function for each target, shared between cargo-fuzz (this
//! crate) and the ordinary tests (`tests/fuzz`), which make their own inputs from a seed.
//!
//! An input is a *script*: its bytes choose what happens next, and with what. So that inputs get past
//! checksums and headers, scripts begin from sound frames and messages, and change some of their bytes
//! before the checksum is computed. Each function says how far its input got.

mod link;
mod messages;
mod script;

pub use link::{client, endpoints};
pub use messages::{framing, messages};

/// How far inputs got; sums over inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reached {
    /// Units with a right checksum and a sound header.
    pub frames: u64,
    /// Sessions of the link that began.
    pub sessions: u64,
    /// Bytes that a link handed over.
    pub stream_bytes: u64,
    /// Heads found in a stream.
    pub heads: u64,
    /// Requests understood.
    pub requests: u64,
    /// Those of them that ask for an inference.
    pub infers: u64,
    /// Replies understood.
    pub replies: u64,
    /// Those of them that are the answer to an inference in flight.
    pub answers: u64,
    /// Bodies (signatures, lists of models and encodings) understood.
    pub bodies: u64,
}

impl std::ops::AddAssign for Reached {
    fn add_assign(&mut self, more: Reached) {
        self.frames += more.frames;
        self.sessions += more.sessions;
        self.stream_bytes += more.stream_bytes;
        self.heads += more.heads;
        self.requests += more.requests;
        self.infers += more.infers;
        self.replies += more.replies;
        self.answers += more.answers;
        self.bodies += more.bodies;
    }
}
