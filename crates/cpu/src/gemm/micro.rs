//! The register kernels: a tile of sums held in vector registers while the reduction runs.
//!
//! [`BlockProduct`] broadcasts the left side along its rows: forward products. [`OuterProduct`] has
//! the reduction as the slow axis of both sides: weight gradients. Both work on whole tiles: their
//! callers pad scratch so that a tile over the edge reads and writes memory that exists.

use crate::simd::{Kernel, Level, Simd};

/// `c = a b`, or `c += a b`, for `m` rows and one panel of columns.
///
/// Row `i` of the left side starts at `a + i * a_row`; every `LANES` values along the reduction the
/// pointer moves by `a_block` (`LANES` for plain rows, more for channel-blocked memory).
///
/// The rows are rounded up to whole tiles, both where `a` is read and where `c` is written.
#[derive(Clone, Copy)]
pub struct BlockProduct {
    pub m: usize,
    pub k: usize,
    /// Vectors in the panel, 1 to 4 (1 or 2 below AVX-512).
    pub vectors: usize,
    pub a: *const f32,
    pub a_row: usize,
    pub a_block: usize,
    pub b: *const f32,
    pub b_row: usize,
    pub c: *mut f32,
    pub c_row: usize,
    pub accumulate: bool,
    /// Memory that will be read next, `k * vectors` vectors of it: brought nearer meanwhile.
    pub next: *const f32,
}

/// The rows of the register tile for a panel of so many vectors.
pub fn tile_rows(level: Level, vectors: usize) -> usize {
    match (level, vectors) {
        (Level::Avx512, 4) => 6,
        (Level::Avx512, 3) => 8,
        (Level::Avx512, _) => 14,
        (_, 2) => 6,
        _ => 12,
    }
}

impl BlockProduct {
    /// # Safety
    /// All pointers are valid for the shapes above, rounded up to whole tiles, and `c` is nobody
    /// else's meanwhile.
    pub unsafe fn run(self, level: Level) {
        level.dispatch(Rows(self));
    }
}

struct Rows(BlockProduct);

impl Kernel for Rows {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the promise of `BlockProduct::run`.
        unsafe {
            match (S::LANES, self.0.vectors) {
                (16, 4) => row_tiles::<S, 6, 2, 4>(s, &self.0),
                (16, 3) => row_tiles::<S, 8, 4, 3>(s, &self.0),
                (16, 2) => row_tiles::<S, 14, 4, 2>(s, &self.0),
                (16, 1) => row_tiles::<S, 14, 8, 1>(s, &self.0),
                (8, 2) => row_tiles::<S, 6, 2, 2>(s, &self.0),
                (8, 1) => row_tiles::<S, 12, 6, 1>(s, &self.0),
                (lanes, vectors) => unreachable!("no tile of {vectors} vectors of {lanes}"),
            }
        }
    }
}

#[inline(always)]
unsafe fn row_tiles<S: Simd, const MR: usize, const TAIL: usize, const NV: usize>(s: S, p: &BlockProduct) {
    // Each tile brings its share of what comes next.
    let lines = if p.next.is_null() { 0 } else { (p.k * NV * S::LANES).div_ceil(16 * p.m.div_ceil(MR)) };
    for (t, row) in (0..p.m).step_by(MR).enumerate() {
        for line in t * lines..(t + 1) * lines {
            prefetch(p.next.wrapping_add(16 * line));
        }
        // SAFETY: the caller's promise.
        unsafe {
            let (a, c) = (p.a.add(row * p.a_row), p.c.add(row * p.c_row));
            if p.m - row <= TAIL {
                row_tile::<S, TAIL, NV>(s, p, a, c);
            } else {
                row_tile::<S, MR, NV>(s, p, a, c);
            }
        }
    }
}

#[inline(always)]
fn prefetch(p: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch does not fault, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

#[inline(always)]
unsafe fn row_tile<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    p: &BlockProduct,
    mut a: *const f32,
    c: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [[s.splat(0.0); NV]; MR];
        if p.accumulate {
            load_tile(s, &mut acc, c, p.c_row);
        }
        let mut b = p.b;
        for _ in 0..p.k / S::LANES {
            for j in 0..S::LANES {
                step(s, &mut acc, a.add(j), p.a_row, b);
                b = b.add(p.b_row);
            }
            a = a.add(p.a_block);
        }
        for j in 0..p.k % S::LANES {
            step(s, &mut acc, a.add(j), p.a_row, b);
            b = b.add(p.b_row);
        }
        store_tile(s, &acc, c, p.c_row);
    }
}

#[inline(always)]
unsafe fn step<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    acc: &mut [[S::V; NV]; MR],
    a: *const f32,
    a_row: usize,
    b: *const f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut right = [s.splat(0.0); NV];
        for v in 0..NV {
            right[v] = s.load(b.add(v * S::LANES));
        }
        for i in 0..MR {
            let left = s.splat(*a.add(i * a_row));
            for v in 0..NV {
                acc[i][v] = s.fma(left, right[v], acc[i][v]);
            }
        }
    }
}

#[inline(always)]
unsafe fn load_tile<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    acc: &mut [[S::V; NV]; MR],
    c: *const f32,
    c_row: usize,
) {
    for i in 0..MR {
        for v in 0..NV {
            // SAFETY: the caller's promise.
            acc[i][v] = unsafe { s.load(c.add(i * c_row + v * S::LANES)) };
        }
    }
}

#[inline(always)]
unsafe fn store_tile<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    acc: &[[S::V; NV]; MR],
    c: *mut f32,
    c_row: usize,
) {
    for i in 0..MR {
        for v in 0..NV {
            // SAFETY: the caller's promise.
            unsafe { s.store(c.add(i * c_row + v * S::LANES), acc[i][v]) };
        }
    }
}

/// `c = a^T b`, or `c += a^T b`: the reduction is the rows of both sides.
///
/// The left side is in blocks of `LANES` columns, `[m / LANES][k][LANES]` with `a_block` values from
/// block to block; the right side has rows of `n` columns, `b_row` apart. `m` and `n` are multiples
/// of the lanes.
#[derive(Clone, Copy)]
pub struct OuterProduct {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: *const f32,
    pub a_block: usize,
    pub b: *const f32,
    pub b_row: usize,
    pub c: *mut f32,
    pub c_row: usize,
    pub accumulate: bool,
}

impl OuterProduct {
    /// # Safety
    /// All pointers are valid for the shapes above, and `c` is nobody else's meanwhile.
    pub unsafe fn run(self, level: Level) {
        debug_assert!(self.m.is_multiple_of(level.lanes()) && self.n.is_multiple_of(level.lanes()));
        level.dispatch(Columns(self));
    }
}

struct Columns(OuterProduct);

impl Kernel for Columns {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let p = &self.0;
        let mut column = 0;
        while column < p.n {
            let left = (p.n - column) / S::LANES;
            // SAFETY: the promise of `OuterProduct::run`; tiles have 8 (AVX-512) or 4 rows.
            unsafe {
                if S::LANES == 16 {
                    match left {
                        1 => outer_tiles::<S, 8, 1>(s, p, column),
                        2 | 4 => outer_tiles::<S, 8, 2>(s, p, column),
                        _ => outer_tiles::<S, 8, 3>(s, p, column),
                    }
                    column += if left == 4 { 32 } else { left.min(3) * 16 };
                } else {
                    match left {
                        1 => outer_tiles::<S, 8, 1>(s, p, column),
                        _ => outer_tiles::<S, 4, 2>(s, p, column),
                    }
                    column += left.min(2) * S::LANES;
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn outer_tiles<S: Simd, const MR: usize, const NV: usize>(s: S, p: &OuterProduct, column: usize) {
    for row in (0..p.m).step_by(MR) {
        // SAFETY: the caller's promise; MR divides the lanes.
        unsafe {
            let mut a = p.a.add(row / S::LANES * p.a_block + row % S::LANES);
            let mut b = p.b.add(column);
            let c = p.c.add(row * p.c_row + column);
            let mut acc = [[s.splat(0.0); NV]; MR];
            if p.accumulate {
                load_tile(s, &mut acc, c, p.c_row);
            }
            for _ in 0..p.k {
                step(s, &mut acc, a, 1, b);
                a = a.add(S::LANES);
                b = b.add(p.b_row);
            }
            store_tile(s, &acc, c, p.c_row);
        }
    }
}
