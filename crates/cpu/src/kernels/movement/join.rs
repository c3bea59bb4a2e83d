//! Concat and slice: runs of the operands that become runs of the output.
//!
//! Seen from the axis in question, a tensor is `outer` rows; a row of the output is the rows of the
//! operands one behind the other, or a part of the operand's row.

use crate::Cpu;
use crate::kernels::Prepared;
use crate::kernels::span;
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use clearshot_graph::Type;
use clearshot_graph::ops;
use std::ops::Range;

/// A part of every output row: its place there, and where it lies in its operand.
#[derive(Clone, Copy, Debug)]
struct Part {
    operand: usize,
    start: usize,
    len: usize,
    /// Of a row of the operand, and of the part in its first row.
    from_step: usize,
    from_start: usize,
}

/// Runs `Concat`.
pub struct Concat(Joined);

impl Concat {
    pub fn new(a: ops::Concat, x: &[Type]) -> Concat {
        let mut parts = Vec::new();
        let mut start = 0;
        for (operand, t) in x.iter().enumerate() {
            let len: usize = t.shape[a.axis..].iter().product();
            parts.push(Part { operand, start, len, from_step: len, from_start: 0 });
            start += len;
        }
        Concat(Joined { outer: x[0].shape[..a.axis].iter().product(), row: start, parts })
    }
}

impl Prepared for Concat {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        self.0.run(cpu, inputs, outputs[0]);
    }
}

/// Runs `Slice`.
pub struct Slice(Joined);

impl Slice {
    pub fn new(a: ops::Slice, x: &[Type]) -> Slice {
        let shape = x[0].shape;
        let inner: usize = shape[a.axis + 1..].iter().product();
        let len = a.len * inner;
        let part =
            Part { operand: 0, start: 0, len, from_step: shape[a.axis] * inner, from_start: a.start * inner };
        Slice(Joined { outer: shape[..a.axis].iter().product(), row: len, parts: vec![part] })
    }
}

impl Prepared for Slice {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        self.0.run(cpu, inputs, outputs[0]);
    }
}

#[derive(Debug)]
struct Joined {
    outer: usize,
    row: usize,
    parts: Vec<Part>,
}

impl Joined {
    fn run(&self, cpu: &Cpu, inputs: &[*const f32], y: *mut f32) {
        let y = Shares(y);
        // One part after the other: each is a strided copy.
        for part in &self.parts {
            let x = span::shared(inputs[part.operand]);
            let piece = part.len.clamp(1, span::GRAIN);
            let units = self.outer * part.len.div_ceil(piece);
            // SAFETY: the caller's promise, and each task writes a part of its own.
            unsafe {
                span::split_with(cpu, units, piece, |units| Runs { part, row: self.row, piece, x, y, units })
            };
        }
    }
}

struct Runs<'a> {
    part: &'a Part,
    row: usize,
    piece: usize,
    x: Shares<f32>,
    y: Shares<f32>,
    units: Range<usize>,
}

impl Kernel for Runs<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let part = self.part;
        let pieces = part.len.div_ceil(self.piece);
        for unit in self.units {
            let (row, at) = (unit / pieces, unit % pieces * self.piece);
            let n = self.piece.min(part.len - at);
            // SAFETY: a piece of a row of operand and output; the output's is this unit's.
            unsafe {
                let from = self.x.at(row * part.from_step + part.from_start + at);
                span::copy(s, from, self.y.at(row * self.row + part.start + at), n);
            }
        }
    }
}
