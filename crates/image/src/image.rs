//! An image in a file: its axes, pixel size, channels, type, and a source of chunks that is read on request. All other
//! metadata of the file are kept for writing.

use crate::dtype::DType;
use crate::error::{Error, Result, request};
use crate::grid::{Grid, Region, copy_common, extent, volume};
use crate::remote::side_by_side;
use clearshot_timeline::{Phase, span};
use rayon::prelude::*;
use serde_json::Value;
use std::any::Any;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

/// What an axis means. `S` are the samples of one pixel (red, green, blue); `Other` is an axis that the
/// file gives no meaning to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    T,
    C,
    Z,
    Y,
    X,
    S,
    Other(u8),
}

impl Axis {
    /// One letter: `T C Z Y X S`, and `I J K ...` for axes without a meaning.
    pub fn letter(self) -> char {
        match self {
            Axis::T => 'T',
            Axis::C => 'C',
            Axis::Z => 'Z',
            Axis::Y => 'Y',
            Axis::X => 'X',
            Axis::S => 'S',
            Axis::Other(n) => (b'I' + n.min(9)) as char,
        }
    }

    pub fn from_letter(letter: char) -> Option<Axis> {
        Some(match letter.to_ascii_uppercase() {
            'T' => Axis::T,
            'C' => Axis::C,
            'Z' => Axis::Z,
            'Y' => Axis::Y,
            'X' => Axis::X,
            'S' => Axis::S,
            l @ 'I'..='R' => Axis::Other(l as u8 - b'I'),
            _ => return None,
        })
    }

    pub fn is_space(self) -> bool {
        matches!(self, Axis::Z | Axis::Y | Axis::X)
    }
}

/// One axis of an image: its length, and how far apart its samples are.
#[derive(Clone, Debug, PartialEq)]
pub struct Dim {
    pub axis: Axis,
    pub len: usize,
    pub step: Option<f64>,
    pub unit: Option<String>,
}

impl Dim {
    pub fn new(axis: Axis, len: usize) -> Dim {
        Dim { axis, len, step: None, unit: None }
    }

    pub fn stepped(axis: Axis, len: usize, step: Option<f64>, unit: &str) -> Dim {
        let step = step.filter(|s| s.is_finite() && *s > 0.0);
        Dim { axis, len, unit: step.map(|_| unit.to_string()), step }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Channel {
    pub name: Option<String>,
    /// Red, green, blue.
    pub color: Option<[u8; 3]>,
    pub emission_nm: Option<f64>,
}

/// From stored values to meant ones: `slope * stored + intercept`, and one stored value that means none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rescale {
    pub slope: f64,
    pub intercept: f64,
    pub blank: Option<i64>,
}

impl Rescale {
    /// From stored values to meant ones.
    pub(crate) fn apply(&self, values: &mut [f64]) {
        for v in values {
            let blank = self.blank.is_some_and(|b| *v == b as f64);
            *v = if blank { f64::NAN } else { self.slope * *v + self.intercept };
        }
    }

    /// From a physical value to the stored one, not rounded: NaN becomes the blank value, if there
    /// is one.
    pub fn stored(&self, meant: f64) -> f64 {
        match self.blank {
            Some(blank) if meant.is_nan() => blank as f64,
            _ if self.slope != 0.0 => (meant - self.intercept) / self.slope,
            _ => meant,
        }
    }
}

/// What an image is, and what its file carries besides pixels.
#[derive(Clone)]
pub struct Description {
    pub format: &'static str,
    pub path: PathBuf,
    /// The axes in the order in which the pixels lie.
    pub dims: Vec<Dim>,
    pub dtype: DType,
    /// How many bits of the type are in use (12 of 16, say).
    pub bits: u32,
    pub channels: Vec<Channel>,
    pub rescale: Option<Rescale>,
    /// A camera's pattern of colour filters, where the file states it.
    pub mosaic: Option<crate::Mosaic>,
    /// The shape of every resolution, the full one first.
    pub levels: Vec<Vec<usize>>,
    /// The images of the file, and which of them this is.
    pub items: Vec<String>,
    pub item: usize,
    /// What a person would want to read of the file's other contents.
    pub tags: Vec<(String, String)>,
    pub warnings: Vec<String>,
    pub provenance: Option<Value>,
    /// Everything else, for the same format's writer.
    pub native: Option<Arc<dyn Any + Send + Sync>>,
}

/// Lengths as people write them: `64 x 48`.
pub fn lengths(of: &[usize]) -> String {
    of.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}

impl Description {
    pub fn new(format: &'static str, path: &Path, dims: Vec<Dim>, dtype: DType) -> Description {
        let shape = dims.iter().map(|d| d.len).collect();
        Description {
            format,
            path: path.to_path_buf(),
            dims,
            dtype,
            bits: dtype.bits(),
            channels: Vec::new(),
            rescale: None,
            mosaic: None,
            levels: vec![shape],
            items: vec![String::new()],
            item: 0,
            tags: Vec::new(),
            warnings: Vec::new(),
            provenance: None,
            native: None,
        }
    }

    pub fn shape(&self) -> Vec<usize> {
        self.dims.iter().map(|d| d.len).collect()
    }

    /// The axes' letters, `TCZYX` say.
    pub fn axes(&self) -> String {
        self.dims.iter().map(|d| d.axis.letter()).collect()
    }

    pub fn dim(&self, axis: Axis) -> Option<&Dim> {
        self.dims.iter().find(|d| d.axis == axis)
    }

    pub fn position(&self, axis: Axis) -> Option<usize> {
        self.dims.iter().position(|d| d.axis == axis)
    }

    /// Gives the axes other names, one letter each in the file's order. What the file's own format keeps stays, so a file written
    /// in that format is named as it was.
    ///
    /// # Errors
    /// The error in the letters.
    pub fn name_axes(&mut self, letters: &str) -> std::result::Result<(), String> {
        let axes: Option<Vec<Axis>> = letters.chars().map(Axis::from_letter).collect();
        let axes = axes.ok_or("letters are T C Z Y X S, and I to R")?;
        if (0..axes.len()).any(|a| axes[..a].contains(&axes[a])) {
            return Err("a letter occurs twice".into());
        }
        if axes.len() != self.dims.len() {
            let (count, have, shape) = (self.dims.len(), self.axes(), lengths(&self.shape()));
            return Err(format!("{count} letters are needed, for the axes {have} of {shape}"));
        }
        self.dims.iter_mut().zip(axes).for_each(|(dim, axis)| dim.axis = axis);
        Ok(())
    }

    pub fn tag(&mut self, key: &str, value: impl ToString) {
        self.tags.push((key.to_string(), value.to_string()));
    }

    /// Data that the writer of the same format stored for itself.
    pub(crate) fn native<T: 'static>(&self) -> Option<&T> {
        self.native.as_deref()?.downcast_ref()
    }
}

/// Where an image's chunks come from. Chunks are whole: where the grid hangs over the image's edge the
/// buffer has the full chunk's shape, and what lies outside means nothing.
pub trait Source: Send + Sync {
    fn grid(&self, level: usize) -> &Grid;
    fn chunk(&self, level: usize, index: &[usize]) -> Result<Vec<u8>>;
    /// How many chunks to ask for at once where a server is waited for; zero where it is the processor.
    fn at_once(&self) -> usize {
        0
    }
}

/// The row of a timeline that a thread which decodes chunks writes to.
fn decoder() -> String {
    format!("decoder {:?}", std::thread::current().id())
}

/// Where an image in memory lies.
struct Memory {
    grid: Grid,
    /// Bytes of a value.
    width: usize,
    bytes: Vec<u8>,
}

impl Source for Memory {
    fn grid(&self, _: usize) -> &Grid {
        &self.grid
    }

    fn chunk(&self, _: usize, index: &[usize]) -> Result<Vec<u8>> {
        let mut out = vec![0; self.grid.chunk.iter().product::<usize>() * self.width];
        let (region, origin) = (self.grid.region(index), vec![0; self.grid.shape.len()]);
        // A chunk at an edge hangs over.
        let whole: Vec<std::ops::Range<usize>> =
            region.iter().zip(&self.grid.chunk).map(|(r, c)| r.start..r.start + c).collect();
        copy_common(self.width, &self.bytes, &self.grid.shape, &origin, &mut out, &whole);
        Ok(out)
    }
}

/// An opened image.
pub struct Image {
    pub description: Description,
    source: Box<dyn Source>,
    cache: Mutex<Cache>,
    /// Set once its values were seen to survive as 32-bit floats ([`Image::check_single`]).
    pub(crate) is_single: OnceLock<()>,
}

impl Image {
    /// An image whose chunks come from a source: what a format's reader makes, or one of your own.
    pub fn new(description: Description, source: Box<dyn Source>) -> Image {
        Image { description, source, cache: Mutex::new(Cache::default()), is_single: OnceLock::new() }
    }

    /// An image in memory: stored values row-major, in the machine's byte order, of the description's type and axes.
    ///
    /// # Errors
    /// If there are not as many bytes as pixels need.
    pub fn in_memory(description: Description, bytes: Vec<u8>) -> Result<Image> {
        let expected = volume(&description.shape()).and_then(|n| n.checked_mul(description.dtype.bytes()));
        if expected != Some(bytes.len()) {
            return Err(Error::Length { expected: expected.unwrap_or(usize::MAX), got: bytes.len() });
        }
        let (grid, width) =
            (Grid::rows(&description.shape(), description.dtype.bytes()), description.dtype.bytes());
        Ok(Image::new(description, Box::new(Memory { grid, width, bytes })))
    }

    /// Opens a file's first image, whatever the format.
    pub fn open(path: impl AsRef<Path>) -> Result<Image> {
        crate::format::open(path.as_ref(), None)
    }

    /// Opens one of several images of a file, by name or by number.
    pub fn open_item(path: impl AsRef<Path>, item: &str) -> Result<Image> {
        crate::format::open(path.as_ref(), Some(item))
    }

    /// Opens the image that is named, or the first.
    pub fn open_named(path: impl AsRef<Path>, item: Option<&str>) -> Result<Image> {
        crate::format::open(path.as_ref(), item)
    }

    /// Opens one of several images of a file by its number, whatever the images are called.
    pub fn open_number(path: impl AsRef<Path>, number: usize) -> Result<Image> {
        crate::format::open(path.as_ref(), Some(&format!("#{number}")))
    }

    pub fn dtype(&self) -> DType {
        self.description.dtype
    }

    pub fn shape(&self) -> Vec<usize> {
        self.description.shape()
    }

    pub fn grid(&self, level: usize) -> &Grid {
        self.source.grid(level)
    }

    /// The whole image as a region.
    pub fn whole(&self) -> Vec<std::ops::Range<usize>> {
        self.shape().into_iter().map(|n| 0..n).collect()
    }

    /// Regions that cover the image in order, each small enough for memory and large enough to read efficiently.
    ///
    /// # Errors
    /// When there would be millions of them.
    pub fn bands(&self) -> Result<Vec<Vec<std::ops::Range<usize>>>> {
        crate::copy::bands(self.grid(0), self.grid(0), self.dtype().bytes())
    }

    /// Reads a region of the full resolution: row-major, in the machine's byte order.
    pub fn read(&self, region: &Region) -> Result<Vec<u8>> {
        self.read_level(0, region)
    }

    pub fn read_level(&self, level: usize, region: &Region) -> Result<Vec<u8>> {
        let shape = self.description.levels.get(level).cloned().unwrap_or_default();
        let inside = level < self.description.levels.len()
            && region.len() == shape.len()
            && region.iter().zip(&shape).all(|(r, &n)| r.start <= r.end && r.end <= n);
        if !inside {
            return Err(Error::Region { region: region.to_vec(), level, shape });
        }
        let width = self.dtype().bytes();
        let size = extent(region);
        let Some(bytes) = volume(&size).and_then(|n| n.checked_mul(width)) else {
            return request(format!("a region of {size:?} pixels is more than can be addressed"));
        };
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let grid = self.source.grid(level);
        let wanted = grid.touching(region);
        let mut out = Vec::new();
        if out.try_reserve_exact(bytes).is_err() {
            return request(format!("a region of {size:?} pixels does not fit into memory"));
        }
        // As many chunks at a time as there are threads to decode them, and memory to hold them.
        let chunk_bytes = volume(&grid.chunk).unwrap_or(usize::MAX).saturating_mul(width).max(1);
        let waiting = self.source.at_once();
        let timeline = clearshot_timeline::current();
        let together = (rayon::current_num_threads() * 2).max(waiting).min((64 << 20) / chunk_bytes).max(1);
        for batch in wanted.chunks(together) {
            let fetch = |index: &Vec<usize>| {
                let _attached = timeline.as_ref().and_then(|t| t.attach_again(&decoder()));
                self.fetch(level, index, region)
            };
            let chunks: Vec<Arc<Vec<u8>>> = match batch {
                [one] => vec![fetch(one)?],
                many if waiting > 0 => side_by_side(many, waiting, fetch)?,
                many => many.par_iter().map(fetch).collect::<Result<_>>()?,
            };
            // Memory is taken when there is something to put there: metadata alone may lie.
            out.resize(bytes, 0);
            for (index, chunk) in batch.iter().zip(chunks) {
                let at: Vec<usize> = index.iter().zip(&grid.chunk).map(|(i, c)| i * c).collect();
                copy_common(width, &chunk, &grid.chunk, &at, &mut out, region);
            }
        }
        Ok(out)
    }

    /// A chunk, from memory where it was lately decoded. A chunk that the region takes whole is not kept:
    /// it is unlikely to be requested again.
    fn fetch(&self, level: usize, index: &[usize], region: &Region) -> Result<Arc<Vec<u8>>> {
        let grid = self.source.grid(level);
        let key = (level, grid.number(index));
        if let Some(found) = lock(&self.cache).get(key) {
            return Ok(found);
        }
        let decoding = span(Phase::Decoding);
        let chunk = Arc::new(self.source.chunk(level, index)?);
        drop(decoding);
        let whole = grid.region(index).iter().zip(region).all(|(c, r)| r.start <= c.start && c.end <= r.end);
        if !whole {
            lock(&self.cache).put(key, Arc::clone(&chunk));
        }
        Ok(chunk)
    }

    /// Reads a region as the values that are meant: slope and intercept applied, blanks as NaN.
    pub fn read_f64(&self, region: &Region) -> Result<Vec<f64>> {
        let bytes = self.read(region)?;
        Ok(self.decode(&bytes))
    }

    /// Stored bytes of this image as the values that are meant.
    pub fn decode(&self, bytes: &[u8]) -> Vec<f64> {
        let mut values = Vec::with_capacity(bytes.len() / self.dtype().bytes());
        self.dtype().decode(bytes, &mut values);
        self.description.rescale.iter().for_each(|r| r.apply(&mut values));
        values
    }

    /// [`Image::read_f64`] in half the memory.
    pub fn read_f32(&self, region: &Region) -> Result<Vec<f32>> {
        let bytes = self.read(region)?;
        let values = self.dtype().decode_f32(&bytes, self.description.rescale);
        // Only these can be larger than 32 bits hold.
        if self.dtype() == DType::F64 || self.description.rescale.is_some() {
            let infinite = values.iter().enumerate().filter(|(_, v)| v.is_infinite());
            let width = self.dtype().bytes();
            let mut wide = infinite.map(|(i, _)| self.decode(&bytes[i * width..(i + 1) * width])[0]);
            if let Some(value) = wide.find(|v| v.is_finite()) {
                let path = self.description.path.display();
                return request(format!(
                    "{path}: {value:e} is larger than 32-bit numbers can be; scale the image"
                ));
            }
        }
        Ok(values)
    }
}

fn lock(cache: &Mutex<Cache>) -> std::sync::MutexGuard<'_, Cache> {
    cache.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A level, and a chunk's number in it.
type ChunkKey = (usize, usize);

/// The chunks that were decoded last, at most 64 MiB of them and always the last one.
#[derive(Default)]
struct Cache {
    held: VecDeque<(ChunkKey, Arc<Vec<u8>>)>,
    bytes: usize,
}

impl Cache {
    const LIMIT: usize = 64 << 20;

    fn get(&mut self, key: ChunkKey) -> Option<Arc<Vec<u8>>> {
        let at = self.held.iter().position(|(k, _)| *k == key)?;
        let entry = self.held.remove(at)?;
        let chunk = Arc::clone(&entry.1);
        self.held.push_back(entry);
        Some(chunk)
    }

    fn put(&mut self, key: ChunkKey, chunk: Arc<Vec<u8>>) {
        self.bytes += chunk.len();
        self.held.push_back((key, chunk));
        while self.bytes > Cache::LIMIT && self.held.len() > 1 {
            if let Some((_, old)) = self.held.pop_front() {
                self.bytes -= old.len();
            }
        }
    }
}
