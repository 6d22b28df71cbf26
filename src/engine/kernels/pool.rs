//! Pooling, NHWC.

use super::Kernels;
use super::isa::Op;
use super::simd::Simd;
use serde::{Deserialize, Serialize};

/// What a window becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolKind {
    /// The greatest of the window; pads don't count. NaN in the window makes it NaN. A window with no pixel
    /// inside the image gives negative infinity.
    Max,
    /// The mean of the window. A window with no pixel inside the image gives NaN (0, if pads count).
    Average {
        /// Whether pads count as zeros.
        count_include_pad: bool,
    },
}

/// Geometry of a pooling, per image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolParams {
    /// What a window becomes.
    pub kind: PoolKind,
    /// Height of an input image.
    pub height: usize,
    /// Width of an input image.
    pub width: usize,
    /// Channels.
    pub channels: usize,
    /// Height of the window.
    pub kernel_h: usize,
    /// Width of the window.
    pub kernel_w: usize,
    /// Vertical step.
    pub stride_h: usize,
    /// Horizontal step.
    pub stride_w: usize,
    /// Rows of padding above.
    pub pad_top: usize,
    /// Columns of padding on the left.
    pub pad_left: usize,
    /// Rows of padding below.
    pub pad_bottom: usize,
    /// Columns of padding on the right.
    pub pad_right: usize,
    /// Whether a last window that is partly outside counts (ONNX `ceil_mode`).
    pub ceil_mode: bool,
}

impl PoolParams {
    /// Height and width of an output image.
    pub fn output(&self) -> (usize, usize) {
        let axis = |len: usize, before: usize, after: usize, k: usize, stride: usize| {
            let Some(room) = (len + before + after).checked_sub(k) else { return 0 };
            let mut n = if self.ceil_mode { room.div_ceil(stride) } else { room / stride } + 1;
            // A window that would begin in the padding after the image does not count.
            if self.ceil_mode && (n - 1) * stride >= len + before {
                n -= 1;
            }
            n
        };
        (
            axis(self.height, self.pad_top, self.pad_bottom, self.kernel_h, self.stride_h),
            axis(self.width, self.pad_left, self.pad_right, self.kernel_w, self.stride_w),
        )
    }
}

struct PoolOp<'a> {
    p: &'a PoolParams,
    batch: usize,
    x: &'a [f32],
    y: &'a mut [f32],
}

/// The part of a window inside the image: (first, end, length with pads).
#[inline(always)]
fn window(o: usize, stride: usize, pad: usize, k: usize, len: usize, after: usize) -> [usize; 3] {
    let start = o * stride;
    let end = (start + k).min(len + pad + after);
    let first = start.max(pad) - pad;
    let last = end.saturating_sub(pad).min(len);
    [first, last.max(first), end - start]
}

impl Op for PoolOp<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let p = self.p;
        let (oh, ow) = p.output();
        let c = p.channels;
        for n in 0..self.batch {
            let image = &self.x[n * p.height * p.width * c..][..p.height * p.width * c];
            for oy in 0..oh {
                let [y0, y1, h] =
                    window(oy, p.stride_h, p.pad_top, p.kernel_h, p.height, p.pad_bottom);
                for ox in 0..ow {
                    let [x0, x1, w] =
                        window(ox, p.stride_w, p.pad_left, p.kernel_w, p.width, p.pad_right);
                    let out = &mut self.y[((n * oh + oy) * ow + ox) * c..][..c];
                    let count = match p.kind {
                        PoolKind::Average { count_include_pad: true } => h * w,
                        _ => (y1 - y0) * (x1 - x0),
                    };
                    let scale = 1.0 / count as f32;
                    let mut k = 0;
                    while k < c {
                        let part = S::LANES.min(c - k);
                        // SAFETY: pixels `y0..y1`, `x0..x1` lie within the image, `part` channels from
                        // `k` within a pixel.
                        unsafe {
                            let load = |y: usize, x: usize| {
                                let q = image.as_ptr().add((y * p.width + x) * c + k);
                                if part < S::LANES { S::load_part(q, part) } else { S::load(q) }
                            };
                            let v = if p.kind == PoolKind::Max {
                                let mut acc = S::splat(f32::NEG_INFINITY);
                                for y in y0..y1 {
                                    for x in x0..x1 {
                                        let v = load(y, x);
                                        acc = S::select(S::ordered(acc), S::max(acc, v), acc);
                                    }
                                }
                                acc
                            } else {
                                let mut acc = S::splat(0.0);
                                for y in y0..y1 {
                                    for x in x0..x1 {
                                        acc = S::add(acc, load(y, x));
                                    }
                                }
                                S::mul(acc, S::splat(scale))
                            };
                            let q = out.as_mut_ptr().add(k);
                            if part < S::LANES { S::store_part(q, v, part) } else { S::store(q, v) }
                        }
                        k += part;
                    }
                }
            }
        }
    }
}

/// Pools `batch` images. (A global pooling is faster as [`reduce`](super::reduce) over the pixels.)
///
/// # Panics
/// If a stride is 0, or a length does not fit the geometry.
pub fn pool2d(kernels: &Kernels, p: &PoolParams, batch: usize, x: &[f32], y: &mut [f32]) {
    assert!(p.stride_h > 0 && p.stride_w > 0, "pool2d: strides must be at least 1");
    let (oh, ow) = p.output();
    assert_eq!(x.len(), batch * p.height * p.width * p.channels, "pool2d: input");
    assert_eq!(y.len(), batch * oh * ow * p.channels, "pool2d: output");
    kernels.checked.dispatch(PoolOp { p, batch, x, y });
}
