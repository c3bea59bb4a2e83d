//! Matrix products, batched: linear layers and their gradients.
//!
//! `c = act(op(a) op(b) + bias) + residual`. The right side is packed into panels, once where it is
//! constant, and the left side is read where it lies; with up to eight rows on the left and a right side that is
//! not transposed nothing is packed at all. As for convolutions, a plan fixes the cut into tasks; every sum runs
//! along k from its first term to its last, so a row's result does not depend on how many there are. Where products multiply bf16, both sides
//! are converted when they are packed and copied; a few rows, and a left side that is transposed, stay in f32.

use super::conv::{Epilogue, Finish};
use crate::Cpu;
use crate::gemm::small::{self, FewRows};
use crate::gemm::{BlockProduct, MAX_TILE_ROWS, OuterProduct, Panels, Segment, Start, micro, pack};
use crate::pool::Shares;
use crate::simd::Level;
use crate::simd::factors::{FactorKernel, Factors, Multiply, store_narrow};

/// The shapes of a product. Batches follow each other without a gap beyond the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatmulDims {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Values from row to row of each matrix, as it lies in memory.
    pub lda: usize,
    pub ldb: usize,
    pub ldc: usize,
    /// `a` is `[batch, k, m]`.
    pub a_transposed: bool,
    /// `b` is `[batch, n, k]`.
    pub b_transposed: bool,
    /// `b` is one matrix for all batches.
    pub b_shared: bool,
}

impl MatmulDims {
    /// One contiguous product `[m, k] x [k, n]`, or `[n, k]` on the right if `b_transposed`.
    pub fn new(m: usize, k: usize, n: usize, b_transposed: bool) -> MatmulDims {
        MatmulDims {
            batch: 1,
            m,
            n,
            k,
            lda: k,
            ldb: if b_transposed { k } else { n },
            ldc: n,
            a_transposed: false,
            b_transposed,
            b_shared: true,
        }
    }
}

/// Rows of a task at most, and values of the reduction that are multiplied at once.
const MAX_ROWS: usize = 96;
const MAX_DEPTH: usize = 512;
/// Tasks that there should be, so that threads finish together.
const FEW_TASKS: usize = 12;

/// A product ready to run.
pub struct MatmulPlan {
    dims: MatmulDims,
    level: Level,
    factors: Multiply,
    /// The reduction, in cells of the factors.
    cells: usize,
    threads: usize,
    panels: Panels,
    few_rows: bool,
    rows_per_block: usize,
    blocks: usize,
    /// Panels of one task.
    together: usize,
    /// Values of workspace that [`MatmulPlan::run`] needs.
    pub workspace_len: usize,
    /// Values of packed right side that [`MatmulPlan::pack`] writes; may be 0.
    pub packed_len: usize,
}

impl MatmulPlan {
    /// # Panics
    /// If a dimension is 0 or a row stride is below the row's length.
    pub fn new(dims: &MatmulDims, factors: impl Into<Multiply>, threads: usize) -> MatmulPlan {
        let mut dims = *dims;
        let mut factors = factors.into();
        let level = factors.level();
        assert!(dims.batch > 0 && dims.m > 0 && dims.n > 0 && dims.k > 0, "a product of nothing: {dims:?}");
        assert!(dims.lda >= if dims.a_transposed { dims.m } else { dims.k }, "rows of a overlap");
        assert!(dims.ldb >= if dims.b_transposed { dims.k } else { dims.n }, "rows of b overlap");
        assert!(dims.ldc >= dims.n, "rows of c overlap");
        if dims.b_shared && !dims.a_transposed {
            (dims.m, dims.batch) = (dims.m * dims.batch, 1);
        }
        let panels = Panels::new(dims.n, level);
        let few_rows = dims.m <= small::MAX_ROWS && !dims.a_transposed && !dims.b_transposed;
        if few_rows || dims.a_transposed {
            factors = level.into();
        }
        let tile = if dims.a_transposed { level.lanes() } else { micro::tile_rows(level, panels.vectors(0)) };
        let blocks = dims.m.div_ceil(MAX_ROWS);
        let blocks = blocks.max(FEW_TASKS.min(dims.m.div_ceil(2 * MAX_TILE_ROWS)));
        let rows_per_block = dims.m.div_ceil(blocks).next_multiple_of(tile).min(MAX_ROWS);
        let blocks = dims.m.div_ceil(rows_per_block);
        let splits = FEW_TASKS.div_ceil(blocks * dims.batch).min(panels.count());
        let together = panels.count().div_ceil(splits);
        let mut plan = MatmulPlan {
            dims,
            level,
            factors,
            cells: dims.k.div_ceil(factors.values()),
            threads,
            panels,
            few_rows,
            rows_per_block,
            blocks,
            together,
            workspace_len: 0,
            packed_len: 0,
        };
        if few_rows {
            plan.workspace_len = dims.batch * dims.m * dims.n;
        } else {
            plan.workspace_len = threads * plan.scratch_len();
            plan.packed_len = plan.matrices() * plan.cells * panels.padded();
        }
        plan
    }

    fn matrices(&self) -> usize {
        if self.dims.b_shared { 1 } else { self.dims.batch }
    }

    fn scratch_len(&self) -> usize {
        (self.rows_per_block + MAX_TILE_ROWS) * (self.depth() + self.together * self.panels.full())
    }

    /// The reduction in equal pieces of whole vectors, none above `MAX_DEPTH`.
    fn depth(&self) -> usize {
        self.cells.div_ceil(self.cells.div_ceil(MAX_DEPTH)).next_multiple_of(16)
    }

    /// Brings the right side into the order that [`MatmulPlan::run`] reads.
    ///
    /// # Safety
    /// `b` points to the right side of the plan.
    ///
    /// # Panics
    /// If `packed` is too short.
    pub unsafe fn pack(&self, cpu: &Cpu, b: *const f32, packed: &mut [f32]) {
        assert!(packed.len() >= self.packed_len, "the packed side needs {} values", self.packed_len);
        if self.few_rows {
            return;
        }
        let (b, packed) = (Shares(b.cast_mut()), Shares(packed.as_mut_ptr()));
        let d = &self.dims;
        let step = pack::CELL_ROWS;
        let pieces = self.cells.div_ceil(step);
        let count = self.panels.count();
        cpu.pool.run(self.matrices() * count * pieces, |_, task| {
            let (matrix, panel, low) = (task / (count * pieces), task / pieces % count, task % pieces * step);
            let (start, width) = (self.panels.start(panel), self.panels.width(panel));
            let offset = matrix * self.cells * self.panels.padded() + self.panels.offset(panel, self.cells);
            let first = low * self.factors.values();
            let at = match d.b_transposed {
                true => (matrix * d.n + start) * d.ldb + first,
                false => (matrix * d.k + first) * d.ldb + start,
            };
            // SAFETY: each task writes its rows of its panel.
            unsafe {
                pack::PackCells {
                    src: b.at(at),
                    src_row: d.ldb,
                    transposed: d.b_transposed,
                    values: (step * self.factors.values()).min(d.k - first),
                    columns: self.panels.columns(panel),
                    dst: packed.at(offset + low * width),
                    width,
                }
                .run(self.factors);
            }
        });
    }

    /// Multiplies. `b` is read only where `packed_len` is 0; the epilogue's bias is over columns, its
    /// residual a contiguous `[batch * m, n]`.
    ///
    /// # Safety
    /// The tensors have the shapes of the plan, and `c` overlaps none of the others (the residual may
    /// be `c` itself).
    ///
    /// # Panics
    /// If `packed` or `workspace` is too short, or the context has more threads than planned.
    pub unsafe fn run(
        &self,
        cpu: &Cpu,
        a: *const f32,
        b: *const f32,
        packed: &[f32],
        epilogue: &Epilogue,
        c: *mut f32,
        workspace: &mut [f32],
    ) {
        assert!(cpu.pool.threads() <= self.threads, "planned for {} threads", self.threads);
        assert!(packed.len() >= self.packed_len, "the packed side needs {} values", self.packed_len);
        assert!(workspace.len() >= self.workspace_len, "the workspace needs {} values", self.workspace_len);
        let (a, b, c) = (Shares(a.cast_mut()), Shares(b.cast_mut()), Shares(c));
        let (packed, workspace) = (Shares(packed.as_ptr().cast_mut()), Shares(workspace.as_mut_ptr()));
        if self.few_rows {
            // Strips of columns a thread can work on for a microsecond or more.
            let step = (32 * 1024 / self.dims.k).next_multiple_of(64).min(self.dims.n.next_multiple_of(64));
            let strips = self.dims.n.div_ceil(step);
            cpu.pool.run(self.dims.batch * strips, |_, task| {
                // SAFETY: each task writes its columns of its batch.
                unsafe {
                    let (batch, first) = (task / strips, task % strips * step);
                    self.strip(batch, first, step, a.at(0), b.at(0), epilogue, c.at(0), workspace.at(0));
                }
            });
            return;
        }
        let splits = self.panels.count().div_ceil(self.together);
        cpu.pool.run(self.dims.batch * self.blocks * splits, |worker, task| {
            // SAFETY: each task writes its block of `c`, and its worker's scratch.
            unsafe {
                let scratch = workspace.at(worker * self.scratch_len());
                self.block(task, splits, a.at(0), packed.at(0), epilogue, c.at(0), scratch);
            }
        });
    }

    unsafe fn strip(
        &self,
        batch: usize,
        first: usize,
        step: usize,
        a: *const f32,
        b: *const f32,
        epilogue: &Epilogue,
        c: *mut f32,
        sums: *mut f32,
    ) {
        let d = &self.dims;
        let last = d.n.min(first + step);
        let matrix = if d.b_shared { 0 } else { batch };
        // SAFETY: the promise of `run`.
        unsafe {
            let sums = sums.add(batch * d.m * d.n);
            FewRows {
                m: d.m,
                k: d.k,
                first,
                last,
                a: a.add(batch * d.m * d.lda),
                a_row: d.lda,
                b: b.add(matrix * d.k * d.ldb),
                b_row: d.ldb,
                c: sums,
                c_row: d.n,
            }
            .run(self.level);
            self.finish(batch * d.m, d.m, sums.add(first), d.n, first, last - first, c, epilogue);
        }
    }

    unsafe fn block(
        &self,
        task: usize,
        splits: usize,
        a: *const f32,
        packed: *const f32,
        epilogue: &Epilogue,
        c: *mut f32,
        scratch: *mut f32,
    ) {
        let d = &self.dims;
        let (batch, block, split) =
            (task / (self.blocks * splits), task / splits % self.blocks, task % splits);
        let panels = split * self.together..((split + 1) * self.together).min(self.panels.count());
        let start = block * self.rows_per_block;
        let count = self.rows_per_block.min(d.m - start);
        let stride = (self.rows_per_block + MAX_TILE_ROWS) * self.panels.full();
        let matrix = if d.b_shared { 0 } else { batch };
        // SAFETY: the promise of `run`; the scratch holds the sums of all panels, then the left side.
        unsafe {
            let left = scratch.add(self.together * stride);
            let packed = packed.add(matrix * self.cells * self.panels.padded());
            for low in (0..self.cells).step_by(self.depth()) {
                let depth = self.depth().min(self.cells - low);
                let (a, a_row) = self.left(a, batch, start, count, low, depth, left);
                for (i, panel) in panels.clone().enumerate() {
                    let b =
                        packed.add(self.panels.offset(panel, self.cells) + low * self.panels.width(panel));
                    self.multiply(panel, count, depth, a, a_row, b, scratch.add(i * stride), low > 0);
                }
            }
            for (i, panel) in panels.enumerate() {
                let (first, columns) = (self.panels.start(panel), self.panels.columns(panel));
                let sums = scratch.add(i * stride);
                self.finish(
                    batch * d.m + start,
                    count,
                    sums,
                    self.panels.width(panel),
                    first,
                    columns,
                    c,
                    epilogue,
                );
            }
        }
    }

    /// One panel; `a` is rows, or blocks of columns where the left side is transposed.
    unsafe fn multiply(
        &self,
        panel: usize,
        m: usize,
        k: usize,
        a: *const f32,
        a_row: usize,
        b: *const f32,
        c: *mut f32,
        accumulate: bool,
    ) {
        let (lanes, width) = (self.level.lanes(), self.panels.width(panel));
        // SAFETY: the promise of `run`.
        unsafe {
            if self.dims.a_transposed {
                let (a_step, a_block) = (lanes, k * lanes);
                OuterProduct {
                    m,
                    n: width,
                    k,
                    a,
                    a_step,
                    a_block,
                    b,
                    b_row: width,
                    c,
                    c_row: width,
                    accumulate,
                }
                .run(self.level);
            } else {
                let (vectors, next) = (self.panels.vectors(panel), std::ptr::null());
                let (b_row, c_row, segments) = (width, width, &[Segment { offset: 0, len: k }]);
                let start = if accumulate { Start::Sums } else { Start::Zero };
                BlockProduct { m, segments, vectors, a, a_row, b, b_row, c, c_row, start, next }
                    .run(self.factors);
            }
        }
    }

    /// The left side of a block: where it lies if whole tiles of rows can be read there, else a copy in cells.
    unsafe fn left(
        &self,
        a: *const f32,
        batch: usize,
        start: usize,
        count: usize,
        low: usize,
        depth: usize,
        scratch: *mut f32,
    ) -> (*const f32, usize) {
        let d = &self.dims;
        let lanes = self.level.lanes();
        // SAFETY: the promise of `run`.
        unsafe {
            if d.a_transposed {
                let src = a.add((batch * d.k + low) * d.lda + start);
                for first in (0..count).step_by(lanes) {
                    let columns = lanes.min(count - first);
                    let dst = scratch.add(first * depth);
                    pack::copy_rows(self.level, src.add(first), d.lda, depth, columns, dst, lanes);
                }
                return (scratch, 0);
            }
            let (row, first) = (batch * d.m + start, low * self.factors.values());
            let src = a.add(row * d.lda + first);
            if self.factors.values() == 1 && row + count + MAX_TILE_ROWS <= d.batch * d.m {
                return (src, d.lda);
            }
            let wide = depth.next_multiple_of(lanes);
            let len = (depth * self.factors.values()).min(d.k - first);
            self.factors.dispatch(Left { src, row: d.lda, count, len, to: scratch, wide });
            (scratch, wide)
        }
    }

    unsafe fn finish(
        &self,
        pixel: usize,
        rows: usize,
        sums: *const f32,
        sums_row: usize,
        channel: usize,
        columns: usize,
        out: *mut f32,
        epilogue: &Epilogue,
    ) {
        let (channels, out_stride, sample, pixel_step) = (self.dims.n, self.dims.ldc, 0, 1);
        // SAFETY: the promise of `run`.
        unsafe {
            Finish {
                rows,
                sample,
                pixel,
                pixel_step,
                sums,
                sums_row,
                channel,
                columns,
                channels,
                out,
                out_stride,
                epilogue,
            }
            .run(self.level)
        }
    }
}

/// Rows of the left side as cells.
struct Left {
    src: *const f32,
    row: usize,
    count: usize,
    len: usize,
    to: *mut f32,
    wide: usize,
}

impl FactorKernel for Left {
    type Output = ();
    #[inline(always)]
    unsafe fn run<H: Factors>(self, h: H) {
        for i in 0..self.count {
            // SAFETY: who makes one promises the rows and room for them.
            unsafe { store_narrow(h, self.src.add(i * self.row), self.len, self.to.add(i * self.wide)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::act::Act;
    use crate::simd::factors::Bf16;

    fn values(seed: u64, len: usize) -> Vec<f32> {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

    fn check(d: &MatmulDims) {
        let (rows_a, rows_b) =
            (if d.a_transposed { d.k } else { d.m }, if d.b_transposed { d.n } else { d.k });
        let a = values(1, d.batch * rows_a * d.lda);
        let b = values(2, if d.b_shared { 1 } else { d.batch } * rows_b * d.ldb);
        let (bias, residual) = (values(3, d.n), values(4, d.batch * d.m * d.n));
        let mut wanted = Vec::new();
        for (i, r) in residual.iter().enumerate() {
            let (batch, row, col) = (i / d.n / d.m, i / d.n % d.m, i % d.n);
            let matrix = if d.b_shared { 0 } else { batch };
            let x: f64 = (0..d.k)
                .map(|k| {
                    let (ya, xa) = if d.a_transposed { (k, row) } else { (row, k) };
                    let (yb, xb) = if d.b_transposed { (col, k) } else { (k, col) };
                    a[(batch * rows_a + ya) * d.lda + xa] as f64
                        * b[(matrix * rows_b + yb) * d.ldb + xb] as f64
                })
                .sum();
            wanted.push((x + bias[col] as f64).max(0.0) + *r as f64);
        }
        let epilogue = Epilogue {
            bias: Some(bias.as_ptr()),
            bias_per_sample: false,
            residual: Some(residual.as_ptr()),
            act: Act::Relu,
        };
        let all = Level::available().map(Multiply::F32);
        // Both sides are rounded to 8 bits: products of up to 1 are off by 2^-8 at most, their sum by the root of their number.
        let rounding = 1.5e-3 * (d.k as f64).sqrt();
        let bf16 = Level::available().find_map(Bf16::detect).map(Multiply::Bf16);
        for factors in all.chain(bf16) {
            let limit = if factors.values() > 1 { 3.0 * rounding } else { 2e-4 };
            let mut first: Option<Vec<f32>> = None;
            for threads in 1..=3 {
                let cpu = Cpu::with_level(threads, factors.level());
                let plan = MatmulPlan::new(d, factors, threads);
                let mut packed = vec![f32::NAN; plan.packed_len];
                let mut workspace = vec![f32::NAN; plan.workspace_len];
                let mut c = vec![0.0; d.batch * d.m * d.ldc];
                // SAFETY: the tensors have the shapes of the dimensions.
                unsafe {
                    plan.pack(&cpu, b.as_ptr(), &mut packed);
                    plan.run(
                        &cpu,
                        a.as_ptr(),
                        b.as_ptr(),
                        &packed,
                        &epilogue,
                        c.as_mut_ptr(),
                        &mut workspace,
                    );
                }
                for (i, w) in wanted.iter().enumerate() {
                    let got = c[i / d.n * d.ldc + i % d.n] as f64;
                    assert!((got - w).abs() <= limit, "{factors:?} {d:?} at {i}: {got} {w}");
                }
                assert!(first.get_or_insert(c.clone()) == &c, "{factors:?} {d:?} depends on threads");
            }
        }
    }

    #[test]
    fn any_product() {
        let sizes =
            [(1, 64, 33), (3, 17, 5), (8, 100, 130), (9, 7, 16), (50, 70, 65), (130, 600, 40), (97, 33, 200)];
        for (i, (m, k, n)) in sizes.into_iter().enumerate() {
            for flags in 0..8 {
                let (ta, tb, shared) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
                check(&MatmulDims {
                    batch: 1 + i % 3,
                    m,
                    n,
                    k,
                    lda: if ta { m } else { k } + i % 2,
                    ldb: if tb { k } else { n } + i % 3,
                    ldc: n + flags % 3,
                    a_transposed: ta,
                    b_transposed: tb,
                    b_shared: shared,
                });
            }
        }
    }
}
