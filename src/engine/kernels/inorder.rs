//! The register tile's loop for aarch64 cores that run in order.
//!
//! Such a core starts two instructions a cycle at most, and waits where one needs what is not there yet. A
//! load of 128 bits takes it two cycles in which nothing else starts. So here B comes in halves of 64 bits,
//! one by a vector load and one through an integer register, and A in such halves of two elements; each is
//! loaded a group of multiply-adds or more before it is needed, into a register that was read for the last
//! time. Between three multiply-adds there is what needs the vector unit, together, since a Cortex-A53 can't
//! start that beside one; a Cortex-A55 starts each part beside one.
//!
//! Each sum takes the same products in the same order as by the other loop, with the same rounding.

use core::arch::aarch64::float32x4_t;
use core::arch::asm;

/// Vectors across the tile.
pub(super) const NV: usize = 4;

/// Steps of `k` of which a loop of `run_len` steps takes fours here: it reads two steps ahead.
#[inline(always)]
pub(super) fn steps(run_len: usize) -> usize {
    run_len.saturating_sub(2) / 4 * 4
}

/// A multiply-add of a row of A (lane `$lane` of register `$a`) and a vector of B.
macro_rules! multiply {
    ($sum:literal $b:literal $a:literal $lane:literal) => {
        concat!("fmla v", $sum, ".4s, v", $b, ".4s, v", $a, ".s[", $lane, "]\n")
    };
}
/// One vector of B by all rows, and after each multiply-add what else is started there.
macro_rules! group {
    ($b:literal: $($sum:literal $a:literal $lane:literal [$($then:expr),*])*) => {
        concat!($(multiply!($sum $b $a $lane), $($then,)*)*)
    };
}
/// The upper half of the next vector of B, to an integer register.
macro_rules! high {
    ($x:literal) => {
        concat!("ldr {", $x, "}, [{b}, #8]\n")
    };
}
/// The lower half of the next vector of B.
macro_rules! low {
    ($b:literal) => {
        concat!("ldr d", $b, ", [{b}], #16\n")
    };
}
/// Puts an upper half beside its lower.
macro_rules! join {
    ($b:literal $x:literal) => {
        concat!("ins v", $b, ".d[1], {", $x, "}\n")
    };
}
/// The next two elements of a row of A, to an integer register.
macro_rules! fetch {
    ($row:literal) => {
        concat!("ldr {t", $row, "}, [{p", $row, "}], #8\n")
    };
}
/// Puts them in a half of a vector register.
macro_rules! place {
    ($a:literal $half:literal $row:literal) => {
        concat!("ins v", $a, ".d[", $half, "], {t", $row, "}\n")
    };
}
/// What the loop finds loaded: two steps of A, and of B all but the last half of the first step.
macro_rules! before {
    ($($a:literal $first:literal $($second:literal)?;)*) => {
        concat!(
            $("ldr d", $a, ", [{p", $first, "}], #8\n", $(fetch!($second), place!($a "1" $second),)?)*
            "ldr q28, [{b}], #16\nldr q29, [{b}], #16\nldr q30, [{b}], #16\n",
            high!("y"),
        )
    };
}

/// Two steps of 6 rows. Of A, rows 0 and 1 change registers from one to the next, `$a` and `$next`; the others'
/// are filled again between the last group, which begins with them, and the next.
macro_rules! six {
    ($a:literal $next:literal) => {
        concat!(
            group!("28":
                "0" $a "0" [fetch!("0")]
                "4" $a "2" []
                "8" "25" "0" [low!("31"), place!("26" "1" "5")]
                "12" "25" "2" [high!("x")]
                "16" "26" "0" []
                "20" "26" "2" [join!("31" "y"), low!("28")]),
            group!("29":
                "1" $a "0" [fetch!("1")]
                "5" $a "2" []
                "9" "25" "0" [join!("28" "x")]
                "13" "25" "2" [high!("y")]
                "17" "26" "0" []
                "21" "26" "2" [low!("29")]),
            group!("30":
                "2" $a "0" [fetch!("2")]
                "6" $a "2" []
                "10" "25" "0" [join!("29" "y")]
                "14" "25" "2" [high!("x")]
                "18" "26" "0" []
                "22" "26" "2" [low!("30"), place!($next "0" "0")]),
            group!("31":
                "3" $a "0" [fetch!("3")]
                "7" $a "2" []
                "11" "25" "0" [join!("30" "x")]
                "15" "25" "2" [high!("y")]
                "19" "26" "0" []
                "23" "26" "2" [low!("31"), place!($next "1" "1")]),
            group!("28":
                "0" $a "1" [fetch!("4")]
                "4" $a "3" []
                "8" "25" "1" [join!("31" "y")]
                "12" "25" "3" [high!("x")]
                "16" "26" "1" []
                "20" "26" "3" [low!("28")]),
            group!("29":
                "1" $a "1" [fetch!("5")]
                "5" $a "3" []
                "9" "25" "1" [join!("28" "x")]
                "13" "25" "3" [high!("y")]
                "17" "26" "1" []
                "21" "26" "3" [low!("29")]),
            group!("30":
                "2" $a "1" []
                "6" $a "3" []
                "10" "25" "1" [join!("29" "y")]
                "14" "25" "3" [high!("x")]
                "18" "26" "1" []
                "22" "26" "3" [low!("30")]),
            group!("31":
                "11" "25" "1" []
                "15" "25" "3" []
                "19" "26" "1" [join!("30" "x"), place!("25" "0" "2")]
                "23" "26" "3" [high!("y")]
                "3" $a "1" []
                "7" $a "3" [place!("25" "1" "3"), place!("26" "0" "4")]),
        )
    };
}

/// Two steps of 5 rows, while A's next two are put in other registers.
macro_rules! five {
    ($a0:literal $a1:literal $a2:literal, $n0:literal $n1:literal $n2:literal) => {
        concat!(
            group!("28":
                "0" $a0 "0" [fetch!("0")]
                "4" $a0 "2" []
                "8" $a1 "0" [low!("31")]
                "12" $a1 "2" [high!("x")]
                "16" $a2 "0" [join!("31" "y"), low!("28")]),
            group!("29":
                "1" $a0 "0" [fetch!("1")]
                "5" $a0 "2" []
                "9" $a1 "0" [join!("28" "x")]
                "13" $a1 "2" [high!("y")]
                "17" $a2 "0" [low!("29"), place!($n0 "0" "0")]),
            group!("30":
                "2" $a0 "0" [fetch!("2")]
                "6" $a0 "2" []
                "10" $a1 "0" [join!("29" "y")]
                "14" $a1 "2" [high!("x")]
                "18" $a2 "0" [low!("30"), place!($n0 "1" "1")]),
            group!("31":
                "3" $a0 "0" [fetch!("3")]
                "7" $a0 "2" []
                "11" $a1 "0" [join!("30" "x")]
                "15" $a1 "2" [high!("y")]
                "19" $a2 "0" [low!("31"), place!($n1 "0" "2")]),
            group!("28":
                "0" $a0 "1" [fetch!("4")]
                "4" $a0 "3" []
                "8" $a1 "1" [join!("31" "y")]
                "12" $a1 "3" [high!("x")]
                "16" $a2 "1" [low!("28"), place!($n1 "1" "3")]),
            group!("29":
                "1" $a0 "1" []
                "5" $a0 "3" []
                "9" $a1 "1" [join!("28" "x")]
                "13" $a1 "3" [high!("y")]
                "17" $a2 "1" [low!("29"), place!($n2 "0" "4")]),
            group!("30":
                "2" $a0 "1" []
                "6" $a0 "3" []
                "10" $a1 "1" [join!("29" "y")]
                "14" $a1 "3" [high!("x")]
                "18" $a2 "1" [low!("30")]),
            group!("31":
                "3" $a0 "1" []
                "7" $a0 "3" []
                "11" $a1 "1" [join!("30" "x")]
                "15" $a1 "3" [high!("y")]
                "19" $a2 "1" []),
        )
    };
}

/// Two steps of 4 rows, while A's next two are put in other registers.
macro_rules! four {
    ($a0:literal $a1:literal, $n0:literal $n1:literal) => {
        concat!(
            group!("28":
                "0" $a0 "0" [fetch!("0")]
                "4" $a0 "2" [low!("31")]
                "8" $a1 "0" [high!("x")]
                "12" $a1 "2" [join!("31" "y"), low!("28")]),
            group!("29":
                "1" $a0 "0" [fetch!("1")]
                "5" $a0 "2" [place!($n0 "0" "0")]
                "9" $a1 "0" [high!("y")]
                "13" $a1 "2" [join!("28" "x"), low!("29")]),
            group!("30":
                "2" $a0 "0" [fetch!("2")]
                "6" $a0 "2" [place!($n0 "1" "1")]
                "10" $a1 "0" [high!("x")]
                "14" $a1 "2" [join!("29" "y"), low!("30")]),
            group!("31":
                "3" $a0 "0" [fetch!("3")]
                "7" $a0 "2" [place!($n1 "0" "2")]
                "11" $a1 "0" [high!("y")]
                "15" $a1 "2" [join!("30" "x"), low!("31")]),
            group!("28":
                "0" $a0 "1" []
                "4" $a0 "3" [place!($n1 "1" "3")]
                "8" $a1 "1" [high!("x")]
                "12" $a1 "3" [join!("31" "y"), low!("28")]),
            group!("29":
                "1" $a0 "1" []
                "5" $a0 "3" []
                "9" $a1 "1" [high!("y")]
                "13" $a1 "3" [join!("28" "x"), low!("29")]),
            group!("30":
                "2" $a0 "1" []
                "6" $a0 "3" []
                "10" $a1 "1" [high!("x")]
                "14" $a1 "3" [join!("29" "y"), low!("30")]),
            group!("31":
                "3" $a0 "1" []
                "7" $a0 "3" []
                "11" $a1 "1" [high!("y")]
                "15" $a1 "3" [join!("30" "x")]),
        )
    };
}

/// Adds the products of the first [`steps`] of `run_len` steps to the sums of a tile of 4, 5 or 6 rows by
/// four vectors; of another tile, those of no steps. Says how many steps they were.
/// # Safety
/// Each of `a` is valid for reading `run_len` floats, `b` for `16 * run_len`.
#[inline(always)]
pub(super) unsafe fn add<const ROWS: usize, const COLUMNS: usize>(
    sums: &mut [[float32x4_t; COLUMNS]; ROWS],
    a: &[*const f32; ROWS],
    b: *const f32,
    run_len: usize,
) -> usize {
    let steps = steps(run_len);
    if COLUMNS != NV || !(4..=6).contains(&ROWS) || steps == 0 {
        return 0;
    }
    // SAFETY: reads `steps` steps of A and B and two more of A, one and three quarters of B, which are fewer
    // than `run_len`; writes no memory. Every register that is written is named.
    unsafe {
        match ROWS {
            6 => asm!(
                before!("24" "0" "1"; "25" "2" "3"; "26" "4" "5";),
                "2:",
                six!("24" "27"),
                "subs {n}, {n}, #1",
                six!("27" "24"),
                "b.ne 2b",
                n = inout(reg) steps / 4 => _,
                b = inout(reg) b => _,
                x = out(reg) _,
                y = out(reg) _,
                p0 = inout(reg) a[0] => _,
                t0 = out(reg) _,
                p1 = inout(reg) a[1] => _,
                t1 = out(reg) _,
                p2 = inout(reg) a[2] => _,
                t2 = out(reg) _,
                p3 = inout(reg) a[3] => _,
                t3 = out(reg) _,
                p4 = inout(reg) a[4] => _,
                t4 = out(reg) _,
                p5 = inout(reg) a[5] => _,
                t5 = out(reg) _,
                inout("v0") sums[0][0],
                inout("v1") sums[0][1],
                inout("v2") sums[0][2],
                inout("v3") sums[0][3],
                inout("v4") sums[1][0],
                inout("v5") sums[1][1],
                inout("v6") sums[1][2],
                inout("v7") sums[1][3],
                inout("v8") sums[2][0],
                inout("v9") sums[2][1],
                inout("v10") sums[2][2],
                inout("v11") sums[2][3],
                inout("v12") sums[3][0],
                inout("v13") sums[3][1],
                inout("v14") sums[3][2],
                inout("v15") sums[3][3],
                inout("v16") sums[4][0],
                inout("v17") sums[4][1],
                inout("v18") sums[4][2],
                inout("v19") sums[4][3],
                inout("v20") sums[5][0],
                inout("v21") sums[5][1],
                inout("v22") sums[5][2],
                inout("v23") sums[5][3],
                out("v24") _,
                out("v25") _,
                out("v26") _,
                out("v27") _,
                out("v28") _,
                out("v29") _,
                out("v30") _,
                out("v31") _,
                options(nostack, readonly),
            ),
            5 => asm!(
                before!("20" "0" "1"; "21" "2" "3"; "22" "4";),
                "2:",
                five!("20" "21" "22", "23" "24" "25"),
                "subs {n}, {n}, #1",
                five!("23" "24" "25", "20" "21" "22"),
                "b.ne 2b",
                n = inout(reg) steps / 4 => _,
                b = inout(reg) b => _,
                x = out(reg) _,
                y = out(reg) _,
                p0 = inout(reg) a[0] => _,
                t0 = out(reg) _,
                p1 = inout(reg) a[1] => _,
                t1 = out(reg) _,
                p2 = inout(reg) a[2] => _,
                t2 = out(reg) _,
                p3 = inout(reg) a[3] => _,
                t3 = out(reg) _,
                p4 = inout(reg) a[4] => _,
                t4 = out(reg) _,
                inout("v0") sums[0][0],
                inout("v1") sums[0][1],
                inout("v2") sums[0][2],
                inout("v3") sums[0][3],
                inout("v4") sums[1][0],
                inout("v5") sums[1][1],
                inout("v6") sums[1][2],
                inout("v7") sums[1][3],
                inout("v8") sums[2][0],
                inout("v9") sums[2][1],
                inout("v10") sums[2][2],
                inout("v11") sums[2][3],
                inout("v12") sums[3][0],
                inout("v13") sums[3][1],
                inout("v14") sums[3][2],
                inout("v15") sums[3][3],
                inout("v16") sums[4][0],
                inout("v17") sums[4][1],
                inout("v18") sums[4][2],
                inout("v19") sums[4][3],
                out("v20") _,
                out("v21") _,
                out("v22") _,
                out("v23") _,
                out("v24") _,
                out("v25") _,
                out("v28") _,
                out("v29") _,
                out("v30") _,
                out("v31") _,
                options(nostack, readonly),
            ),
            _ => asm!(
                before!("20" "0" "1"; "21" "2" "3";),
                "2:",
                four!("20" "21", "22" "23"),
                "subs {n}, {n}, #1",
                four!("22" "23", "20" "21"),
                "b.ne 2b",
                n = inout(reg) steps / 4 => _,
                b = inout(reg) b => _,
                x = out(reg) _,
                y = out(reg) _,
                p0 = inout(reg) a[0] => _,
                t0 = out(reg) _,
                p1 = inout(reg) a[1] => _,
                t1 = out(reg) _,
                p2 = inout(reg) a[2] => _,
                t2 = out(reg) _,
                p3 = inout(reg) a[3] => _,
                t3 = out(reg) _,
                inout("v0") sums[0][0],
                inout("v1") sums[0][1],
                inout("v2") sums[0][2],
                inout("v3") sums[0][3],
                inout("v4") sums[1][0],
                inout("v5") sums[1][1],
                inout("v6") sums[1][2],
                inout("v7") sums[1][3],
                inout("v8") sums[2][0],
                inout("v9") sums[2][1],
                inout("v10") sums[2][2],
                inout("v11") sums[2][3],
                inout("v12") sums[3][0],
                inout("v13") sums[3][1],
                inout("v14") sums[3][2],
                inout("v15") sums[3][3],
                out("v16") _,
                out("v17") _,
                out("v18") _,
                out("v19") _,
                out("v20") _,
                out("v21") _,
                out("v22") _,
                out("v23") _,
                out("v28") _,
                out("v29") _,
                out("v30") _,
                out("v31") _,
                options(nostack, readonly),
            ),
        }
    }
    steps
}
