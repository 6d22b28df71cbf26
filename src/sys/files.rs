//! Reading files that somebody else wrote: never more than a bound, and no device that has no end.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file, to read it.
///
/// # Errors
/// As the system says; `InvalidInput` where it is a device, a pipe or a socket (which is not waited for).
pub fn open(path: &Path) -> io::Result<File> {
    // A pipe without a writer would be waited for.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(nonblock).open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() {
        let what = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a pipe",
            () if kind.is_socket() => "a socket",
            () => "a device",
        };
        let message = format!("it is {what}, not a regular file");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(file)
}

/// Reads a regular file of at most `bytes_max` bytes.
///
/// # Errors
/// As [`open`]; `FileTooLarge` where there is more, with the numbers.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let len = file.metadata()?.len();
    if len > bytes_max {
        return Err(too_large(len, bytes_max));
    }
    bounded(file, bytes_max)
}

/// Reads a file, or whatever a pipe holds until it is closed, of at most `bytes_max` bytes.
///
/// # Errors
/// As the system says; `FileTooLarge` where there is more, with the number.
pub fn read_any(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() > bytes_max {
        return Err(too_large(metadata.len(), bytes_max));
    }
    bounded(file, bytes_max)
}

/// [`read`] of text.
///
/// # Errors
/// As [`read`]; `InvalidData` where it is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    text(read(path, bytes_max)?)
}

/// [`read_any`] of text.
///
/// # Errors
/// As [`read_any`]; `InvalidData` where it is not UTF-8.
pub fn read_any_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    text(read_any(path, bytes_max)?)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.utf8_error()))
}

/// The file may grow while it is read, and not every one has a length.
fn bounded(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(too_large(bytes.len() as u64, bytes_max));
    }
    Ok(bytes)
}

fn too_large(bytes: u64, max: u64) -> io::Error {
    let message = format!("it has {bytes} bytes or more, at most {max} are read");
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

#[cfg(test)]
mod tests;
