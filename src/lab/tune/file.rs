//! The chosen settings as a `corelane.toml`.

use super::{Settings, idle_name};
use crate::config::{Config, SYNTHETIC, Workers};
use std::fmt;
use std::path::Path;
use toml::{Table, Value};

/// Why no file can be written from a base.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileError {
    /// The base is not TOML.
    Base(toml::de::Error),
    /// What would be written says something else than the choice, or nothing that can be read.
    NotTheChoice {
        /// What the parser says, or what differs.
        why: String,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Base(error) => write!(f, "the base is not TOML: {error}"),
            FileError::NotTheChoice { why } => {
                write!(f, "the choice can't be written as a configuration: {why}")
            }
        }
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FileError::Base(error) => Some(error),
            FileError::NotTheChoice { .. } => None,
        }
    }
}

/// Keys of the base that hold paths: table, key.
const PATHS: [(&str, &str); 5] = [
    ("", "cache"),
    ("runtime", "onnxruntime"),
    ("listen", "unix"),
    ("listen", "psk_file"),
    ("model", "path"),
];

/// Keys that the choice of cores replaces.
const REPLACED: [&str; 5] = ["board", "board_mismatch", "pin", "workers", "io_core"];

fn entry<'t>(table: &'t mut Table, key: &str) -> Option<&'t mut Table> {
    table.entry(key).or_insert_with(|| Value::Table(Table::new())).as_table_mut()
}

/// Makes a path of the base good for a file in another directory.
fn rebase(table: &mut Table, key: &str, base: &Path) {
    if let Some(Value::String(path)) = table.get_mut(key)
        && !(key == "path" && path == SYNTHETIC)
    {
        *path = base.join(&*path).display().to_string();
    }
}

/// `base` (a configuration of one model) with the chosen settings in it; comments are lost. Paths in it
/// are made to count from `dir`, which should be absolute where the new file lies elsewhere. `about` is
/// put above it, as a comment.
///
/// # Errors
/// The base can't be read, or what comes out is not what was chosen.
pub fn config_text(
    base: &str,
    dir: &Path,
    chosen: &Settings,
    about: &str,
) -> Result<String, FileError> {
    let not = |why: String| FileError::NotTheChoice { why };
    let mut root: Table = base.parse().map_err(FileError::Base)?;
    for (table, key) in PATHS {
        if table.is_empty() {
            rebase(&mut root, key, dir);
            continue;
        }
        match root.get_mut(table) {
            Some(Value::Table(table)) => rebase(table, key, dir),
            Some(Value::Array(tables)) => {
                tables.iter_mut().filter_map(Value::as_table_mut).for_each(|t| rebase(t, key, dir));
            }
            _ => {}
        }
    }
    let runtime = entry(&mut root, "runtime").ok_or_else(|| not("`runtime` is no table".into()))?;
    for key in REPLACED {
        runtime.remove(key);
    }
    let cores = chosen.cores.iter().map(|core| Value::Integer(core.0.into())).collect();
    runtime.insert("cores".into(), Value::Array(cores));
    runtime.insert("idle".into(), Value::String(idle_name(chosen.idle)));
    let model = root
        .get_mut("model")
        .and_then(Value::as_array_mut)
        .and_then(|models| models.first_mut())
        .and_then(Value::as_table_mut)
        .ok_or_else(|| not("the base has no [[model]]".into()))?;
    let (batch, delay) = (chosen.max_batch_size, chosen.max_queue_delay_us);
    model.insert("max_batch_size".into(), Value::Integer(batch as i64));
    model.insert("max_queue_delay_microseconds".into(), Value::Integer(delay.into()));
    let comment: String = about.lines().map(|line| format!("# {line}\n")).collect();
    let text = format!("{comment}\n{root}");
    // What is written is read first, by the parser that will read it.
    let read = Config::parse("the choice", &text, Path::new("")).map_err(|e| not(e.to_string()))?;
    let first = &read.models[0];
    let same = read.workers == Workers::Cores(chosen.cores.clone())
        && read.idle == chosen.idle
        && first.max_batch_size == Some(batch)
        && first.max_queue_delay.is_some_and(|d| d.0 == delay);
    if same { Ok(text) } else { Err(not("it reads back as other settings".into())) }
}
