//! Compute kernels, per instruction set.
//!
//! Activations are `f32`, or codes of 8 bits ([`Codes`]), channels innermost (**NHWC**); a batch is just more
//! pixels. So a 1x1 convolution, a Gemm and a KxK convolution are one register-tile kernel ([`gemm`](self)):
//! rows of A are read in place through a table of pointers, weights are packed once in panels.
//!
//! * [`Kernels`] is the instruction set, checked once. Everything else takes it, or was made with it.
//! * [`Conv2d`] and [`PackedMatMul`] own packed weights: made at load, shared by `Arc`, `run` many times.
//! * [`matmul`] multiplies two run-time matrices (attention).
//! * [`CodedConv`] is a convolution, or a matrix product, from 8-bit [`Codes`] to codes, in whole numbers.
//! * The other kernels are functions over slices.
//!
//! Nothing here allocates after construction. A kernel that needs memory takes a `scratch` slice of
//! at least as many floats as its `scratch_len` says; its contents don't matter before and after. Sizes
//! are checked with assertions at entry: a wrong length is a bug of the caller, not of the model. Inputs and
//! outputs of one call are separate slices, so they can't overlap.
//!
//! Sums of codes are exact, and rounded once. Else errors are those of rounding: sums are taken in `f32` with FMA
//! (where the set has it) in an order that depends on the instruction set and the kernel, but not on the
//! batch. A row has the same bits alone and in a batch unless the documentation of a kernel says otherwise.
//!
//! `tests/kernels` compiles this room alone, and `.ci/run sanitize` runs its tests there with
//! AddressSanitizer, which sees a read or a write one element beyond a slice.
//!
//! A compiler that keeps the sums of a register tile in memory takes two thirds of its speed, and changes no
//! answer. `benches/spills.py target/release/corelane` finds such loops in a program for x86-64.
//!
//! # How near to the peak, on ARM
//! `benches/mca.py` gives assembly for aarch64 to `llvm-mca` and says how the loops compare with a loop of
//! independent multiply-adds on a core. The register tile (matrix products, 1x1 and other convolutions; 6 rows
//! of A by vectors, multiplied by lane), by the models of LLVM 14.0.6 and of 22.1.8, which agree, code of rustc
//! 1.96 at `-O3`, and by rules for cores that run in order:
//!
//! | loop of 16 columns | multiply-adds | others | cortex-a72 | cortex-a76 | cortex-a53, rules | cortex-a55, rules |
//! |---|---|---|---|---|---|---|
//! | 6 rows | 96 | 23 | 100 % | 100 % | 49 % | 61 % |
//! | 5 rows | 80 | 22 | 100 % | 100 % | 45 % | 58 % |
//! | 4 rows | 64 | 21 | 100 % | 100 % | 40 % | 53 % |
//! | 3 rows | 48 | 20 | 100 % | 100 % | 34 % | 47 % |
//! | 6 rows, in order | 96 | 74 | 86 % | 86 % | 73 % | 93 % |
//! | 5 rows, in order | 80 | 70 | 83 % | 83 % | 61 % | 98 % |
//! | 4 rows, in order | 64 | 66 | 67 % | 67 % | 54 % | 91 % |
//!
//! LLVM has one model for the first two, and takes the data to be in the first-level cache. Its models of a
//! Cortex-A53 and a Cortex-A55 don't know what costs most there: a load of 128 bits takes two cycles in which
//! nothing else starts, one of 64 bits one, beside a multiply-add or not. (That of a Cortex-A53 stops for 5
//! cycles at each load between multiply-adds, and gives the loops 44 and 19 %; that of a Cortex-A55 starts two
//! multiply-adds of 128 bits in a cycle, where the core starts one.) So those columns come from
//! `benches/inorder.py`: rules that others measured on such boards, with their sources, for comparing loops.
//! None of it was measured on a board by us. By the rules a Cortex-A53 can't have more than 75 %: a load to a
//! vector register doesn't start beside a multiply-add, nor four cycles behind one.
//!
//! So both kinds of core have a loop of their own, for tiles of 4 to 6 rows, with the same packed weights and
//! the same bits as results ([`Kernels::with_in_order`]). A worker takes the one for its core, by the core's
//! id register; one that may run on unlike cores takes the first. To repeat it:
//!
//! ```text
//! cargo rustc --release --lib --target aarch64-unknown-linux-gnu -- \
//!     --emit asm=kernels.s -C codegen-units=1
//! benches/mca.py kernels.s --only RunTiles --in-order
//! ```
//!
//! 32-bit ARM multiplies matrices by loops in assembly where the processor has NEON ([`Isa::Neon32`]), and runs
//! portable kernels for all else, since Rust's intrinsics for it are not stable. The loop of a whole tile, 4 rows
//! by 8 columns, has 42 instructions for 128 products (32 multiply-adds of 4 lanes, 8 loads, 2 to count), where
//! the portable one, 6 rows by 8 columns, has 144 for 48.
//! LLVM 22.1.8 has no model of a Cortex-A7 that `llvm-mca` takes; by those of a Cortex-A9 and, of the same loop
//! on a 64-bit core, of a Cortex-A57, it takes 91 % and 89 % of the rate of its multiply-adds alone.
//!
//! # AVX-512
//! [`Isa::Avx512`] has been tested in an emulator (`tests/kernels/emulate`, `.ci/run avx512`; `dscnn_kws`, `resnet8`
//! and `vww` give their goldens there) and timed nowhere, so that all that is known of its speed is a static
//! analysis. The loops of the register tile by the models of LLVM
//! 22.1.8, code of rustc 1.95 at `-O3`, and two of 12 rows, which were tried:
//!
//! | loop | multiply-adds | others | skylake-avx512 | icelake-server | sapphirerapids | znver4 |
//! |---|---|---|---|---|---|---|
//! | 10 rows, 32 columns | 20 | 16 | 90 % | 100 % | 100 % | 67 % |
//! | 8 rows, 32 columns | 16 | 14 | 88 % | 100 % | 100 % | 67 % |
//! | 6 rows, 32 columns | 12 | 12 | 85 % | 99 % | 100 % | 67 % |
//! | 10 rows, 16 columns | 10 | 5 | 90 % | 99 % | 99 % | 99 % |
//! | 12 rows, 32 columns | 24 | 20 | 92 % | 100 % | 100 % | 67 % |
//! | 12 rows, 16 columns | 12 | 7 | 75 % | 100 % | 99 % | 100 % |
//!
//! Twelve rows have more pointers than there are registers for them, which costs most where there is one vector of
//! columns. The models of an Ice Lake and a Sapphire Rapids start one multiply-add of 512 bits in a cycle, that of
//! a Skylake two; that of a Zen 4 starts one, and lets a broadcast into a register take the place of another. Each
//! starts two of 256 bits, of which the tile of 6 rows by 16 columns takes 99 %: where the models of the last three
//! are right, AVX2 is as fast, and faster on a Zen 4 (`corelane bench engine --isa avx2`).
//!
//! A panel has 32 columns. Of a layer's last panel one vector is computed where the layer has up to 16 channels
//! left for it: then 9 to 16 take half the instructions that they take with AVX2, 1 to 8 as many. To repeat it:
//!
//! ```text
//! cargo rustc --release --lib --manifest-path tests/kernels/Cargo.toml --config profile.release.opt-level=3 \
//!     --config profile.release.debug-assertions=false --target-dir target/kernels -- \
//!     --emit asm=kernels.s -C codegen-units=1 -C symbol-mangling-version=v0
//! benches/mca.py kernels.s --only RunTiles --least 6
//! ```

mod activation;
mod aligned;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod cast;
mod coded;
mod codes;
mod conv;
mod depthwise;
mod direct;
mod elementwise;
mod gemm;
#[cfg(target_arch = "aarch64")]
mod inorder;
mod integer;
mod isa;
mod layout;
mod math;
mod matmul;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "arm")]
mod neon32;
mod panels;
mod pool;
mod quant;
mod recurrent;
mod reduce;
mod simd;
mod winograd;

#[cfg(test)]
mod tests;

pub use activation::Activation;
pub use aligned::AlignedBuf;
pub use coded::CodedConv;
pub use codes::{Codes, add_codes, decode, encode};
pub use conv::{Conv2d, ConvAlgorithm, ConvParams, KernelError};
pub use elementwise::{Binary, Broadcast, Unary, binary, binary_inplace, unary, unary_inplace};
pub use isa::{Isa, IsaUnavailable};
pub use layout::transpose;
pub use matmul::{MatMulParams, PackedMatMul, matmul, matmul_scratch_len};
pub use pool::{PoolKind, PoolParams, pool2d};
pub use quant::{Grid, Quantised, Scale, dequantize, half_to_single, quantize, single_to_half};
pub use recurrent::{Gru, Lstm, Sequence};
pub use reduce::{
    LayerNorm, Reduction, layer_norm, layer_norm_inplace, reduce, softmax, softmax_inplace,
};

/// The instruction set that kernels run with: proof that this processor has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernels {
    checked: isa::Checked,
}

impl Kernels {
    /// Kernels for `isa`, or an error if this processor lacks it.
    pub fn new(isa: Isa) -> Result<Kernels, IsaUnavailable> {
        Ok(Kernels { checked: isa::Checked::new(isa)? })
    }

    /// Kernels for the best that this processor has.
    pub fn best() -> Kernels {
        match Kernels::new(Isa::detect()) {
            Ok(kernels) => kernels,
            // `detect` only names sets that are available.
            Err(e) => unreachable!("{e}"),
        }
    }

    /// The same, with loops for cores that run in order, or without; no difference where there are none. Packed
    /// weights serve both, and results have the same bits.
    pub fn with_in_order(self, in_order: bool) -> Kernels {
        Kernels { checked: self.checked.with_in_order(in_order) }
    }

    /// Whether loops for cores that run in order are taken, where there are any.
    #[cfg(test)]
    pub(crate) fn in_order(&self) -> bool {
        self.checked.in_order()
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.checked.isa()
    }

    /// Whether products of codes ([`CodedConv`]) take less time than those of what the codes stand for: with AVX2
    /// they do, two thirds. The others' instructions multiply no more integers at a time than floats.
    pub fn prefers_codes(&self) -> bool {
        matches!(self.isa(), Isa::Avx2 | Isa::Avx512)
    }
}
