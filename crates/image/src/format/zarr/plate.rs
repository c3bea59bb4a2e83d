//! The groups around the images of a Zarr folder with several images: plates with wells and fields (the HCS layout of
//! NGFF), numbered images (bioformats2raw), groups of arrays. Images are listed here, and the groups are written back in
//! version 0.5.

use super::array::{self, join};
use super::sink::group_metadata;
use super::split_attributes;
use super::store::Store;
use crate::error::{Fault, Parsed, Result, damaged};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Largest number of images of a plate, so that a damaged list does not cause millions of requests.
const MOST: usize = 100_000;
/// Most bytes of the description that stands beside numbered images.
const MOST_TEXT: u64 = 256 << 20;

fn ome(attributes: &Value) -> &Value {
    attributes.get("ome").unwrap_or(attributes)
}

/// The path of every field of a plate, well after well; empty if the root is not a plate.
pub(super) fn fields(store: &Store, root: &Value) -> Parsed<Vec<String>> {
    let Some(plate) = ome(root).get("plate") else { return Ok(Vec::new()) };
    let mut out = Vec::new();
    for well in plate.get("wells").and_then(Value::as_array).into_iter().flatten() {
        let Some(path) = well.get("path").and_then(Value::as_str) else {
            return damaged("a well of the plate without a path");
        };
        // Wells that were never imaged may be listed.
        let Some((attributes, _)) = array::attributes(store, path)? else { continue };
        let images = ome(&attributes)["well"]["images"].as_array();
        for image in images.into_iter().flatten() {
            let Some(field) = image.get("path").and_then(Value::as_str) else {
                return damaged(format!("a field of well {path} without a path"));
            };
            let key = join(path, field);
            // Groups of these names are made where the plate is written.
            if key.split('/').any(|part| matches!(part, "" | "." | "..")) || key.contains('\\') {
                return damaged(format!("a field at {key}"));
            }
            out.push(key);
        }
        if out.len() > MOST {
            return damaged(format!("a plate of more than {MOST} fields"));
        }
    }
    if out.is_empty() { damaged("a plate without fields") } else { Ok(out) }
}

/// The files around the images of a folder, by their paths in it: groups from the root down to the images, with
/// their attributes, and the description that lies beside numbered images.
pub(crate) fn frame(path: &Path, items: &[String]) -> Result<Vec<(String, Vec<u8>)>> {
    around(path, items).map_err(|fault: Fault| fault.at(path, super::NAME))
}

fn around(path: &Path, items: &[String]) -> Parsed<Vec<(String, Vec<u8>)>> {
    let store = Store::open(path)?;
    let mut groups = BTreeSet::from([String::new()]);
    for item in items {
        groups.extend(item.match_indices('/').map(|(at, _)| item[..at].to_string()));
    }
    groups.insert("OME".into());
    let mut out = Vec::new();
    for key in groups {
        let Some((attributes, _)) = array::attributes(&store, &key)? else { continue };
        let is_ome = ome(&attributes)
            .as_object()
            .is_some_and(|m| super::OME_KEYS.iter().any(|k| m.contains_key(*k)) || m.contains_key("version"));
        let (mut rest, ome) = split_attributes(attributes, is_ome);
        if let (Some(map), Some(ome)) = (rest.as_object_mut(), ome) {
            map.insert("ome".into(), ome);
        }
        let text = serde_json::to_vec_pretty(&group_metadata(rest)).expect("JSON of JSON");
        out.push((join(&key, "zarr.json"), text));
    }
    const TEXT: &str = "OME/METADATA.ome.xml";
    out.extend(store.get(TEXT, MOST_TEXT)?.map(|text| (TEXT.to_string(), text)));
    Ok(out)
}
