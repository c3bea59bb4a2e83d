//! Simulated scanners with a scene as a section of a body: CT, by photon counts behind it and filtered backprojection, and
//! MR, by noisy samples of its Fourier transform.
//!
//! The result is an image in the unit of the scene, so that it can be compared with the scene. Noise is added in the raw
//! data, the sinogram or k-space, and reaches the image through the reconstruction: as correlated streaks in CT, and as
//! Rician noise of magnitudes in MR. Every draw is keyed by (seed, index, sample).

use crate::SceneError;
use clearshot_physics::operator::{Complex, KSpace, Radon, random_rows};
use clearshot_physics::poisson;
use clearshot_physics::tomography::{Filter, FilteredBackprojection, in_circle};
use clearshot_tensor::noise::Key;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scanner {
    Ct(Ct),
    Mr(Mr),
}

/// A CT scanner with parallel beams and a detector as wide as the section: it sees the circle that fits into it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ct {
    /// Mean photons of a ray that meets nothing.
    pub photons: f64,
    /// Standard deviation of the electronic noise, in photons.
    pub electronic_noise: f64,
    /// Angles, evenly over half a turn.
    pub views: usize,
    /// The line integral across a whole section of value 1: 4 leaves 2 % of the light.
    pub opacity: f64,
}

/// An MR scanner that reads k-space row by row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mr {
    /// Standard deviation of the noise of real and imaginary parts, where the scene's brightest value is 1.
    pub noise: f64,
    /// Of so many rows of k-space one is read; 1 for all.
    pub acceleration: f64,
    /// The share of rows in the middle of k-space that are always read.
    pub centre: f64,
}

impl Default for Ct {
    fn default() -> Ct {
        Ct { photons: 2e4, electronic_noise: 5.0, views: 180, opacity: 4.0 }
    }
}

impl Default for Mr {
    fn default() -> Mr {
        Mr { noise: 0.06, acceleration: 1.0, centre: 0.08 }
    }
}

const PHOTONS: u32 = 0xC700;
const ELECTRONIC: u32 = 0xC701;
const ROWS: u32 = 0xC702;
const SAMPLES: u32 = 0xC703;

impl Scanner {
    /// Sets what the scanner does not see of a square section to zero: for CT what lies outside of the circle that rays of all angles go through.
    ///
    /// # Errors
    /// If the section is not a square.
    pub fn cut<T: Default>(&self, section: &mut [T], shape: &[usize]) -> Result<(), SceneError> {
        let side = side(section.len(), shape)?;
        if let Scanner::Ct(_) = self {
            let outside = |i: &usize| !in_circle(side, i / side, i % side);
            (0..section.len()).filter(outside).for_each(|i| section[i] = T::default());
        }
        Ok(())
    }

    /// The image of what the scanner sees of a square scene, which is the truth for it ([`Scanner::cut`]). `seed` and `index` name the noise.
    ///
    /// # Errors
    /// If a number is out of its range, or the scene is not a square.
    pub fn scan(
        &self,
        scene: &[f32],
        shape: &[usize],
        seed: u64,
        index: u32,
    ) -> Result<Vec<f32>, SceneError> {
        let side = side(scene.len(), shape)?;
        let key = |stream| Key { seed, step: index, stream };
        let mut values: Vec<f64> = scene.iter().map(|&v| f64::from(v)).collect();
        self.cut(&mut values, shape)?;
        let image = match self {
            Scanner::Ct(ct) => ct.image(&values, side, key)?,
            Scanner::Mr(mr) => mr.image(&values, side, key)?,
        };
        Ok(image.into_iter().map(|v| v as f32).collect())
    }
}

/// The side of a square section.
fn side(pixels: usize, shape: &[usize]) -> Result<usize, SceneError> {
    match *shape {
        [y, x] if y == x && pixels == y * x => Ok(y),
        _ => Err(SceneError::Section { shape: shape.to_vec() }),
    }
}

fn require(holds: bool, name: &'static str, got: f64, needed: &'static str) -> Result<(), SceneError> {
    if holds { Ok(()) } else { Err(SceneError::Parameter { name, got, needed }) }
}

const NOT_NEGATIVE: &str = "a finite number not below zero";

impl Ct {
    fn image(&self, scene: &[f64], side: usize, key: impl Fn(u32) -> Key) -> Result<Vec<f64>, SceneError> {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        require(positive(self.photons), "the number of photons", self.photons, "a finite number above zero")?;
        require(positive(self.opacity), "the opacity", self.opacity, "a finite number above zero")?;
        let noise = self.electronic_noise;
        require(noise.is_finite() && noise >= 0.0, "the electronic noise", noise, NOT_NEGATIVE)?;
        let radon = Radon::over_half_a_turn(side, self.views)?;
        let of_pixel = self.opacity / side as f64;
        let means: Vec<f64> =
            radon.apply(scene)?.iter().map(|sum| self.photons * libm::exp(-of_pixel * sum)).collect();
        let mut counts = vec![0.0; means.len()];
        poisson::draw_each(&means, key(PHOTONS), 0, &mut counts);
        let mut electronic = vec![0f32; means.len()];
        key(ELECTRONIC).fill_normal(0, &mut electronic);
        // What is counted is at least half a photon, so that there is a logarithm.
        let sinogram: Vec<f64> = counts
            .iter()
            .zip(&electronic)
            .map(|(count, n)| (count + noise * f64::from(*n)).max(0.5))
            .map(|count| -libm::log(count / self.photons) / of_pixel)
            .collect();
        let centre = (side / 2) as f64;
        let back = FilteredBackprojection::new(side, radon.angles(), side, centre, Filter::Ramp)?;
        Ok(back.slice(&sinogram)?)
    }
}

impl Mr {
    fn image(&self, scene: &[f64], side: usize, key: impl Fn(u32) -> Key) -> Result<Vec<f64>, SceneError> {
        require(
            self.noise.is_finite() && self.noise >= 0.0,
            "the noise of an MR scanner",
            self.noise,
            NOT_NEGATIVE,
        )?;
        let faster = self.acceleration;
        require(
            faster.is_finite() && faster >= 1.0,
            "the acceleration",
            faster,
            "a finite number not below 1",
        )?;
        require(
            (0.0..=1.0).contains(&self.centre),
            "the share of the centre",
            self.centre,
            "a number from 0 to 1",
        )?;
        let rows = random_rows(side, self.acceleration, self.centre, key(ROWS));
        let scanner = KSpace::new([side; 2], &rows)?;
        let field: Vec<Complex<f64>> = scene.iter().map(|&v| Complex::new(v, 0.0)).collect();
        let mut samples = scanner.apply(&field)?;
        let mut noise = vec![0f32; 2 * samples.len()];
        key(SAMPLES).fill_normal(0, &mut noise);
        for (sample, noise) in samples.iter_mut().zip(noise.chunks_exact(2)) {
            sample.re += self.noise * f64::from(noise[0]);
            sample.im += self.noise * f64::from(noise[1]);
        }
        Ok(scanner.adjoint(&samples)?.iter().map(|v| v.norm()).collect())
    }
}
