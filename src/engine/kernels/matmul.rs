//! Matrix products: with constant weights, packed once, and of two run-time matrices.

use super::activation::Activation;
use super::gemm::{self, B, Dest, Panels, check_rows, panel_columns};
use super::{Isa, Kernels};
use serde::{Deserialize, Serialize};

/// A constant `k` x `n` matrix, packed, with an optional bias per column.
///
/// `run` computes `C = act(A * B + bias + residual)`. The sum over `k` is in order for each element, so
/// a row's bits don't depend on how many rows are computed at once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PackedMatMul {
    isa: Isa,
    panels: Panels,
}

impl PackedMatMul {
    /// Packs `b`: `k` rows of `n` floats, or, if `transposed`, `n` rows of `k` (Gemm's `transB`). `bias`
    /// has `n` floats.
    ///
    /// # Panics
    /// If `b` does not have `k * n` floats, or `bias` not `n`.
    pub fn new(
        kernels: &Kernels,
        k: usize,
        n: usize,
        b: &[f32],
        transposed: bool,
        bias: Option<&[f32]>,
    ) -> PackedMatMul {
        assert_eq!(b.len(), k * n, "weights of a {k} x {n} matrix");
        if let Some(bias) = bias {
            assert_eq!(bias.len(), n, "bias of {n} columns");
        }
        let at = |i: usize, j: usize| if transposed { b[j * k + i] } else { b[i * n + j] };
        PackedMatMul { isa: kernels.isa(), panels: Panels::pack(kernels.isa(), k, n, at, bias) }
    }

    /// Rows of the packed matrix: the length of the sums.
    pub fn k(&self) -> usize {
        self.panels.k
    }

    /// Columns of the packed matrix.
    pub fn n(&self) -> usize {
        self.panels.n
    }

    /// Bytes of packed weights and bias.
    pub fn bytes(&self) -> usize {
        self.panels.data.bytes() + self.panels.bias.bytes()
    }

    /// `m` rows: `a` has `k` floats a row at stride `lda`, `c` and `residual` have `n` a row at strides
    /// `ldc` and `n`.
    ///
    /// # Panics
    /// If a slice is too short for its rows, or the weights were packed for another instruction set.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        kernels: &Kernels,
        m: usize,
        a: &[f32],
        lda: usize,
        residual: Option<&[f32]>,
        act: Activation,
        c: &mut [f32],
        ldc: usize,
    ) {
        let (k, n) = (self.panels.k, self.panels.n);
        assert_eq!(self.isa, kernels.isa(), "weights packed for another instruction set");
        check_rows("A", a.len(), m, k, lda);
        check_rows("C", c.len(), m, n, ldc);
        if let Some(r) = residual {
            check_rows("residual", r.len(), m, n, n);
        }
        let res = residual.map_or(core::ptr::null(), <[f32]>::as_ptr);
        let dest = Dest { c: c.as_mut_ptr(), ldc, res, ldr: n, act };
        // SAFETY: the rows of A, C and the residual were checked above.
        unsafe {
            gemm::run_rows(kernels.checked, a.as_ptr(), lda, m, &self.panels.view(), &dest);
        }
    }
}

/// A product of two run-time matrices, `C = act(alpha * A * B)`, repeated over a batch.
///
/// Matrices are read in place by stride, so the heads of an attention layer need no transposition: head
/// `h` of queries `[tokens, heads * depth]` is `a[h * depth..]` with `lda = heads * depth`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MatMulParams {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Floats from a row of A to the next, at least `k`.
    pub lda: usize,
    /// Floats from a row of B, as it lies in memory, to the next.
    pub ldb: usize,
    /// Floats from a row of C to the next, at least `n`.
    pub ldc: usize,
    /// Whether B lies in memory as `n` rows of `k` (so that the product is `A * B^T` of what lies there).
    pub b_transposed: bool,
    /// Factor on the product.
    pub alpha: f32,
    /// Applied to each result.
    pub act: Activation,
}

/// Floats of scratch that [`matmul`] needs.
pub fn matmul_scratch_len(kernels: &Kernels, params: &MatMulParams) -> usize {
    let nr = panel_columns(kernels.isa());
    params.n.div_ceil(nr) * nr * (params.k + 1)
}

/// Packs `alpha * B` into panels of `nr` columns.
fn pack_panels(p: &MatMulParams, b: &[f32], packed: &mut [f32], nr: usize) {
    if p.k == 0 {
        return;
    }
    for (panel, out) in packed.chunks_exact_mut(p.k * nr).enumerate() {
        let col = panel * nr;
        let cols = nr.min(p.n - col);
        if cols < nr {
            out.fill(0.0);
        }
        if p.b_transposed {
            for j in 0..cols {
                let column = &b[(col + j) * p.ldb..][..p.k];
                for (row, y) in out.chunks_exact_mut(nr).zip(column) {
                    row[j] = p.alpha * y;
                }
            }
        } else {
            for (i, row) in out.chunks_exact_mut(nr).enumerate() {
                for (x, y) in row.iter_mut().zip(&b[i * p.ldb + col..][..cols]) {
                    *x = p.alpha * y;
                }
            }
        }
    }
}

/// One product of two run-time matrices; see [`MatMulParams`].
///
/// # Panics
/// If a slice is too short for its rows.
pub fn matmul(
    kernels: &Kernels,
    params: &MatMulParams,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    scratch: &mut [f32],
) {
    let p = *params;
    check_rows("A", a.len(), p.m, p.k, p.lda);
    if p.b_transposed {
        check_rows("B", b.len(), p.n, p.k, p.ldb);
    } else {
        check_rows("B", b.len(), p.k, p.n, p.ldb);
    }
    check_rows("C", c.len(), p.m, p.n, p.ldc);
    let need = matmul_scratch_len(kernels, params);
    assert!(scratch.len() >= need, "scratch: needs {need} floats, got {}", scratch.len());
    let nr = panel_columns(kernels.isa());
    let bias_len = p.n.div_ceil(nr) * nr;
    let (bias, packed) = scratch[..need].split_at_mut(bias_len);
    bias.fill(0.0);
    pack_panels(&p, b, packed, nr);
    let view = B { data: packed.as_ptr(), bias: bias.as_ptr(), k: p.k, n: p.n, nr };
    let dest = Dest { c: c.as_mut_ptr(), ldc: p.ldc, res: core::ptr::null(), ldr: 0, act: p.act };
    // SAFETY: the rows of A and C were checked above, and B is packed in scratch, which is as long as
    // its panels and the bias.
    unsafe { gemm::run_rows(kernels.checked, a.as_ptr(), p.lda, p.m, &view, &dest) };
}
