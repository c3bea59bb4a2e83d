//! One directory as a picture: its size, the layout of its values, and its strips or tiles.

use super::codec::{Compression, JPEG_2000_DIFFERENCES, Layout};
use super::fax::Fax;
use super::ifd::{Ifd, tag};
use super::pictures::Around;
use crate::bytes::Bytes;
use crate::dtype::{DType, Order};
use crate::error::{Parsed, damaged, instead, unsupported, unsupported_instead};

#[derive(Clone, Debug)]
pub struct Page {
    pub width: usize,
    pub height: usize,
    pub samples: usize,
    /// Samples lie in planes of their own.
    pub planar: bool,
    pub layout: Layout,
    pub tiled: bool,
    /// The size of a tile, or of a strip.
    pub chunk: [usize; 2],
    /// How many rows are read at once: a strip's, or fewer or more where rows simply follow each other.
    pub rows: usize,
    pub offsets: Vec<u64>,
    pub counts: Vec<u64>,
}

impl Page {
    pub fn new(ifd: &Ifd, order: Order, file: u64) -> Parsed<Page> {
        let length = |t: u16| ifd.number(t).and_then(|n| usize::try_from(n).ok());
        let (Some(width), Some(height)) = (length(tag::WIDTH), length(tag::HEIGHT)) else {
            return damaged("no width or height");
        };
        if width == 0 || height == 0 || width > 1 << 31 || height > 1 << 31 {
            return damaged(format!("a size of {width} x {height}"));
        }
        let samples = length(tag::SAMPLES).unwrap_or(1);
        if samples == 0 || samples > 65_535 {
            return damaged(format!("{samples} samples a pixel"));
        }
        if width as u128 * height as u128 * samples as u128 > 1 << 46 {
            return damaged(format!("a size of {width} x {height} with {samples} samples"));
        }
        if let Some(depth) =
            [tag::IMAGE_DEPTH, tag::TILE_DEPTH].iter().find_map(|&t| ifd.number(t).filter(|&d| d > 1))
        {
            return unsupported(format!("a volume in one directory ({depth} planes deep)"));
        }
        let planar = ifd.number(tag::PLANAR) == Some(2) && samples > 1;
        let (dtype, bits) = pixel_type(ifd)?;
        let code = ifd.number(tag::COMPRESSION).unwrap_or(1);
        let mut compression = Compression::from_tag(code)?;
        if let Compression::Fax(Fax::Group3 { referring }) = &mut compression {
            *referring = ifd.number(tag::T4_OPTIONS).unwrap_or(0) & 1 == 1;
        }
        if let Compression::Lerc(around) = &mut compression {
            *around = Around::from_tag(ifd.numbers(tag::LERC_PARAMETERS).get(1).copied().unwrap_or(0))?;
        }
        let photometric = ifd.number(tag::PHOTOMETRIC).unwrap_or(1);
        if photometric == 6 && !compression.is_picture() {
            let subsampling = ifd.numbers(tag::YCBCR_SUBSAMPLING);
            if samples == 3 && !planar && subsampling != [1, 1] {
                return unsupported("YCbCr with sub-sampled colours, outside JPEG,");
            }
        }
        let layout = Layout {
            order,
            compression,
            predictor: ifd.number(tag::PREDICTOR).unwrap_or(1),
            bits,
            dtype,
            samples: if planar { 1 } else { samples },
            reversed: ifd.number(tag::FILL_ORDER) == Some(2),
            jpeg_tables: ifd.entries.get(&tag::JPEG_TABLES).map(|v| v.bytes.clone()),
            ycbcr: photometric == 6 || code == JPEG_2000_DIFFERENCES,
        };
        let tiled = ifd.entries.contains_key(&tag::TILE_WIDTH);
        let chunk = if tiled {
            let (Some(h), Some(w)) = (length(tag::TILE_HEIGHT), length(tag::TILE_WIDTH)) else {
                return damaged("tiles without a size");
            };
            [h, w]
        } else {
            [length(tag::ROWS_PER_STRIP).unwrap_or(height).min(height), width]
        };
        let area = chunk[0] as u128 * chunk[1] as u128 * samples as u128;
        if area == 0 || area > 1 << 46 {
            return damaged(format!("strips or tiles of {} x {} pixels", chunk[1], chunk[0]));
        }
        let (offsets, counts) = if tiled {
            // Some writers use the strips' tags for tiles.
            let offsets = Some(ifd.numbers(tag::TILE_OFFSETS)).filter(|v| !v.is_empty());
            let counts = Some(ifd.numbers(tag::TILE_COUNTS)).filter(|v| !v.is_empty());
            (
                offsets.unwrap_or_else(|| ifd.numbers(tag::STRIP_OFFSETS)),
                counts.unwrap_or_else(|| ifd.numbers(tag::STRIP_COUNTS)),
            )
        } else {
            (ifd.numbers(tag::STRIP_OFFSETS), ifd.numbers(tag::STRIP_COUNTS))
        };
        let mut page =
            Page { width, height, samples, planar, layout, tiled, chunk, rows: chunk[0], offsets, counts };
        page.check(file)?;
        Ok(page)
    }

    /// That the file could hold what the directory promises.
    fn check(&mut self, file: u64) -> Parsed<()> {
        let needed =
            self.down() as u64 * self.across() as u64 * if self.planar { self.samples as u64 } else { 1 };
        if (self.offsets.len() as u64) < needed {
            return damaged(format!(
                "{needed} strips or tiles are needed, and {} are there",
                self.offsets.len()
            ));
        }
        let Some(row) = self.layout.row_bytes(self.chunk[1]) else {
            return damaged(format!("{} samples in a row of {} pixels", self.samples, self.chunk[1]));
        };
        let plain = self.layout.compression == Compression::None;
        if self.counts.len() < self.offsets.len() {
            if !plain {
                return damaged("strips or tiles without a length");
            }
            self.counts = (0..self.offsets.len())
                .map(|i| (row * self.chunk_rows(i / self.across() % self.down())) as u64)
                .collect();
        }
        if plain {
            let total =
                row as u128 * self.height as u128 * if self.planar { self.samples as u128 } else { 1 };
            if total > u128::from(file) && !self.counts.contains(&0) {
                return damaged(format!("{total} bytes of pixels in a file of {file} bytes"));
            }
            if !self.tiled && self.layout.bits == self.layout.dtype.bits() {
                self.rows = ((1 << 20) / row.max(1)).clamp(1, self.height);
            }
        }
        Ok(())
    }

    /// Rows of a picture that lie one after the other in strips of whole values.
    pub fn is_rows(&self) -> bool {
        self.layout.compression == Compression::None
            && !self.tiled
            && self.layout.bits == self.layout.dtype.bits()
    }

    pub fn across(&self) -> usize {
        self.width.div_ceil(self.chunk[1])
    }

    pub fn down(&self) -> usize {
        self.height.div_ceil(self.chunk[0])
    }

    /// Rows in the strip or tile that lies `y`-th from the top.
    pub fn chunk_rows(&self, y: usize) -> usize {
        if self.tiled { self.chunk[0] } else { self.chunk[0].min(self.height - y * self.chunk[0]) }
    }

    pub fn page_bytes(&self) -> usize {
        self.width * self.height * self.samples * self.layout.dtype.bytes()
    }

    /// The axes of the page: Y X, Y X S or S Y X.
    pub fn shape(&self) -> Vec<usize> {
        match (self.samples, self.planar) {
            (1, _) => vec![self.height, self.width],
            (n, true) => vec![n, self.height, self.width],
            (n, false) => vec![self.height, self.width, n],
        }
    }

    /// The chunks that `read` gives, in the page's axes.
    pub fn read_chunk(&self) -> Vec<usize> {
        match (self.samples, self.planar) {
            (1, _) => vec![self.rows, self.chunk[1]],
            (_, true) => vec![1, self.rows, self.chunk[1]],
            (n, false) => vec![self.rows, self.chunk[1], n],
        }
    }

    /// Plane, row of chunks and column of chunks, from an index in the page's axes.
    pub fn split(&self, index: &[usize]) -> (usize, usize, usize) {
        match (self.samples, self.planar) {
            (1, _) | (_, false) => (0, index[0], index[1]),
            (_, true) => (index[0], index[1], index[2]),
        }
    }

    /// One chunk, decoded and in the machine's byte order.
    pub fn read(&self, bytes: &Bytes, index: &[usize]) -> Parsed<Vec<u8>> {
        let (plane, y, x) = self.split(index);
        if self.is_rows() {
            return self.read_rows(bytes, plane, y);
        }
        let number = (plane * self.down() + y) * self.across() + x;
        let pixel = self.layout.samples * self.layout.dtype.bytes();
        let full = self.chunk[0] * self.chunk[1] * pixel;
        let (Some(&offset), Some(&count)) = (self.offsets.get(number), self.counts.get(number)) else {
            return damaged(format!("strip or tile {number} is not listed"));
        };
        if count == 0 {
            crate::bytes::check_expansion(0, full as u64)?;
            return Ok(vec![0; full]);
        }
        let packed = bytes.read(offset, count)?;
        let mut raw = self.layout.decode(packed, self.chunk[1], self.chunk_rows(y))?;
        raw.resize(full, 0);
        Ok(raw)
    }

    fn read_rows(&self, bytes: &Bytes, plane: usize, y: usize) -> Parsed<Vec<u8>> {
        let row = self.width * self.layout.samples * self.layout.dtype.bytes();
        let (first, last) = (y * self.rows, ((y + 1) * self.rows).min(self.height));
        let mut out = vec![0; self.rows * row];
        let mut at = first;
        while at < last {
            let strip = at / self.chunk[0];
            let end = ((strip + 1) * self.chunk[0]).min(last);
            let number = plane * self.down() + strip;
            if self.counts[number] != 0 {
                let offset = self.offsets[number].checked_add(((at - strip * self.chunk[0]) * row) as u64);
                let part = &mut out[(at - first) * row..(end - first) * row];
                bytes.read_into(offset.unwrap_or(u64::MAX), part)?;
            }
            at = end;
        }
        if self.layout.reversed && self.layout.dtype.bytes() == 1 {
            out.iter_mut().for_each(|b| *b = b.reverse_bits());
        }
        if self.layout.order != Order::NATIVE {
            crate::dtype::swap_bytes(&mut out, self.layout.dtype.bytes());
        }
        Ok(out)
    }

    /// Whether two pages can be planes of one image.
    pub fn alike(&self, other: &Page) -> bool {
        self.shape() == other.shape()
            && self.planar == other.planar
            && self.read_chunk() == other.read_chunk()
            && self.layout.dtype == other.layout.dtype
            && self.layout.bits == other.layout.bits
    }
}

fn pixel_type(ifd: &Ifd) -> Parsed<(DType, u32)> {
    let bits = Some(ifd.numbers(tag::BITS)).filter(|v| !v.is_empty()).unwrap_or(vec![1]);
    if bits.iter().any(|&b| b != bits[0]) {
        return unsupported(format!("samples of different widths ({bits:?} bits)"));
    }
    let formats = ifd.numbers(tag::SAMPLE_FORMAT);
    let format = formats.first().copied().unwrap_or(1);
    if formats.iter().any(|&f| f != format) {
        return unsupported(format!("samples of different kinds ({formats:?})"));
    }
    let dtype = match (format, bits[0]) {
        (1 | 4 | 0, 1..=8) => DType::U8,
        (1 | 4 | 0, 9..=16) => DType::U16,
        (1 | 4 | 0, 17..=32) => DType::U32,
        (1 | 4 | 0, 64) => DType::U64,
        (2, 8) => DType::I8,
        (2, 16) => DType::I16,
        (2, 32) => DType::I32,
        (2, 64) => DType::I64,
        (3, 16) => DType::F16,
        (3, 32) => DType::F32,
        (3, 64) => DType::F64,
        (5 | 6, b) => return unsupported_instead(format!("complex pixels of {b} bits"), instead::COMPLEX),
        (f, b) => return unsupported(format!("pixels of {b} bits of kind {f}")),
    };
    Ok((dtype, bits[0] as u32))
}
