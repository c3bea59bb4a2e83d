//! The gradient of the weights as a product whose reduction runs over the pixels.
//!
//! `dw[k, (tap, c)] = sum over pixels of dy[pixel, k] x[pixel + tap, c]`. Columns `(tap, c)` are cut into
//! groups and pixels into a number of parts that the dimensions decide; a task sums one part of one
//! group from patches of the input, as the forward convolution reads them. Parts are added in their
//! order. With few columns (a first layer of one or two channels) the sides of the product are
//! exchanged, so that the output channels fill the vectors.

use super::ConvDims;
use super::geometry::Phase;
use super::region::{Block, Region};
use super::source::Source;
use crate::Cpu;
use crate::gemm::{OuterProduct, Segment, pack, store_len};
use crate::pool::Shares;
use crate::simd::{Kernel, Level, Simd};

/// Sums of one task at most, unless a single segment has more.
const SUMS: usize = 64 * 1024;
/// Tasks that there should be, so that threads finish together.
const TASKS: usize = 16;
/// With no more columns the sides are exchanged.
const FEW_COLUMNS: usize = 64;

pub(super) struct Pixels {
    dims: ConvDims,
    level: Level,
    region: Region,
    /// Output channels of a group.
    width: usize,
    groups: Vec<Columns>,
    exchanged: bool,
    /// Parts that the blocks of pixels are cut into.
    parts: usize,
}

/// Columns of one task: some segments of the reduction of the forward convolution.
struct Columns {
    segments: Vec<Strip>,
    padded: usize,
}

/// One segment, its first column in the gradient and, padded to whole vectors, in the sums.
#[derive(Clone, Copy)]
struct Strip {
    segment: Segment,
    column: usize,
    at: usize,
}

impl Pixels {
    pub fn new(dims: &ConvDims, level: Level) -> Pixels {
        let (depth, width) = (dims.c / dims.groups, dims.k / dims.groups);
        let region = Region::new(Phase::forward(dims), depth, width.max(64), 1, 1);
        let exchanged = region.reduction() <= FEW_COLUMNS && width >= level.lanes();
        let lanes = if exchanged { 1 } else { level.lanes() };
        let most = if exchanged { usize::MAX } else { SUMS / width.next_multiple_of(lanes) };
        let groups = columns(&region.segments, lanes, most);
        let parts = TASKS.div_ceil(dims.groups * groups.len()).min(region.blocks().div_ceil(2));
        Pixels { dims: *dims, level, region, width, groups, exchanged, parts }
    }

    fn padded_width(&self) -> usize {
        self.width.next_multiple_of(self.level.lanes())
    }

    /// The sums of one task: `[width][columns]`, or `[columns][width]` if exchanged.
    fn sums_len(&self) -> usize {
        let columns = self.groups.iter().map(|g| g.padded).max().unwrap_or(0);
        self.padded_width() * columns.next_multiple_of(self.level.lanes())
    }

    /// Pixels of a block.
    fn pixels(&self) -> usize {
        self.region.rows * self.region.columns
    }

    fn scratch_len(&self) -> usize {
        self.region.patch_len() + self.pixels() * self.padded_width() + self.turned_row() * self.pixels() + 16
    }

    /// From pixel to pixel of the gathered columns, if exchanged.
    fn turned_row(&self) -> usize {
        if self.exchanged { self.groups[0].padded.next_multiple_of(self.level.lanes()) } else { 0 }
    }

    pub fn workspace_len(&self, threads: usize) -> usize {
        let tasks = self.dims.groups * self.groups.len() * self.parts;
        tasks * self.sums_len() + threads * self.scratch_len()
    }

    /// # Safety
    /// All tensors have the shapes of the plan, `workspace` has `workspace_len` values.
    pub unsafe fn run(&self, cpu: &Cpu, source: &Source, dy: *const f32, dw: *mut f32, workspace: *mut f32) {
        let tasks = self.dims.groups * self.groups.len() * self.parts;
        // SAFETY: the workspace is cut as `workspace_len` counts; each task has sums of its own and
        // each worker its scratch; each row of the gradient is written once.
        unsafe {
            let sums = Shares(workspace);
            let scratch = Shares(sums.at(tasks * self.sums_len()));
            let (dy, dw) = (Shares(dy.cast_mut()), Shares(dw));
            cpu.pool.run(tasks, |worker, task| {
                let scratch = scratch.at(worker * self.scratch_len());
                self.sum(task, source, dy.at(0), sums.at(task * self.sums_len()), scratch);
            });
            cpu.pool.run(self.dims.k, |_, k| {
                let row =
                    AddParts { plan: self, k, sums: sums.at(0), dst: dw.at(k * self.region.reduction()) };
                self.level.dispatch(row);
            });
        }
    }

    /// Tasks count groups of channels, then of columns, then parts.
    unsafe fn sum(&self, task: usize, source: &Source, dy: *const f32, sums: *mut f32, scratch: *mut f32) {
        let count = self.groups.len();
        let (group, columns, part) =
            (task / (count * self.parts), &self.groups[task / self.parts % count], task % self.parts);
        let blocks = self.region.blocks();
        let per_part = blocks.div_ceil(self.parts);
        let (first, last) = ((part * per_part).min(blocks), ((part + 1) * per_part).min(blocks));
        // SAFETY: the promise of `run`; the scratch has a patch, then the gradient of a block.
        unsafe {
            if first == last {
                std::slice::from_raw_parts_mut(sums, self.sums_len()).fill(0.0);
            }
            for i in first..last {
                let block = self.region.block(i);
                let gradient = scratch.add(self.region.patch_len());
                self.region.fill(self.level, source, group * self.region.depth, &block, scratch);
                let dy = dy.add(group * self.width);
                if self.exchanged {
                    self.multiply_exchanged(&block, columns, scratch, dy, gradient, sums, i > first);
                } else {
                    self.multiply(&block, columns, scratch, dy, gradient, sums, i > first);
                }
            }
        }
    }

    unsafe fn multiply(
        &self,
        block: &Block,
        columns: &Columns,
        patch: *const f32,
        dy: *const f32,
        gradient: *mut f32,
        sums: *mut f32,
        accumulate: bool,
    ) {
        let lanes = self.level.lanes();
        for row in 0..block.rows {
            // SAFETY: the promise of `run`.
            unsafe {
                let dy = dy.add(self.region.output(block, row).0 * self.dims.k);
                self.copy_gradient(dy, block.columns, gradient);
                for strip in &columns.segments {
                    OuterProduct {
                        m: self.width,
                        n: strip.segment.len.next_multiple_of(lanes),
                        k: block.columns,
                        a: gradient,
                        a_step: lanes,
                        a_block: self.pixels() * lanes,
                        b: patch.add(row * self.region.row_step() + strip.segment.offset),
                        b_row: self.region.column_step(),
                        c: sums.add(strip.at),
                        c_row: columns.padded,
                        accumulate: accumulate || row > 0,
                    }
                    .run(self.level);
                }
            }
        }
    }

    unsafe fn multiply_exchanged(
        &self,
        block: &Block,
        columns: &Columns,
        patch: *const f32,
        dy: *const f32,
        gradient: *mut f32,
        sums: *mut f32,
        accumulate: bool,
    ) {
        let (lanes, width) = (self.level.lanes(), self.padded_width());
        // SAFETY: the promise of `run`; the gathered columns follow the gradient in the scratch.
        unsafe {
            let turned = gradient.add(self.pixels() * width);
            for row in 0..block.rows {
                let dy = dy.add(self.region.output(block, row).0 * self.dims.k);
                let (mut b, mut b_row) = (dy, self.dims.k);
                if width > self.width {
                    pack::copy_rows(self.level, dy, self.dims.k, block.columns, self.width, gradient, width);
                    (b, b_row) = (gradient.cast_const(), width);
                }
                let patch = patch.add(row * self.region.row_step());
                self.level.dispatch(Lines { plan: self, columns, pixels: block.columns, patch, dst: turned });
                OuterProduct {
                    m: columns.padded,
                    n: width,
                    k: block.columns,
                    a: turned,
                    a_step: self.turned_row(),
                    a_block: lanes,
                    b,
                    b_row,
                    c: sums,
                    c_row: width,
                    accumulate: accumulate || row > 0,
                }
                .run(self.level);
            }
        }
    }

    /// The gradient of some pixels in blocks of channels, `[k / LANES][pixel][LANES]`.
    unsafe fn copy_gradient(&self, dy: *const f32, pixels: usize, dst: *mut f32) {
        let lanes = self.level.lanes();
        for first in (0..self.width).step_by(lanes) {
            let columns = lanes.min(self.width - first);
            // SAFETY: the promise of `run`.
            unsafe {
                let dst = dst.add(first * self.pixels());
                pack::copy_rows(self.level, dy.add(first), self.dims.k, pixels, columns, dst, lanes);
            }
        }
    }
}

/// Cuts segments into groups of at most `most` columns, each segment padded to whole vectors.
fn columns(segments: &[Segment], lanes: usize, most: usize) -> Vec<Columns> {
    let mut groups: Vec<Columns> = Vec::new();
    let mut column = 0;
    for &segment in segments {
        let padded = segment.len.next_multiple_of(lanes);
        if groups.last().is_none_or(|g| g.padded.saturating_add(padded) > most) {
            groups.push(Columns { segments: Vec::new(), padded: 0 });
        }
        let group = groups.last_mut().expect("one was just pushed");
        group.segments.push(Strip { segment, column, at: group.padded });
        group.padded += padded;
        column += segment.len;
    }
    groups
}

/// The columns of each pixel side by side, copied by whole vectors: what one writes behind its end the
/// next one overwrites.
struct Lines<'a> {
    plan: &'a Pixels,
    columns: &'a Columns,
    pixels: usize,
    patch: *const f32,
    dst: *mut f32,
}

impl Kernel for Lines<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        for pixel in 0..self.pixels {
            // SAFETY: the patch can be read over its end, and the scratch has a vector more.
            unsafe {
                let src = self.patch.add(pixel * self.plan.region.column_step());
                let dst = self.dst.add(pixel * self.plan.turned_row());
                for strip in &self.columns.segments {
                    for j in (0..strip.segment.len).step_by(S::LANES) {
                        s.store(dst.add(strip.at + j), s.load(src.add(strip.segment.offset + j)));
                    }
                }
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

impl AddParts<'_> {
    #[inline(always)]
    unsafe fn strip<S: Simd>(&self, s: S, strip: &Strip, sums: *const f32) {
        let (parts, part_len) = (self.plan.parts, self.plan.sums_len());
        for j in (0..strip.segment.len).step_by(S::LANES) {
            // SAFETY: rows of the sums are padded to whole vectors.
            unsafe {
                let at = sums.add(strip.at + j);
                let mut sum = s.load(at);
                for part in 1..parts {
                    sum = s.add(sum, s.load(at.add(part * part_len)));
                }
                store_len(s, self.dst.add(strip.column + j), sum, S::LANES.min(strip.segment.len - j));
            }
        }
    }
}

impl Kernel for AddParts<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let p = self.plan;
        let (group, row) = (self.k / p.width, self.k % p.width);
        for (i, columns) in p.groups.iter().enumerate() {
            let first = (group * p.groups.len() + i) * p.parts * p.sums_len();
            // SAFETY: the promise of `Pixels::run`.
            unsafe {
                let sums = self.sums.add(first);
                if p.exchanged {
                    for column in 0..columns.padded {
                        let at = sums.add(column * p.padded_width() + row);
                        *self.dst.add(column) = (0..p.parts).map(|part| *at.add(part * p.sums_len())).sum();
                    }
                    continue;
                }
                for strip in &columns.segments {
                    self.strip(s, strip, sums.add(row * columns.padded));
                }
            }
        }
    }
}
