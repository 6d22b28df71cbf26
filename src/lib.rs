//! corelane turns an ONNX model into a predictable service inside one Linux process: one pinned
//! worker per core, no heap on the request path, batches formed from a lock-free ring.
//!
//! This page is the map: the layers from the top down, what each may know of the others, and the
//! contracts that hold across them. Each module's own page says the rest. How to link it into a
//! device's program, in Rust, C or C++, is on the page `docs::firmware`.
//!
//! # Two halves
//! **Half one** is `no_std`, without alloc and without unsafe: [`limits`], [`units`], [`wire`],
//! [`client`]. A microcontroller links it (`default-features = false`). **Half two** (feature `std`,
//! on by default) is the runtime for Linux: everything else.
//!
//! Features are additive: `std`; `defmt` (`defmt::Format` on the public types of half one, and the
//! backend of its log macro where neither `std` nor `log` is on); `log` (the same through the `log`
//! facade, which half two always uses); `capi` (the C interface); `ort` (the engine over ONNX Runtime);
//! `hot-log` (the command logs what workers and I/O thread do, with defmt; see [`sys::events`]).
//!
//! # The layers, top down
//! | room | what it does | knows |
//! |---|---|---|
//! | `bin/corelane` | argument parsing and printing | everything public |
//! | `capi` | the C interface | `runtime`, `config`, and what they are made of |
//! | `lab` | measures the runtime and its parts against floors | everything public |
//! | `runtime` | boot, ready, reload, drain, stop; the in-process client | all rooms below |
//! | `board` | boards by name, and whether the machine is what they say | `sys` |
//! | `config` | `corelane.toml` | the settings of those it configures |
//! | `transport` | sockets and serial ports, one event-driven I/O thread | [`wire`], `queue` |
//! | `worker` | the pinned loop: close a batch, run it, answer | `queue`, `batch`, `engine`, `metrics` |
//! | `metrics` | counters and histograms with fixed memory; a page of them over HTTP | `queue`'s vocabulary |
//! | `logs` | records of what threads tell: decoded, printed, kept in a file | `sys` |
//! | `model` | manifest, files, goldens, signature | `engine` |
//! | `engine` | a loaded model: `plan`, `tract`, `ort`, `fake` | `model`'s signature, `sys` |
//! | `batch` | when to close a batch: a pure function, tested in simulated time | nothing |
//! | `queue` | slots, rings, admission, who sleeps | `sys`, `model`'s signature |
//! | `sys` | affinity, clock, memory, allocators, futex, events and their rings, the door to atomics | nothing |
//! | [`client`] | sans-I/O session, and its adapters for sockets and serial lines | [`wire`] |
//! | [`wire`] | the protocol: the specification, and its code; [`wire::link`] for serial lines | nothing |
//! | [`units`], [`limits`] | numbers that say what they are, and every bound | nothing |
//!
//! `tests/tidy.rs` holds the sources against this: who imports whom, that unsafe code stays in
//! `sys`, `queue`, `capi`, `engine::kernels` and `engine::ort`, that atomics go through `sys::sync`, so
//! that loom can check the models in `tests/loom.rs`.
//!
//! # The way of a request
//! ```text
//! transport -> wire (parse, validate) -> slot (input) -> ring -> worker (close a batch, run the plan)
//!           -> slot (output, receipt) -> completion ring -> transport
//! ```
//! A *slot* is allocated when the model is loaded and holds one request: input, output, deadline,
//! priority, stage times, and the word that says whether it is answered. Payloads are read from the
//! socket straight into it; only its index travels. An in-process client fills a slot by itself and
//! waits on the word. Any idle worker takes from the ring, so no request waits behind a long one while a core
//! idles. A request that is alone in the server is answered by its worker, on the connection's socket,
//! which the I/O thread lends for that one frame ([`queue::outlet`]). While one connection asks alone, the
//! worker also reads its requests: the I/O thread leaves it the place where connections are tended
//! ([`queue::seat`]).
//!
//! # Another version of a model
//! A reload (`runtime::Reloader`) loads, verifies and warms up the next version on a thread that serves nothing,
//! with an instance for each worker, and offers each its own ([`queue::exchange`]). A word that workers compare
//! with what they have seen tells them to look; between two batches each trades all that it runs of the
//! model for what is offered, without allocating, freeing or waiting. What it gave goes back and is freed
//! where it was loaded. So a batch is of one version, and when the reload returns no answer is of the former
//! one. What clients were told (signature, limits) and what memory was sized by (slots, rings, priorities,
//! cores) never changes: a version that would need it is refused, and so is one that does not load, does not
//! pass its goldens, or does not fit into memory beside the one that serves. Service times are kept in
//! two banks, one for each version; those that were measured by no worker yet refuse no deadline.
//!
//! # Contracts
//! - **No allocation on the request path.** Once ready, workers and the I/O thread never call the
//!   system allocator. Every buffer is sized at load, and its size is known and printed.
//! - **A limit on everything**, in [`limits`]; one that is reached is a typed error with its numbers.
//! - **Requested is obtained, or it is an error**: cores, engines, batch sizes. No silent fall back.
//! - **Nothing lost, nothing crossed**: every accepted request ends in exactly one answer or one
//!   error, with its own rows, also under reload, overload, disconnect and shutdown.
//! - **Batching never changes an answer**: at load, rows in a batch are compared with rows alone.
//! - **Numbers say what they are**: integer nanoseconds inside, units in names and types.
#![cfg_attr(not(any(feature = "std", loom)), no_std)]
#![deny(unsafe_code)]

#[macro_use]
mod log;

pub mod client;
#[cfg(feature = "std")]
pub mod docs;
pub mod limits;
pub mod units;
pub mod wire;

#[cfg(any(feature = "std", loom))]
#[allow(unsafe_code)]
pub mod queue;
#[cfg(any(feature = "std", loom))]
#[allow(unsafe_code)]
pub mod sys;

#[cfg(feature = "std")]
pub mod batch;
#[cfg(feature = "std")]
pub mod board;
#[cfg(feature = "capi")]
#[allow(unsafe_code)]
pub mod capi;
#[cfg(feature = "std")]
pub mod config;
#[cfg(feature = "std")]
#[allow(unsafe_code)] // engine/kernels and engine/ort only; a test enforces it
pub mod engine;
#[cfg(feature = "std")]
pub mod lab;
#[cfg(feature = "std")]
pub mod logs;
#[cfg(feature = "std")]
pub mod metrics;
#[cfg(feature = "std")]
pub mod model;
#[cfg(feature = "std")]
pub mod runtime;
#[cfg(feature = "std")]
pub mod toml_errors;
#[cfg(feature = "std")]
pub mod transport;
#[cfg(feature = "std")]
pub mod worker;
