//! Knowing that this is the child of a `fork`, for the price of one load.

use crate::sys::sync::{AtomicU32, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::NonNull;

/// A page of its own that the kernel wipes in a child process.
pub(super) struct ForkMark {
    page: NonNull<AtomicU32>,
}

const BYTES: usize = 4096;
const HERE: u32 = 0xC0DE;

// SAFETY: the page is owned, and reached through an atomic only.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// Marks this process. Where the kernel can't wipe a page (before Linux 4.14, some emulators),
    /// a child is not told apart.
    pub fn new() -> std::io::Result<ForkMark> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let page =
            unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, protection, MapFlags::PRIVATE)? };
        // SAFETY: the mapping is this function's own.
        let _ = unsafe { madvise(page, BYTES, Advice::LinuxWipeOnFork) };
        let Some(page) = NonNull::new(page.cast::<AtomicU32>()) else {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        };
        let mark = ForkMark { page };
        mark.word().store(HERE, Ordering::Relaxed);
        Ok(mark)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped while `self` lives, aligned, and zero or HERE.
        unsafe { self.page.as_ref() }
    }

    /// Whether this process is the one that made the mark.
    pub fn is_here(&self) -> bool {
        self.word().load(Ordering::Relaxed) == HERE
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped once; no reference outlives `self`.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), BYTES) };
    }
}
