//! The gradient of padding: every operand pixel gathers the padded positions that it was copied to.
//!
//! For each axis a table lists, for every position of the operand, the padded positions that it is the
//! source of, in order; a row of the result is the sum of the padded rows that its lists name.

use super::pad::last_padded;
use crate::Cpu;
use crate::kernels::Prepared;
use crate::kernels::span;
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use clearshot_graph::Type;
use clearshot_graph::ops;
use clearshot_tensor::MAX_RANK;
use std::ops::Range;

/// Runs `PadGrad`. Not in place.
pub struct PadGrad {
    /// The axes above the row, outermost first.
    outer: Vec<Lists>,
    /// Positions of the row's padding and their sources: what is not the row itself.
    edges: Vec<(usize, usize)>,
    before: usize,
    /// The row's sizes, without padding and with it.
    size: usize,
    padded: usize,
    inner: usize,
}

/// For each position of the operand the padded positions with that source.
struct Lists {
    /// Positions, times the axis's step in the padded tensor.
    positions: Vec<usize>,
    /// Where each position's list begins, and the end of the last.
    starts: Vec<usize>,
}

impl Lists {
    fn new(a: &ops::Pad, axis: usize, size: usize, step: usize) -> Lists {
        let padded = size + a.pad[axis][0] + a.pad[axis][1];
        let mut lists = vec![Vec::new(); size];
        for p in 0..padded {
            if let Some(at) = a.mode.source(p, a.pad[axis][0], size) {
                lists[at].push(p * step);
            }
        }
        let mut starts = vec![0];
        starts.extend(lists.iter().scan(0, |end, list| {
            *end += list.len();
            Some(*end)
        }));
        Lists { positions: lists.concat(), starts }
    }

    fn of(&self, i: usize) -> &[usize] {
        &self.positions[self.starts[i]..self.starts[i + 1]]
    }

    fn size(&self) -> usize {
        self.starts.len() - 1
    }
}

impl PadGrad {
    pub fn new(a: ops::Pad, x: &[Type]) -> PadGrad {
        let padded = if x[0].shape.rank() == 0 { x[0].shape.padded_to(1) } else { x[0].shape };
        let shape = a.unpadded(padded).expect("checked when the node was built");
        let steps = padded.strides();
        let last = last_padded(&a, shape.rank());
        let before = a.pad[last][0];
        let inside = before..before + shape[last];
        let source = |p| a.mode.source(p, before, shape[last]).map(|at| (p, at));
        PadGrad {
            outer: (0..last).map(|i| Lists::new(&a, i, shape[i], steps[i])).collect(),
            edges: (0..padded[last]).filter(|p| !inside.contains(p)).filter_map(source).collect(),
            before,
            size: shape[last],
            padded: padded[last],
            inner: shape[last + 1..].iter().product(),
        }
    }
}

impl Prepared for PadGrad {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        let (dy, dx) = (span::shared(inputs[0]), Shares(outputs[0]));
        let rows = self.outer.iter().map(Lists::size).product();
        // SAFETY: the caller's promise, and each task writes a part of its own.
        unsafe {
            span::split_with(cpu, rows, self.padded * self.inner, |rows| Rows { pad: self, dy, dx, rows })
        };
    }
}

struct Rows<'a> {
    pad: &'a PadGrad,
    dy: Shares<f32>,
    dx: Shares<f32>,
    rows: Range<usize>,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let p = self.pad;
        let (axes, n) = (p.outer.len(), p.size * p.inner);
        for row in self.rows {
            let mut lists: [&[usize]; MAX_RANK] = [&[]; MAX_RANK];
            let mut rest = row;
            for axis in (0..axes).rev() {
                lists[axis] = p.outer[axis].of(rest % p.outer[axis].size());
                rest /= p.outer[axis].size();
            }
            let combinations: usize = lists[..axes].iter().map(|l| l.len()).product();
            // SAFETY: the result's row is this task's; the lists name rows of dy.
            unsafe {
                let to = self.dx.at(row * n);
                span::fill(s, 0.0, to, n);
                for mut choice in 0..combinations {
                    let mut from = 0;
                    for list in lists[..axes].iter().rev() {
                        from += list[choice % list.len()];
                        choice /= list.len();
                    }
                    let from = self.dy.at(from);
                    span::add(s, from.add(p.before * p.inner), to, n);
                    for &(at, source) in &p.edges {
                        span::add(s, from.add(at * p.inner), to.add(source * p.inner), p.inner);
                    }
                }
            }
        }
    }
}
