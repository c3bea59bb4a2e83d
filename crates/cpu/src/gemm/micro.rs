//! The register kernels: a tile of sums held in vector registers while the reduction runs.
//!
//! [`BlockProduct`] broadcasts the left side along its rows: forward products. [`OuterProduct`] has
//! the reduction as the slow axis of both sides: weight gradients. Both work on whole tiles: a tile over
//! the edge reads rows behind the last one, so their callers see to it that these exist.

use crate::simd::factors::{FactorKernel, Factors, Multiply, Sums};
use crate::simd::{Kernel, Level, Simd};

/// Values of the reduction that lie side by side on the left, `offset` from where a row starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub offset: usize,
    pub len: usize,
}

/// `c = a b`, or `c += a b`, for `m` rows and one panel of columns.
///
/// Row `i` of the left side starts at `a + i * a_row` and is read segment by segment: one for a plain
/// matrix, a run of taps for a convolution, a block of channels where these are blocked.
///
/// The rows of `a` are rounded up to whole tiles; those of `c` are not. The left side, the right side and the reduction are in cells of
/// what is multiplied ([`Factors`]); a cell of f32 is a value.
#[derive(Clone, Copy)]
pub struct BlockProduct<'a> {
    pub m: usize,
    pub segments: &'a [Segment],
    /// Vectors in the panel, 1 to 4 (1 or 2 below AVX-512).
    pub vectors: usize,
    pub a: *const f32,
    pub a_row: usize,
    pub b: *const f32,
    pub b_row: usize,
    pub c: *mut f32,
    pub c_row: usize,
    pub start: Start,
    /// Memory that will be read next, as many values as of `b`, is brought nearer meanwhile; or null.
    pub next: *const f32,
}

/// What the sums of a product start from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Zero,
    /// What `c` holds.
    Sums,
    /// The same row for all: a bias for each column of the panel, the padded ones too.
    Row(*const f32),
}

/// The rows of the register tile for a panel of so many vectors.
pub fn tile_rows(level: Level, vectors: usize) -> usize {
    match (level, vectors) {
        (Level::Avx512(_), 4) => 6,
        (Level::Avx512(_), 3) => 8,
        (Level::Avx512(_), _) => 14,
        (_, 2) => 6,
        _ => 12,
    }
}

impl BlockProduct<'_> {
    /// # Safety
    /// All pointers are valid for the shapes above, rounded up to whole tiles, and `c` is nobody
    /// else's meanwhile.
    pub unsafe fn run(self, factors: impl Into<Multiply>) {
        // SAFETY: the caller's promise.
        unsafe { factors.into().dispatch(Rows(self)) };
    }
}

struct Rows<'a>(BlockProduct<'a>);

impl FactorKernel for Rows<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<H: Factors>(self, h: H) {
        // SAFETY: the promise of `BlockProduct::run`.
        unsafe {
            match (H::F::LANES, self.0.vectors) {
                (16, 4) => row_tiles::<H, 6, 4, 2, 4>(h, &self.0),
                (16, 3) => row_tiles::<H, 8, 3, 2, 4>(h, &self.0),
                (16, 2) => row_tiles::<H, 14, 2, 4, 8>(h, &self.0),
                (16, 1) => row_tiles::<H, 14, 1, 4, 8>(h, &self.0),
                (8, 2) => row_tiles::<H, 6, 2, 2, 4>(h, &self.0),
                (8, 1) => row_tiles::<H, 12, 1, 4, 8>(h, &self.0),
                (lanes, vectors) => unreachable!("no tile of {vectors} vectors of {lanes}"),
            }
        }
    }
}

#[inline(always)]
unsafe fn row_tiles<H: Factors, const MR: usize, const NV: usize, const TAIL: usize, const HALF: usize>(
    h: H,
    p: &BlockProduct<'_>,
) {
    // Each tile brings its share of what comes next.
    let lines = if p.next.is_null() {
        0
    } else {
        let depth: usize = p.segments.iter().map(|g| g.len).sum();
        (depth * NV * H::F::LANES).div_ceil(16 * p.m.div_ceil(MR))
    };
    for (t, row) in (0..p.m).step_by(MR).enumerate() {
        for line in t * lines..(t + 1) * lines {
            prefetch(p.next.wrapping_add(16 * line));
        }
        let rows = p.m - row;
        // SAFETY: the caller's promise.
        unsafe {
            let (a, c) = (p.a.add(row * p.a_row), p.c.add(row * p.c_row));
            if rows <= TAIL {
                row_tile::<H, TAIL, NV>(h, p, a, c, rows);
            } else if rows <= HALF {
                row_tile::<H, HALF, NV>(h, p, a, c, rows);
            } else {
                row_tile::<H, MR, NV>(h, p, a, c, rows);
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
unsafe fn row_tile<H: Factors, const MR: usize, const NV: usize>(
    h: H,
    p: &BlockProduct<'_>,
    a: *const f32,
    c: *mut f32,
    rows: usize,
) {
    let s = h.floats();
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [[s.splat(0.0); NV]; MR];
        match p.start {
            Start::Zero => {}
            Start::Sums => load_tile(s, &mut acc, c, p.c_row, rows),
            Start::Row(bias) => load_tile(s, &mut acc, bias, 0, MR),
        }
        let mut b = p.b;
        for segment in p.segments {
            let mut a = a.add(segment.offset);
            for _ in 0..segment.len {
                step(h, &mut acc, a, p.a_row, b);
                a = a.add(1);
                b = b.add(p.b_row);
            }
        }
        store_tile(s, &acc, c, p.c_row, rows);
    }
}

#[inline(always)]
unsafe fn step<H: Factors, const MR: usize, const NV: usize>(
    h: H,
    acc: &mut [[Sums<H>; NV]; MR],
    a: *const f32,
    a_row: usize,
    b: *const f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut right = [h.cells(b); NV];
        for v in 1..NV {
            right[v] = h.cells(b.add(v * H::F::LANES));
        }
        for i in 0..MR {
            let left = h.cell(a.add(i * a_row));
            for v in 0..NV {
                acc[i][v] = h.dot(acc[i][v], left, right[v]);
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
    rows: usize,
) {
    for i in 0..MR {
        if i < rows {
            for v in 0..NV {
                // SAFETY: the caller's promise.
                acc[i][v] = unsafe { s.load(c.add(i * c_row + v * S::LANES)) };
            }
        }
    }
}

#[inline(always)]
unsafe fn store_tile<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    acc: &[[S::V; NV]; MR],
    c: *mut f32,
    c_row: usize,
    rows: usize,
) {
    for i in 0..MR {
        if i < rows {
            for v in 0..NV {
                // SAFETY: the caller's promise.
                unsafe { s.store(c.add(i * c_row + v * S::LANES), acc[i][v]) };
            }
        }
    }
}

/// `c = a^T b`, or `c += a^T b`: the reduction is the rows of both sides.
///
/// The left side is in blocks of `LANES` columns, `a_block` values from block to block and `a_step` from row
/// to row; the right side has rows of `n` columns, `b_row` apart. `n` is a multiple of the lanes, and the
/// rows of `c` are rounded up to one.
#[derive(Clone, Copy)]
pub struct OuterProduct {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: *const f32,
    pub a_step: usize,
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
        debug_assert!(self.n.is_multiple_of(level.lanes()));
        // SAFETY: the caller's promise.
        unsafe { level.dispatch(Columns(self)) };
    }
}

struct Columns(OuterProduct);

impl Kernel for Columns {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let p = &self.0;
        let mut column = 0;
        while column < p.n {
            // Strips of 3 vectors, or of 2 where those leave no single one; 2 below AVX-512.
            let left = (p.n - column) / S::LANES;
            let vectors = match (S::LANES, left) {
                (_, 1) => 1,
                (16, 2 | 4) => 2,
                (16, _) => 3,
                _ => 2,
            };
            // SAFETY: the promise of `OuterProduct::run`.
            unsafe {
                match vectors {
                    1 => strip::<S, 1>(s, p, column),
                    2 => strip::<S, 2>(s, p, column),
                    _ => strip::<S, 3>(s, p, column),
                }
            }
            column += vectors * S::LANES;
        }
    }
}

/// One strip of columns, all rows: tiles of 8 (4 where registers are fewer), then what is left.
#[inline(always)]
unsafe fn strip<S: Simd, const NV: usize>(s: S, p: &OuterProduct, column: usize) {
    let mut row = 0;
    while row < p.m {
        // SAFETY: the caller's promise.
        unsafe {
            match p.m - row {
                1 => {
                    outer_tile::<S, 1, NV>(s, p, row, column);
                    row += 1;
                }
                2 => {
                    outer_tile::<S, 2, NV>(s, p, row, column);
                    row += 2;
                }
                left if left <= 4 || (S::LANES == 8 && NV > 1) => {
                    outer_tile::<S, 4, NV>(s, p, row, column);
                    row += 4;
                }
                _ => {
                    outer_tile::<S, 8, NV>(s, p, row, column);
                    row += 8;
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn outer_tile<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    p: &OuterProduct,
    row: usize,
    column: usize,
) {
    // SAFETY: the caller's promise; the rows of a tile lie in one block, as tiles divide the lanes.
    unsafe {
        let mut a = p.a.add(row / S::LANES * p.a_block + row % S::LANES);
        let mut b = p.b.add(column);
        let c = p.c.add(row * p.c_row + column);
        let mut acc = [[s.splat(0.0); NV]; MR];
        if p.accumulate {
            load_tile(s, &mut acc, c, p.c_row, MR);
        }
        for _ in 0..p.k {
            step(s, &mut acc, a, 1, b);
            a = a.add(p.a_step);
            b = b.add(p.b_row);
        }
        store_tile(s, &acc, c, p.c_row, MR);
    }
}
