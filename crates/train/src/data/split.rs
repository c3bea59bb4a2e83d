//! Splitting an image's electrons into two parts with independent noise, one to be given and one to be predicted.
//!
//! Of Poisson counts, every electron goes to the first part with probability p (binomial thinning): the parts are independent, with p and
//! 1 - p of the mean. With read noise of variance s^2, the electrons plus s^2 have mean and variance alike, and as many whole counts as they
//! come to are thinned (a little fewer where some would be below zero, which cannot be thinned); the rest, of either sign, is shared out as p to 1 - p. The parts then add up to the image, each has its share
//! of the mean whatever the noise, and they are uncorrelated. Above [`NORMAL`] counts the binomial law is the normal law of its mean and variance,
//! the Gaussian counterpart. So the squared error against the second part is that against the truth plus a constant,
//! in expectation.
//!
//! Noise that neighbouring pixels share stays shared between parts that are thinned pixel by pixel. There, the Gaussian counterpart is taken everywhere: to p
//! times the image is added noise of p (1 - p) of the image's variance and of the same correlation, and the rest is the other part. No pixel of
//! one is then correlated with any of the other.

use super::{Sample, camera};
use crate::error::Result;
use clearshot_model::Photons;
use clearshot_physics::Correlation;
use clearshot_physics::correlation::FILTER;
use clearshot_tensor::noise::Key;

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

    /// The light about a place, by its neighbours along X: its own noise has no say.
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
pub fn part(electrons: &[f32], size: &[usize], read_noise: f64, share: f64, key: Key) -> Vec<f32> {
    let image = Electrons::new(electrons, size);
    let variance = read_noise * read_noise;
    let one = |(i, &e): (usize, &f32)| {
        let shift = if variance > 0.0 { variance - clipped(image.around(i) + variance) } else { 0.0 };
        let all = f64::from(e) + shift;
        let counts = all.round().max(0.0);
        let drawn = binomial(counts, share, key, i as u64);
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
fn binomial(counts: f64, share: f64, key: Key, voxel: u64) -> f64 {
    if counts == 0.0 {
        return 0.0;
    }
    if counts > NORMAL {
        let deviation = (counts * share * (1.0 - share)).sqrt();
        return counts * share + deviation * f64::from(key.normal(voxel));
    }
    // By inversion, of the rarer outcome.
    let rare = share.min(1.0 - share);
    let [a, b, ..] = key.block(voxel);
    let u = ((u64::from(a) << 32 | u64::from(b)) >> 12) as f64 / (1u64 << 52) as f64;
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
pub fn correlated_part(electrons: &[f32], p: &Photons, size: &[usize], share: f64, key: Key) -> Vec<f32> {
    let [.., height, width] = *size else { return vec![] };
    let image = Electrons::new(electrons, size);
    let noise = shared_noise(&p.correlation, electrons.len(), [height, width], image.channels, key);
    let one = |(i, &e): (usize, &f32)| {
        let variance = image.around(i) + p.read_noise * p.read_noise;
        let added = (share * (1.0 - share) * variance).sqrt() * f64::from(noise[i]);
        (share * f64::from(e) + added) as f32
    };
    electrons.iter().enumerate().map(one).collect()
}

/// Noise of variance 1 and a correlation, each plane and channel by itself; beyond its edges a plane goes on at the other side.
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
pub fn split(sample: Sample, size: &[usize], share: f64, key: Key) -> Result<Sample> {
    let p = camera::photons(&sample.numbers)?;
    let share = if p.correlation.is_white() { share } else { share.max(LEAST_CORRELATED) };
    let first = match p.correlation.is_white() {
        true => part(&sample.measured, size, p.read_noise, share, key),
        false => correlated_part(&sample.measured, &p, size, share, key),
    };
    let rest = |(all, one): (&f32, &f32)| p.normalised(f64::from(all - one) / (1.0 - share)) as f32;
    let clean = sample.measured.iter().zip(&first).map(rest).collect();
    let numbers = camera::numbers(&Photons {
        background: share * p.background,
        read_noise: share.sqrt() * p.read_noise,
        peak: share * p.peak,
        correlation: p.correlation,
    });
    // The target's variance goes by one over its share.
    Ok(Sample { measured: first, clean, numbers, weight: (1.0 - share) as f32, ..sample })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_physics::poisson;

    /// Means, variances and the covariance of the parts, of pure Poisson counts and with read noise, few and many.
    #[test]
    fn parts_have_their_shares_and_are_uncorrelated() {
        let n = 200_000usize;
        for (case, (mean, read_noise, share)) in
            [(3.0, 0.0, 0.5), (0.7, 0.0, 0.8), (4.0, 1.5, 0.7), (40.0, 3.0, 0.9), (2000.0, 5.0, 0.5)]
                .into_iter()
                .enumerate()
        {
            let key = |stream| Key { seed: 7, step: case as u32, stream };
            let draw = |i: usize| {
                poisson::draw(mean, key(1), i as u64) + read_noise * f64::from(key(2).normal(i as u64))
            };
            let all: Vec<f32> = (0..n).map(|i| draw(i) as f32).collect();
            let first = part(&all, &[n / 400, 400], read_noise, share, key(3));
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
        let first = correlated_part(&all, &p, &[side, side], 0.6, key(2));
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
