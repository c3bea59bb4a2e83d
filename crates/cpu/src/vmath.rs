//! Elementary functions on vectors, generic over [`Simd`].
//!
//! Each is within a few units in the last place of the exact value over the range where its result
//! is a normal number; the tests state the worst error of every one. The polynomials are our own
//! minimax fits. None of them needs a fused multiply-add to be accurate, so that portable code
//! gives results as good as the wide levels (though not the same bits).

// The first coefficient of a fit is near a constant of nature and not equal to it.
#![allow(clippy::approx_constant)]

use crate::simd::{Kernel, Level, Simd};
use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_PI, LOG2_E};

#[cfg(test)]
mod tests;

/// `c[0] + c[1] x + c[2] x^2 + ...` by Horner's rule.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, x: S::V, c: [f32; N]) -> S::V {
    let mut p = s.splat(c[N - 1]);
    for i in (0..N - 1).rev() {
        p = s.fma(p, x, s.splat(c[i]));
    }
    p
}

/// The magnitude of x; NaN stays NaN.
#[inline(always)]
fn abs<S: Simd>(s: S, x: S::V) -> S::V {
    s.max(s.mul(x, s.splat(-1.0)), x)
}

/// `low <= x <= high`, NaN stays NaN: the operand order is what keeps it.
#[inline(always)]
fn clamp<S: Simd>(s: S, x: S::V, low: f32, high: f32) -> S::V {
    s.min(s.splat(high), s.max(s.splat(low), x))
}

/// x = n ln 2 + r with n whole and |r| <= ln 2 / 2, as (n, e^r).
#[inline(always)]
fn exp_parts<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let n = s.round(s.mul(x, s.splat(LOG2_E)));
    // ln 2 in two parts, the first with few bits so that n times it is exact.
    let r = s.fnma(n, s.splat(0.693_359_4), x);
    let r = s.fnma(n, s.splat(-2.121_944_4e-4), r);
    // (e^r - 1 - r) / r^2
    let p = polynomial(s, r, [0.499_999_94, 1.666_652_1e-1, 4.166_839e-2, 8.368_716e-3, 1.381_460_2e-3]);
    (n, s.add(s.fma(s.mul(p, r), r, r), s.splat(1.0)))
}

/// e to the x. Saturates to 0 (through the subnormal numbers) and to infinity; NaN stays NaN.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let (n, e) = exp_parts(s, clamp(s, x, -104.0, 89.0));
    // 2^n in two factors, because n reaches beyond the exponents of normal numbers at both ends.
    let half = s.round(s.mul(n, s.splat(0.5)));
    s.mul(s.mul(e, s.exp2_whole(half)), s.exp2_whole(s.sub(n, half)))
}

/// e to the x clamped to [-87, 88]: never 0 nor infinite. What the functions below build on,
/// where the ends no longer change the result.
#[inline(always)]
pub fn exp_bounded<S: Simd>(s: S, x: S::V) -> S::V {
    let (n, e) = exp_parts(s, clamp(s, x, -87.0, 88.0));
    s.mul(e, s.exp2_whole(n))
}

/// 2 to the x for x <= 0.5, clamped below at -126: the exponential of a softmax, whose largest
/// argument is 0 and whose smallest results do not count.
#[inline(always)]
pub fn exp2_nonpositive<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.max(s.splat(-126.0), x);
    let n = s.round(x);
    let f = s.sub(x, n);
    // (2^f - 1) / f
    let p = polynomial(s, f, [6.931_47e-1, 2.402_224_2e-1, 5.550_733_6e-2, 9.671_513e-3, 1.326_472_7e-3]);
    s.mul(s.fma(p, f, s.splat(1.0)), s.exp2_whole(n))
}

/// `f` of each lane, for the few steps that need the bits of a number.
#[inline(always)]
fn lanes<S: Simd>(s: S, x: S::V, f: impl Fn(f32) -> f32) -> S::V {
    let mut a = [0.0f32; 16];
    // SAFETY: LANES <= 16.
    unsafe { s.store(a.as_mut_ptr(), x) };
    for v in &mut a[..S::LANES] {
        *v = f(*v);
    }
    // SAFETY: as above.
    unsafe { s.load(a.as_ptr()) }
}

/// The natural logarithm: -inf at 0, NaN below it.
#[inline(always)]
pub fn ln<S: Simd>(s: S, x: S::V) -> S::V {
    // x = 2^n m with m in [sqrt(1/2), sqrt(2)); subnormal numbers are first made normal.
    const HALF_ROOT: u32 = 0x3f35_04f3;
    let smallest = s.splat(f32::MIN_POSITIVE);
    let scaled = s.select_gt(smallest, x, s.mul(x, s.splat(8_388_608.0)), x);
    let lift = s.select_gt(smallest, x, s.splat(-23.0), s.splat(0.0));
    let n = s.add(lift, lanes(s, scaled, |v| ((v.to_bits().wrapping_sub(HALF_ROOT)) as i32 >> 23) as f32));
    let m = lanes(s, scaled, |v| {
        f32::from_bits((v.to_bits().wrapping_sub(HALF_ROOT) & 0x007f_ffff).wrapping_add(HALF_ROOT))
    });
    // ln m = 2 atanh(t), t = (m - 1) / (m + 1).
    let f = s.sub(m, s.splat(1.0));
    let t = s.div(f, s.add(f, s.splat(2.0)));
    let z = s.mul(t, t);
    // (ln m - 2 t) / t^3; f - t f = 2 t, and f is exact.
    let p = s.mul(s.mul(polynomial(s, z, [0.666_666_6, 0.400_003_34, 0.285_372_85, 0.235_826_06]), z), t);
    let tail = s.fma(n, s.splat(-2.121_944_4e-4), s.fnma(t, f, p));
    let y = s.fma(n, s.splat(0.693_359_4), s.add(tail, f));
    let y = s.select_gt(x, s.splat(f32::MAX), x, y);
    let zero = s.splat(0.0);
    let below = s.select_gt(zero, x, s.splat(f32::NAN), s.splat(f32::NEG_INFINITY));
    // The sum carries a NaN through.
    s.select_gt(x, zero, y, s.add(below, x))
}

/// ln(1 + x), accurate near 0.
#[inline(always)]
pub fn log1p<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    let u = s.add(one, x);
    let lost = s.div(s.sub(x, s.sub(u, one)), u);
    let y = ln(s, u);
    // Without the correction where it is meaningless: at -1 and at infinity.
    let corrected = s.select_gt(s.splat(f32::MAX), u, s.add(y, lost), y);
    s.select_gt(u, s.splat(0.0), corrected, y)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp_bounded(s, s.mul(x, s.splat(-1.0)))))
}

/// (sigmoid(x), sigmoid(-x)), the second without the cancellation of 1 - sigmoid(x).
#[inline(always)]
fn sigmoid_pair<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let one = s.splat(1.0);
    let e = exp_bounded(s, s.mul(x, s.splat(-1.0)));
    let g = s.div(one, s.add(one, e));
    (g, s.mul(e, g))
}

/// The derivative of [`sigmoid`].
#[inline(always)]
pub fn sigmoid_slope<S: Simd>(s: S, x: S::V) -> S::V {
    // By e^-|x|, so that neither tail cancels.
    let one = s.splat(1.0);
    let e = exp_bounded(s, s.mul(abs(s, x), s.splat(-1.0)));
    let d = s.add(one, e);
    s.div(e, s.mul(d, d))
}

/// x sigmoid(x).
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    s.div(x, s.add(s.splat(1.0), exp_bounded(s, s.mul(x, s.splat(-1.0)))))
}

/// The derivative of [`silu`].
#[inline(always)]
pub fn silu_slope<S: Simd>(s: S, x: S::V) -> S::V {
    let (g, rest) = sigmoid_pair(s, x);
    s.mul(g, s.fma(x, rest, s.splat(1.0)))
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let (one, minus) = (s.splat(1.0), s.splat(-1.0));
    let size = abs(s, x);
    let e = exp_bounded(s, s.add(size, size));
    let far = s.sub(one, s.div(s.splat(2.0), s.add(e, one)));
    let far = s.select_gt(s.splat(0.0), x, s.mul(far, minus), far);
    let z = s.mul(x, x);
    let p = polynomial(s, z, [-0.333_332_84, 0.133_314_9, -5.374_349_7e-2, 2.065_058_6e-2, -5.717_043e-3]);
    let near = s.fma(s.mul(p, z), x, x);
    s.select_gt(s.splat(0.625), size, near, far)
}

/// The derivative of [`tanh`].
#[inline(always)]
pub fn tanh_slope<S: Simd>(s: S, x: S::V) -> S::V {
    s.mul(s.splat(4.0), sigmoid_slope(s, s.add(x, x)))
}

/// ln(1 + e^x).
#[inline(always)]
pub fn softplus<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp_bounded(s, s.mul(abs(s, x), s.splat(-1.0)));
    s.add(s.max(s.splat(0.0), x), log1p(s, e))
}

/// (erf(x), erfc(|x|)), each to 1e-7 absolute.
#[inline(always)]
fn erf_pair<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let one = s.splat(1.0);
    let size = abs(s, x);
    let z = s.mul(x, x);
    // erf(x) / x
    let c =
        [1.128_379_1, -0.376_126_26, 0.112_836, -2.685_444_4e-2, 5.189_535_7e-3, -8.020_842e-4, 7.889_123e-5];
    let near = s.mul(x, polynomial(s, z, c));
    // -ln(erfc(a)) - a^2
    let a = s.min(s.splat(6.0), size);
    let c =
        [2.564_505e-4, 1.127_426, -0.362_399_9, 0.103_566_855, -2.205_197_7e-2, 2.999_535e-3, -1.915_035e-4];
    let tail = s.fma(a, a, polynomial(s, a, c));
    let rest = exp_bounded(s, s.mul(tail, s.splat(-1.0)));
    let far = s.sub(one, rest);
    let far = s.select_gt(s.splat(0.0), x, s.mul(far, s.splat(-1.0)), far);
    let close = s.sub(one, abs(s, near));
    (s.select_gt(one, size, near, far), s.select_gt(one, size, close, rest))
}

/// The error function.
#[inline(always)]
pub fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    erf_pair(s, x).0
}

/// The normal distribution below x.
#[inline(always)]
fn normal_below<S: Simd>(s: S, x: S::V) -> S::V {
    let h = s.mul(s.splat(0.5), erf_pair(s, s.mul(x, s.splat(FRAC_1_SQRT_2))).1);
    s.select_gt(s.splat(0.0), x, h, s.sub(s.splat(1.0), h))
}

/// The Gaussian error linear unit, x Phi(x), with the error function.
#[inline(always)]
pub fn gelu<S: Simd>(s: S, x: S::V) -> S::V {
    s.mul(x, normal_below(s, x))
}

/// The derivative of [`gelu`].
#[inline(always)]
pub fn gelu_slope<S: Simd>(s: S, x: S::V) -> S::V {
    let density = exp_bounded(s, s.mul(s.mul(x, x), s.splat(-0.5)));
    s.fma(s.mul(x, s.splat(0.398_942_3)), density, normal_below(s, x))
}

const TANH_CUBIC: f32 = 0.044_715;
/// 2 sqrt(2 / pi)
const TANH_SCALE: f32 = 1.595_769_2;

/// 2 z of gelu(x) = x (1 + tanh z) / 2, which is x sigmoid(2 z).
#[inline(always)]
fn gelu_tanh_inner<S: Simd>(s: S, x: S::V) -> S::V {
    let x3 = s.mul(s.mul(x, x), x);
    s.mul(s.splat(TANH_SCALE), s.fma(s.splat(TANH_CUBIC), x3, x))
}

/// The tanh approximation of the Gaussian error linear unit.
#[inline(always)]
pub fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp_bounded(s, s.mul(gelu_tanh_inner(s, x), s.splat(-1.0)));
    s.div(x, s.add(s.splat(1.0), e))
}

/// The derivative of [`gelu_tanh`].
#[inline(always)]
pub fn gelu_tanh_slope<S: Simd>(s: S, x: S::V) -> S::V {
    // The cube would overflow; the slope is 0 or 1 long before.
    let x = clamp(s, x, -100.0, 100.0);
    let (g, rest) = sigmoid_pair(s, gelu_tanh_inner(s, x));
    let dz = s.fma(s.splat(3.0 * TANH_CUBIC * TANH_SCALE), s.mul(x, x), s.splat(TANH_SCALE));
    s.mul(g, s.fma(s.mul(x, dz), rest, s.splat(1.0)))
}

/// The sine of r + (n + turn) pi / 2, where x = r + n pi / 2.
#[inline(always)]
fn sine_turned<S: Simd>(s: S, x: S::V, turn: f32) -> S::V {
    let n = s.round(s.mul(x, s.splat(FRAC_2_PI)));
    // pi / 2 in three parts; n times the first two is exact for |n| < 2^13.
    let r = s.fnma(n, s.splat(1.570_312_5), x);
    let r = s.fnma(n, s.splat(4.837_513e-4), r);
    let r = s.fnma(n, s.splat(7.549_79e-8), r);
    let z = s.mul(r, r);
    let sine = s.fma(s.mul(polynomial(s, z, [-0.166_666_55, 8.332_174e-3, -1.951_680_6e-4]), z), r, r);
    let p = polynomial(s, z, [4.166_664_6e-2, -1.388_736_3e-3, 2.443_79e-5]);
    let cosine = s.fma(s.mul(p, z), z, s.fma(s.splat(-0.5), z, s.splat(1.0)));
    // The quadrant, in -2..=2.
    let n = s.add(n, s.splat(turn));
    let j = s.fnma(s.splat(4.0), s.round(s.mul(n, s.splat(0.25))), n);
    let odd = abs(s, s.sub(abs(s, j), s.splat(1.0)));
    let y = s.select_gt(s.splat(0.5), odd, cosine, sine);
    let minus = s.mul(y, s.splat(-1.0));
    let y = s.select_gt(s.splat(-0.5), j, minus, y);
    s.select_gt(j, s.splat(1.5), minus, y)
}

/// The sine, for |x| <= 1e4; NaN at infinity.
#[inline(always)]
pub fn sin<S: Simd>(s: S, x: S::V) -> S::V {
    sine_turned(s, x, 0.0)
}

/// The cosine, for |x| <= 1e4; NaN at infinity.
#[inline(always)]
pub fn cos<S: Simd>(s: S, x: S::V) -> S::V {
    sine_turned(s, x, 1.0)
}

/// The functions of this module by name, for [`map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    Exp,
    Exp2Nonpositive,
    Ln,
    Log1p,
    Sigmoid,
    SigmoidSlope,
    Silu,
    SiluSlope,
    Tanh,
    TanhSlope,
    Softplus,
    Erf,
    Gelu,
    GeluSlope,
    GeluTanh,
    GeluTanhSlope,
    Sin,
    Cos,
}

/// `y = f(x)`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn map(level: Level, f: Function, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len());
    // SAFETY: two slices of the same length.
    unsafe { level.dispatch(Map { f, x, y }) };
}

struct Map<'a> {
    f: Function,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Map<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        for (x, y) in self.x.chunks(S::LANES).zip(self.y.chunks_mut(S::LANES)) {
            // SAFETY: both chunks have x.len() <= LANES values.
            unsafe {
                let v = s.load_first(x.as_ptr(), x.len());
                s.store_first(y.as_mut_ptr(), call(s, self.f, v), x.len());
            }
        }
    }
}

#[inline(always)]
fn call<S: Simd>(s: S, f: Function, x: S::V) -> S::V {
    match f {
        Function::Exp => exp(s, x),
        Function::Exp2Nonpositive => exp2_nonpositive(s, x),
        Function::Ln => ln(s, x),
        Function::Log1p => log1p(s, x),
        Function::Sigmoid => sigmoid(s, x),
        Function::SigmoidSlope => sigmoid_slope(s, x),
        Function::Silu => silu(s, x),
        Function::SiluSlope => silu_slope(s, x),
        Function::Tanh => tanh(s, x),
        Function::TanhSlope => tanh_slope(s, x),
        Function::Softplus => softplus(s, x),
        Function::Erf => erf(s, x),
        Function::Gelu => gelu(s, x),
        Function::GeluSlope => gelu_slope(s, x),
        Function::GeluTanh => gelu_tanh(s, x),
        Function::GeluTanhSlope => gelu_tanh_slope(s, x),
        Function::Sin => sin(s, x),
        Function::Cos => cos(s, x),
    }
}
