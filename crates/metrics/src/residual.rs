//! Tests of the residual of a restoration: chi2, whiteness, bias, normality.
//!
//! None of these needs the truth: a faithful restoration leaves a residual with the variance of the camera noise, without
//! structure and without bias. Each result contains its expected value and the deviation that is possible by chance.
//!
//! Correlated noise is first divided by its own spectrum; chi2 then varies more, as if there were fewer pixels. Whiteness
//! is computed from the raw periodogram. Its flatness (geometric over arithmetic mean) is exp(-0.5772) = 0.5615 for white
//! noise and never close to 1, because each bin of a periodogram has an exponential distribution; thresholds such as 0.8
//! would refuse everything.

use crate::error::require;
use crate::fourier::{forward, signed, unravel};
use crate::law::{kolmogorov_beyond, normal_below, student_beyond, student_quantile};
use crate::{ImageRef, MetricError};
use std::f64::consts::PI;

const EULER: f64 = 0.577_215_664_901_532_9;
/// The second derivative of digamma at 1: -2 zeta(3).
const TETRAGAMMA: f64 = -2.404_113_806_319_188_6;

/// The mean of squared residuals in units of their variance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chi2 {
    pub value: f64,
    pub pixels: usize,
    /// The sum of the squared correlations of a pixel's noise with that of all pixels, itself included: 1 for white noise. Squares
    /// of pixels that are shared tell less than as many independent ones.
    pub shared: f64,
}

impl Chi2 {
    /// Three standard errors of the value for normal noise, 3 sqrt(2 shared / N). Poisson noise of mean m
    /// adds its excess kurtosis: 3 sqrt((2 + 1/m) / N).
    pub fn tolerance(&self) -> f64 {
        3.0 * (2.0 * self.shared / self.pixels as f64).sqrt()
    }

    /// The same of noise that neighbours share.
    pub fn with_shared(self, shared: f64) -> Chi2 {
        Chi2 { shared, ..self }
    }

    /// Whether 1 is within the tolerance.
    pub fn is_consistent(&self) -> bool {
        (self.value - 1.0).abs() <= self.tolerance()
    }
}

/// (observed - predicted) / sqrt(variance) of the pixels that count.
///
/// # Errors
/// If shapes differ, no pixel counts, or a variance that counts is not a finite number above zero.
pub fn standardised(
    observed: ImageRef<'_>,
    predicted: ImageRef<'_>,
    variance: ImageRef<'_>,
    mask: Option<&[bool]>,
) -> Result<Vec<f64>, MetricError> {
    observed.same_shape("predicted image", predicted)?;
    observed.same_shape("variance", variance)?;
    observed.check_mask(mask)?;
    let z = |index: usize| {
        let got = variance.data()[index];
        if !(got.is_finite() && got > 0.0) {
            let needed = "a finite number above zero";
            return Err(MetricError::Pixel { what: "variance", index, got, needed });
        }
        Ok((observed.data()[index] - predicted.data()[index]) / got.sqrt())
    };
    let counts = |&i: &usize| mask.is_none_or(|m| m[i]);
    (0..observed.data().len()).filter(counts).map(z).collect()
}

/// chi2 a pixel; NaN if a pixel that counts is.
///
/// # Errors
/// As [`standardised`].
pub fn chi2(
    observed: ImageRef<'_>,
    predicted: ImageRef<'_>,
    variance: ImageRef<'_>,
    mask: Option<&[bool]>,
) -> Result<Chi2, MetricError> {
    let z = standardised(observed, predicted, variance, mask)?;
    Ok(Chi2 { value: z.iter().map(|z| z * z).sum::<f64>() / z.len() as f64, pixels: z.len(), shared: 1.0 })
}

/// How flat a residual's spectrum is.
#[derive(Clone, Debug, PartialEq)]
pub struct Whiteness {
    /// Geometric over arithmetic mean of the periodogram: 0.5615 for white noise, less for colour.
    pub flatness: f64,
    /// How often white normal noise is at most as flat.
    pub p: f64,
    /// The correlation of neighbours along each axis beyond that of the noise; 0 for noise alone.
    pub neighbours: Vec<f64>,
}

/// Bins where noise has less than this share of its mean power tell of everything but noise.
const LEAST_POWER: f64 = 0.05;

/// The flatness of the spectrum of a whole image of residuals of equal variance. Zero frequency is
/// left out (that is the bias), as are the few bins that are their own conjugates. Where neighbours share the noise, its power
/// spectrum of mean 1 on the grid of the image's Fourier transform is divided out, and bins with hardly any of it are left out.
///
/// # Errors
/// If a pixel is not finite, all are equal (there is no spectrum then), the image has fewer than 8 pairs of conjugate bins, or the
/// noise's spectrum has another size.
pub fn whiteness(residual: ImageRef<'_>, noise: Option<&[f64]>) -> Result<Whiteness, MetricError> {
    let (data, shape) = (residual.data(), residual.shape());
    if let Some(got) = noise.map(<[f64]>::len).filter(|n| *n != data.len()) {
        let needed = "as many as the residual's pixels";
        return Err(MetricError::Count { what: "the bins of the noise's spectrum", got, needed });
    }
    if let Some(index) = data.iter().position(|x| !x.is_finite()) {
        let got = data[index];
        return Err(MetricError::Pixel { what: "residual", index, got, needed: "a finite value" });
    }
    // Differences from one pixel, which change zero frequency only: otherwise equal residuals would have the spectrum of rounding.
    let differences: Vec<f64> = data.iter().map(|x| x - data[0]).collect();
    if differences.iter().all(|&x| x == 0.0) {
        let needed = "residuals that differ from each other";
        return Err(MetricError::Pixel { what: "residual", index: 0, got: data[0], needed });
    }
    let spectrum = forward(&differences, shape);
    let of_noise = |i: usize| noise.map_or(1.0, |n| n[i]);
    let bins: Vec<usize> = independent(shape).filter(|&i| of_noise(i) >= LEAST_POWER).collect();
    let power: Vec<f64> = bins.iter().map(|&i| spectrum[i].norm_sqr() / of_noise(i)).collect();
    if power.len() < 8 {
        let got = power.len();
        return Err(MetricError::Count { what: "the spectrum's bins", got, needed: "8 or more" });
    }
    let m = power.len() as f64;
    let log_flatness = power.iter().map(|p| p.ln()).sum::<f64>() / m - (power.iter().sum::<f64>() / m).ln();
    let neighbours = (0..shape.len()).map(|axis| shared(&bins, &power, shape, axis)).collect();
    Ok(Whiteness { flatness: log_flatness.exp(), p: flatness_below(log_flatness, m), neighbours })
}

/// The correlation of neighbours along an axis that some bins of a spectrum tell, less what equal power in them would.
fn shared(bins: &[usize], power: &[f64], shape: &[usize], axis: usize) -> f64 {
    let stride: usize = shape[axis + 1..].iter().product();
    let wave = |&i: &usize| (2.0 * PI * (i / stride % shape[axis]) as f64 / shape[axis] as f64).cos();
    let total: f64 = power.iter().sum();
    let found: f64 = bins.iter().zip(power).map(|(i, p)| wave(i) * p).sum();
    found / total - bins.iter().map(wave).sum::<f64>() / bins.len() as f64
}

/// How often the logarithm of the flatness of `m` bins of white noise is at most this.
///
/// Shares of a sum of exponential numbers follow Dirichlet's law, so the cumulants of order n are
/// psi_n(1) / m^(n-1) - psi_n(m), psi being the polygamma functions. Three of them and Wilson's and Hilferty's cube root stand for
/// the law, which is skewed where bins are few.
fn flatness_below(log_flatness: f64, m: f64) -> f64 {
    let mean = -EULER + 0.5 / m + 1.0 / (12.0 * m * m);
    let variance = (PI * PI / 6.0 - 1.0) / m - 0.5 / (m * m) - 1.0 / (6.0 * m.powi(3));
    let third = (TETRAGAMMA + 1.0) / (m * m) + 1.0 / m.powi(3) + 0.5 / m.powi(4);
    let skewness = third / variance.powf(1.5);
    let x = (log_flatness - mean) / variance.sqrt();
    normal_below((6.0 / skewness) * ((1.0 + 0.5 * skewness * x).max(0.0).cbrt() - 1.0) + skewness / 6.0)
}

/// One bin of each pair of conjugates.
fn independent(shape: &[usize]) -> impl Iterator<Item = usize> + '_ {
    let mut at = vec![0; shape.len()];
    (0..shape.iter().product()).filter(move |&i| {
        unravel(i, shape, &mut at);
        let own = |k: usize, n: usize| k == 0 || 2 * k == n;
        let first = at.iter().zip(shape).find(|&(&k, &n)| !own(k, n));
        first.is_some_and(|(&k, &n)| signed(k, n) > 0.0)
    })
}

/// A mean with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bias {
    pub mean: f64,
    /// The confidence interval, by Student's law.
    pub low: f64,
    pub high: f64,
    /// How often unbiased residuals have a mean at least as far from zero.
    pub p: f64,
}

/// The mean residual; `confidence` is the interval's, as 0.95. NaN in, NaN out.
///
/// # Errors
/// If there are fewer than two values or the confidence is not between 0 and 1.
pub fn bias(residuals: &[f64], confidence: f64) -> Result<Bias, MetricError> {
    require(confidence > 0.0 && confidence < 1.0, "the confidence", confidence, "a share between 0 and 1")?;
    if residuals.len() < 2 {
        let got = residuals.len();
        return Err(MetricError::Count { what: "the residuals", got, needed: "two or more" });
    }
    let n = residuals.len() as f64;
    let mean = residuals.iter().sum::<f64>() / n;
    let squares = residuals.iter().map(|r| (r - mean).powi(2)).sum::<f64>();
    let error = (squares / (n - 1.0) / n).sqrt();
    let reach = student_quantile(1.0 - confidence, n - 1.0) * error;
    // Residuals that are all equal have no error: certain if not zero.
    let t = if mean == 0.0 { 0.0 } else { mean / error };
    Ok(Bias { mean, low: mean - reach, high: mean + reach, p: student_beyond(t, n - 1.0) })
}

/// A test's statistic and its p-value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Test {
    pub statistic: f64,
    pub p: f64,
}

/// Kolmogorov's and Smirnov's test of standardised residuals against the standard normal law. The p-value is exact up
/// to 1000 values, and that of many values beyond (within 0.002).
///
/// # Errors
/// If there are no values or one is NaN.
pub fn kolmogorov_smirnov(residuals: &[f64]) -> Result<Test, MetricError> {
    if residuals.is_empty() {
        return Err(MetricError::Count { what: "the residuals", got: 0, needed: "one or more" });
    }
    if let Some(index) = residuals.iter().position(|r| r.is_nan()) {
        return Err(MetricError::Pixel { what: "residual", index, got: f64::NAN, needed: "a number" });
    }
    let mut sorted = residuals.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let distance = |(i, &z): (usize, &f64)| {
        let below = normal_below(z);
        (below - i as f64 / n).max((i as f64 + 1.0) / n - below)
    };
    let statistic = sorted.iter().enumerate().map(distance).fold(0.0, f64::max);
    Ok(Test { statistic, p: kolmogorov_beyond(sorted.len(), statistic) })
}

#[cfg(test)]
#[path = "residual_tests.rs"]
mod tests;
