//! DICOM images: plain, deflated, and compressed with RLE, JPEG, JPEG lossless, JPEG-LS and JPEG 2000, with one or many
//! frames (`frames`). Written only from DICOM, uncompressed (`sink`). Colours are always read as red, green and blue.

mod dataset;
mod frames;
mod sink;

use crate::bytes::Bytes;
use crate::dtype::{DType, Order};
use crate::error::{Fault, Parsed, Result, damaged, instead, unsupported, unsupported_instead};
use crate::grid::Grid;
use crate::image::{Axis, Description, Dim, Image, Rescale};
use crate::raw::RawSource;
use dataset::{
    DOUBLE_PIXEL_DATA, DataSet, Element, FLOAT_PIXEL_DATA, PIXEL_DATA, Syntax, Tag, read_elements,
};
use frames::{FrameSource, Frames, split_frames};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

pub(super) use sink::{check, create};

pub(crate) const NAME: &str = "DICOM";
const RECORD: &str = "clearshot provenance: ";
const EXPLICIT_LITTLE: &str = "1.2.840.10008.1.2.1";

pub(super) fn recognise(path: &Path, head: &[u8]) -> bool {
    let named = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("dcm"));
    head.get(128..132) == Some(b"DICM") || named
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Plain,
    Rle,
    Jpeg,
    JpegLossless,
    JpegLs,
    Jpeg2000,
}

/// A transfer syntax: how elements and pixels are written.
struct Transfer {
    syntax: Syntax,
    deflated: bool,
    packing: Packing,
}

fn transfer(uid: &str) -> Parsed<Transfer> {
    let little = Syntax { explicit: true, order: Order::Little };
    let (syntax, deflated, packing) = match uid {
        "1.2.840.10008.1.2" => (Syntax { explicit: false, ..little }, false, Packing::Plain),
        EXPLICIT_LITTLE => (little, false, Packing::Plain),
        "1.2.840.10008.1.2.1.99" => (little, true, Packing::Plain),
        "1.2.840.10008.1.2.2" => (Syntax { order: Order::Big, ..little }, false, Packing::Plain),
        "1.2.840.10008.1.2.5" => (little, false, Packing::Rle),
        "1.2.840.10008.1.2.4.50" | "1.2.840.10008.1.2.4.51" => (little, false, Packing::Jpeg),
        "1.2.840.10008.1.2.4.57" | "1.2.840.10008.1.2.4.70" => (little, false, Packing::JpegLossless),
        "1.2.840.10008.1.2.4.80" | "1.2.840.10008.1.2.4.81" => (little, false, Packing::JpegLs),
        "1.2.840.10008.1.2.4.90" | "1.2.840.10008.1.2.4.91" => (little, false, Packing::Jpeg2000),
        other => {
            let (name, advice) = match other {
                "1.2.840.10008.1.2.4.201" | "1.2.840.10008.1.2.4.202" | "1.2.840.10008.1.2.4.203" => {
                    ("High-Throughput JPEG 2000", instead::DICOM_JPEG)
                }
                u if u.starts_with("1.2.840.10008.1.2.4.10") => ("MPEG video", instead::DICOM_MPEG),
                _ => return unsupported(format!("transfer syntax {other} (unknown)")),
            };
            return unsupported_instead(format!("transfer syntax {other} ({name})"), advice);
        }
    };
    Ok(Transfer { syntax, deflated, packing })
}

/// What the pixels are, from group 0028.
#[derive(Clone, Debug)]
struct Layout {
    frames: usize,
    rows: usize,
    columns: usize,
    samples: usize,
    stored_planar: bool,
    planar: bool,
    dtype: DType,
    stored: u32,
    photometric: String,
    /// Stored as luminance and colour differences, and read as red, green and blue.
    differences: bool,
    /// A plain frame has one pair of differences for two pixels of a row.
    halved: bool,
    /// Plain pixels of one bit, the lowest of a byte first; a frame begins with the bit behind the one before it.
    single_bits: bool,
    /// Plain bytes that are stored as words with the higher byte first.
    swapped: bool,
    /// Which element the pixels are in.
    element: Tag,
}

impl Layout {
    fn shape(&self) -> Vec<usize> {
        let mut shape = Vec::new();
        if self.frames > 1 {
            shape.push(self.frames);
        }
        match (self.samples, self.planar) {
            (1, _) => shape.extend([self.rows, self.columns]),
            (n, true) => shape.extend([n, self.rows, self.columns]),
            (n, false) => shape.extend([self.rows, self.columns, n]),
        }
        shape
    }

    fn frame_bytes(&self) -> usize {
        self.rows * self.columns * self.samples * self.dtype.bytes()
    }

    /// Of a plain frame.
    fn stored_bits(&self) -> u64 {
        let pixels = self.rows as u64 * self.columns as u64;
        match (self.single_bits, self.halved) {
            (true, _) => pixels,
            (_, true) => pixels * 16,
            _ => self.frame_bytes() as u64 * 8,
        }
    }

    /// The bytes that have a plain frame, from the first pixel of the first one, and how many bits lie before it there.
    fn stored_at(&self, frame: usize) -> (std::ops::Range<u64>, usize) {
        let first = (frame as u64).saturating_mul(self.stored_bits());
        let (mut start, mut end) = (first / 8, first.saturating_add(self.stored_bits()).div_ceil(8));
        if self.swapped {
            (start, end) = (start & !1, end.next_multiple_of(2));
        }
        (start..end, (first - 8 * start) as usize)
    }

    /// How many bits there are where the type has a sign and more bits than that.
    fn signed_bits(&self) -> Option<u32> {
        let signed = matches!(self.dtype, DType::I8 | DType::I16 | DType::I32);
        (signed && self.stored < self.dtype.bits()).then_some(self.stored)
    }
}

struct Native {
    /// The data set, inflated where the file is deflated.
    bytes: Arc<Bytes>,
    meta: Vec<(Tag, [u8; 2], Vec<u8>)>,
    elements: Vec<Element>,
    syntax: Syntax,
    deflated: bool,
    packed: bool,
    layout: Layout,
}

pub(super) fn open(path: &Path, _: Option<&str>) -> Result<Image> {
    let file = Bytes::open(path)?;
    open_file(path, file).map_err(|fault| fault.at(path, NAME))
}

/// The class of files that list others.
const DIRECTORY: &str = "1.2.840.10008.1.3.10";

/// What a sound file without pixels is: plans, reports, palettes and directories have none.
fn without_pixels(set: &DataSet<'_>, is_directory: bool) -> String {
    if is_directory {
        return "a directory (DICOMDIR), which names the files of images and has no pixels itself"
            .to_string();
    }
    let modality = set.text((8, 0x60)).map_or(String::new(), |modality| format!(", of modality {modality}"));
    format!("a data set without pixels{modality}")
}

fn open_file(path: &Path, file: Bytes) -> Parsed<Image> {
    if file.len() < 140 || file.read(128, 4)? != b"DICM" {
        return damaged("no DICOM mark");
    }
    let explicit = Syntax { explicit: true, order: Order::Little };
    let meta = read_elements(&file, 132, explicit, Some(2))?;
    let start = meta.last().map_or(132, |e| e.end);
    let header = DataSet { bytes: &file, elements: &meta, syntax: explicit };
    let is_directory = header.text((2, 2)).is_some_and(|class| class == DIRECTORY);
    let Some(uid) = header.text((2, 0x10)) else { return damaged("no transfer syntax") };
    let transfer = transfer(&uid)?;
    let mut kept = Vec::new();
    for e in meta.iter().filter(|e| !e.open && e.end - e.value < 65_536) {
        kept.push((e.tag, e.vr, file.read(e.value, e.end - e.value)?));
    }
    let (bytes, start) = if transfer.deflated { (inflate(&file, start)?, 0) } else { (file, start) };
    let elements = read_elements(&bytes, start, transfer.syntax, None)?;
    let set = DataSet { bytes: &bytes, elements: &elements, syntax: transfer.syntax };
    let places = [PIXEL_DATA, FLOAT_PIXEL_DATA, DOUBLE_PIXEL_DATA];
    let Some(pixels) = places.iter().find_map(|tag| set.find(*tag)).cloned() else {
        return Err(Fault::Unsupported(without_pixels(&set, is_directory), None));
    };
    let layout = read_layout(&set, transfer.packing, &pixels)?;
    let mut description = describe(path, &set, &layout);
    description.tag("transfer syntax", &uid);
    let packed = pixels.open;
    if packed != (transfer.packing != Packing::Plain) {
        return damaged("packed pixels in a plain transfer syntax, or the other way round");
    }
    let needed = layout.stored_at(layout.frames - 1).0.end;
    if !packed && needed > pixels.end - pixels.value {
        return damaged(format!(
            "{needed} bytes of pixels are needed, and {} are there",
            pixels.end - pixels.value
        ));
    }
    let by_frame = packed || layout.differences || layout.single_bits || layout.swapped;
    let frames = match packed {
        true => Frames::Packed(split_frames(&set, &pixels, layout.frames, transfer.packing)?),
        false => Frames::Plain(pixels.value),
    };
    let bytes = Arc::new(bytes);
    let native = Native {
        bytes: Arc::clone(&bytes),
        meta: kept,
        elements: elements.clone(),
        syntax: transfer.syntax,
        deflated: transfer.deflated,
        packed,
        layout: layout.clone(),
    };
    description.native = Some(Arc::new(native));
    let shape = layout.shape();
    if by_frame {
        let mut chunk = shape.clone();
        if layout.frames > 1 {
            chunk[0] = 1;
        }
        let grid = Grid::new(shape, chunk);
        let source =
            FrameSource { path: path.to_path_buf(), bytes, grid, packing: transfer.packing, layout, frames };
        return Ok(Image::new(description, Box::new(source)));
    }
    let own = match transfer.deflated {
        true => Bytes::Memory(bytes.read(pixels.value, needed)?),
        false => Bytes::from_file(File::open(path)?)?,
    };
    let offset = if transfer.deflated { 0 } else { pixels.value };
    let mut source =
        RawSource::new(path.to_path_buf(), NAME, own, offset, transfer.syntax.order, layout.dtype, &shape)?;
    source.signed_bits = layout.signed_bits();
    Ok(Image::new(description, Box::new(source)))
}

fn inflate(file: &Bytes, start: u64) -> Parsed<Bytes> {
    const LIMIT: u64 = 160 << 20;
    let packed = file.read(start, file.len() - start)?;
    let mut out = Vec::new();
    flate2::read::DeflateDecoder::new(&packed[..]).take(LIMIT).read_to_end(&mut out)?;
    if out.len() as u64 == LIMIT {
        return Err(Fault::Limit("a deflated data set beyond 160 MiB".to_string()));
    }
    Ok(Bytes::Memory(out))
}

fn read_layout(set: &DataSet, packing: Packing, pixels: &Element) -> Parsed<Layout> {
    let element = pixels.tag;
    let length = |element: u16, name: &str| match set.short((0x28, element)) {
        Some(n) if n > 0 => Ok(usize::from(n)),
        _ => damaged(format!("no {name}")),
    };
    let (rows, columns) = (length(0x10, "rows")?, length(0x11, "columns")?);
    let samples = set.short((0x28, 2)).unwrap_or(1).max(1).into();
    let frames = set.number((0x28, 8)).unwrap_or(1.0);
    if !(1.0..=16_777_216.0).contains(&frames) || samples > 16 {
        return damaged(format!("{frames} frames of {samples} samples"));
    }
    let allocated = set.short((0x28, 0x100)).unwrap_or(0);
    let signed = set.short((0x28, 0x103)) == Some(1);
    let dtype = match (allocated, signed) {
        _ if element == FLOAT_PIXEL_DATA => DType::F32,
        _ if element == DOUBLE_PIXEL_DATA => DType::F64,
        (1, _) if packing == Packing::Plain && samples == 1 => DType::U8,
        (8, false) => DType::U8,
        (8, true) => DType::I8,
        (16, false) => DType::U16,
        (16, true) => DType::I16,
        (32, false) => DType::U32,
        (32, true) => DType::I32,
        (n, _) => return unsupported(format!("pixels of {n} bits")),
    };
    let photometric = set.text((0x28, 4)).unwrap_or_default();
    let differences = samples == 3
        && match packing {
            Packing::Jpeg | Packing::JpegLossless => photometric.starts_with("YBR_FULL"),
            Packing::Plain => ["YBR_FULL", "YBR_FULL_422"].contains(&&photometric[..]) && dtype == DType::U8,
            Packing::Rle | Packing::JpegLs | Packing::Jpeg2000 => {
                photometric == "YBR_FULL" && dtype == DType::U8
            }
        };
    let stored_planar = set.short((0x28, 6)) == Some(1) && samples > 1;
    let halved = packing == Packing::Plain && photometric.contains("_42");
    if halved && (!differences || columns % 2 == 1) {
        return unsupported(format!(
            "sub-sampled colours ({photometric}) of {allocated} bits, {columns} a row"
        ));
    }
    let stored = set.short((0x28, 0x101)).map_or(dtype.bits(), u32::from);
    Ok(Layout {
        frames: frames as usize,
        rows,
        columns,
        samples,
        stored_planar,
        // Frames that are unpacked or turned into other colours are put together pixel by pixel.
        planar: stored_planar && packing == Packing::Plain && !differences,
        dtype,
        stored: stored.clamp(1, dtype.bits()),
        photometric,
        differences,
        halved,
        single_bits: allocated == 1 && element == PIXEL_DATA,
        swapped: packing == Packing::Plain
            && set.syntax.order == Order::Big
            && &pixels.vr == b"OW"
            && dtype.bytes() == 1,
        element,
    })
}

/// The numbers that an enhanced image has for its frames, in the group that they share or in each one's own: none
/// where it says nothing of them, and `None` where frames differ.
fn of_frames(set: &DataSet, sequence: Tag, tag: Tag) -> Option<Vec<f64>> {
    let groups = |tag_of_groups| -> Vec<Vec<f64>> {
        let group = |group: &DataSet| group.items(sequence, |item| item.numbers(tag));
        set.items(tag_of_groups, group).into_iter().flatten().filter(|n| !n.is_empty()).collect()
    };
    let shared = groups((0x5200, 0x9229));
    let said = if shared.is_empty() { groups((0x5200, 0x9230)) } else { shared };
    let Some(first) = said.first() else { return Some(Vec::new()) };
    said.iter().all(|n| n == first).then(|| first.clone())
}

fn describe(path: &Path, set: &DataSet, layout: &Layout) -> Description {
    let measures = |tag: Tag| of_frames(set, (0x28, 0x9110), tag).unwrap_or_default();
    let spacing = [set.numbers((0x28, 0x30)), measures((0x28, 0x30)), set.numbers((0x18, 0x1164))];
    let spacing = spacing.into_iter().find(|s| s.len() == 2).unwrap_or_default();
    let measure = |tag: Tag| measures(tag).first().copied().or_else(|| set.number(tag));
    let slices = measure((0x18, 0x88)).or_else(|| measure((0x18, 0x50)));
    let frame_ms = set.number((0x18, 0x1063));
    let mut dims: Vec<Dim> = Vec::new();
    for len in layout.shape() {
        let n = dims.len() + usize::from(layout.frames == 1);
        let plane = |k: usize| match (layout.samples, layout.planar, k) {
            (1, _, 1) | (_, false, 1) | (_, true, 2) => Axis::Y,
            (1, _, 2) | (_, false, 2) | (_, true, 3) => Axis::X,
            _ => Axis::S,
        };
        dims.push(match n {
            0 if frame_ms.is_some() => Dim::stepped(Axis::T, len, frame_ms, "ms"),
            0 if slices.is_some() => Dim::stepped(Axis::Z, len, slices, "mm"),
            0 => Dim::new(Axis::Other(0), len),
            k => match plane(k) {
                Axis::Y => Dim::stepped(Axis::Y, len, spacing.first().copied(), "mm"),
                Axis::X => Dim::stepped(Axis::X, len, spacing.get(1).copied(), "mm"),
                axis => Dim::new(axis, len),
            },
        });
    }
    let mut description = Description::new(NAME, path, dims, layout.dtype);
    description.bits = layout.stored;
    let scale = [((0x28, 0x1053), 1.0), ((0x28, 0x1052), 0.0)].map(|(tag, usual)| {
        let of_frames = of_frames(set, (0x28, 0x9145), tag)?;
        Some(of_frames.first().copied().or_else(|| set.number(tag)).unwrap_or(usual))
    });
    if let [Some(slope), Some(intercept)] = scale {
        if (slope, intercept) != (1.0, 0.0) && slope.is_finite() && slope != 0.0 && intercept.is_finite() {
            description.rescale = Some(Rescale { slope, intercept, blank: None });
        }
    } else {
        let what = "each frame has a slope and an intercept of its own: values are taken as they are stored";
        description.warnings.push(what.to_string());
    }
    for (key, tag) in [
        ("modality", (8, 0x60)),
        ("image type", (8, 8)),
        ("manufacturer", (8, 0x70)),
        ("series", (8, 0x103E)),
        ("photometric", (0x28, 4)),
        ("slice thickness", (0x18, 0x50)),
    ] {
        if let Some(text) = set.text(tag) {
            description.tag(key, text);
        }
    }
    let derived = set.text((8, 0x2111)).unwrap_or_default();
    description.provenance = derived.strip_prefix(RECORD).and_then(|t| serde_json::from_str(t).ok());
    description
}
