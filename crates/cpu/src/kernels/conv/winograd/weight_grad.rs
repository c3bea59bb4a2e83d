//! The gradient of 3x3 weights among points: `dU = (A dy A^T)^T (B^T x B)` for each point, `dw = G^T dU G`.
//!
//! The reduction runs over tiles, in one of three ways.
//!
//! - Few channels: a task takes some blocks of tiles and keeps sums of its own; the sums of all tasks are
//!   added when they become taps. Nothing passes from one core to another on the way, which with few
//!   channels would cost more than the products.
//! - Otherwise some rows of tiles are transformed at a time, input and gradient, into shared memory that
//!   the last-level cache holds; then each point is a product of its own, so there are as many tasks as
//!   points and no partial sums to add.
//! - Where the gradient is large and all tiles fit at once, a task is some output channels instead, all
//!   points of them: its sums stay in its cache until they are taps.

use super::super::source::Source;
use super::super::{ConvDims, Direction};
use super::scheme::{Scheme, both_axes};
use super::tiles::Grid;
use super::transform::{Input, patch_len};
use crate::Cpu;
use crate::gemm::OuterProduct;
use crate::pool::Shares;
use crate::simd::{Kernel, Level, Simd};
use std::marker::PhantomData;

/// Values of transformed input and gradient at a time.
const CHUNK_VALUES: usize = 2 << 20;
/// A gradient of more points than this is made some output channels at a time.
const LARGE_SUMS: usize = 1 << 20;
/// Output channels at a time if so.
const ROWS: usize = 32;
/// A gradient of fewer points than this is summed by tasks of their own tiles.
const SMALL_SUMS: usize = 160 << 10;
/// Such tasks at the most, and blocks of tiles that are worth one.
const SLOTS: usize = 16;
const SLOT_BLOCKS: usize = 8;
/// Tiles that one transform task takes.
const BLOCK_TILES: usize = 24;
/// Tiles that are multiplied at once: a strip of the right side then stays in the first-level cache.
const STRIP: usize = 128;

pub(in super::super) struct WinogradGrad<W> {
    level: Level,
    grid: Grid,
    /// Columns and rows of the gradient: channels padded to whole vectors, over all taps along z.
    depth: usize,
    width: usize,
    /// Tile rows that are transformed at a time, where they are shared.
    chunk_rows: usize,
    /// Tasks with tiles and sums of their own; 0 where tiles are shared.
    slots: usize,
    /// Output channels whose points are summed together: all, or `ROWS`.
    rows: usize,
    scheme: PhantomData<W>,
}

impl<W: Scheme> WinogradGrad<W> {
    /// `None` where the transforms do not apply.
    pub fn new(dims: &ConvDims, level: Level) -> Option<WinogradGrad<W>> {
        let planes = super::planes(dims, Direction::Forward)?;
        let lanes = level.lanes();
        let depth = planes.taps * planes.c.next_multiple_of(lanes);
        let width = planes.k.next_multiple_of(lanes);
        let grid = Grid::new::<W>(planes, BLOCK_TILES);
        let tiles = CHUNK_VALUES / (W::POINTS * (depth + width));
        let chunks = grid.rows().div_ceil((tiles / grid.across).max(1));
        let chunk_rows = grid.rows().div_ceil(chunks).next_multiple_of(grid.block_rows);
        let large = chunk_rows >= grid.rows() && W::POINTS * depth * width > LARGE_SUMS;
        let rows = if large { ROWS.min(width) } else { width };
        let small = W::POINTS * depth * width <= SMALL_SUMS;
        let slots = if small { (grid.blocks() / SLOT_BLOCKS).min(SLOTS) } else { 0 };
        Some(WinogradGrad { level, grid, depth, width, chunk_rows, slots, rows, scheme: PhantomData })
    }

    /// Transformed tiles that are held at a time, by all tasks or by each.
    fn held(&self) -> usize {
        if self.slots > 0 { self.grid.block_tiles() } else { self.chunk_rows * self.grid.across }
    }

    /// From point to point of the transformed input and gradient, and of the sums.
    fn input_step(&self) -> usize {
        self.held() * self.depth + 16
    }

    fn gradient_step(&self) -> usize {
        self.held() * self.width + 16
    }

    fn sums_step(&self) -> usize {
        self.depth * self.rows + 16
    }

    fn by_rows(&self) -> bool {
        self.rows < self.width
    }

    pub fn workspace_len(&self, threads: usize) -> usize {
        let patches = threads * patch_len::<W>(&self.grid, self.level);
        let sums = W::POINTS * self.sums_step();
        if self.slots > 0 {
            return threads * self.tiles_len() + self.slots * sums + patches;
        }
        self.tiles_len() + sums * if self.by_rows() { threads } else { 1 } + patches
    }

    /// Values of the transformed tiles that are held at a time.
    fn tiles_len(&self) -> usize {
        W::POINTS * (self.input_step() + self.gradient_step())
    }

    /// Each task sums its own blocks of tiles, which no other core sees.
    ///
    /// # Safety
    /// As for [`WinogradGrad::run`].
    unsafe fn run_apart(
        &self,
        cpu: &Cpu,
        source: &Source,
        dy: *const f32,
        dw: *mut f32,
        workspace: *mut f32,
    ) {
        let (dy, dw) = (Shares(dy.cast_mut()), Shares(dw));
        let (patch_len, sums_len) = (patch_len::<W>(&self.grid, self.level), W::POINTS * self.sums_step());
        let blocks = self.grid.blocks();
        // SAFETY: the workspace is cut as `workspace_len` counts; tiles and patches are the worker's own,
        // sums the task's own, and each output channel of the gradient is written once.
        unsafe {
            let tiles = Shares(workspace);
            let sums = Shares(tiles.at(cpu.pool.threads() * self.tiles_len()));
            let patches = Shares(sums.at(self.slots * sums_len));
            cpu.pool.run(self.slots, |worker, slot| {
                let input = tiles.at(worker * self.tiles_len());
                let gradient = input.add(W::POINTS * self.input_step());
                let (first, end) = (slot * blocks / self.slots, (slot + 1) * blocks / self.slots);
                for block in first..end {
                    self.transform_input(block, 0, source, input, patches.at(worker * patch_len));
                    self.transform_gradient(block, 0, dy.at(0), gradient);
                    for point in 0..W::POINTS {
                        let (held, later) = (self.grid.tiles(block), block > first);
                        self.multiply(point, 0, held, later, input, gradient, sums.at(slot * sums_len));
                    }
                }
            });
            cpu.pool.run(self.grid.planes.k, |_, k| {
                let sums = sums.at(0);
                self.level.dispatch(ToTaps { plan: self, k, row: k, parts: self.slots, sums, dst: dw.at(0) });
            });
        }
    }

    /// # Safety
    /// All tensors have the shapes of the plan, `workspace` has `workspace_len` values.
    pub unsafe fn run(&self, cpu: &Cpu, source: &Source, dy: *const f32, dw: *mut f32, workspace: *mut f32) {
        if self.slots > 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.run_apart(cpu, source, dy, dw, workspace) };
        }
        let (dy, dw) = (Shares(dy.cast_mut()), Shares(dw));
        let pieces = self.grid.across.div_ceil(self.grid.block_columns);
        let per_chunk = self.chunk_rows / self.grid.block_rows * pieces;
        // SAFETY: the workspace is cut as `workspace_len` counts. Transforms write the tiles of their
        // block, products their point, and each output channel of the gradient is written once.
        unsafe {
            let input = Shares(workspace);
            let gradient = Shares(input.at(W::POINTS * self.input_step()));
            let sums = Shares(gradient.at(W::POINTS * self.gradient_step()));
            let sums_len = W::POINTS * self.sums_step();
            let patches = Shares(sums.at(sums_len * if self.by_rows() { cpu.pool.threads() } else { 1 }));
            for (chunk, first) in (0..self.grid.blocks()).step_by(per_chunk).enumerate() {
                let blocks = per_chunk.min(self.grid.blocks() - first);
                let start = chunk * self.chunk_rows;
                cpu.pool.run(2 * blocks, |worker, task| {
                    let block = first + task / 2;
                    if task % 2 == 0 {
                        let patch = patches.at(worker * patch_len::<W>(&self.grid, self.level));
                        self.transform_input(block, start, source, input.at(0), patch);
                    } else {
                        self.transform_gradient(block, start, dy.at(0), gradient.at(0));
                    }
                });
                if self.by_rows() {
                    break;
                }
                let tiles = self.chunk_rows.min(self.grid.rows() - start) * self.grid.across;
                cpu.pool.run(W::POINTS, |_, point| {
                    self.multiply(point, 0, tiles, chunk > 0, input.at(0), gradient.at(0), sums.at(0));
                });
            }
            if !self.by_rows() {
                cpu.pool.run(self.grid.planes.k, |_, k| {
                    let sums = sums.at(0);
                    self.level.dispatch(ToTaps { plan: self, k, row: k, parts: 1, sums, dst: dw.at(0) });
                });
                return;
            }
            let tiles = self.grid.rows() * self.grid.across;
            cpu.pool.run(self.width.div_ceil(self.rows), |worker, task| {
                let (sums, first) = (sums.at(worker * sums_len), task * self.rows);
                for point in 0..W::POINTS {
                    self.multiply(point, first, tiles, false, input.at(0), gradient.at(0), sums);
                }
                for k in first..self.grid.planes.k.min(first + self.rows) {
                    let row = k - first;
                    self.level.dispatch(ToTaps { plan: self, k, row, parts: 1, sums, dst: dw.at(0) });
                }
            });
        }
    }

    /// The number of a block's first tile among those that are held; `start` is the chunk's first row.
    fn first_tile(&self, block: usize, start: usize) -> usize {
        if self.slots > 0 {
            return 0;
        }
        let pieces = self.grid.across.div_ceil(self.grid.block_columns);
        let row = block / pieces * self.grid.block_rows - start;
        row * self.grid.across + block % pieces * self.grid.block_columns
    }

    unsafe fn transform_input(
        &self,
        block: usize,
        start: usize,
        source: &Source,
        input: *mut f32,
        patch: *mut f32,
    ) {
        // SAFETY: the promise of `run`.
        unsafe {
            Input {
                grid: &self.grid,
                block,
                source,
                channels: 0..self.grid.planes.c.div_ceil(self.level.lanes()),
                dst: input.add(self.first_tile(block, start) * self.depth),
                point_step: self.input_step(),
                channel_step: self.level.lanes(),
                tile_step: self.depth,
                patch,
                scheme: PhantomData::<W>,
            }
            .run(self.level);
        }
    }

    unsafe fn transform_gradient(&self, block: usize, start: usize, dy: *const f32, gradient: *mut f32) {
        // SAFETY: the promise of `run`.
        unsafe {
            let dst = gradient.add(self.first_tile(block, start) * self.level.lanes());
            self.level.dispatch(Gradient { plan: self, block, dy, dst });
        }
    }

    /// One point, for `self.rows` output channels from `row`.
    unsafe fn multiply(
        &self,
        point: usize,
        row: usize,
        tiles: usize,
        accumulate: bool,
        input: *const f32,
        gradient: *const f32,
        sums: *mut f32,
    ) {
        let lanes = self.level.lanes();
        let a_block = self.held() * lanes;
        for first in (0..tiles).step_by(STRIP) {
            // SAFETY: the promise of `run`.
            unsafe {
                OuterProduct {
                    m: self.rows.min(self.width - row),
                    n: self.depth,
                    k: STRIP.min(tiles - first),
                    a: gradient.add(point * self.gradient_step() + row / lanes * a_block + first * lanes),
                    a_step: lanes,
                    a_block,
                    b: input.add(point * self.input_step() + first * self.depth),
                    b_row: self.depth,
                    c: sums.add(point * self.sums_step()),
                    c_row: self.depth,
                    accumulate: accumulate || first > 0,
                }
                .run(self.level);
            }
        }
    }
}

/// Transforms the gradient of one block of tiles to points, `[point][channel block][tile][LANES]`.
struct Gradient<'a, W> {
    plan: &'a WinogradGrad<W>,
    block: usize,
    dy: *const f32,
    dst: *mut f32,
}

impl<W: Scheme> Gradient<'_, W> {
    /// One vector of channels of the tile at output row `y`, column `x` of a plane.
    #[inline(always)]
    unsafe fn vector<S: Simd>(&self, s: S, plane: usize, y: usize, x: usize, channel: usize, dst: *mut f32) {
        let p = &self.plan.grid.planes;
        let [_, height, width] = p.output;
        let (rows, columns) = (W::OUT.min(height - y), W::OUT.min(width - x));
        let len = S::LANES.min(p.k - channel);
        // SAFETY: pixels outside of the plane are not read: a masked load of nothing.
        unsafe {
            let src = self.dy.add((plane + y * width + x) * p.k + channel);
            if rows == W::OUT && columns == W::OUT && len == S::LANES {
                both_axes!(
                    s, 4 to 6, W::OUT, W::IN, W::output_grad,
                    load |row, column| s.load(src.add((row * width + column) * p.k)),
                    store |row, column, v| s.store(dst.add((row * W::IN + column) * self.plan.gradient_step()), v)
                );
            } else {
                both_axes!(
                    s, 4 to 6, W::OUT, W::IN, W::output_grad,
                    load |row, column| {
                        let len = if row < rows && column < columns { len } else { 0 };
                        s.load_first(src.wrapping_add((row * width + column) * p.k), len)
                    },
                    store |row, column, v| s.store(dst.add((row * W::IN + column) * self.plan.gradient_step()), v)
                );
            }
        }
    }
}

impl<W: Scheme> Kernel for Gradient<'_, W> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let grid = &self.plan.grid;
        let [depth, height, width] = grid.planes.output;
        let channel_step = self.plan.held();
        for run in grid.runs(self.block) {
            let plane = (run.n * depth + run.z) * height * width;
            for row in 0..run.rows {
                for column in 0..run.columns {
                    let tile = run.first + row * run.columns + column;
                    let (y, x) = ((run.row + row) * W::OUT, (run.column + column) * W::OUT);
                    for channel in (0..grid.planes.k).step_by(S::LANES) {
                        // SAFETY: the promise of `WinogradGrad::run`.
                        unsafe {
                            let dst = self.dst.add(channel * channel_step + tile * S::LANES);
                            self.vector(s, plane, y, x, channel, dst);
                        }
                    }
                }
            }
        }
    }
}

/// The gradient's points to taps, for output channel `k`, which is row `row` of the sums.
struct ToTaps<'a, W> {
    plan: &'a WinogradGrad<W>,
    k: usize,
    row: usize,
    /// Sums that follow each other and are added.
    parts: usize,
    sums: *const f32,
    dst: *mut f32,
}

impl<W: Scheme> Kernel for ToTaps<'_, W> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let p = &self.plan.grid.planes;
        let padded = p.c.next_multiple_of(S::LANES);
        for tap in 0..p.taps {
            for c in (0..p.c).step_by(S::LANES) {
                let len = S::LANES.min(p.c - c);
                // SAFETY: the promise of `WinogradGrad::run`.
                unsafe {
                    let src = self.sums.add(self.row * self.plan.depth + tap * padded + c);
                    let dst = self.dst.add((self.k * p.taps + tap) * 9 * p.c + c);
                    both_axes!(
                        s, 6 to 3, W::IN, 3, W::kernel_grad,
                        load |y, x| {
                            let step = self.plan.sums_step();
                            let src = src.add((y * W::IN + x) * step);
                            let mut sum = s.load(src);
                            for part in 1..self.parts {
                                sum = s.add(sum, s.load(src.add(part * W::POINTS * step)));
                            }
                            sum
                        },
                        store |y, x, v| s.store_first(dst.add((3 * y + x) * p.c), v, len)
                    );
                }
            }
        }
    }
}
