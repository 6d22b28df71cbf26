//! Who holds a handle: the word that lets the threads of an application and its dispatcher share
//! handles of requests without a lock.
//!
//! A handle is in a phase, or held. A thread that wants to use it takes it out of its phase, does what
//! it does, and puts it into the next one. A second thread finds it held, and is told so at once.
//!
//! The dispatcher hears of a handle's answer from a worker, perhaps while the thread that submitted
//! the request still holds the handle. Then it leaves a hint, and that thread, putting the handle
//! down, sees the hint and sends the dispatcher here again. Both change the same word by
//! read-modify-write operations, so one of them sees the other.

use crate::sys::sync::{AtomicU32, Ordering};

const HELD: u32 = 0;
/// The dispatcher came by while the handle was held.
const HINT: u32 = 1 << 31;

/// The word.
#[derive(Debug)]
pub struct HandleWord(AtomicU32);

/// Why a handle was not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Another thread holds it.
    Held,
    /// It is in this phase.
    Phase(u32),
}

impl HandleWord {
    /// A word in `phase`, which is neither 0 nor over 31 bits.
    pub fn new(phase: u32) -> Self {
        debug_assert!(phase != HELD && phase & HINT == 0);
        HandleWord(AtomicU32::new(phase))
    }

    /// Whether it is in `phase` at this moment.
    pub fn is(&self, phase: u32) -> bool {
        // Acquire: what the last holder wrote. Partner: the swap in `put`.
        self.0.load(Ordering::Acquire) == phase
    }

    /// Takes the handle, if it is in a phase that `wanted` accepts. Returns that phase.
    ///
    /// # Errors
    /// What it found instead.
    pub fn take(&self, wanted: impl Fn(u32) -> bool) -> Result<u32, Found> {
        // Relaxed: the exchange below decides, and acquires.
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            match seen & !HINT {
                HELD => return Err(Found::Held),
                phase if !wanted(phase) => return Err(Found::Phase(phase)),
                phase => {
                    // Acquire: what the last holder wrote. Partner: the swap in `put`.
                    match self.0.compare_exchange(seen, HELD, Ordering::Acquire, Ordering::Relaxed)
                    {
                        Ok(_) => return Ok(phase),
                        Err(now) => seen = now,
                    }
                }
            }
        }
    }

    /// Puts the handle into `phase`; only its holder does. `true`: the dispatcher came by meanwhile,
    /// and must be sent here again.
    pub fn put(&self, phase: u32) -> bool {
        debug_assert!(phase != HELD && phase & HINT == 0);
        // Release: what this holder wrote. Acquire, with the hint's release: whatever the
        // dispatcher heard of before it came by.
        self.0.swap(phase, Ordering::AcqRel) & HINT != 0
    }

    /// Takes the handle if it is in `phase`; if it is held, leaves a hint. For the dispatcher.
    ///
    /// # Errors
    /// What it found instead. `Held`: its holder will learn of this visit.
    pub fn take_or_hint(&self, phase: u32) -> Result<(), Found> {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let (next, outcome) = match seen & !HINT {
                HELD => (HELD | HINT, Err(Found::Held)),
                found if found == phase => (HELD, Ok(())),
                other => return Err(Found::Phase(other)),
            };
            // AcqRel: as in `take`; released with the hint, for `put`.
            match self.0.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return outcome,
                Err(now) => seen = now,
            }
        }
    }
}
