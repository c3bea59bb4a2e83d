//! Training: from scenes or files to a model, to the bit.
//!
//! A run is a [`config::RunConfig`] and a folder. Sample `i` is a pure function of (seed, `i`) ([`data`]); an iteration is
//! one graph ([`iteration`]) that is compiled once for each size of crops and replayed ([`engine`]); everything that
//! changes from iteration to iteration follows from how far the run is ([`schedule`]). So a checkpoint
//! ([`checkpoint`]) is the states and a few numbers, and a run that goes on from it makes the same bits as one that never stopped.

pub mod calibration;
pub mod checkpoint;
pub mod conditioning;
pub mod config;
mod counted;
pub mod data;
pub mod distributed;
pub mod elsewhere;
pub mod engine;
mod error;
pub mod errors;
pub mod gan;
mod inputs;
pub mod instances;
pub mod iteration;
pub mod presets;
pub mod pretraining;
pub mod quantise;
pub mod records;
pub mod run;
pub mod schedule;
pub mod segmentation;
pub mod task;
mod watch;

pub use config::RunConfig;
pub use error::{Result, TrainError};
pub use run::{Ending, Run, Summary};
pub use watch::{Status, Watch};
