//! What a run has gained over the model that it began from, estimated without the truth.
//!
//! The squared error of an estimate f of the mean x of a measurement y = x + e is that of |f - y|^2, less the variance of e, and twice the mean of e f: how far
//! f follows the noise. Only the last is not seen. Two ways tell it:
//!
//! Spots, where pixels have noise of their own: some pixels are replaced by b, what the first model makes of their surroundings. The estimate there,
//! f', knows nothing of e, so that e f has the mean of e (f - f'), and y - b stands for e. Nothing is assumed of the law of the noise, and its variance
//! is the same for both models. Stein's lemma, which needs neither spots nor b, holds for Gaussian noise alone: of a few electrons a pixel, a network learned to have an estimated error below
//! zero while the true one rose: noise that is skewed tells more of itself than Gaussian noise of its variance does.
//!
//! Stein's lemma, where noise is shared by neighbours in every direction: the mean of e f is tr(C J), J being how f follows y and C the covariance of e, and that of
//! n (f(y + h n) - f(y)) / h over noise n of covariance C (Ramani, Blu and Unser 2008). It is as wrong as C is.
//!
//! So whole images are judged as they are restored. Two models are compared on the same images, so that most of the noise cancels, and the standard
//! error follows from how the differences scatter from image to image.

use serde::{Deserialize, Serialize};

/// The least gain that counts, in dB, and the standard errors that it must be above zero.
const LEAST_GAIN: f64 = 0.1;
const STANDARD_ERRORS: f64 = 3.0;

/// How the estimate's following of the noise is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    BySpots,
    ByNoise,
}

impl Told {
    /// How wrong it may be, as a share: b is not the truth; covariances that were estimated from single images are wrong by up to a tenth in variance and a fifth
    /// at low frequencies, and noise is not quite Gaussian.
    fn doubt(self) -> f64 {
        match self {
            Told::BySpots => 0.1,
            Told::ByNoise => 0.5,
        }
    }
}

/// What an estimate of one image comes to, on the network's scale, where images that bright and dark crops are cut from reach from -1 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// The estimated squared error against the truth.
    pub error: f64,
    /// Twice the mean of noise times estimate, which is a part of the error.
    pub follows: f64,
    /// How wrong that may be, in the same unit.
    pub doubt: f64,
}

/// One image on the network's scale. Pixels that are marked 0 do not count.
pub(super) struct Probed<'a> {
    pub measured: &'a [f32],
    pub estimate: &'a [f32],
    /// The estimate of the measurement without the spots, or after a share [`PROBE`] of the noise was added.
    pub moved: &'a [f32],
    /// What spots held beyond b, and 0 elsewhere; or the noise.
    pub probe: &'a [f32],
    pub told: Told,
    pub valid: Option<&'a [f32]>,
    /// Of the measurement's own noise.
    pub variance: f64,
}

/// The share of a draw of the noise that is added.
pub(super) const PROBE: f32 = 0.1;

impl Probed<'_> {
    pub fn judgement(&self) -> Judgement {
        let pixels = self.valid.map_or(self.measured.len(), <[f32]>::len).max(1);
        let channels = (self.measured.len() / pixels).max(1);
        let (mut square, mut follows, mut count, mut probed) = (0.0, 0.0, 0.0, 0.0);
        for (i, &f) in self.estimate.iter().enumerate() {
            if self.valid.is_some_and(|v| v[i / channels] == 0.0) {
                continue;
            }
            let (probe, moved) = (f64::from(self.probe[i]), f64::from(self.moved[i] - f));
            square += f64::from(f - self.measured[i]).powi(2);
            count += 1.0;
            match self.told {
                Told::ByNoise => {
                    (follows, probed) = (follows + probe * moved / f64::from(PROBE), probed + 1.0)
                }
                Told::BySpots if probe != 0.0 => (follows, probed) = (follows - probe * moved, probed + 1.0),
                Told::BySpots => {}
            }
        }
        let follows = 2.0 * follows / f64::max(probed, 1.0);
        let error = square / f64::max(count, 1.0) - self.variance + follows;
        Judgement { error, follows, doubt: self.told.doubt() * follows }
    }
}

fn mean(all: &[Judgement], of: impl Fn(&Judgement) -> f64) -> f64 {
    all.iter().map(of).sum::<f64>() / all.len().max(1) as f64
}

/// The mean error, and not less than the noise that is followed: of the best estimate they are alike, and the former is the difference of
/// large numbers, one of which is the variance of the noise.
fn level(all: &[Judgement]) -> f64 {
    mean(all, |j| j.error).max(0.5 * mean(all, |j| j.follows))
}

/// The PSNR that estimated errors have, on the network's scale of -1 to 1, given those of the same images at first, where there are such.
pub(super) fn psnr(first: &[Judgement], now: &[Judgement]) -> f64 {
    let first = if first.len() == now.len() { first } else { now };
    let error = level(first) + mean(now, |j| j.error) - mean(first, |j| j.error);
    if error.is_finite() { -10.0 * (error / 4.0).max(1e-7).log10() } else { f64::NEG_INFINITY }
}

/// By how much the estimated error is smaller, in dB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    pub db: f64,
    /// Its standard error.
    pub error: f64,
    /// What may have been made of it by how wrong the noise is told.
    pub doubt: f64,
    /// Images, or parts of images, that it was estimated on.
    pub images: usize,
}

impl Gain {
    /// From the same images before and after, `apart` of which may have no pixel in common; none where errors are too small beside the noise to
    /// be told.
    pub fn of(before: &[Judgement], after: &[Judgement], apart: usize) -> Option<Gain> {
        let n = before.len();
        if n < 2 || after.len() != n {
            return None;
        }
        let first = level(before);
        let less = |i: usize| before[i].error - after[i].error;
        let change = (0..n).map(less).sum::<f64>() / n as f64;
        let last = first - change;
        if !(first > 0.0 && last > 0.0 && last.is_finite()) {
            return None;
        }
        let scatter = (0..n).map(|i| (less(i) - change).powi(2)).sum::<f64>() / n as f64;
        let in_db = 10.0 / std::f64::consts::LN_10 / last;
        // Crops that share pixels share their noise.
        let error = in_db * (scatter * n as f64 / ((n - 1) * n.min(apart.max(1))) as f64).sqrt();
        let doubt = in_db * (mean(after, |j| j.doubt) - mean(before, |j| j.doubt)).abs();
        Some(Gain { db: 10.0 * (first / last).log10(), error, doubt, images: n })
    }

    /// Whether it is more than chance and noise that is told wrong may have made.
    pub fn is_sure(&self) -> bool {
        self.db - self.doubt > LEAST_GAIN.max(STANDARD_ERRORS * self.error)
    }

    /// For people.
    pub fn in_words(&self) -> String {
        format!(
            "estimated squared error against the truth {:+.2} dB ({:.2} dB standard error on {} held-out crops, {:.2} dB for what is not known of the noise)",
            -self.db, self.error, self.images, self.doubt
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    const PIXELS: usize = 4096;
    /// Of the light, pixel by pixel; that of the noise is 1.
    const VARIANCE: f32 = 0.25;

    /// Images of independent pixels that `estimate` looks at one by one, each with light of a variance, in noise that `noise` makes of a normal number.
    fn judged(
        told: Told,
        light: f32,
        estimate: impl Fn(f32) -> f32,
        noise: impl Fn(f32) -> f32,
    ) -> Vec<Judgement> {
        let of = |image: u32| {
            let normal = |stream: u32, i: usize| Key { seed: 1, step: image, stream }.normal(i as u64);
            let measured: Vec<f32> =
                (0..PIXELS).map(|i| light.sqrt() * normal(0, i) + noise(normal(1, i))).collect();
            // Of a pixel by itself, surroundings tell nothing: b is the mean.
            let is_spot = |i: usize| i.is_multiple_of(5);
            let probe: Vec<f32> = match told {
                Told::BySpots => (0..PIXELS).map(|i| if is_spot(i) { measured[i] } else { 0.0 }).collect(),
                Told::ByNoise => (0..PIXELS).map(|i| normal(2, i)).collect(),
            };
            let moved = (0..PIXELS).map(|i| match told {
                Told::BySpots => estimate(if is_spot(i) { 0.0 } else { measured[i] }),
                Told::ByNoise => estimate(measured[i] + PROBE * probe[i]),
            });
            let moved: Vec<f32> = moved.collect();
            let made: Vec<f32> = measured.iter().map(|&y| estimate(y)).collect();
            let (measured, estimate, moved, probe) = (&measured[..], &made[..], &moved[..], &probe[..]);
            Probed { measured, estimate, moved, probe, told, valid: None, variance: 1.0 }.judgement()
        };
        (0..32).map(of).collect()
    }

    fn share(follow: f32) -> Vec<Judgement> {
        judged(Told::ByNoise, VARIANCE, |y| follow * y, |n| n)
    }

    /// Of a share a of the measurement, the error is (1 - a)^2 of the light's variance and a^2.
    #[test]
    fn gains_are_those_against_the_truth() {
        let error = |a: f64| (1.0 - a).powi(2) * f64::from(VARIANCE) + a * a;
        let (before, after) = (share(0.05), share(0.15));
        let gain = Gain::of(&before, &after, 32).unwrap();
        let truth = 10.0 * (error(0.05) / error(0.15)).log10();
        assert!((gain.db - truth).abs() < 3.0 * gain.error, "{gain:?}, and the truth is {truth}");
        assert!(gain.error > 0.001 && gain.error < 0.1, "{gain:?}");
        assert!(!Gain::of(&after, &before, 32).unwrap().is_sure());
        // Of crops that overlap fourfold, the standard error is twice that.
        let overlapping = Gain::of(&before, &after, 8).unwrap();
        assert!((overlapping.error / gain.error - 2.0).abs() < 1e-9 && overlapping.db == gain.db);
        assert!((psnr(&before, &after) - psnr(&[], &before) - gain.db).abs() < 1e-9);
        // A change of nothing is none, surely.
        let none = Gain::of(&before, &before, 32).unwrap();
        assert_eq!((none.db, none.error, none.doubt, none.is_sure()), (0.0, 0.0, 0.0, false));
        assert!(
            Gain::of(&before[..1], &after[..1], 1).is_none() && Gain::of(&before, &after[1..], 32).is_none()
        );
    }

    /// Following the noise less is a gain that noise of less variance than is known would make as well.
    #[test]
    fn what_is_not_known_of_the_noise_is_doubt() {
        let gain = Gain::of(&share(0.4), &share(0.3), 32).unwrap();
        let doubt = 0.5 * 2.0 * 0.1 * 10.0 / std::f64::consts::LN_10;
        // In units of the error, of which the noise that is followed is the greater measure here.
        assert!(gain.db > 0.0 && (gain.doubt * (0.4 - 0.06) / doubt - 1.0).abs() < 0.15, "{gain:?}");
    }

    /// An estimate that goes in steps has no slope. Where noise has two values, it follows the noise all the same, which spots tell and Stein's lemma does not.
    #[test]
    fn spots_tell_what_is_followed_whatever_the_law_of_the_noise() {
        let two = |n: f32| if n > 0.0 { 1.0 } else { -1.0 };
        let steps = |y: f32| if y == 0.0 { 0.0 } else { y.signum() };
        let of = |told| mean(&judged(told, 0.0, steps, two), |j| j.error);
        assert!((of(Told::BySpots) - 1.0).abs() < 1e-6, "{}", of(Told::BySpots));
        assert!((of(Told::ByNoise) + 1.0).abs() < 1e-6, "{}", of(Told::ByNoise));
        // Of normal noise both tell the error, a^2.
        for told in [Told::BySpots, Told::ByNoise] {
            let error = mean(&judged(told, 0.0, |y| 0.3 * y, |n| n), |j| j.error);
            assert!((error - 0.09).abs() < 0.02, "{told:?}: {error}");
        }
    }

    #[test]
    fn masked_pixels_do_not_count() {
        let (measured, noise) = ([1.0, 1.0, 0.0, 9.0], [1.0, -1.0, 1.0, 50.0]);
        let (estimate, moved) = ([0.5, 1.0, 0.0, f32::NAN], [0.55, 1.0, 0.0, 3.0]);
        let valid = Some(&[1.0, 1.0, 1.0, 0.0][..]);
        let (measured, estimate, moved, probe) = (&measured[..], &estimate[..], &moved[..], &noise[..]);
        let told = Told::ByNoise;
        let Judgement { error, follows, .. } =
            Probed { measured, estimate, moved, probe, told, valid, variance: 0.25 }.judgement();
        assert!((follows - 2.0 * 0.5 / 3.0).abs() < 1e-5, "{follows}");
        assert!((error - (0.25 / 3.0 - 0.25 + follows)).abs() < 1e-6, "{error}");
    }
}
