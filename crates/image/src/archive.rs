//! Files inside of zip archives, and arrays in memory, for readers of other things than images: packages of models.

use crate::bytes::Bytes;
use crate::error::{Fault, Result};
use crate::format::npy;
use crate::format::zip::Zip;
use crate::image::Image;
use std::path::{Path, PathBuf};

/// A zip archive whose directory was read. Members are unpacked when they are asked for, and nothing is written.
pub struct Archive {
    path: PathBuf,
    zip: Zip,
}

impl Archive {
    /// # Errors
    /// If the file cannot be read or is not a zip archive.
    pub fn open(path: &Path) -> Result<Archive> {
        let zip = Zip::open(Bytes::open(path)?).map_err(|fault| fault.at(path, "zip"))?;
        Ok(Archive { path: path.to_path_buf(), zip })
    }

    /// In the order of the archive, as it has them.
    pub fn names(&self) -> &[String] {
        &self.zip.names
    }

    /// A member's bytes, of which there may be `most`; none if there is no such member.
    ///
    /// # Errors
    /// If the archive is damaged, or the member is larger than that.
    pub fn read(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>> {
        let fail = |fault: Fault| fault.at(&self.path, "zip");
        if let Some(size) = self.zip.size(name).filter(|size| *size > most) {
            return Err(fail(Fault::Limit(format!("{name} has {size} bytes, and {most} are the most"))));
        }
        self.zip.read(name).map_err(fail)
    }
}

/// The array of an NPY file whose bytes are at hand; `name` is what messages call it.
///
/// # Errors
/// If they are not a whole NPY file.
pub fn npy_array(name: &Path, bytes: Vec<u8>) -> Result<Image> {
    npy::of_bytes(name, Bytes::Memory(bytes))
}
