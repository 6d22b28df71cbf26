//! The columns of B of a matrix product, packed in panels as the register tile reads them.

use super::aligned::AlignedBuf;
use super::gemm::panel_columns;
use super::isa::Isa;
use serde::{Deserialize, Serialize};

/// A `k` x `n` matrix in panels, with a bias per column (zero where none was given).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Panels {
    pub(super) data: AlignedBuf,
    pub(super) bias: AlignedBuf,
    pub(super) k: usize,
    pub(super) n: usize,
    pub(super) nr: usize,
}

impl Panels {
    /// Packs the matrix whose element at row `i` and column `j` is `at(i, j)`.
    pub(super) fn pack(
        isa: Isa,
        k: usize,
        n: usize,
        at: impl Fn(usize, usize) -> f32,
        bias: Option<&[f32]>,
    ) -> Panels {
        let nr = panel_columns(isa);
        let count = n.div_ceil(nr);
        let mut data = AlignedBuf::zeroed(count * nr * k);
        let mut padded = AlignedBuf::zeroed(count * nr);
        if let Some(bias) = bias {
            padded[..n].copy_from_slice(bias);
        }
        if k > 0 {
            for (p, panel) in data.chunks_exact_mut(k * nr).enumerate() {
                for (i, row) in panel.chunks_exact_mut(nr).enumerate() {
                    for (j, x) in row.iter_mut().enumerate().take(n - p * nr) {
                        *x = at(i, p * nr + j);
                    }
                }
            }
        }
        Panels { data, bias: padded, k, n, nr }
    }

    /// The view that kernels take.
    pub(super) fn view(&self) -> B {
        B { data: self.data.as_ptr(), bias: self.bias.as_ptr(), k: self.k, n: self.n, nr: self.nr }
    }
}

/// Packed panels, by pointer: `n.div_ceil(nr) * nr * k` floats, and a bias padded to whole panels.
#[derive(Debug, Clone, Copy)]
pub(super) struct B {
    pub(super) data: *const f32,
    pub(super) bias: *const f32,
    pub(super) k: usize,
    pub(super) n: usize,
    pub(super) nr: usize,
}
