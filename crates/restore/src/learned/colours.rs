//! Colour images: the three samples of a pixel are restored together.
//!
//! Structure is mostly the same in all three samples of a pixel, and their noise is independent or nearly so. Three
//! orthonormal combinations contain the same information: brightness, with most of the structure and the least noise
//! relative to it, and two colour differences, with little structure (as in the colour version of BM3D, Dabov et al.
//! 2007). Each is restored like any other image, with a noise estimate of its own, because demosaicing and colour
//! correction make the noise of the samples correlated.
//!
//! A colour difference does not tell how bright a pixel is. If noise grows with brightness, samples are therefore
//! transformed to unit noise first (`physics::anscombe`), and the restored ones back by the exact unbiased inverse.

use super::Error;
use super::field::Scratch;
use super::measured::{Camera, Measured};
use super::restorer::Restored;
use clearshot_physics::anscombe::{self, Inverse};
use clearshot_physics::calibration::blind::{self, Known};
use clearshot_physics::{Adu, Correlation, Electrons};
use rayon::prelude::*;

/// Samples of a pixel, and their combinations.
pub const SAMPLES: usize = 3;

/// The combinations: brightness, red minus blue, and green against both.
const COMBINED: [[f64; SAMPLES]; SAMPLES] = {
    const BY_3: f64 = 0.577_350_269_189_625_8;
    const BY_2: f64 = std::f64::consts::FRAC_1_SQRT_2;
    const BY_6: f64 = 0.408_248_290_463_863;
    [[BY_3, BY_3, BY_3], [BY_2, 0.0, -BY_2], [BY_6, -2.0 * BY_6, BY_6]]
};

/// The side of the square in the middle of an image from which the noise of a combination is estimated.
const SIDE: usize = 1024;
/// The variance of read noise over that of shot noise at the bright end, for noise that does not grow with brightness.
const UNIFORM: f64 = 10.0;

/// Samples that are larger after the transform to unit noise have no noise that 32-bit floats could hold.
const LARGEST: f32 = 1e6;

/// What is known about the noise of the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SampleNoise {
    /// The camera was given.
    Given(Camera),
    /// The camera was estimated, and its noise grows with brightness.
    Growing(Camera),
    /// The noise was not seen to grow with brightness.
    Uniform,
}

/// The combinations of a colour image, as cameras for restorers.
#[derive(Clone, Debug)]
pub struct Colours {
    /// The camera under which samples are transformed to unit noise.
    stabilised: Option<(Camera, Inverse)>,
    /// The camera of each combination.
    pub cameras: [Camera; SAMPLES],
}

impl Colours {
    /// Estimates the noise of the combinations from the middle of an image; `None` if it does not determine them.
    ///
    /// # Errors
    /// If there is not enough memory or disk space.
    pub fn of(
        samples: [&Measured; SAMPLES],
        noise: SampleNoise,
        scratch: &Scratch,
    ) -> Result<Option<Colours>, Error> {
        let stabilised = match noise {
            SampleNoise::Given(camera) | SampleNoise::Growing(camera) => {
                Some((camera, Inverse::new(Electrons(camera.read_noise))?))
            }
            SampleNoise::Uniform => None,
        };
        let mut colours = Colours { stabilised, cameras: [Camera::default(); SAMPLES] };
        let middles = samples.map(|s| s.middle(SIDE, scratch));
        let [red, green, blue] = middles;
        let middles = [red?, green?, blue?];
        let combined = colours.combine(middles.each_ref(), scratch)?;
        let is_lost = |image: &Measured| image.values.iter().any(|v| v.abs() > LARGEST);
        if colours.stabilised.is_some() && combined.iter().any(is_lost) {
            return Ok(None);
        }
        for (camera, image) in colours.cameras.iter_mut().zip(&combined) {
            let found = match noise {
                SampleNoise::Given(given) => unit_noise(image, given.correlation),
                _ => estimated(image),
            };
            match found {
                Some(found) => *camera = found,
                None => return Ok(None),
            }
        }
        Ok(Some(colours))
    }

    /// The combinations of the samples. A pixel is valid if all its samples are.
    ///
    /// # Errors
    /// If there is not enough memory or disk space.
    pub fn combine(
        &self,
        samples: [&Measured; SAMPLES],
        scratch: &Scratch,
    ) -> Result<[Measured; SAMPLES], Error> {
        let [first, ..] = samples;
        let valid = samples.iter().any(|s| s.valid.is_some()).then(|| {
            let is_valid = |i: usize| samples.iter().all(|s| s.valid.as_ref().is_none_or(|v| v[i]));
            (0..first.values.len()).map(is_valid).collect::<Vec<bool>>()
        });
        let one = |weights: &[f64; SAMPLES]| -> Result<Measured, Error> {
            let mut values = scratch.field(first.values.len())?;
            values.par_iter_mut().enumerate().for_each(|(i, v)| {
                let sum = (0..SAMPLES).map(|c| weights[c] * self.transformed(samples[c].values[i]));
                *v = sum.sum::<f64>() as f32;
            });
            Ok(first.derived(values, valid.clone()))
        };
        let [brightness, difference, green] = &COMBINED;
        Ok([one(brightness)?, one(difference)?, one(green)?])
    }

    /// The samples from restored combinations, with the standard deviation of each if those of all combinations are
    /// known. Saturated samples are not below what was measured.
    pub fn separate(
        &self,
        combined: [Restored; SAMPLES],
        samples: [&Measured; SAMPLES],
    ) -> [Restored; SAMPLES] {
        let [mut first, mut second, mut third] = combined;
        let images = [&mut first.image, &mut second.image, &mut third.image];
        let deviations = [first.deviation.as_mut(), second.deviation.as_mut(), third.deviation.as_mut()];
        let has_deviation = deviations.iter().all(Option::is_some);
        let [a, b, c] = images;
        let pixels = a.par_iter_mut().zip(b.par_iter_mut()).zip(c.par_iter_mut());
        if let (true, [Some(d), Some(e), Some(f)]) = (has_deviation, deviations) {
            let deviations = d.par_iter_mut().zip(e.par_iter_mut()).zip(f.par_iter_mut());
            pixels.zip(deviations).for_each(|(((a, b), c), ((d, e), f))| {
                let values = across(|k| f64::from([*a, *b, *c][k]));
                let variances = [*d, *e, *f].map(|v| f64::from(v).powi(2));
                let spread: [f64; SAMPLES] = std::array::from_fn(|s| {
                    let variance: f64 = (0..SAMPLES).map(|k| COMBINED[k][s].powi(2) * variances[k]).sum();
                    variance.sqrt() * self.slope(values[s])
                });
                [*d, *e, *f] = spread.map(|v| v as f32);
                [*a, *b, *c] = values.map(|v| self.restored(v));
            });
        } else {
            pixels.for_each(|((a, b), c)| {
                let values = across(|k| f64::from([*a, *b, *c][k]));
                [*a, *b, *c] = values.map(|v| self.restored(v));
            });
        }
        let mut separate = [first, second, third];
        for (made, measured) in separate.iter_mut().zip(samples) {
            measured.raise(&mut made.image);
        }
        separate
    }

    /// A measured sample with unit noise, or unchanged if its noise is uniform.
    fn transformed(&self, counts: f32) -> f64 {
        match &self.stabilised {
            Some((camera, _)) => {
                let electrons = (f64::from(counts) - camera.offset) * camera.gain;
                anscombe::forward(electrons, camera.read_noise.powi(2))
            }
            None => counts.into(),
        }
    }

    /// The sample of which `value` is the restored transform.
    fn restored(&self, value: f64) -> f32 {
        match &self.stabilised {
            Some((camera, inverse)) => (inverse.mean(value) / camera.gain + camera.offset) as f32,
            None => value as f32,
        }
    }

    /// The derivative of a sample by its transform.
    fn slope(&self, value: f64) -> f64 {
        match &self.stabilised {
            Some((camera, _)) => 0.5 * value.max(0.0) / camera.gain,
            None => 1.0,
        }
    }
}

/// The samples of a pixel with these combinations.
fn across(combined: impl Fn(usize) -> f64) -> [f64; SAMPLES] {
    std::array::from_fn(|s| (0..SAMPLES).map(|k| COMBINED[k][s] * combined(k)).sum())
}

/// The camera estimated from a combination; `None` if that is impossible.
fn estimated(image: &Measured) -> Option<Camera> {
    let shape = [image.size[image.size.len() - 2], image.size[image.size.len() - 1]];
    let measured = |(i, &v): (usize, &f32)| match &image.valid {
        Some(valid) if !valid[i] => f32::NAN,
        _ => v,
    };
    let values: Vec<f32> = image.values.iter().enumerate().map(measured).collect();
    let fit = blind::estimate(&[Adu(&values[..])], shape, &Known::default()).ok()?;
    let camera = crate::estimate::as_camera(&fit);
    camera.check().ok().map(|()| camera)
}

/// A camera whose noise is 1 at all values of an image.
fn unit_noise(image: &Measured, correlation: Correlation) -> Option<Camera> {
    let (low, high) = image.values.iter().fold((f32::MAX, f32::MIN), |(l, h), &v| (l.min(v), h.max(v)));
    let gain = UNIFORM * f64::from(high - low).max(1.0);
    let camera = Camera { gain, offset: low.into(), read_noise: gain, background: None, correlation };
    camera.check().ok().map(|()| camera)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learned::Values;
    use clearshot_tensor::noise::Key;

    const SIZE: [usize; 2] = [96, 128];
    const PIXELS: usize = SIZE[0] * SIZE[1];

    fn scratch() -> Scratch {
        Scratch::new(usize::MAX, None)
    }

    fn measured(values: &[f32]) -> Measured {
        Measured::read(&Values { values, size: &SIZE, channels: 1 }, &scratch()).unwrap()
    }

    fn normal(stream: u32) -> Vec<f32> {
        let mut noise = vec![0.0; PIXELS];
        Key { seed: 9, step: 0, stream }.fill_normal(0, &mut noise);
        noise
    }

    /// Red, green and blue of different levels, in counts of a camera.
    fn samples(camera: &Camera, noisy: bool) -> [Vec<f32>; SAMPLES] {
        std::array::from_fn(|c| {
            let noise = normal(c as u32);
            let pixel = |i: usize| {
                let electrons = (40 + 60 * c + i % SIZE[1]) as f32;
                let deviation = (electrons + camera.read_noise.powi(2) as f32).sqrt();
                camera.counts(electrons + if noisy { noise[i] * deviation } else { 0.0 })
            };
            (0..PIXELS).map(pixel).collect()
        })
    }

    fn restored(image: &Measured, deviation: Option<f32>) -> Restored {
        let field = |values: &dyn Fn(usize) -> f32| {
            let mut field = scratch().field(PIXELS).unwrap();
            field.iter_mut().enumerate().for_each(|(i, v)| *v = values(i));
            field
        };
        Restored {
            image: field(&|i| image.values[i]),
            deviation: deviation.map(|d| field(&|_| d)),
            chi2: None,
            mean_chi2: None,
            samples: vec![],
            photons: None,
            guided: vec![],
        }
    }

    const CAMERA: Camera = Camera {
        gain: 0.5,
        offset: 100.0,
        read_noise: 2.0,
        background: None,
        correlation: Correlation::WHITE,
    };

    #[test]
    fn combinations_are_orthonormal() {
        for (i, a) in COMBINED.iter().enumerate() {
            for (j, b) in COMBINED.iter().enumerate() {
                let product: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                assert!((product - f64::from(u8::from(i == j))).abs() < 1e-14, "{i} {j}: {product}");
            }
        }
    }

    #[test]
    fn noise_of_combinations_is_1_and_independent() {
        let noisy = samples(&CAMERA, true).map(|s| measured(&s));
        let clean = samples(&CAMERA, false).map(|s| measured(&s));
        let given = SampleNoise::Given(CAMERA);
        let colours = Colours::of(noisy.each_ref(), given, &scratch()).unwrap().unwrap();
        let [a, b] = [noisy, clean].map(|s| colours.combine(s.each_ref(), &scratch()).unwrap());
        let noise: Vec<Vec<f64>> = a
            .iter()
            .zip(&b)
            .map(|(a, b)| (0..PIXELS).map(|i| f64::from(a.values[i] - b.values[i])).collect())
            .collect();
        for j in 0..SAMPLES {
            for k in 0..=j {
                let mean = noise[j].iter().zip(&noise[k]).map(|(a, b)| a * b).sum::<f64>() / PIXELS as f64;
                let expected = f64::from(u8::from(j == k));
                // Five standard errors, and what the transform leaves.
                assert!(
                    (mean - expected).abs() < 5.0 * (2.0 / PIXELS as f64).sqrt() + 0.01,
                    "{j} {k}: {mean}"
                );
            }
            // The camera of a combination has the same noise, at every value.
            for value in [a[j].values[0], a[j].values[PIXELS - 1]] {
                let deviation = colours.cameras[j].deviation(value.into());
                assert!((deviation - 1.0).abs() < 0.06, "{j}: {deviation}");
            }
        }
    }

    #[test]
    fn samples_come_back_from_their_combinations() {
        let samples = samples(&CAMERA, false);
        let images = samples.each_ref().map(|s| measured(s));
        for (noise, tolerance) in [(SampleNoise::Uniform, 1e-4), (SampleNoise::Growing(CAMERA), 1.0)] {
            let stabilised = match noise {
                SampleNoise::Uniform => None,
                _ => Some((CAMERA, Inverse::new(Electrons(CAMERA.read_noise)).unwrap())),
            };
            let colours = Colours { stabilised, cameras: [CAMERA; SAMPLES] };
            let combined = colours.combine(images.each_ref(), &scratch()).unwrap();
            let restored = combined.each_ref().map(|c| restored(c, Some(1.0)));
            let separate = colours.separate(restored, images.each_ref());
            for (c, made) in separate.iter().enumerate() {
                let worst = (0..PIXELS).map(|i| (made.image[i] - samples[c][i]).abs()).fold(0.0, f32::max);
                // The transform's expectation is that of noisy values: of a noiseless one half a count is off.
                assert!(worst < tolerance, "{noise:?}: {worst}");
                let deviation = made.deviation.as_ref().unwrap()[7];
                let expected = match noise {
                    SampleNoise::Uniform => 1.0,
                    _ => CAMERA.deviation(samples[c][7].into()) as f32,
                };
                assert!((deviation / expected - 1.0).abs() < 0.02, "{deviation} {expected}");
            }
        }
    }

    #[test]
    fn a_pixel_is_valid_where_all_its_samples_are() {
        let mut samples = samples(&CAMERA, false);
        samples[1][5] = f32::NAN;
        let images = samples.each_ref().map(|s| measured(s));
        let colours = Colours { stabilised: None, cameras: [CAMERA; SAMPLES] };
        for combined in colours.combine(images.each_ref(), &scratch()).unwrap() {
            let valid = combined.valid.unwrap();
            assert!(!valid[5] && valid[4] && valid[6]);
        }
    }

    /// Otherwise values would leave the range that restorers accept.
    #[test]
    fn noise_below_rounding_is_not_stabilised() {
        let samples = samples(&CAMERA, true).map(|s| measured(&s));
        let quiet = SampleNoise::Growing(Camera { gain: 1e28, ..CAMERA });
        assert!(Colours::of(samples.each_ref(), quiet, &scratch()).unwrap().is_none());
    }

    #[test]
    fn an_image_without_noise_gives_no_estimate() {
        let flat = measured(&vec![7.0; PIXELS]);
        let colours = Colours::of([&flat, &flat, &flat], SampleNoise::Uniform, &scratch()).unwrap();
        assert!(colours.is_none());
    }
}
