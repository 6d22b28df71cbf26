//! A connection's bytes: a socket, a pipe in memory, or a serial port's link.

use super::loopback::ServerEnd;
use super::serial::SerialEnd;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sendmsg, shutdown};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

/// Where a connection's bytes come from and go to. Never blocks.
#[derive(Debug)]
pub(super) enum Link {
    Socket(OwnedFd),
    Memory(ServerEnd),
    Serial(SerialEnd),
}

impl Link {
    /// Reads into the buffers in order; 0 at the end of the stream.
    pub fn read(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Link::Socket(fd) => loop {
                match rustix::io::readv(fd, buffers) {
                    Err(Errno::INTR) => {}
                    result => return Ok(result?),
                }
            },
            Link::Memory(end) => end.read(buffers),
            Link::Serial(end) => end.read(buffers),
        }
    }
    /// Writes the buffers in order, as much as is taken at once.
    pub fn write(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Link::Socket(fd) => loop {
                let mut none = SendAncillaryBuffer::default();
                match sendmsg(fd, buffers, &mut none, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                    Err(Errno::INTR) => {}
                    result => return Ok(result?),
                }
            },
            Link::Memory(end) => end.write(buffers),
            Link::Serial(end) => end.write(buffers),
        }
    }
    /// Says that nothing more will be written.
    pub fn finish(&self) {
        match self {
            Link::Socket(fd) => {
                let _ = shutdown(fd, Shutdown::Write);
            }
            Link::Memory(end) => end.finish(),
            Link::Serial(end) => end.finish(),
        }
    }
}
