//! Measures whether a restorer invents or removes structure: insert something known, restore, and look for it.
//!
//! The protocol runs a restorer twice: on an input, and on the same input with a pattern inserted. *Commission*: the
//! pattern is a blurred disk, an artefact that a good restorer should not turn into structure. *Omission*: the pattern is a
//! faint line that belongs to the scene and should be kept. Both are computed from the difference of the two outputs, so
//! the scene cancels. The ratio of power outside and inside a mask of a single output ([`power_ratio`]) mostly measures the
//! scene and is here for comparison with published numbers.

use crate::error::{require, require_positive};
use crate::filter::{Kernel, filter};
use crate::{ImageRef, MetricError};

/// A pattern that is inserted into a plane.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    /// The value added to each pixel.
    pub values: Vec<f64>,
    /// The pixels of the shape itself, before any blur.
    pub mask: Vec<bool>,
}

impl Pattern {
    /// A disk about `[y, x]`: the pixels whose centres are no farther than `radius`, blurred by a
    /// Gaussian of sigma `blur` (0: sharp).
    ///
    /// # Errors
    /// If radius or blur is out of range, or the disk holds no pixel of the image.
    pub fn disk(
        shape: [usize; 2],
        centre: [f64; 2],
        radius: f64,
        intensity: f64,
        blur: f64,
    ) -> Result<Pattern, MetricError> {
        require_positive("the radius", radius)?;
        // A wider blur than this has no disk left.
        require((0.0..=1000.0).contains(&blur), "the blur", blur, "0 to 1000 pixels")?;
        let inside = |p: [f64; 2]| (p[0] - centre[0]).hypot(p[1] - centre[1]) <= radius;
        let mut pattern = Pattern::of(shape, intensity, inside)?;
        if blur > 0.0 {
            let kernel = Kernel::gaussian(blur, (4.0 * blur).ceil() as usize);
            pattern.values = filter(&pattern.values, &shape, &kernel);
        }
        Ok(pattern)
    }

    /// A straight line: the pixels whose centres are no farther than half of `width` from the stretch
    /// between two places `[y, x]`.
    ///
    /// # Errors
    /// If the width is out of range, or the line holds no pixel of the image.
    pub fn line(
        shape: [usize; 2],
        from: [f64; 2],
        to: [f64; 2],
        width: f64,
        amplitude: f64,
    ) -> Result<Pattern, MetricError> {
        require_positive("the width", width)?;
        let along = [to[0] - from[0], to[1] - from[1]];
        let square = along[0] * along[0] + along[1] * along[1];
        let inside = |p: [f64; 2]| {
            let dot = (p[0] - from[0]) * along[0] + (p[1] - from[1]) * along[1];
            let share = if square > 0.0 { (dot / square).clamp(0.0, 1.0) } else { 0.0 };
            let nearest = [from[0] + share * along[0], from[1] + share * along[1]];
            (p[0] - nearest[0]).hypot(p[1] - nearest[1]) <= 0.5 * width
        };
        Pattern::of(shape, amplitude, inside)
    }

    fn of(shape: [usize; 2], value: f64, inside: impl Fn([f64; 2]) -> bool) -> Result<Pattern, MetricError> {
        let Some(n) = shape[0].checked_mul(shape[1]) else {
            return Err(MetricError::Length { shape: shape.to_vec(), got: usize::MAX });
        };
        let at = |i: usize| [(i / shape[1]) as f64, (i % shape[1]) as f64];
        let mask: Vec<bool> = (0..n).map(|i| inside(at(i))).collect();
        if !mask.contains(&true) {
            return Err(MetricError::NothingCounts { shape: shape.to_vec() });
        }
        Ok(Pattern { values: mask.iter().map(|&m| if m { value } else { 0.0 }).collect(), mask })
    }

    /// The image with the pattern added.
    ///
    /// # Errors
    /// If the image has another number of pixels.
    pub fn insert(&self, image: ImageRef<'_>) -> Result<Vec<f64>, MetricError> {
        self.check(image)?;
        Ok(image.data().iter().zip(&self.values).map(|(x, p)| x + p).collect())
    }

    /// What two runs say of the pattern: `with` it and `without` it in the input.
    ///
    /// # Errors
    /// If the runs differ in shape, have another number of pixels than the pattern, or the pattern
    /// covers all of them.
    pub fn response(&self, with: ImageRef<'_>, without: ImageRef<'_>) -> Result<Response, MetricError> {
        without.same_shape("run with the pattern", with)?;
        self.check(with)?;
        let difference: Vec<f64> = with.data().iter().zip(without.data()).map(|(a, b)| a - b).collect();
        let scene = mean_square(without.data(), &self.mask, false);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        if scene.is_none() {
            return Err(MetricError::NothingCounts { shape: with.shape().to_vec() });
        }
        let left = mean_square(&difference, &self.mask, true);
        Ok(Response {
            signal_to_artefact: decibel(scene, left),
            gain: dot(&difference, &self.values) / dot(&self.values, &self.values),
        })
    }

    fn check(&self, image: ImageRef<'_>) -> Result<(), MetricError> {
        if image.data().len() == self.values.len() {
            return Ok(());
        }
        let (shape, got) = (image.shape().to_vec(), self.values.len());
        Err(MetricError::Pixels { what: "pattern", shape, got })
    }
}

/// The response to a pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Response {
    /// In dB: the mean square of the run without the pattern outside its mask, over the mean square of
    /// the difference of the runs inside. Infinite where nothing of the pattern is left.
    pub signal_to_artefact: f64,
    /// How much of the pattern came through, by projection: 1 is all of it, 0 nothing. Commission is
    /// a gain above 0, omission one below 1.
    pub gain: f64,
}

/// 10 log10 of the mean square outside a mask over that inside, of one image. It depends on the scene
/// as much as on artefacts.
///
/// # Errors
/// If the mask does not fit, or holds all or none of the pixels.
pub fn power_ratio(image: ImageRef<'_>, mask: &[bool]) -> Result<f64, MetricError> {
    image.check_mask(Some(mask))?;
    let outside = mean_square(image.data(), mask, false);
    if outside.is_none() {
        return Err(MetricError::NothingCounts { shape: image.shape().to_vec() });
    }
    Ok(decibel(outside, mean_square(image.data(), mask, true)))
}

/// The PSNR inside a mask, in dB: for an inserted line, how well it was kept.
///
/// # Errors
/// If shapes differ, the mask does not fit or is empty, or the range is not above zero.
pub fn omission_psnr(
    truth: ImageRef<'_>,
    image: ImageRef<'_>,
    mask: &[bool],
    data_range: f64,
) -> Result<f64, MetricError> {
    let (keep, whole) = (crate::Rounding::Keep, crate::Crop::Nothing);
    crate::intensity::psnr(&crate::Pair::new(truth, image, Some(mask), keep, whole)?, data_range)
}

/// Over the pixels where the mask is `side`; `None` if there are no such pixels.
fn mean_square(data: &[f64], mask: &[bool], side: bool) -> Option<f64> {
    let chosen = data.iter().zip(mask).filter(|&(_, &m)| m == side);
    let (sum, n) = chosen.fold((0.0, 0usize), |(sum, n), (x, _)| (sum + x * x, n + 1));
    (n > 0).then(|| sum / n as f64)
}

fn decibel(above: Option<f64>, below: Option<f64>) -> f64 {
    10.0 * (above.unwrap_or(f64::NAN) / below.unwrap_or(f64::NAN)).log10()
}

#[cfg(test)]
#[path = "artefacts_tests.rs"]
mod tests;
