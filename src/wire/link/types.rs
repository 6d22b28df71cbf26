//! What a link takes and tells.

use crate::units::Micros;

/// Which side of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Role {
    /// Asks for sessions: the client.
    Initiator,
    /// Accepts them: the server.
    Acceptor,
}

/// What the line is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LinkOptions {
    /// Speed of the line, from which timeouts follow (8N1: ten bits a byte).
    pub baud: u32,
    /// How long the peer, the drivers and adapters of both sides may take to acknowledge, besides
    /// the line's own time.
    pub latency: Micros,
    /// Bytes of the stream that the peer may send before they are acknowledged: what this side's
    /// receive buffer (its UART's, its DMA's) holds while nobody reads it, less the frame's overhead.
    pub receive_window: u16,
}

impl LinkOptions {
    /// A line of this speed, 50 ms of latency at most, and a window of 1 KiB.
    pub const fn new(baud: u32) -> Self {
        LinkOptions { baud, latency: Micros(50_000), receive_window: 1024 }
    }
}

/// A buffer is too small for a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BufferTooSmall {
    /// Its bytes.
    pub len: usize,
    /// The fewest that will do.
    pub min: usize,
}

impl core::fmt::Display for BufferTooSmall {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "a link's buffer of {} bytes; it must have at least {}", self.len, self.min)
    }
}

impl core::error::Error for BufferTooSmall {}

/// Why a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum DownReason {
    /// The peer ended it, or restarted.
    PeerReset,
    /// The same bytes were sent again and again, and never acknowledged.
    NoProgress,
    /// Nothing sound came for too long.
    Silence,
}

impl core::fmt::Display for DownReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            DownReason::PeerReset => "the peer ended the session, or restarted",
            DownReason::NoProgress => "the peer acknowledged nothing, however often it was sent",
            DownReason::Silence => "the line is silent",
        })
    }
}

/// What received bytes led to.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum LinkEvent<'a> {
    /// A session began; whatever an earlier one had in flight is over. Both streams are at their
    /// beginning.
    Up,
    /// The session is over.
    Down(DownReason),
    /// The next bytes of the peer's stream.
    Data(&'a [u8]),
}

/// What happened on a link since it was made; each counts modulo 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Counters {
    /// Bytes written to the line.
    pub bytes_sent: u32,
    /// Bytes read from the line.
    pub bytes_received: u32,
    /// Frames written.
    pub frames_sent: u32,
    /// Sound frames read.
    pub frames_received: u32,
    /// Units that were cut short, or wrong in their checksum, or no frame of this version.
    pub crc_errors: u32,
    /// Units longer than the longest frame.
    pub oversize: u32,
    /// Times that a sound frame followed damage of any kind.
    pub resyncs: u32,
    /// Data frames that carried something sent before.
    pub retransmits: u32,
    /// Times that the sender went back.
    pub rewinds: u32,
    /// Data frames that brought nothing new.
    pub duplicates: u32,
}
