//! The table `[log]`.

use super::{Config, set};
use crate::limits::{
    LOG_FILE_BYTES_MAX, LOG_FILE_BYTES_MIN, LOG_RING_BYTES_MAX, LOG_RING_BYTES_MIN,
};
use crate::toml_errors::{Table, TomlError};
use std::path::Path;

impl Config {
    pub(super) fn log(&mut self, table: &Table<'_>, base: &Path) -> Result<(), TomlError> {
        if let Some(level) = table.text("level")? {
            let wanted = "off, error, warn, info, debug or trace";
            self.log_level = level.parse().map_err(|_| {
                table.invalid("level", format!("{level:?} is no level; choose {wanted}"))
            })?;
        }
        if let Some(format) = table.text("format")? {
            self.log.format = format.parse().map_err(|e: String| table.invalid("format", e))?;
        }
        self.log.file = table.text("file")?.map(|path| base.join(path));
        let bytes = table.integer("file_bytes_max", LOG_FILE_BYTES_MIN, LOG_FILE_BYTES_MAX)?;
        set(&mut self.log.file_bytes_max, bytes);
        let (min, max) = (LOG_RING_BYTES_MIN as u64, LOG_RING_BYTES_MAX as u64);
        let bytes = table.integer("ring_bytes", min, max)?;
        set(&mut self.log.ring_bytes, bytes.map(|n| n as usize));
        table.finish()
    }
}
