//! Strips and tiles that are pictures of another format: JPEG, JPEG 2000, WebP and LERC. Their own headers must agree with
//! the directory.

use super::codec::Layout;
use crate::bytes::check_expansion;
use crate::dtype::{DType, Order};
use crate::error::{Fault, Parsed, damaged, guarded, unsupported};
use crate::format::jpeg;
use std::io::{Cursor, Read};

/// What a LERC picture is packed by once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Around {
    Nothing,
    Deflate,
    Zstd,
}

impl Around {
    /// From the second of LERC's parameters.
    pub fn from_tag(code: u64) -> Parsed<Around> {
        match code {
            0 => Ok(Around::Nothing),
            1 => Ok(Around::Deflate),
            2 => Ok(Around::Zstd),
            other => unsupported(format!("LERC within compression {other}")),
        }
    }
}

/// A decoded picture: the samples of a pixel lie together, in the machine's byte order.
struct Picture {
    what: &'static str,
    width: usize,
    height: usize,
    samples: usize,
    data: Vec<u8>,
}

impl Picture {
    /// The first `rows` rows of `width` pixels, which must be there and of the directory's kind.
    fn cut(self, l: &Layout, width: usize, rows: usize) -> Parsed<Vec<u8>> {
        let Picture { what, width: across, height, samples, data } = self;
        let (pixel, row) = (l.samples * l.dtype.bytes(), across * l.samples * l.dtype.bytes());
        if samples != l.samples || data.len() != row * height {
            return damaged(format!(
                "{what} data of {across} x {height} pixels with {samples} samples in {} bytes, where there should be {} samples of {}",
                data.len(),
                l.samples,
                l.dtype
            ));
        }
        if across < width || height < rows {
            return damaged(format!("{what} data of {across} x {height} pixels for {width} x {rows}"));
        }
        if across == width {
            let mut data = data;
            data.truncate(rows * row);
            return Ok(data);
        }
        Ok(data.chunks_exact(row).take(rows).flat_map(|line| &line[..width * pixel]).copied().collect())
    }
}

/// How many pixels a picture for a chunk may have: some writers pack full strips where a part is needed.
fn most(width: usize, rows: usize) -> usize {
    (width * rows).saturating_mul(4).max(1 << 16)
}

pub fn decode_jpeg(l: &Layout, packed: &[u8], width: usize, rows: usize) -> Parsed<Vec<u8>> {
    let jpeg = jpeg::decode(packed, l.jpeg_tables.as_deref(), l.ycbcr)?;
    let jpeg::Jpeg { width: across, height, samples, data, .. } = jpeg;
    Picture { what: "JPEG", width: across, height, samples, data }.cut(l, width, rows)
}

pub fn decode_jpeg2000(l: &Layout, packed: &[u8], width: usize, rows: usize) -> Parsed<Vec<u8>> {
    let found = crate::format::jpeg2000::decode(packed, most(width, rows))?;
    if l.dtype.is_float() || found.bits > l.dtype.bits() {
        return damaged(format!("JPEG 2000 data of {} bits for {} pixels", found.bits, l.dtype));
    }
    let (bytes, samples) = (l.dtype.bytes(), found.planes.len());
    let colours = l.ycbcr && samples == 3 && found.bits <= 16;
    let mut data = Vec::with_capacity(found.width * found.height * samples * bytes);
    let mut put = |value: i32| {
        let wide = i64::from(value).to_ne_bytes();
        data.extend_from_slice(if Order::NATIVE == Order::Little {
            &wide[..bytes]
        } else {
            &wide[8 - bytes..]
        });
    };
    for i in 0..found.width * found.height {
        if colours {
            let pixel = [0, 1, 2].map(|s| found.planes[s][i] as u16);
            jpeg::rgb(pixel, found.bits).iter().for_each(|&v| put(v.into()));
        } else {
            found.planes.iter().for_each(|plane| put(plane[i]));
        }
    }
    let (across, height) = (found.width, found.height);
    Picture { what: "JPEG 2000", width: across, height, samples, data }.cut(l, width, rows)
}

pub fn decode_webp(l: &Layout, packed: &[u8], width: usize, rows: usize) -> Parsed<Vec<u8>> {
    let fault = |e: image_webp::DecodingError| Fault::Damaged(format!("WebP data: {e}"));
    let picture = guarded("WebP", || {
        let mut decoder = image_webp::WebPDecoder::new(Cursor::new(packed)).map_err(fault)?;
        let (across, height) = decoder.dimensions();
        let (across, height) = (across as usize, height as usize);
        if across * height > most(width, rows) {
            return damaged(format!("WebP data of {across} x {height} pixels for {width} x {rows}"));
        }
        if decoder.is_animated() {
            return unsupported("animated WebP");
        }
        let stored = if decoder.has_alpha() { 4 } else { 3 };
        check_expansion(packed.len() as u64, (across * height * stored) as u64)?;
        let mut data = vec![0; across * height * stored];
        decoder.read_image(&mut data).map_err(fault)?;
        // Where nothing is transparent, opacity is not stored.
        if (stored, l.samples) == (3, 4) {
            data = data.chunks_exact(3).flat_map(|p| [p[0], p[1], p[2], 255]).collect();
        }
        let samples = stored.max(l.samples.min(4));
        Ok(Picture { what: "WebP", width: across, height, samples, data })
    });
    picture?.cut(l, width, rows)
}

pub fn decode_lerc(l: &Layout, around: Around, packed: &[u8], width: usize, rows: usize) -> Parsed<Vec<u8>> {
    if l.predictor > 1 {
        return unsupported(format!("predictor {} of LERC data", l.predictor));
    }
    // What cannot be made smaller becomes a little larger.
    let room = 2 * (width * rows * l.samples * l.dtype.bytes()) as u64 + 65_536;
    let mut inner = Vec::new();
    match around {
        Around::Nothing => inner = packed.to_vec(),
        Around::Deflate => {
            flate2::read::ZlibDecoder::new(packed).take(room).read_to_end(&mut inner)?;
        }
        Around::Zstd => {
            zstd::stream::read::Decoder::with_buffer(packed)?.take(room).read_to_end(&mut inner)?;
        }
    }
    let fault = |e: lerc::LercError| Fault::Damaged(format!("LERC data: {e}"));
    let picture = guarded("LERC", || {
        let info = lerc::decode_info(&inner).map_err(fault)?;
        let (across, height) = (info.width as usize, info.height as usize);
        let samples = (info.depth as usize).saturating_mul(info.bands as usize);
        if across.saturating_mul(height) > most(width, rows) || samples != l.samples {
            return damaged(format!(
                "LERC data of {across} x {height} pixels with {samples} samples for {width} x {rows} with {}",
                l.samples
            ));
        }
        let unpacked = (across * height * samples * l.dtype.bytes()) as u64;
        check_expansion(inner.len() as u64, unpacked)?;
        let image = lerc::decode(&inner).map_err(fault)?;
        let data = lerc_values(&image, l)?;
        Ok(Picture { what: "LERC", width: across, height, samples, data })
    });
    picture?.cut(l, width, rows)
}

/// Bands lie one after the other, each with `depth` values a pixel. Floats that the mask says are missing become NaN, as libtiff has it.
fn lerc_values(image: &lerc::Image, l: &Layout) -> Parsed<Vec<u8>> {
    let (bands, depth) = (image.bands as usize, image.depth as usize);
    let pixels = image.width as usize * image.height as usize;
    let mut out = Vec::with_capacity(pixels * bands * depth * l.dtype.bytes());
    macro_rules! values {
        ($values:expr, $missing:expr) => {
            for pixel in 0..pixels {
                for band in 0..bands {
                    let valid = image.valid_masks.get(band).is_none_or(|mask| mask.is_valid(pixel));
                    let place = (band * pixels + pixel) * depth;
                    for value in &$values[place..place + depth] {
                        out.extend_from_slice(&(if valid { *value } else { $missing }).to_ne_bytes());
                    }
                }
            }
        };
    }
    use lerc::SampleData;
    match (&image.data, l.dtype) {
        (SampleData::I8(v), DType::I8) => values!(v, 0),
        (SampleData::U8(v), DType::U8) => values!(v, 0),
        (SampleData::I16(v), DType::I16) => values!(v, 0),
        (SampleData::U16(v), DType::U16) => values!(v, 0),
        (SampleData::I32(v), DType::I32) => values!(v, 0),
        (SampleData::U32(v), DType::U32) => values!(v, 0),
        (SampleData::F32(v), DType::F32) => values!(v, f32::NAN),
        (SampleData::F64(v), DType::F64) => values!(v, f64::NAN),
        _ => return damaged(format!("LERC data of another type than {}", l.dtype)),
    }
    Ok(out)
}
