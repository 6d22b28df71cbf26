//! Winograd (Toom-Cook) convolution: stride 1, kernels of 3x3, 1x3 and 1x5.
//!
//! Tiles of input are transformed, multiplied point by point with transformed weights (one matrix product
//! over channels for each point), and transformed back: 4x4 outputs of a 3x3 kernel take 36
//! multiplications instead of 144, 4 of a 1x5 kernel 8 instead of 20. The price is rounding: against the
//! largest output, 6e-7 for 2x2 tiles and 5e-6 for the others, where a direct sum has 3e-7. The points were
//! chosen for that (0, 1, -1, 1/2, -2 has half the error of the usual 0, 1, -1, 2, -2). A NaN or
//! infinity in the input makes all outputs of its tile NaN, not only those that its kernel reaches.

use super::activation::{Activation, apply, apply_fused};
use super::aligned::AlignedBuf;
use super::conv::ConvParams;
use super::gemm::{self, Dest, Panels};
use super::isa::{Checked, Isa, Op};
use super::simd::Simd;
use core::mem::MaybeUninit;
use points::{F23, F43, F45, N, Points};
use serde::{Deserialize, Serialize};

mod points;

/// Floats of transformed input and output that a block of tiles may take.
const BLOCK_FLOATS: usize = 512 * 1024;

/// Which points, and whether in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// 2x2 outputs of a 3x3 kernel.
    Square2,
    /// 4x4 outputs of a 3x3 kernel.
    Square4,
    /// 4 outputs of a 1x3 kernel.
    Row3,
    /// 4 outputs of a 1x5 kernel.
    Row5,
}

impl Kind {
    const fn outputs(self) -> usize {
        match self {
            Kind::Square2 => F23::OUTPUTS,
            Kind::Square4 | Kind::Row3 => F43::OUTPUTS,
            Kind::Row5 => F45::OUTPUTS,
        }
    }
    const fn size(self) -> usize {
        match self {
            Kind::Square2 => F23::SIZE,
            Kind::Square4 | Kind::Row3 => F43::SIZE,
            Kind::Row5 => F45::SIZE,
        }
    }
    const fn taps(self) -> usize {
        match self {
            Kind::Square2 | Kind::Square4 | Kind::Row3 => 3,
            Kind::Row5 => F45::TAPS,
        }
    }
    const fn square(self) -> bool {
        matches!(self, Kind::Square2 | Kind::Square4)
    }
    const fn points(self) -> usize {
        if self.square() { self.size() * self.size() } else { self.size() }
    }

    /// Whether it can compute a convolution.
    pub(super) fn fits(self, p: &ConvParams, isa: Isa) -> bool {
        // Channels come in multiples of the first, and are a vector at least.
        let (multiple, lanes) = match isa {
            // The transforms would take longer than the products that they save.
            Isa::Portable | Isa::Neon32 => return false,
            Isa::Neon => (4, 4),
            Isa::Avx2 => (8, 8),
            Isa::Avx512 => (8, 16),
        };
        let channels = |c: usize| c.is_multiple_of(multiple) && c >= lanes;
        let rows = if self.square() { self.taps() } else { 1 };
        p.groups == 1
            && (p.kernel_h, p.kernel_w) == (rows, self.taps())
            && (p.stride_h, p.stride_w, p.dilation_h, p.dilation_w) == (1, 1, 1, 1)
            && channels(p.c_in)
            && channels(p.c_out)
    }

    /// Down and across, tiles of an image.
    fn tiles(self, p: &ConvParams) -> (usize, usize) {
        let (oh, ow) = p.output();
        let down = if self.square() { oh.div_ceil(self.outputs()) } else { oh };
        (down, ow.div_ceil(self.outputs()))
    }

    /// A rough time for one image, in nanoseconds of a core that makes 45 multiply-accumulates and reads
    /// 12 bytes of weights in each.
    pub(super) fn cost_ns(self, p: &ConvParams) -> f64 {
        let (down, across) = self.tiles(p);
        let points = (self.points() * down * across) as f64;
        let product = points * (p.c_in * p.c_out) as f64 / 45.0;
        let weights = (self.points() * p.c_in * p.c_out * 4) as f64 / 12.0;
        product.max(weights) + points * (p.c_in + p.c_out) as f64 * 0.3
    }
}

/// Transformed weights: a matrix for each point.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Weights {
    kind: Kind,
    points: Vec<Panels>,
    bias: AlignedBuf,
    zeros: AlignedBuf,
}

impl Weights {
    /// Transforms `[c_out, c_in, kernel_h, kernel_w]`, at double precision.
    pub(super) fn pack(
        isa: Isa,
        kind: Kind,
        p: &ConvParams,
        weights: &[f32],
        bias: Option<&[f32]>,
    ) -> Weights {
        let (taps, size, points) = (kind.taps(), kind.size(), kind.points());
        let transform: fn(&[f64]) -> [f64; N] = match kind {
            Kind::Square2 => F23::weights,
            Kind::Square4 | Kind::Row3 => F43::weights,
            Kind::Row5 => F45::weights,
        };
        let rows = if kind.square() { taps } else { 1 };
        let mut matrices = vec![vec![0.0f32; p.c_in * p.c_out]; points];
        for (oc, kernel) in weights.chunks_exact(rows * taps).enumerate() {
            let (o, c) = (oc / p.c_in, oc % p.c_in);
            let at = c * p.c_out + o;
            let mut across = [[0.0f64; N]; N];
            for (row, k) in across.iter_mut().zip(kernel.chunks_exact(taps)) {
                let mut w = [0.0; N];
                for (w, &k) in w.iter_mut().zip(k) {
                    *w = k.into();
                }
                *row = transform(&w[..taps]);
            }
            for j in 0..size {
                if kind.square() {
                    let column = [across[0][j], across[1][j], across[2][j]];
                    for (i, &v) in transform(&column).iter().enumerate().take(size) {
                        matrices[i * size + j][at] = v as f32;
                    }
                } else {
                    matrices[j][at] = across[0][j] as f32;
                }
            }
        }
        let points = matrices
            .iter()
            .map(|m| Panels::pack(isa, p.c_in, p.c_out, |i, j| m[i * p.c_out + j], None))
            .collect();
        let mut padded = AlignedBuf::zeroed(p.c_out);
        if let Some(bias) = bias {
            padded.copy_from_slice(bias);
        }
        Weights { kind, points, bias: padded, zeros: AlignedBuf::zeroed(p.c_in) }
    }

    /// Bytes of the buffers.
    pub(super) fn bytes(&self) -> usize {
        self.points.iter().map(|p| p.data.bytes() + p.bias.bytes()).sum::<usize>()
            + self.bias.bytes()
            + self.zeros.bytes()
    }

    /// Tiles of `batch` images.
    pub(super) fn tiles(&self, p: &ConvParams, batch: usize) -> usize {
        let (down, across) = self.kind.tiles(p);
        batch * down * across
    }

    /// Tiles of a block, and floats of transformed input and output of one point. The last differ from
    /// multiples of a page, so that a tile's points don't fall into one set of the cache.
    fn block(&self, p: &ConvParams, batch: usize) -> (usize, usize, usize) {
        let tiles = self.tiles(p, batch);
        let most = (BLOCK_FLOATS / (self.kind.points() * (p.c_in + p.c_out))).max(24);
        let blocks = tiles.div_ceil(most).max(1);
        let each = tiles.div_ceil(blocks);
        (each, each * p.c_in + 16, each * p.c_out + 16)
    }

    /// Floats of scratch for `batch` images.
    pub(super) fn scratch_len(&self, p: &ConvParams, batch: usize) -> usize {
        let (_, input, output) = self.block(p, batch);
        self.kind.points() * (input + output)
    }

    /// Convolves; lengths were checked by the caller.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn run(
        &self,
        isa: Checked,
        p: &ConvParams,
        batch: usize,
        x: &[f32],
        res: Option<&[f32]>,
        act: Activation,
        y: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (each, in_step, out_step) = self.block(p, batch);
        let tiles = self.tiles(p, batch);
        let points = self.kind.points();
        let (input, output) =
            scratch[..points * (in_step + out_step)].split_at_mut(points * in_step);
        let mut first = 0;
        while first < tiles {
            let count = each.min(tiles - first);
            let block = Block { p, kind: self.kind, first, count };
            isa.dispatch(Input { block, x, zeros: &self.zeros, out: input, step: in_step });
            for (i, panels) in self.points.iter().enumerate() {
                let dest = Dest {
                    c: output[i * out_step..].as_mut_ptr(),
                    ldc: p.c_out,
                    res: core::ptr::null(),
                    ldr: 0,
                    act: Activation::None,
                };
                let a = input[i * in_step..].as_ptr();
                // SAFETY: point `i` has `count` rows of `c_in` floats at `i * in_step`, and of `c_out` at
                // `i * out_step`; `count <= each`, for which the steps were made.
                unsafe { gemm::run_rows(isa, a, p.c_in, count, &panels.view(), &dest) };
            }
            let bias = &self.bias;
            isa.dispatch(Output {
                block,
                from: output,
                step: out_step,
                bias,
                res,
                act,
                y: &mut *y,
            });
            if !act.fused().1 {
                block.activate(isa, act, y);
            }
            first += count;
        }
    }
}

/// Some tiles of all images, in order.
#[derive(Clone, Copy)]
struct Block<'a> {
    p: &'a ConvParams,
    kind: Kind,
    first: usize,
    count: usize,
}

impl Block<'_> {
    /// Image, and top left output pixel, of the block's tile `i`.
    #[inline(always)]
    fn place(&self, i: usize) -> (usize, usize, usize) {
        let (down, across) = self.kind.tiles(self.p);
        let t = self.first + i;
        let (n, rest) = (t / (down * across), t % (down * across));
        let (ty, tx) = (rest / across, rest % across);
        let m = self.kind.outputs();
        (n, if self.kind.square() { ty * m } else { ty }, tx * m)
    }
}

impl Block<'_> {
    /// Applies an activation to the block's outputs.
    fn activate(&self, isa: Checked, act: Activation, y: &mut [f32]) {
        let (oh, ow) = self.p.output();
        let m = self.kind.outputs();
        for t in 0..self.count {
            let (n, oy, ox) = self.place(t);
            for i in oy..(oy + if self.kind.square() { m } else { 1 }).min(oh) {
                let line = ((n * oh + i) * ow + ox) * self.p.c_out;
                apply(isa, act, &mut y[line..][..m.min(ow - ox) * self.p.c_out]);
            }
        }
    }
}

/// Transforms a block's input.
struct Input<'a> {
    block: Block<'a>,
    x: &'a [f32],
    zeros: &'a [f32],
    out: &'a mut [f32],
    step: usize,
}

impl Op for Input<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        // A constant: sets without unrolled forms get no code here, and `fits` is false for them.
        if S::UNROLLED {
            match self.block.kind {
                Kind::Square2 => self.tiles::<S, F23, true>(),
                Kind::Square4 => self.tiles::<S, F43, true>(),
                Kind::Row3 => self.tiles::<S, F43, false>(),
                Kind::Row5 => self.tiles::<S, F45, false>(),
            }
        }
    }
}

impl Input<'_> {
    #[inline(always)]
    fn tiles<S: Simd, P: Points, const SQUARE: bool>(self) {
        let p = self.block.p;
        let c = p.c_in;
        let rows = if SQUARE { P::SIZE } else { 1 };
        let mut at = [self.zeros.as_ptr(); N * N];
        for t in 0..self.block.count {
            let (n, oy, ox) = self.block.place(t);
            for i in 0..rows {
                for j in 0..P::SIZE {
                    let y = (oy + i).wrapping_sub(p.pad_top);
                    let x = (ox + j).wrapping_sub(p.pad_left);
                    at[i * P::SIZE + j] = if y < p.height && x < p.width {
                        self.x[((n * p.height + y) * p.width + x) * c..].as_ptr()
                    } else {
                        self.zeros.as_ptr()
                    };
                }
            }
            let out = self.out[t * c..].as_mut_ptr();
            let mut next = 0;
            while next < c {
                // The last vector may begin among the channels of the one before.
                let k = next.min(c - S::LANES);
                // SAFETY: `c` is at least the lanes (`fits`), so a vector of channels from `k` is inside the
                // pixel, or the zeros; point `q` has tile `t`'s channels at `q * step + t * c`.
                unsafe {
                    // Not initialised, since clearing it costs as much as a transform; lines below `rows` are.
                    let mut v = [MaybeUninit::<[S::V; N]>::uninit(); N];
                    let mut i = 0;
                    while i < rows {
                        let mut x = [S::splat(0.0); N];
                        let mut j = 0;
                        while j < P::SIZE {
                            x[j] = S::load(at[i * P::SIZE + j].add(k));
                            j += 1;
                        }
                        v[i].write(P::input::<S>(x));
                        i += 1;
                    }
                    let mut j = 0;
                    while j < P::SIZE {
                        if SQUARE {
                            let mut x = [S::splat(0.0); N];
                            let mut i = 0;
                            while i < P::SIZE {
                                x[i] = v[i].assume_init_ref()[j];
                                i += 1;
                            }
                            let y = P::input::<S>(x);
                            let mut i = 0;
                            while i < P::SIZE {
                                S::store(out.add((i * P::SIZE + j) * self.step + k), y[i]);
                                i += 1;
                            }
                        } else {
                            S::store(out.add(j * self.step + k), v[0].assume_init_ref()[j]);
                        }
                        j += 1;
                    }
                }
                next += S::LANES;
            }
        }
    }
}

/// Transforms a block's products back.
struct Output<'a> {
    block: Block<'a>,
    from: &'a [f32],
    step: usize,
    bias: &'a [f32],
    res: Option<&'a [f32]>,
    act: Activation,
    y: &'a mut [f32],
}

impl Op for Output<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        // A constant: sets without unrolled forms get no code here, and `fits` is false for them.
        if S::UNROLLED {
            match self.block.kind {
                Kind::Square2 => self.tiles::<S, F23, true>(),
                Kind::Square4 => self.tiles::<S, F43, true>(),
                Kind::Row3 => self.tiles::<S, F43, false>(),
                Kind::Row5 => self.tiles::<S, F45, false>(),
            }
        }
    }
}

impl Output<'_> {
    #[inline(always)]
    fn tiles<S: Simd, P: Points, const SQUARE: bool>(self) {
        let p = self.block.p;
        let c = p.c_out;
        let (oh, ow) = p.output();
        let (fused, _) = self.act.fused();
        let columns = if SQUARE { P::SIZE } else { 1 };
        for t in 0..self.block.count {
            let (n, oy, ox) = self.block.place(t);
            let down = if SQUARE { P::OUTPUTS.min(oh - oy) } else { 1 };
            let across = P::OUTPUTS.min(ow - ox);
            let from = self.from[t * c..].as_ptr();
            let mut next = 0;
            while next < c {
                // As in `Input`.
                let k = next.min(c - S::LANES);
                // SAFETY: point `q` has tile `t`'s channels at `q * step + t * c`; `c` is at least the
                // lanes; outputs `oy .. oy + down`, `ox .. ox + across` of image `n` exist.
                unsafe {
                    // Down first (a row has one line only): `v[j][i]` is output line `i` of point column `j`.
                    let mut v = [MaybeUninit::<[S::V; N]>::uninit(); N];
                    let mut j = 0;
                    while j < P::SIZE {
                        if SQUARE {
                            let mut x = [S::splat(0.0); N];
                            let mut i = 0;
                            while i < columns {
                                x[i] = S::load(from.add((i * P::SIZE + j) * self.step + k));
                                i += 1;
                            }
                            v[j].write(P::output::<S>(x));
                        } else {
                            v[j].write([S::load(from.add(j * self.step + k)); N]);
                        }
                        j += 1;
                    }
                    let bias = S::load(self.bias.as_ptr().add(k));
                    let mut i = 0;
                    while i < (if SQUARE { P::OUTPUTS } else { 1 }) {
                        let mut x = [S::splat(0.0); N];
                        let mut j = 0;
                        while j < P::SIZE {
                            x[j] = v[j].assume_init_ref()[i];
                            j += 1;
                        }
                        let y = P::output::<S>(x);
                        let line = ((n * oh + oy + i) * ow + ox) * c + k;
                        let mut j = 0;
                        while j < P::OUTPUTS {
                            if i < down && j < across {
                                let mut z = S::add(y[j], bias);
                                if let Some(r) = self.res {
                                    z = S::add(z, S::load(r.as_ptr().add(line + j * c)));
                                }
                                let z = apply_fused::<S>(fused, z);
                                S::store(self.y.as_mut_ptr().add(line + j * c), z);
                            }
                            j += 1;
                        }
                        i += 1;
                    }
                }
                next += S::LANES;
            }
        }
    }
}
