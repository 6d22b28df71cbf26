//! Log messages to standard error, one line each: seconds since the start, level, thread, text.

use corelane::sys::clock;
use log::{LevelFilter, Log, Metadata, Record};
use std::io::Write;

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // tract tells every step of its optimiser; that is for its own developers.
        metadata.level() <= log::max_level()
            && (metadata.target().starts_with("corelane") || metadata.level() <= log::Level::Warn)
    }
    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let now = clock::now().0;
        let thread = std::thread::current();
        let mut err = std::io::stderr().lock();
        // A closed standard error is no reason to stop serving.
        let _ = writeln!(
            err,
            "{}.{:06} {:5} {}: {}",
            now / 1_000_000_000,
            now % 1_000_000_000 / 1_000,
            record.level(),
            thread.name().unwrap_or("?"),
            record.args()
        );
    }
    fn flush(&self) {}
}

/// Installs the logger.
pub fn install(level: LevelFilter) {
    // The first call wins; there is no other logger in this program.
    let _ = log::set_logger(&Stderr);
    log::set_max_level(level);
}
