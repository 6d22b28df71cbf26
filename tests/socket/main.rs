//! The protocol over real sockets and in memory: every way to use it, and every way to misuse it.
//!
//! The counting allocator is installed, and each test ends with the check that neither the I/O
//! thread nor a worker called the allocator.

mod abuse;
mod basics;
mod control;
mod direct;
mod doors;
mod encoded;
mod ends;
mod faults;
mod half;
mod lone;
mod pressure;
mod python;
mod serial;
mod support;

#[global_allocator]
static ALLOCATOR: corelane::sys::alloc::CountingAllocator = corelane::sys::alloc::CountingAllocator;
