//! Activations applied where a tensor is read or written anyway.

use crate::simd::Simd;
use crate::vmath;

/// An elementwise function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    Identity,
    Silu,
    Relu,
    /// x where positive, else x times this slope.
    LeakyRelu(f32),
    Gelu,
    GeluTanh,
    Sigmoid,
    Tanh,
}

impl Act {
    /// The function of each lane.
    #[inline(always)]
    pub fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        match self {
            Act::Identity => x,
            Act::Silu => vmath::silu(s, x),
            Act::Relu => s.max(x, s.splat(0.0)),
            Act::LeakyRelu(slope) => s.select_gt(x, s.splat(0.0), x, s.mul(x, s.splat(slope))),
            Act::Sigmoid => vmath::sigmoid(s, x),
            Act::Tanh => tanh(s, x),
            Act::GeluTanh => {
                let cube = s.mul(s.mul(x, x), x);
                let inner = s.mul(s.fma(cube, s.splat(0.044_715), x), s.splat(0.797_884_6));
                s.mul(s.mul(x, s.splat(0.5)), s.add(s.splat(1.0), tanh(s, inner)))
            }
            Act::Gelu => gelu(s, x),
        }
    }
}

/// 2 sigmoid(2 x) - 1: near 0 the error is that of the subtraction, 1e-7 absolute.
#[inline(always)]
fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let two = s.splat(2.0);
    s.sub(s.mul(two, vmath::sigmoid(s, s.mul(two, x))), s.splat(1.0))
}

/// x Phi(x), with the error function by Abramowitz and Stegun 7.1.26 (absolute error 1.5e-7).
#[inline(always)]
fn gelu<S: Simd>(s: S, x: S::V) -> S::V {
    let (zero, one) = (s.splat(0.0), s.splat(1.0));
    let z = s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let size = s.max(z, s.sub(zero, z));
    let t = s.div(one, s.fma(size, s.splat(0.327_591_1), one));
    let mut p = s.splat(1.061_405_4);
    for c in [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6] {
        p = s.fma(p, t, s.splat(c));
    }
    let tail = s.mul(s.mul(p, t), vmath::exp(s, s.sub(zero, s.mul(size, size))));
    let erf = s.sub(one, tail);
    let erf = s.select_gt(z, zero, erf, s.sub(zero, erf));
    s.mul(s.mul(x, s.splat(0.5)), s.add(one, erf))
}
