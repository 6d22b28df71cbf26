//! The process's monotonic clock.

mod stamp;

pub use stamp::{WINDOW_NS, prepare, stamp};

use crate::units::Nanos;

/// Nanoseconds of `CLOCK_MONOTONIC` (vDSO: no system call on the usual machines).
#[inline]
pub fn now() -> Nanos {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time that the calling thread has used.
pub fn thread_cpu() -> Nanos {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time that the process has used, all threads.
pub fn process_cpu() -> Nanos {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// By way of the C library: rustix looks for the vDSO by itself, at an address that is not there under
/// valgrind, and crashes the program that is watched.
#[inline]
fn read(clock: libc::clockid_t) -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is what this function writes; these clocks exist on every Linux, so that it
    // does not fail.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Seconds since 1970 by the wall clock, which may jump: to name a moment, never to measure.
pub fn unix_seconds() -> u64 {
    unix_now().0 / 1_000_000_000
}

/// Nanoseconds since 1970 by the wall clock, which may jump: to name a moment, never to measure.
pub fn unix_now() -> Nanos {
    read(libc::CLOCK_REALTIME)
}
