//! Image restoration.
//!
//! [`classical`] contains the restorers that need no training, as a baseline for diffusion models and for use without a
//! model. Images are slices of `f32`, row-major, of shape `[y, x]` or `[z, y, x]`. [`stream`] runs a restorer over
//! image files tile by tile; [`invalid`] handles invalid pixels, and [`saturated`] estimates saturated ones. [`camera`]
//! measures cameras from files and saves them; [`series`] averages static regions over time. Everything runs on rayon's
//! threads, and results are bit-identical for any number of them.

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
