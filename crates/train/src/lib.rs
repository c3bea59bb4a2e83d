//! Training: from scenes or files to a model, reproducible to the bit.
//!
//! A run is a [`config::RunConfig`] and a folder. Sample `i` is a pure function of (seed, `i`) ([`data`]); an iteration is
//! one graph ([`iteration`]) that is compiled once for each crop size and replayed ([`engine`]); everything that
//! changes from iteration to iteration is a function of the progress of the run ([`schedule`]). A checkpoint
//! ([`checkpoint`]) therefore consists of the states and a few numbers, and a run resumed from it is bit-identical to
//! an uninterrupted one.

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
