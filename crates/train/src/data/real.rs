//! The cameras of noisy files, and the scale of each of their images in electrons.
//!
//! Gain, offset and read noise come from the configuration or are estimated from the file; background and peak are those of
//! the whole image that a crop is cut from, as in restoring the same file. Each file is analysed once, when its first crop
//! is made. A file whose noise cannot be estimated gets the median camera of the others.

use crate::config::DataConfig;
use crate::error::{Result, setting};
use clearshot_image::dataset::{Dataset, Frame, Part};
use clearshot_model::Photons;
use clearshot_physics::Adu;
use clearshot_physics::calibration::blind::{Known, estimate};
use clearshot_restore::learned::field::Scratch;
use clearshot_restore::learned::{Camera, Measured, Values};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

/// Files that tell the median camera.
const LOOKED_AT: usize = 16;

type Once<T> = Arc<OnceLock<T>>;
/// A file and where an image begins in it.
type Place = (PathBuf, Vec<usize>);
/// The scale of an image, or why it has none.
type Scale = std::result::Result<Photons, String>;

/// See the module.
#[derive(Default)]
pub struct RealCameras {
    known: Known,
    cameras: Mutex<HashMap<PathBuf, Once<Option<Camera>>>>,
    scales: Mutex<HashMap<Place, Once<Scale>>>,
    usual: OnceLock<Option<Camera>>,
}

fn once<K: std::hash::Hash + Eq, T>(of: &Mutex<HashMap<K, Once<T>>>, key: K) -> Once<T> {
    Arc::clone(of.lock().unwrap_or_else(|p| p.into_inner()).entry(key).or_default())
}

impl RealCameras {
    pub fn new(data: &DataConfig) -> RealCameras {
        let known = Known {
            gain: data.gain,
            offset: data.offset,
            read_noise: data.read_noise,
            saturation: data.saturation,
            ..Known::default()
        };
        RealCameras { known, ..RealCameras::default() }
    }

    /// What the first image of a file tells of its camera, completed by what is known.
    fn told(&self, frame: &Frame) -> Option<Camera> {
        let [.., height, width] = frame.size[..] else { return None };
        let planes: Vec<Vec<f32>> = (0..frame.channels)
            .map(|c| {
                let middle = frame.values.len() / (height * width * frame.channels) / 2;
                let first = middle * height * width * frame.channels + c;
                frame.values[first..].iter().step_by(frame.channels).take(height * width).copied().collect()
            })
            .collect();
        let views: Vec<Adu<&[f32]>> = planes.iter().map(|p| Adu(&p[..])).collect();
        let fit = estimate(&views, [height, width], &self.known).ok()?;
        Some(Camera {
            gain: fit.gain,
            offset: fit.offset,
            read_noise: fit.read_noise,
            background: None,
            correlation: fit.correlation,
        })
    }

    fn of_file(&self, dataset: &Dataset, entry: usize, origin: &[usize]) -> Result<Option<Camera>> {
        let cell = once(&self.cameras, dataset.entries[entry].input.clone());
        if let Some(known) = cell.get() {
            return Ok(*known);
        }
        let frame = dataset.frame(entry, origin, Part::Input)?;
        Ok(*cell.get_or_init(|| self.told(&frame)))
    }

    /// Looks at some files, so that there is a camera for those that do not tell theirs, and says what was found.
    ///
    /// # Errors
    /// If a file cannot be read, or none tells its noise.
    pub fn look(&self, dataset: &Dataset) -> Result<String> {
        let count = dataset.entries.len().min(LOOKED_AT);
        let mut found = vec![];
        for i in 0..count {
            let crop = dataset.crop_at(i * dataset.entries.len() / count)?;
            let origin = dataset.frame_origin(crop.entry, &crop.origin)?;
            found.extend(self.of_file(dataset, crop.entry, &origin)?);
        }
        let median = |of: &dyn Fn(&Camera) -> f64| {
            let mut values: Vec<f64> = found.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(0.0)
        };
        let usual = (!found.is_empty()).then(|| Camera {
            gain: median(&|c| c.gain),
            offset: median(&|c| c.offset),
            read_noise: median(&|c| c.read_noise),
            ..found[0]
        });
        let usual = *self.usual.get_or_init(|| usual);
        match usual {
            Some(c) => Ok(format!(
                "camera of the noisy files, median of {}: gain {:.3} electrons per count, offset {:.1}, read noise {:.2} electrons, correlation of \
                 the noise of neighbours {:.2} along X and {:.2} along Y",
                found.len(),
                c.gain,
                c.offset,
                c.read_noise,
                median(&|c| c.correlation.at(0, 1)),
                median(&|c| c.correlation.at(1, 0)),
            )),
            None => {
                let needed = "the camera cannot be estimated from these files: give data.gain, data.offset and data.read_noise, or data.signal=fixed (not for splitting)";
                setting("data.gain", "nothing", needed)
            }
        }
    }

    /// The camera of a crop's file and the scale of the image that it is cut from.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn of(&self, dataset: &Dataset, entry: usize, origin: &[usize]) -> Result<(Camera, Photons)> {
        let origin = dataset.frame_origin(entry, origin)?;
        let told = self.of_file(dataset, entry, &origin)?.or_else(|| self.usual.get().copied().flatten());
        let camera = told.unwrap_or_default();
        let path = dataset.entries[entry].input.clone();
        let cell = once(&self.scales, (path, origin.clone()));
        if let Some(Ok(scale)) = cell.get() {
            return Ok((camera, *scale));
        }
        let frame = dataset.frame(entry, &origin, Part::Input)?;
        let scale = cell.get_or_init(|| scale_of(&frame, &camera));
        match scale {
            Ok(scale) => Ok((camera, *scale)),
            Err(why) => {
                let file = dataset.entries[entry].input.display();
                setting("data.inputs", file, format!("its brightness cannot be determined: {why}"))
            }
        }
    }
}

fn scale_of(frame: &Frame, camera: &Camera) -> Scale {
    let values = Values { values: &frame.values, size: &frame.size, channels: frame.channels };
    let measured = Measured::read(&values, &Scratch::new(usize::MAX, None)).map_err(|e| e.to_string())?;
    measured.photons(camera).map_err(|e| e.to_string())
}
