//! Errors of reading and writing ONNX.

use clearshot_graph::BuildError;
use clearshot_model::ModelError;
use std::path::PathBuf;

/// Errors of an ONNX file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReadError {
    #[error("the file ends in the middle of a field; it is cut off")]
    Truncated,
    #[error("not an ONNX file, or damaged: {0}")]
    Wire(&'static str),
    #[error("more than {most} {what}")]
    TooMany { what: &'static str, most: usize },
    #[error("tensor `{name}`: {reason}")]
    Tensor { name: String, reason: String },
    #[error("{0}")]
    File(String),
}

/// Why a model cannot be written as ONNX.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("{op} ({scope}) cannot be written in opset {}: {reason}", crate::OPSET)]
    Op { op: &'static str, scope: String, reason: String },
    #[error("no weights for `{0}`")]
    Weight(String),
    #[error("{bytes} bytes: a file of ONNX holds 2 GiB at most")]
    TooLarge { bytes: usize },
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("{0}")]
    Setting(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Why a network of ONNX cannot become a graph.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{node}: the operator {op} (opset {opset}) is not supported")]
    Unsupported { op: String, node: String, opset: i64 },
    #[error("{node}: {op} (opset {opset}): {reason}")]
    Node { op: String, node: String, opset: i64, reason: String },
    #[error("{0}")]
    Graph(String),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: Box<ImportError> },
}

/// Errors of a package of the BioImage Model Zoo.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error("{}: {why}", path.display())]
    Wrong { path: PathBuf, why: String },
    #[error(transparent)]
    Image(#[from] clearshot_image::Error),
    #[error(transparent)]
    Import(#[from] ImportError),
}
