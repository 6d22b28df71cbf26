//! The one door to atomics, cells and fences: std's, or loom's when the lock-free code is model
//! checked (`--cfg loom`). Nothing else in the crate names `core::sync::atomic` on shared state.

#[cfg(loom)]
pub use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};

/// A cell whose contents are reached through a pointer, so that loom can watch the accesses.
#[derive(Debug)]
pub struct SharedCell<T> {
    #[cfg(loom)]
    inner: loom::cell::UnsafeCell<T>,
    #[cfg(not(loom))]
    inner: core::cell::UnsafeCell<T>,
}

impl<T> SharedCell<T> {
    /// A cell that holds `value`.
    pub fn new(value: T) -> Self {
        #[cfg(loom)]
        let inner = loom::cell::UnsafeCell::new(value);
        #[cfg(not(loom))]
        let inner = core::cell::UnsafeCell::new(value);
        SharedCell { inner }
    }

    /// Runs `f` with a pointer for reading. The caller keeps the aliasing rules.
    #[inline(always)]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        #[cfg(loom)]
        return self.inner.with(f);
        #[cfg(not(loom))]
        f(self.inner.get())
    }

    /// Runs `f` with a pointer for writing. The caller keeps the aliasing rules.
    #[inline(always)]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        #[cfg(loom)]
        return self.inner.with_mut(f);
        #[cfg(not(loom))]
        f(self.inner.get())
    }
}

/// loom's fence, unless [`mutant::without_fences`] runs.
#[cfg(loom)]
pub fn fence(ordering: Ordering) {
    if !mutant::fences_removed() {
        loom::sync::atomic::fence(ordering);
    }
}

/// The models' own test: the same code with its fences taken out must fail its models.
#[cfg(loom)]
pub mod mutant {
    use std::cell::Cell;

    std::thread_local! {
        // loom runs all threads of a model on the operating system's thread that called it.
        static REMOVED: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn fences_removed() -> bool {
        REMOVED.get()
    }

    /// Runs `f`, in which every [`fence`](super::fence) does nothing.
    pub fn without_fences(f: impl FnOnce()) {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                REMOVED.set(false);
            }
        }
        REMOVED.set(true);
        let _restore = Restore;
        f();
    }
}

/// One turn of a spin loop: a pause for the core, a yield for loom's scheduler.
#[inline(always)]
pub fn spin_turn() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}
