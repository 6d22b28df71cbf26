//! Who keeps a model's queue in memory, without a count that changes with each request.
//!
//! *Owners* may lease slots; they are counted, and are cloned and dropped rarely. A request, from its
//! lease until its slot is given back, keeps the queue too, since it may outlive them; but it counts
//! nothing while there are owners, for a slot that is not in the free list says as much. The last owner
//! *retires* the list: it finds out how many slots are free, which no one can lease any more, and those
//! that are away count themselves off as they come back. Whoever counts the last one off, owner or
//! request, is the last to touch the queue, and frees it.
//!
//! Retiring the list and giving a slot back are read-modify-write operations on the list's one word, so
//! a slot is either found in the list or told that it comes too late, never both, never neither.

use super::stack::IndexStack;
use crate::sys::sync::{AtomicU64, Ordering};

/// The free slots, the owners, and what is away once there are none.
#[derive(Debug)]
pub struct Keep {
    free: IndexStack,
    owners: Count,
    /// All slots, and 1 for the owners together, less those that were counted off.
    away: AtomicU64,
}

/// On cache lines of its own: beside it is what every request reads.
#[derive(Debug)]
#[repr(align(128))]
struct Count(AtomicU64);

impl Keep {
    /// `slots` free slots, and one owner.
    pub fn new(slots: usize) -> Self {
        let free = IndexStack::new(slots);
        for index in (0..slots as u32).rev() {
            free.push(index);
        }
        let away = AtomicU64::new(slots as u64 + 1);
        Keep { free, owners: Count(AtomicU64::new(1)), away }
    }

    /// Whether a slot is free: a hint.
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free slot. Only for an owner.
    #[inline]
    pub fn lease(&self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives back a slot that was leased. `true`: nobody else has anything of the queue any more, and
    /// the caller frees it; `false`: the caller does not touch it again, unless it holds something else
    /// of it.
    #[inline]
    #[must_use]
    pub fn give_back(&self, index: u32) -> bool {
        !self.free.push(index) && self.count_off(1)
    }

    /// There is one more owner; an owner says so.
    pub fn add_owner(&self) {
        // Relaxed: the new owner has the queue from one that is there, as with `Arc`.
        self.owners.0.fetch_add(1, Ordering::Relaxed);
    }

    /// An owner is gone. What is returned is as with [`give_back`](Self::give_back).
    #[must_use]
    pub fn drop_owner(&self) -> bool {
        // Release: what this owner did with the list, its leases above all. Acquire: what the others
        // did, so that none of it comes after the list is retired.
        if self.owners.0.fetch_sub(1, Ordering::AcqRel) != 1 {
            return false;
        }
        self.count_off(self.free.retire() + 1)
    }

    #[cold]
    fn count_off(&self, n: u64) -> bool {
        // Release: what the caller did with the queue. Acquire, for the last: what all others did.
        self.away.fetch_sub(n, Ordering::AcqRel) == n
    }
}
