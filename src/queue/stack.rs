//! A bounded multi-producer multi-consumer LIFO of the numbers below its capacity, each in it at most
//! once, lock-free: the free slots of a model. Last in, first out, so that a light load uses few slots
//! again and again, whose buffers are still in the caches.
//!
//! The head is one word: `changes << 32 | value + 1`, or `changes << 32` when empty. Every change counts
//! up, so that a head that was read long ago is not mistaken for the present one: a thread would have
//! to sleep between its read and its exchange through 2^32 changes. *Lock-free* as in
//! [`ring`](super::ring): a thread that is stopped anywhere keeps no other from finishing.

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

/// A head after `seen`, with `top` (value + 1, or 0) on top.
#[inline(always)]
fn after(seen: u64, top: u64) -> u64 {
    ((seen >> 32).wrapping_add(1) << 32) | top
}

impl IndexStack {
    /// An empty stack for values below `capacity`.
    pub fn new(capacity: usize) -> Self {
        IndexStack {
            head: Head(AtomicU64::new(0)),
            under: (0..capacity).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Puts `value` on top; it must not be in the stack.
    ///
    /// # Panics
    /// If it is not below the capacity.
    #[inline]
    pub fn push(&self, value: u32) {
        let mut seen = self.head.0.load(Ordering::Relaxed);
        loop {
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
                Ok(_) => return,
                Err(now) => seen = now,
            }
            spin_turn();
        }
    }

    /// Whether nothing is in it. Relaxed: a hint, which is old when it is returned.
    pub fn is_empty(&self) -> bool {
        self.head.0.load(Ordering::Relaxed) & LOW == 0
    }

    /// Takes the top.
    #[inline]
    pub fn pop(&self) -> Option<u32> {
        // Acquire, with the release in `push`.
        let mut seen = self.head.0.load(Ordering::Acquire);
        loop {
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
}
