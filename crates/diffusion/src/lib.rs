//! Diffusion: noise levels, schedules, denoisers, objectives and samplers.
//!
//! A noise level is a pair (alpha, sigma), `x = alpha x0 + sigma noise`, in f64 on the host; discrete
//! timesteps exist only as what a network is told. A [`Denoiser`] adds nodes that estimate x0 from x: a
//! network becomes one by preconditioning, and guidance maps one to another, always before anything is
//! compiled.

mod denoiser;
mod error;
mod level;

pub use denoiser::{Condition, Denoiser, Estimate, LevelInputs};
pub use error::Error;
pub use level::{Clock, Level, Levels, Step};
