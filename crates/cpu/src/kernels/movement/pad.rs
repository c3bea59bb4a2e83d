//! Padding: every output row is a row of the operand with something before and behind it, or zeros.
//!
//! Axes behind the last padded one are one run, `inner`. Sources of padded positions come from tables
//! made when the kernel is prepared.

use crate::Cpu;
use crate::kernels::Prepared;
use crate::kernels::span;
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use clearshot_graph::Type;
use clearshot_graph::ops;
use std::ops::Range;

/// Runs `Pad`.
pub struct Pad {
    /// The axes above the row, outermost first.
    outer: Vec<Table>,
    row: Table,
    inner: usize,
    before: usize,
}

/// Where each padded position of an axis comes from, in units of the operand's elements.
struct Table {
    sources: Vec<Option<usize>>,
    /// The operand's size along the axis.
    size: usize,
}

/// The last axis that has padding.
pub(super) fn last_padded(a: &ops::Pad, rank: usize) -> usize {
    (0..rank).rev().find(|&i| a.pad[i] != [0, 0]).unwrap_or(0)
}

impl Pad {
    pub fn new(a: ops::Pad, x: &[Type]) -> Pad {
        // A scalar has no axis to pad and is one row of one.
        let shape = if x[0].shape.rank() == 0 { x[0].shape.padded_to(1) } else { x[0].shape };
        let steps = shape.strides();
        let last = last_padded(&a, shape.rank());
        let table = |i: usize| {
            let [before, behind] = a.pad[i];
            let source = |p| a.mode.source(p, before, shape[i]).map(|at| at * steps[i]);
            Table { sources: (0..shape[i] + before + behind).map(source).collect(), size: shape[i] }
        };
        Pad {
            outer: (0..last).map(table).collect(),
            row: table(last),
            inner: shape[last + 1..].iter().product(),
            before: a.pad[last][0],
        }
    }

    /// Where the operand's row for an output row begins; nothing where it is all padding by zeros.
    fn source(&self, mut row: usize) -> Option<usize> {
        let mut from = 0;
        for table in self.outer.iter().rev() {
            let n = table.sources.len();
            from += table.sources[row % n]?;
            row /= n;
        }
        Some(from)
    }
}

impl Prepared for Pad {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        let (x, y) = (span::shared(inputs[0]), Shares(outputs[0]));
        let rows = self.outer.iter().map(|t| t.sources.len()).product();
        let width = self.row.sources.len() * self.inner;
        // SAFETY: the caller's promise, and each task writes a part of its own.
        unsafe { span::split_with(cpu, rows, width, |rows| Rows { pad: self, x, y, rows }) };
    }
}

struct Rows<'a> {
    pad: &'a Pad,
    x: Shares<f32>,
    y: Shares<f32>,
    rows: Range<usize>,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let Pad { row: Table { sources, size }, inner, before, .. } = self.pad;
        for row in self.rows {
            // SAFETY: the output's row is this task's; sources lie in the operand.
            unsafe {
                let to = self.y.at(row * sources.len() * inner);
                let Some(from) = self.pad.source(row) else {
                    span::fill(s, 0.0, to, sources.len() * inner);
                    continue;
                };
                span::copy(s, self.x.at(from), to.add(before * inner), size * inner);
                for p in (0..*before).chain(before + size..sources.len()) {
                    match sources[p] {
                        Some(at) => span::copy(s, self.x.at(from + at), to.add(p * inner), *inner),
                        None => span::fill(s, 0.0, to.add(p * inner), *inner),
                    }
                }
            }
        }
    }
}
