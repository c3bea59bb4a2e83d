//! Products of bytes, four at a time: unsigned times signed, summed in 32 bits.
//!
//! Written and dispatched as [`super::Simd`] is. The instructions that processors have for it (VNNI) are not part of a
//! [`Level`], so [`dispatch`] asks for them; without them bytes are widened to 16 bits, which costs three times as much and gives the
//! same whole numbers. Saturating instructions are not used: their sums are not exact.

use super::{Level, Portable, Simd};

/// A piece of code generic over products of bytes.
pub trait ByteKernel {
    type Output;
    /// Implementations carry `#[inline(always)]`.
    fn run<B: Bytes>(self, b: B) -> Self::Output;
}

/// Vectors of as many 32-bit sums as `F` has lanes, each of four products.
pub trait Bytes: Copy + Send + Sync + 'static {
    type F: Simd;
    type I: Copy;

    /// The floats of the same width.
    fn floats(self) -> Self::F;
    /// # Safety
    /// As many sums as lanes can be read at `p`.
    unsafe fn load(self, p: *const i32) -> Self::I;
    /// # Safety
    /// As many sums as lanes can be written at `p`.
    unsafe fn store(self, p: *mut i32, sums: Self::I);
    /// The four bytes at `p` in each lane.
    /// # Safety
    /// Four bytes can be read at `p`.
    unsafe fn splat4(self, p: *const u8) -> Self::I;
    /// `sums` with the four products of each lane added.
    fn dot(self, sums: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I;
    fn to_floats(self, sums: Self::I) -> <Self::F as Simd>::V;
    /// Whole numbers from 0 to 255 as bytes.
    /// # Safety
    /// As many bytes as lanes can be written at `p`.
    unsafe fn store_bytes(self, p: *mut u8, v: <Self::F as Simd>::V);
}

/// Whether the level's vectors have an instruction for it on this machine.
pub fn has_instruction(level: Level) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        match level {
            Level::Portable => false,
            Level::Avx2 => is_x86_feature_detected!("avxvnni"),
            Level::Avx512 => is_x86_feature_detected!("avx512vnni"),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = level;
        false
    }
}

/// Runs `kernel` compiled for a level, with the instruction if `instruction` says so.
///
/// # Panics
/// If the machine lacks the level or the instruction.
#[inline]
pub fn dispatch<K: ByteKernel>(level: Level, instruction: bool, kernel: K) -> K::Output {
    assert!(level <= Level::detect(), "this machine does not run {level:?}");
    assert!(!instruction || has_instruction(level), "{level:?} has no products of bytes on this machine");
    match (level, instruction) {
        (Level::Portable, _) => kernel.run(Portable),
        // SAFETY of all below: checked above.
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2, false) => unsafe { x86::avx2(kernel) },
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2, true) => unsafe { x86::avx_vnni(kernel) },
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512, false) => unsafe { x86::avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512, true) => unsafe { x86::avx512_vnni(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        (other, _) => panic!("this machine does not run {other:?}"),
    }
}

impl Bytes for Portable {
    type F = Portable;
    type I = [i32; Portable::LANES];

    #[inline(always)]
    fn floats(self) -> Portable {
        self
    }
    #[inline(always)]
    unsafe fn load(self, p: *const i32) -> Self::I {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::I>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut i32, sums: Self::I) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::I>().write_unaligned(sums) }
    }
    #[inline(always)]
    unsafe fn splat4(self, p: *const u8) -> Self::I {
        // SAFETY: the caller's promise.
        [unsafe { p.cast::<i32>().read_unaligned() }; Portable::LANES]
    }
    #[inline(always)]
    fn dot(self, sums: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I {
        std::array::from_fn(|i| {
            let (u, s) = (unsigned[i].to_ne_bytes(), signed[i].to_ne_bytes());
            (0..4).fold(sums[i], |sum, j| sum.wrapping_add(i32::from(u[j]) * i32::from(s[j] as i8)))
        })
    }
    #[inline(always)]
    fn to_floats(self, sums: Self::I) -> [f32; Portable::LANES] {
        sums.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8, v: [f32; Portable::LANES]) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[u8; Portable::LANES]>().write(v.map(|x| x.round_ties_even() as u8)) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{ByteKernel, Bytes};
    use crate::simd::{Avx2, Avx512};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2<K: ByteKernel>(kernel: K) -> K::Output {
        kernel.run(Wide256(Avx2(())))
    }

    #[target_feature(enable = "avx2,fma,avxvnni")]
    pub(super) unsafe fn avx_vnni<K: ByteKernel>(kernel: K) -> K::Output {
        kernel.run(Vnni256(Avx2(())))
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512bw,avx512dq")]
    pub(super) unsafe fn avx512<K: ByteKernel>(kernel: K) -> K::Output {
        kernel.run(Wide512(Avx512(())))
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512bw,avx512dq,avx512vnni")]
    pub(super) unsafe fn avx512_vnni<K: ByteKernel>(kernel: K) -> K::Output {
        kernel.run(Vnni512(Avx512(())))
    }

    /// Bytes widened to 16 bits, 8 sums. Only the functions above make these four types, which is what makes the
    /// intrinsics sound.
    #[derive(Clone, Copy)]
    pub struct Wide256(Avx2);
    #[derive(Clone, Copy)]
    pub struct Vnni256(Avx2);
    #[derive(Clone, Copy)]
    pub struct Wide512(Avx512);
    #[derive(Clone, Copy)]
    pub struct Vnni512(Avx512);

    macro_rules! of_256 {
        ($name:ident, |$sums:ident, $u:ident, $s:ident| $dot:expr) => {
            // SAFETY of every block: the value proves that the features are there.
            impl Bytes for $name {
                type F = Avx2;
                type I = __m256i;

                #[inline(always)]
                fn floats(self) -> Avx2 {
                    self.0
                }
                #[inline(always)]
                unsafe fn load(self, p: *const i32) -> __m256i {
                    unsafe { _mm256_loadu_si256(p.cast()) }
                }
                #[inline(always)]
                unsafe fn store(self, p: *mut i32, sums: __m256i) {
                    unsafe { _mm256_storeu_si256(p.cast(), sums) }
                }
                #[inline(always)]
                unsafe fn splat4(self, p: *const u8) -> __m256i {
                    unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
                }
                #[inline(always)]
                fn dot(self, $sums: __m256i, $u: __m256i, $s: __m256i) -> __m256i {
                    unsafe { $dot }
                }
                #[inline(always)]
                fn to_floats(self, sums: __m256i) -> __m256 {
                    unsafe { _mm256_cvtepi32_ps(sums) }
                }
                #[inline(always)]
                unsafe fn store_bytes(self, p: *mut u8, v: __m256) {
                    unsafe {
                        let whole = _mm256_cvtps_epi32(v);
                        let (low, high) =
                            (_mm256_castsi256_si128(whole), _mm256_extracti128_si256::<1>(whole));
                        let words = _mm_packus_epi32(low, high);
                        _mm_storel_epi64(p.cast(), _mm_packus_epi16(words, words));
                    }
                }
            }
        };
    }

    macro_rules! of_512 {
        ($name:ident, |$sums:ident, $u:ident, $s:ident| $dot:expr) => {
            // SAFETY of every block: the value proves that the features are there.
            impl Bytes for $name {
                type F = Avx512;
                type I = __m512i;

                #[inline(always)]
                fn floats(self) -> Avx512 {
                    self.0
                }
                #[inline(always)]
                unsafe fn load(self, p: *const i32) -> __m512i {
                    unsafe { _mm512_loadu_si512(p.cast()) }
                }
                #[inline(always)]
                unsafe fn store(self, p: *mut i32, sums: __m512i) {
                    unsafe { _mm512_storeu_si512(p.cast(), sums) }
                }
                #[inline(always)]
                unsafe fn splat4(self, p: *const u8) -> __m512i {
                    unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
                }
                #[inline(always)]
                fn dot(self, $sums: __m512i, $u: __m512i, $s: __m512i) -> __m512i {
                    unsafe { $dot }
                }
                #[inline(always)]
                fn to_floats(self, sums: __m512i) -> __m512 {
                    unsafe { _mm512_cvtepi32_ps(sums) }
                }
                #[inline(always)]
                unsafe fn store_bytes(self, p: *mut u8, v: __m512) {
                    unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v))) }
                }
            }
        };
    }

    of_256!(Vnni256, |sums, u, s| _mm256_dpbusd_avx_epi32(sums, u, s));
    of_512!(Vnni512, |sums, u, s| _mm512_dpbusd_epi32(sums, u, s));
    // Even and odd bytes as words: each product of words adds two, in 32 bits.
    of_256!(Wide256, |sums, u, s| {
        let (even, odd) = (_mm256_and_si256(u, _mm256_set1_epi16(255)), _mm256_srli_epi16::<8>(u));
        let (low, high) = (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(s)), _mm256_srai_epi16::<8>(s));
        let products = _mm256_add_epi32(_mm256_madd_epi16(even, low), _mm256_madd_epi16(odd, high));
        _mm256_add_epi32(sums, products)
    });
    of_512!(Wide512, |sums, u, s| {
        let (even, odd) = (_mm512_and_si512(u, _mm512_set1_epi16(255)), _mm512_srli_epi16::<8>(u));
        let (low, high) = (_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(s)), _mm512_srai_epi16::<8>(s));
        let products = _mm512_add_epi32(_mm512_madd_epi16(even, low), _mm512_madd_epi16(odd, high));
        _mm512_add_epi32(sums, products)
    });
}
