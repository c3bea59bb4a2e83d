//! Metrics of restored images with stated definitions, computed in f64.
//!
//! Every metric takes plain views of 2-D or 3-D arrays and does not depend on files or engines. Everything that changes a
//! score is a parameter without a default: the data range, the rounding, the crop and the mask, because scores that differ
//! in one of them cannot be compared. Unusual input gives an error that names it, or NaN if a valid pixel is NaN; never a
//! panic.

pub mod artefacts;
pub mod distance;
mod error;
mod filter;
mod fourier;
pub mod frc;
pub mod hausdorff;
pub mod image;
pub mod intensity;
pub mod law;
pub mod ms_ssim;
pub mod overlap;
pub mod photometry;
pub mod residual;
pub mod segment;
pub mod ssim;
pub mod statistics;
pub mod stratify;
pub mod table;

pub use error::MetricError;
pub use image::{Crop, ImageRef, Pair, Rounding};
