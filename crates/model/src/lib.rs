//! What a trained model is, and the files that hold one.
//!
//! A [`Model`] is a network with its weights and [`About`]: what the network was trained to do ([`Task`]), and
//! how numbers of image files become those that it takes ([`Signal`]). Training writes models and restoring
//! reads them; neither knows the other. [`Model::builtin`] is the one that comes with the program,
//! [`Model::volumes`] the one for stacks.

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
