//! Clients of the protocol.
//!
//! [`Session`] is the state machine: it does no I/O, allocates nothing and needs no std, so that a
//! microcontroller can drive it. With feature `std`, [`Client`] drives it over a Unix socket, TCP or a serial
//! line of this machine, blocking, with many requests in flight. [`serial::SerialClient`] drives it over a serial link, on
//! anything from a microcontroller up.

#[cfg(feature = "std")]
mod blocking;
pub mod serial;
mod session;
#[cfg(feature = "std")]
mod stream;
#[cfg(all(test, feature = "std"))]
mod tests;
#[cfg(feature = "std")]
mod types;

#[cfg(feature = "std")]
pub use blocking::Client;
pub use session::{Event, Infer, Kind, Session, SessionError, State};
#[cfg(feature = "std")]
pub use stream::{Address, AddressError};
#[cfg(feature = "std")]
pub use types::{Answer, ClientError, Model, Options, ServerError, TensorInfo, Ticket};
