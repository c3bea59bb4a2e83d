//! Small named notes that several processes leave for each other in one folder, on a shared disk or at an address of S3. A
//! note is written atomically, and of two processes that create the same note, one learns that it came second: by a hard
//! link on a disk, by a conditional put (`If-None-Match`) on S3. Nothing else is needed of a file system, neither locks nor
//! clocks.

use crate::address::Address;
use crate::error::{Error, Fault, Result};
use crate::remote::{AT_ONCE, Page, Remote, side_by_side};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Bytes of a note at most.
const MOST: u64 = 64 << 20;

/// See the module.
pub struct Marks {
    /// As it may be seen.
    path: PathBuf,
    place: Place,
}

enum Place {
    Folder,
    Objects(Box<Remote>),
}

impl Marks {
    /// The notes in a folder, which is made with the first of them.
    ///
    /// # Errors
    /// If it is an address that cannot be written to.
    pub fn at(folder: &Path) -> Result<Marks> {
        let Some(address) = Address::of(folder)? else {
            return Ok(Marks { path: folder.to_path_buf(), place: Place::Folder });
        };
        let path = address.path();
        if !address.is_s3() {
            let what = format!("{}: a web server is for reading only; write to s3://", path.display());
            return Err(Error::Request { what });
        }
        let remote = Remote::new(&address).map_err(|fault| fault.at(&path, NAME))?;
        Ok(Marks { path, place: Place::Objects(Box::new(remote)) })
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves a note under a name that has none yet; says whether there was none.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put_new(&self, name: &str, data: &[u8]) -> Result<bool> {
        match &self.place {
            Place::Objects(remote) => remote.put_new(name, data).map_err(self.fail()),
            Place::Folder => match self.written(data)?.persist_noclobber(self.path.join(name)) {
                Ok(_) => Ok(true),
                Err(e) if e.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
                Err(e) => Err(Error::io(&self.path.join(name), e.error)),
            },
        }
    }

    /// Leaves a note in place of one that may be there.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put(&self, name: &str, data: &[u8]) -> Result<()> {
        match &self.place {
            Place::Objects(remote) => remote.put(name, data).map_err(self.fail()),
            Place::Folder => {
                let path = self.path.join(name);
                self.written(data)?.persist(&path).map_err(|e| Error::io(&path, e.error))?;
                Ok(())
            }
        }
    }

    /// A note aside, on the disk.
    fn written(&self, data: &[u8]) -> Result<tempfile::NamedTempFile> {
        let fail = |e| Error::io(&self.path, e);
        std::fs::create_dir_all(&self.path).map_err(fail)?;
        let mut file = tempfile::Builder::new().prefix(ASIDE).tempfile_in(&self.path).map_err(fail)?;
        file.write_all(data).and_then(|()| file.as_file().sync_all()).map_err(fail)?;
        Ok(file)
    }

    /// The note of a name, if there is one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match &self.place {
            Place::Objects(remote) => remote.get(name, MOST).map_err(self.fail()),
            Place::Folder => match std::fs::read(self.path.join(name)) {
                Ok(data) => Ok(Some(data)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(e) => Err(Error::io(&self.path.join(name), e)),
            },
        }
    }

    /// Takes all notes away, the one of a name last.
    ///
    /// # Errors
    /// If one cannot be taken away.
    pub fn clear(&self, last: &str) -> Result<()> {
        match &self.place {
            Place::Objects(remote) => {
                let mut others = |page: Page| {
                    let keys: Vec<String> = page.objects.into_iter().map(|o| o.key).collect();
                    let others: Vec<&String> = keys.iter().filter(|key| *key != last).collect();
                    side_by_side(&others, AT_ONCE, |key| remote.delete(key)).map(|_| ())
                };
                remote.list("", false, &mut others).and_then(|()| remote.delete(last)).map_err(self.fail())
            }
            Place::Folder => {
                let fail = |e| Error::io(&self.path, e);
                for entry in std::fs::read_dir(&self.path).map_err(fail)? {
                    let entry = entry.map_err(fail)?;
                    if entry.file_name() != last {
                        std::fs::remove_file(entry.path()).map_err(fail)?;
                    }
                }
                std::fs::remove_file(self.path.join(last)).map_err(fail)?;
                std::fs::remove_dir(&self.path).map_err(fail)
            }
        }
    }

    fn fail(&self) -> impl Fn(Fault) -> Error {
        |fault| fault.at(&self.path, NAME)
    }
}

/// Their name in messages.
const NAME: &str = "note";
/// How names of notes begin that are being written.
const ASIDE: &str = ".aside-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_is_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let marks = Marks::at(&folder.path().join("notes")).unwrap();
        assert_eq!(marks.get("a").unwrap(), None);
        let firsts: usize = std::thread::scope(|scope| {
            let marks = &marks;
            let put = |n: u8| scope.spawn(move || usize::from(marks.put_new("a", &[n; 1000]).unwrap()));
            let all: Vec<_> = (0..16).map(put).collect();
            all.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(firsts, 1);
        let note = marks.get("a").unwrap().unwrap();
        assert!(note.len() == 1000 && note.iter().all(|b| *b == note[0]), "whole");
        marks.put("a", b"other").unwrap();
        marks.put("b", b"").unwrap();
        assert_eq!(marks.get("a").unwrap().as_deref(), Some(&b"other"[..]));
        marks.clear("a").unwrap();
        assert!(!marks.path().exists());
    }
}
