//! Products with a handful of columns on the right: dot products along the reduction.
//!
//! A register tile would compute a whole vector of columns for the one or two that exist, such as
//! the last convolution of a network that gives one channel.

use super::Segment;
use crate::simd::{Kernel, Level, Simd};

/// More columns than this go through packed panels.
pub const MAX_COLUMNS: usize = 4;

/// `c[i, j] = a_i . b_j` for `m` rows `a_row` apart, read segment by segment, and `n` rows `b_j`
/// of the whole reduction, `b_row` apart.
#[derive(Clone, Copy)]
pub struct DotProduct<'a> {
    pub m: usize,
    pub n: usize,
    pub segments: &'a [Segment],
    pub a: *const f32,
    pub a_row: usize,
    pub b: *const f32,
    pub b_row: usize,
    pub c: *mut f32,
    pub c_row: usize,
}

impl DotProduct<'_> {
    /// # Safety
    /// The pointers are valid for the shapes above.
    pub unsafe fn run(self, level: Level) {
        // SAFETY: the caller's promise.
        unsafe { level.dispatch(self) };
    }

    #[inline(always)]
    unsafe fn tile<S: Simd, const MR: usize>(&self, s: S, i: usize, j: usize) {
        // SAFETY: the promise of `run`; the end of a segment is masked.
        unsafe {
            let mut sums = [s.splat(0.0); MR];
            let mut b = self.b.add(j * self.b_row);
            for segment in self.segments {
                let a = self.a.add(i * self.a_row + segment.offset);
                let whole = segment.len / S::LANES * S::LANES;
                for at in (0..whole).step_by(S::LANES) {
                    let right = s.load(b.add(at));
                    for r in 0..MR {
                        sums[r] = s.fma(s.load(a.add(r * self.a_row + at)), right, sums[r]);
                    }
                }
                if whole < segment.len {
                    let rest = segment.len - whole;
                    let right = s.load_first(b.add(whole), rest);
                    for r in 0..MR {
                        let left = s.load_first(a.add(r * self.a_row + whole), rest);
                        sums[r] = s.fma(left, right, sums[r]);
                    }
                }
                b = b.add(segment.len);
            }
            for r in 0..MR {
                *self.c.add((i + r) * self.c_row + j) = s.sum(sums[r]);
            }
        }
    }
}

impl Kernel for DotProduct<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let tiles = self.m / 8 * 8;
        for j in 0..self.n {
            // SAFETY: the promise of `DotProduct::run`.
            unsafe {
                (0..tiles).step_by(8).for_each(|i| self.tile::<S, 8>(s, i, j));
                (tiles..self.m).for_each(|i| self.tile::<S, 1>(s, i, j));
            }
        }
    }
}
