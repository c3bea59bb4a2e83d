//! The steps of the gradient on one image or block, on vectors over its channels.

use super::{GradInputs, Outputs, VECTORS};
use crate::act::Act;
use crate::act::with_act;
use crate::kernels::norm::columns::{Input, Rows, Sums, walk};
use crate::kernels::norm::grid::{Grid, longest_row};
use crate::kernels::norm::image;
use crate::pool::Shares;
use crate::simd::Simd;

/// What all phases share.
pub struct Job<'a> {
    pub grid: &'a Grid,
    pub inputs: &'a GradInputs<'a>,
    pub dx: Option<Outputs>,
    pub dscale: Option<Shares<f32>>,
    pub dshift: Option<Shares<f32>>,
    pub sums: Shares<f32>,
    pub coef: Shares<f32>,
    pub scratch: Shares<f32>,
}

/// Vectors over the channels of one image, repeated where rows are folded. `mean` and `q` are one
/// place: the first is needed until the sums are there, the second from then on.
#[derive(Clone, Copy)]
pub struct Vectors {
    pub a: *mut f32,
    pub b: *mut f32,
    pub q: *mut f32,
    pub r: *mut f32,
    pub du: *mut f32,
    pub dux: *mut f32,
}

impl Job<'_> {
    /// # Safety
    /// No other task uses the worker's scratch.
    #[inline(always)]
    pub unsafe fn vectors(&self, worker: usize) -> Vectors {
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
    pub unsafe fn open<S: Simd>(&self, s: S, image: usize, v: Vectors) {
        let dims = &self.grid.dims;
        // SAFETY: vectors over the channels.
        unsafe {
            image::spread(dims, self.inputs.stats.as_ptr().add(image * dims.groups * 2), v.q, v.a);
            image::coefficients(s, dims, &self.inputs.affine, image, v.q, v.a, v.b);
        }
    }

    /// Both sums over a block, into `v.du` and `v.dux`.
    #[inline(always)]
    pub unsafe fn sums<S: Simd>(&self, s: S, index: usize, v: Vectors) {
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
                let keep = if self.inputs.act == Act::Identity { None } else { self.dx(i, pixel) };
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
    pub unsafe fn close<S: Simd>(&self, s: S, image: usize, v: Vectors) {
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
    pub unsafe fn inputs<S: Simd>(&self, s: S, index: usize, v: Vectors) {
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
                let du = if self.inputs.act == Act::Identity { dy } else { dx };
                let addend = self.inputs.addends[i].map(|addend| rows(addend, pixel, part.channels, 0, grid));
                let span = grid.span(unit.pixels, part.channels);
                let (a, q, r) = (v.a.add(first), v.q.add(first), v.r.add(first));
                walk(s, span, &Input { x, du, addend, a, q, r, dx });
            }
            first += part.channels;
        }
    }

    /// Where dx of a part goes, from a pixel on.
    #[inline(always)]
    pub unsafe fn dx(&self, part: usize, pixel: usize) -> Option<Rows> {
        let (to, stride) = self.dx.as_ref()?[part];
        // SAFETY: the caller's pixel is of the tensor.
        Some(Rows { p: unsafe { to.at(pixel * stride) }, stride: self.grid.stride(stride) })
    }

    /// The coefficients of an image in the workspace: a, b, q, r.
    #[inline(always)]
    pub unsafe fn kept(&self, image: usize) -> *mut f32 {
        // SAFETY: the workspace has 4 vectors for each image.
        unsafe { self.coef.at(image * 4 * self.grid.dims.c) }
    }

    /// Copies the first `count` kept vectors of an image to the thread's, repeated.
    #[inline(always)]
    pub unsafe fn recall(&self, image: usize, v: Vectors, count: usize) {
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
