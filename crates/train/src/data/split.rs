//! Splits the electrons of an image into two parts with independent noise, the input and the target.
//!
//! For Poisson counts, every electron goes to the first part with probability p (binomial thinning): the parts are
//! independent, with p and 1 - p of the mean. With read noise of variance s^2, the electrons plus s^2 have equal mean and
//! variance, and that many whole counts are thinned (slightly fewer where values are below zero, which cannot be thinned);
//! the remainder, of either sign, is divided as p to 1 - p. The parts then add up to the image, each has its share of the
//! mean for any noise, and they are uncorrelated. Above [`NORMAL`] counts the binomial distribution is replaced by the
//! normal one with the same mean and variance. The squared error against the second part is therefore, in expectation, that
//! against the truth plus a constant.
//!
//! Correlated noise stays correlated between parts that are thinned pixel by pixel. For it, the Gaussian version is used
//! everywhere: p times the image plus noise with p (1 - p) of the variance of the image and the same correlation is the
//! first part, and the rest is the other. No pixel of one is then correlated with any pixel of the other.
//!
//! The noise of the second part is what makes learning from splits slower than learning from clean images: 1 / (1 - p) of
//! the variance of the image. Some of it is due to the splitting itself, the assignment of electrons to parts, and cancels
//! between two [`Side`]s of one split of the same image: the draws of the second are the inverted draws of the first. Each
//! side by itself is an ordinary split. The remaining noise of the two targets together is that of the image, for any
//! share.

use super::{Sample, camera};
use crate::error::Result;
use clearshot_model::Photons;
use clearshot_physics::Correlation;
use clearshot_physics::correlation::FILTER;
use clearshot_tensor::noise::Key;

/// Which of two splits that belong together: one has more electrons in its first part where the other has fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    First,
    Second,
}

impl Side {
    /// A number of the uniform law between 0 and 1.
    fn uniform(self, u: f64) -> f64 {
        if self == Side::First { u } else { 1.0 - u }
    }

    /// A number of the normal law.
    fn normal(self, z: f64) -> f64 {
        if self == Side::First { z } else { -z }
    }
}

/// How electrons are split: the share of the first part, and the draws.
#[derive(Clone, Copy)]
pub struct Cut {
    pub share: f64,
    pub key: Key,
    pub side: Side,
}

/// Counts above which the binomial law is taken for the normal one.
const NORMAL: f64 = 100.0;

/// An image of electrons, channels last.
#[derive(Clone, Copy)]
struct Electrons<'a> {
    values: &'a [f32],
    width: usize,
    channels: usize,
}

impl<'a> Electrons<'a> {
    /// Of (Z,) Y, X.
    fn new(values: &'a [f32], size: &[usize]) -> Electrons<'a> {
        let pixels = size.iter().product::<usize>().max(1);
        Electrons { values, width: size.last().copied().unwrap_or(1), channels: values.len() / pixels }
    }

    /// The local mean from neighbours along X, without the pixel's own noise.
    fn around(&self, i: usize) -> f64 {
        let x = i / self.channels % self.width;
        let first = i - x * self.channels;
        let columns = x.saturating_sub(NEAR)..=(x + NEAR).min(self.width - 1);
        let near = columns.filter(|u| *u != x).map(|u| f64::from(self.values[first + u * self.channels]));
        let (sum, count) = near.fold((0.0, 0.0), |(sum, count), v| (sum + v, count + 1.0));
        if count > 0.0 { (sum / count).max(0.0) } else { f64::from(self.values[i]).max(0.0) }
    }
}

/// The least share that is given where noise is correlated. Gaussian noise is added there whatever the light: with a few electrons a pixel, an image with
/// much of it is none that a camera makes.
const LEAST_CORRELATED: f64 = 0.9;

/// Neighbours to either side that tell the light about a pixel.
const NEAR: usize = 3;

/// The part of the electrons that a share of them makes, drawn; the other part is the rest. The image is one of (Z,) Y, X.
pub fn part(electrons: &[f32], size: &[usize], read_noise: f64, cut: Cut) -> Vec<f32> {
    let share = cut.share;
    let image = Electrons::new(electrons, size);
    let variance = read_noise * read_noise;
    let one = |(i, &e): (usize, &f32)| {
        let shift = if variance > 0.0 { variance - clipped(image.around(i) + variance) } else { 0.0 };
        let all = f64::from(e) + shift;
        let counts = all.round().max(0.0);
        let drawn = binomial(counts, cut, i as u64);
        (drawn + share * (all - counts) - share * shift) as f32
    };
    electrons.iter().enumerate().map(one).collect()
}

/// By how much counts of this mean and variance are more in the mean for none of them being below zero.
fn clipped(variance: f64) -> f64 {
    let sd = variance.sqrt();
    if sd > 5.0 {
        return 0.0;
    }
    let density = (-0.5 * variance).exp() / std::f64::consts::TAU.sqrt();
    let beyond = 0.5 * libm::erfc(sd / std::f64::consts::SQRT_2);
    sd * (density - sd * beyond)
}

/// A draw from the binomial law of so many counts.
fn binomial(counts: f64, Cut { share, key, side }: Cut, voxel: u64) -> f64 {
    if counts == 0.0 {
        return 0.0;
    }
    if counts > NORMAL {
        let deviation = (counts * share * (1.0 - share)).sqrt();
        return counts * share + deviation * side.normal(f64::from(key.normal(voxel)));
    }
    // By inversion, of the rarer outcome.
    let rare = share.min(1.0 - share);
    let [a, b, ..] = key.block(voxel);
    let u = side.uniform(((u64::from(a) << 32 | u64::from(b)) >> 12) as f64 / (1u64 << 52) as f64);
    let odds = rare / (1.0 - rare);
    let (mut k, mut probability) = (0.0, (1.0 - rare).powf(counts));
    let mut below = probability;
    while u > below && k < counts {
        probability *= odds * (counts - k) / (k + 1.0);
        k += 1.0;
        below += probability;
    }
    if share <= 0.5 { k } else { counts - k }
}

/// The same where the noise of neighbouring pixels of an image of (Z,) Y, X is correlated.
pub fn correlated_part(electrons: &[f32], p: &Photons, size: &[usize], cut: Cut) -> Vec<f32> {
    let Cut { share, key, side } = cut;
    let [.., height, width] = *size else { return vec![] };
    let image = Electrons::new(electrons, size);
    let noise = shared_noise(&p.correlation, electrons.len(), [height, width], image.channels, key);
    let one = |(i, &e): (usize, &f32)| {
        let variance = image.around(i) + p.read_noise * p.read_noise;
        let added = (share * (1.0 - share) * variance).sqrt() * side.normal(f64::from(noise[i]));
        (share * f64::from(e) + added) as f32
    };
    electrons.iter().enumerate().map(one).collect()
}

/// Noise of variance 1 and a correlation, each plane and channel by itself; planes are periodic.
fn shared_noise(
    correlation: &Correlation,
    len: usize,
    [height, width]: [usize; 2],
    channels: usize,
    key: Key,
) -> Vec<f32> {
    let mut white = vec![0f32; len];
    key.fill_normal(0, &mut white);
    let half = FILTER / 2;
    let taps: Vec<(usize, usize, f32)> = correlation
        .filter()
        .into_iter()
        .enumerate()
        .filter(|(_, tap)| tap.abs() > 1e-3)
        .map(|(i, tap)| (i / FILTER + height - half % height, i % FILTER + width - half % width, tap as f32))
        .collect();
    let of = |i: usize| {
        let (c, pixel) = (i % channels, i / channels);
        let (plane, y, x) = (pixel / (height * width), pixel / width % height, pixel % width);
        let at = |v: usize, u: usize| {
            white[((plane * height + (y + v) % height) * width + (x + u) % width) * channels + c]
        };
        taps.iter().map(|&(v, u, tap)| tap * at(v, u)).sum()
    };
    (0..len).map(of).collect()
}

/// A sample of electrons of (Z,) Y, X as one whose input has a share of them and whose target is the rest.
///
/// # Errors
/// If the sample has no scale of its own.
pub fn split(sample: Sample, size: &[usize], cut: Cut) -> Result<Sample> {
    let p = camera::photons(&sample.numbers)?;
    let least = if p.correlation.is_white() { 0.0 } else { LEAST_CORRELATED };
    let cut = Cut { share: cut.share.max(least), ..cut };
    let share = cut.share;
    let first = match p.correlation.is_white() {
        true => part(&sample.measured, size, p.read_noise, cut),
        false => correlated_part(&sample.measured, &p, size, cut),
    };
    let rest = |(all, one): (&f32, &f32)| p.normalised(f64::from(all - one) / (1.0 - share)) as f32;
    let clean = sample.measured.iter().zip(&first).map(rest).collect();
    let numbers = camera::numbers(&Photons {
        background: share * p.background,
        read_noise: share.sqrt() * p.read_noise,
        peak: share * p.peak,
        correlation: p.correlation,
    });
    Ok(Sample { measured: first, clean, numbers, ..sample })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_physics::poisson;

    /// Mean electrons, read noise and the first part's share.
    const CASES: [(f64, f64, f64); 5] =
        [(3.0, 0.0, 0.5), (0.7, 0.0, 0.8), (4.0, 1.5, 0.7), (40.0, 3.0, 0.9), (2000.0, 5.0, 0.5)];
    const SIDES: [Side; 2] = [Side::First, Side::Second];

    /// Means, variances and the covariance of the parts, of pure Poisson counts and with read noise, few and many.
    #[test]
    fn parts_have_their_shares_and_are_uncorrelated() {
        let n = 200_000usize;
        let cases = CASES.into_iter().enumerate().flat_map(|(i, case)| SIDES.map(|side| (i, case, side)));
        for (case, (mean, read_noise, share), side) in cases {
            let key = |stream| Key { seed: 7, step: case as u32, stream };
            let draw = |i: usize| {
                poisson::draw(mean, key(1), i as u64) + read_noise * f64::from(key(2).normal(i as u64))
            };
            let all: Vec<f32> = (0..n).map(|i| draw(i) as f32).collect();
            let first = part(&all, &[n / 400, 400], read_noise, Cut { share, key: key(3), side });
            let pairs = || all.iter().zip(&first).map(|(a, f)| (f64::from(*f), f64::from(a - f)));
            let variance = mean + read_noise * read_noise;
            let (mut sums, mut product) = ([0.0; 2], 0.0);
            let mut squares = [0.0; 2];
            for (a, b) in pairs() {
                let off = [a - share * mean, b - (1.0 - share) * mean];
                (0..2).for_each(|k| (sums[k], squares[k]) = (sums[k] + off[k], squares[k] + off[k] * off[k]));
                product += off[0] * off[1];
            }
            let count = n as f64;
            for (k, part) in [share, 1.0 - share].into_iter().enumerate() {
                // Five standard errors; of the variance, with the kurtosis of small counts.
                let error = 5.0 * (part * variance / count).sqrt();
                assert!((sums[k] / count).abs() < error, "case {case}: mean of part {k}");
                let relative = squares[k] / count / (part * variance) - 1.0;
                assert!(relative.abs() < 0.03, "case {case}: variance of part {k} is off by {relative}");
            }
            let correlation = product / count / (share * (1.0 - share)).sqrt() / variance;
            assert!(correlation.abs() < 0.012, "case {case}: {correlation}");
        }
    }

    /// The mean of the targets of both sides of a split: of many electrons its noise is that of the image, but for a twentieth of what two splits add that have nothing to do with each other,
    /// p / (2 (1 - p)) of it; of few electrons it is less than theirs.
    #[test]
    fn targets_of_both_sides_have_the_noise_of_the_image() {
        let n = 100_000usize;
        for (case, (mean, read_noise, share)) in CASES.into_iter().enumerate() {
            let key = |stream| Key { seed: 11, step: case as u32, stream };
            let draw = |i: usize| {
                poisson::draw(mean, key(1), i as u64) + read_noise * f64::from(key(2).normal(i as u64))
            };
            let all: Vec<f32> = (0..n).map(|i| draw(i) as f32).collect();
            let [first, second] =
                SIDES.map(|side| part(&all, &[n / 400, 400], read_noise, Cut { share, key: key(3), side }));
            let off = |i: usize| {
                let target = f64::from(all[i]) - 0.5 * f64::from(first[i] + second[i]);
                target / (1.0 - share) - mean
            };
            let variance = mean + read_noise * read_noise;
            let relative = (0..n).map(|i| off(i).powi(2)).sum::<f64>() / n as f64 / variance;
            let unrelated = 1.0 + 0.5 * share / (1.0 - share);
            assert!(relative < 0.95 * unrelated, "case {case}: {relative} of the image's variance");
            // Few electrons in the smaller part have a skewed law, of which something is left.
            let left = (relative - 1.0) / (unrelated - 1.0);
            assert!(mean < 20.0 || left.abs() < 0.05, "case {case}: {relative}");
        }
    }

    /// No pixel of one part is correlated with a near one of the other, where those of the image are.
    #[test]
    fn parts_of_correlated_noise_are_uncorrelated() {
        let side = 400;
        let correlation = Correlation::gaussian([0.5, 0.7]);
        let p = Photons::new(5.0, 2.0, 100.0).unwrap().with_correlation(correlation);
        let key = |stream| Key { seed: 9, step: 0, stream };
        let noise = shared_noise(&correlation, side * side, [side; 2], 1, key(1));
        let deviation = (50.0f64 + 4.0).sqrt();
        let all: Vec<f32> = noise.iter().map(|n| (50.0 + deviation * f64::from(*n)) as f32).collect();
        let first =
            correlated_part(&all, &p, &[side, side], Cut { share: 0.6, key: key(2), side: Side::First });
        let off = |v: &[f32], mean: f64| -> Vec<f64> { v.iter().map(|x| f64::from(*x) - mean).collect() };
        let rest: Vec<f32> = all.iter().zip(&first).map(|(a, f)| a - f).collect();
        let (whole, a, b) = (off(&all, 50.0), off(&first, 30.0), off(&rest, 20.0));
        let lag = |a: &[f64], b: &[f64], dy: usize, dx: usize| {
            let at = |i: usize| a[i] * b[(i / side + dy) % side * side + (i % side + dx) % side];
            (0..side * side).map(at).sum::<f64>() / (side * side) as f64
        };
        for (dy, dx) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let shared = lag(&whole, &whole, dy, dx) / (deviation * deviation);
            assert!((shared - correlation.at(dy as isize, dx as isize)).abs() < 0.02, "{dy} {dx}: {shared}");
            let left = lag(&a, &b, dy, dx) / (0.24f64.sqrt() * deviation * deviation);
            assert!(left.abs() < 0.02, "{dy} {dx}: {left}");
        }
        let variance = lag(&a, &a, 0, 0) / (0.6 * deviation * deviation);
        assert!((variance - 1.0).abs() < 0.03, "{variance}");
    }
}
