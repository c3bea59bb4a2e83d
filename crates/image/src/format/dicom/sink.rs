//! Writes DICOM from DICOM: the elements of the input with other pixels, and the tags that mark a derived image.

use super::dataset::{DOUBLE_PIXEL_DATA, DataSet, FLOAT_PIXEL_DATA, Syntax, Tag, encode, encode_head};
use super::{EXPLICIT_LITTLE, NAME, Native, RECORD};
use crate::aside::AsideFile;
use crate::dtype::Order;
use crate::error::{Parsed, Result, damaged, request, unsupported};
use crate::image::Description;
use crate::raw::RawTarget;
use crate::writer::{Target, WriteOptions};
use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::path::Path;

/// A new identifier below the root for random ones.
fn new_uid() -> String {
    use std::hash::{BuildHasher, Hasher};
    let half = || u128::from(std::collections::hash_map::RandomState::new().build_hasher().finish());
    format!("2.25.{}", half() << 63 | half() >> 1)
}

/// # Errors
/// If DICOM cannot hold such an image.
pub fn check(path: &Path, description: &Description) -> Result<()> {
    native_of(path, description).map(drop)
}

fn native_of<'a>(path: &Path, description: &'a Description) -> Result<&'a Native> {
    let shape = description.shape();
    let native = description.native::<Native>().filter(|n| {
        description.format == NAME && n.layout.shape() == shape && n.layout.dtype == description.dtype
    });
    native.map_or_else(
        || {
            request(format!(
                "{}: DICOM is written only from a DICOM image of the same size and type; write TIFF or NIfTI",
                path.display()
            ))
        },
        Ok,
    )
}

pub fn create(path: &Path, description: &Description, options: &WriteOptions) -> Result<Box<dyn Target>> {
    let (shape, native) = (description.shape(), native_of(path, description)?);
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
    if (native.packed || native.layout.differences) && native.layout.samples > 1 {
        changed.push(((0x28, 6), *b"US", vec![0, 0]));
    }
    // Single bits become bytes.
    if native.layout.single_bits {
        changed.extend(
            [(0x100, 8), (0x101, 8), (0x102, 7)]
                .map(|(number, value)| ((0x28, number), *b"US", syntax.order.put16(value).to_vec())),
        );
    }
    // JPEG 2000 has transforms of its own, which unpacking undoes.
    if native.layout.differences || ["YBR_RCT", "YBR_ICT"].contains(&&native.layout.photometric[..]) {
        changed.push(((0x28, 4), *b"CS", b"RGB".to_vec()));
    }
    let mut head: Vec<(Tag, Vec<u8>)> =
        changed.iter().map(|(tag, vr, value)| (*tag, encode(*tag, *vr, value, syntax))).collect();
    let mut tail = Vec::new();
    for e in &native.elements {
        // Group lengths would be wrong now, and are retired; unpacked frames have no tables of offsets.
        let gone = [native.layout.element, (0x7FE0, 1), (0x7FE0, 2)];
        if gone.contains(&e.tag) || e.tag.1 == 0 || changed.iter().any(|(tag, ..)| *tag == e.tag) {
            continue;
        }
        let raw = native.bytes.read(e.start, e.end - e.start)?;
        if e.tag > native.layout.element { tail.extend(raw) } else { head.push((e.tag, raw)) }
    }
    head.sort_by_key(|(tag, _)| *tag);
    let mut bytes: Vec<u8> = head.into_iter().flat_map(|(_, raw)| raw).collect();
    let size = native.layout.frame_bytes() as u64 * native.layout.frames as u64;
    let Ok(length) = u32::try_from(size + size % 2) else { return unsupported("pixels beyond 4 GiB") };
    let vr = match (native.layout.element, native.layout.dtype.bytes()) {
        (FLOAT_PIXEL_DATA, _) => *b"OF",
        (DOUBLE_PIXEL_DATA, _) => *b"OD",
        (_, 1) => *b"OB",
        _ => *b"OW",
    };
    bytes.extend(encode_head(native.layout.element, vr, length, syntax));
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
