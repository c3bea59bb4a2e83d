//! What is known of images when they are done.

use clearshot_image::Axis;
use clearshot_physics::units::Regime;
use clearshot_restore::learned::precision::Settled;
use clearshot_restore::learned::residual::LeftOver;
use clearshot_restore::learned::{Camera, Choice, Forecast};
use std::path::PathBuf;

/// What became of a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The file that was read.
    pub input: PathBuf,
    /// Its images, in their order.
    pub images: Vec<ImageReport>,
}

impl Report {
    /// Whether everything was there already.
    pub fn is_already_done(&self) -> bool {
        self.images.iter().all(|i| i.status == Status::AlreadyDone)
    }
}

/// Whether something was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// It was restored.
    #[default]
    Restored,
    /// The output was there already, made of the same input with the same settings.
    AlreadyDone,
}

/// What became of one image.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ImageReport {
    /// Its number in the file.
    pub item: usize,
    /// Whether it was restored.
    pub status: Status,
    /// The output; empty for arrays.
    pub output: PathBuf,
    /// Every file that was written: the image first, then maps and samples.
    pub written: Vec<PathBuf>,
    /// The mask that was written, see [`crate::Settings::save_mask`].
    pub mask: Option<PathBuf>,
    /// The picture that was written, see [`crate::Settings::picture`].
    pub picture: Option<PathBuf>,
    /// Time that it took.
    pub seconds: f64,
    /// Bytes of the measured pixels.
    pub bytes: usize,
    /// Planes, volumes or pieces that were restored.
    pub pieces: usize,
    /// Restored values that did not fit the output's type.
    pub clipped: usize,
    /// Pixels without a measurement that were filled; classical restorers count saturated ones too.
    pub filled: usize,
    /// Objects that were found, where images are segmented into them.
    pub objects: Option<usize>,
    /// Pixels at saturation.
    pub saturated: usize,
    /// The mean of squared residuals over the variance of the noise: about 1 where only noise is left over.
    pub chi2: Option<f64>,
    /// The correlation of neighbours in what is left over.
    pub left_over: Option<LeftOver>,
    /// The camera that it was restored with.
    pub camera: Option<Camera>,
    /// Pixels along a side of the blocks whose means were restored, where the budget of time had no room for every pixel.
    pub binning: Option<usize>,
    /// How much light there is, where the camera is known.
    pub regime: Option<Regime>,
    /// What it was restored by, where that is a choice.
    pub choice: Option<Choice>,
    /// What restored frames of a movie, or planes of a stack, that were averaged with others.
    pub pooled: Vec<PooledChoice>,
    /// The axis along which frames help each other: T of a movie, Z of a stack.
    pub along: Option<Axis>,
    /// From how many frames or planes a pixel was restored in the mean.
    pub exposures: Option<f64>,
    /// What a GPU computed in, where that was left open.
    pub precision: Option<Settled>,
    /// Tiles, batch and memory of the network.
    pub forecast: Option<Forecast>,
    /// Why the image is unlike those that the model was trained on.
    pub unfamiliar: Option<String>,
    /// Standard deviations to either side that contain the truth nine times in ten.
    pub interval_90: Option<f64>,
}

/// What restored frames of a movie that were averaged: there is less noise in them, so that it may be something else than for
/// one.
#[derive(Clone, Debug, PartialEq)]
pub struct PooledChoice {
    /// Frames of a mean.
    pub exposures: f64,
    /// The weights.
    pub choice: Choice,
}
