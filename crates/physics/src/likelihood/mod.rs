//! Likelihoods of one pixel, and of images with masks.
//!
//! Everything is in electrons: y is the measured value, m its mean, v the variance of the read noise. A likelihood
//! provides its negative logarithm, the derivative of that in m, and the Fisher information (the precision of one pixel
//! about its mean), which precision-weighted guidance needs.
//!
//! | | -ln p(y; m), up to constants | information |
//! |---|---|---|
//! | `Gaussian` | (y - m)^2 / 2v | 1 / v |
//! | `WeightedLeastSquares` | (y - m)^2 / 2w, w = max(y, 1) + v | 1 / w |
//! | `Heteroscedastic` | (y - m)^2 / 2V + ln V / 2, V = m + v | 1 / V + 1 / 2V^2 |
//! | `Poisson` | m - y ln m | 1 / m |
//! | `ShiftedPoisson` | V - (y + v) ln V, V = m + v | 1 / V |
//! | `PoissonGaussian` | -ln sum over k of Poisson(k; m) N(y - k; v) | 1 / V, to within 1/m of it |
//! | `Anscombe` | (f(y) - f(m))^2 / 2, f(z) = 2 sqrt(z + 3/8 + v) | 1 / (V + 3/8) |
//!
//! The usual residual divided by its variance, (m - y) / (m + v), is exactly the slope of `ShiftedPoisson`.
//! `WeightedLeastSquares` takes the variance from the count of the pixel (Neyman's weights), so it is quadratic, and
//! biased at low counts.
//!
//! Correlated noise: let u be the slopes divided by the square roots of the informations F, whose covariance is then
//! the correlation R of the noise. The gradient of the whole image is sqrt(F) R^-1 u, and the value increases by u'
//! (R^-1 - 1) u / 2. This is exact for likelihoods that are quadratic in the mean; for the others it is the
//! quasi-likelihood with the correct covariance.
//!
//! The logarithm of a mean is only defined above zero. Below [`FLOOR`] likelihoods with a logarithm are continued by a
//! parabola with the value and slope at this point and the information as curvature, so that they stay finite and the
//! slope remains the derivative of the value.

pub mod censored;
pub mod graph;
pub mod poisson_gaussian;

use crate::anscombe;
use crate::error::{PhysicsError, require_length};
use crate::map::Map;
use crate::operator::Whitening;
use crate::units::Electrons;
use libm::lgamma;
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

/// The smallest mean of which logarithms are taken, in electrons.
pub const FLOOR: f64 = 1e-4;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Likelihood {
    Gaussian,
    WeightedLeastSquares,
    Heteroscedastic,
    Poisson,
    ShiftedPoisson,
    PoissonGaussian,
    Anscombe,
}

impl Likelihood {
    pub const ALL: [Likelihood; 7] = [
        Likelihood::Gaussian,
        Likelihood::WeightedLeastSquares,
        Likelihood::Heteroscedastic,
        Likelihood::Poisson,
        Likelihood::ShiftedPoisson,
        Likelihood::PoissonGaussian,
        Likelihood::Anscombe,
    ];

    /// Its name on the command line and in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Likelihood::Gaussian => "gaussian",
            Likelihood::WeightedLeastSquares => "weighted_least_squares",
            Likelihood::Heteroscedastic => "heteroscedastic",
            Likelihood::Poisson => "poisson",
            Likelihood::ShiftedPoisson => "shifted_poisson",
            Likelihood::PoissonGaussian => "poisson_gaussian",
            Likelihood::Anscombe => "anscombe",
        }
    }

    /// A description in one line.
    pub fn about(self) -> &'static str {
        match self {
            Likelihood::Gaussian => "read noise alone",
            Likelihood::WeightedLeastSquares => {
                "squares over each pixel's own count and read noise; biased in the dark"
            }
            Likelihood::Heteroscedastic => "Gaussian noise whose variance is the mean and read noise",
            Likelihood::Poisson => "counted light without read noise",
            Likelihood::ShiftedPoisson => {
                "counted light, with read noise as if it were counted too; fast and nearly exact"
            }
            Likelihood::PoissonGaussian => "counted light and read noise, exactly; slower",
            Likelihood::Anscombe => "squares after the generalised Anscombe transform",
        }
    }

    /// The likelihood of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn from_name(name: &str) -> Result<Likelihood, PhysicsError> {
        Likelihood::ALL.into_iter().find(|l| l.name() == name).ok_or_else(|| PhysicsError::Unknown {
            kind: "likelihood",
            name: name.into(),
            known: Likelihood::ALL.map(Likelihood::name).join(", "),
        })
    }

    /// Whether it is quadratic in the mean everywhere.
    pub fn is_quadratic(self) -> bool {
        matches!(self, Likelihood::Gaussian | Likelihood::WeightedLeastSquares)
    }

    /// The negative logarithm of the likelihood of `mean`, with its constants.
    pub fn value(self, y: f64, mean: f64, variance: f64) -> f64 {
        let m = self.above_floor(mean);
        let below = mean - m;
        let extension = if below == 0.0 {
            0.0
        } else {
            below * (self.slope(y, m, variance) + 0.5 * below * self.information(y, m, variance))
        };
        let v = variance;
        extension
            + match self {
                Likelihood::Gaussian => normal(y - m, v),
                Likelihood::WeightedLeastSquares => normal(y - m, neyman(y, v)),
                Likelihood::Heteroscedastic => normal(y - m, m + v),
                Likelihood::Poisson => poisson(not_below(y, 0.0), m),
                Likelihood::ShiftedPoisson => poisson(not_below(y + v, 0.0), m + v),
                Likelihood::PoissonGaussian => poisson_gaussian::value(y, m, v),
                Likelihood::Anscombe => 0.5 * (anscombe::forward(y, v) - anscombe::forward(m, v)).powi(2),
            }
    }

    /// The derivative of [`Likelihood::value`] in the mean.
    pub fn slope(self, y: f64, mean: f64, variance: f64) -> f64 {
        let m = self.above_floor(mean);
        let below = mean - m;
        let extension = if below == 0.0 { 0.0 } else { below * self.information(y, m, variance) };
        let v = variance;
        extension
            + match self {
                Likelihood::Gaussian => (m - y) / v,
                Likelihood::WeightedLeastSquares => (m - y) / neyman(y, v),
                Likelihood::Heteroscedastic => {
                    let (total, r) = (m + v, m - y);
                    r / total + 0.5 * (1.0 - r * r / total) / total
                }
                Likelihood::Poisson => 1.0 - not_below(y, 0.0) / m,
                Likelihood::ShiftedPoisson => 1.0 - not_below(y + v, 0.0) / (m + v),
                Likelihood::PoissonGaussian => poisson_gaussian::slope(y, m, v),
                Likelihood::Anscombe => {
                    (anscombe::forward(m, v) - anscombe::forward(y, v)) / (m + 0.375 + v).sqrt()
                }
            }
    }

    /// Fisher's information about the mean.
    pub fn information(self, y: f64, mean: f64, variance: f64) -> f64 {
        let m = self.above_floor(mean);
        match self {
            Likelihood::Gaussian => 1.0 / variance,
            Likelihood::WeightedLeastSquares => 1.0 / neyman(y, variance),
            Likelihood::Heteroscedastic => {
                let total = m + variance;
                (1.0 + 0.5 / total) / total
            }
            Likelihood::Poisson => 1.0 / m,
            Likelihood::ShiftedPoisson | Likelihood::PoissonGaussian => 1.0 / (m + variance),
            Likelihood::Anscombe => 1.0 / (m + 0.375 + variance),
        }
    }

    fn above_floor(self, mean: f64) -> f64 {
        if self.is_quadratic() { mean } else { not_below(mean, FLOOR) }
    }
}

/// The larger of the two; NaN stays NaN, so that what went wrong is seen.
pub(crate) fn not_below(x: f64, least: f64) -> f64 {
    if x < least { least } else { x }
}

fn normal(r: f64, variance: f64) -> f64 {
    0.5 * (r * r / variance + (TAU * variance).ln())
}

fn poisson(y: f64, mean: f64) -> f64 {
    mean - y * mean.ln() + lgamma(y + 1.0)
}

/// Neyman's variance: the count itself, at least one electron.
fn neyman(y: f64, variance: f64) -> f64 {
    not_below(y, 1.0) + variance
}

/// A measured image in electrons, with its noise. Invalid pixels have no influence, whatever their values.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    pub y: Electrons<&'a [f64]>,
    pub read_noise: &'a Map,
    pub valid: Option<&'a [bool]>,
    /// The whitening of correlated noise; `None` for white noise.
    pub whitening: Option<&'a Whitening>,
}

impl Measured<'_> {
    /// # Errors
    /// If sizes differ, or a valid pixel is not finite.
    pub fn check(&self) -> Result<(), PhysicsError> {
        let pixels = self.y.0.len();
        self.read_noise.check("read noise", pixels, |x| x >= 0.0, "a finite number not below zero")?;
        if let Some(valid) = self.valid {
            require_length("the mask of a measurement", valid.len(), pixels)?;
        }
        match (0..pixels).find(|&i| self.is_valid(i) && !self.y.0[i].is_finite()) {
            Some(index) => Err(PhysicsError::Pixel {
                name: "the measurement",
                index,
                got: self.y.0[index],
                needed: "a finite value, or a mask that leaves the pixel out",
            }),
            None => Ok(()),
        }
    }

    fn is_valid(&self, i: usize) -> bool {
        self.valid.is_none_or(|v| v[i])
    }

    fn variance(&self, i: usize) -> f64 {
        self.read_noise.at(i).powi(2)
    }

    /// The negative logarithm of the likelihood of a whole image of means.
    ///
    /// # Errors
    /// If sizes differ, or a valid pixel is not finite.
    pub fn value(&self, likelihood: Likelihood, mean: Electrons<&[f64]>) -> Result<f64, PhysicsError> {
        self.check()?;
        require_length("the mean of a measurement", mean.0.len(), self.y.0.len())?;
        let one = |i: usize| likelihood.value(self.y.0[i], mean.0[i], self.variance(i));
        let alone: f64 = (0..mean.0.len()).filter(|&i| self.is_valid(i)).map(one).sum();
        let Some(whitening) = self.whitening else { return Ok(alone) };
        let u = self.scores(likelihood, mean);
        let squares = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>();
        Ok(alone + 0.5 * (squares(&whitening.apply(&u)) - squares(&u)))
    }

    /// The slope of each pixel, without correlation, divided by the square root of its information; zero at invalid
    /// pixels. Its variance is 1.
    pub fn scores(&self, likelihood: Likelihood, mean: Electrons<&[f64]>) -> Vec<f64> {
        let one = |i: usize| match self.is_valid(i) {
            true => {
                let (y, m, v) = (self.y.0[i], mean.0[i], self.variance(i));
                likelihood.slope(y, m, v) / likelihood.information(y, m, v).sqrt()
            }
            false => 0.0,
        };
        (0..mean.0.len()).map(one).collect()
    }

    /// Its gradient in the means; exactly zero at invalid pixels.
    ///
    /// # Errors
    /// If sizes differ, or a valid pixel is not finite.
    pub fn slopes(&self, likelihood: Likelihood, mean: Electrons<&[f64]>) -> Result<Vec<f64>, PhysicsError> {
        self.check()?;
        require_length("the mean of a measurement", mean.0.len(), self.y.0.len())?;
        if let Some(whitening) = self.whitening {
            let u = whitening.apply_twice(&self.scores(likelihood, mean));
            let one = |i: usize| match self.is_valid(i) {
                true => u[i] * likelihood.information(self.y.0[i], mean.0[i], self.variance(i)).sqrt(),
                false => 0.0,
            };
            return Ok((0..u.len()).map(one).collect());
        }
        let one = |i: usize| match self.is_valid(i) {
            true => likelihood.slope(self.y.0[i], mean.0[i], self.variance(i)),
            false => 0.0,
        };
        Ok((0..mean.0.len()).map(one).collect())
    }

    /// The mean over valid pixels of (y - m)^2 / (m + v): 1 if the noise is correct and the mean is the truth. `None`
    /// if no pixel is valid.
    ///
    /// # Errors
    /// If sizes differ, or a valid pixel is not finite.
    pub fn chi2(&self, mean: Electrons<&[f64]>) -> Result<Option<f64>, PhysicsError> {
        self.check()?;
        require_length("the mean of a measurement", mean.0.len(), self.y.0.len())?;
        let (mut sum, mut count) = (0.0, 0usize);
        for i in (0..mean.0.len()).filter(|&i| self.is_valid(i)) {
            let m = mean.0[i];
            sum += (self.y.0[i] - m).powi(2) / (not_below(m, FLOOR) + self.variance(i));
            count += 1;
        }
        Ok((count > 0).then(|| sum / count as f64))
    }
}
