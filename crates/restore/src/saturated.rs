//! Estimates the values of saturated pixels, from their neighbourhood and from the fact that they reached the limit.
//!
//! A saturated pixel is a censored measurement: its value is a lower bound. If it is left unchanged it makes bright
//! regions too dark, and even more so if it is filled in from its neighbours. It is replaced by its expected
//! measurement ([`censored::expectation`]), with the mean of its neighbours as its mean and the standard deviation of
//! the noise and of the structure around it. Adjacent saturated pixels are estimated together in a few iterations (the
//! EM algorithm of Tobit regression), so that a region of which noise saturates a third keeps its mean. A restorer then
//! sees noise with its usual distribution, and smooths a single pixel that noise brought to the limit like the others.
//!
//! A single pixel that neither noise nor the structure around it explains is treated as a defect of the sensor.
//!
//! The restored value may still be too low at the smoothed rim of a bright object, because many adjacent saturated
//! pixels cannot come from a mean far below the limit. [`Least`] is a lower bound from the joint likelihood of the
//! saturated pixels within 5 x 5: a lone pixel may be 4.8 standard deviations of the noise below the limit, one among
//! 25 not at all.

use crate::learned::Camera;
use clearshot_physics::likelihood::censored::{expectation, slack};
use rayon::prelude::*;

/// The known noise of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoiseLevel {
    /// Unknown; the scatter of neighbours is used.
    Unknown,
    /// A uniform standard deviation, in the unit of the file.
    Uniform(f32),
    /// Camera noise.
    Camera { gain: f64, offset: f64, read_noise: f64 },
}

impl NoiseLevel {
    pub fn of(camera: &Camera) -> NoiseLevel {
        let Camera { gain, offset, read_noise, .. } = *camera;
        NoiseLevel::Camera { gain, offset, read_noise }
    }

    /// The standard deviation where the mean is so bright, in the file's unit; 0 where it is not known.
    fn at(&self, mean: f64) -> f64 {
        match self {
            NoiseLevel::Unknown => 0.0,
            NoiseLevel::Uniform(deviation) => f64::from(*deviation),
            NoiseLevel::Camera { gain, offset, read_noise } => {
                Camera { gain: *gain, offset: *offset, read_noise: *read_noise, ..Camera::default() }
                    .deviation(mean)
            }
        }
    }
}

/// The smallest value that a restored pixel may have, for some pixels of an image.
pub type Least = Vec<(usize, f32)>;

/// Raises restored pixels to their lower bounds.
pub fn raise(restored: &mut [f32], least: &Least) {
    least.iter().for_each(|&(i, v)| restored[i] = restored[i].max(v));
}

/// Turns of the EM algorithm, each of which looks one pixel further.
const TURNS: usize = 7;
/// The number of pixels around a saturated one on which its expectation depends.
pub const REACH: usize = TURNS + 1;
/// Standard deviations that neither noise nor structure explains.
const DEFECT: f64 = 8.0;
/// The scatter of neighbours over the noise's variance that counts as chance.
const BY_CHANCE: f64 = 2.0;
/// The probability below which what was measured refuses a mean: one pixel of a large image.
const CHANCE: f64 = 1e-6;
/// Half the side of the square whose saturated pixels count together.
const TOGETHER: usize = 2;

/// The saturated pixels of a plane or volume of `[z, y, x]` pixels.
pub(crate) struct Saturated<'a> {
    pub size: [usize; 3],
    pub limit: f32,
    pub noise: NoiseLevel,
    /// Their places.
    pub pixels: &'a [usize],
    /// Which pixels are measured, including saturated ones.
    pub known: &'a [bool],
}

impl Saturated<'_> {
    /// Replaces saturated pixels by their expected measurements. Returns defects, which are left unchanged, and the
    /// lower bounds of the others.
    pub fn estimate(&self, values: &mut [f32]) -> (Vec<usize>, Least) {
        let mut full = vec![false; values.len()];
        self.pixels.iter().for_each(|&i| full[i] = true);
        let alone = |i: usize| around(self.size, i, 1).all(|j| j == i || !full[j]);
        let limit = f64::from(self.limit);
        let is_defect = |i: usize| {
            alone(i)
                && self
                    .neighbours(values, i, &full)
                    .is_some_and(|(mean, spread)| limit - mean > DEFECT * spread && limit > mean)
        };
        let (defects, kept): (Vec<usize>, Vec<usize>) = self.pixels.par_iter().partition(|&&i| is_defect(i));
        defects.iter().for_each(|&i| full[i] = false);
        kept.iter().for_each(|&i| values[i] = self.limit);
        let mut bad = vec![false; values.len()];
        defects.iter().for_each(|&i| bad[i] = true);
        for _ in 0..TURNS {
            let expected: Vec<f32> = kept
                .par_iter()
                .map(|&i| match self.neighbours(values, i, &bad) {
                    Some((mean, spread)) => expectation(mean, spread, limit).min(f32::MAX.into()) as f32,
                    None => self.limit,
                })
                .collect();
            kept.iter().zip(expected).for_each(|(&i, v)| values[i] = v);
        }
        let least = kept.par_iter().map(|&i| (i, self.least(i, &full))).collect();
        (defects, least)
    }

    /// The mean of a pixel's neighbours and how far the pixel may lie from it: by noise, and by more scatter among them than noise
    /// explains. Those that hold no measurement or are `left_out` do not count; nothing where none does.
    fn neighbours(&self, values: &[f32], i: usize, left_out: &[bool]) -> Option<(f64, f64)> {
        let near = || around(self.size, i, 1).filter(|&j| j != i && self.known[j] && !left_out[j]);
        let (sum, count) = near().fold((0.0, 0.0), |(s, n), j| (s + f64::from(values[j]), n + 1.0));
        if count == 0.0 {
            return None;
        }
        let mean = sum / count;
        let scatter = near().map(|j| (f64::from(values[j]) - mean).powi(2)).sum::<f64>() / count;
        let noise = self.noise.at(mean).powi(2);
        let structure = (scatter - BY_CHANCE * noise).max(0.0);
        Some((mean, (noise * (1.0 + 1.0 / count) + structure).sqrt()))
    }

    /// The least mean of a pixel, by how many around it are saturated; any where the noise that it takes is not known.
    fn least(&self, i: usize, full: &[bool]) -> f32 {
        let (saturated, all) = around(self.size, i, TOGETHER)
            .fold((0.0, 0.0), |(s, n), j| (s + f64::from(u8::from(full[j])), n + 1.0));
        let side = (2 * TOGETHER + 1) as f64;
        // At an edge of the image the square is cut.
        let below = slack(saturated * side * side / all, CHANCE).max(0.0);
        let deviation = self.noise.at(f64::from(self.limit));
        match below > 0.0 && deviation <= 0.0 {
            true => f32::NEG_INFINITY,
            false => (f64::from(self.limit) - below * deviation) as f32,
        }
    }
}

/// The pixels of a square around a pixel, itself included; of a volume, those of a cube if they are its nearest.
pub(crate) fn around(size: [usize; 3], i: usize, reach: usize) -> impl Iterator<Item = usize> {
    let at = [i / (size[1] * size[2]), i / size[2] % size[1], i % size[2]];
    let near = |a: usize, reach: usize| at[a].saturating_sub(reach)..(at[a] + reach + 1).min(size[a]);
    let [z, y, x] = [near(0, usize::from(reach == 1)), near(1, reach), near(2, reach)];
    z.flat_map(move |z| {
        let x = x.clone();
        y.clone().flat_map(move |y| x.clone().map(move |x| (z * size[1] + y) * size[2] + x))
    })
}
