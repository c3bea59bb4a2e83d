//! Units as types, and conversions between them.
//!
//! A camera gives [`Adu`], noise is described in [`Electrons`], and networks use [`Normalised`] values. Each type wraps
//! a number or an array, so that adding counts to electrons does not compile. [`crate::calibration::Calibration`]
//! converts from ADU to electrons, and [`Scale`], chosen for a network or for an image, from electrons to normalised
//! values.

use crate::error::{PhysicsError, require};
use serde::{Deserialize, Serialize};

/// Counts of the camera's analogue-to-digital converter.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Adu<T>(pub T);

/// Photo-electrons: the unit in which the variance of shot noise equals its mean.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Electrons<T>(pub T);

/// Values on the scale of a network.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Normalised<T>(pub T);

/// Electrons = `at_zero` + `per_unit` * normalised.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Electrons of the normalised value 0.
    pub at_zero: f64,
    /// Electrons of one normalised unit.
    pub per_unit: f64,
}

impl Scale {
    /// # Errors
    /// If `per_unit` is not positive or a number is not finite.
    pub fn new(at_zero: Electrons<f64>, per_unit: Electrons<f64>) -> Result<Scale, PhysicsError> {
        let (at_zero, per_unit) = (at_zero.0, per_unit.0);
        require(at_zero.is_finite(), "electrons at zero", at_zero, "a finite number")?;
        require(
            per_unit.is_finite() && per_unit > 0.0,
            "electrons per unit",
            per_unit,
            "a finite number above zero",
        )?;
        Ok(Scale { at_zero, per_unit })
    }

    /// Normalised 0 is zero electrons and 1 is `full`.
    ///
    /// # Errors
    /// If `full` is not positive.
    pub fn unit(full: Electrons<f64>) -> Result<Scale, PhysicsError> {
        Scale::new(Electrons(0.0), full)
    }

    /// Normalised -1 is `low` and 1 is `high`.
    ///
    /// # Errors
    /// If `high` is not above `low`.
    pub fn symmetric(low: Electrons<f64>, high: Electrons<f64>) -> Result<Scale, PhysicsError> {
        require(high.0 > low.0, "the upper end of a range", high.0, "a number above the lower end")?;
        Scale::new(Electrons(0.5 * (low.0 + high.0)), Electrons(0.5 * (high.0 - low.0)))
    }

    /// Normalised -1 and 1 are the given percentiles of the values; values beyond are kept, not clipped.
    ///
    /// # Errors
    /// If there are no finite values, or the two percentiles are the same value.
    pub fn from_percentiles(values: Electrons<&[f64]>, low: f64, high: f64) -> Result<Scale, PhysicsError> {
        let [a, b] = percentiles(values.0, [low, high])?;
        Scale::symmetric(Electrons(a), Electrons(b))
    }

    pub fn to_electrons(&self, x: Normalised<f64>) -> Electrons<f64> {
        Electrons(self.at_zero + self.per_unit * x.0)
    }

    pub fn to_normalised(&self, x: Electrons<f64>) -> Normalised<f64> {
        Normalised((x.0 - self.at_zero) / self.per_unit)
    }
}

/// Percentiles of the finite values, by linear interpolation between order statistics as NumPy's default.
///
/// # Errors
/// If there are no finite values, or a percentile is outside 0 to 100.
pub fn percentiles<const K: usize>(values: &[f64], at: [f64; K]) -> Result<[f64; K], PhysicsError> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
    if sorted.is_empty() {
        return Err(PhysicsError::TooFew { what: "finite values", got: 0, needed: 1 });
    }
    for p in at {
        require((0.0..=100.0).contains(&p), "percentile", p, "a number from 0 to 100")?;
    }
    sorted.sort_by(f64::total_cmp);
    Ok(at.map(|p| {
        let position = p / 100.0 * (sorted.len() - 1) as f64;
        let low = position as usize;
        let high = (low + 1).min(sorted.len() - 1);
        sorted[low] + (position - low as f64) * (sorted[high] - sorted[low])
    }))
}

/// Shares of pixels with few electrons, which determine whether Gaussian noise is a good model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Regime {
    pub below_1: f64,
    pub below_3: f64,
    pub below_10: f64,
}

impl Regime {
    /// From the finite mean values of an image.
    pub fn of(mean: Electrons<&[f64]>) -> Regime {
        let finite: Vec<f64> = mean.0.iter().copied().filter(|x| x.is_finite()).collect();
        let share =
            |limit: f64| finite.iter().filter(|&&x| x < limit).count() as f64 / finite.len().max(1) as f64;
        Regime { below_1: share(1.0), below_3: share(3.0), below_10: share(10.0) }
    }

    /// Whether a Gaussian of the same variance describes shot noise in 95 % of the pixels.
    pub fn is_gaussian(&self) -> bool {
        self.below_10 <= 0.05
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_round_trip_and_refuse() {
        let scale = Scale::symmetric(Electrons(100.0), Electrons(65_535.0)).unwrap();
        assert_eq!(scale.to_electrons(Normalised(-1.0)), Electrons(100.0));
        assert_eq!(scale.to_electrons(Normalised(1.0)), Electrons(65_535.0));
        for e in [0.0, 17.5, 3e4] {
            let back = scale.to_electrons(scale.to_normalised(Electrons(e))).0;
            assert!((back - e).abs() <= 1e-9 * e.max(1.0));
        }
        let refused = Scale::symmetric(Electrons(2.0), Electrons(2.0)).unwrap_err().to_string();
        assert_eq!(refused, "the upper end of a range is 2, and a number above the lower end is needed");
        assert!(Scale::unit(Electrons(0.0)).is_err() && Scale::unit(Electrons(f64::NAN)).is_err());
    }

    #[test]
    fn percentiles_are_numpys() {
        // numpy.percentile([3, 1, 4, 1, 5, 9, 2], [0, 10, 50, 90, 100])
        let x = [3.0, 1.0, f64::NAN, 4.0, 1.0, 5.0, 9.0, 2.0];
        let got = percentiles(&x, [0.0, 10.0, 50.0, 90.0, 100.0]).unwrap();
        assert!(got.iter().zip([1.0, 1.0, 3.0, 6.6, 9.0]).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?}");
        assert!(percentiles(&[f64::NAN], [50.0]).is_err() && percentiles(&x, [101.0]).is_err());
    }

    #[test]
    fn regimes_are_counts() {
        let x: Vec<f64> = (0..100).map(|i| i as f64 * 0.2).collect();
        let r = Regime::of(Electrons(&x));
        assert_eq!((r.below_1, r.below_3, r.below_10), (0.05, 0.15, 0.5));
        assert!(!r.is_gaussian() && Regime::of(Electrons(&[50.0; 9])).is_gaussian());
    }
}
