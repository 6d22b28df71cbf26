//! Progress on a terminal: one line on standard error, and nothing where that is no terminal.

use corelane::sys::clock;
use corelane::units::Nanos;
use std::io::{IsTerminal, Write};

/// Characters of the bar.
const BAR: usize = 24;

/// Steps of about equal length, and how many are done.
pub struct Progress {
    steps: usize,
    done: usize,
    start: Nanos,
    shown: bool,
}

impl Progress {
    /// Of so many steps.
    pub fn new(steps: usize) -> Progress {
        let shown = std::io::stderr().is_terminal();
        Progress { steps: steps.max(1), done: 0, start: clock::now(), shown }
    }

    /// Tells what is being done.
    pub fn tell(&self, what: &str) {
        if self.shown {
            let elapsed_s = clock::now().since(self.start).0 as f64 / 1e9;
            // A line that can't be shown is no reason to stop.
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[K{}",
                line(self.done, self.steps, elapsed_s, what)
            );
            let _ = std::io::stderr().flush();
        }
    }

    /// One step is done.
    pub fn step(&mut self) {
        self.done = (self.done + 1).min(self.steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// The line after `done` of `steps` in `elapsed_s` seconds.
pub fn line(done: usize, steps: usize, elapsed_s: f64, what: &str) -> String {
    let full = done * BAR / steps;
    let left = match done {
        0 => "no estimate yet".into(),
        _ => format!("about {:.0} s left", elapsed_s / done as f64 * (steps - done) as f64),
    };
    let (bar, rest) = ("#".repeat(full), ".".repeat(BAR - full));
    format!("[{bar}{rest}] {done} of {steps}, {left}: {what}")
}

#[cfg(test)]
mod tests;
