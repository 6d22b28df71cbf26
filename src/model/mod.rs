//! Models: manifest, signature, loading and what is checked then, `.npy` files.
pub mod npy;
pub mod signature;
