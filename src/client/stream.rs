//! Both kinds of socket, and a serial line, behind one type.

mod serial;

use crate::wire::link::SerialOptions;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, sockopt::Timeout,
    sockopt::set_socket_timeout,
};
use serial::SerialStream;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where a server listens: `unix:PATH`, `tcp:HOST:PORT`, or the other end of a line,
/// `serial:DEVICE:BAUD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP: a host name or number, and a port.
    Tcp(String),
    /// A serial port of this machine, which must be nobody else's. One line carries one connection.
    Serial(SerialOptions),
}

/// Not an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressError(String);

impl std::fmt::Display for AddressError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AddressError {}

impl FromStr for Address {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Address, AddressError> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Address::Unix(path.into())),
            Some(("tcp", address))
                if address.rsplit_once(':').is_some_and(|(host, port)| {
                    !host.is_empty() && port.parse::<u16>().is_ok()
                }) =>
            {
                Ok(Address::Tcp(address.into()))
            }
            Some(("serial", port)) => port.parse().map(Address::Serial).map_err(AddressError),
            _ => Err(AddressError(format!(
                "{text:?} is no address; write unix:PATH, tcp:HOST:PORT or serial:DEVICE:BAUD"
            ))),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
            Address::Serial(port) => write!(f, "serial:{port}"),
        }
    }
}

/// A connection. Sockets are in blocking mode.
#[derive(Debug)]
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Serial(Box<SerialStream>),
}

impl Stream {
    pub(super) fn connect(address: &Address, timeout: Option<Duration>) -> io::Result<Stream> {
        match address {
            Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path)?)),
            Address::Tcp(address) => {
                let mut last = io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("the host of {address} has no address"),
                );
                for address in address.to_socket_addrs()? {
                    match connect_tcp(&address, timeout) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Stream::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            Address::Serial(port) => {
                Ok(Stream::Serial(Box::new(SerialStream::connect(port, timeout)?)))
            }
        }
    }
    /// The socket, or the line.
    fn socket(&mut self) -> Result<BorrowedFd<'_>, &mut SerialStream> {
        match self {
            Stream::Unix(stream) => Ok(UnixStream::as_fd(stream)),
            Stream::Tcp(stream) => Ok(TcpStream::as_fd(stream)),
            Stream::Serial(stream) => Err(stream),
        }
    }
    /// Sends what the kernel, or the link, takes at once; `WouldBlock` if that is nothing.
    pub(super) fn try_send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let socket = match self.socket() {
            Ok(socket) => socket,
            Err(line) => return line.try_send(parts),
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags) {
                Err(rustix::io::Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }
    /// Receives; waits if `wait`, as long as the receive timeout says.
    pub(super) fn recv(&mut self, buffer: &mut [u8], wait: bool) -> io::Result<usize> {
        let socket = match self.socket() {
            Ok(socket) => socket,
            Err(line) => return line.recv(buffer, wait),
        };
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        loop {
            match recv(socket, &mut *buffer, flags) {
                Err(rustix::io::Errno::INTR) => {}
                result => return Ok(result?.0),
            }
        }
    }
    /// Waits until it can be read or written; false if the time ran out.
    pub(super) fn wait_either(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let socket = match self.socket() {
            Ok(socket) => socket,
            Err(line) => return line.wait_either(timeout),
        };
        let timeout = timeout.map(|t| rustix::time::Timespec {
            tv_sec: t.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: t.subsec_nanos() as _,
        });
        let mut fds = [PollFd::new(&socket, PollFlags::IN | PollFlags::OUT)];
        loop {
            match poll(&mut fds, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                result => return Ok(result? > 0),
            }
        }
    }
    pub(super) fn set_recv_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self.socket() {
            Ok(socket) => Ok(set_socket_timeout(socket, Timeout::Recv, timeout)?),
            Err(line) => {
                line.set_recv_timeout(timeout);
                Ok(())
            }
        }
    }
}

fn connect_tcp(address: &SocketAddr, timeout: Option<Duration>) -> io::Result<TcpStream> {
    match timeout {
        Some(timeout) => TcpStream::connect_timeout(address, timeout),
        None => TcpStream::connect(address),
    }
}
