//! A connection's bytes: a socket, a pipe in memory, or a serial port's link.

use super::loopback::ServerEnd;
use super::serial::SerialEnd;
use crate::limits::SERIAL_BUFFER_BYTES;
use crate::queue::outlet::Plug;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sendmsg, shutdown};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Where a connection's bytes come from and go to. Never blocks.
#[derive(Debug)]
pub(super) enum Link {
    /// Of a connection.
    Socket(Plug),
    /// Of a peer that is turned away.
    Bare(OwnedFd),
    Memory(ServerEnd),
    Serial(SerialEnd),
}

impl Link {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Link::Socket(plug) => Some(plug.as_fd()),
            Link::Bare(fd) => Some(fd.as_fd()),
            Link::Memory(_) | Link::Serial(_) => None,
        }
    }
    /// The descriptor that is registered with the poller.
    pub fn raw_fd(&self) -> Option<RawFd> {
        self.fd().map(|fd| fd.as_raw_fd())
    }
    /// The socket, which may be lent.
    pub fn plug(&self) -> Option<&Plug> {
        match self {
            Link::Socket(plug) => Some(plug),
            _ => None,
        }
    }
    /// Reads into the buffers in order; 0 at the end of the stream.
    pub fn read(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let fd = match self {
            Link::Socket(plug) => plug.as_fd(),
            Link::Bare(fd) => fd.as_fd(),
            Link::Memory(end) => return end.read(buffers),
            Link::Serial(end) => return end.read(buffers),
        };
        loop {
            match rustix::io::readv(fd, buffers) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }
    /// Writes the buffers in order, as much as is taken at once.
    pub fn write(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let fd = match self {
            Link::Socket(plug) => plug.as_fd(),
            Link::Bare(fd) => fd.as_fd(),
            Link::Memory(end) => return end.write(buffers),
            Link::Serial(end) => return end.write(buffers),
        };
        loop {
            let mut none = SendAncillaryBuffer::default();
            match sendmsg(fd, buffers, &mut none, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }
    /// Whether the peer may end its direction and go on reading, as a socket's may.
    pub fn may_end_one_way(&self) -> bool {
        matches!(self, Link::Socket(_))
    }
    /// Bytes that may have been taken here and have not left this process.
    pub fn buffered_bytes_max(&self) -> usize {
        if matches!(self, Link::Serial(_)) { SERIAL_BUFFER_BYTES } else { 0 }
    }
    /// The end of a request is all taken, `back` bytes before the last that was.
    pub fn end_is_taken(&self, back: usize) {
        if let Link::Serial(end) = self {
            end.end_is_taken(back);
        }
    }
    /// Ends of requests that were taken here, and that the peer is known not to have. A socket's are the
    /// kernel's to deliver.
    pub fn unacked_ends(&self) -> usize {
        if let Link::Serial(end) = self { end.unacked_ends() } else { 0 }
    }
    /// Says that nothing more will be written.
    pub fn finish(&self) {
        match self {
            Link::Socket(plug) => drop(shutdown(plug, Shutdown::Write)),
            Link::Bare(fd) => drop(shutdown(fd, Shutdown::Write)),
            Link::Memory(end) => end.finish(),
            Link::Serial(end) => end.finish(),
        }
    }
}
