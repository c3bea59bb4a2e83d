//! Packing of right sides into panels, `[panel][k][width]`.
//!
//! Training packs the weights at every iteration, so both orders of the source run at the speed of
//! the memory: rows are copied by vectors, columns go through a transpose in registers.

use crate::simd::factors::{FactorKernel, Factors, Multiply, store_narrow};
use crate::simd::{Kernel, Level, Simd};

/// Copies `k` rows of `columns` values into rows of `width`, the rest zero.
///
/// # Safety
/// `src` holds `k` rows `src_row` apart, `dst` holds `k * width` values.
pub unsafe fn copy_rows(
    level: Level,
    src: *const f32,
    src_row: usize,
    k: usize,
    columns: usize,
    dst: *mut f32,
    width: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { level.dispatch(CopyRows { src, src_row, k, columns, dst, width }) };
}

struct CopyRows {
    src: *const f32,
    src_row: usize,
    k: usize,
    columns: usize,
    dst: *mut f32,
    width: usize,
}

impl Kernel for CopyRows {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let whole = self.columns / S::LANES * S::LANES;
        for row in 0..self.k {
            // SAFETY: the promise of `copy_rows`; a masked load reads existing columns only.
            unsafe {
                let (src, dst) = (self.src.add(row * self.src_row), self.dst.add(row * self.width));
                for j in (0..whole).step_by(S::LANES) {
                    s.store(dst.add(j), s.load(src.add(j)));
                }
                if whole < self.columns {
                    let rest = self.columns - whole;
                    let room = (self.width - whole).min(S::LANES);
                    s.store_first(dst.add(whole), s.load_first(src.add(whole), rest), room);
                }
                for j in (self.columns.next_multiple_of(S::LANES)..self.width).step_by(S::LANES) {
                    s.store(dst.add(j), s.splat(0.0));
                }
            }
        }
    }
}

/// Writes `k` rows of `width` values where row `i`, column `j` is `src[j * src_column + i]` for the
/// first `columns`, the rest zero.
///
/// # Safety
/// `src` holds `columns` runs of `k` values `src_column` apart, `dst` holds `k * width` values.
pub unsafe fn transpose_columns(
    level: Level,
    src: *const f32,
    src_column: usize,
    k: usize,
    columns: usize,
    dst: *mut f32,
    width: usize,
) {
    // SAFETY: the caller's promise; blocks are cut so that none goes over an edge.
    unsafe {
        let side = 16;
        for j in (0..width).step_by(side) {
            let wide = side.min(width - j);
            let have = columns.saturating_sub(j).min(wide);
            let mut i = 0;
            while i < k {
                let tall = side.min(k - i);
                let (from, to) = (src.add(j * src_column + i), dst.add(i * width + j));
                if have == side && tall == side && transpose_16(level, from, src_column, to, width) {
                    i += side;
                    continue;
                }
                for y in 0..tall {
                    for x in 0..wide {
                        *to.add(y * width + x) = if x < have { *from.add(x * src_column + y) } else { 0.0 };
                    }
                }
                i += tall;
            }
        }
    }
}

/// Rows and columns of cells that a [`PackCells`] has at most.
pub const CELL_ROWS: usize = 64;
const CELL_COLUMNS: usize = 64;

/// A part of a panel in cells of what is multiplied: `values` rows of the right side, which share cells in order.
#[derive(Clone, Copy)]
pub struct PackCells {
    /// The first value; rows lie `src_row` apart, or, where the right side is transposed, columns.
    pub src: *const f32,
    pub src_row: usize,
    pub transposed: bool,
    pub values: usize,
    pub columns: usize,
    pub dst: *mut f32,
    pub width: usize,
}

impl PackCells {
    /// # Safety
    /// `src` holds the values, `dst` rows of `width` cells.
    ///
    /// # Panics
    /// If there are more than [`CELL_ROWS`] rows of cells, or columns than the widest panel has.
    pub unsafe fn run(self, factors: Multiply) {
        let PackCells { src, src_row, transposed, values, columns, dst, width } = self;
        let rows = values.div_ceil(factors.values());
        assert!(rows <= CELL_ROWS && columns <= CELL_COLUMNS, "{rows} rows of {columns} cells");
        let level = factors.level();
        // SAFETY: the caller's promise.
        unsafe {
            match (factors, transposed) {
                (Multiply::F32(_), false) => copy_rows(level, src, src_row, rows, columns, dst, width),
                (Multiply::F32(_), true) => transpose_columns(level, src, src_row, rows, columns, dst, width),
                (Multiply::Bf16(_), _) => {
                    let mut cells = [0.0; CELL_ROWS * CELL_COLUMNS];
                    let at = cells.as_mut_ptr();
                    factors.dispatch(Narrow { from: self, cells: at });
                    match transposed {
                        true => transpose_columns(level, at, CELL_ROWS, rows, columns, dst, width),
                        false => copy_rows(level, at, CELL_COLUMNS, rows, columns, dst, width),
                    }
                }
            }
        }
    }
}

/// A part of the right side as rows of cells, in the order in which it lies.
struct Narrow {
    from: PackCells,
    cells: *mut f32,
}

impl FactorKernel for Narrow {
    type Output = ();
    #[inline(always)]
    unsafe fn run<H: Factors>(self, h: H) {
        let PackCells { src, src_row, transposed, values, columns, .. } = self.from;
        // SAFETY: the promise of `PackCells::run`.
        unsafe {
            if !transposed {
                return zip_rows(h, src, src_row, values, columns, self.cells, CELL_COLUMNS);
            }
            for column in 0..columns {
                store_narrow(h, src.add(column * src_row), values, self.cells.add(column * CELL_ROWS));
            }
        }
    }
}

/// A block of 16 x 16 through registers; false where the level has no such kernel.
#[inline]
unsafe fn transpose_16(level: Level, src: *const f32, src_row: usize, dst: *mut f32, dst_row: usize) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(_) => {
            // SAFETY: the level says that the machine has the features; the caller's promise.
            unsafe { x86::transpose_16(src, src_row, dst, dst_row) };
            true
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) => {
            for (y, x) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
                // SAFETY: as above.
                unsafe {
                    x86::transpose_8(src.add(y * src_row + x), src_row, dst.add(x * dst_row + y), dst_row)
                };
            }
            true
        }
        _ => {
            let _ = (src, src_row, dst, dst_row);
            false
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub unsafe fn transpose_16(src: *const f32, src_row: usize, dst: *mut f32, dst_row: usize) {
        // SAFETY: the caller's promise: 16 rows of 16 on both sides.
        unsafe {
            let mut r = [_mm512_setzero_ps(); 16];
            for i in 0..16 {
                r[i] = _mm512_loadu_ps(src.add(i * src_row));
            }
            let mut t = r;
            for i in 0..8 {
                t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            for i in 0..4 {
                let [a, b, c, d] =
                    [t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]].map(|x| _mm512_castps_pd(x));
                r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
                r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
                r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
                r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
            }
            // r[4 g + x] holds, in 128-bit lane l, column 4 l + x of rows 4 g .. 4 g + 3.
            for x in 0..4 {
                let ab_low = _mm512_shuffle_f32x4::<0x44>(r[x], r[4 + x]);
                let ab_high = _mm512_shuffle_f32x4::<0xEE>(r[x], r[4 + x]);
                let cd_low = _mm512_shuffle_f32x4::<0x44>(r[8 + x], r[12 + x]);
                let cd_high = _mm512_shuffle_f32x4::<0xEE>(r[8 + x], r[12 + x]);
                _mm512_storeu_ps(dst.add(x * dst_row), _mm512_shuffle_f32x4::<0x88>(ab_low, cd_low));
                _mm512_storeu_ps(dst.add((4 + x) * dst_row), _mm512_shuffle_f32x4::<0xDD>(ab_low, cd_low));
                _mm512_storeu_ps(dst.add((8 + x) * dst_row), _mm512_shuffle_f32x4::<0x88>(ab_high, cd_high));
                _mm512_storeu_ps(dst.add((12 + x) * dst_row), _mm512_shuffle_f32x4::<0xDD>(ab_high, cd_high));
            }
        }
    }

    #[target_feature(enable = "avx2")]
    pub unsafe fn transpose_8(src: *const f32, src_row: usize, dst: *mut f32, dst_row: usize) {
        // SAFETY: the caller's promise: 8 rows of 8 on both sides.
        unsafe {
            let mut r = [_mm256_setzero_ps(); 8];
            for i in 0..8 {
                r[i] = _mm256_loadu_ps(src.add(i * src_row));
            }
            let mut t = r;
            for i in 0..4 {
                t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            for i in 0..2 {
                let [a, b, c, d] = [t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]];
                r[4 * i] = _mm256_shuffle_ps::<0x44>(a, c);
                r[4 * i + 1] = _mm256_shuffle_ps::<0xEE>(a, c);
                r[4 * i + 2] = _mm256_shuffle_ps::<0x44>(b, d);
                r[4 * i + 3] = _mm256_shuffle_ps::<0xEE>(b, d);
            }
            for x in 0..4 {
                let low = _mm256_permute2f128_ps::<0x20>(r[x], r[4 + x]);
                let high = _mm256_permute2f128_ps::<0x31>(r[x], r[4 + x]);
                _mm256_storeu_ps(dst.add(x * dst_row), low);
                _mm256_storeu_ps(dst.add((4 + x) * dst_row), high);
            }
        }
    }
}

/// Rows of `channels` values as rows of cells, `to_stride` apart: values of rows that follow each other share a cell. May be in place
/// where the rows of cells are no farther apart than those of values.
///
/// # Safety
/// Both blocks lie in their buffers.
#[inline(always)]
pub unsafe fn zip_rows<H: Factors>(
    h: H,
    from: *const f32,
    stride: usize,
    rows: usize,
    channels: usize,
    to: *mut f32,
    to_stride: usize,
) {
    let (s, lanes) = (h.floats(), H::F::LANES);
    // SAFETY: the last vector of a row is cut to what the row has.
    unsafe {
        for i in (0..rows).step_by(H::VALUES) {
            let (from, to) = (from.add(i * stride), to.add(i / H::VALUES * to_stride));
            for c in (0..channels).step_by(lanes) {
                let len = lanes.min(channels - c);
                let second = if i + 1 < rows && H::VALUES > 1 { len } else { 0 };
                let first = s.load_first(from.add(c), len);
                let second = s.load_first(from.wrapping_add(stride + c), second);
                s.store_first(to.add(c), h.zip(first, second), len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_pack_the_same_panel() {
        for level in Level::available() {
            for (k, columns, width) in [(1, 1, 16), (5, 7, 16), (16, 16, 16), (33, 50, 64), (48, 64, 64)] {
                let value = |i: usize, j: usize| (i * 1000 + j) as f32;
                let rows: Vec<f32> = (0..k * columns).map(|x| value(x / columns, x % columns)).collect();
                let turned: Vec<f32> = (0..k * columns).map(|x| value(x % k, x / k)).collect();
                let (mut a, mut b) = (vec![9.0; k * width], vec![9.0; k * width]);
                // SAFETY: the buffers have the sizes asked for.
                unsafe {
                    copy_rows(level, rows.as_ptr(), columns, k, columns, a.as_mut_ptr(), width);
                    transpose_columns(level, turned.as_ptr(), k, k, columns, b.as_mut_ptr(), width);
                }
                for i in 0..k {
                    for j in 0..width {
                        let want = if j < columns { value(i, j) } else { 0.0 };
                        assert_eq!((a[i * width + j], b[i * width + j]), (want, want), "{level:?} {i} {j}");
                    }
                }
            }
        }
    }
}
