//! The activations as types, so that a kernel is compiled for each.

use crate::simd::{Portable, Simd};
use crate::vmath;
use std::any::TypeId;

/// A function and its derivative, both of u.
pub trait Act: Copy {
    fn value<S: Simd>(self, s: S, u: S::V) -> S::V;
    fn slope<S: Simd>(self, s: S, u: S::V) -> S::V;
}

/// The value of an activation. Portable code calls it instead of containing it: its arrays compile
/// slowly, and nothing is lost that such a machine would notice.
#[inline(always)]
pub fn value<S: Simd, A: Act>(s: S, act: A, u: S::V) -> S::V {
    if TypeId::of::<S>() == TypeId::of::<Portable>() { value_apart(s, act, u) } else { act.value(s, u) }
}

/// The slope of an activation, as [`value`].
#[inline(always)]
pub fn slope<S: Simd, A: Act>(s: S, act: A, u: S::V) -> S::V {
    if TypeId::of::<S>() == TypeId::of::<Portable>() { slope_apart(s, act, u) } else { act.slope(s, u) }
}

#[inline(never)]
fn value_apart<S: Simd, A: Act>(s: S, act: A, u: S::V) -> S::V {
    act.value(s, u)
}

#[inline(never)]
fn slope_apart<S: Simd, A: Act>(s: S, act: A, u: S::V) -> S::V {
    act.slope(s, u)
}

/// Defines a type for an activation out of expressions in `s` and `u`.
macro_rules! act {
    ($name:ident, |$this:ident, $s:ident, $u:ident| $value:expr, $slope:expr) => {
        impl Act for $name {
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

/// Calls `$body` with `$a` bound to the type of the activation `$act`.
macro_rules! with_act {
    ($act:expr, $a:ident => $body:expr) => {{
        use crate::kernels::norm::{NormAct, act};
        match $act {
            NormAct::Identity => {
                let $a = act::Identity;
                $body
            }
            NormAct::Silu => {
                let $a = act::Silu;
                $body
            }
            NormAct::Relu => {
                let $a = act::Leaky(0.0);
                $body
            }
            NormAct::LeakyRelu(slope) => {
                let $a = act::Leaky(slope);
                $body
            }
            NormAct::Gelu => {
                let $a = act::Gelu;
                $body
            }
            NormAct::GeluTanh => {
                let $a = act::GeluTanh;
                $body
            }
            NormAct::Sigmoid => {
                let $a = act::Sigmoid;
                $body
            }
            NormAct::Tanh => {
                let $a = act::Tanh;
                $body
            }
            NormAct::Softplus => {
                let $a = act::Softplus;
                $body
            }
        }
    }};
}
pub(super) use with_act;
