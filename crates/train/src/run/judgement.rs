//! The squared error of an estimate against the truth, estimated without the truth, and what the noise of the image is like.
//!
//! An image y is split in two parts with independent noise (`data::split`), nine tenths of its electrons and the rest, y2. The model makes f1 of the first part and
//! f of the whole image. On the network's scale, c = y2 - y has the mean 0 whatever y is, so the expected squared error of f1 is that of
//! |f1 - y|^2 - 2 c (f1 - f) less the variance of y's noise: what a comparison of f1 with y2 gives, without most of its scatter. For electrons of
//! a camera it is exact, however few they are; Stein's lemma with normal noise is its limit where there are many.

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
    /// What the noise is like.
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
    /// The largest correlation of neighbours that the camera is said to have.
    pub correlation: f64,
}

/// One image of (Z,) Y, X on the network's scale, channels last. Pixels that are marked 0 do not count.
pub(super) struct Probed<'a> {
    pub measured: &'a [f32],
    /// What the smaller part of the electrons says of the image.
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
