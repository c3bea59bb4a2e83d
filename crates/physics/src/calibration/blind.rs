//! A camera's noise from a single picture, where nobody can take another.
//!
//! In ADU a pixel of level L has the variance `V(L) = slope L + at zero`. Blocks of 8 x 8 pixels are split by the cosine
//! transform: the mean is the level, the highest frequencies are noise for the most part, and the lowest say
//! how much structure there is. Among blocks of like level the smooth ones tell V, and a line goes through
//! what the levels say. The choice of smooth blocks looks at other frequencies than the estimate, so choosing the quiet
//! does not make the noise look small; medians, and weights that fall to zero far from the line, keep edges out.
//! Where bright things are sparse and never smooth, blocks tell the noise of the dark alone; the slope is then had from
//! single pixels (`pixels.rs`), and where both tell it, from both.
//!
//! **What one picture cannot tell** is offset and read noise apart: a larger offset with more read noise has the
//! same V. [`NoiseLine`] holds what is told; [`BlindFit`] adds the convention by which the rest is filled in, and the
//! range that it could be in. Say the offset (or gain and read noise) if it is known: then nothing is left open.
//! Neighbouring pixels may share noise (pictures that were resampled, demosaiced or smoothed, or scanned): `spectrum.rs` tells how,
//! and the variance is then told by all frequencies of the quietest blocks. Texture as fine as the pixels counts as noise.
//!
//! **How near it comes**, on generated scenes of 256 x 256 pixels of every kind behind a PSF of 1.2 pixels, peaks of 20 to
//! 5000 electrons (`scenes/tests/blind.rs`): the noise within 20 % at the levels that the picture shows (mostly within 5
//! %), the gain within 25 % or two of its stated errors, the read noise within 30 % where the offset is known. Scenes
//! without a PSF that are sharp to the pixel at more than 1000 electrons are told too much noise.

use super::Calibration;
use super::blocks::{Block, COEFFICIENTS, COUNTS, SIDE, collect, frequency, mean_squares};
use super::ends::Ends;
use super::pixels::Growth;
use super::spectrum::{self, belongs, quiet};
use crate::correlation::Correlation;
use crate::error::{PhysicsError, require, require_length, require_positive};
use crate::units::Adu;
use serde::{Deserialize, Serialize};

/// What is known beforehand; what is not is estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Known {
    /// Electrons per ADU.
    pub gain: Option<f64>,
    /// ADU without light.
    pub offset: Option<f64>,
    /// Electrons.
    pub read_noise: Option<f64>,
    /// Pixels at or above this are saturated. Default: a value that piles up at the top of the image.
    pub saturation: Option<f64>,
    /// How the noise of neighbouring pixels belongs together.
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

    pub fn variance(&self, level: f64) -> f64 {
        self.at_pivot + self.slope * (level - self.pivot)
    }

    fn variance_error(&self, level: f64) -> f64 {
        self.at_pivot_error.hypot(self.slope_error * (level - self.pivot))
    }
}

/// The noise of places of like brightness, in ADU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub level: f64,
    pub variance: f64,
    /// The standard error of the variance.
    pub error: f64,
    /// Blocks, or pixels, that it is the mean of.
    pub count: usize,
}

/// What to be careful about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// The noise does not grow with the level, or not measurably: the gain is assumed; see its range.
    GainNotSeen,
    /// Offset and read noise could not be told apart; see their ranges.
    OffsetAssumed,
    /// Fewer than 100 smooth blocks.
    FewBlocks,
    /// Nowhere is there noise alone: all is texture, or its noise is of a kind that is not known.
    Textured,
    /// Many pixels hold the smallest value: what lies below was clipped, and dark pixels look quieter than they are.
    ClippedBelow,
    /// The levels' variances lie on no line.
    NoLine,
    /// Bright places are full of structure; what is said of their noise is said by darker ones.
    BrightNotSeen,
    /// Frames of a movie differ by more than noise nearly everywhere; they were taken as single images.
    Moving,
    /// Repeats differ by more than the noise that single ones of them show.
    Changed,
}

impl Doubt {
    pub fn about(self) -> &'static str {
        match self {
            Doubt::GainNotSeen => "noise does not grow with the level measurably; the gain is assumed",
            Doubt::OffsetAssumed => "one picture does not tell offset and read noise apart",
            Doubt::FewBlocks => "few smooth places to measure noise in",
            Doubt::Textured => "no place shows noise alone: all is texture, which counts as noise",
            Doubt::ClippedBelow => "dark pixels are clipped and look quieter than they are",
            Doubt::NoLine => "the noise does not follow a camera's law",
            Doubt::BrightNotSeen => "bright places are full of structure and do not tell their noise",
            Doubt::Moving => "nearly everything moves; the movie's frames were taken as single images",
            Doubt::Changed => {
                "repeats differ by more than their noise: something moved or changed; measure them as a movie"
            }
        }
    }
}

/// What a picture says of its camera. Ranges hold what could be as well as what is likely.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlindFit {
    pub line: NoiseLine,
    /// Electrons per ADU.
    pub gain: f64,
    /// Infinite if the gain was not seen.
    pub gain_error: f64,
    /// Always finite: two errors to either side, or all that the picture leaves open.
    pub gain_range: [f64; 2],
    /// ADU. Unless known: zero if the line allows it, otherwise the middle of its range.
    pub offset: f64,
    pub offset_range: [f64; 2],
    /// Electrons.
    pub read_noise: f64,
    pub read_noise_range: [f64; 2],
    pub saturation: Option<f64>,
    /// How the noise of neighbouring pixels belongs together.
    pub correlation: Correlation,
    /// The standard error of a lag of the correlation; 0 where that was known.
    pub correlation_error: f64,
    /// Smooth blocks that took part.
    pub blocks: usize,
    /// The levels that they cover.
    pub levels: [f64; 2],
    /// What the line goes through.
    pub points: Vec<Point>,
    pub doubts: Vec<Doubt>,
}

impl BlindFit {
    /// # Errors
    /// Never for a fit that was had from [`estimate`].
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
/// Which coefficients tell how large correlated noise is.
pub(super) struct Telling {
    frequencies: std::ops::RangeInclusive<usize>,
    /// Those with less of the noise tell nothing.
    least: f64,
    /// All count alike, not as they have of the noise.
    whitened: bool,
}

/// In a picture structure is mostly below these, and above them a small error of the correlation is a large one of the noise.
const IN_PICTURES: Telling = Telling { frequencies: 5..=9, least: 0.1, whitened: true };
/// Differences of frames have no structure where nothing moves.
pub(super) const IN_DIFFERENCES: Telling = Telling { frequencies: 2..=14, least: 0.0, whitened: false };
/// Blocks that a fit needs, and that a group of like levels needs.
const FEWEST_BLOCKS: usize = 16;
const FEWEST_IN_GROUP: usize = 12;
const GROUPS: usize = 32;
/// Mean squares up to this many times the noise are noise's own spread.
const CONSISTENT: f64 = 1.6;
/// No group's variance is trusted to be nearer than this: medians of skewed numbers, traces of structure.
const MODEL_ERROR: f64 = 0.02;
/// A band that exceeds the next higher one by this factor holds structure.
const LEAKS: f64 = 1.3;
/// Standard errors that a slope must be above zero to be seen.
const SEEN: f64 = 3.0;
/// Where no gain is seen: the least share of the variance that shot noise could have at the brightest level.
const UNSEEN_SHARE: f64 = 0.01;
/// Two ways of telling the slope are not trusted to be nearer to each other than this part of it.
const AGREEMENT: f64 = 0.05;

/// The camera's noise from planes (or crops) of one size, all taken with the same camera. Planes may be as small as 16 x
/// 16; some ten thousand smooth pixels at differing levels make it good.
///
/// # Errors
/// If a plane does not fill the shape, a known number is impossible, or there are too few usable blocks.
pub fn estimate(planes: &[Adu<&[f32]>], shape: [usize; 2], known: &Known) -> Result<BlindFit, PhysicsError> {
    known.check()?;
    let pixels = shape[0].saturating_mul(shape[1]);
    planes.iter().try_for_each(|p| require_length("a plane", p.0.len(), pixels))?;
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
    let (correlation, correlation_error) =
        known.correlation.map_or_else(|| spectrum::correlation(&blocks), |known| (known, 0.0));
    // A few blocks at the ends do not set the steps of the levels.
    let trim = blocks.len() / 200;
    let brightest = blocks[blocks.len() - 1 - trim].level;
    // Groups that noise alone puts apart would flatten the line: steps are wide beside the noise of a block's mean.
    let noise = typical(&blocks, 2..=3).0.sqrt() / SIDE as f64;
    let step = ((brightest - blocks[trim].level) / GROUPS as f64).max(4.0 * noise);
    let power = mean_squares(&correlation).map(|s| s.max(LEAST_POWER));
    if !correlation.is_white() {
        blocks.iter_mut().for_each(|b| b.whiten(&power));
    }
    // Where high frequencies have little of the noise they tell little of it.
    let white = correlation.at(0, 1).max(correlation.at(1, 0)) < NEARLY_WHITE;
    let mut groups = if white { group(&mut blocks, step, Group::of_white) } else { vec![] };
    let textured = white && groups.is_empty();
    if groups.is_empty() {
        groups = group(&mut blocks, step, |like| Some(Group::of_correlated(like, &power, &IN_PICTURES)));
    }
    let used: usize = groups.iter().map(|g| g.count).sum();
    let fixed = known.gain.map(f64::recip);
    let mut fit = fit(&groups, fixed);
    let mut steepest = fit.line.slope + 2.0 * fit.line.slope_error;
    if fixed.is_none() && correlation.is_white() && !textured {
        let blocks = Growth { slope: fit.line.slope, error: fit.line.slope_error };
        let pixels = super::pixels::growth(planes, shape, saturation);
        if let Some(pixels) = pixels {
            steepest = steepest.min((pixels.slope + 2.0 * pixels.error).max(blocks.slope));
        }
        if let Some(slope) = together(blocks, pixels) {
            let scatter = fit.scatter;
            fit = self::fit(&groups, Some(slope.slope));
            (fit.line.slope_error, fit.scatter) = (slope.error, scatter);
        }
    }
    let mut doubts = Vec::new();
    if fit.scatter > 3.0 {
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
        brightest,
        blocks: used,
        rounding: ends.rounding(),
        saturation,
        correlation,
        correlation_error,
        points: groups.iter().map(Group::point).collect(),
    };
    Ok(seen.resolve(known, doubts))
}

impl Known {
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

/// Smooth blocks of like level.
pub(super) struct Group {
    pub level: f64,
    pub variance: f64,
    /// Of the variance, if noise is all there is.
    pub relative_error: f64,
    pub count: usize,
}

/// Levels are cut into equal steps, wider ones where there are few blocks.
pub(super) fn group(
    blocks: &mut [Block],
    step: f64,
    of: impl Fn(&mut [Block]) -> Option<Group>,
) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut first = 0;
    for i in 0..blocks.len() {
        let rest = blocks.len() - i - 1;
        let full = i + 1 - first >= 3 * FEWEST_IN_GROUP && blocks[i].level - blocks[first].level >= step;
        if rest == 0 || (full && rest >= 3 * FEWEST_IN_GROUP) {
            groups.extend(of(&mut blocks[first..=i]));
            first = i + 1;
        }
    }
    groups
}

impl Group {
    pub fn point(&self) -> Point {
        let Group { level, variance, relative_error, count } = *self;
        Point { level, variance, error: relative_error * variance, count }
    }

    /// The blocks of `like` level that are as smooth as the smoothest of them; nothing if even those are not.
    fn of_white(like: &mut [Block]) -> Option<Group> {
        let structure = |b: &Block| b.bands[0] / 20.0 + b.bands[1];
        like.sort_by(|a, b| structure(a).total_cmp(&structure(b)));
        let first = fewest(like);
        let quiet = typical(&like[..first], 2..=3).0;
        let smooth = &like[..like.partition_point(|b| structure(b) < CONSISTENT * quiet).max(first)];
        // What structure leaks into a band shows more in the band below.
        [(1..=1, 2..=3), (2..=2, 3..=3)].into_iter().find_map(|(below, taken)| {
            let group = Group::measured(smooth, taken);
            (typical(smooth, below).0 < LEAKS * group.variance).then_some(group)
        })
    }

    /// The quietest blocks where noise has a spectrum of this shape: one half of the coefficients chooses blocks, the other is
    /// measured, and the other way round.
    pub fn of_correlated(like: &[Block], shape: &[f64; COEFFICIENTS], by: &Telling) -> Group {
        let (mut level, mut variance, mut count, mut freedom) = (0.0, 0.0, 0, 0.0);
        let tells = |i: usize| by.frequencies.contains(&frequency(i)) && shape[i] > by.least;
        let weight = |i: usize| if by.whitened { shape[i].recip() } else { 1.0 };
        for half in 0..2 {
            let measured: Vec<usize> =
                (0..COEFFICIENTS).filter(|&i| belongs(i, 1 - half) && tells(i)).collect();
            let sum = |power: i32| measured.iter().map(|&i| (weight(i) * shape[i]).powi(power)).sum::<f64>();
            let (whole, own) = (sum(1), sum(1).powi(2) / sum(2));
            let quiet = quiet(like, half, shape);
            let energy = |b: &&Block| {
                measured.iter().map(|&i| weight(i) * f64::from(b.squares[i])).sum::<f64>() / whole
            };
            variance += 0.5 * median(quiet.iter().map(energy)) / median_share(own);
            level += 0.5 * quiet.iter().map(|b| b.level).sum::<f64>() / quiet.len() as f64;
            (count, freedom) = (count + quiet.len(), freedom + own);
        }
        Group::new(level, variance, freedom, count / 2)
    }

    fn measured(smooth: &[Block], bands: std::ops::RangeInclusive<usize>) -> Group {
        let count = smooth.len();
        let level = smooth.iter().map(|b| b.level).sum::<f64>() / count as f64;
        let (variance, freedom) = typical(smooth, bands);
        Group::new(level, variance, freedom, count)
    }

    fn new(level: f64, variance: f64, freedom: f64, count: usize) -> Group {
        // Blocks overlap by half along each axis, and a median needs more values than a mean for the same error.
        let relative_error = (2.0 / freedom * 1.57 * 3.0 / count as f64).sqrt().hypot(MODEL_ERROR);
        Group { level, variance, relative_error, count }
    }
}

/// How many of the smoothest blocks are taken before others are compared with them.
fn fewest(like: &[Block]) -> usize {
    (like.len() / 20).max(FEWEST_IN_GROUP.min(like.len()))
}

/// The median over blocks of the mean square in some bands, as the mean that it stands for in white noise, and the number
/// of coefficients.
fn typical(blocks: &[Block], bands: std::ops::RangeInclusive<usize>) -> (f64, f64) {
    let freedom: f64 = COUNTS[bands.clone()].iter().sum();
    let energy = |b: &Block| bands.clone().map(|i| b.bands[i] * COUNTS[i]).sum::<f64>() / freedom;
    (median(blocks.iter().map(energy)) / median_share(freedom), freedom)
}

/// The median of chi2 over its mean (Wilson, Hilferty).
fn median_share(freedom: f64) -> f64 {
    (1.0 - 2.0 / (9.0 * freedom)).powi(3)
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    let at = values.len() / 2;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

pub(super) struct Fit {
    pub line: NoiseLine,
    /// The groups' scatter about the line over what chance gives.
    pub scatter: f64,
}

/// The line through the groups; `fixed` is the slope, if it is known.
pub(super) fn fit(groups: &[Group], fixed: Option<f64>) -> Fit {
    let usual = median(groups.iter().map(|g| g.variance)).max(f64::MIN_POSITIVE);
    let mut expected: Vec<f64> = groups.iter().map(|g| g.variance.max(1e-3 * usual)).collect();
    let mut trust = vec![1.0; groups.len()];
    let mut line = NoiseLine::default();
    let mut scatter = 1.0;
    for _ in 0..50 {
        let [mut s0, mut s1, mut s2, mut t0, mut t1] = [0.0; 5];
        // Levels are taken about their middle, which keeps the normal equations well.
        let middle = groups.iter().map(|g| g.level).sum::<f64>() / groups.len() as f64;
        for ((g, &v), &t) in groups.iter().zip(&expected).zip(&trust) {
            let w = t / (v * g.relative_error).powi(2);
            let l = g.level - middle;
            s0 += w;
            s1 += w * l;
            s2 += w * l * l;
            t0 += w * g.variance;
            t1 += w * l * g.variance;
        }
        let determinant = s0 * s2 - s1 * s1;
        let told = determinant > 1e-12 * s0 * s2 && s2 > 0.0;
        let (slope, slope_variance) = match fixed {
            Some(a) => (a, 0.0),
            None if told => ((s0 * t1 - s1 * t0) / determinant, s0 / determinant),
            None => (0.0, f64::INFINITY),
        };
        let slope = slope.max(0.0);
        line = NoiseLine {
            slope,
            slope_error: slope_variance.sqrt(),
            pivot: middle + s1 / s0,
            at_pivot: t0 / s0,
            at_pivot_error: (1.0 / s0).sqrt(),
        };
        let mut moved = 0f64;
        let deviations: Vec<f64> = groups
            .iter()
            .zip(&mut expected)
            .map(|(g, v)| {
                let new = line.variance(g.level).max(0.02 * g.variance);
                moved = moved.max((new / *v - 1.0).abs());
                *v = new;
                (g.variance - new) / (new * g.relative_error)
            })
            .collect();
        scatter = (median(deviations.iter().map(|d| d.abs())) / 0.6745).max(1.0);
        // Structure can only add: what lies far above the line loses its weight (Tukey's), what lies below keeps it.
        for (t, d) in trust.iter_mut().zip(&deviations) {
            let far = d.max(0.0) / (4.0 * scatter);
            *t = (1.0 - far * far).max(0.01).powi(2);
        }
        if moved < 1e-9 {
            break;
        }
    }
    line.slope_error *= scatter;
    line.at_pivot_error *= scatter;
    Fit { line, scatter }
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

/// One level whose variance is known, with the offset under it: all that an evenly lit image tells.
struct Middle {
    /// Above the offset.
    level: f64,
    variance: f64,
    error: f64,
}

impl Middle {
    /// None where there is no light above the offset, or no noise.
    fn of(line: &NoiseLine, offset: f64, rounding: f64) -> Option<Middle> {
        let (level, variance) = (line.pivot - offset, line.at_pivot - rounding);
        (level > 0.0 && variance > 0.0).then_some(Middle { level, variance, error: line.at_pivot_error })
    }

    /// The growth that explains the variance beside this read noise in electrons, and its error: the positive root of
    /// `a level + a^2 read_noise^2 = variance`, written so that no read noise is no exception.
    fn slope(&self, read_noise: f64) -> (f64, f64) {
        let root = (self.level.powi(2) + 4.0 * read_noise.powi(2) * self.variance).sqrt();
        (2.0 * self.variance / (self.level + root), self.error / root)
    }
}

/// What the blocks have told.
pub(super) struct Seen {
    pub line: NoiseLine,
    /// The largest slope that would fit as well.
    pub steepest: f64,
    pub levels: [f64; 2],
    pub brightest: f64,
    pub blocks: usize,
    /// The variance that rounding adds.
    pub rounding: f64,
    pub saturation: Option<f64>,
    pub correlation: Correlation,
    pub correlation_error: f64,
    pub points: Vec<Point>,
}

impl Seen {
    /// Fills in what the line leaves open.
    pub fn resolve(self, known: &Known, mut doubts: Vec<Doubt>) -> BlindFit {
        let Seen { line, steepest, levels, brightest, blocks, rounding, saturation, .. } = self;
        let darkest = (line.variance(levels[0]) - rounding).max(0.0);
        let grows = known.gain.is_some() || (line.slope > SEEN * line.slope_error && line.slope > 0.0);
        // Where noise does not grow measurably and the offset is known, shot noise is at most all noise of the middle level.
        let middle = known.offset.filter(|_| !grows).and_then(|offset| Middle::of(&line, offset, rounding));
        let alone = middle.as_ref().zip(known.read_noise).map(|(m, read_noise)| m.slope(read_noise));
        let slope_seen = grows || alone.is_some();
        // ADU per electron, and its error.
        let (a, a_error, gentlest, steepest) = if slope_seen {
            let (a, error) = alone.unwrap_or((line.slope, line.slope_error));
            (a, error, (a - 2.0 * error).max(a / 10.0), a + 2.0 * error)
        } else {
            doubts.push(Doubt::GainNotSeen);
            let variance = line.at_pivot.max(f64::MIN_POSITIVE);
            let least = UNSEEN_SHARE * variance / (brightest - levels[0]).max(variance.sqrt());
            // Slopes up to the steepest fit as well; without any such bound, all noise of the brightest place is shot noise.
            let most = if steepest.is_finite() { steepest } else { least / UNSEEN_SHARE }.max(2.0 * least);
            let most = middle.as_ref().map_or(most, |m| most.min(m.slope(0.0).0));
            (most / 2.0, 0.0, least.min(most / 2.0), most)
        };
        let gain = 1.0 / a;
        // The square of the read noise is the line's variance at the offset, in electrons, and has twice this error.
        let square = |offset: f64| {
            let at = match &middle {
                Some(middle) => middle.variance - a * middle.level,
                None if slope_seen => darkest - a * (levels[0] - offset),
                None => darkest,
            };
            gain * gain * at.max(0.0)
        };
        let spread = |offset: f64| {
            if !slope_seen {
                return 2.0 * gain * gain * line.at_pivot_error;
            }
            2.0 * (line.variance_error(offset) * gain * gain).hypot(2.0 * square(offset) * a_error / a)
        };
        // Between the level where the line says that there is no noise and the darkest level.
        let first = if slope_seen { levels[0] - darkest / a } else { levels[0] };
        let error = (line.variance_error(levels[0]) / a).hypot(darkest / (a * a) * a_error);
        let lowest = if slope_seen { first - 2.0 * error } else { levels[0] };
        let (offset, offset_range) = match (known.offset, known.read_noise) {
            (Some(offset), _) => (offset, [offset; 2]),
            (None, Some(sigma)) if slope_seen => {
                let offset = first + sigma * sigma * a;
                (offset, [offset - 2.0 * error, offset + 2.0 * error])
            }
            _ => {
                doubts.push(Doubt::OffsetAssumed);
                let none = lowest <= 0.0 && levels[0] >= 0.0;
                (if none { 0.0 } else { (first + levels[0]) / 2.0 }, [lowest, levels[0]])
            }
        };
        let read_noise_range = match known.read_noise {
            Some(sigma) => [sigma; 2],
            None => {
                let [low, high] = offset_range;
                [square(low) - spread(low), square(high) + spread(high)].map(|s| s.max(0.0).sqrt())
            }
        };
        BlindFit {
            line,
            gain,
            gain_error: if slope_seen { gain * a_error / a } else { f64::INFINITY },
            gain_range: [1.0 / steepest, 1.0 / gentlest],
            offset,
            offset_range,
            read_noise: known.read_noise.unwrap_or_else(|| square(offset).sqrt()),
            read_noise_range,
            saturation,
            correlation: self.correlation,
            correlation_error: self.correlation_error,
            blocks,
            levels,
            points: self.points,
            doubts,
        }
    }
}
