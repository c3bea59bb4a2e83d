//! The background of an image from a file: frames of an empty field, taken by the same camera at the same exposure.
//!
//! The background is the signal without an object: stray light, autofluorescence of the medium, dark current. An uneven
//! background cannot be described by one number. Richardson-Lucy includes the map in its model of the measurement. A
//! trained model restores object and background together, and the uneven part is subtracted from the result, so that
//! its background equals the mean of the file everywhere.

use crate::error::{Error, Result};
use clearshot_image::grid::{Region, strides};
use clearshot_image::{Axis, Description, Image};
use clearshot_restore::stream::Frames;
use std::path::Path;

/// Counts of the background at each pixel of a plane.
pub struct BackgroundMap {
    counts: Vec<f32>,
    mean: f64,
    /// The positions of Y and X among the image's axes, and the columns of a plane.
    axes: [usize; 2],
    width: usize,
}

impl BackgroundMap {
    /// The mean of all planes of a file, for an image of the same Y and X.
    ///
    /// # Errors
    /// If the file cannot be read, has other Y and X, or a pixel is finite in none of its planes.
    pub fn open(path: &Path, of: &Description) -> Result<BackgroundMap> {
        let blank = Image::open(path)?;
        let refused = |why: String| Error::Unsuited(format!("{}: {why}", path.display()));
        let size = |d: &Description| [Axis::Y, Axis::X].map(|a| d.dim(a).map_or(0, |dim| dim.len));
        let (own, needed) = (size(&blank.description), size(of));
        let (Some(y), Some(x)) = (of.position(Axis::Y), of.position(Axis::X)) else {
            return Err(refused(format!("an image of axes {} has no background map", of.axes())));
        };
        if own != needed {
            return Err(refused(format!(
                "a background of {} x {} pixels for an image of {} x {}: both must be of one camera and one crop",
                own[0], own[1], needed[0], needed[1]
            )));
        }
        let (mut sums, mut finite) = (vec![0.0f64; own[0] * own[1]], vec![0u32; own[0] * own[1]]);
        for region in Frames::of(&blank.description, false)?.regions() {
            for (i, value) in blank.read_f64(&region)?.into_iter().enumerate().filter(|(_, v)| v.is_finite())
            {
                sums[i] += value;
                finite[i] += 1;
            }
        }
        if let Some(i) = finite.iter().position(|&n| n == 0) {
            let (row, column) = (i / own[1], i % own[1]);
            return Err(refused(format!("row {row}, column {column} is not finite in any of its planes")));
        }
        let counts: Vec<f32> = sums.iter().zip(&finite).map(|(s, &n)| (s / f64::from(n)) as f32).collect();
        let mean = counts.iter().map(|&v| f64::from(v)).sum::<f64>() / counts.len() as f64;
        Ok(BackgroundMap { counts, mean, axes: [y, x], width: own[1] })
    }

    /// Mean counts.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Counts at each value of a region of the image, in the region's order.
    pub fn of(&self, region: &Region) -> Vec<f32> {
        let lengths: Vec<usize> = region.iter().map(|r| r.len()).collect();
        let step = strides(&lengths);
        let along = |i: usize, axis: usize| region[axis].start + i / step[axis] % lengths[axis];
        let [y, x] = self.axes;
        let pixels = 0..lengths.iter().product::<usize>();
        pixels.map(|i| self.counts[along(i, y) * self.width + along(i, x)]).collect()
    }

    /// Subtracts the uneven part from planes of (Z,) Y, X and channels.
    pub fn level(&self, values: &mut [f32], channels: usize) {
        let planes = values.chunks_exact_mut(self.counts.len() * channels);
        for (pixel, counts) in planes.flat_map(|p| p.chunks_exact_mut(channels).zip(&self.counts)) {
            let above = (f64::from(*counts) - self.mean) as f32;
            pixel.iter_mut().for_each(|v| *v -= above);
        }
    }
}
