//! The camera: conversion from counts to electrons and back.
//!
//! `electrons = gain * (ADU - offset)`, with the gain in electrons per ADU. Dark electrons are not subtracted, because
//! they have shot noise: they are part of the mean of the measurement ([`crate::model::Forward::background`]). Pixels
//! that are saturated, NaN or infinite contain no information; see [`Calibration::valid`].

pub mod blind;
mod blocks;
mod ends;
pub mod estimate;
pub mod flats;
mod groups;
mod lag_fit;
mod lags;
mod line;
pub mod measurement;
pub mod movie;
mod pixels;
pub mod repeats;
mod resolve;
mod spectrum;
mod stripes;

use crate::error::{ABOVE_ZERO, NOT_BELOW_ZERO, PhysicsError, require, require_length};
use crate::map::Map;
use crate::units::{Adu, Electrons};
use serde::{Deserialize, Serialize};

pub use ends::Ends;
pub use stripes::{Lines, Stripes};

/// The parameters of a camera.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Electrons per ADU.
    pub gain: Map,
    /// ADU in the dark.
    pub offset: Map,
    /// Standard deviation of the read noise, in electrons.
    pub read_noise: Map,
    /// Mean electrons of the dark current in one exposure.
    pub dark: Map,
    /// The smallest count of a saturated pixel, in ADU.
    pub saturation: Option<f64>,
}

impl Calibration {
    /// A camera with identical pixels.
    ///
    /// # Errors
    /// If the gain is not positive, or the read noise is negative.
    pub fn uniform(gain: f64, offset: f64, read_noise: f64) -> Result<Calibration, PhysicsError> {
        let it = Calibration {
            gain: Map::Uniform(gain),
            offset: Map::Uniform(offset),
            read_noise: Map::Uniform(read_noise),
            dark: Map::Uniform(0.0),
            saturation: None,
        };
        it.check(0).map(|()| it)
    }

    fn preset(gain: f64, offset: f64, read_noise: f64, white: f64) -> Calibration {
        Calibration {
            gain: Map::Uniform(gain),
            offset: Map::Uniform(offset),
            read_noise: Map::Uniform(read_noise),
            dark: Map::Uniform(0.0),
            saturation: Some(white),
        }
    }

    /// A typical 14-bit photographic camera; calibrate your own.
    pub fn photography() -> Calibration {
        Calibration::preset(1.0, 512.0, 3.0, 16_383.0)
    }

    /// A typical 16-bit scientific CMOS camera.
    pub fn scientific_cmos() -> Calibration {
        Calibration::preset(0.5, 100.0, 1.5, 65_535.0)
    }

    /// A typical 16-bit astronomical CCD.
    pub fn ccd() -> Calibration {
        Calibration::preset(2.0, 0.0, 5.0, 65_535.0)
    }

    /// # Errors
    /// If a value is impossible, or a map has not `pixels` values.
    pub fn check(&self, pixels: usize) -> Result<(), PhysicsError> {
        self.gain.check("gain", pixels, |x| x > 0.0, ABOVE_ZERO)?;
        self.offset.check("offset", pixels, |_| true, "a finite number")?;
        self.read_noise.check("read noise", pixels, |x| x >= 0.0, NOT_BELOW_ZERO)?;
        self.dark.check("dark", pixels, |x| x >= 0.0, NOT_BELOW_ZERO)?;
        match self.saturation {
            Some(full) => require(
                full.is_finite() && full > self.offset.mean(),
                "saturation",
                full,
                "more than the offset",
            ),
            None => Ok(()),
        }
    }

    /// # Errors
    /// If the calibration is impossible or of another size.
    pub fn to_electrons(&self, counts: Adu<&[f64]>) -> Result<Electrons<Vec<f64>>, PhysicsError> {
        self.check(counts.0.len())?;
        let one = |(i, x): (usize, &f64)| self.gain.at(i) * (x - self.offset.at(i));
        Ok(Electrons(counts.0.iter().enumerate().map(one).collect()))
    }

    /// Without rounding: the inverse of [`Calibration::to_electrons`].
    ///
    /// # Errors
    /// If the calibration is impossible or of another size.
    pub fn to_adu(&self, electrons: Electrons<&[f64]>) -> Result<Adu<Vec<f64>>, PhysicsError> {
        self.check(electrons.0.len())?;
        let one = |(i, x): (usize, &f64)| x / self.gain.at(i) + self.offset.at(i);
        Ok(Adu(electrons.0.iter().enumerate().map(one).collect()))
    }

    /// As the converter does: rounded to whole counts, not below 0, not above saturation.
    ///
    /// # Errors
    /// If the calibration is impossible or of another size.
    pub fn digitise(&self, electrons: Electrons<&[f64]>) -> Result<Adu<Vec<f64>>, PhysicsError> {
        let full = self.saturation.unwrap_or(f64::INFINITY);
        let Adu(mut counts) = self.to_adu(electrons)?;
        counts.iter_mut().for_each(|x| *x = x.round().clamp(0.0, full));
        Ok(Adu(counts))
    }

    /// Which pixels are valid.
    pub fn valid(&self, counts: Adu<&[f64]>) -> Vec<bool> {
        let full = self.saturation.unwrap_or(f64::INFINITY);
        counts.0.iter().map(|&x| x.is_finite() && x < full).collect()
    }

    /// Electrons at saturation, on the average pixel.
    pub fn full_well(&self) -> Option<Electrons<f64>> {
        self.saturation.map(|full| Electrons((full - self.offset.mean()) * self.gain.mean()))
    }

    /// 20 log10(full well / read noise).
    pub fn dynamic_range_db(&self) -> Option<f64> {
        self.full_well().map(|Electrons(full)| 20.0 * (full / self.read_noise.mean()).log10())
    }
}

/// The ratio of the light in `short` to that in `long`: the ratio of their sums over pixels that are finite and valid
/// in both, each minus its background.
///
/// # Errors
/// If the sizes differ, or there is no light in the long exposure.
pub fn exposure_ratio(
    short: Electrons<&[f64]>,
    long: Electrons<&[f64]>,
    backgrounds: [f64; 2],
    valid: Option<&[bool]>,
) -> Result<f64, PhysicsError> {
    require_length("the long exposure", long.0.len(), short.0.len())?;
    if let Some(v) = valid {
        require_length("the mask", v.len(), short.0.len())?;
    }
    let counts = |i: usize| valid.is_none_or(|v| v[i]) && short.0[i].is_finite() && long.0[i].is_finite();
    let mut sums = [0.0; 2];
    for i in (0..short.0.len()).filter(|&i| counts(i)) {
        sums[0] += short.0[i] - backgrounds[0];
        sums[1] += long.0[i] - backgrounds[1];
    }
    require(sums[1] > 0.0, "the light of the long exposure", sums[1], "a sum above zero")?;
    Ok(sums[0] / sums[1])
}

/// Whether a ratio from the metadata agrees with the frames: `Ok(true)` within 10 %, `Ok(false)` (warn) up to 20 %.
///
/// # Errors
/// Beyond 20 %.
pub fn check_exposure(assumed: f64, measured: f64) -> Result<bool, PhysicsError> {
    let apart = (measured / assumed - 1.0).abs();
    if apart.is_nan() || apart > 0.2 {
        return Err(PhysicsError::Exposure { assumed, measured, percent: 20.0 });
    }
    Ok(apart <= 0.1)
}
