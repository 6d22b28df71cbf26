//! The C interface (feature `capi`): what `include/corelane.h` declares.
//!
//! `make lib` builds the static and the shared library, `make install` installs them with the header,
//! the C++ header, and files for pkg-config and CMake. The header is generated from these sources; a
//! test holds the one checked in against them, and begins with the rules below. How to use it is on the
//! page [`docs::firmware`](crate::docs::firmware).
//!
//! # Names
//! - A function is `corelane_NOUN_VERB` or `corelane_NOUN_PROPERTY`, with a word more where that is
//!   not enough: `corelane_request_submit_callback`. Its first argument is the noun.
//! - A type is `corelane_NOUN`, a constant `CORELANE_NOUN_VALUE`.
//! - A number of bytes is called `bytes`, of microseconds `..._us`, of nanoseconds `..._ns`.
//! - `const` before the thing that a function is about says that the call does not end it.
//!
//! # Who owns what
//! - `_new` and `_start` give the caller something that only it may, and must, end: with `_free` and
//!   `_stop` of the same noun. Nothing else is to be ended; `free()` is never right.
//! - What a function is given stays the caller's, and is not kept beyond the call: texts and lists are
//!   copied. `user` pointers are passed on, never looked at.
//! - What a function returns by pointer belongs to its first argument, and is gone with it.
//! - A request that was freed comes round again as another one, at the same address. Freed once more by
//!   mistake it may be somebody else's by then, and nothing can tell: forget a pointer when it is freed.
//! - Each function says its own rule under "Ownership".
//!
//! # Errors
//! Functions that can fail return a [`corelane_status`]: 0 is done, above 0 no error (not yet), below
//! 0 an error. `corelane_status_text` has a static text for each, `corelane_error_message` the
//! calling thread's sentence with names and numbers, which every call that fails sets anew. Results are
//! written only on success. A null pointer where there should be none is an error, not a crash. No panic
//! crosses the border: it becomes `CORELANE_STATUS_PANIC`. C++ exceptions must not leave a callback.
//!
//! # Threads
//! - No thread exists before `corelane_runtime_start`; after `corelane_runtime_stop` there is none.
//!   Loading, reloading and stopping run on a thread of their own that ends with the call.
//! - Runtimes and models may be used by any number of threads. A request is used by one thread at a
//!   time; a second one is told `BUSY`. A builder is used by one thread at a time, and the rule is the
//!   caller's to keep.
//! - Callbacks are called by `corelane_runtime_dispatch`, on the thread that calls it, and nowhere
//!   else; a runtime without callbacks needs no dispatch. A callback may call everything but `_dispatch`
//!   and `_stop` of its runtime, which are `BUSY` there; while it waits, as in `_infer`, no other is called.
//! - No function that ends in `_wait`, `_infer`, `_dispatch`, `_start`, `_reload` or `_stop` belongs in a signal
//!   handler; no other one does either.
//!
//! # Processes
//! - The library sets no signal handler, changes no signal mask, registers nothing with `atexit`, and
//!   writes to no standard stream, but for the message of a caught panic.
//! - `dlclose` unloads it if every runtime is stopped; it can be loaded and started again.
//! - After `fork` the child has none of the parent's threads. Every function that would need them
//!   returns `FORKED` there (Linux 4.14 and later tell the child apart; earlier ones don't). The
//!   child's copy can't be stopped; its memory is the parent's until written, and `exec` ends it. The
//!   child may start runtimes of its own if no other thread of the parent was inside corelane or the
//!   allocator when it forked. Descriptors are closed by `exec`.
//!
//! # Versions
//! The program's version is compared when a builder is made. A `corelane_tensor` and a `corelane_receipt` may
//! get more fields at their ends, so their size is passed along; a `corelane_input` and a `corelane_output`
//! stand in arrays, and stay as they are.
//!
//! # Memory
//! A program that links the C library has its Rust parts allocate through
//! [`CountingAllocator`](crate::sys::alloc::CountingAllocator), so the contract is kept and counted:
//! `corelane_runtime_hot_allocations`. From `corelane_request_new` to `corelane_request_free`, and in
//! `corelane_model_infer` and `corelane_runtime_dispatch`, the calling thread allocates nothing either.
//! A Rust program that links the crate keeps its own allocator: the C library's is compiled in only by
//! `make lib`, which sets `--cfg corelane_c_library`.
#![allow(non_camel_case_types)]
// Every function's promise to keep is C's: pointers as this page and its own text say.
#![allow(clippy::missing_safety_doc)]

mod answer;
mod args;
mod builder;
mod errand;
mod fork;
mod line;
mod log;
mod model;
mod request;
mod running;
mod runtime;
mod status;

pub use answer::*;
pub use builder::*;
pub use log::{corelane_log_callback, corelane_log_set};
pub use model::*;
pub use request::*;
pub use runtime::*;
pub use status::*;

/// In the C library everything that Rust allocates is counted on workers.
#[cfg(corelane_c_library)]
#[global_allocator]
static ALLOCATOR: crate::sys::alloc::CountingAllocator = crate::sys::alloc::CountingAllocator;

#[cfg(test)]
mod tests;
