//! The gradient of a norm with all that follows it.
//!
//! With u = x a + b and du = dy act'(u), all gradients come out of two sums for each image and
//! channel, of du and of du (x - mean). The first pass leaves du where dx goes, and the second turns
//! it into dx: that costs less than the slope of an activation a second time.

use super::act::with_act;
use super::columns::{Input, Rows, Sums, walk};
use super::grid::{Grid, longest_row};
use super::{Affine, MAX_PARTS, NormAct, NormDims, Part, image, layer};
use crate::Cpu;
use crate::kernels::attention::{ALIGN, aligned};
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};

/// What the gradient is computed from.
#[derive(Clone, Copy)]
pub struct GradInputs<'a> {
    pub parts: &'a [Part<'a>],
    /// As [`stats`](super::stats) left them.
    pub stats: &'a [f32],
    pub affine: Affine<'a>,
    pub act: NormAct,
    /// [N, S, C], the gradient of y.
    pub dy: &'a [f32],
    /// [N, S, C], added to dx.
    pub addend: Option<&'a [f32]>,
}

/// Where dx goes: one tensor [N, S, C], or one [N, S, channels] for each part of x.
pub enum PartGradients<'a, 'b> {
    Whole(&'a mut [f32]),
    Parts(&'a mut [&'b mut [f32]]),
}

/// The gradients that are wanted.
#[derive(Default)]
pub struct NormGradients<'a, 'b> {
    pub dx: Option<PartGradients<'a, 'b>>,
    /// [C]
    pub dgamma: Option<&'a mut [f32]>,
    /// [C]
    pub dbeta: Option<&'a mut [f32]>,
    /// [N, C]
    pub dscale: Option<&'a mut [f32]>,
    /// [N, C]
    pub dshift: Option<&'a mut [f32]>,
}

/// Vectors over the channels that one thread keeps: a, b, mean or q, r, and the two sums.
const VECTORS: usize = 6;

/// The length of the workspace of [`grad`].
pub fn grad_workspace(dims: &NormDims, threads: usize) -> usize {
    let (sums, coef) = shared(&Grid::of(dims));
    ALIGN + sums + coef + threads * VECTORS * longest_row(dims)
}

/// Values of the sums and of the images' coefficients (a, b, q, r).
fn shared(grid: &Grid) -> (usize, usize) {
    let c = grid.dims.c;
    let (sums, coef) = if grid.whole_images() { (grid.tasks(), 0) } else { (grid.units(), grid.dims.n) };
    ((sums * 2 * c).next_multiple_of(16), (coef * 4 * c).next_multiple_of(16))
}

/// The gradients of everything that went into a norm.
///
/// # Panics
/// If a buffer is shorter than the dimensions ask.
pub fn grad(
    cpu: &Cpu,
    dims: &NormDims,
    inputs: &GradInputs,
    mut gradients: NormGradients,
    workspace: &mut [f32],
) {
    check(dims, inputs, &gradients);
    assert!(workspace.len() >= grad_workspace(dims, cpu.pool.threads()));
    let grid = &Grid::new(dims, inputs.parts);
    let (sums, coef) = shared(grid);
    let (sums, rest) = aligned(workspace).split_at_mut(sums);
    let (coef, rest) = rest.split_at_mut(coef);
    let wants = gradients.dgamma.is_some() || gradients.dbeta.is_some();
    let job = &Job {
        grid,
        inputs,
        dx: outputs(dims, inputs.parts, gradients.dx.as_mut()),
        dscale: gradients.dscale.as_mut().map(|d| Shares(d.as_mut_ptr())),
        dshift: gradients.dshift.as_mut().map(|d| Shares(d.as_mut_ptr())),
        sums: Shares(sums.as_mut_ptr()),
        coef: Shares(coef.as_mut_ptr()),
        scratch: Shares(rest.as_mut_ptr()),
    };
    if grid.whole_images() {
        cpu.pool.run(grid.tasks(), |worker, task| cpu.level.dispatch(WholeImages { job, worker, task }));
        if wants {
            add_up(&mut gradients, sums, dims.c, grid.tasks(), 2 * dims.c);
        }
        return;
    }
    cpu.pool.run(dims.n, |_, image| cpu.level.dispatch(Open { job, image }));
    cpu.pool.run(grid.tasks(), |worker, task| cpu.level.dispatch(BlockSums { job, worker, task }));
    cpu.pool.run(dims.n, |_, image| cpu.level.dispatch(Merge { job, image }));
    if job.dx.is_some() {
        cpu.pool.run(grid.tasks(), |worker, task| cpu.level.dispatch(BlockInputs { job, worker, task }));
    }
    if wants {
        add_up(&mut gradients, sums, dims.c, dims.n, grid.blocks * 2 * dims.c);
    }
}

fn check(dims: &NormDims, inputs: &GradInputs, gradients: &NormGradients) {
    dims.check(inputs.parts);
    inputs.affine.check(dims);
    assert_eq!(inputs.stats.len(), dims.n * dims.groups * 2);
    assert_eq!(inputs.dy.len(), dims.len());
    assert!(inputs.addend.is_none_or(|a| a.len() == dims.len()));
    assert!(gradients.dgamma.as_ref().is_none_or(|d| d.len() == dims.c));
    assert!(gradients.dbeta.as_ref().is_none_or(|d| d.len() == dims.c));
    assert!(gradients.dscale.as_ref().is_none_or(|d| d.len() == dims.n * dims.c));
    assert!(gradients.dshift.as_ref().is_none_or(|d| d.len() == dims.n * dims.c));
}

/// Where each part's dx begins, and the distance of its pixels.
type Outputs = [(Shares<f32>, usize); MAX_PARTS];

fn outputs(dims: &NormDims, parts: &[Part], dx: Option<&mut PartGradients>) -> Option<Outputs> {
    let mut to = [(Shares(std::ptr::null_mut()), 0); MAX_PARTS];
    match dx? {
        PartGradients::Whole(dx) => {
            assert_eq!(dx.len(), dims.len());
            let mut first = 0;
            for (i, part) in parts.iter().enumerate() {
                to[i] = (Shares(dx[first..].as_mut_ptr()), dims.c);
                first += part.channels;
            }
        }
        PartGradients::Parts(list) => {
            assert_eq!(list.len(), parts.len());
            for (i, (dx, part)) in list.iter_mut().zip(parts).enumerate() {
                assert_eq!(dx.len(), dims.n * dims.s * part.channels);
                to[i] = (Shares(dx.as_mut_ptr()), part.channels);
            }
        }
    }
    Some(to)
}

/// dbeta and dgamma out of `count` rows of both, `pitch` apart: summed in pairs, pairs of pairs and so
/// on, which is as quick as one after the other and loses fewer digits.
fn add_up(gradients: &mut NormGradients, sums: &mut [f32], channels: usize, count: usize, pitch: usize) {
    let mut step = 1;
    while step < count {
        for i in (0..count - step).step_by(2 * step) {
            let (low, high) = sums.split_at_mut((i + step) * pitch);
            let low = &mut low[i * pitch..][..2 * channels];
            low.iter_mut().zip(&high[..2 * channels]).for_each(|(a, b)| *a += b);
        }
        step *= 2;
    }
    if count == 0 {
        sums.fill(0.0);
    }
    if let Some(dbeta) = &mut gradients.dbeta {
        dbeta.copy_from_slice(&sums[..channels]);
    }
    if let Some(dgamma) = &mut gradients.dgamma {
        dgamma.copy_from_slice(&sums[channels..2 * channels]);
    }
}

/// What all phases share.
struct Job<'a> {
    grid: &'a Grid,
    inputs: &'a GradInputs<'a>,
    dx: Option<Outputs>,
    dscale: Option<Shares<f32>>,
    dshift: Option<Shares<f32>>,
    sums: Shares<f32>,
    coef: Shares<f32>,
    scratch: Shares<f32>,
}

/// Vectors over the channels of one image, repeated where rows are folded. `mean` and `q` are one
/// place: the first is needed until the sums are there, the second from then on.
#[derive(Clone, Copy)]
struct Vectors {
    a: *mut f32,
    b: *mut f32,
    q: *mut f32,
    r: *mut f32,
    du: *mut f32,
    dux: *mut f32,
}

impl Job<'_> {
    /// # Safety
    /// No other task uses the worker's scratch.
    #[inline(always)]
    unsafe fn vectors(&self, worker: usize) -> Vectors {
        let row = longest_row(&self.grid.dims);
        // SAFETY: the workspace has VECTORS rows for each worker.
        unsafe {
            let p = self.scratch.at(worker * VECTORS * row);
            let (du, dux) = (p.add(4 * row), p.add(5 * row));
            Vectors { a: p, b: p.add(row), q: p.add(2 * row), r: p.add(3 * row), du, dux }
        }
    }

    /// a, b and the mean of an image.
    #[inline(always)]
    unsafe fn open<S: Simd>(&self, s: S, image: usize, v: Vectors) {
        let dims = &self.grid.dims;
        // SAFETY: vectors over the channels.
        unsafe {
            image::spread(dims, self.inputs.stats.as_ptr().add(image * dims.groups * 2), v.q, v.a);
            image::coefficients(s, dims, &self.inputs.affine, image, v.q, v.a, v.b);
        }
    }

    /// Both sums over a block, into `v.du` and `v.dux`.
    #[inline(always)]
    unsafe fn sums<S: Simd>(&self, s: S, index: usize, v: Vectors) {
        let (grid, dims) = (self.grid, &self.grid.dims);
        let unit = grid.unit(index);
        let pixel = unit.image * dims.s + unit.first;
        // SAFETY: the block's pixels, the parts' channels.
        unsafe {
            for i in 0..grid.width() {
                *v.du.add(i) = 0.0;
                *v.dux.add(i) = 0.0;
            }
            let mut first = 0;
            for (i, part) in self.inputs.parts.iter().enumerate() {
                let x = rows(part.data, pixel, part.stride, 0, grid);
                let dy = rows(self.inputs.dy, pixel, dims.c, first, grid);
                let span = grid.span(unit.pixels, part.channels);
                let (a, b, mean) = (v.a.add(first), v.b.add(first), v.q.add(first));
                let (du_sum, dux_sum) = (v.du.add(first), v.dux.add(first));
                let keep = if self.inputs.act == NormAct::Identity { None } else { self.dx(i, pixel) };
                with_act!(self.inputs.act, act => {
                    walk(s, span, &Sums { act, x, dy, a, b, mean, du_sum, dux_sum, keep })
                });
                first += part.channels;
            }
            image::fold(v.du, dims.c, grid.width());
            image::fold(v.dux, dims.c, grid.width());
        }
    }

    /// From the sums of an image: q and r, the second sum times rstd, and the modulation's gradients.
    #[inline(always)]
    unsafe fn close<S: Simd>(&self, s: S, image: usize, v: Vectors) {
        let dims = &self.grid.dims;
        let width = dims.width();
        let count = (dims.s * width) as f64;
        for g in 0..dims.groups {
            let at = g * width;
            let stats = &self.inputs.stats[(image * dims.groups + g) * 2..];
            let (mean, rstd) = (stats[0] as f64, stats[1] as f64);
            // SAFETY: the channels of the group.
            unsafe {
                let one = image::dot(s, v.du.add(at), v.a.add(at), width) / count;
                let two = image::dot(s, v.dux.add(at), v.a.add(at), width) / count;
                let q = -two * rstd * rstd;
                let r = -one - mean * q;
                for c in at..at + width {
                    *v.q.add(c) = q as f32;
                    *v.r.add(c) = r as f32;
                    *v.dux.add(c) *= stats[1];
                }
            }
        }
        let affine = &self.inputs.affine;
        for c in 0..dims.c {
            // SAFETY: a channel of the image, which is this task's.
            unsafe {
                let (du, dux) = (*v.du.add(c), *v.dux.add(c));
                if let Some(dshift) = self.dshift {
                    *dshift.at(image * dims.c + c) = du;
                }
                if let Some(dscale) = self.dscale {
                    let gamma = affine.gamma.map_or(1.0, |g| g[c]);
                    let beta = affine.beta.map_or(0.0, |b| b[c]);
                    *dscale.at(image * dims.c + c) = gamma * dux + beta * du;
                }
            }
        }
    }

    /// dx of a block.
    #[inline(always)]
    unsafe fn inputs<S: Simd>(&self, s: S, index: usize, v: Vectors) {
        let (grid, dims) = (self.grid, &self.grid.dims);
        let unit = grid.unit(index);
        let pixel = unit.image * dims.s + unit.first;
        let mut first = 0;
        for (i, part) in self.inputs.parts.iter().enumerate() {
            // SAFETY: the block's pixels, the parts' channels.
            unsafe {
                let Some(dx) = self.dx(i, pixel) else { return };
                let x = rows(part.data, pixel, part.stride, 0, grid);
                let dy = rows(self.inputs.dy, pixel, dims.c, first, grid);
                let du = if self.inputs.act == NormAct::Identity { dy } else { dx };
                let addend = self.inputs.addend.map(|addend| rows(addend, pixel, dims.c, first, grid));
                let span = grid.span(unit.pixels, part.channels);
                let (a, q, r) = (v.a.add(first), v.q.add(first), v.r.add(first));
                walk(s, span, &Input { x, du, addend, a, q, r, dx });
            }
            first += part.channels;
        }
    }

    /// Where dx of a part goes, from a pixel on.
    #[inline(always)]
    unsafe fn dx(&self, part: usize, pixel: usize) -> Option<Rows> {
        let (to, stride) = self.dx.as_ref()?[part];
        // SAFETY: the caller's pixel is of the tensor.
        Some(Rows { p: unsafe { to.at(pixel * stride) }, stride: self.grid.stride(stride) })
    }

    /// The coefficients of an image in the workspace: a, b, q, r.
    #[inline(always)]
    unsafe fn kept(&self, image: usize) -> *mut f32 {
        // SAFETY: the workspace has 4 vectors for each image.
        unsafe { self.coef.at(image * 4 * self.grid.dims.c) }
    }

    /// Copies the first `count` kept vectors of an image to the thread's, repeated.
    #[inline(always)]
    unsafe fn recall(&self, image: usize, v: Vectors, count: usize) {
        let (c, width) = (self.grid.dims.c, self.grid.width());
        for (i, to) in [v.a, v.b, v.q, v.r].into_iter().enumerate().take(count) {
            // SAFETY: vectors over the channels.
            unsafe {
                std::ptr::copy_nonoverlapping(self.kept(image).add(i * c), to, c);
                image::repeat(to, c, width);
            }
        }
    }
}

/// Rows of a tensor from a pixel and a channel on.
#[inline(always)]
unsafe fn rows(data: &[f32], pixel: usize, stride: usize, channel: usize, grid: &Grid) -> Rows {
    // SAFETY: the caller's pixel and channel are of the tensor.
    unsafe {
        let p = data.as_ptr().add(pixel * stride + channel).cast_mut();
        Rows { p, stride: grid.stride(stride) }
    }
}

/// First phase of large images: coefficients.
struct Open<'a> {
    job: &'a Job<'a>,
    image: usize,
}

impl Kernel for Open<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let c = self.job.grid.dims.c;
        // SAFETY: the image is this task's.
        unsafe {
            let a = self.job.kept(self.image);
            let (b, q, r) = (a.add(c), a.add(2 * c), a.add(3 * c));
            self.job.open(s, self.image, Vectors { a, b, q, r, du: r, dux: r });
        }
    }
}

/// Second phase: the sums over blocks.
struct BlockSums<'a> {
    job: &'a Job<'a>,
    worker: usize,
    task: usize,
}

impl Kernel for BlockSums<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (job, c) = (self.job, self.job.grid.dims.c);
        for index in job.grid.task(self.task) {
            // SAFETY: the worker's scratch; the unit is this task's.
            unsafe {
                let v = job.vectors(self.worker);
                job.recall(job.grid.unit(index).image, v, 3);
                job.sums(s, index, v);
                let to = job.sums.at(index * 2 * c);
                std::ptr::copy_nonoverlapping(v.du, to, c);
                std::ptr::copy_nonoverlapping(v.dux, to.add(c), c);
            }
        }
    }
}

/// Third phase: an image's sums, then its parts of dbeta and dgamma in the place of its first
/// block's, and q and r.
struct Merge<'a> {
    job: &'a Job<'a>,
    image: usize,
}

impl Kernel for Merge<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (job, c, blocks) = (self.job, self.job.grid.dims.c, self.job.grid.blocks);
        // SAFETY: the image's blocks are this task's.
        unsafe {
            let sums = job.sums.at(self.image * blocks * 2 * c);
            for i in 0..2 * c {
                let mut total = 0.0;
                for block in 0..blocks {
                    total += *sums.add(block * 2 * c + i) as f64;
                }
                *sums.add(i) = total as f32;
            }
            let a = job.kept(self.image);
            let (b, q, r) = (a.add(c), a.add(2 * c), a.add(3 * c));
            let v = Vectors { a, b, q, r, du: sums, dux: sums.add(c) };
            job.close(s, self.image, v);
            if let Some((scale, _)) = job.inputs.affine.film {
                for i in 0..c {
                    let factor = 1.0 + scale[self.image * c + i];
                    *v.du.add(i) *= factor;
                    *v.dux.add(i) *= factor;
                }
            }
        }
    }
}

/// Last phase: dx.
struct BlockInputs<'a> {
    job: &'a Job<'a>,
    worker: usize,
    task: usize,
}

impl Kernel for BlockInputs<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let job = self.job;
        for index in job.grid.task(self.task) {
            // SAFETY: the worker's scratch; the unit is this task's.
            unsafe {
                let v = job.vectors(self.worker);
                job.recall(job.grid.unit(index).image, v, 4);
                job.inputs(s, index, v);
            }
        }
    }
}

/// All phases for images of few pixels, one image after the other. The task's sums for dbeta and
/// dgamma gather in its place of the workspace.
struct WholeImages<'a> {
    job: &'a Job<'a>,
    worker: usize,
    task: usize,
}

impl Kernel for WholeImages<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (job, dims, width) = (self.job, &self.job.grid.dims, self.job.grid.width());
        // SAFETY: the worker's scratch; the images are this task's.
        unsafe {
            let v = job.vectors(self.worker);
            let gathered = job.sums.at(self.task * 2 * dims.c);
            for i in 0..2 * dims.c {
                *gathered.add(i) = 0.0;
            }
            for image in job.grid.task(self.task) {
                if job.grid.layers() {
                    layer_image(s, job, image, v, gathered);
                    continue;
                }
                job.open(s, image, v);
                for p in [v.a, v.b, v.q] {
                    image::repeat(p, dims.c, width);
                }
                job.sums(s, image, v);
                job.close(s, image, v);
                image::repeat(v.q, dims.c, width);
                image::repeat(v.r, dims.c, width);
                job.inputs(s, image, v);
                gather(s, job, image, v, gathered);
            }
        }
    }
}

/// Adds an image's part of dbeta and dgamma.
#[inline(always)]
unsafe fn gather<S: Simd>(s: S, job: &Job, image: usize, v: Vectors, to: *mut f32) {
    let channels = job.grid.dims.c;
    for c in (0..channels).step_by(S::LANES) {
        let n = S::LANES.min(channels - c);
        // SAFETY: n values from channel c on.
        unsafe {
            let mut factor = s.splat(1.0);
            if let Some((scale, _)) = job.inputs.affine.film {
                factor = s.add(factor, s.load_first(scale.as_ptr().add(image * channels + c), n));
            }
            for (sum, to) in [(v.du, to), (v.dux, to.add(channels))] {
                let old = s.load_first(to.add(c), n);
                s.store_first(to.add(c), s.fma(factor, s.load_first(sum.add(c), n), old), n);
            }
        }
    }
}

/// Layer norm: all gradients of one image.
#[inline(always)]
unsafe fn layer_image<S: Simd>(s: S, job: &Job, image: usize, v: Vectors, to: *mut f32) {
    let (dims, inputs) = (&job.grid.dims, job.inputs);
    // SAFETY: the image is this task's, and the vectors are over its channels.
    unsafe {
        let stats = inputs.stats.as_ptr().add(image * 2);
        let mut sums = layer::Sums::new(s);
        let mut first = 0;
        for part in inputs.parts {
            let terms = layer::Terms::new(s, &inputs.affine, stats, image * dims.c, first);
            let x = part.data.as_ptr().add(image * part.stride);
            let at = image * dims.c + first;
            let slopes = layer::Slopes {
                terms,
                x,
                dy: inputs.dy.as_ptr().add(at),
                scaled: v.du.add(first),
                dbeta: to.add(first),
                dgamma: to.add(dims.c + first),
                dshift: job.dshift.map_or(std::ptr::null_mut(), |d| d.0.add(at)),
                dscale: job.dscale.map_or(std::ptr::null_mut(), |d| d.0.add(at)),
            };
            with_act!(inputs.act, act => slopes.run(s, act, part.channels, &mut sums));
            first += part.channels;
        }
        let (q, r) = sums.finish(s, stats, dims.c);
        first = 0;
        for (i, part) in inputs.parts.iter().enumerate() {
            let Some(dx) = job.dx(i, image) else { return };
            let x = part.data.as_ptr().add(image * part.stride);
            let at = image * dims.c + first;
            let addend = inputs.addend.map_or(std::ptr::null(), |a| a.as_ptr().add(at));
            let (scaled, dx, rstd) = (v.du.add(first), dx.p, *stats.add(1));
            let step = layer::Input { x, scaled, addend, rstd, q, r, dx };
            walk(s, job.grid.span(1, part.channels), &step);
            first += part.channels;
        }
    }
}
