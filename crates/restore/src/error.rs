//! Errors of classical restorers, with the given shapes and values.

use clearshot_physics::PhysicsError;

/// Why there is no restored image.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RestoreError {
    #[error("an image of shape {shape:?}: a plane [y, x] or a volume [z, y, x] with pixels is needed")]
    Shape { shape: Vec<usize> },
    #[error("{got} values for an image of shape {shape:?}, which has {needed} pixels")]
    Length { shape: Vec<usize>, got: usize, needed: usize },
    #[error("the image is {got} at pixel {index}; mask or fill pixels that are not finite before restoring")]
    Pixel { index: usize, got: f32 },
    #[error("{name} is {got}, and {needed} is needed")]
    Parameter { name: &'static str, got: f64, needed: &'static str },
    #[error("a PSF of {psf} axes for an image of {image}: give a PSF with the image's axes")]
    PsfAxes { psf: usize, image: usize },
    #[error("no method is called '{name}'; there are {known}")]
    Method { name: String, known: String },
    #[error("{method} has no setting '{key}'; did you mean '{nearest}'? There are {known}")]
    Setting { method: &'static str, key: String, nearest: &'static str, known: String },
    #[error("{key} of {method} is {got}, and {needed} is needed")]
    SettingValue { method: &'static str, key: &'static str, got: String, needed: &'static str },
    #[error(transparent)]
    Physics(#[from] PhysicsError),
}

pub(crate) fn require(
    holds: bool,
    name: &'static str,
    got: f64,
    needed: &'static str,
) -> Result<(), RestoreError> {
    if holds { Ok(()) } else { Err(RestoreError::Parameter { name, got, needed }) }
}

pub(crate) fn require_positive(name: &'static str, got: f64) -> Result<(), RestoreError> {
    require(got.is_finite() && got > 0.0, name, got, "a finite number above zero")
}

pub(crate) fn require_not_negative(name: &'static str, got: f64) -> Result<(), RestoreError> {
    require(got.is_finite() && got >= 0.0, name, got, "a finite number not below zero")
}
