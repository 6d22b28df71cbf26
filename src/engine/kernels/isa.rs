//! Which vector instructions the kernels use, and the one place where that is checked.

use super::simd::{Portable, Simd};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A vector instruction set that the kernels are compiled for.
///
/// A value is only a name; [`Kernels::new`](super::Kernels::new) checks that this processor has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Isa {
    /// Plain Rust, for any processor.
    Portable,
    /// Advanced SIMD of aarch64: 4 lanes, 32 registers.
    Neon,
    /// AVX2 with FMA on x86-64: 8 lanes, 16 registers.
    Avx2,
    /// Advanced SIMD of 32-bit ARM for matrix products, the portable kernels for all else.
    ///
    /// Products are rounded as the portable kernels round them, but denormals are always flushed to zero,
    /// whatever the thread asks for, and every NaN is the default one: so this set works.
    Neon32,
    /// AVX-512 (F, VL, DQ and BW) on x86-64: 16 lanes, 32 registers.
    ///
    /// Tested in an emulator; how fast it is on a processor has not been measured.
    Avx512,
}

/// An instruction set that this processor lacks (or that is of another architecture).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IsaUnavailable {
    /// What was asked for.
    pub wanted: Isa,
    /// The best that this processor has.
    pub best: Isa,
}

impl fmt::Display for IsaUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this processor can't run {} kernels; the best it has is {}",
            self.wanted.name(),
            self.best.name()
        )
    }
}

impl std::error::Error for IsaUnavailable {}

impl Isa {
    /// Every instruction set, in ascending order of preference.
    pub const ALL: [Isa; 5] = [Isa::Portable, Isa::Neon32, Isa::Neon, Isa::Avx2, Isa::Avx512];

    /// The name in configuration and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Neon32 => "neon32",
            Isa::Avx512 => "avx512",
        }
    }

    /// The instruction set of that [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// Whether this processor can run it.
    pub fn available(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::available(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::avx512::available(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => false,
            #[cfg(target_arch = "arm")]
            Isa::Neon32 => super::neon32::available(),
            #[cfg(not(target_arch = "arm"))]
            Isa::Neon32 => false,
        }
    }

    /// The best that this processor can run.
    pub fn detect() -> Isa {
        let mut best = Isa::Portable;
        for isa in Isa::ALL {
            if isa.available() {
                best = isa;
            }
        }
        best
    }
}

/// A computation that is compiled once per instruction set.
///
/// `run`, and all that it calls with its `S`, must be `#[inline(always)]`: only so does it become
/// part of the function that has the instruction set's features.
pub(super) trait Op {
    /// What it returns.
    type Out;
    /// Runs it with the vectors of `S`.
    fn run<S: Simd>(self) -> Self::Out;
}

/// Proof that the processor has an instruction set: made only by a successful check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checked {
    isa: Isa,
    in_order: bool,
}

impl Checked {
    /// Checks that this processor has `isa`.
    pub(super) fn new(isa: Isa) -> Result<Checked, IsaUnavailable> {
        if isa.available() {
            Ok(Checked { isa, in_order: false })
        } else {
            Err(IsaUnavailable { wanted: isa, best: Isa::detect() })
        }
    }

    /// The instruction set.
    pub(super) fn isa(self) -> Isa {
        self.isa
    }

    /// Whether loops for cores that run in order are taken.
    pub(super) fn in_order(self) -> bool {
        self.in_order
    }

    /// The same with such loops, or without.
    pub(super) fn with_in_order(self, in_order: bool) -> Checked {
        Checked { in_order, ..self }
    }

    /// Runs `op` with the checked instruction set.
    #[inline]
    pub(super) fn dispatch<O: Op>(self, op: O) -> O::Out {
        match self.isa {
            Isa::Portable => op.run::<Portable>(),
            // SAFETY: `self` exists only if the processor has the features.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { super::avx2::enter(op) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { super::avx512::enter(op) },
            // SAFETY: every aarch64 processor that Rust's std runs on has Advanced SIMD.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => unsafe { super::neon::enter(op) },
            // Its matrix products don't come here (`gemm`).
            #[cfg(target_arch = "arm")]
            Isa::Neon32 => op.run::<Portable>(),
            // `available` is false for the others on this architecture, so they are never checked.
            #[allow(unreachable_patterns)]
            _ => op.run::<Portable>(),
        }
    }
}
