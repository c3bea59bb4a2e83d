//! Where a Zarr hierarchy lies: a folder, or a zip archive.

use crate::bytes::Bytes;
use crate::error::Parsed;
use crate::format::zip::Zip;
use std::path::{Path, PathBuf};

pub enum Store {
    Folder(PathBuf),
    Zip { archive: Zip, prefix: String },
}

const MARKERS: [&str; 4] = ["zarr.json", ".zgroup", ".zarray", ".zattrs"];

impl Store {
    pub fn open(path: &Path) -> Parsed<Store> {
        if path.is_dir() {
            return Ok(Store::Folder(path.to_path_buf()));
        }
        let file = std::fs::File::open(path)?;
        let archive = Zip::open(Bytes::from_file(file)?)?;
        // Some archives hold the folder itself, others what is in it.
        let depth = |name: &&String| name.matches('/').count();
        let is_marker = |name: &&String| MARKERS.contains(&name.rsplit('/').next().unwrap_or(""));
        let root = archive.names.iter().filter(is_marker).min_by_key(depth);
        let prefix = root.and_then(|r| r.rfind('/').map(|at| r[..=at].to_string())).unwrap_or_default();
        Ok(Store::Zip { archive, prefix })
    }

    pub fn get(&self, key: &str) -> Parsed<Option<Vec<u8>>> {
        match self {
            Store::Folder(root) => match Bytes::open(&root.join(key)) {
                Ok(bytes) => bytes.read(0, bytes.len()).map(Some),
                Err(_) if !root.join(key).is_file() => Ok(None),
                Err(e) => crate::error::damaged(e.to_string()),
            },
            Store::Zip { archive, prefix } => archive.read(&format!("{prefix}{key}")),
        }
    }

    /// A part of a value: from the start, or `None` to count `length` back from the end.
    pub fn get_part(&self, key: &str, start: Option<u64>, length: u64) -> Parsed<Option<Vec<u8>>> {
        let part = |bytes: &Bytes, base: u64, size: u64| {
            let start = match start {
                Some(start) => start,
                None if length <= size => size - length,
                None => return crate::error::damaged(format!("{key} is shorter than {length} bytes")),
            };
            match start.checked_add(length) {
                Some(end) if end <= size => bytes.read(base + start, length).map(Some),
                _ => crate::error::damaged(format!("{length} bytes at {start} of {key}, which has {size}")),
            }
        };
        match self {
            Store::Folder(root) => {
                let path = root.join(key);
                if !path.is_file() {
                    return Ok(None);
                }
                let bytes = Bytes::from_file(std::fs::File::open(path)?)?;
                part(&bytes, 0, bytes.len())
            }
            Store::Zip { archive, prefix } => {
                let name = format!("{prefix}{key}");
                if let Some((at, size)) = archive.stored(&name)? {
                    return part(archive.bytes(), at, size);
                }
                match archive.read(&name)? {
                    Some(data) => {
                        let bytes = Bytes::Memory(data);
                        part(&bytes, 0, bytes.len())
                    }
                    None => Ok(None),
                }
            }
        }
    }

    /// Folders that hold arrays, down to three levels, in the order of their names.
    pub fn arrays(&self) -> Vec<String> {
        let mut found = Vec::new();
        match self {
            Store::Folder(root) => walk(root, "", 0, &mut found),
            Store::Zip { archive, prefix } => {
                for name in &archive.names {
                    let Some(key) = name.strip_prefix(prefix.as_str()) else { continue };
                    let folder = key.strip_suffix("zarr.json").or(key.strip_suffix(".zarray"));
                    found.extend(folder.map(|f| f.trim_end_matches('/').to_string()));
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// Whether anything of Zarr is at the root of a folder.
    pub fn is_hierarchy(folder: &Path) -> bool {
        MARKERS.iter().any(|m| folder.join(m).is_file())
    }
}

fn walk(folder: &Path, key: &str, depth: usize, found: &mut Vec<String>) {
    if folder.join(".zarray").is_file() || folder.join("zarr.json").is_file() {
        found.push(key.to_string());
    }
    // Chunks are not looked into: an array has no arrays below it.
    let is_array = folder.join(".zarray").is_file()
        || std::fs::read_to_string(folder.join("zarr.json")).is_ok_and(|t| t.contains("\"chunk_grid\""));
    if depth == 3 || is_array {
        return;
    }
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten().take(10_000) {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let key = if key.is_empty() { name } else { format!("{key}/{name}") };
            walk(&entry.path(), &key, depth + 1, found);
        }
    }
}
