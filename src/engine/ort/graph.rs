//! CUDA graphs: what a run asks of the GPU, captured once for each batch size and replayed as one request.
//! Small models win, whose kernels take less time than launching them. Asked for by `[ort] cuda_graph`.
//!
//! - A graph has addresses in it, so inputs and outputs are tensors at fixed places on the device
//!   (`fixed`), and their bytes are copied there and back by the driver (`driver`). The library's own
//!   binding copies an input to a new place each time.
//! - Batch sizes are told apart by the run option `gpu_graph_id`, which the library has from
//!   [`SIZES_FROM`] on; TensorRT has one graph a session.
//! - Every node must be on the GPU, shapes of shapes not counted, and nothing may branch. The library
//!   checks that when a session is made; what it says is in the error, with who ran how many nodes.
//! - The library keeps a graph for the thread that captured it. A worker captures before it is ready. Where
//!   an instance goes to another thread (a reload), the first run of each size there captures anew.
//!
//! Off by default: it takes GPU memory for each batch size, refuses models that are not wholly on the GPU,
//! and **has not been run on a GPU yet**. What needs none is tested: refusals, options, and the way of the
//! bytes, with a driver that copies within the host.

use super::library::Version;
use super::settings::{OrtSettings, Provider};
use crate::engine::{EngineError, EngineErrorKind};
use std::fmt;

/// The first version that keeps a graph for each of several batch sizes.
pub const SIZES_FROM: Version = Version { major: 1, minor: 18, patch: 0 };

/// Why a model's runs can't be CUDA graphs.
#[derive(Debug)]
#[non_exhaustive]
pub enum GraphError {
    /// No provider of the list computes on a GPU.
    NoGpu {
        /// The providers that are asked for.
        providers: String,
    },
    /// The library keeps one graph a session, and would replay it for every batch size.
    OneSize {
        /// What keeps one only; a sentence's beginning.
        keeper: String,
        /// The batch sizes that are asked for.
        batch_sizes: Vec<usize>,
    },
    /// The library, or the driver, refuses.
    Refused {
        /// Whose graphs were asked for.
        provider: Provider,
        /// Who runs how many nodes without graphs.
        got: String,
        /// What was said.
        source: EngineError,
    },
    /// Tensors that are made for each run have no fixed addresses.
    Unbound,
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GraphError::NoGpu { providers } => write!(
                f,
                "cuda_graph is asked for, but {providers} computes on no GPU: put cuda or tensorrt \
                 into providers, or leave cuda_graph out"
            ),
            GraphError::OneSize { keeper, batch_sizes } => write!(
                f,
                "cuda_graph is asked for at batch sizes {batch_sizes:?}, but {keeper} keeps a graph for \
                 one size only: set max_batch_size = 1, or leave cuda_graph out (cuda from ONNX Runtime \
                 {}.{} on keeps one for each)",
                SIZES_FROM.major, SIZES_FROM.minor
            ),
            GraphError::Refused { provider, got, source } => write!(
                f,
                "cuda_graph is asked for, but with {} the model's runs can't be captured (without: \
                 {got}): {source}; leave cuda_graph out where nodes must stay on the processor",
                provider.name()
            ),
            GraphError::Unbound => f.write_str(
                "cuda_graph is asked for, but tensors that are made for each run have no fixed \
                 addresses: leave cuda_graph out",
            ),
        }
    }
}

impl std::error::Error for GraphError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            GraphError::Refused { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<GraphError> for EngineError {
    fn from(error: GraphError) -> EngineError {
        EngineError::new(EngineErrorKind::Backend, error.to_string()).caused_by(error)
    }
}

/// Whether what is asked for can hold at all.
///
/// # Errors
/// `NoGpu`.
pub fn check(settings: &OrtSettings) -> Result<(), GraphError> {
    let on_gpu = settings.providers.iter().any(|w| w.provider != Provider::Cpu);
    if !settings.cuda_graph || on_gpu {
        return Ok(());
    }
    let providers: Vec<&str> = settings.providers.iter().map(|w| w.provider.name()).collect();
    Err(GraphError::NoGpu { providers: providers.join(", ") })
}

/// Whether a library of `version` keeps apart the graphs of `batch_sizes` on `provider`.
///
/// # Errors
/// `OneSize`.
pub fn check_sizes(
    provider: Provider,
    version: Version,
    batch_sizes: &[usize],
) -> Result<(), GraphError> {
    let keeper = match provider {
        _ if batch_sizes.len() == 1 => return Ok(()),
        Provider::TensorRt => "TensorRT".to_string(),
        _ if version >= SIZES_FROM => return Ok(()),
        _ => format!("ONNX Runtime {version}"),
    };
    Err(GraphError::OneSize { keeper, batch_sizes: batch_sizes.to_vec() })
}

#[cfg(test)]
mod tests;
