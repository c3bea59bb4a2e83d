//! Trained models and their files.
//!
//! A [`Model`] is a network with its weights and [`About`]: its [`Task`], and the conversion between values of image files
//! and values of the network ([`Signal`]). Training writes models and restoring reads them; neither depends on the other.
//! [`Model::builtin`] is the built-in model, [`Model::volumes`] the one for stacks.

mod about;
pub mod conditioning;
mod denoiser;
mod diffusers;
mod error;
pub mod familiar;
mod file;
pub mod instances;
mod int8;
pub mod signal;
pub mod spread;

pub use about::{About, ConditionKind, PredictionKind, Process, Quantisation, Task};
pub use conditioning::{
    ConditionInput, Conditioning, Conditions, Context, InputKind, MissingCondition, VectorPart,
};
pub use denoiser::ModelDenoiser;
pub use error::ModelError;
pub use familiar::Familiar;
pub use file::{DEFAULT, DEFAULT_BYTES, Model};
pub use signal::{OwnRange, Photons, Signal};
pub use spread::SpreadFactor;
