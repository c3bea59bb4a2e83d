//! One step of a chain over one block: a vector loop for each scalar function.

use super::layout::BLOCK;
use crate::act::{self, Activation};
use crate::kernels::span::vectors;
use crate::simd::Simd;
use crate::vmath as v;
use clearshot_graph::ops::{Binary, Scalar, Unary};
use std::mem::MaybeUninit;

/// `to[i] = scalar(a[i], b[i])`.
///
/// # Safety
/// All are valid for `n` values, a block at most; `to` may be `a` or `b`, or overlaps neither.
#[inline(always)]
pub unsafe fn step<S: Simd>(s: S, scalar: Scalar, a: *const f32, b: *const f32, to: *mut f32, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match scalar {
            Scalar::Unary(u) => value(s, u, a, to, n),
            Scalar::UnaryGrad(u) => slope(s, u, a, b, to, n),
            Scalar::Binary(o) => binary(s, o, a, b, to, n),
        }
    }
}

/// Minus x.
#[inline(always)]
fn neg<S: Simd>(s: S, x: S::V) -> S::V {
    s.mul(x, s.splat(-1.0))
}

#[inline(always)]
fn abs<S: Simd>(s: S, x: S::V) -> S::V {
    s.max(neg(s, x), x)
}

/// 1, -1 or 0; NaN stays NaN.
#[inline(always)]
fn sign<S: Simd>(s: S, x: S::V) -> S::V {
    let zero = s.splat(0.0);
    let below = s.select_gt(zero, x, s.splat(-1.0), s.mul(x, zero));
    s.select_gt(x, zero, s.splat(1.0), below)
}

#[inline(always)]
unsafe fn value<S: Simd>(s: S, u: Unary, a: *const f32, to: *mut f32, n: usize) {
    macro_rules! each {
        (|$x:ident| $y:expr) => {
            // SAFETY: `step`'s promise.
            unsafe {
                vectors!(S, n, at => {
                    let $x = at.load(s, a);
                    at.store(s, to, $y)
                })
            }
        };
    }
    let one = s.splat(1.0);
    let zero = s.splat(0.0);
    let half = s.splat(0.5);
    match u {
        Unary::Neg => each!(|x| neg(s, x)),
        Unary::Abs => each!(|x| abs(s, x)),
        Unary::Sign => each!(|x| sign(s, x)),
        Unary::Round => each!(|x| s.round(x)),
        Unary::Square => each!(|x| s.mul(x, x)),
        Unary::Sqrt => each!(|x| s.sqrt(x)),
        Unary::Recip => each!(|x| s.div(one, x)),
        Unary::Exp => each!(|x| v::exp(s, x)),
        Unary::Log => each!(|x| v::ln(s, x)),
        Unary::Sin => each!(|x| v::sin(s, x)),
        Unary::Cos => each!(|x| v::cos(s, x)),
        Unary::Relu => each!(|x| s.select_gt(zero, x, zero, x)),
        Unary::LeakyRelu(slope) => {
            let slope = s.splat(slope as f32);
            each!(|x| s.select_gt(x, zero, x, s.mul(slope, x)))
        }
        Unary::Sigmoid => each!(|x| v::sigmoid(s, x)),
        Unary::Tanh => each!(|x| v::tanh(s, x)),
        Unary::Softplus => each!(|x| v::softplus(s, x)),
        Unary::Silu => each!(|x| v::silu(s, x)),
        Unary::Gelu => each!(|x| v::gelu(s, x)),
        Unary::GeluTanh => each!(|x| v::gelu_tanh(s, x)),
        Unary::Huber(d) => {
            let (d, tail) = (s.splat(d as f32), s.splat((0.5 * d) as f32));
            each!(|x| {
                let size = abs(s, x);
                let far = s.mul(d, s.sub(size, tail));
                s.select_gt(size, d, far, s.mul(half, s.mul(x, x)))
            })
        }
        Unary::SmoothL1(b) => {
            let (beta, tail, near) =
                (s.splat(b as f32), s.splat((0.5 * b) as f32), s.splat((0.5 / b) as f32));
            each!(|x| {
                let size = abs(s, x);
                s.select_gt(beta, size, s.mul(near, s.mul(x, x)), s.sub(size, tail))
            })
        }
        Unary::AddScalar(c) => {
            let c = s.splat(c as f32);
            each!(|x| s.add(x, c))
        }
        Unary::MulScalar(c) => {
            let c = s.splat(c as f32);
            each!(|x| s.mul(x, c))
        }
        // SAFETY: `step`'s promise.
        Unary::PowScalar(p) => unsafe { power(s, p, a, to, n) },
        Unary::Clamp(lo, hi) => {
            let (lo, hi) = (s.splat(lo as f32), s.splat(hi as f32));
            // Comparisons with NaN are false, so it passes through both.
            each!(|x| {
                let x = s.select_gt(lo, x, lo, x);
                s.select_gt(x, hi, hi, x)
            })
        }
        Unary::Snap(step, first, last) => {
            let grid = act::Snap([step as f32, first as f32, last as f32]);
            each!(|x| grid.value(s, x))
        }
    }
}

#[inline(always)]
unsafe fn slope<S: Simd>(s: S, u: Unary, a: *const f32, d: *const f32, to: *mut f32, n: usize) {
    macro_rules! each {
        (|$x:ident, $d:ident| $y:expr) => {
            // SAFETY: `step`'s promise.
            unsafe {
                vectors!(S, n, at => {
                    let ($x, $d) = (at.load(s, a), at.load(s, d));
                    at.store(s, to, $y)
                })
            }
        };
    }
    let zero = s.splat(0.0);
    match u {
        Unary::Neg => each!(|_x, d| neg(s, d)),
        Unary::Abs => each!(|x, d| s.mul(d, sign(s, x))),
        Unary::Sign | Unary::Round | Unary::Snap(..) => each!(|_x, d| s.mul(d, zero)),
        Unary::Square => each!(|x, d| s.mul(d, s.add(x, x))),
        Unary::Sqrt => each!(|x, d| s.div(s.mul(d, s.splat(0.5)), s.sqrt(x))),
        Unary::Recip => each!(|x, d| neg(s, s.div(d, s.mul(x, x)))),
        Unary::Exp => each!(|x, d| s.mul(d, v::exp(s, x))),
        Unary::Log => each!(|x, d| s.div(d, x)),
        Unary::Sin => each!(|x, d| s.mul(d, v::cos(s, x))),
        Unary::Cos => each!(|x, d| neg(s, s.mul(d, v::sin(s, x)))),
        Unary::Relu => each!(|x, d| s.select_gt(x, zero, d, zero)),
        Unary::LeakyRelu(slope) => {
            let slope = s.splat(slope as f32);
            each!(|x, d| s.select_gt(x, zero, d, s.mul(slope, d)))
        }
        Unary::Sigmoid => each!(|x, d| s.mul(d, v::sigmoid_slope(s, x))),
        Unary::Tanh => each!(|x, d| s.mul(d, v::tanh_slope(s, x))),
        Unary::Softplus => each!(|x, d| s.mul(d, v::sigmoid(s, x))),
        Unary::Silu => each!(|x, d| s.mul(d, v::silu_slope(s, x))),
        Unary::Gelu => each!(|x, d| s.mul(d, v::gelu_slope(s, x))),
        Unary::GeluTanh => each!(|x, d| s.mul(d, v::gelu_tanh_slope(s, x))),
        Unary::Huber(delta) => {
            let (lo, hi) = (s.splat(-delta as f32), s.splat(delta as f32));
            each!(|x, d| s.mul(d, s.min(s.max(x, lo), hi)))
        }
        Unary::SmoothL1(b) => {
            let (beta, scale) = (s.splat(b as f32), s.splat((1.0 / b) as f32));
            each!(|x, d| s.mul(d, s.select_gt(beta, abs(s, x), s.mul(x, scale), sign(s, x))))
        }
        Unary::AddScalar(_) => each!(|_x, d| d),
        Unary::MulScalar(c) => {
            let c = s.splat(c as f32);
            each!(|_x, d| s.mul(d, c))
        }
        // SAFETY: `step`'s promise.
        Unary::PowScalar(p) => unsafe { power_slope(s, p, a, d, to, n) },
        Unary::Clamp(lo, hi) => {
            let (lo, hi) = (s.splat(lo as f32), s.splat(hi as f32));
            each!(|x, d| s.select_gt(lo, x, zero, s.select_gt(x, hi, zero, d)))
        }
    }
}

#[inline(always)]
unsafe fn binary<S: Simd>(s: S, o: Binary, a: *const f32, b: *const f32, to: *mut f32, n: usize) {
    macro_rules! each {
        (|$x:ident, $z:ident| $y:expr) => {
            // SAFETY: `step`'s promise.
            unsafe {
                vectors!(S, n, at => {
                    let ($x, $z) = (at.load(s, a), at.load(s, b));
                    at.store(s, to, $y)
                })
            }
        };
    }
    match o {
        Binary::Add => each!(|x, z| s.add(x, z)),
        Binary::Sub => each!(|x, z| s.sub(x, z)),
        Binary::Mul => each!(|x, z| s.mul(x, z)),
        Binary::Div => each!(|x, z| s.div(x, z)),
        Binary::Max => each!(|x, z| s.max(x, z)),
        Binary::Min => each!(|x, z| s.min(x, z)),
        Binary::Greater => each!(|x, z| s.select_gt(x, z, s.splat(1.0), s.splat(0.0))),
        Binary::Pow => {
            for i in 0..n {
                // SAFETY: `step`'s promise.
                unsafe { *to.add(i) = (*a.add(i)).powf(*b.add(i)) }
            }
        }
    }
}

/// x to the p: the exponents that networks use by multiplications and roots, others by the library.
#[inline(always)]
unsafe fn power<S: Simd>(s: S, p: f64, a: *const f32, to: *mut f32, n: usize) {
    macro_rules! each {
        (|$x:ident| $y:expr) => {
            // SAFETY: `step`'s promise.
            unsafe {
                vectors!(S, n, at => {
                    let $x = at.load(s, a);
                    at.store(s, to, $y)
                })
            }
        };
    }
    let one = s.splat(1.0);
    if p == 1.0 {
        each!(|x| x)
    } else if p == 2.0 {
        each!(|x| s.mul(x, x))
    } else if p == 3.0 {
        each!(|x| s.mul(s.mul(x, x), x))
    } else if p == 0.5 {
        each!(|x| s.sqrt(x))
    } else if p == 1.5 {
        each!(|x| s.mul(x, s.sqrt(x)))
    } else if p == -0.5 {
        each!(|x| s.div(one, s.sqrt(x)))
    } else if p == -1.0 {
        each!(|x| s.div(one, x))
    } else {
        for i in 0..n {
            // SAFETY: `step`'s promise.
            unsafe { *to.add(i) = (*a.add(i)).powf(p as f32) }
        }
    }
}

/// d p x^(p-1).
#[inline(always)]
unsafe fn power_slope<S: Simd>(s: S, p: f64, a: *const f32, d: *const f32, to: *mut f32, n: usize) {
    debug_assert!(n <= BLOCK);
    let mut powers = [MaybeUninit::<f32>::uninit(); BLOCK];
    let powers: *mut f32 = powers.as_mut_ptr().cast();
    let scale = s.splat(p as f32);
    // SAFETY: `step`'s promise; a step is never longer than a block.
    unsafe {
        power(s, p - 1.0, a, powers, n);
        vectors!(S, n, at => {
            let slope = s.mul(scale, at.load(s, powers));
            at.store(s, to, s.mul(at.load(s, d), slope))
        })
    }
}
