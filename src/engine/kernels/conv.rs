//! Two-dimensional convolution (one-dimensional with a height of 1), NHWC.

use super::activation::{self, Activation};
use super::aligned::AlignedBuf;
use super::depthwise::{self, Depthwise};
use super::direct::{self, Direct};
use super::gemm::{self, Dest, Panels, tile_rows};
use super::winograd::{self, Kind};
use super::{Isa, Kernels};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Geometry of a convolution, per image. Lengths are in elements, pads in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvParams {
    /// Height of an input image; 1 for a one-dimensional convolution.
    pub height: usize,
    /// Width of an input image.
    pub width: usize,
    /// Input channels, all groups together.
    pub c_in: usize,
    /// Output channels, all groups together.
    pub c_out: usize,
    /// Height of the kernel.
    pub kernel_h: usize,
    /// Width of the kernel.
    pub kernel_w: usize,
    /// Vertical step.
    pub stride_h: usize,
    /// Horizontal step.
    pub stride_w: usize,
    /// Vertical distance of taps.
    pub dilation_h: usize,
    /// Horizontal distance of taps.
    pub dilation_w: usize,
    /// Rows of zeros above.
    pub pad_top: usize,
    /// Columns of zeros on the left.
    pub pad_left: usize,
    /// Rows of zeros below.
    pub pad_bottom: usize,
    /// Columns of zeros on the right.
    pub pad_right: usize,
    /// Groups; `c_in` for a depthwise convolution.
    pub groups: usize,
}

impl ConvParams {
    /// A convolution with stride and dilation 1, no pads, one group.
    pub fn new(
        (height, width): (usize, usize),
        (c_in, c_out): (usize, usize),
        (kernel_h, kernel_w): (usize, usize),
    ) -> ConvParams {
        ConvParams {
            height,
            width,
            c_in,
            c_out,
            kernel_h,
            kernel_w,
            stride_h: 1,
            stride_w: 1,
            dilation_h: 1,
            dilation_w: 1,
            pad_top: 0,
            pad_left: 0,
            pad_bottom: 0,
            pad_right: 0,
            groups: 1,
        }
    }

    /// Height and width of an output image; 0 where the kernel does not fit.
    pub fn output(&self) -> (usize, usize) {
        let axis = |len: usize, pads: usize, k: usize, dilation: usize, stride: usize| {
            let reach = dilation * (k.max(1) - 1) + 1;
            (len + pads + stride).saturating_sub(reach).checked_div(stride).unwrap_or(0)
        };
        (
            axis(
                self.height,
                self.pad_top + self.pad_bottom,
                self.kernel_h,
                self.dilation_h,
                self.stride_h,
            ),
            axis(
                self.width,
                self.pad_left + self.pad_right,
                self.kernel_w,
                self.dilation_w,
                self.stride_w,
            ),
        )
    }

    /// Floats of an input image.
    pub fn input_len(&self) -> usize {
        self.height * self.width * self.c_in
    }

    /// Floats of an output image.
    pub fn output_len(&self) -> usize {
        let (h, w) = self.output();
        h * w * self.c_out
    }

    /// Multiply-accumulates for an image.
    pub fn macs(&self) -> u64 {
        let (h, w) = self.output();
        let taps = self.kernel_h * self.kernel_w * (self.c_in / self.groups.max(1));
        (h * w * self.c_out) as u64 * taps as u64
    }

    /// Whether it is a matrix product over the pixels as they lie: 1x1, without stride, pads or groups.
    pub fn pointwise(&self) -> bool {
        self.kernel_h == 1
            && self.kernel_w == 1
            && self.stride_h == 1
            && self.stride_w == 1
            && self.groups == 1
            && (self.pad_top, self.pad_left, self.pad_bottom, self.pad_right) == (0, 0, 0, 0)
    }
}

/// How a convolution is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConvAlgorithm {
    /// A matrix product over pixels (1x1, stride 1).
    Pointwise,
    /// The register tile over taps, through pointers.
    Direct,
    /// One channel in, one out, per group.
    Depthwise,
    /// Winograd with 2x2 outputs a tile (3x3).
    Winograd2,
    /// Winograd with 4x4 outputs a tile (3x3), or 4 (1x3 and 1x5).
    Winograd4,
}

impl ConvAlgorithm {
    /// A short name for `inspect`.
    pub const fn name(self) -> &'static str {
        match self {
            ConvAlgorithm::Pointwise => "pointwise",
            ConvAlgorithm::Direct => "direct",
            ConvAlgorithm::Depthwise => "depthwise",
            ConvAlgorithm::Winograd2 => "winograd2",
            ConvAlgorithm::Winograd4 => "winograd4",
        }
    }
}

/// Why a kernel can't be made for an operator. Fall back to another implementation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelError {
    /// A length does not fit the geometry.
    Length {
        /// Of what.
        what: &'static str,
        /// What the geometry asks for.
        want: usize,
        /// What was given.
        got: usize,
    },
    /// Groups that don't divide the channels, or a zero where none can be.
    Geometry(&'static str),
    /// More taps than the pointer table holds.
    Taps {
        /// Taps of the kernel.
        taps: usize,
        /// The most that there can be.
        max: usize,
    },
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelError::Length { what, want, got } => {
                write!(f, "{what}: {want} values are needed, {got} were given")
            }
            KernelError::Geometry(what) => f.write_str(what),
            KernelError::Taps { taps, max } => {
                write!(f, "a kernel of {taps} taps; at most {max} are supported")
            }
        }
    }
}

impl std::error::Error for KernelError {}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Weights {
    /// One matrix a group, and zeros for taps that fall outside.
    Panels { groups: Vec<Panels>, zeros: AlignedBuf },
    /// One channel a group.
    Depthwise(depthwise::Weights),
    /// A matrix for each point.
    Winograd(winograd::Weights),
}

/// A convolution with its weights packed: `y = act(conv(x) + bias + residual)`.
///
/// The batch is given at run time, so that plans of several batch sizes share one. The order of
/// summation does not depend on the batch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Conv2d {
    params: ConvParams,
    isa: Isa,
    algorithm: ConvAlgorithm,
    weights: Weights,
}

impl Conv2d {
    /// Packs `weights`, `[c_out, c_in / groups, kernel_h, kernel_w]` as ONNX has them, and `bias` (`c_out`
    /// floats). Chooses the algorithm by the shape.
    ///
    /// # Errors
    /// Lengths that don't fit, groups that don't divide the channels, a zero size, or too many taps.
    pub fn new(
        kernels: &Kernels,
        params: ConvParams,
        weights: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<Conv2d, KernelError> {
        Conv2d::with_algorithm(kernels, params, weights, bias, None)
    }

    /// [`new`](Self::new) with an algorithm asked for; none for the fastest.
    ///
    /// # Errors
    /// As `new`, and `Geometry` if the algorithm can't compute the convolution.
    pub fn with_algorithm(
        kernels: &Kernels,
        params: ConvParams,
        weights: &[f32],
        bias: Option<&[f32]>,
        wanted: Option<ConvAlgorithm>,
    ) -> Result<Conv2d, KernelError> {
        // One column lies in memory as one row does.
        let params = if params.width == 1
            && params.kernel_w == 1
            && params.stride_w == 1
            && params.pad_left + params.pad_right == 0
        {
            ConvParams {
                height: 1,
                width: params.height,
                kernel_h: 1,
                kernel_w: params.kernel_h,
                stride_h: 1,
                stride_w: params.stride_h,
                dilation_h: 1,
                dilation_w: params.dilation_h,
                pad_top: 0,
                pad_bottom: 0,
                pad_left: params.pad_top,
                pad_right: params.pad_bottom,
                ..params
            }
        } else {
            params
        };
        let p = params;
        if p.groups == 0 || !p.c_in.is_multiple_of(p.groups) || !p.c_out.is_multiple_of(p.groups) {
            return Err(KernelError::Geometry("groups must divide both channel counts"));
        }
        if [p.kernel_h, p.kernel_w, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w].contains(&0)
        {
            return Err(KernelError::Geometry("kernel, stride and dilation must be at least 1"));
        }
        let (cin_g, cout_g) = (p.c_in / p.groups, p.c_out / p.groups);
        let taps = p.kernel_h * p.kernel_w;
        let want = p.c_out * cin_g * taps;
        if weights.len() != want {
            return Err(KernelError::Length { what: "weights", want, got: weights.len() });
        }
        if let Some(b) = bias.filter(|b| b.len() != p.c_out) {
            return Err(KernelError::Length { what: "bias", want: p.c_out, got: b.len() });
        }
        let isa = kernels.isa();
        let max = gemm::TABLE / tile_rows(isa);
        if taps > max {
            return Err(KernelError::Taps { taps, max });
        }
        let fits = |a: ConvAlgorithm| match a {
            ConvAlgorithm::Pointwise => p.pointwise(),
            ConvAlgorithm::Direct => true,
            ConvAlgorithm::Depthwise => {
                p.groups > 1 && cin_g == 1 && cout_g == 1 && taps <= depthwise::TAPS_MAX
            }
            ConvAlgorithm::Winograd2 => Kind::Square2.fits(&p, isa),
            ConvAlgorithm::Winograd4 => winograd4(&p, isa).is_some(),
        };
        let algorithm = wanted.unwrap_or_else(|| {
            if fits(ConvAlgorithm::Depthwise) {
                ConvAlgorithm::Depthwise
            } else if fits(ConvAlgorithm::Pointwise) {
                ConvAlgorithm::Pointwise
            } else {
                fastest(&p, isa)
            }
        });
        if !fits(algorithm) {
            return Err(KernelError::Geometry("the algorithm can't compute this convolution"));
        }
        let kind = match algorithm {
            ConvAlgorithm::Winograd2 => Some(Kind::Square2),
            ConvAlgorithm::Winograd4 => winograd4(&p, isa),
            _ => None,
        };
        if let Some(kind) = kind {
            let w = winograd::Weights::pack(isa, kind, &p, weights, bias);
            return Ok(Conv2d { params, isa, algorithm, weights: Weights::Winograd(w) });
        }
        if algorithm == ConvAlgorithm::Depthwise {
            let weights = Weights::Depthwise(depthwise::Weights::pack(&p, weights, bias));
            return Ok(Conv2d { params, isa, algorithm, weights });
        }
        let groups = (0..p.groups)
            .map(|g| {
                // Rows in the order in which the runs read the input: kernel row, column, channel.
                let at = |i: usize, j: usize| {
                    let (tap, c) = (i / cin_g, i % cin_g);
                    weights[((g * cout_g + j) * cin_g + c) * taps + tap]
                };
                let bias = bias.map(|b| &b[g * cout_g..][..cout_g]);
                Panels::pack(isa, taps * cin_g, cout_g, at, bias)
            })
            .collect();
        let weights = Weights::Panels { groups, zeros: AlignedBuf::zeroed(cin_g) };
        Ok(Conv2d { params, isa, algorithm, weights })
    }

    /// The geometry; of one column as of one row.
    pub fn params(&self) -> &ConvParams {
        &self.params
    }

    /// How it is computed.
    pub fn algorithm(&self) -> ConvAlgorithm {
        self.algorithm
    }

    /// Bytes of packed weights and bias.
    pub fn bytes(&self) -> usize {
        match &self.weights {
            Weights::Panels { groups, zeros } => {
                groups.iter().map(|g| g.data.bytes() + g.bias.bytes()).sum::<usize>()
                    + zeros.bytes()
            }
            Weights::Depthwise(w) => w.bytes(),
            Weights::Winograd(w) => w.bytes(),
        }
    }

    /// Rows of results of the matrix products that `batch` images take; 0 where there are none.
    pub fn product_rows(&self, batch: usize) -> usize {
        match &self.weights {
            Weights::Panels { .. } => {
                let (h, w) = self.params.output();
                batch * h * w
            }
            Weights::Depthwise(_) => 0,
            Weights::Winograd(w) => w.tiles(&self.params, batch),
        }
    }

    /// Floats of scratch that `run` needs for `batch` images.
    pub fn scratch_len(&self, batch: usize) -> usize {
        match &self.weights {
            Weights::Winograd(w) => w.scratch_len(&self.params, batch),
            _ if self.algorithm == ConvAlgorithm::Direct => direct::padded(&self.params)
                .map_or(0, |p| p.input_len() * direct::images_at_once(&p, batch)),
            _ => 0,
        }
    }

    /// Convolves `batch` images: `x` is `[batch, height, width, c_in]`, `y` and `residual` are `[batch,
    /// out_height, out_width, c_out]`. The residual is added before the activation.
    ///
    /// # Panics
    /// If a slice has another length, scratch is too short, or the weights were packed for another
    /// instruction set.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        kernels: &Kernels,
        batch: usize,
        x: &[f32],
        residual: Option<&[f32]>,
        act: Activation,
        y: &mut [f32],
        scratch: &mut [f32],
    ) {
        let p = &self.params;
        assert_eq!(self.isa, kernels.isa(), "weights packed for another instruction set");
        assert_eq!(x.len(), batch * p.input_len(), "input of {batch} images");
        assert_eq!(y.len(), batch * p.output_len(), "output of {batch} images");
        if let Some(r) = residual {
            assert_eq!(r.len(), y.len(), "residual of {batch} images");
        }
        let need = self.scratch_len(batch);
        assert!(scratch.len() >= need, "scratch: needs {need} floats, got {}", scratch.len());
        let (oh, ow) = p.output();
        let pixels = batch * oh * ow;
        let res = residual.map_or(core::ptr::null(), <[f32]>::as_ptr);
        let dest = Dest { c: y.as_mut_ptr(), ldc: p.c_out, res, ldr: p.c_out, act };
        match &self.weights {
            Weights::Depthwise(w) => {
                kernels.checked.dispatch(Depthwise {
                    p,
                    w,
                    batch,
                    x,
                    res: residual,
                    end: act.fused().0,
                    y: &mut *y,
                });
                if !act.fused().1 {
                    activation::apply(kernels.checked, act, y);
                }
            }
            Weights::Winograd(w) => {
                w.run(kernels.checked, p, batch, x, residual, act, y, scratch);
            }
            Weights::Panels { groups, .. } if self.algorithm == ConvAlgorithm::Pointwise => {
                let b = groups[0].view();
                // SAFETY: the lengths of `x`, `y` and the residual were checked above.
                unsafe {
                    gemm::run_rows(kernels.checked, x.as_ptr(), p.c_in, pixels, &b, &dest);
                }
            }
            Weights::Panels { groups, zeros } => {
                let zeros = zeros.as_ptr();
                if let (Some(padded), [panels]) = (direct::padded(p), &groups[..]) {
                    let each = direct::images_at_once(&padded, batch);
                    let (isa, b) = (kernels.checked, panels.view());
                    for first in (0..batch).step_by(each.max(1)) {
                        let images = each.min(batch - first);
                        let x = &x[first * p.input_len()..][..images * p.input_len()];
                        let x = direct::pad(p, x, scratch);
                        // SAFETY: pixels before this image's are within `y` and the residual, whose lengths
                        // were checked above.
                        let dest = unsafe { dest.rows_from(first * oh * ow) };
                        let pixels = images * oh * ow;
                        Direct { isa, p: &padded, pixels, x, channel: 0, b, zeros, dest }.run();
                    }
                    return;
                }
                for (g, panels) in groups.iter().enumerate() {
                    let (cin_g, cout_g) = (p.c_in / p.groups, p.c_out / p.groups);
                    let mut dest = dest;
                    // SAFETY: `g * cout_g < c_out`, so the pointers stay within the first pixel (no
                    // pixels: they are not used).
                    unsafe {
                        if pixels > 0 {
                            dest.c = dest.c.add(g * cout_g);
                            if !dest.res.is_null() {
                                dest.res = dest.res.add(g * cout_g);
                            }
                        }
                    }
                    let (isa, b, channel) = (kernels.checked, panels.view(), g * cin_g);
                    Direct { isa, p, pixels, x, channel, b, zeros, dest }.run();
                }
            }
        }
    }
}

/// The Winograd tile of 4 that fits, if one does.
fn winograd4(p: &ConvParams, isa: Isa) -> Option<Kind> {
    [Kind::Square4, Kind::Row3, Kind::Row5].into_iter().find(|k| k.fits(p, isa))
}

/// The algorithm with the least estimated time; Winograd only where it saves a tenth and its channels
/// are enough to fill the register tile.
fn fastest(p: &ConvParams, isa: Isa) -> ConvAlgorithm {
    let bytes = (p.c_out * p.c_in / p.groups * p.kernel_h * p.kernel_w * 4) as f64;
    let mut best = ((p.macs() as f64 / 45.0).max(bytes / 12.0) * 0.9, ConvAlgorithm::Direct);
    if p.c_in >= 16 && p.c_out >= 16 {
        let two = Kind::Square2.fits(p, isa).then_some((Kind::Square2, ConvAlgorithm::Winograd2));
        let four = winograd4(p, isa).map(|kind| (kind, ConvAlgorithm::Winograd4));
        for (kind, algorithm) in two.into_iter().chain(four) {
            let cost = kind.cost_ns(p);
            if cost < best.0 {
                best = (cost, algorithm);
            }
        }
    }
    best.1
}
