//! Transposes and broadcasts: the operand read with other steps.
//!
//! After joining axes, either the last axis is a run in the operand too and rows are copied, or it is
//! one value repeated, or it is another axis: then the plane of the two axes that are runs on either
//! side is moved in square tiles, which keeps both the reads and the writes in cache.

use super::axes::{Axis, Count, joined, len};
use crate::Cpu;
use crate::kernels::Prepared;
use crate::kernels::span;
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use clearshot_graph::Type;
use clearshot_graph::ops;
use clearshot_tensor::Shape;
use std::ops::Range;

/// Runs `Transpose`.
pub struct Transpose(Strided);

impl Transpose {
    pub fn new(a: ops::Transpose, x: &[Type]) -> Transpose {
        let steps = x[0].shape.strides();
        let axes = a.order().map(|i| Axis { size: x[0].shape[i], step: steps[i] });
        Transpose(Strided::new(joined(axes)))
    }
}

impl Prepared for Transpose {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        self.0.run(cpu, inputs[0], outputs[0]);
    }
}

/// Runs `Broadcast`.
pub struct Broadcast(Strided);

impl Broadcast {
    pub fn new(to: Shape, x: &[Type]) -> Broadcast {
        let from = x[0].shape.padded_to(to.rank());
        let steps = from.strides();
        let step = |i: usize| if from[i] == 1 { 0 } else { steps[i] };
        Broadcast(Strided::new(joined((0..to.rank()).map(|i| Axis { size: to[i], step: step(i) }))))
    }
}

impl Prepared for Broadcast {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        self.0.run(cpu, inputs[0], outputs[0]);
    }
}

enum Strided {
    /// Rows of `width`, each a run or (step 0) one value.
    Rows { outer: Vec<Axis>, width: usize, step: usize },
    /// Planes of `down` rows (runs of the operand along them) and `across` columns (runs of the output).
    Planes { outer: Vec<Axis>, outer_to: Vec<Axis>, down: Tile, across: Tile },
}

/// An axis of a plane: its size and its steps in operand and output.
#[derive(Clone, Copy)]
struct Tile {
    size: usize,
    from: usize,
    to: usize,
}

/// Rows and columns that are moved at a time.
const TILE: usize = 16;

impl Strided {
    fn new(mut axes: Vec<Axis>) -> Strided {
        let across = axes.pop().unwrap_or(Axis { size: 1, step: 1 });
        let run = axes.iter().rposition(|a| a.step == 1);
        match (across.step, run) {
            (0 | 1, _) | (_, None) => Strided::Rows { outer: axes, width: across.size, step: across.step },
            (_, Some(run)) => {
                let mut step = across.size;
                let mut to: Vec<Axis> = axes.clone();
                for axis in to.iter_mut().rev() {
                    axis.step = step;
                    step *= axis.size;
                }
                let down = Tile { size: axes[run].size, from: 1, to: to[run].step };
                axes.remove(run);
                to.remove(run);
                let across = Tile { size: across.size, from: across.step, to: 1 };
                Strided::Planes { outer: axes, outer_to: to, down, across }
            }
        }
    }

    fn run(&self, cpu: &Cpu, x: *const f32, y: *mut f32) {
        let (x, y) = (span::shared(x), Shares(y));
        match self {
            Strided::Rows { outer, width, step } => {
                // A task has some rows, or a part of one.
                let part = (*width).clamp(1, span::GRAIN);
                let units = len(outer) * width.div_ceil(part);
                // SAFETY: the caller's promise, and each task writes a part of its own.
                unsafe {
                    span::split_with(cpu, units, part, |units| Rows {
                        outer,
                        width: *width,
                        step: *step,
                        part,
                        x,
                        y,
                        units,
                    })
                };
            }
            Strided::Planes { outer, outer_to, down, across } => {
                let bands = down.size.div_ceil(TILE);
                span::split(cpu, len(outer) * bands, TILE * across.size, |units| {
                    for unit in units {
                        let from = Count::new(outer, unit / bands).offset;
                        let to = Count::new(outer_to, unit / bands).offset;
                        let first = unit % bands * TILE;
                        // SAFETY: a band of a plane, which no other unit writes.
                        unsafe {
                            let rows = TILE.min(down.size - first);
                            band(x.at(from + first), y.at(to + first * down.to), rows, *down, *across);
                        }
                    }
                });
            }
        }
    }
}

struct Rows<'a> {
    outer: &'a [Axis],
    width: usize,
    step: usize,
    part: usize,
    x: Shares<f32>,
    y: Shares<f32>,
    units: Range<usize>,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let parts = self.width.div_ceil(self.part);
        let mut count = Count::new(self.outer, self.units.start / parts);
        for unit in self.units {
            let column = unit % parts * self.part;
            let n = self.part.min(self.width - column);
            // SAFETY: the row's part in operand and output; the output's is this task's.
            unsafe {
                let to = self.y.at(unit / parts * self.width + column);
                match self.step {
                    0 => span::fill(s, *self.x.at(count.offset), to, n),
                    1 => span::copy(s, self.x.at(count.offset + column), to, n),
                    step => {
                        for i in 0..n {
                            *to.add(i) = *self.x.at(count.offset + (column + i) * step);
                        }
                    }
                }
            }
            if (unit + 1) % parts == 0 {
                count.next();
            }
        }
    }
}

/// Moves `rows` rows of a plane, a tile at a time.
unsafe fn band(x: *const f32, y: *mut f32, rows: usize, down: Tile, across: Tile) {
    let mut column = 0;
    while column < across.size {
        let columns = TILE.min(across.size - column);
        // SAFETY: the caller's band.
        unsafe {
            let (x, y) = (x.add(column * across.from), y.add(column));
            for r in 0..rows {
                for c in 0..columns {
                    *y.add(r * down.to + c) = *x.add(r * down.from + c * across.from);
                }
            }
        }
        column += columns;
    }
}
