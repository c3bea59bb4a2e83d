//! FITS: images of all types with scale, blanks and world coordinates, extensions, and tile-compressed images (read only),
//! plain or as a whole in gzip. On writing, every card and every other unit of the input is kept.

mod codec;
mod compressed;
mod hcompress;
mod header;

use crate::aside::AsideFile;
use crate::bytes::{Bytes, gunzip};
use crate::dtype::{DType, Order};
use crate::error::{Fault, Parsed, Result, damaged, request};
use crate::image::{Axis, Description, Dim, Image, Rescale};
use crate::raw::{RawSource, RawTarget};
use crate::writer::{Target, WriteOptions};
use header::{BLOCK, Hdu, Header};
use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const NAME: &str = "FITS";
const RECORD: &str = "clearshot provenance: ";

pub(super) fn recognise(path: &Path, head: &[u8]) -> bool {
    let named = |ends: [&str; 3]| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        ends.iter().any(|e| name.ends_with(e))
    };
    match head {
        [0x1F, 0x8B, ..] => named([".fits.gz", ".fit.gz", ".fts.gz"]),
        _ => head.starts_with(b"SIMPLE  =") || named([".fits", ".fit", ".fts"]),
    }
}

/// The file's bytes, unpacked where it is packed as a whole.
fn contents(path: &Path) -> Result<Bytes> {
    let bytes = Bytes::open(path)?;
    if bytes.head(2).map_err(|fault| fault.at(path, NAME))? != [0x1F, 0x8B] {
        return Ok(bytes);
    }
    // Deflate packs no more than 1032 to one.
    gunzip(path, bytes.len().saturating_mul(1040) + 65_536)
}

struct Native {
    path: PathBuf,
    hdus: Vec<Hdu>,
    chosen: usize,
    /// The image's header, as an image's and not as a table's.
    header: Header,
    shape: Vec<usize>,
    dtype: DType,
}

fn is_image(hdu: &Hdu) -> bool {
    let kind = hdu.header.text("XTENSION");
    let plain = kind.is_none() || kind.as_deref() == Some("IMAGE");
    (plain && hdu.data_bytes > 0) || hdu.header.flag("ZIMAGE")
}

/// What a file has in place of images.
fn kinds(hdus: &[Hdu]) -> String {
    let tables =
        hdus.iter().filter(|h| h.header.text("XTENSION").is_some_and(|kind| kind.ends_with("TABLE")));
    match tables.count() {
        0 => "headers alone".to_string(),
        1 => "a table".to_string(),
        n => format!("{n} tables"),
    }
}

pub(super) fn open(path: &Path, item: Option<&str>) -> Result<Image> {
    let fail = |fault: Fault| fault.at(path, NAME);
    let bytes = contents(path)?;
    let hdus = header::read_all(&bytes).map_err(fail)?;
    let images: Vec<usize> = (0..hdus.len()).filter(|&n| is_image(&hdus[n])).collect();
    if images.is_empty() {
        return request(format!("{}: a FITS file without an image; it has {}", path.display(), kinds(&hdus)));
    }
    let items: Vec<String> = images
        .iter()
        .map(|&n| match (hdus[n].header.text("EXTNAME"), hdus[n].header.integer("EXTVER")) {
            (Some(name), Some(version)) if version > 1 => format!("{name},{version}"),
            (Some(name), _) => name,
            _ => n.to_string(),
        })
        .collect();
    let chosen = super::choose(path, &items, item)?;
    let mut image = open_hdu(path, bytes, hdus, images[chosen]).map_err(fail)?;
    image.description.items = items;
    image.description.item = chosen;
    Ok(image)
}

fn open_hdu(path: &Path, bytes: Bytes, hdus: Vec<Hdu>, chosen: usize) -> Parsed<Image> {
    let hdu = &hdus[chosen];
    let packed = hdu.header.flag("ZIMAGE");
    let header = if packed { compressed::image_header(&hdu.header)? } else { hdu.header.clone() };
    let lengths = header.lengths("NAXIS")?;
    let mut shape = Vec::new();
    for &len in lengths.iter().rev() {
        match usize::try_from(len) {
            Ok(len) => shape.push(len),
            Err(_) => return damaged(format!("axes of {lengths:?}")),
        }
    }
    let bits = header.integer("BITPIX").unwrap_or(0);
    let (scale, zero) = (header.real("BSCALE").unwrap_or(1.0), header.real("BZERO").unwrap_or(0.0));
    let (dtype, flip) = match (bits, scale == 1.0, zero) {
        (8, true, -128.0) => (DType::I8, Some(0x80)),
        (16, true, 32_768.0) => (DType::U16, Some(0x80)),
        (32, true, 2_147_483_648.0) => (DType::U32, Some(0x80)),
        (64, true, 9_223_372_036_854_775_808.0) => (DType::U64, Some(0x80)),
        (8, ..) => (DType::U8, None),
        (16, ..) => (DType::I16, None),
        (32, ..) => (DType::I32, None),
        (64, ..) => (DType::I64, None),
        (-32, ..) => (DType::F32, None),
        (-64, ..) => (DType::F64, None),
        _ => return damaged(format!("BITPIX {bits}")),
    };
    let mut description = Description::new(NAME, path, dims(&header, &shape), dtype);
    let blank = header.integer("BLANK").filter(|_| bits > 0);
    if flip.is_some() {
        // The blank is given in stored values; ours are shifted.
        if let Some(blank) = blank.and_then(|b| b.checked_add(zero as i64)) {
            description.rescale = Some(Rescale { slope: 1.0, intercept: 0.0, blank: Some(blank) });
        }
    } else if (scale, zero) != (1.0, 0.0) || blank.is_some() {
        description.rescale = Some(Rescale { slope: scale, intercept: zero, blank });
    }
    for key in ["OBJECT", "TELESCOP", "INSTRUME", "DATE-OBS", "EXPTIME", "BUNIT", "CTYPE1", "CTYPE2"] {
        if let Some(value) = header.text(key) {
            description.tag(key, value);
        }
    }
    if packed {
        description.tag("compression", hdu.header.text("ZCMPTYPE").unwrap_or_default());
    }
    let history = header.history();
    description.provenance = history.rfind(RECORD).and_then(|at| {
        let text = &history[at + RECORD.len()..];
        serde_json::Deserializer::from_str(text).into_iter().next()?.ok()
    });
    let native =
        Native { path: path.to_path_buf(), hdus: hdus.clone(), chosen, header, shape: shape.clone(), dtype };
    description.native = Some(Arc::new(native));
    if packed {
        let source = compressed::open(path, bytes, hdu, &shape, dtype, flip)?;
        return Ok(Image::new(description, Box::new(source)));
    }
    let mut source = RawSource::new(path.to_path_buf(), NAME, bytes, hdu.data, Order::Big, dtype, &shape)?;
    source.flip = flip;
    Ok(Image::new(description, Box::new(source)))
}

/// Axes with the steps of the world coordinates, where these are given.
fn dims(header: &Header, shape: &[usize]) -> Vec<Dim> {
    let rank = shape.len();
    (0..rank)
        .map(|a| {
            let n = rank - a;
            // A name of one letter is one of ours.
            let named = header.text(&format!("CTYPE{n}")).filter(|t| t.len() == 1);
            let named = named.and_then(|t| Axis::from_letter(t.chars().next()?));
            let axis = match (n, named) {
                (1, _) => Axis::X,
                (2, _) => Axis::Y,
                (_, Some(axis @ (Axis::T | Axis::C | Axis::Z | Axis::S))) => axis,
                (n, _) => Axis::Other((n - 3) as u8),
            };
            let column = || -> Option<f64> {
                let parts: Vec<f64> =
                    (1..=rank.min(2)).filter_map(|i| header.real(&format!("CD{i}_{n}"))).collect();
                (!parts.is_empty()).then(|| parts.iter().map(|v| v * v).sum::<f64>().sqrt())
            };
            let step = header.real(&format!("CDELT{n}")).map(f64::abs).or_else(column);
            let celestial =
                header.text(&format!("CTYPE{n}")).is_some_and(|t| t.contains("RA--") || t.contains("DEC-"));
            let unit = header.text(&format!("CUNIT{n}")).filter(|u| !u.is_empty());
            let unit = unit.or(celestial.then(|| "deg".to_string()));
            let mut dim = Dim::stepped(axis, shape[a], step, unit.as_deref().unwrap_or(""));
            dim.unit = dim.unit.filter(|u| !u.is_empty());
            dim
        })
        .collect()
}

/// What the input's file was, where the output can be the same.
fn native_of(description: &Description) -> Option<&Native> {
    description
        .native::<Native>()
        .filter(|n| description.format == NAME && n.shape == description.shape())
        .filter(|n| n.dtype == description.dtype || description.rescale.is_none())
}

/// Whether the other images of the input's file come along.
pub(super) fn keeps_others(description: &Description) -> bool {
    native_of(description).is_some()
}

pub(super) fn create(
    path: &Path,
    description: &Description,
    options: &WriteOptions,
) -> Result<Box<dyn Target>> {
    let shape = description.shape();
    let native = native_of(description);
    let (mut header, axes) = match native {
        Some(n) => {
            let mut header = n.header.clone();
            if n.dtype != description.dtype {
                retype(&mut header, path, description.dtype)?;
            }
            (header, (0..shape.len()).collect::<Vec<_>>())
        }
        None => fresh(path, description)?,
    };
    header.remove(|key| matches!(key, "CHECKSUM" | "DATASUM"));
    if let Some(record) = &options.provenance {
        header.push_history(&format!("{RECORD}{record}"));
    }
    let flip = match description.dtype {
        DType::I8 | DType::U16 | DType::U32 | DType::U64 => Some(0x80),
        _ => None,
    };
    let packed = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz"));
    let mut file = AsideFile::create(path, options.replace)?;
    let source = native.map(|n| contents(&n.path)).transpose()?;
    // The bytes before the pixels (earlier units unchanged, then the header of the image), and those after them.
    let (mut before, mut behind) = (0..0, 0..0);
    if let (Some(native), Some(source)) = (native, &source) {
        let hdu = &native.hdus[native.chosen];
        let end = native.hdus.last().map_or(hdu.end, |h| h.end.min(source.len()));
        (before, behind) = (0..hdu.start, hdu.end.min(end)..end);
    }
    let bytes = shape.iter().product::<usize>() as u64 * description.dtype.bytes() as u64;
    let padding = vec![0; (bytes.next_multiple_of(BLOCK) - bytes) as usize];
    let header = header.bytes();
    if packed {
        let finish = Box::new(move |file: &mut AsideFile, scratch: Option<&File>| -> Parsed<()> {
            let Some(mut pixels) = scratch else { return damaged("no pixels") };
            pixels.rewind()?;
            let out = BufWriter::new(file.file().try_clone()?);
            let mut gz = flate2::write::GzEncoder::new(out, flate2::Compression::new(6));
            copy_range(source.as_ref(), before, &mut gz)?;
            gz.write_all(&header)?;
            std::io::copy(&mut pixels, &mut gz)?;
            gz.write_all(&padding)?;
            copy_range(source.as_ref(), behind, &mut gz)?;
            Ok(gz.finish()?.flush()?)
        });
        let mut target = RawTarget::new(NAME, file, 0, Order::Big, description.dtype, &shape, axes, finish);
        target.flip = flip;
        return Ok(Box::new(target.with_scratch()?));
    }
    let begun = copy_range(source.as_ref(), before, &mut Appended(&mut file))
        .and_then(|()| Ok(file.append(&header).map(|_| ())?));
    begun.map_err(|fault| fault.at(path, NAME))?;
    let offset = file.end();
    let finish = Box::new(move |file: &mut AsideFile, _: Option<&File>| -> Parsed<()> {
        file.write_at(offset + bytes, &padding)?;
        copy_range(source.as_ref(), behind, &mut Appended(file))
    });
    let mut target = RawTarget::new(NAME, file, offset, Order::Big, description.dtype, &shape, axes, finish);
    target.flip = flip;
    Ok(Box::new(target))
}

/// The end of a file being made, to write to.
struct Appended<'a>(&'a mut AsideFile);

impl Write for Appended<'_> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.append(data)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn copy_range(source: Option<&Bytes>, range: Range<u64>, out: &mut impl Write) -> Parsed<()> {
    let Some(source) = source else { return Ok(()) };
    let mut at = range.start;
    while at < range.end {
        let count = (range.end - at).min(1 << 20);
        out.write_all(&source.read(at, count)?)?;
        at += count;
    }
    Ok(())
}

/// BITPIX and, where whole numbers are signed or unsigned by an offset, BZERO.
fn stored_as(path: &Path, dtype: DType) -> Result<(i32, Option<&'static str>)> {
    Ok(match dtype {
        DType::U8 => (8, None),
        DType::I8 => (8, Some("-128")),
        DType::I16 => (16, None),
        DType::U16 => (16, Some("32768")),
        DType::I32 => (32, None),
        DType::U32 => (32, Some("2147483648")),
        DType::I64 => (64, None),
        DType::U64 => (64, Some("9223372036854775808")),
        DType::F32 => (-32, None),
        DType::F64 => (-64, None),
        DType::F16 => return request(format!("{}: FITS has no float16 pixels", path.display())),
    })
}

fn push_offset(header: &mut Header, zero: &str) {
    header.push_value("BSCALE", "1", "unsigned or signed by an offset");
    header.push_value("BZERO", zero, "unsigned or signed by an offset");
}

/// A header for the same image with values of another type, which mean themselves.
fn retype(header: &mut Header, path: &Path, dtype: DType) -> Result<()> {
    let (bits, zero) = stored_as(path, dtype)?;
    header.remove(|key| matches!(key, "BSCALE" | "BZERO" | "BLANK"));
    header.replace_value("BITPIX", &bits.to_string(), "bits of one value");
    zero.iter().for_each(|zero| push_offset(header, zero));
    Ok(())
}

/// A header for an image from another format, and its axes in the file's order, slowest first.
fn fresh(path: &Path, description: &Description) -> Result<(Header, Vec<usize>)> {
    let (bits, zero) = stored_as(path, description.dtype)?;
    let shape = description.shape();
    if shape.contains(&0) {
        return request(format!("{}: an image of shape {shape:?} has no pixels", path.display()));
    }
    // X fastest, then Y; the others keep their order.
    let last = |axis: Axis| match axis {
        Axis::X => 2,
        Axis::Y => 1,
        _ => 0,
    };
    let mut axes: Vec<usize> = (0..shape.len()).collect();
    axes.sort_by_key(|&a| last(description.dims[a].axis));
    let mut header = Header::default();
    header.push_value("SIMPLE", "T", "conforms to FITS standard");
    header.push_value("BITPIX", &bits.to_string(), "bits of one value");
    header.push_value("NAXIS", &shape.len().to_string(), "number of axes");
    for (n, &a) in axes.iter().rev().enumerate() {
        let letter = description.dims[a].axis.letter();
        header.push_value(&format!("NAXIS{}", n + 1), &shape[a].to_string(), &format!("axis {letter}"));
    }
    header.push_value("EXTEND", "T", "extensions may follow");
    if let Some(zero) = zero {
        push_offset(&mut header, zero);
    } else if let Some(r) = description.rescale {
        header.push_value(
            "BSCALE",
            &format!("{:e}", r.slope).to_uppercase(),
            "meant = BSCALE * stored + BZERO",
        );
        header.push_value(
            "BZERO",
            &format!("{:e}", r.intercept).to_uppercase(),
            "meant = BSCALE * stored + BZERO",
        );
    }
    for (n, &a) in axes.iter().rev().enumerate() {
        let dim = &description.dims[a];
        if !matches!(dim.axis, Axis::X | Axis::Y) {
            header.push(&format!("CTYPE{:<3}= '{:<8}'", n + 1, dim.axis.letter()));
        }
        if let Some(step) = dim.step {
            header.push_value(&format!("CDELT{}", n + 1), &format!("{step:e}").to_uppercase(), "step");
            if let Some(unit) = &dim.unit {
                let unit =
                    if matches!(unit.as_str(), "µm" | "\u{3bc}m" | "micrometer") { "um" } else { unit };
                header.push(&format!("CUNIT{:<3}= '{unit:<8}'", n + 1));
            }
        }
    }
    Ok((header, axes))
}
