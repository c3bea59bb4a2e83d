//! DICOM images: plain, deflated, and packed by RLE, JPEG, JPEG lossless and
//! JPEG 2000 lossless, one frame or many. Written only
//! from DICOM, unpacked, with every element that the input had and with the tags that mark a derived image.

mod dataset;

use crate::aside::AsideFile;
use crate::bytes::Bytes;
use crate::dtype::{DType, Order};
use crate::error::{Fault, Parsed, Result, damaged, request, unsupported};
use crate::grid::Grid;
use crate::image::{Axis, Description, Dim, Image, Rescale, Source};
use crate::raw::{RawSource, RawTarget};
use crate::writer::{Target, WriteOptions};
use dataset::{DataSet, Element, PIXEL_DATA, Syntax, Tag, encode, encode_head, fragments, read_elements};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
        "1.2.840.10008.1.2.4.90" | "1.2.840.10008.1.2.4.91" => (little, false, Packing::Jpeg2000),
        other => {
            let name = match other {
                "1.2.840.10008.1.2.4.80" | "1.2.840.10008.1.2.4.81" => "JPEG-LS",
                "1.2.840.10008.1.2.4.201" | "1.2.840.10008.1.2.4.202" | "1.2.840.10008.1.2.4.203" => {
                    "High-Throughput JPEG 2000"
                }
                u if u.starts_with("1.2.840.10008.1.2.4.10") => "MPEG video",
                _ => "unknown",
            };
            return unsupported(format!("transfer syntax {other} ({name})"));
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
    planar: bool,
    dtype: DType,
    stored: u32,
    photometric: String,
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

struct FrameSource {
    path: PathBuf,
    bytes: Arc<Bytes>,
    grid: Grid,
    packing: Packing,
    layout: Layout,
    /// The fragments of each frame.
    frames: Vec<Vec<(u64, u64)>>,
}

pub(super) fn open(path: &Path, _: Option<&str>) -> Result<Image> {
    let file = Bytes::open(path)?;
    open_file(path, file).map_err(|fault| fault.at(path, NAME))
}

fn open_file(path: &Path, file: Bytes) -> Parsed<Image> {
    if file.len() < 140 || file.read(128, 4)? != b"DICM" {
        return damaged("no DICOM mark");
    }
    let explicit = Syntax { explicit: true, order: Order::Little };
    let meta = read_elements(&file, 132, explicit, Some(2))?;
    let start = meta.last().map_or(132, |e| e.end);
    let header = DataSet { bytes: &file, elements: &meta, syntax: explicit };
    let Some(uid) = header.text((2, 0x10)) else { return damaged("no transfer syntax") };
    let transfer = transfer(&uid)?;
    let mut kept = Vec::new();
    for e in meta.iter().filter(|e| !e.open && e.end - e.value < 65_536) {
        kept.push((e.tag, e.vr, file.read(e.value, e.end - e.value)?));
    }
    let (bytes, start) = if transfer.deflated { (inflate(&file, start)?, 0) } else { (file, start) };
    let elements = read_elements(&bytes, start, transfer.syntax, None)?;
    let set = DataSet { bytes: &bytes, elements: &elements, syntax: transfer.syntax };
    let Some(pixels) = set.find(PIXEL_DATA).cloned() else {
        let other = set.find((0x7FE0, 8)).or(set.find((0x7FE0, 9)));
        return match other {
            Some(_) => unsupported("floating-point pixel data"),
            None => damaged("no pixel data"),
        };
    };
    let layout = read_layout(&set, transfer.packing)?;
    let mut description = describe(path, &set, &layout);
    description.tag("transfer syntax", &uid);
    let packed = pixels.open;
    if packed != (transfer.packing != Packing::Plain) {
        return damaged("packed pixels in a plain transfer syntax, or the other way round");
    }
    let plain_words = &pixels.vr == b"OW" && layout.dtype.bytes() == 1;
    if !packed && plain_words && transfer.syntax.order == Order::Big {
        return unsupported("8-bit pixels in big-endian words");
    }
    let frames = if packed { split_frames(&set, &pixels, layout.frames)? } else { Vec::new() };
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
    if packed {
        let mut chunk = shape.clone();
        if layout.frames > 1 {
            chunk[0] = 1;
        }
        let grid = Grid::new(shape, chunk);
        let source =
            FrameSource { path: path.to_path_buf(), bytes, grid, packing: transfer.packing, layout, frames };
        return Ok(Image::new(description, Box::new(source)));
    }
    let needed = (layout.frame_bytes() as u64).saturating_mul(layout.frames as u64);
    if needed > pixels.end - pixels.value {
        return damaged(format!(
            "{needed} bytes of pixels are needed, and {} are there",
            pixels.end - pixels.value
        ));
    }
    let own = match transfer.deflated {
        true => Bytes::Memory(bytes.read(pixels.value, needed)?),
        false => Bytes::from_file(File::open(path)?)?,
    };
    let offset = if transfer.deflated { 0 } else { pixels.value };
    let source =
        RawSource::new(path.to_path_buf(), NAME, own, offset, transfer.syntax.order, layout.dtype, &shape)?;
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

fn read_layout(set: &DataSet, packing: Packing) -> Parsed<Layout> {
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
        (8, false) => DType::U8,
        (8, true) => DType::I8,
        (16, false) => DType::U16,
        (16, true) => DType::I16,
        (32, false) => DType::U32,
        (32, true) => DType::I32,
        (n, _) => return unsupported(format!("pixels of {n} bits")),
    };
    let photometric = set.text((0x28, 4)).unwrap_or_default();
    if packing == Packing::Plain && photometric.starts_with("YBR") && photometric.contains("42") {
        return unsupported(format!("sub-sampled colours ({photometric})"));
    }
    let stored = set.short((0x28, 0x101)).unwrap_or(allocated);
    Ok(Layout {
        frames: frames as usize,
        rows,
        columns,
        samples,
        // Packed frames are put together pixel by pixel.
        planar: packing == Packing::Plain && set.short((0x28, 6)) == Some(1) && samples > 1,
        dtype,
        stored: u32::from(stored).clamp(1, u32::from(allocated)),
        photometric,
    })
}

fn describe(path: &Path, set: &DataSet, layout: &Layout) -> Description {
    let spacing = set.numbers((0x28, 0x30));
    let spacing = if spacing.len() == 2 { spacing } else { set.numbers((0x18, 0x1164)) };
    let slices = set.number((0x18, 0x88)).or(set.number((0x18, 0x50)));
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
    let slope = set.number((0x28, 0x1053)).unwrap_or(1.0);
    let intercept = set.number((0x28, 0x1052)).unwrap_or(0.0);
    if (slope, intercept) != (1.0, 0.0) && slope.is_finite() && slope != 0.0 && intercept.is_finite() {
        description.rescale = Some(Rescale { slope, intercept, blank: None });
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

/// Which fragments make each frame.
fn split_frames(set: &DataSet, pixels: &Element, frames: usize) -> Parsed<Vec<Vec<(u64, u64)>>> {
    let mut all = fragments(set.bytes, pixels.value, set.syntax)?;
    if all.is_empty() {
        return damaged("packed pixels without a table of offsets");
    }
    let (table_at, table_length) = all.remove(0);
    if frames == 1 {
        return Ok(vec![all]);
    }
    if all.len() == frames {
        return Ok(all.into_iter().map(|f| vec![f]).collect());
    }
    if table_length != frames as u64 * 4 {
        return damaged(format!("{} fragments for {frames} frames, and no table of offsets", all.len()));
    }
    let table = set.bytes.read(table_at, table_length)?;
    let starts: Vec<u64> = table.chunks_exact(4).map(|b| u64::from(Order::Little.u32(b))).collect();
    // Offsets count from the first fragment's head.
    let base = table_at + table_length;
    let frame_of = |at: u64| starts.iter().rposition(|s| base + s <= at - 8);
    let mut split = vec![Vec::new(); frames];
    for fragment in all {
        if let Some(frame) = frame_of(fragment.0) {
            split[frame].push(fragment);
        }
    }
    Ok(split)
}

impl Source for FrameSource {
    fn grid(&self, _: usize) -> &Grid {
        &self.grid
    }

    fn chunk(&self, _: usize, index: &[usize]) -> Result<Vec<u8>> {
        let frame = if self.layout.frames > 1 { index[0] } else { 0 };
        self.frame(frame).map_err(|fault| fault.at(&self.path, NAME))
    }
}

impl FrameSource {
    fn frame(&self, number: usize) -> Parsed<Vec<u8>> {
        let l = &self.layout;
        let mut packed = Vec::new();
        for &(at, length) in &self.frames[number] {
            packed.extend(self.bytes.read(at, length)?);
        }
        if packed.is_empty() {
            return damaged(format!("frame {number} is missing"));
        }
        crate::bytes::check_expansion(packed.len() as u64, l.frame_bytes() as u64)?;
        if self.packing == Packing::Rle {
            return unpack_rle(&packed, l);
        }
        if self.packing == Packing::Jpeg2000 {
            return unpack_jpeg2000(&packed, l);
        }
        let ycbcr = l.photometric.starts_with("YBR") && l.samples == 3;
        let jpeg = crate::format::jpeg::decode(&packed, None, ycbcr)?;
        let fits = (jpeg.width, jpeg.height, jpeg.samples) == (l.columns, l.rows, l.samples);
        if !fits || jpeg.bytes > l.dtype.bytes() {
            return damaged(format!(
                "a JPEG frame of {} x {} with {} samples of {} bytes",
                jpeg.width, jpeg.height, jpeg.samples, jpeg.bytes
            ));
        }
        let mut out = Vec::with_capacity(l.frame_bytes());
        for value in jpeg.data.chunks_exact(jpeg.bytes) {
            let raw = if jpeg.bytes == 1 {
                u32::from(value[0])
            } else {
                u32::from(u16::from_ne_bytes([value[0], value[1]]))
            };
            let raw = if l.dtype.is_signed() { extend(raw, l.stored) } else { raw };
            let bytes = raw.to_ne_bytes();
            let width = l.dtype.bytes();
            out.extend_from_slice(if Order::NATIVE == Order::Little {
                &bytes[..width]
            } else {
                &bytes[4 - width..]
            });
        }
        Ok(out)
    }
}

fn unpack_jpeg2000(packed: &[u8], l: &Layout) -> Parsed<Vec<u8>> {
    let picture = crate::format::jpeg2000::decode(packed, l.rows * l.columns)?;
    if (picture.width, picture.height, picture.planes.len()) != (l.columns, l.rows, l.samples) {
        return damaged(format!(
            "a JPEG 2000 frame of {} x {} with {} samples",
            picture.width,
            picture.height,
            picture.planes.len()
        ));
    }
    let width = l.dtype.bytes();
    let mut out = Vec::with_capacity(l.frame_bytes());
    for i in 0..l.rows * l.columns {
        for plane in &picture.planes {
            let bytes = plane[i].to_ne_bytes();
            out.extend_from_slice(if Order::NATIVE == Order::Little {
                &bytes[..width]
            } else {
                &bytes[4 - width..]
            });
        }
    }
    Ok(out)
}

/// The sign bit of a value of `bits` bits, carried to the top.
fn extend(value: u32, bits: u32) -> u32 {
    let shift = 32 - bits;
    ((value << shift) as i32 >> shift) as u32
}

/// DICOM's RLE: a segment a byte of a sample, the highest byte first, each packed like PackBits.
fn unpack_rle(packed: &[u8], l: &Layout) -> Parsed<Vec<u8>> {
    if packed.len() < 64 {
        return damaged("an RLE frame without its header");
    }
    let le = Order::Little;
    let width = l.dtype.bytes();
    let count = le.u32(packed) as usize;
    if count != l.samples * width || count > 15 {
        return damaged(format!("{count} RLE segments for {} samples of {width} bytes", l.samples));
    }
    let pixels = l.rows * l.columns;
    let mut out = vec![0; l.frame_bytes()];
    for segment in 0..count {
        let start = le.u32(&packed[4 + segment * 4..]) as usize;
        let end =
            if segment + 1 < count { le.u32(&packed[8 + segment * 4..]) as usize } else { packed.len() };
        let Some(data) = packed.get(start..end.min(packed.len())) else {
            return damaged("an RLE segment outside its frame");
        };
        let (sample, byte) = (segment / width, segment % width);
        let place = if Order::NATIVE == Order::Little { width - 1 - byte } else { byte };
        let mut plane = Vec::with_capacity(pixels);
        let mut at = 0;
        while plane.len() < pixels && at < data.len() {
            let n = data[at] as i8;
            at += 1;
            if n >= 0 {
                let stop = (at + n as usize + 1).min(data.len());
                plane.extend_from_slice(&data[at..stop]);
                at = stop;
            } else if n != -128 && at < data.len() {
                plane.resize(plane.len() + (1 - isize::from(n)) as usize, data[at]);
                at += 1;
            }
        }
        if plane.len() < pixels {
            return damaged(format!("an RLE segment of {} bytes where {pixels} are needed", plane.len()));
        }
        for (i, &v) in plane.iter().take(pixels).enumerate() {
            out[(i * l.samples + sample) * width + place] = v;
        }
    }
    Ok(out)
}

/// A new identifier below the root for random ones.
fn new_uid() -> String {
    use std::hash::{BuildHasher, Hasher};
    let half = || u128::from(std::collections::hash_map::RandomState::new().build_hasher().finish());
    format!("2.25.{}", half() << 63 | half() >> 1)
}

pub(super) fn create(
    path: &Path,
    description: &Description,
    options: &WriteOptions,
) -> Result<Box<dyn Target>> {
    let shape = description.shape();
    let native = description.native::<Native>().filter(|n| {
        description.format == NAME && n.layout.shape() == shape && n.layout.dtype == description.dtype
    });
    let Some(native) = native else {
        return request(format!(
            "{}: DICOM is written only from a DICOM image of the same size and type; write TIFF or NIfTI",
            path.display()
        ));
    };
    let record = options.provenance.as_ref().map(|v| v.to_string());
    let made = compose(native, record.as_deref()).map_err(|fault| fault.at(path, NAME))?;
    let (front, set_head, tail) = made;
    let file = AsideFile::create(path, options.replace)?;
    let syntax = if native.packed { Syntax { explicit: true, order: Order::Little } } else { native.syntax };
    let bytes = shape.iter().product::<usize>() * description.dtype.bytes();
    let axes = (0..shape.len()).collect();
    let pad: &[u8] = if bytes % 2 == 1 { &[0] } else { &[] };
    if native.deflated {
        let finish = Box::new(move |file: &mut AsideFile, scratch: Option<&File>| -> Parsed<()> {
            let Some(mut pixels) = scratch else { return damaged("no pixels") };
            pixels.rewind()?;
            let mut out = BufWriter::new(file.file().try_clone()?);
            out.write_all(&front)?;
            let mut packed = flate2::write::DeflateEncoder::new(out, flate2::Compression::new(6));
            packed.write_all(&set_head)?;
            std::io::copy(&mut pixels, &mut packed)?;
            packed.write_all(pad)?;
            packed.write_all(&tail)?;
            let mut out = packed.finish()?;
            out.flush()?;
            // The file's length is even.
            if out.stream_position()? % 2 == 1 {
                out.write_all(&[0])?;
                out.flush()?;
            }
            Ok(())
        });
        let target = RawTarget::new(NAME, file, 0, syntax.order, description.dtype, &shape, axes, finish);
        return Ok(Box::new(target.with_scratch()?));
    }
    let offset = (front.len() + set_head.len()) as u64;
    let finish = Box::new(move |file: &mut AsideFile, _: Option<&File>| -> Parsed<()> {
        file.write_at(0, &front)?;
        file.write_at(front.len() as u64, &set_head)?;
        file.write_at(offset + bytes as u64, pad)?;
        file.write_at(offset + (bytes + pad.len()) as u64, &tail)?;
        Ok(())
    });
    Ok(Box::new(RawTarget::new(NAME, file, offset, syntax.order, description.dtype, &shape, axes, finish)))
}

type Composed = (Vec<u8>, Vec<u8>, Vec<u8>);

/// The file's front with its meta group, the data set up to the pixels, and what follows them.
fn compose(native: &Native, record: Option<&str>) -> Parsed<Composed> {
    let set = DataSet { bytes: &native.bytes, elements: &native.elements, syntax: native.syntax };
    let syntax = if native.packed { Syntax { explicit: true, order: Order::Little } } else { native.syntax };
    let instance = new_uid();
    let mut kind = vec!["DERIVED".to_string(), "SECONDARY".to_string()];
    kind.extend(set.text((8, 8)).unwrap_or_default().split('\\').skip(2).map(str::to_string));
    // A short text holds 1024 characters.
    let note = match record {
        Some(json) if RECORD.len() + json.len() <= 1024 => format!("{RECORD}{json}"),
        _ => format!("processed by Clearshot {}", env!("CARGO_PKG_VERSION")),
    };
    let mut changed: Vec<(Tag, [u8; 2], Vec<u8>)> = vec![
        ((8, 8), *b"CS", kind.join("\\").into_bytes()),
        ((8, 0x18), *b"UI", instance.clone().into_bytes()),
        ((8, 0x2111), *b"ST", note.into_bytes()),
        ((0x20, 0xE), *b"UI", new_uid().into_bytes()),
    ];
    if native.packed && native.layout.samples > 1 {
        changed.push(((0x28, 6), *b"US", vec![0, 0]));
        let colour = native.layout.photometric.starts_with("YBR")
            && !native.layout.photometric.starts_with("YBR_PARTIAL");
        if colour {
            changed.push(((0x28, 4), *b"CS", b"RGB".to_vec()));
        }
    }
    let mut head: Vec<(Tag, Vec<u8>)> =
        changed.iter().map(|(tag, vr, value)| (*tag, encode(*tag, *vr, value, syntax))).collect();
    let mut tail = Vec::new();
    for e in &native.elements {
        // Group lengths would be wrong now, and are retired.
        if e.tag == PIXEL_DATA || e.tag.1 == 0 || changed.iter().any(|(tag, ..)| *tag == e.tag) {
            continue;
        }
        let raw = native.bytes.read(e.start, e.end - e.start)?;
        if e.tag > PIXEL_DATA { tail.extend(raw) } else { head.push((e.tag, raw)) }
    }
    head.sort_by_key(|(tag, _)| *tag);
    let mut bytes: Vec<u8> = head.into_iter().flat_map(|(_, raw)| raw).collect();
    let size = native.layout.frame_bytes() as u64 * native.layout.frames as u64;
    let Ok(length) = u32::try_from(size + size % 2) else { return unsupported("pixels beyond 4 GiB") };
    let vr = if native.layout.dtype.bytes() == 1 { *b"OB" } else { *b"OW" };
    bytes.extend(encode_head(PIXEL_DATA, vr, length, syntax));
    let explicit = Syntax { explicit: true, order: Order::Little };
    let mut meta = Vec::new();
    for (tag, vr, value) in native.meta.iter().filter(|(tag, ..)| tag.1 != 0) {
        let value = match tag.1 {
            3 => instance.as_bytes(),
            0x10 if native.packed => EXPLICIT_LITTLE.as_bytes(),
            _ => value,
        };
        meta.extend(encode(*tag, *vr, value, explicit));
    }
    let mut front = vec![0; 128];
    front.extend_from_slice(b"DICM");
    front.extend(encode((2, 0), *b"UL", &(meta.len() as u32).to_le_bytes(), explicit));
    front.extend(meta);
    Ok((front, bytes, tail))
}
