//! Direct convolution: the register tile over taps, through pointers.
//!
//! Where a pixel's taps lie is found once for all lines, and all images, whose taps lie so: to find them for
//! every pixel took a third of the first convolution of a small network, which has few channels.

use super::conv::ConvParams;
use super::gemm::{self, B, Dest, Tile, split, tile_rows};
use super::isa::Checked;
use core::mem::MaybeUninit;

/// Multiply-accumulates for each float of a padded image from which on it pays to make one.
const PADDED_MACS: u64 = 96;
/// Channels up to which it does: with more, a tap is a run long enough to be found alone.
const PADDED_CHANNELS: usize = 4;
/// Floats of padded images that stay in the first-level cache, half of one of 32 KiB: the most that are made
/// at once, and the longest that is.
const PADDED_FLOATS: usize = 4 * 1024;

/// The convolution of an image with its zeros around it, where it pays to copy the image so. With few channels
/// and a narrow image nearly every tile has a pixel at the border, and finds its taps one by one for it.
pub(super) fn padded(p: &ConvParams) -> Option<ConvParams> {
    let pads = (p.pad_top, p.pad_left, p.pad_bottom, p.pad_right);
    let padded = ConvParams {
        height: p.height.checked_add(p.pad_top)?.checked_add(p.pad_bottom)?,
        width: p.width.checked_add(p.pad_left)?.checked_add(p.pad_right)?,
        pad_top: 0,
        pad_left: 0,
        pad_bottom: 0,
        pad_right: 0,
        ..*p
    };
    let len = padded.height.checked_mul(padded.width)?.checked_mul(p.c_in)?;
    let pays = p.groups == 1
        && p.dilation_w == 1
        && p.c_in <= PADDED_CHANNELS
        && len <= PADDED_FLOATS
        && pads != (0, 0, 0, 0)
        && p.macs() >= PADDED_MACS.saturating_mul(len as u64);
    pays.then_some(padded)
}

/// Images that are copied before their convolution, of `batch`; `p` is of a padded one.
pub(super) fn images_at_once(p: &ConvParams, batch: usize) -> usize {
    (PADDED_FLOATS / p.input_len().max(1)).clamp(1, batch.max(1)).min(batch)
}

/// Copies the images `x` into `to`, each with its zeros around it. Returns the copies.
pub(super) fn pad<'a>(p: &ConvParams, x: &[f32], to: &'a mut [f32]) -> &'a [f32] {
    let line = p.width * p.c_in;
    let (left, right) = (p.pad_left * p.c_in, p.pad_right * p.c_in);
    let padded = left + line + right;
    let (above, below) = (p.pad_top * padded, p.pad_bottom * padded);
    let mut end = 0;
    for image in x.chunks_exact(p.height * line) {
        to[end..][..above].fill(0.0);
        end += above;
        for line in image.chunks_exact(line) {
            let (before, rest) = to[end..][..padded].split_at_mut(left);
            let (within, after) = rest.split_at_mut(line.len());
            before.fill(0.0);
            within.copy_from_slice(line);
            after.fill(0.0);
            end += padded;
        }
        to[end..][..below].fill(0.0);
        end += below;
    }
    &to[..end]
}

/// One group of a convolution; its lengths were checked by the maker.
pub(super) struct Direct<'a> {
    pub(super) isa: Checked,
    pub(super) p: &'a ConvParams,
    pub(super) pixels: usize,
    pub(super) x: &'a [f32],
    pub(super) channel: usize,
    pub(super) b: B,
    pub(super) zeros: *const f32,
    pub(super) dest: Dest,
}

impl Direct<'_> {
    /// Runs it.
    pub(super) fn run(self) {
        let p = self.p;
        let (oh, ow) = p.output();
        let plane = oh * ow;
        if self.pixels == 0 {
            return;
        }
        let images = self.pixels / plane;
        let (chunk, line) = (self.chunk(), p.width * p.c_in);
        if plane <= chunk {
            // Images whose pixels fill a table, so that the weights pass over them at once.
            let group = (chunk / plane).min(images);
            let times = images / group;
            let next = Shift { times, floats: group * p.height * line, rows: group * plane };
            self.pass(0, group * plane, next, Shift::ONCE);
            self.pass(times * group * plane, images % group * plane, Shift::ONCE, Shift::ONCE);
            return;
        }
        let image = Shift { times: images, floats: p.height * line, rows: plane };
        // Output lines whose kernel lies within the image from top to bottom: the same, line after line.
        let first = p.pad_top.div_ceil(p.stride_h).min(oh);
        let reach = (p.kernel_h - 1) * p.dilation_h;
        let last = (p.height + p.pad_top).checked_sub(reach + 1).map_or(0, |y| y / p.stride_h + 1);
        let (lines, alike) = (chunk / ow, last.min(oh).saturating_sub(first));
        let times = alike.checked_div(lines).unwrap_or(0);
        if times < 2 {
            self.pass(0, plane, image, Shift::ONCE);
            return;
        }
        let some = Shift { times, floats: lines * p.stride_h * line, rows: lines * ow };
        let (from, to) = (first * ow, (first + times * lines) * ow);
        self.pass(0, from, image, Shift::ONCE);
        self.pass(from, lines * ow, image, some);
        self.pass(to, plane - to, image, Shift::ONCE);
    }

    /// Whether a kernel row is one run inside an image: its taps lie side by side and hold all channels.
    fn merges(&self) -> bool {
        self.p.dilation_w == 1 && self.p.groups == 1
    }

    /// Pixels whose pointers fill a table.
    fn chunk(&self) -> usize {
        let p = self.p;
        let mr = tile_rows(self.isa.isa());
        let pads = (p.pad_top, p.pad_left, p.pad_bottom, p.pad_right);
        let inside = self.merges() && pads == (0, 0, 0, 0);
        let runs = if inside { p.kernel_h } else { p.kernel_h * p.kernel_w };
        (gemm::NEAR_POINTERS / (runs * mr)).clamp(1, gemm::TILES) * mr
    }

    /// `pixels` from `first` on, and what `outer` and `inner` repeat them as: where the taps lie is found for
    /// the first ones, and is so much further on for each that follows, which takes much less.
    fn pass(&self, first: usize, pixels: usize, outer: Shift, inner: Shift) {
        let p = self.p;
        let mr = tile_rows(self.isa.isa());
        let (oh, ow) = p.output();
        let cin_g = p.c_in / p.groups;
        let (kh, kw) = (p.kernel_h, p.kernel_w);
        let taps = kh * kw;
        let mergeable = self.merges();
        // Not initialised: to clear them takes as long as a small convolution.
        let mut table = [const { MaybeUninit::<*const f32>::uninit() }; gemm::TABLE];
        let mut tiles = [const { MaybeUninit::<Tile>::uninit() }; gemm::TILES];
        let chunk = self.chunk();
        let base = self.x.as_ptr();
        let line = p.width * p.c_in;
        let image = p.height * line;
        // The next pixel: its image, output line and column, counted along, since to divide would take
        // as long as the products of a small kernel.
        let (mut n, mut oy, mut ox) = (first / (oh * ow), first / ow % oh, first % ow);
        let mut pixel = first;
        let end = pixel + pixels;
        while pixel < end {
            let here = chunk.min(end - pixel);
            let (count, height, higher) = split(here, mr);
            let mut used = 0;
            for (i, t) in tiles.iter_mut().enumerate().take(count) {
                let rows = height + usize::from(i < higher);
                // Top left tap of each row: image offset, and coordinates that may be negative.
                let mut at = [(0usize, 0isize, 0isize); gemm::MR_MAX];
                let mut inside = mergeable;
                for at in at.iter_mut().take(rows) {
                    let y0 = (oy * p.stride_h) as isize - p.pad_top as isize;
                    let x0 = (ox * p.stride_w) as isize - p.pad_left as isize;
                    *at = (n * image + self.channel, y0, x0);
                    inside &= y0 >= 0
                        && x0 >= 0
                        && y0 as usize + (kh - 1) * p.dilation_h < p.height
                        && x0 as usize + kw <= p.width;
                    ox += 1;
                    if ox == ow {
                        (oy, ox) = (oy + 1, 0);
                    }
                    if oy == oh {
                        (n, oy) = (n + 1, 0);
                    }
                }
                let runs = if inside { kh } else { taps };
                let run_len = if inside { kw * cin_g } else { cin_g };
                t.write(Tile { row: pixel, rows, runs, run_len, table: used });
                pixel += rows;
                let rest = rows..mr;
                if inside {
                    for (m, &(image, y0, x0)) in at.iter().enumerate().take(rows) {
                        let first = image + y0 as usize * line + x0 as usize * p.c_in;
                        for ky in 0..kh {
                            // SAFETY: the kernel row is inside image `n` of `x`.
                            table[used + ky * mr + m]
                                .write(unsafe { base.add(first + ky * p.dilation_h * line) });
                        }
                    }
                    for ky in 0..kh {
                        rest.clone().for_each(|m| _ = table[used + ky * mr + m].write(self.zeros));
                    }
                    used += kh * mr;
                    continue;
                }
                for ky in 0..kh {
                    for kx in 0..kw {
                        for (m, &(image, y0, x0)) in at.iter().enumerate().take(rows) {
                            let yy = y0 + (ky * p.dilation_h) as isize;
                            let xx = x0 + (kx * p.dilation_w) as isize;
                            let within = yy >= 0
                                && xx >= 0
                                && (yy as usize) < p.height
                                && (xx as usize) < p.width;
                            table[used + m].write(if within {
                                let offset = image + yy as usize * line + xx as usize * p.c_in;
                                // SAFETY: the pixel is inside image `n` of `x`.
                                unsafe { base.add(offset) }
                            } else {
                                self.zeros
                            });
                        }
                        rest.clone().for_each(|m| _ = table[used + m].write(self.zeros));
                        used += mr;
                    }
                }
            }
            // SAFETY: the first `count` tiles, and the first `used` pointers, were written above.
            let (table, tiles): (&mut [*const f32], &mut [Tile]) = unsafe {
                (
                    core::slice::from_raw_parts_mut(table.as_mut_ptr().cast(), used),
                    core::slice::from_raw_parts_mut(tiles.as_mut_ptr().cast(), count),
                )
            };
            for i in 0..outer.times {
                if i > 0 {
                    // From the last of the inner ones back to the first, and on.
                    let back = |on: usize, each: usize| on.wrapping_sub(each * (inner.times - 1));
                    let (floats, rows) =
                        (back(outer.floats, inner.floats), back(outer.rows, inner.rows));
                    shift(table, tiles, self.zeros, floats, rows);
                }
                for j in 0..inner.times {
                    if j > 0 {
                        shift(table, tiles, self.zeros, inner.floats, inner.rows);
                    }
                    // SAFETY: every pointer of the table is to `run_len` floats: a pixel's channels of this
                    // group, a whole kernel row inside the image, or the row of zeros; so it is further on,
                    // in lines whose kernel lies as these ones' does, and in images that `x` has. Output rows
                    // are among pixels `0..pixels`, whose lengths `run` checked.
                    unsafe {
                        gemm::run_tiles(self.isa, table.as_ptr(), tiles, &self.b, &self.dest);
                    }
                }
            }
        }
    }
}

/// How often pixels are convolved, each time so much further on.
#[derive(Clone, Copy)]
struct Shift {
    times: usize,
    /// Floats of the input.
    floats: usize,
    /// Pixels of the output.
    rows: usize,
}

impl Shift {
    const ONCE: Shift = Shift { times: 1, floats: 0, rows: 0 };
}

/// Moves tiles on, but for taps that are zeros (wrapping: backwards where that is further).
fn shift(
    table: &mut [*const f32],
    tiles: &mut [Tile],
    zeros: *const f32,
    floats: usize,
    rows: usize,
) {
    for at in table {
        let on = at.wrapping_add(floats);
        *at = if *at == zeros { *at } else { on };
    }
    tiles.iter_mut().for_each(|t| t.row = t.row.wrapping_add(rows));
}
