//! Errors of metrics, with the shapes and values concerned.

/// Why a metric could not be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MetricError {
    #[error("an image of shape {shape:?} was given where 2 or 3 axes are needed")]
    Rank { shape: Vec<usize> },
    #[error("a plane is needed, and the image has shape {shape:?}")]
    NotPlane { shape: Vec<usize> },
    #[error("an image of shape {shape:?} has no pixels")]
    Empty { shape: Vec<usize> },
    #[error("{got} values do not fill an image of shape {shape:?}")]
    Length { shape: Vec<usize>, got: usize },
    #[error("the {what} has shape {got:?}, and shape {expected:?} is needed")]
    Shape { what: &'static str, expected: Vec<usize>, got: Vec<usize> },
    #[error("the {what} has {got} values, and an image of shape {shape:?} needs one a pixel")]
    Pixels { what: &'static str, shape: Vec<usize>, got: usize },
    #[error("the mask leaves no pixel of an image of shape {shape:?}")]
    NothingCounts { shape: Vec<usize> },
    #[error("a crop of {crop:?} at each end leaves nothing of an image of shape {shape:?}")]
    Crop { shape: Vec<usize>, crop: Vec<usize> },
    #[error("a window of {window} does not fit an image of shape {shape:?}")]
    Window { window: usize, shape: Vec<usize> },
    #[error("{name} is {got}, and {needed} is needed")]
    Parameter { name: &'static str, got: f64, needed: &'static str },
    #[error("the {what} is {got} at pixel {index}, and {needed} is needed")]
    Pixel { what: &'static str, index: usize, got: f64, needed: &'static str },
    #[error("{got} values were given for {what}, and {needed} is needed")]
    Count { what: &'static str, got: usize, needed: &'static str },
}

/// `Ok` if the condition holds, otherwise the parameter's error.
pub(crate) fn require(
    holds: bool,
    name: &'static str,
    got: f64,
    needed: &'static str,
) -> Result<(), MetricError> {
    if holds { Ok(()) } else { Err(MetricError::Parameter { name, got, needed }) }
}

/// A finite number above zero.
pub(crate) fn require_positive(name: &'static str, got: f64) -> Result<(), MetricError> {
    require(got.is_finite() && got > 0.0, name, got, "a finite number above zero")
}
