//! Conversion of values of image files to values of the network, and back.
//!
//! With [`Signal::Photons`] a network gets electrons on the image's own scale: x is -1 at the background and 1 at the peak
//! of the image, so that one network works for every exposure. It also gets the amount of noise and its correlation between
//! neighbouring pixels. All of these numbers belong to the whole image, never to a tile.

use crate::error::ModelError;
use clearshot_image::dataset::Normaliser;
use clearshot_physics::{Correlation, anscombe};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Signal {
    /// Electrons on the image's own scale; see [`Photons`].
    Photons,
    /// The file's numbers between fixed limits; the target's are the input's where it has none.
    Fixed { input: Normaliser, target: Option<Normaliser> },
}

impl Signal {
    /// Channels that a measurement of `channels` channels becomes.
    pub fn condition_channels(&self, channels: usize) -> usize {
        match self {
            Signal::Photons => CHANNELS * channels,
            Signal::Fixed { .. } => channels,
        }
    }
}

/// What [`Photons::condition`] makes of each pixel.
pub const CHANNELS: usize = 5 + LAGS;

/// The least variance of a pixel's noise, in electrons: no camera is without any.
pub const LEAST_VARIANCE: f64 = 1e-3;

/// Numbers that describe the noise's correlation.
pub const LAGS: usize = 4;

/// The noise's correlation as a network is given it: between neighbours along X, along Y, along diagonals, and two pixels apart.
pub fn lags(c: &Correlation) -> [f64; LAGS] {
    [c.at(0, 1), c.at(1, 0), 0.5 * (c.at(1, 1) + c.at(1, -1)), 0.5 * (c.at(0, 2) + c.at(2, 0))]
}

/// A correlation with these [`lags`], and nothing beyond them.
pub fn from_lags([x, y, diagonal, two]: [f64; LAGS]) -> Correlation {
    Correlation::from_lags(|dy, dx| match (dy, dx.abs()) {
        (0, 1) => x,
        (1, 0) => y,
        (1, 1) => diagonal,
        (0, 2) | (2, 0) => two,
        _ => 0.0,
    })
}

/// An image's own scale, in electrons.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Photons {
    /// Mean electrons without light from the object.
    pub background: f64,
    /// Standard deviation of the read noise.
    pub read_noise: f64,
    /// Electrons above the background at the image's bright end.
    pub peak: f64,
    /// The correlation of the noise between neighbouring pixels.
    #[serde(default)]
    pub correlation: Correlation,
}

impl Photons {
    /// # Errors
    /// If a number is not finite, negative, or the peak is not above zero.
    pub fn new(background: f64, read_noise: f64, peak: f64) -> Result<Photons, ModelError> {
        let not_negative = "a finite number not below zero";
        for (what, value, fits, must) in [
            ("the background", background, background >= 0.0, not_negative),
            ("the read noise", read_noise, read_noise >= 0.0, not_negative),
            ("the peak", peak, peak > 0.0, "a finite number above zero"),
        ] {
            if !(value.is_finite() && fits) {
                return Err(ModelError::Setting { what, got: value.to_string(), must });
            }
        }
        Ok(Photons { background, read_noise, peak, correlation: Correlation::WHITE })
    }

    /// The same with noise that neighbouring pixels share.
    pub fn with_correlation(self, correlation: Correlation) -> Photons {
        Photons { correlation, ..self }
    }

    /// The network's number for a mean of so many electrons.
    pub fn normalised(&self, electrons: f64) -> f64 {
        2.0 * (electrons - self.background) / self.peak - 1.0
    }

    /// The mean of electrons that a network's number stands for, background included.
    pub fn electrons(&self, x: f64) -> f64 {
        0.5 * (x + 1.0) * self.peak + self.background
    }

    /// The standard deviation of a pixel's noise where the network's number is x, in the network's unit.
    pub fn noise(&self, x: f64) -> f64 {
        let variance = self.electrons(x).max(0.0) + self.read_noise * self.read_noise;
        2.0 / self.peak * variance.max(LEAST_VARIANCE).sqrt()
    }

    /// The input of the network from a measurement in electrons, channels last: the measurement itself, the same
    /// under Anscombe's transformation scaled to its own range, and numbers that are the same everywhere: how bright the
    /// image is, how much of its noise is there without light, the noise's correlation ([`lags`]), and 1 for a condition that is
    /// there.
    ///
    /// # Panics
    /// If `out` has not [`CHANNELS`] places for each pixel.
    pub fn condition(&self, electrons: &[f32], out: &mut [f32]) {
        assert_eq!(out.len(), CHANNELS * electrons.len(), "nine numbers for each pixel");
        let variance = self.read_noise * self.read_noise;
        let low = anscombe::forward(self.background, variance);
        let high = anscombe::forward(self.background + self.peak, variance);
        let brightness = (0.5 * self.peak.log10() - 0.5) as f32;
        let dark = ((self.background + variance).sqrt() / self.peak).min(2.0) as f32;
        let [x, y, diagonal, two] = lags(&self.correlation).map(|r| r as f32);
        for (&e, out) in electrons.iter().zip(out.as_chunks_mut::<CHANNELS>().0) {
            let e = f64::from(e);
            let steady = 2.0 * (anscombe::forward(e, variance) - low) / (high - low) - 1.0;
            *out = [self.normalised(e) as f32, steady as f32, brightness, dark, x, y, diagonal, two, 1.0];
        }
    }
}

/// The dark and the bright end of each channel of an image, which become -1 and 1 for networks that know no camera: percentiles of means over 3 x 3
/// pixels of the plane, which noise moves little.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnRange {
    ends: Vec<[f64; 2]>,
}

/// The shares of pixels that are darker than the ends of an image.
const ENDS: [f64; 2] = [0.01, SHARE];

impl OwnRange {
    /// Of an image of (Z,) Y, X pixels, channels last. A channel of one value, or without a finite one, has nothing bright: all of it becomes -1.
    pub fn of(values: &[f32], size: &[usize], channels: usize) -> OwnRange {
        let [.., height, width] = *size else { return OwnRange { ends: vec![[0.0; 2]; channels] } };
        let of_channel = |c: usize| {
            let plane: Vec<f32> = values.iter().skip(c).step_by(channels.max(1)).copied().collect();
            let planes = plane.chunks_exact((height * width).max(1));
            let step = plane.len().div_ceil(MOST).max(1);
            let mut all: Vec<f64> = planes
                .flat_map(|plane| means(plane, [height, width], step))
                .filter(|m| m.is_finite())
                .collect();
            ENDS.map(|share| percentile(&mut all, share).unwrap_or(0.0))
        };
        OwnRange { ends: (0..channels).map(of_channel).collect() }
    }

    /// The network's numbers of pixels, channels last.
    pub fn apply(&self, values: &mut [f32]) {
        for pixel in values.chunks_exact_mut(self.ends.len().max(1)) {
            for (v, [low, high]) in pixel.iter_mut().zip(&self.ends) {
                let range = high - low;
                *v = if range > 0.0 { (2.0 * (f64::from(*v) - low) / range - 1.0) as f32 } else { -1.0 };
            }
        }
    }

    /// The pixels that a network's numbers stand for, channels last.
    pub fn undo(&self, values: &mut [f32]) {
        for pixel in values.chunks_exact_mut(self.ends.len().max(1)) {
            for (v, [low, high]) in pixel.iter_mut().zip(&self.ends) {
                *v = (low + 0.5 * (f64::from(*v) + 1.0) * (high - low).max(0.0)) as f32;
            }
        }
    }
}

/// An image of (Z,) Y, X, channels last, with every pixel repeated so many times along each axis: what a network that enlarges is given.
pub fn repeated(values: &[f32], size: &[usize], channels: usize, factor: usize) -> Vec<f32> {
    let (mut values, mut inner) = (values.to_vec(), channels);
    for n in size.iter().rev() {
        let blocks = values.chunks_exact(inner.max(1));
        values = blocks.flat_map(|block| std::iter::repeat_n(block, factor).flatten().copied()).collect();
        inner *= n * factor;
    }
    values
}

/// The value that a share of others is below; nothing of none.
fn percentile(values: &mut [f64], share: f64) -> Option<f64> {
    let at = (values.len().checked_sub(1)? as f64 * share).round() as usize;
    Some(*values.select_nth_unstable_by(at, f64::total_cmp).1)
}

/// Beyond so many pixels a plane's peak is found on every n-th.
const MOST: usize = 1 << 22;
/// The share of pixels that are not brighter.
const SHARE: f64 = 0.998;

/// The bright end of a plane of electrons above its background: a high percentile of the mean over 3 x 3
/// pixels, which noise hardly moves, and never less than what noise alone would give. Pixels that are no
/// numbers do not count.
pub fn peak(electrons: &[f32], [height, width]: [usize; 2], background: f64, read_noise: f64) -> f64 {
    let step = (height * width).div_ceil(MOST).max(1);
    let mut means: Vec<f64> =
        means(electrons, [height, width], step).into_iter().filter(|m| m.is_finite()).collect();
    let least = (background + read_noise * read_noise).sqrt().max(1.0);
    percentile(&mut means, SHARE).map_or(least, |high| (high - background).max(least))
}

/// The mean over 3 x 3 pixels about every `step`-th pixel of a plane; NaN where none of them is finite.
fn means(plane: &[f32], [height, width]: [usize; 2], step: usize) -> Vec<f64> {
    let mean = |i: usize| {
        let (y, x) = (i / width, i % width);
        let rows = y.saturating_sub(1)..=(y + 1).min(height - 1);
        let columns = x.saturating_sub(1)..=(x + 1).min(width - 1);
        let (mut sum, mut count) = (0.0, 0.0);
        for y in rows {
            for value in &plane[y * width + columns.start()..=y * width + columns.end()] {
                if value.is_finite() {
                    sum += f64::from(*value);
                    count += 1.0;
                }
            }
        }
        sum / count
    };
    (0..height * width).step_by(step).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_and_its_inverse() {
        let correlation = Correlation::gaussian([0.3, 0.6]);
        let p = Photons::new(3.0, 1.5, 40.0).unwrap().with_correlation(correlation);
        assert_eq!((p.normalised(3.0), p.normalised(43.0)), (-1.0, 1.0));
        for e in [0.0, 3.0, 17.0, 900.0] {
            assert!((p.electrons(p.normalised(e)) - e).abs() < 1e-9);
        }
        let mut out = [0.0; 2 * CHANNELS];
        p.condition(&[3.0, 43.0], &mut out);
        let dark = (3.0f64 + 2.25).sqrt() / 40.0;
        let brightness = 0.5 * 40f64.log10() - 0.5;
        let rest = [brightness, dark].into_iter().chain(lags(&correlation)).chain([1.0]);
        let want = [-1.0, 1.0].into_iter().flat_map(|ends| [ends; 2].into_iter().chain(rest.clone()));
        assert!(out.iter().zip(want).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6), "{out:?}");
        for (b, s, p) in [(-1.0, 1.0, 1.0), (0.0, f64::NAN, 1.0), (0.0, 0.0, 0.0)] {
            assert!(Photons::new(b, s, p).is_err());
        }
    }

    #[test]
    fn the_range_of_an_image_is_scaled_to_minus_one_and_one_in_any_unit() {
        let (height, width) = (40, 50);
        let values = |gain: f32, offset: f32| -> Vec<f32> {
            let of = |i: usize| offset + gain * if i % width < 20 { 90.0 } else { 10.0 };
            (0..height * width).flat_map(|i| [of(i), 7.0]).collect()
        };
        let seen = |mut v: Vec<f32>| {
            OwnRange::of(&v, &[height, width], 2).apply(&mut v);
            v
        };
        let plain = seen(values(1.0, 0.0));
        assert!((plain[0] - 1.0).abs() < 1e-6 && (plain[2 * 45] + 1.0).abs() < 1e-6, "{plain:?}");
        // A channel of one value has nothing bright.
        assert!(plain.iter().skip(1).step_by(2).all(|v| *v == -1.0));
        let other = seen(values(0.031, 100.0));
        assert!(plain.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-4));
        let mut broken = values(1.0, 0.0);
        broken[0] = f32::NAN;
        let range = OwnRange::of(&broken, &[height, width], 2);
        assert_eq!(range, OwnRange { ends: vec![[10.0, 90.0], [7.0, 7.0]] });
        let empty = OwnRange::of(&[f32::NAN; 4], &[2, 2], 1);
        assert_eq!(empty, OwnRange { ends: vec![[0.0; 2]] });
    }

    #[test]
    fn the_peak_is_that_of_the_object_and_survives_bad_pixels() {
        let (height, width) = (60, 50);
        let mut plane: Vec<f32> =
            (0..height * width).map(|i| if i % width < 10 { 52.0 } else { 2.0 }).collect();
        assert!((peak(&plane, [height, width], 2.0, 1.0) - 50.0).abs() < 1e-6);
        plane[7] = f32::NAN;
        plane[height * width - 1] = 60.0;
        assert!((peak(&plane, [height, width], 2.0, 1.0) - 50.0).abs() < 1e-6);
        assert_eq!(peak(&[f32::NAN; 4], [2, 2], 3.0, 1.0), 2.0);
    }
}
