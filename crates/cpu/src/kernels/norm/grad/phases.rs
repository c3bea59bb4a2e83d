//! The phases of the gradient, as kernels for the tasks of the pool.

use super::job::{Job, Vectors};
use crate::act::with_act;
use crate::kernels::norm::columns::walk;
use crate::kernels::norm::{image, layer};
use crate::simd::{Kernel, Simd};

/// First phase of large images: coefficients.
pub struct Open<'a> {
    pub job: &'a Job<'a>,
    pub image: usize,
}

impl Kernel for Open<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
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
pub struct BlockSums<'a> {
    pub job: &'a Job<'a>,
    pub worker: usize,
    pub task: usize,
}

impl Kernel for BlockSums<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
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
pub struct Merge<'a> {
    pub job: &'a Job<'a>,
    pub image: usize,
}

impl Kernel for Merge<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
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
pub struct BlockInputs<'a> {
    pub job: &'a Job<'a>,
    pub worker: usize,
    pub task: usize,
}

impl Kernel for BlockInputs<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
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
pub struct WholeImages<'a> {
    pub job: &'a Job<'a>,
    pub worker: usize,
    pub task: usize,
}

impl Kernel for WholeImages<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
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
            let addend =
                inputs.addends[i].map_or(std::ptr::null(), |a| a.as_ptr().add(image * part.channels));
            let (scaled, dx, rstd) = (v.du.add(first), dx.p, *stats.add(1));
            let step = layer::Input { x, scaled, addend, rstd, q, r, dx };
            walk(s, job.grid.span(1, part.channels), &step);
            first += part.channels;
        }
    }
}
