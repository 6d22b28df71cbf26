//! The life of a slot: who owns its record and its buffers, and the two words that say so.
//!
//! ```text
//! turn:    IDLE -> QUEUED -> TAKEN -> QUEUED ...            (of the next request)
//!            ^        |
//!            |        v
//!            +--- ABANDONED                   (the client gave up; the worker recycles)
//!
//! answer:  PENDING <-> SLEEPING -> DONE -> PENDING ...      (of the next request)
//!              |           |
//!              v           v
//!                ORPHANED                     (the client gave up; the worker recycles)
//! ```
//!
//! Before submission a slot belongs to whoever took its index from the free list. While it is QUEUED
//! nobody touches record or buffers. The client's cancel and the worker's take race on one
//! compare-and-swap out of QUEUED, so a request runs or is cancelled, never both. From TAKEN on it is
//! the worker's, until the answer's word says DONE: the worker's swap and the client's giving up race
//! on that word, so a request ends exactly once.
//!
//! The words lie on cache lines of their own, each with what travels with it: the turn with what the
//! client asks, from client to worker; the answer's word with the record, back. A client that polls
//! for its answer disturbs no worker before the answer is written. Nothing is written when a slot is
//! given back, so that the next client, or this one, does not wait for a line that is elsewhere.

use crate::sys::futex::WaitWord;
use crate::sys::prefetch::prefetch_for_write;
use crate::sys::sync::{AtomicU32, Ordering, SharedCell, spin_turn};
use crate::units::Nanos;

const IDLE: u32 = 0;
const QUEUED: u32 = 1;
const TAKEN: u32 = 2;
const ABANDONED: u32 = 3;

const PENDING: u32 = 0;
/// As PENDING, and the client sleeps on the word, or is about to.
const SLEEPING: u32 = 1;
const DONE: u32 = 2;
const ORPHANED: u32 = 3;

/// What the client found when it gave a request up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abandon {
    /// It was waiting: it will not run. The worker that finds it recycles the slot.
    Queued,
    /// It is running: its answer will be dropped, and the worker recycles the slot.
    Running,
    /// It is done already: the answer is there, the client still owns the slot.
    Done,
}

/// The words, what the client asks (`A`, which any thread may read), and the record (`R`) that the
/// words guard.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct SlotState<R, A = ()> {
    turn: AtomicU32,
    /// What the client asks: written before [`submit`](Self::submit).
    pub asked: A,
    answer: Answer<R>,
}

#[derive(Debug)]
#[repr(C, align(64))] // The word first: it and a small record share a cache line.
struct Answer<R> {
    word: WaitWord,
    record: SharedCell<R>,
}

// SAFETY: the record is reached only by the side that the words name as owner (each accessor's
// contract), and ownership moves with release/acquire changes of the words.
unsafe impl<R: Send, A: Sync> Sync for SlotState<R, A> {}

impl<R, A: Default> SlotState<R, A> {
    /// A free slot.
    pub fn new(record: R) -> Self {
        SlotState {
            turn: AtomicU32::new(IDLE),
            asked: A::default(),
            answer: Answer { word: WaitWord::new(PENDING), record: SharedCell::new(record) },
        }
    }
}

impl<R, A> SlotState<R, A> {
    /// The client hands the request over. The caller then puts it in the ring.
    ///
    /// # Panics
    /// If it is in a ring already.
    #[inline]
    pub fn submit(&self) {
        // Relaxed: it came with the slot's index.
        let turn = self.turn.load(Ordering::Relaxed);
        assert!(turn == IDLE || turn == TAKEN, "slot state: submitted in state {turn}");
        // Relaxed: published by the turn.
        self.answer.word.atomic().store(PENDING, Ordering::Relaxed);
        // Release, with the acquire in `take`: what the client wrote comes with it.
        self.turn.store(QUEUED, Ordering::Release);
    }

    /// A worker takes a request that it popped. `false`: the client gave it up; the worker calls
    /// [`recycle_abandoned`](Self::recycle_abandoned).
    #[inline]
    pub fn take(&self) -> bool {
        // Acquire on both outcomes: what the client wrote, or that it is through with the slot.
        let turn = &self.turn;
        turn.compare_exchange(QUEUED, TAKEN, Ordering::Acquire, Ordering::Acquire).is_ok()
    }

    /// The worker frees a slot whose client gave up before it ran. The caller puts it on the free
    /// list.
    ///
    /// # Panics
    /// If its client did not.
    pub fn recycle_abandoned(&self) {
        assert!(self.is_abandoned(), "slot state: recycled though nobody gave it up");
        // Relaxed: it goes with the slot's index.
        self.turn.store(IDLE, Ordering::Relaxed);
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

    /// The client gives the request up.
    pub fn abandon(&self) -> Abandon {
        if self.abandon_queued() {
            return Abandon::Queued;
        }
        let word = self.answer.word.atomic();
        let mut seen = word.load(Ordering::Acquire);
        while seen != DONE {
            // Release, with the acquire in `complete`: this side is through with the slot. Acquire on
            // failure: the answer is there.
            match word.compare_exchange(seen, ORPHANED, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return Abandon::Running,
                Err(now) => seen = now,
            }
        }
        Abandon::Done
    }

    /// The client gives the request up only if it has not begun to run.
    pub fn abandon_queued(&self) -> bool {
        // Release, with the acquire in `take`: this side is through with the slot.
        let turn = &self.turn;
        turn.compare_exchange(QUEUED, ABANDONED, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Whether the answer is there.
    #[inline]
    pub fn is_done(&self) -> bool {
        // Acquire: the answer is visible with it. Partner: the swap in `complete`.
        self.answer.word.atomic().load(Ordering::Acquire) == DONE
    }

    /// Whether its client gave it up before it ran.
    pub fn is_abandoned(&self) -> bool {
        self.turn.load(Ordering::Relaxed) == ABANDONED
    }

    /// Spins up to `spins` turns for the answer.
    pub fn spin_done(&self, spins: u32) -> bool {
        for _ in 0..spins {
            if self.is_done() {
                return true;
            }
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
        prefetch_for_write(&self.turn);
        prefetch_for_write(&self.answer);
    }

    /// Asks for the line that taking it reads and writes. The answer's is left to the client, who may
    /// be polling, until [`prefetch_to_complete`](Self::prefetch_to_complete).
    #[inline]
    pub fn prefetch_to_take(&self) {
        prefetch_for_write(&self.turn);
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
