//! Printing on standard output, whose reader may leave.

use crate::exit::Code;
use crate::logger::OUTPUT;
use corelane::sys::sync::{AtomicBool, Ordering};
use std::fmt::Arguments;
use std::io::{Error, ErrorKind, Write};
use std::sync::mpsc;

/// Whether to go on without a reader.
static SERVES: AtomicBool = AtomicBool::new(false);

/// From here on, what can't be printed is left out: a server doesn't end because nobody reads its
/// ready line any more.
pub fn outlive_the_reader() {
    SERVES.store(true, Ordering::Relaxed);
}

/// Prints, or ends the program as [`end`] does. A server waits for a reader who takes nothing only
/// [so long](corelane::logs::Output::patience).
pub fn print(text: Arguments<'_>) {
    if SERVES.load(Ordering::Relaxed) {
        let text = text.to_string();
        return with_patience(move || {
            let mut out = std::io::stdout().lock();
            // A reader who left is as [`end`] has it.
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        });
    }
    if let Err(error) = std::io::stdout().lock().write_fmt(text) {
        end(&error);
    }
}

/// Has a thread of its own say something, which may have to wait for its reader for ever, and is waited for only
/// [so long](corelane::logs::Output::patience).
pub fn with_patience(say: impl FnOnce() + Send + 'static) {
    let (done, said) = mpsc::channel();
    let spawned = std::thread::Builder::new().name("cl-out".into()).spawn(move || {
        say();
        // Perhaps nobody waits any more.
        let _ = done.send(());
    });
    if spawned.is_ok() {
        let _ = said.recv_timeout(OUTPUT.patience());
    }
}

/// Ends the program after what standard output said, unless it serves: quietly if the reader has seen
/// enough, else with the reason.
pub fn end(error: &Error) {
    if SERVES.load(Ordering::Relaxed) {
        return;
    }
    if error.kind() != ErrorKind::BrokenPipe {
        eprintln!("corelane: printing: {error}");
        std::process::exit(Code::Failure as i32);
    }
    std::process::exit(Code::Ok as i32);
}

/// `print!`, by [`print`].
macro_rules! out {
    ($($text:tt)*) => { $crate::out::print(format_args!($($text)*)) };
}

/// `println!`, by [`print`].
macro_rules! outln {
    ($($text:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($text)*))) };
}

pub(crate) use {out, outln};
