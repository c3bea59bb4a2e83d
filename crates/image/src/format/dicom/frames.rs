//! Frames that are compressed, have single-bit pixels, or store colours as differences: which fragments of the pixel data
//! belong to each frame, and how they become pixels.

use super::dataset::{DataSet, Element, fragments};
use super::{Layout, NAME, Packing};
use crate::bytes::Bytes;
use crate::dtype::Order;
use crate::error::{Parsed, Result, damaged, instead};
use crate::format::jpeg::rgb;
use crate::grid::Grid;
use crate::image::Source;
use crate::raw::carry_signs;
use std::path::PathBuf;
use std::sync::Arc;

pub struct FrameSource {
    pub path: PathBuf,
    pub bytes: Arc<Bytes>,
    pub grid: Grid,
    pub packing: Packing,
    pub layout: Layout,
    pub frames: Frames,
}

/// Where frames are: one after the other from a place on, or in the fragments of each.
pub enum Frames {
    Plain(u64),
    Packed(Vec<Vec<(u64, u64)>>),
}

/// Which fragments make each frame.
pub fn split_frames(
    set: &DataSet,
    pixels: &Element,
    frames: usize,
    packing: Packing,
) -> Parsed<Vec<Vec<(u64, u64)>>> {
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
    if table_length == 0 && packing != Packing::Rle {
        let split = split_at_ends(set.bytes, &all)?;
        if split.len() == frames {
            return Ok(split);
        }
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

/// Frames are JPEG streams, and each ends with the marker for that; an odd one has a zero behind it.
fn split_at_ends(bytes: &Bytes, fragments: &[(u64, u64)]) -> Parsed<Vec<Vec<(u64, u64)>>> {
    let mut split = vec![Vec::new()];
    for &(at, length) in fragments {
        split.last_mut().expect("there is one").push((at, length));
        let tail = length.min(3);
        let end = bytes.read(at + length - tail, tail)?;
        if end.ends_with(&[0xFF, 0xD9]) || end.ends_with(&[0xFF, 0xD9, 0]) {
            split.push(Vec::new());
        }
    }
    split.retain(|frame| !frame.is_empty());
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
        let packed = match &self.frames {
            Frames::Plain(start) => {
                let place = l.stored_at(number).0;
                self.bytes.read(start + place.start, place.end - place.start)?
            }
            Frames::Packed(frames) => {
                let mut all = Vec::new();
                for &(at, length) in &frames[number] {
                    all.extend(self.bytes.read(at, length)?);
                }
                all
            }
        };
        if packed.is_empty() {
            return damaged(format!("frame {number} is missing"));
        }
        crate::bytes::check_expansion(packed.len() as u64, l.frame_bytes() as u64)?;
        let mut pixels = match self.packing {
            Packing::Jpeg | Packing::JpegLossless => return unpack_jpeg(&packed, l),
            Packing::JpegLs => unpack_jpegls(&packed, l)?,
            Packing::Plain => plain(packed, l, number),
            Packing::Rle => unpack_rle(&packed, l)?,
            Packing::Jpeg2000 => unpack_jpeg2000(&packed, l)?,
        };
        if let Some(bits) = l.signed_bits() {
            carry_signs(&mut pixels, l.dtype.bytes(), bits);
        }
        if l.differences {
            for pixel in pixels.chunks_exact_mut(3) {
                let colours = rgb([pixel[0], pixel[1], pixel[2]].map(u16::from), 8);
                pixel.copy_from_slice(&colours.map(|v| v as u8));
            }
        }
        Ok(pixels)
    }
}

/// An uncompressed frame; colours that are stored as differences are pixel by pixel.
fn plain(stored: Vec<u8>, l: &Layout, frame: usize) -> Vec<u8> {
    let count = l.rows * l.columns;
    let (mut stored, before) = (stored, l.stored_at(frame).1);
    if l.swapped {
        stored.as_chunks_mut::<2>().0.iter_mut().for_each(|word| word.swap(0, 1));
    }
    if l.single_bits {
        return (before..before + count).map(|i| stored[i / 8] >> (i % 8) & 1).collect();
    }
    stored.drain(..before / 8);
    if !l.differences {
        stored.truncate(l.frame_bytes());
        return stored;
    }
    if l.halved {
        return stored.chunks_exact(4).flat_map(|p| [p[0], p[2], p[3], p[1], p[2], p[3]]).collect();
    }
    if l.stored_planar {
        return (0..count).flat_map(|i| [stored[i], stored[count + i], stored[2 * count + i]]).collect();
    }
    stored
}

fn unpack_jpeg(packed: &[u8], l: &Layout) -> Parsed<Vec<u8>> {
    let jpeg = crate::format::jpeg::decode(packed, None, l.differences)
        .map_err(|fault| fault.or_instead(instead::DICOM_JPEG))?;
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
        push(if l.dtype.is_signed() { extend(raw, l.stored) } else { raw }, l, &mut out);
    }
    Ok(out)
}

fn unpack_jpegls(packed: &[u8], l: &Layout) -> Parsed<Vec<u8>> {
    let picture = crate::format::jpegls::decode(packed, l.rows * l.columns)
        .map_err(|fault| fault.or_instead(instead::DICOM_JPEG))?;
    if (picture.width, picture.height, picture.samples) != (l.columns, l.rows, l.samples) {
        return damaged(format!(
            "a JPEG-LS frame of {} x {} with {} samples",
            picture.width, picture.height, picture.samples
        ));
    }
    let mut out = Vec::with_capacity(l.frame_bytes());
    for &value in &picture.data {
        let value = u32::from(value);
        push(if l.dtype.is_signed() { extend(value, l.stored) } else { value }, l, &mut out);
    }
    Ok(out)
}

/// The lower bytes of a value, as many as a pixel has.
fn push(value: u32, l: &Layout, out: &mut Vec<u8>) {
    let (bytes, width) = (value.to_ne_bytes(), l.dtype.bytes());
    out.extend_from_slice(if Order::NATIVE == Order::Little { &bytes[..width] } else { &bytes[4 - width..] });
}

fn unpack_jpeg2000(packed: &[u8], l: &Layout) -> Parsed<Vec<u8>> {
    let picture = crate::format::jpeg2000::decode(packed, l.rows * l.columns)
        .map_err(|fault| fault.or_instead(instead::DICOM_JPEG))?;
    if (picture.width, picture.height, picture.planes.len()) != (l.columns, l.rows, l.samples) {
        return damaged(format!(
            "a JPEG 2000 frame of {} x {} with {} samples",
            picture.width,
            picture.height,
            picture.planes.len()
        ));
    }
    let mut out = Vec::with_capacity(l.frame_bytes());
    for i in 0..l.rows * l.columns {
        picture.planes.iter().for_each(|plane| push(plane[i] as u32, l, &mut out));
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
