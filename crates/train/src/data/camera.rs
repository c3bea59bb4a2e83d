//! Clean images as cameras see them, in the numbers that networks are given.
//!
//! Electrons are drawn exactly, voxel by voxel, as everywhere in the project. What a network is given beside them
//! follows from three numbers of an image: its peak p above the background, its background b and its read noise s.

use super::{NUMBERS, Sample};
use crate::config::CameraConfig;
use clearshot_model::{ModelError, Photons};
use clearshot_physics::poisson;
use clearshot_scenes::Camera;
use clearshot_tensor::noise::Key;

/// Of what is measured and what is clean.
pub const CHANNELS: [usize; 2] = [1, 1];

/// Standard deviations that the 99.8th percentile of noise lies above its mean.
const NOISE_IN_PEAK: f64 = 3.0;

/// Cameras by the number of the image they look at.
pub struct Cameras {
    config: CameraConfig,
    seed: u64,
}

impl Cameras {
    pub fn new(config: &CameraConfig, seed: u64) -> Cameras {
        Cameras { config: config.clone(), seed }
    }

    fn key(&self, number: u64, stream: u32) -> Key {
        Key { seed: self.seed, step: number as u32, stream: stream | ((number >> 32) as u32) << 12 }
    }

    /// What a camera makes of an image with values in [0, 1], cut from one whose bright end is `bright`; the domain
    /// is left 0.
    ///
    /// A network will be told the peak that is found in a noisy image, which is that of the bright end and more,
    /// by as much as noise moves the largest of many means over nine pixels.
    pub fn expose(&self, mut values: Vec<f32>, size: &[usize], bright: f64, number: u64) -> Sample {
        let c = &self.config;
        let dice = self.key(number, 0xCA4);
        let unit = |i: u64| f64::from(dice.uniform(i));
        let between = |i: u64, [low, high]: [f64; 2]| {
            if low <= 0.0 { low } else { low * (high / low).powf(unit(i)) }
        };
        let around = |i: u64, usual: f64| usual * c.spread.powf(2.0 * unit(i) - 1.0);
        let peak = between(0, c.peak);
        let usual = Camera::for_peak(peak);
        let background = c.background.map_or_else(|| around(1, usual.background), |r| between(1, r));
        let read_noise = c.read_noise.map_or_else(|| around(2, usual.read_noise), |r| between(2, r));
        let mut bright = bright;
        if unit(4) < c.blur {
            let before = values.iter().fold(0f32, |a, b| a.max(*b));
            blur(&mut values, size, between(5, c.blur_sigma));
            let after = values.iter().fold(0f32, |a, b| a.max(*b));
            if before > 0.05 {
                bright *= f64::from((after / before).max(0.05));
            }
        }
        let dark = background + read_noise * read_noise;
        let noise_in_means = (dark + peak * bright).sqrt() / 3.0;
        let found = peak * bright + NOISE_IN_PEAK * c.peak_noise * unit(6) * noise_in_means;
        let told = (found * (1.0 + c.peak_error).powf(2.0 * unit(3) - 1.0)).max(dark.sqrt().max(1.0));
        let (shots, mut noise) = (self.key(number, 0xCA5), vec![0f32; values.len()]);
        self.key(number, 0xCA6).fill_normal(0, &mut noise);
        let electrons = |(i, (&v, &n)): (usize, (&f32, &f32))| {
            let mean = peak * f64::from(v.max(0.0)) + background;
            (poisson::draw(mean, shots, i as u64) + read_noise * f64::from(n)) as f32
        };
        let measured = values.iter().zip(&noise).enumerate().map(electrons).collect();
        let scale = (2.0 * peak / told) as f32;
        let clean = values.iter().map(|v| scale * v - 1.0).collect();
        Sample {
            measured,
            clean,
            numbers: numbers(told, background, read_noise),
            scale,
            domain: 0,
            valid: None,
            weight: 1.0,
        }
    }
}

/// What makes the channels of a condition from electrons `e`:
/// `n0 e + n1`, `n3 sqrt(max(e + n2, 0)) + n4`, and the constants `n5`, `n6` and `n7`. All are 0 for a condition that is dropped.
pub fn numbers(peak: f64, background: f64, read_noise: f64) -> [f32; NUMBERS] {
    let variance = read_noise * read_noise;
    let shift = 0.375 + variance;
    let [low, high] = [background, background + peak].map(|e| (e + shift).max(0.0).sqrt());
    let slope = 2.0 / (high - low);
    [
        2.0 / peak,
        -2.0 * background / peak - 1.0,
        shift,
        slope,
        -slope * low - 1.0,
        peak.log10() / 2.0 - 0.5,
        ((background + variance).max(0.0).sqrt() / peak).clamp(0.0, 2.0),
        1.0,
    ]
    .map(|x| x as f32)
}

/// The image's scale that [`numbers`] were made of.
///
/// # Errors
/// If they are none: a condition that was dropped has no scale.
pub fn photons(numbers: &[f32; NUMBERS]) -> Result<Photons, ModelError> {
    let [slope, at_zero, shift, ..] = numbers.map(f64::from);
    let peak = 2.0 / slope;
    let background = (-(at_zero + 1.0) / slope).max(0.0);
    Photons::new(background, (shift - 0.375).max(0.0).sqrt(), peak)
}

/// A Gaussian along every axis, mirrored at the edges.
fn blur(values: &mut [f32], size: &[usize], sigma: f64) {
    let reach = (4.0 * sigma).ceil() as isize;
    let weights: Vec<f64> = (-reach..=reach).map(|i| (-0.5 * (i as f64 / sigma).powi(2)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let weights: Vec<f32> = weights.iter().map(|w| (w / sum) as f32).collect();
    for axis in 0..size.len() {
        let n = size[axis];
        let stride: usize = size[axis + 1..].iter().product();
        let source: Vec<usize> = (-reach..n as isize + reach)
            .map(|p| {
                let q = p.rem_euclid(2 * n as isize) as usize;
                if q < n { q } else { 2 * n - 1 - q }
            })
            .collect();
        let mut line = vec![0f32; n];
        for start in 0..values.len() / n {
            let first = start / stride * stride * n + start % stride;
            line.iter_mut().enumerate().for_each(|(i, v)| *v = values[first + i * stride]);
            for i in 0..n {
                let window = &source[i..i + weights.len()];
                values[first + i * stride] = window.iter().zip(&weights).map(|(&s, w)| w * line[s]).sum();
            }
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
        let sample = Cameras::new(&config, 1).expose(vec![0.5; n * n], &[n, n], 1.0, 9);
        let count = (n * n) as f64;
        let mean = sample.measured.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
        let variance = sample.measured.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
        // Five standard errors of each estimate: variance 28 + 4.
        assert!((mean - 28.0).abs() < 5.0 * (32.0 / count).sqrt(), "{mean}");
        assert!((variance - 32.0).abs() < 5.0 * (2.0 * 32.0 * 32.0 / count).sqrt() * 1.05, "{variance}");
        assert!(sample.clean.iter().all(|v| v.abs() < 1e-6));
    }

    #[test]
    fn numbers_map_background_and_peak_to_the_ends() {
        let [a, b, shift, slope, offset, ..] = numbers(40.0, 3.0, 1.5).map(f64::from);
        for (e, x) in [(3.0, -1.0), (43.0, 1.0)] {
            assert!((a * e + b - x).abs() < 1e-5);
            assert!((slope * (e + shift).sqrt() + offset - x).abs() < 1e-5);
        }
    }

    #[test]
    fn numbers_make_the_channels_that_models_are_given() {
        let photons = Photons::new(2.0, 1.5, 17.0).unwrap();
        let n = numbers(17.0, 2.0, 1.5);
        let again = super::photons(&n).unwrap();
        for (a, b) in [
            (again.peak, photons.peak),
            (again.background, photons.background),
            (again.read_noise, photons.read_noise),
        ] {
            assert!((a - b).abs() < 1e-5, "{again:?}");
        }
        assert!(super::photons(&[0.0; NUMBERS]).is_err());
        let electrons = [-3.0f32, 0.0, 2.0, 9.5, 40.0];
        let mut want = [0.0; 25];
        photons.condition(&electrons, &mut want);
        for (e, want) in electrons.iter().zip(want.chunks(5)) {
            let got = [n[0] * e + n[1], n[3] * (e + n[2]).max(0.0).sqrt() + n[4], n[5], n[6], n[7]];
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
