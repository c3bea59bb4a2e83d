//! Writing: regions may come in any order, chunks are written when they are complete, and the file gets its name at the
//! end. Memory holds only incomplete chunks, so writing row after row needs one row of chunks. Lower resolutions that were
//! not written are averaged from the one above.
//!
//! Several processes may write one file together ([`Writer::join`]): each writes the chunks of its [`Share`], and the last
//! one writes what is missing, the lower resolutions and the name.

use crate::address::Address;
use crate::dtype::DType;
use crate::error::{Error, Parsed, Result, request};
use crate::grid::{Grid, Place, Region, copy_box, copy_common, extent, intersect, volume};
use crate::image::Description;
use crate::share::{self, Share};
use rayon::prelude::*;
use serde_json::Value;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// How a file is to be written.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// An existing file may be replaced.
    pub replace: bool,
    /// The record of what was done, to be kept in the file.
    pub provenance: Option<Value>,
}

/// A file being written in one format. `encode` runs on several threads, `store` on one.
pub(crate) trait Target: Send + Sync {
    fn grid(&self, level: usize) -> &Grid;
    fn levels(&self) -> usize {
        1
    }
    fn encode(&self, level: usize, index: &[usize], raw: Vec<u8>) -> Parsed<Vec<u8>>;
    fn store(&mut self, level: usize, index: &[usize], encoded: Vec<u8>) -> Parsed<()>;
    /// Stores several chunks; where a server is waited for, side by side.
    fn store_all(&mut self, level: usize, chunks: Vec<(Vec<usize>, Vec<u8>)>) -> Parsed<()> {
        chunks.into_iter().try_for_each(|(index, encoded)| self.store(level, &index, encoded))
    }
    /// A chunk that was stored before, decoded; only asked of files with several levels.
    fn read_back(&self, _level: usize, _index: &[usize]) -> Parsed<Vec<u8>> {
        Ok(Vec::new())
    }
    /// Completes the file and gives it its name.
    fn finish(self: Box<Self>) -> Result<()>;
    /// Leaves the file to the other writers that it is shared with, what was stored being safe.
    fn leave(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// A file that several writers make, and which of its chunks of the full resolution are there.
pub(crate) struct Joined {
    pub target: Box<dyn Target>,
    pub there: Vec<bool>,
}

/// Accepts the regions of one image and makes a file of them.
pub struct Writer {
    path: PathBuf,
    format: &'static str,
    dtype: DType,
    target: Box<dyn Target>,
    levels: Vec<Assembly>,
    /// What is this writer's, of a file with several.
    share: Option<Share>,
}

/// The chunks of one level that are begun but not complete.
struct Assembly {
    pending: HashMap<usize, Pending>,
    done: Vec<bool>,
    complete: usize,
    /// Chunks that are not written here, because others write them or they are there; none where all are.
    left: Vec<bool>,
}

struct Pending {
    index: Vec<usize>,
    raw: Vec<u8>,
    missing: usize,
}

impl Writer {
    /// Begins a file; its format follows from the name, or from the description where that is of the
    /// same kind.
    pub fn create(
        path: impl AsRef<Path>,
        description: &Description,
        options: &WriteOptions,
    ) -> Result<Writer> {
        let path = shown(path.as_ref())?;
        let (format, target) = crate::format::create(&path, description, options)?;
        Writer::over(path, format, description, target)
    }

    /// Refuses what [`Writer::create`] would refuse of the image itself: axes and types that the format of this name does not have.
    ///
    /// # Errors
    /// Names the file and what it cannot hold.
    pub fn check(path: impl AsRef<Path>, description: &Description) -> Result<()> {
        crate::format::check(&shown(path.as_ref())?, description)
    }

    /// Begins or joins a file that several writers make together, each in a process of its own: only OME-Zarr folders can be. What
    /// lies in chunks of others, or in chunks that are there already, may be written and is left out.
    ///
    /// # Errors
    /// If the format cannot be shared, or something else is at the place.
    pub fn join(
        path: impl AsRef<Path>,
        description: &Description,
        options: &WriteOptions,
        share: &Share,
    ) -> Result<Writer> {
        let path = shown(path.as_ref())?;
        let (format, Joined { target, there }) = crate::format::join(&path, description, options, share)?;
        let mut writer = Writer::over(path, format, description, target)?;
        let (grid, first) = (writer.target.grid(0).clone(), &mut writer.levels[0]);
        let whole: Vec<_> = grid.shape.iter().map(|&n| 0..n).collect();
        let owned = |index: &Vec<usize>| share.owns(&grid, index);
        first.left = grid.touching(&whole).iter().zip(&there).map(|(i, there)| *there || !owned(i)).collect();
        first.complete = there.iter().filter(|there| **there).count();
        first.done = there;
        writer.share = Some(share.clone());
        Ok(writer)
    }

    fn over(
        path: PathBuf,
        format: &'static str,
        description: &Description,
        target: Box<dyn Target>,
    ) -> Result<Writer> {
        let too_many = |level: usize| volume(&target.grid(level).counts()).is_none_or(|n| n > 1 << 28);
        if (0..target.levels()).any(too_many) {
            return request(format!(
                "an image of shape {:?} has too many chunks to be written",
                description.shape()
            ));
        }
        let levels = (0..target.levels())
            .map(|level| Assembly {
                pending: HashMap::new(),
                done: vec![false; target.grid(level).total()],
                complete: 0,
                left: Vec::new(),
            })
            .collect();
        Ok(Writer { path, format, dtype: description.dtype, target, levels, share: None })
    }

    /// What of a region of the full resolution is to be written here: all of it, but in a file that is shared.
    pub fn wanted(&self, region: &Region) -> Vec<Vec<Range<usize>>> {
        let (grid, first) = (self.target.grid(0), &self.levels[0]);
        match self.share {
            None => vec![region.to_vec()],
            Some(_) => share::boxes(grid, region, |index| !first.skips(grid.number(index))),
        }
    }

    /// Chunks of the full resolution that this writer has, and how many of those were there when it began.
    pub fn chunks(&self) -> [usize; 2] {
        let (grid, first) = (self.target.grid(0), &self.levels[0]);
        let whole: Vec<_> = grid.shape.iter().map(|&n| 0..n).collect();
        let own = |index: &Vec<usize>| self.share.as_ref().is_none_or(|share| share.owns(grid, index));
        let own: Vec<usize> =
            grid.touching(&whole).iter().filter(|i| own(i)).map(|i| grid.number(i)).collect();
        [own.len(), own.iter().filter(|&&n| first.skips(n)).count()]
    }

    pub fn grid(&self, level: usize) -> &Grid {
        self.target.grid(level)
    }

    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// Writes a region of the full resolution. Regions must not overlap, and must cover the image before
    /// `finish`.
    pub fn write(&mut self, region: &Region, data: &[u8]) -> Result<()> {
        self.write_level(0, region, data)
    }

    pub fn write_level(&mut self, level: usize, region: &Region, data: &[u8]) -> Result<()> {
        let _writing = clearshot_timeline::span(clearshot_timeline::Phase::Writing);
        if level >= self.levels.len() {
            return request(format!("level {level} of a file with {} levels", self.levels.len()));
        }
        let grid = self.target.grid(level).clone();
        let inside = region.len() == grid.shape.len()
            && region.iter().zip(&grid.shape).all(|(r, &n)| r.start <= r.end && r.end <= n);
        if !inside {
            return Err(Error::Region { region: region.to_vec(), level, shape: grid.shape });
        }
        let size = extent(region);
        let width = self.dtype.bytes();
        let expected = volume(&size).map_or(usize::MAX, |n| n.saturating_mul(width));
        if expected != data.len() {
            return Err(Error::Length { expected, got: data.len() });
        }
        let touched = grid.touching(region);
        // Not more raw chunks at a time than threads can encode.
        for batch in touched.chunks(rayon::current_num_threads().max(1) * 4) {
            let mut complete = Vec::new();
            for index in batch {
                if self.levels[level].skips(grid.number(index)) {
                    continue;
                }
                if let Some(raw) = self.levels[level].add(&grid, index, region, &size, width, data)? {
                    complete.push((index.clone(), raw));
                }
            }
            self.put(level, complete)?;
        }
        Ok(())
    }

    fn put(&mut self, level: usize, complete: Vec<(Vec<usize>, Vec<u8>)>) -> Result<()> {
        let target = &self.target;
        let encode = |(index, raw): (Vec<usize>, Vec<u8>)| {
            let encoded = target.encode(level, &index, raw)?;
            Ok((index, encoded))
        };
        let encoded: Parsed<Vec<_>> = if complete.len() > 1 {
            complete.into_par_iter().map(encode).collect()
        } else {
            complete.into_iter().map(encode).collect()
        };
        encoded
            .and_then(|chunks| self.target.store_all(level, chunks))
            .map_err(|fault| fault.at(&self.path, self.format))
    }

    /// Makes the missing lower levels, checks that nothing is missing, and gives the file its name. Of a file that is shared only
    /// the last writer does; any other checks what it has itself.
    pub fn finish(mut self) -> Result<()> {
        let _writing = clearshot_timeline::span(clearshot_timeline::Phase::Writing);
        if self.share.as_ref().is_some_and(|share| share.part.is_some()) {
            let first = &self.levels[0];
            let missing = (0..first.done.len()).filter(|&n| !first.done[n] && !first.left[n]).count();
            if missing > 0 {
                return Err(Error::Incomplete {
                    total: first.done.len(),
                    path: self.path,
                    level: 0,
                    missing,
                });
            }
            return self.target.leave();
        }
        for level in 0..self.levels.len() {
            let total = self.target.grid(level).total();
            let begun = self.levels[level].complete > 0 || !self.levels[level].pending.is_empty();
            if level > 0 && !begun {
                self.average(level)?;
            }
            let missing = total - self.levels[level].complete;
            if missing > 0 {
                return Err(Error::Incomplete { path: self.path, level, missing, total });
            }
        }
        self.target.finish()
    }

    /// Fills a level with means over boxes of the level above.
    fn average(&mut self, level: usize) -> Result<()> {
        let (fine, coarse) = (self.target.grid(level - 1).clone(), self.target.grid(level).clone());
        let factor: Vec<usize> = fine
            .shape
            .iter()
            .zip(&coarse.shape)
            .map(|(&f, &c)| ((f as f64 / c.max(1) as f64).round() as usize).max(1))
            .collect();
        let whole: Vec<_> = coarse.shape.iter().map(|&n| 0..n).collect();
        for index in coarse.touching(&whole) {
            let region = coarse.region(&index);
            let source: Vec<_> = region
                .iter()
                .enumerate()
                .map(|(a, r)| {
                    let start = (r.start * factor[a]).min(fine.shape[a].saturating_sub(1));
                    start..(r.end * factor[a]).clamp(start + 1, fine.shape[a].max(start + 1))
                })
                .collect();
            let bytes = self.read_back(level - 1, &fine, &source)?;
            let mut values = Vec::new();
            self.dtype.decode(&bytes, &mut values);
            let means = box_means(&values, &extent(&source), &extent(&region), &factor);
            let mut data = Vec::new();
            self.dtype.encode(&means, &mut data);
            self.write_level(level, &region, &data)?;
        }
        Ok(())
    }

    fn read_back(&self, level: usize, grid: &Grid, region: &Region) -> Result<Vec<u8>> {
        let width = self.dtype.bytes();
        let mut out = vec![0; extent(region).iter().product::<usize>() * width];
        for index in grid.touching(region) {
            let chunk =
                self.target.read_back(level, &index).map_err(|fault| fault.at(&self.path, self.format))?;
            let at: Vec<usize> = index.iter().zip(&grid.chunk).map(|(i, c)| i * c).collect();
            copy_common(width, &chunk, &grid.chunk, &at, &mut out, region);
        }
        Ok(out)
    }
}

/// A path as it may be seen, if it is an address.
fn shown(path: &Path) -> Result<PathBuf> {
    let address = Address::of(path)?.map(|address| address.path());
    Ok(address.unwrap_or_else(|| path.to_path_buf()))
}

impl Assembly {
    /// Whether a chunk is not written here.
    fn skips(&self, number: usize) -> bool {
        self.left.get(number).is_some_and(|left| *left)
    }

    /// Adds what a region has of a chunk; returns the chunk when nothing of it is missing any more.
    fn add(
        &mut self,
        grid: &Grid,
        index: &[usize],
        region: &Region,
        size: &[usize],
        width: usize,
        data: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let number = grid.number(index);
        let covered = grid.region(index);
        if self.done[number] {
            return request(format!("pixels of region {covered:?} were written twice"));
        }
        let common = intersect(&covered, region);
        let count = extent(&common).iter().product::<usize>();
        let pending = self.pending.entry(number).or_insert_with(|| Pending {
            index: index.to_vec(),
            raw: vec![0; grid.chunk.iter().product::<usize>() * width],
            missing: extent(&covered).iter().product(),
        });
        let from: Vec<usize> = common.iter().zip(region).map(|(c, r)| c.start - r.start).collect();
        let to: Vec<usize> =
            (0..index.len()).map(|a| common[a].start - pending.index[a] * grid.chunk[a]).collect();
        copy_box(
            width,
            &extent(&common),
            data,
            Place { shape: size, start: &from },
            &mut pending.raw,
            Place { shape: &grid.chunk, start: &to },
        );
        if count > pending.missing {
            return request(format!("pixels of region {covered:?} were written twice"));
        }
        pending.missing -= count;
        if pending.missing > 0 {
            return Ok(None);
        }
        self.done[number] = true;
        self.complete += 1;
        Ok(self.pending.remove(&number).map(|p| p.raw))
    }
}

/// Means of boxes of `factor` elements; the last box along an axis takes what is left.
fn box_means(values: &[f64], fine: &[usize], coarse: &[usize], factor: &[usize]) -> Vec<f64> {
    let count: usize = coarse.iter().product();
    let (mut sums, mut counts) = (vec![0.0; count], vec![0u32; count]);
    let strides = crate::grid::strides(coarse);
    let Some((&columns, outer)) = fine.split_last() else { return values.to_vec() };
    let last = outer.len();
    let place = |a: usize, i: usize| (i / factor[a]).min(coarse[a] - 1) * strides[a];
    let rows: Vec<_> = outer.iter().map(|&n| 0..n).collect();
    for (index, row) in crate::grid::indices(&rows).iter().zip(values.chunks_exact(columns)) {
        let base: usize = index.iter().enumerate().map(|(a, &i)| place(a, i)).sum();
        for (x, &v) in row.iter().enumerate() {
            let at = base + place(last, x);
            sums[at] += v;
            counts[at] += 1;
        }
    }
    sums.iter().zip(counts).map(|(s, n)| s / f64::from(n)).collect()
}
