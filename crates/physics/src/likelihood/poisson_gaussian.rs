//! The exact likelihood of Poisson counts with Gaussian read noise: `p(y; m) = sum over k of Poisson(k; m) N(y - k;
//! v)`.
//!
//! The terms are a log-concave function of k, so they have one mode, between m and y, and decrease on both sides of it
//! with a width w, `1 / w^2 = 1 / (k + 1) + 1 / v`. The sum is taken in logarithms from the mode outwards until a term
//! is negligible, however far apart mode, mean and measurement are. For large w the terms are smooth, and every n-th
//! term with n = w/2 gives the same sum: the error of the trapezium rule on a bell of width w is exp(-2 (pi w / n)^2).
//! A sum therefore has at most some hundred terms.

use crate::poisson::log_pmf;
use std::f64::consts::TAU;

/// Terms below exp(-this) of the largest are left out.
const NEGLIGIBLE: f64 = 46.0;

/// -ln p(y; m), for a positive mean.
pub fn value(y: f64, mean: f64, variance: f64) -> f64 {
    if variance == 0.0 {
        return super::poisson(super::not_below(y, 0.0), mean);
    }
    0.5 * (TAU * variance).ln() - sums(y, mean, variance).log_sum
}

/// d/dm of [`value`]: 1 - E[k | y] / m.
pub fn slope(y: f64, mean: f64, variance: f64) -> f64 {
    if variance == 0.0 {
        return 1.0 - super::not_below(y, 0.0) / mean;
    }
    -sums(y, mean, variance).excess / mean
}

struct Sums {
    log_sum: f64,
    /// E[k | y] - m.
    excess: f64,
}

fn sums(y: f64, mean: f64, variance: f64) -> Sums {
    let mode = mode(y, mean, variance);
    let width = (1.0 / (mode + 1.0) + 1.0 / variance).powf(-0.5);
    // Where the bell reaches k = 0 it is cut off, not smooth, and every term counts.
    let far_from_zero = mode > 10.0 * width + 10.0;
    let step = if far_from_zero { (0.5 * width).floor().max(1.0) } else { 1.0 };
    let term = |k: f64| log_pmf(k, mean) - 0.5 * (y - k) * (y - k) / variance;
    let first = mode.round();
    let top = term(first);
    if top.is_nan() {
        return Sums { log_sum: top, excess: top };
    }
    let (mut sum, mut excess) = (1.0, first - mean);
    for direction in [step, -step] {
        let mut k = first + direction;
        while k >= 0.0 {
            let relative = term(k) - top;
            // Also where it is no number, infinitely far away.
            if relative.is_nan() || relative < -NEGLIGIBLE {
                break;
            }
            let weight = relative.exp();
            sum += weight;
            excess += weight * (k - mean);
            k += direction;
        }
    }
    Sums { log_sum: top + (sum * step).ln(), excess: excess / sum }
}

/// Where the terms are largest, to within a part of a count or of f64's resolution.
fn mode(y: f64, mean: f64, variance: f64) -> f64 {
    // ln(k + 1/2) is the digamma function of k + 1 to within 1 / 24 (k + 1/2)^2.
    let rises = |k: f64| mean.ln() - (k + 0.5).ln() + (y - k) / variance > 0.0;
    if !rises(0.0) {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, mean.max(y) + 1.0);
    while high - low > 0.25 {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        if rises(middle) { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}
