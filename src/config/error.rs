//! Why a configuration can't be used.

use crate::toml_errors::TomlError;
use std::fmt;
use std::path::PathBuf;

/// Why a configuration can't be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file can't be read.
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in the file is wrong.
    Toml(TomlError),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Io { path, source } => {
                write!(f, "the configuration {} can't be read: {source}", path.display())
            }
            ConfigError::Toml(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ConfigError::Io { source, .. } => Some(source),
            ConfigError::Toml(error) => Some(error),
        }
    }
}

impl From<TomlError> for ConfigError {
    fn from(error: TomlError) -> Self {
        ConfigError::Toml(error)
    }
}
