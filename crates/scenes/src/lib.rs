//! Scenes generated from a seed, and simulated cameras and scanners.
//!
//! A scene is a pure function of (kind, seed, index, size): no generator is carried from one to the next, and the same
//! scene has the same bits on every machine. Values are in [0, 1]. [`SCENES`] is the list of kinds; larger scenes contain
//! more objects of the same size. [`Camera`] turns a scene into electrons or counts, [`Scanner`] into a CT or MR image.
//!
//! There are two families. The kinds of the benchmark are simple, and published tables rely on their bits. The others are
//! as varied as real microscopy, for training: each draws a magnification and a style, paints one or more layers (with
//! `plane`, `brush`, `voronoi` and `cells`), and `optics` turns the layers into a microscope image. Their stacks are
//! specimens in three dimensions, seen through a microscope's PSF (`volume`). To add a kind of that family, add a file with
//! `paint`, a variant of [`Scene`], a row of [`SCENES`] and a specimen.

mod brush;
mod camera;
mod canvas;
mod cells;
mod dice;
mod error;
mod fibres;
mod filaments;
mod leaves;
mod membranes;
mod mitochondria;
mod mosaic;
mod nuclei;
mod optics;
mod phantom;
mod plane;
mod reticulum;
mod scanner;
mod stars;
mod textures;
mod tissue;
mod vesicles;
mod volume;
mod voronoi;

pub use camera::{Camera, Converter, Picture};
pub use error::SceneError;
pub use mosaic::mosaic;
pub use scanner::{Ct, Mr, Scanner};

use canvas::Canvas;
use clearshot_tensor::noise::Key;
use dice::Dice;

/// A kind of scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scene {
    /// Bent chains, as microtubules in fluorescence.
    Filaments,
    /// Textured blobs with wavy outlines, as stained nuclei.
    Nuclei,
    /// Points of very different brightness and a few galaxies.
    Stars,
    /// A ring with ellipses inside, as a section of a head.
    Phantom,
    /// Disks of all sizes that hide one another, as photographs do: edges at every scale.
    DeadLeaves,
    /// Bundles of fibres within cells, as stained actin or microtubules.
    Fibres,
    /// Tubules and rings around nuclei, as stained mitochondria.
    Mitochondria,
    /// A honeycomb of cell walls.
    Membranes,
    /// A network of thin tubules and sheets within cells, as the endoplasmic reticulum.
    Reticulum,
    /// Spots and rings of very different sizes, as stained vesicles.
    Vesicles,
    /// Nuclei with chromatin, in and out of focus.
    Tissue,
    /// Random fields with structure at every scale: clouds, patches, veins.
    Textures,
}

/// A row of [`SCENES`].
pub struct Kind {
    pub scene: Scene,
    pub name: &'static str,
    pub about: &'static str,
    /// Whether it is one of the kinds that benchmark tables have a row of. The others are drawn with random optics and
    /// magnification, for training.
    pub benchmark: bool,
}

/// Every kind of scene. Those of the benchmark come first and are drawn at one size; the others are as a microscope
/// shows them, with its PSF, haze from out of focus and background, at magnifications from 1/2 to 4.
pub const SCENES: [Kind; 12] = [
    benchmark(Scene::Filaments, "filaments", "bent chains, as microtubules"),
    benchmark(Scene::Nuclei, "nuclei", "textured blobs, as stained nuclei"),
    benchmark(Scene::Stars, "stars", "points of very different brightness, and galaxies"),
    benchmark(Scene::Phantom, "phantom", "a ring with ellipses inside, as a head's section"),
    benchmark(Scene::DeadLeaves, "dead-leaves", "disks that hide one another, as photographs"),
    varied(Scene::Fibres, "fibres", "bundles of fibres within cells, as actin and microtubules"),
    varied(Scene::Mitochondria, "mitochondria", "tubules and rings around nuclei"),
    varied(Scene::Membranes, "membranes", "a honeycomb of cell walls"),
    varied(Scene::Reticulum, "reticulum", "a network of thin tubules and sheets within cells"),
    varied(Scene::Vesicles, "vesicles", "spots and rings of very different sizes and brightness"),
    varied(Scene::Tissue, "tissue", "nuclei with chromatin, in and out of focus"),
    varied(Scene::Textures, "textures", "random fields: clouds, patches and veins"),
];

const fn benchmark(scene: Scene, name: &'static str, about: &'static str) -> Kind {
    Kind { scene, name, about, benchmark: true }
}

const fn varied(scene: Scene, name: &'static str, about: &'static str) -> Kind {
    Kind { scene, name, about, benchmark: false }
}

/// The kinds that benchmark tables have a row of.
pub fn benchmark_scenes() -> impl Iterator<Item = &'static Kind> {
    SCENES.iter().filter(|k| k.benchmark)
}

/// Sizes that scenes can have along an axis (the depth of a volume may be 1), and in all.
const SIZES: std::ops::RangeInclusive<usize> = 8..=16_384;
const MOST_PIXELS: usize = 1 << 28;

impl Scene {
    /// # Errors
    /// If there is no such scene.
    pub fn by_name(name: &str) -> Result<Scene, SceneError> {
        SCENES
            .iter()
            .find(|k| k.name == name)
            .map(|k| k.scene)
            .ok_or_else(|| SceneError::Name { name: name.into(), known: SCENES.map(|k| k.name).join(", ") })
    }

    pub fn name(self) -> &'static str {
        SCENES.iter().find(|k| k.scene == self).map_or("", |k| k.name)
    }

    /// Picture `index` of the series of a seed, of shape `[y, x]` or `[z, y, x]`, with values in [0, 1].
    ///
    /// # Errors
    /// If the shape has not two or three sizes from 8 to 16384 (z: from 1), or is too large in all.
    pub fn generate(self, seed: u64, index: u32, shape: &[usize]) -> Result<Vec<f32>, SceneError> {
        let size = sized(shape)?;
        let mut dice = self.dice(seed, index);
        let varied = SCENES.iter().any(|k| k.scene == self && !k.benchmark);
        let canvas = match self {
            _ if varied && size[0] > 1 => volume::paint(self, size, &mut dice)?,
            Scene::Filaments => filaments::paint(size, &mut dice),
            Scene::Nuclei => nuclei::paint(size, &mut dice),
            Scene::Stars => stars::paint(size, &mut dice),
            Scene::Phantom => phantom::paint(size, &mut dice),
            Scene::DeadLeaves => leaves::paint(size, &mut dice),
            Scene::Fibres => fibres::paint(size, &mut dice),
            Scene::Mitochondria => mitochondria::paint(size, &mut dice),
            Scene::Membranes => membranes::paint(size, &mut dice),
            Scene::Reticulum => reticulum::paint(size, &mut dice),
            Scene::Vesicles => vesicles::paint(size, &mut dice),
            Scene::Tissue => tissue::paint(size, &mut dice),
            Scene::Textures => textures::paint(size, &mut dice),
        };
        Ok(canvas.values.into_iter().map(|v| v as f32).collect())
    }

    /// Whether it is known which object each pixel belongs to.
    pub fn has_labels(self) -> bool {
        self == Scene::Nuclei
    }

    /// The picture that [`Scene::generate`] gives, and the number of the object that each pixel belongs to, 0 for the background.
    ///
    /// # Errors
    /// As [`Scene::generate`], or if the objects of such scenes are not known.
    pub fn generate_labelled(
        self,
        seed: u64,
        index: u32,
        shape: &[usize],
    ) -> Result<(Vec<f32>, Vec<u16>), SceneError> {
        if !self.has_labels() {
            let known: Vec<&str> = SCENES.iter().filter(|k| k.scene.has_labels()).map(|k| k.name).collect();
            return Err(SceneError::Labels { name: self.name(), known: known.join(", ") });
        }
        let (canvas, labels) = nuclei::paint_labelled(sized(shape)?, &mut self.dice(seed, index));
        Ok((canvas.values.into_iter().map(|v| v as f32).collect(), labels))
    }

    /// Streams of the scenes are apart from each other and from those of the camera.
    fn dice(self, seed: u64, index: u32) -> Dice {
        Dice::new(Key { seed, step: index, stream: 0x5CE0 + self as u32 })
    }
}

/// Z, Y, X of a shape that scenes can have.
fn sized(shape: &[usize]) -> Result<[usize; 3], SceneError> {
    let size = match *shape {
        [y, x] => [1, y, x],
        [z, y, x] => [z, y, x],
        _ => return Err(SceneError::Rank { shape: shape.to_vec() }),
    };
    let pixels = size.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
    let fits = SIZES.contains(&size[1]) && SIZES.contains(&size[2]) && (1..=*SIZES.end()).contains(&size[0]);
    if !fits || pixels.is_none_or(|n| n > MOST_PIXELS) {
        let shape = shape.to_vec();
        return Err(SceneError::Size {
            shape,
            least: *SIZES.start(),
            most: *SIZES.end(),
            pixels: MOST_PIXELS,
        });
    }
    Ok(size)
}

/// How many objects a picture of `size` holds, where one of 128 x 128, or of 128 x 128 x 32, holds from `low` to
/// `high`.
fn population(dice: &mut Dice, size: [usize; 3], low: usize, high: usize) -> usize {
    let depth = if size[0] > 1 { size[0] as f64 / 32.0 } else { 1.0 };
    let area = size[1] as f64 * size[2] as f64 / (128.0 * 128.0);
    let n = dice.count(low, high) as f64 * area * depth;
    (n.round() as usize).max(1)
}

/// A position inside the canvas.
fn position(dice: &mut Dice, canvas: &Canvas) -> [f64; 3] {
    canvas.size.map(|n| if n > 1 { dice.between(0.0, n as f64 - 1.0) } else { 0.0 })
}
