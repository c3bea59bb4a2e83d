//! Notices about an image or its result, as values that callers can distinguish and print.
//!
//! The texts do not mention options: a caller with options or buttons for the advice adds their names.

use crate::camera::Estimated;
use clearshot_image::Axis;
use clearshot_physics::psf::Fitted;
use clearshot_restore::classical::richardson_lucy::Stop;
use clearshot_restore::learned::residual::LeftOver;
use clearshot_runtime::Precision;
use clearshot_tensor::Shape;
use std::fmt;
use std::path::PathBuf;

/// A notice about an image or its result. `to_string` gives its text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// A notice of the file reader.
    File(String),
    /// The camera, or the noise, was estimated from the image.
    Estimated(Box<Estimated>),
    /// Pixels pile up at this value, which is treated as saturation.
    PilesUp(f64),
    /// The time limit allows fewer steps than requested.
    FewerSteps {
        /// The requested number of steps.
        asked: usize,
        /// Steps that are taken.
        steps: usize,
        /// The seconds that the network would take with the requested steps.
        seconds: f64,
        /// What it may take.
        budget: f64,
    },
    /// The time limit is too short for every pixel: the image is binned.
    Binned {
        /// The binning factor.
        side: usize,
        /// Rows and columns of the file.
        from: [usize; 2],
        /// Rows and columns of the result.
        to: [usize; 2],
        /// The seconds without binning.
        seconds: f64,
        /// What it may take.
        budget: f64,
    },
    /// The model is conditioned on a class or a context, but none is given: the classes that it knows.
    WithoutClass(Vec<String>),
    /// The share of saturated pixels, and the smallest saturated value.
    Saturated {
        /// Of all pixels.
        share: f64,
        /// In the file's unit.
        limit: f32,
    },
    /// The image uses only a small part of the range of values that the model was trained on.
    FaintForModel {
        /// The largest value of the image.
        greatest: f64,
        /// The model's range.
        range: [f64; 2],
    },
    /// An 8-bit colour image, whose values are not photon counts.
    ProcessedColours,
    /// Transparency is copied.
    TransparencyCopied,
    /// Planes along an unnamed axis are restored one by one.
    UnnamedAxis {
        /// Its letter.
        letter: char,
        /// How many planes.
        planes: usize,
        /// The file's axes.
        axes: String,
    },
    /// Much of the image is darker than the given background.
    Background {
        /// As given, in electrons.
        given: f64,
        /// The share of blocks that are too dark, and the threshold.
        share: f64,
        /// In electrons.
        limit: f64,
        /// The median of those that are too dark.
        median: f64,
        /// The level of the darkest regions.
        dark: f64,
    },
    /// The PSF is larger than the image and was cropped.
    PsfCut {
        /// The PSF as used, and the share of its light outside the image.
        fitted: Fitted,
        /// The size of the given PSF; `None` if it was computed.
        given: Option<Shape>,
    },
    /// The PSF has another pixel size, and was resampled to that of the image.
    PsfRescaled {
        /// Its pixel sizes in nanometres, along (Z,) Y and X.
        from: Vec<f64>,
        /// Those of the image.
        to: Vec<f64>,
    },
    /// One of several images is restored, and the writer keeps the others.
    OthersCopied,
    /// Each of several images becomes a separate file.
    FilesApart {
        /// How many.
        count: usize,
        /// The output, which cannot contain them all.
        output: PathBuf,
        /// The file of the first.
        first: PathBuf,
    },
    /// Images that contain masks, errors or weights instead of intensities.
    NoLight {
        /// Their names.
        names: Vec<String>,
        /// Whether they are copied; otherwise they are left out.
        copied: bool,
    },
    /// The network has no limited receptive field, so that the result depends on the tile size.
    DependsOnTile,
    /// The network has no convolutions that compute in the requested 8 bits on this device.
    Precision {
        /// The requested precision.
        asked: Precision,
        /// What it computes in.
        ran: Precision,
    },
    /// The image is unlike the training images: in which property.
    Unfamiliar(String),
    /// Planes that an interrupted run had already restored.
    Resumed {
        /// So many.
        found: usize,
        /// Of so many.
        all: usize,
    },
    /// When the iterations of a method stop, the same for all tiles of the image.
    Steps(Stop),
    /// Invalid pixels that were filled in.
    Filled(usize),
    /// Values clipped to the type of the output.
    Clipped {
        /// How many.
        count: usize,
        /// The type.
        dtype: &'static str,
    },
    /// A movie (along T) whose static regions were averaged over frames, or a stack (along Z) whose planes were
    /// averaged where they agree.
    FramesAveraged {
        /// T or Z.
        along: Axis,
        /// The mean number of frames per pixel.
        mean: f64,
    },
    /// A movie or a stack whose frames are restored alone.
    FramesAlone {
        /// T or Z.
        along: Axis,
        /// The mean number of frames per pixel: about one.
        mean: f64,
    },
    /// A colour image whose samples are restored together.
    Colours,
    /// A movie whose frames are treated as single images, although frames together determine the noise better.
    FramesAsSingle,
    /// chi2 far from 1.
    Chi2(f64),
    /// Correlated residuals of neighbouring pixels.
    LeftOver(LeftOver),
}

fn nanometres(sizes: &[f64]) -> String {
    sizes
        .iter()
        .map(|s| format!("{s:.4}").trim_end_matches('0').trim_end_matches('.').to_string())
        .collect::<Vec<_>>()
        .join(" x ")
}

/// If chi2 is outside this range, the camera parameters do not fit the image.
pub(crate) const EXPLAINED: std::ops::Range<f64> = 0.4..2.0;

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::File(text) => f.write_str(text),
            Notice::Estimated(estimated) => estimated.fmt(f),
            Notice::PilesUp(full) => write!(f, "many pixels have the value {full}: they are treated as saturated"),
            Notice::FewerSteps { asked, steps, seconds, budget } => write!(
                f,
                "{asked} steps would take {seconds:.1} s, and {budget} s are allowed: samples take {steps} steps"
            ),
            Notice::Binned { side, from, to, seconds, budget } => write!(
                f,
                "all pixels would take {seconds:.1} s, and {budget} s are allowed: binned {side} x {side}, from {} x {} to {} x {} pixels, each {side} times as large; written as 32-bit floats",
                from[0], from[1], to[0], to[1]
            ),
            Notice::WithoutClass(classes) => write!(
                f,
                "the model is conditioned on the class of an image, and none is given: it is restored without one; the classes are {}",
                classes.join(", ")
            ),
            Notice::Saturated { share, limit } => write!(
                f,
                "{:.1} % of the pixels are saturated (value {limit}): they are estimated from their neighbours and from being at the limit",
                100.0 * share
            ),
            Notice::FaintForModel { greatest, range: [low, high] } => write!(
                f,
                "its values reach only {greatest}, and the model was trained on values from {low} to {high}: the image is nearly black to it; convert the image first"
            ),
            Notice::ProcessedColours => f.write_str(
                "an 8-bit colour image: its values were processed for viewing and are not photon counts, so be careful with the result",
            ),
            Notice::UnnamedAxis { letter, planes, .. } => write!(
                f,
                "{planes} planes along an axis without a name ({letter}) are restored one by one"
            ),
            Notice::TransparencyCopied => f.write_str("transparency is copied unchanged"),
            Notice::Background { given, share, limit, median, dark } => write!(
                f,
                "the background of {given} electrons contradicts the image: {:.0} % of its blocks of 8 x 8 pixels have a mean below {limit:.2} electrons (half of those below {median:.2}), where noise explains 2 %; dark places would come back too bright: the darkest have about {dark:.2} electrons",
                100.0 * share
            ),
            Notice::PsfCut { fitted, given: None } => write!(
                f,
                "the PSF was limited to {} pixels by the size of the image; {:.1} % of its light lies outside",
                fitted.psf.shape(),
                100.0 * fitted.outside
            ),
            Notice::PsfCut { fitted, given: Some(given) } => write!(
                f,
                "the PSF of {given} pixels is cropped to {}; {:.2} % of its light lay outside",
                fitted.psf.shape(),
                100.0 * fitted.outside
            ),
            Notice::PsfRescaled { from, to } => write!(
                f,
                "the PSF has pixels of {} nm and the image of {} nm: the PSF was rescaled",
                nanometres(from),
                nanometres(to)
            ),
            Notice::OthersCopied => f.write_str("one image is restored; the others are copied as they are"),
            Notice::FilesApart { count, output, first } => write!(
                f,
                "{count} images, and {} cannot hold them all: each becomes a file of its own, the first {}",
                output.display(),
                first.display()
            ),
            Notice::NoLight { names, copied } => write!(
                f,
                "{}: not an image of light (marks, errors or weights), {}",
                names.join(", "),
                if *copied { "copied as they are" } else { "left out" }
            ),
            Notice::Precision { asked, ran } => {
                write!(f, "none of the network's convolutions compute in {asked} on this device: it computes in {ran}")
            }
            Notice::DependsOnTile => {
                f.write_str("the model's network sees whole tiles, so the result depends on their size")
            }
            Notice::Unfamiliar(why) => write!(
                f,
                "unlike what the model was trained on: {why}; the model may draw structures that it knows instead of those that are there"
            ),
            Notice::Resumed { found, all } => {
                write!(f, "{found} of {all} planes were restored by an earlier run")
            }
            Notice::Steps(Stop::Steps(n)) => write!(f, "{n} steps for all pieces"),
            Notice::Steps(Stop::Levels(levels)) => {
                write!(f, "{} to {} steps by brightness for all pieces", levels.least(), levels.most())
            }
            Notice::Steps(_) => f.write_str("least predicted error for all pieces"),
            Notice::Filled(count) => write!(
                f,
                "{count} pixels hold no measurement (not finite or masked): filled from their neighbours and ignored as measurements"
            ),
            Notice::Clipped { count, dtype } => {
                write!(f, "{count} restored values did not fit {dtype} and were clipped")
            }
            Notice::Colours => f.write_str(
                "a colour image: red, green and blue are restored together, as brightness and two colour differences",
            ),
            Notice::FramesAlone { along: Axis::Z, .. } => f.write_str(
                "a stack whose planes differ nearly everywhere: each plane was restored separately",
            ),
            Notice::FramesAlone { .. } => f.write_str(
                "a movie in which nearly everything moves or changes: each frame was restored separately",
            ),
            Notice::FramesAveraged { along: Axis::Z, mean } => write!(
                f,
                "a stack: planes were averaged with their neighbours along Z where these show the same, {mean:.1} planes per pixel on average"
            ),
            Notice::FramesAveraged { mean, .. } => write!(
                f,
                "a movie: frames were averaged where nothing moves, {mean:.1} frames per pixel on average"
            ),
            Notice::FramesAsSingle => {
                f.write_str("has several frames along T, which were measured as single images; together they give a better measurement")
            }
            Notice::Chi2(chi2) => {
                let why = match *chi2 >= EXPLAINED.end {
                    true => {
                        "the restored image is not consistent with the measurement, because offset, gain or read noise are not those of this image, its noise is not camera noise, the model does not know its structures, or samples were drawn in too few steps"
                    }
                    false => {
                        "the image has less noise than expected, because gain, offset or read noise are not those of this image, or because it was smoothed or averaged before"
                    }
                };
                write!(f, "chi2 is {chi2:.2}, where about 1 is right: {why}; do not trust the result until this is corrected")
            }
            Notice::LeftOver(left) => f.write_str(&left.in_words().unwrap_or_default()),
        }
    }
}
