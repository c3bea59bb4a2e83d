//! Restoring with trained networks, for whole images and independent of tiling.
//!
//! A [`Restorer`] is a model, settings and a device. For images of one size it chooses tiles and batch by memory
//! ([`Restorer::prepare`]), and restores measurements ([`Restorer::restore`]): with one evaluation if the model is
//! conditioned on the measurement, which estimates the posterior mean, or with samples, of which it computes mean and
//! standard deviation. The states of an image are on the host ([`field`]); the network runs on tiles ([`tiles`]), all
//! at the same step ([`walk`]); guidance corrects whole images ([`correct`]). Segmentation uses the same tiles
//! ([`predictor`]).

pub mod blocks;
pub mod choice;
pub mod choose;
pub mod colours;
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
