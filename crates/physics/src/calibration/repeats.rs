//! Estimates the noise of a camera from repeated frames of one scene, which only differ by noise.
//!
//! The variance between frames is measured for each pixel, and pixels are grouped by brightness. The brightness used
//! for grouping must not contain the noise that is measured, which would bend the line: with four frames or more, one
//! half of the frames is used for grouping and the other is measured, and vice versa; with two or three frames, the
//! surrounding pixels are used for grouping. Nothing is assumed about the distribution of the noise (for example of an
//! EMCCD, or after smoothing), and it may be correlated. Changes of brightness from frame to frame (lamp, bleaching)
//! are corrected first. Clipped levels are left out of the fit.
//!
//! The gain is the number of electrons per count that explains the variance. It includes the excess noise factor of an
//! EMCCD.

use super::blind::{Doubt, Known, NoiseLine, darkest};
use super::ends::Ends;
use super::groups::Group;
use super::lags::{Lags, sum_of_squares};
use super::line::fit;
use super::measurement::{CameraMeasurement, Source};
use super::movie::{exceeds, singly};
use super::resolve::Seen;
use super::stripes::lines;
use crate::correlation::Correlation;
use crate::error::{PhysicsError, require_length};
use crate::units::Adu;

/// Frames of one scene.
pub type Series<'a> = Vec<Adu<&'a [f32]>>;

/// Pixels that a fit needs, and that a group of like brightness needs; the number of groups.
const FEWEST_PIXELS: usize = 256;
const FEWEST_IN_GROUP: usize = 256;
const GROUPS: usize = 40;
/// The share of pixels of a group that may be clipped.
const CLIPPED: f64 = 0.002;
/// No group's variance is trusted to be nearer than this.
const MODEL_ERROR: f64 = 0.003;
/// Where a pixel's surroundings begin and end, in pixels from it.
const RING: [usize; 2] = [3, 5];

/// The camera from series of frames, each of one scene with one exposure.
///
/// # Errors
/// If there is no series of two frames, a frame has another size, a known parameter is impossible, or there are too few
/// usable pixels.
pub fn from_series(
    series: &[Series<'_>],
    shape: [usize; 2],
    known: &Known,
) -> Result<CameraMeasurement, PhysicsError> {
    measure(series, shape, known, Source::Repeats, None)
}

/// The same with what is known at no light.
pub(super) fn measure(
    series: &[Series<'_>],
    shape: [usize; 2],
    known: &Known,
    source: Source,
    dark: Option<Group>,
) -> Result<CameraMeasurement, PhysicsError> {
    known.check()?;
    let fewest = series.iter().map(Vec::len).min().unwrap_or(0);
    if fewest < 2 {
        return Err(PhysicsError::TooFew { what: "frames of a scene", got: fewest, needed: 2 });
    }
    let all: Vec<Adu<&[f32]>> = series.iter().flatten().copied().collect();
    let pixels = shape[0].saturating_mul(shape[1]);
    all.iter().try_for_each(|f| require_length("a frame", f.0.len(), pixels))?;
    let ends = Ends::of(&all);
    let full = known.saturation.or(ends.full());
    let limits = Limits { low: ends.clipped_low.then_some(ends.lowest), full };
    let steady: Vec<Steady> = series.iter().map(|s| Steady::of(s)).collect();
    let mut samples = Vec::new();
    steady.iter().for_each(|s| s.samples(shape, &limits, &mut samples));
    if samples.len() < FEWEST_PIXELS {
        let (what, got) = ("usable pixels", samples.len());
        return Err(PhysicsError::TooFew { what, got, needed: FEWEST_PIXELS });
    }
    let fixed = known.gain.map(f64::recip);
    let groups = group(&mut samples, 1.0, dark.as_ref());
    let first = fit(&groups, fixed).line;
    let (correlation, correlation_error) = correlation(&steady, shape, &first);
    let correlation = known.correlation.unwrap_or(correlation);
    let groups = group(&mut samples, sum_of_squares(&correlation).sqrt(), dark.as_ref());
    let found = fit(&groups, fixed);
    let line = found.line;
    let (residuals, share) = residuals(&steady);
    let changing = lines(&residuals, shape, share, [0.0; 2]);
    let means: Vec<&[f32]> = steady.iter().map(|s| &s.mean[..]).collect();
    let left = changing.map_or([0.0; 2], |l| l.variances().map(|v| v / fewest as f64));
    let seen = Seen {
        line,
        steepest: line.slope + 2.0 * line.slope_error,
        levels: [groups[0].level, groups[groups.len() - 1].level],
        darkest: darkest(&all),
        brightest: groups[groups.len() - 1].level,
        blocks: groups.iter().map(|g| g.count).sum(),
        rounding: ends.rounding(),
        saturation: full,
        correlation,
        correlation_error,
        points: groups.iter().map(Group::point).collect(),
    };
    let mut doubts = Vec::new();
    if !found.is_line() {
        doubts.push(Doubt::NoLine);
    }
    if ends.clipped_low && ends.at_lowest > 0.25 {
        doubts.push(Doubt::ClippedBelow);
    }
    let mut fit = seen.resolve(known, doubts);
    if source == Source::Repeats && singly(&all, shape, known).is_some_and(|single| exceeds(&fit, &single)) {
        fit.doubts.push(Doubt::Changed);
    }
    Ok(CameraMeasurement {
        source,
        frames: all.len(),
        pixels: all.len() * pixels,
        fit,
        ends,
        changing_stripes: changing,
        fixed_stripes: lines(&means, shape, 1.0, left),
        stripes: None,
        pattern: None,
    })
}

/// Values that hold no measurement.
struct Limits {
    low: Option<f64>,
    full: Option<f64>,
}

impl Limits {
    fn clips(&self, v: f32) -> bool {
        let v = f64::from(v);
        self.low.is_some_and(|low| v <= low) || self.full.is_some_and(|full| v >= full)
    }
}

/// Frames of one scene as if the brightness had not changed between them.
pub(super) struct Steady {
    pub mean: Vec<f32>,
    /// Frames minus their mean, corrected for changes of brightness.
    pub residuals: Vec<Vec<f32>>,
    frames: Vec<Vec<f32>>,
}

impl Steady {
    pub fn of(series: &[Adu<&[f32]>]) -> Steady {
        let n = series.len() as f32;
        let pixels = series[0].0.len();
        let mean: Vec<f32> = (0..pixels).map(|i| series.iter().map(|f| f.0[i] / n).sum()).collect();
        let bins = Bins::of(&mean);
        let less_mean = |f: &Adu<&[f32]>| f.0.iter().zip(&mean).map(|(x, m)| x - m).collect();
        let mut residuals: Vec<Vec<f32>> = series.iter().map(less_mean).collect();
        // Changes of brightness have no mean; the lines of skewed noise have one.
        let changes: Vec<(f32, f32)> = residuals.iter().map(|r| bins.line(r)).collect();
        let (level, slope) = changes.iter().fold((0.0, 0.0), |(l, s), c| (l + c.0 / n, s + c.1 / n));
        for (residual, change) in residuals.iter_mut().zip(&changes) {
            let (level, slope) = (change.0 - level, change.1 - slope);
            residual.iter_mut().zip(&mean).for_each(|(r, m)| *r -= level + slope * (m - bins.middle));
        }
        let frames = series.iter().map(|f| f.0.to_vec()).collect();
        Steady { mean, residuals, frames }
    }

    /// Sorting brightness, level and variance of every pixel.
    fn samples(&self, shape: [usize; 2], limits: &Limits, samples: &mut Vec<Sample>) {
        let n = self.residuals.len();
        let halves: Vec<[Vec<usize>; 2]> = if n < 4 {
            vec![[(0..n).collect(), vec![]]]
        } else {
            let half = |first: usize| (first..n).step_by(2).collect::<Vec<usize>>();
            vec![[half(0), half(1)], [half(1), half(0)]]
        };
        let around = if n < 4 { surroundings(&self.mean, shape) } else { vec![] };
        for [measured, sorting] in &halves {
            let count = measured.len() as f64;
            for i in 0..self.mean.len() {
                let values = measured.iter().map(|&k| f64::from(self.residuals[k][i]));
                let (sum, squares) = values.fold((0.0, 0.0), |(s, q), v| (s + v, q + v * v));
                let mean = sum / count;
                let level = f64::from(self.mean[i]) + mean;
                let variance = (squares - sum * mean) / (count - 1.0);
                let by = match sorting.len() {
                    0 => f64::from(around[i]),
                    m => {
                        let sum: f32 = sorting.iter().map(|&k| self.residuals[k][i]).sum();
                        f64::from(self.mean[i] + sum / m as f32)
                    }
                };
                if level.is_finite() && variance.is_finite() && by.is_finite() {
                    let clipped = self.frames.iter().any(|f| limits.clips(f[i]));
                    samples.push(Sample { by, level, variance, clipped });
                }
            }
        }
    }
}

/// One pixel.
struct Sample {
    by: f64,
    level: f64,
    variance: f64,
    clipped: bool,
}

/// The mean of the pixels in a square ring around each, which shares no noise with it.
fn surroundings(mean: &[f32], [height, width]: [usize; 2]) -> Vec<f32> {
    // Sums over the rectangle above and left of each pixel.
    let stride = width + 1;
    let mut sums = vec![[0f64; 2]; (height + 1) * stride];
    for y in 0..height {
        let mut row = [0f64; 2];
        for x in 0..width {
            let v = mean[y * width + x];
            if v.is_finite() {
                row = [row[0] + f64::from(v), row[1] + 1.0];
            }
            let above = sums[y * stride + x + 1];
            sums[(y + 1) * stride + x + 1] = [above[0] + row[0], above[1] + row[1]];
        }
    }
    let square = |y: usize, x: usize, reach: usize| {
        let (top, bottom) = (y.saturating_sub(reach), (y + reach + 1).min(height));
        let (left, right) = (x.saturating_sub(reach), (x + reach + 1).min(width));
        let at = |y: usize, x: usize, i: usize| sums[y * stride + x][i];
        [0, 1].map(|i| at(bottom, right, i) - at(top, right, i) - at(bottom, left, i) + at(top, left, i))
    };
    let one = |i: usize| {
        let (y, x) = (i / width, i % width);
        let (inner, outer) = (square(y, x, RING[0] - 1), square(y, x, RING[1]));
        ((outer[0] - inner[0]) / (outer[1] - inner[1])) as f32
    };
    (0..height * width).map(one).collect()
}

/// Groups of pixels of like brightness, in rising order; `correlated` is by how much neighbours that share noise make the
/// error of a mean larger.
fn group(samples: &mut [Sample], correlated: f64, dark: Option<&Group>) -> Vec<Group> {
    samples.sort_by(|a, b| a.by.total_cmp(&b.by));
    let n = samples.len();
    let trim = n / 500;
    let step = (samples[n - 1 - trim].by - samples[trim].by) / GROUPS as f64;
    let (mut groups, mut clipped, mut first) = (Vec::new(), Vec::new(), 0);
    for i in 0..n {
        let rest = n - i - 1;
        let full = i + 1 - first >= FEWEST_IN_GROUP && samples[i].by - samples[first].by >= step;
        if rest == 0 || (full && rest >= FEWEST_IN_GROUP) {
            let like = &samples[first..=i];
            let count = like.len() as f64;
            let share = like.iter().filter(|s| s.clipped).count() as f64 / count;
            let mean = |of: fn(&Sample) -> f64| like.iter().map(of).sum::<f64>() / count;
            let (level, variance) = (mean(|s| s.level), mean(|s| s.variance));
            let spread = (mean(|s| s.variance * s.variance) - variance * variance).max(0.0);
            let error = correlated * (spread / count).sqrt() / variance.max(f64::MIN_POSITIVE);
            let group =
                Group { level, variance, relative_error: error.hypot(MODEL_ERROR), count: like.len() };
            if share > CLIPPED {
                clipped.push(group)
            } else {
                groups.push(group)
            }
            first = i + 1;
        }
    }
    // Photon counting has zeros everywhere that nothing clipped.
    if groups.len() < 3 {
        groups.append(&mut clipped);
    }
    groups.retain(|g| g.variance > 0.0);
    if let Some(&Group { level, variance, relative_error, count }) = dark {
        groups.push(Group { level, variance, relative_error, count });
    }
    if groups.is_empty() {
        groups.push(Group { level: 0.0, variance: 0.0, relative_error: 1.0, count: 0 });
    }
    groups.sort_by(|a, b| a.level.total_cmp(&b.level));
    groups
}

/// The correlation of what differs, each pixel over its own standard deviation.
fn correlation(steady: &[Steady], shape: [usize; 2], line: &NoiseLine) -> (Correlation, f64) {
    let floor = 0.05 * line.at_pivot.abs();
    let mut lags = Lags::new();
    let (mut all, mut independent) = (0.0, 0.0);
    for s in steady {
        let scale: Vec<f32> = s
            .mean
            .iter()
            .map(|&m| line.variance(f64::from(m)).max(floor).max(f64::MIN_POSITIVE).sqrt().recip() as f32)
            .collect();
        for residual in &s.residuals {
            let noise: Vec<f32> = residual.iter().zip(&scale).map(|(r, s)| r * s).collect();
            lags.add(&noise, shape);
        }
        all += s.residuals.len() as f64;
        independent += s.residuals.len() as f64 - 1.0;
    }
    lags.correlation(independent / all)
}

/// All residuals, and the share of the noise's variance that is in them.
pub(super) fn residuals(steady: &[Steady]) -> (Vec<&[f32]>, f64) {
    let all: Vec<&[f32]> = steady.iter().flat_map(|s| s.residuals.iter().map(|r| &r[..])).collect();
    let share = (all.len() - steady.len()) as f64 / all.len() as f64;
    (all, share)
}

/// Pixels sorted by brightness, for robust lines through differences of frames.
pub(super) struct Bins {
    order: Vec<u32>,
    levels: Vec<f32>,
    pub middle: f32,
}

/// How many bins there are, and the most pixels in all of them.
const BINS: usize = 24;
const MOST_BINNED: usize = 1 << 16;

impl Bins {
    pub fn of(mean: &[f32]) -> Bins {
        let step = mean.len().div_ceil(MOST_BINNED).max(1);
        let mut order: Vec<u32> =
            (0..mean.len() as u32).step_by(step).filter(|&i| mean[i as usize].is_finite()).collect();
        order.sort_by(|&a, &b| mean[a as usize].total_cmp(&mean[b as usize]));
        let size = order.len().div_ceil(BINS).max(1);
        let level = |bin: &[u32]| {
            (bin.iter().map(|&i| f64::from(mean[i as usize])).sum::<f64>() / bin.len() as f64) as f32
        };
        let levels: Vec<f32> = order.chunks(size).map(level).collect();
        let middle = levels.iter().sum::<f32>() / levels.len().max(1) as f32;
        Bins { order, levels, middle }
    }

    /// The line through the medians of a difference: its value in the middle, and its slope.
    pub fn line(&self, difference: &[f32]) -> (f32, f32) {
        let size = self.order.len().div_ceil(BINS).max(1);
        let mut values: Vec<f64> = Vec::with_capacity(size);
        // Where half of the values are one number, in whatever unit.
        let least = 1e-12 * f64::from(self.levels.iter().fold(f32::MIN_POSITIVE, |m, l| m.max(l.abs())));
        let [mut s0, mut s1, mut s2, mut t0, mut t1] = [0.0; 5];
        for (bin, level) in self.order.chunks(size).zip(&self.levels) {
            values.clear();
            values.extend(bin.iter().map(|&i| f64::from(difference[i as usize])));
            let [low, middle, high] = quartiles(&mut values);
            let weight = bin.len() as f64 / (high - low).max(least).powi(2);
            let l = f64::from(level - self.middle);
            s0 += weight;
            s1 += weight * l;
            s2 += weight * l * l;
            t0 += weight * middle;
            t1 += weight * l * middle;
        }
        let determinant = s0 * s2 - s1 * s1;
        if determinant > 1e-9 * s0 * s2 {
            let slope = (s0 * t1 - s1 * t0) / determinant;
            return (((t0 - slope * s1) / s0) as f32, slope as f32);
        }
        (if s0 > 0.0 { (t0 / s0) as f32 } else { 0.0 }, 0.0)
    }
}

/// Quartiles; the middle one is the mean of what lies between the others, which whole numbers do not round.
fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let [low, high] = [values[n / 4], values[(3 * n / 4).min(n - 1)]];
    let between = &values[n / 4..=(3 * n / 4).min(n - 1)];
    [low, between.iter().sum::<f64>() / between.len() as f64, high]
}
