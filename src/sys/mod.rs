//! The operating system and the machine: affinity, clock, memory, allocator, and the shim through
//! which all atomics of shared state go.

pub mod futex;
pub mod prefetch;
pub mod returns;
pub mod sync;

#[cfg(feature = "std")]
pub mod affinity;
#[cfg(feature = "std")]
pub mod alloc;
#[cfg(feature = "std")]
pub mod clock;
#[cfg(feature = "std")]
pub mod cores;
#[cfg(feature = "std")]
pub mod descriptors;
#[cfg(feature = "std")]
pub mod events;
#[cfg(feature = "std")]
pub mod files;
#[cfg(feature = "std")]
pub mod groups;
#[cfg(feature = "std")]
pub mod headroom;
#[cfg(feature = "std")]
pub mod memory;
#[cfg(feature = "std")]
pub mod pool;
#[cfg(feature = "std")]
pub mod realtime;
#[cfg(feature = "std")]
pub mod records;
#[cfg(feature = "std")]
pub mod region;
#[cfg(feature = "std")]
pub mod terminal;
