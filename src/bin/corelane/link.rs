//! Connecting to a server.

use crate::exit::{Code, Exit};
use corelane::client::{Address, Client, ClientError, Options};
use corelane::limits::TEXT_FILE_BYTES_MAX;
use corelane::sys::files;
use corelane::wire::Key;
use std::path::Path;
use std::time::Duration;

/// Reads a pre-shared key: the file's bytes, one line end at the end not counted.
pub fn read_key(path: &Path) -> Result<Key, Exit> {
    let wrong = |e: &dyn std::fmt::Display| {
        Exit::new(Code::Config, format_args!("the key file {}: {e}", path.display()))
    };
    let mut bytes = files::read_any(path, TEXT_FILE_BYTES_MAX).map_err(|e| wrong(&e))?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Key::new(&bytes).map_err(|e| wrong(&e))
}

/// Connects and greets.
pub fn connect(address: &Address, psk_file: Option<&Path>) -> Result<Client, Exit> {
    connect_for(address, psk_file, Options::default().timeout)
}

/// The same, with another patience for each reply.
pub fn connect_for(
    address: &Address,
    psk_file: Option<&Path>,
    timeout: Option<Duration>,
) -> Result<Client, Exit> {
    let key = psk_file.map(read_key).transpose()?;
    let options = Options { name: "corelane-cli".into(), key, timeout };
    Client::connect(address, options).map_err(|e| lost(address, &e))
}

/// The end after a connection's failure, or a server's refusal.
pub fn lost(address: &Address, error: &ClientError) -> Exit {
    let code = match error {
        ClientError::Server(_) | ClientError::ShuttingDown | ClientError::KeyWanted => {
            Code::Refused
        }
        _ => Code::Unreachable,
    };
    Exit::new(code, format_args!("{address}: {error}"))
}
