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
//!   Each session keeps weights of its own, as its optimiser rewrote them.
//!
//! Without the feature `ort` the settings are read and the library can be probed, but no model is loaded.

mod elf;
#[cfg(feature = "ort")]
mod instance;
#[cfg(feature = "ort")]
mod interface;
pub mod library;
#[cfg(feature = "ort")]
mod load;
#[cfg(feature = "ort")]
mod placement;
#[cfg(feature = "ort")]
mod session;
pub mod settings;

#[cfg(not(feature = "ort"))]
use super::{Engine, EngineError, LoadRequest};
pub use settings::OrtSettings;

#[cfg(feature = "ort")]
pub use load::load;

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
/// `NotBuilt`, where the library itself is in order.
#[cfg(not(feature = "ort"))]
pub fn providers(
    configured: Option<&std::path::Path>,
) -> Result<(library::Library, Vec<String>), library::LibraryError> {
    library::probe(configured)?;
    Err(library::LibraryError::NotBuilt)
}
