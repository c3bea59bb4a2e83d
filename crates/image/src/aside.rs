//! Atomic files: written under a temporary name in the same folder, synchronised to disk, and renamed when complete. If the
//! program is killed, the old file or no file remains; [`discard_unfinished`] removes temporary files when the program is
//! asked to stop. Addresses have no temporary names; they are only registered here for messages.

use crate::address::is_address;
use crate::bytes::write_all_at;
use crate::error::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is being written under another name in this process. Whoever renames holds the lock, so that
/// nothing is removed while it is renamed.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes every file and folder that is not complete. Nothing can be begun or completed in this process
/// afterwards: for a program that is about to end. Returns the addresses at which something incomplete is left.
pub fn discard_unfinished() -> Vec<PathBuf> {
    let list = unfinished();
    let (left, files): (Vec<&PathBuf>, Vec<&PathBuf>) = list.iter().partition(|path| is_address(path));
    for path in files {
        // Other threads may still be putting files into a folder.
        for _ in 0..100 {
            let gone = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
            if gone.is_ok() || !path.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    let left = left.into_iter().cloned().collect();
    // The lock is never given back: what waits for it waits until the process ends.
    std::mem::forget(list);
    left
}

/// An address that something is being written to.
pub(crate) struct Unfinished(Listed);

impl Unfinished {
    pub fn address(path: &Path) -> Unfinished {
        Unfinished(Listed::new(path, &mut unfinished()))
    }

    pub fn done(&self) {
        self.0.strike(&mut unfinished());
    }
}

/// A path on the list. One that was given up stays on it: taking it away again does no harm.
struct Listed(PathBuf);

impl Listed {
    fn new(path: &Path, list: &mut Vec<PathBuf>) -> Listed {
        list.push(path.to_path_buf());
        Listed(path.to_path_buf())
    }

    fn strike(&self, list: &mut Vec<PathBuf>) {
        list.retain(|p| *p != self.0);
    }
}

pub(crate) struct AsideFile {
    path: PathBuf,
    temp: tempfile::NamedTempFile,
    listed: Listed,
    replace: bool,
    end: u64,
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

fn refuse_existing(path: &Path, replace: bool) -> Result<()> {
    match path.symlink_metadata() {
        Ok(_) if !replace => Err(Error::Exists { path: path.to_path_buf() }),
        _ => Ok(()),
    }
}

fn prefix_of(path: &Path) -> String {
    format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy())
}

fn builder<'a>(prefix: &'a str) -> tempfile::Builder<'a, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).suffix(".part");
    builder
}

impl AsideFile {
    pub fn create(path: &Path, replace: bool) -> Result<AsideFile> {
        refuse_existing(path, replace)?;
        if replace && path.is_dir() {
            let what = format!("{}: is a folder, and a file would replace it", path.display());
            return Err(Error::Request { what });
        }
        let prefix = prefix_of(path);
        let mut builder = builder(&prefix);
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut list = unfinished();
        let temp = builder.tempfile_in(folder_of(path)).map_err(|e| Error::io(path, e))?;
        let listed = Listed::new(temp.path(), &mut list);
        Ok(AsideFile { path: path.to_path_buf(), temp, listed, replace, end: 0 })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    /// Where the file would be read back before it has its name.
    pub fn file(&self) -> &File {
        self.temp.as_file()
    }

    pub fn append(&mut self, data: &[u8]) -> std::io::Result<u64> {
        let at = self.end;
        self.write_at(at, data)?;
        Ok(at)
    }

    pub fn write_at(&mut self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        write_all_at(self.temp.as_file(), offset, data)?;
        self.end = self.end.max(offset + data.len() as u64);
        Ok(())
    }

    /// What is appended from now on lies behind `end`.
    pub fn reserve(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    pub fn commit(self) -> Result<()> {
        let AsideFile { path, mut temp, listed, replace, .. } = self;
        temp.flush().and_then(|()| temp.as_file().sync_all()).map_err(|e| Error::io(&path, e))?;
        let mut list = unfinished();
        listed.strike(&mut list);
        if replace {
            temp.persist(&path).map_err(|e| Error::io(&path, e.error))?;
        } else {
            temp.persist_noclobber(&path).map_err(|e| match e.error.kind() {
                std::io::ErrorKind::AlreadyExists => Error::Exists { path: path.clone() },
                _ => Error::io(&path, e.error),
            })?;
        }
        sync_folder(folder_of(&path));
        Ok(())
    }
}

/// Makes a rename durable where the system lets folders be synchronised.
fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        // Not every file system can; the rename itself has happened.
        let _ = folder.sync_all();
    }
}

pub(crate) struct AsideFolder {
    path: PathBuf,
    temp: tempfile::TempDir,
    listed: Listed,
    replace: bool,
}

impl AsideFolder {
    pub fn create(path: &Path, replace: bool) -> Result<AsideFolder> {
        refuse_existing(path, replace)?;
        let prefix = prefix_of(path);
        let mut builder = builder(&prefix);
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
        let mut list = unfinished();
        let temp = builder.tempdir_in(folder_of(path)).map_err(|e| Error::io(path, e))?;
        let listed = Listed::new(temp.path(), &mut list);
        Ok(AsideFolder { path: path.to_path_buf(), temp, listed, replace })
    }

    pub fn root(&self) -> &Path {
        self.temp.path()
    }

    /// Renames the folder into place. An old folder cannot be replaced in one step: it is moved aside
    /// first, so a kill between the two renames leaves none under the name.
    pub fn commit(self) -> Result<()> {
        let AsideFolder { path, temp, listed, replace } = self;
        sync_tree(temp.path()).map_err(|e| Error::io(&path, e))?;
        let mut list = unfinished();
        listed.strike(&mut list);
        put_in_place(temp.path(), &path, replace)?;
        // It has another name now.
        let _ = temp.keep();
        Ok(())
    }
}

/// A folder that several processes make, hidden beside its place under a name that all of them know. Each file in it is there whole
/// or not at all; the last process gives the folder its name. It must not be removed while others are writing.
pub(crate) struct SharedFolder {
    path: PathBuf,
    /// Holds what becomes the folder, and files that are not complete.
    holder: PathBuf,
    root: PathBuf,
    replace: bool,
}

impl SharedFolder {
    pub fn join(path: &Path, id: &str, replace: bool) -> Result<SharedFolder> {
        refuse_existing(path, replace)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let holder = folder_of(path).join(format!(".{name}.{id}.shared"));
        let root = holder.join("image");
        Ok(SharedFolder { path: path.to_path_buf(), holder, root, replace })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Puts a file in its place, whole. Folders are made with their first file.
    pub fn put(&self, key: &str, data: &[u8]) -> std::io::Result<()> {
        let (file, aside) = (self.root.join(key), self.holder.join("aside"));
        std::fs::create_dir_all(&aside)?;
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut temp = builder.tempfile_in(aside)?;
        temp.write_all(data)?;
        std::fs::create_dir_all(file.parent().unwrap_or(&self.root))?;
        temp.persist(&file).map_err(|e| e.error)?;
        Ok(())
    }

    /// Makes what was put durable.
    pub fn leave(&self) -> Result<()> {
        match self.root.exists() {
            true => sync_tree(&self.root).map_err(|e| Error::io(&self.path, e)),
            false => Ok(()),
        }
    }

    /// Puts the last files in their places and renames the whole.
    pub fn commit(self, files: &[(String, String)]) -> Result<()> {
        let SharedFolder { path, holder, root, replace } = &self;
        files
            .iter()
            .try_for_each(|(key, text)| self.put(key, text.as_bytes()))
            .and_then(|()| sync_tree(root))
            .map_err(|e| Error::io(path, e))?;
        let list = unfinished();
        put_in_place(root, path, *replace)?;
        drop(list);
        // What is left of it is hidden and empty.
        let _ = std::fs::remove_dir_all(holder);
        Ok(())
    }
}

/// Gives what was written its name. Who calls holds the lock of what is unfinished.
fn put_in_place(written: &Path, path: &Path, replace: bool) -> Result<()> {
    let fail = |e| Error::io(path, e);
    let old = match path.symlink_metadata() {
        Ok(_) if !replace => return Err(Error::Exists { path: path.to_path_buf() }),
        Ok(_) => {
            let prefix = prefix_of(path);
            let holder = builder(&prefix).tempdir_in(folder_of(path)).map_err(fail)?;
            std::fs::rename(path, holder.path().join("old")).map_err(fail)?;
            Some(holder)
        }
        Err(_) => None,
    };
    if let Err(e) = std::fs::rename(written, path) {
        // The old one goes back.
        if let Some(holder) = &old {
            std::fs::rename(holder.path().join("old"), path).map_err(fail)?;
        }
        return Err(Error::io(path, e));
    }
    sync_folder(folder_of(path));
    Ok(())
}

/// A hidden folder beside the place of a file or folder that is made in several goes, each under its final name.
pub(crate) struct AsidePlace {
    path: PathBuf,
    temp: tempfile::TempDir,
    listed: Listed,
    replace: bool,
}

impl AsidePlace {
    pub fn create(path: &Path, replace: bool) -> Result<AsidePlace> {
        let AsideFolder { path, temp, listed, replace } = AsideFolder::create(path, replace)?;
        Ok(AsidePlace { path, temp, listed, replace })
    }

    /// Where go `turn` writes.
    pub fn room(&self, turn: usize) -> Result<PathBuf> {
        let folder = self.temp.path().join(turn.to_string());
        std::fs::create_dir_all(&folder).map_err(|e| Error::io(&self.path, e))?;
        Ok(folder.join(self.path.file_name().unwrap_or_default()))
    }

    /// Takes away what an earlier go wrote.
    pub fn clear(&self, turn: usize) {
        // What is left goes with the whole folder.
        let _ = std::fs::remove_dir_all(self.temp.path().join(turn.to_string()));
    }

    /// Gives what go `turn` wrote its place.
    pub fn commit(self, turn: usize) -> Result<()> {
        let written = self.room(turn)?;
        sync_tree(self.temp.path()).map_err(|e| Error::io(&self.path, e))?;
        let mut list = unfinished();
        self.listed.strike(&mut list);
        put_in_place(&written, &self.path, self.replace)
    }
}

/// Makes everything below a folder durable. There may be thousands of files, so the whole file system is asked
/// at once where the system can.
#[cfg(target_os = "linux")]
fn sync_tree(folder: &Path) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let folder = File::open(folder)?;
    // SAFETY: the descriptor is open for as long as the call lasts.
    match unsafe { libc::syncfs(folder.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn sync_tree(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    Ok(())
}
