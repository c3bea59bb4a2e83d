//! Products of bytes, four at a time: unsigned times signed, summed in 32 bits.
//!
//! Written and dispatched as [`super::Simd`] is. The instructions that processors have for it (VNNI) are not part of a
//! [`Level`], so [`Products`] asks for them; without them bytes are widened to 16 bits, which costs three times as much and gives the
//! same whole numbers. Saturating instructions are not used: their sums are not exact.

use super::{Level, Portable, Simd};

/// A piece of code generic over products of bytes.
pub trait ByteKernel {
    type Output;
    /// Implementations carry `#[inline(always)]`.
    ///
    /// # Safety
    /// As of [`super::Kernel::run`].
    unsafe fn run<B: Bytes>(self, b: B) -> Self::Output;
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

/// How a processor multiplies bytes. As a [`Level`], a value proves that the processor has what it needs.
#[derive(Clone, Copy)]
pub struct Products(Ways);

#[derive(Clone, Copy)]
enum Ways {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Wide256(x86::Wide256),
    #[cfg(target_arch = "x86_64")]
    Vnni256(x86::Vnni256),
    #[cfg(target_arch = "x86_64")]
    Wide512(x86::Wide512),
    #[cfg(target_arch = "x86_64")]
    Vnni512(x86::Vnni512),
}

impl Products {
    /// The fastest of a level: by an instruction for it where the processor has one.
    pub fn of(level: Level) -> Products {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(s) => {
                x86::Vnni256::detect(s).map_or(Products::widened(level), |w| Products(Ways::Vnni256(w)))
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(s) => {
                x86::Vnni512::detect(s).map_or(Products::widened(level), |w| Products(Ways::Vnni512(w)))
            }
            other => Products::widened(other),
        }
    }

    /// Those of a level without an instruction for it.
    pub fn widened(level: Level) -> Products {
        Products(match level {
            Level::Portable => Ways::Portable,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(s) => Ways::Wide256(x86::Wide256::new(s)),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(s) => Ways::Wide512(x86::Wide512::new(s)),
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2(never) => match never {},
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx512(never) => match never {},
        })
    }

    /// Whether there is an instruction for it.
    pub fn has_instruction(self) -> bool {
        match self.0 {
            Ways::Portable => false,
            #[cfg(target_arch = "x86_64")]
            way => matches!(way, Ways::Vnni256(_) | Ways::Vnni512(_)),
        }
    }

    /// Runs `kernel` compiled for these products.
    ///
    /// # Safety
    /// What [`ByteKernel::run`] of this kernel asks for. That the processor has the instructions is sure.
    #[inline]
    pub unsafe fn dispatch<K: ByteKernel>(self, kernel: K) -> K::Output {
        // SAFETY: the caller's promise, and the values prove that the features are there.
        unsafe {
            match self.0 {
                Ways::Portable => kernel.run(Portable),
                #[cfg(target_arch = "x86_64")]
                Ways::Wide256(b) => x86::wide_256(b, kernel),
                #[cfg(target_arch = "x86_64")]
                Ways::Vnni256(b) => x86::vnni_256(b, kernel),
                #[cfg(target_arch = "x86_64")]
                Ways::Wide512(b) => x86::wide_512(b, kernel),
                #[cfg(target_arch = "x86_64")]
                Ways::Vnni512(b) => x86::vnni_512(b, kernel),
            }
        }
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

    macro_rules! compiled {
        ($name:ident, $type:ident, $features:literal) => {
            /// # Safety
            /// That of the kernel's `run`; the first argument proves that the features are there.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name<K: ByteKernel>(b: $type, kernel: K) -> K::Output {
                // SAFETY: the caller's promise.
                unsafe { kernel.run(b) }
            }
        };
    }

    compiled!(wide_256, Wide256, "avx2,fma");
    compiled!(vnni_256, Vnni256, "avx2,fma,avxvnni");
    compiled!(wide_512, Wide512, "avx2,fma,avx512f,avx512vl,avx512bw,avx512dq");
    compiled!(vnni_512, Vnni512, "avx2,fma,avx512f,avx512vl,avx512bw,avx512dq,avx512vnni");

    /// Bytes widened to 16 bits, 8 sums. These four types hold the level that they need, and those with an instruction for products
    /// are made by asking for it, which is what makes the intrinsics sound.
    #[derive(Clone, Copy)]
    pub struct Wide256(Avx2);
    #[derive(Clone, Copy)]
    pub struct Vnni256(Avx2);
    #[derive(Clone, Copy)]
    pub struct Wide512(Avx512);
    #[derive(Clone, Copy)]
    pub struct Vnni512(Avx512);

    impl Wide256 {
        pub(super) fn new(level: Avx2) -> Wide256 {
            Wide256(level)
        }
    }

    impl Wide512 {
        pub(super) fn new(level: Avx512) -> Wide512 {
            Wide512(level)
        }
    }

    impl Vnni256 {
        pub(super) fn detect(level: Avx2) -> Option<Vnni256> {
            is_x86_feature_detected!("avxvnni").then_some(Vnni256(level))
        }
    }

    impl Vnni512 {
        pub(super) fn detect(level: Avx512) -> Option<Vnni512> {
            is_x86_feature_detected!("avx512vnni").then_some(Vnni512(level))
        }
    }

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
