//! Samples for segmentation: images scaled between their own dark and bright end, and the class or object of each pixel.
//!
//! The scale is that of prediction: the ends are those of the whole image that a crop is cut from, including noise
//! ([`OwnRange`]), so generated scenes are exposed as a whole before crops are cut. Targets have one channel of 0 and 1 for
//! each class, or the object maps of `clearshot_model::instances`.

use super::camera::Cameras;
use super::scenes::{Place, Pool, cut};
use super::views::OwnRanges;
use super::{NUMBERS, Sample, Source, shrunk};
use crate::config::{DataConfig, TaskConfig, TaskKind};
use crate::error::{Result, setting};
use crate::segmentation::one_hot;
use crate::task::key;
use clearshot_image::dataset::{Crop, Dataset, Normaliser, Part, Range};
use clearshot_model::{OwnRange, Signal, instances};
use std::path::Path;
use std::sync::Arc;

/// The signal of a segmentation model: values of [`OwnRange`], unchanged.
pub const AS_THEY_ARE: Signal = Signal::Fixed {
    input: Normaliser { range: Range::MinMax, low: -1.0, high: 1.0, clip: false },
    target: None,
};

/// The share of training crops of generated scenes that show nothing: between its own ends an empty image is noise as bright as objects are, and a network that has
/// never seen one finds objects in it.
pub const EMPTY: f64 = 0.1;

/// A sample whose condition is there and that knows no camera.
pub(super) fn sample(seen: Vec<f32>, target: Vec<f32>) -> Sample {
    let mut numbers = [0.0; NUMBERS];
    numbers[NUMBERS - 1] = 1.0;
    Sample::plain(seen, target, numbers)
}

/// The targets from labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The class of each pixel, of so many.
    Classes(usize),
    /// Objects one by one.
    Objects,
}

impl Wanted {
    /// Of a task whose targets are labels.
    pub fn of(task: &TaskConfig) -> Option<Wanted> {
        match task.kind {
            TaskKind::Segmentation => Some(Wanted::Classes(task.classes)),
            TaskKind::Instances => Some(Wanted::Objects),
            _ => None,
        }
    }

    /// Channels of targets in so many dimensions.
    pub fn channels(self, dims: usize) -> usize {
        match self {
            Wanted::Classes(classes) => classes,
            Wanted::Objects => instances::target_channels(dims),
        }
    }
}

/// Crops of generated scenes with their foregrounds or objects.
pub struct Segments {
    pool: Arc<Pool>,
    wanted: Wanted,
    cameras: Cameras,
    augment: bool,
    empty: f64,
    seed: u64,
    cut: Vec<usize>,
    size: Vec<usize>,
}

impl Segments {
    /// `empty` is the share of crops that show nothing.
    ///
    /// # Errors
    /// If a crop is larger than a scene.
    pub fn new(
        pool: Arc<Pool>,
        config: &DataConfig,
        wanted: Wanted,
        empty: f64,
        seed: u64,
        cut: &[usize],
        size: &[usize],
    ) -> Result<Segments> {
        pool.check_crops(cut)?;
        let cameras = Cameras::new(&config.camera, seed);
        let (augment, cut, size) = (config.augment, cut.to_vec(), size.to_vec());
        Ok(Segments { pool, wanted, cameras, augment, empty, seed, cut, size })
    }
}

impl Source for Segments {
    fn sample(&self, number: u64, domain: Option<usize>) -> Result<Sample> {
        let Place { kind, scene, origin, symmetry } =
            self.pool.place(self.seed, number, domain, &self.cut, self.augment)?;
        let whole = &scene.shape;
        let is_empty = f64::from(key(self.seed, number, 0xE39).uniform(0)) < self.empty;
        let shows = if is_empty { vec![0.0; scene.values.len()] } else { scene.values.clone() };
        let mut seen = self.cameras.expose(shows, whole, scene.ends, number).measured;
        OwnRange::of(&seen, whole, 1).apply(&mut seen);
        let [.., y, x] = self.cut[..] else { unreachable!("crops have Y and X") };
        let crop = |values: &[f32], of: fn(f32) -> f32| {
            let values: Vec<f32> = cut(values, whole, &origin, &self.cut).into_iter().map(of).collect();
            let values = symmetry.apply(&values, values.len() / (y * x), y, x, 1);
            shrunk(values, &self.cut, &self.size)
        };
        let labels = crop(
            &scene.labels,
            match (is_empty, self.wanted) {
                (true, _) => |_| 0.0,
                (_, Wanted::Classes(_)) => |label| label.min(1.0),
                (_, Wanted::Objects) => |label| label,
            },
        );
        let target = match self.wanted {
            Wanted::Classes(_) => labels,
            Wanted::Objects => instances::targets(&labels, &self.size)?,
        };
        Ok(Sample { domain: kind, ..sample(crop(&seen, |v| v), target) })
    }

    fn domains(&self) -> Vec<String> {
        self.pool.names()
    }

    fn channels(&self) -> [usize; 2] {
        [1, self.wanted.channels(self.size.len())]
    }

    fn signal(&self) -> Signal {
        AS_THEY_ARE
    }
}

/// Samples from files of images and labels.
pub struct Labels {
    wanted: Wanted,
    ranges: OwnRanges,
}

impl Labels {
    /// # Errors
    /// If the labels have more than one channel.
    pub fn new(wanted: Wanted, channels: usize) -> Result<Labels> {
        match channels {
            1 => Ok(Labels { wanted, ranges: OwnRanges::default() }),
            other => setting("data.targets", format!("labels of {other} channels"), "one channel of labels"),
        }
    }

    /// Channels of targets in so many dimensions.
    pub fn channels(&self, dims: usize) -> usize {
        self.wanted.channels(dims)
    }

    /// The network's numbers of a crop's values.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn seen(&self, dataset: &Dataset, crop: &Crop, values: &[f32]) -> Result<Vec<f32>> {
        self.ranges.seen(dataset, crop, Part::Input, values)
    }

    /// The target of labels of (Z,) Y, X.
    ///
    /// # Errors
    /// If a label is of no class.
    pub fn target(&self, labels: &[f32], size: &[usize], path: &Path) -> Result<Vec<f32>> {
        // Pixels without a label are left out of the loss.
        let labels = labels.iter().map(|l| if l.is_finite() { *l } else { 0.0 });
        let classes = match self.wanted {
            Wanted::Classes(classes) => classes,
            Wanted::Objects => return Ok(instances::targets(&labels.collect::<Vec<_>>(), size)?),
        };
        let mut target = Vec::with_capacity(labels.len() * classes);
        for label in labels {
            if one_hot(label, classes, &mut target).is_none() {
                let last = classes - 1;
                let needed = format!(
                    "labels from 0 to {last} in {}, which has {label}: set task.classes={} or more, or 1 to separate objects from the background",
                    path.display(),
                    (label.max(0.0) as usize).saturating_add(1)
                );
                return setting("task.classes", classes, needed);
            }
        }
        Ok(target)
    }

    /// A sample of what both give.
    pub fn sample(seen: Vec<f32>, target: Vec<f32>) -> Sample {
        sample(seen, target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The crop of a mask is where the image is bright, whatever turns and flips.
    #[test]
    fn masks_go_with_their_images_and_samples_depend_on_their_number_alone() {
        let scenes = [("nuclei".to_string(), 1.0)].into();
        let mut config = DataConfig { scenes, sizes: vec![96], ..DataConfig::default() };
        config.camera.peak = [200.0, 200.0];
        let source = |size: &[usize], empty: f64| {
            let pool = Arc::new(Pool::new(&config, 3, 4, 0.0).unwrap().labelled());
            Segments::new(pool, &config, Wanted::Classes(1), empty, 5, size, size).unwrap()
        };
        let (a, b) = (source(&[48, 48], 0.0), source(&[48, 48], 0.0));
        let mut gap = 0.0;
        for number in [0u64, 1, 7, 100] {
            let sample = a.sample(number, None).unwrap();
            assert_eq!(sample, b.sample(number, None).unwrap());
            assert!(sample.clean.iter().all(|v| *v == 0.0 || *v == 1.0));
            let mean = |of: f32| {
                let of: Vec<f32> =
                    sample.measured.iter().zip(&sample.clean).filter(|p| *p.1 == of).map(|p| *p.0).collect();
                of.iter().sum::<f32>() / of.len().max(1) as f32
            };
            gap += (mean(1.0) - mean(0.0)) / 4.0;
        }
        assert!(gap > 0.4, "{gap}");
        assert_eq!(source(&[8, 16, 16], 0.0).sample(1, None).unwrap().clean.len(), 8 * 16 * 16);
        // Some show nothing but noise between its own ends.
        let some = source(&[48, 48], 0.5);
        let both = (0..20).map(|n| (some.sample(n, None).unwrap(), a.sample(n, None).unwrap()));
        let empty: Vec<Sample> = both.filter(|(own, shown)| own != shown).map(|(own, _)| own).collect();
        assert!((5..=15).contains(&empty.len()), "{}", empty.len());
        assert!(empty.iter().all(|s| s.clean.iter().all(|v| *v == 0.0)));
        assert!(empty.iter().all(|s| s.measured.iter().any(|v| *v > 0.5)));
    }

    #[test]
    fn labels_beyond_the_classes_are_named() {
        let labels = Labels::new(Wanted::Classes(3), 1).unwrap();
        assert_eq!(
            labels.target(&[2.0, 0.0], &[1, 2], Path::new("a.tif")).unwrap(),
            [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
        );
        let said = labels.target(&[0.0, 7.0], &[1, 2], Path::new("a.tif")).unwrap_err().to_string();
        assert!(said.contains("a.tif") && said.contains("task.classes=8"), "{said}");
        let one = Labels::new(Wanted::Classes(1), 1).unwrap();
        assert_eq!(one.target(&[9.0, 0.0], &[1, 2], Path::new("a.tif")).unwrap(), [1.0, 0.0]);
        assert!(Labels::new(Wanted::Classes(1), 3).is_err());
    }
}
