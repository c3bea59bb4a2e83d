//! Crops of generated scenes.
//!
//! Scenes cost milliseconds and crops must cost microseconds, so crops are cut from a pool of scenes. The pool is a window
//! of scene numbers that moves with the number of the crop, so that the scene of a crop follows from its number alone; a
//! scene is made when a crop first needs it and dropped when the window has passed it.

use super::camera::{self, Cameras, Ends};
use super::{Sample, Source, shrunk};
use crate::config::DataConfig;
use crate::error::{Result, setting};
use clearshot_image::dataset::Symmetry;
use clearshot_model::signal::peak;
use clearshot_scenes::Scene;
use clearshot_tensor::noise::Key;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Planes of scenes that volumes are cut from, at least.
const DEPTH: usize = 32;

/// Scenes are distinguished from noise by their mean over pixels at this many electrons.
const BRIGHT: f32 = 1e4;

/// A scene that is there.
pub(super) struct Painted {
    pub values: Vec<f32>,
    /// The number of the object that each pixel is of, where that was asked for; 0 for none.
    pub labels: Vec<f32>,
    pub shape: Vec<usize>,
    /// Its bright end and its darkest places, as those of an image are found.
    pub ends: Ends,
}

/// Bytes of all scenes that pools keep.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Bytes of the scenes that are kept to be cut again: they are generated on demand, which is not a leak.
pub(crate) fn kept_bytes() -> usize {
    KEPT.load(Ordering::Relaxed)
}

impl Painted {
    fn new(values: Vec<f32>, labels: Vec<f32>, shape: Vec<usize>, ends: Ends) -> Painted {
        let painted = Painted { values, labels, shape, ends };
        KEPT.fetch_add(painted.bytes(), Ordering::Relaxed);
        painted
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.values[..]) + size_of_val(&self.labels[..])
    }
}

impl Drop for Painted {
    fn drop(&mut self) {
        KEPT.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

type Made = Arc<OnceLock<std::result::Result<Arc<Painted>, String>>>;

/// Scenes of several kinds, made when needed.
pub struct Pool {
    kinds: Vec<Scene>,
    /// Where each kind's part of the unit interval ends.
    ends: Vec<f64>,
    sizes: Vec<usize>,
    seed: u64,
    window: usize,
    refresh: f64,
    /// Whether labels of objects are made too.
    labelled: bool,
    made: Mutex<HashMap<(usize, u32, usize), Made>>,
}

impl Pool {
    /// # Errors
    /// If there is no such kind of scene.
    pub fn new(config: &DataConfig, seed: u64, window: usize, refresh: f64) -> Result<Pool> {
        let mut kinds = vec![];
        let mut ends = vec![];
        let total: f64 = config.scenes.values().sum();
        let mut end = 0.0;
        for (name, weight) in config.scenes.iter().filter(|(_, w)| **w > 0.0) {
            end += weight / total;
            kinds.push(Scene::by_name(name)?);
            ends.push(end);
        }
        let (sizes, labelled, made) = (config.sizes.clone(), false, Mutex::default());
        Ok(Pool { kinds, ends, sizes, seed, window, refresh, labelled, made })
    }

    /// The same with labels of the scenes' objects.
    pub fn labelled(self) -> Pool {
        Pool { labelled: true, ..self }
    }

    /// The names of its scenes.
    pub fn names(&self) -> Vec<String> {
        self.kinds.iter().map(|k| k.name().to_string()).collect()
    }

    /// # Errors
    /// If a crop is larger than a scene.
    pub fn check_crops(&self, cut: &[usize]) -> Result<()> {
        let side = cut[cut.len() - 1].max(cut[cut.len() - 2]);
        match self.sizes.iter().find(|s| **s < side) {
            None => Ok(()),
            Some(small) => {
                setting("data.sizes", small, format!("crops of {side} pixels need scenes at least as large"))
            }
        }
    }

    /// Where the crop of a number is cut.
    pub(super) fn place(
        &self,
        seed: u64,
        number: u64,
        domain: Option<usize>,
        cut: &[usize],
        augment: bool,
    ) -> Result<Place> {
        let kind = domain.unwrap_or_else(|| self.kind(number));
        let key = Key { seed, step: number as u32, stream: 0x5C0 | ((number >> 32) as u32) << 12 };
        let words: Vec<u32> = (0..2).flat_map(|i| key.block(i)).collect();
        let draw = |slot: usize, below: usize| ((u64::from(words[slot]) * below as u64) >> 32) as usize;
        let first = (number as f64 / 1000.0 * self.refresh) as u32;
        let index = first + draw(0, self.window) as u32;
        let depth = (cut.len() == 3).then(|| cut[0]);
        let scene = self.scene(kind, index, depth)?;
        if self.refresh > 0.0 && number.is_multiple_of(1024) {
            self.forget_before(first);
        }
        let shape = &scene.shape;
        let origin = (0..shape.len()).map(|a| draw(1 + a, shape[a] - cut[a] + 1)).collect();
        let is_square = cut[cut.len() - 1] == cut[cut.len() - 2];
        let symmetry = match augment {
            true => Symmetry::from_number(draw(4, 8) as u32, is_square),
            false => Symmetry::NONE,
        };
        Ok(Place { kind, scene, origin, symmetry })
    }

    /// The kind of a crop: numbers in a row take kinds in their proportions, so that every batch has its share of
    /// each (the golden ratio's multiples fill the unit interval evenly).
    fn kind(&self, number: u64) -> usize {
        let u = (number as f64 * 0.618_033_988_749_894_9).fract();
        self.ends.iter().position(|end| u < *end).unwrap_or(self.ends.len() - 1)
    }

    fn scene(&self, kind: usize, index: u32, depth: Option<usize>) -> Result<Arc<Painted>> {
        let side = self.sizes[index as usize % self.sizes.len()];
        let planes = depth.map(|d| d.max(DEPTH));
        let shape: Vec<usize> = planes.into_iter().chain([side, side]).collect();
        let lock = || self.made.lock().unwrap_or_else(|p| p.into_inner());
        let cell = Arc::clone(lock().entry((kind, index, planes.unwrap_or(0))).or_default());
        let made = cell.get_or_init(|| {
            let _drawing = clearshot_timeline::span(clearshot_timeline::Phase::Drawing);
            let kind = self.kinds[kind];
            let (values, labels) = match self.labelled {
                true => kind
                    .generate_labelled(self.seed, index, &shape)
                    .map(|(values, labels)| (values, labels.iter().map(|l| f32::from(*l)).collect())),
                false => kind.generate(self.seed, index, &shape).map(|values| (values, vec![])),
            }
            .map_err(|e| e.to_string())?;
            let electrons: Vec<f32> = values.iter().map(|v| BRIGHT * v).collect();
            // Of a stack, the brightest plane's: as one that is restored finds it.
            let of_plane = |plane: &[f32]| peak(plane, [side, side], 0.0, 0.0) / f64::from(BRIGHT);
            let bright = electrons.chunks(side * side).map(of_plane).fold(0.0, f64::max);
            let dark = darkest(&values, [values.len() / side, side]);
            Ok(Arc::new(Painted::new(values, labels, shape.clone(), Ends { bright, dark })))
        });
        match made {
            Ok(painted) => Ok(Arc::clone(painted)),
            Err(why) => setting("data.sizes", side, why),
        }
    }

    /// Forgets what the window has passed: workers are never more than a window behind each other.
    fn forget_before(&self, index: u32) {
        let mut made = self.made.lock().unwrap_or_else(|p| p.into_inner());
        if made.len() > 3 * self.window * self.kinds.len() {
            made.retain(|(_, i, _), _| *i >= index.saturating_sub(self.window as u32));
        }
    }
}

/// Where a crop is cut, and how it is turned.
pub(super) struct Place {
    pub kind: usize,
    pub scene: Arc<Painted>,
    pub origin: Vec<usize>,
    pub symmetry: Symmetry,
}

/// Crops of a pool's scenes, as cameras see them.
pub struct Scenes {
    pool: Arc<Pool>,
    /// Of each kind of scene.
    cameras: Vec<Cameras>,
    augment: bool,
    seed: u64,
    cut: Vec<usize>,
    size: Vec<usize>,
}

impl Scenes {
    /// # Errors
    /// If a crop is larger than a scene.
    pub fn new(
        pool: Arc<Pool>,
        config: &DataConfig,
        seed: u64,
        cut: &[usize],
        size: &[usize],
    ) -> Result<Scenes> {
        pool.check_crops(cut)?;
        let camera = |name: &String| config.cameras.get(name).unwrap_or(&config.camera);
        let cameras = pool.names().iter().map(|name| Cameras::new(camera(name), seed)).collect();
        Ok(Scenes { pool, cameras, augment: config.augment, seed, cut: cut.to_vec(), size: size.to_vec() })
    }
}

impl Source for Scenes {
    fn sample(&self, number: u64, domain: Option<usize>) -> Result<Sample> {
        let Place { kind, scene, origin, symmetry } =
            self.pool.place(self.seed, number, domain, &self.cut, self.augment)?;
        let values = cut(&scene.values, &scene.shape, &origin, &self.cut);
        let [.., y, x] = self.cut[..] else { unreachable!("crops have Y and X") };
        let values = symmetry.apply(&values, values.len() / (y * x), y, x, 1);
        let values = shrunk(values, &self.cut, &self.size);
        Ok(Sample { domain: kind, ..self.cameras[kind].expose(values, &self.size, scene.ends, number) })
    }

    fn domains(&self) -> Vec<String> {
        self.pool.names()
    }

    fn channels(&self) -> [usize; 2] {
        camera::CHANNELS
    }
}

/// The side of the squares whose means tell what is dark, and the share of them that is.
const SQUARE: usize = 12;
const DARK: f64 = 0.05;

/// The light of a scene's darkest places: the middle of the lowest tenth of the means of squares.
fn darkest(values: &[f32], [height, width]: [usize; 2]) -> f64 {
    let side = SQUARE.min(height).min(width);
    let mut means: Vec<f64> = Vec::new();
    for y in (0..=height - side).step_by(side) {
        for x in (0..=width - side).step_by(side) {
            let rows = (y..y + side).flat_map(|y| &values[y * width + x..][..side]);
            means.push(rows.map(|&v| f64::from(v)).sum::<f64>() / (side * side) as f64);
        }
    }
    means.sort_by(f64::total_cmp);
    means[(means.len() as f64 * DARK) as usize]
}

/// A box of an array.
pub(super) fn cut(values: &[f32], shape: &[usize], origin: &[usize], size: &[usize]) -> Vec<f32> {
    let mut out = Vec::with_capacity(size.iter().product());
    let [.., height, width] = shape[..] else { return out };
    let [.., rows, columns] = size[..] else { return out };
    let [.., top, left] = origin[..] else { return out };
    let planes = if size.len() == 3 { origin[0]..origin[0] + size[0] } else { 0..1 };
    for z in planes {
        for y in top..top + rows {
            let at = (z * height + y) * width + left;
            out.extend_from_slice(&values[at..at + columns]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CameraConfig;

    fn source(refresh: f64, size: &[usize]) -> Scenes {
        let scenes = [("nuclei".to_string(), 3.0), ("stars".to_string(), 1.0)].into();
        let config = DataConfig { scenes, sizes: vec![64, 48], ..DataConfig::default() };
        let pool = Arc::new(Pool::new(&config, 3, 4, refresh).unwrap());
        Scenes::new(pool, &config, 5, size, size).unwrap()
    }

    #[test]
    fn samples_depend_on_their_number_alone() {
        let (a, b) = (source(100.0, &[32, 32]), source(100.0, &[32, 32]));
        let of = |s: &Scenes, n: u64| s.sample(n, None).unwrap();
        let forward: Vec<Sample> = (0..40).map(|n| of(&a, n * 97)).collect();
        let backward: Vec<Sample> = (0..40).rev().map(|n| of(&b, n * 97)).collect();
        assert!(forward.iter().eq(backward.iter().rev()));
        assert_ne!(forward[0], forward[1]);
        assert_ne!(of(&a, 7), of(&a, 7 | 1 << 32));
    }

    /// A domain that has a camera of its own is seen by that, and the others by the one of all.
    #[test]
    fn domains_have_their_own_cameras() {
        let scenes = [("nuclei".to_string(), 1.0), ("stars".to_string(), 1.0)].into();
        let own = CameraConfig { peak: [5000.0; 2], ..CameraConfig::default() };
        let config = |cameras| DataConfig { scenes, sizes: vec![64], cameras, ..DataConfig::default() };
        let config = config([("stars".to_string(), own)].into());
        let pool = Arc::new(Pool::new(&config, 3, 4, 0.0).unwrap());
        let scenes = Scenes::new(pool, &config, 5, &[32, 32], &[32, 32]).unwrap();
        let electrons = |domain: usize| {
            let brightest = |n: u64| {
                let sample = scenes.sample(n, Some(domain)).unwrap();
                assert_eq!(sample.domain, domain);
                sample.measured.iter().fold(0f32, |a, b| a.max(*b))
            };
            (0..20).map(brightest).fold(0f32, f32::max)
        };
        assert_eq!(scenes.domains(), ["nuclei", "stars"]);
        assert!(electrons(0) < 200.0 && electrons(1) > 500.0, "{} {}", electrons(0), electrons(1));
    }

    #[test]
    fn every_batch_has_its_share_of_each_kind() {
        let s = source(0.0, &[32, 32]);
        for first in [0u64, 1000, 123_456_789] {
            let nuclei = (first..first + 16).filter(|n| s.pool.kind(*n) == 0).count();
            assert!((11..=13).contains(&nuclei), "{nuclei} of 16 in place of 12");
        }
    }

    #[test]
    fn the_window_moves_on_and_volumes_are_cut() {
        let s = source(1000.0, &[32, 32]);
        (0..4096).step_by(16).for_each(|n| _ = s.sample(n * 64, None).unwrap());
        assert!(s.pool.made.lock().unwrap().len() < 200);
        let s = source(0.0, &[8, 16, 16]);
        assert_eq!(s.sample(1, None).unwrap().clean.len(), 8 * 16 * 16);
    }
}
