//! The process's monotonic clock.

use crate::units::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC` (vDSO: no system call on the usual machines).
#[inline]
pub fn now() -> Nanos {
    to_nanos(ClockId::Monotonic)
}

/// CPU time that the calling thread has used.
pub fn thread_cpu() -> Nanos {
    to_nanos(ClockId::ThreadCPUTime)
}

/// CPU time that the process has used, all threads.
pub fn process_cpu() -> Nanos {
    to_nanos(ClockId::ProcessCPUTime)
}

fn to_nanos(id: ClockId) -> Nanos {
    let t = clock_gettime(id);
    Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}
