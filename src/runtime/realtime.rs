//! Real-time options: what was asked of the kernel, and what it granted.

use super::Shared;
use crate::sys::realtime::Held;
pub use crate::sys::realtime::{Outcome, PRIORITY_RANGE, Policy, ProcessOptions, ThreadOptions};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What the kernel is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RealTime {
    /// For each worker and the I/O thread.
    pub thread: ThreadOptions,
    /// For the process.
    pub process: ProcessOptions,
    /// Whether to run on with what was granted; otherwise a refusal is an error.
    pub run_on: bool,
}

/// Options that the kernel did not grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(
    /// Each of them.
    pub Vec<Outcome>,
);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the system refused what [realtime] asks for: ")?;
        for (n, outcome) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str("; ")?;
            }
            outcome.fmt(f)?;
        }
        f.write_str(" (refused = \"run_on\" serves without)")
    }
}

impl std::error::Error for Refused {}

impl RealTime {
    /// The start of what is granted, with what was asked for early.
    pub(super) fn granted(self, early: Vec<Outcome>) -> Granted {
        Granted { wanted: self, outcomes: Arc::new(Mutex::new(early)), _held: Held::default() }
    }
}

/// What was granted, for `stats`, and what must be held open for it.
pub(super) struct Granted {
    pub wanted: RealTime,
    outcomes: Arc<Mutex<Vec<Outcome>>>,
    _held: Held,
}

impl Granted {
    pub fn add(&self, more: Vec<Outcome>) {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).extend(more);
    }

    /// Whether all was granted, or that does not matter.
    pub fn check(&self) -> Result<(), Refused> {
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let refused: Vec<Outcome> = outcomes.iter().filter(|o| !o.granted).cloned().collect();
        if refused.is_empty() || self.wanted.run_on { Ok(()) } else { Err(Refused(refused)) }
    }

    /// Asks for what comes after all memory is there, and shows all of it in `stats`.
    pub fn finish(&mut self, shared: &Shared) -> Result<(), Refused> {
        let (held, outcomes) = self.wanted.process.apply();
        self._held = held;
        self.add(outcomes);
        self.check()?;
        if self.wanted.thread != ThreadOptions::default()
            || self.wanted.process != ProcessOptions::default()
        {
            let outcomes = self.outcomes.clone();
            shared.add_stats("realtime", move || {
                let outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                serde_json::to_value(&*outcomes).unwrap_or_default()
            });
        }
        Ok(())
    }
}
