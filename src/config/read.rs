//! From a file to a configuration: of a server, or of a program that embeds corelane.

use super::{Config, ConfigError, ModelControlMode};
use crate::limits::TEXT_FILE_BYTES_MAX;
use crate::sys::files;
use crate::toml_errors::{Document, Table, TomlError};
use std::path::Path;

/// What only `corelane serve` does: table, key (or a whole table), and what a program does in its place.
const SERVERS: [(&str, &str, &str); 6] = [
    ("", "metrics", "the program asks for the counters"),
    ("", "metrics_allow_non_loopback", "the program asks for the counters"),
    ("", "listen", "the program asks by function calls"),
    ("", "log", "the program is given the messages"),
    ("runtime", "io_core", "there is no I/O thread, but the program's own"),
    ("runtime", "drain_timeout_ms", "the program says how long it waits when it stops"),
];

impl Config {
    /// Reads a file of a server. Relative paths in it are taken from its own directory.
    ///
    /// # Errors
    /// The file can't be read, or is wrong: then the error names the key and the line.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        Ok(Config::parse(&path.display().to_string(), &text(path)?, base(path))?)
    }

    /// Reads a file of a program that embeds corelane, as [`Config::read`] does. What such a program would not
    /// get is an error, not left out in silence: `metrics`, `metrics_allow_non_loopback`, `[listen]`, `[log]`, and
    /// in `[runtime]` `io_core`, `drain_timeout_ms` and a `model_control_mode` other than `none`.
    ///
    /// # Errors
    /// Those of [`Config::read`], and one of these keys.
    pub fn read_embedded(path: &Path) -> Result<Config, ConfigError> {
        Ok(Config::parse_embedded(&path.display().to_string(), &text(path)?, base(path))?)
    }

    pub(super) fn parse_embedded(file: &str, text: &str, base: &Path) -> Result<Config, TomlError> {
        let document = Document::parse(file, text)?;
        let config = Config::of(&document.root(), base)?;
        refuse_servers(&document.root(), &config)?;
        Ok(config)
    }

    /// Reads `text`; errors call it `file`, and relative paths in it are taken from `base`.
    ///
    /// # Errors
    /// Not TOML, an unknown key, a value of the wrong type or out of its bounds, or values that
    /// contradict each other; each with the key and the line.
    pub fn parse(file: &str, text: &str, base: &Path) -> Result<Config, TomlError> {
        Config::of(&Document::parse(file, text)?.root(), base)
    }
}

fn text(path: &Path) -> Result<String, ConfigError> {
    files::read_any_text(path, TEXT_FILE_BYTES_MAX)
        .map_err(|source| ConfigError::Io { path: path.into(), source })
}

fn base(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn refuse_servers(root: &Table<'_>, config: &Config) -> Result<(), TomlError> {
    let runtime = root.table("runtime")?;
    let refused = |table: &Table<'_>, key: &str, instead: &str| {
        table.invalid(key, format!("only `corelane serve` does this; leave it out: {instead}"))
    };
    for (name, key, instead) in SERVERS {
        let table = if name.is_empty() { Some(root) } else { runtime.as_ref() };
        if let Some(table) = table.filter(|table| table.keys().iter().any(|k| k == key)) {
            return Err(refused(table, key, instead));
        }
    }
    match &runtime {
        Some(table) if config.model_control.mode != ModelControlMode::None => {
            Err(refused(table, "model_control_mode", "models stay as they were at the start"))
        }
        _ => Ok(()),
    }
}
