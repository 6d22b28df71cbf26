//! Models: manifest, signature, loading and what is checked then, `.npy` files.
//!
//! [`LoadedModel::read`] does all of it: from a path to a model that is compiled, compared with its
//! goldens, and known to batch without changing an answer (or known why not).

pub mod cache;
pub mod check;
pub mod error;
pub mod load;
pub mod manifest;
pub mod npy;
pub mod signature;
pub mod version;

pub use cache::{CacheState, CacheStatus};
pub use error::ModelError;
pub use load::{BatchingStatus, Inspection, LoadedModel, ReadModel};
pub use manifest::{InstanceGroup, Manifest};
