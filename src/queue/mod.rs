//! Slots, rings and admission: how a request gets from its client to a worker and back.
//!
//! | ring | producers | consumers |
//! |---|---|---|
//! | [`ring::IndexRing`] per model and priority (ingress) | any client, the I/O thread | any worker of the model |
//! | [`stack::IndexStack`] per model (free slots: see [`keep`]) | whoever frees a slot | whoever leases one |
//! | [`completion`] ring per worker | that worker | the I/O thread, or the worker in its [`seat`] |
//! | [`exchange::Exchange`] per model and worker (versions) | who reloads | that worker |
//!
//! # What a request costs
//! In process, one in flight, both sides spinning: what lies between the client's call and its answer,
//! in order. *Crosses* is a cache line that one core writes and the other reads.
//!
//! 1. Client: the free list's exchange, a [stamp](crate::sys::clock::stamp), the count of entries; then the exchange on the ring's cell, which *crosses*. The tail's exchange and
//!    the fence before the look at who sleeps come while the worker begins.
//! 2. Worker: finds the cell, which says slot and rows, so that it asks for what was asked and for the
//!    input together (these *cross*) and decides meanwhile; a stamp; the exchanges on cell and head; the
//!    engine; a stamp; the swap of the answer's word, which *crosses* with the receipt. What is counted
//!    is counted after that.
//! 3. Client: the word, and the output's first line, which it looks for together (*crosses*).
//!
//! So a line crosses alone twice, as in a bare exchange of two words, and twice lines cross in company.
//! On two cores of a virtual machine (AMD EPYC, third generation) an exchange on a line that is here
//! takes 3 ns, a reading of the kernel's clock 29 and 40 in this chain, a stamp 12, a turn of a spin
//! loop 28; a bare round trip takes 120 to 140 ns there, or 400 when the host has the two cores far from
//! each other.
//!
//! Beside these, what costs most is easily overlooked: a value that goes through memory and is read in
//! other parts than it was written in (a `Result` that is returned through a pointer, what `catch_unwind`
//! returns, a small struct copied as a whole) is waited for until all earlier writes, to lines that are
//! elsewhere too, are done: 10 to 20 ns each time. Hence the functions of this way are inlined, and pass
//! on single numbers where they can't be.

pub mod exchange;
pub mod handle;
pub mod handover;
pub mod idle;
pub mod keep;
pub mod ring;
pub mod seat;
pub mod stack;
pub mod state;

#[cfg(feature = "std")]
mod asked;
#[cfg(feature = "std")]
pub mod completion;
#[cfg(feature = "std")]
mod model_queue;
#[cfg(feature = "std")]
pub mod outlet;
#[cfg(feature = "std")]
mod owner;
#[cfg(feature = "std")]
mod refusal;
#[cfg(feature = "std")]
mod service;
#[cfg(feature = "std")]
mod slot;
#[cfg(feature = "std")]
pub use asked::Notify;
#[cfg(feature = "std")]
pub use model_queue::{ModelQueue, QueueSpec, QueuedView, Submit};
#[cfg(feature = "std")]
pub use owner::SharedQueue;
#[cfg(feature = "std")]
pub use refusal::{Failure, Refusal, RefusalReason};
#[cfg(feature = "std")]
pub use service::ServiceTimes;
#[cfg(feature = "std")]
pub use slot::{Completion, Done, Lease, Ticket, Work};

#[cfg(all(test, feature = "std"))]
mod tests;
