//! Networks that others wrote, as ONNX files.

use anyhow::{Context, Result};
use clearshot_onnx::file::OnnxModel;
use clearshot_onnx::import::{Imported, import, input_sizes};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A file in memory; it is read again for each size of its inputs.
pub struct Theirs {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Theirs {
    /// # Errors
    /// If there is no such file.
    pub fn read(path: &Path) -> Result<Theirs> {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        Ok(Theirs { path: path.into(), bytes })
    }

    /// What the file says.
    ///
    /// # Errors
    /// If it is not an ONNX file.
    pub fn model(&self) -> Result<OnnxModel<'_>> {
        OnnxModel::parse(&self.bytes).with_context(|| self.path.display().to_string())
    }

    /// The network for inputs of these sizes, as the file has them.
    ///
    /// # Errors
    /// If an operator is not supported or sizes do not fit: which node, and why.
    pub fn import(&self, sizes: &BTreeMap<String, Vec<usize>>) -> Result<Imported> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        import(&self.model()?, Some(folder), sizes).with_context(|| self.path.display().to_string())
    }

    /// The network for `batch` images of a size, where the file leaves these open.
    ///
    /// # Errors
    /// As [`Theirs::import`].
    pub fn import_for(&self, batch: usize, size: &[usize]) -> Result<Imported> {
        let sizes =
            input_sizes(&self.model()?, batch, size).with_context(|| self.path.display().to_string())?;
        self.import(&sizes)
    }
}
