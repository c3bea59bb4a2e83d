//! Why there is no restored image.

use clearshot_diffusion::trace::first_not_finite;
use clearshot_graph::Graph;
use clearshot_graph::plan::human;
use clearshot_model::MissingCondition;
use clearshot_runtime::Session;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Classical(#[from] crate::RestoreError),
    #[error(
        "{} of working space in {}: {source}; make room there, or name another folder",
        human(*bytes), folder.display()
    )]
    Scratch { folder: PathBuf, bytes: usize, source: std::io::Error },
    #[error("the model has no weights called `{name}`")]
    NoWeight { name: String },
    #[error(
        "the network made {value} at noise level {sigma} in tile {tile:?}, {origin}; the model is damaged, or the image is nothing like what it was trained on"
    )]
    NonFinite { value: f32, tile: Vec<usize>, sigma: f64, origin: String },
    #[error("step {step} of {steps}: {source}")]
    Step { step: usize, steps: usize, source: Box<Error> },
    #[error(
        "a learned variance is used where one tile holds the image and nothing guides, begins or keeps samples; leave `learned` out of the sampler, crop the image or allow more memory"
    )]
    LearnedVariance,
    #[error(
        "the smallest tile takes {} and {} may be used; allow more memory, or use a smaller model",
        human(*needed), human(*limit)
    )]
    NoRoom { needed: usize, limit: usize },
    #[error(
        "the law `{law}` differentiates the network over the whole image, which must fit one tile, and {why}; choose another law, such as proximal, crop the image, or \
         allow more memory"
    )]
    Through { law: &'static str, why: &'static str },
    #[error(
        "the law `{law}` differentiates the network over the image and {margin} reflected pixels around it, which an image of {size:?} pixels does not have; choose another law, such as \
         proximal, or take a larger image"
    )]
    TooSmall { law: &'static str, margin: usize, size: Vec<usize> },
    #[error(
        "every pixel of the image holds a measurement: inpainting needs pixels to fill, which a mask or NaN marks"
    )]
    NothingToInpaint,
    #[error(
        "the correction by the measurement made {value} at noise level {sigma}, {origin}; choose another law, such as proximal"
    )]
    Diverged { value: f32, sigma: f64, origin: String },
    #[error("{missing}")]
    ConditionMissing { missing: MissingCondition },
    #[error("what the model is conditioned on does not fit it: {what}")]
    Condition { what: String },
    #[error("the device gave {what}")]
    Answer { what: String },
    #[error("an image of {size:?} pixels: a plane or a volume with pixels is needed")]
    Size { size: Vec<usize> },
    #[error("{what}")]
    Read { what: String },
    #[error("{missing} of {pixels} pixels are NaN, infinite or masked: too few are left to restore from")]
    Missing { missing: usize, pixels: usize },
    #[error("{name} is {got}, and {needed} is needed")]
    Number { name: &'static str, got: f64, needed: &'static str },
    #[error("the model restores images of {needed} channel{}, and this one has {got}", if *needed == 1 { "" } else { "s" })]
    Channels { needed: usize, got: usize },
    #[error("the model restores {needed}, and this image has {got} spatial axes")]
    Axes { needed: &'static str, got: usize },
    #[error("{what} needs the camera's gain, offset and read noise, which were not given")]
    NoCamera { what: &'static str },
    #[error("the model `{model}` is {is}: {reason}")]
    Task { model: String, is: &'static str, reason: &'static str },
    #[error("{what} `{got}`: {known}")]
    Unknown { what: &'static str, got: String, known: String },
    #[error("images of {first:?} and {other:?} pixels cannot be restored at once")]
    Mixed { first: Vec<usize>, other: Vec<usize> },
    #[error("a PSF of {got} axes, where the restorer was made for another number of them or for none")]
    Psf { got: usize },
    #[error("stopped")]
    Stopped,
    #[error(transparent)]
    Diffusion(#[from] clearshot_diffusion::Error),
    #[error(transparent)]
    Model(#[from] clearshot_model::ModelError),
    #[error(transparent)]
    Physics(#[from] clearshot_physics::PhysicsError),
}

impl Error {
    /// With the step at which values stopped being finite.
    pub(super) fn at_step(self, step: usize, steps: usize) -> Error {
        match self {
            Error::NonFinite { .. } | Error::Diverged { .. } => {
                Error::Step { step, steps, source: self.into() }
            }
            other => other,
        }
    }
}

/// Where values that are not finite came from, in words.
pub(super) fn origin(graph: &Graph, session: &Session) -> String {
    match first_not_finite(graph, session) {
        Ok(Some(found)) => found,
        Ok(None) => "though not when it was asked again".into(),
        Err(e) => format!("and the op could not be found: {e}"),
    }
}
