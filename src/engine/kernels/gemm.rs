//! The register-tile kernel that convolutions and matrix products share, and its drivers.
//!
//! One tile computes `MR` rows of results by `NR` columns: `act(bias + sum A * B + residual)`. The
//! columns of B are packed in panels of `NR`; the rows of A are read in place, by broadcast, through a
//! table of pointers with one row of the table per run. A run is a stretch of A that is contiguous in
//! memory: the whole row for a matrix product, one kernel row or one tap for a convolution. Since a
//! convolution's border taps just point at a row of zeros, nothing is copied or padded.

use super::activation::{Activation, Fused, apply_fused, apply_rows};
use super::isa::{Checked, Isa, Op};
pub(super) use super::panels::{B, Panels};
use super::simd::Simd;
use core::mem::MaybeUninit;

/// Most rows of a register tile, over all instruction sets.
pub(super) const MR_MAX: usize = 10;
/// Pointers in the table that a driver keeps on the stack: at least one tile's, of the largest kernel.
pub(super) const TABLE: usize = 4096;
/// As many as several tiles fill at once: half of a first-level cache of 32 KiB.
pub(super) const NEAR_POINTERS: usize = 2048;
/// Tiles that a driver keeps on the stack.
pub(super) const TILES: usize = 64;

/// Columns of a panel for an instruction set.
pub(super) fn panel_columns(isa: Isa) -> usize {
    match isa {
        Isa::Portable | Isa::Neon32 => 8,
        Isa::Avx2 | Isa::Neon => 16,
        Isa::Avx512 => 32,
    }
}

/// Rows of a register tile for an instruction set.
pub(super) fn tile_rows(isa: Isa) -> usize {
    match isa {
        Isa::Portable | Isa::Avx2 | Isa::Neon => 6,
        Isa::Neon32 => 4,
        Isa::Avx512 => 10,
    }
}

/// Where results go: row `i` begins at `c + i * ldc`. `res` is added before the activation, unless
/// null.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dest {
    pub(super) c: *mut f32,
    pub(super) ldc: usize,
    pub(super) res: *const f32,
    pub(super) ldr: usize,
    pub(super) act: Activation,
}

impl Dest {
    /// The same from row `row` on.
    /// # Safety
    /// The row is one of the destination's, and of the residual's, if there is one.
    pub(super) unsafe fn rows_from(self, row: usize) -> Dest {
        // SAFETY: by the caller's promise both stay within what they point to.
        unsafe {
            let res = if self.res.is_null() { self.res } else { self.res.add(row * self.ldr) };
            Dest { c: self.c.add(row * self.ldc), res, ..self }
        }
    }
}

/// Some rows that one register tile computes, and where their runs are in the pointer table: run `r`
/// of row `m` at `table + r * MR + m`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tile {
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) runs: usize,
    pub(super) run_len: usize,
    pub(super) table: usize,
}

/// Splits `rows` into tiles of nearly equal height of at most `mr`: (tiles, height, how many tiles
/// are one higher). A lone last row would cost nearly as much as a whole tile.
#[inline(always)]
pub(super) fn split(rows: usize, mr: usize) -> (usize, usize, usize) {
    let tiles = rows.div_ceil(mr);
    if tiles == 0 { (0, 0, 0) } else { (tiles, rows / tiles, rows % tiles) }
}

/// One register tile: `ROWS` rows by `NV` vectors; `in_order`, with the loop for cores that run in order where
/// there is one.
/// # Safety
/// The table has `t.runs` rows, each with `ROWS` pointers valid for reading `t.run_len` floats; `b`
/// has `t.runs * t.run_len * nr` floats; `bias` has `NV` vectors; rows `t.row ..` of `dest` are valid for
/// `cols` floats, `cols` more than `(NV - 1) * LANES`, at most `NV * LANES`.
#[inline(always)]
#[allow(clippy::too_many_arguments, clippy::needless_range_loop)]
unsafe fn tile<S: Simd, const ROWS: usize, const NV: usize>(
    table: *const *const f32,
    t: &Tile,
    b: *const f32,
    nr: usize,
    bias: *const f32,
    dest: &Dest,
    col: usize,
    cols: usize,
    fused: Fused,
    in_order: bool,
) {
    // SAFETY: all pointers below stay within what the caller promises; see each line's bound.
    unsafe {
        let mut acc = [[S::splat(0.0); NV]; ROWS];
        for (v, bias_v) in (0..NV).map(|v| (v, S::load(bias.add(v * S::LANES)))) {
            for row in &mut acc {
                row[v] = bias_v;
            }
        }
        let mut b = b;
        let mut run = table.add(t.table);
        for _ in 0..t.runs {
            let mut a = [core::ptr::null::<f32>(); ROWS];
            for (m, p) in a.iter_mut().enumerate() {
                *p = *run.add(m);
            }
            run = run.add(S::MR);
            let mut from = 0;
            if in_order {
                from = S::add_in_order(&mut acc, &a, b, t.run_len);
                b = b.add(from * nr);
            }
            if S::LANED {
                while from + 4 <= t.run_len {
                    let mut x = [S::splat(0.0); ROWS];
                    for m in 0..ROWS {
                        x[m] = S::load(a[m].add(from));
                    }
                    macro_rules! lanes {
                        ($($lane:literal)*) => { $(
                            for v in 0..NV {
                                let w = S::load(b.add(v * S::LANES));
                                for m in 0..ROWS {
                                    acc[m][v] = S::fma_lane::<$lane>(w, x[m], acc[m][v]);
                                }
                            }
                            b = b.add(nr);
                        )* };
                    }
                    lanes!(0 1 2 3);
                    from += 4;
                }
            }
            for k in from..t.run_len {
                let mut bv = [S::splat(0.0); NV];
                for (v, x) in bv.iter_mut().enumerate() {
                    *x = S::load(b.add(v * S::LANES));
                }
                b = b.add(nr);
                for m in 0..ROWS {
                    let x = S::splat(*a[m].add(k));
                    for v in 0..NV {
                        acc[m][v] = S::fma(x, bv[v], acc[m][v]);
                    }
                }
            }
        }
        // A copy for the loops below, which are not unrolled: indexed by a variable, the sums themselves
        // would live in memory, and be stored there after every multiplication.
        let mut sums = [[S::splat(0.0); NV]; ROWS];
        for m in 0..ROWS {
            for v in 0..NV {
                put_aside(&mut sums[m][v], acc[m][v]);
            }
        }
        store::<S, ROWS, NV>(&sums, dest, t.row, col, cols, fused);
    }
}

/// Keeps a sum for the loops that store it. Volatile: of plain copies the compiler makes one of all sums, and then
/// takes the copy for the sums themselves, as it did for a while (a third of the speed).
#[inline(always)]
fn put_aside<V: Copy>(to: &mut V, sum: V) {
    // SAFETY: a reference is valid for writing.
    unsafe { core::ptr::write_volatile(to, sum) }
}

/// Stores the sums of a register tile as results, from `row` and `col`.
/// # Safety
/// Rows `row..` of `dest`, as many as there are of sums, are valid for `cols` floats from `col`; `cols` is more
/// than `(NV - 1) * LANES`, at most `NV * LANES`.
#[inline(always)]
pub(super) unsafe fn store<S: Simd, const ROWS: usize, const NV: usize>(
    sums: &[[S::V; NV]; ROWS],
    dest: &Dest,
    row: usize,
    col: usize,
    cols: usize,
    fused: Fused,
) {
    let tail = cols - (NV - 1) * S::LANES;
    // SAFETY: the caller's promise; of the last vector only the first `tail` floats are touched.
    unsafe {
        for (m, vectors) in sums.iter().enumerate() {
            let c = dest.c.add((row + m) * dest.ldc + col);
            for (v, &x) in vectors.iter().enumerate() {
                let whole = v + 1 < NV || tail == S::LANES;
                let mut x = x;
                if !dest.res.is_null() {
                    let r = dest.res.add((row + m) * dest.ldr + col + v * S::LANES);
                    let r = if whole { S::load(r) } else { S::load_part(r, tail) };
                    x = S::add(x, r);
                }
                let x = apply_fused::<S>(fused, x);
                let c = c.add(v * S::LANES);
                if whole { S::store(c, x) } else { S::store_part(c, x, tail) }
            }
        }
    }
}

/// Rows of the tiles that are paired for one vector of columns.
const PAIRED: usize = 6;

/// Two full tiles by one vector of columns: as many sums as hide the latency of FMA, which one tile has
/// not.
/// # Safety
/// As [`tile`], for both tiles, which have `S::MR` rows, [`PAIRED`], and runs alike.
#[inline(always)]
#[allow(clippy::too_many_arguments, clippy::needless_range_loop)]
unsafe fn pair<S: Simd>(
    table: *const *const f32,
    [s, t]: [&Tile; 2],
    b: *const f32,
    nr: usize,
    bias: *const f32,
    dest: &Dest,
    col: usize,
    cols: usize,
    fused: Fused,
) {
    const ROWS: usize = 2 * PAIRED;
    // SAFETY: as in `tile`.
    unsafe {
        let mut acc = [S::load(bias); ROWS];
        let mut b = b;
        let (mut first, mut second) = (table.add(s.table), table.add(t.table));
        for _ in 0..s.runs {
            let mut a = [core::ptr::null::<f32>(); ROWS];
            for m in 0..PAIRED {
                a[m] = *first.add(m);
                a[PAIRED + m] = *second.add(m);
            }
            (first, second) = (first.add(S::MR), second.add(S::MR));
            for k in 0..s.run_len {
                let bv = S::load(b);
                b = b.add(nr);
                for m in 0..ROWS {
                    acc[m] = S::fma(S::splat(*a[m].add(k)), bv, acc[m]);
                }
            }
        }
        // As in `tile`.
        let mut sums = [S::splat(0.0); ROWS];
        for m in 0..ROWS {
            put_aside(&mut sums[m], acc[m]);
        }
        for (m, &x) in sums.iter().enumerate() {
            let row = if m < PAIRED { s.row + m } else { t.row + m - PAIRED };
            let whole = cols == S::LANES;
            let mut x = x;
            if !dest.res.is_null() {
                let r = dest.res.add(row * dest.ldr + col);
                x = S::add(x, if whole { S::load(r) } else { S::load_part(r, cols) });
            }
            let x = apply_fused::<S>(fused, x);
            let c = dest.c.add(row * dest.ldc + col);
            if whole { S::store(c, x) } else { S::store_part(c, x, cols) }
        }
    }
}

/// One to three rows by several panels at once: enough independent sums to hide the latency of FMA
/// and to keep several streams of weights in flight. Covers `NP` whole panels from column `col`.
/// # Safety
/// As [`tile`], with `b` the first of `NP` panels of `NP * nr` columns that all exist in `dest`.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // constant bounds, so that the sums stay in registers
unsafe fn flat<S: Simd, const ROWS: usize, const NV: usize, const NP: usize>(
    table: *const *const f32,
    t: &Tile,
    b: &B,
    panel: usize,
    dest: &Dest,
    fused: Fused,
) {
    // SAFETY: as in `tile`.
    unsafe {
        let step = b.k * b.nr;
        let first = b.data.add(panel * step);
        let mut acc = [[[S::splat(0.0); NV]; NP]; ROWS];
        for p in 0..NP {
            for v in 0..NV {
                let bias = S::load(b.bias.add((panel + p) * b.nr + v * S::LANES));
                for row in &mut acc {
                    row[p][v] = bias;
                }
            }
        }
        let mut run = table.add(t.table);
        let mut at = 0;
        for _ in 0..t.runs {
            let mut a = [core::ptr::null::<f32>(); ROWS];
            for (m, p) in a.iter_mut().enumerate() {
                *p = *run.add(m);
            }
            run = run.add(S::MR);
            for k in 0..t.run_len {
                let mut x = [S::splat(0.0); ROWS];
                for m in 0..ROWS {
                    x[m] = S::splat(*a[m].add(k));
                }
                for p in 0..NP {
                    for v in 0..NV {
                        let w = S::load(first.add(p * step + at + v * S::LANES));
                        for m in 0..ROWS {
                            acc[m][p][v] = S::fma(x[m], w, acc[m][p][v]);
                        }
                    }
                }
                at += b.nr;
            }
        }
        // As in `tile`.
        let mut sums = [[[S::splat(0.0); NV]; NP]; ROWS];
        for m in 0..ROWS {
            for p in 0..NP {
                for v in 0..NV {
                    put_aside(&mut sums[m][p][v], acc[m][p][v]);
                }
            }
        }
        for (m, row) in sums.iter().enumerate() {
            for (p, vs) in row.iter().enumerate() {
                for (v, &x) in vs.iter().enumerate() {
                    let col = (panel + p) * b.nr + v * S::LANES;
                    let mut x = x;
                    if !dest.res.is_null() {
                        x = S::add(x, S::load(dest.res.add((t.row + m) * dest.ldr + col)));
                    }
                    S::store(dest.c.add((t.row + m) * dest.ldc + col), apply_fused::<S>(fused, x));
                }
            }
        }
    }
}

/// All panels for some tiles; panels outermost, so that a panel stays in cache over the tiles.
/// # Safety
/// As [`tile`], for every tile and panel; tiles have at most `S::MR` rows.
#[inline(always)]
unsafe fn tiles_by_panels<S: Simd, const NV: usize, const HALF: usize>(
    table: *const *const f32,
    tiles: &[Tile],
    b: &B,
    dest: &Dest,
    in_order: bool,
) {
    let (fused, _) = dest.act.fused();
    let panels = b.n.div_ceil(b.nr);
    let mut panel = 0;
    // SAFETY: passes on the caller's promises; panels and columns stay within `b.n`.
    unsafe {
        if let [t] = tiles
            && t.rows <= 3
        {
            let whole = b.n / b.nr;
            macro_rules! flat {
                ($rows:literal, $np:literal) => {
                    while panel + $np <= whole {
                        flat::<S, $rows, NV, $np>(table, t, b, panel, dest, fused);
                        panel += $np;
                    }
                };
            }
            match t.rows {
                1 => {
                    flat!(1, 4);
                    flat!(1, 2);
                }
                2 => flat!(2, 2),
                _ => flat!(3, 2),
            }
        }
        while panel < panels {
            let col = panel * b.nr;
            let cols = (b.n - col).min(b.nr);
            let data = b.data.add(panel * b.k * b.nr);
            let bias = b.bias.add(col);
            macro_rules! rows {
                ($t:expr, $nv:ident, $($r:literal)*) => {
                    match $t.rows {
                        $($r if $r <= S::MR => tile::<S, $r, $nv>(
                            table, $t, data, b.nr, bias, dest, col, cols, fused, in_order,
                        ),)*
                        _ => {}
                    }
                };
            }
            // In between, narrower panels compute padding columns that are not stored.
            if cols <= HALF * S::LANES && HALF < NV && cols > (HALF - 1) * S::LANES {
                let mut tiles = tiles;
                while HALF == 1
                    && S::MR == PAIRED
                    && let [s, t, rest @ ..] = tiles
                    && (s.rows, t.rows) == (PAIRED, PAIRED)
                    && (s.runs, s.run_len) == (t.runs, t.run_len)
                {
                    pair::<S>(table, [s, t], data, b.nr, bias, dest, col, cols, fused);
                    tiles = rest;
                }
                for t in tiles {
                    rows!(t, HALF, 1 2 3 4 5 6 7 8 9 10);
                }
            } else if cols > (NV - 1) * S::LANES {
                for t in tiles {
                    rows!(t, NV, 1 2 3 4 5 6 7 8 9 10);
                }
            } else if NV > 2 {
                narrow::<S, NV>(table, tiles, b, panel, dest, fused);
            }
            panel += 1;
        }
    }
}

/// The last panel where it has so few columns that no tile instance ends in its last vector (only
/// with 4 vectors a panel): vector by vector.
/// # Safety
/// As [`tiles_by_panels`].
#[inline(always)]
unsafe fn narrow<S: Simd, const NV: usize>(
    table: *const *const f32,
    tiles: &[Tile],
    b: &B,
    panel: usize,
    dest: &Dest,
    fused: Fused,
) {
    // SAFETY: passes on the caller's promises; each call covers one vector's columns.
    unsafe {
        let mut col = panel * b.nr;
        while col < b.n {
            let cols = (b.n - col).min(S::LANES);
            let data = b.data.add(panel * b.k * b.nr + (col - panel * b.nr));
            for t in tiles {
                macro_rules! rows {
                    ($($r:literal)*) => {
                        match t.rows {
                            $($r if $r <= S::MR => tile::<S, $r, 1>(
                                table, t, data, b.nr, b.bias.add(col), dest, col, cols, fused, false,
                            ),)*
                            _ => {}
                        }
                    };
                }
                rows!(1 2 3 4 5 6 7 8 9 10);
            }
            col += cols;
        }
    }
}

/// Some tiles by all panels: the one entry to the register tiles, so that they are compiled once per
/// instruction set.
struct RunTiles<'a> {
    table: *const *const f32,
    tiles: &'a [Tile],
    b: &'a B,
    dest: &'a Dest,
    in_order: bool,
}

impl Op for RunTiles<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let RunTiles { table, tiles, b, dest, in_order } = self;
        // SAFETY: made only by `run_tiles`, with its caller's promise.
        unsafe {
            match S::NV {
                2 => tiles_by_panels::<S, 2, 1>(table, tiles, b, dest, in_order),
                _ => tiles_by_panels::<S, 4, 2>(table, tiles, b, dest, in_order),
            }
        }
    }
}

/// Runs tiles over all panels.
/// # Safety
/// For every tile: the table has `runs` rows of `tile_rows(isa)` pointers from its `table`, the first
/// `rows` of each valid for reading `run_len` floats; `runs * run_len == b.k`; its rows of `dest` are
/// valid for `b.n` floats; it has at most `tile_rows(isa)` rows, and begins where the one before it ends.
/// `b` was packed for `isa`.
pub(super) unsafe fn run_tiles(
    isa: Checked,
    table: *const *const f32,
    tiles: &[Tile],
    b: &B,
    dest: &Dest,
) {
    if dest.act.fused().1 {
        // SAFETY: the caller's promise.
        unsafe { all_panels(isa, table, tiles, b, dest) };
        return;
    }
    // The tiles' rows are consecutive.
    let first = tiles.first().map_or(0, |t| t.row);
    let rows: usize = tiles.iter().map(|t| t.rows).sum();
    let panels = (NEAR_FLOATS / (rows.max(1) * b.nr)).max(1);
    let mut col = 0;
    while col < b.n {
        let n = (panels * b.nr).min(b.n - col);
        let res = if dest.res.is_null() { dest.res } else { dest.res.wrapping_add(col) };
        // SAFETY: `col` is a multiple of `nr` below `n`: panels before it take `col * k` floats; columns
        // of each row of `dest` are written first, then read.
        unsafe {
            let c = dest.c.add(col);
            let b = &B { data: b.data.add(col * b.k), bias: b.bias.add(col), n, ..*b };
            all_panels(isa, table, tiles, b, &Dest { c, res, ..*dest });
            apply_rows(isa, dest.act, c.add(first * dest.ldc), (rows, n, dest.ldc));
        }
        col += n;
    }
}

/// Runs tiles over all panels, with what the register tile can apply of the activation.
/// # Safety
/// As [`run_tiles`].
unsafe fn all_panels(isa: Checked, table: *const *const f32, tiles: &[Tile], b: &B, dest: &Dest) {
    match isa.isa() {
        // SAFETY: the caller's promise; the processor has the set, or `isa` would not exist.
        #[cfg(target_arch = "arm")]
        Isa::Neon32 => unsafe { super::neon32::tiles_by_panels(table, tiles, b, dest) },
        _ => isa.dispatch(RunTiles { table, tiles, b, dest, in_order: isa.in_order() }),
    }
}

/// Floats of results that stay in the first-level cache until an activation is applied to them: half of
/// one of 32 KiB.
const NEAR_FLOATS: usize = 4 * 1024;

/// A product of plain rows with packed panels: row `i` of A begins at `a + i * lda`.
/// # Safety
/// Rows `0..m` of A are readable over `b.k` floats; rows of `dest` writable over `b.n`. `b` was packed
/// for `isa`.
pub(super) unsafe fn run_rows(
    isa: Checked,
    a: *const f32,
    lda: usize,
    m: usize,
    b: &B,
    dest: &Dest,
) {
    let mr = tile_rows(isa.isa());
    // Not initialised: a Winograd point has so few rows that to clear these would take as long as they do.
    let mut table = [const { MaybeUninit::<*const f32>::uninit() }; TILES * MR_MAX];
    let mut tiles = [const { MaybeUninit::<Tile>::uninit() }; TILES];
    // Rows of A that stay in the second-level cache while all panels pass over them.
    let chunk = (CHUNK_FLOATS / b.k.max(1)).clamp(mr * 4, mr * TILES);
    let mut row = 0;
    while row < m {
        let here = chunk.min(m - row);
        let (count, height, higher) = split(here, mr);
        for (i, t) in tiles.iter_mut().enumerate().take(count) {
            let rows = height + usize::from(i < higher);
            t.write(Tile { row, rows, runs: 1, run_len: b.k, table: i * mr });
            for m in 0..rows {
                // SAFETY: row `row + m` is one of A's.
                table[i * mr + m].write(unsafe { a.add((row + m) * lda) });
            }
            row += rows;
        }
        // SAFETY: the first `count` tiles and, for each, its rows of the table were written above, from rows
        // of A.
        unsafe {
            let tiles = core::slice::from_raw_parts(tiles.as_ptr().cast(), count);
            run_tiles(isa, table.as_ptr().cast(), tiles, b, dest);
        }
    }
}

/// Floats of A that one pass over the panels covers: a quarter of a 512 KiB second-level cache.
const CHUNK_FLOATS: usize = 32 * 1024;

/// Checks that `rows` rows of `cols` floats at stride `ld` lie in a slice of `len`.
#[track_caller]
pub(super) fn check_rows(what: &str, len: usize, rows: usize, cols: usize, ld: usize) {
    assert!(ld >= cols || rows <= 1, "{what}: row stride {ld} is less than the {cols} columns");
    let need = if rows == 0 { 0 } else { (rows - 1) * ld + cols };
    assert!(
        len >= need,
        "{what}: {rows} rows of {cols} at stride {ld} need {need} floats, got {len}"
    );
}
