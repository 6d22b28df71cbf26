//! AVX-512.

use super::isa::Op;
use super::simd::Simd;
use core::arch::x86_64::*;

/// AVX-512 F, VL, DQ and BW: 16 lanes, 32 registers, masks of their own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512;

/// Whether this processor has what [`enter`] asks for: all with AVX-512 but the Xeon Phi.
pub(super) fn available() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && super::avx2::available()
}

/// Runs `op` compiled with AVX-512.
/// # Safety
/// The processor has AVX-512 F, VL, DQ and BW, and what AVX2 kernels need.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c")]
pub(super) unsafe fn enter<O: Op>(op: O) -> O::Out {
    op.run::<Avx512>()
}

/// The mask of the first `n` lanes, all of them from 16 on.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n.min(16)) - 1) as __mmask16
}

// Every method here executes AVX-512 instructions. They are reached only through `enter`, whose caller has
// checked the processor (see the trait); that is what each SAFETY comment refers to.
impl Simd for Avx512 {
    type V = __m512;
    type M = __mmask16;
    type I = __m512i;
    const LANES: usize = 16;
    const NV: usize = 2;
    // More rows would have more pointers to A than there are registers for them.
    const MR: usize = 10;
    const MASKED: bool = true;

    #[inline(always)]
    fn splat(x: f32) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> __m512 {
        // SAFETY: masked lanes are not touched; features checked at `enter`.
        unsafe { _mm512_maskz_loadu_ps(first(n), p) }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: __m512, n: usize) {
        // SAFETY: masked lanes are not touched; features checked at `enter`.
        unsafe { _mm512_mask_storeu_ps(p, first(n), v) }
    }
    #[inline(always)]
    fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(a: __m512) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn round(a: __m512) -> __m512 {
        // No bits of the fraction are kept, so the upper half of the immediate is 0.
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn abs(a: __m512) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    fn copysign(a: __m512, b: __m512) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe {
            let sign = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b))
        }
    }
    #[inline(always)]
    fn pow2(n: __m512) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe {
            let i = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(i))
        }
    }
    #[inline(always)]
    fn lt(a: __m512, b: __m512) -> __mmask16 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    fn ordered(a: __m512) -> __mmask16 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_cmp_ps_mask::<_CMP_ORD_Q>(a, a) }
    }
    #[inline(always)]
    fn select(m: __mmask16, a: __m512, b: __m512) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_mask_blend_ps(m, b, a) }
    }
    #[inline(always)]
    fn hsum(a: __m512) -> f32 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    fn hmax(a: __m512) -> f32 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_reduce_max_ps(a) }
    }
    #[inline(always)]
    fn integers(x: i32) -> __m512i {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn load_integers(p: *const i32) -> __m512i {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    fn add_products(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_add_epi32(sums, _mm512_madd_epi16(a, b)) }
    }
    #[inline(always)]
    fn floats(a: __m512i) -> __m512 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m512 {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: __m512, add: __m512i) {
        // SAFETY: the caller's promise; features checked at `enter`. To round ties to even is what every thread
        // of ours has its control register ask for.
        unsafe {
            let i = _mm512_add_epi32(_mm512_cvtps_epi32(v), add);
            _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(i));
        }
    }
}
