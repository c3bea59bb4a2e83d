//! The Anscombe transform, generalised to read noise, and its exact unbiased inverse.
//!
//! `f(y) = 2 sqrt(y + 3/8 + v)` transforms y, in electrons with read variance v, so that its noise has a variance of
//! nearly 1. Denoising f(y) gives an estimate of E[f(y)], and `f^-1` of that is not the mean: the exact unbiased
//! inverse (Mäkitalo and Foi, 2011, 2013) is the inverse of m -> E[f(y); m]. [`Inverse`] tabulates that expectation for
//! a read noise and inverts the table; beyond the table it uses the asymptotic form.

use crate::error::{PhysicsError, require};
use crate::likelihood::not_below;
use crate::poisson::log_pmf;
use crate::units::Electrons;
use std::f64::consts::TAU;

/// `2 sqrt(y + 3/8 + v)`, zero if the root is not defined.
pub fn forward(y: f64, variance: f64) -> f64 {
    2.0 * not_below(y + 0.375 + variance, 0.0).sqrt()
}

/// The asymptotic form of the inverse in closed form (Mäkitalo and Foi): within some thousandths of the exact one for
/// few electrons, and exact for many.
pub fn inverse_closed_form(d: f64, variance: f64) -> f64 {
    let r = 1.0 / d.max(f64::MIN_POSITIVE);
    let root = 1.5f64.sqrt();
    0.25 * d * d - 0.125 - variance + r * (0.25 * root + r * (-1.375 + r * 0.625 * root))
}

/// The table covers means up to this; there the closed form is exact to 1e-6.
const LARGEST_MEAN: f64 = 400.0;
/// Steps of the table in the root of the mean.
const STEPS: usize = 600;

/// E[f(y)] for Poisson(mean) with read noise of variance v.
pub fn expectation(mean: f64, variance: f64) -> f64 {
    let reach = 9.0 * mean.sqrt() + 12.0;
    let (low, high) = ((mean - reach).floor().max(0.0), (mean + reach).ceil());
    let mut sum = 0.0;
    let mut k = low;
    while k <= high {
        sum += log_pmf(k, mean).exp() * of_count(k, variance);
        k += 1.0;
    }
    sum
}

/// E[f(k + N(0, v))].
fn of_count(k: f64, variance: f64) -> f64 {
    if variance == 0.0 {
        return forward(k, 0.0);
    }
    // With u = sqrt(y + c) the integral is 4 u^2 N(u^2 - c - k; v) du over u > 0: smooth and even in u, so
    // the trapezium rule converges faster than any power.
    let (c, sigma) = (0.375 + variance, variance.sqrt());
    let highest = (c + k + 9.0 * sigma).sqrt();
    let lowest = (c + k - 9.0 * sigma).max(0.0).sqrt();
    // The narrowest feature is sigma wide in y, hence sigma / 2u in u.
    let step = sigma / (2.0 * highest) / 3.0;
    let n = ((highest - lowest) / step).ceil();
    let step = (highest - lowest) / n;
    let mut sum = 0.0;
    for i in 0..=n as usize {
        let u = lowest + step * i as f64;
        let z = (u * u - c - k) / sigma;
        sum += u * u * (-0.5 * z * z).exp();
    }
    4.0 * step * sum / (TAU.sqrt() * sigma)
}

/// The exact unbiased inverse for one read noise.
#[derive(Clone, Debug)]
pub struct Inverse {
    variance: f64,
    /// E[f(y)] at means (i h)^2.
    expected: Vec<f64>,
    step: f64,
}

impl Inverse {
    /// # Errors
    /// If the read noise is negative or not finite.
    pub fn new(read_noise: Electrons<f64>) -> Result<Inverse, PhysicsError> {
        let sigma = read_noise.0;
        require(sigma.is_finite() && sigma >= 0.0, "read noise", sigma, "a finite number not below zero")?;
        let step = LARGEST_MEAN.sqrt() / STEPS as f64;
        // What is expected of each count is computed once and serves all means.
        let variance = sigma * sigma;
        let last = (LARGEST_MEAN + 9.0 * LARGEST_MEAN.sqrt() + 13.0).ceil() as usize;
        let counts: Vec<f64> = (0..=last).map(|k| of_count(k as f64, variance)).collect();
        let expected = (0..=STEPS)
            .map(|i| {
                let mean = (step * i as f64).powi(2);
                let reach = 9.0 * mean.sqrt() + 12.0;
                let range =
                    (mean - reach).floor().max(0.0) as usize..=((mean + reach).ceil() as usize).min(last);
                range.map(|k| log_pmf(k as f64, mean).exp() * counts[k]).sum()
            })
            .collect();
        Ok(Inverse { variance, expected, step })
    }

    /// The mean whose expected transformed value is `d`; zero below the value for zero electrons.
    pub fn mean(&self, d: f64) -> f64 {
        let table = &self.expected;
        if d.is_nan() || d <= table[0] {
            return if d.is_nan() { d } else { 0.0 };
        }
        if d >= table[table.len() - 1] {
            return inverse_closed_form(d, self.variance);
        }
        let i = table.partition_point(|&e| e <= d) - 1;
        // Near darkness E[f] is smooth in the mean, elsewhere in its root; a cubic through four points of
        // (E, mean) is both.
        let first = i.saturating_sub(1).min(table.len() - 4);
        let mean = |j: usize| (self.step * j as f64).powi(2);
        let mut sum = 0.0;
        for j in first..first + 4 {
            let mut term = mean(j);
            for k in (first..first + 4).filter(|&k| k != j) {
                term *= (d - table[k]) / (table[j] - table[k]);
            }
            sum += term;
        }
        sum.max(0.0)
    }
}
