//! Events during the work: progress, notices about an image, and decisions. The library prints nothing and never exits
//! the process; the caller receives events through an [`Observer`] and can stop the work.

use crate::learned::Parts;
use crate::measuring::ImageScores;
use crate::notice::Notice;
use crate::report::ImageReport;
use clearshot_image::Image;
use clearshot_metrics::table::Metric;
use clearshot_restore::learned::precision::Settled;
use clearshot_restore::learned::{Camera, Candidate, Choice, Forecast, GuideStep, Measured, Restored};
use clearshot_runtime::Device;
use clearshot_train::Status;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Receives progress and events. `()` ignores all of them.
pub trait Observer {
    /// Called with the number of finished steps and their total for the current image (iterations of a training run,
    /// images of an evaluation); the total is 0 if it is unknown. `Break` stops the work with [`crate::Error::Stopped`]
    /// and leaves no half-written files; a training run ends with a checkpoint.
    fn progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        let _ = (done, total);
        ControlFlow::Continue(())
    }

    /// Called for every event of an image, with the name of its file, or of the training run in a folder; `Break` stops
    /// the work.
    fn event(&mut self, image: &Path, event: &Event<'_>) -> ControlFlow<()> {
        let _ = (image, event);
        ControlFlow::Continue(())
    }
}

impl Observer for () {}

/// An event for an [`Observer`].
#[non_exhaustive]
pub enum Event<'a> {
    /// A notice for the reader of the result.
    Notice(Notice),
    /// A stack is restored by the model for volumes.
    Volume {
        /// The model's name.
        model: &'a str,
        /// Planes of the stack.
        planes: usize,
    },
    /// Time and memory of the network, reported before it runs.
    Plan(Plan<'a>),
    /// The precision chosen on a GPU, if it is automatic.
    Precision(&'a Settled),
    /// The method or mixture chosen for the image.
    Choice {
        /// The number of frames averaged in a movie; `None` for single images.
        exposures: Option<f64>,
        /// The weights.
        choice: &'a Choice,
    },
    /// The guidance corrections of one plane or volume, if [`crate::Settings::trace`] is set.
    Guided {
        /// The number of the plane or volume of the image.
        number: usize,
        /// One entry for each sample and step.
        steps: &'a [GuideStep],
    },
    /// The middle plane or volume of an image, before and after.
    Middle(&'a Middle<'a>),
    /// An image is done.
    Done(&'a ImageReport),
    /// An image was scored.
    Measured {
        /// The metrics, in the order of the scores.
        metrics: &'a [&'static Metric],
        /// Its scores.
        scores: &'a ImageScores,
    },
    /// The progress of training.
    Training(&'a Status),
    /// A message about a single event.
    Note(&'a str),
    /// A warning about the data or the training run.
    Warning(&'a str),
    /// A line of the records of a run.
    Record(&'a Value),
}

/// Time and memory of restoring with a network.
pub struct Plan<'a> {
    /// Tiles, batch and memory for each group of planes; `None` if another method is requested.
    pub forecast: Option<&'a Forecast>,
    /// The method that is used instead of the network.
    pub instead: Option<Candidate>,
    /// Runs of the network in total; `choosing` of them are for the choice of the method.
    pub runs: usize,
    /// See `runs`.
    pub choosing: usize,
    /// The device.
    pub device: &'a Device,
}

impl Plan<'_> {
    /// The expected time, if a run was timed.
    pub fn seconds(&self) -> Option<f64> {
        self.forecast?.seconds_a_run.map(|s| s * self.runs as f64)
    }
}

/// See [`Event::Middle`].
#[derive(Clone, Copy)]
pub struct Middle<'a> {
    /// The file.
    pub image: &'a Image,
    /// The division of the file into planes or volumes.
    pub parts: &'a Parts,
    /// The measured plane or volume.
    pub measured: &'a Measured,
    /// The restored plane or volume.
    pub restored: &'a Restored,
    /// The camera, if there is one.
    pub camera: Option<Camera>,
}

/// An observer with the current image, which is passed along while a file is processed.
pub(crate) struct Ear<'o> {
    pub observer: &'o mut dyn Observer,
    pub shown: PathBuf,
}

impl Ear<'_> {
    pub fn event(&mut self, event: &Event<'_>) -> crate::Result<()> {
        go_on(self.observer.event(&self.shown, event))
    }

    pub fn notice(&mut self, notice: Notice) -> crate::Result<()> {
        self.event(&Event::Notice(notice))
    }
}

/// # Errors
/// If the observer said to stop.
pub(crate) fn go_on(flow: ControlFlow<()>) -> crate::Result<()> {
    if flow.is_break() { Err(crate::Error::Stopped) } else { Ok(()) }
}
