//! Estimates gain and read noise of a camera from its frames.
//!
//! In ADU above the offset, a pixel of level L has the variance `V(L) = a L + b`, with `a = 1 / gain` and
//! `b = (read noise / gain)^2`, plus 1/12 where the converter rounds. Frames of one scene give an estimate of L and of
//! V for each pixel, and a line is fitted to these. Three errors of naive fits are corrected:
//!
//! - *Two frames have two noises.* The difference of a short exposure and a long one divided by its
//!   ratio r has the variance `a L (1 + 1/r) + b (1 + 1/r^2)`, not V(L); each term gets its factor.
//! - *The level is noisy too*, which flattens a regression, and its noise is correlated with the estimate of the
//!   variance because Poisson noise is skewed. The expectations of both effects in the normal equations are known and
//!   are subtracted.
//! - *Weights must not depend on the noise they weight.* They are taken from the mean level of the neighbours, without
//!   the pixel itself, unless it differs from them far beyond its noise.
//!
//! Offset and read noise are best measured in the dark: [`from_darks`].

use crate::error::{PhysicsError, require, require_length};
use crate::map::Map;
use crate::units::Adu;
use serde::Serialize;

/// A camera estimated from frames, with standard errors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NoiseFit {
    /// Electrons per ADU.
    pub gain: f64,
    pub gain_error: f64,
    /// Electrons; zero if the fitted variance in the dark is not positive.
    pub read_noise: f64,
    pub read_noise_error: f64,
    /// The number of pixels used.
    pub pixels: usize,
}

/// Known properties of the frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frames {
    /// Y, X.
    pub shape: [usize; 2],
    /// ADU in the dark.
    pub offset: f64,
    /// Pixels at or above this in any frame are left out.
    pub saturation: Option<f64>,
    /// Whether counts are whole numbers, whose rounding adds 1/12 ADU^2.
    pub rounded: bool,
}

/// Pixels that a fit needs at least.
const FEWEST_PIXELS: usize = 256;
/// Half the side of the neighbourhood that weights are taken from.
const NEIGHBOURS: usize = 3;
/// Standard deviations of its level by which a pixel is brighter than its neighbours to be no part of them.
const STANDS_OUT: f64 = 5.0;
/// Standard errors by which the levels' variance must exceed what their noise makes of equal ones.
const SIGNIFICANT: f64 = 6.0;
const ROUNDING_VARIANCE: f64 = 1.0 / 12.0;

/// From two or more frames of one scene under one exposure.
///
/// # Errors
/// If there are fewer than two frames or too few usable pixels, or the levels do not tell a gain.
pub fn from_repeats(frames: &[Adu<&[f64]>], known: &Frames) -> Result<NoiseFit, PhysicsError> {
    let n = frames.len();
    if n < 2 {
        return Err(PhysicsError::TooFew { what: "frames", got: n, needed: 2 });
    }
    let pixels = known.check(frames)?;
    let count = n as f64;
    let mut samples = Vec::with_capacity(pixels);
    for i in 0..pixels {
        let values = || frames.iter().map(|f| f.0[i]);
        samples.push(known.usable(values()).then(|| {
            let mean = values().sum::<f64>() / count;
            let variance = values().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
            Sample { level: mean - known.offset, variance }
        }));
    }
    // The mean of n frames has 1/n of the variance and 1/n^2 of the third moment, and covaries with the
    // sample variance by 1/n of the third moment.
    let law = Law { shot: 1.0, read: 1.0, level: [1.0 / count; 2], third: 1.0 / count, freedom: count - 1.0 };
    fit(&samples, known, &law)
}

/// From pairs of flat fields, one pair at each light level: the photon transfer curve. The sensitivity of a pixel
/// cancels within a pair.
///
/// # Errors
/// As [`from_repeats`]; a single level does not determine the gain.
pub fn from_flats(pairs: &[[Adu<&[f64]>; 2]], known: &Frames) -> Result<NoiseFit, PhysicsError> {
    for frame in pairs.iter().flatten() {
        known.check(&[*frame])?;
    }
    // One below the other they are two frames of one scene whose levels differ.
    let stacked = [0, 1].map(|i| pairs.iter().flat_map(|pair| pair[i].0).copied().collect::<Vec<f64>>());
    let shape = [known.shape[0] * pairs.len(), known.shape[1]];
    from_repeats(&stacked.each_ref().map(|f| Adu(&f[..])), &Frames { shape, ..*known })
}

/// From a short exposure of a scene and one that is `ratio` times as long.
///
/// # Errors
/// If the ratio is below 1, there are too few usable pixels, or the levels do not tell a gain.
pub fn from_pair(
    short: Adu<&[f64]>,
    long: Adu<&[f64]>,
    ratio: f64,
    known: &Frames,
) -> Result<NoiseFit, PhysicsError> {
    require(ratio.is_finite() && ratio >= 1.0, "the exposure ratio", ratio, "a finite number of at least 1")?;
    let pixels = known.check(&[short, long])?;
    let mut samples = Vec::with_capacity(pixels);
    for i in 0..pixels {
        let (s, l) = (short.0[i], long.0[i]);
        samples.push(known.usable([s, l].into_iter()).then(|| {
            let (s, l) = (s - known.offset, l - known.offset);
            // The best estimate of the short exposure's level: all light over all time.
            Sample { level: (s + l) / (1.0 + ratio), variance: (s - l / ratio).powi(2) }
        }));
    }
    let total = 1.0 + ratio;
    let law = Law {
        shot: 1.0 + 1.0 / ratio,
        read: 1.0 + 1.0 / (ratio * ratio),
        // Var((s + l) / (1 + r)) = a L / (1 + r) + 2 b / (1 + r)^2.
        level: [1.0 / total, 2.0 / (total * total)],
        // E[(ds + dl)(ds - dl / r)^2] / (1 + r), third moments being a^2 L and a^2 r L.
        third: (1.0 + 1.0 / ratio) / total,
        freedom: 1.0,
    };
    fit(&samples, known, &law)
}

/// Offset and read noise of each pixel from dark frames: means and standard deviations over the frames, in ADU.
/// Multiply the second by the gain to get electrons.
///
/// # Errors
/// If there are fewer than two frames, or sizes differ.
pub fn from_darks(frames: &[Adu<&[f64]>], rounded: bool) -> Result<(Adu<Map>, Adu<Map>), PhysicsError> {
    if frames.len() < 2 {
        return Err(PhysicsError::TooFew { what: "frames", got: frames.len(), needed: 2 });
    }
    let pixels = frames[0].0.len();
    frames.iter().try_for_each(|f| require_length("a dark frame", f.0.len(), pixels))?;
    let n = frames.len() as f64;
    let extra = if rounded { ROUNDING_VARIANCE } else { 0.0 };
    let (mut offset, mut noise) = (Vec::with_capacity(pixels), Vec::with_capacity(pixels));
    for i in 0..pixels {
        let mean = frames.iter().map(|f| f.0[i]).sum::<f64>() / n;
        let variance = frames.iter().map(|f| (f.0[i] - mean).powi(2)).sum::<f64>() / (n - 1.0);
        offset.push(mean);
        noise.push((variance - extra).max(0.0).sqrt());
    }
    Ok((Adu(Map::Pixels(offset)), Adu(Map::Pixels(noise))))
}

impl Frames {
    fn check(&self, frames: &[Adu<&[f64]>]) -> Result<usize, PhysicsError> {
        require(self.offset.is_finite(), "offset", self.offset, "a finite number")?;
        let pixels = self.shape[0] * self.shape[1];
        frames.iter().try_for_each(|f| require_length("a frame", f.0.len(), pixels))?;
        Ok(pixels)
    }

    fn usable(&self, mut values: impl Iterator<Item = f64>) -> bool {
        let full = self.saturation.unwrap_or(f64::INFINITY);
        values.all(|v| v.is_finite() && v < full)
    }
}

/// What the frames say of one pixel, in ADU above the offset.
#[derive(Clone, Copy)]
struct Sample {
    level: f64,
    /// Its expectation is `shot a L + read b`.
    variance: f64,
}

/// How a sample's parts depend on the truth.
struct Law {
    shot: f64,
    read: f64,
    /// Var(level estimate) = level[0] a L + level[1] b.
    level: [f64; 2],
    /// Cov(level estimate, variance estimate) = third a^2 L.
    third: f64,
    /// Degrees of freedom of the variance's estimate.
    freedom: f64,
}

fn fit(samples: &[Option<Sample>], known: &Frames, law: &Law) -> Result<NoiseFit, PhysicsError> {
    let used: Vec<(Sample, f64)> = samples
        .iter()
        .enumerate()
        .filter_map(|(i, s)| s.and_then(|s| surrounding(samples, known.shape, i).map(|level| (s, level))))
        .collect();
    if used.len() < FEWEST_PIXELS {
        return Err(PhysicsError::TooFew { what: "usable pixels", got: used.len(), needed: FEWEST_PIXELS });
    }
    let n = used.len() as f64;
    let average = |f: &dyn Fn(&(Sample, f64)) -> f64| used.iter().map(f).sum::<f64>() / n;
    // A first guess: all variance is shot noise.
    let mut a = (average(&|u| u.0.variance) / (law.shot * average(&|u| u.0.level.max(0.0)))).max(1e-12);
    let mut b = 0.1 * average(&|u| u.0.variance) / law.read;
    let mut covariance = Covariance::default();
    // Reweighting settles in a handful of turns; each is one pass over the pixels.
    for _ in 0..30 {
        // Sums of w, w L, w L^2, w V, w L V with the noise's own share removed.
        let (mut s0, mut s1, mut s2, mut t0, mut t1, mut noise) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
        for (sample, neighbours) in &used {
            let of_own = law.level[0] * a * sample.level.max(0.0) + law.level[1] * b;
            let stands_out = sample.level - neighbours > STANDS_OUT * of_own.sqrt();
            let level = if stands_out { sample.level } else { neighbours.max(0.0) };
            let expected = (law.shot * a * level + law.read * b).max(1e-9 * a * a + f64::MIN_POSITIVE);
            let w = 1.0 / (expected * expected);
            let of_level = law.level[0] * a * sample.level + law.level[1] * b;
            s0 += w;
            noise += w * of_level;
            s1 += w * sample.level;
            s2 += w * (sample.level * sample.level - of_level);
            t0 += w * sample.variance;
            t1 += w * (sample.level * sample.variance - law.third * a * a * sample.level);
        }
        let determinant = s0 * s2 - s1 * s1;
        let slope = (s0 * t1 - s1 * t0) / determinant / law.shot;
        let needed = "levels that differ from pixel to pixel by more than their noise, with light in them";
        // The levels' true variance, and by how much its estimate varies where there is none.
        let (variance, error) = (determinant / (s0 * s0), noise.abs() / s0 * (2.0 / n).sqrt());
        require(
            variance > SIGNIFICANT * error && slope.is_finite() && slope > 0.0,
            "the fitted ADU per electron",
            slope,
            needed,
        )?;
        let intercept = (s2 * t0 - s1 * t1) / determinant / law.read;
        let moved = (slope - a).abs() / a + (intercept.max(0.0) - b).abs() / (b + a * a);
        (a, b) = (slope, intercept.max(0.0));
        // Var(variance estimate) = 2 V^2 / freedom, so the weighted covariance is 2 / freedom of this.
        let scale = 2.0 / law.freedom / determinant;
        covariance = Covariance {
            slope: scale * s0 / (law.shot * law.shot),
            intercept: scale * s2 / (law.read * law.read),
            both: -scale * s1 / (law.shot * law.read),
        };
        if moved < 1e-10 {
            break;
        }
    }
    let rounding = if known.rounded { ROUNDING_VARIANCE } else { 0.0 };
    let gain = 1.0 / a;
    let read_noise = gain * (b - rounding).max(0.0).sqrt();
    // The read noise is sqrt(b) / a. Where b is no larger than its error, so is the read noise's square.
    let level = (b - rounding).max(covariance.intercept.sqrt());
    let relative = 0.25 * covariance.intercept / (level * level) + covariance.slope / (a * a)
        - covariance.both / (a * level);
    Ok(NoiseFit {
        gain,
        gain_error: gain * covariance.slope.sqrt() / a,
        read_noise,
        read_noise_error: gain * level.sqrt() * relative.max(0.0).sqrt(),
        pixels: used.len(),
    })
}

/// Of the fitted line's slope and intercept.
#[derive(Clone, Copy, Default)]
struct Covariance {
    slope: f64,
    intercept: f64,
    both: f64,
}

/// The mean level of a pixel's usable neighbours.
fn surrounding(samples: &[Option<Sample>], [height, width]: [usize; 2], i: usize) -> Option<f64> {
    let (y, x) = (i / width, i % width);
    let rows = y.saturating_sub(NEIGHBOURS)..(y + NEIGHBOURS + 1).min(height);
    let (mut sum, mut count) = (0.0, 0);
    for row in rows {
        for column in x.saturating_sub(NEIGHBOURS)..(x + NEIGHBOURS + 1).min(width) {
            let at = row * width + column;
            if let (Some(s), true) = (samples[at], at != i) {
                sum += s.level;
                count += 1;
            }
        }
    }
    (count > 0).then(|| sum / f64::from(count))
}
