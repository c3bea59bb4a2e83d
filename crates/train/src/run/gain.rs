//! What a run has gained over the model that it began from, estimated without the truth.
//!
//! The squared error against one part of a split image, less the variance of that part's noise, is in the mean that against the
//! truth. Two models are compared on the same splits, so that what both leave of the target's noise cancels, and the standard error
//! follows from how the differences scatter from image to image.
//!
//! All of it rests on the noise's variance. Where that is wrong by a share d, the two parts of a split are correlated, and the error of
//! an estimate f of the truth from the part y1 is off by 2 d p E[f (y1 - y2)], p being the share of the light in y1: the last
//! factor is how far f follows the noise (Stein's lemma). A model that follows it more or less than the first one seems better or worse by
//! that; gains are told with this doubt.

use serde::{Deserialize, Serialize};

/// How wrong the noise's variance may be, as a share of it. Estimates from single images are within this on real cameras.
const VARIANCE_ERROR: f64 = 0.05;
/// The least gain that counts, in dB, and the standard errors that it must be above zero.
const LEAST_GAIN: f64 = 0.02;
const STANDARD_ERRORS: f64 = 2.0;

/// What an estimate of one split image comes to, in variances of its target's noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// The estimated squared error against the truth.
    pub error: f64,
    /// By how much that is off where the noise's variance is wrong by its whole.
    pub follows: f64,
}

/// One split image: what was estimated of it, its parts on the network's scale, and the variance of the target's noise. Pixels that are marked 0
/// do not count.
pub(super) struct Split<'a> {
    pub estimate: &'a [f32],
    pub given: &'a [f32],
    pub target: &'a [f32],
    pub valid: Option<&'a [f32]>,
    /// The share of the light that was given.
    pub share: f64,
    pub noise: f64,
}

impl Split<'_> {
    pub fn judgement(&self) -> Judgement {
        let channels = (self.target.len() / self.valid.map_or(self.target.len(), <[f32]>::len).max(1)).max(1);
        let (mut square, mut follows, mut count) = (0.0, 0.0, 0.0);
        for (i, &f) in self.estimate.iter().enumerate() {
            if self.valid.is_some_and(|v| v[i / channels] == 0.0) {
                continue;
            }
            let [f, given, target] = [f, self.given[i], self.target[i]].map(f64::from);
            square += (f - target).powi(2);
            follows += f * (given - target);
            count += 1.0;
        }
        let unit = (self.noise * count).max(f64::MIN_POSITIVE);
        Judgement { error: square / unit - 1.0, follows: 2.0 * self.share * follows / unit }
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
            "estimated squared error against the truth {:+.2} dB ({:.2} dB standard error on {} held-out splits; {:.2} dB if the noise variance is 5 % wrong)",
            -self.db, self.error, self.images, self.doubt
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    const PIXELS: usize = 4096;

    /// Splits of a flat image of light 0 in noise of variance 1 (and `excess` that the splitting does not know), of which the estimate is a
    /// share of what is given.
    fn judged(follow: f64, excess: f64) -> Vec<Judgement> {
        let p = 0.6f64;
        (0..32)
            .map(|image| {
                let normal =
                    |stream: u32, i: usize| f64::from(Key { seed: 1, step: image, stream }.normal(i as u64));
                let shared = |i: usize| (1.0 + excess).sqrt() * normal(1, i);
                let given: Vec<f32> =
                    (0..PIXELS).map(|i| (shared(i) + ((1.0 - p) / p).sqrt() * normal(2, i)) as f32).collect();
                let target: Vec<f32> =
                    (0..PIXELS).map(|i| (shared(i) - (p / (1.0 - p)).sqrt() * normal(2, i)) as f32).collect();
                let estimate: Vec<f32> = given.iter().map(|g| follow as f32 * g).collect();
                let noise = 1.0 / (1.0 - p);
                Split { estimate: &estimate, given: &given, target: &target, valid: None, share: p, noise }
                    .judgement()
            })
            .collect()
    }

    /// Of a share a of noise of variance 1 / p the error is a^2 / p, in variances 1 / (1 - p) of the target's.
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
        // Of a share a, the truth is a^2 (1 / p + excess).
        let truth = (0.4f64.powi(2) - 0.2f64.powi(2)) * (1.0 / 0.6 + excess) * 0.4;
        assert!(((truth - error) / (excess * follows) - 1.0).abs() < 0.1, "{truth} {error} {follows}");
        // Following the noise less gains by that alone where there is less of it than is known.
        let gain = Gain::of(&judged(0.2, 0.0), &judged(0.19, 0.0)).unwrap();
        assert!(gain.doubt > 0.0, "{gain:?}");
    }

    #[test]
    fn masked_pixels_do_not_count() {
        let split = |estimate: &[f32]| {
            let (given, target) = ([0.0, 1.0, 0.0, 7.0], [1.0, 1.0, 0.0, 9.0]);
            let valid = Some(&[1.0, 1.0, 1.0, 0.0][..]);
            Split { estimate, given: &given, target: &target, valid, share: 0.5, noise: 0.25 }.judgement()
        };
        let Judgement { error, follows } = split(&[0.5, 1.0, 0.0, f32::NAN]);
        assert!((error - (0.25 / 0.75 - 1.0)).abs() < 1e-12 && (follows + 0.5 / 0.75).abs() < 1e-12);
    }
}
