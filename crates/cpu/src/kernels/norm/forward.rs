//! Coefficients out of statistics, and the pass that applies them.

use super::columns::{Apply, Rows, walk};
use super::grid::{Grid, longest_row};
use super::{Affine, NormDims, Part, image, layer, stats, stats_workspace};
use crate::Cpu;
use crate::act::{Act, with_act};
use crate::kernels::attention::{ALIGN, aligned};
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};

/// Values of two folded rows: what `apply` keeps on its stack.
const FOLDED: usize = 2 * 1024;

/// `coef` [N][2][C] becomes, for each image, all a and then all b, such that the norm, its affine
/// map and its modulation are together x a + b.
///
/// # Panics
/// If a buffer is shorter than the dimensions ask.
pub fn coefficients(cpu: &Cpu, dims: &NormDims, stats: &[f32], affine: &Affine, coef: &mut [f32]) {
    affine.check(dims);
    assert_eq!(stats.len(), dims.n * dims.groups * 2);
    assert_eq!(coef.len(), dims.n * 2 * dims.c);
    // SAFETY: the buffers were checked above, and each task has its own images or blocks.
    unsafe { cpu.level.dispatch(Coefficients { dims, stats, affine, coef }) };
}

struct Coefficients<'a> {
    dims: &'a NormDims,
    stats: &'a [f32],
    affine: &'a Affine<'a>,
    coef: &'a mut [f32],
}

impl Kernel for Coefficients<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let (dims, c) = (self.dims, self.dims.c);
        for image in 0..dims.n {
            // SAFETY: the lengths were checked. The mean passes through b.
            unsafe {
                let a = self.coef.as_mut_ptr().add(image * 2 * c);
                let b = a.add(c);
                image::spread(dims, self.stats.as_ptr().add(image * dims.groups * 2), b, a);
                image::coefficients(s, dims, self.affine, image, b, a, b);
            }
        }
    }
}

/// `y` [N, S, C] becomes act(x a + b).
///
/// # Panics
/// If a buffer is shorter than the dimensions ask.
pub fn apply(cpu: &Cpu, dims: &NormDims, parts: &[Part], coef: &[f32], act: Act, y: &mut [f32]) {
    dims.check(parts);
    assert_eq!(coef.len(), dims.n * 2 * dims.c);
    assert_eq!(y.len(), dims.len());
    let grid = &Grid::new(dims, parts);
    let y = Shares(y.as_mut_ptr());
    // SAFETY: the buffers were checked above, and each task has its own images or blocks.
    cpu.pool.run(grid.tasks(), |_, task| unsafe {
        cpu.level.dispatch(Blocks { grid, parts, coef, act, task, y })
    });
}

struct Blocks<'a> {
    grid: &'a Grid,
    parts: &'a [Part<'a>],
    coef: &'a [f32],
    act: Act,
    task: usize,
    y: Shares<f32>,
}

impl Kernel for Blocks<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let (grid, c) = (self.grid, self.grid.dims.c);
        let mut folded = [0.0f32; FOLDED];
        for index in grid.task(self.task) {
            let coef = &self.coef[grid.unit(index).image * 2 * c..][..2 * c];
            let (a, b) = if grid.fold == 1 {
                (coef.as_ptr(), coef[c..].as_ptr())
            } else {
                let (a, b) = folded.split_at_mut(FOLDED / 2);
                a[..c].copy_from_slice(&coef[..c]);
                b[..c].copy_from_slice(&coef[c..]);
                // SAFETY: a folded row is at most half of the array.
                unsafe {
                    image::repeat(a.as_mut_ptr(), c, grid.width());
                    image::repeat(b.as_mut_ptr(), c, grid.width());
                }
                (a.as_ptr(), b.as_ptr())
            };
            // SAFETY: `apply` checked the buffers; the unit is this task's.
            unsafe { apply_unit(s, grid, self.parts, index, self.act, a, b, self.y) };
        }
    }
}

/// One block of y.
#[inline(always)]
unsafe fn apply_unit<S: Simd>(
    s: S,
    grid: &Grid,
    parts: &[Part],
    index: usize,
    act: Act,
    a: *const f32,
    b: *const f32,
    y: Shares<f32>,
) {
    let (unit, dims) = (grid.unit(index), &grid.dims);
    let pixel = unit.image * dims.s + unit.first;
    let mut first = 0;
    for part in parts {
        // SAFETY: the block's pixels and the part's channels.
        unsafe {
            let p = part.data.as_ptr().add(pixel * part.stride).cast_mut();
            let x = Rows { p, stride: grid.stride(part.stride) };
            let y = Rows { p: y.at(pixel * dims.c + first), stride: grid.stride(dims.c) };
            let span = grid.span(unit.pixels, part.channels);
            let (a, b) = (a.add(first), b.add(first));
            with_act!(act, act => walk(s, span, &Apply { act, x, a, b, y }));
        }
        first += part.channels;
    }
}

/// The length of the workspace of [`forward`].
pub fn forward_workspace(dims: &NormDims, threads: usize) -> usize {
    if Grid::of(dims).whole_images() {
        ALIGN + threads * 2 * longest_row(dims)
    } else {
        stats_workspace(dims, threads).max(dims.n * 2 * dims.c)
    }
}

/// [`stats`], [`coefficients`] and [`apply`] in one: leaves `stats` and `y`.
///
/// # Panics
/// If a buffer is shorter than the dimensions ask.
pub fn forward(
    cpu: &Cpu,
    dims: &NormDims,
    parts: &[Part],
    affine: &Affine,
    eps: f32,
    act: Act,
    stats_out: &mut [f32],
    y: &mut [f32],
    workspace: &mut [f32],
) {
    let grid = &Grid::new(dims, parts);
    if !grid.whole_images() {
        stats(cpu, dims, parts, eps, stats_out, workspace);
        let coef = &mut workspace[..dims.n * 2 * dims.c];
        coefficients(cpu, dims, stats_out, affine, coef);
        apply(cpu, dims, parts, coef, act, y);
        return;
    }
    dims.check(parts);
    affine.check(dims);
    assert_eq!(stats_out.len(), dims.n * dims.groups * 2);
    assert_eq!(y.len(), dims.len());
    assert!(workspace.len() >= forward_workspace(dims, cpu.pool.threads()));
    let (stats, y) = (Shares(stats_out.as_mut_ptr()), Shares(y.as_mut_ptr()));
    let rest = Shares(aligned(workspace).as_mut_ptr());
    cpu.pool.run(grid.tasks(), |worker, task| {
        // SAFETY: this worker's scratch.
        let scratch = unsafe { rest.at(worker * 2 * longest_row(dims)) };
        // SAFETY: the buffers were checked above, and each task has its own images or blocks.
        unsafe { cpu.level.dispatch(Whole { grid, parts, affine, eps, act, task, stats, y, scratch }) };
    });
}

/// All steps for images of few pixels, one image after the other.
struct Whole<'a> {
    grid: &'a Grid,
    parts: &'a [Part<'a>],
    affine: &'a Affine<'a>,
    eps: f32,
    act: Act,
    task: usize,
    stats: Shares<f32>,
    y: Shares<f32>,
    scratch: *mut f32,
}

impl Kernel for Whole<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let (grid, dims) = (self.grid, &self.grid.dims);
        if grid.layers() {
            // SAFETY: `forward` checked the buffers; the images are this task's.
            unsafe { self.layers(s) };
            return;
        }
        for image in grid.task(self.task) {
            // SAFETY: `forward` checked the buffers; the image is this task's.
            unsafe {
                let (a, b) = (self.scratch, self.scratch.add(grid.width()));
                let stats = self.stats.at(image * dims.groups * 2);
                image::moments(s, dims, self.parts, image, self.eps, stats);
                image::spread(dims, stats, b, a);
                image::coefficients(s, dims, self.affine, image, b, a, b);
                image::repeat(a, dims.c, grid.width());
                image::repeat(b, dims.c, grid.width());
                apply_unit(s, grid, self.parts, image, self.act, a, b, self.y);
            }
        }
    }
}

impl Whole<'_> {
    /// Layer norm, one image after the other: each is read from memory once.
    #[inline(always)]
    unsafe fn layers<S: Simd>(&self, s: S) {
        let dims = &self.grid.dims;
        // SAFETY: the caller's promise.
        unsafe {
            for image in self.grid.task(self.task) {
                let stats = self.stats.at(image * 2);
                image::moments(s, dims, self.parts, image, self.eps, stats);
                let mut first = 0;
                for part in self.parts {
                    let terms = layer::Terms::new(s, self.affine, stats, image * dims.c, first);
                    let x = part.data.as_ptr().add(image * part.stride);
                    let y = self.y.at(image * dims.c + first);
                    let span = self.grid.span(1, part.channels);
                    with_act!(self.act, act => walk(s, span, &layer::Apply { act, terms, x, y }));
                    first += part.channels;
                }
            }
        }
    }
}
