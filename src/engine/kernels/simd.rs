//! The vector operations that kernels are written in, and their plain-Rust form.

/// A vector instruction set. One source of every kernel serves all of them.
///
/// Methods on registers are safe to call as far as memory goes, but execute instructions of the set:
/// they are reached only from [`Op::run`](super::isa::Op::run), which only
/// [`Checked::dispatch`](super::isa::Checked::dispatch) calls with a set the processor has.
pub(super) trait Simd: Copy + 'static {
    /// A vector of `LANES` floats.
    type V: Copy;
    /// A lane mask: all bits of a lane, or none.
    type M: Copy;
    /// A vector of `LANES` integers of 32 bits, or of twice as many of 16.
    type I: Copy;
    /// Floats in a vector.
    const LANES: usize;
    /// Vectors across one panel of packed weights: `NR = NV * LANES` output channels.
    const NV: usize;
    /// Most rows of the register tile of `NV` vectors.
    const MR: usize;

    /// Whether kernels have unrolled forms for common shapes (else only their general form).
    const UNROLLED: bool = true;

    /// Whether a part of a vector is read and written in one instruction, so that a kernel's unrolled form
    /// serves the last channels too.
    const MASKED: bool = false;

    /// Whether a multiplication takes one lane of a vector for all ([`fma_lane`](Self::fma_lane)), and
    /// the register tile reads A by vectors then.
    const LANED: bool = false;

    /// All lanes `x`.
    fn splat(x: f32) -> Self::V;
    /// # Safety
    /// `p` is valid for reading `LANES` floats.
    unsafe fn load(p: *const f32) -> Self::V;
    /// # Safety
    /// `p` is valid for writing `LANES` floats.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// The first `n < LANES` lanes from memory, the others zero.
    /// # Safety
    /// `p` is valid for reading `n` floats.
    unsafe fn load_part(p: *const f32, n: usize) -> Self::V;
    /// The first `n < LANES` lanes to memory.
    /// # Safety
    /// `p` is valid for writing `n` floats.
    unsafe fn store_part(p: *mut f32, v: Self::V, n: usize);
    /// `a + b`
    fn add(a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`
    fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused where the set can.
    fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a * b[lane] + c`, fused where the set can; only where [`LANED`](Self::LANED).
    #[inline(always)]
    fn fma_lane<const LANE: i32>(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        let _ = (a, b);
        c
    }
    /// Adds products of the first steps of a run to the sums of a register tile, with a loop for cores that run
    /// in order; says of how many steps. Of none where there is no such loop for this tile.
    /// # Safety
    /// Each of `a` is valid for reading `run_len` floats, `b` for `run_len` whole rows of a panel.
    #[inline(always)]
    unsafe fn add_in_order<const ROWS: usize, const NV: usize>(
        sums: &mut [[Self::V; NV]; ROWS],
        a: &[*const f32; ROWS],
        b: *const f32,
        run_len: usize,
    ) -> usize {
        let _ = (sums, a, b, run_len);
        0
    }
    /// The lesser; `b` if either is NaN, or NaN.
    fn min(a: Self::V, b: Self::V) -> Self::V;
    /// The greater; `b` if either is NaN, or NaN.
    fn max(a: Self::V, b: Self::V) -> Self::V;
    /// Square root.
    fn sqrt(a: Self::V) -> Self::V;
    /// Nearest integer, ties to even.
    fn round(a: Self::V) -> Self::V;
    /// Absolute value.
    fn abs(a: Self::V) -> Self::V;
    /// Magnitude of `a`, sign of `b`.
    fn copysign(a: Self::V, b: Self::V) -> Self::V;
    /// `2^n` of integral `n` in -126..=127; garbage, never a trap, for others.
    fn pow2(n: Self::V) -> Self::V;
    /// `a < b`, false if either is NaN.
    fn lt(a: Self::V, b: Self::V) -> Self::M;
    /// `a == a`: false where NaN.
    fn ordered(a: Self::V) -> Self::M;
    /// `a` where the mask is set, else `b`.
    fn select(m: Self::M, a: Self::V, b: Self::V) -> Self::V;
    /// Sum of the lanes.
    fn hsum(a: Self::V) -> f32;
    /// Greatest lane, NaN lanes ignored or returned.
    fn hmax(a: Self::V) -> f32;

    /// All lanes `x`: an integer, or the bits of a pair of 16 bits each.
    fn integers(x: i32) -> Self::I;
    /// # Safety
    /// `p` is valid for reading `LANES` integers, aligned or not.
    unsafe fn load_integers(p: *const i32) -> Self::I;
    /// To each lane of `sums`, the products of both halves of that lane of `a` and `b`, as integers of 16 bits.
    /// Exact where the sum is within 32 bits; else it wraps.
    fn add_products(sums: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// The nearest floats.
    fn floats(a: Self::I) -> Self::V;
    /// # Safety
    /// `p` is valid for reading `LANES` bytes.
    unsafe fn load_bytes(p: *const u8) -> Self::V;
    /// The nearest integers, ties to even, plus those of `add`: lanes that are within 0 and 255 then.
    /// # Safety
    /// `p` is valid for writing `LANES` bytes.
    unsafe fn store_bytes(p: *mut u8, v: Self::V, add: Self::I);
    /// [`store_bytes`](Self::store_bytes) of two vectors, one after the other.
    /// # Safety
    /// `p` is valid for writing `2 * LANES` bytes.
    #[inline(always)]
    unsafe fn store_bytes_twice(p: *mut u8, v: [Self::V; 2], add: Self::I) {
        // SAFETY: the caller's promise.
        unsafe {
            Self::store_bytes(p, v[0], add);
            Self::store_bytes(p.add(Self::LANES), v[1], add);
        }
    }
    /// The first `n < LANES` lanes from memory, the others zero.
    /// # Safety
    /// `p` is valid for reading `n` bytes.
    #[inline(always)]
    unsafe fn load_bytes_part(p: *const u8, n: usize) -> Self::V {
        let mut bytes = [0u8; LANES_MAX];
        let to = bytes.as_mut_ptr();
        // SAFETY: `n < LANES` bytes, by the caller's promise; the array has a vector of them.
        unsafe {
            in_pieces(n, |at, len| match len {
                8 => to.add(at).cast::<[u8; 8]>().write(p.add(at).cast::<[u8; 8]>().read()),
                4 => to.add(at).cast::<[u8; 4]>().write(p.add(at).cast::<[u8; 4]>().read()),
                2 => to.add(at).cast::<[u8; 2]>().write(p.add(at).cast::<[u8; 2]>().read()),
                _ => to.add(at).write(p.add(at).read()),
            });
            Self::load_bytes(to)
        }
    }
    /// The first `n < LANES` lanes, as [`store_bytes`](Self::store_bytes) has them.
    /// # Safety
    /// `p` is valid for writing `n` bytes.
    #[inline(always)]
    unsafe fn store_bytes_part(p: *mut u8, v: Self::V, add: Self::I, n: usize) {
        let mut bytes = [0u8; LANES_MAX];
        // SAFETY: the array has a vector of bytes; of them `n < LANES`, by the caller's promise.
        unsafe {
            Self::store_bytes(bytes.as_mut_ptr(), v, add);
            let from = bytes.as_ptr();
            in_pieces(n, |at, len| match len {
                8 => p.add(at).cast::<[u8; 8]>().write(from.add(at).cast::<[u8; 8]>().read()),
                4 => p.add(at).cast::<[u8; 4]>().write(from.add(at).cast::<[u8; 4]>().read()),
                2 => p.add(at).cast::<[u8; 2]>().write(from.add(at).cast::<[u8; 2]>().read()),
                _ => p.add(at).write(from.add(at).read()),
            });
        }
    }
}

/// Gives `n` bytes, less than a vector, piece by piece: where each begins, and its length, 8, 4, 2 or 1. A copy of any
/// length would be a call, around which a register tile keeps no register.
#[inline(always)]
fn in_pieces(n: usize, mut copy: impl FnMut(usize, usize)) {
    let mut at = 0;
    for len in [8, 4, 2, 1] {
        if n & len != 0 {
            copy(at, len);
            at += len;
        }
    }
}

/// Most lanes of a vector, over all instruction sets.
const LANES_MAX: usize = 16;

/// Plain Rust with vectors of 4 floats, which compilers turn into whatever the target has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portable;

const L: usize = 4;

#[inline(always)]
fn map(a: [f32; L], f: impl Fn(f32) -> f32) -> [f32; L] {
    let mut out = a;
    for x in &mut out {
        *x = f(*x);
    }
    out
}

#[inline(always)]
fn zip(a: [f32; L], b: [f32; L], f: impl Fn(f32, f32) -> f32) -> [f32; L] {
    let mut out = a;
    for (x, y) in out.iter_mut().zip(b) {
        *x = f(*x, y);
    }
    out
}

impl Simd for Portable {
    type V = [f32; L];
    type M = [bool; L];
    type I = [i32; L];
    const LANES: usize = L;
    const NV: usize = 2;
    const MR: usize = 6;
    const UNROLLED: bool = false;

    #[inline(always)]
    fn splat(x: f32) -> [f32; L] {
        [x; L]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; L] {
        // SAFETY: the caller's promise; `read_unaligned` asks for no alignment.
        unsafe { p.cast::<[f32; L]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; L]) {
        // SAFETY: the caller's promise; `write_unaligned` asks for no alignment.
        unsafe { p.cast::<[f32; L]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> [f32; L] {
        let mut out = [0.0; L];
        for (i, x) in out.iter_mut().enumerate().take(n) {
            // SAFETY: `i < n`, and the caller promises `n` readable floats.
            *x = unsafe { *p.add(i) };
        }
        out
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: [f32; L], n: usize) {
        for (i, x) in v.iter().enumerate().take(n) {
            // SAFETY: `i < n`, and the caller promises `n` writable floats.
            unsafe { *p.add(i) = *x };
        }
    }
    #[inline(always)]
    fn add(a: [f32; L], b: [f32; L]) -> [f32; L] {
        zip(a, b, |x, y| x + y)
    }
    #[inline(always)]
    fn sub(a: [f32; L], b: [f32; L]) -> [f32; L] {
        zip(a, b, |x, y| x - y)
    }
    #[inline(always)]
    fn mul(a: [f32; L], b: [f32; L]) -> [f32; L] {
        zip(a, b, |x, y| x * y)
    }
    #[inline(always)]
    fn div(a: [f32; L], b: [f32; L]) -> [f32; L] {
        zip(a, b, |x, y| x / y)
    }
    #[inline(always)]
    fn fma(a: [f32; L], b: [f32; L], c: [f32; L]) -> [f32; L] {
        // Two roundings: `mul_add` is a library call where the target has no FMA.
        zip(zip(a, b, |x, y| x * y), c, |x, y| x + y)
    }
    #[inline(always)]
    fn min(a: [f32; L], b: [f32; L]) -> [f32; L] {
        zip(a, b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    fn max(a: [f32; L], b: [f32; L]) -> [f32; L] {
        zip(a, b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    fn sqrt(a: [f32; L]) -> [f32; L] {
        map(a, f32::sqrt)
    }
    #[inline(always)]
    fn round(a: [f32; L]) -> [f32; L] {
        // Adding and taking away 1.5 * 2^23 rounds at the last bit for |x| < 2^22; larger numbers
        // reach here only where the result is clamped or discarded.
        const MAGIC: f32 = 12_582_912.0;
        map(a, |x| if x.abs() < 4_194_304.0 { (x + MAGIC) - MAGIC } else { x.round_ties_even() })
    }
    #[inline(always)]
    fn abs(a: [f32; L]) -> [f32; L] {
        map(a, f32::abs)
    }
    #[inline(always)]
    fn copysign(a: [f32; L], b: [f32; L]) -> [f32; L] {
        zip(a, b, f32::copysign)
    }
    #[inline(always)]
    fn pow2(n: [f32; L]) -> [f32; L] {
        map(n, |x| f32::from_bits(((x as i32).wrapping_add(127) as u32) << 23))
    }
    #[inline(always)]
    fn lt(a: [f32; L], b: [f32; L]) -> [bool; L] {
        core::array::from_fn(|i| a[i] < b[i])
    }
    #[inline(always)]
    fn ordered(a: [f32; L]) -> [bool; L] {
        core::array::from_fn(|i| !a[i].is_nan())
    }
    #[inline(always)]
    fn select(m: [bool; L], a: [f32; L], b: [f32; L]) -> [f32; L] {
        core::array::from_fn(|i| if m[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn hsum(a: [f32; L]) -> f32 {
        (a[0] + a[2]) + (a[1] + a[3])
    }
    #[inline(always)]
    fn hmax(a: [f32; L]) -> f32 {
        a.iter().fold(f32::NEG_INFINITY, |m, &x| if m > x { m } else { x })
    }
    #[inline(always)]
    fn integers(x: i32) -> [i32; L] {
        [x; L]
    }
    #[inline(always)]
    unsafe fn load_integers(p: *const i32) -> [i32; L] {
        // SAFETY: the caller's promise; `read_unaligned` asks for no alignment.
        unsafe { p.cast::<[i32; L]>().read_unaligned() }
    }
    #[inline(always)]
    fn add_products(sums: [i32; L], a: [i32; L], b: [i32; L]) -> [i32; L] {
        let low = |x: i32| i32::from(x as i16);
        core::array::from_fn(|i| {
            let products = low(a[i]) * low(b[i]);
            sums[i].wrapping_add(products.wrapping_add((a[i] >> 16) * (b[i] >> 16)))
        })
    }
    #[inline(always)]
    fn floats(a: [i32; L]) -> [f32; L] {
        core::array::from_fn(|i| a[i] as f32)
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> [f32; L] {
        // SAFETY: the caller's promise.
        unsafe { core::array::from_fn(|i| f32::from(*p.add(i))) }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: [f32; L], add: [i32; L]) {
        let v = Self::round(v);
        let bytes: [u8; L] = core::array::from_fn(|i| (v[i] as i32 + add[i]) as u8);
        // SAFETY: the caller's promise; bytes have no alignment.
        unsafe { p.cast::<[u8; L]>().write(bytes) }
    }
}
