//! Restoring images.
//!
//! [`classical`] holds the restorers that need no training: what a diffusion model has to beat, and what serves
//! when there is no model. Images are plain slices of `f32`, row-major, of shape `[y, x]` or `[z, y, x]`.
//! [`stream`] takes image files through a restorer piece by piece; [`invalid`] keeps pixels without a measurement out, and
//! [`saturated`] estimates those that were cut off. [`camera`] measures cameras from files and keeps them; [`movie`] lets
//! neighbours in time help where nothing moves.
//! Everything runs on rayon's threads, and results are the same bits for any number of them.

pub mod camera;
pub mod classical;
mod convolve;
mod error;
pub mod estimate;
pub mod foreign;
mod frame;
pub mod invalid;
pub mod learned;
pub mod saturated;
pub mod series;
pub mod stream;
mod widest;

pub use error::RestoreError;
