//! Restoring with trained networks, whole images at a time and independent of how they are cut.
//!
//! A [`Restorer`] is a model, settings and a device. For images of one size it chooses tiles and batch by the
//! memory that they take ([`Restorer::prepare`]), and restores measurements ([`Restorer::restore`]): by one
//! evaluation where the model knows the measurement, which estimates the posterior's mean, or by samples, whose mean
//! and standard deviation it gives. The image's states live on the host ([`field`]); the network sees tiles
//! ([`tiles`]) in step ([`walk`]); a measurement's physics correct whole images ([`correct`]). Networks that tell what each pixel is part of
//! go by the same tiles ([`segment`]).

pub mod blocks;
pub mod choice;
pub mod choose;
pub mod correct;
mod error;
mod familiar;
pub mod field;
pub mod layout;
pub mod measured;
pub mod moments;
pub mod precision;
pub mod predictor;
mod question;
pub mod resident;
pub mod residual;
mod restorer;
mod settings;
pub mod tiles;
pub mod walk;

pub use choice::{Candidate, Choice};
pub use correct::GuideStep;
pub use error::Error;
pub use measured::{Camera, Measured, Source, Values};
pub use restorer::{Calibrated, Example, Forecast, Place, Restored, Restorer, Spread};
pub use settings::{Guidance, Output, Settings, TakenByGiven, USUAL_SAMPLES, law};
