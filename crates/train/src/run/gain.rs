//! The gain of a run over its initial model, estimated without the truth.
//!
//! Two models are compared on the same splits of held-out images ([`super::judgement`]), so that most of the noise cancels;
//! the standard error follows from the scatter of the differences between crops, and from the overlap of crops.
//!
//! The estimate requires that the noise is that of the camera. A relative error d of the variance, and correlation of the
//! noise that the camera does not know, change estimated errors in proportion to how much an estimate follows the noise.
//! Models that follow it differently then seem better or worse; gains are reported with this uncertainty.

use super::judgement::Judgement;
use serde::Serialize;

/// How wrong the noise's variance may be, as a share of it. Estimates from single images are within this on real cameras.
const VARIANCE_ERROR: f64 = 0.05;
/// Assumed unknown correlation of the noise of neighbouring pixels.
const SHARED_ERROR: f64 = 0.03;
/// The least gain that counts, in dB, and the standard errors that it must be above zero.
const LEAST_GAIN: f64 = 0.05;
const STANDARD_ERRORS: f64 = 3.0;

/// By how much the estimated error is smaller, in dB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    pub db: f64,
    /// Its standard error.
    pub error: f64,
    /// What a noise variance that is wrong by 5 % and an unknown correlation of neighbours of 0.03 may have made of it.
    pub doubt: f64,
    /// Images, or parts of images, that it was estimated on.
    pub images: usize,
}

/// By how much crops that share pixels make errors larger than they seem.
pub(super) fn overlap(crops: usize, distinct: Option<f64>) -> f64 {
    distinct.map_or(1.0, |distinct| (crops as f64 / distinct.max(1.0)).max(1.0).sqrt())
}

impl Gain {
    /// From the same images before and after, crops of as many pixels as `distinct` of them have; `None` if errors are too small compared with the noise.
    pub fn of(before: &[Judgement], after: &[Judgement], distinct: Option<f64>) -> Option<Gain> {
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
        let error = in_db * (left / (n - 1) as f64).sqrt() * overlap(n, distinct);
        let follows = mean(&|i| after[i].follows - before[i].follows);
        let shared = mean(&|i| after[i].shared - before[i].shared);
        let doubt = in_db * (VARIANCE_ERROR * follows.abs() + SHARED_ERROR * shared.abs());
        Some(Gain { db: -10.0 * ratio.log10(), error, doubt, images: n })
    }

    /// Whether it is more than chance and wrongly known noise may have made.
    pub fn is_sure(&self) -> bool {
        self.db - self.doubt > LEAST_GAIN.max(STANDARD_ERRORS * self.error)
    }

    /// For people.
    pub fn in_words(&self) -> String {
        let doubt = match self.doubt > 0.0 {
            true => format!(
                "; {:.2} dB if the noise variance is 5 % wrong and neighbouring pixels share 3 % of their noise",
                self.doubt
            ),
            false => String::new(),
        };
        format!(
            "estimated squared error against the truth {:+.2} dB ({:.2} dB standard error on {} held-out crops{doubt})",
            -self.db, self.error, self.images
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::judgement::{GIVEN, Probed};
    use super::super::noise_law::NoiseLaw;
    use super::*;
    use crate::data::split::{Cut, Side};
    use crate::data::{Sample, camera, split};
    use clearshot_model::Photons;
    use clearshot_physics::poisson;
    use clearshot_tensor::noise::Key;

    const SIDE: usize = 64;
    const LIGHT: f64 = 4.0;
    const PEAK: f64 = 20.0;

    fn key(image: u32, stream: u32) -> Key {
        Key { seed: 1, step: image, stream }
    }

    fn cut(image: u32) -> Cut {
        Cut { share: GIVEN, key: key(image, 9), side: Side::First }
    }

    /// Flat images of a few electrons, as `draw` has them, judged by an estimate of each pixel's mean from its own electrons.
    fn judged(draw: impl Fn(u32, u64) -> f64, estimate: impl Fn(f64) -> f64) -> Vec<Judgement> {
        let p = Photons::new(0.0, 0.0, PEAK).unwrap();
        let of = |image: u32| {
            let electrons: Vec<f32> = (0..SIDE * SIDE).map(|i| draw(image, i as u64) as f32).collect();
            let whole = Sample::plain(electrons.clone(), vec![], camera::numbers(&p));
            let part = split::split(whole, &[SIDE, SIDE], cut(image)).unwrap();
            let made = |e: &[f32], share: f64| -> Vec<f32> {
                e.iter().map(|v| p.normalised(estimate(f64::from(*v) / share)) as f32).collect()
            };
            let measured: Vec<f32> = electrons.iter().map(|v| p.normalised(f64::from(*v)) as f32).collect();
            Probed {
                measured: &measured,
                rest: &part.clean,
                estimate: &made(&electrons, 1.0),
                of_part: &made(&part.measured, GIVEN),
                valid: None,
                size: [SIDE, SIDE],
                channels: 1,
                photons: &p,
            }
            .judgement()
        };
        (0..48).map(of).collect()
    }

    fn counted(image: u32, i: u64) -> f64 {
        poisson::draw(LIGHT, key(image, 1), i)
    }

    /// Electrons that were multiplied on their way (an exponential law for each), in units in which their variance is their mean.
    fn multiplied(image: u32, i: u64) -> f64 {
        let count = poisson::draw(2.0 * LIGHT, key(image, 1), i) as u64;
        (0..count).map(|k| -0.5 * f64::from(1.0 - key(image, 2).uniform(64 * i + k)).ln()).sum()
    }

    /// In electrons, from the network's scale.
    fn mean(all: &[Judgement], of: fn(&Judgement) -> f64) -> f64 {
        all.iter().map(of).sum::<f64>() / all.len() as f64 * (PEAK / 2.0).powi(2)
    }

    fn follow(share: f64) -> impl Fn(f64) -> f64 {
        move |e| LIGHT + share * (e - LIGHT)
    }

    /// An estimate that follows electrons by a share a of their deviation from the mean has the error a^2 v / 0.9 on nine tenths of them; one that also goes with the
    /// square of it is correct too, which normal noise would not give for so few electrons.
    #[test]
    fn errors_are_those_against_the_truth() {
        let is_near = |judged: &[Judgement], truth: f64| {
            let told = mean(judged, |j| j.error);
            let squares = judged.iter().map(|j| (j.error * (PEAK / 2.0).powi(2) - told).powi(2)).sum::<f64>();
            let error = squares.sqrt() / judged.len() as f64;
            assert!(error < 0.05 * truth, "{error} {truth}");
            assert!((told - truth).abs() < 4.0 * error, "{told} {truth} {error}");
        };
        is_near(&judged(counted, follow(0.3)), 0.09 * LIGHT / GIVEN);
        let (a, b) = (0.2, 0.04);
        let bent = move |e: f64| LIGHT + a * (e - LIGHT) + b * ((e - LIGHT).powi(2) - LIGHT);
        // Central moments of counts of mean 0.9 * 4, over powers of 0.9.
        let m = GIVEN * LIGHT;
        let [second, third, fourth] =
            [m / GIVEN.powi(2), m / GIVEN.powi(3), (m + 3.0 * m * m) / GIVEN.powi(4)];
        let truth =
            a * a * second + 2.0 * a * b * third + b * b * (fourth - 2.0 * second * LIGHT + LIGHT * LIGHT);
        is_near(&judged(counted, bent), truth);
    }

    #[test]
    fn gains_are_those_against_the_truth() {
        let (before, after) = (judged(counted, follow(0.3)), judged(counted, follow(0.25)));
        let gain = Gain::of(&before, &after, None).unwrap();
        let truth = 20.0 * (0.3f64 / 0.25).log10();
        assert!((gain.db - truth).abs() < 3.0 * gain.error, "{gain:?}, and the truth is {truth}");
        assert!(gain.error > 0.01 && gain.error < 0.4, "{gain:?}");
        assert!(gain.is_sure() && !Gain::of(&after, &before, None).unwrap().is_sure());
        // Crops that are all of the same pixels say as little as one of them.
        let overlapping = Gain::of(&before, &after, Some(1.0)).unwrap();
        assert!((overlapping.error / gain.error - 48f64.sqrt()).abs() < 1e-9, "{overlapping:?}");
        // A change of nothing is none, surely.
        let none = Gain::of(&before, &before, None).unwrap();
        assert_eq!((none.db, none.error, none.doubt, none.is_sure()), (0.0, 0.0, 0.0, false));
        assert!(Gain::of(&before[..1], &after[..1], None).is_none());
        assert!(Gain::of(&before, &after[1..], None).is_none());
    }

    /// With more noise than the splitting knows, an estimate that follows it seems better than it is, by the stated amount.
    #[test]
    fn a_wrong_variance_shows_as_doubt() {
        let excess = 0.2;
        let noisier = |image: u32, i: u64| {
            counted(image, i) + (excess * LIGHT).sqrt() * f64::from(key(image, 3).normal(i))
        };
        let (less, more) = (judged(noisier, follow(0.2)), judged(noisier, follow(0.4)));
        let [error, follows] =
            [|j: &Judgement| j.error, |j: &Judgement| j.follows].map(|of| mean(&more, of) - mean(&less, of));
        // Of a share a, the truth is a^2 v (1 / 0.9 + excess).
        let truth = (0.4f64.powi(2) - 0.2f64.powi(2)) * LIGHT * (1.0 / GIVEN + excess);
        assert!(((truth - error) / (excess * follows) - 1.0).abs() < 0.2, "{truth} {error} {follows}");
        assert!(Gain::of(&less, &more, None).unwrap().doubt > 0.0);
    }

    /// Noise that neighbours share counts by how far an estimate follows them.
    #[test]
    fn following_neighbours_shows_as_doubt() {
        let p = Photons::new(0.0, 0.0, PEAK).unwrap();
        let electrons: Vec<f32> = (0..SIDE * SIDE).map(|i| counted(0, i as u64) as f32).collect();
        let whole = Sample::plain(electrons.clone(), vec![], camera::numbers(&p));
        let part = split::split(whole, &[SIDE, SIDE], cut(0)).unwrap();
        // The mean of the pixel on the left and the one on the right.
        let made = |e: &[f32], share: f64| -> Vec<f32> {
            let at = |i: usize, by: usize| f64::from(e[i / SIDE * SIDE + (i + by) % SIDE]) / share;
            (0..e.len()).map(|i| p.normalised(0.5 * (at(i, 1) + at(i, SIDE - 1))) as f32).collect()
        };
        let measured: Vec<f32> = electrons.iter().map(|v| p.normalised(f64::from(*v)) as f32).collect();
        let (estimate, of_part) = (made(&electrons, 1.0), made(&part.measured, GIVEN));
        let (measured, rest, estimate, of_part) =
            (&measured[..], &part.clean[..], &estimate[..], &of_part[..]);
        let size = [SIDE, SIDE];
        let judged =
            Probed { measured, rest, estimate, of_part, valid: None, size, channels: 1, photons: &p }
                .judgement();
        let in_electrons = |v: f64| v * (PEAK / 2.0).powi(2);
        // Twice the variance for the whole of both.
        let shared = in_electrons(judged.shared) / (2.0 * LIGHT);
        assert!((shared - 1.0).abs() < 0.15, "{shared}");
        assert!(in_electrons(judged.follows).abs() < 0.1 * 2.0 * LIGHT, "{judged:?}");
    }

    /// Counted electrons are distinguished from multiplied ones, whose third moment is half as much again, whether an estimate follows them or not.
    #[test]
    fn noise_is_that_of_counted_electrons_or_refused() {
        for share in [0.0, 0.05] {
            let of = |draw: fn(u32, u64) -> f64| NoiseLaw::of(&judged(draw, follow(share)), None).unwrap();
            let (right, wrong) = (of(counted), of(multiplied));
            assert!((right.skew - 1.0).abs() < 4.0 * right.skew_error + share, "{right:?}");
            assert!((wrong.skew - 1.5).abs() < 6.0 * wrong.skew_error + 2.0 * share, "{wrong:?}");
            assert_eq!(right.refusal(), None);
            assert!(wrong.refusal().is_some_and(|why| why.contains("EMCCD")), "{wrong:?}");
        }
        let shared = NoiseLaw { correlation: 0.2, skew: 1.0, skew_error: 0.01 };
        assert!(shared.refusal().is_some_and(|why| why.contains("neighbouring pixels share noise")));
    }

    #[test]
    fn masked_pixels_do_not_count() {
        let p = Photons::new(0.0, 0.0, 2.0).unwrap();
        // On this scale, electrons less one.
        let (measured, rest) = ([1.0, 1.0, 0.0, 9.0], [2.0, 0.0, 1.0, 50.0]);
        let (estimate, of_part) = ([0.5, 1.0, 0.0, f32::NAN], [0.4, 1.0, 0.0, 3.0]);
        let valid = Some(&[1.0, 1.0, 1.0, 0.0][..]);
        let (measured, rest, estimate, of_part) = (&measured[..], &rest[..], &estimate[..], &of_part[..]);
        let probed =
            Probed { measured, rest, estimate, of_part, valid, size: [2, 2], channels: 1, photons: &p };
        let Judgement { error, follows, .. } = probed.judgement();
        assert!((follows - 0.2 / 3.0).abs() < 1e-6, "{follows}");
        let variance = 5.0 / 3.0;
        assert!((probed.variance() - variance).abs() < 1e-6);
        assert!((error - (0.36 / 3.0 - variance + follows)).abs() < 1e-6, "{error}");
    }
}
