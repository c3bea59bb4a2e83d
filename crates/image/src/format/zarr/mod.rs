//! OME-Zarr 0.4 (Zarr 2) and 0.5 (Zarr 3) in folders, zip archives and at addresses, and plain Zarr arrays. All are read;
//! 0.5 is written. `array` has metadata, codecs and shards, `store` their storage.

mod array;
mod blosc;
mod plate;
mod sink;
mod store;
mod upload;

pub(crate) use plate::frame;
pub(super) use sink::{check, create, join};
pub(crate) use store::is_at;
pub(crate) use upload::Upload;

use crate::error::{Fault, Parsed, Result, damaged, unsupported};
use crate::grid::Grid;
use crate::image::{Axis, Channel, Description, Dim, Image, Source};
use array::{Array, IndexCache};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::Store;

pub(crate) const NAME: &str = "OME-Zarr";

pub(super) fn recognise(path: &Path, head: &[u8]) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    if path.is_dir() {
        return Store::is_hierarchy(path) || name.ends_with(".zarr");
    }
    head.starts_with(b"PK") && !name.ends_with(".npz")
}

/// What the writer gives back: the group's attributes, and each level's array.
struct Native {
    /// Attributes of the group that are not OME's, and those that are, as of version 0.5.
    attributes: Value,
    ome: Option<Value>,
    arrays: Vec<Array>,
}

struct ZarrSource {
    path: PathBuf,
    store: Store,
    levels: Vec<Array>,
    indices: IndexCache,
}

impl Source for ZarrSource {
    fn grid(&self, level: usize) -> &Grid {
        &self.levels[level].grid
    }

    fn chunk(&self, level: usize, index: &[usize]) -> Result<Vec<u8>> {
        self.levels[level]
            .chunk(&self.store, &self.indices, index)
            .map_err(|fault| fault.at(&self.path, NAME))
    }

    fn at_once(&self) -> usize {
        self.store.at_once()
    }
}

pub(super) fn open(path: &Path, item: Option<&str>) -> Result<Image> {
    let fail = |fault: Fault| fault.at(path, NAME);
    let store = Store::open(path).map_err(fail)?;
    let (root, version) = array::attributes(&store, "").map_err(fail)?.unwrap_or((Value::Null, 0));
    let items = plate::fields(&store, &root).map_err(fail)?;
    if !items.is_empty() {
        let chosen = super::choose(path, &items, item)?;
        let prefix = items[chosen].clone();
        let Some((attributes, version)) = array::attributes(&store, &prefix).map_err(fail)? else {
            return Err(fail(Fault::Damaged(format!(
                "the field {prefix}, which the plate lists, is missing"
            ))));
        };
        return open_multiscale(path, store, prefix, attributes, version, items, chosen).map_err(fail);
    }
    if multiscales(&root).is_some() {
        return open_multiscale(path, store, String::new(), root, version, vec!["0".to_string()], 0)
            .map_err(fail);
    }
    if let Some(array) = Array::open(&store, "").map_err(fail)? {
        return open_plain(path, store, array, vec![String::new()], 0).map_err(fail);
    }
    // A collection of images in numbered groups.
    let mut series = Vec::new();
    while series.len() < 100_000 {
        let name = series.len().to_string();
        match array::attributes(&store, &name).map_err(fail)? {
            Some((attributes, version)) if multiscales(&attributes).is_some() => {
                series.push((attributes, version));
            }
            _ => break,
        }
    }
    if !series.is_empty() {
        let items: Vec<String> = (0..series.len()).map(|n| n.to_string()).collect();
        let chosen = super::choose(path, &items, item)?;
        let (attributes, version) = series.swap_remove(chosen);
        let prefix = chosen.to_string();
        return open_multiscale(path, store, prefix, attributes, version, items, chosen).map_err(fail);
    }
    let mut items = Vec::new();
    let mut arrays = Vec::new();
    for key in store.arrays().map_err(fail)? {
        if let Some(array) = Array::open(&store, &key).map_err(fail)? {
            items.push(key);
            arrays.push(array);
        }
    }
    if arrays.is_empty() {
        return Err(fail(store.without_array()));
    }
    let chosen = super::choose(path, &items, item)?;
    open_plain(path, store, arrays.swap_remove(chosen), items, chosen).map_err(fail)
}

fn multiscales(attributes: &Value) -> Option<&Value> {
    let ome = attributes.get("ome").unwrap_or(attributes);
    ome.get("multiscales").and_then(Value::as_array).and_then(|list| list.first())
}

fn open_multiscale(
    path: &Path,
    store: Store,
    prefix: String,
    attributes: Value,
    version: u8,
    items: Vec<String>,
    item: usize,
) -> Parsed<Image> {
    let Some(scales) = multiscales(&attributes) else { return damaged("no multiscales") };
    let Some(datasets) = scales.get("datasets").and_then(Value::as_array).filter(|d| !d.is_empty()) else {
        return damaged("multiscales without datasets");
    };
    let mut levels = Vec::new();
    for dataset in datasets.iter().take(64) {
        let Some(key) = dataset.get("path").and_then(Value::as_str) else {
            return damaged("a dataset without a path");
        };
        match Array::open(&store, &array::join(&prefix, key))? {
            Some(array) => levels.push(array),
            None => return damaged(format!("the array {key}, which the metadata list, is missing")),
        }
    }
    let first = &levels[0];
    let rank = first.grid.shape.len();
    if levels.iter().any(|l| l.grid.shape.len() != rank || l.dtype != first.dtype) {
        return damaged("levels of different types or numbers of axes");
    }
    let scale = scale_of(scales, datasets, rank);
    let dims = axes_of(scales, rank, version)?
        .into_iter()
        .enumerate()
        .map(|(a, (axis, unit))| {
            let len = first.grid.shape[a];
            let spaced = axis.is_space() || axis == Axis::T;
            // A scale of one without a unit is what writers put who know nothing.
            let known = unit.is_some() || scale[a] != 1.0;
            let step = Some(scale[a]).filter(|_| spaced && known);
            let mut dim = Dim::stepped(axis, len, step, unit.as_deref().unwrap_or("pixel"));
            dim.unit = dim.unit.filter(|_| unit.is_some());
            dim
        })
        .collect();
    let mut description = Description::new(NAME, path, dims, first.dtype);
    let ome = attributes.get("ome").unwrap_or(&attributes);
    description.channels = channels(ome);
    description.levels = levels.iter().map(|l| l.grid.shape.clone()).collect();
    description.items = items;
    description.item = item;
    let stated = ome.get("version").or(scales.get("version")).and_then(Value::as_str).unwrap_or("unknown");
    description.tag("version", stated);
    description.tag("zarr format", version);
    if let Some(name) = scales.get("name").and_then(Value::as_str).filter(|n| !n.is_empty()) {
        description.tag("name", name);
    }
    finish(path, store, description, levels, attributes, true)
}

fn open_plain(path: &Path, store: Store, array: Array, items: Vec<String>, item: usize) -> Parsed<Image> {
    let rank = array.grid.shape.len();
    let mut others = 0;
    let named: Vec<Option<Axis>> = (0..rank)
        .map(|a| {
            let name = array.names.get(a)?.as_deref()?;
            if name.len() == 1 { Axis::from_letter(name.chars().next()?) } else { None }
        })
        .collect();
    let distinct = (0..rank).all(|a| named[a].is_some() && !named[..a].contains(&named[a]));
    let dims = (0..rank)
        .map(|a| {
            let axis = match named[a] {
                Some(axis) if distinct => axis,
                _ if a + 1 == rank => Axis::X,
                _ if a + 2 == rank => Axis::Y,
                _ => {
                    others += 1;
                    Axis::Other((others - 1) as u8)
                }
            };
            Dim::new(axis, array.grid.shape[a])
        })
        .collect();
    let mut description = Description::new(NAME, path, dims, array.dtype);
    description.items = items;
    description.item = item;
    let attributes = array.attributes.clone();
    finish(path, store, description, vec![array], attributes, false)
}

fn finish(
    path: &Path,
    store: Store,
    mut description: Description,
    levels: Vec<Array>,
    attributes: Value,
    is_ome: bool,
) -> Parsed<Image> {
    if description.shape().contains(&0) {
        return unsupported(format!("an array without pixels, of shape {:?},", description.shape()));
    }
    let chunk = &levels[0].grid.chunk;
    description.tag("chunks", format!("{chunk:?}"));
    if let Some(shard) = &levels[0].shard {
        description.tag("shards", format!("{shard:?}"));
    }
    description.provenance = attributes.get("clearshot").cloned();
    let (rest, ome) = split_attributes(attributes, is_ome);
    description.native = Some(Arc::new(Native { attributes: rest, ome, arrays: levels.clone() }));
    let source = ZarrSource { path: path.to_path_buf(), store, levels, indices: IndexCache::default() };
    Ok(Image::new(description, Box::new(source)))
}

/// Attributes of earlier versions.
const OME_KEYS: [&str; 8] =
    ["multiscales", "omero", "labels", "image-label", "plate", "well", "bioformats2raw.layout", "series"];

/// Attributes as version 0.5 has them: everything of OME's under one key.
fn split_attributes(attributes: Value, is_ome: bool) -> (Value, Option<Value>) {
    let Value::Object(mut all) = attributes else { return (Value::Object(Default::default()), None) };
    if !is_ome {
        return (Value::Object(all), None);
    }
    let mut ome = match all.shift_remove("ome") {
        Some(Value::Object(ome)) => ome,
        _ => {
            let mut ome = serde_json::Map::new();
            for key in OME_KEYS {
                if let Some(value) = all.shift_remove(key) {
                    ome.insert(key.to_string(), value);
                }
            }
            all.shift_remove("version");
            ome
        }
    };
    for scale in ome.get_mut("multiscales").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(scale) = scale.as_object_mut() {
            scale.shift_remove("version");
        }
    }
    for key in ["plate", "well"] {
        if let Some(map) = ome.get_mut(key).and_then(Value::as_object_mut) {
            map.shift_remove("version");
        }
    }
    ome.insert("version".to_string(), Value::from("0.5"));
    (Value::Object(all), Some(Value::Object(ome)))
}

fn transform_scale(node: &Value) -> Option<Vec<f64>> {
    let list = node.get("coordinateTransformations")?.as_array()?;
    let scale = list.iter().find(|t| t.get("type").and_then(Value::as_str) == Some("scale"))?;
    scale.get("scale")?.as_array()?.iter().map(Value::as_f64).collect()
}

/// The step along each axis at full resolution.
fn scale_of(scales: &Value, datasets: &[Value], rank: usize) -> Vec<f64> {
    let own = transform_scale(&datasets[0]).filter(|s| s.len() == rank).unwrap_or(vec![1.0; rank]);
    let common = transform_scale(scales).filter(|s| s.len() == rank).unwrap_or(vec![1.0; rank]);
    own.iter().zip(common).map(|(a, b)| a * b).collect()
}

fn axes_of(scales: &Value, rank: usize, version: u8) -> Parsed<Vec<(Axis, Option<String>)>> {
    let Some(list) = scales.get("axes").and_then(Value::as_array) else {
        // Before 0.3 the axes were always these.
        if version == 2 && rank == 5 {
            return Ok([Axis::T, Axis::C, Axis::Z, Axis::Y, Axis::X].map(|a| (a, None)).to_vec());
        }
        return damaged("multiscales without axes");
    };
    if list.len() != rank {
        return damaged(format!("{} axes for an array of {rank}", list.len()));
    }
    let mut others = 0;
    let mut axes: Vec<(Axis, Option<String>)> = Vec::new();
    for entry in list {
        let name = entry.as_str().or(entry.get("name").and_then(Value::as_str)).unwrap_or("");
        let kind = entry.get("type").and_then(Value::as_str);
        let axis = match (name, kind) {
            ("t", _) | (_, Some("time")) => Axis::T,
            ("c", _) | (_, Some("channel")) => Axis::C,
            ("z", _) => Axis::Z,
            ("y", _) => Axis::Y,
            ("x", _) => Axis::X,
            _ => {
                others += 1;
                Axis::Other(others - 1)
            }
        };
        if axes.iter().any(|(a, _)| *a == axis) {
            return damaged(format!("two axes {name}"));
        }
        axes.push((axis, entry.get("unit").and_then(Value::as_str).map(str::to_string)));
    }
    Ok(axes)
}

fn channels(ome: &Value) -> Vec<Channel> {
    let list = ome.get("omero").and_then(|o| o.get("channels")).and_then(Value::as_array);
    let hex = |c: &str| {
        let n = u32::from_str_radix(c.trim_start_matches('#'), 16).ok().filter(|_| c.len() >= 6)?;
        let [_, r, g, b] = n.to_be_bytes();
        Some([r, g, b])
    };
    list.map_or(Vec::new(), |list| {
        list.iter()
            .map(|c| Channel {
                name: c.get("label").and_then(Value::as_str).map(str::to_string),
                color: c.get("color").and_then(Value::as_str).and_then(hex),
                emission_nm: None,
            })
            .collect()
    })
}
