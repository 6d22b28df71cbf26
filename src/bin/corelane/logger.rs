//! Messages and events, to standard error and to a log file. What that takes is in the library.

use corelane::logs::{Format, Output};
use log::{LevelFilter, Log, Metadata, Record};
use std::io::Write;

/// The program's one output.
pub static OUTPUT: Output = Output::new(print);

fn print(lines: &str) {
    // A closed standard error is no reason to stop serving.
    let _ = std::io::stderr().lock().write_all(lines.as_bytes());
}

struct Forward;

impl Log for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // tract tells every step of its optimiser; that is for its own developers.
        metadata.level() <= log::max_level()
            && (metadata.target().starts_with("corelane") || metadata.level() <= log::Level::Warn)
    }
    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            OUTPUT.message(record.level().into(), &record.args().to_string());
        }
    }
    fn flush(&self) {}
}

/// Says why the program ends. Waits for the reader as [`Output::flush`] does, once the program has served.
pub fn last_words(text: &str) {
    OUTPUT.say(&format!("corelane: {text}"));
    OUTPUT.flush();
}

/// Tells panics. Where the program serves, the thread that panicked must not wait for whoever reads
/// standard error, least of all a worker that goes on: the thread `cl-log` tells it.
pub fn tell_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !(OUTPUT.is_kept() && OUTPUT.panicked(panic)) {
            report(panic);
        }
    }));
}

/// Installs the logger.
pub fn install(level: LevelFilter, format: Option<Format>) {
    OUTPUT.set_format(format.unwrap_or_default());
    // The first call wins; there is no other logger in this program.
    let _ = log::set_logger(&Forward);
    log::set_max_level(level);
}
