//! The updates of training: clipping, optimisers, averages, loss scale.
//!
//! Scalars are computed in `f64`, tensors in `f32` vectors, one pass over memory for each parameter.
//! Where the factor is NaN a gradient was not finite, and states keep their values. Every output may be
//! in place of the operand that it is the next value of, and in a plan always is.

#[cfg(test)]
mod tests;

use super::Prepared;
use super::span::{self, vectors};
use crate::Cpu;
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use clearshot_graph::Type;
use clearshot_graph::ops;
use std::ops::Range;

/// A scalar operand.
unsafe fn scalar(p: *const f32) -> f64 {
    // SAFETY: the caller's promise: one value.
    f64::from(unsafe { *p })
}

/// Gives a state that is not updated its old values.
unsafe fn keep(from: *const f32, to: *mut f32, len: usize) {
    if !std::ptr::eq(from, to) {
        // SAFETY: both have `len` values, and states that are not one do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
    }
}

/// Runs `Clip`.
pub struct Clip(ops::Clip);

impl Clip {
    pub fn new(a: ops::Clip) -> Clip {
        Clip(a)
    }
}

impl Prepared for Clip {
    unsafe fn run(&self, _cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        // SAFETY: all operands and results are scalars.
        unsafe {
            let squares = inputs[1..].iter().map(|&p| scalar(p)).sum();
            let (norm, factor) = self.0.factor(scalar(inputs[0]), squares);
            *outputs[0] = norm as f32;
            *outputs[1] = factor as f32;
        }
    }
}

/// Runs `LossScale`.
pub struct LossScale(ops::LossScale);

impl LossScale {
    pub fn new(a: ops::LossScale) -> LossScale {
        LossScale(a)
    }
}

impl Prepared for LossScale {
    unsafe fn run(&self, _cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        // SAFETY: all operands and results are scalars.
        unsafe {
            let (scale, good) = self.0.next(scalar(inputs[0]), scalar(inputs[1]), scalar(inputs[2]));
            *outputs[0] = scale as f32;
            *outputs[1] = good as f32;
        }
    }
}

/// Runs `CountStep`.
pub struct CountStep;

impl Prepared for CountStep {
    unsafe fn run(&self, _cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        // SAFETY: all operands and results are scalars.
        unsafe {
            let done = if (*inputs[1]).is_nan() { 0.0 } else { 1.0 };
            *outputs[0] = *inputs[0] + done;
        }
    }
}

/// Runs `Adam`.
pub struct Adam {
    a: ops::Adam,
    len: usize,
}

impl Adam {
    pub fn new(a: ops::Adam, x: &[Type]) -> Adam {
        Adam { a, len: x[0].shape.len() }
    }
}

impl Prepared for Adam {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        // SAFETY: operands and results in the op's order, the last three operands scalars.
        unsafe {
            let [rate, steps, factor] = [4, 5, 6].map(|i| scalar(inputs[i]));
            if factor.is_nan() {
                keep(inputs[0], outputs[0], self.len);
                keep(inputs[2], outputs[1], self.len);
                return keep(inputs[3], outputs[2], self.len);
            }
            let (a, (first, second)) = (self.a, self.a.corrections(steps));
            let rates = AdamRates {
                factor: factor as f32,
                shrink: if a.decoupled { (1.0 - rate * a.weight_decay) as f32 } else { 1.0 },
                decay: if a.decoupled { 0.0 } else { a.weight_decay as f32 },
                towards_first: (1.0 - a.beta1) as f32,
                towards_second: (1.0 - a.beta2) as f32,
                rate: (rate / first) as f32,
                root_scale: (1.0 / second) as f32,
                eps: a.eps as f32,
            };
            let from = [0, 1, 2, 3].map(|i| span::shared(inputs[i]));
            let to = [0, 1, 2].map(|i| Shares(outputs[i]));
            span::split_with(cpu, self.len, 1, |range| AdamRange { rates, from, to, range });
        }
    }
}

/// The scalars of one iteration.
#[derive(Clone, Copy)]
struct AdamRates {
    factor: f32,
    /// What the parameter is multiplied by, and what of it is added to the gradient.
    shrink: f32,
    decay: f32,
    /// How far the moments go towards the new values: 1 - beta.
    towards_first: f32,
    towards_second: f32,
    rate: f32,
    root_scale: f32,
    eps: f32,
}

struct AdamRange {
    rates: AdamRates,
    /// Parameter, gradient, two moments.
    from: [Shares<f32>; 4],
    /// Parameter, two moments.
    to: [Shares<f32>; 3],
    range: Range<usize>,
}

impl Kernel for AdamRange {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let k = self.rates;
        let (factor, shrink, decay) = (s.splat(k.factor), s.splat(k.shrink), s.splat(k.decay));
        let (t1, t2) = (s.splat(k.towards_first), s.splat(k.towards_second));
        let (rate, root_scale, eps) = (s.splat(k.rate), s.splat(k.root_scale), s.splat(k.eps));
        // SAFETY: the range is this task's.
        unsafe {
            let [p, g, m, v] = self.from.map(|x| x.at(self.range.start));
            let [p_to, m_to, v_to] = self.to.map(|x| x.at(self.range.start));
            vectors!(S, self.range.len(), at => {
                let old = at.load(s, p);
                let g = s.fma(decay, old, s.mul(factor, at.load(s, g)));
                let (m, v) = (at.load(s, m), at.load(s, v));
                let m = s.fma(t1, s.sub(g, m), m);
                let v = s.fma(t2, s.sub(s.mul(g, g), v), v);
                let step = s.div(s.mul(rate, m), s.fma(s.sqrt(v), root_scale, eps));
                at.store(s, m_to, m);
                at.store(s, v_to, v);
                at.store(s, p_to, s.sub(s.mul(old, shrink), step))
            });
        }
    }
}

/// Runs `Sgd`.
pub struct Sgd {
    a: ops::Sgd,
    len: usize,
}

impl Sgd {
    pub fn new(a: ops::Sgd, x: &[Type]) -> Sgd {
        Sgd { a, len: x[0].shape.len() }
    }
}

impl Prepared for Sgd {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        // SAFETY: operands and results in the op's order, the last two operands scalars.
        unsafe {
            let [rate, factor] = [3, 4].map(|i| scalar(inputs[i]));
            if factor.is_nan() {
                keep(inputs[0], outputs[0], self.len);
                return keep(inputs[2], outputs[1], self.len);
            }
            let from = [0, 1, 2].map(|i| span::shared(inputs[i]));
            let to = [0, 1].map(|i| Shares(outputs[i]));
            let (a, rate, factor) = (self.a, rate as f32, factor as f32);
            span::split_with(cpu, self.len, 1, |range| SgdRange { a, rate, factor, from, to, range });
        }
    }
}

struct SgdRange {
    a: ops::Sgd,
    rate: f32,
    factor: f32,
    /// Parameter, gradient, momentum.
    from: [Shares<f32>; 3],
    /// Parameter, momentum.
    to: [Shares<f32>; 2],
    range: Range<usize>,
}

impl Kernel for SgdRange {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let (rate, factor) = (s.splat(self.rate), s.splat(self.factor));
        let (momentum, decay) = (s.splat(self.a.momentum as f32), s.splat(self.a.weight_decay as f32));
        // SAFETY: the range is this task's.
        unsafe {
            let [p, g, b] = self.from.map(|x| x.at(self.range.start));
            let [p_to, b_to] = self.to.map(|x| x.at(self.range.start));
            vectors!(S, self.range.len(), at => {
                let old = at.load(s, p);
                let g = s.fma(decay, old, s.mul(factor, at.load(s, g)));
                let b = s.fma(momentum, at.load(s, b), g);
                let step = if self.a.nesterov { s.fma(momentum, b, g) } else { b };
                at.store(s, b_to, b);
                at.store(s, p_to, s.fnma(rate, step, old))
            });
        }
    }
}

/// Runs `Ema`.
pub struct Ema {
    len: usize,
}

impl Ema {
    pub fn new(x: &[Type]) -> Ema {
        Ema { len: x[0].shape.len() }
    }
}

impl Prepared for Ema {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        // SAFETY: operands and results in the op's order, the last two operands scalars.
        unsafe {
            let [decay, factor] = [2, 3].map(|i| scalar(inputs[i]));
            if factor.is_nan() {
                return keep(inputs[0], outputs[0], self.len);
            }
            // Towards the parameter, and not two products: their factors, once rounded, would not
            // add up to one and the average would settle beside the parameter.
            let towards = (1.0 - decay) as f32;
            let (e, p, to) = (span::shared(inputs[0]), span::shared(inputs[1]), Shares(outputs[0]));
            span::split_with(cpu, self.len, 1, |range| EmaRange { towards, e, p, to, range });
        }
    }
}

struct EmaRange {
    towards: f32,
    e: Shares<f32>,
    p: Shares<f32>,
    to: Shares<f32>,
    range: Range<usize>,
}

impl Kernel for EmaRange {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let towards = s.splat(self.towards);
        // SAFETY: the range is this task's.
        unsafe {
            let (e, p) = (self.e.at(self.range.start), self.p.at(self.range.start));
            let to = self.to.at(self.range.start);
            vectors!(S, self.range.len(), at => {
                let e = at.load(s, e);
                at.store(s, to, s.fma(towards, s.sub(at.load(s, p), e), e))
            });
        }
    }
}
