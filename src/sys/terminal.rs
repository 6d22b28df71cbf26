//! Serial terminals: raw mode at any speed, and pseudo-terminals for tests.
//!
//! By system calls of its own: the crate for typed calls could do this too, but with features that
//! others of its users would then be compiled with.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Opens a serial device for this process alone: raw, 8 data bits, no parity, 1 stop bit, not
/// blocking. Calls no allocator.
///
/// # Errors
/// The system's; `WOULDBLOCK` or `BUSY` if another process has it, `OPNOTSUPP` if the device took
/// another speed or flow control than asked for.
pub fn open_serial(path: &CStr, baud: u32, rts_cts: bool) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = open(path, flags, Mode::empty())?;
    // The lock also keeps out programs of root, whom exclusive mode lets in.
    flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
    // SAFETY: the descriptor is open, and the request takes no argument.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCEXCL) })?;
    let mut wanted = settings(&fd)?;
    wanted.c_iflag = 0;
    wanted.c_oflag = 0;
    wanted.c_lflag = 0;
    wanted.c_cflag = libc::CS8 | libc::CREAD | libc::CLOCAL | libc::BOTHER;
    if rts_cts {
        wanted.c_cflag |= libc::CRTSCTS;
    }
    // A read gives what is there, or says that it would block.
    wanted.c_cc[libc::VMIN] = 1;
    wanted.c_cc[libc::VTIME] = 0;
    (wanted.c_ispeed, wanted.c_ospeed) = (baud, baud);
    // SAFETY: the descriptor is open, and the request reads the structure that it is given.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TCSETS2, &wanted) })?;
    let got = settings(&fd)?;
    if got.c_ospeed != baud || (got.c_cflag & libc::CRTSCTS != 0) != rts_cts {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: the descriptor is open; the argument is a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TCFLSH, libc::TCIOFLUSH) })?;
    Ok(fd)
}

fn settings(fd: &OwnedFd) -> Result<libc::termios2, Errno> {
    let mut settings = std::mem::MaybeUninit::<libc::termios2>::zeroed();
    // SAFETY: the descriptor is open, and the request fills the structure that it is given.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TCGETS2, settings.as_mut_ptr()) })?;
    // SAFETY: all fields are integers, for which zeros are values, and the call filled them.
    Ok(unsafe { settings.assume_init() })
}

fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(result)
}

/// A pseudo-terminal: one end, and the path of the other, which is a serial device to whoever opens
/// it. For tests without hardware.
///
/// # Errors
/// The system's.
pub fn pseudo_terminal() -> Result<(OwnedFd, std::path::PathBuf), Errno> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = open(c"/dev/ptmx", flags, Mode::empty())?;
    let unlock: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the request reads the integer that it is given.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &unlock) })?;
    let mut number: libc::c_uint = 0;
    // SAFETY: the descriptor is open, and the request writes the integer that it is given.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTN, &mut number) })?;
    Ok((master, format!("/dev/pts/{number}").into()))
}

/// Opens the other end of a pseudo-terminal, so that it does not hang up while nobody else has it.
///
/// # Errors
/// The system's.
pub fn hold_open(master: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the descriptor is open, and the argument is a number.
    let fd = check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) })?;
    // SAFETY: the call made the descriptor, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests;
