//! Storage of a Zarr hierarchy: a folder, a zip archive, or an address.

use super::array::join;
use crate::address::Address;
use crate::bytes::Bytes;
use crate::error::{Fault, Parsed};
use crate::format::zip::Zip;
use crate::remote::{AT_ONCE, Remote};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub enum Store {
    Folder(PathBuf),
    Zip { archive: Zip, prefix: String },
    Remote(Arc<Remote>),
}

pub const MARKERS: [&str; 4] = ["zarr.json", ".zgroup", ".zarray", ".zattrs"];
/// Bytes of metadata from a server at most; parsed they are thirty times as many.
const MOST_METADATA: u64 = 8 << 20;

/// Whether anything of Zarr is at an address.
pub(crate) fn is_at(remote: &Remote) -> Parsed<bool> {
    for marker in MARKERS {
        if remote.get(marker, MOST_METADATA)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Store {
    pub fn open(path: &Path) -> Parsed<Store> {
        match Address::of(path) {
            Ok(Some(address)) => return Remote::new(&address).map(|remote| Store::Remote(Arc::new(remote))),
            Ok(None) => {}
            Err(e) => return Err(Fault::Remote(e.to_string())),
        }
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

    /// How many requests should be under way at once.
    pub fn at_once(&self) -> usize {
        if matches!(self, Store::Remote(_)) { AT_ONCE } else { 0 }
    }

    pub fn get_metadata(&self, key: &str) -> Parsed<Option<Vec<u8>>> {
        match self {
            Store::Remote(remote) => remote.get_metadata(key, MOST_METADATA),
            _ => self.get(key, MOST_METADATA),
        }
    }

    /// A value, with a limit in bytes for servers and none for files.
    pub fn get(&self, key: &str, most: u64) -> Parsed<Option<Vec<u8>>> {
        match self {
            Store::Remote(remote) => remote.get(key, most),
            Store::Folder(root) => match Bytes::open(&root.join(key)) {
                Ok(bytes) => bytes.read(0, bytes.len()).map(Some),
                Err(_) if !root.join(key).is_file() => Ok(None),
                Err(e) => crate::error::damaged(e.to_string()),
            },
            Store::Zip { archive, prefix } => archive.read(&format!("{prefix}{key}")),
        }
    }

    /// A part of a value: from the start, or `None` to count `length` back from the end.
    pub fn get_part(&self, key: &str, start: Option<u64>, length: u64, most: u64) -> Parsed<Option<Vec<u8>>> {
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
            Store::Remote(remote) => remote.get_part(key, start, length, most),
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
    pub fn arrays(&self) -> Parsed<Vec<String>> {
        let mut found = Vec::new();
        match self {
            Store::Remote(remote) if remote.is_s3() => listed(remote, "", 0, &mut found)?,
            Store::Remote(_) => found = self.consolidated()?,
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
        Ok(found)
    }

    /// The arrays that the metadata of the whole hierarchy list in one place.
    fn consolidated(&self) -> Parsed<Vec<String>> {
        let parse = |key: &str| -> Parsed<Option<Value>> {
            let data = self.get_metadata(key)?;
            Ok(data.and_then(|data| serde_json::from_slice(&data).ok()))
        };
        let (mut arrays, mut is_group) = (Vec::new(), false);
        if let Some(root) = parse("zarr.json")? {
            is_group = true;
            let nodes = root["consolidated_metadata"]["metadata"].as_object();
            let nodes = nodes.into_iter().flatten().filter(|(_, node)| node["node_type"] == "array");
            arrays.extend(nodes.map(|(key, _)| key.clone()));
        }
        if let Some(root) = parse(".zmetadata")? {
            let keys = root["metadata"].as_object().into_iter().flatten().map(|(key, _)| key);
            arrays.extend(keys.filter_map(|key| key.strip_suffix("/.zarray")).map(str::to_string));
        }
        is_group = is_group || parse(".zgroup")?.is_some();
        if arrays.is_empty() && is_group {
            return Err(Fault::Remote(
                "a group without OME metadata, and over http nothing can be listed; name the array itself (ADDRESS/ARRAY), or write s3://"
                    .to_string(),
            ));
        }
        Ok(arrays)
    }

    /// Why there is nothing to read.
    pub fn without_array(&self) -> Fault {
        match self {
            Store::Remote(remote) => Fault::Remote(remote.forbidden().unwrap_or_else(|| {
                "there is no Zarr image at this address: no zarr.json, .zattrs, .zgroup or .zarray below it (404); check the address, and that it ends with the image's folder".to_string()
            })),
            _ => Fault::Damaged("no array".to_string()),
        }
    }

    /// Whether anything of Zarr is at the root of a folder.
    pub fn is_hierarchy(folder: &Path) -> bool {
        MARKERS.iter().any(|m| folder.join(m).is_file())
    }
}

/// As [`walk`] at an address.
fn listed(remote: &Remote, key: &str, depth: usize, found: &mut Vec<String>) -> Parsed<()> {
    let (mut folders, mut arrays) = (Vec::new(), false);
    remote.list(key, true, &mut |page| {
        arrays = arrays || page.objects.iter().any(|o| o.key == "zarr.json" || o.key == ".zarray");
        folders.extend(page.folders.into_iter().map(|f| f.trim_end_matches('/').to_string()));
        Ok(())
    })?;
    if arrays {
        found.push(key.to_string());
        let meta = remote.get(&join(key, "zarr.json"), MOST_METADATA)?;
        let is_group = meta.is_some_and(|m| !String::from_utf8_lossy(&m).contains("\"chunk_grid\""));
        if !is_group {
            return Ok(());
        }
    }
    if depth == 3 {
        return Ok(());
    }
    folders.iter().take(10_000).try_for_each(|name| listed(remote, &join(key, name), depth + 1, found))
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
