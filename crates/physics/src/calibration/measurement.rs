//! A measured camera: the parameters for restorers with their uncertainties, and further findings.

use super::blind::{self, BlindFit, Known};
use super::ends::Ends;
use super::stripes::{Lines, lines};
use crate::error::PhysicsError;
use crate::units::Adu;
use serde::Serialize;

/// The images from which a camera was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Single images: noise is separated from structure by its spectrum.
    Single,
    /// Several frames of one scene: differences are noise.
    Repeats,
    /// Frames of a scene with motion and bleaching: differences of neighbouring frames in static regions.
    Movie,
    /// Flat fields at one or several levels: the photon transfer curve.
    Flats,
}

/// See the module. Counts are ADU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CameraMeasurement {
    pub source: Source,
    /// The number of frames or crops used, and their total number of pixels.
    pub frames: usize,
    pub pixels: usize,
    pub fit: BlindFit,
    pub ends: Ends,
    /// Offsets of rows and columns that change from frame to frame. They are part of the read noise.
    pub changing_stripes: Option<Lines>,
    /// Stripes that are the same in all frames.
    pub fixed_stripes: Option<Lines>,
    /// Stripes of a single image, which may be either.
    pub stripes: Option<Lines>,
    pub pattern: Option<FixedPattern>,
}

/// The pattern that is the same in every frame and not part of the scene.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FixedPattern {
    /// The standard deviation of the pixels' offsets in ADU, from darks.
    pub offset: Option<f64>,
    /// The share of pixels whose offset is far from the others'.
    pub hot: Option<f64>,
    /// The relative standard deviation of the pixels' sensitivities, from flats.
    pub sensitivity: Option<f64>,
}

/// The camera from planes (or crops) of one size, all taken with it: [`blind::estimate`] and further findings.
///
/// # Errors
/// As [`blind::estimate`].
pub fn from_single(
    planes: &[Adu<&[f32]>],
    shape: [usize; 2],
    known: &Known,
) -> Result<CameraMeasurement, PhysicsError> {
    let fit = blind::estimate(planes, shape, known)?;
    let views: Vec<&[f32]> = planes.iter().map(|p| p.0).collect();
    Ok(CameraMeasurement {
        source: Source::Single,
        frames: planes.len(),
        pixels: planes.len() * shape[0] * shape[1],
        fit,
        ends: Ends::of(planes),
        changing_stripes: None,
        fixed_stripes: None,
        stripes: lines(&views, shape, 1.0, [0.0; 2]),
        pattern: None,
    })
}
