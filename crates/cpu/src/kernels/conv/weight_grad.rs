//! The gradient of the weights as a product whose reduction runs over the pixels.
//!
//! `dw[k, (tap, c)] = sum over pixels of dy[pixel, k] x[pixel + tap, c]`. Columns `(tap, c)` are cut into
//! blocks and pixels into a number of parts that the dimensions decide; a task sums one part of one
//! block, gathering what it reads as the forward convolution does. Parts are added in their order.

use super::ConvDims;
use super::epilogue::Row;
use super::geometry::{Gather, Phase};
use super::implicit::materialise;
use super::source::Source;
use crate::Cpu;
use crate::gemm::{OuterProduct, pack};
use crate::pool::Shares;
use crate::simd::{Kernel, Level, Simd};

/// Pixels that are gathered and multiplied at once.
const BLOCK: usize = 128;
/// Columns of a task: whole register tiles, so that a strip of a block stays in the first cache.
const COLUMNS: usize = 192;
/// Tasks that there should be, so that threads finish together.
const TASKS: usize = 16;

pub(super) struct Pixels {
    dims: ConvDims,
    level: Level,
    phase: Phase,
    /// Channels that a group reads and writes.
    depth: usize,
    width: usize,
    /// Columns of the gradient, of a block of it, and how many blocks.
    columns: usize,
    block_columns: usize,
    blocks: usize,
    /// Parts that the pixels are cut into.
    parts: usize,
    materialised: bool,
}

impl Pixels {
    pub fn new(dims: &ConvDims, pre: bool, level: Level) -> Pixels {
        let phase = Phase::forward(dims);
        let (depth, width) = (dims.c / dims.groups, dims.k / dims.groups);
        let columns = phase.taps.len() * depth;
        let block_columns = COLUMNS.min(columns.next_multiple_of(level.lanes()));
        let blocks = columns.div_ceil(block_columns);
        let parts = TASKS.div_ceil(dims.groups * blocks).min(phase.rows().div_ceil(2 * BLOCK));
        let materialised = pre && phase.taps.len() > 1;
        Pixels {
            dims: *dims,
            level,
            phase,
            depth,
            width,
            columns,
            block_columns,
            blocks,
            parts,
            materialised,
        }
    }

    fn padded_width(&self) -> usize {
        self.width.next_multiple_of(self.level.lanes())
    }

    fn materialised_len(&self) -> usize {
        let pixels: usize = self.dims.input.iter().product();
        if self.materialised { (self.dims.n * pixels * self.dims.c).next_multiple_of(16) } else { 0 }
    }

    /// The sums of one task.
    fn sums_len(&self) -> usize {
        self.padded_width() * self.block_columns
    }

    fn scratch_len(&self) -> usize {
        BLOCK * (self.padded_width() + self.block_columns)
    }

    pub fn workspace_len(&self, threads: usize) -> usize {
        let tasks = self.dims.groups * self.blocks * self.parts;
        self.materialised_len() + tasks * self.sums_len() + threads * self.scratch_len()
    }

    /// # Safety
    /// All tensors have the shapes of the plan, `workspace` has `workspace_len` values.
    pub unsafe fn run(&self, cpu: &Cpu, source: &Source, dy: *const f32, dw: *mut f32, workspace: *mut f32) {
        let mut source = *source;
        let tasks = self.dims.groups * self.blocks * self.parts;
        // SAFETY: the workspace is cut as `workspace_len` counts; each task has sums of its own and
        // each worker its scratch; each row of the gradient is written once.
        unsafe {
            if self.materialised {
                let channels = source.channels();
                materialise(cpu, self.level, &source, &self.phase, workspace);
                source = Source::plain(workspace, channels);
            }
            let sums = Shares(workspace.add(self.materialised_len()));
            let scratch = Shares(sums.at(tasks * self.sums_len()));
            let (dy, dw) = (Shares(dy.cast_mut()), Shares(dw));
            cpu.pool.run(tasks, |worker, task| {
                let scratch = scratch.at(worker * self.scratch_len());
                self.sum(task, &source, dy.at(0), sums.at(task * self.sums_len()), scratch);
            });
            cpu.pool.run(self.dims.k, |_, k| {
                let row = AddParts { plan: self, k, sums: sums.at(0), dst: dw.at(k * self.columns) };
                self.level.dispatch(row);
            });
        }
    }

    /// Tasks count groups, then blocks of columns, then parts.
    unsafe fn sum(&self, task: usize, source: &Source, dy: *const f32, sums: *mut f32, scratch: *mut f32) {
        let (group, block, part) =
            (task / (self.blocks * self.parts), task / self.parts % self.blocks, task % self.parts);
        let column = block * self.block_columns;
        let columns = self.block_columns.min(self.columns - column);
        let total = self.phase.rows();
        let per_part = total.div_ceil(self.parts);
        let (first, last) = ((part * per_part).min(total), ((part + 1) * per_part).min(total));
        let right = scratch.wrapping_add(BLOCK * self.padded_width());
        // SAFETY: the promise of `run`.
        unsafe {
            if first == last {
                std::slice::from_raw_parts_mut(sums, self.sums_len()).fill(0.0);
            }
            for start in (first..last).step_by(BLOCK) {
                let mut rows = [Row::default(); BLOCK];
                let rows = &mut rows[..BLOCK.min(last - start)];
                self.phase.locate(start, rows);
                self.copy_gradient(dy.add(start * self.dims.k + group * self.width), rows.len(), scratch);
                Gather {
                    phase: &self.phase,
                    source,
                    rows,
                    channel: group * self.depth,
                    depth: self.depth,
                    start: column,
                    end: column + columns,
                    dst: right,
                    dst_row: self.block_columns,
                }
                .run(self.level);
                OuterProduct {
                    m: self.padded_width(),
                    n: columns.next_multiple_of(self.level.lanes()),
                    k: rows.len(),
                    a: scratch,
                    a_block: BLOCK * self.level.lanes(),
                    b: right,
                    b_row: self.block_columns,
                    c: sums,
                    c_row: self.block_columns,
                    accumulate: start > first,
                }
                .run(self.level);
            }
        }
    }

    /// The gradient of some pixels in blocks of channels, `[k / LANES][pixel][LANES]`.
    unsafe fn copy_gradient(&self, dy: *const f32, rows: usize, dst: *mut f32) {
        let lanes = self.level.lanes();
        for first in (0..self.width).step_by(lanes) {
            let columns = lanes.min(self.width - first);
            // SAFETY: the promise of `run`.
            unsafe {
                let dst = dst.add(first * BLOCK);
                pack::copy_rows(self.level, dy.add(first), self.dims.k, rows, columns, dst, lanes);
            }
        }
    }
}

/// Row `k` of the gradient: the sum of its parts, in their order.
struct AddParts<'a> {
    plan: &'a Pixels,
    k: usize,
    sums: *const f32,
    dst: *mut f32,
}

impl Kernel for AddParts<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let p = self.plan;
        let (group, row) = (self.k / p.width, self.k % p.width);
        for block in 0..p.blocks {
            let column = block * p.block_columns;
            let columns = p.block_columns.min(p.columns - column);
            let first = ((group * p.blocks + block) * p.parts) * p.sums_len() + row * p.block_columns;
            for j in (0..columns).step_by(S::LANES) {
                // SAFETY: rows of the sums are padded to whole vectors.
                unsafe {
                    let at = self.sums.add(first + j);
                    let mut sum = s.load(at);
                    for part in 1..p.parts {
                        sum = s.add(sum, s.load(at.add(part * p.sums_len())));
                    }
                    s.store_first(self.dst.add(column + j), sum, S::LANES.min(columns - j));
                }
            }
        }
    }
}
