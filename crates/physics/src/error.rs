//! Errors of the physics, with the refused values and shapes.

use clearshot_tensor::{DType, Shape};

/// Why a calibration, a PSF, an operator or a noise sample cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PhysicsError {
    #[error("{name} is {got}, and {needed} is needed")]
    Parameter { name: &'static str, got: f64, needed: &'static str },
    #[error("{name} is {got} at pixel {index}, and {needed} is needed")]
    Pixel { name: &'static str, index: usize, got: f64, needed: &'static str },
    #[error("{what} has {got} values, and {needed} are needed")]
    Length { what: &'static str, got: usize, needed: usize },
    #[error("{what} has shape {got}, and {needed} is needed")]
    Shape { what: &'static str, got: Shape, needed: String },
    #[error(
        "a PSF of {psf} pixels does not fit an image of {image}; crop the PSF to the image's size where that loses next to no light, or take a larger image"
    )]
    PsfTooLarge { psf: Shape, image: Shape },
    #[error(
        "{percent:.0} % of the light of a Gaussian PSF of {psf} pixels would lie outside an image of {image}; give its standard deviation in pixels of this image, or take a larger image"
    )]
    PsfMisses { psf: Shape, image: Shape, percent: f64 },
    #[error(
        "a measured PSF of {dtype} values: 8 bits do not hold the tails of a PSF; give the 16-bit or float stack"
    )]
    EightBitPsf { dtype: DType },
    #[error("the PSF has no light: {reason}")]
    DarkPsf { reason: &'static str },
    #[error("an operator that gives {gives} cannot be followed by one that takes {takes}")]
    Chain { gives: Shape, takes: Shape },
    #[error("no {kind} is called `{name}`; there are: {known}")]
    Unknown { kind: &'static str, name: String, known: String },
    #[error("{got} {what}, and at least {needed} are needed")]
    TooFew { what: &'static str, got: usize, needed: usize },
    #[error(
        "the light in the frames has the ratio {measured:.4}, and {assumed:.4} was given: more than {percent} % apart"
    )]
    Exposure { assumed: f64, measured: f64, percent: f64 },
}

/// `Ok` if the condition holds, otherwise the parameter's error.
pub(crate) fn require(
    holds: bool,
    name: &'static str,
    got: f64,
    needed: &'static str,
) -> Result<(), PhysicsError> {
    if holds { Ok(()) } else { Err(PhysicsError::Parameter { name, got, needed }) }
}

pub(crate) const ABOVE_ZERO: &str = "a finite number above zero";
pub(crate) const NOT_BELOW_ZERO: &str = "a finite number not below zero";

pub(crate) fn require_positive(name: &'static str, got: f64) -> Result<(), PhysicsError> {
    require(got.is_finite() && got > 0.0, name, got, ABOVE_ZERO)
}

pub(crate) fn require_length(what: &'static str, got: usize, needed: usize) -> Result<(), PhysicsError> {
    if got == needed { Ok(()) } else { Err(PhysicsError::Length { what, got, needed }) }
}
