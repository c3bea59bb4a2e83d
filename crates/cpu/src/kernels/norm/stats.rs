//! Mean and reciprocal standard deviation of each group, in one read of the input.
//!
//! Sums over a block are taken of x less a value of the same block and group, so that a mean far
//! larger than the deviation costs no digits; blocks are merged in f64 by their own means.

use super::columns::{self, Rows};
use super::grid::{Grid, longest_row};
use super::{NormDims, Part, image};
use crate::Cpu;
use crate::kernels::attention::{ALIGN, aligned};
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};

/// Values of the scratch of one thread: shift, sums, and sums of squares of a row.
fn scratch(dims: &NormDims) -> usize {
    3 * longest_row(dims)
}

/// Values of the blocks' sums, in whole cache lines.
fn partial(grid: &Grid) -> usize {
    (grid.units() * grid.dims.groups * 3).next_multiple_of(16)
}

/// The length of the workspace of [`stats`].
pub fn stats_workspace(dims: &NormDims, threads: usize) -> usize {
    let grid = Grid::of(dims);
    if grid.whole_images() { 0 } else { ALIGN + partial(&grid) + threads * scratch(dims) }
}

/// `stats` [N, groups, 2] becomes the mean and 1 / sqrt(variance + eps) of each group.
///
/// # Panics
/// If a buffer is shorter than the dimensions ask.
pub fn stats(cpu: &Cpu, dims: &NormDims, parts: &[Part], eps: f32, stats: &mut [f32], workspace: &mut [f32]) {
    dims.check(parts);
    assert_eq!(stats.len(), dims.n * dims.groups * 2);
    assert!(workspace.len() >= stats_workspace(dims, cpu.pool.threads()));
    let grid = &Grid::new(dims, parts);
    let to = Shares(stats.as_mut_ptr());
    if grid.whole_images() {
        // SAFETY: the buffers were checked above, and each task has its own images or blocks.
        cpu.pool
            .run(grid.tasks(), |_, task| unsafe { cpu.level.dispatch(Whole { grid, parts, eps, task, to }) });
        return;
    }
    let (partial, rest) = aligned(workspace).split_at_mut(partial(grid));
    let (sums, rest) = (Shares(partial.as_mut_ptr()), Shares(rest.as_mut_ptr()));
    cpu.pool.run(grid.tasks(), |worker, task| {
        // SAFETY: this worker's scratch.
        let scratch = unsafe { rest.at(worker * scratch(dims)) };
        // SAFETY: the buffers were checked above, and each task has its own images or blocks.
        unsafe { cpu.level.dispatch(Blocks { grid, parts, task, sums, scratch }) };
    });
    let partial = &*partial;
    cpu.pool.run(dims.n, |_, image| {
        // SAFETY: each image has its own statistics.
        let stats = unsafe { to.slice(image * dims.groups * 2, dims.groups * 2) };
        let blocks = grid.blocks * dims.groups * 3;
        merge(grid, &partial[image * blocks..(image + 1) * blocks], eps, stats);
    });
}

/// Small images, each taken whole.
struct Whole<'a> {
    grid: &'a Grid,
    parts: &'a [Part<'a>],
    eps: f32,
    task: usize,
    to: Shares<f32>,
}

impl Kernel for Whole<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let dims = &self.grid.dims;
        for image in self.grid.task(self.task) {
            // SAFETY: the image is this task's; `stats` checked the parts.
            unsafe {
                let to = self.to.at(image * dims.groups * 2);
                image::moments(s, dims, self.parts, image, self.eps, to);
            }
        }
    }
}

/// Blocks of larger images: for each group the shift, the sum and the sum of squares.
struct Blocks<'a> {
    grid: &'a Grid,
    parts: &'a [Part<'a>],
    task: usize,
    sums: Shares<f32>,
    scratch: *mut f32,
}

impl Kernel for Blocks<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        for unit in self.grid.task(self.task) {
            // SAFETY: the unit is this task's; `stats` checked the parts and the workspace.
            unsafe { self.unit(s, unit) };
        }
    }
}

impl Blocks<'_> {
    #[inline(always)]
    unsafe fn unit<S: Simd>(&self, s: S, index: usize) {
        let (grid, dims) = (self.grid, &self.grid.dims);
        let unit = grid.unit(index);
        let (c, width) = (dims.c, grid.width());
        // SAFETY: the scratch has three rows; blocks and parts as checked.
        unsafe {
            let shift = self.scratch;
            let row = longest_row(dims);
            let (sum, squares) = (shift.add(row), shift.add(2 * row));
            let pixel = unit.image * dims.s + unit.first;
            self.shifts(pixel, shift);
            image::repeat(shift, c, width);
            let mut first = 0;
            for part in self.parts {
                let p = part.data.as_ptr().add(pixel * part.stride).cast_mut();
                let x = Rows { p, stride: grid.stride(part.stride) };
                let span = grid.span(unit.pixels, part.channels);
                columns::sums(s, span, x, shift.add(first), sum.add(first), squares.add(first));
                first += part.channels;
            }
            let group = dims.width();
            for g in 0..dims.groups {
                let (mut one, mut two) = (0.0, 0.0);
                for repeat in 0..grid.fold {
                    let at = repeat * c + g * group;
                    one += image::total(s, sum.add(at), group);
                    two += image::total(s, squares.add(at), group);
                }
                let to = self.sums.slice((index * dims.groups + g) * 3, 3);
                to.copy_from_slice(&[*shift.add(g * group), one as f32, two as f32]);
            }
        }
    }

    /// The shift of each channel: the value of its group's first channel at this pixel.
    #[inline(always)]
    unsafe fn shifts(&self, pixel: usize, shift: *mut f32) {
        let dims = &self.grid.dims;
        let group = dims.width();
        let (mut first, mut g) = (0, 0);
        for part in self.parts {
            while g < dims.groups && g * group < first + part.channels {
                let x = part.data[pixel * part.stride + g * group - first];
                for c in g * group..(g + 1) * group {
                    // SAFETY: the scratch has a value for each channel.
                    unsafe { *shift.add(c) = x };
                }
                g += 1;
            }
            first += part.channels;
        }
    }
}

/// Merges the blocks of one image, in order.
fn merge(grid: &Grid, sums: &[f32], eps: f32, stats: &mut [f32]) {
    let dims = &grid.dims;
    let count = (dims.s * dims.width()) as f64;
    let last = dims.s - (grid.blocks - 1) * grid.block;
    for g in 0..dims.groups {
        let block = |b: usize| {
            let at = (b * dims.groups + g) * 3;
            let pixels = if b + 1 == grid.blocks { last } else { grid.block };
            let n = (pixels * dims.width()) as f64;
            (n, sums[at] as f64, sums[at + 1] as f64, sums[at + 2] as f64)
        };
        let mut sum = 0.0;
        for b in 0..grid.blocks {
            let (n, shift, one, _) = block(b);
            sum += n * shift + one;
        }
        let mean = sum / count;
        let mut squares = 0.0;
        for b in 0..grid.blocks {
            // The spread within the block, and of its own mean about that of all.
            let (n, shift, one, two) = block(b);
            let own = two - one * one / n;
            let away = shift + one / n - mean;
            squares += own.max(0.0) + n * away * away;
        }
        stats[2 * g] = mean as f32;
        stats[2 * g + 1] = (1.0 / (squares / count + eps as f64).sqrt()) as f32;
    }
}
