//! Products with a handful of rows on the left, such as the gradient of a time embedding through a linear layer.
//!
//! They are as fast as the right side can be read, so it is read once, where it lies, unpacked. Sums run along
//! k from its first term to its last, as in packed products, whose bits they have.

use crate::simd::{Kernel, Level, Simd};

/// More rows than this go through packed panels.
pub const MAX_ROWS: usize = 8;

/// `c[i, j] = sum over k of a[i, k] b[k, j]` for some columns `j`, without an epilogue.
#[derive(Clone, Copy)]
pub struct FewRows {
    pub m: usize,
    pub k: usize,
    /// Columns `first .. last` are computed.
    pub first: usize,
    pub last: usize,
    pub a: *const f32,
    pub a_row: usize,
    pub b: *const f32,
    pub b_row: usize,
    pub c: *mut f32,
    pub c_row: usize,
}

impl FewRows {
    /// # Safety
    /// The pointers are valid for the shapes above, and nobody else writes these columns.
    pub unsafe fn run(self, level: Level) {
        // SAFETY: the caller's promise.
        unsafe { level.dispatch(self) };
    }

    /// A strip of `NV` vectors of columns, all rows of the right side.
    #[inline(always)]
    unsafe fn strip<S: Simd, const NV: usize>(&self, s: S, column: usize) {
        let tail = (self.last - column).min(NV * S::LANES) - (NV - 1) * S::LANES;
        for i in 0..self.m {
            // SAFETY: the promise of `run`; the last vector of the strip is masked.
            unsafe {
                let mut sums = [s.splat(0.0); NV];
                for at in 0..self.k {
                    let left = s.splat(*self.a.add(i * self.a_row + at));
                    let b = self.b.add(at * self.b_row + column);
                    for v in 0..NV - 1 {
                        sums[v] = s.fma(left, s.load(b.add(v * S::LANES)), sums[v]);
                    }
                    sums[NV - 1] = s.fma(left, s.load_first(b.add((NV - 1) * S::LANES), tail), sums[NV - 1]);
                }
                let c = self.c.add(i * self.c_row + column);
                for v in 0..NV {
                    s.store_first(c.add(v * S::LANES), sums[v], if v + 1 == NV { tail } else { S::LANES });
                }
            }
        }
    }
}

impl Kernel for FewRows {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let mut column = self.first;
        while column < self.last {
            let left = self.last - column;
            // SAFETY: the promise of `FewRows::run`.
            unsafe {
                column += if left > 3 * S::LANES {
                    self.strip::<S, 4>(s, column);
                    left.min(4 * S::LANES)
                } else {
                    self.strip::<S, 1>(s, column);
                    left.min(S::LANES)
                };
            }
        }
    }
}
