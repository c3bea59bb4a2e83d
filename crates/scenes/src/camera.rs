//! The simulated camera: `y = Poisson(peak (h * x) + b) + N(0, s^2)` in electrons.
//!
//! Optionally electrons become counts of a converter, pixels differ in sensitivity, some are hot, black or white, and light
//! has speckle. Every draw is keyed by (seed, index, pixel).

use crate::SceneError;
use clearshot_physics::calibration::Calibration;
use clearshot_physics::noise::{Window, poisson_gaussian, salt_and_pepper, speckle};
use clearshot_physics::{Boundary, Electrons, Map, Operator, Psf};
use clearshot_tensor::noise::Key;

/// The camera; see the module.
#[derive(Clone, Debug)]
pub struct Camera {
    /// Mean electrons of the scene's value 1.
    pub peak: f64,
    /// Mean electrons without light.
    pub background: f64,
    /// Standard deviation of the read noise, in electrons.
    pub read_noise: f64,
    pub psf: Option<Psf>,
    /// The scene beyond its edges, for the PSF.
    pub boundary: Boundary,
    pub converter: Option<Converter>,
    /// The relative spread of the pixels' sensitivities, uniform within plus and minus this.
    pub flat_field: f64,
    /// The share of pixels that are hot.
    pub hot_pixels: f64,
    /// The light of each pixel is multiplied by a normal random number of mean 1 and this standard deviation.
    pub speckle: f64,
    /// The share of pixels that come out black or white, in halves.
    pub salt_and_pepper: f64,
}

/// From electrons to whole counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Converter {
    /// Electrons per count.
    pub gain: f64,
    /// Counts without light.
    pub offset: f64,
    pub bits: u32,
}

/// What a camera saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// In electrons, or in counts if the camera has a converter.
    pub values: Vec<f32>,
    /// The mean of the electrons, background included: the picture without noise.
    pub mean: Vec<f32>,
    /// The sensitivity of each pixel, if they differ.
    pub flat: Option<Vec<f32>>,
    /// The pixels that are hot.
    pub hot: Vec<usize>,
}

const NOISE: u32 = 0xCA00;
const FLAT: u32 = 0xCA01;
const HOT: u32 = 0xCA02;
const HOT_LEVEL: u32 = 0xCA03;
const SPECKLE: u32 = 0xCA04;
const SALT: u32 = 0xCA05;

impl Camera {
    /// A camera for scenes of a peak, with the background and read noise that usually go with it: 1 and 1 electrons at
    /// a peak up to 10, 2 and 1.5 up to 50, 5 and 2 up to 500, 20 and 2 above.
    pub fn for_peak(peak: f64) -> Camera {
        let (background, read_noise) = match peak {
            p if p <= 10.0 => (1.0, 1.0),
            p if p <= 50.0 => (2.0, 1.5),
            p if p <= 500.0 => (5.0, 2.0),
            _ => (20.0, 2.0),
        };
        Camera {
            peak,
            background,
            read_noise,
            psf: None,
            boundary: Boundary::Reflect,
            converter: None,
            flat_field: 0.0,
            hot_pixels: 0.0,
            speckle: 0.0,
            salt_and_pepper: 0.0,
        }
    }

    /// A picture of a scene. `seed` and `index` name the noise.
    ///
    /// # Errors
    /// If a number is out of its range, the scene's values do not fill the shape, or the PSF does not fit.
    pub fn take(&self, scene: &[f32], shape: &[usize], seed: u64, index: u32) -> Result<Picture, SceneError> {
        self.check()?;
        let size = match *shape {
            [y, x] => [1, y, x],
            [z, y, x] => [z, y, x],
            _ => return Err(SceneError::Rank { shape: shape.to_vec() }),
        };
        let key = |stream| Key { seed, step: index, stream };
        let operator = match &self.psf {
            Some(psf) => Operator::blur(shape, psf, self.boundary)?,
            None => Operator::identity(shape)?,
        };
        let blurred = operator.apply(&scene.iter().map(|&v| f64::from(v)).collect::<Vec<_>>())?;
        let flat = (self.flat_field > 0.0).then(|| {
            let at = |i| 1.0 + self.flat_field * (2.0 * f64::from(key(FLAT).uniform(i as u64)) - 1.0);
            (0..blurred.len()).map(at).collect::<Vec<f64>>()
        });
        // FFTs leave rounding below zero where it is dark.
        let mut mean: Vec<f64> = blurred.iter().map(|v| (self.peak * v.max(0.0)) + self.background).collect();
        if let Some(flat) = &flat {
            mean.iter_mut().zip(flat).for_each(|(m, f)| *m *= f);
        }
        let is_hot = |i: &usize| f64::from(key(HOT).uniform(*i as u64)) < self.hot_pixels;
        let hot: Vec<usize> = (0..mean.len()).filter(is_hot).collect();
        let mut lit = mean.clone();
        for &i in &hot {
            lit[i] += self.peak * (1.0 + 4.0 * f64::from(key(HOT_LEVEL).uniform(i as u64)));
        }
        let window = Window::all(size);
        if self.speckle > 0.0 {
            lit = speckle(&lit, self.speckle, &window, key(SPECKLE))?;
            lit.iter_mut().for_each(|v| *v = v.max(0.0));
        }
        let y = poisson_gaussian(Electrons(&lit), &Map::Uniform(self.read_noise), &window, key(NOISE))?;
        let mut values = match &self.converter {
            None => y.0,
            Some(c) => {
                let mut calibration = Calibration::uniform(c.gain, c.offset, self.read_noise)?;
                let full = f64::from((1u32 << c.bits) - 1);
                calibration.saturation = Some(full);
                let counts = calibration.digitise(Electrons(&y.0))?;
                counts.0.into_iter().map(|v| v.clamp(0.0, full)).collect()
            }
        };
        if self.salt_and_pepper > 0.0 {
            let white = match &self.converter {
                Some(c) => f64::from((1u32 << c.bits) - 1),
                None => self.peak + self.background,
            };
            let shares = [0.5 * self.salt_and_pepper; 2];
            values = salt_and_pepper(&values, shares, [0.0, white], &window, key(SALT))?;
        }
        let single = |x: Vec<f64>| x.into_iter().map(|v| v as f32).collect();
        Ok(Picture { values: single(values), mean: single(mean), flat: flat.map(single), hot })
    }

    fn check(&self) -> Result<(), SceneError> {
        let require = |holds: bool, name, got, needed| {
            if holds { Ok(()) } else { Err(SceneError::Parameter { name, got, needed }) }
        };
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let not_negative = |x: f64| x.is_finite() && x >= 0.0;
        require(positive(self.peak), "the peak", self.peak, "a finite number above zero")?;
        let needed = "a finite number not below zero";
        require(not_negative(self.background), "the background", self.background, needed)?;
        require(not_negative(self.read_noise), "the read noise", self.read_noise, needed)?;
        let share = |x: f64| (0.0..1.0).contains(&x);
        require(
            share(self.flat_field),
            "the spread of the flat field",
            self.flat_field,
            "a number from 0 to below 1",
        )?;
        require(
            share(self.hot_pixels),
            "the share of hot pixels",
            self.hot_pixels,
            "a number from 0 to below 1",
        )?;
        require(not_negative(self.speckle), "the speckle", self.speckle, needed)?;
        let salted = (0.0..=1.0).contains(&self.salt_and_pepper);
        require(salted, "the share of salt and pepper", self.salt_and_pepper, "a number from 0 to 1")?;
        if let Some(c) = &self.converter {
            require(positive(c.gain), "the gain of the converter", c.gain, "a finite number above zero")?;
            require(c.offset.is_finite(), "the offset of the converter", c.offset, "a finite number")?;
            require(
                (1..=24).contains(&c.bits),
                "the bits of the converter",
                c.bits.into(),
                "a number from 1 to 24",
            )?;
        }
        Ok(())
    }
}
