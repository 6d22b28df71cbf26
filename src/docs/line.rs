//! What a serial line does under fault.
//!
//! The link ([`wire::link`](crate::wire::link)) repairs what a line damages, and that costs time. How much,
//! shows a simulation (`tests/link`): the client of [`client::serial`](crate::client::serial) and a server, each
//! with the real state machines, over a line of 921600 baud whose both directions are damaged by a seeded
//! generator. Requests alternate between one of 490 bytes with an answer of 8 and one of 3000 bytes with an
//! answer of 3000, one at a time, each with 2 seconds; the device has a buffer of 256 bytes for what it receives
//! and one of 1024 for what it sends. Each row is 100000 frames. A rate is per byte, in each direction; a
//! restart comes in the middle of a frame of every fifth request.
//!
//! *Goodput* is the tensors' bytes, without anything around them, over the whole time, the model's computing
//! (0.2 and 1 ms) included; beside it, what part that is of the bytes that the line could carry one way.
//! No answer was wrong, nothing was executed twice, every request ended within its time, and after the noise
//! the next request was answered: the test checks these, and that this table is what it measured.
//!
#![doc = include_str!("line.md")]
//!
//! What a clean line carries is on another scale where tensors are large: the requests above are small, and the
//! model's time counts. Of one request with a tensor of 27 KB each row says how many of the bytes that the line
//! could carry were the tensors', the computing (5 ms) and the way there and back not counted, and how much longer
//! the whole took than these bytes at the line's speed and the computing; held by a test of the same simulation:
//!
#![doc = include_str!("payload.md")]
//!
//! Where requests end in errors, it is by the loss of a session: a restart takes what was in flight with it. With
//! [`Retries`](crate::client::serial::Retries) they are made again.
