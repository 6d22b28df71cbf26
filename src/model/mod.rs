//! Models: manifest, signature, registry.
pub mod signature;
