//! Lending a connection's way out for one answer: who may write to it, and the one word that says so.
//!
//! ```text
//! HELD -> LENT -> SENDING -> SENT -> HELD
//!   ^      |
//!   +------+   (taken back before a worker began)
//! ```
//!
//! HELD belongs to the lender (the I/O thread), SENDING to the worker that runs the request for which
//! it was lent. The lender's taking back and the worker's beginning race on one compare-and-swap out
//! of LENT, so bytes of two frames never mix. LENT carries the request's key: a worker that ends
//! another request changes nothing, even if the way out was taken back and lent again meanwhile.

use crate::sys::sync::{AtomicU64, Ordering, SharedCell};

const HELD: u64 = 0;
const LENT: u64 = 1;
const SENDING: u64 = 2;
const SENT: u64 = 3;

/// What the lender finds when it wants to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaimed {
    /// It is the lender's: not lent, or taken back just now.
    Held,
    /// A worker is writing. It will tell.
    Sending,
    /// A worker has written; what came of it is to be [settled](Handover::settle).
    Sent,
}

/// The word, and the record that it guards.
#[derive(Debug)]
#[repr(align(128))]
pub struct Handover<R> {
    word: AtomicU64,
    record: SharedCell<R>,
}

// SAFETY: the record is reached only by the side that the word names (each accessor's contract), and
// ownership moves with release/acquire changes of the word.
unsafe impl<R: Send> Sync for Handover<R> {}

impl<R> Handover<R> {
    /// One that the lender holds.
    pub fn new(record: R) -> Self {
        Handover { word: AtomicU64::new(HELD), record: SharedCell::new(record) }
    }

    /// The lender lends, for the request with this key (below 2^62), which it then submits.
    ///
    /// # Panics
    /// If it is lent already.
    pub fn lend(&self, key: u64) {
        // Relaxed: only the lender leaves HELD and SENT.
        assert_eq!(self.word.load(Ordering::Relaxed), HELD, "it is lent already");
        // Release, with the acquire in `begin`: the record comes with it.
        self.word.store(LENT | key << 2, Ordering::Release);
    }

    /// The lender wants to write.
    pub fn reclaim(&self) -> Reclaimed {
        // Acquire, with the release in `end`.
        let word = self.word.load(Ordering::Acquire);
        match word & 3 {
            HELD => Reclaimed::Held,
            SENDING => Reclaimed::Sending,
            SENT => Reclaimed::Sent,
            _ => match self.word.compare_exchange(word, HELD, Ordering::Relaxed, Ordering::Acquire)
            {
                Ok(_) => Reclaimed::Held,
                Err(now) if now & 3 == SENT => Reclaimed::Sent,
                Err(_) => Reclaimed::Sending,
            },
        }
    }

    /// Whether a worker has begun, or has sent.
    pub fn has_begun(&self) -> bool {
        // Acquire, with the release in `end`.
        matches!(self.word.load(Ordering::Acquire) & 3, SENDING | SENT)
    }

    /// The worker that ended the request with this key may write, if so.
    pub fn begin(&self, key: u64) -> bool {
        // Acquire, with the release in `lend`.
        let lent = LENT | key << 2;
        self.word.compare_exchange(lent, SENDING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The worker has written. It touches neither the record nor the way out any more.
    pub fn end(&self) {
        // Release, with the acquire in `reclaim`.
        self.word.store(SENT, Ordering::Release);
    }

    /// The lender takes back what was sent, after [`reclaim`](Self::reclaim) said so.
    pub fn settle(&self) {
        // Relaxed: only the lender leaves SENT.
        debug_assert_eq!(self.word.load(Ordering::Relaxed), SENT);
        self.word.store(HELD, Ordering::Relaxed);
    }

    /// The record, for the present owner.
    ///
    /// # Safety
    /// The caller's side owns it in its present state: the lender in HELD and SENT, the worker in
    /// SENDING. It makes no second reference while `f` runs.
    #[inline]
    pub unsafe fn record<T>(&self, f: impl FnOnce(&mut R) -> T) -> T {
        // SAFETY: exclusive by the caller's promise.
        self.record.with_mut(|r| f(unsafe { &mut *r }))
    }
}
