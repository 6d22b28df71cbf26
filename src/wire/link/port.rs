//! The name of a line: what a server and a client on Linux open.

use crate::limits::LINK_BAUD_MIN;
use std::path::PathBuf;
use std::str::FromStr;

/// A serial port, to serve or to connect by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SerialOptions {
    /// The device.
    pub path: PathBuf,
    /// Its speed; 8 data bits, no parity, 1 stop bit.
    pub baud: u32,
    /// Whether RTS and CTS control the flow.
    pub rts_cts: bool,
}

impl FromStr for SerialOptions {
    type Err = String;

    /// `DEVICE:BAUD`, or `DEVICE:BAUD:rtscts`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (rest, rts_cts) = match text.strip_suffix(":rtscts") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let (path, baud) = rest.rsplit_once(':').unwrap_or(("", ""));
        match baud.parse() {
            Ok(baud) if baud >= LINK_BAUD_MIN && !path.is_empty() => {
                Ok(SerialOptions { path: path.into(), baud, rts_cts })
            }
            _ => Err(format!(
                "{text:?} is no serial port; write DEVICE:BAUD, such as /dev/ttyS1:921600, with at \
                 least {LINK_BAUD_MIN} baud, and :rtscts after it for hardware flow control"
            )),
        }
    }
}

impl std::fmt::Display for SerialOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.baud)?;
        if self.rts_cts { f.write_str(":rtscts") } else { Ok(()) }
    }
}
