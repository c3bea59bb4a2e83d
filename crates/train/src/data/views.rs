//! Samples for training without labels: images scaled between their own dark and bright end ([`OwnRange`]), as in
//! segmentation, so that a pretrained encoder gets the same kind of input later.
//!
//! The target is the image itself, or its partner: the scene without noise for generated scenes, the target for pairs of
//! files, each scaled by its own range.

use super::camera::Cameras;
use super::scenes::{Place, Pool, cut};
use super::segments::{AS_THEY_ARE, sample};
use super::{Sample, Source, shrunk};
use crate::config::DataConfig;
use crate::error::Result;
use clearshot_image::dataset::{Crop, Dataset, Part};
use clearshot_model::{OwnRange, Signal};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Crops of generated scenes.
pub struct Views {
    pool: Arc<Pool>,
    cameras: Cameras,
    augment: bool,
    /// Whether the scene without noise is the target, and not what the camera saw.
    paired: bool,
    seed: u64,
    cut: Vec<usize>,
    size: Vec<usize>,
}

impl Views {
    /// # Errors
    /// If a crop is larger than a scene.
    pub fn new(
        pool: Arc<Pool>,
        config: &DataConfig,
        paired: bool,
        seed: u64,
        cut: &[usize],
        size: &[usize],
    ) -> Result<Views> {
        pool.check_crops(cut)?;
        let cameras = Cameras::new(&config.camera, seed);
        let (augment, cut, size) = (config.augment, cut.to_vec(), size.to_vec());
        Ok(Views { pool, cameras, augment, paired, seed, cut, size })
    }
}

impl Source for Views {
    fn sample(&self, number: u64, domain: Option<usize>) -> Result<Sample> {
        let Place { kind, scene, origin, symmetry } =
            self.pool.place(self.seed, number, domain, &self.cut, self.augment)?;
        let [.., y, x] = self.cut[..] else { unreachable!("crops have Y and X") };
        let crop = |mut whole: Vec<f32>| {
            OwnRange::of(&whole, &scene.shape, 1).apply(&mut whole);
            let values = cut(&whole, &scene.shape, &origin, &self.cut);
            let values = symmetry.apply(&values, values.len() / (y * x), y, x, 1);
            shrunk(values, &self.cut, &self.size)
        };
        let seen = self.cameras.expose(scene.values.clone(), &scene.shape, scene.ends, number).measured;
        let seen = crop(seen);
        let target = if self.paired { crop(scene.values.clone()) } else { seen.clone() };
        Ok(Sample { domain: kind, ..sample(seen, target) })
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

/// A file, whether its input or its target, and where an image begins in it.
type Frame = (usize, bool, Vec<usize>);

/// The ends of the images of files, each found when its first crop is cut.
#[derive(Default)]
pub struct OwnRanges {
    found: Mutex<HashMap<Frame, Arc<OnceLock<OwnRange>>>>,
}

impl OwnRanges {
    /// The network's numbers of a crop's values.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn seen(&self, dataset: &Dataset, crop: &Crop, part: Part, values: &[f32]) -> Result<Vec<f32>> {
        let origin = dataset.frame_origin(crop.entry, &crop.origin)?;
        let is_target = matches!(part, Part::Target);
        let cell = {
            let mut found = self.found.lock().unwrap_or_else(|p| p.into_inner());
            Arc::clone(found.entry((crop.entry, is_target, origin.clone())).or_default())
        };
        if cell.get().is_none() {
            let frame = dataset.frame(crop.entry, &origin, part)?;
            cell.get_or_init(|| OwnRange::of(&frame.values, &frame.size, frame.channels));
        }
        let mut values = values.to_vec();
        cell.get().into_iter().for_each(|range| range.apply(&mut values));
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn correlation(a: &[f32], b: &[f32]) -> f64 {
        let mean = |v: &[f32]| v.iter().map(|x| f64::from(*x)).sum::<f64>() / v.len() as f64;
        let (ma, mb) = (mean(a), mean(b));
        let product = |x: &[f32], mx: f64, y: &[f32], my: f64| -> f64 {
            x.iter().zip(y).map(|(x, y)| (f64::from(*x) - mx) * (f64::from(*y) - my)).sum()
        };
        product(a, ma, b, mb) / (product(a, ma, a, ma) * product(b, mb, b, mb)).sqrt()
    }

    #[test]
    fn samples_depend_on_their_number_alone_and_partners_are_without_noise() {
        let scenes = [("nuclei".to_string(), 1.0)].into();
        let mut config = DataConfig { scenes, sizes: vec![64], ..DataConfig::default() };
        config.camera.peak = [30.0, 30.0];
        let source = |paired: bool, size: &[usize]| {
            let pool = Arc::new(Pool::new(&config, 3, 4, 0.0).unwrap());
            Views::new(pool, &config, paired, 5, size, size).unwrap()
        };
        let (alone, pairs) = (source(false, &[32, 32]), source(true, &[32, 32]));
        for number in [0u64, 9, 1000] {
            let (one, two) = (alone.sample(number, None).unwrap(), pairs.sample(number, None).unwrap());
            assert_eq!(one, source(false, &[32, 32]).sample(number, None).unwrap());
            assert_eq!(one.measured, one.clean);
            assert_eq!(one.measured, two.measured);
            // The same objects at the same places, with less between neighbours.
            let rough = |v: &[f32]| v.windows(2).map(|w| (w[0] - w[1]).powi(2)).sum::<f32>();
            assert!(rough(&two.clean) < 0.5 * rough(&two.measured));
        }
        // Objects are at the same places: over many crops, for one may show nothing but noise; not with the next crop's partner.
        let samples: Vec<Sample> = (0..24).map(|n| pairs.sample(n, None).unwrap()).collect();
        let pooled = |values: fn(&Sample) -> &[f32]| -> Vec<f32> {
            samples.iter().flat_map(|s| values(s).iter().copied()).collect()
        };
        let (seen, mut truth) = (pooled(|s| &s.measured), pooled(|s| &s.clean));
        let r = correlation(&seen, &truth);
        truth.rotate_left(32 * 32);
        let other = correlation(&seen, &truth);
        assert!(r > 0.7 && other.abs() < 0.3, "{r} {other}");
        assert_eq!(source(true, &[8, 16, 16]).sample(1, None).unwrap().clean.len(), 8 * 16 * 16);
    }
}
