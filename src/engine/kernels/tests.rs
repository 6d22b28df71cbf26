//! Kernels against plain references, on every instruction set that this processor has.
mod coded;
mod ends;
mod grid;
mod products;
mod reference;
mod vectors;

use super::*;

/// Every instruction set that can run here, for cores of both kinds.
fn all() -> impl Iterator<Item = Kernels> {
    let sets = Isa::ALL.into_iter().filter_map(|isa| Kernels::new(isa).ok());
    sets.flat_map(|kernels| {
        let both = cfg!(target_arch = "aarch64") && kernels.isa() == Isa::Neon;
        [Some(kernels), both.then(|| kernels.with_in_order(true))].into_iter().flatten()
    })
}

#[test]
fn the_vector_set_of_the_architecture_is_detected() {
    let best = Isa::detect();
    assert!(best.available());
    assert_eq!(Isa::from_name(best.name()), Some(best));
    if cfg!(target_arch = "aarch64") {
        assert_eq!(best, Isa::Neon);
    }
    // What an emulator was told to be.
    if let Ok(wanted) = std::env::var("CORELANE_TEST_ISA") {
        assert_eq!(best.name(), wanted);
    }
    for isa in Isa::ALL {
        match Kernels::new(isa) {
            Ok(kernels) => assert_eq!(kernels.isa(), isa),
            Err(e) => assert_eq!((e.wanted, e.best), (isa, best)),
        }
    }
}
