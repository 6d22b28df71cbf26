//! Direct convolution: the register tile over taps, through pointers.

use super::conv::ConvParams;
use super::gemm::{self, B, Dest, Tile, split, tile_rows};
use super::isa::Checked;
use core::mem::MaybeUninit;

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
        let (oh, ow) = self.p.output();
        let plane = oh * ow;
        if self.pixels == 0 {
            return;
        }
        let images = self.pixels / plane;
        // Images whose pixels fill a table, so that the weights pass over them at once.
        let group = (self.chunk() / plane).clamp(1, images);
        let times = images / group;
        self.pass(0, group, times);
        self.pass(times * group, images % group, 1);
    }

    /// Pixels whose pointers fill a table.
    fn chunk(&self) -> usize {
        let mr = tile_rows(self.isa.isa());
        let taps = self.p.kernel_h * self.p.kernel_w;
        (gemm::TABLE / (taps * mr)).clamp(1, gemm::TILES) * mr
    }

    /// `times` groups of `group` images, from image `first`: where the taps lie is found for the first
    /// group, and is as far on for each that follows, which takes much less.
    fn pass(&self, first: usize, group: usize, times: usize) {
        let p = self.p;
        let mr = tile_rows(self.isa.isa());
        let (oh, ow) = p.output();
        let cin_g = p.c_in / p.groups;
        let (kh, kw) = (p.kernel_h, p.kernel_w);
        let taps = kh * kw;
        // A kernel row is one run where its taps lie side by side and hold all channels.
        let mergeable = p.dilation_w == 1 && p.groups == 1;
        // Not initialised: to clear them takes as long as a small convolution.
        let mut table = [const { MaybeUninit::<*const f32>::uninit() }; gemm::TABLE];
        let mut tiles = [const { MaybeUninit::<Tile>::uninit() }; gemm::TILES];
        let chunk = self.chunk();
        let base = self.x.as_ptr();
        let line = p.width * p.c_in;
        let image = p.height * line;
        // The next pixel: its image, output line and column, counted along, since to divide would take
        // as long as the products of a small kernel.
        let (mut n, mut oy, mut ox) = (first, 0, 0);
        let mut pixel = first * oh * ow;
        let end = pixel + group * oh * ow;
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
            for time in 0..times {
                if time > 0 {
                    for at in table.iter_mut() {
                        let on = at.wrapping_add(group * image);
                        *at = if *at == self.zeros { *at } else { on };
                    }
                    tiles.iter_mut().for_each(|t| t.row += group * oh * ow);
                }
                // SAFETY: every pointer of the table is to `run_len` floats: a pixel's channels of this
                // group, a whole kernel row inside the image, or the row of zeros; in each further pass the
                // same of an image so much further on, of which `x` has as many. Output rows are pixels
                // `0..pixels`, whose lengths `run` checked.
                unsafe {
                    gemm::run_tiles(self.isa, table.as_ptr(), tiles, &self.b, &self.dest);
                }
            }
        }
    }
}
