//! One value for another, between a thread that has time and one that has none: how a worker comes to
//! the next version of a model, and gives the last one back to be freed elsewhere.
//!
//! ```text
//! EMPTY -> FILLING -> OFFERED -> TRADING -> RETURNED -> EMPTYING -> EMPTY
//!                        |                                 ^
//!                        +---------------------------------+   (withdrawn before it was taken)
//! ```
//!
//! The value lies in the cell itself, so that a trade neither allocates nor frees. Each change into a
//! state that touches the cell is a compare-and-swap, whose winner has the cell to itself until it
//! stores the next state; nobody waits for anybody.

use crate::sys::sync::{AtomicU32, Ordering, SharedCell};

const EMPTY: u32 = 0;
const FILLING: u32 = 1;
const OFFERED: u32 = 2;
const TRADING: u32 = 3;
const RETURNED: u32 = 4;
const EMPTYING: u32 = 5;

/// The cell.
#[derive(Debug)]
#[repr(align(128))]
pub struct Exchange<T> {
    state: AtomicU32,
    cell: SharedCell<Option<T>>,
}

// SAFETY: the cell is reached only between a compare-and-swap into FILLING, TRADING or EMPTYING and the
// store that ends it, by the thread that won it; the value itself moves between threads, hence `Send`.
unsafe impl<T: Send> Sync for Exchange<T> {}

impl<T> Default for Exchange<T> {
    fn default() -> Self {
        Exchange { state: AtomicU32::new(EMPTY), cell: SharedCell::new(None) }
    }
}

impl<T> Exchange<T> {
    /// Reaches the cell, if the state is `from`, and leaves it in `to`; `through` is the state meanwhile.
    fn pass<R>(
        &self,
        (from, through, to): (u32, u32, u32),
        f: impl FnOnce(&mut Option<T>) -> R,
    ) -> Result<R, u32> {
        // Acquire, with the release below: what the last one left in the cell comes with it.
        self.state.compare_exchange(from, through, Ordering::Acquire, Ordering::Relaxed)?;
        // SAFETY: the exchange was won, and nobody else's succeeds until the store below.
        let result = self.cell.with_mut(|cell| f(unsafe { &mut *cell }));
        self.state.store(to, Ordering::Release);
        Ok(result)
    }

    /// Offers a value. The caller then wakes who is to take it.
    ///
    /// # Errors
    /// The last one was not taken back yet: the value is returned.
    pub fn offer(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        let _ = self.pass((EMPTY, FILLING, OFFERED), |cell| *cell = value.take());
        value.map_or(Ok(()), Err)
    }

    /// Takes what is offered and leaves what `mine` was; `false` if nothing is offered. Neither
    /// allocates, nor frees, nor waits.
    #[inline]
    pub fn trade(&self, mine: &mut T) -> bool {
        if self.state.load(Ordering::Relaxed) != OFFERED {
            return false;
        }
        let swapped = self.pass((OFFERED, TRADING, RETURNED), |cell| {
            if let Some(offered) = cell {
                core::mem::swap(offered, mine);
            }
        });
        swapped.is_ok()
    }

    /// What was given for the last offer; `None` if it is not taken yet, or there was none.
    pub fn take_back(&self) -> Option<T> {
        self.pass((RETURNED, EMPTYING, EMPTY), Option::take).ok().flatten()
    }

    /// Whether a value can be offered: the last one was taken back, or withdrawn.
    pub fn is_empty(&self) -> bool {
        // Only who offers leaves this state.
        self.state.load(Ordering::Relaxed) == EMPTY
    }

    /// The last offer itself, if it was not taken: then it never will be.
    pub fn withdraw(&self) -> Option<T> {
        self.pass((OFFERED, EMPTYING, EMPTY), Option::take).ok().flatten()
    }
}
