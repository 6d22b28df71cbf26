//! The operating system and the machine: affinity, clock, memory, allocator, and the shim through
//! which all atomics of shared state go.
//!
//! # The oldest kernel
//! Linux 4.1. That is what Rust's library asks for on aarch64 (3.2 on ARMv7 and x86-64, as glibc 2.31 does), and
//! nothing here asks for more: a test of the command runs it, a server and its clients with every system call
//! refused that came later. What is newer is done without where it is not there:
//!
//! | since | what | before |
//! |---|---|---|
//! | 4.13 | the other end of a pseudo-terminal by its number ([`terminal::hold_open`]), for `bench device` | an error |
//! | 4.14 | a page that a fork wipes, by which the C interface tells a child | a child is not told apart |
//!
//! What else is asked for is older: `eventfd2` and `epoll_create1` (2.6.27), `accept4` and timer slack (2.6.28),
//! real-time policies that children don't inherit (2.6.32), huge pages by advice (2.6.38), and off for a process
//! (3.15). No board here was run with a kernel that old: those that they are sold with are newer.

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
