//! Activations applied where a tensor is read or written anyway.
//!
//! [`Act`] is the choice as a value. Kernels whose inner loop should not branch on it use the types
//! below through `with_act!`, so that they are compiled for each.

use crate::simd::{Portable, Simd};
use crate::vmath;
use std::any::TypeId;

/// Calls `$body` with `$a` bound to the type of the activation `$act`.
macro_rules! with_act {
    ($act:expr, $a:ident => $body:expr) => {{
        use crate::act::{self, Act};
        match $act {
            Act::Identity => {
                let $a = act::Identity;
                $body
            }
            Act::Silu => {
                let $a = act::Silu;
                $body
            }
            Act::Relu => {
                let $a = act::Leaky(0.0);
                $body
            }
            Act::LeakyRelu(slope) => {
                let $a = act::Leaky(slope);
                $body
            }
            Act::Gelu => {
                let $a = act::Gelu;
                $body
            }
            Act::GeluTanh => {
                let $a = act::GeluTanh;
                $body
            }
            Act::Sigmoid => {
                let $a = act::Sigmoid;
                $body
            }
            Act::Tanh => {
                let $a = act::Tanh;
                $body
            }
            Act::Softplus => {
                let $a = act::Softplus;
                $body
            }
            Act::Snap(grid) => {
                let $a = act::Snap(grid);
                $body
            }
        }
    }};
}
pub(crate) use with_act;

/// An activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    Identity,
    Silu,
    Relu,
    /// The slope below zero.
    LeakyRelu(f32),
    /// With the error function.
    Gelu,
    GeluTanh,
    Sigmoid,
    Tanh,
    Softplus,
    /// The nearest of the multiples of a step: the step, the first and the last.
    Snap([f32; 3]),
}

impl Act {
    /// The function of each lane.
    #[inline(always)]
    pub fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        with_act!(self, f => f.value(s, x))
    }
}

/// A function and its derivative, both of u.
pub trait Activation: Copy {
    fn value<S: Simd>(self, s: S, u: S::V) -> S::V;
    fn slope<S: Simd>(self, s: S, u: S::V) -> S::V;
}

/// The value of an activation. Portable code calls it instead of containing it: its arrays compile
/// slowly, and nothing is lost that such a machine would notice.
#[inline(always)]
pub fn value<S: Simd, A: Activation>(s: S, act: A, u: S::V) -> S::V {
    if TypeId::of::<S>() == TypeId::of::<Portable>() { value_apart(s, act, u) } else { act.value(s, u) }
}

/// The slope of an activation, as [`value`].
#[inline(always)]
pub fn slope<S: Simd, A: Activation>(s: S, act: A, u: S::V) -> S::V {
    if TypeId::of::<S>() == TypeId::of::<Portable>() { slope_apart(s, act, u) } else { act.slope(s, u) }
}

#[inline(never)]
fn value_apart<S: Simd, A: Activation>(s: S, act: A, u: S::V) -> S::V {
    act.value(s, u)
}

#[inline(never)]
fn slope_apart<S: Simd, A: Activation>(s: S, act: A, u: S::V) -> S::V {
    act.slope(s, u)
}

/// Defines a type for an activation out of expressions in `s` and `u`.
macro_rules! act {
    ($name:ident, |$this:ident, $s:ident, $u:ident| $value:expr, $slope:expr) => {
        impl Activation for $name {
            #[inline(always)]
            fn value<S: Simd>(self, $s: S, $u: S::V) -> S::V {
                let ($this, _) = (self, $s);
                $value
            }
            #[inline(always)]
            fn slope<S: Simd>(self, $s: S, $u: S::V) -> S::V {
                let ($this, _) = (self, $u);
                $slope
            }
        }
    };
}

#[derive(Clone, Copy)]
pub struct Identity;
#[derive(Clone, Copy)]
pub struct Silu;
/// The slope below zero: 0 is the plain rectifier.
#[derive(Clone, Copy)]
pub struct Leaky(pub f32);
#[derive(Clone, Copy)]
pub struct Gelu;
#[derive(Clone, Copy)]
pub struct GeluTanh;
#[derive(Clone, Copy)]
pub struct Sigmoid;
#[derive(Clone, Copy)]
pub struct Tanh;
#[derive(Clone, Copy)]
pub struct Softplus;
#[derive(Clone, Copy)]
pub struct Snap(pub [f32; 3]);

act!(Identity, |_a, s, u| u, s.splat(1.0));
act!(Silu, |_a, s, u| vmath::silu(s, u), vmath::silu_slope(s, u));
act!(
    Leaky,
    |a, s, u| s.select_gt(u, s.splat(0.0), u, s.mul(u, s.splat(a.0))),
    s.select_gt(u, s.splat(0.0), s.splat(1.0), s.splat(a.0))
);
act!(Gelu, |_a, s, u| vmath::gelu(s, u), vmath::gelu_slope(s, u));
act!(GeluTanh, |_a, s, u| vmath::gelu_tanh(s, u), vmath::gelu_tanh_slope(s, u));
act!(Sigmoid, |_a, s, u| vmath::sigmoid(s, u), vmath::sigmoid_slope(s, u));
act!(Tanh, |_a, s, u| vmath::tanh(s, u), vmath::tanh_slope(s, u));
act!(Softplus, |_a, s, u| vmath::softplus(s, u), vmath::sigmoid(s, u));

impl Activation for Snap {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, u: S::V) -> S::V {
        snapped(s, self.0, u)
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, _: S::V) -> S::V {
        s.splat(0.0)
    }
}

/// Comparisons with NaN are false, so it passes through.
#[inline(always)]
fn snapped<S: Simd>(s: S, [step, first, last]: [f32; 3], u: S::V) -> S::V {
    let [step, first, last] = [step, first, last].map(|x| s.splat(x));
    let whole = s.round(s.div(u, step));
    let whole = s.select_gt(first, whole, first, whole);
    s.mul(s.select_gt(whole, last, last, whole), step)
}
