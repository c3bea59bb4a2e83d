//! Average and maximum over windows, and their gradients.
//!
//! All four gather: a pixel of the result reads what it depends on, so tasks never write one pixel
//! twice. The gradient of the maximum finds out for each pixel and each of its windows whether the
//! pixel is the window's first largest; with windows that do not overlap that is one window a pixel.

#[cfg(test)]
mod tests;

use super::Prepared;
use super::span::{self, vectors};
use crate::Cpu;
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use clearshot_graph::Type;
use clearshot_graph::ops::conv::spatial;
use clearshot_graph::ops::{self, PoolKind};
use std::ops::Range;

/// The sizes of a pooling.
#[derive(Clone, Debug)]
struct Windows {
    samples: usize,
    channels: usize,
    input: [usize; 3],
    output: [usize; 3],
    kernel: [usize; 3],
    stride: [usize; 3],
    before: [usize; 3],
}

impl Windows {
    fn new(a: ops::Pool, samples: usize, channels: usize, input: [usize; 3]) -> Windows {
        let output = a.geometry.output(input, a.kernel).expect("checked when the node was built");
        let (stride, before) = (a.geometry.stride, a.geometry.pad.map(|p| p[0]));
        Windows { samples, channels, input, output, kernel: a.kernel, stride, before }
    }

    /// The input positions of output position `o`'s window along an axis.
    #[inline(always)]
    fn window(&self, axis: usize, o: usize) -> Range<usize> {
        let start = o * self.stride[axis];
        let end = (start + self.kernel[axis]).saturating_sub(self.before[axis]);
        start.saturating_sub(self.before[axis])..end.min(self.input[axis])
    }

    /// The output positions whose windows hold input position `i` along an axis.
    #[inline(always)]
    fn holders(&self, axis: usize, i: usize) -> Range<usize> {
        let at = i + self.before[axis];
        let first = (at + 1).saturating_sub(self.kernel[axis]).div_ceil(self.stride[axis]);
        first..(at / self.stride[axis] + 1).min(self.output[axis])
    }

    fn scale(&self) -> f32 {
        (1.0 / self.kernel.iter().product::<usize>() as f64) as f32
    }
}

/// The offset of a pixel.
#[inline(always)]
fn pixel(size: [usize; 3], c: usize, z: usize, y: usize, x: usize) -> usize {
    ((z * size[1] + y) * size[2] + x) * c
}

/// Runs `Pool`. Not in place.
pub struct Pool {
    kind: PoolKind,
    windows: Windows,
}

impl Pool {
    pub fn new(a: ops::Pool, x: &[Type]) -> Pool {
        let shape = x[0].shape;
        let input = spatial("x", shape).expect("checked when the node was built");
        Pool { kind: a.kind, windows: Windows::new(a, shape[0], shape.channels(), input) }
    }
}

impl Prepared for Pool {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        let (w, kind) = (&self.windows, self.kind);
        let (x, y) = (span::shared(inputs[0]), Shares(outputs[0]));
        let rows = w.samples * w.output[0] * w.output[1];
        // SAFETY: the caller's promise, and each task writes a part of its own.
        unsafe {
            span::split_with(cpu, rows, w.output[2] * w.channels, |rows| Forward { w, kind, x, y, rows })
        };
    }
}

struct Forward<'a> {
    w: &'a Windows,
    kind: PoolKind,
    x: Shares<f32>,
    y: Shares<f32>,
    rows: Range<usize>,
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let (w, c) = (self.w, self.w.channels);
        let [oz, oy, ox] = w.output;
        for row in self.rows {
            let (n, zs, ys) = (row / oy / oz, w.window(0, row / oy % oz), w.window(1, row % oy));
            for x in 0..ox {
                let xs = w.window(2, x);
                // SAFETY: windows lie in the operand; the result's row is this task's.
                unsafe {
                    let from = self.x.at(n * w.input.iter().product::<usize>() * c);
                    let to = self.y.at((row * ox + x) * c);
                    match self.kind {
                        PoolKind::Average => vectors!(S, c, at => {
                            let mut sum = s.splat(0.0);
                            for z in zs.clone() {
                                for y in ys.clone() {
                                    for x in xs.clone() {
                                        let p = from.add(pixel(w.input, c, z, y, x));
                                        sum = s.add(sum, at.load(s, p));
                                    }
                                }
                            }
                            at.store(s, to, s.mul(sum, s.splat(w.scale())))
                        }),
                        PoolKind::Max => vectors!(S, c, at => {
                            let mut top = s.splat(f32::NEG_INFINITY);
                            for z in zs.clone() {
                                for y in ys.clone() {
                                    for x in xs.clone() {
                                        let p = from.add(pixel(w.input, c, z, y, x));
                                        top = s.max(at.load(s, p), top);
                                    }
                                }
                            }
                            at.store(s, to, top)
                        }),
                    }
                }
            }
        }
    }
}

/// Runs `PoolGrad`: dy -> dx for the average, x, dy -> dx for the maximum. Not in place.
pub struct PoolGrad {
    kind: PoolKind,
    windows: Windows,
}

impl PoolGrad {
    pub fn new(a: ops::PoolGrad, x: &[Type]) -> PoolGrad {
        let shape = x[x.len() - 1].shape;
        PoolGrad { kind: a.pool.kind, windows: Windows::new(a.pool, shape[0], shape.channels(), a.input) }
    }
}

impl Prepared for PoolGrad {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        let w = &self.windows;
        let (x, dy) = (span::shared(inputs[0]), span::shared(inputs[inputs.len() - 1]));
        let dx = Shares(outputs[0]);
        let (rows, weight) = (w.samples * w.input[0] * w.input[1], w.input[2] * w.channels);
        // SAFETY: the caller's promise, and each task writes a part of its own.
        unsafe {
            span::split_with(cpu, rows, weight, |rows| Backward { w, kind: self.kind, x, dy, dx, rows })
        };
    }
}

struct Backward<'a> {
    w: &'a Windows,
    kind: PoolKind,
    x: Shares<f32>,
    dy: Shares<f32>,
    dx: Shares<f32>,
    rows: Range<usize>,
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let (w, c) = (self.w, self.w.channels);
        let [iz, iy, ix] = w.input;
        for row in self.rows {
            let (n, z, y) = (row / iy / iz, row / iy % iz, row % iy);
            for x in 0..ix {
                // SAFETY: windows lie in operands; the result's row is this task's.
                unsafe {
                    let image = self.x.at(n * iz * iy * ix * c);
                    let dy = self.dy.at(n * w.output.iter().product::<usize>() * c);
                    let to = self.dx.at((row * ix + x) * c);
                    match self.kind {
                        PoolKind::Average => average_grad(s, w, [z, y, x], dy, to),
                        PoolKind::Max => max_grad(s, w, [z, y, x], image, dy, to),
                    }
                }
            }
        }
    }
}

/// The sum of dy over the windows that hold a pixel, over the window's size.
#[inline(always)]
unsafe fn average_grad<S: Simd>(s: S, w: &Windows, at_pixel: [usize; 3], dy: *const f32, to: *mut f32) {
    let [zs, ys, xs] = [0, 1, 2].map(|a| w.holders(a, at_pixel[a]));
    // SAFETY: the caller's promise.
    unsafe {
        vectors!(S, w.channels, at => {
            let mut sum = s.splat(0.0);
            for z in zs.clone() {
                for y in ys.clone() {
                    for x in xs.clone() {
                        sum = s.add(sum, at.load(s, dy.add(pixel(w.output, w.channels, z, y, x))));
                    }
                }
            }
            at.store(s, to, s.mul(sum, s.splat(w.scale())))
        });
    }
}

/// The sum of dy over the windows whose first largest value is at this pixel.
#[inline(always)]
unsafe fn max_grad<S: Simd>(
    s: S,
    w: &Windows,
    at_pixel: [usize; 3],
    image: *const f32,
    dy: *const f32,
    to: *mut f32,
) {
    let c = w.channels;
    let [zs, ys, xs] = [0, 1, 2].map(|a| w.holders(a, at_pixel[a]));
    let own = pixel(w.input, c, at_pixel[0], at_pixel[1], at_pixel[2]);
    // SAFETY: the caller's promise.
    unsafe {
        vectors!(S, c, at => {
            let value = at.load(s, image.add(own));
            let mut sum = s.splat(0.0);
            for z in zs.clone() {
                for y in ys.clone() {
                    for x in xs.clone() {
                        let mut wins = at.load(s, dy.add(pixel(w.output, c, z, y, x)));
                        for wz in w.window(0, z) {
                            for wy in w.window(1, y) {
                                for wx in w.window(2, x) {
                                    let there = pixel(w.input, c, wz, wy, wx);
                                    let other = at.load(s, image.add(there));
                                    // An earlier value wins when it is as large, a later one when larger.
                                    wins = if there < own {
                                        s.select_gt(value, other, wins, s.splat(0.0))
                                    } else {
                                        s.select_gt(other, value, s.splat(0.0), wins)
                                    };
                                }
                            }
                        }
                        sum = s.add(sum, wins);
                    }
                }
            }
            at.store(s, to, sum)
        });
    }
}
