//! `[A, R, K] -> [A, K]`: sums of columns.
//!
//! Rows stream through in the order of memory, four at a time, into sums that stay in the L1 cache.
//! Where K is small, several rows are seen as one long row, so that vectors are full; the long row's
//! sums are folded at the end. Where K is 1, a column is one run and is summed as such.

use crate::Cpu;
use crate::kernels::span::{self, vectors};
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};

/// Columns that are summed together, at most.
const WIDE: usize = 4096;
/// Columns that fill vectors well: fewer are taken several rows at a time.
const NARROW: usize = 64;
/// Rows that are summed in `f32` before `f64` takes over.
const ROWS: usize = 256;

#[derive(Debug)]
pub struct Columns {
    outer: usize,
    rows: usize,
    columns: usize,
    /// Rows seen as one.
    fold: usize,
    /// Rows and columns of a block.
    block_rows: usize,
    block_columns: usize,
}

impl Columns {
    pub fn new(outer: usize, rows: usize, columns: usize) -> Columns {
        let fold = if columns < NARROW { NARROW.div_ceil(columns.max(1)).min(rows.max(1)) } else { 1 };
        let block_columns = columns.clamp(1, WIDE);
        let long_rows = (span::GRAIN / (fold * block_columns)).clamp(1, ROWS);
        Columns { outer, rows, columns, fold, block_rows: (fold * long_rows).min(rows.max(1)), block_columns }
    }

    /// Blocks from top to bottom of a column.
    fn down(&self) -> usize {
        self.rows.div_ceil(self.block_rows)
    }

    /// Sums of blocks that are kept until all are there, `[A, blocks, K]`.
    pub fn partials(&self) -> usize {
        if self.down() > 1 { self.outer * self.down() * self.columns } else { 0 }
    }

    /// # Safety
    /// x has A R K values, y A K, and `partials` [`Columns::partials`].
    pub unsafe fn run(
        &self,
        cpu: &Cpu,
        squares: bool,
        scale: f64,
        x: *const f32,
        y: *mut f32,
        partials: *mut f32,
    ) {
        if self.rows == 0 {
            // SAFETY: y has that many values.
            return unsafe { std::slice::from_raw_parts_mut(y, self.outer * self.columns).fill(0.0) };
        }
        let direct = self.down() == 1;
        let to = Shares(if direct { y } else { partials });
        let x = span::shared(x);
        let across = self.columns.div_ceil(self.block_columns);
        let units = self.outer * self.down() * across;
        let unit_scale = if direct { scale } else { 1.0 };
        // SAFETY: the caller's promise, and each task writes a part of its own.
        unsafe {
            span::split_with(cpu, units, self.block_rows * self.block_columns, |units| Blocks {
                shape: self,
                x,
                to,
                units,
                squares,
                scale: unit_scale,
            })
        };
        if !direct {
            self.merge(cpu, scale, to, Shares(y));
        }
    }

    /// The blocks' sums, one after the other in `f64`.
    fn merge(&self, cpu: &Cpu, scale: f64, partials: Shares<f32>, y: Shares<f32>) {
        let (down, columns) = (self.down(), self.columns);
        span::split(cpu, self.outer * columns, down, |range| {
            for o in range {
                let first = o / columns * down * columns + o % columns;
                // SAFETY: the partial sums of output o; y's element is this task's.
                unsafe {
                    let sum: f64 = (0..down).map(|b| f64::from(*partials.at(first + b * columns))).sum();
                    *y.at(o) = (sum * scale) as f32;
                }
            }
        });
    }
}

/// One task: some blocks, each of which writes its columns' sums.
struct Blocks<'a> {
    shape: &'a Columns,
    x: Shares<f32>,
    to: Shares<f32>,
    units: std::ops::Range<usize>,
    squares: bool,
    scale: f64,
}

impl Kernel for Blocks<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let c = self.shape;
        let across = c.columns.div_ceil(c.block_columns);
        for unit in self.units {
            let (block, column) = (unit / across, unit % across * c.block_columns);
            let (outer, row) = (block / c.down(), block % c.down() * c.block_rows);
            let rows = c.block_rows.min(c.rows - row);
            let width = c.block_columns.min(c.columns - column);
            // SAFETY: the block lies in the operand; its sums have a place of their own.
            unsafe {
                let x = self.x.at((outer * c.rows + row) * c.columns + column);
                let to = self.to.at(block * c.columns + column);
                if c.columns == 1 {
                    *to = (line(s, self.squares, x, rows) * self.scale) as f32;
                } else if c.fold > 1 {
                    folded(s, self.squares, self.scale, c, x, rows, to);
                } else if self.squares {
                    tall::<S, true>(s, self.scale, x, c.columns, rows, width, to);
                } else {
                    tall::<S, false>(s, self.scale, x, c.columns, rows, width, to);
                }
            }
        }
    }
}

/// `to = scale * sum` of the columns of `rows` rows that lie `stride` apart.
#[inline(always)]
unsafe fn tall<S: Simd, const SQUARES: bool>(
    s: S,
    scale: f64,
    x: *const f32,
    stride: usize,
    rows: usize,
    width: usize,
    to: *mut f32,
) {
    let mut row = 0;
    // SAFETY: the caller's block.
    unsafe {
        span::fill(s, 0.0, to, width);
        while row + 4 <= rows {
            let p = x.add(row * stride);
            vectors!(S, width, at => {
                let a = at.load(s, p);
                let b = at.load(s, p.add(stride));
                let c = at.load(s, p.add(2 * stride));
                let d = at.load(s, p.add(3 * stride));
                let four = if SQUARES {
                    s.add(s.fma(a, a, s.mul(b, b)), s.fma(c, c, s.mul(d, d)))
                } else {
                    s.add(s.add(a, b), s.add(c, d))
                };
                at.store(s, to, s.add(at.load(s, to), four))
            });
            row += 4;
        }
        while row < rows {
            let p = x.add(row * stride);
            vectors!(S, width, at => {
                let a = at.load(s, p);
                at.store(s, to, s.add(at.load(s, to), if SQUARES { s.mul(a, a) } else { a }))
            });
            row += 1;
        }
        if scale != 1.0 {
            let k = s.splat(scale as f32);
            vectors!(S, width, at => at.store(s, to, s.mul(k, at.load(s, to))));
        }
    }
}

/// The sum of a run.
#[inline(always)]
unsafe fn line<S: Simd>(s: S, squares: bool, x: *const f32, n: usize) -> f64 {
    let zero = s.splat(0.0);
    let mut sums = [zero; 4];
    let mut i = 0;
    // SAFETY: the caller's run of n values.
    unsafe {
        while i + 4 * S::LANES <= n {
            for (k, sum) in sums.iter_mut().enumerate() {
                let v = s.load(x.add(i + k * S::LANES));
                *sum = if squares { s.fma(v, v, *sum) } else { s.add(*sum, v) };
            }
            i += 4 * S::LANES;
        }
        vectors!(S, n - i, at => {
            let v = at.load(s, x.add(i));
            sums[0] = if squares { s.fma(v, v, sums[0]) } else { s.add(sums[0], v) }
        });
    }
    f64::from(s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]))))
}

/// As [`tall`] for few columns without gaps: `fold` rows at a time.
#[inline(always)]
unsafe fn folded<S: Simd>(
    s: S,
    squares: bool,
    scale: f64,
    c: &Columns,
    x: *const f32,
    rows: usize,
    to: *mut f32,
) {
    let (columns, fold) = (c.columns, c.fold);
    let mut sums = [0.0f32; 2 * NARROW];
    let (long, wide) = (rows / fold, fold * columns);
    // SAFETY: `fold * columns` is below `2 * NARROW`; the rest is the caller's block.
    unsafe {
        if squares {
            tall::<S, true>(s, 1.0, x, wide, long, wide, sums.as_mut_ptr());
        } else {
            tall::<S, false>(s, 1.0, x, wide, long, wide, sums.as_mut_ptr());
        }
        let rest = std::slice::from_raw_parts(x.add(long * wide), (rows - long * fold) * columns);
        for k in 0..columns {
            let pieces = sums[..wide].iter().skip(k).step_by(columns).map(|&v| f64::from(v));
            let left = rest.iter().skip(k).step_by(columns).map(|&v| f64::from(v));
            let left = left.map(|v| if squares { v * v } else { v });
            *to.add(k) = ((pieces.sum::<f64>() + left.sum::<f64>()) * scale) as f32;
        }
    }
}
