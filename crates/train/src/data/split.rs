//! Splitting an image's electrons into two parts with independent noise, one to be given and one to be predicted.
//!
//! Of Poisson counts, every electron goes to the first part with probability p (binomial thinning): the parts are independent, with p and
//! 1 - p of the mean. With read noise of variance s^2, the electrons plus s^2 have mean and variance alike, and as many whole counts as they
//! come to are thinned; the rest, of either sign, is shared out as p to 1 - p. The parts then add up to the image, each has its share
//! of the mean whatever the noise, and they are uncorrelated. Above [`NORMAL`] counts the binomial law is the normal law of its mean and variance,
//! the Gaussian counterpart. So the squared error against the second part is that against the truth plus a constant,
//! in expectation.

use super::{Sample, camera};
use crate::error::Result;
use clearshot_tensor::noise::Key;

/// Counts above which the binomial law is taken for the normal one.
const NORMAL: f64 = 100.0;

/// The part of the electrons that a share of them makes, drawn; the other part is the rest.
pub fn part(electrons: &[f32], read_noise: f64, share: f64, key: Key) -> Vec<f32> {
    let shift = read_noise * read_noise;
    let one = |(i, &e): (usize, &f32)| {
        let all = f64::from(e) + shift;
        let counts = all.round().max(0.0);
        let drawn = binomial(counts, share, key, i as u64);
        (drawn + share * (all - counts) - share * shift) as f32
    };
    electrons.iter().enumerate().map(one).collect()
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

/// A sample of electrons as one whose input has a share of them and whose target is the rest.
///
/// # Errors
/// If the sample has no scale of its own.
pub fn split(sample: Sample, share: f64, key: Key) -> Result<Sample> {
    let p = camera::photons(&sample.numbers)?;
    let first = part(&sample.measured, p.read_noise, share, key);
    let rest = |(all, one): (&f32, &f32)| p.normalised(f64::from(all - one) / (1.0 - share)) as f32;
    let clean = sample.measured.iter().zip(&first).map(rest).collect();
    let numbers = camera::numbers(share * p.peak, share * p.background, share.sqrt() * p.read_noise);
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
            let first = part(&all, read_noise, share, key(3));
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
}
