//! NIfTI-1 and 2: single files (compressed or not) and pairs of header and image. Headers and extensions are kept byte for
//! byte, so orientation, intent and everything else are preserved on writing.

use crate::aside::AsideFile;
use crate::bytes::{Bytes, gunzip};
use crate::dtype::{DType, Order};
use crate::error::{
    Error, Fault, Parsed, Result, damaged, instead, request, unsupported, unsupported_instead,
};
use crate::image::{Axis, Description, Dim, Image, Rescale};
use crate::raw::{RawSource, RawTarget};
use crate::writer::{Target, WriteOptions};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const NAME: &str = "NIfTI";
/// The code of extensions that hold plain text.
const COMMENT: u32 = 6;
const RECORD: &str = "clearshot provenance: ";

fn lower_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().to_lowercase()
}

pub(super) fn recognise(path: &Path, head: &[u8]) -> bool {
    let name = lower_name(path);
    if head.starts_with(&[0x1F, 0x8B]) {
        return [".nii.gz", ".hdr.gz", ".img.gz"].iter().any(|e| name.ends_with(e));
    }
    let named = [".nii", ".hdr", ".img"].iter().any(|e| name.ends_with(e));
    version(head).is_some() || named
}

/// Which of the two headers it is, and its byte order.
fn version(head: &[u8]) -> Option<(u8, Order)> {
    for order in [Order::Little, Order::Big] {
        if head.len() >= 348 && order.u32(head) == 348 && matches!(&head[344..347], b"n+1" | b"ni1") {
            return Some((1, order));
        }
        if head.len() >= 540 && order.u32(head) == 540 && matches!(&head[4..7], b"n+2" | b"ni2") {
            return Some((2, order));
        }
    }
    None
}

struct Header {
    version: u8,
    order: Order,
    /// Everything before the pixels, extensions included.
    bytes: Vec<u8>,
}

/// What the writer gives back.
struct Native {
    version: u8,
    order: Order,
    bytes: Vec<u8>,
    shape: Vec<usize>,
    dtype: DType,
}

/// Whether a header serves values of another type too: those of colours have the samples in the type, and the values
/// must mean themselves.
fn can_be_retyped(description: &Description) -> bool {
    type_code(description.dtype).is_some()
        && description.rescale.is_none()
        && description.position(Axis::S).is_none()
}

impl Header {
    /// Says another type, without a slope.
    fn retype(&mut self, dtype: DType) {
        let o = self.order;
        let (code, bits) = (o.put16(type_code(dtype).unwrap_or(0) as u16), o.put16(dtype.bits() as u16));
        let mut put = |at: usize, data: &[u8]| self.bytes[at..at + data.len()].copy_from_slice(data);
        if self.version == 1 {
            put(70, &code);
            put(72, &bits);
            put(112, &o.put32(1f32.to_bits()));
            put(116, &o.put32(0));
        } else {
            put(12, &code);
            put(14, &bits);
            put(176, &o.put64(1f64.to_bits()));
            put(184, &o.put64(0));
        }
    }

    fn i16(&self, at: usize) -> i16 {
        self.order.u16(&self.bytes[at..]) as i16
    }

    fn f32(&self, at: usize) -> f64 {
        f64::from(f32::from_bits(self.order.u32(&self.bytes[at..])))
    }

    fn f64(&self, at: usize) -> f64 {
        f64::from_bits(self.order.u64(&self.bytes[at..]))
    }

    fn dim(&self, n: usize) -> i64 {
        match self.version {
            1 => i64::from(self.i16(40 + 2 * n)),
            _ => self.order.u64(&self.bytes[16 + 8 * n..]) as i64,
        }
    }

    fn pixdim(&self, n: usize) -> f64 {
        if self.version == 1 { self.f32(76 + 4 * n) } else { self.f64(104 + 8 * n) }
    }

    fn datatype(&self) -> i16 {
        if self.version == 1 { self.i16(70) } else { self.i16(12) }
    }

    fn offset(&self) -> f64 {
        if self.version == 1 { self.f32(108) } else { self.order.u64(&self.bytes[168..]) as i64 as f64 }
    }

    fn scale(&self) -> (f64, f64) {
        if self.version == 1 { (self.f32(112), self.f32(116)) } else { (self.f64(176), self.f64(184)) }
    }

    fn units(&self) -> u32 {
        if self.version == 1 { u32::from(self.bytes[123]) } else { self.order.u32(&self.bytes[500..]) }
    }

    fn code(&self, one: usize, two: usize) -> i64 {
        match self.version {
            1 => i64::from(self.i16(one)),
            _ => i64::from(self.order.u32(&self.bytes[two..]) as i32),
        }
    }

    fn length(&self) -> usize {
        if self.version == 1 { 348 } else { 540 }
    }

    fn single(&self) -> bool {
        let magic = if self.version == 1 { &self.bytes[344..347] } else { &self.bytes[4..7] };
        magic[1] == b'+'
    }
}

fn pixel_type(code: i16) -> Parsed<(DType, usize)> {
    Ok(match code {
        2 => (DType::U8, 1),
        4 => (DType::I16, 1),
        8 => (DType::I32, 1),
        16 => (DType::F32, 1),
        64 => (DType::F64, 1),
        128 => (DType::U8, 3),
        256 => (DType::I8, 1),
        512 => (DType::U16, 1),
        768 => (DType::U32, 1),
        1024 => (DType::I64, 1),
        1280 => (DType::U64, 1),
        2304 => (DType::U8, 4),
        32 => return unsupported_instead("complex pixels (complex64)", instead::COMPLEX),
        1792 => return unsupported_instead("complex pixels (complex128)", instead::COMPLEX),
        2048 => return unsupported_instead("complex pixels (complex256)", instead::COMPLEX),
        1 => return unsupported("pixels of one bit"),
        1536 => return unsupported("pixels of type float128"),
        other => return damaged(format!("pixels of type {other}")),
    })
}

fn type_code(dtype: DType) -> Option<i16> {
    Some(match dtype {
        DType::U8 => 2,
        DType::I8 => 256,
        DType::I16 => 4,
        DType::U16 => 512,
        DType::I32 => 8,
        DType::U32 => 768,
        DType::I64 => 1024,
        DType::U64 => 1280,
        DType::F32 => 16,
        DType::F64 => 64,
        DType::F16 => return None,
    })
}

fn is_packed(path: &Path) -> bool {
    let mut head = [0; 2];
    File::open(path).and_then(|mut f| f.read_exact(&mut head)).is_ok() && head == [0x1F, 0x8B]
}

/// The first bytes of a file, unpacked where it is packed.
fn head_of(path: &Path, count: u64) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    let file = File::open(path).map_err(|e| Error::io(path, e))?;
    let read = if is_packed(path) {
        flate2::read::MultiGzDecoder::new(std::io::BufReader::new(file)).take(count).read_to_end(&mut head)
    } else {
        file.take(count).read_to_end(&mut head)
    };
    match read {
        Ok(_) => Ok(head),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::io(path, e)),
        Err(e) => Err(Fault::Damaged(e.to_string()).at(path, NAME)),
    }
}

/// The partner of a pair, with the same ending `.gz` or without.
fn partner(path: &Path, from: &str, to: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // As many bytes as the name has, whatever its letters.
    let lower = name.to_ascii_lowercase();
    let at = lower.rfind(from).unwrap_or(lower.len());
    let candidate =
        path.with_file_name(format!("{}{to}{}", &name[..at], &name[(at + from.len()).min(name.len())..]));
    let packed = PathBuf::from(format!("{}.gz", candidate.display()));
    if !candidate.exists() && packed.exists() { packed } else { candidate }
}

pub(super) fn open(path: &Path, _: Option<&str>) -> Result<Image> {
    let fail = |fault: Fault| fault.at(path, NAME);
    let header_path =
        if lower_name(path).contains(".img") { partner(path, ".img", ".hdr") } else { path.to_path_buf() };
    let mut head = head_of(&header_path, 540)?;
    let Some((version, order)) = version(&head) else {
        let what = match head.get(..4).map(|h| (Order::Little.u32(h), Order::Big.u32(h))) {
            Some((348, _) | (_, 348)) => {
                Fault::Unsupported("an ANALYZE header without NIfTI's mark".to_string(), None)
            }
            _ => Fault::Damaged("no NIfTI header".to_string()),
        };
        return Err(fail(what));
    };
    head.truncate(if version == 1 { 348 } else { 540 });
    let header = Header { version, order, bytes: head };
    let layout = read_layout(&header).map_err(fail)?;
    let (data_path, packed) = if header.single() {
        (header_path.clone(), is_packed(&header_path))
    } else {
        let data = partner(&header_path, ".hdr", ".img");
        let packed = data.exists() && is_packed(&data);
        (data, packed)
    };
    let needed = layout.offset + layout.bytes;
    let bytes = if packed {
        // Deflate packs no more than 1032 to one.
        let file = std::fs::metadata(&data_path).map_err(|e| Error::io(&data_path, e))?.len();
        if needed > file.saturating_mul(1040) + 65_536 {
            return Err(fail(Fault::Damaged(format!(
                "{needed} bytes are needed, and {file} packed ones are there"
            ))));
        }
        gunzip(&data_path, needed)?
    } else {
        Bytes::open(&data_path)?
    };
    let front = if header.single() { layout.offset } else { header.length() as u64 };
    let header_bytes = match header.single() {
        true if front >= header.length() as u64 && front < 64 << 20 => bytes.read(0, front).map_err(fail)?,
        // A pair's extensions follow the header in its own file.
        _ => head_of(&header_path, 1 << 20)?,
    };
    let header = Header { bytes: header_bytes, ..header };
    build(path, header, layout, bytes).map_err(fail)
}

struct Layout {
    dtype: DType,
    dims: Vec<Dim>,
    offset: u64,
    bytes: u64,
}

fn read_layout(header: &Header) -> Parsed<Layout> {
    let rank = header.dim(0);
    if !(1..=7).contains(&rank) {
        return damaged(format!("{rank} axes"));
    }
    let (dtype, samples) = pixel_type(header.datatype())?;
    let units = header.units();
    let space = match units & 7 {
        1 => "m",
        2 => "mm",
        3 => "µm",
        _ => "",
    };
    let time = match units & 0x38 {
        8 => "s",
        16 => "ms",
        24 => "µs",
        _ => "",
    };
    let axes = [Axis::X, Axis::Y, Axis::Z, Axis::T, Axis::C, Axis::Other(0), Axis::Other(1)];
    let mut dims = Vec::new();
    let mut bytes = (dtype.bytes() * samples) as u64;
    for (n, &axis) in axes.iter().enumerate().take(rank as usize) {
        let len = header.dim(n + 1);
        let Ok(len) = usize::try_from(len) else { return damaged(format!("axis {} of length {len}", n + 1)) };
        bytes = match bytes.checked_mul(len as u64).filter(|b| *b < 1 << 60) {
            Some(bytes) => bytes,
            None => return damaged(format!("axis {} of length {len}", n + 1)),
        };
        let (step, unit) = match n {
            0..=2 => (Some(header.pixdim(n + 1).abs()), space),
            3 => (Some(header.pixdim(4)), time),
            _ => (None, ""),
        };
        let mut dim = Dim::stepped(axis, len, step, unit);
        dim.unit = dim.unit.filter(|u| !u.is_empty());
        dims.push(dim);
    }
    dims.reverse();
    if samples > 1 {
        dims.push(Dim::new(Axis::S, samples));
    }
    let offset = header.offset();
    let offset = match header.single() {
        true if offset < header.length() as f64 => header.length() as u64 + 4,
        _ if (0.0..1e15).contains(&offset) => offset as u64,
        _ => return damaged(format!("pixels at {offset}")),
    };
    Ok(Layout { dtype, dims, offset, bytes })
}

fn build(path: &Path, header: Header, layout: Layout, bytes: Bytes) -> Parsed<Image> {
    let shape: Vec<usize> = layout.dims.iter().map(|d| d.len).collect();
    let source =
        RawSource::new(path.to_path_buf(), NAME, bytes, layout.offset, header.order, layout.dtype, &shape)?;
    let mut description = Description::new(NAME, path, layout.dims, layout.dtype);
    let (slope, intercept) = header.scale();
    let meaningful = slope != 0.0 && slope.is_finite() && intercept.is_finite();
    if meaningful && (slope, intercept) != (1.0, 0.0) {
        description.rescale = Some(Rescale { slope, intercept, blank: None });
    }
    description.tag("version", header.version);
    description.tag("byte order", if header.order == Order::Big { "big" } else { "little" });
    let text = |from: usize, count: usize| {
        let raw = &header.bytes[from..from + count];
        String::from_utf8_lossy(raw.split(|&b| b == 0).next().unwrap_or(b"")).trim().to_string()
    };
    let note = if header.version == 1 { text(148, 80) } else { text(240, 80) };
    if !note.is_empty() {
        description.tag("description", note);
    }
    description.tag("qform code", header.code(252, 344));
    let sform = header.code(254, 348);
    description.tag("sform code", sform);
    if sform > 0 {
        let at =
            |i: usize| if header.version == 1 { header.f32(280 + 4 * i) } else { header.f64(400 + 8 * i) };
        let rows: Vec<String> =
            (0..3).map(|r| (0..4).map(|c| at(r * 4 + c).to_string()).collect::<Vec<_>>().join(" ")).collect();
        description.tag("sform", rows.join("; "));
    }
    description.provenance = extensions(&header).iter().find_map(|(code, body)| {
        let text = String::from_utf8_lossy(body);
        let json = text.trim_end_matches('\0').strip_prefix(RECORD)?;
        (*code == COMMENT).then(|| serde_json::from_str(json).ok())?
    });
    let native = Native {
        version: header.version,
        order: header.order,
        bytes: header.bytes,
        shape,
        dtype: layout.dtype,
    };
    description.native = Some(Arc::new(native));
    Ok(Image::new(description, Box::new(source)))
}

/// The extensions behind a header: code and body of each.
fn extensions(header: &Header) -> Vec<(u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut at = header.length() + 4;
    if header.bytes.get(header.length()).is_none_or(|&flag| flag == 0) {
        return found;
    }
    while let Some(head) = header.bytes.get(at..at + 8) {
        let (size, code) = (header.order.u32(head) as usize, header.order.u32(&head[4..]));
        let Some(body) = at.checked_add(size).and_then(|end| header.bytes.get(at + 8..end)) else { break };
        found.push((code, body.to_vec()));
        at += size;
    }
    found
}

/// A header with its extensions, one of which is the record, and room up to the pixels.
fn front(header: &mut Header, record: Option<&str>) -> Vec<u8> {
    let mut kept = extensions(header);
    kept.retain(|(code, body)| !(*code == COMMENT && body.starts_with(RECORD.as_bytes())));
    if let Some(json) = record {
        kept.push((COMMENT, format!("{RECORD}{json}").into_bytes()));
    }
    let o = header.order;
    let length = header.length();
    header.bytes.truncate(length);
    let mut tail = vec![u8::from(!kept.is_empty()), 0, 0, 0];
    for (code, body) in kept {
        let size = (body.len() + 8).next_multiple_of(16);
        tail.extend_from_slice(&o.put32(size as u32));
        tail.extend_from_slice(&o.put32(code));
        tail.extend_from_slice(&body);
        tail.resize(tail.len() + size - 8 - body.len(), 0);
    }
    let offset = (length + tail.len()).next_multiple_of(16);
    tail.resize(offset - length, 0);
    if header.version == 1 {
        header.bytes[108..112].copy_from_slice(&o.put32((offset as f32).to_bits()));
        header.bytes[344..348].copy_from_slice(b"n+1\0");
    } else {
        header.bytes[168..176].copy_from_slice(&o.put64(offset as u64));
        header.bytes[4..7].copy_from_slice(b"n+2");
    }
    [header.bytes.clone(), tail].concat()
}

pub(super) fn create(
    path: &Path,
    description: &Description,
    options: &WriteOptions,
) -> Result<Box<dyn Target>> {
    let name = lower_name(path);
    if !name.ends_with(".nii") && !name.ends_with(".nii.gz") {
        return request(format!("{}: NIfTI is written as .nii or .nii.gz", path.display()));
    }
    let record = options.provenance.as_ref().map(|v| v.to_string());
    let shape = description.shape();
    let native = description
        .native::<Native>()
        .filter(|n| description.format == NAME && n.shape == shape)
        .filter(|n| n.dtype == description.dtype || can_be_retyped(description));
    let (mut header, axes) = match native {
        Some(n) => {
            let mut header = Header { version: n.version, order: n.order, bytes: n.bytes.clone() };
            if n.dtype != description.dtype {
                header.retype(description.dtype);
            }
            (header, (0..shape.len()).collect())
        }
        None => fresh(path, description)?,
    };
    let order = header.order;
    let head = front(&mut header, record.as_deref());
    let file = AsideFile::create(path, options.replace)?;
    let offset = head.len() as u64;
    if name.ends_with(".gz") {
        let finish = Box::new(move |file: &mut AsideFile, scratch: Option<&File>| -> Parsed<()> {
            let Some(mut pixels) = scratch else { return damaged("no pixels") };
            pixels.rewind()?;
            let out = BufWriter::new(file.file().try_clone()?);
            let mut gz = flate2::write::GzEncoder::new(out, flate2::Compression::new(6));
            gz.write_all(&head)?;
            std::io::copy(&mut pixels, &mut gz)?;
            gz.finish()?.flush()?;
            Ok(())
        });
        let target = RawTarget::new(NAME, file, 0, order, description.dtype, &shape, axes, finish);
        return Ok(Box::new(target.with_scratch()?));
    }
    let finish = Box::new(move |file: &mut AsideFile, _: Option<&File>| -> Parsed<()> {
        Ok(file.write_at(0, &head)?)
    });
    Ok(Box::new(RawTarget::new(NAME, file, offset, order, description.dtype, &shape, axes, finish)))
}

/// A header for an image from another format, and the order of its axes in the file.
fn fresh(path: &Path, description: &Description) -> Result<(Header, Vec<usize>)> {
    let refuse = |what: String| request(format!("{}: {what}", path.display()));
    let Some(mut code) = type_code(description.dtype) else {
        return refuse(format!("NIfTI has no {} pixels", description.dtype));
    };
    let samples = description.dims.last().filter(|d| d.axis == Axis::S && description.dtype == DType::U8);
    let colour = samples.map(|d| d.len).filter(|n| matches!(n, 3 | 4));
    if let Some(n) = colour {
        code = if n == 3 { 128 } else { 2304 };
    }
    let place = |axis: Axis| match axis {
        Axis::X => 1,
        Axis::Y => 2,
        Axis::Z => 3,
        Axis::T => 4,
        Axis::C | Axis::S => 5,
        Axis::Other(n) => 6 + usize::from(n),
    };
    let rank = description.dims.len() - usize::from(colour.is_some());
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.sort_by_key(|&a| std::cmp::Reverse(place(description.dims[a].axis)));
    let mut lengths = [1u64; 8];
    let mut steps = [1.0f64; 8];
    let mut highest = 0;
    for &a in &axes {
        let dim = &description.dims[a];
        let n = place(dim.axis);
        if n > 7 || (n == 5 && lengths[5] > 1) {
            return refuse(format!("NIfTI cannot hold axes {}", description.axes()));
        }
        lengths[n] = dim.len as u64;
        steps[n] = dim.step.unwrap_or(1.0);
        highest = highest.max(n);
    }
    if colour.is_some() {
        axes.push(rank);
    }
    lengths[0] = highest as u64;
    let x_unit = description.dim(Axis::X).and_then(|d| d.unit.as_deref()).unwrap_or("");
    let (space, factor) = match x_unit {
        "m" | "meter" => (1, 1.0),
        "mm" | "millimeter" => (2, 1.0),
        "cm" | "centimeter" => (2, 10.0),
        "µm" | "\u{3bc}m" | "um" | "micron" | "micrometer" => (3, 1.0),
        "nm" | "nanometer" => (3, 1e-3),
        _ => (0, 1.0),
    };
    (1..=3).for_each(|n| steps[n] *= factor);
    let t_unit = description.dim(Axis::T).and_then(|d| d.unit.as_deref()).unwrap_or("");
    let time = match t_unit {
        "s" | "sec" | "second" => 8,
        "ms" | "millisecond" => 16,
        _ => 0,
    };
    let bits = description.dtype.bits() as u16 * colour.unwrap_or(1) as u16;
    let large = lengths.iter().any(|&n| n > i16::MAX as u64);
    let (slope, intercept) = description.rescale.map_or((1.0, 0.0), |r| (r.slope, r.intercept));
    let mut bytes = vec![0; if large { 540 } else { 348 }];
    let mut put = |at: usize, data: &[u8]| bytes[at..at + data.len()].copy_from_slice(data);
    if large {
        put(0, &540u32.to_le_bytes());
        put(4, b"n+2\0\r\n\x1a\n");
        put(12, &code.to_le_bytes());
        put(14, &bits.to_le_bytes());
        (0..8).for_each(|n| put(16 + 8 * n, &lengths[n].to_le_bytes()));
        (0..8).for_each(|n| put(104 + 8 * n, &steps[n].to_le_bytes()));
        put(176, &slope.to_le_bytes());
        put(184, &intercept.to_le_bytes());
        put(500, &(space | time as u32).to_le_bytes());
    } else {
        put(0, &348u32.to_le_bytes());
        put(70, &code.to_le_bytes());
        put(72, &bits.to_le_bytes());
        (0..8).for_each(|n| put(40 + 2 * n, &(lengths[n] as u16).to_le_bytes()));
        (0..8).for_each(|n| put(76 + 4 * n, &(steps[n] as f32).to_le_bytes()));
        put(112, &(slope as f32).to_le_bytes());
        put(116, &(intercept as f32).to_le_bytes());
        put(123, &[space as u8 | time as u8]);
        put(344, b"n+1\0");
    }
    Ok((Header { version: if large { 2 } else { 1 }, order: Order::Little, bytes }, axes))
}
