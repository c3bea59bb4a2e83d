//! The values of a whole image while it is restored: in memory, or for large images in a memory-mapped temporary file.
//!
//! A mapped file is filled with zeros when it is created, so that a full disk is an error at that point and not a
//! signal later. The file is unlinked before use, and disappears with the process.

use super::Error;
use memmap2::MmapMut;
use std::fs::File;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Allocates fields: in memory up to a limit, in files beyond it.
#[derive(Clone, Debug)]
pub struct Scratch {
    limit: usize,
    used: Arc<AtomicUsize>,
    folder: PathBuf,
}

impl Scratch {
    /// Fields take at most `limit` bytes of memory; the rest are files in `folder`, or in the system's folder for
    /// temporary files.
    pub fn new(limit: usize, folder: Option<PathBuf>) -> Scratch {
        let folder = folder.unwrap_or_else(std::env::temp_dir);
        Scratch { limit, used: Arc::new(AtomicUsize::new(0)), folder }
    }

    /// Zeros.
    ///
    /// # Errors
    /// If a file is needed and cannot be created.
    pub fn field(&self, len: usize) -> Result<Field, Error> {
        let bytes = len * size_of::<f32>();
        let taken = self.used.fetch_add(bytes, Ordering::Relaxed);
        if taken + bytes <= self.limit {
            let used = Arc::clone(&self.used);
            return Ok(Field { values: Values::Memory { values: vec![0.0; len], used } });
        }
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.mapped(bytes).map(|values| Field { values }).map_err(|source| Error::Scratch {
            folder: self.folder.clone(),
            bytes,
            source,
        })
    }

    fn mapped(&self, bytes: usize) -> std::io::Result<Values> {
        let mut file: File = tempfile::tempfile_in(&self.folder)?;
        let zeros = vec![0; bytes.min(1 << 20)];
        let mut left = bytes;
        while left > 0 {
            let part = left.min(zeros.len());
            file.write_all(&zeros[..part])?;
            left -= part;
        }
        // SAFETY: the file has no name, so nobody else can write to it or shorten it.
        Ok(Values::Mapped(unsafe { MmapMut::map_mut(&file)? }))
    }
}

enum Values {
    Memory { values: Vec<f32>, used: Arc<AtomicUsize> },
    Mapped(MmapMut),
}

/// See the module.
pub struct Field {
    values: Values,
}

impl Field {
    pub fn is_mapped(&self) -> bool {
        matches!(self.values, Values::Mapped(_))
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        if let Values::Memory { values, used } = &self.values {
            used.fetch_sub(values.len() * size_of::<f32>(), Ordering::Relaxed);
        }
    }
}

impl Deref for Field {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.values {
            Values::Memory { values, .. } => values,
            // SAFETY: a mapping begins at a page and its length is that of whole numbers.
            Values::Mapped(map) => unsafe { map.align_to().1 },
        }
    }
}

impl DerefMut for Field {
    fn deref_mut(&mut self) -> &mut [f32] {
        match &mut self.values {
            Values::Memory { values, .. } => values,
            // SAFETY: as above.
            Values::Mapped(map) => unsafe { map.align_to_mut().1 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_memory_is_a_file_and_holds_the_same() {
        let scratch = Scratch::new(4000, None);
        let mut inside = scratch.field(900).unwrap();
        let mut outside = scratch.field(900).unwrap();
        assert!(!inside.is_mapped() && outside.is_mapped());
        assert_eq!(outside.len(), 900);
        for (i, v) in inside.iter_mut().zip(outside.iter_mut()).enumerate() {
            assert_eq!((*v.0, *v.1), (0.0, 0.0));
            (*v.0, *v.1) = (i as f32, i as f32);
        }
        assert_eq!(&inside[..], &outside[..]);
        drop(inside);
        // What was given back can be had again.
        assert!(!scratch.field(1000).unwrap().is_mapped());
        assert_eq!(scratch.field(0).unwrap().len(), 0);
        let nowhere = Scratch::new(0, Some("/nonexistent/folder".into()));
        assert!(nowhere.field(10).is_err());
    }
}
