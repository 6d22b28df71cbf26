//! Messages, handed to a function of the program's.

use super::line::Line;
use super::status::{corelane_status, fail, guard};
use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::RwLock;

/// Longest message, in bytes, its closing zero included.
const MESSAGE_BYTES: usize = 1024;

/// Takes a message of `level` (1 error, 2 warning, 3 information, 4 debug, 5 trace). `target` says
/// which part of corelane speaks. Both texts are gone when the function returns. It is called on
/// whichever thread speaks, never on a worker that serves; it must return, throw nothing, and not
/// call `corelane_log_set`.
pub type corelane_log_callback = Option<
    unsafe extern "C" fn(
        level: i32,
        target: *const c_char,
        message: *const c_char,
        user: *mut c_void,
    ),
>;

#[derive(Clone, Copy)]
struct Sink {
    call: corelane_log_callback,
    user: *mut c_void,
}

// SAFETY: the program promises that its function may be called with this pointer on any thread.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

static SINK: RwLock<Sink> = RwLock::new(Sink { call: None, user: std::ptr::null_mut() });

thread_local! {
    static SPEAKING: Cell<bool> = const { Cell::new(false) };
}

struct Forward;

/// A text as C reads it.
fn line(text: std::fmt::Arguments<'_>) -> Line<MESSAGE_BYTES> {
    let mut line = Line::new();
    line.set(text);
    line
}

impl log::Log for Forward {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        // tract tells every step of its optimiser; that is for its own developers.
        metadata.level() <= log::max_level()
            && (metadata.target().starts_with("corelane") || metadata.level() <= log::Level::Warn)
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) || SPEAKING.replace(true) {
            return;
        }
        let sink = SINK.read().unwrap_or_else(|e| e.into_inner());
        if let Sink { call: Some(call), user } = *sink {
            let target = line(format_args!("{}", record.target()));
            let message = line(*record.args());
            let level = record.level() as i32;
            // SAFETY: the program's function, called as its type says; the texts end with a zero
            // and live until it returns.
            unsafe { call(level, target.as_ptr(), message.as_ptr(), user) };
        }
        drop(sink);
        SPEAKING.set(false);
    }

    fn flush(&self) {}
}

/// Has messages up to `level` (0 none, 1 error, 2 warning, 3 information, 4 debug, 5 trace) given to
/// `callback`, in place of the one set before. A null `callback` ends that; when the call returns,
/// the former one is not running and will not be called again. May be called before any runtime is
/// started, and at any time.
///
/// Ownership: `user` stays the program's; corelane only passes it on.
///
/// # Errors
/// `WRONG_STATE` from within a callback; `UNAVAILABLE` where the program is written in Rust and has
/// installed a logger of its own.
#[unsafe(no_mangle)]
pub extern "C" fn corelane_log_set(
    callback: corelane_log_callback,
    user: *mut c_void,
    level: i32,
) -> corelane_status {
    guard(|| {
        const LEVELS: [log::LevelFilter; 6] = [
            log::LevelFilter::Off,
            log::LevelFilter::Error,
            log::LevelFilter::Warn,
            log::LevelFilter::Info,
            log::LevelFilter::Debug,
            log::LevelFilter::Trace,
        ];
        let filter = usize::try_from(level).ok().and_then(|n| LEVELS.get(n)).copied();
        let Some(filter) = filter else {
            let text = format_args!("log level {level}; there are 0 (none) to 5 (trace)");
            return Err(fail(corelane_status::InvalidArgument, text));
        };
        if SPEAKING.get() {
            let text = format_args!("the log callback can't be changed from within it");
            return Err(fail(corelane_status::WrongState, text));
        }
        static OURS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        if !OURS.get_or_init(|| log::set_logger(&Forward).is_ok()) {
            let text = format_args!("the program has a logger of its own");
            return Err(fail(corelane_status::Unavailable, text));
        }
        *SINK.write().unwrap_or_else(|e| e.into_inner()) = Sink { call: callback, user };
        log::set_max_level(if callback.is_some() { filter } else { log::LevelFilter::Off });
        Ok(())
    })
}
