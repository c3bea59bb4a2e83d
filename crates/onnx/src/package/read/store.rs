//! The files of a package, in a folder or a zip archive, by the paths in its description.

use crate::network::OnnxNetwork;
use crate::values::inside;
use clearshot_image::archive::Archive;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The file names of descriptions.
const NAMES: [&str; 4] = ["bioimageio.yaml", "rdf.yaml", "bioimageio.yml", "rdf.yml"];

enum Place {
    Folder(PathBuf),
    /// All of it lies under this prefix.
    Zip {
        archive: Archive,
        prefix: String,
    },
}

/// See the module.
pub(super) struct Store {
    place: Place,
    pub description: String,
}

impl Store {
    /// The package at a path: its folder, its archive or its description; none if it is something else.
    pub fn find(path: &Path) -> Option<Result<Store, String>> {
        if path.is_dir() {
            let name = NAMES.into_iter().find(|name| path.join(name).is_file())?;
            return Some(Ok(Store { place: Place::Folder(path.into()), description: name.into() }));
        }
        let name = path.file_name()?.to_string_lossy().into_owned();
        if NAMES.contains(&name.as_str()) {
            let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
            return Some(Ok(Store { place: Place::Folder(folder), description: name }));
        }
        let mut head = [0; 4];
        std::fs::File::open(path).ok()?.read_exact(&mut head).ok()?;
        if !head.starts_with(b"PK\x03\x04") {
            return None;
        }
        match Archive::open(path) {
            Err(e) => Some(Err(e.to_string())),
            Ok(archive) => {
                let depth = |name: &&String| name.matches('/').count();
                let is_description =
                    |name: &&String| NAMES.iter().any(|n| name.rsplit('/').next() == Some(n));
                let found = archive.names().iter().filter(is_description).min_by_key(depth)?.clone();
                let (prefix, name) = found.rsplit_once('/').map_or(("", &found[..]), |(p, n)| (p, n));
                let (prefix, description) = (prefix.to_string(), name.to_string());
                Some(Ok(Store { place: Place::Zip { archive, prefix }, description }))
            }
        }
    }

    /// A file of the package, of at most so many bytes.
    pub fn read(&self, name: &str, most: u64) -> Result<Vec<u8>, String> {
        if name.contains("://") {
            return Err(format!("`{name}` is at an address: download the package with all of its files"));
        }
        let missing = || format!("`{name}` is missing; the description names it");
        match &self.place {
            Place::Folder(folder) => {
                if !folder.join(name).exists() {
                    return Err(missing());
                }
                let path = inside(folder, name)?;
                let failed = |e: std::io::Error| format!("{}: {e}", path.display());
                let size = path.metadata().map_err(failed)?.len();
                if size > most {
                    return Err(format!("`{name}` has {size} bytes, and {most} are the most"));
                }
                std::fs::read(&path).map_err(failed)
            }
            Place::Zip { archive, prefix } => {
                let plain = name.strip_prefix("./").unwrap_or(name);
                let member = if prefix.is_empty() { plain.to_string() } else { format!("{prefix}/{plain}") };
                archive.read(&member, most).map_err(|e| e.to_string())?.ok_or_else(missing)
            }
        }
    }

    /// The network in a file whose bytes are these. In a folder its weights may lie in files beside it.
    pub fn network(&self, name: &str, bytes: Vec<u8>) -> Result<OnnxNetwork, String> {
        match &self.place {
            Place::Folder(folder) => {
                drop(bytes);
                OnnxNetwork::open(&inside(folder, name)?).map_err(|e| e.to_string())
            }
            Place::Zip { .. } => Ok(OnnxNetwork::of_bytes(Path::new(name), bytes)),
        }
    }
}
