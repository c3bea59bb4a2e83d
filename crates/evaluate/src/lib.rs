//! Evaluating restorers: methods x scenes x light levels x metrics, with intervals, tests and reports.
//!
//! A [`Method`] restores what a camera saw; a [`Case`] is a scene, its light level and the camera's picture of it; a
//! [`Record`] is one method's scores on one case. [`Bench`] says which cases there are, [`run`] makes the records that
//! are not there yet, [`Summary`] condenses them, and [`report`] writes them down. Records follow from what is named in
//! their keys alone, so a re-run gives the same reports to the byte, and one that was interrupted goes on where it was.
//!
//! Scores of generated scenes are those of denoising papers: restored images less the background, in units of the peak, clipped to [0, 1.5],
//! PSNR with range 1. SSIM is of unclipped images, because clipping decides it where a scene is mostly dark. Scores of given
//! files are in the files' own unit (see [`Scale`]). chi2 is
//! that of the measurement under the restored mean, and with it the share of the noise's variance that a method's standard
//! deviation leaves open. Coverage is the share of pixels whose truth lies in the 90 % interval that this deviation gives,
//! by Student's law where it comes from a few samples.

pub mod budget;
mod case;
pub mod curve;
mod error;
pub mod files;
pub mod gate;
mod learned;
pub mod method;
mod oracle;
pub mod report;
mod run;
mod score;
pub mod stress;
mod summary;

pub use case::{Assumed, Bench, Case, Scale, rounded};
pub use clearshot_model::DEFAULT;
pub use error::EvaluateError;
pub use learned::{AUTO, Learned};
pub use method::{Method, Restored, View};
pub use oracle::NAME as BEST_GAUSSIAN;
pub use run::{Outcome, Progress, Record, Store, picture, run};
pub use score::Scores;
pub use summary::{Cell, Comparison, Summary, Verdict};
