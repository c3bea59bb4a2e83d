//! The activations, where convolutions look for them.

pub use crate::act::Act;
