//! JPEG 2000 without loss (the reversible 5/3 wavelet), as DICOM files hold it: tiles, layers, precincts and all
//! five orders of packets. What is lossy, or rare enough never to have been met, is refused by name.

mod block;
mod packet;

use crate::dtype::Order;
use crate::error::{Parsed, damaged, unsupported};
use block::Band;

/// A decoded picture: one plane of values a component.
pub(crate) struct Picture {
    pub width: usize,
    pub height: usize,
    pub planes: Vec<Vec<i32>>,
}

/// The sizes of the main header.
#[derive(Debug)]
struct Header {
    x: [usize; 2],
    y: [usize; 2],
    tile: [usize; 2],
    tile_origin: [usize; 2],
    /// Bits and sign of each component.
    components: Vec<(u32, bool)>,
    coding: Coding,
    guard: u32,
    /// The exponent of each band, the lowest first.
    exponents: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
struct Coding {
    order: u8,
    layers: usize,
    transform: bool,
    levels: usize,
    /// Logarithms of a block's width and height.
    block: [u32; 2],
    marked: bool,
    /// Logarithms of the precincts' width and height, one pair a resolution.
    precincts: Vec<[u32; 2]>,
    start_marks: bool,
    end_marks: bool,
}

pub(crate) fn decode(data: &[u8], limit: usize) -> Parsed<Picture> {
    let Some(start) = data.windows(4).position(|w| w == [0xFF, 0x4F, 0xFF, 0x51]) else {
        return damaged("no JPEG 2000 codestream");
    };
    let stream = &data[start..];
    let (header, mut at) = read_header(stream, limit)?;
    let across = (header.x[1] - header.tile_origin[0]).div_ceil(header.tile[0]);
    let down = (header.y[1] - header.tile_origin[1]).div_ceil(header.tile[1]);
    if across * down > 65_535 {
        return damaged(format!("{} JPEG 2000 tiles", across * down));
    }
    let mut parts: Vec<Vec<u8>> = vec![Vec::new(); across * down];
    let be = Order::Big;
    while let Some(head) = stream.get(at..at + 12) {
        if be.u16(head) != 0xFF90 {
            break;
        }
        let (number, length) = (usize::from(be.u16(&head[4..])), be.u32(&head[6..]) as usize);
        let end = if length == 0 { stream.len().saturating_sub(2) } else { at + length };
        let Some(part) = stream.get(at + 12..end) else { return damaged("a JPEG 2000 tile cut off") };
        let Some(tile) = parts.get_mut(number) else { return damaged(format!("JPEG 2000 tile {number}")) };
        tile.extend_from_slice(skip_tile_header(part)?);
        at = end;
    }
    let (width, height) = (header.x[1] - header.x[0], header.y[1] - header.y[0]);
    let mut planes = vec![vec![0; width * height]; header.components.len()];
    for (number, data) in parts.iter().enumerate() {
        let (p, q) = (number % across, number / across);
        let bound = |i: usize, origin: usize, size: usize, low: usize, high: usize| {
            [(origin + i * size).max(low), (origin + (i + 1) * size).min(high)]
        };
        let x = bound(p, header.tile_origin[0], header.tile[0], header.x[0], header.x[1]);
        let y = bound(q, header.tile_origin[1], header.tile[1], header.y[0], header.y[1]);
        if data.is_empty() {
            return damaged(format!("JPEG 2000 tile {number} is missing"));
        }
        let mut values =
            packet::decode_tile(&header.coding, header.guard, &header.exponents, planes.len(), x, y, data)?;
        if header.coding.transform && values.len() >= 3 {
            undo_colours(&mut values);
        }
        let size = x[1] - x[0];
        for (plane, (tile, &(bits, signed))) in planes.iter_mut().zip(values.iter().zip(&header.components)) {
            let shift = if signed { 0 } else { 1 << (bits - 1) };
            for (row, line) in tile.chunks_exact(size.max(1)).enumerate() {
                let to = (y[0] - header.y[0] + row) * width + x[0] - header.x[0];
                plane[to..to + size].iter_mut().zip(line).for_each(|(o, v)| *o = v.wrapping_add(shift));
            }
        }
    }
    Ok(Picture { width, height, planes })
}

/// The reversible colour transform, backwards.
fn undo_colours(planes: &mut [Vec<i32>]) {
    for i in 0..planes[0].len() {
        let (y, u, v) = (planes[0][i], planes[1][i], planes[2][i]);
        let green = y.wrapping_sub(u.wrapping_add(v) >> 2);
        planes[0][i] = v.wrapping_add(green);
        planes[1][i] = green;
        planes[2][i] = u.wrapping_add(green);
    }
}

fn read_header(stream: &[u8], limit: usize) -> Parsed<(Header, usize)> {
    let be = Order::Big;
    let cut = || damaged::<(Header, usize)>("a JPEG 2000 header cut off");
    let mut at = 2;
    let (mut sizes, mut coding, mut quant) = (None, None, None);
    loop {
        let Some(head) = stream.get(at..at + 4) else { return cut() };
        let (marker, length) = (be.u16(head), usize::from(be.u16(&head[2..])));
        if marker == 0xFF90 {
            break;
        }
        let Some(body) = stream.get(at + 4..at + 2 + length.max(2)) else { return cut() };
        match marker {
            0xFF51 => sizes = Some(body),
            0xFF52 => coding = Some(read_coding(body)?),
            0xFF5C => quant = Some(body),
            0xFF53 | 0xFF5D => return unsupported("JPEG 2000 components with coding of their own"),
            0xFF5E | 0xFF5F => return unsupported("JPEG 2000 regions of interest and changes of order"),
            0xFF60 | 0xFF61 => return unsupported("JPEG 2000 packed packet headers"),
            _ => {}
        }
        at += 2 + length.max(2);
    }
    let (Some(s), Some(coding), Some(q)) = (sizes, coding, quant) else { return cut() };
    if s.len() < 36 || q.is_empty() {
        return cut();
    }
    let long = |n: usize| be.u32(&s[2 + 4 * n..]) as usize;
    let count = usize::from(be.u16(&s[34..]));
    let (x, y) = ([long(2), long(0)], [long(3), long(1)]);
    let (tile, tile_origin) = ([long(4), long(5)], [long(6), long(7)]);
    let sensible = x[0] < x[1]
        && y[0] < y[1]
        && tile[0] > 0
        && tile[1] > 0
        && tile_origin[0] <= x[0]
        && tile_origin[1] <= y[0]
        && (1..=4).contains(&count)
        && x[1] < 1 << 24
        && y[1] < 1 << 24
        && (x[1] - x[0]).saturating_mul(y[1] - y[0]) <= limit
        && s.len() >= 36 + 3 * count;
    if !sensible {
        return damaged("JPEG 2000 sizes that make no sense");
    }
    let mut components = Vec::new();
    for c in s[36..36 + 3 * count].chunks_exact(3) {
        if c[1] != 1 || c[2] != 1 {
            return unsupported("JPEG 2000 with sub-sampled components");
        }
        let bits = u32::from(c[0] & 0x7F) + 1;
        if bits > 24 {
            return unsupported(format!("JPEG 2000 with {bits} bits"));
        }
        components.push((bits, c[0] & 0x80 != 0));
    }
    if q[0] & 31 != 0 {
        return unsupported("lossy JPEG 2000 (the irreversible 9/7 wavelet)");
    }
    let exponents: Vec<u32> = q[1..].iter().map(|&e| u32::from(e >> 3)).collect();
    if exponents.len() < 3 * coding.levels + 1 {
        return damaged("JPEG 2000 bands without an exponent");
    }
    let guard = u32::from(q[0] >> 5);
    Ok((Header { x, y, tile, tile_origin, components, coding, guard, exponents }, at))
}

fn read_coding(body: &[u8]) -> Parsed<Coding> {
    if body.len() < 10 {
        return damaged("a JPEG 2000 header cut off");
    }
    let levels = usize::from(body[5]);
    let block = [u32::from(body[6] & 15) + 2, u32::from(body[7] & 15) + 2];
    if levels > 32 || block[0] > 10 || block[1] > 10 || block[0] + block[1] > 12 || body[1] > 4 {
        return damaged("a JPEG 2000 coding style that makes no sense");
    }
    if body[8] & !0x20 != 0 {
        return unsupported(format!("JPEG 2000 code blocks of style {}", body[8]));
    }
    if body[9] != 1 {
        return unsupported("lossy JPEG 2000 (the irreversible 9/7 wavelet)");
    }
    let mut precincts = vec![[15, 15]; levels + 1];
    if body[0] & 1 == 1 {
        let Some(sizes) = body.get(10..11 + levels) else { return damaged("JPEG 2000 precincts cut off") };
        precincts = sizes.iter().map(|&p| [u32::from(p & 15), u32::from(p >> 4)]).collect();
        if precincts[1..].iter().any(|p| p[0] == 0 || p[1] == 0) {
            return damaged("JPEG 2000 precincts without a size");
        }
    }
    Ok(Coding {
        order: body[1],
        layers: usize::from(Order::Big.u16(&body[2..])),
        transform: body[4] == 1,
        levels,
        block,
        marked: body[8] & 0x20 != 0,
        precincts,
        start_marks: body[0] & 2 != 0,
        end_marks: body[0] & 4 != 0,
    })
}

/// What follows a tile part's own header.
fn skip_tile_header(part: &[u8]) -> Parsed<&[u8]> {
    let be = Order::Big;
    let mut at = 0;
    while let Some(head) = part.get(at..at + 2) {
        match be.u16(head) {
            0xFF93 => return Ok(&part[at + 2..]),
            0xFF52 | 0xFF53 | 0xFF5C | 0xFF5D | 0xFF5E | 0xFF5F | 0xFF61 => {
                return unsupported("JPEG 2000 tiles with coding of their own");
            }
            _ => {
                let Some(length) = part.get(at + 2..at + 4) else { break };
                at += 2 + usize::from(be.u16(length)).max(2);
            }
        }
    }
    damaged("a JPEG 2000 tile without data")
}

/// The orientation of a band by its number within a resolution.
fn band_of(resolution: usize, number: usize) -> Band {
    match (resolution, number) {
        (0, _) => Band::LowLow,
        (_, 0) => Band::HighLow,
        (_, 1) => Band::LowHigh,
        _ => Band::HighHigh,
    }
}

/// Undoes one level of the 5/3 wavelet. `low` has the size of the next lower resolution; bounds are absolute, for
/// whether a sample is of the low or the high kind depends on its place in the whole picture.
fn join(bands: &[Vec<i32>; 4], x: [usize; 2], y: [usize; 2]) -> Vec<i32> {
    let (width, height) = (x[1] - x[0], y[1] - y[0]);
    let mut out = vec![0; width * height];
    let half = |low: usize, at: usize, odd: usize| (at - odd) / 2 - (low + 1 - odd) / 2;
    for v in y[0]..y[1] {
        for u in x[0]..x[1] {
            let (ox, oy) = (u % 2, v % 2);
            let band = &bands[ox + 2 * oy];
            let columns = (x[1] + 1 - ox) / 2 - (x[0] + 1 - ox) / 2;
            out[(v - y[0]) * width + u - x[0]] = band[half(y[0], v, oy) * columns + half(x[0], u, ox)];
        }
    }
    let mut line = Vec::new();
    for row in out.chunks_exact_mut(width.max(1)) {
        lift(row, x[0] % 2);
    }
    for column in 0..width {
        line.clear();
        line.extend((0..height).map(|r| out[r * width + column]));
        lift(&mut line, y[0] % 2);
        line.iter().enumerate().for_each(|(r, &v)| out[r * width + column] = v);
    }
    out
}

/// One line of interleaved samples, of which the first is of the high kind if `odd`.
fn lift(line: &mut [i32], odd: usize) {
    let n = line.len();
    if n == 1 {
        if odd == 1 {
            line[0] >>= 1;
        }
        return;
    }
    // Neighbours beyond the ends are reflected.
    let left = |i: usize| if i == 0 { 1 } else { i - 1 };
    let right = |i: usize| if i + 1 == n { n - 2 } else { i + 1 };
    for i in (odd..n).step_by(2) {
        let sum = line[left(i)].wrapping_add(line[right(i)]).wrapping_add(2);
        line[i] = line[i].wrapping_sub(sum >> 2);
    }
    for i in (1 - odd..n).step_by(2) {
        let sum = line[left(i)].wrapping_add(line[right(i)]);
        line[i] = line[i].wrapping_add(sum >> 1);
    }
}
