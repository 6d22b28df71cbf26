//! A private heap for one thread: what an operator without a kernel of our own allocates in
//! between comes from here, so that the system allocator is not called on the request path.
//!
//! A pool is one region of address space, reserved when the worker starts; pages are touched as
//! they are first used, at warm-up. Blocks are powers of two, recycled through a free list per
//! size, so a step that allocates the same sizes each time finds its blocks again. While a thread is
//! inside [`Pool::run`], [`CountingAllocator`](super::alloc::CountingAllocator) serves it from the
//! pool; what does not fit goes to the system, and is counted. A block that another thread frees
//! comes back through a lock-free stack.

use crate::limits::WORKERS_MAX;
use crate::sys::returns::Returns;
use crate::sys::sync::{AtomicU64, Ordering};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::Layout;
use std::cell::{Cell, UnsafeCell};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize};

/// Smallest block, in bytes; also every block's least alignment.
const BLOCK_BYTES_MIN: usize = 64;
/// Free lists: 64 B, 128 B ... 2 GiB.
const CLASSES: usize = 26;
/// Largest alignment that a block has beyond its own size.
const ALIGN_MAX: usize = 4096;

thread_local! {
    static ACTIVE: Cell<*const PoolInner> = const { Cell::new(std::ptr::null()) };
}

/// Address ranges of all pools alive, so that a free finds its pool. A slot is free if `start` is 0.
struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    pool: AtomicPtr<PoolInner>,
}

static POOLS: [Entry; WORKERS_MAX] = [const {
    Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0), pool: AtomicPtr::new(null_mut()) }
}; WORKERS_MAX];
/// How many entries may be in use: a free on a process without pools looks at nothing.
static POOLS_USED: AtomicUsize = AtomicUsize::new(0);

struct PoolInner {
    start: *mut u8,
    len: usize,
    /// Touched by the owning thread only.
    local: UnsafeCell<Local>,
    /// Blocks that other threads freed: an intrusive stack.
    returned: Returns<Free>,
    outstanding: AtomicU64,
}

struct Local {
    bump: usize,
    free: [*mut Free; CLASSES],
    missed: u64,
}

/// A free block: the next one, and its own class.
struct Free {
    next: *mut Free,
    class: usize,
}

/// A private heap; it belongs to the thread that has it.
#[derive(Debug)]
pub struct Pool {
    inner: *mut PoolInner,
    entry: usize,
}

// SAFETY: which thread owns the local part is what `ACTIVE` says while `run` borrows the pool exclusively,
// and nothing is remembered of a thread afterwards; whoever moves the pool orders the two threads.
unsafe impl Send for Pool {}

impl std::fmt::Debug for PoolInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PoolInner({} bytes)", self.len)
    }
}

fn class_of(layout: &Layout) -> Option<usize> {
    if layout.align() > ALIGN_MAX {
        return None;
    }
    let size =
        layout.size().max(layout.align()).max(BLOCK_BYTES_MIN).checked_next_power_of_two()?;
    let class = (size.trailing_zeros() - BLOCK_BYTES_MIN.trailing_zeros()) as usize;
    (class < CLASSES).then_some(class)
}

impl Pool {
    /// A pool of `bytes` of address space. `None` if the system has none left, or there are
    /// [`WORKERS_MAX`] pools.
    pub fn new(bytes: usize) -> Option<Pool> {
        let len = bytes.next_multiple_of(ALIGN_MAX);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            mmap_anonymous(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let start = start.ok()?.cast::<u8>();
        let inner = Box::into_raw(Box::new(PoolInner {
            start,
            len,
            local: UnsafeCell::new(Local { bump: 0, free: [null_mut(); CLASSES], missed: 0 }),
            returned: Returns::default(),
            outstanding: AtomicU64::new(0),
        }));
        for (n, entry) in POOLS.iter().enumerate() {
            // AcqRel: takes the entry over from whoever released it.
            let taken =
                entry.pool.compare_exchange(null_mut(), inner, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                entry.end.store(start as usize + len, Ordering::Relaxed);
                // Release, with the acquire in `owner_of`: the end and the pool come with it.
                entry.start.store(start as usize, Ordering::Release);
                POOLS_USED.fetch_max(n + 1, Ordering::Release);
                return Some(Pool { inner, entry: n });
            }
        }
        // SAFETY: made above, entered nowhere.
        unsafe { release(inner) };
        None
    }

    /// Runs `f` with the calling thread's allocations served from the pool.
    pub fn run<R>(&mut self, f: impl FnOnce() -> R) -> R {
        struct Leave(*const PoolInner);
        impl Drop for Leave {
            fn drop(&mut self) {
                ACTIVE.set(self.0);
            }
        }
        let _leave = Leave(ACTIVE.replace(self.inner));
        f()
    }

    /// Bytes that were ever in use at once, block sizes rounded up.
    pub fn high_water_bytes(&self) -> usize {
        // SAFETY: the owner reads its own part; `&self` is on its thread, since Pool is not Sync.
        unsafe { (*(*self.inner).local.get()).bump }
    }

    /// Allocations that did not fit, and went to the system.
    pub fn missed(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (*(*self.inner).local.get()).missed }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: `inner` is alive until here.
        let outstanding = unsafe { (*self.inner).outstanding.load(Ordering::Acquire) };
        if outstanding != 0 {
            // Somebody still holds blocks: the region is left to them for the life of the process.
            return;
        }
        let entry = &POOLS[self.entry];
        entry.start.store(0, Ordering::Release);
        entry.end.store(0, Ordering::Release);
        entry.pool.store(null_mut(), Ordering::Release);
        // SAFETY: no block is in use, and no thread finds the pool any more.
        unsafe { release(self.inner) };
    }
}

/// # Safety
/// No block of the pool is in use, and nobody reaches it any more.
unsafe fn release(inner: *mut PoolInner) {
    // SAFETY: by the caller's promise this is the last use of box and mapping.
    unsafe {
        let inner = Box::from_raw(inner);
        let _ = munmap(inner.start.cast(), inner.len);
    }
}

/// A block for the calling thread, if it is inside [`Pool::run`] and the pool has one.
#[inline]
pub(super) fn allocate(layout: &Layout) -> Option<*mut u8> {
    let pool = ACTIVE.get();
    if pool.is_null() {
        return None;
    }
    // SAFETY: `run` set the pointer on this thread, and keeps the pool borrowed meanwhile; only the
    // owning thread gets here, so `local` is not shared.
    unsafe { (*pool).allocate(layout) }
}

/// Takes a block back. `false` if it is not from a pool.
#[inline]
pub(super) fn free(block: *mut u8, layout: &Layout) -> bool {
    let Some(pool) = owner_of(block) else { return false };
    // SAFETY: the block is in use, so its pool is alive (a pool with blocks in use is not released).
    unsafe { (*pool).free(block, layout, std::ptr::eq(ACTIVE.get(), pool)) };
    true
}

/// Whether a block is from a pool.
pub(super) fn owns(block: *mut u8) -> bool {
    owner_of(block).is_some()
}

fn owner_of(block: *mut u8) -> Option<*const PoolInner> {
    let used = POOLS_USED.load(Ordering::Acquire);
    let address = block as usize;
    POOLS[..used].iter().find_map(|entry| {
        // Acquire, with the release in `new`.
        let start = entry.start.load(Ordering::Acquire);
        let inside = start != 0 && address >= start && address < entry.end.load(Ordering::Relaxed);
        inside.then(|| entry.pool.load(Ordering::Relaxed).cast_const())
    })
}

impl PoolInner {
    /// # Safety
    /// Called on the owning thread.
    unsafe fn allocate(&self, layout: &Layout) -> Option<*mut u8> {
        let class = class_of(layout)?;
        // SAFETY: the owning thread is the only one that touches `local`.
        let local = unsafe { &mut *self.local.get() };
        if local.free[class].is_null() {
            self.take_returned(local);
        }
        let block = if local.free[class].is_null() {
            let size = BLOCK_BYTES_MIN << class;
            let at = local.bump.next_multiple_of(size.min(ALIGN_MAX));
            if at + size > self.len {
                local.missed += 1;
                return None;
            }
            local.bump = at + size;
            // SAFETY: at + size <= len: inside the mapping.
            unsafe { self.start.add(at) }
        } else {
            let block = local.free[class];
            // SAFETY: a block on a free list holds a `Free`, written when it was freed.
            local.free[class] = unsafe { (*block).next };
            block.cast()
        };
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        Some(block)
    }

    /// # Safety
    /// `block` came from `allocate` of this pool with this layout and is not used any more; `local`
    /// says truly whether this is the owning thread.
    unsafe fn free(&self, block: *mut u8, layout: &Layout, local: bool) {
        let class = class_of(layout).unwrap_or(0);
        let free = block.cast::<Free>();
        if local {
            // SAFETY: the owning thread is the only one that touches `local`; the block is at least
            // BLOCK_BYTES_MIN long and aligned, so a `Free` fits.
            unsafe {
                let own = &mut *self.local.get();
                free.write(Free { next: own.free[class], class });
                own.free[class] = free;
            }
        } else {
            // SAFETY: the block is ours alone until it is given, and at least BLOCK_BYTES_MIN long and
            // aligned, so a `Free` fits.
            self.returned.give(free, |next| unsafe { free.write(Free { next, class }) });
        }
        // Release, with the acquire when the pool is dropped.
        self.outstanding.fetch_sub(1, Ordering::Release);
    }

    fn take_returned(&self, local: &mut Local) {
        let mut block = self.returned.take_all();
        while !block.is_null() {
            // SAFETY: a block on the stack holds a `Free`, written before it was published.
            unsafe {
                let Free { next, class } = block.read();
                (*block).next = local.free[class];
                local.free[class] = block;
                block = next;
            }
        }
    }
}
