//! Reports about finished images.

use clearshot_image::Axis;
use clearshot_physics::units::Regime;
use clearshot_restore::learned::precision::Settled;
use clearshot_restore::learned::residual::LeftOver;
use clearshot_restore::learned::{Camera, Choice, Forecast};
use serde::Serialize;
use std::path::PathBuf;

/// The report of a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The file that was read.
    pub input: PathBuf,
    /// Its images, in their order.
    pub images: Vec<ImageReport>,
}

impl Report {
    /// Whether all outputs already existed.
    pub fn is_already_done(&self) -> bool {
        self.images.iter().all(|i| i.status == Status::AlreadyDone)
    }
}

/// Whether an output was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// It was restored.
    #[default]
    Restored,
    /// The output already existed, made from the same input with the same settings.
    AlreadyDone,
}

/// The report of one image.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ImageReport {
    /// Its number in the file.
    pub item: usize,
    /// Whether it was restored.
    pub status: Status,
    /// The output; empty for arrays.
    pub output: PathBuf,
    /// All files written: the image first, then maps and samples.
    pub written: Vec<PathBuf>,
    /// The mask file, see [`crate::Settings::save_mask`].
    pub mask: Option<PathBuf>,
    /// The picture file, see [`crate::Settings::picture`].
    pub picture: Option<PathBuf>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Bytes of the measured pixels.
    pub bytes: usize,
    /// The number of restored planes, volumes or tiles.
    pub pieces: usize,
    /// Restored values clipped to the type of the output.
    pub clipped: usize,
    /// Invalid pixels that were filled in; classical restorers also count saturated ones.
    pub filled: usize,
    /// The number of objects, for segmentation into objects.
    pub objects: Option<usize>,
    /// The number of saturated pixels.
    pub saturated: usize,
    /// The mean of squared residuals divided by the noise variance: about 1 if only noise was removed.
    pub chi2: Option<f64>,
    /// The correlation of the residuals of neighbouring pixels.
    pub left_over: Option<LeftOver>,
    /// The camera used.
    pub camera: Option<Camera>,
    /// The binning factor, if the time limit was too short for every pixel.
    pub binning: Option<usize>,
    /// The signal level, if the camera is known.
    pub regime: Option<Regime>,
    /// The chosen mixture of methods, if there was a choice.
    pub choice: Option<Choice>,
    /// The combinations of colour samples that were restored together; empty if each sample was restored by itself.
    pub colours: Vec<ColourPart>,
    /// The chosen mixtures for frames of a movie, or planes of a stack, that were averaged with others.
    pub pooled: Vec<PooledChoice>,
    /// The axis along which frames are averaged: T of a movie, Z of a stack.
    pub along: Option<Axis>,
    /// The mean number of frames or planes averaged per pixel.
    pub exposures: Option<f64>,
    /// The precision chosen on a GPU, if it was automatic.
    pub precision: Option<Settled>,
    /// Tiles, batch and memory of the network.
    pub forecast: Option<Forecast>,
    /// Why the image is unlike the training images.
    pub unfamiliar: Option<String>,
    /// The factor on the standard deviation that gives 90 % intervals.
    pub interval_90: Option<f64>,
}

/// A combination of the samples of a colour image: brightness, or a colour difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColourPart {
    /// `brightness`, `red-blue` or `green-magenta`.
    pub name: &'static str,
    /// The camera estimated from it, in the unit of the combination.
    pub camera: Camera,
    /// The weights.
    pub choice: Option<Choice>,
}

/// The mixture chosen for averaged frames of a movie. They have less noise, so that it may differ from that of single
/// frames.
#[derive(Clone, Debug, PartialEq)]
pub struct PooledChoice {
    /// The number of frames averaged.
    pub exposures: f64,
    /// The weights.
    pub choice: Choice,
}
