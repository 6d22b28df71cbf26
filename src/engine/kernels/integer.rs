//! Matrix products of 8-bit codes with whole weights, summed exactly in 32 bits.
//!
//! The register tile of [`gemm`](super::gemm), with integers: a lane takes two products at a time, of 16 bits
//! each, so weights are packed in pairs of rows. Rows of A are widened to 16 bits first, some at a time, with the
//! multiple of the step that each code stands for: then a zero is a zero, and nothing has to be taken away
//! from the sums.

use super::aligned::AlignedBuf;
use super::codes::{End, Ends, Whole, integers};
use super::conv::ConvParams;
use super::gemm::{panel_columns, split, tile_rows};
use super::isa::{Isa, Op};
use super::simd::Simd;
use serde::{Deserialize, Serialize};

/// Bytes of widened rows of A that all panels pass over: they stay in the second-level cache.
const CHUNK_BYTES: usize = 64 * 1024;

/// A `k` x `n` matrix of whole numbers in panels, each row of a panel a pair of the matrix's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Panels {
    /// Pairs of 16 bits, the first row's in the lower half.
    data: AlignedBuf,
    /// Integers of 32 bits.
    bias: AlignedBuf,
    ends: Ends,
    k: usize,
    n: usize,
    nr: usize,
}

impl Panels {
    /// Packs the matrix whose column `j` is weights' row `j`, its element `i` at `order(i)` of that row.
    pub(super) fn pack(isa: Isa, k: usize, whole: Whole, order: impl Fn(usize) -> usize) -> Panels {
        let nr = panel_columns(isa);
        let n = whole.weights.len();
        let (panels, pairs) = (n.div_ceil(nr), k.div_ceil(2));
        let at = |i: usize, j: usize| match whole.weights.get(j) {
            Some(row) if i < k => row[order(i)],
            _ => 0,
        };
        let data = integers((0..panels * pairs * nr).map(|word| {
            let (panel, pair, column) = (word / nr / pairs, word / nr % pairs, word % nr);
            let (low, high) = (2 * pair, 2 * pair + 1);
            let column = panel * nr + column;
            i32::from(at(high, column)) << 16 | i32::from(at(low, column) as u16)
        }));
        let bias = |j: usize| whole.bias.get(j).copied().unwrap_or(0);
        let bias = integers((0..panels * nr).map(bias));
        Panels { data, bias, ends: whole.ends, k, n, nr }
    }

    /// Bytes of packed weights.
    pub(super) fn bytes(&self) -> usize {
        self.data.bytes() + self.bias.bytes() + self.ends.bytes()
    }

    /// Widened integers of a row of A, whole pairs.
    fn row_len(&self) -> usize {
        self.k.next_multiple_of(2)
    }

    /// Rows of A that are widened at once.
    fn rows_at_once(&self, isa: Isa) -> usize {
        let mr = tile_rows(isa);
        (CHUNK_BYTES / 2 / self.row_len().max(1) / mr).clamp(4, 64) * mr
    }

    /// Integers of 16 bits that [`Rows`] of `m` rows widen to.
    pub(super) fn widened_len(&self, isa: Isa, m: usize) -> usize {
        self.rows_at_once(isa).min(m) * self.row_len()
    }
}

/// Codes that are widened at once: more than asked for are, where there is room for them, and overwritten.
const BLOCK: usize = 16;

/// Widens `len` codes, the first of `x`, to the multiples that they stand for.
#[inline(always)]
fn widen(x: &[u8], len: usize, first: i16, y: &mut [i16]) {
    let mut done = 0;
    while done < len {
        let whole = (x[done..].first_chunk::<BLOCK>(), y[done..].first_chunk_mut::<BLOCK>());
        let (Some(x), Some(y)) = whole else { break };
        for (y, &x) in y.iter_mut().zip(x) {
            *y = i16::from(x) + first;
        }
        done += BLOCK;
    }
    for i in done..len {
        y[i] = i16::from(x[i]) + first;
    }
}

/// Which rows of codes are multiplied.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Dense rows, one after the other.
    Dense,
    /// For every pixel of the output, the taps of its window: kernel row, column, channel.
    Windows(&'a ConvParams),
}

/// `m` rows of codes times a packed matrix, as codes.
pub(super) struct Rows<'a> {
    pub(super) isa: Isa,
    pub(super) a: &'a [u8],
    pub(super) source: Source<'a>,
    pub(super) m: usize,
    pub(super) b: &'a Panels,
    pub(super) y: &'a mut [u8],
    /// [`Panels::widened_len`] integers.
    pub(super) widened: &'a mut [i16],
}

impl Op for Rows<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Rows { isa, a, source, m, b, y, widened } = self;
        let (k, row_len, first) = (b.k, b.row_len(), b.ends.x.first());
        let chunk = b.rows_at_once(isa);
        let mut at = Pixel::default();
        let output = match source {
            Source::Dense => (0, 0),
            Source::Windows(p) => p.output(),
        };
        let mut row = 0;
        while row < m {
            let rows = chunk.min(m - row);
            match source {
                Source::Dense if k == row_len => {
                    widen(&a[row * k..], rows * k, first, widened);
                }
                Source::Dense => {
                    for i in 0..rows {
                        widen(&a[(row + i) * k..], k, first, &mut widened[i * row_len..]);
                        widened[i * row_len + k] = 0;
                    }
                }
                Source::Windows(p) => {
                    for i in 0..rows {
                        let to = &mut widened[i * row_len..];
                        window(p, a, &at, first, to);
                        if k < row_len {
                            to[k] = 0;
                        }
                        at.next(output);
                    }
                }
            }
            products::<S>(&widened[..rows * row_len], rows, b, &mut y[row * b.n..][..rows * b.n]);
            row += rows;
        }
    }
}

/// Where a pixel of the output lies: image, line, column.
#[derive(Default)]
struct Pixel {
    n: usize,
    y: usize,
    x: usize,
}

impl Pixel {
    #[inline(always)]
    fn next(&mut self, (height, width): (usize, usize)) {
        self.x += 1;
        if self.x == width {
            (self.y, self.x) = (self.y + 1, 0);
        }
        if self.y == height {
            (self.n, self.y) = (self.n + 1, 0);
        }
    }
}

/// Widens the taps of a pixel's window, zeros beside the image.
#[inline(always)]
fn window(p: &ConvParams, x: &[u8], at: &Pixel, first: i16, to: &mut [i16]) {
    let (kw, c) = (p.kernel_w, p.c_in);
    let y0 = (at.y * p.stride_h) as isize - p.pad_top as isize;
    let x0 = (at.x * p.stride_w) as isize - p.pad_left as isize;
    let image = at.n * p.height;
    let merged = p.dilation_w == 1 && x0 >= 0 && x0 as usize + kw <= p.width;
    let mut done = 0;
    for ky in 0..p.kernel_h {
        let y = y0 + (ky * p.dilation_h) as isize;
        if y < 0 || y as usize >= p.height {
            to[done..done + kw * c].fill(0);
            done += kw * c;
            continue;
        }
        let line = (image + y as usize) * p.width;
        if merged {
            widen(&x[(line + x0 as usize) * c..], kw * c, first, &mut to[done..]);
            done += kw * c;
            continue;
        }
        for kx in 0..kw {
            let column = x0 + (kx * p.dilation_w) as isize;
            if column < 0 || column as usize >= p.width {
                to[done..done + c].fill(0);
            } else {
                widen(&x[(line + column as usize) * c..], c, first, &mut to[done..]);
            }
            done += c;
        }
    }
}

/// `rows` widened rows times all panels.
#[inline(always)]
fn products<S: Simd>(a: &[i16], rows: usize, b: &Panels, y: &mut [u8]) {
    assert_eq!(a.len(), rows * b.row_len(), "rows of A");
    assert_eq!(y.len(), rows * b.n, "rows of results");
    let pairs = b.row_len() / 2;
    let end = b.ends.at(0);
    for panel in 0..b.n.div_ceil(b.nr) {
        let first = panel * b.nr;
        let columns = (b.n - first).min(b.nr);
        let (count, height, higher) = split(rows, S::MR);
        let mut row = 0;
        for t in 0..count {
            let height = height + usize::from(t < higher);
            // SAFETY: of A, `height` rows of `pairs` pairs from `row`; of the panel, `pairs` rows of `nr` words;
            // bias, factors and rests are padded to whole panels; results of `columns` columns from `first`.
            unsafe {
                let t = Tile {
                    a: a.as_ptr().add(row * 2 * pairs).cast(),
                    pairs,
                    b: b.data.as_ptr().add(first * pairs).cast(),
                    bias: b.bias.as_ptr().add(first).cast(),
                    end,
                    y: y.as_mut_ptr().add(row * b.n + first),
                    ldy: b.n,
                    first,
                    columns,
                };
                let vectors = columns.div_ceil(S::LANES);
                macro_rules! tiles {
                    ($nv:literal: $($rows:literal)*) => {
                        match height {
                            $($rows if $rows <= S::MR && $nv <= S::NV => t.run::<S, $rows, $nv>(),)*
                            _ => {}
                        }
                    };
                }
                match vectors {
                    1 => tiles!(1: 1 2 3 4 5 6 7 8 9 10),
                    2 => tiles!(2: 1 2 3 4 5 6 7 8 9 10),
                    3 => tiles!(3: 1 2 3 4 5 6 7 8 9 10),
                    _ => tiles!(4: 1 2 3 4 5 6 7 8 9 10),
                }
            }
            row += height;
        }
    }
}

/// One register tile.
struct Tile {
    /// Rows of `pairs` pairs of 16 bits.
    a: *const i32,
    pairs: usize,
    b: *const i32,
    bias: *const i32,
    end: End,
    y: *mut u8,
    ldy: usize,
    first: usize,
    columns: usize,
}

impl Tile {
    /// # Safety
    /// `a` has `ROWS` rows; `b` has `pairs` rows of `S::NV` vectors; `bias`, and the end from `first`, `NV` vectors;
    /// rows of `y` take `columns`, more than `(NV - 1) * LANES`, at most `NV * LANES`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // constant bounds, so that the sums stay in registers
    unsafe fn run<S: Simd, const ROWS: usize, const NV: usize>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[S::integers(0); NV]; ROWS];
            for v in 0..NV {
                let bias = S::load_integers(self.bias.add(v * S::LANES));
                for m in 0..ROWS {
                    sums[m][v] = bias;
                }
            }
            let mut b = self.b;
            for pair in 0..self.pairs {
                let mut w = [S::integers(0); NV];
                for v in 0..NV {
                    w[v] = S::load_integers(b.add(v * S::LANES));
                }
                b = b.add(S::NV * S::LANES);
                for m in 0..ROWS {
                    // Aligned or not: rows are of 16 bits.
                    let x = S::integers(self.a.add(m * self.pairs + pair).read_unaligned());
                    for v in 0..NV {
                        sums[m][v] = S::add_products(sums[m][v], x, w[v]);
                    }
                }
            }
            self.store::<S, ROWS, NV>(&sums);
        }
    }

    /// # Safety
    /// As [`run`](Self::run).
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // as in `run`
    unsafe fn store<S: Simd, const ROWS: usize, const NV: usize>(&self, sums: &[[S::I; NV]; ROWS]) {
        let whole = self.columns == NV * S::LANES;
        // SAFETY: the caller's promise.
        unsafe {
            for pair in 0..NV / 2 {
                let v = 2 * pair;
                if v + 2 == NV && !whole {
                    self.store_one::<S, ROWS, NV>(sums, v);
                    self.store_one::<S, ROWS, NV>(sums, v + 1);
                    continue;
                }
                let (y, channel) = (self.y.add(v * S::LANES), self.first + v * S::LANES);
                let (these, next) =
                    (self.end.of::<S>(channel), self.end.of::<S>(channel + S::LANES));
                for m in 0..ROWS {
                    let both = [S::floats(sums[m][v]), S::floats(sums[m][v + 1])];
                    these.store_twice(&next, y.add(m * self.ldy), both);
                }
            }
            if NV % 2 == 1 {
                self.store_one::<S, ROWS, NV>(sums, NV - 1);
            }
        }
    }

    /// Vector `v` of [`store`](Self::store).
    /// # Safety
    /// As [`run`](Self::run); `v < NV`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // as in `run`
    unsafe fn store_one<S: Simd, const ROWS: usize, const NV: usize>(
        &self,
        sums: &[[S::I; NV]; ROWS],
        v: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let (y, channel) = (self.y.add(v * S::LANES), self.first + v * S::LANES);
            let (these, left) = (self.end.of::<S>(channel), self.columns - v * S::LANES);
            for m in 0..ROWS {
                let (y, sums) = (y.add(m * self.ldy), S::floats(sums[m][v]));
                if left < S::LANES {
                    these.store::<true>(y, sums, left);
                } else {
                    these.store::<false>(y, sums, S::LANES);
                }
            }
        }
    }
}
