//! Sequential JPEG with Huffman codes, of 8 or 12 bits, as written by microscopes and slide scanners. Integer arithmetic
//! throughout, with the constants and roundings of the reference implementation's accurate transform and smooth upsampling,
//! so that decoded pixels are equal to those of other readers.

use super::Jpeg;
use crate::error::{Parsed, damaged, unsupported};

struct Component {
    id: u8,
    h: usize,
    v: usize,
    quant: usize,
    /// Size in blocks, whole units included, and in samples without the padding.
    blocks: [usize; 2],
    size: [usize; 2],
    samples: Vec<u16>,
}

#[derive(Clone, Default)]
struct Huffman {
    /// The largest code of each length, shifted to 16 bits; and where its symbols begin.
    limit: [u32; 18],
    offset: [i32; 18],
    symbols: Vec<u8>,
}

struct Frame {
    bits: u32,
    width: usize,
    height: usize,
    components: Vec<Component>,
    h: usize,
    v: usize,
}

#[derive(Default)]
struct Tables {
    quant: [Option<[u16; 64]>; 4],
    dc: [Option<Huffman>; 4],
    ac: [Option<Huffman>; 4],
    restart: usize,
}

/// The order of coefficients in a block.
const ZIGZAG: [usize; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// Decodes a stream, or gives `None` where it is of another kind (progressive, lossless, arithmetic).
pub fn decode(stream: &[u8], ycbcr: bool) -> Parsed<Option<Jpeg>> {
    let mut tables = Tables::default();
    let mut frame: Option<Frame> = None;
    let mut at = 2;
    let mut scanned = 0;
    while at + 4 <= stream.len() {
        if stream[at] != 0xFF || matches!(stream[at + 1], 0xFF | 0x00) {
            at += 1;
            continue;
        }
        let marker = stream[at + 1];
        if matches!(marker, 0x01 | 0xD0..=0xD8) {
            at += 2;
            continue;
        }
        if marker == 0xD9 {
            break;
        }
        let length = usize::from(u16::from_be_bytes([stream[at + 2], stream[at + 3]]));
        let Some(body) = stream.get(at + 4..at + 2 + length.max(2)) else {
            return damaged("a JPEG segment cut off");
        };
        at += 2 + length.max(2);
        match marker {
            0xDB => read_quant(body, &mut tables)?,
            0xC4 => read_huffman(body, &mut tables)?,
            0xDD if body.len() >= 2 => tables.restart = usize::from(u16::from_be_bytes([body[0], body[1]])),
            0xC0 | 0xC1 => frame = Some(read_frame(body)?),
            0xC2..=0xCF if marker != 0xC8 && marker != 0xCC => return Ok(None),
            0xDA => {
                let Some(frame) = frame.as_mut() else { return damaged("a JPEG scan before its frame") };
                let (used, parts) = scan(body, &stream[at..], frame, &tables)?;
                at += used;
                scanned += parts;
                if scanned >= frame.components.len() {
                    break;
                }
            }
            _ => {}
        }
    }
    match frame {
        Some(frame) if scanned >= frame.components.len() => Ok(Some(assemble(frame, ycbcr))),
        _ => damaged("a JPEG stream without all of its scans"),
    }
}

fn read_quant(body: &[u8], tables: &mut Tables) -> Parsed<()> {
    let mut at = 0;
    while at < body.len() {
        let (wide, id) = (body[at] >> 4 != 0, usize::from(body[at] & 15));
        let size = if wide { 128 } else { 64 };
        let (Some(data), true) = (body.get(at + 1..at + 1 + size), id < 4) else {
            return damaged("a JPEG quantisation table cut off");
        };
        let mut table = [0; 64];
        for (i, &place) in ZIGZAG.iter().enumerate() {
            table[place] =
                if wide { u16::from_be_bytes([data[2 * i], data[2 * i + 1]]) } else { u16::from(data[i]) };
        }
        tables.quant[id] = Some(table);
        at += 1 + size;
    }
    Ok(())
}

fn read_huffman(body: &[u8], tables: &mut Tables) -> Parsed<()> {
    let mut at = 0;
    while at < body.len() {
        let Some(head) = body.get(at..at + 17) else { return damaged("a JPEG Huffman table cut off") };
        let (class, id) = (head[0] >> 4, usize::from(head[0] & 15));
        let total: usize = head[1..].iter().map(|&n| usize::from(n)).sum();
        let (Some(symbols), true) = (body.get(at + 17..at + 17 + total), id < 4 && total <= 256) else {
            return damaged("a JPEG Huffman table cut off");
        };
        let mut table = Huffman { symbols: symbols.to_vec(), ..Huffman::default() };
        let (mut code, mut used) = (0u32, 0i32);
        for length in 1..=16usize {
            let count = u32::from(head[length]);
            table.offset[length] = used - code as i32;
            code += count;
            used += count as i32;
            if code > 1 << length {
                return damaged("a JPEG Huffman table with too many codes");
            }
            table.limit[length] = code << (16 - length);
            code <<= 1;
        }
        table.limit[17] = u32::MAX;
        let list = if class == 0 { &mut tables.dc } else { &mut tables.ac };
        list[id] = Some(table);
        at += 17 + total;
    }
    Ok(())
}

fn read_frame(body: &[u8]) -> Parsed<Frame> {
    if body.len() < 6 || body.len() < 6 + 3 * usize::from(body[5]) {
        return damaged("a JPEG frame cut off");
    }
    let bits = u32::from(body[0]);
    if bits != 8 && bits != 12 {
        return unsupported(format!("lossy JPEG with {bits} bits"));
    }
    let height = usize::from(u16::from_be_bytes([body[1], body[2]]));
    let width = usize::from(u16::from_be_bytes([body[3], body[4]]));
    let count = usize::from(body[5]);
    if width == 0 || height == 0 || !(1..=4).contains(&count) {
        return damaged(format!("a JPEG of {width} x {height} with {count} components"));
    }
    let part = |n: usize| &body[6 + 3 * n..9 + 3 * n];
    let factors = |n: usize| (usize::from(part(n)[1] >> 4), usize::from(part(n)[1] & 15));
    if (0..count).any(|n| !(1..=4).contains(&factors(n).0) || !(1..=4).contains(&factors(n).1)) {
        return damaged("JPEG sampling factors out of range");
    }
    let h = (0..count).map(|n| factors(n).0).max().unwrap_or(1);
    let v = (0..count).map(|n| factors(n).1).max().unwrap_or(1);
    let components = (0..count)
        .map(|n| {
            let (ch, cv) = factors(n);
            let blocks = [height.div_ceil(8 * v) * cv, width.div_ceil(8 * h) * ch];
            Component {
                id: part(n)[0],
                h: ch,
                v: cv,
                quant: usize::from(part(n)[2] & 3),
                blocks,
                size: [(height * cv).div_ceil(v), (width * ch).div_ceil(h)],
                samples: vec![0; blocks[0] * blocks[1] * 64],
            }
        })
        .collect();
    Ok(Frame { bits, width, height, components, h, v })
}

/// The bits of a scan, without the zeros that are stuffed behind 0xFF.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    held: u64,
    count: u32,
    /// How many bits beyond the end were asked for.
    missing: u32,
}

impl Bits<'_> {
    fn fill(&mut self) {
        while self.count <= 48 {
            let byte = match self.data.get(self.at) {
                Some(0xFF) if self.data.get(self.at + 1) == Some(&0) => {
                    self.at += 2;
                    0xFF
                }
                Some(&byte) if byte != 0xFF => {
                    self.at += 1;
                    byte
                }
                _ => {
                    self.missing += 8;
                    0
                }
            };
            self.held = self.held << 8 | u64::from(byte);
            self.count += 8;
        }
    }

    fn take(&mut self, n: u32) -> u32 {
        if self.count < n {
            self.fill();
        }
        self.count -= n;
        (self.held >> self.count & ((1 << n) - 1)) as u32
    }

    fn symbol(&mut self, table: &Huffman) -> Parsed<u8> {
        if self.count < 16 {
            self.fill();
        }
        let next = (self.held >> (self.count - 16) & 0xFFFF) as u32;
        let Some(length) = (1..=16).find(|&l| next < table.limit[l]) else {
            return damaged("a JPEG code that is in no table");
        };
        self.count -= length as u32;
        let place = (next >> (16 - length)) as i32 + table.offset[length];
        match table.symbols.get(place as usize) {
            Some(&symbol) => Ok(symbol),
            None => damaged("a JPEG code that is in no table"),
        }
    }

    /// A number of `n` bits, of which the upper half are positive.
    fn number(&mut self, n: u32) -> i32 {
        if n == 0 {
            return 0;
        }
        let value = self.take(n) as i32;
        if value < 1 << (n - 1) { value - (1 << n) + 1 } else { value }
    }

    /// Whether more was read than is there.
    fn ran_out(&self) -> bool {
        self.missing > self.count
    }

    /// Goes behind the next restart marker.
    fn restart(&mut self) -> Parsed<()> {
        (self.held, self.count, self.missing) = (0, 0, 0);
        while self.at + 1 < self.data.len() {
            if self.data[self.at] == 0xFF && matches!(self.data[self.at + 1], 0xD0..=0xD7) {
                self.at += 2;
                return Ok(());
            }
            self.at += 1;
        }
        damaged("a JPEG scan that ends before its time")
    }
}

/// Decodes one scan; gives how many bytes it took and how many components it had.
fn scan(head: &[u8], data: &[u8], frame: &mut Frame, tables: &Tables) -> Parsed<(usize, usize)> {
    let count = usize::from(head.first().copied().unwrap_or(0));
    if count == 0 || count > 4 || head.len() < 1 + 2 * count {
        return damaged("a JPEG scan cut off");
    }
    // Component, tables of codes.
    let mut parts = Vec::new();
    for n in 0..count {
        let (id, codes) = (head[1 + 2 * n], head[2 + 2 * n]);
        let which = frame.components.iter().position(|c| c.id == id);
        let (dc, ac) = (usize::from(codes >> 4) & 3, usize::from(codes & 15) & 3);
        match (which, &tables.dc[dc], &tables.ac[ac]) {
            (Some(which), Some(dc), Some(ac)) => {
                let Some(quant) = tables.quant[frame.components[which].quant] else {
                    return damaged("a JPEG component without a quantisation table");
                };
                parts.push((which, dc, ac, quant));
            }
            _ => return damaged("a JPEG scan of unknown components or tables"),
        }
    }
    // One component alone has no padding to whole units.
    let units = match parts[..] {
        [(which, ..)] => {
            let c = &frame.components[which];
            [c.size[0].div_ceil(8), c.size[1].div_ceil(8)]
        }
        _ => [frame.height.div_ceil(8 * frame.v), frame.width.div_ceil(8 * frame.h)],
    };
    let mut bits = Bits { data, at: 0, held: 0, count: 0, missing: 0 };
    let mut last = [0i32; 4];
    for unit in 0..units[0] * units[1] {
        if tables.restart > 0 && unit > 0 && unit % tables.restart == 0 {
            bits.restart()?;
            last = [0; 4];
        }
        let (uy, ux) = (unit / units[1], unit % units[1]);
        for (n, (which, dc, ac, quant)) in parts.iter().enumerate() {
            let c = &mut frame.components[*which];
            let (rows, columns) = if count == 1 { (1, 1) } else { (c.v, c.h) };
            for by in 0..rows {
                for bx in 0..columns {
                    let mut block = [0i32; 64];
                    last[n] = last[n].wrapping_add(read_block(&mut bits, dc, ac, quant, &mut block)?);
                    block[0] = last[n].wrapping_mul(i32::from(quant[0]));
                    let (y, x) = (uy * rows + by, ux * columns + bx);
                    let stride = c.blocks[1] * 8;
                    inverse_transform(&block, frame.bits, &mut c.samples[y * 8 * stride + x * 8..], stride);
                }
            }
        }
        if bits.ran_out() {
            return damaged("a JPEG scan that ends before its time");
        }
    }
    Ok((bits.at, count))
}

/// The coefficients of a block, multiplied out, and the difference of its mean.
fn read_block(
    bits: &mut Bits,
    dc: &Huffman,
    ac: &Huffman,
    quant: &[u16; 64],
    block: &mut [i32; 64],
) -> Parsed<i32> {
    let size = u32::from(bits.symbol(dc)?);
    if size > 16 {
        return damaged("a JPEG code that is in no table");
    }
    let difference = bits.number(size);
    let mut k = 1;
    while k < 64 {
        let symbol = bits.symbol(ac)?;
        let (run, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
        if size == 0 {
            if run != 15 {
                break;
            }
            k += 16;
            continue;
        }
        k += run;
        if k > 63 {
            return damaged("a JPEG block with too many coefficients");
        }
        let place = ZIGZAG[k];
        block[place] = bits.number(size).wrapping_mul(i32::from(quant[place]));
        k += 1;
    }
    Ok(difference)
}

/// One dimension of the inverse cosine transform, on numbers with 13 fractional bits in the constants.
fn transform(c: [i64; 8]) -> [i64; 8] {
    let z1 = (c[2] + c[6]) * 4433;
    let (t2, t3) = (z1 - c[6] * 15_137, z1 + c[2] * 6270);
    let (t0, t1) = ((c[0] + c[4]) << 13, (c[0] - c[4]) << 13);
    let even = [t0 + t3, t1 + t2, t1 - t2, t0 - t3];
    let z5 = (c[7] + c[3] + c[5] + c[1]) * 9633;
    let (z1, z2) = ((c[7] + c[1]) * -7373, (c[5] + c[3]) * -20_995);
    let (z3, z4) = ((c[7] + c[3]) * -16_069 + z5, (c[5] + c[1]) * -3196 + z5);
    let odd =
        [c[1] * 12_299 + z1 + z4, c[3] * 25_172 + z2 + z3, c[5] * 16_819 + z2 + z4, c[7] * 2446 + z1 + z3];
    let mut out = [0; 8];
    for i in 0..4 {
        out[i] = even[i] + odd[i];
        out[7 - i] = even[i] - odd[i];
    }
    out
}

fn inverse_transform(block: &[i32; 64], bits: u32, out: &mut [u16], stride: usize) {
    // The first pass keeps this many fractional bits.
    let kept = if bits == 8 { 2 } else { 1 };
    let round = |v: i64, shift: u32| (v + (1 << (shift - 1))) >> shift;
    let mut middle = [0i64; 64];
    for x in 0..8 {
        let column = std::array::from_fn(|y| i64::from(block[y * 8 + x]));
        for (y, v) in transform(column).into_iter().enumerate() {
            middle[y * 8 + x] = round(v, 13 - kept);
        }
    }
    let (centre, most) = (1i64 << (bits - 1), (1i64 << bits) - 1);
    for y in 0..8 {
        let row = std::array::from_fn(|x| middle[y * 8 + x]);
        for (x, v) in transform(row).into_iter().enumerate() {
            out[y * stride + x] = (round(v, 13 + kept + 3) + centre).clamp(0, most) as u16;
        }
    }
}

/// A component at the picture's size.
fn upsample(c: &Component, frame: (usize, usize), h: usize, v: usize) -> Vec<u16> {
    let (width, height) = frame;
    let stride = c.blocks[1] * 8;
    let row = |y: usize| &c.samples[y.min(c.size[0] - 1) * stride..][..c.size[1]];
    let (fx, fy) = (h / c.h, v / c.v);
    let mut out = Vec::with_capacity(width * height);
    let whole = h.is_multiple_of(c.h) && v.is_multiple_of(c.v);
    // Triangles for halved axes; others are repeated.
    let smooth = whole && c.size[1] > 2;
    for y in 0..height {
        match (fx, fy) {
            (1, 1) if whole => out.extend_from_slice(&row(y)[..width]),
            (2, 1) if smooth => {
                let source: Vec<u32> = row(y).iter().map(|&s| u32::from(s)).collect();
                smooth_row(&source, width, [1, 2, 2], 0, &mut out);
            }
            (2, 2) if smooth => {
                let near = y / 2;
                let far = if y % 2 == 0 { near.saturating_sub(1) } else { near + 1 };
                let source: Vec<u32> =
                    row(near).iter().zip(row(far)).map(|(&a, &b)| 3 * u32::from(a) + u32::from(b)).collect();
                smooth_row(&source, width, [8, 7, 4], 1, &mut out);
            }
            (1, 2) if whole => {
                let near = y / 2;
                let (far, bias) = if y % 2 == 0 { (near.saturating_sub(1), 1) } else { (near + 1, 2) };
                let pairs = row(near).iter().zip(row(far)).take(width);
                out.extend(pairs.map(|(&a, &b)| ((3 * u32::from(a) + u32::from(b) + bias) >> 2) as u16));
            }
            _ => {
                let line = row(y * c.v / v);
                out.extend((0..width).map(|x| line[(x * c.h / h).min(line.len() - 1)]));
            }
        }
    }
    out
}

/// Doubles a row with weights of three to one. `rule` has the roundings left and right, and the shift; `kind` is
/// one where the source is a sum of rows, with its ends to be weighted by four.
fn smooth_row(source: &[u32], width: usize, rule: [u32; 3], kind: u32, out: &mut Vec<u16>) {
    let [left, right, shift] = rule;
    let n = source.len();
    for x in 0..width {
        let i = (x / 2).min(n - 1);
        let value = match (x % 2 == 0, i) {
            (true, 0) if kind == 1 => (source[0] * 4 + left) >> shift,
            (true, 0) => source[0],
            (true, i) => (source[i] * 3 + source[i - 1] + left) >> shift,
            (false, i) if i + 1 < n => (source[i] * 3 + source[i + 1] + right) >> shift,
            (false, i) if kind == 1 => (source[i] * 4 + right) >> shift,
            (false, i) => source[i],
        };
        out.push(value as u16);
    }
}

/// Luminance and colour differences of so many bits (full range, ITU-R BT.601) as red, green and blue.
pub fn rgb(ycbcr: [u16; 3], bits: u32) -> [u16; 3] {
    let (centre, most) = (1i32 << (bits - 1), (1i32 << bits) - 1);
    let [y, cb, cr] = ycbcr.map(i32::from);
    let (cb, cr) = (cb - centre, cr - centre);
    let half = 1 << 15;
    let red = y + ((91_881 * cr + half) >> 16);
    let green = y + ((-22_554 * cb - 46_802 * cr + half) >> 16);
    let blue = y + ((116_130 * cb + half) >> 16);
    [red, green, blue].map(|v| v.clamp(0, most) as u16)
}

fn assemble(frame: Frame, ycbcr: bool) -> Jpeg {
    let Frame { bits, width, height, components, h, v } = frame;
    // Compared to the largest factors, one component alone is not sampled down.
    let (h, v) = if components.len() == 1 { (components[0].h, components[0].v) } else { (h, v) };
    let planes: Vec<Vec<u16>> = components.iter().map(|c| upsample(c, (width, height), h, v)).collect();
    let samples = planes.len();
    let bytes = if bits == 8 { 1 } else { 2 };
    let mut data = Vec::with_capacity(width * height * samples * bytes);
    let mut put = |value: u16| match bytes {
        1 => data.push(value as u8),
        _ => data.extend_from_slice(&value.to_ne_bytes()),
    };
    for i in 0..width * height {
        if ycbcr && samples == 3 {
            rgb([0, 1, 2].map(|p| planes[p][i]), bits).into_iter().for_each(&mut put);
        } else {
            planes.iter().for_each(|plane| put(plane[i]));
        }
    }
    Jpeg { width, height, samples, bytes, data }
}
