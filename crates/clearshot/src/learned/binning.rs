//! Binned images, for time limits that are too short for all pixels (if binning is allowed): means over blocks of 2 x 2
//! pixels or more, with a correspondingly larger pixel size.
//!
//! Rows and columns at the far edges that do not fill a block are left out, as in binning by a microscope. A block with
//! a saturated pixel is saturated, and a block without valid pixels is invalid.

use super::budget::{Verdict, verdict};
use super::engine::Engine;
use crate::camera::KnownCamera;
use crate::error::{Error, Result};
use crate::items::Spot;
use crate::notice::Notice;
use crate::observer::Ear;
use crate::settings::Settings;
use crate::target::as_float;
use clearshot_image::{Axis, DType, Description, Image};
use clearshot_restore::learned::Camera;

/// Sides of blocks that are tried, the smallest that fits being taken.
const SIDES: [usize; 3] = [2, 4, 8];
/// Pixels along a side that are left at least.
const LEAST: usize = 16;

/// A binned image.
pub struct Binned {
    pub image: Image,
    /// Pixels along a side of a block.
    pub side: usize,
}

impl Settings {
    /// The same for means over blocks of pixels: what is known of the camera is that of such means.
    pub(crate) fn binned(&self, side: usize) -> Settings {
        let known = self.camera;
        let camera = Camera {
            gain: known.gain.unwrap_or(1.0),
            correlation: known.correlation.unwrap_or_default(),
            ..Camera::default()
        };
        let binned = camera.binned(side);
        let factor = binned.gain / camera.gain;
        let camera = KnownCamera {
            gain: known.gain.map(|g| g * factor),
            read_noise: known.read_noise.map(|r| r * factor.sqrt()),
            background: known.background.map(|b| b * factor),
            dark: known.dark.map(|d| d * factor),
            correlation: known.correlation.map(|_| binned.correlation),
            ..known
        };
        Settings { camera, ..self.clone() }
    }
}

/// The description of a binned image: floats, with a larger pixel size. `None` if too few pixels would be left.
pub fn description(d: &Description, side: usize) -> Option<Description> {
    let mut made = as_float(d);
    for axis in [Axis::Y, Axis::X] {
        let dim = &mut made.dims[d.position(axis)?];
        dim.len /= side;
        dim.step = dim.step.map(|step| step * side as f64);
        if dim.len < LEAST {
            return None;
        }
    }
    made.levels = vec![made.shape()];
    // What the file's own format keeps speaks of the pixels as they were.
    made.native = None;
    made.tag("binning", format!("{side} x {side}"));
    Some(made)
}

/// The image binned as far as the time limit requires; `None` if the limit allows all pixels, or binning is not
/// allowed.
///
/// # Errors
/// If no binned image fits, the image cannot be binned, or the device fails.
pub fn within_budget(
    engine: &mut Engine,
    settings: &Settings,
    image: &Image,
    spot: &Spot,
    saturation: Option<f32>,
    ear: &mut Ear<'_>,
) -> Result<Option<Binned>> {
    let d = &image.description;
    if !settings.allow_binning {
        return Ok(None);
    }
    let Verdict::TooLong { seconds, .. } = verdict(engine, settings, d)? else { return Ok(None) };
    if d.mosaic.is_some() || spot.is_shared {
        let why = "an image with a pattern of colour filters, or one of several of a file, cannot be binned; leave it out";
        return Err(Error::setting("allow_binning", why));
    }
    for side in SIDES {
        let Some(smaller) = description(d, side) else { break };
        if matches!(verdict(engine, settings, &smaller)?, Verdict::TooLong { .. }) {
            continue;
        }
        let (from, to) = (plane(d), plane(&smaller));
        ear.notice(Notice::Binned {
            side,
            from,
            to,
            seconds,
            budget: settings.max_seconds.unwrap_or(seconds),
        })?;
        let image = means(image, smaller, side, saturation)?;
        return Ok(Some(Binned { image, side }));
    }
    // Restoring says what it would take.
    Ok(None)
}

/// The lengths along Y and X.
fn plane(d: &Description) -> [usize; 2] {
    [Axis::Y, Axis::X].map(|axis| d.dim(axis).map_or(1, |dim| dim.len))
}

/// The means over blocks of an image, read a part at a time.
fn means(image: &Image, smaller: Description, side: usize, saturation: Option<f32>) -> Result<Image> {
    let d = &image.description;
    let place = |axis: Axis| d.position(axis).unwrap_or(0);
    let (y, x) = (place(Axis::Y), place(Axis::X));
    let first = y.min(x);
    let (shape, to) = (d.shape(), smaller.shape());
    let outer: usize = shape[..first].iter().product();
    let inner: usize = to[first..].iter().product();
    let mut bytes = Vec::with_capacity(outer * inner * DType::F32.bytes());
    for number in 0..outer {
        let mut rest = number;
        let mut region: Vec<std::ops::Range<usize>> = shape.iter().map(|&n| 0..n).collect();
        for a in (0..first).rev() {
            region[a] = rest % shape[a]..rest % shape[a] + 1;
            rest /= shape[a];
        }
        let values = image.read_f64(&region)?;
        let part =
            block_means(&values, &shape[first..], &to[first..], [y - first, x - first], side, saturation);
        DType::F32.encode(&part, &mut bytes);
    }
    Ok(Image::in_memory(smaller, bytes)?)
}

/// The means over blocks of an array along two of its axes, of shape `to`.
fn block_means(
    values: &[f64],
    from: &[usize],
    to: &[usize],
    along: [usize; 2],
    side: usize,
    saturation: Option<f32>,
) -> Vec<f64> {
    let count: usize = to.iter().product();
    let (mut sums, mut counts, mut full) = (vec![0.0; count], vec![0usize; count], vec![false; count]);
    let mut index = vec![0; from.len()];
    for &v in values {
        let coarse = |a: usize| if along.contains(&a) { index[a] / side } else { index[a] };
        if (0..to.len()).all(|a| coarse(a) < to[a]) {
            let at = (0..to.len()).fold(0, |at, a| at * to[a] + coarse(a));
            if v.is_finite() {
                sums[at] += v;
                counts[at] += 1;
                full[at] |= saturation.is_some_and(|limit| v >= f64::from(limit));
            }
        }
        for a in (0..from.len()).rev() {
            index[a] += 1;
            if index[a] < from[a] {
                break;
            }
            index[a] = 0;
        }
    }
    let mean = |at: usize| match (full[at], saturation) {
        (true, Some(limit)) => f64::from(limit),
        _ if counts[at] == 0 => f64::NAN,
        _ => sums[at] / counts[at] as f64,
    };
    (0..count).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_averaged_along_their_axes() {
        // Two channels last, and a column that fills no block.
        let values: Vec<f64> = (0..2 * 5 * 2).map(f64::from).collect();
        let made = block_means(&values, &[2, 5, 2], &[1, 2, 2], [0, 1], 2, None);
        assert_eq!(made, [6.0, 7.0, 10.0, 11.0]);
        let holes = [1.0, f64::NAN, 3.0, f64::INFINITY, f64::NAN, f64::NAN, 7.0, f64::NAN];
        let made = block_means(&holes, &[2, 4], &[1, 2], [0, 1], 2, None);
        assert!(made[0] == 1.0 && made[1] == 5.0, "{made:?}");
        assert!(block_means(&[f64::NAN; 4], &[2, 2], &[1, 1], [0, 1], 2, None)[0].is_nan());
        // A saturated pixel saturates its block.
        assert_eq!(block_means(&[1.0, 9.0, 1.0, 1.0], &[2, 2], &[1, 1], [0, 1], 2, Some(9.0)), [9.0]);
    }
}
