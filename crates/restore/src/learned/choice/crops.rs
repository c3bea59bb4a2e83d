//! The crops of the image on which a choice is estimated, and the same crops with a little more noise.
//!
//! The receptive field of a model extends 128 pixels to each side, so that small crops with all of it would be mostly
//! margin. The response of the result to its measurement hardly depends on such distant pixels: a crop has [`AROUND`]
//! pixels of the image on each side, which are not counted, and [`MARGIN`] mirrored ones beyond.

use crate::learned::Error;
use crate::learned::field::{Field, Scratch};
use crate::learned::measured::{Camera, Measured};
use clearshot_physics::correlation::FILTER;
use clearshot_tensor::noise::Key;
use rayon::prelude::*;

/// Pixels of the image to each side of a crop that are seen and not counted.
const AROUND: usize = 8;
/// Mirrored ones beyond, which the network alone sees.
pub(super) const MARGIN: usize = 16;
/// The probing noise, in standard deviations of the measurement's own.
pub(super) const PROBE: f32 = 0.1;
/// Pixels along an axis that are counted at least and at most: half of them in between. Axes of [`LONG`] pixels are counted in
/// two crops.
const FEWEST: usize = 96;
const MOST: usize = 352;
const LONG: usize = 1024;
/// The smallest share of the noise at the image's mean level that a pixel's deviation is taken to have.
const LEAST_NOISE: f64 = 0.05;

/// Where crops begin along an axis, their size with what is seen around them, and what of that is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub first: Vec<usize>,
    pub seen: usize,
    pub counted: std::ops::Range<usize>,
}

impl Places {
    /// Along an axis of this many pixels.
    pub fn along(n: usize) -> Places {
        let total = (n / 2).clamp(FEWEST, MOST);
        let pieces = if n >= LONG { 2 } else { 1 };
        // Networks work on squares of 16.
        let core = total / pieces / 16 * 16;
        if core + 2 * AROUND >= n {
            return Places { first: vec![0], seen: n, counted: 0..n };
        }
        let first = |i: usize| (2 * i + 1) * n / (2 * pieces) - core / 2 - AROUND;
        let seen = core + 2 * AROUND;
        Places { first: (0..pieces).map(first).collect(), seen, counted: AROUND..AROUND + core }
    }
}

/// A part of the image, and which of its values count.
pub(super) struct Crop {
    pub measured: Measured,
    /// Which pixels are counted: measured ones away from the edges of the crop.
    pub counted: Vec<bool>,
}

/// The crops of an image; pixels where `counted` is false count nowhere.
pub(super) fn cut(
    image: &Measured,
    [height, width]: [usize; 2],
    counted: Option<&[bool]>,
    scratch: &Scratch,
) -> Result<Vec<Crop>, Error> {
    let (down, across) = (Places::along(height), Places::along(width));
    let mut out = Vec::new();
    for &top in &down.first {
        for &left in &across.first {
            let measured = image.crop(&[top, left], &[down.seen, across.seen], scratch)?;
            let counts = |pixel: usize| {
                let (y, x) = (pixel / across.seen, pixel % across.seen);
                let asked = counted.is_none_or(|c| c[(top + y) * width + left + x]);
                let inside = down.counted.contains(&y) && across.counted.contains(&x);
                asked && inside && measured.valid.as_ref().is_none_or(|v| v[pixel])
            };
            let values = 0..measured.values.len();
            let counted = values.map(|i| counts(i / measured.channels)).collect();
            out.push(Crop { measured, counted });
        }
    }
    Ok(out)
}

/// Noise as the camera has it where the image is `mean`, in counts.
pub(super) fn noise(y: &Measured, mean: &[f32], camera: &Camera, number: u32) -> Vec<f32> {
    let [.., height, width] = y.size[..] else { return vec![] };
    let c = y.channels;
    let mut white = vec![0f32; mean.len()];
    Key { seed: 0x5EED, step: number, stream: 0xC401 }.fill_normal(0, &mut white);
    let taps: Vec<f32> = camera.correlation.filter().into_iter().map(|t| t as f32).collect();
    let shared = match camera.correlation.is_white() {
        true => white,
        false => {
            let at = |i: usize| {
                let (pixel, ch) = (i / c, i % c);
                let (row, column) = (pixel / width, pixel % width);
                let mut sum = 0.0;
                for (k, t) in taps.iter().enumerate() {
                    let y = (row + k / FILTER + height - FILTER / 2) % height;
                    let x = (column + k % FILTER + width - FILTER / 2) % width;
                    sum += t * white[(y * width + x) * c + ch];
                }
                sum
            };
            (0..white.len()).into_par_iter().map(at).collect()
        }
    };
    let typical = mean.iter().map(|&v| f64::from(v)).sum::<f64>() / mean.len() as f64;
    let least = LEAST_NOISE * camera.deviation(typical);
    let deviation = |m: f32| camera.deviation(f64::from(m)).max(least) as f32;
    shared.iter().zip(mean).map(|(n, &m)| n * deviation(m)).collect()
}

/// The measurement with a little more noise.
pub(super) fn shifted(y: &Measured, noise: &[f32], scratch: &Scratch) -> Result<Measured, Error> {
    let mut values: Field = scratch.field(y.values.len())?;
    values.iter_mut().zip(y.values.iter()).zip(noise).for_each(|((to, v), n)| *to = v + PROBE * n);
    Ok(y.with_values(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crops_lie_inside_and_count_a_quarter() {
        for n in [1, 31, 64, 96, 112] {
            assert_eq!(Places::along(n), Places { first: vec![0], seen: n, counted: 0..n });
        }
        for n in [113, 128, 160, 256, 300, 511, 512, 700, 768, 1024, 5000] {
            let places = Places::along(n);
            let (pieces, core) = (places.first.len(), places.counted.len());
            assert!(places.first.iter().all(|f| f + places.seen <= n), "{n}: {places:?}");
            assert!(places.seen == core + 2 * AROUND && core.is_multiple_of(16));
            assert_eq!(pieces, if n < LONG { 1 } else { 2 });
            let total = (n / 2).clamp(FEWEST, MOST);
            assert!((total - 15..=total).contains(&(pieces * core)), "{n}: {places:?}");
        }
        // The middle, and the middles of two halves.
        assert_eq!(Places::along(512), Places { first: vec![120], seen: 272, counted: 8..264 });
        assert_eq!(Places::along(1024), Places { first: vec![160, 672], seen: 192, counted: 8..184 });
    }

    /// Twice over all crops the network sees little beside what it sees of the whole image with 128 pixels around it.
    #[test]
    fn choosing_is_cheap_at_every_size() {
        for n in 64..3000 {
            let places = Places::along(n);
            let crops = 2 * (places.first.len() * (places.seen + 2 * MARGIN)).pow(2);
            let share = crops as f64 / (n + 256).pow(2) as f64;
            assert!(share < 0.35, "{n}: {share}");
        }
    }

    /// The noise has the camera's variance and correlation.
    #[test]
    fn noise_is_the_cameras() {
        let correlation = clearshot_physics::Correlation::gaussian([0.5, 0.7]);
        let camera = Camera { gain: 0.5, offset: 10.0, read_noise: 2.0, correlation, ..Camera::default() };
        let (size, mean) = ([256, 256], vec![42.0; 256 * 256]);
        let scratch = Scratch::new(usize::MAX, None);
        let values = crate::learned::Values { values: &mean, size: &size, channels: 1 };
        let image = Measured::read(&values, &scratch).unwrap();
        let noise = noise(&image, &mean, &camera, 0);
        let lag = |dy: usize, dx: usize| {
            let at = |y: usize, x: usize| f64::from(noise[y % 256 * 256 + x % 256]);
            let product = |i: usize| at(i / 256, i % 256) * at(i / 256 + dy, i % 256 + dx);
            (0..noise.len()).map(product).sum::<f64>() / noise.len() as f64
        };
        // Electrons 16, read noise 2: a variance of 20 electrons, 80 counts.
        assert!((lag(0, 0) / 80.0 - 1.0).abs() < 0.04, "{}", lag(0, 0));
        for (dy, dx) in [(0, 1), (1, 0), (1, 1), (0, 2)] {
            let expected = 80.0 * correlation.at(dy, dx);
            assert!((lag(dy as usize, dx as usize) - expected).abs() < 3.0, "{dy} {dx}");
        }
    }
}
