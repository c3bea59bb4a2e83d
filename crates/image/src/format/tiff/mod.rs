//! TIFF and its dialects: plain files, ImageJ hyperstacks, OME-TIFF with sub-resolutions and sets of several files,
//! tifffile's shaped series. `ifd` reads directories, `page` makes pictures of them, `series` combines pictures into
//! images, this file opens an image, and `sink` writes.

pub(crate) mod codec;
mod fax;
pub(crate) mod ifd;
mod imagej;
mod ome;
mod page;
mod pictures;
mod series;
mod sink;

pub(super) use sink::{check, create, keeps_others};

use crate::bytes::Bytes;
use crate::dtype::Order;
use crate::error::{Fault, Parsed, Result, damaged, unsupported};
use crate::grid::Grid;
use crate::image::{Axis, Description, Dim, Image, Source};
use ifd::{Ifd, tag};
use page::Page;
use series::{Series, SeriesPlane, companion_series, imagej_series, ome_series, plain_series, shaped_series};
use std::collections::HashSet;
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

/// A plane that can be read, or where one that is missing should be.
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
            Some(Plane::Missing(place)) => damaged(format!("plane {number} is missing, {place}")),
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
                    let Ok(first) = first else { return damaged("the first directory is not an image") };
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
            planes.push(Plane::Missing("in a file of the set".to_string()));
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

/// Errors of this format, for the sink.
fn at<T>(path: &Path, parsed: Parsed<T>) -> Result<T> {
    parsed.map_err(|fault| fault.at(path, NAME))
}
