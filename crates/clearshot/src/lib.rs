//! Restores scientific images: removes noise and blur from images of microscopes, telescopes and other cameras, with a
//! trained diffusion model or classical methods, and quantifies the uncertainty of the result.
//!
//! A [`Restorer`] restores images with given [`Settings`]. An [`Observer`] receives progress and notices, and can stop
//! the work. Nothing is printed, and all errors are values of one type, [`Error`].
//!
//! An image in memory, with any axes and numeric type:
//!
//! ```
//! use clearshot::{Array, KnownCamera, Restorer, Settings};
//!
//! # fn main() -> Result<(), clearshot::Error> {
//! let counts: Vec<u16> = (0..48 * 64).map(|i| 100 + (i * 7919 % 23) as u16).collect();
//! let noisy = Array::new(&counts, &[48, 64], "YX")?;
//! let camera = KnownCamera { gain: Some(0.5), offset: Some(90.0), read_noise: Some(1.5), ..KnownCamera::default() };
//! let restorer = Restorer::builtin()?;
//! let restored = restorer.restore(&noisy, &Settings { camera, ..Settings::default() }, &mut ())?;
//! assert_eq!((restored.image.len(), restored.axes.as_str()), (48 * 64, "YX"));
//! assert!(restored.report.chi2.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! A file of any format, with all of its images, axes and metadata; here by BM3D, and with an observer:
//!
//! ```
//! use clearshot::{Event, Method, Notice, Observer, Restorer, Settings, restore_file};
//! use std::ops::ControlFlow;
//! use std::path::Path;
//!
//! /// Keeps what there is to know of images.
//! #[derive(Default)]
//! struct Notes(Vec<String>);
//!
//! impl Observer for Notes {
//!     fn event(&mut self, image: &Path, event: &Event<'_>) -> ControlFlow<()> {
//!         if let Event::Notice(notice) = event {
//!             self.0.push(format!("{}: {notice}", image.display()));
//!         }
//!         ControlFlow::Continue(())
//!     }
//! }
//!
//! # fn main() -> Result<(), clearshot::Error> {
//! # let folder = std::env::temp_dir().join(format!("clearshot-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).expect("a folder");
//! # let (input, output) = (folder.join("noisy.npy"), folder.join("clean.tif"));
//! # let mut npy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
//! # npy.extend(format!("{:<117}\n", "{'descr': '<u2', 'fortran_order': False, 'shape': (64, 64), }").bytes());
//! # npy.extend((0..64 * 64).flat_map(|i| (100u16 + (i * 7919 % 23) as u16).to_le_bytes()));
//! # std::fs::write(&input, npy).expect("a file");
//! let restorer = Restorer::denoiser(Method::by_name("bm3d")?);
//! let mut notes = Notes::default();
//! let report = restore_file(&input, &output, &restorer, &Settings::default(), &mut notes)?;
//! assert_eq!(report.images[0].written, [output]);
//! # std::fs::remove_dir_all(&folder).expect("a folder");
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod adaptation;
mod array;
mod background;
mod beads;
mod camera;
mod camera_noise;
mod classical;
mod conditions;
mod decimals;
mod embedder;
mod error;
mod evaluation;
mod file;
mod foreign;
mod items;
mod job_part;
mod jobs;
mod keep;
mod learned;
mod look;
mod measuring;
mod notice;
mod observer;
mod outlet;
mod predictor;
mod psf;
mod repeats;
mod report;
mod restorer;
mod segments;
mod settings;
mod shared_run;
mod target;
mod training;
mod validity;

pub use adaptation::{AdaptFrom, AdaptSettings, Adapted, adapt};
pub use array::{Array, Restored, Sample};
pub use beads::{BeadSettings, Beads, average_beads};
pub use camera::{Estimated, KnownCamera, correlation_in_words};
pub use camera_noise::{CameraImages, CameraReport, CameraSettings, estimate_camera};
pub use classical::Deconvolution;
pub use decimals::decimals;
pub use embedder::{Embedded, Embedder};
pub use error::{Error, Result};
pub use evaluation::{EvaluateFiles, EvaluateSettings, Evaluation, evaluate};
pub use file::{restore_file, restore_part};
pub use job_part::JobPart;
pub use jobs::{JobPlan, plan_jobs};
pub use learned::Parts;
pub use measuring::{
    Against, CONFIDENCE, ImageScores, MeasureSettings, Measurements, MetricSummary, Tests, insert_pattern,
    measure,
};
pub use notice::Notice;
pub use observer::{Event, Middle, Observer, Plan};
pub use outlet::Outlet;
pub use psf::{PointSpread, gaussian as gaussian_psf};
pub use report::{ImageReport, PooledChoice, Report, Status};
pub use restorer::Restorer;
pub use segments::Segments;
pub use settings::{Settings, Stacks};
pub use shared_run::{Extent, FileStanding, SharedRun};
pub use training::{TrainReport, TrainSettings, train};
pub use validity::Mask;

pub use clearshot_evaluate::budget::Limits as EvaluateLimits;
pub use clearshot_image::{Axis, DType, Image};
pub use clearshot_metrics::frc::Threshold as FrcThreshold;
pub use clearshot_model::{Context, Model};
pub use clearshot_restore::classical::Method;
pub use clearshot_restore::foreign::Checked;
pub use clearshot_restore::learned::{Camera, Candidate, Choice, Output, TakenByGiven};
pub use clearshot_restore::stream::Sink;
pub use clearshot_runtime::{Device, DeviceName, Precision};
pub use clearshot_train::run::Gain;
pub use clearshot_train::{Ending as TrainEnding, RunConfig, Status as TrainStatus, Summary as TrainSummary};
