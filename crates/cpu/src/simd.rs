//! Vectors of `f32` behind one small trait, chosen at run time.
//!
//! A kernel is written once, generic over [`Simd`], as an implementation of [`Kernel`];
//! [`Level::dispatch`] compiles it for AVX-512, AVX2 + FMA and portable code and picks one when it
//! is called. Everything between the dispatch and the intrinsics must be `#[inline(always)]`, or
//! the vector types cross a function that was compiled without the feature. That includes closures:
//! one that touches vectors is compiled by itself, without the feature, and costs fifty times as much.

pub mod bytes;
pub mod factors;

use std::sync::OnceLock;

/// The instruction sets that kernels are compiled for, from the plainest to the widest.
///
/// A level beyond the portable one holds a proof that the processor has it, which only asking the processor gives. So whoever
/// has a level may use it, and nothing has to be checked when a kernel is called.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// No assumption about the machine; arrays that the compiler may vectorise.
    Portable,
    /// AVX2 with FMA, 8 lanes.
    Avx2(Avx2),
    /// AVX-512 F, VL, BW, DQ, 16 lanes.
    Avx512(Avx512),
}

/// A piece of code generic over the vector type.
pub trait Kernel {
    type Output;
    /// Implementations carry `#[inline(always)]`.
    ///
    /// # Safety
    /// What the kernel's own fields point to is there, as its type says, and no other thread uses what it writes.
    unsafe fn run<S: Simd>(self, s: S) -> Self::Output;
}

impl Level {
    /// The widest level that this machine runs.
    #[inline]
    pub fn detect() -> Level {
        static FOUND: OnceLock<Level> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let narrower = || Avx2::detect().map_or(Level::Portable, Level::Avx2);
            Avx512::detect().map_or_else(narrower, Level::Avx512)
        })
    }

    /// Every level that this machine runs, plainest first; tests loop over it.
    pub fn available() -> impl Iterator<Item = Level> {
        let wider = [Avx2::detect().map(Level::Avx2), Avx512::detect().map(Level::Avx512)];
        std::iter::once(Level::Portable).chain(wider.into_iter().flatten())
    }

    /// As users read it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2(_) => "avx2",
            Level::Avx512(_) => "avx512",
        }
    }

    /// Lanes of one vector.
    pub fn lanes(self) -> usize {
        match self {
            Level::Portable | Level::Avx2(_) => 8,
            Level::Avx512(_) => 16,
        }
    }

    /// Runs `kernel` compiled for this level.
    ///
    /// # Safety
    /// What [`Kernel::run`] of this kernel asks for. That the processor has the level is sure.
    #[inline]
    pub unsafe fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: the caller's promise, and the levels prove that the features are there.
        unsafe {
            match self {
                Level::Portable => kernel.run(Portable),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2(s) => x86::run_avx2(s, kernel),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512(s) => x86::run_avx512(s, kernel),
                #[cfg(not(target_arch = "x86_64"))]
                Level::Avx2(never) => match never {},
                #[cfg(not(target_arch = "x86_64"))]
                Level::Avx512(never) => match never {},
            }
        }
    }
}

impl std::fmt::Debug for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Operations on vectors of `LANES` values. All pointers may be unaligned.
pub trait Simd: Copy + Send + Sync + 'static {
    type V: Copy;
    const LANES: usize;

    fn splat(self, x: f32) -> Self::V;
    /// # Safety
    /// `LANES` values can be read at `p`.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// # Safety
    /// `LANES` values can be written at `p`.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// The first `n` lanes from `p`, the rest zero; nothing behind them is touched.
    /// # Safety
    /// `n <= LANES` values can be read at `p`.
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::V;
    /// The first `n` lanes to `p`; nothing behind them is touched.
    /// # Safety
    /// `n <= LANES` values can be written at `p`.
    unsafe fn store_first(self, p: *mut f32, v: Self::V, n: usize);

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    fn sqrt(self, a: Self::V) -> Self::V;
    /// `a * b + c`, fused where the level has it.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, fused where the level has it.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// To the nearest whole number, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// 2 to the whole number in each lane, by its exponent bits; lanes in -126..=127.
    fn exp2_whole(self, a: Self::V) -> Self::V;
    /// `yes` where `a > b`, else `no` (also where either is NaN).
    fn select_gt(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// The sum of the lanes, always in the same order.
    fn sum(self, a: Self::V) -> f32;
    /// The largest lane.
    fn largest(self, a: Self::V) -> f32;
}

/// Plain arrays.
#[derive(Clone, Copy)]
pub struct Portable;

const PORTABLE_LANES: usize = 8;

#[inline(always)]
fn zip(a: [f32; 8], b: [f32; 8], f: impl Fn(f32, f32) -> f32) -> [f32; 8] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type V = [f32; PORTABLE_LANES];
    const LANES: usize = PORTABLE_LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the caller's promise; an array has the alignment of its element.
        unsafe { p.cast::<[f32; 8]>().read() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[f32; 8]>().write(v) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: only the first n are read.
        std::array::from_fn(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: Self::V, n: usize) {
        for (i, x) in v.into_iter().enumerate().take(n) {
            // SAFETY: i < n.
            unsafe { *p.add(i) = x }
        }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| x + y)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| x - y)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| x * y)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| x / y)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        a.map(f32::sqrt)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| c[i] - a[i] * b[i])
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn exp2_whole(self, a: Self::V) -> Self::V {
        a.map(|x| f32::from_bits(((x as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn select_gt(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        std::array::from_fn(|i| if a[i] > b[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }
    #[inline(always)]
    fn largest(self, a: Self::V) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub use elsewhere::{Avx2, Avx512};
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

/// Processors that have none of this: there is no value of these types.
#[cfg(not(target_arch = "x86_64"))]
mod elsewhere {
    macro_rules! absent {
        ($name:ident) => {
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub enum $name {}

            impl $name {
                pub fn detect() -> Option<$name> {
                    None
                }
            }
        };
    }
    absent!(Avx2);
    absent!(Avx512);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Kernel, Simd};
    use std::arch::x86_64::*;

    /// # Safety
    /// That of the kernel's `run`; the first argument proves that the features are there.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn run_avx2<K: Kernel>(s: Avx2, kernel: K) -> K::Output {
        // SAFETY: the caller's promise.
        unsafe { kernel.run(s) }
    }

    /// # Safety
    /// That of the kernel's `run`; the first argument proves that the features are there.
    #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512bw,avx512dq")]
    pub(super) unsafe fn run_avx512<K: Kernel>(s: Avx512, kernel: K) -> K::Output {
        // SAFETY: the caller's promise.
        unsafe { kernel.run(s) }
    }

    /// 8 lanes. Only [`Avx2::detect`] makes one, which is what makes the intrinsics sound.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Avx2(());

    impl Avx2 {
        /// Nothing where the processor lacks a feature.
        pub fn detect() -> Option<Avx2> {
            let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            found.then_some(Avx2(()))
        }
    }

    /// 16 lanes. Only [`Avx512::detect`] makes one.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Avx512(());

    impl Avx512 {
        /// Nothing where the processor lacks a feature.
        pub fn detect() -> Option<Avx512> {
            let found = Avx2::detect().is_some()
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq");
            found.then_some(Avx512(()))
        }
    }

    #[inline(always)]
    unsafe fn first_of_8(n: usize) -> __m256i {
        // SAFETY: reached from Avx2 only.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lane)
        }
    }

    // SAFETY of every block below: the value of type Avx2 proves that the features are there.
    impl Simd for Avx2 {
        type V = __m256;
        const LANES: usize = 8;

        #[inline(always)]
        fn splat(self, x: f32) -> __m256 {
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(self, p: *const f32) -> __m256 {
            unsafe { _mm256_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32, v: __m256) {
            unsafe { _mm256_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn load_first(self, p: *const f32, n: usize) -> __m256 {
            unsafe { _mm256_maskload_ps(p, first_of_8(n)) }
        }
        #[inline(always)]
        unsafe fn store_first(self, p: *mut f32, v: __m256, n: usize) {
            unsafe { _mm256_maskstore_ps(p, first_of_8(n), v) }
        }
        #[inline(always)]
        fn add(self, a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_add_ps(a, b) }
        }
        #[inline(always)]
        fn sub(self, a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_sub_ps(a, b) }
        }
        #[inline(always)]
        fn mul(self, a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        fn div(self, a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_div_ps(a, b) }
        }
        #[inline(always)]
        fn max(self, a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_max_ps(a, b) }
        }
        #[inline(always)]
        fn min(self, a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_min_ps(a, b) }
        }
        #[inline(always)]
        fn sqrt(self, a: __m256) -> __m256 {
            unsafe { _mm256_sqrt_ps(a) }
        }
        #[inline(always)]
        fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        fn fnma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
            unsafe { _mm256_fnmadd_ps(a, b, c) }
        }
        #[inline(always)]
        fn round(self, a: __m256) -> __m256 {
            unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
        }
        #[inline(always)]
        fn exp2_whole(self, a: __m256) -> __m256 {
            unsafe {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            }
        }
        #[inline(always)]
        fn select_gt(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
            unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_GT_OQ>(a, b)) }
        }
        #[inline(always)]
        fn sum(self, a: __m256) -> f32 {
            unsafe {
                let s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
                let s = _mm_add_ps(s, _mm_movehl_ps(s, s));
                _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)))
            }
        }
        #[inline(always)]
        fn largest(self, a: __m256) -> f32 {
            unsafe {
                let s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
                let s = _mm_max_ps(s, _mm_movehl_ps(s, s));
                _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)))
            }
        }
    }

    #[inline(always)]
    fn first_of_16(n: usize) -> __mmask16 {
        ((1u32 << n) - 1) as __mmask16
    }

    // SAFETY of every block below: the value of type Avx512 proves that the features are there.
    impl Simd for Avx512 {
        type V = __m512;
        const LANES: usize = 16;

        #[inline(always)]
        fn splat(self, x: f32) -> __m512 {
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(self, p: *const f32) -> __m512 {
            unsafe { _mm512_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32, v: __m512) {
            unsafe { _mm512_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn load_first(self, p: *const f32, n: usize) -> __m512 {
            unsafe { _mm512_maskz_loadu_ps(first_of_16(n), p) }
        }
        #[inline(always)]
        unsafe fn store_first(self, p: *mut f32, v: __m512, n: usize) {
            unsafe { _mm512_mask_storeu_ps(p, first_of_16(n), v) }
        }
        #[inline(always)]
        fn add(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        fn sub(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_sub_ps(a, b) }
        }
        #[inline(always)]
        fn mul(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        fn div(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_div_ps(a, b) }
        }
        #[inline(always)]
        fn max(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_max_ps(a, b) }
        }
        #[inline(always)]
        fn min(self, a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_min_ps(a, b) }
        }
        #[inline(always)]
        fn sqrt(self, a: __m512) -> __m512 {
            unsafe { _mm512_sqrt_ps(a) }
        }
        #[inline(always)]
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        fn fnma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            unsafe { _mm512_fnmadd_ps(a, b, c) }
        }
        #[inline(always)]
        fn round(self, a: __m512) -> __m512 {
            unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
        }
        #[inline(always)]
        fn exp2_whole(self, a: __m512) -> __m512 {
            unsafe { _mm512_scalef_ps(_mm512_set1_ps(1.0), a) }
        }
        #[inline(always)]
        fn select_gt(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
            unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), no, yes) }
        }
        #[inline(always)]
        fn sum(self, a: __m512) -> f32 {
            unsafe { _mm512_reduce_add_ps(a) }
        }
        #[inline(always)]
        fn largest(self, a: __m512) -> f32 {
            unsafe { _mm512_reduce_max_ps(a) }
        }
    }
}
