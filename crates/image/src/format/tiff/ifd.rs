//! TIFF directories: header, entries and their values, classic and Big, both byte orders. Values are kept as the bytes of
//! the file, so a directory can be written back without knowing its tags.

use crate::bytes::Bytes;
use crate::dtype::{Order, swap_bytes};
use crate::error::{Parsed, damaged};
use std::collections::{BTreeMap, HashSet};

pub mod tag {
    pub const SUBFILE_TYPE: u16 = 254;
    pub const WIDTH: u16 = 256;
    pub const HEIGHT: u16 = 257;
    pub const BITS: u16 = 258;
    pub const COMPRESSION: u16 = 259;
    pub const PHOTOMETRIC: u16 = 262;
    pub const FILL_ORDER: u16 = 266;
    pub const DESCRIPTION: u16 = 270;
    pub const STRIP_OFFSETS: u16 = 273;
    pub const SAMPLES: u16 = 277;
    pub const ROWS_PER_STRIP: u16 = 278;
    pub const STRIP_COUNTS: u16 = 279;
    pub const X_RESOLUTION: u16 = 282;
    pub const Y_RESOLUTION: u16 = 283;
    pub const PLANAR: u16 = 284;
    pub const T4_OPTIONS: u16 = 292;
    pub const T6_OPTIONS: u16 = 293;
    pub const RESOLUTION_UNIT: u16 = 296;
    pub const SOFTWARE: u16 = 305;
    pub const PREDICTOR: u16 = 317;
    pub const TILE_WIDTH: u16 = 322;
    pub const TILE_HEIGHT: u16 = 323;
    pub const TILE_OFFSETS: u16 = 324;
    pub const TILE_COUNTS: u16 = 325;
    pub const SUB_IFDS: u16 = 330;
    pub const EXTRA_SAMPLES: u16 = 338;
    pub const SAMPLE_FORMAT: u16 = 339;
    pub const JPEG_TABLES: u16 = 347;
    pub const YCBCR_SUBSAMPLING: u16 = 530;
    pub const REFERENCE_BLACK_WHITE: u16 = 532;
    pub const IMAGE_DEPTH: u16 = 32997;
    pub const TILE_DEPTH: u16 = 32998;
    pub const CFA_REPEAT: u16 = 33421;
    pub const CFA_PATTERN: u16 = 33422;
    pub const EXIF: u16 = 34665;
    pub const GPS: u16 = 34853;
    pub const INTEROP: u16 = 40965;
    pub const LERC_PARAMETERS: u16 = 50674;
    pub const BLACK_LEVEL: u16 = 50714;
    pub const WHITE_LEVEL: u16 = 50717;
    pub const IMAGEJ_COUNTS: u16 = 50838;
    /// Of the range that is free for private use: Clearshot's provenance, as JSON.
    pub const PROVENANCE: u16 = 65123;
}

pub fn type_size(kind: u16) -> Option<usize> {
    Some(match kind {
        1 | 2 | 6 | 7 => 1,
        3 | 8 => 2,
        4 | 9 | 11 | 13 => 4,
        5 | 10 | 12 | 16 | 17 | 18 => 8,
        _ => return None,
    })
}

/// A tag's value: its TIFF type and its bytes in the file's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub kind: u16,
    pub bytes: Vec<u8>,
}

impl Value {
    pub fn swapped(mut self) -> Value {
        // A rational is two numbers of four bytes.
        let width = if matches!(self.kind, 5 | 10) { 4 } else { type_size(self.kind).unwrap_or(1) };
        swap_bytes(&mut self.bytes, width);
        self
    }
}

/// One directory.
#[derive(Clone, Debug, Default)]
pub struct Ifd {
    pub entries: BTreeMap<u16, Value>,
    pub order: Option<Order>,
}

impl Ifd {
    fn order(&self) -> Order {
        self.order.unwrap_or(Order::NATIVE)
    }

    /// Unsigned whole numbers of a tag; empty when it is not there or not of such a type.
    pub fn numbers(&self, tag: u16) -> Vec<u64> {
        let Some(v) = self.entries.get(&tag) else { return Vec::new() };
        let o = self.order();
        match v.kind {
            1 | 7 => v.bytes.iter().map(|&b| u64::from(b)).collect(),
            3 => v.bytes.chunks_exact(2).map(|b| u64::from(o.u16(b))).collect(),
            4 | 13 => v.bytes.chunks_exact(4).map(|b| u64::from(o.u32(b))).collect(),
            16 | 18 => v.bytes.chunks_exact(8).map(|b| o.u64(b)).collect(),
            _ => Vec::new(),
        }
    }

    pub fn number(&self, tag: u16) -> Option<u64> {
        self.numbers(tag).first().copied()
    }

    pub fn text(&self, tag: u16) -> Option<String> {
        let v = self.entries.get(&tag)?;
        if !matches!(v.kind, 1 | 2 | 7) {
            return None;
        }
        let end = v.bytes.iter().rposition(|&b| b != 0).map_or(0, |n| n + 1);
        Some(String::from_utf8_lossy(&v.bytes[..end]).into_owned())
    }

    pub fn rational(&self, tag: u16) -> Option<f64> {
        let v = self.entries.get(&tag)?;
        let o = self.order();
        if v.bytes.len() < 8 {
            return None;
        }
        match v.kind {
            5 => Some(f64::from(o.u32(&v.bytes)) / f64::from(o.u32(&v.bytes[4..]))),
            10 => Some(f64::from(o.u32(&v.bytes) as i32) / f64::from(o.u32(&v.bytes[4..]) as i32)),
            12 => Some(f64::from_bits(o.u64(&v.bytes))),
            _ => None,
        }
        .filter(|v| v.is_finite())
    }

    pub fn set_numbers(&mut self, tag: u16, kind: u16, values: &[u64]) {
        let o = self.order();
        let mut bytes = Vec::with_capacity(values.len() * 8);
        for &v in values {
            match kind {
                3 => bytes.extend_from_slice(&o.put16(v as u16)),
                4 | 13 => bytes.extend_from_slice(&o.put32(v as u32)),
                16 | 18 => bytes.extend_from_slice(&o.put64(v)),
                _ => bytes.push(v as u8),
            }
        }
        self.entries.insert(tag, Value { kind, bytes });
    }

    pub fn set_text(&mut self, tag: u16, text: &str) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.entries.insert(tag, Value { kind: 2, bytes });
    }

    pub fn set_rational(&mut self, tag: u16, value: f64) {
        // The largest denominator that keeps the numerator in 32 bits, of powers of ten.
        let mut den = 1_000_000_000.0;
        while den > 1.0 && value * den > f64::from(u32::MAX) {
            den /= 10.0;
        }
        let o = self.order();
        let mut bytes = o.put32((value * den).round() as u32).to_vec();
        bytes.extend_from_slice(&o.put32(den as u32));
        self.entries.insert(tag, Value { kind: 5, bytes });
    }
}

/// A file's directories, its byte order and which of the two layouts it has.
pub struct Directories {
    pub order: Order,
    pub big: bool,
    pub chain: Vec<Ifd>,
}

/// Reads directories, with a budget so that entries pointing at the same bytes cannot multiply them.
pub struct Reader<'a> {
    pub bytes: &'a Bytes,
    pub order: Order,
    pub big: bool,
    budget: u64,
}

impl<'a> Reader<'a> {
    /// Reads the header; returns the reader and where the first directory is.
    pub fn new(bytes: &'a Bytes) -> Parsed<(Reader<'a>, u64)> {
        let head = bytes.head(16)?;
        let order = match head.get(..2) {
            Some(b"II") => Order::Little,
            Some(b"MM") => Order::Big,
            _ => return damaged("no TIFF header"),
        };
        if head.len() < 8 {
            return damaged("the header is cut off");
        }
        let big = match order.u16(&head[2..]) {
            42 => false,
            43 if head.len() == 16 && order.u16(&head[4..]) == 8 => true,
            n => return damaged(format!("version {n} in the header")),
        };
        let first = if big { order.u64(&head[8..]) } else { u64::from(order.u32(&head[4..])) };
        Ok((Reader { bytes, order, big, budget: bytes.len() * 2 + (1 << 20) }, first))
    }

    /// The chain of directories from `first` on; a chain that comes back on itself ends there.
    pub fn chain(&mut self, first: u64) -> Parsed<Vec<Ifd>> {
        let mut seen = HashSet::new();
        let mut chain = Vec::new();
        let mut at = first;
        while at != 0 && seen.insert(at) {
            match self.ifd(at) {
                Ok((ifd, next)) => {
                    chain.push(ifd);
                    at = next;
                }
                Err(fault) if chain.is_empty() => return Err(fault),
                Err(_) => return damaged(format!("directory {} at {at} cannot be read", chain.len())),
            }
        }
        Ok(chain)
    }

    /// One directory and the place of the next.
    pub fn ifd(&mut self, at: u64) -> Parsed<(Ifd, u64)> {
        let (o, big) = (self.order, self.big);
        let (head, each, tail) = if big { (8, 20, 8) } else { (2, 12, 4) };
        let start = self.bytes.read(at, head)?;
        let count = if big { o.u64(&start) } else { u64::from(o.u16(&start)) };
        if count > 65_536 {
            return damaged(format!("a directory at {at} with {count} entries"));
        }
        let table = self.bytes.read(at + head, count * each)?;
        let mut ifd = Ifd { order: Some(o), ..Ifd::default() };
        for entry in table.chunks_exact(each as usize) {
            let (tag, kind) = (o.u16(entry), o.u16(&entry[2..]));
            let Some(size) = type_size(kind) else { continue };
            let (count, field) = if big {
                (o.u64(&entry[4..]), &entry[12..])
            } else {
                (u64::from(o.u32(&entry[4..])), &entry[8..])
            };
            let Some(length) = count.checked_mul(size as u64) else {
                return damaged(format!("tag {tag} has {count} values"));
            };
            let bytes = if length <= field.len() as u64 {
                field[..length as usize].to_vec()
            } else {
                if length > self.budget {
                    return damaged(format!("tag {tag} has {count} values, more than the file can hold"));
                }
                self.budget -= length;
                let offset = if big { o.u64(field) } else { u64::from(o.u32(field)) };
                match self.bytes.read(offset, length) {
                    Ok(bytes) => bytes,
                    // A private tag that points nowhere loses itself, not the image.
                    Err(_) if tag > 532 && tag != tag::PROVENANCE => continue,
                    Err(fault) => return Err(fault),
                }
            };
            ifd.entries.entry(tag).or_insert(Value { kind, bytes });
        }
        // Some writers leave out the link after the last directory.
        let next = match self.bytes.read(at + head + count * each, tail) {
            Ok(bytes) if big => o.u64(&bytes),
            Ok(bytes) => u64::from(o.u32(&bytes)),
            Err(_) => 0,
        };
        Ok((ifd, next))
    }
}

pub fn read_all(bytes: &Bytes) -> Parsed<Directories> {
    let (mut reader, first) = Reader::new(bytes)?;
    let chain = reader.chain(first)?;
    if chain.is_empty() {
        return damaged("no directory");
    }
    Ok(Directories { order: reader.order, big: reader.big, chain })
}
