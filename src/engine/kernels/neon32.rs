//! Matrix products with Advanced SIMD of 32-bit ARM.
//!
//! Rust's intrinsics for it are not stable, so that the innermost loops are assembly: whole sums of a
//! register tile of 4 rows by 8 columns, or of fewer rows by several panels. All else of this set is the
//! portable kernels' code.
//!
//! Sums are rounded as theirs are: `vmla.f32` rounds the product, then the sum, and every such processor has
//! it. (`vfma.f32`, which rounds once, is missing before VFPv4, and takes no lane of a vector: each element
//! of A would have to be spread over one first.) But Advanced SIMD of 32 bits always flushes denormals to
//! zero, whatever the thread asks for, and makes every NaN the default one.

use super::activation::Fused;
use super::gemm::{B, Dest, Tile, store};
use super::simd::{Portable, Simd};
use core::arch::naked_asm;

/// Columns of a panel.
pub(super) const COLUMNS: usize = 8;
/// Vectors across a panel.
const NV: usize = COLUMNS / Portable::LANES;

type V = <Portable as Simd>::V;

/// Whether this processor has it.
pub(super) fn available() -> bool {
    /// `HWCAP_NEON` of Linux for 32-bit ARM.
    const NEON: usize = 1 << 12;
    rustix::param::linux_hwcap().0 & NEON != 0
}

/// What the loops read: `runs` rows of four pointers, each to `run_len` floats of a row of A; from `b` on,
/// `runs * run_len` rows of `COLUMNS` floats; and as many of each further panel, `panel` bytes on.
#[repr(C)]
struct Products {
    table: *const *const f32,
    runs: usize,
    run_len: usize,
    b: *const f32,
    panel: usize,
}

/// Adds products to `sums`: `[panel][row][column]`.
type Loop = unsafe extern "C" fn(sums: *mut f32, products: &Products);

/// All panels for some tiles; panels outermost, so that a panel stays in cache over the tiles.
/// # Safety
/// As `gemm::run_tiles`, for a processor that has Advanced SIMD.
pub(super) unsafe fn tiles_by_panels(table: *const *const f32, tiles: &[Tile], b: &B, dest: &Dest) {
    let (fused, _) = dest.act.fused();
    let panels = b.n.div_ceil(COLUMNS);
    let mut panel = 0;
    // SAFETY: passes on the caller's promises; whole panels only are taken several at once.
    unsafe {
        if let [t] = tiles {
            // Several panels of a low tile: enough sums to hide the latency of a multiply-add.
            while t.rows == 1 && panel + 4 <= panels {
                block::<1, 4>(row_by_four, table, t, b, panel, dest, fused);
                panel += 4;
            }
            while t.rows == 2 && panel + 2 <= panels {
                block::<2, 2>(two_by_two, table, t, b, panel, dest, fused);
                panel += 2;
            }
        }
        while panel < panels {
            for t in tiles {
                match t.rows {
                    1 => block::<1, 1>(row, table, t, b, panel, dest, fused),
                    2 => block::<2, 1>(two, table, t, b, panel, dest, fused),
                    3 => block::<3, 1>(three, table, t, b, panel, dest, fused),
                    4 => block::<4, 1>(four, table, t, b, panel, dest, fused),
                    _ => {}
                }
            }
            panel += 1;
        }
    }
}

/// A tile of `R` rows by `P` panels from panel `first`.
/// # Safety
/// As [`tiles_by_panels`], for a tile of `R` rows, panels that `b` has, and the loop of this size.
#[inline(always)]
unsafe fn block<const R: usize, const P: usize>(
    products: Loop,
    table: *const *const f32,
    t: &Tile,
    b: &B,
    first: usize,
    dest: &Dest,
    fused: Fused,
) {
    // SAFETY: the caller's promises; panels take `k * COLUMNS` floats each, the bias is padded to whole
    // panels, and sums are as many as the loop adds to. Columns stay below `b.n`.
    unsafe {
        let mut sums = [[[Portable::splat(0.0); NV]; R]; P];
        for (p, panel) in sums.iter_mut().enumerate() {
            let bias: [V; NV] = core::array::from_fn(|v| {
                Portable::load(b.bias.add((first + p) * COLUMNS + v * Portable::LANES))
            });
            panel.fill(bias);
        }
        let panel = b.k * COLUMNS;
        products(
            sums.as_mut_ptr().cast(),
            &Products {
                table: table.add(t.table),
                runs: t.runs,
                run_len: t.run_len,
                b: b.data.add(first * panel),
                panel: panel * size_of::<f32>(),
            },
        );
        for (p, panel) in sums.iter().enumerate() {
            let col = (first + p) * COLUMNS;
            let cols = (b.n - col).min(COLUMNS);
            if cols > Portable::LANES {
                store::<Portable, R, NV>(panel, dest, t.row, col, cols, fused);
            } else {
                let panel = panel.map(|[v, _]| [v]);
                store::<Portable, R, 1>(&panel, dest, t.row, col, cols, fused);
            }
        }
    }
}

// In all loops r0 is the sums, r1 the products, r2 the table, r3 the runs that are left, r4 to r7 rows of A,
// r8, r10, r11 and r12 panels, lr the floats that are left of a run, and r9 its fours. q8 to q15 hold the
// sums, q0 to q3 four floats of each row of A (d0 and d1 of the first), the others rows of B: each is loaded
// well before it is multiplied, for processors that run in order.

/// Two multiply-adds of a row of B, `$w0` and `$w1`, for each row of A: its half that has the `$lane` to multiply
/// by, and its two sums.
macro_rules! multiply {
    ($w0:literal $w1:literal, $lane:literal; $($a:literal $s0:literal $s1:literal),*) => {
        concat!($(
            "vmla.f32 ", $s0, ", ", $w0, ", ", $a, $lane, "\n",
            "vmla.f32 ", $s1, ", ", $w1, ", ", $a, $lane, "\n",
        )*)
    };
}

/// Loads a row of B from its panel.
macro_rules! row_of_b {
    ($b:literal $w0:literal $w1:literal) => {
        concat!("vld1.32 {{", $w0, ", ", $w1, "}}, [", $b, "]!\n")
    };
}

/// Loads four floats of a row of A.
macro_rules! row_of_a {
    ($a:literal $floats:literal) => {
        concat!("vld1.32 {{", $floats, "}}, [", $a, "]!\n")
    };
}

/// A function that adds products: the registers of its sums and rows, and the text of what finds further
/// panels, of four rounds of multiply-adds, and of one.
macro_rules! products {
    ($name:ident: sums $sums:literal, rows $rows:literal,
     setup { $($setup:expr),* } four { $($four:expr),* } one { $($one:expr),* }) => {
        /// Adds products of as many rows and panels as the name says.
        /// # Safety
        /// The processor has Advanced SIMD; `sums` are that many, valid for reading and writing; pointers of
        /// `products` are as its documentation says, for that many rows and panels.
        #[unsafe(naked)]
        unsafe extern "C" fn $name(sums: *mut f32, products: &Products) {
            // Of the registers used, the procedure call standard has a callee save r4 to r11 and d8 to d15. The
            // rest of the vector registers are the caller's to save, if its compiler knows of them.
            naked_asm!(
                ".fpu neon",
                "push {{r4-r11, lr}}",
                "vpush {{d8-d15}}",
                "ldr r2, [r1]",
                "ldr r3, [r1, #4]",
                "ldr r8, [r1, #12]",
                $($setup,)*
                concat!("vldmia r0, {{", $sums, "}}"),
                "cmp r3, #0",
                "beq 5f",
                // A run: its rows' pointers are four in the table, whether used or not.
                "2:",
                concat!("ldm r2, {{", $rows, "}}"),
                "add r2, r2, #16",
                "ldr lr, [r1, #8]",
                "lsrs r9, lr, #2",
                "beq 4f",
                "3:",
                $($four,)*
                "subs r9, r9, #1",
                "bne 3b",
                "4:",
                "ands lr, lr, #3",
                "beq 7f",
                "6:",
                $($one,)*
                "subs lr, lr, #1",
                "bne 6b",
                "7:",
                "subs r3, r3, #1",
                "bne 2b",
                "5:",
                concat!("vstmia r0, {{", $sums, "}}"),
                "vpop {{d8-d15}}",
                "pop {{r4-r11, pc}}",
                // What is assembled after this is not told to have more than the target.
                ".fpu vfpv3-d16",
            )
        }
    };
}

/// Tiles of one panel: for each row its pointer, its floats and their halves, and its two sums.
macro_rules! tile {
    ($name:ident: sums $sums:literal, rows $rows:literal;
     $($a:literal $floats:literal $low:literal $high:literal: $s0:literal $s1:literal),*) => {
        products!($name: sums $sums, rows $rows,
            setup {}
            four {
                row_of_b!("r8" "q4" "q5"),
                $(row_of_a!($a $floats),)*
                row_of_b!("r8" "q6" "q7"),
                multiply!("q4" "q5", "[0]"; $($low $s0 $s1),*),
                row_of_b!("r8" "q4" "q5"),
                multiply!("q6" "q7", "[1]"; $($low $s0 $s1),*),
                row_of_b!("r8" "q6" "q7"),
                multiply!("q4" "q5", "[0]"; $($high $s0 $s1),*),
                multiply!("q6" "q7", "[1]"; $($high $s0 $s1),*)
            }
            one {
                row_of_b!("r8" "q4" "q5"),
                $(concat!("vld1.32 {{", $low, "[0]}}, [", $a, "]!"),)*
                multiply!("q4" "q5", "[0]"; $($low $s0 $s1),*)
            }
        );
    };
}

tile!(four: sums "d16-d31", rows "r4-r7";
    "r4" "q0" "d0" "d1": "q8" "q9", "r5" "q1" "d2" "d3": "q10" "q11",
    "r6" "q2" "d4" "d5": "q12" "q13", "r7" "q3" "d6" "d7": "q14" "q15");
tile!(three: sums "d16-d27", rows "r4-r6";
    "r4" "q0" "d0" "d1": "q8" "q9", "r5" "q1" "d2" "d3": "q10" "q11",
    "r6" "q2" "d4" "d5": "q12" "q13");
tile!(two: sums "d16-d23", rows "r4-r5";
    "r4" "q0" "d0" "d1": "q8" "q9", "r5" "q1" "d2" "d3": "q10" "q11");
tile!(row: sums "d16-d19", rows "r4";
    "r4" "q0" "d0" "d1": "q8" "q9");

/// One round of [`two_by_two`].
macro_rules! round_of_two_by_two {
    ($a:literal $b:literal $lane:literal) => {
        concat!(
            row_of_b!("r8" "q4" "q5"),
            row_of_b!("r10" "q6" "q7"),
            multiply!("q4" "q5", $lane; $a "q8" "q9", $b "q10" "q11"),
            multiply!("q6" "q7", $lane; $a "q12" "q13", $b "q14" "q15"),
        )
    };
}

products!(two_by_two: sums "d16-d31", rows "r4-r5",
    setup { "ldr r9, [r1, #16]", "add r10, r8, r9" }
    four {
        row_of_a!("r4" "q0"),
        row_of_a!("r5" "q1"),
        round_of_two_by_two!("d0" "d2" "[0]"),
        round_of_two_by_two!("d0" "d2" "[1]"),
        round_of_two_by_two!("d1" "d3" "[0]"),
        round_of_two_by_two!("d1" "d3" "[1]")
    }
    one {
        "vld1.32 {{d0[0]}}, [r4]!",
        "vld1.32 {{d2[0]}}, [r5]!",
        round_of_two_by_two!("d0" "d2" "[0]")
    }
);

/// One round of [`row_by_four`].
macro_rules! round_of_row_by_four {
    ($a:literal $lane:literal) => {
        concat!(
            row_of_b!("r8" "q2" "q3"),
            row_of_b!("r10" "q4" "q5"),
            row_of_b!("r11" "q6" "q7"),
            multiply!("q2" "q3", $lane; $a "q8" "q9"),
            row_of_b!("r12" "q2" "q3"),
            multiply!("q4" "q5", $lane; $a "q10" "q11"),
            multiply!("q6" "q7", $lane; $a "q12" "q13"),
            multiply!("q2" "q3", $lane; $a "q14" "q15"),
        )
    };
}

products!(row_by_four: sums "d16-d31", rows "r4",
    setup { "ldr r9, [r1, #16]", "add r10, r8, r9", "add r11, r10, r9", "add r12, r11, r9" }
    four {
        row_of_a!("r4" "q0"),
        round_of_row_by_four!("d0" "[0]"),
        round_of_row_by_four!("d0" "[1]"),
        round_of_row_by_four!("d1" "[0]"),
        round_of_row_by_four!("d1" "[1]")
    }
    one { "vld1.32 {{d0[0]}}, [r4]!", round_of_row_by_four!("d0" "[0]") }
);
