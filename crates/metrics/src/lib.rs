//! How good a restored image is: numbers with stated definitions, computed in f64.
//!
//! Every metric takes plain views of 2-D or 3-D arrays and knows nothing of files or engines. What
//! changes a score is always asked for: the data range, the rounding, the crop and the mask are
//! parameters without defaults, because scores that differ in one of them cannot be compared. Odd
//! input gives an error that names it, or NaN where a NaN pixel counts; never a panic.

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
