//! Samples for super-resolution: generated scenes on their own grid, and as a camera image on a grid that is several times
//! coarser.
//!
//! Both are scaled between the ends of the whole coarse image, including noise, as in prediction ([`OwnRange`]), so scenes
//! are averaged down and exposed as a whole before crops are cut. In the measurement every pixel is repeated, so that it
//! has the size of the target; crops start at whole pixels of the coarse grid.

use super::camera::Cameras;
use super::scenes::{Place, Pool, cut};
use super::segments::AS_THEY_ARE;
use super::{NUMBERS, Sample, Source, shrunk};
use crate::config::DataConfig;
use crate::error::{Result, setting};
use clearshot_model::signal::repeated;
use clearshot_model::{OwnRange, Signal};
use std::sync::Arc;

/// See the module.
pub struct Finer {
    pool: Arc<Pool>,
    cameras: Cameras,
    augment: bool,
    factor: usize,
    seed: u64,
    size: Vec<usize>,
}

impl Finer {
    /// `size` is of crops on the fine grid.
    ///
    /// # Errors
    /// If a crop is larger than a scene, or either is not of whole coarse pixels.
    pub fn new(
        pool: Arc<Pool>,
        config: &DataConfig,
        factor: usize,
        seed: u64,
        size: &[usize],
    ) -> Result<Finer> {
        pool.check_crops(size)?;
        let of = |key, n: usize| match n.is_multiple_of(factor) {
            true => Ok(()),
            false => setting(key, n, format!("a multiple of task.enlarge={factor}")),
        };
        size.iter().try_for_each(|n| of("trainer.crop", *n))?;
        config.sizes.iter().try_for_each(|n| of("data.sizes", *n))?;
        let cameras = Cameras::new(&config.camera, seed);
        Ok(Finer { pool, cameras, augment: config.augment, factor, seed, size: size.to_vec() })
    }
}

impl Source for Finer {
    fn sample(&self, number: u64, domain: Option<usize>) -> Result<Sample> {
        let Place { kind, scene, mut origin, symmetry } =
            self.pool.place(self.seed, number, domain, &self.size, self.augment)?;
        origin.iter_mut().for_each(|o| *o -= *o % self.factor);
        let whole = &scene.shape;
        let small: Vec<usize> = whole.iter().map(|n| n / self.factor).collect();
        let coarse = shrunk(scene.values.clone(), whole, &small);
        let mean = |values: &[f32]| values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
        let light = mean(&coarse);
        let exposed = self.cameras.expose(coarse, &small, scene.ends, number);
        // A scene's values are electrons by a line, whose slope the camera says and whose place the means do: blur leaves them.
        let [slope, at_zero] = [exposed.numbers[0], exposed.numbers[1]].map(f64::from);
        let gain = f64::from(exposed.scale) / slope;
        let offset = (mean(&exposed.clean) - at_zero) / slope - gain * light;
        let mut seen = repeated(&exposed.measured, &small, 1, self.factor);
        let range = OwnRange::of(&seen, whole, 1);
        range.apply(&mut seen);
        let mut clean: Vec<f32> =
            scene.values.iter().map(|v| (gain * f64::from(*v) + offset) as f32).collect();
        range.apply(&mut clean);
        let [.., y, x] = self.size[..] else { unreachable!("crops have Y and X") };
        let crop = |values: &[f32]| {
            let values = cut(values, whole, &origin, &self.size);
            symmetry.apply(&values, values.len() / (y * x), y, x, 1)
        };
        let mut numbers = [0.0; NUMBERS];
        numbers[NUMBERS - 1] = 1.0;
        let mut ends = [offset, gain + offset].map(|v| v as f32);
        range.apply(&mut ends);
        let sample = Sample::plain(crop(&seen), crop(&clean), numbers);
        Ok(Sample { domain: kind, scale: ends[1] - ends[0], ..sample })
    }

    fn domains(&self) -> Vec<String> {
        self.pool.names()
    }

    fn channels(&self) -> [usize; 2] {
        [1, 1]
    }

    fn signal(&self) -> Signal {
        AS_THEY_ARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measurement_is_the_target_averaged_down_with_noise() {
        let scenes = [("filaments".to_string(), 1.0)].into();
        let mut config = DataConfig { scenes, sizes: vec![96], ..DataConfig::default() };
        config.camera.peak = [1e5, 1e5];
        let source = |size: &[usize]| {
            let pool = Arc::new(Pool::new(&config, 3, 4, 0.0).unwrap());
            Finer::new(pool, &config, 4, 5, size).unwrap()
        };
        let (a, b) = (source(&[48, 32]), source(&[48, 32]));
        for number in [0u64, 1, 2, 77] {
            let sample = a.sample(number, None).unwrap();
            assert_eq!(sample, b.sample(number, None).unwrap());
            let means = shrunk(sample.clean.clone(), &[48, 32], &[12, 8]);
            let seen = shrunk(sample.measured.clone(), &[48, 32], &[12, 8]);
            let blocks = repeated(&seen, &[12, 8], 1, 4);
            assert!(
                blocks.iter().zip(&sample.measured).all(|(a, b)| (a - b).abs() < 1e-4),
                "blocks of one value"
            );
            let off = means.iter().zip(&seen).fold(0.0, |most: f32, (a, b)| most.max((a - b).abs()));
            assert!(off < 0.1, "{off} between the means of the target and what was measured");
        }
        let pool = Arc::new(Pool::new(&config, 3, 4, 0.0).unwrap());
        assert!(Finer::new(pool, &config, 5, 5, &[48, 48]).is_err());
    }
}
