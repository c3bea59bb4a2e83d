//! What a run has gained over the model that it began from, estimated without the truth.
//!
//! For an estimate f of the mean of a measurement y with noise of covariance C, Stein's lemma gives the expected squared error as that of
//! |f(y) - y|^2 - tr C + 2 tr(C J), J being how f follows y, and tr(C J) as the mean of n (f(y + e n) - f(y)) / e over noise n of covariance C (Ramani, Blu and Unser
//! 2008). So whole images are judged with the noise that they have, as they are restored; splits of them, which a run is trained on, have more, and a
//! model may become better on those and worse on these. Two models are compared on the same images, so that most of the noise cancels, and the standard
//! error follows from how the differences scatter from image to image.
//!
//! All of it rests on the noise's variance. Where that is wrong by a share d, the error is off by 2 d tr(C J): a model that follows the
//! noise more or less than the first one seems better or worse by that, and gains are told with this doubt.

use serde::{Deserialize, Serialize};

/// How wrong the noise's variance may be, as a share of it. Estimates from single images are within this on real cameras.
const VARIANCE_ERROR: f64 = 0.05;
/// The least gain that counts, in dB, and the standard errors that it must be above zero.
const LEAST_GAIN: f64 = 0.02;
const STANDARD_ERRORS: f64 = 2.0;

/// What an estimate of one image comes to, on the network's scale, where images that bright and dark crops are cut from reach from -1 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// The estimated squared error against the truth.
    pub error: f64,
    /// By how much that is off where the noise's variance is wrong by its whole.
    pub follows: f64,
}

/// One image on the network's scale. Pixels that are marked 0 do not count.
pub(super) struct Probed<'a> {
    pub measured: &'a [f32],
    pub estimate: &'a [f32],
    /// The estimate after a share [`PROBE`] of the noise was added to the measurement.
    pub moved: &'a [f32],
    pub noise: &'a [f32],
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
        let (mut square, mut follows, mut count) = (0.0, 0.0, 0.0);
        for (i, &f) in self.estimate.iter().enumerate() {
            if self.valid.is_some_and(|v| v[i / channels] == 0.0) {
                continue;
            }
            square += f64::from(f - self.measured[i]).powi(2);
            follows += f64::from(self.noise[i]) * f64::from(self.moved[i] - f) / f64::from(PROBE);
            count += 1.0;
        }
        let follows = 2.0 * follows / f64::max(count, 1.0);
        Judgement { error: square / f64::max(count, 1.0) - self.variance + follows, follows }
    }
}

/// By how much the estimated error is smaller, in dB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    pub db: f64,
    /// Its standard error.
    pub error: f64,
    /// What a noise variance that is wrong by 5 % may have made of it.
    pub doubt: f64,
    /// Images, or parts of images, that it was estimated on.
    pub images: usize,
}

impl Gain {
    /// From the same images before and after; none where errors are too small beside the noise to be told.
    pub fn of(before: &[Judgement], after: &[Judgement]) -> Option<Gain> {
        let n = before.len();
        if n < 2 || after.len() != n {
            return None;
        }
        let mean = |of: &dyn Fn(usize) -> f64| (0..n).map(of).sum::<f64>() / n as f64;
        let [first, last] = [before, after].map(|all| mean(&|i| all[i].error));
        let ratio = last / first;
        if !(first > 0.0 && ratio > 0.0 && ratio.is_finite()) {
            return None;
        }
        // The error of a ratio of means: of what is left of pairs after the ratio.
        let left = mean(&|i| (after[i].error - ratio * before[i].error).powi(2));
        let in_db = 10.0 / std::f64::consts::LN_10 / last;
        let error = in_db * (left / (n - 1) as f64).sqrt();
        let follows = mean(&|i| after[i].follows - before[i].follows);
        let doubt = in_db * VARIANCE_ERROR * follows.abs();
        Some(Gain { db: -10.0 * ratio.log10(), error, doubt, images: n })
    }

    /// Whether it is more than chance and a wrong noise variance may have made.
    pub fn is_sure(&self) -> bool {
        self.db - self.doubt > LEAST_GAIN.max(STANDARD_ERRORS * self.error)
    }

    /// For people.
    pub fn in_words(&self) -> String {
        format!(
            "estimated squared error against the truth {:+.2} dB ({:.2} dB standard error on {} held-out crops; {:.2} dB if the noise variance is 5 % wrong)",
            -self.db, self.error, self.images, self.doubt
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    const PIXELS: usize = 4096;

    /// Flat images in noise of variance 1 (and `excess` that nobody knows of), of which the estimate is a share of what was measured.
    fn judged(follow: f64, excess: f64) -> Vec<Judgement> {
        let of = |image: u32| {
            let normal = |stream: u32, i: usize| Key { seed: 1, step: image, stream }.normal(i as u64);
            let share = |v: f32| follow as f32 * v;
            let measured: Vec<f32> =
                (0..PIXELS).map(|i| (1.0 + excess).sqrt() as f32 * normal(1, i)).collect();
            let noise: Vec<f32> = (0..PIXELS).map(|i| normal(2, i)).collect();
            let estimate: Vec<f32> = measured.iter().map(|&v| share(v)).collect();
            let moved: Vec<f32> = measured.iter().zip(&noise).map(|(&v, &n)| share(v + PROBE * n)).collect();
            let (measured, estimate, moved, noise) = (&measured[..], &estimate[..], &moved[..], &noise[..]);
            Probed { measured, estimate, moved, noise, valid: None, variance: 1.0 }.judgement()
        };
        (0..32).map(of).collect()
    }

    /// Of a share a of noise of variance 1 the error is a^2.
    #[test]
    fn gains_are_those_against_the_truth() {
        let (before, after) = (judged(0.3, 0.0), judged(0.25, 0.0));
        let gain = Gain::of(&before, &after).unwrap();
        let truth = 20.0 * (0.3f64 / 0.25).log10();
        assert!((gain.db - truth).abs() < 3.0 * gain.error, "{gain:?}, and the truth is {truth}");
        assert!(gain.error > 0.01 && gain.error < 0.4, "{gain:?}");
        assert!(gain.is_sure() && !Gain::of(&after, &before).unwrap().is_sure());
        // A change of nothing is none, surely.
        let none = Gain::of(&before, &before).unwrap();
        assert_eq!((none.db, none.error, none.doubt, none.is_sure()), (0.0, 0.0, 0.0, false));
        assert!(Gain::of(&before[..1], &after[..1]).is_none() && Gain::of(&before, &after[1..]).is_none());
    }

    /// With more noise than the splitting knows, an estimate that follows it seems better than it is, by what is said.
    #[test]
    fn a_wrong_variance_shows_as_doubt() {
        let excess = 0.2;
        let mean =
            |all: &[Judgement], of: fn(&Judgement) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        let (less, more) = (judged(0.2, excess), judged(0.4, excess));
        let [error, follows] =
            [|j: &Judgement| j.error, |j: &Judgement| j.follows].map(|of| mean(&more, of) - mean(&less, of));
        // Of a share a, the truth is a^2 (1 + excess).
        let truth = (0.4f64.powi(2) - 0.2f64.powi(2)) * (1.0 + excess);
        assert!(((truth - error) / (excess * follows) - 1.0).abs() < 0.1, "{truth} {error} {follows}");
        // Following the noise less gains by that alone where there is less of it than is known.
        let gain = Gain::of(&judged(0.2, 0.0), &judged(0.19, 0.0)).unwrap();
        assert!(gain.doubt > 0.0, "{gain:?}");
    }

    #[test]
    fn masked_pixels_do_not_count() {
        let (measured, noise) = ([1.0, 1.0, 0.0, 9.0], [1.0, -1.0, 1.0, 50.0]);
        let (estimate, moved) = ([0.5, 1.0, 0.0, f32::NAN], [0.55, 1.0, 0.0, 3.0]);
        let valid = Some(&[1.0, 1.0, 1.0, 0.0][..]);
        let (measured, estimate, moved, noise) = (&measured[..], &estimate[..], &moved[..], &noise[..]);
        let Judgement { error, follows } =
            Probed { measured, estimate, moved, noise, valid, variance: 0.25 }.judgement();
        assert!((follows - 2.0 * 0.5 / 3.0).abs() < 1e-5, "{follows}");
        assert!((error - (0.25 / 3.0 - 0.25 + follows)).abs() < 1e-6, "{error}");
    }
}
