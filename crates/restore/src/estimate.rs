//! Estimates the noise of an image file from crops all over the file. All commands use this module.

use crate::frame::LARGEST;
use crate::learned::Camera;
use crate::stream::{Frames, StreamError};
use clearshot_image::grid::Region;
use clearshot_image::{Axis, Image};
use clearshot_physics::calibration::blind::{self, BlindFit, Known};
use clearshot_physics::calibration::measurement::{self, CameraMeasurement};
use clearshot_physics::{Adu, PhysicsError};
use std::ops::Range;

/// The side of a crop, and how many are taken.
const SIDE: usize = 512;
const CROPS: usize = 16;
/// Crops of several files together.
const MOST_CROPS: usize = 64;

/// Why there is no estimate.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(
        "the noise cannot be estimated from the image: {0}; give it (a gain, an offset and a read noise, or a sigma)"
    )]
    Physics(#[from] PhysicsError),
    #[error("{0}")]
    Mask(String),
}

impl From<clearshot_image::Error> for EstimateError {
    fn from(e: clearshot_image::Error) -> EstimateError {
        EstimateError::Stream(e.into())
    }
}

/// The invalid pixels of a region with this number of pixels; `None` if all are valid.
pub type Marks<'m> = dyn Fn(&Region, usize) -> Result<Option<Vec<bool>>, String> + 'm;

/// The camera estimated from the pixels of a file, except marked ones.
///
/// # Errors
/// If the file or its marks cannot be read, it has no planes of Y and X, or too few smooth regions.
pub fn camera_of(image: &Image, known: &Known, marks: &Marks<'_>) -> Result<BlindFit, EstimateError> {
    let _estimating = clearshot_timeline::span(clearshot_timeline::Phase::Estimating);
    let side = side_of(image)?;
    let crops = crops(image, side, CROPS, marks)?;
    let views: Vec<Adu<&[f32]>> = crops.iter().map(|c| Adu(&c[..])).collect();
    Ok(blind::estimate(&views, side, known)?)
}

/// The camera estimated from the pixels of several files together.
///
/// # Errors
/// If a file cannot be read or has no planes of Y and X, or there are too few smooth regions in all of them.
pub fn measure(images: &[Image], known: &Known) -> Result<CameraMeasurement, EstimateError> {
    let _estimating = clearshot_timeline::span(clearshot_timeline::Phase::Estimating);
    let mut side = [SIDE; 2];
    for image in images {
        let own = side_of(image)?;
        side = [side[0].min(own[0]), side[1].min(own[1])];
    }
    let each = (MOST_CROPS / images.len().max(1)).clamp(1, CROPS);
    let mut all = Vec::new();
    for image in images {
        all.extend(crops(image, side, each, &|_, _| Ok(None))?);
    }
    let views: Vec<Adu<&[f32]>> = all.iter().map(|c| Adu(&c[..])).collect();
    Ok(measurement::from_single(&views, side, known)?)
}

/// The side of the crops of a file.
fn side_of(image: &Image) -> Result<[usize; 2], EstimateError> {
    let size = Frames::of(&image.description, false)?.size();
    Ok([size[0].min(SIDE), size[1].min(SIDE)])
}

/// So many crops at most, all over a file; marked pixels are NaN.
fn crops(
    image: &Image,
    side: [usize; 2],
    most: usize,
    marks: &Marks<'_>,
) -> Result<Vec<Vec<f32>>, EstimateError> {
    image.check_single()?;
    let frames = Frames::of(&image.description, false)?;
    let mut planes = frames.regions();
    // A second or fourth sample of a pixel is its transparency, which has no noise.
    if let Some(samples) = image.description.position(Axis::S) {
        let len = image.description.dims[samples].len;
        planes.retain(|p| !matches!(len, 2 | 4) || p[samples].start + 1 < len);
    }
    let size = frames.size();
    // As many crops of a plane as have room in it, and then as many planes.
    let along = (most as f64).sqrt() as usize;
    let room = [size[0] / side[0], size[1] / side[1]].map(|n| n.min(along.max(1)));
    let each = (room[0] * room[1]).min(most);
    let count = planes.len().min((most / each).max(1));
    let mut crops = Vec::new();
    for p in 0..count {
        // In the middle of equal parts of the file.
        let plane = &planes[(2 * p + 1) * planes.len() / (2 * count)];
        for y in 0..room[0] {
            for x in 0..room[1] {
                let start =
                    |i: usize, axis: usize| (2 * i + 1) * (size[axis] - side[axis]) / (2 * room[axis]);
                let region = crop(&frames, plane, [start(y, 0), start(x, 1)], side);
                let mut values = image.read_f32(&region)?;
                if let Some(marks) = marks(&region, values.len()).map_err(EstimateError::Mask)? {
                    values
                        .iter_mut()
                        .zip(marks)
                        .filter(|(_, marked)| *marked)
                        .for_each(|(v, _)| *v = f32::NAN);
                }
                check_largest(&values)?;
                crops.push(values);
            }
        }
    }
    Ok(crops)
}

/// Refuses values whose variances leave the range of numbers of 32 bits.
pub(crate) fn check_largest(values: &[f32]) -> Result<(), EstimateError> {
    match values.iter().find(|v| v.is_finite() && v.abs() > LARGEST) {
        None => Ok(()),
        Some(&got) => {
            let (name, needed) = ("a value of the image", "at most 1e15 (scale the image)");
            Err(PhysicsError::Parameter { name, got: got.into(), needed }.into())
        }
    }
}

/// An estimate in the form of a camera for restorers; the background remains to be estimated.
pub fn as_camera(fit: &BlindFit) -> Camera {
    Camera {
        gain: fit.gain,
        offset: fit.offset,
        read_noise: fit.read_noise,
        background: None,
        correlation: fit.correlation,
    }
}

fn crop(frames: &Frames, plane: &[Range<usize>], start: [usize; 2], side: [usize; 2]) -> Vec<Range<usize>> {
    let mut region = plane.to_vec();
    for (k, &axis) in frames.inner().iter().enumerate() {
        region[axis] = start[k]..start[k] + side[k];
    }
    region
}
