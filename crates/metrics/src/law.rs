//! Distribution functions for the tests of this crate: normal, Student's t, Kolmogorov. The quantiles of the normal
//! distribution are those of statrs; the others are more exact here (see "Crates that were tried" in ARCHITECTURE.md).

use libm::{erfc, lgamma};
use statrs::distribution::{ContinuousCDF, Normal};
use std::f64::consts::{PI, SQRT_2};

/// The share of a standard normal law below `x`.
pub fn normal_below(x: f64) -> f64 {
    0.5 * erfc(-x / SQRT_2)
}

/// The `x` that a share `below` of the standard normal law is below; `below` is above 0 and below 1. Finite where a share is so close to 1 that
/// it cannot be told from it.
pub fn normal_quantile(below: f64) -> f64 {
    Normal::standard().inverse_cdf(below).clamp(-40.0, 40.0)
}

/// The share of Student's law with `freedom` degrees that is at least as far from zero as `t`.
pub fn student_beyond(t: f64, freedom: f64) -> f64 {
    if t.is_nan() {
        return f64::NAN;
    }
    if t.is_infinite() {
        return 0.0;
    }
    let square = t * t;
    // Both shares are passed, because 1 - x has no digits where x is near 1.
    beta_below(freedom / (freedom + square), square / (freedom + square), 0.5 * freedom, 0.5)
}

/// The `t` that a share `beyond` of Student's law is at least as far from zero as; `beyond` is above
/// 0 and below 1.
pub fn student_quantile(beyond: f64, freedom: f64) -> f64 {
    let mut high = 1.0;
    while student_beyond(high, freedom) > beyond && high < 1e300 {
        high *= 2.0;
    }
    let mut low = 0.0;
    // Each turn halves the interval; 200 exhaust f64 from any start.
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if student_beyond(middle, freedom) > beyond { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// The share of Kolmogorov's limit law above `x`.
pub fn kolmogorov_above(x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    // Two series of one function; each converges in a few terms where it is used.
    if x < 1.0 {
        let term = |k: u32| (-(f64::from(2 * k - 1) * PI).powi(2) / (8.0 * x * x)).exp();
        return 1.0 - (2.0 * PI).sqrt() / x * (1..=6).map(term).sum::<f64>();
    }
    let term = |k: i32| (if k % 2 == 1 { 2.0 } else { -2.0 }) * (-2.0 * f64::from(k * k) * x * x).exp();
    (1..=6).map(term).sum()
}

/// The share of samples of `n` whose law is farther than `d` from their own, exactly for up to 1000 of them and by the
/// limit law beyond.
pub fn kolmogorov_beyond(n: usize, d: f64) -> f64 {
    let count = n as f64;
    if d <= 0.5 / count {
        return 1.0;
    }
    if d >= 1.0 {
        return 0.0;
    }
    if n > 1000 {
        return kolmogorov_above(d * count.sqrt());
    }
    if count * d * d > 4.0 {
        // So far out that samples are hardly ever too high and too low at once: twice the one-sided law (Smirnov, 1944).
        return (2.0 * one_sided_beyond(n, d)).min(1.0);
    }
    (1.0 - kolmogorov_within(n, d)).clamp(0.0, 1.0)
}

/// The share of samples whose law is somewhere farther than `d` above their own.
fn one_sided_beyond(n: usize, d: f64) -> f64 {
    let count = n as f64;
    let term = |j: usize| {
        let (j, below) = (j as f64, d + j as f64 / count);
        let choose = lgamma(count + 1.0) - lgamma(j + 1.0) - lgamma(count - j + 1.0);
        (choose + (j - 1.0) * below.ln() + (count - j) * (1.0 - below).max(0.0).ln()).exp()
    };
    d * (0..=(count * (1.0 - d)) as usize).filter(|&j| d + (j as f64) / count < 1.0).map(term).sum::<f64>()
}

/// Durbin's matrix (1973) to the n-th power, as Marsaglia, Tsang and Wang (2003) arrange it.
fn kolmogorov_within(n: usize, d: f64) -> f64 {
    let k = (n as f64 * d) as usize + 1;
    let m = 2 * k - 1;
    let h = k as f64 - n as f64 * d;
    let mut matrix = vec![0.0; m * m];
    for i in 0..m {
        for j in 0..m {
            matrix[i * m + j] = f64::from(i + 1 >= j);
        }
    }
    for i in 0..m {
        matrix[i * m] -= h.powi(i as i32 + 1);
        matrix[(m - 1) * m + i] -= h.powi((m - i) as i32);
    }
    if 2.0 * h > 1.0 {
        matrix[(m - 1) * m] += (2.0 * h - 1.0).powi(m as i32);
    }
    for i in 0..m {
        for j in 0..m {
            for g in 1..(i + 2).saturating_sub(j) {
                matrix[i * m + j] /= g as f64;
            }
        }
    }
    // n! / n^n is worked in one factor a power of the matrix, so that nothing overflows: as logarithms of scale.
    let (mut power, mut scale) = (identity(m), 0.0);
    let (mut square, mut square_scale) = (matrix, 0.0f64);
    let mut left = n;
    while left > 0 {
        if left % 2 == 1 {
            power = product(&power, &square, m);
            scale += square_scale + rescale(&mut power);
        }
        square = product(&square, &square, m);
        square_scale = 2.0 * square_scale + rescale(&mut square);
        left /= 2;
    }
    let count = n as f64;
    let log = power[(k - 1) * m + k - 1].ln() + scale + lgamma(count + 1.0) - count * count.ln();
    log.exp()
}

fn identity(m: usize) -> Vec<f64> {
    (0..m * m).map(|i| f64::from(i / m == i % m)).collect()
}

fn product(a: &[f64], b: &[f64], m: usize) -> Vec<f64> {
    let mut out = vec![0.0; m * m];
    for i in 0..m {
        for k in 0..m {
            let v = a[i * m + k];
            out[i * m..][..m].iter_mut().zip(&b[k * m..]).for_each(|(o, b)| *o += v * b);
        }
    }
    out
}

/// Makes the largest entry 1; gives the logarithm of what it was.
fn rescale(matrix: &mut [f64]) -> f64 {
    let largest = matrix.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    matrix.iter_mut().for_each(|v| *v /= largest);
    largest.ln()
}

/// The regularised incomplete beta function I_x(a, b), with y = 1 - x.
fn beta_below(x: f64, y: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if y <= 0.0 {
        return 1.0;
    }
    let front = (lgamma(a + b) - lgamma(a) - lgamma(b) + a * x.ln() + b * y.ln()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(x, a, b) / a
    } else {
        1.0 - front * beta_fraction(y, b, a) / b
    }
}

/// The continued fraction of the incomplete beta function, by Lentz's method.
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    let away = |v: f64| if v.abs() < 1e-300 { 1e-300 } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / away(1.0 - (a + b) * x / (a + 1.0));
    let mut h = d;
    // About the square root of the larger parameter is enough.
    let terms = 200.0 + 10.0 * a.max(b).sqrt();
    let mut m = 1.0;
    while m < terms {
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for step in [even, odd] {
            d = 1.0 / away(1.0 + step * d);
            c = away(1.0 + step / c);
            change = c * d;
            h *= change;
        }
        if (change - 1.0).abs() < 1e-16 {
            break;
        }
        m += 1.0;
    }
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, tolerance: f64) {
        assert!((a - b).abs() <= tolerance * b.abs(), "{a} {b}");
    }

    /// Closed forms: 1 degree is Cauchy's law, 2 degrees are algebraic.
    #[test]
    fn student_has_closed_forms() {
        for t in [0.1, 0.7, 1.0, 3.0, 40.0f64] {
            close(student_beyond(t, 1.0), 1.0 - 2.0 / PI * t.atan(), 1e-12);
            close(student_beyond(-t, 2.0), 1.0 - t / (2.0 + t * t).sqrt(), 1e-11);
        }
        assert_eq!(student_beyond(0.0, 5.0), 1.0);
        assert!(student_beyond(f64::NAN, 5.0).is_nan());
    }

    #[test]
    fn many_degrees_are_normal() {
        close(student_beyond(1.96, 1e7), 2.0 * normal_below(-1.96), 1e-6);
        close(normal_below(1.0), 0.841_344_746_068_542_9, 1e-14);
    }

    #[test]
    fn quantiles_invert() {
        for freedom in [1.0, 4.0, 99.0, 1e6] {
            for beyond in [0.5, 0.05, 1e-4] {
                close(student_beyond(student_quantile(beyond, freedom), freedom), beyond, 1e-8);
            }
        }
    }

    #[test]
    fn the_two_series_meet() {
        close(kolmogorov_above(1.0 - 1e-12), kolmogorov_above(1.0), 1e-10);
        assert_eq!((kolmogorov_above(0.0), kolmogorov_above(0.01)), (1.0, 1.0));
        assert!(kolmogorov_above(5.0) < 1e-20);
    }

    /// scipy.stats.kstwo.sf; one value is uniform: P(D > d) = 2 (1 - d).
    #[test]
    fn kolmogorov_equals_scipy() {
        let known = [
            (1, 0.7, 0.6),
            (5, 0.3, 0.664),
            (10, 0.2, 0.748_719_04),
            (10, 0.274, 0.371_520_384_543_495_7),
            (40, 0.1, 0.781_810_970_718_290_3),
            (100, 0.05, 0.953_215_971_063_572_5),
            (100, 0.25, 5.408_871_776_434_847e-6),
        ];
        for (n, d, p) in known {
            close(kolmogorov_beyond(n, d), p, 1e-9);
        }
        // From 500 values on scipy approximates.
        close(kolmogorov_beyond(1000, 0.02), 0.810_897_165_689_557_7, 1e-6);
        close(kolmogorov_beyond(1000, 0.05), 0.013_012_074_781_090_332, 1e-6);
        close(kolmogorov_beyond(2000, 0.03), 0.053_546_947_939_325_57, 0.03);
        assert_eq!((kolmogorov_beyond(7, 0.0), kolmogorov_beyond(7, 1.0)), (1.0, 0.0));
    }

    #[test]
    fn normal_quantiles_invert() {
        for below in [1e-9, 0.025, 0.5, 0.8, 0.999] {
            close(normal_below(normal_quantile(below)), below, 1e-10);
        }
    }
}
