//! Changes of layout.

use super::Kernels;
use super::isa::Op;
use super::simd::Simd;

struct TransposeOp<'a> {
    rows: usize,
    cols: usize,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Op for TransposeOp<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        const BLOCK: usize = 8;
        let (rows, cols) = (self.rows, self.cols);
        if rows == 0 || cols == 0 {
            return;
        }
        for (x, y) in self.x.chunks_exact(rows * cols).zip(self.y.chunks_exact_mut(rows * cols)) {
            match rows {
                1 => y.copy_from_slice(x),
                3 => {
                    // Colour planes to pixels: three streams in, one out.
                    let (a, rest) = x.split_at(cols);
                    let (b, c) = rest.split_at(cols);
                    for (i, out) in y.chunks_exact_mut(3).enumerate() {
                        out[0] = a[i];
                        out[1] = b[i];
                        out[2] = c[i];
                    }
                }
                _ => {
                    for c0 in (0..cols).step_by(BLOCK) {
                        for r0 in (0..rows).step_by(BLOCK) {
                            for c in c0..(c0 + BLOCK).min(cols) {
                                let out = &mut y[c * rows + r0..][..BLOCK.min(rows - r0)];
                                for (r, out) in out.iter_mut().enumerate() {
                                    *out = x[(r0 + r) * cols + c];
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Transposes each of `batch` matrices of `rows` x `cols`. NCHW to NHWC is `rows` channels and `cols` pixels;
/// back, `rows` pixels and `cols` channels.
///
/// # Panics
/// If a slice does not have `batch * rows * cols` floats.
pub fn transpose(
    kernels: &Kernels,
    batch: usize,
    rows: usize,
    cols: usize,
    x: &[f32],
    y: &mut [f32],
) {
    assert_eq!(x.len(), batch * rows * cols, "transpose: input");
    assert_eq!(y.len(), batch * rows * cols, "transpose: output");
    kernels.checked.dispatch(TransposeOp { rows, cols, x, y });
}
