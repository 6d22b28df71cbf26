//! Convolutions and matrix products from codes to codes.

use super::codes::{Codes, Ends, Whole};
use super::conv::{ConvParams, KernelError};
use super::depthwise::{self, Depthwise};
use super::gemm::panel_columns;
use super::integer::{Panels, Rows, Source};
use super::{Isa, Kernels, cast};
use serde::{Deserialize, Serialize};

/// The largest sum that depthwise kernels, which compute with floats, have exactly.
const DEPTHWISE_MAX: i64 = 1 << 24;

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Weights {
    Product(Panels),
    Depthwise(depthwise::Weights, Ends),
}

/// A convolution of codes with its weights packed: `y = conv(x) + bias`, rounded once to the result's steps (a value
/// in the middle to an even multiple) and bounded to what its codes stand for. A matrix product is one of 1x1
/// over images of one pixel.
///
/// Sums are whole numbers, exact whichever the instruction set and the batch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CodedConv {
    params: ConvParams,
    isa: Isa,
    weights: Weights,
}

impl CodedConv {
    /// Packs `weights`, `[c_out, c_in / groups, kernel_h, kernel_w]`, and `bias` (`c_out` floats), for codes `x` of the
    /// input and `y` of the result.
    ///
    /// # Errors
    /// Lengths that don't fit; `Geometry` where weights of a channel are not multiples of one step, sums could be
    /// too large, or there are groups of more than one channel; `Taps` where a depthwise kernel has too many.
    pub fn new(
        kernels: &Kernels,
        params: ConvParams,
        weights: &[f32],
        bias: Option<&[f32]>,
        (x, y): (Codes, Codes),
    ) -> Result<CodedConv, KernelError> {
        let (p, isa) = (params, kernels.isa());
        if [p.c_in, p.c_out, p.kernel_h, p.kernel_w, p.stride_h, p.stride_w].contains(&0) {
            return Err(KernelError::Geometry("channels, kernel and stride must be at least 1"));
        }
        let depthwise = p.groups > 1;
        if depthwise && (p.groups != p.c_in || p.groups != p.c_out) {
            return Err(KernelError::Geometry("groups of codes must have one channel each"));
        }
        let taps = p.kernel_h * p.kernel_w;
        let want = p.c_out * (p.c_in / p.groups.max(1)) * taps;
        if weights.len() != want {
            return Err(KernelError::Length { what: "weights", want, got: weights.len() });
        }
        if let Some(b) = bias.filter(|b| b.len() != p.c_out) {
            return Err(KernelError::Length { what: "bias", want: p.c_out, got: b.len() });
        }
        if depthwise && taps > depthwise::TAPS_MAX {
            return Err(KernelError::Taps { taps, max: depthwise::TAPS_MAX });
        }
        let padded = match depthwise {
            true => depthwise::padded(p.c_out),
            false => p.c_out.next_multiple_of(panel_columns(isa)),
        };
        let whole = Whole::new((p.c_out, padded), weights, bias, x, y)?;
        let weights = if depthwise {
            if whole.largest > DEPTHWISE_MAX {
                return Err(KernelError::Geometry("the sums are too large for exact floats"));
            }
            let bias: Vec<f32> = whole.bias.iter().map(|&bias| bias as f32).collect();
            let floats: Vec<f32> = whole.weights.iter().flatten().map(|&w| w.into()).collect();
            let packed = depthwise::Weights::pack(&p, &floats, Some(&bias)).among_codes(x.zero());
            Weights::Depthwise(packed, whole.ends)
        } else {
            // A window's taps lie tap by tap, the weights channel by channel.
            let order = |i: usize| i % p.c_in * taps + i / p.c_in;
            Weights::Product(Panels::pack(isa, taps * p.c_in, whole, order))
        };
        Ok(CodedConv { params, isa, weights })
    }

    /// The geometry.
    pub fn params(&self) -> &ConvParams {
        &self.params
    }

    /// A short name for `inspect`.
    pub fn name(&self) -> &'static str {
        match self.weights {
            Weights::Product(_) if self.params.pointwise() => "pointwise",
            Weights::Product(_) => "windows",
            Weights::Depthwise(..) => "depthwise",
        }
    }

    /// Bytes of packed weights, bias and scales.
    pub fn bytes(&self) -> usize {
        match &self.weights {
            Weights::Product(panels) => panels.bytes(),
            Weights::Depthwise(weights, ends) => weights.bytes() + ends.bytes(),
        }
    }

    /// Pixels of `batch` results.
    fn pixels(&self, batch: usize) -> usize {
        let (h, w) = self.params.output();
        batch * h * w
    }

    /// Rows of results of the matrix product that `batch` images take; 0 where there is none.
    pub fn product_rows(&self, batch: usize) -> usize {
        match self.weights {
            Weights::Product(_) => self.pixels(batch),
            Weights::Depthwise(..) => 0,
        }
    }

    /// Floats of scratch that `run` needs for `batch` images.
    pub fn scratch_len(&self, batch: usize) -> usize {
        match &self.weights {
            Weights::Product(panels) => {
                panels.widened_len(self.isa, self.pixels(batch)).div_ceil(2)
            }
            Weights::Depthwise(..) => 0,
        }
    }

    /// Convolves `batch` images: `x` is `[batch, height, width, c_in]`, `y` `[batch, out_height, out_width, c_out]`.
    ///
    /// # Panics
    /// If a slice has another length, scratch is too short, or the weights were packed for another
    /// instruction set.
    pub fn run(
        &self,
        kernels: &Kernels,
        batch: usize,
        x: &[u8],
        y: &mut [u8],
        scratch: &mut [f32],
    ) {
        let p = &self.params;
        assert_eq!(self.isa, kernels.isa(), "weights packed for another instruction set");
        assert_eq!(x.len(), batch * p.input_len(), "input of {batch} images");
        assert_eq!(y.len(), batch * p.output_len(), "output of {batch} images");
        let need = self.scratch_len(batch);
        assert!(scratch.len() >= need, "scratch: needs {need} floats, got {}", scratch.len());
        match &self.weights {
            Weights::Product(b) => kernels.checked.dispatch(Rows {
                isa: self.isa,
                a: x,
                source: if p.pointwise() { Source::Dense } else { Source::Windows(p) },
                m: self.pixels(batch),
                b,
                y,
                widened: cast::shorts_mut(scratch),
            }),
            Weights::Depthwise(w, ends) => {
                kernels.checked.dispatch(Depthwise {
                    p,
                    w,
                    batch,
                    x,
                    res: None,
                    end: ends.at(0),
                    y,
                });
            }
        }
    }
}
