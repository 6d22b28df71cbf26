//! Whether models may change while they are served.

use crate::toml_errors::{Table, TomlError};
use std::str::FromStr;
use std::time::Duration;

/// Longest `repository_poll_secs`, in seconds (one day).
const POLL_S_MAX: u64 = 86_400;

/// What makes a server read its models' files again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ModelControlMode {
    /// Nothing: models stay what they were at the start.
    #[default]
    None,
    /// A request to reload: SIGHUP, or `corelane reload`.
    Explicit,
    /// The same, and files that changed.
    Poll,
}

impl FromStr for ModelControlMode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(ModelControlMode::None),
            "explicit" => Ok(ModelControlMode::Explicit),
            "poll" => Ok(ModelControlMode::Poll),
            _ => Err(format!("{text:?}; choose \"none\", \"explicit\" or \"poll\"")),
        }
    }
}

/// Whether models may change while they are served, and how that is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelControl {
    /// What makes it read its models' files again.
    pub mode: ModelControlMode,
    /// How often it looks whether they changed, where it does.
    pub poll_every: Duration,
}

impl Default for ModelControl {
    fn default() -> Self {
        ModelControl { mode: ModelControlMode::None, poll_every: Duration::from_secs(15) }
    }
}

impl ModelControl {
    /// The keys in `[runtime]`.
    pub(super) fn read(table: &Table<'_>) -> Result<ModelControl, TomlError> {
        let mut control = ModelControl::default();
        if let Some(text) = table.text("model_control_mode")? {
            let wrong = |e: String| table.invalid("model_control_mode", e);
            control.mode = text.parse().map_err(wrong)?;
        }
        if let Some(seconds) = table.integer("repository_poll_secs", 1, POLL_S_MAX)? {
            if control.mode != ModelControlMode::Poll {
                let message = "only with model_control_mode = \"poll\"";
                return Err(table.invalid("repository_poll_secs", message));
            }
            control.poll_every = Duration::from_secs(seconds);
        }
        Ok(control)
    }
}
