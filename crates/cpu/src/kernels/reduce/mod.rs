//! Sums over axes, and softmax.
//!
//! Axes that are all summed or all kept are one axis, which leaves `[A, R, K] -> [A, K]` in all but
//! odd cases: everything to a scalar, gradients of biases, means over pixels, sums over the last axis.
//! Rows are summed in blocks of limited length, in `f32` vectors; blocks are merged in `f64` in their
//! order. Which rows a block has depends on the shape alone.

mod columns;
mod softmax;

#[cfg(test)]
mod tests;

pub use softmax::Softmax;

use super::Prepared;
use super::span;
use crate::Cpu;
use crate::pool::Shares;
use clearshot_graph::Type;
use clearshot_graph::ops::{self, ReduceKind};
use columns::Columns;

/// Runs `Reduce`. Not in place.
pub struct Reduce {
    kind: ReduceKind,
    /// The last factor: 1 over the count for a mean.
    scale: f64,
    form: Form,
}

enum Form {
    Columns(Columns),
    General(General),
}

/// Sizes and steps of kept and summed axes, for the patterns that are not `[A, R, K]`.
struct General {
    kept: Vec<(usize, usize)>,
    summed: Vec<(usize, usize)>,
}

impl Reduce {
    pub fn new(a: ops::Reduce, x: &[Type]) -> Reduce {
        let shape = x[0].shape;
        let count = shape.len() / a.shape(shape).len().max(1);
        let scale = if a.kind == ReduceKind::Mean { 1.0 / count as f64 } else { 1.0 };
        Reduce { kind: a.kind, scale, form: form(&groups(a, &shape)) }
    }
}

/// Runs of axes that are all summed (true) or all kept, with their sizes.
fn groups(a: ops::Reduce, shape: &[usize]) -> Vec<(bool, usize)> {
    let mut groups: Vec<(bool, usize)> = Vec::new();
    for (axis, &size) in shape.iter().enumerate().filter(|(_, s)| **s != 1) {
        match groups.last_mut() {
            Some((summed, n)) if *summed == a.has(axis) => *n *= size,
            _ => groups.push((a.has(axis), size)),
        }
    }
    groups
}

fn form(groups: &[(bool, usize)]) -> Form {
    let columns = |a, r, k| Form::Columns(Columns::new(a, r, k));
    match *groups {
        [] => columns(1, 1, 1),
        [(false, k)] => columns(1, 1, k),
        [(true, r)] => columns(1, r, 1),
        [(false, a), (true, r)] => columns(a, r, 1),
        [(true, r), (false, k)] => columns(1, r, k),
        [(false, a), (true, r), (false, k)] => columns(a, r, k),
        _ => Form::General(general(groups)),
    }
}

fn general(groups: &[(bool, usize)]) -> General {
    let mut general = General { kept: Vec::new(), summed: Vec::new() };
    let mut step = 1;
    for &(summed, size) in groups.iter().rev() {
        let list = if summed { &mut general.summed } else { &mut general.kept };
        list.push((size, step));
        step *= size;
    }
    general
}

/// The offset of flat index `i` over axes given innermost first as (size, step).
fn offset(axes: &[(usize, usize)], mut i: usize) -> usize {
    let mut at = 0;
    for &(size, step) in axes {
        at += i % size * step;
        i /= size;
    }
    at
}

impl General {
    /// One output after the other, each an `f64` sum of strided values.
    unsafe fn run(&self, cpu: &Cpu, squares: bool, scale: f64, x: *const f32, y: *mut f32) {
        let outputs = self.kept.iter().map(|a| a.0).product();
        let terms: usize = self.summed.iter().map(|a| a.0).product();
        let (x, y) = (span::shared(x), Shares(y));
        span::split(cpu, outputs, terms, |range| {
            for o in range {
                let base = offset(&self.kept, o);
                let mut sum = 0.0;
                for t in 0..terms {
                    // SAFETY: both offsets together are an index of the operand.
                    let v = f64::from(unsafe { *x.at(base + offset(&self.summed, t)) });
                    sum += if squares { v * v } else { v };
                }
                // SAFETY: o is this task's.
                unsafe { *y.at(o) = (sum * scale) as f32 }
            }
        });
    }
}

impl Prepared for Reduce {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], workspace: *mut f32) {
        let squares = self.kind == ReduceKind::SumSquares;
        // SAFETY: the caller's promise.
        unsafe {
            match &self.form {
                Form::Columns(c) => c.run(cpu, squares, self.scale, inputs[0], outputs[0], workspace),
                Form::General(g) => g.run(cpu, squares, self.scale, inputs[0], outputs[0]),
            }
        }
    }

    fn workspace_len(&self, _threads: usize) -> usize {
        match &self.form {
            Form::Columns(c) => c.partials(),
            Form::General(_) => 0,
        }
    }
}
