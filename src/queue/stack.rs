//! A bounded multi-producer multi-consumer LIFO of the numbers below its capacity, each in it at most
//! once, lock-free: the free slots of a model. Last in, first out, so that a light load uses few slots
//! again and again, whose buffers are still in the caches.
//!
//! The head is one word: `changes << 32 | value + 1`, or `changes << 32` when empty. Every change counts
//! up, so that a head that was read long ago is not mistaken for the present one: a thread would have
//! to sleep between its read and its exchange through 2^32 changes. *Lock-free* as in
//! [`ring`](super::ring): a thread that is stopped anywhere keeps no other from finishing.
//!
//! A bit of that word says that the stack is [retired](IndexStack::retire): it stays as it is.

use crate::sys::sync::{AtomicU32, AtomicU64, Ordering, spin_turn};

/// The stack. Values are below its capacity.
#[derive(Debug)]
pub struct IndexStack {
    head: Head,
    /// What lies under each value, as the head's lower half.
    under: Box<[AtomicU32]>,
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Head(AtomicU64);

const LOW: u64 = u32::MAX as u64;
/// Nothing is pushed or popped any more.
const RETIRED: u64 = 1 << 31;

/// A head after `seen`, with `top` (value + 1, or 0) on top.
#[inline(always)]
fn after(seen: u64, top: u64) -> u64 {
    ((seen >> 32).wrapping_add(1) << 32) | top
}

impl IndexStack {
    /// An empty stack for values below `capacity`.
    ///
    /// # Panics
    /// If that is over 2^31 - 1.
    pub fn new(capacity: usize) -> Self {
        assert!((capacity as u64) < RETIRED);
        IndexStack {
            head: Head(AtomicU64::new(0)),
            under: (0..capacity).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Puts `value` on top; it must not be in the stack. `false`: the stack is retired, and the value is
    /// not in it.
    ///
    /// # Panics
    /// If it is not below the capacity.
    #[inline]
    pub fn push(&self, value: u32) -> bool {
        let mut seen = self.head.0.load(Ordering::Relaxed);
        loop {
            // Relaxed: that it is retired is all that is to be known.
            if seen & RETIRED != 0 {
                return false;
            }
            // Relaxed: published by the exchange below.
            self.under[value as usize].store((seen & LOW) as u32, Ordering::Relaxed);
            // Release, with the acquire in `pop`: what lies under it comes with it, and whatever its
            // former owner wrote.
            match self.head.0.compare_exchange_weak(
                seen,
                after(seen, value as u64 + 1),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
            spin_turn();
        }
    }

    /// Whether nothing is in it. Relaxed: a hint, which is old when it is returned.
    pub fn is_empty(&self) -> bool {
        self.head.0.load(Ordering::Relaxed) & LOW == 0
    }

    /// Takes the top. `None`: it is empty, or retired.
    #[inline]
    pub fn pop(&self) -> Option<u32> {
        // Acquire, with the release in `push`.
        let mut seen = self.head.0.load(Ordering::Acquire);
        loop {
            if seen & RETIRED != 0 {
                return None;
            }
            let value = (seen & LOW).checked_sub(1)? as u32;
            // May belong to a later push of the same value; then the exchange fails, for the head has
            // changed.
            let under = self.under[value as usize].load(Ordering::Relaxed) as u64;
            // Acquire on both outcomes, as above. Release on none: a push that sees this head continues
            // the release sequence of the push before it, since this is a read-modify-write.
            match self.head.0.compare_exchange_weak(
                seen,
                after(seen, under),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(value),
                Err(now) => seen = now,
            }
            spin_turn();
        }
    }

    /// Leaves the stack as it is at this moment, for good. Returns how many values are in it.
    pub fn retire(&self) -> u64 {
        // Acquire, with the release in `push`: what lies under each value. Nobody changes it any more.
        let mut next = self.head.0.fetch_or(RETIRED, Ordering::Acquire) & LOW & !RETIRED;
        let mut count = 0;
        while let Some(value) = next.checked_sub(1) {
            count += 1;
            next = self.under[value as usize].load(Ordering::Relaxed) as u64;
        }
        count
    }
}
