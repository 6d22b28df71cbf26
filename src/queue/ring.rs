//! A bounded multi-producer multi-consumer FIFO of small numbers, lock-free.
//!
//! *Lock-free* here means: a thread that is stopped anywhere inside [`push`](IndexRing::push) or
//! [`pop_if`](IndexRing::pop_if) never keeps another thread from finishing its own call. That is why
//! a cell holds its value and its turn in **one** word, changed by one compare-and-swap: the
//! operation takes effect there, and the head or tail counter that follows is only a hint that
//! anyone may advance. (A queue whose producers first claim a position and then fill it, such as
//! the usual sequence-number design, is not lock-free: a producer stopped in between blocks all
//! consumers.)
//!
//! A cell word is `turn << 32 | value + 1`, or `turn << 32` when empty. Position `p` uses cell
//! `p % capacity` in turn `p / capacity`. Turns are 32 bits: a thread would have to sleep inside a
//! call through 2^32 rounds of the ring to mistake one turn for another.
//!
//! Whoever pushed a value may [`withdraw`](IndexRing::withdraw) it: by an exchange on the same word, so
//! that it is popped or withdrawn, never both. The cell stays used until a consumer comes by.
//!
//! Orderings: the cell's compare-and-swap in `push` releases, and `pop_if` acquires with its look at the
//! cell, so what a producer wrote before `push` is seen by the consumer that got the value. The counters
//! are advanced with release and read with acquire, so that a thread that sees a position sees the
//! cells before it in a state no older than that position. The compare-and-swap in `pop_if` releases to
//! the look at the cell in `push`, so that a producer knows of the head what the consumer knew whose
//! place it takes: a worker that is about to sleep, and is ordered after the producer, then starts from
//! a head at most a round behind the value.

use crate::sys::prefetch::prefetch_for_write;
use crate::sys::sync::{AtomicU64, Ordering, spin_turn};

/// The FIFO. Values are below [`IndexRing::VALUE_END`].
#[derive(Debug)]
pub struct IndexRing {
    cells: Box<[AtomicU64]>,
    shift: u32,
    head: Padded,
    tail: Padded,
}

/// A counter on cache lines of its own: producers and consumers don't invalidate each other's.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(AtomicU64);

const LOW: u64 = u32::MAX as u64;
/// The lower half of a cell whose value was withdrawn.
const WITHDRAWN: u64 = LOW;

#[inline(always)]
fn word(turn: u64, value: Option<u32>) -> u64 {
    (turn << 32) | value.map_or(0, |v| v as u64 + 1)
}

/// Where a value was put. It names one push in 2^32 rounds of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u64);

impl IndexRing {
    /// Values are below this.
    pub const VALUE_END: u32 = WITHDRAWN as u32 - 1;

    /// A ring for at least `capacity` values (rounded up to a power of two, at least 2).
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.next_power_of_two().max(2);
        IndexRing {
            cells: (0..capacity).map(|_| AtomicU64::new(word(0, None))).collect(),
            shift: capacity.trailing_zeros(),
            head: Padded(AtomicU64::new(0)),
            tail: Padded(AtomicU64::new(0)),
        }
    }

    /// How many values fit.
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    #[inline(always)]
    fn cell(&self, position: u64) -> (&AtomicU64, u64) {
        (&self.cells[(position as usize) & (self.cells.len() - 1)], (position >> self.shift) & LOW)
    }

    /// Appends `value`, and says where; gives it back if the ring is full.
    #[inline]
    pub fn push(&self, value: u32) -> Result<Place, u32> {
        debug_assert!(value < Self::VALUE_END);
        loop {
            // Acquire, with the release of whoever advanced it.
            let tail = self.tail.0.load(Ordering::Acquire);
            let (cell, turn) = self.cell(tail);
            // Acquire, with the release of the consumer's exchange on this cell.
            let seen = cell.load(Ordering::Acquire);
            if seen == word(turn, None) {
                // Release, with the acquire of the consumer's look at this cell.
                let taken = cell.compare_exchange(
                    seen,
                    word(turn, Some(value)),
                    Ordering::Release,
                    Ordering::Relaxed,
                );
                if taken.is_ok() {
                    advance(&self.tail.0, tail);
                    return Ok(Place(tail));
                }
            } else if (seen >> 32) == (turn.wrapping_sub(1) & LOW) {
                // The value of a round before was there, so nobody had got past this tail: full, at this
                // look. If it is an old one, nobody who popped since was before this call.
                return Err(value);
            } else {
                // Position `tail` is taken already: help, then look at the next one.
                advance(&self.tail.0, tail);
            }
            spin_turn();
        }
    }

    /// Takes back `value`, which the caller pushed and which was put at `place`. `false`: somebody
    /// popped it.
    pub fn withdraw(&self, place: Place, value: u32) -> bool {
        let (cell, turn) = self.cell(place.0);
        // Relaxed: nothing is passed on. What the value stands for was the caller's before it was pushed,
        // nobody else has reached it since, and nobody will through this cell.
        cell.compare_exchange(
            word(turn, Some(value)),
            (turn << 32) | WITHDRAWN,
            Ordering::Relaxed,
            Ordering::Relaxed,
        )
        .is_ok()
    }

    /// Frees the cells of withdrawn values that nothing older is before.
    #[inline]
    pub fn sweep(&self) {
        self.pop_if(|_| false);
    }

    /// Removes the oldest value.
    #[inline]
    pub fn pop(&self) -> Option<u32> {
        self.pop_if(|_| true)
    }

    /// Removes the oldest value if `take` says yes to it; else leaves everything as it is.
    ///
    /// `take` may be asked about a value that another consumer gets first; its answer then has no
    /// effect.
    #[inline]
    pub fn pop_if(&self, mut take: impl FnMut(u32) -> bool) -> Option<u32> {
        loop {
            let head = self.head.0.load(Ordering::Acquire);
            let (cell, turn) = self.cell(head);
            // Acquire, with the release of the producer's exchange on this cell.
            let seen = cell.load(Ordering::Acquire);
            if (seen >> 32) == turn && seen & LOW != 0 {
                let withdrawn = seen & LOW == WITHDRAWN;
                let value = ((seen & LOW) - 1) as u32;
                if !withdrawn && !take(value) {
                    return None;
                }
                // Release, with the acquire of the producer's look at this cell a round later. No acquire:
                // only one push in 2^32 rounds writes this word, and the look above has it from there.
                let got = cell.compare_exchange(
                    seen,
                    word((turn + 1) & LOW, None),
                    Ordering::Release,
                    Ordering::Relaxed,
                );
                if got.is_ok() {
                    advance(&self.head.0, head);
                    if withdrawn {
                        continue;
                    }
                    return Some(value);
                }
            } else if seen == word(turn, None) {
                // Nothing was ever put at this position, so nothing is behind it either.
                return None;
            } else {
                advance(&self.head.0, head);
            }
            spin_turn();
        }
    }

    /// Changes with every value that is pushed, once that value can be popped.
    #[inline]
    pub fn pushed(&self) -> u64 {
        // Acquire, with the release of whoever advanced it.
        self.tail.0.load(Ordering::Acquire)
    }

    /// Asks for the head's cache line, to be changed by a [`pop_if`](Self::pop_if) that follows.
    #[inline]
    pub fn prefetch_head(&self) {
        let (cell, _) = self.cell(self.head.0.load(Ordering::Relaxed));
        prefetch_for_write(cell);
    }

    /// Asks for the tail's cache line, to be changed by a [`push`](Self::push) that follows.
    #[inline]
    pub fn prefetch_tail(&self) {
        let (cell, _) = self.cell(self.tail.0.load(Ordering::Relaxed));
        prefetch_for_write(cell);
    }

    /// The oldest value that waits, as [`peek_each`](Self::peek_each) sees it.
    #[inline(always)]
    pub fn peek(&self) -> Option<u32> {
        let (cell, turn) = self.cell(self.head.0.load(Ordering::Acquire));
        let seen = cell.load(Ordering::Acquire);
        if seen == word(turn, None) {
            return None;
        }
        if (seen >> 32) == turn && seen & LOW != WITHDRAWN {
            return Some(((seen & LOW) - 1) as u32);
        }
        self.peek_further()
    }

    /// The same where the head lags, or its value was withdrawn.
    #[cold]
    fn peek_further(&self) -> Option<u32> {
        let mut first = None;
        self.peek_each(|value| {
            first = Some(value);
            false
        });
        first
    }

    /// Calls `f` with the values that wait, oldest first, until it says no. A snapshot: values may
    /// be gone, or come, meanwhile.
    #[inline]
    pub fn peek_each(&self, mut f: impl FnMut(u32) -> bool) {
        let head = self.head.0.load(Ordering::Acquire);
        // One more than the capacity: the head counter may lag behind the head by one.
        for position in head..=head + self.cells.len() as u64 {
            let (cell, turn) = self.cell(position);
            let seen = cell.load(Ordering::Acquire);
            if seen == word(turn, None) {
                return;
            }
            // Another turn: taken meanwhile.
            let waits = (seen >> 32) == turn && seen & LOW != WITHDRAWN;
            if waits && !f(((seen & LOW) - 1) as u32) {
                return;
            }
        }
    }

    /// Whether nothing waits, at some instant during the call.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.peek().is_none()
    }
}

/// Moves a counter past `from` unless someone did.
#[inline(always)]
fn advance(counter: &AtomicU64, from: u64) {
    // Release, with the acquire loads of the counter. A failure means that another thread helped.
    let _ = counter.compare_exchange(from, from + 1, Ordering::Release, Ordering::Relaxed);
}
