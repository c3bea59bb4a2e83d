//! Elementary functions on vectors, generic over [`Simd`].
//!
//! Each is within a few units in the last place of the exact value over the range where its result
//! is a normal number; the tests say how many.

use crate::simd::Simd;

/// e to the x. Saturates to 0 and to infinity; NaN stays NaN.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts so that r is exact to working precision.
    let hi = s.splat(88.722_83);
    let lo = s.splat(-87.336_55);
    let clamped = s.min(s.max(x, lo), hi);
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    let n = s.min(n, s.splat(127.0));
    let r = s.fnma(n, s.splat(0.693_359_4), clamped);
    let r = s.fnma(n, s.splat(-2.121_944_4e-4), r);
    // Minimax polynomial of (e^r - 1 - r) / r^2.
    let p = s.splat(1.987_569_1e-4);
    let p = s.fma(p, r, s.splat(1.398_199_9e-3));
    let p = s.fma(p, r, s.splat(8.333_452e-3));
    let p = s.fma(p, r, s.splat(4.166_579_6e-2));
    let p = s.fma(p, r, s.splat(1.666_666_5e-1));
    let p = s.fma(p, r, s.splat(0.5));
    let e = s.add(s.fma(s.mul(p, r), r, r), s.splat(1.0));
    let y = s.mul(e, s.exp2_whole(n));
    let y = s.select_gt(x, hi, s.splat(f32::INFINITY), y);
    let y = s.select_gt(lo, x, s.splat(0.0), y);
    // NaN compares false with everything: x + x is NaN again and otherwise unused.
    s.select_gt(x, s.splat(f32::NEG_INFINITY), y, s.select_gt(s.splat(0.0), x, y, s.add(x, x)))
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// x sigmoid(x).
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x))))
}
