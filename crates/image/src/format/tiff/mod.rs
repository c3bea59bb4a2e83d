//! TIFF and its dialects: plain files, ImageJ hyperstacks, OME-TIFF with sub-resolutions and sets of several
//! files, tifffile's shaped series. `ifd` reads directories, `page` makes pictures of them, this file
//! makes images of pictures, and `sink` writes.

pub(crate) mod codec;
pub(crate) mod ifd;
mod imagej;
mod ome;
mod page;
mod sink;

pub(super) use sink::create;

use crate::bytes::Bytes;
use crate::dtype::Order;
use crate::error::{Fault, Parsed, Result, damaged, unsupported};
use crate::grid::Grid;
use crate::image::{Axis, Channel, Description, Dim, Image, Source};
use ifd::{Ifd, tag};
use page::Page;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const NAME: &str = "TIFF";

pub(super) fn recognise(_: &Path, head: &[u8]) -> bool {
    matches!(head.get(..4), Some(b"II*\0" | b"MM\0*" | b"II+\0" | b"MM\0+"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    ImageJ,
    Ome,
    Shaped,
}

/// A directory with those that hang from it.
#[derive(Clone, Debug)]
struct Node {
    ifd: Ifd,
    /// Which file of the set it is in.
    file: usize,
    /// Of tag 330: lower resolutions, or whatever the writer put there.
    subs: Vec<Node>,
    /// Directories that other tags point to (EXIF, GPS).
    links: Vec<(u16, Node)>,
}

/// What the writer needs to make the same file again.
struct Native {
    files: Vec<Arc<Bytes>>,
    order: Order,
    big: bool,
    kind: Kind,
    nodes: Vec<Node>,
    /// The directory of each plane of the image.
    planes: Vec<usize>,
    /// Which sub-directory each lower level is.
    levels: Vec<usize>,
    /// Planes were put together from several files, or share one directory.
    relocated: bool,
    item: usize,
    shape: Vec<usize>,
    dtype: crate::DType,
}

/// A plane that can be read, or the file that is missing.
#[derive(Clone)]
enum Plane {
    At { file: usize, page: Arc<Page> },
    Missing(String),
}

struct Level {
    grid: Grid,
    planes: Vec<Plane>,
}

struct TiffSource {
    path: PathBuf,
    files: Vec<Arc<Bytes>>,
    /// The axes before those of a page.
    lead: Vec<usize>,
    levels: Vec<Level>,
}

impl Source for TiffSource {
    fn grid(&self, level: usize) -> &Grid {
        &self.levels[level].grid
    }

    fn chunk(&self, level: usize, index: &[usize]) -> Result<Vec<u8>> {
        let (lead, within) = index.split_at(self.lead.len());
        let number = lead.iter().zip(&self.lead).fold(0, |n, (&i, &len)| n * len + i);
        let read = match self.levels[level].planes.get(number) {
            Some(Plane::At { file, page }) => page.read(&self.files[*file], within),
            Some(Plane::Missing(name)) => damaged(format!("plane {number} is in {name}, which is missing")),
            None => damaged(format!("plane {number} is not in the file")),
        };
        read.map_err(|fault| fault.at(&self.path, NAME))
    }
}

/// A file as parsed: its directories, and a page for each that is a picture.
struct Parts {
    bytes: Arc<Bytes>,
    order: Order,
    big: bool,
    nodes: Vec<Node>,
}

fn read_parts(bytes: Bytes, file: usize) -> Parsed<Parts> {
    let all = ifd::read_all(&bytes)?;
    let (mut reader, _) = ifd::Reader::new(&bytes)?;
    let mut seen = HashSet::new();
    let nodes = all.chain.into_iter().map(|ifd| hang(&mut reader, ifd, file, 0, &mut seen)).collect();
    Ok(Parts { order: all.order, big: all.big, nodes, bytes: Arc::new(bytes) })
}

/// Reads the directories that a directory points to; what cannot be read is left out.
fn hang(reader: &mut ifd::Reader, ifd: Ifd, file: usize, depth: usize, seen: &mut HashSet<u64>) -> Node {
    let mut subs = Vec::new();
    let mut links = Vec::new();
    if depth < 4 {
        for at in ifd.numbers(tag::SUB_IFDS) {
            if seen.insert(at)
                && seen.len() < 100_000
                && let Ok((sub, _)) = reader.ifd(at)
            {
                subs.push(hang(reader, sub, file, depth + 1, seen));
            }
        }
        for link in [tag::EXIF, tag::GPS, tag::INTEROP] {
            if let Some(at) = ifd.number(link).filter(|at| seen.insert(*at))
                && let Ok((sub, _)) = reader.ifd(at)
            {
                links.push((link, hang(reader, sub, file, depth + 1, seen)));
            }
        }
    }
    Node { ifd, file, subs, links }
}

/// One image of a file, before it is opened.
struct Series {
    name: String,
    lead: Vec<Dim>,
    planes: Vec<SeriesPlane>,
    step: [(Option<f64>, String); 2],
    channels: Vec<Channel>,
    tags: Vec<(String, String)>,
    warnings: Vec<String>,
    relocated: bool,
    /// All planes follow each other behind the first directory.
    contiguous: bool,
    /// Which image of the OME-XML it is.
    number: usize,
}

#[derive(Clone)]
enum SeriesPlane {
    Node(usize),
    Missing(String),
}

pub(super) fn open(path: &Path, item: Option<&str>) -> Result<Image> {
    let fail = |fault: Fault| fault.at(path, NAME);
    let parts = read_parts(Bytes::open(path)?, 0).map_err(fail)?;
    let mut files = vec![Arc::clone(&parts.bytes)];
    let mut nodes = parts.nodes;
    let text = nodes[0].ifd.text(tag::DESCRIPTION).unwrap_or_default();
    let page = |node: &Node, files: &[Arc<Bytes>], order: Order| {
        Page::new(&node.ifd, node.ifd.order.unwrap_or(order), files[node.file].len())
    };
    let first = page(&nodes[0], &files, parts.order);
    let companion = if ome::is_ome(&text) { ome::companion(&text) } else { None };
    let (kind, series) = match &first {
        Ok(_) if companion.is_some() => {
            let name = companion.unwrap_or_default();
            (Kind::Plain, companion_series(path, &name, &mut nodes, &mut files, parts.order))
        }
        _ if ome::is_ome(&text) => {
            (Kind::Ome, ome_series(path, &text, &mut nodes, &mut files).map_err(fail)?)
        }
        Ok(first) if imagej::is_imagej(&text) => {
            (Kind::ImageJ, vec![imagej_series(&text, &nodes, first, files[0].len())])
        }
        Ok(first) => match shaped_series(&text, &nodes, first, files[0].len()) {
            Some(series) => (Kind::Shaped, vec![series]),
            None => (Kind::Plain, plain_series(&nodes, &files, parts.order)),
        },
        Err(_) => (Kind::Plain, plain_series(&nodes, &files, parts.order)),
    };
    if series.is_empty() {
        return Err(first.err().unwrap_or(Fault::Damaged("no image".to_string())).at(path, NAME));
    }
    let items: Vec<String> = series.iter().map(|s| s.name.clone()).collect();
    let chosen = super::choose(path, &items, item)?;
    let Some(series) = series.into_iter().nth(chosen) else {
        return Err(fail(Fault::Damaged("no image".into())));
    };
    let provenance = nodes[0].ifd.text(tag::PROVENANCE).and_then(|t| serde_json::from_str(&t).ok());
    let (source, native) =
        assemble(path, &series, files, nodes, parts.order, parts.big, kind, &first).map_err(fail)?;
    let mut description = describe(path, &series, &source, &native);
    description.items = items;
    description.item = chosen;
    description.provenance = provenance;
    description.native = Some(Arc::new(native));
    Ok(Image::new(description, Box::new(source)))
}

fn describe(path: &Path, series: &Series, source: &TiffSource, native: &Native) -> Description {
    let page = source.levels[0].planes.iter().find_map(|p| match p {
        Plane::At { page, .. } => Some(page),
        Plane::Missing(_) => None,
    });
    let mut dims = series.lead.clone();
    let mut bits = native.dtype.bits();
    if let Some(page) = page {
        let axes: &[Axis] = match (page.samples, page.planar) {
            (1, _) => &[Axis::Y, Axis::X],
            (_, true) => &[Axis::S, Axis::Y, Axis::X],
            (_, false) => &[Axis::Y, Axis::X, Axis::S],
        };
        for (&axis, len) in axes.iter().zip(page.shape()) {
            dims.push(match axis {
                Axis::Y => Dim::stepped(axis, len, series.step[0].0, &series.step[0].1),
                Axis::X => Dim::stepped(axis, len, series.step[1].0, &series.step[1].1),
                _ => Dim::new(axis, len),
            });
        }
        bits = page.layout.bits;
    }
    let mut description = Description::new(NAME, path, dims, native.dtype);
    description.bits = bits;
    description.levels = source.levels.iter().map(|l| l.grid.shape.clone()).collect();
    description.channels = series.channels.clone();
    let flavour = match native.kind {
        Kind::Plain => "plain",
        Kind::ImageJ => "ImageJ",
        Kind::Ome => "OME",
        Kind::Shaped => "tifffile",
    };
    description.tag("dialect", flavour);
    description.tag("layout", if native.big { "BigTIFF" } else { "classic" });
    description.tag("byte order", if native.order == Order::Big { "big" } else { "little" });
    if let Some(page) = page {
        description.tag("compression", format!("{:?}", page.layout.compression).to_lowercase());
    }
    for (key, t) in [("software", tag::SOFTWARE), ("description", tag::DESCRIPTION)] {
        let node = native.planes.first().and_then(|&n| native.nodes.get(n));
        if let Some(text) = node.and_then(|n| n.ifd.text(t)).filter(|t| !t.is_empty() && !ome::is_ome(t)) {
            description.tag(key, text.chars().take(400).collect::<String>().replace('\n', "; "));
        }
    }
    description.mosaic = native.planes.first().and_then(|&n| mosaic(&native.nodes.get(n)?.ifd, bits));
    description.tags.extend(series.tags.iter().cloned());
    description.warnings = series.warnings.clone();
    description
}

/// The pattern of colour filters and the levels that camera files state.
fn mosaic(ifd: &Ifd, bits: u32) -> Option<crate::Mosaic> {
    let [rows, columns] = ifd.numbers(tag::CFA_REPEAT)[..] else { return None };
    let pattern = ifd.numbers(tag::CFA_PATTERN).iter().map(|&c| c as u8).collect();
    let black: Vec<f64> = match ifd.numbers(tag::BLACK_LEVEL) {
        levels if !levels.is_empty() => levels.iter().map(|&v| v as f64).collect(),
        _ => vec![ifd.rational(tag::BLACK_LEVEL).unwrap_or(0.0)],
    };
    let white = ifd.number(tag::WHITE_LEVEL).map_or(2f64.powi(bits as i32) - 1.0, |w| w as f64);
    let mosaic = crate::Mosaic { size: [rows as usize, columns as usize], pattern, black, white };
    mosaic.check().ok().map(|()| mosaic)
}

/// Turns a series into a source and the record for writing: pages of every plane and level.
fn assemble(
    path: &Path,
    series: &Series,
    files: Vec<Arc<Bytes>>,
    nodes: Vec<Node>,
    order: Order,
    big: bool,
    kind: Kind,
    first: &Parsed<Page>,
) -> Parsed<(TiffSource, Native)> {
    let page_of = |node: &Node| Page::new(&node.ifd, node.ifd.order.unwrap_or(order), files[node.file].len());
    let mut planes = Vec::with_capacity(series.planes.len());
    let mut model: Option<Arc<Page>> = None;
    for (number, plane) in series.planes.iter().enumerate() {
        planes.push(match plane {
            SeriesPlane::Missing(name) => Plane::Missing(name.clone()),
            SeriesPlane::Node(node) => {
                let page = if series.contiguous {
                    let Ok(first) = first else { return damaged("the first directory is no picture") };
                    let mut page = first.clone();
                    let shift = (page.page_bytes() as u64).saturating_mul(number as u64);
                    page.offsets.iter_mut().for_each(|o| *o = o.saturating_add(shift));
                    page
                } else {
                    page_of(&nodes[*node])?
                };
                let page = Arc::new(page);
                match &model {
                    Some(model) if !model.alike(&page) => {
                        return unsupported(format!("plane {number} of another size or type than the first"));
                    }
                    Some(_) => {}
                    None => model = Some(Arc::clone(&page)),
                }
                Plane::At { file: nodes[*node].file, page }
            }
        });
    }
    let Some(model) = model else { return damaged("every plane is missing") };
    let lead: Vec<usize> = series.lead.iter().map(|d| d.len).collect();
    let grid = |page: &Page| {
        let chunk = [vec![1; lead.len()], page.read_chunk()].concat();
        Grid::new([lead.clone(), page.shape()].concat(), chunk)
    };
    let mut levels = vec![Level { grid: grid(&model), planes }];
    let mut level_subs = Vec::new();
    let first_node = series.planes.iter().find_map(|p| match p {
        SeriesPlane::Node(n) => Some(*n),
        SeriesPlane::Missing(_) => None,
    });
    let subs = first_node.map_or(0, |n| nodes[n].subs.len());
    for sub in 0..subs {
        let above = &levels[levels.len() - 1];
        if let Some(level) = sub_level(series, &nodes, sub, above, &page_of, &grid) {
            levels.push(level);
            level_subs.push(sub);
        }
    }
    let native = Native {
        files: files.clone(),
        order,
        big,
        kind,
        planes: series.planes.iter().map(|p| if let SeriesPlane::Node(n) = p { *n } else { 0 }).collect(),
        levels: level_subs,
        relocated: series.relocated || series.contiguous,
        item: series.number,
        shape: levels[0].grid.shape.clone(),
        dtype: model.layout.dtype,
        nodes,
    };
    Ok((TiffSource { path: path.to_path_buf(), files, lead, levels }, native))
}

/// The sub-directory `sub` of every plane as a lower resolution, if it is one.
fn sub_level(
    series: &Series,
    nodes: &[Node],
    sub: usize,
    above: &Level,
    page_of: &dyn Fn(&Node) -> Parsed<Page>,
    grid: &dyn Fn(&Page) -> Grid,
) -> Option<Level> {
    let mut planes = Vec::new();
    let mut model: Option<Arc<Page>> = None;
    for (plane, upper) in series.planes.iter().zip(&above.planes) {
        let (SeriesPlane::Node(node), Plane::At { page: upper, .. }) = (plane, upper) else {
            planes.push(Plane::Missing("a file of the set".to_string()));
            continue;
        };
        let node = nodes[*node].subs.get(sub)?;
        let page = Arc::new(page_of(node).ok()?);
        let smaller = page.width <= upper.width
            && page.height <= upper.height
            && (page.width, page.height) != (upper.width, upper.height);
        let same = page.samples == upper.samples
            && page.planar == upper.planar
            && page.layout.dtype == upper.layout.dtype;
        if !smaller || !same || model.as_ref().is_some_and(|m| !m.alike(&page)) {
            return None;
        }
        model.get_or_insert_with(|| Arc::clone(&page));
        planes.push(Plane::At { file: node.file, page });
    }
    Some(Level { grid: grid(&*model?), planes })
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
fn plain_series(nodes: &[Node], files: &[Arc<Bytes>], order: Order) -> Vec<Series> {
    let mut groups: Vec<(Page, Vec<usize>)> = Vec::new();
    let mut unread = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        match Page::new(&node.ifd, order, files[node.file].len()) {
            Ok(page) => match groups.iter_mut().find(|(model, _)| model.alike(&page)) {
                Some((_, members)) => members.push(number),
                None => groups.push((page, vec![number])),
            },
            Err(Fault::Damaged(what) | Fault::Unsupported(what) | Fault::Limit(what)) => {
                unread.push(format!("directory {number} is no readable picture: {what}"));
            }
            Err(Fault::Io(e)) => unread.push(format!("directory {number}: {e}")),
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

fn imagej_series(text: &str, nodes: &[Node], first: &Page, file: u64) -> Series {
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
fn shaped_series(text: &str, nodes: &[Node], first: &Page, file: u64) -> Option<Series> {
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

/// The images that the OME-XML lists, with the other files of the set opened as far as they are there.
fn ome_series(
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
                missing.push("no file".to_string());
                planes.push(SeriesPlane::Missing("no file of the set".to_string()));
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
                    planes.push(SeriesPlane::Missing(name.clone()));
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
fn companion_series(
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

/// Errors of this format, for the sink.
fn at<T>(path: &Path, parsed: Parsed<T>) -> Result<T> {
    parsed.map_err(|fault| fault.at(path, NAME))
}
