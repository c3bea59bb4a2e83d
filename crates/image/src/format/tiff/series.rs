//! Which pages form an image: similar pages, an ImageJ hyperstack, tifffile's shaped series, or the images that OME-XML
//! lists over several files.

use super::ifd::tag;
use super::page::Page;
use super::{Node, imagej, ome, read_parts};
use crate::bytes::Bytes;
use crate::dtype::Order;
use crate::error::{Fault, Parsed, damaged};
use crate::image::{Axis, Channel, Dim};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// One image of a file, before it is opened.
pub struct Series {
    pub name: String,
    pub lead: Vec<Dim>,
    pub planes: Vec<SeriesPlane>,
    pub step: [(Option<f64>, String); 2],
    pub channels: Vec<Channel>,
    pub tags: Vec<(String, String)>,
    pub warnings: Vec<String>,
    pub relocated: bool,
    /// All planes follow each other behind the first directory.
    pub contiguous: bool,
    /// Which image of the OME-XML it is.
    pub number: usize,
}

#[derive(Clone)]
pub enum SeriesPlane {
    Node(usize),
    Missing(String),
}

fn plain(name: String, lead: Vec<Dim>, planes: Vec<usize>) -> Series {
    Series {
        name,
        lead,
        planes: planes.into_iter().map(SeriesPlane::Node).collect(),
        step: [(None, String::new()), (None, String::new())],
        channels: Vec::new(),
        tags: Vec::new(),
        warnings: Vec::new(),
        relocated: false,
        contiguous: false,
        number: 0,
    }
}

/// Pages of one shape and type are one image.
pub fn plain_series(nodes: &[Node], files: &[Arc<Bytes>], order: Order) -> Vec<Series> {
    let mut groups: Vec<(Page, Vec<usize>)> = Vec::new();
    let mut unread = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        match Page::new(&node.ifd, order, files[node.file].len()) {
            Ok(page) => match groups.iter_mut().find(|(model, _)| model.alike(&page)) {
                Some((_, members)) => members.push(number),
                None => groups.push((page, vec![number])),
            },
            Err(Fault::Damaged(what) | Fault::Unsupported(what, _) | Fault::Limit(what)) => {
                unread.push(format!("directory {number} is not a readable image: {what}"));
            }
            Err(Fault::Io(e)) => unread.push(format!("directory {number}: {e}")),
            Err(Fault::Remote(what) | Fault::Forbidden(what)) => {
                unread.push(format!("directory {number}: {what}"));
            }
        }
    }
    // A first page that cannot be read is the file's error, not a footnote.
    if groups.first().is_none_or(|(_, members)| members[0] != 0) {
        return Vec::new();
    }
    let mut series: Vec<Series> = groups
        .into_iter()
        .enumerate()
        .map(|(i, (_, members))| {
            let lead =
                if members.len() > 1 { vec![Dim::new(Axis::Other(0), members.len())] } else { Vec::new() };
            let ifd = &nodes[members[0]].ifd;
            let step = |t: u16| match ifd.number(tag::RESOLUTION_UNIT) {
                Some(3) => ifd.rational(t).filter(|v| *v > 0.0).map(|v| 1e4 / v),
                _ => None,
            };
            let steps = [step(tag::Y_RESOLUTION), step(tag::X_RESOLUTION)];
            let mut series = plain(i.to_string(), lead, members);
            series.step = steps.map(|s| (s, "µm".to_string()));
            series
        })
        .collect();
    series[0].warnings = unread;
    series
}

pub fn imagej_series(text: &str, nodes: &[Node], first: &Page, file: u64) -> Series {
    let meta = imagej::parse(text, &nodes[0].ifd);
    let fits = (meta.images as u64).saturating_mul(first.page_bytes() as u64) <= file;
    let contiguous = nodes.len() == 1 && meta.images > 1 && first.is_rows() && !first.planar && fits;
    let count = if contiguous { meta.images } else { nodes.len() };
    let mut lead = meta.lead;
    let mut warnings = Vec::new();
    if lead.iter().map(|d| d.len).product::<usize>() != count {
        warnings.push(format!("the description lists {} images, and {count} are there", meta.images));
        lead = if count > 1 { vec![Dim::new(Axis::Other(0), count)] } else { Vec::new() };
    }
    let planes = if contiguous { vec![0; count] } else { (0..count).collect() };
    let mut series = plain("0".to_string(), lead, planes);
    series.contiguous = contiguous;
    series.step = [(meta.y, meta.unit.clone()), (meta.x, meta.unit)];
    series.warnings = warnings;
    series
}

/// tifffile's own description: a JSON object with the shape, and perhaps the axes.
pub fn shaped_series(text: &str, nodes: &[Node], first: &Page, file: u64) -> Option<Series> {
    if !text.starts_with('{') {
        return None;
    }
    let meta: serde_json::Value = serde_json::from_str(text).ok()?;
    let shape: Vec<usize> =
        meta.get("shape")?.as_array()?.iter().map(|n| Some(n.as_u64()? as usize)).collect::<Option<_>>()?;
    let letters: Vec<char> = match meta.get("axes").and_then(|a| a.as_str()) {
        Some(axes) if axes.chars().count() == shape.len() => axes.chars().collect(),
        _ => vec!['Q'; shape.len()],
    };
    let long: Vec<(char, usize)> = letters.into_iter().zip(shape).filter(|(_, n)| *n != 1).collect();
    let page: Vec<usize> = first.shape().into_iter().filter(|&n| n != 1).collect();
    let at = long.len().checked_sub(page.len())?;
    if long[at..].iter().map(|(_, n)| *n).ne(page.iter().copied()) {
        return None;
    }
    let count = long[..at].iter().try_fold(1usize, |n, (_, len)| n.checked_mul(*len))?;
    let contiguous = nodes.len() == 1 && count > 1 && first.is_rows() && !first.planar;
    let wholly = (count as u64).checked_mul(first.page_bytes() as u64)?;
    if count == 0 || count > 1 << 24 || (!contiguous && count != nodes.len()) || (contiguous && wholly > file)
    {
        return None;
    }
    let mut others = 0;
    let lead = long[..at]
        .iter()
        .map(|&(letter, len)| {
            let axis = match Axis::from_letter(letter) {
                Some(Axis::Other(_) | Axis::Y | Axis::X | Axis::S) | None => {
                    others += 1;
                    Axis::Other(others - 1)
                }
                Some(axis) => axis,
            };
            Dim::new(axis, len)
        })
        .collect();
    let planes = if contiguous { vec![0; count] } else { (0..count).collect() };
    let mut series = plain("0".to_string(), lead, planes);
    series.contiguous = contiguous;
    Some(series)
}

/// The images that the OME-XML lists, with the other files of the set that exist.
pub fn ome_series(
    path: &Path,
    text: &str,
    nodes: &mut Vec<Node>,
    files: &mut Vec<Arc<Bytes>>,
) -> Parsed<Vec<Series>> {
    let own = nodes.len();
    let images = ome::parse(text, own)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    // Where each other file's directories begin in `nodes`, and how many there are.
    let mut members: HashMap<String, Option<(usize, usize)>> = HashMap::new();
    let mut out = Vec::new();
    for (number, image) in images.into_iter().enumerate() {
        let mut missing: Vec<String> = Vec::new();
        let mut relocated = false;
        let mut planes = Vec::with_capacity(image.planes.len());
        for plane in &image.planes {
            let Some(at) = plane else {
                missing.push("some of which no file is named".to_string());
                planes.push(SeriesPlane::Missing("and the OME-XML names no file for it".to_string()));
                continue;
            };
            let base = match &at.file {
                None => Some((0, own)),
                Some(name) if Path::new(name).file_name() == path.file_name() => Some((0, own)),
                Some(name) => {
                    relocated = true;
                    *members.entry(name.clone()).or_insert_with(|| open_member(folder, name, nodes, files))
                }
            };
            match base {
                Some((base, count)) if at.ifd < count => planes.push(SeriesPlane::Node(base + at.ifd)),
                _ => {
                    let name = at.file.clone().unwrap_or(format!("directory {}", at.ifd));
                    planes.push(SeriesPlane::Missing(format!("which the OME-XML says is in {name}")));
                    missing.push(name);
                }
            }
        }
        missing.dedup();
        let mut warnings = Vec::new();
        if !missing.is_empty() {
            warnings.push(format!("planes are missing: {}", missing.join(", ")));
        }
        let Some(&SeriesPlane::Node(first)) = planes.iter().find(|p| matches!(p, SeriesPlane::Node(_)))
        else {
            continue;
        };
        let ifd = &nodes[first].ifd;
        let found = [tag::WIDTH, tag::HEIGHT].map(|t| ifd.number(t).unwrap_or(0) as usize);
        if found != [image.width, image.height] {
            warnings.push(format!(
                "the OME-XML says {} x {} pixels, and the directory {} x {}",
                image.width, image.height, found[0], found[1]
            ));
        }
        out.push(Series {
            name: image.name,
            lead: image.lead,
            planes,
            step: [image.y, image.x],
            channels: image.channels,
            tags: image.tags,
            warnings,
            relocated,
            contiguous: false,
            number,
        });
    }
    if out.is_empty() {
        return damaged("the OME-XML lists no image that is in the file");
    }
    Ok(out)
}

/// A file whose metadata are in a file of their own: the whole set where that is there, otherwise the planes
/// of this file, with a warning.
pub fn companion_series(
    path: &Path,
    name: &str,
    nodes: &mut Vec<Node>,
    files: &mut Vec<Arc<Bytes>>,
    order: Order,
) -> Vec<Series> {
    let beside = Path::new(name).file_name().map(|n| path.with_file_name(n));
    let text = beside.and_then(|p| std::fs::read_to_string(p).ok());
    let mut series = match text.and_then(|text| ome_series(path, &text, nodes, files).ok()) {
        Some(series) => return series,
        None => plain_series(nodes, files, order),
    };
    if let Some(first) = series.first_mut() {
        first.warnings.push(format!(
            "this is one file of a set whose metadata file {name} is missing; only its own planes are read"
        ));
    }
    series
}

/// Adds another file of the set; its directories follow those that are there already.
fn open_member(
    folder: &Path,
    name: &str,
    nodes: &mut Vec<Node>,
    files: &mut Vec<Arc<Bytes>>,
) -> Option<(usize, usize)> {
    // Only files beside this one: a name must not lead anywhere else.
    let name = Path::new(name).file_name()?;
    let bytes = Bytes::open(&folder.join(name)).ok()?;
    let parts = read_parts(bytes, files.len()).ok()?;
    files.push(parts.bytes);
    let base = nodes.len();
    nodes.extend(parts.nodes);
    Some((base, nodes.len() - base))
}
