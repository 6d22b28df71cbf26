//! Engine `ort`: ONNX Runtime, from a shared library that is opened when a model asks for it.
//!
//! - [`library`] finds the file and makes sure, in bounded time and without running it in this
//!   process, that it can be opened. A process opens one library, once.
//! - [`settings`]: which providers a model asks for (`cuda`, `tensorrt`, `cpu`), in which order,
//!   and which it must have.
//! - `load` registers them, runs the model once, and reads back which provider ran which node. A
//!   required provider that did not take is an error; one that was only preferred is in the report
//!   ([`BackendReport`](super::BackendReport)), as are the nodes of each.
//! - `instance`: one session a worker, one thread in it, nothing that spins. Tensors of every batch
//!   size are made and bound when the instance is made, so that a run makes no allocation on our side.
//!   ONNX Runtime 1.32 itself calls `malloc` in every run (counted on the processor at batch 1: 26 times
//!   for `mlp`, 45 for `resnet8`, 266 for `magika`), through the C library and so unseen by
//!   [`sys::alloc`](crate::sys::alloc): [`Description::allocation_free`](super::Description) is false.
//! - `weights`: on the processor alone, sessions of a model share its weights, as the optimiser rewrote them,
//!   and what kernels pack of them ([`Description::weights_shared`](super::Description)). The optimised
//!   model is kept in a file in the temporary directory that has no name any more.
//!   With other providers each session has weights of its own, on its device.
//! - [`precision`]: `precision = "fp16"` takes a second model file in half precision, or lets TensorRT
//!   convert, and compares its answers with those of the model file before it is served. ONNX Runtime's
//!   processor provider has few kernels in half precision (of 1.32 on x86-64: `Clip`,
//!   `LayerNormalization`, and what only moves data) and widens for all others; where it widens all of a
//!   model, loading fails, since nothing would be won.
//! - [`cache`]: where TensorRT keeps engines for the next start. [`gpu`]: what the driver shows, and what is
//!   told where a GPU's memory does not suffice.
//! - [`graph`]: runs as CUDA graphs, where they are asked for. `driver` copies for them, and makes workers
//!   sleep while a GPU computes, so that they leave their cores to others.
//!
//! What only a GPU can show (everything that `cuda` and `tensorrt` do, pinned memory for requests, the engine
//! cache, CUDA graphs, sleeping, memory that does not suffice) is written after the library's and the
//! driver's documentation and has not been run on one yet; `tests/ort/gpu.rs` has the tests, which say why
//! they are skipped.
//!
//! Without the feature `ort` the settings are read and the library can be probed, but no model is loaded. A
//! static program can open no shared library, so it can't be compiled with the feature.

#[cfg(all(feature = "ort", target_feature = "crt-static"))]
compile_error!(
    "feature `ort` opens ONNX Runtime's shared library, which a static program can't: leave it out, or compile \
     for a target of glibc (a board's default), or with `-C target-feature=-crt-static`"
);

pub mod cache;
#[cfg(feature = "ort")]
mod driver;
mod elf;
#[cfg(feature = "ort")]
mod fixed;
pub mod gpu;
pub mod graph;
#[cfg(feature = "ort")]
mod instance;
#[cfg(feature = "ort")]
mod interface;
pub mod library;
#[cfg(feature = "ort")]
mod load;
#[cfg(feature = "ort")]
mod placement;
pub mod precision;
#[cfg(feature = "ort")]
mod session;
pub mod settings;
#[cfg(feature = "ort")]
mod unbound;
#[cfg(feature = "ort")]
mod weights;

#[cfg(not(feature = "ort"))]
use super::{Engine, EngineError, LoadRequest};
use crate::model::signature::Signature;
pub use settings::OrtSettings;

#[cfg(feature = "ort")]
pub use load::{load, load_with};
#[cfg(feature = "ort")]
pub use unbound::Unbound;

/// Gives the inputs of golden rows, once the signature is known.
pub type Goldens<'a> = &'a dyn Fn(&Signature) -> Vec<precision::InputRow>;

/// Providers that the library at `configured` (or where [`library::find`] looks) was built with, by
/// ONNX Runtime's names. Opens it.
///
/// # Errors
/// Every kind of [`library::LibraryError`].
#[cfg(feature = "ort")]
pub fn providers(
    configured: Option<&std::path::Path>,
) -> Result<(library::Library, Vec<String>), library::LibraryError> {
    let opened = session::open(configured)?;
    let library = (*opened.library).clone();
    let said = |e: ::ort::Error| library::LibraryError::Open {
        path: library.path.clone(),
        version: library.version,
        said: e.to_string(),
    };
    let names = session::available().map_err(said)?;
    Ok((library, names))
}

/// This build has no ONNX Runtime.
///
/// # Errors
/// Always, with what to build.
#[cfg(not(feature = "ort"))]
pub fn load(_: &LoadRequest<'_>, _: &OrtSettings) -> Result<Box<dyn Engine>, EngineError> {
    let error = library::LibraryError::NotBuilt;
    Err(EngineError::new(super::EngineErrorKind::Library, error.to_string()).caused_by(error))
}

/// This build has no ONNX Runtime.
///
/// # Errors
/// Always, with what to build.
#[cfg(not(feature = "ort"))]
pub fn load_with(
    request: &LoadRequest<'_>,
    settings: &OrtSettings,
    _: Goldens<'_>,
) -> Result<Box<dyn Engine>, EngineError> {
    load(request, settings)
}

/// This build has no ONNX Runtime.
///
/// # Errors
/// `NotBuilt`, where the library itself is in order.
#[cfg(not(feature = "ort"))]
pub fn providers(
    configured: Option<&std::path::Path>,
) -> Result<(library::Library, Vec<String>), library::LibraryError> {
    library::probe(configured)?;
    Err(library::LibraryError::NotBuilt)
}
