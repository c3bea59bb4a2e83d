//! Rows of a table by index, and the gradient of the table.
//!
//! The gradient is made in parallel over parts of the table, each of which reads all indices: no two
//! tasks add to one row and the order of the sums is that of the indices.

#[cfg(test)]
mod tests;

use super::Prepared;
use super::span;
use crate::Cpu;
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use clearshot_graph::Type;
use clearshot_graph::ops;
use std::ops::Range;

/// Runs `Gather`: table, indices (`i32`s) -> rows. Not in place.
pub struct Gather {
    rows: usize,
    width: usize,
    count: usize,
}

impl Gather {
    pub fn new(x: &[Type]) -> Gather {
        Gather { rows: x[0].shape[0], width: x[0].shape[1], count: x[1].shape.len() }
    }
}

/// The table's row for an index, clamped as the reference does.
#[inline(always)]
fn clamped(index: i32, rows: usize) -> usize {
    (index.max(0) as usize).min(rows - 1)
}

impl Prepared for Gather {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        let (table, indices, y) = (span::shared(inputs[0]), span::shared(inputs[1]), Shares(outputs[0]));
        // SAFETY: the caller's promise, and each task writes a part of its own.
        unsafe {
            span::split_with(cpu, self.count, self.width, |range| Copies {
                shape: self,
                table,
                indices,
                y,
                range,
            })
        };
    }
}

struct Copies<'a> {
    shape: &'a Gather,
    table: Shares<f32>,
    indices: Shares<f32>,
    y: Shares<f32>,
    range: Range<usize>,
}

impl Kernel for Copies<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let width = self.shape.width;
        for i in self.range {
            // SAFETY: clamped into the table; row i of y is this task's.
            unsafe {
                let row = clamped(*self.indices.at(i).cast::<i32>(), self.shape.rows);
                span::copy(s, self.table.at(row * width), self.y.at(i * width), width);
            }
        }
    }
}

/// Runs `GatherGrad`: indices (`i32`s), gradient of the rows -> gradient of the table. Not in place.
pub struct GatherGrad {
    rows: usize,
    width: usize,
    count: usize,
    /// The table's parts: rows and columns of one.
    part_rows: usize,
    part_width: usize,
}

/// Parts of the table at most; each reads all indices.
const PARTS: usize = 32;
/// Columns of a part.
const PART_WIDTH: usize = 64;

impl GatherGrad {
    pub fn new(a: ops::GatherGrad, x: &[Type]) -> GatherGrad {
        let (count, width) = (x[0].shape.len(), x[1].shape.channels());
        let wanted = ((a.rows + count) * width / span::GRAIN).clamp(1, PARTS);
        let part_width = width.div_ceil(wanted).max(PART_WIDTH).min(width).max(1);
        let across = width.div_ceil(part_width);
        let part_rows = a.rows.div_ceil((wanted / across.max(1)).max(1));
        GatherGrad { rows: a.rows, width, count, part_rows, part_width }
    }
}

impl Prepared for GatherGrad {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        let (indices, dy, table) = (span::shared(inputs[0]), span::shared(inputs[1]), Shares(outputs[0]));
        let across = self.width.div_ceil(self.part_width);
        cpu.pool.run(across * self.rows.div_ceil(self.part_rows), |_, part| {
            let row = part / across * self.part_rows;
            let column = part % across * self.part_width;
            // SAFETY: the caller's promise, and each task writes a part of its own.
            unsafe {
                cpu.level.dispatch(Sums {
                    shape: self,
                    indices,
                    dy,
                    table,
                    rows: row..(row + self.part_rows).min(self.rows),
                    columns: column..(column + self.part_width).min(self.width),
                })
            };
        });
    }
}

struct Sums<'a> {
    shape: &'a GatherGrad,
    indices: Shares<f32>,
    dy: Shares<f32>,
    table: Shares<f32>,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Kernel for Sums<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let GatherGrad { rows, width, count, .. } = *self.shape;
        let (column, n) = (self.columns.start, self.columns.len());
        for row in self.rows.clone() {
            // SAFETY: these columns of these rows are this task's.
            unsafe { span::fill(s, 0.0, self.table.at(row * width + column), n) };
        }
        for i in 0..count {
            // SAFETY: i counts the indices.
            let row = clamped(unsafe { *self.indices.at(i).cast::<i32>() }, rows);
            if self.rows.contains(&row) {
                // SAFETY: as above; dy has `count` rows.
                unsafe {
                    span::add(s, self.dy.at(i * width + column), self.table.at(row * width + column), n);
                }
            }
        }
    }
}
