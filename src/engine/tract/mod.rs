//! Engine `tract`: tract's own runner, the reference.
pub mod front;

use super::{Engine, EngineError, EngineErrorKind, LoadRequest};

/// Loads a model.
pub fn load(_request: &LoadRequest<'_>) -> Result<Box<dyn Engine>, EngineError> {
    Err(EngineError::new(EngineErrorKind::Internal, "not built yet"))
}
