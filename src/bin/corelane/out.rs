//! Printing on standard output, whose reader may leave.

use crate::exit::Code;
use corelane::sys::sync::{AtomicBool, Ordering};
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Whether to go on without a reader.
static SERVES: AtomicBool = AtomicBool::new(false);

/// From here on, what can't be printed is left out: a server doesn't end because nobody reads its
/// ready line any more.
pub fn outlive_the_reader() {
    SERVES.store(true, Ordering::Relaxed);
}

/// Prints, or ends the program: quietly if the reader has seen enough, else with the reason.
pub fn print(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_fmt(text) else { return };
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
    ($($text:tt)*) => {{
        $crate::out::print(format_args!($($text)*));
        $crate::out::print(format_args!("\n"));
    }};
}

pub(crate) use {out, outln};
