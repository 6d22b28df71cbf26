//! AVX2 with FMA.

use super::isa::Op;
use super::simd::Simd;
use core::arch::x86_64::*;

/// AVX2 with FMA: 8 lanes, 16 registers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2;

/// Whether this processor has what [`enter`] asks for.
pub(super) fn available() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c")
}

/// Runs `op` compiled with AVX2 and FMA.
/// # Safety
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn enter<O: Op>(op: O) -> O::Out {
    op.run::<Avx2>()
}

/// Eight set lanes, then eight clear ones: a window of it masks the first `n` lanes.
static WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
fn first(n: usize) -> __m256i {
    // SAFETY: `8 - min(n, 8)` is at most 8, so the 8 integers from there lie in the table; features
    // as for all of this file: reached only through `enter`.
    unsafe { _mm256_loadu_si256(WINDOW.as_ptr().add(8 - n.min(8)).cast()) }
}

// Every method here executes AVX2 or FMA instructions. They are reached only through `enter`, whose
// caller has checked the processor (see the trait); that is what each SAFETY comment refers to.
impl Simd for Avx2 {
    type V = __m256;
    type M = __m256;
    type I = __m256i;
    const LANES: usize = 8;
    const NV: usize = 2;
    const MR: usize = 6;

    #[inline(always)]
    fn splat(x: f32) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> __m256 {
        // SAFETY: masked lanes are not touched; features checked at `enter`.
        unsafe { _mm256_maskload_ps(p, first(n)) }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: __m256, n: usize) {
        // SAFETY: masked lanes are not touched; features checked at `enter`.
        unsafe { _mm256_maskstore_ps(p, first(n), v) }
    }
    #[inline(always)]
    fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(a: __m256, b: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(a: __m256, b: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn min(a: __m256, b: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(a: __m256, b: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(a: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_sqrt_ps(a) }
    }
    #[inline(always)]
    fn round(a: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn abs(a: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    fn copysign(a: __m256, b: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, b))
        }
    }
    #[inline(always)]
    fn pow2(n: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe {
            let i = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(i))
        }
    }
    #[inline(always)]
    fn lt(a: __m256, b: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    fn ordered(a: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_cmp_ps::<_CMP_ORD_Q>(a, a) }
    }
    #[inline(always)]
    fn select(m: __m256, a: __m256, b: __m256) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_blendv_ps(b, a, m) }
    }
    #[inline(always)]
    fn hsum(a: __m256) -> f32 {
        // SAFETY: features checked at `enter`.
        unsafe {
            let x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }
    #[inline(always)]
    fn hmax(a: __m256) -> f32 {
        // SAFETY: features checked at `enter`.
        unsafe {
            let x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }
    }
    #[inline(always)]
    fn integers(x: i32) -> __m256i {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn load_integers(p: *const i32) -> __m256i {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    fn add_products(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)) }
    }
    #[inline(always)]
    fn floats(a: __m256i) -> __m256 {
        // SAFETY: features checked at `enter`.
        unsafe { _mm256_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m256 {
        // SAFETY: the caller's promise; features checked at `enter`.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: __m256, add: __m256i) {
        // SAFETY: the caller's promise; features checked at `enter`. To round ties to even is what every thread
        // of ours has its control register ask for.
        unsafe {
            let i = _mm256_add_epi32(_mm256_cvtps_epi32(v), add);
            let i = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256::<1>(i));
            _mm_storel_epi64(p.cast(), _mm_packus_epi16(i, i));
        }
    }
    #[inline(always)]
    unsafe fn store_bytes_twice(p: *mut u8, v: [__m256; 2], add: __m256i) {
        // SAFETY: the caller's promise; features checked at `enter`; rounding as in `store_bytes`.
        unsafe {
            let [a, b] = v.map(|v| _mm256_add_epi32(_mm256_cvtps_epi32(v), add));
            let halves = _mm256_packs_epi32(a, b);
            // Four lanes of each in both halves of the register: back in order.
            let bytes = _mm256_packus_epi16(halves, halves);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(bytes));
        }
    }
}
