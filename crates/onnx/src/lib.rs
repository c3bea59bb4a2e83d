//! ONNX export and import.
//!
//! [`export`] writes a trained model as one ONNX file: one evaluation of its network with the conversion between pixels and
//! network values. [`import`] makes a graph of a network of another project, so that it runs through the same passes, plans
//! and kernels as our own. [`package`] makes and reads packages of the BioImage Model Zoo. [`file`] and [`wire`] read the
//! format itself, without trusting it.

mod error;
pub mod export;
pub mod file;
pub mod import;
mod network;
pub mod package;
pub mod values;
mod wire;

pub use error::{ExportError, ImportError, PackageError, ReadError};
pub use network::OnnxNetwork;

/// The version of ONNX's operators that exported files use; ONNX Runtime 1.13, the newest that Fiji has, knows no newer one.
pub const OPSET: i64 = 17;
/// The version of the format itself, as that operator set came with.
pub const IR_VERSION: i64 = 8;
