//! What to trust: the model, BM3D, a blur or the measurement itself, decided by the image's own data.
//!
//! A model is best on images like those it was trained on, BM3D on bright and repetitive ones, and nothing beats the
//! measurement where there is hardly any noise. Which holds for an image is estimated without the truth. For an estimate f
//! of the mean of a measurement y with noise of covariance C, Stein's lemma gives the expected squared error as that of
//! |f(y) - y|^2 + 2 tr(C J) less a number that is the same for all f, J being how f follows y; and tr(C J) is the mean of
//! n (f(y + e n) - f(y)) / e over noise n of covariance C (Ramani, Blu and Unser 2008), with the covariance that the camera
//! has: its variance at each pixel, and the correlation between them. The same numbers tell the error of every mixture of
//! the candidates, so the best mixture follows from a small quadratic problem.
//!
//! It is decided on a few crops of the image; what gets no weight is never run on the whole.

use super::Error;
use super::field::Field;
use super::measured::{Camera, Measured, Values};
use super::restorer::{Restored, Restorer};
use crate::classical::{self, Method};
use clearshot_physics::Electrons;
use clearshot_physics::correlation::FILTER;
use clearshot_tensor::noise::Key;
use rayon::prelude::*;
use serde::Serialize;

/// The side of a crop, and how many are cut at the most.
const SIDE: usize = 256;
const CROPS: usize = 4;
/// The probing noise, in standard deviations of the measurement's own.
const PROBE: f32 = 0.1;
/// Blurs that are tried, as standard deviations in pixels.
const BLURS: [f32; 4] = [0.5, 0.8, 1.2, 2.0];
/// A mixture that is estimated to save less than this share of the model's error is not worth its time.
const WORTH: f64 = 0.02;
/// The same where neighbours share noise: what they share over more pixels than the camera tells looks like structure that
/// others keep, and their errors look smaller than they are.
const WORTH_SHARED: f64 = 0.3;
/// Neighbours that share at least this share noise.
const SHARED: f64 = 0.3;
/// Weights below this are none.
const LEAST: f64 = 0.04;
/// The smallest share of the noise at the image's mean level that a pixel's deviation is taken to have.
const LEAST_NOISE: f32 = 0.05;

/// What an image can be restored by.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Candidate {
    Model,
    Bm3d,
    /// A Gaussian blur of this standard deviation in pixels.
    Gaussian(f32),
    /// The measurement as it is.
    Raw,
}

impl Candidate {
    pub fn name(&self) -> &'static str {
        match self {
            Candidate::Model => "model",
            Candidate::Bm3d => "bm3d",
            Candidate::Gaussian(_) => "gaussian",
            Candidate::Raw => "raw",
        }
    }
}

impl Candidate {
    /// For people: blurs are told apart by their widths.
    fn called(&self) -> String {
        match self {
            Candidate::Gaussian(sigma) => format!("gaussian of {sigma} pixels"),
            other => other.name().to_string(),
        }
    }
}

/// One candidate in a choice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    pub candidate: Candidate,
    /// The estimated mean squared error over the noise's variance; about 1 for the measurement itself. Not known of what was
    /// not tried.
    pub risk: Option<f64>,
    pub weight: f64,
}

/// Candidates with their estimated errors and their weights in the result, which sum to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    pub shares: Vec<Share>,
    /// The estimated error of the mixture, as [`Share::risk`].
    pub risk: Option<f64>,
}

impl Choice {
    /// One candidate, without a look at the others.
    pub fn only(candidate: Candidate) -> Choice {
        Choice { shares: vec![Share { candidate, risk: None, weight: 1.0 }], risk: None }
    }

    pub fn weight(&self, name: &str) -> f64 {
        self.shares.iter().filter(|s| s.candidate.name() == name).map(|s| s.weight).sum()
    }

    /// Whether the model alone is taken.
    pub fn is_model(&self) -> bool {
        self.weight("model") >= 1.0
    }

    /// For people: "model 70 %, bm3d 30 % (estimated errors in noise variances: model 0.031, bm3d 0.036, ...)".
    pub fn in_words(&self) -> String {
        let taken: Vec<String> = self
            .shares
            .iter()
            .filter(|s| s.weight > 0.0)
            .map(|s| format!("{} {:.0} %", s.candidate.called(), 100.0 * s.weight))
            .collect();
        let risks: Vec<String> = self
            .shares
            .iter()
            .filter_map(|s| Some(format!("{} {:.3}", s.candidate.called(), s.risk?)))
            .collect();
        match risks.is_empty() {
            true => taken.join(", "),
            false => format!(
                "{} (estimated squared error over the noise's variance: {})",
                taken.join(", "),
                risks.join(", ")
            ),
        }
    }

    /// Puts the restored image together: what the model made, moved by the weights of the others. chi2 stays that of the
    /// model's answer: it tells whether the camera's numbers are this image's, which a mixture would hide.
    ///
    /// # Errors
    /// If a restorer fails.
    pub fn apply(&self, measured: &Measured, camera: &Camera, restored: &mut Restored) -> Result<(), Error> {
        if self.is_model() {
            return Ok(());
        }
        let mut mixed: Vec<f32> = vec![0.0; restored.image.len()];
        for share in self.shares.iter().filter(|s| s.weight > 0.0) {
            let w = share.weight as f32;
            let mut add = |values: &[f32]| mixed.iter_mut().zip(values).for_each(|(m, v)| *m += w * v);
            match share.candidate {
                Candidate::Model => add(&restored.image),
                Candidate::Raw => add(&measured.values),
                other => add(&classical(other, measured, camera)?),
            }
        }
        measured.raise(&mut mixed);
        let model = self.weight("model") as f32;
        for (i, mixed) in mixed.into_iter().enumerate() {
            let shift = mixed - restored.image[i];
            restored.image[i] = mixed;
            restored.samples.iter_mut().for_each(|s| s[i] += shift);
        }
        // Where others than the model count, how far they are off is known for the whole image alone.
        if let (Some(deviation), Some(risk)) = (&mut restored.deviation, self.risk) {
            let others = ((1.0 - model) as f64 * risk.max(0.0)).sqrt() as f32;
            let noise = |v: f32| deviation_at(camera, v);
            deviation.iter_mut().zip(restored.image.iter()).for_each(|(d, &v)| *d = d.max(others * noise(v)));
        }
        Ok(())
    }
}

/// The standard deviation of the noise where the mean is `counts`, in counts.
fn deviation_at(camera: &Camera, counts: f32) -> f32 {
    let variance = f64::from(camera.electrons(counts)).max(0.0) + camera.read_noise.powi(2);
    (variance.sqrt() / camera.gain) as f32
}

/// What a classical candidate makes of a measurement, plane by plane and channel by channel.
fn classical(candidate: Candidate, image: &Measured, camera: &Camera) -> Result<Vec<f32>, Error> {
    let [.., height, width] = image.size[..] else { return Err(Error::Size { size: image.size.clone() }) };
    let (c, plane) = (image.channels, height * width);
    let mut out = vec![0.0; image.values.len()];
    for (z, channel) in (0..out.len() / (plane * c)).flat_map(|z| (0..c).map(move |ch| (z, ch))) {
        let at = |i: usize| (z * plane + i) * c + channel;
        let values: Vec<f32> = (0..plane).map(|i| image.values[at(i)]).collect();
        let made = match candidate {
            Candidate::Gaussian(sigma) => {
                let blur = classical::gaussian::Gaussian { sigma };
                Method::Gaussian(blur).run(&values, &[height, width], classical::Noise::white(0.0))?
            }
            _ => bm3d(&values, [height, width], camera)?,
        };
        made.into_iter().enumerate().for_each(|(i, v)| out[at(i)] = v);
    }
    Ok(out)
}

fn bm3d(counts: &[f32], shape: [usize; 2], camera: &Camera) -> Result<Vec<f32>, Error> {
    let method = Method::Bm3d(classical::bm3d::Bm3d::USUAL);
    let electrons: Vec<f32> = counts.iter().map(|&v| camera.electrons(v)).collect();
    let read_noise = Electrons(camera.read_noise as f32);
    let made =
        classical::stabilised(&method, Electrons(&electrons), &shape, read_noise, &camera.correlation)?;
    Ok(made.0.into_iter().map(|e| camera.counts(e)).collect())
}

/// What to trust of an image that has a camera; the model alone where nothing else could stand in its place: under a PSF or
/// guidance, for volumes, and for images that become others.
///
/// # Errors
/// If the device fails, or `ran` says to stop.
pub fn choose(
    restorer: &mut Restorer,
    image: &Measured,
    camera: &Camera,
    ran: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<Choice, Error> {
    let [height, width] = image.size[..] else { return Ok(Choice::only(Candidate::Model)) };
    if !is_open(restorer, [height, width]) {
        return Ok(Choice::only(Candidate::Model));
    }
    let crops = crops(image, [height, width], restorer)?;
    let mut model = restorer.estimate(&crops, camera, ran)?;
    let probes: Vec<Vec<f32>> =
        crops.iter().zip(&model).enumerate().map(|(i, (y, m))| probe(y, m, camera, i as u32)).collect();
    let probed =
        crops.iter().zip(&probes).map(|(y, n)| shifted(y, n, restorer)).collect::<Result<Vec<_>, _>>()?;
    let mut model_probed = restorer.estimate(&probed, camera, ran)?;
    let mut sums = Sums::default();
    let blurs = BLURS.map(Candidate::Gaussian);
    for (i, (y, n)) in crops.iter().zip(&probes).enumerate() {
        let valid: Vec<bool> = match &y.valid {
            Some(valid) => valid.iter().flat_map(|v| std::iter::repeat_n(*v, y.channels)).collect(),
            None => vec![true; y.values.len()],
        };
        let mut made = vec![(std::mem::take(&mut model[i]), std::mem::take(&mut model_probed[i]))];
        for candidate in [Candidate::Bm3d].into_iter().chain(blurs) {
            made.push((classical(candidate, y, camera)?, classical(candidate, &probed[i], camera)?));
        }
        made.push((y.values.to_vec(), probed[i].values.to_vec()));
        sums.add(&y.values, n, &made, &valid);
    }
    let candidates: Vec<Candidate> =
        [Candidate::Model, Candidate::Bm3d].into_iter().chain(blurs).chain([Candidate::Raw]).collect();
    let shared = camera.correlation.at(0, 1).max(camera.correlation.at(1, 0)) >= SHARED;
    Ok(sums.choice(&candidates, if shared { WORTH_SHARED } else { WORTH }))
}

/// Runs of the network that [`choose`] takes for images of a size; none where there is nothing to choose from.
///
/// # Errors
/// If nothing fits the device's memory, or the device fails.
pub fn runs(restorer: &mut Restorer, size: &[usize]) -> Result<usize, Error> {
    let [height, width] = *size else { return Ok(0) };
    if !is_open(restorer, [height, width]) {
        return Ok(0);
    }
    let crops = places(height).len() * places(width).len();
    // The crops as they are, and once more with a little noise.
    Ok(2 * restorer.estimate_forecast(&[height.min(SIDE), width.min(SIDE)], crops)?.runs)
}

/// Whether others could stand in the model's place.
fn is_open(restorer: &Restorer, [height, width]: [usize; 2]) -> bool {
    let about = &restorer.model().about;
    let same = about.input_channels() == about.channels && about.signal == clearshot_model::Signal::Photons;
    same && restorer.answers_at_once() && height.min(width) >= LEAST_SIDE
}

/// Where crops begin along an axis of so many pixels.
fn places(n: usize) -> Vec<usize> {
    match n >= 2 * SIDE {
        true => vec![n / 4 - SIDE / 2, 3 * n / 4 - SIDE / 2],
        false => vec![(n - n.min(SIDE)) / 2],
    }
}

/// Images with fewer pixels along a side tell too little.
const LEAST_SIDE: usize = 32;

/// The whole of a small image; of a larger one the middles of its quarters.
fn crops(image: &Measured, [height, width]: [usize; 2], restorer: &Restorer) -> Result<Vec<Measured>, Error> {
    let c = image.channels;
    let size = [height.min(SIDE), width.min(SIDE)];
    let mut out = Vec::new();
    for top in places(height) {
        for left in places(width) {
            let mut values = Vec::with_capacity(size[0] * size[1] * c);
            for y in top..top + size[0] {
                for x in left..left + size[1] {
                    let pixel = y * width + x;
                    let holds = image.valid.as_ref().is_none_or(|v| v[pixel]);
                    let own = &image.values[pixel * c..(pixel + 1) * c];
                    values.extend(own.iter().map(|&v| if holds { v } else { f32::NAN }));
                }
            }
            let crop =
                Measured::read(&Values { values: &values, size: &size, channels: c }, restorer.scratch());
            match crop {
                Err(Error::Missing { .. }) => {}
                crop => out.push(crop?),
            }
        }
    }
    debug_assert!(out.len() <= CROPS);
    Ok(out)
}

/// Noise as the camera has it where the image is `mean`, in counts.
fn probe(y: &Measured, mean: &[f32], camera: &Camera, number: u32) -> Vec<f32> {
    let [.., height, width] = y.size[..] else { return vec![] };
    let c = y.channels;
    let mut white = vec![0f32; mean.len()];
    Key { seed: 0x5EED, step: number, stream: 0xC401 }.fill_normal(0, &mut white);
    let taps: Vec<f32> = camera.correlation.filter().into_iter().map(|t| t as f32).collect();
    let shared = match camera.correlation.is_white() {
        true => white,
        false => {
            let at = |i: usize| {
                let (pixel, ch) = (i / c, i % c);
                let (row, column) = (pixel / width, pixel % width);
                let mut sum = 0.0;
                for (k, t) in taps.iter().enumerate() {
                    let y = (row + k / FILTER + height - FILTER / 2) % height;
                    let x = (column + k % FILTER + width - FILTER / 2) % width;
                    sum += t * white[(y * width + x) * c + ch];
                }
                sum
            };
            (0..white.len()).into_par_iter().map(at).collect()
        }
    };
    let typical = mean.iter().map(|&v| f64::from(v)).sum::<f64>() / mean.len() as f64;
    let least = LEAST_NOISE * deviation_at(camera, typical as f32);
    shared.iter().zip(mean).map(|(n, &m)| n * deviation_at(camera, m).max(least)).collect()
}

/// The measurement with a little more noise.
fn shifted(y: &Measured, noise: &[f32], restorer: &Restorer) -> Result<Measured, Error> {
    let mut values: Field = restorer.scratch().field(y.values.len())?;
    values.iter_mut().zip(y.values.iter()).zip(noise).for_each(|((to, v), n)| *to = v + PROBE * n);
    Ok(y.with_values(values))
}

/// What the errors of all mixtures follow from: products of what candidates change, and how they follow the noise.
#[derive(Default)]
struct Sums {
    products: Vec<f64>,
    follows: Vec<f64>,
    noise: f64,
}

impl Sums {
    fn add(&mut self, y: &[f32], noise: &[f32], made: &[(Vec<f32>, Vec<f32>)], valid: &[bool]) {
        let n = made.len();
        self.products.resize(n * n, 0.0);
        self.follows.resize(n, 0.0);
        for i in (0..y.len()).filter(|&i| valid[i]) {
            for a in 0..n {
                let change = f64::from(made[a].0[i] - y[i]);
                for b in a..n {
                    let product = change * f64::from(made[b].0[i] - y[i]);
                    self.products[a * n + b] += product;
                }
                let moved = f64::from(made[a].1[i] - made[a].0[i]) / f64::from(PROBE);
                self.follows[a] += f64::from(noise[i]) * moved;
            }
            self.noise += f64::from(noise[i]).powi(2);
        }
    }

    fn product(&self, a: usize, b: usize) -> f64 {
        self.products[a.min(b) * self.follows.len() + a.max(b)]
    }

    /// The estimated squared error of a mixture over the noise's.
    fn risk(&self, weights: &[f64]) -> f64 {
        let n = weights.len();
        let mut sum = 0.0;
        for a in 0..n {
            sum += 2.0 * weights[a] * self.follows[a];
            sum += (0..n).map(|b| weights[a] * weights[b] * self.product(a, b)).sum::<f64>();
        }
        sum / self.noise - 1.0
    }

    /// The weights of the least error, none below zero: weight is moved between two candidates, pair by pair, as far as it
    /// helps, until nothing does.
    fn best(&self) -> Vec<f64> {
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

    /// Candidates with their risks and weights; the model alone where nothing gains enough by another.
    fn choice(&self, candidates: &[Candidate], worth: f64) -> Choice {
        let n = candidates.len();
        if self.noise <= 0.0 {
            return Choice::only(Candidate::Model);
        }
        let unit = |a: usize| (0..n).map(|b| f64::from(u8::from(a == b))).collect::<Vec<f64>>();
        let mut weights = self.best();
        weights.iter_mut().filter(|w| **w < LEAST).for_each(|w| *w = 0.0);
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= sum);
        let model = self.risk(&unit(0));
        let gained = model - self.risk(&weights);
        if gained.is_nan() || gained <= worth * model.abs().max(1e-3) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Candidates that are the measurement times a number, in noise of variance 1 about zero: each follows the noise by
    /// that number, and its error is the number's square.
    fn shrinking(factors: &[f32]) -> Sums {
        let n = 1 << 16;
        let (mut y, mut noise) = (vec![0f32; n], vec![0f32; n]);
        Key { seed: 1, step: 0, stream: 0 }.fill_normal(0, &mut y);
        Key { seed: 1, step: 1, stream: 0 }.fill_normal(0, &mut noise);
        let of = |f: f32| -> (Vec<f32>, Vec<f32>) {
            let made = y.iter().map(|v| f * v).collect();
            (made, y.iter().zip(&noise).map(|(v, n)| f * (v + PROBE * n)).collect())
        };
        let made: Vec<_> = factors.iter().map(|&f| of(f)).collect();
        let mut sums = Sums::default();
        sums.add(&y, &noise, &made, &vec![true; n]);
        sums
    }

    #[test]
    fn errors_are_told_without_the_truth() {
        let factors = [0.5, 0.9, 1.0];
        let sums = shrinking(&factors);
        for (a, f) in factors.iter().enumerate() {
            let mut w = vec![0.0; 3];
            w[a] = 1.0;
            // Four standard errors of a mean over 65536 squares.
            assert!((sums.risk(&w) - f64::from(f * f)).abs() < 0.03, "{f}: {}", sums.risk(&w));
        }
        // Nothing mixed in makes the smallest factor smaller.
        assert!(sums.best()[0] > 0.98, "{:?}", sums.best());
    }

    /// Two candidates that are off in opposite ways are best in equal parts.
    #[test]
    fn mixtures_take_what_is_best_of_each() {
        let n = 1 << 14;
        let mut noise = vec![0f32; n];
        Key { seed: 2, step: 0, stream: 0 }.fill_normal(0, &mut noise);
        let off = |sign: f32| (vec![sign; n], vec![sign; n]);
        let mut y = vec![0f32; n];
        Key { seed: 2, step: 1, stream: 0 }.fill_normal(0, &mut y);
        let mut sums = Sums::default();
        sums.add(
            &y,
            &noise,
            &[off(0.5), off(-0.5), (y.clone(), y.iter().zip(&noise).map(|(v, e)| v + PROBE * e).collect())],
            &vec![true; n],
        );
        let best = sums.best();
        assert!((best[0] - 0.5).abs() < 0.05 && (best[1] - 0.5).abs() < 0.05, "{best:?}");
        let choice = sums.choice(&[Candidate::Model, Candidate::Bm3d, Candidate::Raw], WORTH);
        assert!((choice.weight("model") - 0.5).abs() < 0.06 && !choice.is_model());
        assert!(
            choice.in_words().contains("bm3d 5") || choice.in_words().contains("bm3d 4"),
            "{}",
            choice.in_words()
        );
        // Not worth it where the model is as good.
        let mut sums = Sums::default();
        sums.add(&y, &noise, &[off(0.0), off(0.1)], &vec![true; n]);
        assert!(sums.choice(&[Candidate::Model, Candidate::Bm3d], WORTH).is_model());
    }
}
