//! PNG with 8 and 16 bits. Rows are decoded on request, in order; going back restarts decoding. Text, colour profiles, physical
//! sizes and other chunks that do not belong to the pixels are written back.

use crate::aside::AsideFile;
use crate::bytes::{Bytes, check_expansion};
use crate::dtype::{DType, Order, swap_bytes};
use crate::error::{Fault, Parsed, Result, damaged, guarded, request};
use crate::grid::Grid;
use crate::image::{Axis, Description, Dim, Image, Source};
use crate::raw::RawTarget;
use crate::writer::{Target, WriteOptions};
use png::{BitDepth, ColorType, Decoder, Reader, Transformations};
use std::cell::Cell;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

pub(crate) const NAME: &str = "PNG";
const RECORD: &str = "clearshot provenance";

pub(super) fn recognise(_: &Path, head: &[u8]) -> bool {
    head.starts_with(b"\x89PNG\r\n\x1a\n")
}

/// A file that remembers that there was no room.
struct Watched {
    file: BufWriter<File>,
    full: Rc<Cell<bool>>,
}

impl Watched {
    fn seen<T>(&self, outcome: std::io::Result<T>) -> std::io::Result<T> {
        let full = outcome.as_ref().is_err_and(|e| e.kind() == ErrorKind::StorageFull);
        self.full.set(self.full.get() || full);
        outcome
    }
}

impl Write for Watched {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let outcome = self.file.write(bytes);
        self.seen(outcome)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let outcome = self.file.flush();
        self.seen(outcome)
    }
}

/// Chunks that stand before the pixels and mean the same with other pixels.
struct Native {
    chunks: Vec<([u8; 4], Vec<u8>)>,
}

struct PngSource {
    path: PathBuf,
    grid: Grid,
    width: usize,
    rows: Mutex<Rows>,
}

/// The decoder, and which row it gives next; or everything, where rows do not come in order.
enum Rows {
    Stream(Box<Reader<BufReader<File>>>, usize),
    Whole(Vec<u8>),
}

fn fault(e: png::DecodingError) -> Fault {
    match e {
        png::DecodingError::IoError(e) if e.kind() != std::io::ErrorKind::UnexpectedEof => Fault::Io(e),
        png::DecodingError::LimitsExceeded => Fault::Limit("rows beyond the limit".to_string()),
        other => Fault::Damaged(readable(&other.to_string())),
    }
}

/// What the decoder says, without the inside of its own types that stands in front of some messages.
fn readable(text: &str) -> String {
    match (text.contains(" { "), text.rsplit_once("} ")) {
        (true, Some((_, what))) => format!("a {what}"),
        _ => text.into(),
    }
}

fn start(path: &Path) -> Parsed<Reader<BufReader<File>>> {
    guarded("PNG", || {
        let mut decoder = Decoder::new(BufReader::new(File::open(path)?));
        decoder.set_limits(png::Limits { bytes: 128 << 20 });
        decoder.set_transformations(Transformations::EXPAND);
        decoder.ignore_checksums(false);
        decoder.read_info().map_err(fault)
    })
}

pub(super) fn open(path: &Path, _: Option<&str>) -> Result<Image> {
    open_image(path).map_err(|f| f.at(path, NAME))
}

fn open_image(path: &Path) -> Parsed<Image> {
    let mut reader = start(path)?;
    let info = reader.info();
    let (width, height) = (info.width as usize, info.height as usize);
    let interlaced = info.interlaced;
    let animated = info.animation_control.is_some();
    let (colour, depth) = reader.output_color_type();
    let samples = colour.samples();
    let dtype = if depth == BitDepth::Sixteen { DType::U16 } else { DType::U8 };
    let Some(row) = width.checked_mul(samples * dtype.bytes()) else { return damaged("a row too long") };
    let bytes = Bytes::from_file(File::open(path)?)?;
    check_expansion(bytes.len(), (row as u64).saturating_mul(height as u64))?;
    let (chunks, texts) = other_chunks(&bytes)?;
    let mut dims = vec![Dim::new(Axis::Y, height), Dim::new(Axis::X, width)];
    if samples > 1 {
        dims.push(Dim::new(Axis::S, samples));
    }
    let mut description = Description::new(NAME, path, dims, dtype);
    for (key, text) in texts {
        if key == RECORD {
            description.provenance = serde_json::from_str(&text).ok();
        } else {
            description.tag(&key, text.chars().take(400).collect::<String>());
        }
    }
    if animated {
        description.warnings.push("an animation, of which the first picture is read".to_string());
    }
    if dtype == DType::U8 {
        description.warnings.push("8 bits: fine steps of intensity are lost".to_string());
    }
    description.native = Some(Arc::new(Native { chunks }));
    let rows = if interlaced {
        guarded("PNG", || {
            let mut whole = vec![0; row * height];
            reader.next_frame(&mut whole).map_err(fault)?;
            Ok(Rows::Whole(whole))
        })?
    } else {
        Rows::Stream(Box::new(reader), 0)
    };
    let grid = Grid::rows(&description.shape(), dtype.bytes());
    // Bands of whole rows.
    let mut chunk = description.shape();
    chunk[0] = grid.chunk[0].max(1);
    let grid = Grid::new(description.shape(), chunk);
    let source = PngSource { path: path.to_path_buf(), grid, width: dtype.bytes(), rows: Mutex::new(rows) };
    Ok(Image::new(description, Box::new(source)))
}

impl PngSource {
    fn read(&self, band: usize) -> Parsed<Vec<u8>> {
        let count = self.grid.chunk[0];
        let row: usize = self.grid.chunk[1..].iter().product::<usize>() * self.width;
        let (first, last) = (band * count, ((band + 1) * count).min(self.grid.shape[0]));
        let mut out = vec![0; count * row];
        let mut rows = self.rows.lock().unwrap_or_else(|p| p.into_inner());
        match &mut *rows {
            Rows::Whole(whole) => {
                out[..(last - first) * row].copy_from_slice(&whole[first * row..last * row]);
            }
            Rows::Stream(reader, next) => {
                if *next > first {
                    **reader = start(&self.path)?;
                    *next = 0;
                }
                guarded("PNG", || {
                    while *next < last {
                        let Some(line) = reader.next_row().map_err(fault)? else {
                            return damaged("fewer rows than the header says");
                        };
                        if *next >= first {
                            let Some(data) = line.data().get(..row) else {
                                return damaged("a row that is cut off");
                            };
                            out[(*next - first) * row..][..row].copy_from_slice(data);
                        }
                        *next += 1;
                    }
                    Ok(())
                })?;
            }
        }
        if Order::NATIVE == Order::Little {
            swap_bytes(&mut out, self.width);
        }
        Ok(out)
    }
}

impl Source for PngSource {
    fn grid(&self, _: usize) -> &Grid {
        &self.grid
    }

    fn chunk(&self, _: usize, index: &[usize]) -> Result<Vec<u8>> {
        self.read(index[0]).map_err(|f| f.at(&self.path, NAME))
    }
}

type OtherChunks = (Vec<([u8; 4], Vec<u8>)>, Vec<(String, String)>);

/// The chunks besides those of the pixels, and the texts among them.
fn other_chunks(bytes: &Bytes) -> Parsed<OtherChunks> {
    const PIXELS: [&[u8; 4]; 9] =
        [b"IHDR", b"IDAT", b"IEND", b"PLTE", b"tRNS", b"acTL", b"fcTL", b"fdAT", b"sBIT"];
    let (mut chunks, mut texts) = (Vec::new(), Vec::new());
    let mut at = 8;
    while at + 12 <= bytes.len() && chunks.len() < 10_000 {
        let head = bytes.read(at, 8)?;
        let length = u64::from(Order::Big.u32(&head));
        let kind = [head[4], head[5], head[6], head[7]];
        if !PIXELS.contains(&&kind) {
            if length > 16 << 20 {
                return damaged(format!("a chunk of {length} bytes besides the pixels"));
            }
            let data = bytes.read(at + 8, length)?;
            texts.extend(text_of(&kind, &data));
            chunks.push((kind, data));
        }
        if &kind == b"IEND" {
            break;
        }
        at += 12 + length;
    }
    chunks.retain(|(kind, data)| !(kind == b"iTXt" && data.starts_with(RECORD.as_bytes())));
    Ok((chunks, texts))
}

fn text_of(kind: &[u8; 4], data: &[u8]) -> Option<(String, String)> {
    let zero = data.iter().position(|&b| b == 0)?;
    let key = String::from_utf8_lossy(&data[..zero]).into_owned();
    let rest = &data[zero + 1..];
    let text = match kind {
        b"tEXt" => rest.iter().map(|&b| b as char).collect(),
        b"iTXt" if rest.first() == Some(&0) => {
            let mut parts = rest.get(2..)?.splitn(3, |&b| b == 0);
            String::from_utf8_lossy(parts.nth(2)?).into_owned()
        }
        _ => return None,
    };
    Some((key, text))
}

/// # Errors
/// If PNG cannot hold such an image.
pub(super) fn check(path: &Path, description: &Description) -> Result<()> {
    Layout::of(path, description).map(drop)
}

/// How an image lies in a PNG file.
struct Layout {
    /// The image's axes in the file's order, and their lengths.
    order: Vec<usize>,
    file_shape: Vec<usize>,
    height: u32,
    width: u32,
    colour: ColorType,
    depth: BitDepth,
}

impl Layout {
    fn of(path: &Path, description: &Description) -> Result<Layout> {
        let axes: Vec<Axis> = description.dims.iter().map(|d| d.axis).collect();
        let shape = description.shape();
        let order: Vec<usize> = match axes[..] {
            [Axis::Y, Axis::X] => vec![0, 1],
            [Axis::Y, Axis::X, Axis::S] => vec![0, 1, 2],
            [Axis::S, Axis::Y, Axis::X] => vec![1, 2, 0],
            _ => {
                return request(format!(
                    "{}: PNG holds one picture of Y X and samples, and the axes are {}; write TIFF",
                    path.display(),
                    description.axes()
                ));
            }
        };
        let file_shape: Vec<usize> = order.iter().map(|&a| shape[a]).collect();
        let colour = match file_shape.get(2) {
            None | Some(1) => ColorType::Grayscale,
            Some(2) => ColorType::GrayscaleAlpha,
            Some(3) => ColorType::Rgb,
            Some(4) => ColorType::Rgba,
            Some(n) => return request(format!("{}: PNG has no {n} samples a pixel", path.display())),
        };
        let depth = match description.dtype {
            DType::U8 => BitDepth::Eight,
            DType::U16 => BitDepth::Sixteen,
            other => {
                return request(format!(
                    "{}: PNG holds uint8 and uint16, not {other}; write TIFF",
                    path.display()
                ));
            }
        };
        let (Ok(height), Ok(width)) = (u32::try_from(file_shape[0]), u32::try_from(file_shape[1])) else {
            return request(format!("{}: a picture of {shape:?} is too large for PNG", path.display()));
        };
        Ok(Layout { order, file_shape, height, width, colour, depth })
    }
}

pub(super) fn create(
    path: &Path,
    description: &Description,
    options: &WriteOptions,
) -> Result<Box<dyn Target>> {
    let Layout { order, file_shape, height, width, colour, depth } = Layout::of(path, description)?;
    let shape = description.shape();
    let chunks = description.native::<Native>().map_or(Vec::new(), |n| n.chunks.clone());
    let record = options.provenance.as_ref().map(|v| v.to_string());
    let row = file_shape[1..].iter().product::<usize>() * description.dtype.bytes();
    let file = AsideFile::create(path, options.replace)?;
    let finish = Box::new(move |file: &mut AsideFile, scratch: Option<&File>| -> Parsed<()> {
        let Some(mut pixels) = scratch else { return damaged("no pixels") };
        pixels.rewind()?;
        let encoded = |e: png::EncodingError| match e {
            png::EncodingError::IoError(e) => Fault::Io(e),
            other => Fault::Damaged(other.to_string()),
        };
        let full = Rc::new(Cell::new(false));
        let out = Watched { file: BufWriter::new(file.file().try_clone()?), full: full.clone() };
        let write = || -> Parsed<()> {
            let mut encoder = png::Encoder::new(out, width, height);
            encoder.set_color(colour);
            encoder.set_depth(depth);
            let mut writer = encoder.write_header().map_err(encoded)?;
            for (kind, data) in &chunks {
                writer.write_chunk(png::chunk::ChunkType(*kind), data).map_err(encoded)?;
            }
            if let Some(json) = &record {
                let data = [RECORD.as_bytes(), &[0, 0, 0, 0, 0], json.as_bytes()].concat();
                writer.write_chunk(png::chunk::iTXt, &data).map_err(encoded)?;
            }
            let mut stream = writer.stream_writer().map_err(encoded)?;
            let mut reader = BufReader::new(pixels);
            let mut line = vec![0; row];
            for _ in 0..height {
                reader.read_exact(&mut line)?;
                stream.write_all(&line)?;
            }
            stream.finish().map_err(encoded)?;
            writer.finish().map_err(encoded)
        };
        // The encoder keeps an error's words, and not its kind.
        write().map_err(|fault| if full.get() { Fault::Io(ErrorKind::StorageFull.into()) } else { fault })
    });
    let target = RawTarget::new(NAME, file, 0, Order::Big, description.dtype, &shape, order, finish);
    Ok(Box::new(target.with_scratch()?))
}
