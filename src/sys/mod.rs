//! The operating system and the machine: affinity, clock, memory, allocator, and the shim through
//! which all atomics go.
pub mod sync;
