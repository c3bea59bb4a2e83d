//! Estimates a camera from dark frames and flat fields: offset and read noise, the photon transfer curve, and the fixed
//! pattern.

use super::blind::Known;
use super::ends::Ends;
use super::estimate::from_darks;
use super::groups::Group;
use super::measurement::{CameraMeasurement, FixedPattern, Source};
use super::repeats::{Series, Steady, measure, residuals};
use super::stripes::{Lines, lines};
use crate::error::{PhysicsError, require_length};
use crate::units::Adu;

/// Results from dark frames, in ADU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Darkness {
    pub offset: f64,
    pub offset_error: f64,
    /// The variance of a pixel over time, rounding included, and its standard error.
    pub variance: f64,
    pub variance_error: f64,
    /// The part of it due to rounding.
    pub rounding: f64,
    /// The variance of the offsets of pixels, and the share of outliers.
    pub pattern: f64,
    pub hot: f64,
    pub changing_stripes: Option<Lines>,
    pub fixed_stripes: Option<Lines>,
}

/// Robust standard deviations from the others at which a pixel is hot.
const HOT: f64 = 6.0;

impl Darkness {
    /// # Errors
    /// If there are fewer than two frames, sizes differ, or a pixel is not finite.
    pub fn of(frames: &[Adu<&[f32]>], shape: [usize; 2]) -> Result<Darkness, PhysicsError> {
        let pixels = shape[0].saturating_mul(shape[1]);
        frames.iter().try_for_each(|f| require_length("a dark frame", f.0.len(), pixels))?;
        let ends = Ends::of(frames);
        let values: Vec<Vec<f64>> =
            frames.iter().map(|f| f.0.iter().map(|&v| f64::from(v)).collect()).collect();
        let views: Vec<Adu<&[f64]>> = values.iter().map(|v| Adu(&v[..])).collect();
        let (Adu(offsets), Adu(noise)) = from_darks(&views, false)?;
        let offset = offsets.mean();
        if let Some(index) = (0..pixels).find(|&i| !offsets.at(i).is_finite()) {
            let (name, needed) = ("a dark frame", "a finite number in all of them");
            return Err(PhysicsError::Pixel { name, index, got: offsets.at(index), needed });
        }
        let (n, count) = (frames.len() as f64, pixels as f64);
        let variance = noise.map(|s| s * s).mean();
        let spread = noise.map(|s| (s * s - variance).powi(2)).mean();
        let own = offsets.map(|o| (o - offset).powi(2)).mean() - variance / n;
        let mut apart: Vec<f64> = (0..pixels).map(|i| (offsets.at(i) - offset).abs()).collect();
        let middle = apart.len() / 2;
        let typical = *apart.select_nth_unstable_by(middle, f64::total_cmp).1 / 0.6745;
        let hot = apart.iter().filter(|a| **a > HOT * typical.max((variance / n).sqrt())).count();
        let steady = [Steady::of(frames)];
        let (left, share) = residuals(&steady);
        let changing = lines(&left, shape, share, [0.0; 2]);
        let known = changing.map_or([0.0; 2], |l| l.variances().map(|v| v / n));
        Ok(Darkness {
            offset,
            offset_error: (variance / (n * count)).sqrt().max((own.max(0.0) / count).sqrt()),
            variance,
            variance_error: (spread / count).sqrt(),
            rounding: ends.rounding(),
            pattern: own.max(0.0),
            hot: hot as f64 / count,
            changing_stripes: changing,
            fixed_stripes: lines(&[&steady[0].mean], shape, 1.0, known),
        })
    }

    /// Known parameters, with the offset added.
    pub fn known(&self, known: &Known) -> Known {
        Known { offset: Some(self.offset), ..*known }
    }

    /// Replaces results from other frames by those from dark frames.
    pub fn complete(&self, measured: &mut CameraMeasurement) {
        let fit = &mut measured.fit;
        let square = (self.variance - self.rounding).max(0.0);
        let deviation = |variance: f64| fit.gain * variance.max(0.0).sqrt();
        let error = 2.0 * self.variance_error;
        let gain_error = if fit.gain_error.is_finite() { 2.0 * fit.gain_error / fit.gain } else { 0.0 };
        fit.read_noise = deviation(square);
        fit.read_noise_range = [
            deviation(square - error) * (1.0 - gain_error).max(0.0),
            deviation(square + error) * (1.0 + gain_error),
        ];
        fit.offset_range = [-2.0, 2.0].map(|s| self.offset + s * self.offset_error);
        measured.changing_stripes = self.changing_stripes.or(measured.changing_stripes);
        measured.fixed_stripes = self.fixed_stripes.or(measured.fixed_stripes);
        let pattern = measured.pattern.get_or_insert_default();
        pattern.offset = Some(self.pattern.sqrt());
        pattern.hot = Some(self.hot);
    }

    fn group(&self) -> Group {
        let relative_error = (self.variance_error / self.variance.max(f64::MIN_POSITIVE)).max(1e-3);
        Group { level: self.offset, variance: self.variance, relative_error, count: 1 }
    }
}

/// Frames whose levels are nearer to each other than this share of them were taken in the same light.
const SAME_LIGHT: f64 = 0.05;
/// Half the side of the square that even light is told from.
const EVEN: usize = 4;

/// The camera from flat fields of one or several levels, with at least two frames of each, and dark frames if there are
/// any.
///
/// # Errors
/// If a level has one frame, or as [`super::repeats::from_series`].
pub fn from_flat_fields(
    frames: &[Adu<&[f32]>],
    dark: Option<&Darkness>,
    shape: [usize; 2],
    known: &Known,
) -> Result<CameraMeasurement, PhysicsError> {
    let levels = levels(frames, dark.map_or(0.0, |d| d.offset));
    let known = dark.map_or(*known, |d| d.known(known));
    let mut measured = measure(&levels, shape, &known, Source::Flats, dark.map(Darkness::group))?;
    let offset = measured.fit.offset;
    let line = measured.fit.line;
    let brightest = levels.last().map(|l| Steady::of(l).mean).unwrap_or_default();
    let count = levels.last().map_or(1, Vec::len) as f64;
    let sensitivity = unevenness(&brightest, shape, offset, |v| line.variance(v) / count);
    measured.pattern = Some(FixedPattern { sensitivity, ..FixedPattern::default() });
    // The light of flats is nobody's pattern, and what lines it has is theirs too.
    measured.fixed_stripes = None;
    if let Some(dark) = dark {
        dark.complete(&mut measured);
    }
    Ok(measured)
}

/// Frames of like light together, in rising order.
fn levels<'a>(frames: &[Adu<&'a [f32]>], offset: f64) -> Vec<Series<'a>> {
    let mean = |f: &Adu<&[f32]>| {
        let finite = f.0.iter().filter(|v| v.is_finite());
        let (sum, n) = finite.fold((0.0, 0usize), |(s, n), &v| (s + f64::from(v), n + 1));
        sum / n.max(1) as f64 - offset
    };
    let mut sorted: Vec<(f64, Adu<&[f32]>)> = frames.iter().map(|f| (mean(f), *f)).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut levels: Vec<Series<'a>> = Vec::new();
    let mut last = f64::NEG_INFINITY;
    for (level, frame) in sorted {
        let same = level - last < SAME_LIGHT * level.abs();
        match levels.last_mut().filter(|_| same) {
            Some(series) => series.push(frame),
            None => levels.push(vec![frame]),
        }
        last = level;
    }
    levels
}

/// The standard deviation of the pixels' sensitivities over their mean: what the mean of flats differs from its surroundings,
/// less the noise that is left in it.
fn unevenness(mean: &[f32], shape: [usize; 2], offset: f64, noise: impl Fn(f64) -> f64) -> Option<f64> {
    let [height, width] = shape;
    if height <= 2 * EVEN || width <= 2 * EVEN {
        return None;
    }
    let pixels = ((2 * EVEN + 1) * (2 * EVEN + 1)) as f64;
    let (mut sum, mut count) = (0.0, 0.0);
    for y in EVEN..height - EVEN {
        for x in EVEN..width - EVEN {
            let rows = y - EVEN..=y + EVEN;
            let around: f64 = rows
                .flat_map(|y| &mean[y * width + x - EVEN..=y * width + x + EVEN])
                .map(|&v| f64::from(v))
                .sum();
            let level = around / pixels;
            let light = level - offset;
            if light > 0.0 {
                let apart = (f64::from(mean[y * width + x]) - level) / light;
                // The pixel is part of its surroundings.
                sum += apart * apart / (1.0 - 1.0 / pixels) - noise(level) / (light * light);
                count += 1.0;
            }
        }
    }
    (count > 0.0).then(|| (sum / count).max(0.0).sqrt()).filter(|v: &f64| v.is_finite())
}
