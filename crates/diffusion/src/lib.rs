//! Diffusion: noise levels, schedules, denoisers, objectives and samplers.
//!
//! A noise level is a pair (alpha, sigma), `x = alpha x0 + sigma noise`, in f64 on the host; discrete
//! timesteps exist only as what a network is told. A [`Denoiser`] adds nodes that estimate x0 from x: a
//! network becomes one by preconditioning, and guidance maps one to another, always before anything is
//! compiled.

pub mod cascade;
mod classifier_free;
mod denoiser;
mod error;
pub mod guide;
pub mod host;
mod level;
pub mod noise;
pub mod objective;
pub mod precondition;
mod run;
pub mod sampler;
pub mod schedule;
mod spacing;
pub mod step_graph;
mod trace;

pub use classifier_free::ClassifierFree;
pub use denoiser::{Condition, Denoiser, Estimate, LevelInputs};
pub use error::Error;
pub use guide::{Guide, Guided, Law};
pub use level::{Clock, Level, Levels, Step};
pub use run::{Sampler, Start};
pub use spacing::Spacing;
