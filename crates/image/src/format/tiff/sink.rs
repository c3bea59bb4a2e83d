//! Writes TIFF. A file that came from TIFF is written as the same directories in the same order with all of their tags:
//! pages of the image get new pixels in the same strips or tiles, other pages and everything they refer to are copied
//! unchanged. A file from another format becomes an OME-TIFF, an ImageJ hyperstack or a series with named axes.

use super::codec::{Compression, Layout};
use super::ifd::{Ifd, Value, tag, type_size};
use super::page::Page;
use super::{Kind, NAME, Native, Node, at, imagej, ome};
use crate::aside::AsideFile;
use crate::bytes::Bytes;
use crate::dtype::{DType, Order};
use crate::error::{Error, Fault, Parsed, Result, request, unsupported};
use crate::grid::Grid;
use crate::image::{Axis, Description};
use crate::writer::{Target, WriteOptions};
use std::path::Path;
use std::sync::Arc;

struct TiffTarget {
    file: AsideFile,
    order: Order,
    big: bool,
    nodes: Vec<Node>,
    files: Vec<Arc<Bytes>>,
    lead: Vec<usize>,
    levels: Vec<LevelOut>,
}

struct LevelOut {
    grid: Grid,
    /// For each plane, the directory it belongs to (and of it the sub-directory), and its page.
    planes: Vec<(usize, Option<usize>, Page)>,
}

pub(in crate::format) fn create(
    path: &Path,
    description: &Description,
    options: &WriteOptions,
) -> Result<Box<dyn Target>> {
    let native = native_of(path, description);
    let provenance = options.provenance.as_ref().map(|v| v.to_string());
    let plan = match native {
        Some(native) => at(path, again(native, path, provenance.as_deref()))?,
        None => afresh(path, description, provenance.as_deref())?,
    };
    let mut file = AsideFile::create(path, options.replace)?;
    let header = if plan.big { 16 } else { 8 };
    file.append(&vec![0; header]).map_err(|e| Error::io(path, e))?;
    let mut target = TiffTarget {
        file,
        order: plan.order,
        big: plan.big,
        nodes: plan.nodes,
        files: plan.files,
        lead: plan.lead,
        levels: plan.levels,
    };
    target.reserve_rows();
    Ok(Box::new(target))
}

/// # Errors
/// If TIFF cannot hold such an image.
pub(in crate::format) fn check(path: &Path, description: &Description) -> Result<()> {
    match native_of(path, description) {
        Some(_) => Ok(()),
        None => afresh(path, description, None).map(drop),
    }
}

/// What the input's file was, where the output can be the same.
fn native_of<'a>(path: &Path, description: &'a Description) -> Option<&'a Native> {
    description.native::<Native>().filter(|n| {
        description.format == NAME
            && n.shape == description.shape()
            && n.dtype == description.dtype
            && ome_name(path) == ome_name(&description.path)
    })
}

/// Whether the other images of the input's file come along.
pub(in crate::format) fn keeps_others(path: &Path, description: &Description) -> bool {
    native_of(path, description).is_some_and(|n| !n.relocated)
}

fn ome_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    name.contains(".ome.")
}

struct Plan {
    order: Order,
    big: bool,
    nodes: Vec<Node>,
    files: Vec<Arc<Bytes>>,
    lead: Vec<usize>,
    levels: Vec<LevelOut>,
}

/// More than this, and 32-bit offsets may not reach the end.
const CLASSIC_LIMIT: u64 = 3_900_000_000;

/// The plan of a file with the directories of another.
fn again(native: &Native, path: &Path, provenance: Option<&str>) -> Parsed<Plan> {
    let mut nodes: Vec<Node>;
    let planes: Vec<usize>;
    if native.relocated {
        // One directory a plane; other images of the set stay with the set.
        nodes = native.planes.iter().map(|&n| native.nodes[n].clone()).collect();
        planes = (0..nodes.len()).collect();
        for node in nodes.iter_mut().skip(1) {
            node.ifd.entries.remove(&tag::DESCRIPTION);
            node.ifd.entries.remove(&tag::IMAGEJ_COUNTS);
            node.ifd.entries.remove(&(tag::IMAGEJ_COUNTS + 1));
        }
        if native.kind == Kind::Ome {
            let text = native.nodes[0].ifd.entries.get(&tag::DESCRIPTION).cloned();
            nodes[0].ifd.entries.extend(text.map(|t| (tag::DESCRIPTION, t)));
        }
    } else {
        nodes = native.nodes.clone();
        planes = native.planes.clone();
    }
    let order = native.order;
    nodes.iter_mut().for_each(|n| to_order(n, order));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if native.kind == Kind::Ome
        && let Some(text) = nodes[0].ifd.text(tag::DESCRIPTION)
    {
        let moved = native.relocated.then_some((native.item, &planes[..]));
        let edited = ome::edit(&text, &name, provenance, moved)?;
        nodes[0].ifd.set_text(tag::DESCRIPTION, &edited);
    }
    if let Some(json) = provenance {
        nodes[0].ifd.set_text(tag::PROVENANCE, json);
    }
    let mut levels = Vec::new();
    let rank = {
        let page = Page::new(&nodes[planes[0]].ifd, order, u64::MAX)?;
        native.shape.len() - page.shape().len()
    };
    let lead = native.shape[..rank].to_vec();
    let mut total = 0u64;
    for sub in std::iter::once(None).chain(native.levels.iter().map(|&s| Some(s))) {
        let mut pages = Vec::with_capacity(planes.len());
        for &plane in &planes {
            let node = match sub {
                None => &mut nodes[plane],
                Some(s) => &mut nodes[plane].subs[s],
            };
            lossless(&mut node.ifd)?;
            let page = Page::new(&node.ifd, order, u64::MAX)?;
            total = total.saturating_add(page.page_bytes() as u64);
            pages.push((plane, sub, page));
        }
        let page = &pages[0].2;
        let chunk = [vec![1; lead.len()], page.read_chunk()].concat();
        let grid = Grid::new([lead.clone(), page.shape()].concat(), chunk);
        levels.push(LevelOut { grid, planes: pages });
    }
    let others: u64 = native.files.iter().map(|f| f.len()).sum();
    let big = native.big || total.saturating_add(others) > CLASSIC_LIMIT;
    Ok(Plan { order, big, nodes, files: native.files.clone(), lead, levels })
}

/// All values in one byte order: files of a set may differ.
fn to_order(node: &mut Node, order: Order) {
    if node.ifd.order != Some(order) {
        node.ifd.order = Some(order);
        for value in node.ifd.entries.values_mut() {
            *value = value.clone().swapped();
        }
    }
    node.subs.iter_mut().for_each(|n| to_order(n, order));
    node.links.iter_mut().for_each(|(_, n)| to_order(n, order));
}

/// Makes a directory's picture one that is written without loss: JPEG, other pictures and fax become deflate, packed values whole
/// bytes, rows of bits the usual order.
fn lossless(ifd: &mut Ifd) -> Parsed<()> {
    let order = ifd.order.unwrap_or(Order::NATIVE);
    let page = Page::new(ifd, order, u64::MAX)?;
    let samples = page.samples;
    if page.layout.compression.is_picture() {
        ifd.set_numbers(tag::COMPRESSION, 3, &[Compression::Deflate.code()]);
        for t in [
            tag::JPEG_TABLES,
            tag::YCBCR_SUBSAMPLING,
            tag::REFERENCE_BLACK_WHITE,
            tag::PREDICTOR,
            tag::LERC_PARAMETERS,
        ] {
            ifd.entries.remove(&t);
        }
        if page.layout.ycbcr {
            ifd.set_numbers(tag::PHOTOMETRIC, 3, &[2]);
        }
    }
    if let Compression::Fax(_) = page.layout.compression {
        ifd.set_numbers(tag::COMPRESSION, 3, &[Compression::Deflate.code()]);
        [tag::T4_OPTIONS, tag::T6_OPTIONS].iter().for_each(|t| drop(ifd.entries.remove(t)));
    }
    if page.layout.bits != page.layout.dtype.bits() {
        ifd.set_numbers(tag::BITS, 3, &vec![u64::from(page.layout.dtype.bits()); samples]);
    }
    ifd.entries.remove(&tag::FILL_ORDER);
    Ok(())
}

/// The plan of a file whose image came from another format.
fn afresh(path: &Path, description: &Description, provenance: Option<&str>) -> Result<Plan> {
    let axes: Vec<Axis> = description.dims.iter().map(|d| d.axis).collect();
    let (rank, planar) = match axes[..] {
        [.., Axis::S, Axis::Y, Axis::X] => (3, true),
        [.., Axis::Y, Axis::X, Axis::S] => (3, false),
        [.., Axis::Y, Axis::X] => (2, false),
        _ => {
            return request(format!(
                "{}: TIFF needs Y X (and samples) as its last axes, and the axes are {}",
                path.display(),
                description.axes()
            ));
        }
    };
    let shape = description.shape();
    if shape.contains(&0) {
        return request(format!("{}: an image of shape {shape:?} has no pixels", path.display()));
    }
    let lead = shape[..shape.len() - rank].to_vec();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let only_tcz = axes[..lead.len()].iter().all(|a| matches!(a, Axis::T | Axis::C | Axis::Z));
    let (kind, text) = if ome_name(path) {
        if !only_tcz {
            return request(format!(
                "{}: OME-TIFF has axes T C Z, and the image has {}; name them with --axes",
                path.display(),
                description.axes()
            ));
        }
        (Kind::Ome, at(path, ome::compose(description, &name, provenance))?)
    } else if let Some(text) = imagej::compose(description) {
        (Kind::ImageJ, text)
    } else {
        let json = serde_json::json!({"shape": shape, "axes": description.axes()});
        (Kind::Shaped, json.to_string())
    };
    let planes: usize = lead.iter().product();
    let mut levels = Vec::new();
    let mut nodes: Vec<Node> = Vec::with_capacity(planes);
    for level in &description.levels {
        // A lower resolution keeps the axes before the plane.
        if level.len() != shape.len() || level[..lead.len()] != lead[..] || level.contains(&0) {
            break;
        }
        let mut pages = Vec::with_capacity(planes);
        let mut ifd = directory(description, &level[lead.len()..], planar, kind);
        if !levels.is_empty() {
            ifd.set_numbers(tag::SUBFILE_TYPE, 4, &[1]);
        }
        for plane in 0..planes {
            let page = at(path, Page::new(&ifd, Order::Little, u64::MAX))?;
            let node = Node { ifd: ifd.clone(), file: 0, subs: Vec::new(), links: Vec::new() };
            if levels.is_empty() {
                nodes.push(node);
                pages.push((plane, None, page));
            } else {
                nodes[plane].subs.push(node);
                pages.push((plane, Some(levels.len() - 1), page));
            }
        }
        let page = &pages[0].2;
        let chunk = [vec![1; lead.len()], page.read_chunk()].concat();
        levels.push(LevelOut { grid: Grid::new(level.clone(), chunk), planes: pages });
        if kind == Kind::ImageJ {
            break;
        }
    }
    nodes[0].ifd.set_text(tag::DESCRIPTION, &text);
    if let Some(json) = provenance {
        nodes[0].ifd.set_text(tag::PROVENANCE, json);
    }
    let bytes = shape.iter().fold(description.dtype.bytes() as u64, |n, &len| n.saturating_mul(len as u64));
    Ok(Plan { order: Order::Little, big: bytes > CLASSIC_LIMIT, nodes, files: Vec::new(), lead, levels })
}

/// A directory for a picture of `shape`: uncompressed rows for ImageJ, tiles where the picture is large,
/// otherwise strips.
fn directory(description: &Description, shape: &[usize], planar: bool, kind: Kind) -> Ifd {
    let (height, width, samples) = match (shape.len(), planar) {
        (3, true) => (shape[1], shape[2], shape[0]),
        (3, false) => (shape[0], shape[1], shape[2]),
        _ => (shape[0], shape[1], 1),
    };
    let dtype = description.dtype;
    let mut ifd = Ifd { order: Some(Order::Little), ..Ifd::default() };
    ifd.set_numbers(tag::WIDTH, 4, &[width as u64]);
    ifd.set_numbers(tag::HEIGHT, 4, &[height as u64]);
    ifd.set_numbers(tag::BITS, 3, &vec![u64::from(dtype.bits()); samples]);
    ifd.set_numbers(tag::SAMPLES, 3, &[samples as u64]);
    ifd.set_numbers(tag::PLANAR, 3, &[if planar { 2 } else { 1 }]);
    let colour = samples >= 3 && matches!(dtype, DType::U8 | DType::U16);
    ifd.set_numbers(tag::PHOTOMETRIC, 3, &[if colour { 2 } else { 1 }]);
    let extra = samples.saturating_sub(if colour { 3 } else { 1 });
    if extra > 0 {
        ifd.set_numbers(tag::EXTRA_SAMPLES, 3, &vec![0; extra]);
    }
    let format = if dtype.is_float() { 3 } else { 1 + u64::from(dtype.is_signed()) };
    ifd.set_numbers(tag::SAMPLE_FORMAT, 3, &vec![format; samples]);
    ifd.set_text(tag::SOFTWARE, concat!("Clearshot ", env!("CARGO_PKG_VERSION")));
    let planes = if planar { samples } else { 1 };
    if kind == Kind::ImageJ {
        ifd.set_numbers(tag::COMPRESSION, 3, &[1]);
        ifd.set_numbers(tag::ROWS_PER_STRIP, 4, &[height as u64]);
        ifd.set_numbers(tag::STRIP_OFFSETS, 4, &vec![0; planes]);
    } else {
        ifd.set_numbers(tag::COMPRESSION, 3, &[Compression::Deflate.code()]);
        ifd.set_numbers(tag::PREDICTOR, 3, &[if dtype.is_float() { 3 } else { 2 }]);
        if width.max(height) > 1024 {
            ifd.set_numbers(tag::TILE_WIDTH, 4, &[512]);
            ifd.set_numbers(tag::TILE_HEIGHT, 4, &[512]);
            let count = width.div_ceil(512) * height.div_ceil(512) * planes;
            ifd.set_numbers(tag::TILE_OFFSETS, 4, &vec![0; count]);
            ifd.set_numbers(tag::TILE_COUNTS, 4, &vec![1; count]);
        } else {
            let rows = (65_536 / (width * dtype.bytes()).max(1)).clamp(1, height);
            ifd.set_numbers(tag::ROWS_PER_STRIP, 4, &[rows as u64]);
            let count = height.div_ceil(rows) * planes;
            ifd.set_numbers(tag::STRIP_OFFSETS, 4, &vec![0; count]);
            ifd.set_numbers(tag::STRIP_COUNTS, 4, &vec![1; count]);
        }
    }
    let step = |axis| description.dim(axis).and_then(|d| d.step);
    let x_unit = description.dim(Axis::X).and_then(|d| d.unit.as_deref()).unwrap_or("");
    if let (Some(x), Some(y)) = (step(Axis::X), step(Axis::Y)) {
        // ImageJ counts pixels per its unit; others per centimetre, where the unit is one of length.
        let per = match (kind, x_unit) {
            (Kind::ImageJ, _) => Some(1.0),
            (_, "µm" | "\u{3bc}m" | "um" | "micron" | "micrometer") => Some(1e4),
            (_, "nm" | "nanometer") => Some(1e7),
            (_, "mm" | "millimeter") => Some(10.0),
            _ => None,
        };
        if let Some(per) = per {
            ifd.set_rational(tag::X_RESOLUTION, per / x);
            ifd.set_rational(tag::Y_RESOLUTION, per / y);
            ifd.set_numbers(tag::RESOLUTION_UNIT, 3, &[if kind == Kind::ImageJ { 1 } else { 3 }]);
        }
    }
    ifd
}

impl TiffTarget {
    /// Rows that follow each other get their place at once, planes in order, so that programs which read a
    /// stack as one block find it.
    fn reserve_rows(&mut self) {
        for level in &mut self.levels {
            let mut end = self.file.end();
            for (_, _, page) in &mut level.planes {
                if !page.is_rows() {
                    continue;
                }
                let row = (page.width * page.layout.samples * page.layout.dtype.bytes()) as u64;
                let strips = page.down() * if page.planar { page.samples } else { 1 };
                page.offsets.clear();
                page.counts.clear();
                for strip in 0..strips {
                    let bytes = row * page.chunk_rows(strip % page.down()) as u64;
                    page.offsets.push(end);
                    page.counts.push(bytes);
                    end += bytes;
                }
            }
            self.file.reserve(end);
        }
    }

    fn plane(&self, index: &[usize]) -> usize {
        index.iter().zip(&self.lead).fold(0, |n, (&i, &len)| n * len + i)
    }

    fn write_tree(
        &mut self,
        node: &Node,
        written: Option<&Page>,
        subs: &[Option<&Page>],
        next: u64,
    ) -> Parsed<u64> {
        let mut ifd = node.ifd.clone();
        let kind = if self.big { 16 } else { 4 };
        if let Some(page) = written {
            let (offsets, counts) = if page.tiled {
                (tag::TILE_OFFSETS, tag::TILE_COUNTS)
            } else {
                (tag::STRIP_OFFSETS, tag::STRIP_COUNTS)
            };
            if page.tiled {
                ifd.entries.remove(&tag::STRIP_OFFSETS);
                ifd.entries.remove(&tag::STRIP_COUNTS);
            }
            ifd.set_numbers(offsets, kind, &page.offsets);
            ifd.set_numbers(counts, kind, &page.counts);
        } else {
            self.copy_data(&mut ifd, node.file, kind)?;
        }
        if !node.subs.is_empty() {
            let mut places = Vec::new();
            for (number, sub) in node.subs.iter().enumerate() {
                let page = subs.get(number).copied().flatten();
                places.push(self.write_tree(sub, page, &[], 0)?);
            }
            ifd.set_numbers(tag::SUB_IFDS, if self.big { 18 } else { 13 }, &places);
        } else {
            ifd.entries.remove(&tag::SUB_IFDS);
        }
        for link in [tag::EXIF, tag::GPS, tag::INTEROP] {
            ifd.entries.remove(&link);
        }
        for (link, sub) in &node.links {
            let place = self.write_tree(sub, None, &[], 0)?;
            ifd.set_numbers(*link, kind, &[place]);
        }
        self.write_ifd(&ifd, next)
    }

    /// Copies the strips or tiles of a directory that is not part of the image, unchanged.
    fn copy_data(&mut self, ifd: &mut Ifd, file: usize, kind: u16) -> Parsed<()> {
        for (offsets, counts) in
            [(tag::STRIP_OFFSETS, tag::STRIP_COUNTS), (tag::TILE_OFFSETS, tag::TILE_COUNTS)]
        {
            let (places, lengths) = (ifd.numbers(offsets), ifd.numbers(counts));
            if places.is_empty() || places.len() != lengths.len() {
                continue;
            }
            let Some(source) = self.files.get(file).cloned() else { continue };
            let mut moved = Vec::with_capacity(places.len());
            for (&place, &length) in places.iter().zip(&lengths) {
                let data = source.read(place, length)?;
                moved.push(self.file.append(&data)?);
            }
            ifd.set_numbers(offsets, kind, &moved);
        }
        Ok(())
    }

    /// Writes one directory behind what is there; `next` is patched in later by the caller.
    fn write_ifd(&mut self, ifd: &Ifd, next: u64) -> Parsed<u64> {
        let o = self.order;
        let inline = if self.big { 8 } else { 4 };
        let mut entries: Vec<(u16, &Value, Vec<u8>)> = Vec::new();
        for (&tag, value) in &ifd.entries {
            let field = if value.bytes.len() <= inline {
                let mut field = value.bytes.clone();
                field.resize(inline, 0);
                field
            } else {
                if self.file.end() % 2 == 1 {
                    self.file.append(&[0])?;
                }
                let place = self.file.append(&value.bytes)?;
                if self.big { o.put64(place).to_vec() } else { o.put32(self.short(place)?).to_vec() }
            };
            entries.push((tag, value, field));
        }
        if self.file.end() % 2 == 1 {
            self.file.append(&[0])?;
        }
        let mut out = Vec::new();
        if self.big {
            out.extend_from_slice(&o.put64(entries.len() as u64));
        } else {
            out.extend_from_slice(&o.put16(entries.len() as u16));
        }
        for (tag, value, field) in entries {
            out.extend_from_slice(&o.put16(tag));
            out.extend_from_slice(&o.put16(value.kind));
            let count = value.bytes.len() / type_size(value.kind).unwrap_or(1);
            if self.big {
                out.extend_from_slice(&o.put64(count as u64));
            } else {
                out.extend_from_slice(&o.put32(count as u32));
            }
            out.extend_from_slice(&field);
        }
        self.put_offset(&mut out, next)?;
        Ok(self.file.append(&out)?)
    }

    fn put_offset(&self, out: &mut Vec<u8>, offset: u64) -> Parsed<()> {
        if self.big {
            out.extend_from_slice(&self.order.put64(offset));
        } else {
            out.extend_from_slice(&self.order.put32(self.short(offset)?));
        }
        Ok(())
    }

    fn short(&self, offset: u64) -> Parsed<u32> {
        u32::try_from(offset).map_err(|_| Fault::Unsupported("a classic file beyond 4 GiB".to_string(), None))
    }

    fn complete(&mut self) -> Parsed<()> {
        let nodes = std::mem::take(&mut self.nodes);
        let levels = std::mem::take(&mut self.levels);
        // Which page each directory got, and those of its sub-directories.
        let mut pages: Vec<(Option<&Page>, Vec<Option<&Page>>)> =
            nodes.iter().map(|n| (None, vec![None; n.subs.len()])).collect();
        for level in &levels {
            for (node, sub, page) in &level.planes {
                match sub {
                    None => pages[*node].0 = Some(page),
                    Some(s) => pages[*node].1[*s] = Some(page),
                }
            }
        }
        // Written from the last to the first, so each knows where its successor is.
        let mut next = 0;
        for (node, (page, subs)) in nodes.iter().zip(&pages).rev() {
            next = self.write_tree(node, *page, subs, next)?;
        }
        let o = self.order;
        let mut header = if o == Order::Little { b"II".to_vec() } else { b"MM".to_vec() };
        if self.big {
            header.extend_from_slice(&[o.put16(43), o.put16(8), o.put16(0)].concat());
        } else {
            header.extend_from_slice(&o.put16(42));
        }
        self.put_offset(&mut header, next)?;
        self.file.write_at(0, &header)?;
        Ok(())
    }
}

impl Target for TiffTarget {
    fn grid(&self, level: usize) -> &Grid {
        &self.levels[level].grid
    }

    fn levels(&self) -> usize {
        self.levels.len()
    }

    fn encode(&self, level: usize, index: &[usize], raw: Vec<u8>) -> Parsed<Vec<u8>> {
        let (lead, within) = index.split_at(self.lead.len());
        let (_, _, page) = &self.levels[level].planes[self.plane(lead)];
        let (_, y, _) = page.split(within);
        let pixel = page.layout.samples * page.layout.dtype.bytes();
        let mut raw = raw;
        if page.is_rows() {
            let rows = page.rows.min(page.height - y * page.rows);
            raw.truncate(rows * page.width * pixel);
        } else {
            raw.truncate(page.chunk_rows(y) * page.chunk[1] * pixel);
        }
        let layout = Layout { order: self.order, ..page.layout.clone() };
        layout.encode(raw, page.chunk[1])
    }

    fn store(&mut self, level: usize, index: &[usize], encoded: Vec<u8>) -> Parsed<()> {
        let (lead, within) = index.split_at(self.lead.len());
        let plane = self.plane(lead);
        let (_, _, page) = &mut self.levels[level].planes[plane];
        let (sample, y, x) = page.split(within);
        if page.is_rows() {
            let row = (page.width * page.layout.samples * page.layout.dtype.bytes()) as u64;
            let place = page.offsets[sample * page.down()] + (y * page.rows) as u64 * row;
            self.file.write_at(place, &encoded)?;
            return Ok(());
        }
        let number = (sample * page.down() + y) * page.across() + x;
        let place = self.file.append(&encoded)?;
        if !self.big && place + encoded.len() as u64 > u64::from(u32::MAX) {
            return unsupported("a classic file beyond 4 GiB");
        }
        page.offsets[number] = place;
        page.counts[number] = encoded.len() as u64;
        Ok(())
    }

    fn read_back(&self, level: usize, index: &[usize]) -> Parsed<Vec<u8>> {
        let (lead, within) = index.split_at(self.lead.len());
        let (_, _, page) = &self.levels[level].planes[self.plane(lead)];
        let bytes = Bytes::from_file(self.file.file().try_clone()?)?;
        page.read(&bytes, within)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let path = self.file.path().to_path_buf();
        at(&path, self.complete())?;
        self.file.commit()
    }
}
