//! The squared error of an estimate against the truth, estimated without the truth, and properties of the noise.
//!
//! An image y is split into two parts with independent noise (`data::split`), nine tenths of its electrons and the rest, y2. The model makes f1 from the first part and f from the whole image. On the scale of the network, c = y2 - y has mean 0 for every y, so the expected squared error of f1 is that of
//! |f1 - y|^2 - 2 c (f1 - f) minus the variance of the noise of y: the same as a comparison of f1 with y2, without most of its scatter. For electrons of a camera it is exact, however few they are; Stein's lemma for normal noise is its limit for many.
//!
//! If the same field was exposed again ([`Repeated`]), nothing about the noise needs to be known except that it is independent: t, the mean of k other exposures, has an error that does not depend on f, so |f - t|^2 is the squared error of f plus the variance of t. The latter is, on average, the share
//! 1 / (k + 1) of |y - t|^2 if y is as noisy as each of the others.

use clearshot_model::Photons;
use clearshot_model::signal::lags;
use serde::{Deserialize, Serialize};

/// The share of the electrons in the part that a model is judged on.
pub(super) const GIVEN: f64 = 0.9;

/// What an estimate of one image comes to, on the network's scale, where images that bright and dark crops are cut from reach from -1 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Judgement {
    /// The estimated squared error against the truth.
    pub error: f64,
    /// By how much that is off where the noise's variance is wrong by its whole.
    pub follows: f64,
    /// By how much it is off where the noise of a pixel is wholly shared by its eight neighbours.
    pub shared: f64,
    /// The noise.
    pub noise: Moments,
}

impl Judgement {
    /// As plain numbers.
    pub(super) fn numbers(&self) -> [f64; 8] {
        let n = &self.noise;
        [self.error, self.follows, self.shared, n.third, n.electrons, n.taken, n.variance, n.correlation]
    }

    pub(super) fn of_numbers(numbers: [f64; 8]) -> Judgement {
        let [error, follows, shared, third, electrons, taken, variance, correlation] = numbers;
        Judgement {
            error,
            follows,
            shared,
            noise: Moments { third, electrons, taken, variance, correlation },
        }
    }
}

/// The noise of an image, as what an estimate leaves of it, beside the camera's. Sums over pixels, in electrons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moments {
    /// Its third moment.
    pub third: f64,
    /// What a camera that counts electrons has, and by how much an estimate that follows the noise makes the third moment less.
    pub electrons: f64,
    pub taken: f64,
    /// Of the third moment, by chance.
    pub variance: f64,
    /// The largest correlation of neighbours in the camera.
    pub correlation: f64,
}

/// One image of (Z,) Y, X on the network's scale, channels last. Pixels that are marked 0 do not count.
pub(super) struct Probed<'a> {
    pub measured: &'a [f32],
    /// The estimate of the image from the smaller part of the electrons.
    pub rest: &'a [f32],
    /// The estimate from all electrons.
    pub estimate: &'a [f32],
    /// The estimate from the larger part.
    pub of_part: &'a [f32],
    pub valid: Option<&'a [f32]>,
    /// Of each plane.
    pub size: [usize; 2],
    pub channels: usize,
    pub photons: &'a Photons,
}

impl Probed<'_> {
    /// Places in the image whose pixels count.
    fn places(&self) -> impl Iterator<Item = usize> {
        (0..self.measured.len()).filter(|i| self.counts(*i))
    }

    fn counts(&self, i: usize) -> bool {
        self.valid.is_none_or(|v| v[i / self.channels] != 0.0)
    }

    /// Of the image's own noise, in the mean.
    pub fn variance(&self) -> f64 {
        let p = self.photons;
        let (sum, count) = self.places().fold((0.0, 0.0), |(sum, count), i| {
            (sum + p.electrons(f64::from(self.measured[i])), count + 1.0)
        });
        let light = sum / f64::max(count, 1.0);
        (light.max(0.0) + p.read_noise.powi(2)) * (2.0 / p.peak).powi(2)
    }

    /// What the estimate becomes less where the part is given for the whole.
    fn changed(&self, i: usize) -> f64 {
        f64::from(self.of_part[i] - self.estimate[i])
    }

    /// The same, summed over the eight neighbours of a place.
    fn changed_around(&self, i: usize) -> f64 {
        let ([height, width], channels) = (self.size, self.channels);
        let (c, pixel) = (i % channels, i / channels);
        let (plane, y, x) = (pixel / (height * width), pixel / width % height, pixel % width);
        let mut sum = 0.0;
        for v in y.saturating_sub(1)..=(y + 1).min(height - 1) {
            for u in x.saturating_sub(1)..=(x + 1).min(width - 1) {
                let j = ((plane * height + v) * width + u) * channels + c;
                if j != i && self.counts(j) {
                    sum += self.changed(j);
                }
            }
        }
        sum
    }

    pub fn judgement(&self) -> Judgement {
        let (mut square, mut follows, mut shared, mut count) = (0.0, 0.0, 0.0, 0.0);
        for i in self.places() {
            let off = f64::from(self.rest[i] - self.measured[i]);
            square += f64::from(self.of_part[i] - self.measured[i]).powi(2);
            follows -= 2.0 * off * self.changed(i);
            shared -= 2.0 * off * self.changed_around(i);
            count += 1.0;
        }
        let (count, variance) = (f64::max(count, 1.0), self.variance());
        let (follows, shared) = (follows / count, shared / count);
        let noise = self.moments(0.5 * follows / variance);
        Judgement { error: square / count - variance + follows, follows, shared, noise }
    }

    /// The third moment of what the estimate f leaves of the image, r, as the sum of r^3 - 3 v r with the variance v of f: where f is wrong by its bias alone, that is the third moment
    /// of the noise and no more than the cube of the bias. `followed` is the share of the noise that f has in it.
    fn moments(&self, followed: f64) -> Moments {
        let p = self.photons;
        let kept = 1.0 - followed;
        let mut found = Moments::default();
        for i in self.places() {
            let [y, f] = [self.measured[i], self.estimate[i]].map(|v| p.electrons(f64::from(v)));
            let (light, left) = (f.max(0.0), y - f);
            let variance = light + p.read_noise.powi(2);
            found.third += left.powi(3) - 3.0 * variance * left;
            found.electrons += kept.powi(3) * light;
            found.taken += 3.0 * followed * kept * variance;
            found.variance += 6.0 * variance.powi(3);
        }
        found.correlation = lags(&p.correlation).into_iter().fold(0.0, |most, lag| lag.abs().max(most));
        found
    }
}

/// One image whose field was exposed again, on the network's scale, channels last. Pixels that are marked 0 do not count.
pub(super) struct Repeated<'a> {
    pub measured: &'a [f32],
    /// The mean of other exposures, and of how many.
    pub target: &'a [f32],
    pub averaged: usize,
    pub estimate: &'a [f32],
    pub valid: Option<&'a [f32]>,
    pub channels: usize,
}

impl Repeated<'_> {
    /// The mean square of differences to the target.
    fn off(&self, values: &[f32]) -> f64 {
        let counts = |i: &usize| self.valid.is_none_or(|v| v[*i / self.channels] != 0.0);
        let square = |i: usize| f64::from(values[i] - self.target[i]).powi(2);
        let places = || (0..values.len()).filter(counts);
        places().map(square).sum::<f64>() / places().count().max(1) as f64
    }

    /// Of the image's own noise, in the mean.
    pub fn variance(&self) -> f64 {
        let k = self.averaged as f64;
        self.off(self.measured) * k / (k + 1.0)
    }

    pub fn judgement(&self) -> Judgement {
        let of_target = self.variance() / self.averaged as f64;
        Judgement { error: self.off(self.estimate) - of_target, ..Judgement::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    /// The estimate from the mean of one and of three other exposures is the squared error against the truth.
    #[test]
    fn repeats_estimate_the_error_against_the_truth() {
        const COUNT: usize = 40_000;
        let noise = |stream: u32| -> Vec<f64> {
            let key = Key { seed: 3, step: 0, stream };
            (0..COUNT).map(|i| 0.3 * f64::from(key.normal(i as u64))).collect()
        };
        let truth: Vec<f64> = (0..COUNT).map(|i| (i as f64 / 50.0).sin()).collect();
        let first = noise(1);
        // A third of the noise is kept, and the signal is a tenth too dim.
        let made: Vec<f32> = (0..COUNT).map(|i| (0.9 * truth[i] + first[i] / 3.0) as f32).collect();
        let right = (0..COUNT).map(|i| (f64::from(made[i]) - truth[i]).powi(2)).sum::<f64>() / COUNT as f64;
        let measured: Vec<f32> = (0..COUNT).map(|i| (truth[i] + first[i]) as f32).collect();
        for averaged in [1, 3] {
            let others: Vec<Vec<f64>> = (0..averaged).map(|k| noise(2 + k as u32)).collect();
            let mean = |i: usize| others.iter().map(|o| o[i]).sum::<f64>() / averaged as f64;
            let target: Vec<f32> = (0..COUNT).map(|i| (truth[i] + mean(i)) as f32).collect();
            let repeated = Repeated {
                measured: &measured,
                target: &target,
                averaged,
                estimate: &made,
                valid: None,
                channels: 1,
            };
            let found = repeated.judgement().error;
            // Standard error about 2 * 0.3 * 0.1 / sqrt(40,000) and that of the variance, 0.13 / sqrt(40,000).
            assert!((found - right).abs() < 2.5e-3, "{averaged}: {found} for {right}");
            assert!((repeated.variance() - 0.09).abs() < 3e-3, "{averaged}: {}", repeated.variance());
        }
        let valid = [1.0, 0.0];
        let masked = Repeated {
            measured: &[1.0, 9.0],
            target: &[0.0, 5.0],
            averaged: 1,
            estimate: &[0.5, f32::NAN],
            valid: Some(&valid),
            channels: 1,
        };
        assert_eq!(masked.judgement().error, 0.25 - 0.5);
    }
}
