//! Depthwise convolution, NHWC: vectors run over channels, a tile over output columns.

use super::activation::{Fused, apply_fused};
use super::aligned::AlignedBuf;
use super::cast;
use super::codes::End;
use super::conv::ConvParams;
use super::gemm::split;
use super::isa::Op;
use super::simd::Simd;
use serde::{Deserialize, Serialize};

/// Pointers of the table of one tile: taps by columns.
const TABLE: usize = 512;
/// Output columns of a tile of the general kernel.
const GENERAL: usize = 4;
/// The most taps of a kernel.
pub(super) const TAPS_MAX: usize = TABLE / GENERAL;

/// An element of a tensor in memory, computed with as a float.
pub(super) trait Element: Copy + 'static {
    /// What becomes of sums before they are stored.
    type End: Copy;
    /// What stands for 0.
    fn zero(end: &Self::End) -> f32;
    /// A vector from memory, less the zero; if `PART`, its first `n < LANES` lanes.
    /// # Safety
    /// `p` is valid for reading so many elements.
    unsafe fn load<S: Simd, const PART: bool>(p: *const Self, n: usize, zero: S::V) -> S::V;
    /// Stores sums of the channels from `channel`, all lanes or, if `PART`, the first `n < LANES`.
    /// # Safety
    /// `p` is valid for writing so many elements, which are channels that the end knows.
    unsafe fn store<S: Simd, const PART: bool>(
        p: *mut Self,
        sums: S::V,
        end: &Self::End,
        channel: usize,
        n: usize,
    );
}

impl Element for f32 {
    type End = Fused;
    #[inline(always)]
    fn zero(_: &Fused) -> f32 {
        0.0
    }
    #[inline(always)]
    unsafe fn load<S: Simd, const PART: bool>(p: *const f32, n: usize, _: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { if PART { S::load_part(p, n) } else { S::load(p) } }
    }
    #[inline(always)]
    unsafe fn store<S: Simd, const PART: bool>(
        p: *mut f32,
        sums: S::V,
        end: &Fused,
        _: usize,
        n: usize,
    ) {
        let v = apply_fused::<S>(*end, sums);
        // SAFETY: the caller's promise.
        unsafe { if PART { S::store_part(p, v, n) } else { S::store(p, v) } }
    }
}

/// Codes, and whole weights: all sums are whole numbers that floats hold exactly.
impl Element for u8 {
    type End = End;
    #[inline(always)]
    fn zero(end: &End) -> f32 {
        end.x_zero
    }
    #[inline(always)]
    unsafe fn load<S: Simd, const PART: bool>(p: *const u8, n: usize, zero: S::V) -> S::V {
        // SAFETY: the caller's promise.
        S::sub(unsafe { if PART { S::load_bytes_part(p, n) } else { S::load_bytes(p) } }, zero)
    }
    #[inline(always)]
    unsafe fn store<S: Simd, const PART: bool>(
        p: *mut u8,
        sums: S::V,
        end: &End,
        channel: usize,
        n: usize,
    ) {
        // SAFETY: the caller's promise; ends are padded to whole vectors.
        unsafe { end.of::<S>(channel).store::<PART>(p, sums, n) }
    }
}

/// Weights as `[tap][channels padded]`, and a bias.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Weights {
    taps: AlignedBuf,
    bias: AlignedBuf,
    /// What lies beside an image: a pixel's elements, whichever they are.
    outside: AlignedBuf,
    padded: usize,
}

/// Channels of packed weights: whole vectors of every set.
pub(super) fn padded(channels: usize) -> usize {
    channels.next_multiple_of(16)
}

impl Weights {
    /// Packs `[channel, 1, kernel_h, kernel_w]`.
    pub(super) fn pack(p: &ConvParams, weights: &[f32], bias: Option<&[f32]>) -> Weights {
        let taps = p.kernel_h * p.kernel_w;
        let padded = padded(p.c_in);
        let mut packed = AlignedBuf::zeroed(taps * padded);
        for c in 0..p.c_in {
            for t in 0..taps {
                packed[t * padded + c] = weights[c * taps + t];
            }
        }
        let mut b = AlignedBuf::zeroed(padded);
        if let Some(bias) = bias {
            b[..p.c_in].copy_from_slice(bias);
        }
        Weights { taps: packed, bias: b, outside: AlignedBuf::zeroed(padded), padded }
    }

    /// The same for images of codes, beside which `zero` lies.
    pub(super) fn among_codes(mut self, zero: u8) -> Weights {
        cast::bytes_mut(&mut self.outside).fill(zero);
        self
    }

    /// Bytes of the buffers.
    pub(super) fn bytes(&self) -> usize {
        self.taps.bytes() + self.bias.bytes() + self.outside.bytes()
    }
}

/// One depthwise convolution; lengths were checked by its maker, who also applies what of the activation
/// is not fused.
pub(super) struct Depthwise<'a, E: Element> {
    pub(super) p: &'a ConvParams,
    pub(super) w: &'a Weights,
    pub(super) batch: usize,
    pub(super) x: &'a [E],
    pub(super) res: Option<&'a [E]>,
    pub(super) end: E::End,
    pub(super) y: &'a mut [E],
}

/// Where a tile's columns of input lie.
#[derive(Clone, Copy)]
enum Columns<'a, E> {
    /// Side by side: the first kernel row begins here, but for so many columns on the left and on the
    /// right that lie beside the image.
    Inside(*const E, usize, usize),
    /// Anywhere: a row of pointers for each kernel row.
    Table(&'a [*const E]),
}

/// The part of a tile that does not depend on the channel.
#[derive(Clone, Copy)]
struct Tile<'a, E: Element> {
    columns: Columns<'a, E>,
    /// Elements from a kernel row's first input to the next one's (inside).
    row_step: usize,
    /// Kernel rows that lie within the image, from `first`.
    first: usize,
    rows: usize,
    out: *mut E,
    res: *const E,
    end: E::End,
}

/// One vector of channels from `c` of a tile of `W` columns, by a kernel `KW` wide at stride `ST`; the last `n`
/// channels, less than a vector, if `PART`.
/// # Safety
/// The tile's pointers are valid from channel `c` for a vector, or the part; its columns are `Inside` if `INSIDE`, at most
/// `KW / 2` of them outside on either side, else a `Table` of `(W - 1) * ST + KW` pointers a kernel row.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn vector<
    S: Simd,
    E: Element,
    const W: usize,
    const KW: usize,
    const ST: usize,
    const INSIDE: bool,
    const PART: bool,
>(
    t: &Tile<'_, E>,
    w: &Weights,
    channels: usize,
    c: usize,
    n: usize,
) {
    // SAFETY: the caller's promise; weights and bias are padded to whole vectors.
    unsafe {
        let of_zero = S::splat(E::zero(&t.end));
        let load = |p: *const E| E::load::<S, PART>(p, n, of_zero);
        let mut acc = [S::load(w.bias.as_ptr().add(c)); W];
        let columns = (W - 1) * ST + KW;
        let mut wrow = w.taps.as_ptr().add(t.first * KW * w.padded + c);
        let (mut base, mut table, left, right) = match t.columns {
            Columns::Inside(base, left, right) => {
                (base.wrapping_add(c), core::ptr::null(), left, right)
            }
            Columns::Table(table) => (core::ptr::null(), table.as_ptr(), 0, 0),
        };
        let zero = S::splat(0.0);
        for _ in 0..t.rows {
            let mut weights = [S::splat(0.0); KW];
            let mut kx = 0;
            while kx < KW {
                weights[kx] = S::load(wrow);
                wrow = wrow.add(w.padded);
                kx += 1;
            }
            let mut at = base;
            let mut i = 0;
            while i < columns {
                let x = if INSIDE {
                    // Only the outermost columns can lie outside: for the others there is no test.
                    let outside =
                        i < KW / 2 && i < left || i + KW / 2 >= columns && i + right >= columns;
                    let x = if outside { zero } else { load(at) };
                    at = at.wrapping_add(channels);
                    x
                } else {
                    load((*table.add(i)).add(c))
                };
                let mut o = 0;
                while o < W {
                    if i >= o * ST && i - o * ST < KW {
                        acc[o] = S::fma(x, weights[i - o * ST], acc[o]);
                    }
                    o += 1;
                }
                i += 1;
            }
            if INSIDE {
                base = base.wrapping_add(t.row_step);
            } else {
                table = table.add(columns);
            }
        }
        let mut o = 0;
        while o < W {
            let mut v = acc[o];
            if !t.res.is_null() {
                v = S::add(v, load(t.res.add(o * channels + c)));
            }
            E::store::<S, PART>(t.out.add(o * channels + c), v, &t.end, c, n);
            o += 1;
        }
    }
}

/// The whole vectors of channels of a tile, and what is left, where the set has masks for it.
/// # Safety
/// The tile's pointers are valid for all channels.
#[inline(always)]
unsafe fn vectors<S: Simd, E: Element, const W: usize, const KW: usize, const ST: usize>(
    t: &Tile<'_, E>,
    w: &Weights,
    channels: usize,
) {
    // SAFETY: whole vectors while they fit, then those channels that are left.
    unsafe {
        macro_rules! all {
            ($inside:literal) => {{
                let mut c = 0;
                while c + S::LANES <= channels {
                    vector::<S, E, W, KW, ST, $inside, false>(t, w, channels, c, S::LANES);
                    c += S::LANES;
                }
                if S::MASKED && c < channels {
                    vector::<S, E, W, KW, ST, $inside, true>(t, w, channels, c, channels - c);
                }
            }};
        }
        if matches!(t.columns, Columns::Inside(..)) { all!(true) } else { all!(false) }
    }
}

/// A tile of any kernel: up to `GENERAL` columns, with a table row for each tap.
/// # Safety
/// As [`vectors`], from channel `from`; the table has `taps * GENERAL` pointers; `taps` lists the weights' rows.
#[inline(always)]
unsafe fn general<S: Simd, E: Element>(
    table: &[*const E],
    taps: &[usize],
    columns: usize,
    t: &Tile<'_, E>,
    w: &Weights,
    channels: usize,
    from: usize,
) {
    let mut c = from;
    while c < channels {
        let n = S::LANES.min(channels - c);
        // SAFETY: `n` channels from `c` exist; unused columns point beside the image, padded.
        unsafe {
            let part = n < S::LANES;
            let zero = S::splat(E::zero(&t.end));
            let load = |p: *const E| match part {
                true => E::load::<S, true>(p, n, zero),
                false => E::load::<S, false>(p, n, zero),
            };
            let mut acc = [S::load(w.bias.as_ptr().add(c)); GENERAL];
            for (i, &tap) in taps.iter().enumerate() {
                let weight = S::load(w.taps.as_ptr().add(tap * w.padded + c));
                for (o, a) in acc.iter_mut().enumerate() {
                    *a = S::fma(load(table.get_unchecked(i * GENERAL + o).add(c)), weight, *a);
                }
            }
            for (o, &a) in acc.iter().enumerate().take(columns) {
                let mut v = a;
                if !t.res.is_null() {
                    v = S::add(v, load(t.res.add(o * channels + c)));
                }
                let out = t.out.add(o * channels + c);
                if part {
                    E::store::<S, true>(out, v, &t.end, c, n)
                } else {
                    E::store::<S, false>(out, v, &t.end, c, n)
                }
            }
        }
        c += n;
    }
}

/// Widest tile of a kernel, in output columns: as many sums as registers hold beside the weights.
const fn widest(kw: usize, stride: usize) -> usize {
    match (kw, stride) {
        (3, 1) => 8,
        _ => 4,
    }
}

impl<E: Element> Op for Depthwise<'_, E> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let p = self.p;
        let out = p.output();
        // Rows of the table: taps, or kernel rows by columns.
        let unrolled = p.dilation_w == 1 && p.kernel_h <= 16 && (S::MASKED || p.c_in >= S::LANES);
        for n in 0..self.batch {
            for oy in 0..out.0 {
                // A constant: sets without unrolled forms get no code for them.
                if S::UNROLLED {
                    match (p.kernel_w, p.stride_w) {
                        (3, 1) if unrolled => self.line::<S, 3, 1>(n, oy, out),
                        (3, 2) if unrolled => self.line::<S, 3, 2>(n, oy, out),
                        (5, 1) if unrolled => self.line::<S, 5, 1>(n, oy, out),
                        (5, 2) if unrolled => self.line::<S, 5, 2>(n, oy, out),
                        _ => self.general_line::<S>(n, oy, out, 0),
                    }
                } else {
                    self.general_line::<S>(n, oy, out, 0);
                }
            }
        }
    }
}

impl<E: Element> Depthwise<'_, E> {
    /// What tiles of output line `oy` of image `n` share: the kernel rows inside the image.
    #[inline(always)]
    fn tile(&self, oy: usize) -> (Tile<'static, E>, isize) {
        let p = self.p;
        let y0 = (oy * p.stride_h) as isize - p.pad_top as isize;
        let inside = |ky: usize| {
            let y = y0 + (ky * p.dilation_h) as isize;
            y >= 0 && (y as usize) < p.height
        };
        let mut first = 0;
        while first < p.kernel_h && !inside(first) {
            first += 1;
        }
        let mut rows = 0;
        while first + rows < p.kernel_h && inside(first + rows) {
            rows += 1;
        }
        let tile = Tile {
            columns: Columns::Table(&[]),
            row_step: p.dilation_h * p.width * p.c_in,
            first,
            rows,
            out: core::ptr::null_mut(),
            res: core::ptr::null(),
            end: self.end,
        };
        (tile, y0)
    }

    /// What lies beside an image.
    #[inline(always)]
    fn outside(&self) -> *const E {
        self.w.outside.as_ptr().cast()
    }

    /// The channels of input column `x`, kernel row `ky`.
    #[inline(always)]
    fn pixel(&self, n: usize, y0: isize, ky: usize, x: isize) -> *const E {
        let p = self.p;
        if x >= 0 && (x as usize) < p.width {
            let y = (y0 + (ky * p.dilation_h) as isize) as usize;
            self.x[((n * p.height + y) * p.width + x as usize) * p.c_in..].as_ptr()
        } else {
            self.outside()
        }
    }

    /// Points a tile's output and residual at column `ox` of line `oy`.
    #[inline(always)]
    fn aim(
        &mut self,
        tile: &mut Tile<'_, E>,
        (oh, ow): (usize, usize),
        (n, oy, ox): (usize, usize, usize),
    ) {
        let at = ((n * oh + oy) * ow + ox) * self.p.c_in;
        tile.out = self.y[at..].as_mut_ptr();
        if let Some(r) = self.res {
            tile.res = r[at..].as_ptr();
        }
    }

    #[inline(always)]
    fn line<S: Simd, const KW: usize, const ST: usize>(
        &mut self,
        n: usize,
        oy: usize,
        out: (usize, usize),
    ) {
        let (p, c) = (self.p, self.p.c_in);
        let ow = out.1;
        let (shared, y0) = self.tile(oy);
        let mut table = [self.outside(); TABLE];
        // Of nearly equal width, so that none is left with one column.
        let (count, width, wider) = split(ow, widest(KW, ST));
        let mut ox = 0;
        for t in 0..count {
            let mut tile: Tile<'_, E> = shared;
            let x0 = (ox * ST) as isize - p.pad_left as isize;
            let w = width + usize::from(t < wider);
            let columns = (w - 1) * ST + KW;
            let left = (-x0).max(0) as usize;
            let right = (x0 + columns as isize - p.width as isize).max(0) as usize;
            if left <= KW / 2 && right <= KW / 2 && left + right < columns && tile.rows > 0 {
                let inner = self.pixel(n, y0, tile.first, x0 + left as isize);
                tile.columns = Columns::Inside(inner.wrapping_sub(left * c), left, right);
            } else {
                for ky in 0..tile.rows {
                    for i in 0..columns {
                        table[ky * columns + i] =
                            self.pixel(n, y0, tile.first + ky, x0 + i as isize);
                    }
                }
                tile.columns = Columns::Table(&table);
            }
            self.aim(&mut tile, out, (n, oy, ox));
            // SAFETY: inside, every column of every row of the tile lies within the image but those that
            // are counted as outside, at most `KW / 2` on a side; else the table was filled for them. Output
            // columns `ox .. ox + w` exist.
            unsafe {
                macro_rules! widths {
                    ($($w:literal)*) => {
                        match w {
                            $($w if $w <= widest(KW, ST) => {
                                vectors::<S, E, $w, KW, ST>(&tile, self.w, c)
                            })*
                            _ => {}
                        }
                    };
                }
                if widest(KW, ST) == 8 { widths!(1 2 3 4 5 6 7 8) } else { widths!(1 2 3 4) }
            }
            ox += w;
        }
        if !S::MASKED && !c.is_multiple_of(S::LANES) {
            self.general_line::<S>(n, oy, out, c - c % S::LANES);
        }
    }

    /// A line by any kernel, from channel `from`.
    #[inline(always)]
    fn general_line<S: Simd>(&mut self, n: usize, oy: usize, out: (usize, usize), from: usize) {
        let p = self.p;
        let ow = out.1;
        let (mut tile, y0) = self.tile(oy);
        let mut table = [self.outside(); TABLE];
        let mut taps = [0usize; TAPS_MAX];
        let mut ox = 0;
        while ox < ow {
            let w = GENERAL.min(ow - ox);
            let x0 = (ox * p.stride_w) as isize - p.pad_left as isize;
            let mut used = 0;
            for ky in tile.first..tile.first + tile.rows {
                for kx in 0..p.kernel_w {
                    taps[used] = ky * p.kernel_w + kx;
                    for o in 0..GENERAL {
                        let x = x0 + (o * p.stride_w + kx * p.dilation_w) as isize;
                        table[used * GENERAL + o] =
                            if o < w { self.pixel(n, y0, ky, x) } else { self.outside() };
                    }
                    used += 1;
                }
            }
            self.aim(&mut tile, out, (n, oy, ox));
            // SAFETY: the table was filled for these taps with pointers to all channels.
            unsafe { general::<S, E>(&table, &taps[..used], w, &tile, self.w, p.c_in, from) };
            ox += w;
        }
    }
}
