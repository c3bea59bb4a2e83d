//! Clean images passed through a simulated camera, in the units of the network.
//!
//! Electrons are drawn exactly, voxel by voxel, as everywhere in the project. The conditions of the network follow from
//! three numbers of an image: its peak p above the background, its background b and its read noise s.

use super::{NUMBERS, Sample};
use crate::config::CameraConfig;
use clearshot_model::signal::{LAGS, from_lags, lags};
use clearshot_model::{ModelError, Photons};
use clearshot_physics::{Correlation, poisson};
use clearshot_scenes::Camera;
use clearshot_tensor::noise::Key;

/// Of what is measured and what is clean.
pub const CHANNELS: [usize; 2] = [1, 1];

/// Standard deviations that the 99.8th percentile of noise lies above its mean.
const NOISE_IN_PEAK: f64 = 3.0;
/// Structure that is taken for noise makes a correlation too large: how often, and by how much in the mean.
const MISTAKEN: f64 = 0.15;
const MISTAKEN_BY: f64 = 0.05;
/// How such errors are shared by the [`lags`].
const MISTAKEN_LAGS: [f64; LAGS] = [1.0, 1.0, 0.7, 0.4];
/// Noise and structure of low frequencies are taken for each other: errors that [`lags`] have in common grow with the
/// correlation, from that of weak ones on, and each lag has a smaller one of its own.
const COMMON_LAGS: [f64; LAGS] = [1.0, 1.0, 1.6, 1.8];
const WEAK: f64 = 0.2;
const OWN: f64 = 0.4;
/// Electrons without light, and the read noise, of detectors that count photons.
const COUNTING_BACKGROUND: [f64; 2] = [0.02, 1.0];
const COUNTING_READ_NOISE: [f64; 2] = [0.05, 0.5];
/// Electrons from which on a sum of amplified ones is nearly normal.
const NEARLY_NORMAL: f64 = 8.0;
/// Errors of a background that is found, in standard deviations of a pixel's noise.
const BACKGROUND_ERROR: f64 = 0.1;

/// The light of an image that a crop was cut from, where its brightest value is about 1: at its bright end, and in its
/// darkest places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ends {
    pub bright: f64,
    pub dark: f64,
}

/// Cameras by the number of the image they look at.
pub struct Cameras {
    pub(super) config: CameraConfig,
    seed: u64,
}

impl Cameras {
    pub fn new(config: &CameraConfig, seed: u64) -> Cameras {
        Cameras { config: config.clone(), seed }
    }

    pub(super) fn key(&self, number: u64, stream: u32) -> Key {
        Key { seed: self.seed, step: number as u32, stream: stream | ((number >> 32) as u32) << 12 }
    }

    /// What a camera makes of an image with values in [0, 1], cut from one with these ends; the domain is left 0.
    ///
    /// A network gets the peak that is estimated from a noisy image, which is that of the bright end and more,
    /// by as much as noise moves the largest of many means over nine pixels; and gain, read noise and correlation as they are
    /// estimated, which is not quite right.
    pub fn expose(&self, mut values: Vec<f32>, size: &[usize], ends: Ends, number: u64) -> Sample {
        let _exposing = clearshot_timeline::span(clearshot_timeline::Phase::Exposing);
        let c = &self.config;
        let dice = self.key(number, 0xCA4);
        let unit = |i: u64| f64::from(dice.uniform(i));
        // Every normal number is made of two uniform ones.
        let normal = |i: u64| {
            let radius = (-2.0 * unit(i).max(1e-9).ln()).sqrt();
            radius * (std::f64::consts::TAU * unit(i + 1)).cos()
        };
        let between = |i: u64, [low, high]: [f64; 2]| {
            if low <= 0.0 { low } else { low * (high / low).powf(unit(i)) }
        };
        let around = |i: u64, usual: f64| usual * c.spread.powf(2.0 * unit(i) - 1.0);
        let peak = between(0, c.peak);
        let usual = Camera::for_peak(peak);
        let mut background = c.background.map_or_else(|| around(1, usual.background), |r| between(1, r));
        let mut read_noise = c.read_noise.map_or_else(|| around(2, usual.read_noise), |r| between(2, r));
        if unit(16) < c.counting {
            (background, read_noise) = (between(17, COUNTING_BACKGROUND), between(18, COUNTING_READ_NOISE));
        }
        if unit(7) < c.uniform {
            read_noise = peak * between(8, c.uniform_noise);
        }
        let Ends { mut bright, dark: darkest } = ends;
        if unit(4) < c.blur {
            let before = values.iter().fold(0f32, |a, b| a.max(*b));
            blur(&mut values, size, between(5, c.blur_sigma));
            let after = values.iter().fold(0f32, |a, b| a.max(*b));
            if before > 0.05 {
                bright = darkest + (bright - darkest) * f64::from((after / before).max(0.05));
            }
        }
        let dark = background + read_noise * read_noise;
        let mut at_dark = background;
        if unit(9) < c.found {
            let error = BACKGROUND_ERROR * dark.sqrt() * normal(10);
            at_dark = (background + peak * darkest + error).max(0.0);
        }
        let noise_in_means = (dark + peak * bright).sqrt() / 3.0;
        let found =
            peak * bright + background - at_dark + NOISE_IN_PEAK * c.peak_noise * unit(6) * noise_in_means;
        let told_peak = (found * (1.0 + c.peak_error).powf(2.0 * unit(3) - 1.0)).max(dark.sqrt().max(1.0));
        let (shots, mut noise) = (self.key(number, 0xCA5), vec![0f32; values.len()]);
        self.key(number, 0xCA6).fill_normal(0, &mut noise);
        let amplified = unit(19) < c.amplified;
        let mut factors = vec![0f32; if amplified { values.len() } else { 0 }];
        self.key(number, 0xCAC).fill_normal(0, &mut factors);
        let mean = |v: f32| peak * f64::from(v.max(0.0)) + background;
        let means: Vec<f64> = values.iter().map(|v| mean(*v)).collect();
        let mut electrons = vec![0.0; values.len()];
        match amplified {
            true => (0..).zip(&mut electrons).zip(means.iter().zip(&factors)).for_each(
                |((i, electrons), (mean, normal))| *electrons = amplify(*mean, shots, i, f64::from(*normal)),
            ),
            false => poisson::draw_each(&means, shots, 0, &mut electrons),
        }
        for ((n, electrons), mean) in noise.iter_mut().zip(&electrons).zip(&means) {
            *n = (electrons - mean + read_noise * f64::from(*n)) as f32;
        }
        let correlation = self.correlate(&mut noise, |i| means[i] + read_noise * read_noise, size, number);
        let mut measured: Vec<f32> =
            noise.iter().zip(&means).map(|(n, mean)| (mean + f64::from(*n)) as f32).collect();
        self.convert(&mut measured, [background, peak * bright, dark.sqrt()], number);
        // All of a camera's numbers are off alike where its gain is, and those without light by themselves too.
        let gain = if c.noise_error > 0.0 { (c.noise_error * normal(12)).exp() } else { 1.0 };
        let read = if c.noise_error > 0.0 { gain * (c.noise_error * normal(14)).exp() } else { 1.0 };
        measured.iter_mut().for_each(|e| *e *= gain as f32);
        let scale = 2.0 * peak / told_peak;
        let shift = 2.0 * (background - at_dark) / told_peak - 1.0;
        let clean = values.iter().map(|&v| (scale * f64::from(v) + shift) as f32).collect();
        let told = Photons {
            background: gain * at_dark,
            read_noise: read * read_noise,
            peak: gain * told_peak,
            correlation: self.told(&correlation, number),
        };
        Sample { scale: scale as f32, ..Sample::plain(measured, clean, numbers(&told)) }
    }

    /// A correlation with the error of an estimate.
    fn told(&self, correlation: &Correlation, number: u64) -> Correlation {
        let error = self.config.correlation_error;
        if error == 0.0 {
            return *correlation;
        }
        let dice = self.key(number, 0xCA8);
        let mut errors = [0f32; LAGS + 1];
        dice.fill_normal(0, &mut errors);
        let [common, own @ ..] = errors.map(f64::from);
        let unit = |i: u64| f64::from(dice.uniform(i + 16));
        let excess = if unit(0) < MISTAKEN { -MISTAKEN_BY * unit(1).max(1e-6).ln() } else { 0.0 };
        let size = 2.0 * error * unit(2);
        let mut told = lags(correlation);
        let strong = size * told.iter().fold(WEAK, |most: f64, lag| most.max(*lag));
        for (i, told) in told.iter_mut().enumerate() {
            let off = strong * common * COMMON_LAGS[i] + OWN * size * own[i];
            *told = (*told + off + excess * MISTAKEN_LAGS[i] * (1.0 - *told)).clamp(-0.5, 0.95);
        }
        from_lags(told)
    }

    /// What a converter does: clips and rounds, where this image is to be.
    fn convert(&self, measured: &mut [f32], [background, peak, noise]: [f64; 3], number: u64) {
        let (c, dice) = (&self.config, self.key(number, 0xCA9));
        let unit = |i: u64| f64::from(dice.uniform(i));
        if unit(0) < c.clipped {
            let kind = unit(1);
            let low = background + noise * (4.0 * unit(2) - 3.0);
            let high = background + peak * (0.6 + 0.8 * unit(3));
            if kind < 0.7 {
                measured.iter_mut().for_each(|e| *e = e.max(low as f32));
            }
            if kind > 0.4 {
                measured.iter_mut().for_each(|e| *e = e.min(high as f32));
            }
        }
        if unit(4) < c.rounded {
            let step = (noise * unit(5)).max(1e-6) as f32;
            measured.iter_mut().for_each(|e| *e = (*e / step).round() * step);
        }
    }
}

/// What comes out of a chain that amplifies each electron by a random factor, as a photomultiplier's and an EMCCD's does, in
/// units in which the variance is the mean; `normal` is a normal number.
///
/// Factors are about exponential, which doubles the variance: so twice the electrons are drawn, a mean factor of one half is
/// applied, and noise is as large as without amplification but more lopsided: its third moment is 1.5 times the mean.
fn amplify(mean: f64, shots: Key, i: u64, normal: f64) -> f64 {
    if mean > NEARLY_NORMAL {
        // The sum as a whole, by its first three moments (Cornish and Fisher).
        return mean + (mean - 0.125).sqrt() * normal + 0.25 * (normal * normal - 1.0);
    }
    let n = poisson::draw(2.0 * mean, shots, i);
    if n == 0.0 {
        return 0.0;
    }
    // A sum of n exponential numbers (Wilson and Hilferty).
    0.5 * n * (1.0 - 1.0 / (9.0 * n) + normal / (3.0 * n.sqrt())).max(0.0).powi(3)
}

/// What makes the channels of a condition from electrons `e`:
/// `n0 e + n1`, `n3 sqrt(max(e + n2, 0)) + n4`, and the constants from `n5` on. All are 0 for a condition that is dropped.
pub fn numbers(photons: &Photons) -> [f32; NUMBERS] {
    let Photons { background, read_noise, peak, correlation } = *photons;
    let variance = read_noise * read_noise;
    let shift = 0.375 + variance;
    let [low, high] = [background, background + peak].map(|e| (e + shift).max(0.0).sqrt());
    let slope = 2.0 / (high - low);
    let [x, y, diagonal, two] = lags(&correlation);
    [
        2.0 / peak,
        -2.0 * background / peak - 1.0,
        shift,
        slope,
        -slope * low - 1.0,
        peak.log10() / 2.0 - 0.5,
        ((background + variance).max(0.0).sqrt() / peak).clamp(0.0, 2.0),
        x,
        y,
        diagonal,
        two,
        1.0,
    ]
    .map(|x| x as f32)
}

/// The image's scale that [`numbers`] were made of.
///
/// # Errors
/// If they are none: a condition that was dropped has no scale.
pub fn photons(numbers: &[f32; NUMBERS]) -> Result<Photons, ModelError> {
    let [slope, at_zero, shift, .., x, y, diagonal, two, _] = numbers.map(f64::from);
    let peak = 2.0 / slope;
    let background = (-(at_zero + 1.0) / slope).max(0.0);
    let photons = Photons::new(background, (shift - 0.375).max(0.0).sqrt(), peak)?;
    Ok(photons.with_correlation(from_lags([x, y, diagonal, two])))
}

/// A Gaussian along every axis, mirrored at the edges.
fn blur(values: &mut [f32], size: &[usize], sigma: f64) {
    let reach = (4.0 * sigma).ceil() as isize;
    let weights: Vec<f64> = (-reach..=reach).map(|i| (-0.5 * (i as f64 / sigma).powi(2)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let weights: Vec<f32> = weights.iter().map(|w| (w / sum) as f32).collect();
    let mirrored = |p: isize, n: usize| {
        let q = p.rem_euclid(2 * n as isize) as usize;
        if q < n { q } else { 2 * n - 1 - q }
    };
    (0..size.len()).for_each(|axis| filter(values, size, axis, &weights, mirrored));
}

/// A filter along one axis; `inside` says which value stands at a place beyond the edges.
pub(super) fn filter(
    values: &mut [f32],
    size: &[usize],
    axis: usize,
    taps: &[f32],
    inside: impl Fn(isize, usize) -> usize,
) {
    let (n, reach) = (size[axis], (taps.len() / 2) as isize);
    let stride: usize = size[axis + 1..].iter().product();
    let source: Vec<usize> = (-reach..n as isize + reach).map(|p| inside(p, n)).collect();
    let mut line = vec![0f32; n];
    for start in 0..values.len() / n {
        let first = start / stride * stride * n + start % stride;
        line.iter_mut().enumerate().for_each(|(i, v)| *v = values[first + i * stride]);
        for i in 0..n {
            let window = &source[i..i + taps.len()];
            values[first + i * stride] = window.iter().zip(taps).map(|(&s, w)| w * line[s]).sum();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn electrons_have_the_mean_and_variance_of_the_camera() {
        let config = CameraConfig {
            peak: [50.0, 50.0],
            background: Some([3.0, 3.0]),
            read_noise: Some([2.0, 2.0]),
            ..CameraConfig::default()
        };
        let n = 400;
        let ends = Ends { bright: 1.0, dark: 0.0 };
        let sample = Cameras::new(&config, 1).expose(vec![0.5; n * n], &[n, n], ends, 9);
        let count = (n * n) as f64;
        let mean = sample.measured.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
        let variance = sample.measured.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
        // Five standard errors of each estimate: variance 28 + 4.
        assert!((mean - 28.0).abs() < 5.0 * (32.0 / count).sqrt(), "{mean}");
        assert!((variance - 32.0).abs() < 5.0 * (2.0 * 32.0 * 32.0 / count).sqrt() * 1.05, "{variance}");
        assert!(sample.clean.iter().all(|v| v.abs() < 1e-6));
    }

    #[test]
    fn amplified_electrons_have_their_first_three_moments() {
        let [shots, chain] = [1, 2].map(|stream| Key { seed: 7, step: 0, stream });
        let count = 400_000u64;
        let normal = |i: u64| f64::from(chain.normal(i));
        for mean in [0.05, 0.7, 2.5, 12.0, 90.0] {
            let all: Vec<f64> = (0..count).map(|i| amplify(mean, shots, i, normal(i)) - mean).collect();
            let moment = |k: i32| all.iter().map(|x| x.powi(k)).sum::<f64>() / count as f64;
            let n = count as f64;
            // Five standard errors; cumulants of sums of exponential numbers are 2 mean k! / 2^k.
            assert!(moment(1).abs() < 5.0 * (mean / n).sqrt(), "{mean}: {}", moment(1));
            let fourth = 3.0 * mean * mean + 3.0 * mean;
            assert!((moment(2) - mean).abs() < 5.0 * (fourth / n).sqrt(), "{mean}: {}", moment(2));
            let sixth = moment(6);
            assert!(
                (moment(3) - 1.5 * mean).abs() < 5.0 * (sixth / n).sqrt() + 0.01 * mean,
                "{mean}: {}",
                moment(3)
            );
        }
    }

    #[test]
    fn numbers_map_background_and_peak_to_the_ends() {
        let [a, b, shift, slope, offset, ..] = numbers(&Photons::new(3.0, 1.5, 40.0).unwrap()).map(f64::from);
        for (e, x) in [(3.0, -1.0), (43.0, 1.0)] {
            assert!((a * e + b - x).abs() < 1e-5);
            assert!((slope * (e + shift).sqrt() + offset - x).abs() < 1e-5);
        }
    }

    #[test]
    fn numbers_make_the_channels_that_models_are_given() {
        let correlation = from_lags([0.3, 0.2, 0.1, 0.05]);
        let photons = Photons::new(2.0, 1.5, 17.0).unwrap().with_correlation(correlation);
        let n = numbers(&photons);
        let again = super::photons(&n).unwrap();
        for (a, b) in [
            (again.peak, photons.peak),
            (again.background, photons.background),
            (again.read_noise, photons.read_noise),
        ] {
            assert!((a - b).abs() < 1e-5, "{again:?}");
        }
        assert!((again.correlation.at(1, 1) - 0.1).abs() < 1e-6);
        assert!(super::photons(&[0.0; NUMBERS]).is_err());
        let electrons = [-3.0f32, 0.0, 2.0, 9.5, 40.0];
        let mut want = [0.0; 45];
        photons.condition(&electrons, &mut want);
        for (e, want) in electrons.iter().zip(want.chunks(9)) {
            let made = [n[0] * e + n[1], n[3] * (e + n[2]).max(0.0).sqrt() + n[4]];
            let got: Vec<f32> = made.into_iter().chain(n[5..].iter().copied()).collect();
            assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-5), "{got:?} {want:?}");
        }
    }

    #[test]
    fn a_blur_keeps_the_sum_and_its_width() {
        let mut values = vec![0.0; 33 * 33];
        values[16 * 33 + 16] = 1.0;
        blur(&mut values, &[33, 33], 2.0);
        let sum: f32 = values.iter().sum();
        let spread: f32 = values.iter().enumerate().map(|(i, v)| v * (i as f32 % 33.0 - 16.0).powi(2)).sum();
        assert!((sum - 1.0).abs() < 1e-4 && (spread - 4.0).abs() < 0.02, "{sum} {spread}");
    }
}
