//! corelane turns an ONNX model into a predictable service inside one Linux process: one pinned
//! worker per core, no heap on the request path, batches formed from a lock-free ring.
//!
//! Half one ([`limits`], [`units`], [`wire`], [`client`]) is `no_std`, without alloc and without
//! unsafe: a microcontroller links it. Half two (feature `std`, on by default) is the runtime.
#![cfg_attr(not(any(feature = "std", loom)), no_std)]
#![deny(unsafe_code)]

#[macro_use]
mod log;

pub mod client;
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
pub mod config;
#[cfg(feature = "std")]
#[allow(unsafe_code)] // engine/kernels only; a test enforces it
pub mod engine;
#[cfg(feature = "std")]
pub mod lab;
#[cfg(feature = "std")]
pub mod metrics;
#[cfg(feature = "std")]
pub mod model;
#[cfg(feature = "std")]
pub mod runtime;
#[cfg(feature = "std")]
pub mod toml_errors;
#[cfg(feature = "std")]
pub mod worker;
