//! Examines some planes of an image before it is restored: saturation, brightness, and whether the given background is
//! possible.

use crate::error::{Error, Result};
use crate::learned::Parts;
use crate::notice::Notice;
use crate::validity::Validity;
use clearshot_image::{Description, Image};
use clearshot_restore::learned::{Camera, Source, measured};

/// Some planes of a file, cropped to a representative size.
pub struct Look {
    planes: Vec<Vec<f32>>,
    shape: [usize; 2],
}

/// Planes that are looked at, and the most pixels of each along a side.
const PLANES: usize = 8;
const SIDE: usize = 1536;

impl Look {
    /// # Errors
    /// If the file cannot be read, or 32-bit floats cannot hold its values.
    pub fn at(image: &Image, parts: &Parts) -> Result<Look> {
        image.check_single()?;
        let count = parts.all.len();
        let step = count.div_ceil(PLANES).max(1);
        let (height, width) = (parts.height().min(SIDE), parts.width().min(SIDE));
        let (top, left) = ((parts.height() - height) / 2, (parts.width() - width) / 2);
        let z = parts.size[..parts.size.len() - 2].iter().product::<usize>() / 2;
        let mut planes = Vec::new();
        let all = Validity::default();
        for part in parts.all.iter().step_by(step) {
            let source = parts.source(image, part, &all);
            let rows = source.rows(z, top..top + height).map_err(Error::Unsuited)?;
            for c in 0..parts.channels {
                let of = |y: usize| {
                    let rows = &rows;
                    (left..left + width).map(move |x| rows[(y * parts.width() + x) * parts.channels + c])
                };
                planes.push((0..height).flat_map(of).collect());
            }
        }
        Ok(Look { planes, shape: [height, width] })
    }

    /// The largest value in these planes.
    pub fn greatest(&self) -> f64 {
        let values = self.planes.iter().flatten().copied().filter(|v| v.is_finite());
        f64::from(values.fold(f32::NEG_INFINITY, f32::max))
    }

    /// The share of saturated pixels, and the smallest saturated value: the top of the type's range, or the largest
    /// value if pixels pile up there.
    pub fn saturation(&self, d: &Description) -> Option<(f64, f32)> {
        let values = || self.planes.iter().flatten().copied().filter(|v| v.is_finite());
        let count = values().count().max(1) as f64;
        let (least, most) =
            values().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        let rescale = d.rescale.filter(|r| r.slope > 0.0);
        let meant = |stored: f64| rescale.map_or(stored, |r| r.slope * stored + r.intercept);
        let full = d.dtype.range().map(|(_, high)| {
            let used = d.bits.min(d.dtype.bits());
            let used = if d.dtype.is_signed() { used - 1 } else { used };
            meant(high.min(2f64.powi(used as i32) - 1.0)) as f32
        });
        let at = |limit: f32| values().filter(|&v| v >= limit).count() as f64 / count;
        let piled = at(most);
        match full {
            Some(full) if most >= full => Some((at(full), full)),
            // A value that one pixel in a hundred has, and none exceeds.
            _ if most > least && piled > 0.01 && most > 0.0 => Some((piled, most)),
            _ => None,
        }
    }

    /// A notice if much of the image is darker than the camera's background. For a model nothing can be darker, so that
    /// all dark regions would come out too bright.
    pub fn contradicts(&self, camera: &Camera) -> Option<Notice> {
        let given = camera.background?;
        let deviation = (given + camera.read_noise.powi(2)).sqrt() / BLOCK as f64;
        let limit = given - TOO_DARK * deviation;
        let [height, width] = self.shape;
        let mut means = Vec::new();
        for plane in &self.planes {
            for y in (0..(height + 1).saturating_sub(BLOCK)).step_by(BLOCK) {
                for x in (0..(width + 1).saturating_sub(BLOCK)).step_by(BLOCK) {
                    let rows = (y..y + BLOCK).flat_map(|y| &plane[y * width + x..][..BLOCK]);
                    let mean = rows.map(|&v| f64::from(v)).sum::<f64>() / (BLOCK * BLOCK) as f64;
                    means.push(camera.gain * (mean - camera.offset));
                }
            }
        }
        means.retain(|m| m.is_finite());
        means.sort_by(f64::total_cmp);
        let darker = means.partition_point(|&m| m < limit);
        let share = darker as f64 / means.len().max(1) as f64;
        (share > CONTRADICTION).then(|| {
            let dark = measured::darkest(&means, camera.read_noise, BLOCK as f64);
            Notice::Background { given, share, limit, median: means[darker / 2], dark }
        })
    }
}

/// The side of the blocks whose means tell the dark level.
const BLOCK: usize = 8;
/// Standard deviations below the background at which a block's mean is too dark, and the share of blocks that makes a
/// contradiction; noise alone gives 2 %.
const TOO_DARK: f64 = 2.0;
const CONTRADICTION: f64 = 0.1;
