//! Gradients and informations of likelihoods as nodes of a graph.
//!
//! y, mean and variance broadcast against each other and are in electrons, as on the host. Invalid pixels must have a
//! finite y; the caller multiplies their results by a mask of zeros.
//!
//! The exact Poisson-Gaussian gradient is a sum over [`TERMS`] counts around the mode, along an additional axis after
//! the channels: it takes that many times the memory of an image. The mode is found by [`NEWTON_STEPS`] steps of
//! Newton's method, which converges monotonically from its starting point. In f32 it agrees with the host to 1e-3 of
//! the noise of the gradient, 1 / sqrt(m + v), for means and measurements up to 10^6 electrons and read noise from 0.01
//! electrons on; use `ShiftedPoisson` beyond, where the two are equal.

use super::{FLOOR, Likelihood};
use clearshot_graph::ops::{Binary, Unary};
use clearshot_graph::{Builder, Value};
use clearshot_tensor::{DType, Shape, Tensor};

/// Counts on each side of the mode.
const SIDE: usize = 32;
/// Counts in the sum.
pub const TERMS: usize = 2 * SIDE + 1;
pub const NEWTON_STEPS: usize = 10;
/// The least variance of read noise in the exact sum.
const LEAST_VARIANCE: f64 = 1e-4;
/// Larger than any logarithm of the sum, and finite.
const IMPOSSIBLE: f64 = 1e30;

impl Likelihood {
    /// Adds the gradient in the mean: [`Likelihood::slope`].
    #[track_caller]
    pub fn build_slope(self, b: &mut Builder, y: Value, mean: Value, variance: Value) -> Value {
        if self.is_quadratic() {
            let residual = b.sub(mean, y);
            let spread = self.spread(b, y, variance);
            return b.div(residual, spread);
        }
        let m = b.unary(Unary::Clamp(FLOOR, f64::MAX), mean);
        let total = b.add(m, variance);
        let inside = match self {
            Likelihood::Gaussian | Likelihood::WeightedLeastSquares => unreachable!("quadratic"),
            Likelihood::Heteroscedastic => {
                let r = b.sub(m, y);
                let relative = b.div(r, total);
                let square = b.mul(r, relative);
                let half = affine(b, square, -0.5, 0.5);
                let second = b.div(half, total);
                b.add(relative, second)
            }
            Likelihood::Poisson => {
                let counts = b.unary(Unary::Relu, y);
                let r = b.sub(m, counts);
                b.div(r, m)
            }
            Likelihood::ShiftedPoisson => {
                let shifted = b.add(y, variance);
                let counts = b.unary(Unary::Relu, shifted);
                let r = b.sub(total, counts);
                b.div(r, total)
            }
            Likelihood::PoissonGaussian => exact(b, y, m, variance),
            Likelihood::Anscombe => {
                let root = |b: &mut Builder, z: Value| {
                    let sum = b.add(z, variance);
                    let shifted = b.add_scalar(sum, 0.375);
                    let light = b.unary(Unary::Relu, shifted);
                    b.unary(Unary::Sqrt, light)
                };
                let (of_mean, of_y) = (root(b, m), root(b, y));
                let ratio = b.div(of_y, of_mean);
                affine(b, ratio, -2.0, 2.0)
            }
        };
        let below = b.sub(mean, m);
        let information = self.build_information(b, y, mean, variance);
        let extension = b.mul(below, information);
        b.add(inside, extension)
    }

    /// Adds Fisher's information about the mean: [`Likelihood::information`].
    #[track_caller]
    pub fn build_information(self, b: &mut Builder, y: Value, mean: Value, variance: Value) -> Value {
        if self.is_quadratic() {
            let spread = self.spread(b, y, variance);
            return b.unary(Unary::Recip, spread);
        }
        let m = b.unary(Unary::Clamp(FLOOR, f64::MAX), mean);
        let total = match self {
            Likelihood::Poisson => m,
            Likelihood::Anscombe => {
                let total = b.add(m, variance);
                b.add_scalar(total, 0.375)
            }
            _ => b.add(m, variance),
        };
        let precision = b.unary(Unary::Recip, total);
        if self != Likelihood::Heteroscedastic {
            return precision;
        }
        let more = affine(b, precision, 0.5, 1.0);
        b.mul(precision, more)
    }

    /// The variance of a quadratic likelihood.
    #[track_caller]
    fn spread(self, b: &mut Builder, y: Value, variance: Value) -> Value {
        if self == Likelihood::Gaussian {
            return variance;
        }
        let counts = b.unary(Unary::Clamp(1.0, f64::MAX), y);
        b.add(counts, variance)
    }
}

/// `scale x + shift`.
#[track_caller]
fn affine(b: &mut Builder, x: Value, scale: f64, shift: f64) -> Value {
    let scaled = b.mul_scalar(x, scale);
    b.add_scalar(scaled, shift)
}

/// 1 - E[k | y] / m over counts around the mode.
#[track_caller]
fn exact(b: &mut Builder, y: Value, m: Value, variance: Value) -> Value {
    let v = b.unary(Unary::Clamp(LEAST_VARIANCE, f64::MAX), variance);
    let (k0, step) = window(b, y, m, v);
    let flat = [y, m, v].into_iter().fold(b.shape(k0), |s, x| s.broadcast(&b.shape(x)).unwrap_or(s));
    // One axis more for the counts.
    let mut sizes = flat.to_vec();
    sizes.push(1);
    let behind = Shape::new(&sizes);
    let with_axis = |b: &mut Builder, x: Value| {
        let whole = b.broadcast(x, flat);
        b.reshape(whole, behind)
    };
    let offsets = (0..TERMS).map(|j| j as f32 - SIDE as f32).collect();
    let offsets = b.constant(Tensor::f32([TERMS], offsets));
    let (step, k0_, y_, m_, v_) =
        (with_axis(b, step), with_axis(b, k0), with_axis(b, y), with_axis(b, m), with_axis(b, v));
    let d = b.mul(step, offsets);
    let k = b.add(k0_, d);

    // ln N(y - k; v) - ln N(y - k0; v) = d (y - k0 - d / 2) / v.
    let residual = b.sub(y_, k0_);
    let half = b.mul_scalar(d, 0.5);
    let middle = b.sub(residual, half);
    let relative = b.div(d, v_);
    let read = b.mul(relative, middle);
    let shot = log_ratio(b, k, k0_, d, m_);
    // Counts below zero are impossible.
    let edge = b.scalar(-0.5);
    let possible = b.binary(Binary::Greater, k, edge);
    let bar = affine(b, possible, IMPOSSIBLE, -IMPOSSIBLE);
    let logits = b.add(read, shot);
    let logits = b.add(logits, bar);
    let weights = b.softmax(logits);
    let weighted = b.mul(weights, d);
    let beyond = b.sum(weighted, &[flat.rank()]);
    let beyond = b.reshape(beyond, flat);
    let below = b.sub(m, k0);
    let difference = b.sub(below, beyond);
    b.div(difference, m)
}

/// The count at the mode, and the step from count to count that covers its surroundings.
#[track_caller]
fn window(b: &mut Builder, y: Value, m: Value, v: Value) -> (Value, Value) {
    // With s = ln((k + 1/2) / m) the mode solves s + (m e^s - y - 1/2) / v = 0, which is convex and rises:
    // from a point where it is not below zero, Newton's method comes down to it.
    let target = b.add_scalar(y, 0.5);
    let counts = b.binary(Binary::Max, target, m);
    let ratio = b.div(counts, m);
    let mut s = b.unary(Unary::Log, ratio);
    for _ in 0..NEWTON_STEPS {
        let e = b.unary(Unary::Exp, s);
        let k = b.mul(m, e);
        let excess = b.sub(k, target);
        let pull = b.div(excess, v);
        let f = b.add(s, pull);
        let slope = b.div(k, v);
        let slope = b.add_scalar(slope, 1.0);
        let change = b.div(f, slope);
        s = b.sub(s, change);
    }
    let e = b.unary(Unary::Exp, s);
    let at = b.mul(m, e);
    // m e^s is k + 1/2, so cutting it off rounds k.
    let k0 = whole(b, at);
    let shot = b.add_scalar(k0, 1.0);
    let shot = b.unary(Unary::Recip, shot);
    let read = b.unary(Unary::Recip, v);
    let precision = b.add(shot, read);
    let width = b.unary(Unary::PowScalar(-0.5), precision);
    let third = b.mul_scalar(width, 1.0 / 3.0);
    let step = whole(b, third);
    (k0, b.unary(Unary::Clamp(1.0, f64::MAX), step))
}

/// Cut off to a whole number.
#[track_caller]
fn whole(b: &mut Builder, x: Value) -> Value {
    let bounded = b.unary(Unary::Clamp(0.0, 1e9), x);
    let number = b.cast(bounded, DType::I32);
    b.cast(number, DType::F32)
}

/// ln Poisson(k; m) - ln Poisson(k0; m) with k = k0 + d.
///
/// k! is Gamma(k + 4) / ((k + 1)(k + 2)(k + 3)), and Gamma(k + 4) is Stirling's series about
/// z = k + 3.5, whose large part is taken as a difference that does not cancel.
#[track_caller]
fn log_ratio(b: &mut Builder, k: Value, k0: Value, d: Value, m: Value) -> Value {
    let k = b.unary(Unary::Relu, k);
    let (z, z0) = (b.add_scalar(k, 3.5), b.add_scalar(k0, 3.5));
    // z ln(z / z0) - d: by logarithm, or where z and z0 are close by the series of
    // ln(z / z0) = 2 artanh t, t = d / (z + z0): d t + 2 z (t^3 / 3 + t^5 / 5 + ...).
    let quotient = b.div(z, z0);
    let log = b.unary(Unary::Log, quotient);
    let product = b.mul(z, log);
    let direct = b.sub(product, d);
    let sum = b.add(z, z0);
    let t = b.div(d, sum);
    let t2 = b.unary(Unary::Square, t);
    let series = affine(b, t2, 2.0 / 9.0, 2.0 / 7.0);
    let series = b.mul(series, t2);
    let series = b.add_scalar(series, 2.0 / 5.0);
    let series = b.mul(series, t2);
    let series = b.add_scalar(series, 2.0 / 3.0);
    let cube = b.mul(t2, t);
    let cubic = b.mul(cube, z);
    let tail = b.mul(series, cubic);
    let lead = b.mul(d, t);
    let close = b.add(lead, tail);
    let limit = b.scalar(0.01);
    let far = b.binary(Binary::Greater, t2, limit);
    let gap = b.sub(direct, close);
    let gap = b.mul(far, gap);
    let deviance = b.add(close, gap);

    let level = b.div(m, z0);
    let level = b.unary(Unary::Log, level);
    let drift = b.mul(d, level);
    let main = b.sub(drift, deviance);
    // The rest of Stirling's series and the three factors.
    let (rest, rest0) = (small_part(b, k, z), small_part(b, k0, z0));
    let rests = b.sub(rest, rest0);
    b.add(main, rests)
}

/// ln((k+1)(k+2)(k+3)) + 1/(24 z) - 7/(2880 z^3) + 31/(40320 z^5) - 127/(430080 z^7).
#[track_caller]
fn small_part(b: &mut Builder, k: Value, z: Value) -> Value {
    let [one, two, three] = [1.0, 2.0, 3.0].map(|c| b.add_scalar(k, c));
    let logs = [one, two, three].map(|f| b.unary(Unary::Log, f));
    let sum = b.add(logs[0], logs[1]);
    let sum = b.add(sum, logs[2]);
    let inverse = b.unary(Unary::Recip, z);
    let square = b.unary(Unary::Square, inverse);
    let series = affine(b, square, -127.0 / 430_080.0, 31.0 / 40_320.0);
    let series = b.mul(series, square);
    let series = b.add_scalar(series, -7.0 / 2880.0);
    let series = b.mul(series, square);
    let series = b.add_scalar(series, 1.0 / 24.0);
    let series = b.mul(series, inverse);
    b.add(sum, series)
}
