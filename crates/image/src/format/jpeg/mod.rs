//! JPEG files ([`file`]), and JPEG streams inside TIFF and DICOM files: sequential with 8 and 12 bits (`sequential`), progressive with 8
//! bits and lossless with up to 16 (jpeg-decoder).

pub(crate) mod file;
mod sequential;

use crate::error::{Fault, Parsed, damaged, guarded, unsupported};
use jpeg_decoder::{ColorTransform, Decoder, PixelFormat, UnsupportedFeature};

pub(crate) use sequential::rgb;

pub(crate) struct Jpeg {
    pub width: usize,
    pub height: usize,
    pub samples: usize,
    /// Bytes of one sample, in the machine's order.
    pub bytes: usize,
    pub data: Vec<u8>,
}

/// Decodes one stream. `tables` is an abbreviated stream that holds the tables of several.
pub(crate) fn decode(packed: &[u8], tables: Option<&[u8]>, ycbcr: bool) -> Parsed<Jpeg> {
    let joined;
    let stream = match tables {
        // The tables' end and the image's start marker fall away.
        Some(tables) if tables.len() >= 4 && packed.len() >= 2 => {
            joined = [&tables[..tables.len() - 2], &packed[2..]].concat();
            &joined[..]
        }
        _ => packed,
    };
    let (width, height) = check_frame(stream)?;
    if let Some(jpeg) = sequential::decode(stream, ycbcr)? {
        return Ok(jpeg);
    }
    guarded("JPEG", || {
        let mut decoder = Decoder::new(stream);
        decoder.set_max_decoding_buffer_size(width * height * 8);
        decoder.set_color_transform(if ycbcr { ColorTransform::YCbCr } else { ColorTransform::None });
        let data = decoder.decode().map_err(|e| match e {
            jpeg_decoder::Error::Unsupported(what) => Fault::Unsupported(feature(&what), None),
            other => Fault::Damaged(other.to_string()),
        })?;
        let Some(info) = decoder.info() else { return damaged("a JPEG stream without a frame") };
        let (samples, bytes) = match info.pixel_format {
            PixelFormat::L8 => (1, 1),
            PixelFormat::L16 => (1, 2),
            PixelFormat::RGB24 => (3, 1),
            PixelFormat::CMYK32 => (4, 1),
        };
        let (width, height) = (usize::from(info.width), usize::from(info.height));
        if data.len() != width * height * samples * bytes {
            return damaged("a JPEG stream of another size than its frame");
        }
        Ok(Jpeg { width, height, samples, bytes, data })
    })
}

/// Looks at the frame header before the decoder allocates for it: its size and precision, and that the
/// stream is long enough to hold a bit for every block.
fn check_frame(stream: &[u8]) -> Parsed<(usize, usize)> {
    let mut at = 2;
    while at + 9 < stream.len() {
        if stream[at] != 0xFF {
            at += 1;
            continue;
        }
        let marker = stream[at + 1];
        match marker {
            0xFF => at += 1,
            0x00 | 0x01 | 0xD0..=0xD9 => at += 2,
            0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                let precision = stream[at + 4];
                let height = usize::from(u16::from_be_bytes([stream[at + 5], stream[at + 6]]));
                let width = usize::from(u16::from_be_bytes([stream[at + 7], stream[at + 8]]));
                if !matches!(marker, 0xC0 | 0xC1 | 0xC3) && precision != 8 {
                    return unsupported(format!("lossy JPEG with {precision} bits"));
                }
                if marker == 0xC3 && !(8..=16).contains(&precision) {
                    return unsupported(format!("lossless JPEG with {precision} bits"));
                }
                if width * height / 64 / 8 > stream.len() {
                    return damaged(format!("a JPEG of {width} x {height} pixels in {} bytes", stream.len()));
                }
                return Ok((width, height));
            }
            _ => at += 2 + usize::from(u16::from_be_bytes([stream[at + 2], stream[at + 3]])),
        }
    }
    damaged("a JPEG stream without a frame")
}

/// The unsupported feature of the decoder, as text.
fn feature(what: &UnsupportedFeature) -> String {
    match what {
        UnsupportedFeature::Hierarchical => "hierarchical JPEG".into(),
        UnsupportedFeature::ArithmeticEntropyCoding => "JPEG with arithmetic coding".into(),
        UnsupportedFeature::SamplePrecision(bits) => format!("JPEG of {bits} bits a sample"),
        UnsupportedFeature::ComponentCount(n) => format!("JPEG of {n} components"),
        UnsupportedFeature::DNL => "JPEG whose height stands behind its first scan".into(),
        UnsupportedFeature::SubsamplingRatio | UnsupportedFeature::NonIntegerSubsamplingRatio => {
            "this subsampling of colours in JPEG".into()
        }
        UnsupportedFeature::ColorTransform(_) => "this transform of colours in JPEG".into(),
    }
}
