//! What is heard while work goes on: progress, what there is to know of an image, and what was decided. The library
//! prints nothing and never ends the process; whoever calls it listens through an [`Observer`] and can stop it.

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

/// Listens to work. `()` listens to nothing.
pub trait Observer {
    /// So many steps of so many of the image at hand (iterations of a training run, images of an evaluation) are done; the total is 0 where it is not
    /// known. `Break` stops the work with [`crate::Error::Stopped`], and nothing half written is left; a training run ends with a checkpoint.
    fn progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        let _ = (done, total);
        ControlFlow::Continue(())
    }

    /// Something was found out or decided about an image, which is called by its file's name, or about the run in a folder; `Break` stops the
    /// work.
    fn event(&mut self, image: &Path, event: &Event<'_>) -> ControlFlow<()> {
        let _ = (image, event);
        ControlFlow::Continue(())
    }
}

impl Observer for () {}

/// What an [`Observer`] hears of.
#[non_exhaustive]
pub enum Event<'a> {
    /// Something that whoever reads the result should know.
    Notice(Notice),
    /// A stack goes to the model for volumes.
    Volume {
        /// The model's name.
        model: &'a str,
        /// Planes of the stack.
        planes: usize,
    },
    /// What the network will take; reported before it runs.
    Plan(Plan<'a>),
    /// What a GPU computes in, where that was left open.
    Precision(&'a Settled),
    /// What the image is restored by.
    Choice {
        /// Of means of so many frames of a movie; none of single images.
        exposures: Option<f64>,
        /// The weights.
        choice: &'a Choice,
    },
    /// The corrections by the measurement of one plane or volume, where [`crate::Settings::trace`] asks for them.
    Guided {
        /// Which plane or volume of the image.
        number: usize,
        /// One entry for each sample and step.
        steps: &'a [GuideStep],
    },
    /// The plane or volume in the middle of an image, before and after.
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
    /// How training goes.
    Training(&'a Status),
    /// Something that happens once, in words.
    Note(&'a str),
    /// Something that whoever trains should know of the data or the run, in words.
    Warning(&'a str),
    /// A line of a run's records, as it was written.
    Record(&'a Value),
}

/// What restoring by a network will take.
pub struct Plan<'a> {
    /// Tiles, batch and memory for each group of planes; none where another method is asked for.
    pub forecast: Option<&'a Forecast>,
    /// What restores in the network's place.
    pub instead: Option<Candidate>,
    /// Runs of the network in all, and those of them that decide what to trust.
    pub runs: usize,
    /// See `runs`.
    pub choosing: usize,
    /// What it runs on.
    pub device: &'a Device,
}

impl Plan<'_> {
    /// The time that it will take, where it was measured.
    pub fn seconds(&self) -> Option<f64> {
        self.forecast?.seconds_a_run.map(|s| s * self.runs as f64)
    }
}

/// See [`Event::Middle`].
#[derive(Clone, Copy)]
pub struct Middle<'a> {
    /// The file.
    pub image: &'a Image,
    /// How the file is cut into planes or volumes.
    pub parts: &'a Parts,
    /// The plane or volume as it was measured.
    pub measured: &'a Measured,
    /// The same restored.
    pub restored: &'a Restored,
    /// The camera, where there is one.
    pub camera: Option<Camera>,
}

/// An observer with the image that is at hand, as the walk over a file carries it.
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
