//! NumPy's NPY files, and NPZ archives of them. Arrays have no axis names: two axes are Y X, a third of at most four at the
//! end are samples, others have no meaning.

use super::zip::{Zip, ZipWriter, checksum};
use crate::aside::AsideFile;
use crate::bytes::Bytes;
use crate::dtype::{DType, Order};
use crate::error::{Fault, Parsed, Result, damaged, unsupported};
use crate::image::{Axis, Description, Dim, Image};
use crate::raw::{RawSource, RawTarget};
use crate::writer::{Target, WriteOptions};
use std::io::{BufWriter, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const NAME: &str = "NPY";

pub(super) fn recognise(path: &Path, head: &[u8]) -> bool {
    head.starts_with(b"\x93NUMPY") || (head.starts_with(b"PK") && is_archive(path))
}

fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("npz"))
}

/// The other members of an archive, to be given back.
struct Native {
    member: Option<String>,
    archive: Option<PathBuf>,
}

struct Header {
    dtype: DType,
    order: Order,
    fortran: bool,
    shape: Vec<usize>,
    length: u64,
}

pub(super) fn open(path: &Path, item: Option<&str>) -> Result<Image> {
    let fail = |fault: Fault| fault.at(path, NAME);
    let bytes = Bytes::open(path)?;
    if !is_archive(path) {
        return of_bytes(path, bytes);
    }
    let zip = Zip::open(bytes).map_err(fail)?;
    let items: Vec<String> =
        zip.names.iter().filter_map(|n| n.strip_suffix(".npy")).map(str::to_string).collect();
    if items.is_empty() {
        return Err(fail(Fault::Damaged("an archive without arrays".to_string())));
    }
    let chosen = super::choose(path, &items, item)?;
    let member = format!("{}.npy", items[chosen]);
    let native = Native { member: Some(member.clone()), archive: Some(path.to_path_buf()) };
    let opened = || -> Parsed<Image> {
        // A stored member is read where it lies.
        if let Some((at, _)) = zip.stored(&member)? {
            let bytes = Bytes::from_file(std::fs::File::open(path)?)?;
            return open_array(path, bytes, at, native, items, chosen);
        }
        match zip.read(&member)? {
            Some(data) => open_array(path, Bytes::Memory(data), 0, native, items, chosen),
            None => damaged(format!("member {member} is missing")),
        }
    };
    let mut image = opened().map_err(fail)?;
    let record = zip.read("provenance.json").ok().flatten();
    image.description.provenance = record.and_then(|text| serde_json::from_slice(&text).ok());
    Ok(image)
}

/// The one array of a file whose bytes are at hand.
pub(crate) fn of_bytes(path: &Path, bytes: Bytes) -> Result<Image> {
    let native = Native { member: None, archive: None };
    open_array(path, bytes, 0, native, vec![String::new()], 0).map_err(|fault| fault.at(path, NAME))
}

fn open_array(
    path: &Path,
    bytes: Bytes,
    at: u64,
    native: Native,
    items: Vec<String>,
    item: usize,
) -> Parsed<Image> {
    let header = read_header(&bytes, at)?;
    let mut shape = header.shape.clone();
    let dims = axes(&shape);
    if header.fortran {
        shape.reverse();
    }
    let offset = at + header.length;
    let mut source =
        RawSource::new(path.to_path_buf(), NAME, bytes, offset, header.order, header.dtype, &shape)?;
    if header.fortran {
        source = source.reversed();
    }
    let mut description = Description::new(NAME, path, dims, header.dtype);
    description.items = items;
    description.item = item;
    description.tag("byte order", if header.order == Order::Big { "big" } else { "little" });
    if header.fortran {
        description.tag("memory order", "Fortran");
    }
    description.provenance = std::fs::read(sidecar(path)).ok().and_then(|t| serde_json::from_slice(&t).ok());
    description.native = Some(Arc::new(native));
    Ok(Image::new(description, Box::new(source)))
}

/// The record beside an array, which has no place for one.
fn sidecar(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".provenance.json");
    PathBuf::from(name)
}

fn axes(shape: &[usize]) -> Vec<Dim> {
    let rank = shape.len();
    let samples = rank >= 3 && (2..=4).contains(&shape[rank - 1]) && shape[rank - 2] > 4;
    let plane = if samples { rank - 3 } else { rank.saturating_sub(2) };
    let tail: &[Axis] = match (samples, rank) {
        (true, _) => &[Axis::Y, Axis::X, Axis::S],
        (false, 1) => &[Axis::X],
        _ => &[Axis::Y, Axis::X],
    };
    let lead = (0..plane).map(|n| Axis::Other(n as u8));
    lead.chain(tail.iter().copied()).zip(shape).map(|(axis, &len)| Dim::new(axis, len)).collect()
}

fn read_header(bytes: &Bytes, at: u64) -> Parsed<Header> {
    let start = bytes.read(at, 12.min(bytes.len().saturating_sub(at)))?;
    if start.len() < 12 || !start.starts_with(b"\x93NUMPY") {
        return damaged("no NPY header");
    }
    let le = Order::Little;
    let (skip, length) = match start[6] {
        1 => (10, u64::from(le.u16(&start[8..]))),
        2 | 3 => (12, u64::from(le.u32(&start[8..]))),
        v => return unsupported(format!("version {v}")),
    };
    if length > 1 << 20 {
        return damaged(format!("a header of {length} bytes"));
    }
    let text = bytes.read(at + skip, length)?;
    let text = String::from_utf8_lossy(&text);
    let value = |key: &str| -> Option<&str> {
        let from = text.find(&format!("'{key}'"))? + key.len() + 2;
        text[from..].trim_start().strip_prefix(':').map(str::trim_start)
    };
    let descr = value("descr").unwrap_or("");
    let Some(name) = descr.strip_prefix('\'').and_then(|d| d.split('\'').next()) else {
        return unsupported("structured pixels");
    };
    let (dtype, order) = DType::from_numpy(name)?;
    let shape = value("shape").and_then(|s| s.strip_prefix('(')).and_then(|s| s.split(')').next());
    let Some(shape) = shape else { return damaged("a header without a shape") };
    let mut lengths = Vec::new();
    for part in shape.split(',').map(|p| p.trim().trim_end_matches('L')).filter(|p| !p.is_empty()) {
        match part.parse() {
            Ok(n) => lengths.push(n),
            Err(_) => return damaged(format!("a shape of ({shape})")),
        }
    }
    if lengths.is_empty() || lengths.len() > 12 {
        return unsupported(format!("an array of {} axes", lengths.len()));
    }
    let fortran = value("fortran_order").is_some_and(|v| v.starts_with("True"));
    Ok(Header { dtype, order, fortran, shape: lengths, length: skip + length })
}

/// The header that numpy writes for a little-endian array.
fn header(dtype: DType, shape: &[usize]) -> Vec<u8> {
    let kind = if dtype.is_float() {
        'f'
    } else if dtype.is_signed() {
        'i'
    } else {
        'u'
    };
    let order = if dtype.bytes() == 1 { '|' } else { '<' };
    let lengths: Vec<String> = shape.iter().map(|n| n.to_string()).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let mut text = format!(
        "{{'descr': '{order}{kind}{}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        dtype.bytes(),
        lengths.join(", ")
    );
    let end = (10 + text.len() + 1).next_multiple_of(64);
    text.extend(std::iter::repeat_n(' ', end - 11 - text.len()));
    text.push('\n');
    let mut out = b"\x93NUMPY\x01\0".to_vec();
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    out
}

pub(super) fn create(
    path: &Path,
    description: &Description,
    options: &WriteOptions,
) -> Result<Box<dyn Target>> {
    let shape = description.shape();
    if shape.contains(&0) {
        return crate::error::request(format!(
            "{}: an image of shape {shape:?} has no pixels",
            path.display()
        ));
    }
    let head = header(description.dtype, &shape);
    let file = AsideFile::create(path, options.replace)?;
    let axes = (0..shape.len()).collect();
    let offset = head.len() as u64;
    let record = options.provenance.clone();
    if !is_archive(path) {
        let beside = sidecar(path);
        let finish = Box::new(move |file: &mut AsideFile, _: Option<&std::fs::File>| -> Parsed<()> {
            file.write_at(0, &head)?;
            if let Some(record) = record {
                std::fs::write(&beside, format!("{record:#}\n"))?;
            }
            Ok(())
        });
        let target =
            RawTarget::new(NAME, file, offset, Order::Little, description.dtype, &shape, axes, finish);
        return Ok(Box::new(target));
    }
    let native = description.native::<Native>();
    let member = native.and_then(|n| n.member.clone()).unwrap_or("arr_0.npy".to_string());
    let others = native.and_then(|n| n.archive.clone());
    let finish = Box::new(move |file: &mut AsideFile, scratch: Option<&std::fs::File>| -> Parsed<()> {
        let Some(mut pixels) = scratch else { return damaged("no pixels") };
        let mut zip = ZipWriter::new(BufWriter::new(file.file().try_clone()?));
        let joined = |mut pixels: &std::fs::File| -> std::io::Result<(u32, u64)> {
            pixels.rewind()?;
            checksum(&mut std::io::Read::chain(&head[..], pixels))
        };
        let (crc, size) = joined(pixels)?;
        pixels.rewind()?;
        zip.add(&member, size, crc, &mut std::io::Read::chain(&head[..], pixels))?;
        if let Some(archive) = others {
            let old = Zip::open(Bytes::from_file(std::fs::File::open(archive)?)?)?;
            for name in old.names.iter().filter(|n| **n != member && *n != "provenance.json") {
                if let Some(data) = old.read(name)? {
                    let (crc, size) = checksum(&mut &data[..])?;
                    zip.add(name, size, crc, &mut &data[..])?;
                }
            }
        }
        if let Some(record) = record {
            let text = record.to_string();
            let (crc, size) = checksum(&mut text.as_bytes())?;
            zip.add("provenance.json", size, crc, &mut text.as_bytes())?;
        }
        zip.finish()?;
        Ok(())
    });
    let target = RawTarget::new(NAME, file, 0, Order::Little, description.dtype, &shape, axes, finish);
    Ok(Box::new(target.with_scratch()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_written() {
        for (dtype, shape) in [(DType::F32, vec![3]), (DType::U16, vec![2, 300, 7]), (DType::I8, vec![1, 1])]
        {
            let bytes = Bytes::Memory(header(dtype, &shape));
            let read = read_header(&bytes, 0).unwrap();
            assert_eq!((read.dtype, &read.shape, read.length), (dtype, &shape, bytes.len()));
            assert_eq!(bytes.len() % 64, 0);
        }
    }
}
