//! Saturated pixels as censored measurements: their expected value, and a lower bound of their mean.
//!
//! The noise of such bright pixels is practically Gaussian. A measurement Y with mean m and standard deviation s that
//! is known to be at least L has the mean of a truncated normal distribution, m + s h((L - m) / s), where h is the
//! normal density divided by the upper tail probability. This is the E-step of Tobit regression, and the value to pass
//! to a restorer that does not handle saturation: the surrounding noise is then neither clipped nor biased.

use libm::{erfc, exp};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Beyond this many standard deviations the share above is too small for its own quotient.
const FAR: f64 = 5.0;

/// The density of the standard normal distribution at x divided by its upper tail probability.
pub fn hazard(x: f64) -> f64 {
    if x > FAR {
        // Laplace's continued fraction of the share above.
        return (1..40).rev().fold(x, |below, n| x + f64::from(n) / below);
    }
    exp(-0.5 * x * x) / (0.5 * (2.0 * PI).sqrt() * erfc(x * FRAC_1_SQRT_2))
}

/// The mean of a normal distribution truncated to values above `limit`; at least its mean and `limit`.
pub fn expectation(mean: f64, deviation: f64, limit: f64) -> f64 {
    if deviation.is_nan() || deviation <= 0.0 {
        return mean.max(limit);
    }
    (mean + deviation * hazard((limit - mean) / deviation)).max(limit)
}

/// The largest distance of the mean below the limit, in standard deviations, at which `count` pixels all reach the
/// limit with a probability of at least `chance`; negative if the mean must be above the limit.
pub fn slack(count: f64, chance: f64) -> f64 {
    let each = exp(chance.ln() / count.max(1.0));
    // The share of a normal law above x falls with x: halve the interval.
    let above = |x: f64| 0.5 * erfc(x * FRAC_1_SQRT_2);
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if above(middle) > each { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the integrals of y p(y) and p(y) above the limit, by Simpson's rule.
    #[test]
    fn the_mean_above_a_limit() {
        for (mean, deviation, limit) in
            [(200.0, 30.0, 255.0), (255.0, 9.0, 255.0), (400.0, 20.0, 255.0), (10.0, 1.5, 25.0)]
        {
            let density = |y: f64| (-0.5 * ((y - mean) / deviation).powi(2)).exp();
            let from = f64::max(limit, mean - 12.0 * deviation);
            let (n, h) = (20_000, (f64::max(mean, limit) + 12.0 * deviation - from) / 20_000.0);
            let (mut share, mut sum) = (0.0, 0.0);
            for i in 0..=n {
                let weight = if i == 0 || i == n { 1.0 } else { 2.0 + 2.0 * f64::from(i % 2) };
                let y = from + h * f64::from(i);
                share += weight * density(y);
                sum += weight * y * density(y);
            }
            let exact = sum / share;
            let got = expectation(mean, deviation, limit);
            assert!((got - exact).abs() < 1e-7 * exact, "{mean} {deviation} {limit}: {got} for {exact}");
        }
        assert_eq!(expectation(20.0, 0.0, 255.0), 255.0);
        assert_eq!(expectation(300.0, 0.0, 255.0), 300.0);
    }

    #[test]
    fn the_hazard_is_smooth_where_its_forms_meet_and_stays_finite() {
        let [before, after] = [FAR, FAR + 1e-9].map(hazard);
        assert!((before - after).abs() < 1e-6, "{before} {after}");
        assert!((hazard(0.0) - (2.0 / PI).sqrt()).abs() < 1e-15);
        assert!(hazard(-50.0) == 0.0 && (hazard(1e6) - 1e6).abs() < 1e-3);
    }

    #[test]
    fn more_pixels_at_the_limit_leave_their_mean_less_room() {
        // One pixel: the quantile of a millionth; nine at one half each are a chance of 1 in 512.
        assert!((slack(1.0, 1e-6) - 4.753_424).abs() < 1e-5);
        assert!(slack(9.0, 1.0 / 512.0).abs() < 1e-12);
        let all: Vec<f64> = (1..=25).map(|k| slack(f64::from(k), 1e-6)).collect();
        assert!(all.windows(2).all(|w| w[1] < w[0]) && all[24] < 0.0);
    }
}
