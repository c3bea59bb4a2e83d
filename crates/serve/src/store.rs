//! Files that requests may name: those of the served folder, uploads, and results of jobs. A name is `folder/a/b.tif`,
//! `upload/ID/b.tif` or `job/ID/b.tif`; [`Store::path`] is the only way from a name to a path, and its result is inside its
//! root after links are resolved.

use crate::guard::random;
use crate::http::Body;
use crate::refusal::Refusal;
use clearshot_image::format::has_known_extension;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Files that a list names, and folders that are looked into below each other, at most.
const MOST_LISTED: usize = 2000;
const DEEPEST: usize = 6;
/// Files of an image that is a folder (Zarr), at most: links are looked for among them.
const MOST_CHUNKS: usize = 200_000;
/// Characters of a name, at most.
const LONGEST: usize = 160;

pub struct Store {
    folder: Option<PathBuf>,
    state: PathBuf,
    max_upload: u64,
    max_state: u64,
    /// Bytes of uploads that are under way.
    arriving: Mutex<u64>,
    /// Held as long as the server runs, so that no other one has the same folder.
    _lock: File,
}

impl Store {
    /// # Errors
    /// If a folder is not there, cannot be written to, or belongs to another server.
    pub fn open(
        folder: Option<&Path>,
        state: &Path,
        max_upload: u64,
        max_state: u64,
    ) -> crate::Result<Store> {
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |source| crate::Error::Io { path, source }
        };
        for part in ["uploads", "jobs"] {
            fs::create_dir_all(state.join(part)).map_err(at(state))?;
        }
        let lock = File::create(state.join("lock")).map_err(at(state))?;
        lock.try_lock().map_err(|_| crate::Error::Taken(state.to_path_buf()))?;
        if let Some(folder) = folder.filter(|f| !f.is_dir()) {
            return Err(crate::Error::NoFolder(folder.to_path_buf()));
        }
        let folder = folder.map(|f| f.canonicalize().map_err(at(f))).transpose()?;
        let state = state.canonicalize().map_err(at(state))?;
        // Uploads that were cut off by the end of the last server.
        for entry in entries(&state.join("uploads")) {
            if entry.file_name().to_string_lossy().starts_with('.') {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(Store { folder, state, max_upload, max_state, arriving: Mutex::new(0), _lock: lock })
    }

    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    pub fn jobs(&self) -> PathBuf {
        self.state.join("jobs")
    }

    /// The file that a name stands for.
    ///
    /// # Errors
    /// If there is none, or it lies elsewhere.
    pub fn path(&self, name: &str) -> Result<PathBuf, Refusal> {
        let missing = || Refusal::missing(name);
        let (root, rest) = match name.split_once('/') {
            Some(("folder", rest)) => (self.folder.clone().ok_or_else(missing)?, rest),
            Some(("upload", rest)) => (self.state.join("uploads"), rest),
            Some(("job", rest)) => (self.jobs(), rest),
            _ => return Err(missing()),
        };
        let path = beneath(&root, rest).ok_or_else(missing)?;
        // Records of jobs are the server's own.
        if name.starts_with("job/") && path.file_name().is_some_and(|n| n == crate::jobs::RECORD) {
            return Err(missing());
        }
        if path.is_dir() && has_link(&path) {
            return Err(Refusal::new(
                403,
                format!("{name}: has links, or too many files to be looked through for them"),
            ));
        }
        Ok(path)
    }

    /// Images of the folder and uploads.
    pub fn list(&self) -> Value {
        let mut found = Vec::new();
        if let Some(folder) = &self.folder {
            walk(folder, "folder", 0, &mut found);
        }
        for entry in entries(&self.state.join("uploads")) {
            walk(
                &entry.path(),
                &format!("upload/{}", entry.file_name().to_string_lossy()),
                DEEPEST,
                &mut found,
            );
        }
        let is_cut = found.len() >= MOST_LISTED;
        json!({"files": found, "cut": is_cut})
    }

    /// Takes a file in.
    ///
    /// # Errors
    /// If its name is not one of an image, it is too large, the space is used up, or it is cut off; then nothing of it is left.
    pub fn upload(&self, name: &str, body: &mut Body<'_>) -> Result<String, Refusal> {
        let name = plain(name)?;
        let length = body.left;
        if length == 0 {
            return Err(Refusal::bad("the file is empty"));
        }
        if length > self.max_upload {
            let why = format!("the file has {length} bytes; the limit is {} (--max-upload)", self.max_upload);
            return Err(Refusal::new(413, why));
        }
        let _held = self.reserve(length)?;
        let id = new_id()?;
        let aside = self.state.join("uploads").join(format!(".{id}"));
        let taken = receive(&aside, &name, body);
        let placed = taken.and_then(|()| {
            fs::rename(&aside, self.state.join("uploads").join(&id)).map_err(|_| Refusal::ours())
        });
        if let Err(e) = placed {
            let _ = fs::remove_dir_all(&aside);
            return Err(e);
        }
        Ok(format!("upload/{id}/{name}"))
    }

    /// Takes an upload away.
    ///
    /// # Errors
    /// If it is not one.
    pub fn remove(&self, name: &str) -> Result<(), Refusal> {
        let path = self.path(name)?;
        let (true, Some(folder)) = (name.starts_with("upload/"), path.parent()) else {
            return Err(Refusal::new(403, "only uploads can be removed"));
        };
        fs::remove_dir_all(folder).map_err(|_| Refusal::ours())
    }

    /// Whether so many more bytes may be written; they are counted until the answer is dropped.
    ///
    /// # Errors
    /// If not.
    pub fn reserve(&self, bytes: u64) -> Result<Reserved<'_>, Refusal> {
        let mut arriving = self.arriving.lock().unwrap_or_else(|e| e.into_inner());
        let used = size(&self.state.join("uploads")) + size(&self.jobs());
        if used.saturating_add(*arriving).saturating_add(bytes) > self.max_state {
            let why = format!(
                "uploads and results take {used} of {} bytes (--max-state); remove uploads or jobs first",
                self.max_state
            );
            return Err(Refusal::new(507, why));
        }
        *arriving += bytes;
        Ok(Reserved { store: self, bytes })
    }
}

pub struct Reserved<'s> {
    store: &'s Store,
    bytes: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        *self.store.arriving.lock().unwrap_or_else(|e| e.into_inner()) -= self.bytes;
    }
}

/// A name of its own, which sorts by time.
///
/// # Errors
/// If the system has no random numbers.
pub fn new_id() -> Result<String, Refusal> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(format!("{:012x}{}", now.as_millis() as u64 & 0xffff_ffff_ffff, random(6)?))
}

fn receive(aside: &Path, name: &str, body: &mut Body<'_>) -> Result<(), Refusal> {
    fs::create_dir(aside).map_err(|_| Refusal::ours())?;
    let mut file = File::create_new(aside.join(name)).map_err(|_| Refusal::ours())?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => file.write_all(&buffer[..n]).map_err(|_| Refusal::new(507, "the disk is full"))?,
            Err(_) => return Err(Refusal::new(408, "the upload took too long or ended early")),
        }
    }
    file.sync_all().map_err(|_| Refusal::ours())
}

/// The name of an upload, without anything that a path, a pattern, a shell or a header could take for something else.
fn plain(name: &str) -> Result<String, Refusal> {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let kept = |c: char| if c.is_alphanumeric() || ".-_ ()+".contains(c) { c } else { '_' };
    let clean: String = last.chars().map(kept).collect();
    let clean = clean.trim().trim_start_matches('.').to_string();
    if clean.is_empty() || clean.len() > LONGEST {
        return Err(Refusal::bad("the file needs a name, of 160 bytes at most"));
    }
    if !has_known_extension(Path::new(&clean)) || clean.to_lowercase().ends_with(".zarr") {
        return Err(Refusal::new(415, format!("{clean}: its ending is not that of an image file")));
    }
    Ok(clean)
}

/// A path below a root, links followed; nothing where it is not there or not below.
fn beneath(root: &Path, rest: &str) -> Option<PathBuf> {
    let odd = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains(['\\', '\0']);
    if rest.split('/').any(odd) {
        return None;
    }
    let (root, path) = (root.canonicalize().ok()?, root.join(rest).canonicalize().ok()?);
    (path != root && path.starts_with(&root)).then_some(path)
}

/// Whether a folder has links in it; one that has too many files to say is taken for one that has.
fn has_link(folder: &Path) -> bool {
    let (mut waiting, mut seen) = (vec![folder.to_path_buf()], 0);
    while let Some(folder) = waiting.pop() {
        for entry in entries(&folder) {
            seen += 1;
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push(entry.path()),
                Ok(kind) if kind.is_file() && seen < MOST_CHUNKS => {}
                _ => return true,
            }
        }
    }
    false
}

fn entries(folder: &Path) -> Vec<fs::DirEntry> {
    let mut found: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().collect();
    found.sort_by_key(fs::DirEntry::file_name);
    found
}

fn walk(folder: &Path, name: &str, depth: usize, found: &mut Vec<Value>) {
    for entry in entries(folder) {
        let Some(file) = entry.file_name().to_str().map(str::to_string) else { continue };
        let Ok(kind) = entry.file_type() else { continue };
        if file.starts_with('.') || kind.is_symlink() || found.len() >= MOST_LISTED {
            continue;
        }
        let (path, name) = (entry.path(), format!("{name}/{file}"));
        if has_known_extension(&path) {
            let bytes = entry.metadata().ok().filter(|_| kind.is_file()).map(|m| m.len());
            found.push(json!({"file": name, "name": file, "bytes": bytes}));
        } else if kind.is_dir() && depth < DEEPEST {
            walk(&path, &name, depth + 1, found);
        }
    }
}

/// Bytes of a file, or of the files below a folder; links are not followed.
pub fn size(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(m) if m.is_dir() => entries(path).iter().map(|entry| size(&entry.path())).sum(),
        Ok(m) => m.len(),
        Err(_) => 0,
    }
}

/// A name as a header can have it.
pub fn disposition(name: &str) -> String {
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let encoded: String =
        name.bytes().map(|b| if safe(b) { (b as char).to_string() } else { format!("%{b:02X}") }).collect();
    format!("attachment; filename*=UTF-8''{encoded}")
}
