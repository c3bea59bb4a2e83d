//! What products multiply: f32 values, or pairs of bf16 where the processor has an instruction for them.
//!
//! Factors lie in cells of 32 bits. A cell is one f32, or two bf16 that follow each other along the sum: an instruction multiplies
//! both and adds them to an f32, so as many instructions do twice the work. Kernels written over [`Factors`] count cells, convert what they
//! copy anyway, and are the same for both. bf16 keeps 8 bits of a value; sums are f32, and what is not a factor of a product never is bf16.

use super::{Avx512, Level, Simd};

/// A piece of code generic over what it multiplies.
pub trait FactorKernel {
    type Output;
    /// Implementations carry `#[inline(always)]`.
    ///
    /// # Safety
    /// As of [`super::Kernel::run`].
    unsafe fn run<H: Factors>(self, h: H) -> Self::Output;
}

/// Vectors of as many cells as `F` has lanes.
pub trait Factors: Copy + Send + Sync + 'static {
    type F: Simd;
    type Cells: Copy;
    /// Values of a cell: 1 or 2.
    const VALUES: usize;

    /// The floats that sums are in.
    fn floats(self) -> Self::F;
    /// # Safety
    /// As many cells as lanes can be read at `p`.
    unsafe fn cells(self, p: *const f32) -> Self::Cells;
    /// The cell at `p` in each lane.
    /// # Safety
    /// A cell can be read at `p`.
    unsafe fn cell(self, p: *const f32) -> Self::Cells;
    /// `sums` with the products of the values of each lane's cells added.
    fn dot(self, sums: Sums<Self>, a: Self::Cells, b: Self::Cells) -> Sums<Self>;
    /// Cells of a lane of `first` and, where a cell has two values, the same lane of `second`.
    fn zip(self, first: Sums<Self>, second: Sums<Self>) -> Sums<Self>;
    /// `len <= VALUES * LANES` values at `from` as cells: those that follow each other share one, and what is missing is zero.
    /// # Safety
    /// `len` values can be read at `from`.
    unsafe fn narrow(self, from: *const f32, len: usize) -> Sums<Self>;
}

/// Vectors of sums, and of cells that are not multiplied.
pub type Sums<H> = <<H as Factors>::F as Simd>::V;

/// Cells that `values` values in a row take.
#[inline(always)]
pub fn cells_of<H: Factors>(values: usize) -> usize {
    values.div_ceil(H::VALUES)
}

/// Writes `len` values that follow each other as cells.
///
/// # Safety
/// The values can be read at `from`, and their cells written at `to`.
#[inline(always)]
pub unsafe fn store_narrow<H: Factors>(h: H, from: *const f32, len: usize, to: *mut f32) {
    let (s, lanes, cells) = (h.floats(), H::F::LANES, cells_of::<H>(len));
    for j in (0..cells).step_by(lanes) {
        let first = j * H::VALUES;
        // SAFETY: the caller's promise.
        unsafe {
            let v = h.narrow(from.add(first), (len - first).min(H::VALUES * lanes));
            s.store_first(to.add(j), v, (cells - j).min(lanes));
        }
    }
}

/// f32 as it is.
impl<S: Simd> Factors for S {
    type F = S;
    type Cells = S::V;
    const VALUES: usize = 1;

    #[inline(always)]
    fn floats(self) -> S {
        self
    }
    #[inline(always)]
    unsafe fn cells(self, p: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { self.load(p) }
    }
    #[inline(always)]
    unsafe fn cell(self, p: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        self.splat(unsafe { *p })
    }
    #[inline(always)]
    fn dot(self, sums: S::V, a: S::V, b: S::V) -> S::V {
        self.fma(a, b, sums)
    }
    #[inline(always)]
    fn zip(self, first: S::V, _: S::V) -> S::V {
        first
    }
    #[inline(always)]
    unsafe fn narrow(self, from: *const f32, len: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { self.load_first(from, len) }
    }
}

/// Pairs of bf16, with 16 sums. Only [`Bf16::detect`] makes one, which is what makes the intrinsics sound.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bf16(Avx512);

impl Bf16 {
    /// Nothing where the level or the processor lacks products of bf16.
    pub fn detect(level: Level) -> Option<Bf16> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(s) => is_x86_feature_detected!("avx512bf16").then_some(Bf16(s)),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Bf16 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("bf16")
    }
}

/// What a kernel's products multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multiply {
    F32(Level),
    Bf16(Bf16),
}

impl From<Level> for Multiply {
    fn from(level: Level) -> Multiply {
        Multiply::F32(level)
    }
}

impl Multiply {
    /// Values of a cell.
    pub fn values(self) -> usize {
        match self {
            Multiply::F32(_) => 1,
            Multiply::Bf16(_) => 2,
        }
    }

    /// Everything that these run on.
    pub fn level(self) -> Level {
        match self {
            Multiply::F32(level) => level,
            Multiply::Bf16(Bf16(s)) => Level::Avx512(s),
        }
    }

    /// Runs `kernel` compiled for these factors.
    ///
    /// # Safety
    /// What [`FactorKernel::run`] of this kernel asks for. That the processor has the instructions is sure.
    #[inline]
    pub unsafe fn dispatch<K: FactorKernel>(self, kernel: K) -> K::Output {
        // SAFETY: the caller's promise, and the values prove that the features are there.
        unsafe {
            match self {
                Multiply::F32(level) => level.dispatch(InF32(kernel)),
                #[cfg(target_arch = "x86_64")]
                Multiply::Bf16(h) => x86::run_bf16(h, kernel),
                #[cfg(not(target_arch = "x86_64"))]
                Multiply::Bf16(h) => match h.0 {},
            }
        }
    }
}

/// A kernel of f32 alone.
struct InF32<K>(K);

impl<K: FactorKernel> super::Kernel for InF32<K> {
    type Output = K::Output;
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) -> K::Output {
        // SAFETY: the caller's promise.
        unsafe { self.0.run(s) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Avx512, Bf16, FactorKernel, Factors};
    use crate::simd::Simd;
    use std::arch::x86_64::*;
    use std::mem::transmute;

    /// # Safety
    /// That of the kernel's `run`; the first argument proves that the features are there.
    #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")]
    pub(super) unsafe fn run_bf16<K: FactorKernel>(h: Bf16, kernel: K) -> K::Output {
        // SAFETY: the caller's promise.
        unsafe { kernel.run(h) }
    }

    /// 0, 16, 1, 17, ...
    const INTERLEAVED: [u16; 32] = {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 32 {
            order[i] = (i / 2 + 16 * (i % 2)) as u16;
            i += 1;
        }
        order
    };

    // SAFETY of every block: the value proves that the features are there; the vectors that are turned into each other are of 512 bits.
    impl Factors for Bf16 {
        type F = Avx512;
        type Cells = __m512bh;
        const VALUES: usize = 2;

        #[inline(always)]
        fn floats(self) -> Avx512 {
            self.0
        }
        #[inline(always)]
        unsafe fn cells(self, p: *const f32) -> __m512bh {
            unsafe { transmute(_mm512_loadu_si512(p.cast())) }
        }
        #[inline(always)]
        unsafe fn cell(self, p: *const f32) -> __m512bh {
            unsafe { transmute(_mm512_set1_epi32(p.cast::<i32>().read())) }
        }
        #[inline(always)]
        fn dot(self, sums: __m512, a: __m512bh, b: __m512bh) -> __m512 {
            unsafe { _mm512_dpbf16_ps(sums, a, b) }
        }
        #[inline(always)]
        fn zip(self, first: __m512, second: __m512) -> __m512 {
            unsafe {
                // Words 0 to 15 are those of `first`, 16 to 31 those of `second`: low words of cells, and high ones.
                let words: __m512i = transmute(_mm512_cvtne2ps_pbh(second, first));
                transmute(_mm512_permutexvar_epi16(transmute::<[u16; 32], __m512i>(INTERLEAVED), words))
            }
        }
        #[inline(always)]
        unsafe fn narrow(self, from: *const f32, len: usize) -> __m512 {
            unsafe {
                let (low, high) = (len.min(16), len.saturating_sub(16));
                let low = self.0.load_first(from, low);
                let high = self.0.load_first(from.add(16.min(len)), high);
                transmute(_mm512_cvtne2ps_pbh(high, low))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of values whose products are summed in cells, and what is packed beside each other from two rows.
    struct Sum<'a> {
        a: &'a [f32],
        b: &'a [f32],
    }

    impl FactorKernel for Sum<'_> {
        type Output = [f32; 2];
        #[inline(always)]
        unsafe fn run<H: Factors>(self, h: H) -> [f32; 2] {
            let (s, lanes) = (h.floats(), H::F::LANES);
            let mut cells = [[0.0f32; 64]; 2];
            // SAFETY: the buffers hold the cells of all values.
            unsafe {
                store_narrow(h, self.a.as_ptr(), self.a.len(), cells[0].as_mut_ptr());
                store_narrow(h, self.b.as_ptr(), self.b.len(), cells[1].as_mut_ptr());
                let mut along = s.splat(0.0);
                for j in (0..cells_of::<H>(self.a.len())).step_by(lanes) {
                    along =
                        h.dot(along, h.cells(cells[0].as_ptr().add(j)), h.cells(cells[1].as_ptr().add(j)));
                }
                // The same values as rows of one lane each, two to a cell.
                let mut across = s.splat(0.0);
                for i in (0..self.a.len()).step_by(H::VALUES) {
                    let at = |x: &[f32], i: usize| s.splat(x.get(i).copied().unwrap_or(0.0));
                    let (a, b) =
                        (h.zip(at(self.a, i), at(self.a, i + 1)), h.zip(at(self.b, i), at(self.b, i + 1)));
                    s.store(cells[0].as_mut_ptr(), a);
                    s.store(cells[1].as_mut_ptr(), b);
                    across = h.dot(across, h.cells(cells[0].as_ptr()), h.cell(cells[1].as_ptr()));
                }
                let mut lanes_of = [0.0f32; 16];
                s.store(lanes_of.as_mut_ptr(), across);
                [s.sum(along), lanes_of[lanes - 1]]
            }
        }
    }

    /// Values that bf16 holds exactly give the sums of f32 exactly, however many there are.
    #[test]
    fn pairs_are_multiplied_as_values_are() {
        let all = Level::available().map(Multiply::F32);
        let bf16 = Level::available().find_map(Bf16::detect).map(Multiply::Bf16);
        if bf16.is_none() {
            println!("skipped: bf16, which this processor does not multiply");
        }
        for multiply in all.chain(bf16) {
            for len in [1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 48] {
                let a: Vec<f32> = (0..len).map(|i| (i as f32 - 7.0) * 0.5).collect();
                let b: Vec<f32> = (0..len).map(|i| (i * i % 13) as f32 - 4.0).collect();
                let wanted: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
                // SAFETY: the kernel reads the two slices.
                let got = unsafe { multiply.dispatch(Sum { a: &a, b: &b }) };
                assert_eq!(got, [wanted; 2], "{multiply:?}, {len} values");
            }
        }
    }
}
