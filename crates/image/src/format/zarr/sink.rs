//! Writes OME-Zarr 0.5: a folder under a temporary name that is renamed, the same packed into a zip archive, or objects at
//! an address (`upload`), by one process or by several that share the chunks. Only whole chunks and whole shards are
//! written. Images from Zarr keep their levels, chunks, shards and attributes; others get the axis order of the format, and
//! a pyramid if they are large.

use super::array::{self, Array, IndexCache};
use super::store::Store;
use super::upload::Upload;
use super::{NAME, Native};
use crate::address::Address;
use crate::archive::PackedFolder;
use crate::aside::{AsideFile, AsideFolder, SharedFolder};
use crate::dtype::{DType, Order, swap_bytes};
use crate::error::{Error, Parsed, Result, request};
use crate::grid::{Grid, Place, copy_box, indices, permute};
use crate::image::{Axis, Description};
use crate::remote::{AT_ONCE, side_by_side};
use crate::share::Share;
use crate::writer::{Joined, Target, WriteOptions};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::BufWriter;
use std::path::Path;

struct ZarrTarget {
    place: PlaceOut,
    dtype: DType,
    levels: Vec<LevelOut>,
    /// Axis `i` of the file is axis `order[i]` of the image.
    order: Vec<usize>,
    group: Option<Value>,
}

enum PlaceOut {
    Folder(AsideFolder),
    Zip(AsideFile, tempfile::TempDir),
    Shared(SharedFolder),
    Objects(Box<Upload>),
}

struct LevelOut {
    /// In the image's order of axes; shards where there are any.
    grid: Grid,
    /// The same in the file's order.
    file: Grid,
    /// Inner chunks, in the file's order.
    inner: Option<Vec<usize>>,
    key: String,
    metadata: Value,
    /// The same as a reader sees it.
    array: Array,
}

impl LevelOut {
    fn new(
        grid: Grid,
        file: Grid,
        inner: Option<Vec<usize>>,
        key: String,
        metadata: Value,
    ) -> Parsed<LevelOut> {
        let array = Array::version3(&key, &metadata)?;
        Ok(LevelOut { grid, file, inner, key, metadata, array })
    }
}

pub(in crate::format) fn create(
    path: &Path,
    description: &Description,
    options: &WriteOptions,
) -> Result<Box<dyn Target>> {
    let (levels, order, group) = made_of(path, description, options)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let place = if let Some(address) = Address::of(path)? {
        let width = description.dtype.bytes();
        let grids = grids(&levels);
        PlaceOut::Objects(Box::new(Upload::begin(&address, description, &grids, width, options.replace)?))
    } else if name.ends_with(".zip") || name.ends_with(".ozx") {
        let file = AsideFile::create(path, options.replace)?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let staging = tempfile::Builder::new().prefix(".zarr.").suffix(".part").tempdir_in(parent);
        PlaceOut::Zip(file, staging.map_err(|e| Error::io(path, e))?)
    } else {
        PlaceOut::Folder(AsideFolder::create(path, options.replace)?)
    };
    let target = ZarrTarget { place, dtype: description.dtype, levels, order, group };
    if let Some(root) = target.root() {
        target.write_metadata(root).map_err(|e| Error::io(path, e))?;
    }
    Ok(Box::new(target))
}

/// # Errors
/// If OME-Zarr cannot hold such an image.
pub(in crate::format) fn check(path: &Path, description: &Description) -> Result<()> {
    made_of(path, description, &WriteOptions::default()).map(drop)
}

/// The same as one of several writers: metadata come with the end.
pub(in crate::format) fn join(
    path: &Path,
    description: &Description,
    options: &WriteOptions,
    share: &Share,
) -> Result<Joined> {
    let (levels, order, group) = made_of(path, description, options)?;
    let place = match Address::of(path)? {
        Some(_) if options.replace => {
            return request(format!(
                "{}: several jobs do not replace an image at an address; remove it first, or write to another name",
                path.display()
            ));
        }
        Some(address) => {
            let (grids, width) = (grids(&levels), description.dtype.bytes());
            PlaceOut::Objects(Box::new(Upload::join(&address, description, &grids, width, &share.id)?))
        }
        None => PlaceOut::Shared(SharedFolder::join(path, &share.id, options.replace)?),
    };
    let target = ZarrTarget { place, dtype: description.dtype, levels, order, group };
    let there = target.there(share).map_err(|fault| fault.at(path, NAME))?;
    Ok(Joined { target: Box::new(target), there })
}

/// The levels, the order of axes and the metadata of what is written.
fn made_of(path: &Path, description: &Description, options: &WriteOptions) -> Result<Made> {
    let shape = description.shape();
    if shape.contains(&0) || shape.is_empty() {
        return request(format!("{}: an image of shape {shape:?} has no pixels", path.display()));
    }
    let native = description.native::<Native>().filter(|n| {
        description.format == NAME
            && n.arrays[0].grid.shape == shape
            && n.arrays[0].dtype == description.dtype
    });
    match native {
        Some(native) => keep(native, description, options).map_err(|fault| fault.at(path, NAME)),
        None => fresh(path, description, options),
    }
}

fn grids(levels: &[LevelOut]) -> Vec<(&str, &Grid)> {
    levels.iter().map(|l| (l.key.as_str(), &l.file)).collect()
}

fn provenance_into(attributes: &mut Value, options: &WriteOptions) {
    if let (Some(record), Some(map)) = (&options.provenance, attributes.as_object_mut()) {
        map.insert("clearshot".to_string(), record.clone());
    }
}

/// The levels, chunks and attributes that the input had.
fn keep(native: &Native, description: &Description, options: &WriteOptions) -> Parsed<Made> {
    let mut attributes = native.attributes.clone();
    provenance_into(&mut attributes, options);
    let plain = native.ome.is_none();
    let levels = native
        .arrays
        .iter()
        .enumerate()
        .map(|(n, array)| {
            let outer = array.shard.clone().unwrap_or(array.grid.chunk.clone());
            let grid = Grid::new(array.grid.shape.clone(), outer);
            let inner = array.shard.as_ref().map(|_| array.grid.chunk.clone());
            let names: Vec<String> =
                description.axes().to_lowercase().chars().map(|c| c.to_string()).collect();
            let own = if plain { attributes.clone() } else { array.attributes.clone() };
            let mut fill = Vec::new();
            array.dtype.decode(&array.fill, &mut fill);
            let metadata = array_metadata(&grid, inner.as_deref(), array.dtype, fill[0], &names, &own);
            let key = if plain { String::new() } else { dataset_path(native, n) };
            LevelOut::new(grid.clone(), grid, inner, key, metadata)
        })
        .collect::<Parsed<_>>()?;
    let group = native.ome.as_ref().map(|ome| {
        if let Some(map) = attributes.as_object_mut() {
            map.insert("ome".to_string(), ome.clone());
        }
        group_metadata(attributes)
    });
    Ok((levels, (0..description.dims.len()).collect(), group))
}

/// The name that the input's metadata give a level, whatever group it was in.
fn dataset_path(native: &Native, level: usize) -> String {
    let ome = native.ome.as_ref();
    let listed = ome.and_then(|o| o["multiscales"][0]["datasets"][level]["path"].as_str());
    listed.map_or(level.to_string(), str::to_string)
}

pub(super) fn group_metadata(attributes: Value) -> Value {
    json!({"zarr_format": 3, "node_type": "group", "attributes": attributes})
}

fn fill_json(fill: f64, dtype: DType) -> Value {
    match fill {
        f if !dtype.is_float() => json!(f as i64),
        f if f.is_nan() => json!("NaN"),
        f if f == f64::INFINITY => json!("Infinity"),
        f if f == f64::NEG_INFINITY => json!("-Infinity"),
        f => json!(f),
    }
}

fn array_metadata(
    outer: &Grid,
    inner: Option<&[usize]>,
    dtype: DType,
    fill: f64,
    names: &[String],
    attributes: &Value,
) -> Value {
    let bytes = match dtype.bytes() {
        1 => json!({"name": "bytes"}),
        _ => json!({"name": "bytes", "configuration": {"endian": "little"}}),
    };
    let packed = json!([bytes, {"name": "zstd", "configuration": {"level": ZSTD_LEVEL, "checksum": false}}]);
    let codecs = match inner {
        None => packed,
        Some(inner) => json!([{"name": "sharding_indexed", "configuration": {
            "chunk_shape": inner,
            "codecs": packed,
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
            "index_location": "end",
        }}]),
    };
    let attributes = if attributes.is_object() { attributes.clone() } else { Value::Object(Map::new()) };
    json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": outer.shape,
        "data_type": dtype.name(),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer.chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_json(fill, dtype),
        "codecs": codecs,
        "attributes": attributes,
        "dimension_names": names,
        "storage_transformers": [],
    })
}

const ZSTD_LEVEL: i32 = 1;

fn name_of(axis: Axis, has_c: bool) -> (String, Option<&'static str>) {
    match axis {
        Axis::T => ("t".to_string(), Some("time")),
        Axis::C => ("c".to_string(), Some("channel")),
        Axis::S if !has_c => ("c".to_string(), Some("channel")),
        Axis::Z | Axis::Y | Axis::X => (axis.letter().to_lowercase().to_string(), Some("space")),
        other => (other.letter().to_lowercase().to_string(), None),
    }
}

fn unit_name(unit: &str) -> &str {
    match unit {
        "µm" | "\u{3bc}m" | "um" | "micron" => "micrometer",
        "nm" => "nanometer",
        "mm" => "millimeter",
        "cm" => "centimeter",
        "m" => "meter",
        "Å" => "angstrom",
        "s" | "sec" => "second",
        "ms" => "millisecond",
        "min" => "minute",
        "h" => "hour",
        other => other,
    }
}

type Made = (Vec<LevelOut>, Vec<usize>, Option<Value>);

fn fresh(path: &Path, description: &Description, options: &WriteOptions) -> Result<Made> {
    let dims = &description.dims;
    let rank = dims.len();
    let spatial = dims.iter().filter(|d| d.axis.is_space()).count();
    if !(2..=5).contains(&rank) || spatial < 2 {
        return request(format!(
            "{}: OME-Zarr holds two to five axes with at least Y and X, and the axes are {}{}",
            path.display(),
            description.axes(),
            if rank > 5 { "; write it as TIFF (.tif)" } else { "" }
        ));
    }
    let has_c = description.dim(Axis::C).is_some();
    let place = |axis: Axis| match axis {
        Axis::T => 0,
        Axis::C | Axis::S | Axis::Other(_) => 1,
        Axis::Z => 2,
        Axis::Y => 3,
        Axis::X => 4,
    };
    let mut order: Vec<usize> = (0..rank).collect();
    order.sort_by_key(|&a| place(dims[a].axis));
    if order.iter().filter(|&&a| place(dims[a].axis) == 1).count() > 1 {
        return request(format!(
            "{}: OME-Zarr has one axis besides time and space, and the axes are {}; name them with --axes",
            path.display(),
            description.axes()
        ));
    }
    let names: Vec<String> = order.iter().map(|&a| name_of(dims[a].axis, has_c).0).collect();
    let axes: Vec<Value> = order
        .iter()
        .map(|&a| {
            let (name, kind) = name_of(dims[a].axis, has_c);
            let mut entry = json!({"name": name});
            if let Some(kind) = kind {
                entry["type"] = json!(kind);
            }
            if let Some(unit) = &dims[a].unit {
                entry["unit"] = json!(unit_name(unit));
            }
            entry
        })
        .collect();
    let shapes = if description.levels.len() > 1 { description.levels.clone() } else { pyramid(description) };
    let mut levels = Vec::new();
    let mut datasets = Vec::new();
    for (n, shape) in shapes.iter().enumerate() {
        let chunk: Vec<usize> = (0..rank)
            .map(|a| if matches!(dims[a].axis, Axis::Y | Axis::X) { shape[a].clamp(1, 512) } else { 1 })
            .collect();
        let grid = Grid::new(shape.clone(), chunk);
        let to_file = |v: &[usize]| -> Vec<usize> { order.iter().map(|&a| v[a]).collect() };
        let file = Grid::new(to_file(&grid.shape), to_file(&grid.chunk));
        let scale: Vec<f64> = order
            .iter()
            .map(|&a| dims[a].step.unwrap_or(1.0) * (shapes[0][a] as f64 / shape[a] as f64).round())
            .collect();
        datasets.push(json!({
            "path": n.to_string(),
            "coordinateTransformations": [{"type": "scale", "scale": scale}],
        }));
        let metadata = array_metadata(&file, None, description.dtype, 0.0, &names, &Value::Null);
        let level = LevelOut::new(grid, file, None, n.to_string(), metadata);
        levels.push(level.map_err(|fault| fault.at(path, NAME))?);
    }
    let stem = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut ome = json!({
        "version": "0.5",
        "multiscales": [{"name": stem, "axes": axes, "datasets": datasets, "type": "mean"}],
    });
    if description.channels.iter().any(|c| c.name.is_some() || c.color.is_some()) {
        ome["omero"] = json!({"channels": description.channels.iter().map(channel).collect::<Vec<_>>()});
    }
    let mut attributes = json!({"ome": ome});
    provenance_into(&mut attributes, options);
    Ok((levels, order, Some(group_metadata(attributes))))
}

fn channel(channel: &crate::Channel) -> Value {
    let [r, g, b] = channel.color.unwrap_or([255; 3]);
    let mut entry = json!({"color": format!("{r:02X}{g:02X}{b:02X}"), "active": true});
    if let Some(name) = &channel.name {
        entry["label"] = json!(name);
    }
    entry
}

/// Halves Y and X until the larger is at most 512, for images beyond 1024.
fn pyramid(description: &Description) -> Vec<Vec<usize>> {
    let plane: Vec<usize> = (0..description.dims.len())
        .filter(|&a| matches!(description.dims[a].axis, Axis::Y | Axis::X))
        .collect();
    let longest = |shape: &[usize]| plane.iter().map(|&a| shape[a]).max().unwrap_or(0);
    let mut shapes = vec![description.shape()];
    while longest(&shapes[0]) > 1024 && longest(&shapes[shapes.len() - 1]) > 512 {
        let mut next = shapes[shapes.len() - 1].clone();
        plane.iter().for_each(|&a| next[a] = next[a].div_ceil(2));
        shapes.push(next);
    }
    shapes
}

impl ZarrTarget {
    /// The folder on this machine that chunks are written to.
    fn root(&self) -> Option<&Path> {
        match &self.place {
            PlaceOut::Folder(folder) => Some(folder.root()),
            PlaceOut::Zip(_, staging) => Some(staging.path()),
            PlaceOut::Shared(folder) => Some(folder.root()),
            PlaceOut::Objects(_) => None,
        }
    }

    /// Which chunks of the full resolution are there, of those that are this writer's.
    fn there(&self, share: &Share) -> Parsed<Vec<bool>> {
        let (grid, array) = (&self.levels[0].grid, &self.levels[0].array);
        let whole: Vec<_> = grid.counts().into_iter().map(|n| 0..n).collect();
        let found = match &self.place {
            PlaceOut::Objects(upload) => Some(upload.found(&array.path)?),
            _ => None,
        };
        let is_there = |index: &Vec<usize>| {
            let key = array.key(&self.file_index(index));
            match (&found, self.root()) {
                (Some(found), _) => found.contains(&key),
                // What a machine that lost its power had not written yet is empty.
                (None, Some(root)) => root.join(key).metadata().is_ok_and(|m| m.len() > 0),
                (None, None) => false,
            }
        };
        Ok(indices(&whole).iter().map(|index| share.owns(grid, index) && is_there(index)).collect())
    }

    /// Every group and array with its metadata, what is inside before what it is in: the root is the last.
    fn metadata(&self) -> Vec<(String, String)> {
        let mut all: BTreeMap<&str, String> = BTreeMap::new();
        for level in &self.levels {
            all.insert(&level.key, format!("{:#}", level.metadata));
            // Groups between the root and the arrays.
            for (at, _) in level.key.match_indices('/') {
                all.entry(&level.key[..at]).or_insert_with(|| format!("{:#}", group_metadata(json!({}))));
            }
        }
        if let Some(group) = &self.group {
            all.insert("", format!("{group:#}"));
        }
        let key = |folder: &str| array::join(folder, "zarr.json");
        all.into_iter().rev().map(|(folder, text)| (key(folder), text)).collect()
    }

    fn write_metadata(&self, root: &Path) -> std::io::Result<()> {
        self.metadata().into_iter().try_for_each(|(key, text)| {
            let path = root.join(key);
            std::fs::create_dir_all(path.parent().unwrap_or(root))?;
            std::fs::write(path, text)
        })
    }

    fn file_index(&self, index: &[usize]) -> Vec<usize> {
        self.order.iter().map(|&a| index[a]).collect()
    }

    fn pack(&self, mut raw: Vec<u8>) -> Parsed<Vec<u8>> {
        if Order::NATIVE == Order::Big {
            swap_bytes(&mut raw, self.dtype.bytes());
        }
        Ok(zstd::bulk::compress(&raw, ZSTD_LEVEL)?)
    }

    /// A shard: its chunks one after the other, and behind them where each is.
    fn pack_shard(&self, level: &LevelOut, inner: &[usize], raw: &[u8]) -> Parsed<Vec<u8>> {
        let width = self.dtype.bytes();
        let per = Grid::new(level.file.chunk.clone(), inner.to_vec());
        let counts: Vec<_> = per.counts().into_iter().map(|n| 0..n).collect();
        let (mut out, mut table) = (Vec::new(), Vec::new());
        for index in indices(&counts) {
            let start: Vec<usize> = index.iter().zip(inner).map(|(i, c)| i * c).collect();
            let mut chunk = vec![0; inner.iter().product::<usize>() * width];
            let zeros = vec![0; inner.len()];
            let from = Place { shape: &level.file.chunk, start: &start };
            copy_box(width, inner, raw, from, &mut chunk, Place { shape: inner, start: &zeros });
            let packed = self.pack(chunk)?;
            table.extend_from_slice(&(out.len() as u64).to_le_bytes());
            table.extend_from_slice(&(packed.len() as u64).to_le_bytes());
            out.extend(packed);
        }
        let sum = crc32c::crc32c(&table);
        out.extend(table);
        out.extend_from_slice(&sum.to_le_bytes());
        Ok(out)
    }
}

impl Target for ZarrTarget {
    fn grid(&self, level: usize) -> &Grid {
        &self.levels[level].grid
    }

    fn levels(&self) -> usize {
        self.levels.len()
    }

    fn encode(&self, level: usize, _index: &[usize], raw: Vec<u8>) -> Parsed<Vec<u8>> {
        let level = &self.levels[level];
        let sorted = self.order.iter().enumerate().all(|(i, &a)| i == a);
        let raw =
            if sorted { raw } else { permute(&raw, &level.grid.chunk, &self.order, self.dtype.bytes()) };
        match &level.inner {
            None => self.pack(raw),
            Some(inner) => self.pack_shard(level, inner, &raw),
        }
    }

    fn store(&mut self, level: usize, index: &[usize], encoded: Vec<u8>) -> Parsed<()> {
        let key = self.levels[level].array.key(&self.file_index(index));
        let file = match &self.place {
            PlaceOut::Objects(upload) => return upload.put(&key, &encoded),
            PlaceOut::Folder(folder) => folder.root().join(key),
            PlaceOut::Zip(_, staging) => staging.path().join(key),
            PlaceOut::Shared(folder) => return Ok(folder.put(&key, &encoded)?),
        };
        if let Err(e) = std::fs::write(&file, &encoded) {
            // The folder of a row of chunks is made with its first chunk.
            if e.kind() != std::io::ErrorKind::NotFound {
                return Err(e.into());
            }
            std::fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
            std::fs::write(&file, &encoded)?;
        }
        Ok(())
    }

    fn store_all(&mut self, level: usize, chunks: Vec<(Vec<usize>, Vec<u8>)>) -> Parsed<()> {
        if let PlaceOut::Objects(upload) = &self.place {
            let array = &self.levels[level].array;
            let put = |(index, encoded): &(Vec<usize>, Vec<u8>)| {
                upload.put(&array.key(&self.file_index(index)), encoded)
            };
            return side_by_side(&chunks, AT_ONCE, put).map(|_| ());
        }
        chunks.into_iter().try_for_each(|(index, encoded)| self.store(level, &index, encoded))
    }

    fn read_back(&self, level: usize, index: &[usize]) -> Parsed<Vec<u8>> {
        let local;
        let store = match &self.place {
            PlaceOut::Objects(upload) => upload.store(),
            PlaceOut::Folder(_) | PlaceOut::Zip(..) | PlaceOut::Shared(_) => {
                local = Store::Folder(self.root().unwrap_or(Path::new(".")).to_path_buf());
                &local
            }
        };
        let out = &self.levels[level];
        let array = &out.array;
        let file_index = self.file_index(index);
        let width = self.dtype.bytes();
        let mut inverse = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(i, &a)| inverse[a] = i);
        let cache = IndexCache::default();
        let raw = match &out.inner {
            None => array.chunk(store, &cache, &file_index)?,
            Some(inner) => {
                let mut raw = vec![0; out.file.chunk.iter().product::<usize>() * width];
                let per = Grid::new(out.file.chunk.clone(), inner.clone()).counts();
                let ranges: Vec<_> = per.iter().map(|&n| 0..n).collect();
                for part in indices(&ranges) {
                    let at: Vec<usize> = (0..part.len()).map(|a| file_index[a] * per[a] + part[a]).collect();
                    let chunk = array.chunk(store, &cache, &at)?;
                    let start: Vec<usize> = part.iter().zip(inner).map(|(i, c)| i * c).collect();
                    let zeros = vec![0; inner.len()];
                    let to = Place { shape: &out.file.chunk, start: &start };
                    copy_box(width, inner, &chunk, Place { shape: inner, start: &zeros }, &mut raw, to);
                }
                raw
            }
        };
        Ok(permute(&raw, &out.file.chunk, &inverse, width))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let metadata = self.metadata();
        match self.place {
            PlaceOut::Objects(upload) => upload.finish(&metadata),
            PlaceOut::Folder(folder) => folder.commit(),
            PlaceOut::Shared(folder) => folder.commit(&metadata),
            PlaceOut::Zip(file, staging) => {
                let path = file.path().to_path_buf();
                let pack =
                    || PackedFolder::of(staging.path())?.write(BufWriter::new(file.file().try_clone()?));
                pack().map_err(|e| Error::io(&path, e))?;
                file.commit()
            }
        }
    }

    fn leave(self: Box<Self>) -> Result<()> {
        match self.place {
            PlaceOut::Objects(upload) => {
                upload.leave();
                Ok(())
            }
            PlaceOut::Shared(folder) => folder.leave(),
            PlaceOut::Folder(_) | PlaceOut::Zip(..) => Ok(()),
        }
    }
}
