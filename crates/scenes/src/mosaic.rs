//! Mosaics: regions of one image that show different kinds of scenes, with the kind of each pixel as its label.
//!
//! This is the textured mosaic by which segmentation of textures is usually tested. The regions are bent Voronoi cells; each shows one of the kinds, or nothing but
//! the background. Scenes are shown at half their size, so that a region holds several of their objects. Kinds have the same mean within their regions but for a random factor for each region, so that brightness says little of the kind and its structure has to be recognised.

use crate::dice::Dice;
use crate::voronoi::{Shape, Voronoi};
use crate::{Scene, SceneError, sized};
use clearshot_tensor::noise::Key;

/// Pixels between the middles of regions.
const SPACING: f64 = 44.0;
/// The lowest brightness of a region; the highest is 1.
const DIMMEST: f64 = 0.4;
/// The mean of a kind over its image before the region's own brightness. Bright spots are cut at 1.
const MEAN: f64 = 0.2;
/// Means below this are of images that are almost empty, which are not amplified further.
const LEAST_MEAN: f64 = 0.02;

/// The stream of mosaics, apart from those of scenes and cameras.
const STREAM: u32 = 0x5D00;

/// Picture `index` of the series of a seed, of shape `[y, x]`, with values in [0, 1], and what each pixel shows: 0 for the background, `i + 1` for `kinds[i]`.
///
/// # Errors
/// If there is no kind, or the shape is not that of a plane, with sizes as [`Scene::generate`] takes them.
pub fn mosaic(
    kinds: &[Scene],
    seed: u64,
    index: u32,
    shape: &[usize],
) -> Result<(Vec<f32>, Vec<u16>), SceneError> {
    let [_, height, width] = sized(shape)?;
    if kinds.is_empty() || shape.len() != 2 {
        return Err(SceneError::Mosaic { kinds: kinds.len(), shape: shape.to_vec() });
    }
    let mut dice = Dice::new(Key { seed, step: index, stream: STREAM });
    let cells = Shape {
        spacing: SPACING,
        jitter: 1.0,
        warp: [0.15, 1.0],
        stretch: dice.log_between(1.0, 1.5),
        weights: 0.3,
    };
    let regions = Voronoi::draw(height, width, &cells, &mut dice);
    // What each region shows, and how brightly.
    let shown: Vec<(usize, f64)> =
        (0..regions.seeds).map(|_| (dice.count(0, kinds.len()), dice.between(DIMMEST, 1.0))).collect();
    let label = |i: usize| shown[regions.ids[i][0] as usize].0;
    let mut values = vec![0.0; height * width];
    for (k, kind) in kinds.iter().enumerate() {
        let own: Vec<usize> = (0..values.len()).filter(|i| label(*i) == k + 1).collect();
        if own.is_empty() {
            continue;
        }
        let scene = halved(&kind.generate(seed, index, &[2 * height, 2 * width])?, width);
        let mean = own.iter().map(|i| f64::from(scene[*i])).sum::<f64>() / own.len() as f64;
        let gain = MEAN / mean.max(LEAST_MEAN);
        for i in own {
            let brightness = shown[regions.ids[i][0] as usize].1;
            values[i] = (brightness * (gain * f64::from(scene[i])).min(1.0)) as f32;
        }
    }
    let labels = (0..values.len()).map(|i| label(i) as u16).collect();
    Ok((values, labels))
}

/// The mean of each 2 x 2 pixels, of an image twice as wide.
fn halved(image: &[f32], width: usize) -> Vec<f32> {
    let rows = image.chunks_exact(4 * width).map(|both| both.split_at(2 * width));
    let pixel = |above: &[f32], below: &[f32]| 0.25 * (above[0] + above[1] + below[0] + below[1]);
    rows.flat_map(|(above, below)| {
        above.chunks_exact(2).zip(below.chunks_exact(2)).map(|(a, b)| pixel(a, b)).collect::<Vec<_>>()
    })
    .collect()
}
