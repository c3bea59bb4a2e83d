//! Tensors on the host: element types, shapes, values, counter-based noise, safetensors files and PyTorch checkpoints.
//!
//! Nothing here computes a network; this crate defines the data that all others exchange. A [`Tensor`] owns its values in
//! row-major order. Images are channels-last everywhere in this project: `N, [Z,] Y, X, C`.

mod dtype;
mod float8;
mod fnv;
pub mod noise;
mod shape;
pub mod store;
mod tensor;
mod torch;
pub mod zip;

pub use dtype::DType;
pub use float8::F8;
pub use fnv::Fnv1a;
pub use shape::{MAX_RANK, Shape};
pub use tensor::{Data, Tensor, TensorError};
