//! Blocks that come back from other threads: an intrusive stack with many givers and one taker, who
//! takes all at once. So a block is never taken off under a giver that still looks at it, and an old
//! head that equals the present one by chance does no harm: what lies under a giver's block is then the
//! present head all the same.

use crate::sys::sync::{AtomicPtr, Ordering};
use core::ptr::null_mut;

/// The stack; it knows nothing of what it links.
#[derive(Debug)]
pub struct Returns<T> {
    head: AtomicPtr<T>,
}

impl<T> Default for Returns<T> {
    fn default() -> Self {
        Returns { head: AtomicPtr::new(null_mut()) }
    }
}

impl<T> Returns<T> {
    /// Gives `block`. `link` writes into it what lies under it (null for nothing), perhaps several
    /// times; the block is the caller's until this returns.
    pub fn give(&self, block: *mut T, mut link: impl FnMut(*mut T)) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link(head);
            // Release, with the acquire in `take_all`: the link comes with the block.
            match self.head.compare_exchange_weak(head, block, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes everything: the last block given, from which the links lead to the others.
    pub fn take_all(&self) -> *mut T {
        // Acquire, with the release in `give`; each giver's exchange continues the release sequence of
        // the one before.
        self.head.swap(null_mut(), Ordering::Acquire)
    }
}
