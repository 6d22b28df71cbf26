//! Opening the doors: Unix sockets and TCP ports, and who may come in.

use super::{BindError, TcpOptions, UnixOptions};
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Connections that the kernel holds for us to accept.
const BACKLOG: i32 = 128;

/// Our socket file; removed when dropped, unless somebody put another there.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode; `None`: it is removed.
    node: Option<(u64, u64)>,
}

impl SocketFile {
    /// Removes it. To be called while its listener is open: after that another server's file may have the same
    /// node. Calls no allocator, since the path is short.
    pub fn remove(&mut self) {
        let Some(node) = self.node.take() else { return };
        let now = std::fs::symlink_metadata(&self.path);
        if now.is_ok_and(|now| (now.dev(), now.ino()) == node) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn failed(what: &str, source: impl Into<io::Error>) -> BindError {
    BindError::Io { what: what.into(), source: source.into() }
}

/// Takes the path over from a dead server; refuses a live one, and anything that is no socket.
fn clear_path(path: &Path, name: &str) -> Result<(), BindError> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(name, error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(BindError::NotASocket { path: path.into() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| failed(name, error))
        }
        // A live server; one whose backlog is full; or one that may not be asked.
        _ => Err(BindError::InUse { address: name.into() }),
    }
}

pub(super) fn unix(options: &UnixOptions) -> Result<(OwnedFd, SocketFile), BindError> {
    let path = &options.path;
    let name = format!("unix:{}", path.display());
    clear_path(path, &name)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| failed(&name, errno))?;
    // The file is born with the mode of the socket, so that there is no moment in which others
    // could connect.
    fchmod(&fd, Mode::from_raw_mode(options.mode)).map_err(|errno| failed(&name, errno))?;
    let address = rustix::net::SocketAddrUnix::new(path).map_err(|errno| failed(&name, errno))?;
    bind(&fd, &address).map_err(|errno| match errno {
        rustix::io::Errno::ADDRINUSE => BindError::InUse { address: name.clone() },
        errno => failed(&name, errno),
    })?;
    // The umask may have taken bits away.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(options.mode))
        .map_err(|error| failed(&name, error))?;
    let metadata = std::fs::symlink_metadata(path).map_err(|error| failed(&name, error))?;
    let file = SocketFile { path: path.clone(), node: Some((metadata.dev(), metadata.ino())) };
    listen(&fd, BACKLOG).map_err(|errno| failed(&name, errno))?;
    Ok((fd, file))
}

pub(super) fn tcp(options: &TcpOptions) -> Result<(OwnedFd, SocketAddr), BindError> {
    let address = options.address;
    let guarded = options.allow_remote && options.key.is_some();
    if !(address.ip().is_loopback() || guarded) {
        return Err(BindError::NotLoopback { address });
    }
    let name = format!("tcp:{address}");
    let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { address: name.clone() },
        _ => failed(&name, error),
    })?;
    listener.set_nonblocking(true).map_err(|error| failed(&name, error))?;
    let local = listener.local_addr().map_err(|error| failed(&name, error))?;
    Ok((listener.into(), local))
}

/// The user at the other end of a Unix socket.
pub(super) fn peer_uid(fd: &OwnedFd) -> Option<u32> {
    sockopt::socket_peercred(fd).ok().map(|credentials| credentials.uid.as_raw())
}
