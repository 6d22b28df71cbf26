//! A word to sleep on.

use super::sync::{AtomicU32, Ordering};
use crate::units::Nanos;

/// A 32-bit word that threads sleep on until it changes (Linux futex, process-private).
#[derive(Debug)]
pub struct WaitWord(AtomicU32);

impl WaitWord {
    /// A word that holds `value`.
    pub fn new(value: u32) -> Self {
        WaitWord(AtomicU32::new(value))
    }

    /// The atomic itself; each caller says its ordering.
    #[inline(always)]
    pub fn atomic(&self) -> &AtomicU32 {
        &self.0
    }

    /// Sleeps while the word holds `expected`, until woken or until `timeout` has passed. May
    /// return early for no reason; callers look at the word again.
    #[cfg(not(loom))]
    pub fn wait(&self, expected: u32, timeout: Option<Nanos>) {
        use rustix::thread::futex;
        let timeout = timeout.map(|t| futex::Timespec {
            tv_sec: (t.0 / 1_000_000_000) as _,
            tv_nsec: (t.0 % 1_000_000_000) as _,
        });
        // Every result means "look again": woken, value differs, timed out, interrupted.
        let _ = futex::wait(&self.0, futex::Flags::PRIVATE, expected, timeout.as_ref());
    }

    /// Under loom a sleep is a yield until the word changes.
    #[cfg(loom)]
    pub fn wait(&self, expected: u32, timeout: Option<Nanos>) {
        let _ = timeout;
        while self.0.load(Ordering::SeqCst) == expected {
            loom::thread::yield_now();
        }
    }

    /// Wakes at most `count` sleepers.
    pub fn wake(&self, count: u32) {
        #[cfg(not(loom))]
        {
            use rustix::thread::futex;
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, count);
        }
        #[cfg(loom)]
        let _ = count;
    }

    /// Stores `value` and wakes one sleeper.
    pub fn store_and_wake(&self, value: u32) {
        self.0.store(value, Ordering::Release);
        self.wake(1);
    }
}
