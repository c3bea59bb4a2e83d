//! The errors of candidates and of their mixtures, estimated without the truth, and the best mixture.
//!
//! The estimated error of a mixture is a quadratic function of its weights, with the products of the candidates'
//! changes and the response of each to the noise as coefficients. For two candidates with errors R and S and mean
//! squared difference D, the best weights are (S - R + D) / 2D and the rest; for more candidates it is a small
//! quadratic problem.

use super::crops::PROBE;
use super::{Candidate, Choice, Share};

/// Weights below this are none.
const LEAST: f64 = 0.05;
/// A mixture that is estimated to save less than this share of the model's error is not worth its time.
const WORTH: f64 = 0.02;
/// The same in variances of the noise, where the noise is independent from pixel to pixel: a camera's variance is known to 5 %, and
/// candidates follow the noise by up to a tenth more or less than the model, so that smaller differences of errors are not known.
const KNOWN: f64 = 0.01;
/// Where neighbours share more of the noise than this, estimated errors are off by up to a third either way: noise is shared further than
/// a camera tells, and structure passes for noise. Unless a mixture promises to save the share [`CLEAR`] of the model's error, others than
/// the model then get the share [`PART`] of the weight that the estimate gives them: that keeps most of the gain where the estimate
/// is right, and little of the loss where it is wrong.
const SHARED: f64 = 0.3;
const CLEAR: f64 = 0.3;
const PART: f64 = 0.45;

/// By how much a camera's variance is corrected at the most.
const MOST_SCALE: f64 = 1.5;
/// How much more of the noise is followed than a camera tells, for all that neighbours share; and how much of the estimated
/// difference between two errors is believed. Both were picked among about ten rules on crops of nine set-ups of FMD and three pairs of
/// GigaDB, and [`PART`] on the wide-field set-ups of FMD, so scores on those are not independent of them.
const BEYOND: f64 = 0.15;
const TRUST: f64 = 0.7;

/// Standard errors from which on the noise is taken to be shared by more than the camera says.
const SURE: f64 = 3.0;

/// What a candidate made of a crop, and of the same crop with a little more noise.
pub(super) struct Made {
    pub of_image: Vec<f32>,
    pub of_probed: Vec<f32>,
}

/// What the errors of all mixtures follow from.
#[derive(Clone, Default)]
pub(super) struct Sums {
    /// Products of what two candidates change.
    products: Vec<f64>,
    /// How far candidates follow the noise.
    follows: Vec<f64>,
    /// The same of the noise of the neighbours along X and along Y.
    follows_beside: Vec<[f64; 2]>,
    /// The noise's own square.
    noise: f64,
    pub pixels: usize,
    /// What the model leaves of the measurement, and of a noise that is the camera's.
    left: [Left; 2],
}

/// Squares of what a candidate leaves, and products of neighbours along X and along Y.
#[derive(Clone, Default)]
struct Left {
    squares: f64,
    beside: [f64; 2],
}

impl Left {
    /// How much neighbours share of it.
    fn shared(&self, axis: usize) -> f64 {
        if self.squares > 0.0 { self.beside[axis] / self.squares } else { 0.0 }
    }
}

impl Sums {
    /// Adds a crop with rows of `row` values and this number of channels.
    pub fn add(
        &mut self,
        y: &[f32],
        noise: &[f32],
        made: &[Made],
        counted: &[bool],
        [row, channels]: [usize; 2],
    ) {
        let n = made.len();
        self.products.resize(n * n, 0.0);
        self.follows.resize(n, 0.0);
        self.follows_beside.resize(n, [0.0; 2]);
        let mut changes = vec![0.0; n];
        let moved =
            |a: usize, i: usize| f64::from(made[a].of_probed[i] - made[a].of_image[i]) / f64::from(PROBE);
        let left = |i: usize| [f64::from(y[i] - made[0].of_image[i]), f64::from(noise[i]) - moved(0, i)];
        for i in (0..y.len()).filter(|&i| counted[i]) {
            let within = i % row + channels < row;
            let beside = [within.then_some(i + channels), (i + row < y.len()).then_some(i + row)];
            let beside = beside.map(|j| j.filter(|&j| counted[j]));
            for (a, made) in made.iter().enumerate() {
                changes[a] = f64::from(made.of_image[i] - y[i]);
                self.follows[a] += f64::from(noise[i]) * moved(a, i);
                for (sum, j) in self.follows_beside[a].iter_mut().zip(beside) {
                    *sum += j.map_or(0.0, |j| {
                        f64::from(noise[i]) * moved(a, j) + f64::from(noise[j]) * moved(a, i)
                    });
                }
                (0..=a).for_each(|b| self.products[b * n + a] += changes[a] * changes[b]);
            }
            for (k, sums) in self.left.iter_mut().enumerate() {
                sums.squares += left(i)[k].powi(2);
                for (sum, j) in sums.beside.iter_mut().zip(beside) {
                    *sum += j.map_or(0.0, |j| left(i)[k] * left(j)[k]);
                }
            }
            self.noise += f64::from(noise[i]).powi(2);
            self.pixels += 1;
        }
    }

    /// Takes the noise to be shared by more than the camera says where the data show it: what the model leaves of the measurement is shared by
    /// neighbours as what it leaves of the camera's noise is, unless there is more. A blur keeps such noise, and counts it as structure.
    /// The structure that a model leaves looks the same, so others than blurs stay as they are estimated.
    fn share_more(&mut self, candidates: &[Candidate]) {
        let chance = SURE / (self.pixels.max(1) as f64).sqrt();
        let [found, expected] = &self.left;
        let more = [0, 1].map(|axis| (found.shared(axis) - expected.shared(axis) - chance).max(0.0));
        for (a, candidate) in candidates.iter().enumerate() {
            if let Candidate::Gaussian(_) = candidate {
                let beside = self.follows_beside[a];
                self.follows[a] += more[0] * beside[0] + more[1] * beside[1];
            }
        }
    }

    fn product(&self, a: usize, b: usize) -> f64 {
        self.products[a.min(b) * self.follows.len() + a.max(b)]
    }

    /// The estimated squared error of a mixture divided by the noise variance.
    pub fn risk(&self, weights: &[f64]) -> f64 {
        let n = weights.len();
        let mut sum = 0.0;
        for a in 0..n {
            sum += 2.0 * weights[a] * self.follows[a];
            sum += (0..n).map(|b| weights[a] * weights[b] * self.product(a, b)).sum::<f64>();
        }
        sum / self.noise - 1.0
    }

    /// Takes the noise to be more than the camera says where the data show it. The mean of all that may have been measured has the
    /// error by which it follows the noise (Tweedie's formula), so it leaves the noise less that over; what smooths more leaves
    /// more. A camera under which every one of the `good` candidates leaves more has too little noise, and candidates that keep
    /// noise would look better than they are.
    fn recalibrate(&mut self, good: &[usize]) {
        let left = |&a: &usize| self.product(a, a) / (self.noise - self.follows[a]).max(1e-9 * self.noise);
        let scale = good.iter().map(left).fold(MOST_SCALE, f64::min).max(1.0);
        self.follows.iter_mut().for_each(|f| *f *= scale);
        self.noise *= scale;
    }

    /// The sums that weights are taken from. Where neighbours share `correlation` of their noise, pixels further apart than a camera
    /// tells share some, too, and what follows the noise follows more of it. The errors of the candidates `a` and `b` are known
    /// less well than they are estimated, and are brought nearer to each other: equal shares are never worse than the two
    /// are in the mean.
    fn cautious(&self, [a, b]: [usize; 2], correlation: f64) -> Sums {
        let mut sums = self.clone();
        sums.follows.iter_mut().for_each(|f| *f *= 1.0 + BEYOND * correlation.max(0.0));
        let alone = |a: usize| self.product(a, a) + 2.0 * self.follows[a];
        let shift = 0.25 * (1.0 - TRUST) * (alone(a) - alone(b));
        sums.follows[a] -= shift;
        sums.follows[b] += shift;
        sums
    }

    /// The nonnegative weights with the smallest error, found by moving weight between pairs of candidates until
    /// nothing improves.
    pub fn best(&self) -> Vec<f64> {
        let n = self.follows.len();
        let mut w = vec![0.0; n];
        let alone = |a: usize| self.product(a, a) + 2.0 * self.follows[a];
        w[(0..n).min_by(|&a, &b| alone(a).total_cmp(&alone(b))).unwrap_or(0)] = 1.0;
        for _ in 0..200 {
            let mut moved = 0.0f64;
            for a in 0..n {
                for b in (0..n).filter(|&b| b != a) {
                    let slope =
                        |i: usize| (0..n).map(|j| w[j] * self.product(i, j)).sum::<f64>() + self.follows[i];
                    let bend = self.product(a, a) + self.product(b, b) - 2.0 * self.product(a, b);
                    if w[b] <= 0.0 || bend <= 0.0 {
                        continue;
                    }
                    let step = ((slope(b) - slope(a)) / bend).clamp(0.0, w[b]);
                    (w[a], w[b]) = (w[a] + step, w[b] - step);
                    moved = moved.max(step);
                }
            }
            if moved < 1e-6 {
                break;
            }
        }
        w
    }

    /// Candidates, the model and BM3D first, with their risks and weights in whole per cent; the model alone if no
    /// other gains enough. `correlation` is that of the noise between neighbours.
    pub fn choice(mut self, candidates: &[Candidate], correlation: f64) -> Choice {
        debug_assert!(matches!(candidates, [Candidate::Model, Candidate::Bm3d, ..]));
        let n = candidates.len();
        if self.noise <= 0.0 {
            return Choice::only(Candidate::Model);
        }
        self.share_more(candidates);
        self.recalibrate(&[0, 1]);
        let unit = |a: usize| (0..n).map(|b| f64::from(u8::from(a == b))).collect::<Vec<f64>>();
        // How much of the model's error a mixture is estimated to save, and whether that is this share of it.
        let saves = |sums: &Sums, weights: &[f64]| sums.risk(&unit(0)) - sums.risk(weights);
        let is_share =
            |sums: &Sums, saved: f64, share: f64| saved > share * sums.risk(&unit(0)).abs().max(1e-3);
        let mut sums = self.cautious([0, 1], correlation);
        let mut weights = rounded(sums.best());
        let mut least = KNOWN;
        if correlation > SHARED && !is_share(&sums, saves(&sums, &weights), CLEAR) {
            sums = self.cautious([0, 1], 0.0);
            weights = rounded(nearer_the_model(sums.best()));
            least = 0.0;
        }
        let saved = saves(&sums, &weights);
        if !(is_share(&sums, saved, WORTH) && saved > least) {
            weights = unit(0);
        }
        let share = |a: usize| Share {
            candidate: candidates[a],
            risk: Some(self.risk(&unit(a))),
            weight: weights[a],
        };
        let mut shares: Vec<Share> = (0..n).map(share).collect();
        // Of the blurs the best one is told of, and those that count.
        let blur = |s: &Share| matches!(s.candidate, Candidate::Gaussian(_));
        let least = shares.iter().filter(|s| blur(s)).filter_map(|s| s.risk).fold(f64::INFINITY, f64::min);
        shares.retain(|s| !blur(s) || s.weight > 0.0 || s.risk == Some(least));
        Choice { shares, risk: Some(self.risk(&weights)) }
    }
}

/// Weights of which all but the first, the model's, are a part of what they were.
fn nearer_the_model(mut weights: Vec<f64>) -> Vec<f64> {
    weights.iter_mut().for_each(|w| *w *= PART);
    weights[0] += 1.0 - PART;
    weights
}

/// Weights in whole percents, small ones none: what is said is what is done, and the last bits of an estimate change nothing.
fn rounded(mut weights: Vec<f64>) -> Vec<f64> {
    weights.iter_mut().filter(|w| **w < LEAST).for_each(|w| *w = 0.0);
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w = (100.0 * *w / sum).round());
    let left = 100.0 - weights.iter().sum::<f64>();
    if let Some(most) = weights.iter_mut().max_by(|a, b| a.total_cmp(b)) {
        *most += left;
    }
    weights.into_iter().map(|w| w / 100.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    const N: usize = 1 << 16;

    fn normal(step: u32) -> Vec<f32> {
        let mut values = vec![0f32; N];
        Key { seed: 1, step, stream: 0 }.fill_normal(0, &mut values);
        values
    }

    /// Sums of candidates that are functions of a measurement about zero in noise of variance 1.
    fn sums(candidates: &[&dyn Fn(f32) -> f32]) -> Sums {
        let (y, noise) = (normal(0), normal(1));
        let made = |f: &&dyn Fn(f32) -> f32| Made {
            of_image: y.iter().map(|&v| f(v)).collect(),
            of_probed: y.iter().zip(&noise).map(|(&v, n)| f(v + PROBE * n)).collect(),
        };
        let mut sums = Sums::default();
        sums.add(&y, &noise, &candidates.iter().map(made).collect::<Vec<_>>(), &vec![true; N], [256, 1]);
        sums
    }

    /// The measurement times a number follows the noise by that number, and its error is the number's square.
    #[test]
    fn errors_are_told_without_the_truth() {
        let sums = sums(&[&|v| 0.5 * v, &|v| 0.9 * v, &|v| v]);
        for (a, f) in [0.5f64, 0.9, 1.0].into_iter().enumerate() {
            let mut w = vec![0.0; 3];
            w[a] = 1.0;
            // Four standard errors of a mean over 65536 squares.
            assert!((sums.risk(&w) - f * f).abs() < 0.03, "{f}: {}", sums.risk(&w));
        }
        // Nothing mixed in makes the smallest factor smaller.
        assert!(sums.best()[0] > 0.98, "{:?}", sums.best());
    }

    /// Two candidates of errors R and S with a mean squared difference of D: shares of (S - R + D) / 2D and the rest.
    #[test]
    fn two_candidates_are_mixed_by_their_errors_and_their_difference() {
        let sums = sums(&[&|_| 0.5, &|_| -0.3, &|v| v]);
        let (r, s, d) = (0.25, 0.09, 0.64);
        let expected = (s - r + d) / (2.0 * d);
        let best = sums.best();
        assert!((best[0] - expected).abs() < 0.02 && (best[1] - 1.0 + expected).abs() < 0.02, "{best:?}");
    }

    /// Shares are (t (S - R) + D) / 2D and the rest, t being how much of the difference is believed.
    #[test]
    fn choices_are_cautious_and_in_whole_percents() {
        let sums = sums(&[&|v| 0.25 * v + 0.3, &|v| 0.25 * v - 0.2, &|v| v]);
        let (r, s, d) = (0.1525, 0.1025, 0.25);
        let expected = (TRUST * (s - r) + d) / (2.0 * d);
        let choice = sums.choice(&[Candidate::Model, Candidate::Bm3d, Candidate::Raw], 0.0);
        assert!((choice.weight("model") - expected).abs() < 0.02 && !choice.is_model(), "{choice:?}");
        assert_eq!(choice.shares.iter().map(|s| (100.0 * s.weight).round() as u32).sum::<u32>(), 100);
        // What is told are the errors as they are estimated.
        assert!(choice.shares[0].risk.is_some_and(|e| (e - r).abs() < 0.02), "{choice:?}");
        assert!(choice.in_words().starts_with("model 4") && choice.in_words().contains("bm3d 5"));
    }

    /// Where neighbours share noise, a candidate that follows it more has less weight.
    #[test]
    fn noise_that_reaches_further_counts_against_what_follows_it() {
        let weight = |correlation: f64| {
            let sums = sums(&[&|v| 0.1 * v + 0.3, &|v| 0.3 * v - 0.2]);
            let choice = sums.choice(&[Candidate::Model, Candidate::Bm3d], correlation);
            choice.weight("bm3d")
        };
        // The share of BM3D falls by the further noise, 2 BEYOND 0.3 (0.3 - 0.1), over twice the squared difference.
        let expected = 2.0 * BEYOND * 0.3 * 0.2 / (2.0 * (0.5 * 0.5 + 0.2 * 0.2));
        assert!((weight(0.0) - weight(0.3) - expected).abs() < 0.015, "{} {}", weight(0.0), weight(0.3));
    }

    /// Noise that neighbours share, of which the camera does not know: a blur keeps it and seems good, until what the model leaves is looked at.
    #[test]
    fn a_blur_is_not_trusted_in_noise_that_is_shared_unknown_to_the_camera() {
        const ROW: usize = 256;
        let (white, probe) = (normal(0), normal(1));
        let at = |x: &[f32], i: usize, step: isize| x[(i as isize + step).rem_euclid(N as isize) as usize];
        let blurred = |x: &[f32]| -> Vec<f32> {
            (0..N).map(|i| 0.5 * x[i] + 0.25 * (at(x, i, -1) + at(x, i, 1))).collect()
        };
        let risk = |shared: f32| {
            let scale = (1.0 + 2.0 * shared * shared).sqrt();
            let y: Vec<f32> = (0..N)
                .map(|i| (white[i] + shared * (at(&white, i, -1) + at(&white, i, 1))) / scale)
                .collect();
            let with: Vec<f32> = y.iter().zip(&probe).map(|(v, n)| v + PROBE * n).collect();
            let model = |x: &[f32]| x.iter().map(|v| 0.1 * v).collect();
            let made = [
                Made { of_image: model(&y), of_probed: model(&with) },
                Made { of_image: blurred(&y), of_probed: blurred(&with) },
            ];
            let mut sums = Sums::default();
            sums.add(&y, &probe, &made, &[true; N], [ROW, 1]);
            let before = sums.risk(&[0.0, 1.0]);
            sums.share_more(&[Candidate::Model, Candidate::Gaussian(0.8)]);
            [before, sums.risk(&[0.0, 1.0])]
        };
        // Of independent noise the blur leaves 1/4 + 2/16; where neighbours share c, and those behind them d, (3 + 4 c + d) / 8.
        let [before, after] = risk(0.0);
        assert!((before - 0.375).abs() < 0.02 && (after - before).abs() < 0.02, "{before} {after}");
        let (c, d) = (2.0 * 0.3 / 1.18, 0.09 / 1.18);
        let truth = (3.0 + 4.0 * c + d) / 8.0;
        let [before, after] = risk(0.3);
        assert!(before < truth - 0.3 && (after - truth).abs() < 0.1, "{before} {after}, {truth} in truth");
    }

    /// In noise that is shared by much, a mixture that promises a seventh gives the other candidate a part of its share; one that promises
    /// much more is believed.
    #[test]
    fn uncertain_errors_leave_the_model_most_of_the_weight() {
        let weight = |off: f32, correlation: f64| {
            let sums = sums(&[&|v| 0.25 * v + off, &|v| 0.25 * v - off]);
            sums.choice(&[Candidate::Model, Candidate::Bm3d], correlation).weight("bm3d")
        };
        // Errors of 0.085 each, of which equal shares save 0.0225; of 0.3125, of which they save 0.25.
        assert!((weight(0.15, 0.2) - 0.5).abs() < 0.06, "{}", weight(0.15, 0.2));
        assert!((weight(0.15, 0.6) - 0.5 * PART).abs() < 0.03, "{}", weight(0.15, 0.6));
        // What saves 0.006 is within the error of the estimate where noise is independent.
        assert_eq!(weight(0.08, 0.0), 0.0);
        assert!((weight(0.5, 0.6) - 0.5).abs() < 0.06, "{}", weight(0.5, 0.6));
    }

    /// A candidate that keeps a small share f of the noise leaves (1 - f)^2 of it where 1 - f is expected. Under a camera of too little
    /// variance both leave more than expected; one that keeps much of the noise does not.
    #[test]
    fn noise_that_the_camera_does_not_know_is_found() {
        let scale = |kept: f32, told: f64| {
            let mut sums = sums(&[&|v| 0.01 * v, &|v| kept * v]);
            sums.follows.iter_mut().for_each(|f| *f *= told);
            sums.noise *= told;
            let before = sums.noise;
            sums.recalibrate(&[0, 1]);
            sums.noise / before
        };
        assert!((scale(0.03, 0.8) - 0.97 / 0.8).abs() < 0.03, "{}", scale(0.03, 0.8));
        assert_eq!((scale(0.25, 0.8), scale(0.03, 1.0), scale(0.03, 1.3)), (1.0, 1.0, 1.0));
    }

    /// A candidate that is off by 0.15 more could take 15 % by caution alone, which saves half a thousandth of an error of 0.09.
    #[test]
    fn the_model_alone_is_taken_where_nothing_gains() {
        let sums = sums(&[&|v| 0.3 * v, &|v| 0.3 * v + 0.15]);
        assert!(sums.choice(&[Candidate::Model, Candidate::Bm3d], 0.0).is_model());
    }

    #[test]
    fn weights_are_whole_percents() {
        assert_eq!(rounded(vec![0.6649, 0.3301, 0.005]), [0.67, 0.33, 0.0]);
        assert_eq!(rounded(vec![1.0 / 3.0; 3]).iter().sum::<f64>(), 1.0);
        assert_eq!(rounded(vec![0.98, 0.02]), [1.0, 0.0]);
    }
}
