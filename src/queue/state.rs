//! The life of a slot: who owns its record and its buffers, and the one word that says so.
//!
//! ```text
//! FREE -> FILLING -> QUEUED -> RUNNING -> DONE -> FREE
//!                      |          |
//!                      v          v
//!                  ABANDONED   ORPHANED      (the client gave up; the worker recycles)
//! ```
//!
//! FREE and FILLING and DONE belong to the client's side, RUNNING and ORPHANED to the worker. While
//! QUEUED nobody touches record or buffers. The client's cancel and the worker's take race on one
//! compare-and-swap out of QUEUED, so a request ends exactly once.

use crate::sys::futex::WaitWord;
use crate::sys::sync::{AtomicU32, Ordering, SharedCell, fence, spin_turn};
use crate::units::Nanos;

const FREE: u32 = 0;
const FILLING: u32 = 1;
const QUEUED: u32 = 2;
const RUNNING: u32 = 3;
const DONE: u32 = 4;
const ABANDONED: u32 = 5;
const ORPHANED: u32 = 6;

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

/// The word, and the record that it guards.
#[derive(Debug)]
#[repr(C)] // The word first: it and a small record share a cache line.
pub struct SlotState<R> {
    word: WaitWord,
    waiting: AtomicU32,
    record: SharedCell<R>,
}

// SAFETY: the record is reached only by the side that the word names as owner (each accessor's
// contract), and ownership moves with release/acquire transitions of the word.
unsafe impl<R: Send> Sync for SlotState<R> {}

impl<R> SlotState<R> {
    /// A free slot.
    pub fn new(record: R) -> Self {
        SlotState {
            word: WaitWord::new(FREE),
            waiting: AtomicU32::new(0),
            record: SharedCell::new(record),
        }
    }

    fn set(&self, from: u32, to: u32) -> bool {
        // AcqRel: whoever takes ownership sees what the former owner wrote, and passes on its own.
        self.word.atomic().compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn force(&self, from: u32, to: u32) {
        let moved = self.set(from, to);
        assert!(moved, "slot state: expected {from}, found another owner");
    }

    /// The client takes a slot off the free list.
    pub fn lease(&self) {
        self.force(FREE, FILLING);
    }

    /// The client gives an unsubmitted slot back. The caller puts it on the free list.
    pub fn release_unsubmitted(&self) {
        self.force(FILLING, FREE);
    }

    /// The client hands the request over. The caller then puts it in the ring.
    pub fn submit(&self) {
        self.waiting.store(0, Ordering::Relaxed);
        self.force(FILLING, QUEUED);
    }

    /// A worker takes a request that it popped. `false`: the client gave it up; the worker calls
    /// [`recycle_abandoned`](Self::recycle_abandoned).
    pub fn take(&self) -> bool {
        self.set(QUEUED, RUNNING)
    }

    /// The worker frees a slot whose client gave up before it ran. The caller puts it on the free
    /// list.
    pub fn recycle_abandoned(&self) {
        self.force(ABANDONED, FREE);
    }

    /// The worker is done. `true`: the answer is the client's, who was woken if it slept.
    /// `false`: the client gave up meanwhile; the slot is free, and the caller puts it on the free
    /// list.
    pub fn complete(&self) -> bool {
        if self.set(RUNNING, DONE) {
            // Partner: the fence in `wait_done`. Either the waiter sees DONE or it is woken.
            fence(Ordering::SeqCst);
            if self.waiting.load(Ordering::Relaxed) != 0 {
                self.word.wake(1);
            }
            return true;
        }
        self.force(ORPHANED, FREE);
        false
    }

    /// The client gives the request up.
    pub fn abandon(&self) -> Abandon {
        if self.set(QUEUED, ABANDONED) {
            Abandon::Queued
        } else if self.set(RUNNING, ORPHANED) {
            Abandon::Running
        } else {
            debug_assert!(self.is_done());
            Abandon::Done
        }
    }

    /// The client gives the request up only if it has not begun to run.
    pub fn abandon_queued(&self) -> bool {
        self.set(QUEUED, ABANDONED)
    }

    /// The client is finished with the answer. The caller puts the slot on the free list.
    pub fn release_done(&self) {
        self.force(DONE, FREE);
    }

    /// Whether the answer is there.
    #[inline]
    pub fn is_done(&self) -> bool {
        // Acquire: the answer is visible with it. Partner: the exchange in `complete`.
        self.word.atomic().load(Ordering::Acquire) == DONE
    }

    /// Whether its client gave it up before it ran.
    pub fn is_abandoned(&self) -> bool {
        self.word.atomic().load(Ordering::Relaxed) == ABANDONED
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
        self.waiting.store(1, Ordering::Relaxed);
        // Partner: the fence in `complete`.
        fence(Ordering::SeqCst);
        let seen = self.word.atomic().load(Ordering::Acquire);
        if seen == DONE {
            return true;
        }
        self.word.wait(seen, timeout);
        self.is_done()
    }

    /// The record, for the present owner.
    ///
    /// # Safety
    /// The caller's side owns the slot in its present state (see the module), and makes no second
    /// reference while `f` runs.
    #[inline]
    pub unsafe fn record<T>(&self, f: impl FnOnce(&mut R) -> T) -> T {
        // SAFETY: exclusive by the caller's promise.
        self.record.with_mut(|r| f(unsafe { &mut *r }))
    }
}
