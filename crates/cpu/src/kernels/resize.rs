//! Nearest and linear resizing of the spatial axes, and the gradients of both.
//!
//! Every axis has a table of taps, made when the kernel is prepared: for a pixel of the result, the
//! pixels of the operand and their weights. The gradient is the same sum with the table turned round,
//! so it gathers too and no two tasks write one pixel. Doubling by nearest is the case of one tap of
//! weight 1, which is a copy; its gradient the case of two.

#[cfg(test)]
mod tests;

use super::Prepared;
use super::span::{self, vectors};
use crate::Cpu;
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use clearshot_graph::Type;
use clearshot_graph::ops::conv::spatial;
use clearshot_graph::ops::{self, ResizeMode};
use std::ops::Range;

/// Runs `Resize`. Not in place.
pub struct Resize(Gathered);

impl Resize {
    pub fn new(a: ops::Resize, x: &[Type]) -> Resize {
        let from = spatial("x", x[0].shape).expect("checked when the node was built");
        let taps = std::array::from_fn(|i| Taps::new(forward(a.mode, from[i], a.size[i])));
        Resize(Gathered::new(x[0], from, taps))
    }
}

impl Prepared for Resize {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        self.0.run(cpu, inputs[0], outputs[0]);
    }
}

/// Runs `ResizeGrad`. Not in place.
pub struct ResizeGrad(Gathered);

impl ResizeGrad {
    pub fn new(a: ops::ResizeGrad, x: &[Type]) -> ResizeGrad {
        let size = spatial("dy", x[0].shape).expect("checked when the node was built");
        let taps = std::array::from_fn(|i| {
            let mut back = vec![Vec::new(); a.input[i]];
            for (target, list) in forward(a.mode, a.input[i], size[i]).into_iter().enumerate() {
                for (source, weight) in list {
                    back[source].push((target, weight));
                }
            }
            Taps::new(back)
        });
        ResizeGrad(Gathered::new(x[0], size, taps))
    }
}

impl Prepared for ResizeGrad {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        self.0.run(cpu, inputs[0], outputs[0]);
    }
}

/// For each target pixel its sources and their weights, those of weight 0 left out.
fn forward(mode: ResizeMode, from: usize, to: usize) -> Vec<Vec<(usize, f64)>> {
    let taps = |i| {
        let (low, high, w) = mode.taps(i, from, to);
        [(low, 1.0 - w), (high, w)].into_iter().filter(|t| t.1 != 0.0).collect()
    };
    (0..to).map(taps).collect()
}

#[derive(Clone, Copy, Debug)]
struct Tap {
    at: usize,
    weight: f32,
}

/// The taps of an axis: those of pixel i are `all[starts[i]..starts[i + 1]]`.
#[derive(Debug)]
struct Taps {
    all: Vec<Tap>,
    starts: Vec<usize>,
    /// Whether every pixel has one tap of weight 1.
    copies: bool,
}

impl Taps {
    fn new(lists: Vec<Vec<(usize, f64)>>) -> Taps {
        let copies = lists.iter().all(|l| l.len() == 1 && l[0].1 == 1.0);
        let mut taps = Taps { all: Vec::new(), starts: vec![0], copies };
        for list in lists {
            taps.all.extend(list.iter().map(|&(at, w)| Tap { at, weight: w as f32 }));
            taps.starts.push(taps.all.len());
        }
        taps
    }

    fn size(&self) -> usize {
        self.starts.len() - 1
    }

    #[inline(always)]
    fn of(&self, i: usize) -> &[Tap] {
        &self.all[self.starts[i]..self.starts[i + 1]]
    }
}

/// `to[n, z, y, x, c] = sum of the taps' weights times from[n, tz, ty, tx, c]`.
struct Gathered {
    samples: usize,
    channels: usize,
    from: [usize; 3],
    taps: [Taps; 3],
}

impl Gathered {
    fn new(x: Type, from: [usize; 3], taps: [Taps; 3]) -> Gathered {
        Gathered { samples: x.shape[0], channels: x.shape.channels(), from, taps }
    }

    fn run(&self, cpu: &Cpu, x: *const f32, y: *mut f32) {
        let (x, y) = (span::shared(x), Shares(y));
        let to = [0, 1, 2].map(|i| self.taps[i].size());
        // SAFETY: the caller's promise, and each task writes a part of its own.
        unsafe {
            span::split_with(cpu, self.samples * to[0] * to[1], to[2] * self.channels, |rows| Rows {
                shape: self,
                x,
                y,
                rows,
            })
        };
    }
}

/// One task: some rows (sample, z, y) of the result.
struct Rows<'a> {
    shape: &'a Gathered,
    x: Shares<f32>,
    y: Shares<f32>,
    rows: Range<usize>,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let g = self.shape;
        let [zs, ys, xs] = &g.taps;
        let copies = g.taps.iter().all(|t| t.copies);
        let plane = g.from[1] * g.from[2] * g.channels;
        for row in self.rows {
            let (n, z, y) = (row / ys.size() / zs.size(), row / ys.size() % zs.size(), row % ys.size());
            // SAFETY: taps lie in the operand; the result's row is this task's.
            unsafe {
                let from = self.x.at(n * g.from[0] * plane);
                let to = self.y.at(row * xs.size() * g.channels);
                if copies {
                    let line = (zs.of(z)[0].at * g.from[1] + ys.of(y)[0].at) * g.from[2] * g.channels;
                    for (i, tap) in xs.all.iter().enumerate() {
                        let pixel = from.add(line + tap.at * g.channels);
                        span::copy(s, pixel, to.add(i * g.channels), g.channels);
                    }
                } else {
                    weighted(s, g, zs.of(z), ys.of(y), from, to);
                }
            }
        }
    }
}

/// One row of the result as weighted sums.
#[inline(always)]
unsafe fn weighted<S: Simd>(s: S, g: &Gathered, zs: &[Tap], ys: &[Tap], from: *const f32, to: *mut f32) {
    let (c, xs) = (g.channels, &g.taps[2]);
    for i in 0..xs.size() {
        let taps = xs.of(i);
        // SAFETY: taps lie in the operand, pixel i in the result's row.
        unsafe {
            let to = to.add(i * c);
            vectors!(S, c, at => {
                let mut sum = s.splat(0.0);
                for z in zs {
                    for y in ys {
                        let line = from.add((z.at * g.from[1] + y.at) * g.from[2] * c);
                        let weight = z.weight * y.weight;
                        for x in taps {
                            sum = s.fma(s.splat(weight * x.weight), at.load(s, line.add(x.at * c)), sum);
                        }
                    }
                }
                at.store(s, to, sum)
            });
        }
    }
}
