//! Compressions, predictors and bit packing of TIFF: a strip or tile between its bytes in the file and values in native order.

use super::fax::{self, Fax};
use super::pictures::{self, Around};
use crate::bytes::check_expansion;
use crate::dtype::{DType, Order, swap_bytes};
use crate::error::{Fault, Parsed, damaged, guarded, instead, unsupported, unsupported_instead};
use std::io::Read;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Lzw,
    Deflate,
    PackBits,
    Zstd,
    Jpeg,
    Jpeg2000,
    Webp,
    Lerc(Around),
    Fax(Fax),
}

/// Aperio's JPEG 2000 of luminance and colour differences, whatever the photometric interpretation says.
pub const JPEG_2000_DIFFERENCES: u64 = 33003;

impl Compression {
    pub fn from_tag(code: u64) -> Parsed<Compression> {
        Ok(match code {
            1 => Compression::None,
            2 => Compression::Fax(Fax::Huffman),
            3 => Compression::Fax(Fax::Group3 { referring: false }),
            4 => Compression::Fax(Fax::Group4),
            5 => Compression::Lzw,
            7 => Compression::Jpeg,
            8 | 32946 => Compression::Deflate,
            32773 => Compression::PackBits,
            JPEG_2000_DIFFERENCES | 33004 | 33005 | 34712 => Compression::Jpeg2000,
            34887 => Compression::Lerc(Around::Nothing),
            50000 => Compression::Zstd,
            34927 | 50001 => Compression::Webp,
            _ => {
                let name = match code {
                    6 => "old-style JPEG",
                    34661 => "JBIG",
                    34676 | 34677 => "SGI LogLuv",
                    34892 => "lossy JPEG of DNG",
                    34925 => "LZMA",
                    34933 => "PNG",
                    34934 | 22610 => "JPEG XR",
                    50002 | 52546 => "JPEG XL",
                    _ => "unknown",
                };
                return unsupported_instead(
                    format!("compression {code} ({name})"),
                    instead::TIFF_COMPRESSION,
                );
            }
        })
    }

    /// The code that is written; deflate in its common form.
    pub fn code(self) -> u64 {
        match self {
            Compression::None => 1,
            Compression::Lzw => 5,
            Compression::Jpeg => 7,
            Compression::Deflate => 8,
            Compression::PackBits => 32773,
            Compression::Jpeg2000 => 34712,
            Compression::Lerc(_) => 34887,
            Compression::Zstd => 50000,
            Compression::Webp => 50001,
            Compression::Fax(Fax::Huffman) => 2,
            Compression::Fax(Fax::Group3 { .. }) => 3,
            Compression::Fax(Fax::Group4) => 4,
        }
    }

    /// Whether strips and tiles are whole pictures of another format, which are never written.
    pub fn is_picture(self) -> bool {
        matches!(self, Compression::Jpeg | Compression::Jpeg2000 | Compression::Webp | Compression::Lerc(_))
    }
}

/// How the values of a chunk lie in its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    pub order: Order,
    pub compression: Compression,
    pub predictor: u64,
    /// Bits of one value in the file.
    pub bits: u32,
    pub dtype: DType,
    /// Samples of one pixel that lie together.
    pub samples: usize,
    /// The lowest bit of a byte comes first.
    pub reversed: bool,
    pub jpeg_tables: Option<Vec<u8>>,
    /// JPEG or JPEG 2000 data is YCbCr and is to become RGB.
    pub ycbcr: bool,
}

impl Layout {
    pub fn row_bytes(&self, width: usize) -> Option<usize> {
        Some(width.checked_mul(self.samples)?.checked_mul(self.bits as usize)?.div_ceil(8))
    }

    /// Decodes a chunk of `width` x `rows` pixels.
    pub fn decode(&self, packed: Vec<u8>, width: usize, rows: usize) -> Parsed<Vec<u8>> {
        let Some(size) = self.row_bytes(width).and_then(|n| n.checked_mul(rows)) else {
            return damaged(format!("a chunk of {width} x {rows} pixels"));
        };
        check_expansion(packed.len() as u64, size as u64)?;
        let mut packed = packed;
        match self.compression {
            Compression::Jpeg => return pictures::decode_jpeg(self, &packed, width, rows),
            Compression::Jpeg2000 => return pictures::decode_jpeg2000(self, &packed, width, rows),
            Compression::Webp => return pictures::decode_webp(self, &packed, width, rows),
            Compression::Lerc(around) => return pictures::decode_lerc(self, around, &packed, width, rows),
            _ => {}
        }
        if self.reversed {
            packed.iter_mut().for_each(|b| *b = b.reverse_bits());
        }
        let mut raw = match self.compression {
            Compression::Fax(kind) if self.bits * self.samples as u32 == 1 => {
                fax::decode(kind, &packed, width, rows)?
            }
            Compression::Fax(_) => {
                return damaged(format!("CCITT fax of {} samples of {} bits", self.samples, self.bits));
            }
            other => decompress(other, packed, size)?,
        };
        let width_bytes = self.dtype.bytes();
        if self.bits != self.dtype.bits() {
            let mut values = self.unpack_bits(&raw, width, rows);
            match self.predictor {
                0 | 1 => {}
                2 => self.accumulate_bits(&mut values, width),
                other => return unsupported(format!("predictor {other} of {}-bit values", self.bits)),
            }
            return Ok(values);
        }
        match self.predictor {
            0 | 1 => self.to_native(&mut raw),
            2 => {
                self.to_native(&mut raw);
                for row in raw.chunks_exact_mut(width * self.samples * width_bytes) {
                    accumulate(row, width_bytes, self.samples);
                }
            }
            3 if self.dtype.is_float() => {
                for row in raw.chunks_exact_mut(width * self.samples * width_bytes) {
                    unshuffle_float(row, width_bytes, self.samples);
                }
            }
            other => return unsupported(format!("predictor {other} of {} values", self.dtype)),
        }
        Ok(raw)
    }

    /// Encodes what `decode` gives; only whole-byte values are written.
    pub fn encode(&self, raw: Vec<u8>, width: usize) -> Parsed<Vec<u8>> {
        let mut raw = raw;
        let bytes = self.dtype.bytes();
        let row = (width * self.samples * bytes).max(1);
        match self.predictor {
            2 => raw.chunks_exact_mut(row).for_each(|row| difference(row, bytes, self.samples)),
            3 => raw.chunks_exact_mut(row).for_each(|row| shuffle_float(row, bytes, self.samples)),
            _ => {}
        }
        if self.predictor != 3 {
            self.to_native(&mut raw);
        }
        compress(self.compression, raw, row)
    }

    /// Between the file's byte order and the machine's, in either direction.
    fn to_native(&self, raw: &mut [u8]) {
        if self.order != Order::NATIVE {
            swap_bytes(raw, self.dtype.bytes());
        }
    }

    /// Values of an odd number of bits, packed from the highest bit on, each row from a whole byte.
    fn unpack_bits(&self, raw: &[u8], width: usize, rows: usize) -> Vec<u8> {
        let per_row = width * self.samples;
        let row_bytes = (per_row * self.bits as usize).div_ceil(8);
        let mut out = Vec::with_capacity(per_row * rows * self.dtype.bytes());
        for row in raw.chunks_exact(row_bytes.max(1)).take(rows) {
            let (mut held, mut count) = (0u64, 0u32);
            let mut bytes = row.iter();
            for _ in 0..per_row {
                while count < self.bits {
                    held = held << 8 | u64::from(bytes.next().copied().unwrap_or(0));
                    count += 8;
                }
                count -= self.bits;
                let value = held >> count & ((1 << self.bits) - 1);
                match self.dtype.bytes() {
                    1 => out.push(value as u8),
                    2 => out.extend_from_slice(&(value as u16).to_ne_bytes()),
                    _ => out.extend_from_slice(&(value as u32).to_ne_bytes()),
                }
            }
        }
        out
    }

    /// Undoes horizontal differencing of unpacked values; sums wrap at the values' own number of bits.
    fn accumulate_bits(&self, values: &mut [u8], width: usize) {
        let bytes = self.dtype.bytes();
        for row in values.chunks_exact_mut(width * self.samples * bytes) {
            accumulate(row, bytes, self.samples);
            let mask = ((1u64 << self.bits) - 1) as u32;
            match bytes {
                1 => row.iter_mut().for_each(|v| *v &= mask as u8),
                2 => row.as_chunks_mut().0.iter_mut().for_each(|v| {
                    *v = (u16::from_ne_bytes(*v) & mask as u16).to_ne_bytes();
                }),
                _ => row.as_chunks_mut().0.iter_mut().for_each(|v| {
                    *v = (u32::from_ne_bytes(*v) & mask).to_ne_bytes();
                }),
            }
        }
    }
}

/// Unpacks to exactly `size` bytes; more is dropped, fewer are an error.
fn decompress(compression: Compression, packed: Vec<u8>, size: usize) -> Parsed<Vec<u8>> {
    let mut out = Vec::with_capacity(size);
    match compression {
        Compression::None => {
            out = packed;
            out.truncate(size);
        }
        Compression::Deflate => {
            // What a damaged stream gives before it breaks is too short, and reported below.
            let _ = flate2::read::ZlibDecoder::new(&packed[..]).take(size as u64).read_to_end(&mut out);
        }
        Compression::Zstd => {
            let stream = zstd::stream::read::Decoder::with_buffer(&packed[..])?;
            let _ = stream.take(size as u64).read_to_end(&mut out);
        }
        Compression::Lzw => {
            out.resize(size, 0);
            let n = guarded("LZW", || Ok(unpack_lzw(&packed, &mut out)))?;
            out.truncate(n);
        }
        Compression::PackBits => unpack_bits(&packed, size, &mut out),
        Compression::Jpeg
        | Compression::Jpeg2000
        | Compression::Webp
        | Compression::Lerc(_)
        | Compression::Fax(_) => {}
    }
    if out.len() < size {
        return damaged(format!("a chunk unpacks to {} bytes, and {size} are needed", out.len()));
    }
    Ok(out)
}

/// Writers before TIFF 6.0 put codes in from the lowest bit on and made them longer one code later. The code that clears the table,
/// with which all data begins, tells the two apart, as libtiff does it.
fn unpack_lzw(packed: &[u8], out: &mut [u8]) -> usize {
    let mut decoder = match packed {
        [0, second, ..] if second & 1 == 1 => weezl::decode::Decoder::new(weezl::BitOrder::Lsb, 8),
        _ => weezl::decode::Decoder::with_tiff_size_switch(weezl::BitOrder::Msb, 8),
    };
    let (mut read, mut written) = (0, 0);
    loop {
        let step = decoder.decode_bytes(&packed[read..], &mut out[written..]);
        read += step.consumed_in;
        written += step.consumed_out;
        let stuck = step.consumed_in == 0 && step.consumed_out == 0;
        if stuck || written == out.len() || !matches!(step.status, Ok(weezl::LzwStatus::Ok)) {
            return written;
        }
    }
}

fn unpack_bits(packed: &[u8], size: usize, out: &mut Vec<u8>) {
    let mut at = 0;
    while out.len() < size && at < packed.len() {
        let n = packed[at] as i8;
        at += 1;
        if n >= 0 {
            let end = (at + n as usize + 1).min(packed.len());
            out.extend_from_slice(&packed[at..end]);
            at = end;
        } else if n != -128 && at < packed.len() {
            out.resize(out.len() + 1 + usize::from(n.unsigned_abs()), packed[at]);
            at += 1;
        }
    }
    out.truncate(size);
}

fn compress(compression: Compression, raw: Vec<u8>, row: usize) -> Parsed<Vec<u8>> {
    Ok(match compression {
        Compression::None => raw,
        Compression::Deflate => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(6));
            std::io::Write::write_all(&mut encoder, &raw)?;
            encoder.finish()?
        }
        Compression::Zstd => zstd::bulk::compress(&raw, 3)?,
        Compression::Lzw => weezl::encode::Encoder::with_tiff_size_switch(weezl::BitOrder::Msb, 8)
            .encode(&raw)
            .map_err(|e| Fault::Damaged(e.to_string()))?,
        Compression::PackBits => {
            let mut out = Vec::new();
            raw.chunks(row).for_each(|row| pack_bits(row, &mut out));
            out
        }
        Compression::Jpeg | Compression::Jpeg2000 => return unsupported("writing JPEG and JPEG 2000"),
        Compression::Webp | Compression::Lerc(_) => return unsupported("writing WebP and LERC"),
        Compression::Fax(_) => return unsupported("writing CCITT fax"),
    })
}

fn pack_bits(row: &[u8], out: &mut Vec<u8>) {
    let run_at = |i: usize| row[i..].iter().take(128).take_while(|&&b| b == row[i]).count();
    let mut i = 0;
    while i < row.len() {
        let run = run_at(i);
        if run > 2 {
            out.extend_from_slice(&[(257 - run) as u8, row[i]]);
            i += run;
            continue;
        }
        let start = i;
        while i < row.len() && i - start < 128 && run_at(i) <= 2 {
            i += 1;
        }
        out.push((i - start - 1) as u8);
        out.extend_from_slice(&row[start..i]);
    }
}

/// Undoes horizontal differencing; sums wrap, as the differences did.
fn accumulate(row: &mut [u8], width: usize, samples: usize) {
    macro_rules! sums {
        ($t:ty, $n:literal) => {{
            let values = row.as_chunks_mut::<$n>().0;
            for i in samples..values.len() {
                let sum =
                    <$t>::from_ne_bytes(values[i]).wrapping_add(<$t>::from_ne_bytes(values[i - samples]));
                values[i] = sum.to_ne_bytes();
            }
        }};
    }
    match width {
        1 => sums!(u8, 1),
        2 => sums!(u16, 2),
        4 => sums!(u32, 4),
        _ => sums!(u64, 8),
    }
}

fn difference(row: &mut [u8], width: usize, samples: usize) {
    macro_rules! differences {
        ($t:ty, $n:literal) => {{
            let values = row.as_chunks_mut::<$n>().0;
            for i in (samples..values.len()).rev() {
                let d = <$t>::from_ne_bytes(values[i]).wrapping_sub(<$t>::from_ne_bytes(values[i - samples]));
                values[i] = d.to_ne_bytes();
            }
        }};
    }
    match width {
        1 => differences!(u8, 1),
        2 => differences!(u16, 2),
        4 => differences!(u32, 4),
        _ => differences!(u64, 8),
    }
}

/// Undoes the floating-point predictor: bytes were split by significance, the highest first whatever the
/// file's order, and then differenced.
fn unshuffle_float(row: &mut [u8], width: usize, samples: usize) {
    accumulate(row, 1, samples);
    let count = row.len() / width;
    let planes = row.to_vec();
    for i in 0..count {
        for b in 0..width {
            let place = if Order::NATIVE == Order::Little { width - 1 - b } else { b };
            row[i * width + place] = planes[b * count + i];
        }
    }
}

fn shuffle_float(row: &mut [u8], width: usize, samples: usize) {
    let count = row.len() / width;
    let values = row.to_vec();
    for i in 0..count {
        for b in 0..width {
            let place = if Order::NATIVE == Order::Little { width - 1 - b } else { b };
            row[b * count + i] = values[i * width + place];
        }
    }
    difference(row, 1, samples);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_and_decoding_are_inverse() {
        for order in [Order::Little, Order::Big] {
            for dtype in DType::ALL {
                for compression in [
                    Compression::None,
                    Compression::Lzw,
                    Compression::Deflate,
                    Compression::PackBits,
                    Compression::Zstd,
                ] {
                    for predictor in if dtype.is_float() { vec![1, 2, 3] } else { vec![1, 2] } {
                        let layout = Layout {
                            order,
                            compression,
                            predictor,
                            bits: dtype.bits(),
                            dtype,
                            samples: 3,
                            reversed: false,
                            jpeg_tables: None,
                            ycbcr: false,
                        };
                        let (width, rows) = (37, 19);
                        let raw: Vec<u8> = (0..width * rows * 3 * dtype.bytes())
                            .map(|i| if i % 7 < 4 { 9 } else { (i * i % 251) as u8 })
                            .collect();
                        let packed = layout.encode(raw.clone(), width).unwrap();
                        assert_eq!(layout.decode(packed, width, rows).unwrap(), raw, "{layout:?}");
                    }
                }
            }
        }
    }
}
