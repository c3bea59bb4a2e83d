//! An ONNX network of another project, from a file or from memory; it is imported again for each input size.

use crate::error::{ImportError, ReadError};
use crate::file::OnnxModel;
use crate::import::{Imported, import, input_sizes};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// See the module.
pub struct OnnxNetwork {
    path: PathBuf,
    /// Where files with weights may lie.
    folder: Option<PathBuf>,
    bytes: Vec<u8>,
}

impl OnnxNetwork {
    /// # Errors
    /// If there is no such file.
    pub fn open(path: &Path) -> Result<OnnxNetwork, ImportError> {
        let failed = |e: std::io::Error| ReadError::File(format!("{}: {e}", path.display()));
        let bytes = std::fs::read(path).map_err(failed)?;
        Ok(OnnxNetwork { path: path.into(), folder: path.parent().map(Path::to_path_buf), bytes })
    }

    /// A file's bytes; `path` is what messages call it. Its weights must be inside of it.
    pub fn of_bytes(path: &Path, bytes: Vec<u8>) -> OnnxNetwork {
        OnnxNetwork { path: path.into(), folder: None, bytes }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn at(&self, source: ImportError) -> ImportError {
        ImportError::File { path: self.path.clone(), source: source.into() }
    }

    /// The description in the file.
    ///
    /// # Errors
    /// If it is not an ONNX file.
    pub fn model(&self) -> Result<OnnxModel<'_>, ImportError> {
        OnnxModel::parse(&self.bytes).map_err(|e| self.at(e.into()))
    }

    /// The network for inputs of these sizes, as the file has them.
    ///
    /// # Errors
    /// If an operator is not supported or sizes do not fit: which node, and why.
    pub fn import(&self, sizes: &BTreeMap<String, Vec<usize>>) -> Result<Imported, ImportError> {
        import(&self.model()?, self.folder.as_deref(), sizes).map_err(|e| self.at(e))
    }

    /// The network for `batch` images of a size, where the file leaves these open.
    ///
    /// # Errors
    /// As [`OnnxNetwork::import`].
    pub fn import_for(&self, batch: usize, size: &[usize]) -> Result<Imported, ImportError> {
        let sizes = input_sizes(&self.model()?, batch, size).map_err(|e| self.at(e))?;
        self.import(&sizes)
    }
}
