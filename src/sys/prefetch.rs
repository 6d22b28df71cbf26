//! Asking for a cache line before it is needed, so that several lines travel between two cores at
//! the same time and not one after the other. A hint: nothing depends on it.

/// Asks for the line that holds the first byte of `target`, to be read.
#[inline(always)]
pub fn prefetch_for_read<T: ?Sized>(target: *const T) {
    let _target = target.cast::<u8>();
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a prefetch reads no memory as far as the program can tell, and never faults.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) _target, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(loom), not(miri)))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) _target, options(nostack, preserves_flags, readonly));
    }
}

/// Asks for the line that holds the first byte of `target`, to be written.
#[inline(always)]
pub fn prefetch_for_write<T: ?Sized>(target: *const T) {
    let _target = target.cast::<u8>();
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: as above; processors without the instruction take it as a NOP in 64-bit mode.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) _target, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(loom), not(miri)))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) _target, options(nostack, preserves_flags, readonly));
    }
}
