//! Advanced SIMD of aarch64.

use super::inorder;
use super::isa::Op;
use super::simd::Simd;
use core::arch::aarch64::*;

/// Advanced SIMD: 4 lanes, 32 registers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Neon;

/// Runs `op` compiled with Advanced SIMD.
/// # Safety
/// The processor has Advanced SIMD.
#[target_feature(enable = "neon")]
pub(super) unsafe fn enter<O: Op>(op: O) -> O::Out {
    op.run::<Neon>()
}

// Every method here executes Advanced SIMD instructions. They are reached only through `enter`, whose
// caller has checked the processor (see the trait); that is what each SAFETY comment refers to.
impl Simd for Neon {
    type V = float32x4_t;
    type M = uint32x4_t;
    type I = int32x4_t;
    const LANES: usize = 4;
    const NV: usize = 4;
    const MR: usize = 6;
    const LANED: bool = true;

    #[inline(always)]
    fn splat(x: f32) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> float32x4_t {
        let mut lanes = [0.0f32; 4];
        for (i, lane) in lanes.iter_mut().enumerate().take(n) {
            // SAFETY: `i < n`, and the caller promises `n` readable floats.
            *lane = unsafe { *p.add(i) };
        }
        // SAFETY: the array has four floats; features checked at `enter`.
        unsafe { vld1q_f32(lanes.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: float32x4_t, n: usize) {
        let mut lanes = [0.0f32; 4];
        // SAFETY: the array has four floats; features checked at `enter`.
        unsafe { vst1q_f32(lanes.as_mut_ptr(), v) };
        for (i, lane) in lanes.iter().enumerate().take(n) {
            // SAFETY: `i < n`, and the caller promises `n` writable floats.
            unsafe { *p.add(i) = *lane };
        }
    }
    #[inline(always)]
    fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn fma_lane<const LANE: i32>(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vfmaq_laneq_f32::<LANE>(c, a, b) }
    }
    #[inline(always)]
    unsafe fn add_in_order<const ROWS: usize, const NV: usize>(
        sums: &mut [[float32x4_t; NV]; ROWS],
        a: &[*const f32; ROWS],
        b: *const f32,
        run_len: usize,
    ) -> usize {
        // SAFETY: the caller's promise; rows of a panel are `Self::NV` vectors.
        unsafe { inorder::add(sums, a, b, run_len) }
    }
    #[inline(always)]
    fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`. NaN of either operand is returned.
        unsafe { vminq_f32(a, b) }
    }
    #[inline(always)]
    fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`. NaN of either operand is returned.
        unsafe { vmaxq_f32(a, b) }
    }
    #[inline(always)]
    fn sqrt(a: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vsqrtq_f32(a) }
    }
    #[inline(always)]
    fn round(a: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vrndnq_f32(a) }
    }
    #[inline(always)]
    fn abs(a: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vabsq_f32(a) }
    }
    #[inline(always)]
    fn copysign(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vbslq_f32(vdupq_n_u32(0x8000_0000), b, a) }
    }
    #[inline(always)]
    fn pow2(n: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe {
            let i = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(i))
        }
    }
    #[inline(always)]
    fn lt(a: float32x4_t, b: float32x4_t) -> uint32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vcltq_f32(a, b) }
    }
    #[inline(always)]
    fn ordered(a: float32x4_t) -> uint32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vceqq_f32(a, a) }
    }
    #[inline(always)]
    fn select(m: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vbslq_f32(m, a, b) }
    }
    #[inline(always)]
    fn hsum(a: float32x4_t) -> f32 {
        // SAFETY: features checked at `enter`.
        unsafe { vaddvq_f32(a) }
    }
    #[inline(always)]
    fn hmax(a: float32x4_t) -> f32 {
        // SAFETY: features checked at `enter`.
        unsafe { vmaxvq_f32(a) }
    }
    #[inline(always)]
    fn integers(x: i32) -> int32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vdupq_n_s32(x) }
    }
    #[inline(always)]
    unsafe fn load_integers(p: *const i32) -> int32x4_t {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe { vld1q_s32(p) }
    }
    #[inline(always)]
    fn add_products(sums: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe {
            let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
            let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
            vaddq_s32(sums, vpaddq_s32(low, vmull_high_s16(a, b)))
        }
    }
    #[inline(always)]
    fn floats(a: int32x4_t) -> float32x4_t {
        // SAFETY: features checked at `enter`.
        unsafe { vcvtq_f32_s32(a) }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> float32x4_t {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe {
            let bytes = vreinterpret_u8_u32(vdup_n_u32(p.cast::<u32>().read_unaligned()));
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))))
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: float32x4_t, add: int32x4_t) {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe {
            let halves = vmovn_s32(vaddq_s32(vcvtnq_s32_f32(v), add));
            let bytes = vmovn_s16(vcombine_s16(halves, halves));
            p.cast::<u32>().write_unaligned(vget_lane_u32::<0>(vreinterpret_u32_s8(bytes)));
        }
    }
}
