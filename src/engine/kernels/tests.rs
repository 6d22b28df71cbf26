//! Kernels against plain references, on every instruction set that this processor has.
mod products;
mod reference;
mod vectors;

use super::*;

/// Every instruction set that can run here.
fn all() -> impl Iterator<Item = Kernels> {
    Isa::ALL.into_iter().filter_map(|isa| Kernels::new(isa).ok())
}
