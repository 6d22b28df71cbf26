//! Pointers to a model's queue: of owners, and of those who have a slot. [`keep`](super::keep) says when
//! the queue is freed.

use super::ModelQueue;
use super::refusal::Refusal;
use super::slot::Lease;
use crate::units::Rows;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

/// A model's queue, owned together with others: whoever may lease slots, and the workers. It stays in
/// memory until the last owner is gone and the last slot is given back.
pub struct SharedQueue(NonNull<ModelQueue>);

// SAFETY: it gives shared access to a `ModelQueue`, which is `Sync`, and the last to let go of it, on
// whatever thread, drops it, which is `Send`: the same as with `Arc`.
unsafe impl Send for SharedQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedQueue {}
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<ModelQueue>();
};

impl SharedQueue {
    pub(super) fn new(queue: ModelQueue) -> SharedQueue {
        SharedQueue(NonNull::from(Box::leak(Box::new(queue))))
    }

    /// Takes a free slot for a request of `rows` rows.
    ///
    /// # Errors
    /// Wrong number of rows, no free slot, or shutting down.
    #[inline]
    pub fn lease(&self, rows: Rows) -> Result<Lease, Refusal> {
        let (index, bytes) = self.lease_slot(rows)?;
        Ok(Lease::new(Held(self.0), index, rows, bytes))
    }
}

impl Deref for SharedQueue {
    type Target = ModelQueue;
    #[inline(always)]
    fn deref(&self) -> &ModelQueue {
        // SAFETY: made from a box in `new`, and not freed while this owner is counted.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for SharedQueue {
    fn clone(&self) -> Self {
        self.keep.add_owner();
        SharedQueue(self.0)
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        if self.keep.drop_owner() {
            // SAFETY: from a box in `new`; it was the last that anybody had of it, told once.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

impl fmt::Debug for SharedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The queue, for who has one of its slots: see [`keep`](super::keep).
#[derive(Clone, Copy)]
pub(super) struct Held(NonNull<ModelQueue>);

// SAFETY: as with `SharedQueue`.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl Held {
    /// Gives the slot back, after which the queue may be gone.
    ///
    /// # Safety
    /// The slot is the caller's, and away; the caller does not use `self`, or a copy, any more.
    #[inline]
    pub unsafe fn give_back(self, index: u32) {
        if self.keep.give_back(index) {
            // SAFETY: from a box in `new`; it was the last that anybody had of it, told once.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

impl Deref for Held {
    type Target = ModelQueue;
    #[inline(always)]
    fn deref(&self) -> &ModelQueue {
        // SAFETY: not freed while a slot is away (made in `lease`, used until that slot is given back).
        unsafe { self.0.as_ref() }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
