//! The camera of a file: as given, or as the file's own noise tells it.

use super::parts::{Apart, Parts};
use anyhow::{Context, Result};
use clearshot_image::grid::Region;
use clearshot_image::{Description, Image};
use clearshot_physics::Correlation;
use clearshot_physics::calibration::blind::{Doubt, Known};
use clearshot_restore::estimate::{as_camera, camera_of};
use clearshot_restore::learned::{Camera, Source};
use std::path::Path;

/// What is said of a correlation, if there is one.
pub fn shared(c: &Correlation) -> String {
    match c.is_white() {
        true => String::new(),
        false => format!(
            ", noise shared by neighbours (correlation {:.2} along X, {:.2} along Y, {:.2} along diagonals)",
            c.at(0, 1),
            c.at(1, 0),
            c.at(1, 1)
        ),
    }
}

/// What the command line says of the camera.
#[derive(Clone, Debug, Default)]
pub struct Given {
    pub gain: Option<f64>,
    pub offset: Option<f64>,
    pub read_noise: Option<f64>,
    pub background: Option<f64>,
    pub correlation: Option<Correlation>,
}

impl Given {
    /// Completed by a file that describes a camera: `{"gain": 0.46, "offset": 100, "read_noise": 1.6}`.
    ///
    /// # Errors
    /// If there is no such file, or it is no such description.
    pub fn with_file(self, path: Option<&Path>) -> Result<Given> {
        let Some(path) = path else { return Ok(self) };
        let camera = clearshot_restore::camera::file::read(path)?;
        Ok(Given {
            gain: self.gain.or(Some(camera.gain)),
            offset: self.offset.or(Some(camera.offset)),
            read_noise: self.read_noise.or(Some(camera.read_noise)),
            background: self.background.or(camera.background),
            correlation: self.correlation.or(Some(camera.correlation)),
        })
    }

    pub fn check(&self) -> Result<()> {
        let camera = Camera {
            gain: self.gain.unwrap_or(1.0),
            offset: self.offset.unwrap_or(0.0),
            read_noise: self.read_noise.unwrap_or(0.0),
            background: self.background,
            correlation: Correlation::WHITE,
        };
        Ok(camera.check()?)
    }

    /// The camera where all of it is given.
    fn whole(&self) -> Option<Camera> {
        Some(Camera {
            gain: self.gain?,
            offset: self.offset?,
            read_noise: self.read_noise?,
            background: self.background,
            correlation: self.correlation.unwrap_or_default(),
        })
    }
}

/// Some planes of a file, cut to a size that tells enough.
pub struct Look {
    planes: Vec<Vec<f32>>,
    shape: [usize; 2],
}

/// Planes that are looked at, and the most pixels of each along a side.
const PLANES: usize = 8;
const SIDE: usize = 1536;

impl Look {
    /// # Errors
    /// If the file cannot be read.
    pub fn at(image: &Image, parts: &Parts) -> Result<Look> {
        let count = parts.all.len();
        let step = count.div_ceil(PLANES).max(1);
        let (height, width) = (parts.height().min(SIDE), parts.width().min(SIDE));
        let (top, left) = ((parts.height() - height) / 2, (parts.width() - width) / 2);
        let z = parts.size[..parts.size.len() - 2].iter().product::<usize>() / 2;
        let mut planes = Vec::new();
        let all = Apart::default();
        for part in parts.all.iter().step_by(step) {
            let source = parts.source(image, part, &all);
            let rows = source.rows(z, top..top + height).map_err(anyhow::Error::msg)?;
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

    /// The greatest value that was seen.
    pub fn greatest(&self) -> f64 {
        let values = self.planes.iter().flatten().copied().filter(|v| v.is_finite());
        f64::from(values.fold(f32::NEG_INFINITY, f32::max))
    }

    /// The share of pixels that are saturated, and from which value on: at the top of the type's range, or where values pile up at
    /// the greatest.
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

    /// The camera, and how it was come by if it was not given.
    ///
    /// # Errors
    /// If the file does not tell what was not given.
    pub fn camera(&self, image: &Image, given: &Given, apart: &Apart) -> Result<(Camera, Option<String>)> {
        if let Some(camera) = given.whole() {
            return Ok((camera, None));
        }
        let known = Known {
            gain: given.gain,
            offset: given.offset,
            read_noise: given.read_noise,
            saturation: apart.saturation.filter(|_| apart.is_given).map(f64::from),
            correlation: given.correlation,
        };
        let marks = |region: &Region, pixels: usize| {
            apart.mask.as_ref().map(|m| m.marks(region, pixels).map_err(|e| format!("{e:#}"))).transpose()
        };
        let fit = camera_of(image, &known, &marks).context(
            "the camera's noise cannot be told from this image; say --gain, --offset and --read-noise, or --camera FILE",
        )?;
        let camera = Camera { background: given.background, ..as_camera(&fit) };
        let said_already = |d: &&Doubt| **d != Doubt::GainNotSeen;
        let doubts: Vec<&str> = fit.doubts.iter().filter(said_already).map(|d| d.about()).collect();
        let rest = format!(
            "offset {:.1}, read noise {:.2} electrons{}",
            fit.offset,
            fit.read_noise,
            shared(&fit.correlation)
        );
        let [low, high] = fit.gain_range;
        let mut said = match fit.doubts.contains(&Doubt::GainNotSeen) {
            true => format!(
                "the gain could not be told from this image; assumed: {:.3} electrons per count ({low:.3} to {high:.3} would fit as well), {rest}; use --gain if you know it",
                fit.gain
            ),
            false if known.gain.is_some() => format!("camera estimated from the image: {rest}"),
            false => format!(
                "camera estimated from the image: gain {:.3} +- {:.3} electrons per count, {rest}",
                fit.gain, fit.gain_error
            ),
        };
        if !doubts.is_empty() {
            said += &format!(" ({})", doubts.join("; "));
        }
        Ok((camera, Some(said)))
    }
}

/// The side of the blocks whose means tell the dark level.
const BLOCK: usize = 8;
/// Standard deviations below the background at which a block's mean is too dark, and the share of blocks that makes a
/// contradiction; noise alone gives 2 %.
const TOO_DARK: f64 = 2.0;
const CONTRADICTION: f64 = 0.1;
/// By how many standard deviations the middle of the lowest tenth of normal numbers lies below their mean.
const LOWEST_TENTH: f64 = 1.645;

impl Look {
    /// Whether much of the image is darker than the camera's background, in words: nothing can be, as far as a model
    /// knows, so that all that is dark would come back too bright.
    pub fn contradicts(&self, camera: &Camera) -> Option<String> {
        let background = camera.background?;
        let deviation = (background + camera.read_noise.powi(2)).sqrt() / BLOCK as f64;
        let limit = background - TOO_DARK * deviation;
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
            let dark = self.dark(&means, camera);
            format!(
                "the background of {background} electrons contradicts the image: {:.0} % of its blocks of 8 x 8 pixels have a mean below {limit:.2} electrons (half of those below {:.2}), where noise explains 2 %; what is dark would come back too bright: the darkest places have about {dark:.2} electrons, so say --background {dark:.2}, or leave it out; or check --offset and --gain",
                100.0 * share,
                means[darker / 2]
            )
        })
    }

    /// Electrons in the darkest places, from the means of blocks in rising order: the middle of the lowest tenth, less what
    /// noise alone takes from it.
    fn dark(&self, means: &[f64], camera: &Camera) -> f64 {
        let lowest = means[means.len() / 20];
        let deviation = (lowest.max(0.0) + camera.read_noise.powi(2)).sqrt() / BLOCK as f64;
        let share = (0.1 * means.len() as f64).min(1.0);
        (lowest + share * LOWEST_TENTH * deviation).max(0.0)
    }
}
