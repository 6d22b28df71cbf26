//! The allocator that proves the no-allocation contract.
//!
//! [`CountingAllocator`] passes every call to the system allocator and counts those made by
//! threads that declared themselves hot (workers and I/O, once the runtime is ready). The
//! `corelane` binary installs it; a Rust program that links the crate does so only if it wants the
//! count:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: corelane::sys::alloc::CountingAllocator =
//!     corelane::sys::alloc::CountingAllocator;
//! ```

use super::pool;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

thread_local! {
    // Const-initialised and without a destructor: reading it never allocates.
    static HOT: Cell<bool> = const { Cell::new(false) };
}

static HOT_CALLS: AtomicU64 = AtomicU64::new(0);
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// The system allocator, with calls from hot threads counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

#[inline(always)]
fn count() {
    if HOT.get() {
        // Relaxed: a statistic, paired with nothing.
        HOT_CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: a call goes to the calling thread's pool, whose blocks are at least as large and aligned
// as the layout asks, or to `System` unchanged; a block is freed where it came from. Counting touches
// only an atomic and a const-initialised thread local, neither of which allocates.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(block) = pool::allocate(&layout) {
            return block;
        }
        count();
        // SAFETY: the caller's promise for `alloc` is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if pool::free(ptr, &layout) {
            return;
        }
        count();
        // SAFETY: the caller's promise for `dealloc` is passed on; the block is not from a pool.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(block) = pool::allocate(&layout) {
            // SAFETY: the block is at least `layout.size()` long.
            unsafe { block.write_bytes(0, layout.size()) };
            return block;
        }
        count();
        // SAFETY: the caller's promise for `alloc_zeroed` is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if pool::owns(ptr) {
            // SAFETY: the new size is the caller's promise for `realloc`; both blocks are at least
            // as long as what is copied, and distinct.
            unsafe {
                let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
                if !new.is_null() {
                    new.copy_from_nonoverlapping(ptr, layout.size().min(new_size));
                    self.dealloc(ptr, layout);
                }
                return new;
            }
        }
        count();
        // SAFETY: the caller's promise for `realloc` is passed on; the block is the system's.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// Declares the calling thread hot (or not): its allocator calls are counted from now on.
pub fn set_hot(hot: bool) {
    HOT.set(hot);
}

/// Allocator calls (allocations, reallocations, frees) made by hot threads so far.
pub fn hot_calls() -> u64 {
    HOT_CALLS.load(Ordering::Relaxed)
}

/// Whether [`CountingAllocator`] is the process's allocator; if not, [`hot_calls`] says nothing.
pub fn installed() -> bool {
    if INSTALLED.load(Ordering::Relaxed) {
        return true;
    }
    // One probe: an allocation on a thread marked hot is seen if and only if it is installed.
    let before = hot_calls();
    let was = HOT.replace(true);
    drop(std::hint::black_box(Box::new(0u8)));
    HOT.set(was);
    let seen = hot_calls() != before;
    if seen {
        // The probe's own two calls are not the request path's.
        HOT_CALLS.fetch_sub(2, Ordering::Relaxed);
        INSTALLED.store(true, Ordering::Relaxed);
    }
    seen
}
