//! A word to sleep on.

use super::sync::AtomicU32;
#[cfg(loom)]
use super::sync::Ordering;
use crate::units::Nanos;

/// A 32-bit word that threads sleep on until it changes (Linux futex, process-private).
///
/// Under loom the kernel's queue of sleepers is a mutex and a condition variable: the word is
/// compared and the sleeper queued under the lock, and a wake takes the lock too, so that nothing
/// comes in between, as the kernel promises. A sleeper that nobody wakes stays asleep, time-outs
/// never pass, and loom reports the deadlock: a lost wake-up fails its model.
#[derive(Debug)]
pub struct WaitWord {
    word: AtomicU32,
    #[cfg(loom)]
    sleepers: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

impl WaitWord {
    /// A word that holds `value`.
    pub fn new(value: u32) -> Self {
        WaitWord {
            word: AtomicU32::new(value),
            #[cfg(loom)]
            sleepers: (loom::sync::Mutex::new(()), loom::sync::Condvar::new()),
        }
    }

    /// The atomic itself; each caller says its ordering.
    #[inline(always)]
    pub fn atomic(&self) -> &AtomicU32 {
        &self.word
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
        let _ = futex::wait(&self.word, futex::Flags::PRIVATE, expected, timeout.as_ref());
    }

    /// Sleeps while the word holds `expected`, until woken.
    #[cfg(loom)]
    pub fn wait(&self, expected: u32, timeout: Option<Nanos>) {
        let _ = timeout;
        let (lock, woken) = &self.sleepers;
        let guard = lock.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == expected {
            drop(woken.wait(guard));
        }
    }

    /// Wakes at most `count` sleepers.
    pub fn wake(&self, count: u32) {
        #[cfg(not(loom))]
        {
            use rustix::thread::futex;
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, count);
        }
        #[cfg(loom)]
        {
            let (lock, woken) = &self.sleepers;
            let _guard = lock.lock().unwrap();
            if count == 1 { woken.notify_one() } else { woken.notify_all() }
        }
    }
}
