//! Decoded files in bounded memory, so that a crop costs only a copy.
//!
//! A file is decoded when its first crop is requested and kept in its own pixel type while the limit allows; other files
//! are read again for each crop, through a few open handles. Which files are in memory affects only the time of a crop, not
//! its values.

use super::normalise::Normaliser;
use crate::dtype::DType;
use crate::error::{Result, request};
use crate::grid::{Region, copy_common, extent, volume};
use crate::image::{Description, Image};
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// How many files are held open.
const OPEN: usize = 32;

/// See the module.
pub struct Store {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    descriptions: HashMap<PathBuf, Arc<Description>>,
    held: HashMap<PathBuf, Arc<Slot>>,
    open: VecDeque<(PathBuf, Arc<Image>)>,
}

/// Where a file's pixels are, once they were decoded.
type Slot = Mutex<Option<Arc<Vec<u8>>>>;

/// The pixels of a file.
pub enum Pixels {
    Memory(Arc<Description>, Arc<Vec<u8>>),
    File(Arc<Image>),
}

impl Store {
    /// Holds at most `limit` bytes of pixels.
    pub fn new(limit: usize) -> Store {
        Store { limit, state: Mutex::default() }
    }

    /// Bytes of pixels that may be held, and that are.
    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn used(&self) -> usize {
        self.lock().used
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// What a file says of itself; the file is looked at once.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn description(&self, path: &Path) -> Result<Arc<Description>> {
        if let Some(known) = self.lock().descriptions.get(path) {
            return Ok(Arc::clone(known));
        }
        let found = Arc::new(Image::open(path)?.description);
        self.lock().descriptions.insert(path.to_path_buf(), Arc::clone(&found));
        Ok(found)
    }

    /// Bytes that the pixels of a file take.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn bytes_of(&self, path: &Path) -> Result<usize> {
        let d = self.description(path)?;
        let bytes = volume(&d.shape()).and_then(|n| n.checked_mul(d.dtype.bytes()));
        bytes.map_or_else(|| request(format!("{}: more pixels than can be addressed", path.display())), Ok)
    }

    /// The pixels of a file, from memory where there is room for them.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn pixels(&self, path: &Path) -> Result<Pixels> {
        let description = self.description(path)?;
        let Some(slot) = self.slot(path)? else { return Ok(Pixels::File(self.opened(path)?)) };
        let mut place = slot.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(bytes) = &*place {
            return Ok(Pixels::Memory(description, Arc::clone(bytes)));
        }
        let image = Image::open(path)?;
        let bytes = Arc::new(image.read(&image.whole())?);
        *place = Some(Arc::clone(&bytes));
        Ok(Pixels::Memory(description, bytes))
    }

    /// The slot for a file's pixels; `None` if there is no room.
    fn slot(&self, path: &Path) -> Result<Option<Arc<Slot>>> {
        if let Some(slot) = self.lock().held.get(path) {
            return Ok(Some(Arc::clone(slot)));
        }
        let bytes = self.bytes_of(path)?;
        let mut state = self.lock();
        if let Some(slot) = state.held.get(path) {
            return Ok(Some(Arc::clone(slot)));
        }
        if bytes > self.limit.saturating_sub(state.used) {
            return Ok(None);
        }
        state.used += bytes;
        let slot = Arc::new(Slot::default());
        state.held.insert(path.to_path_buf(), Arc::clone(&slot));
        Ok(Some(slot))
    }

    fn opened(&self, path: &Path) -> Result<Arc<Image>> {
        if let Some((_, image)) = self.lock().open.iter().find(|(p, _)| p == path) {
            return Ok(Arc::clone(image));
        }
        let image = Arc::new(Image::open(path)?);
        let mut state = self.lock();
        state.open.push_back((path.to_path_buf(), Arc::clone(&image)));
        if state.open.len() > OPEN {
            state.open.pop_front();
        }
        Ok(image)
    }
}

impl Pixels {
    pub fn description(&self) -> &Description {
        match self {
            Pixels::Memory(description, _) => description,
            Pixels::File(image) => &image.description,
        }
    }

    /// The physical values of a region (slope and intercept applied, blanks as NaN), normalised on request.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self, region: &Region, normaliser: Option<Normaliser>) -> Result<Vec<f32>> {
        let rounded = |values: Vec<f64>| {
            let of = |v: f64| normaliser.map_or(v, |n| n.forward(v)) as f32;
            values.into_iter().map(of).collect()
        };
        let (d, bytes) = match self {
            Pixels::File(image) => return Ok(rounded(image.read_f64(region)?)),
            Pixels::Memory(description, bytes) => (description, bytes),
        };
        let width = d.dtype.bytes();
        let mut part = vec![0; extent(region).iter().product::<usize>() * width];
        let shape = d.shape();
        copy_common(width, bytes, &shape, &vec![0; shape.len()], &mut part, region);
        Ok(match (d.dtype, d.rescale, normaliser) {
            (DType::U8, None, None) => part.into_iter().map(f32::from).collect(),
            (DType::U16, None, None) => {
                part.as_chunks::<2>().0.iter().map(|b| f32::from(u16::from_ne_bytes(*b))).collect()
            }
            (DType::F32, None, None) => {
                part.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect()
            }
            _ => {
                let mut values = Vec::with_capacity(part.len() / width);
                d.dtype.decode(&part, &mut values);
                d.rescale.iter().for_each(|r| r.apply(&mut values));
                rounded(values)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Axis, Dim};
    use crate::writer::{WriteOptions, Writer};

    /// Files of several types are the same from memory and read again; what does not fit is read, and nothing is counted twice.
    #[test]
    fn stored_pixels_equal_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut paths = vec![];
        for dtype in [DType::U8, DType::U16, DType::I32, DType::F32, DType::F64] {
            let path = dir.path().join(format!("{}.npy", dtype.name()));
            let dims = vec![Dim::new(Axis::Z, 3), Dim::new(Axis::Y, 7), Dim::new(Axis::X, 5)];
            let description = Description::new("", &path, dims, dtype);
            let mut writer = Writer::create(&path, &description, &WriteOptions::default()).unwrap();
            let values: Vec<f64> = (0..105).map(|i| f64::from(i) * 2.0).collect();
            let mut bytes = vec![];
            dtype.encode(&values, &mut bytes);
            writer.write(&[0..3, 0..7, 0..5], &bytes).unwrap();
            writer.finish().unwrap();
            paths.push((path, 105 * dtype.bytes()));
        }
        let none = Store::new(0);
        let all = Store::new(1 << 20);
        let some = Store::new(paths[0].1 + paths[1].1 + 10);
        let region = [1..3, 2..6, 1..4];
        for (path, _) in paths.iter().chain(&paths) {
            let read = |store: &Store| store.pixels(path).unwrap().read(&region, None).unwrap();
            assert_eq!(read(&all), read(&none), "{}", path.display());
            assert_eq!(read(&some), read(&none), "{}", path.display());
        }
        assert_eq!((none.used(), all.used()), (0, paths.iter().map(|p| p.1).sum::<usize>()));
        assert_eq!(some.used(), paths[0].1 + paths[1].1);
        assert!(matches!(some.pixels(&paths[0].0).unwrap(), Pixels::Memory(..)));
        assert!(matches!(some.pixels(&paths[4].0).unwrap(), Pixels::File(_)));
        assert!(all.pixels(&dir.path().join("none.npy")).is_err());
    }
}
