//! Diffusion: noise levels, schedules, denoisers, objectives and samplers.
//!
//! A noise level is a pair (alpha, sigma), `x = alpha x0 + sigma noise`, in f64 on the host; discrete
//! timesteps exist only as what a network is told. A [`Denoiser`] adds nodes that estimate x0 from x: a
//! network becomes one by preconditioning, and guidance maps one to another, always before anything is
//! compiled. A sampler turns levels into a [`sampler::Program`], and a [`Sampler`] compiles one step of it
//! with the denoiser into one graph, which it replays:
//!
//! ```
//! use clearshot_diffusion::noise::Tile;
//! use clearshot_diffusion::precondition::{Preconditioned, Prediction};
//! use clearshot_diffusion::sampler::{Churn, heun};
//! use clearshot_diffusion::step_graph::Setup;
//! use clearshot_diffusion::{Condition, Levels, Sampler, Start};
//! use clearshot_graph::{Builder, Value};
//! use clearshot_runtime::Device;
//!
//! // In place of a network, its best guess where it knows nothing.
//! let network = |b: &mut Builder, x: Value, _time: Value, _: &Condition| b.mul_scalar(x, 0.0);
//! let prediction = Prediction::Edm { sigma_data: 0.5 };
//! let denoiser = Preconditioned { network, prediction, learned_variance: false };
//! let levels = Levels::karras([0.002, 80.0], 7.0, 18)?;
//! let program = heun(&levels, &Churn::NONE)?;
//! let (none, setup) = (Condition::default(), Setup::default());
//! let (shape, device) = ([1, 8, 8, 1], Device::cpu(None));
//! let mut sampler = Sampler::compile(Builder::new(), &denoiser, &none, shape, program, setup, &device)?;
//! let image = sampler.run(Start::Noise, &[Tile::whole(7)])?;
//! assert_eq!(image.shape().len(), 64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod cascade;
mod classifier_free;
mod denoiser;
mod error;
pub mod guide;
pub mod host;
mod level;
mod networks;
pub mod noise;
pub mod objective;
mod pattern;
pub mod precondition;
mod run;
pub mod sampler;
pub mod schedule;
mod spacing;
pub mod step_graph;
mod threshold;
pub mod trace;
pub mod written;

pub use classifier_free::ClassifierFree;
pub use denoiser::{Condition, Denoiser, Estimate, LevelInputs};
pub use error::Error;
pub use guide::{Guide, Guided, Law};
pub use level::{Clock, Level, Levels, Step};
pub use run::{Sampler, Start};
pub use spacing::Spacing;
pub use threshold::Thresholded;
