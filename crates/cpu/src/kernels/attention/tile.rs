//! The product of a few rows, held in registers: all that attention multiplies goes through here.

use crate::simd::Simd;
use crate::simd::factors::{Factors, Sums};

/// Rows of a register tile. With 4 vectors of 16 lanes, 24 of 32 registers accumulate.
pub const ROWS: usize = 6;

/// The widest tile: 4 vectors of 16 lanes.
pub const WIDEST: usize = 64;

/// The width of the tile for the next of `left` columns: 1, 2 or 4 vectors.
#[inline(always)]
pub fn width<S: Simd>(left: usize) -> usize {
    let mut width = if S::LANES == 16 { 4 } else { 2 } * S::LANES;
    while width / 2 >= left.max(S::LANES) {
        width /= 2;
    }
    width
}

/// N vectors.
///
/// # Safety
/// They can be read at p.
#[inline(always)]
pub unsafe fn load<S: Simd, const N: usize>(s: S, p: *const f32) -> [S::V; N] {
    // No closures here or anywhere below a dispatch: they are compiled without the level's features.
    let mut v = [s.splat(0.0); N];
    for j in 0..N {
        // SAFETY: the caller's promise.
        v[j] = unsafe { s.load(p.add(j * S::LANES)) };
    }
    v
}

/// The left factor: cell (r, k) is at `p + r * row + k * col`, and is broadcast.
#[derive(Clone, Copy)]
pub struct Left {
    pub p: *const f32,
    pub row: usize,
    pub col: usize,
}

/// The right factor: row k of N vectors of cells is at `p + k * stride`.
#[derive(Clone, Copy)]
pub struct Right {
    pub p: *const f32,
    pub stride: usize,
}

/// What becomes of a finished tile of M rows and N vectors, the first of which is `row`.
pub trait Sink<S: Simd> {
    /// # Safety
    /// Rows `row..row + M` and N vectors of each lie in what the sink points to.
    unsafe fn take<const M: usize, const N: usize>(&mut self, s: S, row: usize, tile: &[[S::V; N]; M]);
}

/// Rows `0..rows` of left times right, over `depth` cells, in tiles handed to the sink.
///
/// # Safety
/// Both factors can be read over these extents, and the sink can take all rows.
#[inline(always)]
pub unsafe fn multiply<H: Factors, const N: usize>(
    h: H,
    left: Left,
    right: Right,
    rows: usize,
    depth: usize,
    sink: &mut impl Sink<H::F>,
) {
    let mut row = 0;
    // SAFETY: row + M <= rows at each call.
    unsafe {
        while row + ROWS <= rows {
            tile::<H, ROWS, N>(h, left, right, row, depth, sink);
            row += ROWS;
        }
        if row + 4 <= rows {
            tile::<H, 4, N>(h, left, right, row, depth, sink);
            row += 4;
        }
        if row + 2 <= rows {
            tile::<H, 2, N>(h, left, right, row, depth, sink);
            row += 2;
        }
        if row < rows {
            tile::<H, 1, N>(h, left, right, row, depth, sink);
        }
    }
}

#[inline(always)]
unsafe fn tile<H: Factors, const M: usize, const N: usize>(
    h: H,
    left: Left,
    right: Right,
    row: usize,
    depth: usize,
    sink: &mut impl Sink<H::F>,
) {
    let s = h.floats();
    let mut acc: [[Sums<H>; N]; M] = [[s.splat(0.0); N]; M];
    // SAFETY: the caller's promise.
    unsafe {
        let mut a = left.p.add(row * left.row);
        let mut b = right.p;
        for _ in 0..depth {
            let mut v = [h.cells(b); N];
            for j in 1..N {
                v[j] = h.cells(b.add(j * H::F::LANES));
            }
            for i in 0..M {
                let x = h.cell(a.add(i * left.row));
                for j in 0..N {
                    acc[i][j] = h.dot(acc[i][j], x, v[j]);
                }
            }
            a = a.wrapping_add(left.col);
            b = b.wrapping_add(right.stride);
        }
        sink.take(s, row, &acc);
    }
}

/// Adds tiles to a matrix of rows `stride` apart, or replaces it.
pub struct Add {
    pub p: *mut f32,
    pub stride: usize,
    pub replace: bool,
}

impl<S: Simd> Sink<S> for Add {
    #[inline(always)]
    unsafe fn take<const M: usize, const N: usize>(&mut self, s: S, row: usize, tile: &[[S::V; N]; M]) {
        // SAFETY: the caller's promise.
        unsafe {
            for i in 0..M {
                for j in 0..N {
                    let p = self.p.add((row + i) * self.stride + j * S::LANES);
                    let old = if self.replace { s.splat(0.0) } else { s.load(p) };
                    s.store(p, s.add(old, tile[i][j]));
                }
            }
        }
    }
}
