//! Softmax over the last axis, row by row: the largest value, the exponentials and their sum, the
//! quotient. A row stays in cache between the three.

use crate::Cpu;
use crate::kernels::Prepared;
use crate::kernels::span::{self, vectors};
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use crate::vmath;
use clearshot_graph::Type;
use std::ops::Range;

/// Runs `Softmax`. The output may be in place of the operand.
pub struct Softmax {
    rows: usize,
    width: usize,
}

impl Softmax {
    pub fn new(x: &[Type]) -> Softmax {
        let width = x[0].shape.channels();
        Softmax { rows: x[0].shape.len() / width.max(1), width }
    }
}

impl Prepared for Softmax {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        let (x, y) = (span::shared(inputs[0]), Shares(outputs[0]));
        // SAFETY: the caller's promise, and each task writes a part of its own.
        unsafe {
            span::split_with(cpu, self.rows, self.width, |rows| Rows { x, y, rows, width: self.width })
        };
    }
}

struct Rows {
    x: Shares<f32>,
    y: Shares<f32>,
    rows: Range<usize>,
    width: usize,
}

impl Kernel for Rows {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        for row in self.rows {
            // SAFETY: the row is this task's.
            unsafe { softmax(s, self.x.at(row * self.width), self.y.at(row * self.width), self.width) }
        }
    }
}

/// Vectors whose exponentials are summed in `f32` before `f64` takes over.
const PIECE: usize = 64;

#[inline(always)]
unsafe fn softmax<S: Simd>(s: S, x: *const f32, y: *mut f32, n: usize) {
    let whole = n / S::LANES * S::LANES;
    // SAFETY: the caller's row of n values.
    unsafe {
        // The last values of the row, what is missing filled with what does not count.
        let mut end = [f32::NEG_INFINITY; 16];
        for i in whole..n {
            end[i - whole] = *x.add(i);
        }
        let mut top = s.load(end.as_ptr());
        let mut i = 0;
        while i < whole {
            top = s.max(top, s.load(x.add(i)));
            i += S::LANES;
        }
        let top = s.splat(s.largest(top));
        let last = vmath::exp(s, s.sub(s.load(end.as_ptr()), top));
        let mut sum = f64::from(s.sum(last));
        s.store_first(y.add(whole), last, n - whole);
        let mut i = 0;
        while i < whole {
            let stop = whole.min(i + PIECE * S::LANES);
            let mut part = s.splat(0.0);
            while i < stop {
                let e = vmath::exp(s, s.sub(s.load(x.add(i)), top));
                s.store(y.add(i), e);
                part = s.add(part, e);
                i += S::LANES;
            }
            sum += f64::from(s.sum(part));
        }
        let scale = s.splat((1.0 / sum) as f32);
        vectors!(S, n, at => at.store(s, y, s.mul(scale, at.load(s, y))));
    }
}
