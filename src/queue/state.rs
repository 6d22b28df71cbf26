//! The life of a slot: who owns its record and its buffers, and the word that says so.
//!
//! ```text
//! PENDING <-> SLEEPING -> DONE -> PENDING ...      (of the next request)
//!    |           |
//!    v           v
//!      ORPHANED                     (the client gave up; the worker recycles)
//! ```
//!
//! Before submission a slot belongs to whoever took its index from the free list. Then its index goes
//! into a [ring](super::ring): while it is there nobody touches record or buffers. The client's withdrawing
//! and the worker's popping race on the ring's cell, so a request runs or is cancelled, never both. Who
//! withdrew it owns the slot as before. A worker that popped it owns the slot until the word says DONE:
//! the worker's swap and the client's giving up race on that word, so a request ends exactly once.
//!
//! What the client asks lies on a cache line of its own, which goes from client to worker; the word
//! with the record on another, which goes back. A client that polls for its answer disturbs no worker
//! before the answer is written. Nothing is written when a slot is given back, so that the next
//! client, or this one, does not wait for a line that is elsewhere.

use crate::sys::futex::WaitWord;
use crate::sys::prefetch::{prefetch_for_read, prefetch_for_write};
use crate::sys::sync::{Ordering, SharedCell, spin_turn};
use crate::units::Nanos;

const PENDING: u32 = 0;
/// As PENDING, and the client sleeps on the word, or is about to.
const SLEEPING: u32 = 1;
const DONE: u32 = 2;
const ORPHANED: u32 = 3;

/// What the client asks (`A`, which any thread may read), the word, and the record (`R`) that it
/// guards.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct SlotState<R, A = ()> {
    /// What the client asks: written before the slot's index is pushed.
    pub asked: A,
    answer: Answer<R>,
}

#[derive(Debug)]
#[repr(C, align(64))] // The word first: it and a small record share a cache line.
struct Answer<R> {
    word: WaitWord,
    record: SharedCell<R>,
}

// SAFETY: the record is reached only by the slot's owner (each accessor's contract), and ownership
// moves with the index through the ring and the free list, and with changes of the word, each of which
// releases and acquires.
unsafe impl<R: Send, A: Sync> Sync for SlotState<R, A> {}

impl<R, A: Default> SlotState<R, A> {
    /// A free slot.
    pub fn new(record: R) -> Self {
        SlotState {
            asked: A::default(),
            answer: Answer { word: WaitWord::new(PENDING), record: SharedCell::new(record) },
        }
    }
}

impl<R, A> SlotState<R, A> {
    /// The client is about to hand the request over: it then puts the index into the ring.
    #[inline]
    pub fn submit(&self) {
        // Relaxed: published by the ring, as is what the client wrote.
        self.answer.word.atomic().store(PENDING, Ordering::Relaxed);
    }

    /// The worker is done. `true`: the answer is the client's, who was woken if it slept.
    /// `false`: the client gave up meanwhile; the slot is free, and the caller puts it on the free
    /// list.
    #[inline]
    pub fn complete(&self) -> bool {
        // Release, with the acquire in `is_done`: the answer comes with it. Acquire, with the release
        // in `abandon`: the client is through with the slot.
        match self.answer.word.atomic().swap(DONE, Ordering::AcqRel) {
            PENDING => true,
            SLEEPING => {
                self.answer.word.wake(1);
                true
            }
            _ => false,
        }
    }

    /// The client gives up a request that it can't withdraw. `true`: it runs, its answer will be
    /// dropped, and the worker recycles the slot. `false`: it is done, the answer is there, and the slot
    /// is still the client's.
    pub fn abandon(&self) -> bool {
        let word = self.answer.word.atomic();
        let mut seen = word.load(Ordering::Acquire);
        while seen != DONE {
            // Release, with the acquire in `complete`: this side is through with the slot. Acquire on
            // failure: the answer is there.
            match word.compare_exchange(seen, ORPHANED, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Whether the answer is there.
    #[inline]
    pub fn is_done(&self) -> bool {
        // Acquire: the answer is visible with it. Partner: the swap in `complete`.
        self.answer.word.atomic().load(Ordering::Acquire) == DONE
    }

    /// Spins up to `spins` turns for the answer, and calls `each` in every turn.
    #[inline]
    pub fn spin_done(&self, spins: u32, mut each: impl FnMut()) -> bool {
        for _ in 0..spins {
            if self.is_done() {
                return true;
            }
            each();
            spin_turn();
        }
        self.is_done()
    }

    /// Sleeps until the answer is there or `timeout` has passed. May return early; the caller looks.
    pub fn wait_done(&self, timeout: Option<Nanos>) -> bool {
        let word = self.answer.word.atomic();
        // Both this and the worker's swap in `complete` change the word: either the worker sees that
        // somebody sleeps, or this sees the answer (acquire). It stays so until the answer comes.
        match word.compare_exchange(PENDING, SLEEPING, Ordering::Relaxed, Ordering::Acquire) {
            Err(DONE) => return true,
            _ => self.answer.word.wait(SLEEPING, timeout),
        }
        self.is_done()
    }

    /// Asks for the lines that a submission writes.
    #[inline]
    pub fn prefetch_to_submit(&self) {
        prefetch_for_write(&self.asked);
        prefetch_for_write(&self.answer);
    }

    /// Asks for the line that taking it reads. The answer's is left to the client, who may
    /// be polling, until [`prefetch_to_complete`](Self::prefetch_to_complete).
    #[inline]
    pub fn prefetch_to_take(&self) {
        prefetch_for_read(&self.asked);
    }

    /// Asks for the line that completing it writes.
    #[inline]
    pub fn prefetch_to_complete(&self) {
        prefetch_for_write(&self.answer);
    }

    /// The record, for the present owner.
    ///
    /// # Safety
    /// The caller's side owns the slot in its present state (see the module), and makes no second
    /// reference while `f` runs.
    #[inline]
    pub unsafe fn record<T>(&self, f: impl FnOnce(&mut R) -> T) -> T {
        // SAFETY: exclusive by the caller's promise.
        self.answer.record.with_mut(|r| f(unsafe { &mut *r }))
    }
}
