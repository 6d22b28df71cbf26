//! Slots, rings and admission: how a request gets from its client to a worker and back.
//!
//! | ring | producers | consumers |
//! |---|---|---|
//! | [`ring::IndexRing`] per model and priority (ingress) | any client, the I/O thread | any worker of the model |
//! | [`stack::IndexStack`] per model (free slots) | whoever frees a slot | whoever leases one |
//! | [`completion`] ring per worker | that worker | the I/O thread |

pub mod handle;
pub mod handover;
pub mod idle;
pub mod ring;
pub mod stack;
pub mod state;

#[cfg(feature = "std")]
pub mod completion;
#[cfg(feature = "std")]
mod model_queue;
#[cfg(feature = "std")]
pub mod outlet;
#[cfg(feature = "std")]
mod refusal;
#[cfg(feature = "std")]
mod service;
#[cfg(feature = "std")]
mod slot;
#[cfg(feature = "std")]
pub use model_queue::{ModelQueue, QueueSpec, QueuedView, Submit};
#[cfg(feature = "std")]
pub use refusal::{Failure, Refusal, RefusalReason};
#[cfg(feature = "std")]
pub use service::ServiceTimes;
#[cfg(feature = "std")]
pub use slot::{Completion, Done, Lease, Notify, Ticket, Work};

#[cfg(all(test, feature = "std"))]
mod tests;
