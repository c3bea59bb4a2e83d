//! Estimates the noise of a camera from a single image.
//!
//! In ADU a pixel of level L has the variance `V(L) = slope L + at zero`. Blocks of 8 x 8 pixels are decomposed by the
//! cosine transform: the mean is the level, the highest frequencies are mostly noise, and the lowest measure the
//! structure. Among blocks of similar level the smooth ones give V, and a line is fitted over the levels. Smooth blocks
//! are selected by other frequencies than those of the estimate, so that the selection does not bias the noise;
//! medians, and weights that fall to zero far from the line, exclude edges. If texture leaves no smooth block at a
//! level, the highest frequencies of the least textured blocks give an upper bound of the noise. If bright objects are
//! sparse and never smooth, blocks only give the noise of dark regions; the slope is then estimated from single pixels
//! (`pixels.rs`), or from both if both determine it.
//!
//! **A single image cannot separate** offset and read noise: a larger offset with more read noise has the same V.
//! [`NoiseLine`] contains what is determined; [`BlindFit`] fills in the rest by a convention, and adds the possible
//! range. If the offset (or gain and read noise) is given, everything is determined. Noise may be correlated between
//! neighbouring pixels (images that were resampled, demosaiced, smoothed or scanned): `spectrum.rs` estimates the
//! correlation, and the variance is then estimated from the quietest blocks, at frequencies high enough to exclude
//! structure (`groups.rs`). Pixel-scale texture counts as noise.
//!
//! Restorers use gain, offset and read noise. Whatever is assumed, these reproduce the variance of the line at the
//! darkest smooth level, and at every level if the gain is determined.
//!
//! **Accuracy** on generated scenes of 256 x 256 pixels of every kind behind a PSF of 1.2 pixels, peaks of 20 to 5000
//! electrons (`scenes/tests/blind.rs`): the noise is within 20 % at the levels of the image (mostly within 5 %), the
//! gain within 25 % or two of its standard errors, the read noise within 30 % if the offset is known. In scenes without
//! a PSF that are sharp to the pixel, at more than 1000 electrons, the noise is overestimated.

use super::Calibration;
use super::blocks::{SIDE, collect, mean_squares};
use super::ends::Ends;
use super::groups::{Group, IN_PICTURES, at_most, group, typical};
use super::line;
use super::pixels::Growth;
use super::resolve::Seen;
use super::spectrum::{self, Shared};
use crate::correlation::Correlation;
use crate::error::{PhysicsError, require, require_length, require_positive};
use crate::units::Adu;
use serde::{Deserialize, Serialize};

/// Known parameters; the others are estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Known {
    /// Electrons per ADU.
    pub gain: Option<f64>,
    /// ADU in the dark.
    pub offset: Option<f64>,
    /// Electrons.
    pub read_noise: Option<f64>,
    /// Pixels at or above this are saturated. Default: a value at which pixels pile up at the top of the image.
    pub saturation: Option<f64>,
    /// The correlation of the noise between neighbouring pixels.
    pub correlation: Option<Correlation>,
}

/// `V(L) = at_pivot + slope (L - pivot)` in ADU, with standard errors. The pivot is the level at which the errors of
/// the two numbers are independent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NoiseLine {
    pub slope: f64,
    pub slope_error: f64,
    pub pivot: f64,
    pub at_pivot: f64,
    pub at_pivot_error: f64,
}

impl NoiseLine {
    /// The standard deviation of the noise of a pixel whose mean is `level`.
    pub fn deviation(&self, level: f64) -> f64 {
        self.variance(level).max(0.0).sqrt()
    }

    /// The line of noise with so many times the variance.
    fn times(&self, factor: f64) -> NoiseLine {
        NoiseLine {
            slope: factor * self.slope,
            slope_error: factor * self.slope_error,
            pivot: self.pivot,
            at_pivot: factor * self.at_pivot,
            at_pivot_error: factor * self.at_pivot_error,
        }
    }

    pub fn variance(&self, level: f64) -> f64 {
        self.at_pivot + self.slope * (level - self.pivot)
    }

    pub(super) fn variance_error(&self, level: f64) -> f64 {
        self.at_pivot_error.hypot(self.slope_error * (level - self.pivot))
    }
}

/// The noise of regions of similar brightness, in ADU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub level: f64,
    pub variance: f64,
    /// The standard error of the variance.
    pub error: f64,
    /// The number of blocks or pixels averaged.
    pub count: usize,
}

/// Reservations about an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// The noise does not measurably grow with the level: the gain is assumed; see its range.
    GainNotSeen,
    /// Offset and read noise could not be separated; see their ranges.
    OffsetAssumed,
    /// Fewer than 100 smooth blocks.
    FewBlocks,
    /// No region contains only noise: everything is textured, or the noise is of an unknown kind.
    Textured,
    /// Many pixels have the smallest value: lower values were clipped, and the noise of dark pixels is underestimated.
    ClippedBelow,
    /// The variances of the levels do not lie on a line.
    NoLine,
    /// Bright regions are full of structure; their noise is extrapolated from darker ones.
    BrightNotSeen,
    /// Frames of a movie differ by more than noise nearly everywhere; they were treated as single images.
    Moving,
    /// Repeats differ by more than the noise of single frames.
    Changed,
}

impl Doubt {
    pub fn about(self) -> &'static str {
        match self {
            Doubt::GainNotSeen => "noise does not grow with the level measurably; the gain is assumed",
            Doubt::OffsetAssumed => "offset and read noise cannot be separated in a single image",
            Doubt::FewBlocks => "few smooth places to measure the noise in",
            Doubt::Textured => "texture everywhere, which counts as noise",
            Doubt::ClippedBelow => "dark pixels are clipped and look quieter than they are",
            Doubt::NoLine => "the noise does not follow the law of a camera",
            Doubt::BrightNotSeen => "bright places are full of structure, so their noise cannot be measured",
            Doubt::Moving => "nearly everything moves, so the frames were treated as single images",
            Doubt::Changed => {
                "repeats differ by more than their noise: something moved or changed; measure them as a movie"
            }
        }
    }
}

/// The camera estimated from an image. Ranges contain all values that are possible.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlindFit {
    pub line: NoiseLine,
    /// Electrons per ADU.
    pub gain: f64,
    /// Infinite if the gain is not determined.
    pub gain_error: f64,
    /// Always finite: two standard errors to either side, or all values compatible with the image.
    pub gain_range: [f64; 2],
    /// ADU. If unknown: the level without noise if zero is within its error, but not below zero; otherwise the middle
    /// between that and the darkest smooth level, or below all pixels if the gain is not determined.
    pub offset: f64,
    pub offset_range: [f64; 2],
    /// Electrons.
    pub read_noise: f64,
    pub read_noise_range: [f64; 2],
    pub saturation: Option<f64>,
    /// The correlation of the noise between neighbouring pixels.
    pub correlation: Correlation,
    /// The standard error of a lag of the correlation; 0 if it was known.
    pub correlation_error: f64,
    /// The number of smooth blocks used.
    pub blocks: usize,
    /// The range of their levels.
    pub levels: [f64; 2],
    /// The points of the line fit.
    pub points: Vec<Point>,
    pub doubts: Vec<Doubt>,
}

impl BlindFit {
    /// The same where a unit is so many ADU.
    fn in_units(self, unit: f64) -> BlindFit {
        let (level, variance) = (|v: f64| v / unit, |v: f64| v / (unit * unit));
        let NoiseLine { slope, slope_error, pivot, at_pivot, at_pivot_error } = self.line;
        let line = NoiseLine {
            slope: level(slope),
            slope_error: level(slope_error),
            pivot: level(pivot),
            at_pivot: variance(at_pivot),
            at_pivot_error: variance(at_pivot_error),
        };
        let point = |p: Point| Point {
            level: level(p.level),
            variance: variance(p.variance),
            error: variance(p.error),
            ..p
        };
        BlindFit {
            line,
            gain: self.gain * unit,
            gain_error: self.gain_error * unit,
            gain_range: self.gain_range.map(|gain| gain * unit),
            offset: level(self.offset),
            offset_range: self.offset_range.map(level),
            saturation: self.saturation.map(level),
            levels: self.levels.map(level),
            points: self.points.into_iter().map(point).collect(),
            ..self
        }
    }

    /// # Errors
    /// Never for a fit from [`estimate`].
    pub fn calibration(&self) -> Result<Calibration, PhysicsError> {
        let mut it = Calibration::uniform(self.gain, self.offset, self.read_noise)?;
        it.saturation = self.saturation.filter(|&full| full > self.offset);
        Ok(it)
    }
}

/// The least power of a spectrum's frequency that blocks are chosen by.
const LEAST_POWER: f64 = 0.02;
/// Neighbours that share less than this leave the high frequencies enough of the noise.
const NEARLY_WHITE: f64 = 0.3;
/// Blocks that a fit needs.
const FEWEST_BLOCKS: usize = 16;
/// Steps of the levels.
const GROUPS: usize = 32;
/// Standard errors that a slope must be above zero to be seen.
pub(super) const SEEN: f64 = 3.0;
/// Two ways of telling the slope are not trusted to be nearer to each other than this part of it.
const AGREEMENT: f64 = 0.05;

/// The share of the pixels that are darker than anything but noise makes them, and where its end lies in normal numbers.
const DARKEST: f64 = 0.005;
pub(super) const DARKEST_NORMAL: f64 = 2.576;
/// Pixels that are looked at for it, about at the most.
const MOST_PIXELS: usize = 1 << 18;

/// The camera's noise from planes (or crops) of one size, all taken with the same camera. Planes may be as small as 16 x
/// 16; some ten thousand smooth pixels at different levels give a good estimate.
///
/// # Errors
/// If a plane does not fill the shape, a known parameter is impossible, or there are too few usable blocks.
pub fn estimate(planes: &[Adu<&[f32]>], shape: [usize; 2], known: &Known) -> Result<BlindFit, PhysicsError> {
    known.check()?;
    let pixels = shape[0].saturating_mul(shape[1]);
    planes.iter().try_for_each(|p| require_length("a plane", p.0.len(), pixels))?;
    let unit = unit(planes);
    if unit == 1.0 {
        return measured(planes, shape, known);
    }
    let larger: Vec<Vec<f32>> =
        planes.iter().map(|p| p.0.iter().map(|&v| (f64::from(v) / unit) as f32).collect()).collect();
    let views: Vec<Adu<&[f32]>> = larger.iter().map(|p| Adu(&p[..])).collect();
    Ok(measured(&views, shape, &known.in_units(unit))?.in_units(unit.recip()))
}

/// The least greatest value whose noise can be squared, and parts of that, in 32-bit floats.
const LEAST_VALUE: f64 = 1e-6;

/// The unit to measure in where values are so small that their squares vanish: fluxes in SI units are as small as 1e-26. A power of
/// two, so that nothing is rounded; otherwise 1.
pub(super) fn unit(planes: &[Adu<&[f32]>]) -> f64 {
    let finite = planes.iter().flat_map(|p| p.0).filter(|v| v.is_finite());
    let greatest = f64::from(finite.fold(0f32, |m, v| m.max(v.abs())));
    if greatest > 0.0 && greatest < LEAST_VALUE { greatest.log2().floor().exp2() } else { 1.0 }
}

/// [`estimate`] of values whose squares are ordinary numbers.
fn measured(planes: &[Adu<&[f32]>], shape: [usize; 2], known: &Known) -> Result<BlindFit, PhysicsError> {
    let ends = Ends::of(planes);
    let saturation = known.saturation.or(ends.full());
    let views: Vec<&[f32]> = planes.iter().map(|p| p.0).collect();
    let mut blocks = collect(&views, shape, saturation.unwrap_or(f64::INFINITY));
    if blocks.len() < FEWEST_BLOCKS {
        return Err(PhysicsError::TooFew {
            what: "blocks of 8 x 8 usable pixels",
            got: blocks.len(),
            needed: FEWEST_BLOCKS,
        });
    }
    blocks.sort_by(|a, b| a.level.total_cmp(&b.level));
    let known_to = |correlation| Shared { correlation, error: 0.0, spectrum: mean_squares(&correlation) };
    let shared = known.correlation.map_or_else(|| spectrum::correlation(&blocks), known_to);
    let correlation = shared.correlation;
    // A few blocks at the ends do not set the steps of the levels.
    let trim = blocks.len() / 200;
    let brightest = blocks[blocks.len() - 1 - trim].level;
    let expected = mean_squares(&correlation);
    let power = expected.map(|s| s.max(LEAST_POWER));
    if !correlation.is_white() {
        blocks.iter_mut().for_each(|b| b.whiten(&power));
    }
    // Groups that noise alone puts apart would flatten the line: steps are wide beside the noise of a block's mean.
    let noise = (typical(&blocks, 2..=3).0 * expected[0].max(1.0)).sqrt() / SIDE as f64;
    let step = ((brightest - blocks[trim].level) / GROUPS as f64).max(4.0 * noise);
    // Where high frequencies have little of the noise they tell little of it.
    let white = correlation.at(0, 1).max(correlation.at(1, 0)) < NEARLY_WHITE;
    let mut groups = if white { group(&mut blocks, step, Group::of_white) } else { vec![] };
    let textured = white && groups.is_empty();
    if textured {
        groups = group(&mut blocks, step, |like| Some(Group::at_most(like)));
    } else if groups.is_empty() {
        groups = group(&mut blocks, step, |like| {
            Some(Group::of_correlated(like, &power, &shared.spectrum, &IN_PICTURES))
        });
    }
    let used: usize = groups.iter().map(|g| g.count).sum();
    let fixed = known.gain.map(f64::recip);
    let mut fit = line::fit(&groups, fixed);
    let mut steepest = fit.line.slope + 2.0 * fit.line.slope_error;
    if fixed.is_none() && correlation.is_white() && !textured {
        let blocks = Growth { slope: fit.line.slope, error: fit.line.slope_error };
        let pixels = super::pixels::growth(planes, shape, saturation);
        if let Some(pixels) = pixels {
            steepest = steepest.min((pixels.slope + 2.0 * pixels.error).max(blocks.slope));
        }
        if let Some(slope) = together(blocks, pixels) {
            let scatter = fit.scatter;
            fit = line::fit(&groups, Some(slope.slope));
            (fit.line.slope_error, fit.scatter) = (slope.error, scatter);
        }
    }
    // Where variances lie on no line, darker places may well have more noise.
    if white && fixed.is_none() && fit.is_line() {
        let share = at_most(&mut blocks, &fit.line);
        fit.line = fit.line.times(share);
        steepest *= share;
    }
    steepest = steepest.min(no_group_below(&groups, &fit.line));
    let mut doubts = Vec::new();
    if !fit.is_line() {
        doubts.push(Doubt::NoLine);
    }
    if used < 100 {
        doubts.push(Doubt::FewBlocks);
    }
    if textured {
        doubts.push(Doubt::Textured);
    }
    if ends.at_lowest > 0.25 {
        doubts.push(Doubt::ClippedBelow);
    }
    let levels = [groups[0].level, groups[groups.len() - 1].level];
    if levels[1] - levels[0] < 0.5 * (brightest - levels[0]) {
        doubts.push(Doubt::BrightNotSeen);
    }
    let seen = Seen {
        line: fit.line,
        steepest,
        levels,
        darkest: darkest(planes),
        brightest,
        blocks: used,
        rounding: ends.rounding(),
        saturation,
        correlation,
        correlation_error: shared.error,
        points: groups.iter().map(Group::point).collect(),
    };
    Ok(seen.resolve(known, doubts))
}

/// The value that [`DARKEST`] of the pixels are below.
pub(super) fn darkest(planes: &[Adu<&[f32]>]) -> f64 {
    let all: usize = planes.iter().map(|p| p.0.len()).sum();
    let every = (all / MOST_PIXELS).max(1);
    let pixels = planes.iter().flat_map(|p| p.0.iter().copied().step_by(every));
    let mut values: Vec<f32> = pixels.filter(|v| v.is_finite()).collect();
    if values.is_empty() {
        return f64::INFINITY;
    }
    let at = (DARKEST * values.len() as f64) as usize;
    f64::from(*values.select_nth_unstable_by(at, f32::total_cmp).1)
}

impl Known {
    /// The same where a unit is so many ADU.
    fn in_units(self, unit: f64) -> Known {
        Known {
            gain: self.gain.map(|gain| gain * unit),
            offset: self.offset.map(|offset| offset / unit),
            saturation: self.saturation.map(|full| full / unit),
            ..self
        }
    }

    pub(super) fn check(&self) -> Result<(), PhysicsError> {
        if let Some(gain) = self.gain {
            require_positive("gain", gain)?;
        }
        if let Some(x) = self.offset {
            require(x.is_finite(), "offset", x, "a finite number")?;
        }
        if let Some(x) = self.read_noise {
            require(x.is_finite() && x >= 0.0, "read noise", x, crate::error::NOT_BELOW_ZERO)?;
        }
        Ok(())
    }
}

/// The slope from which on a line through the variance of the darkest group is above what a brighter one has, which is no less than the noise there.
fn no_group_below(groups: &[Group], line: &NoiseLine) -> f64 {
    let level = groups[0].level;
    let dark = line.variance(level);
    let slope = |g: &Group| (g.variance * (1.0 + 2.0 * g.relative_error) - dark) / (g.level - level);
    groups.iter().filter(|g| g.level > level).map(slope).fold(f64::INFINITY, f64::min).max(line.slope)
}

/// What smooth blocks and single pixels say of the slope together; nothing if pixels add nothing.
fn together(blocks: Growth, pixels: Option<Growth>) -> Option<Growth> {
    let seen = |g: &Growth| g.slope > 0.0 && g.slope > SEEN * g.error;
    let pixels = pixels.filter(seen)?;
    if !seen(&blocks) {
        return Some(pixels);
    }
    // In logarithms, as errors are shares of the slope; where the two contradict each other, that is the error.
    let [a, b] = [blocks, pixels].map(|g| ((g.error / g.slope).powi(2) + AGREEMENT.powi(2)).recip());
    let apart = (pixels.slope / blocks.slope).ln();
    let slope = blocks.slope * (b / (a + b) * apart).exp();
    Some(Growth { slope, error: slope * (a + b).recip().sqrt().max(apart.abs() / 2.0) })
}
