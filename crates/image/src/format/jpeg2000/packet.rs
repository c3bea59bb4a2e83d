//! Packets of JPEG 2000: which code blocks have data in which layer (annex B of the standard), and the decoding of a tile.

use super::Area;
use super::block::{self, Band, Segment};
use super::header::{Coding, Header, Quant, Settings, Style};
use super::wavelet::{Irreversible, Reversible, Wavelet, join};
use crate::error::{Parsed, damaged};

/// The values of a component in a tile.
pub enum Values {
    Whole(Vec<i32>),
    Real(Vec<f32>),
}

/// Bits of a packet's header; a byte behind 0xFF has seven.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    held: u8,
    count: u32,
}

impl Bits<'_> {
    fn bit(&mut self) -> Parsed<u32> {
        if self.count == 0 {
            let stuffed = self.held == 0xFF;
            let Some(&byte) = self.data.get(self.at) else { return damaged("a JPEG 2000 packet cut off") };
            self.at += 1;
            self.held = byte;
            self.count = if stuffed { 7 } else { 8 };
        }
        self.count -= 1;
        Ok(u32::from(self.held >> self.count & 1))
    }

    fn take(&mut self, n: u32) -> Parsed<u32> {
        (0..n).try_fold(0, |value, _| Ok(value << 1 | self.bit()?))
    }

    /// To the next whole byte, and over the one that follows a last 0xFF.
    fn align(&mut self) {
        if self.held == 0xFF && self.at > 0 {
            self.at += 1;
        }
        self.count = 0;
        self.held = 0;
    }
}

/// A quadtree of minima: levels from the leaves up, each with its width.
struct TagTree {
    levels: Vec<(usize, Vec<Node>)>,
}

#[derive(Clone, Default)]
struct Node {
    low: u32,
    known: bool,
}

impl TagTree {
    fn new(width: usize, height: usize) -> TagTree {
        let (mut w, mut h) = (width.max(1), height.max(1));
        let mut levels = vec![(w, vec![Node::default(); w * h])];
        while w * h > 1 {
            (w, h) = (w.div_ceil(2), h.div_ceil(2));
            levels.push((w, vec![Node::default(); w * h]));
        }
        TagTree { levels }
    }

    /// Whether the leaf's value is below `threshold`; reads as much as that takes.
    fn below(&mut self, bits: &mut Bits, x: usize, y: usize, threshold: u32) -> Parsed<bool> {
        let mut low = 0;
        let mut known = false;
        for level in (0..self.levels.len()).rev() {
            let (width, nodes) = &mut self.levels[level];
            let node = &mut nodes[(y >> level) * *width + (x >> level)];
            node.low = node.low.max(low);
            while !node.known && node.low < threshold {
                if bits.bit()? == 1 {
                    node.known = true;
                } else {
                    node.low += 1;
                }
            }
            (low, known) = (node.low, node.known);
            if !known {
                return Ok(false);
            }
        }
        Ok(known && low < threshold)
    }
}

struct CodeBlock {
    /// Place and size in the band.
    x: [usize; 2],
    y: [usize; 2],
    included: bool,
    zero_planes: u32,
    length_bits: u32,
    passes: u32,
    segments: Vec<Segment>,
}

/// The blocks of one band that lie in one precinct.
struct Cell {
    across: usize,
    blocks: Vec<CodeBlock>,
    inclusion: TagTree,
    zeros: TagTree,
}

struct Resolution {
    x: [usize; 2],
    y: [usize; 2],
    /// How many precincts there are across and down, and the logarithms of their size.
    grid: [usize; 2],
    size: [u32; 2],
    bands: Vec<BandAt>,
}

struct BandAt {
    band: Band,
    area: Area,
    planes: u32,
    /// What a value of one stands for.
    step: f32,
    /// One a precinct.
    cells: Vec<Cell>,
}

fn ceil_shift(v: usize, shift: usize) -> usize {
    if shift >= usize::BITS as usize - 1 { usize::from(v > 0) } else { v.div_ceil(1 << shift) }
}

/// The values of a tile, one vector a component.
pub fn decode_tile(header: &Header, settings: &Settings, area: Area, data: &[u8]) -> Parsed<Vec<Values>> {
    let mut tile = Vec::new();
    // A packet takes a byte at least, and each precinct has packets.
    let mut room = data.len().max(1 << 16);
    for ((component, coding), quant) in header.components.iter().zip(&settings.coding).zip(&settings.quant) {
        tile.push(resolutions(coding, quant, component.bits, area.every(component.step), &mut room)?);
    }
    let mut at = 0;
    for (layer, r, c, p) in sequence(header, settings, &tile, area, data.len())? {
        if at >= data.len() {
            break;
        }
        at = read_packet(settings, settings.coding[c].style, &mut tile[c][r], p, layer as u32, data, at)?;
    }
    let compose = |(component, coding): (&Vec<Resolution>, &Coding)| match coding.reversible {
        // What was left out is taken to be in the middle; halves are cut off.
        true => Values::Whole(compose::<Reversible>(component, coding.style, |v, _| (v / 2) as i32)),
        false => {
            Values::Real(compose::<Irreversible>(component, coding.style, |v, step| v as f32 * (0.5 * step)))
        }
    };
    Ok(tile.iter().zip(&settings.coding).map(compose).collect())
}

fn resolutions(
    coding: &Coding,
    quant: &Quant,
    bits: u32,
    area: Area,
    room: &mut usize,
) -> Parsed<Vec<Resolution>> {
    let (levels, x, y) = (coding.levels, area.x, area.y);
    let mut list = Vec::new();
    for r in 0..=levels {
        let down = |v: [usize; 2]| v.map(|v| ceil_shift(v, levels - r));
        let (rx, ry) = (down(x), down(y));
        let size = coding.precincts[r];
        let count = |v: [usize; 2], log: u32| {
            if v[1] > v[0] { ceil_shift(v[1], log as usize) - (v[0] >> log) } else { 0 }
        };
        let grid = [count(rx, size[0]), count(ry, size[1])];
        let Some(left) = room.checked_sub(grid[0].saturating_mul(grid[1])) else {
            return damaged("more JPEG 2000 precincts than the data have packets for");
        };
        *room = left;
        let mut bands = Vec::new();
        for number in 0..if r == 0 { 1 } else { 3 } {
            let (band, ox, oy, gain) = match (r, number) {
                (0, _) => (Band::LowLow, 0, 0, 0),
                (_, 0) => (Band::HighLow, 1, 0, 1),
                (_, 1) => (Band::LowHigh, 0, 1, 1),
                _ => (Band::HighHigh, 1, 1, 2),
            };
            let shift = if r == 0 { levels } else { levels - r + 1 };
            let bound = |v: [usize; 2], o: usize| {
                v.map(|v| {
                    if o == 1 {
                        ceil_shift(v.saturating_sub(1 << (shift - 1).min(40)), shift)
                    } else {
                        ceil_shift(v, shift)
                    }
                })
            };
            let (bx, by) = (bound(x, ox), bound(y, oy));
            let (exponent, mantissa) = quant.step(r, number)?;
            let planes = (quant.guard + exponent).saturating_sub(1);
            if planes > 31 {
                return damaged(format!("{planes} JPEG 2000 bit planes"));
            }
            let step = 2f32.powi((bits + gain) as i32 - exponent as i32) * (1.0 + mantissa as f32 / 2048.0);
            let half = u32::from(r > 0);
            let cell = [size[0] - half, size[1] - half];
            let log = [coding.block[0].min(cell[0]), coding.block[1].min(cell[1])];
            let mut cells = Vec::new();
            for p in 0..grid[0] * grid[1] {
                let (px, py) = (p % grid[0] + (rx[0] >> size[0]), p / grid[0] + (ry[0] >> size[1]));
                let part =
                    |i: usize, log: u32, b: [usize; 2]| [(i << log).max(b[0]), ((i + 1) << log).min(b[1])];
                cells.push(make_cell(part(px, cell[0], bx), part(py, cell[1], by), log));
            }
            bands.push(BandAt { band, area: Area { x: bx, y: by }, planes, step, cells });
        }
        list.push(Resolution { x: rx, y: ry, grid, size, bands });
    }
    Ok(list)
}

fn make_cell(x: [usize; 2], y: [usize; 2], log: [u32; 2]) -> Cell {
    if x[0] >= x[1] || y[0] >= y[1] {
        return Cell {
            across: 0,
            blocks: Vec::new(),
            inclusion: TagTree::new(0, 0),
            zeros: TagTree::new(0, 0),
        };
    }
    let range = |v: [usize; 2], log: u32| (v[0] >> log, ceil_shift(v[1], log as usize));
    let (columns, rows) = (range(x, log[0]), range(y, log[1]));
    let mut blocks = Vec::new();
    for j in rows.0..rows.1 {
        for i in columns.0..columns.1 {
            blocks.push(CodeBlock {
                x: [(i << log[0]).max(x[0]), ((i + 1) << log[0]).min(x[1])],
                y: [(j << log[1]).max(y[0]), ((j + 1) << log[1]).min(y[1])],
                included: false,
                zero_planes: 0,
                length_bits: 3,
                passes: 0,
                segments: Vec::new(),
            });
        }
    }
    let (across, down) = (columns.1 - columns.0, rows.1 - rows.0);
    Cell { across, blocks, inclusion: TagTree::new(across, down), zeros: TagTree::new(across, down) }
}

/// Layer, resolution, component and precinct of every packet, in the order of the stream.
fn sequence(
    header: &Header,
    settings: &Settings,
    tile: &[Vec<Resolution>],
    area: Area,
    length: usize,
) -> Parsed<Vec<(usize, usize, usize, usize)>> {
    let layers = settings.layers;
    let mut all = Vec::new();
    // Every precinct with the place in the picture at which its turn comes.
    for (c, resolutions) in tile.iter().enumerate() {
        let step = header.components[c].step;
        for (r, res) in resolutions.iter().enumerate() {
            for p in 0..res.grid[0] * res.grid[1] {
                let shift = settings.coding[c].levels - r;
                let place = |i: usize, log: u32, low: usize, first: usize, step: usize| {
                    let index = i + (first >> log);
                    ((index << log) << shift.min(32)).saturating_mul(step).max(low)
                };
                let px = place(p % res.grid[0], res.size[0], area.x[0], res.x[0], step[0]);
                let py = place(p / res.grid[0], res.size[1], area.y[0], res.y[0], step[1]);
                all.push((r, c, p, py, px));
            }
        }
    }
    if all.len().saturating_mul(layers) > length.max(1 << 18) {
        return damaged("more JPEG 2000 packets than the data can hold");
    }
    let mut packets: Vec<(usize, usize, usize, usize, usize, usize)> = Vec::new();
    for l in 0..layers {
        packets.extend(all.iter().map(|&(r, c, p, py, px)| (l, r, c, p, py, px)));
    }
    match settings.order {
        0 => packets.sort_by_key(|&(l, r, c, p, ..)| (l, r, c, p)),
        1 => packets.sort_by_key(|&(l, r, c, p, ..)| (r, l, c, p)),
        2 => packets.sort_by_key(|&(l, r, c, p, py, px)| (r, py, px, c, p, l)),
        3 => packets.sort_by_key(|&(l, r, c, p, py, px)| (py, px, c, r, p, l)),
        _ => packets.sort_by_key(|&(l, r, c, p, py, px)| (c, py, px, r, p, l)),
    }
    Ok(packets.into_iter().map(|(l, r, c, p, ..)| (l, r, c, p)).collect())
}

fn read_packet(
    settings: &Settings,
    style: Style,
    resolution: &mut Resolution,
    precinct: usize,
    layer: u32,
    data: &[u8],
    start: usize,
) -> Parsed<usize> {
    let mut start = start;
    if settings.start_marks && data.get(start..start + 2) == Some(&[0xFF, 0x91]) {
        start += 6;
    }
    let mut bits = Bits { data, at: start, held: 0, count: 0 };
    // Band, block, segment and length of what follows the header.
    let mut bodies: Vec<(usize, usize, usize, usize)> = Vec::new();
    if bits.bit()? == 1 {
        for (b, band) in resolution.bands.iter_mut().enumerate() {
            let planes = band.planes;
            let cell = &mut band.cells[precinct];
            for n in 0..cell.blocks.len() {
                let (i, j) = (n % cell.across, n / cell.across);
                let first = !cell.blocks[n].included;
                let here = match first {
                    true => cell.inclusion.below(&mut bits, i, j, layer + 1)?,
                    false => bits.bit()? == 1,
                };
                if !here {
                    continue;
                }
                if first {
                    let mut zeros = 0;
                    while !cell.zeros.below(&mut bits, i, j, zeros + 1)? {
                        zeros += 1;
                        if zeros > planes {
                            return damaged("a JPEG 2000 block with too many empty planes");
                        }
                    }
                    cell.blocks[n].included = true;
                    cell.blocks[n].zero_planes = zeros;
                }
                let passes = read_passes(&mut bits)?;
                let block = &mut cell.blocks[n];
                while bits.bit()? == 1 {
                    block.length_bits += 1;
                    if block.length_bits > 31 {
                        return damaged("a JPEG 2000 block of absurd length");
                    }
                }
                let mut left = passes;
                while left > 0 {
                    let (segment, room) = block.segment(style);
                    let count = left.min(room);
                    let width = block.length_bits + count.ilog2();
                    if width > 31 {
                        return damaged("a JPEG 2000 block of absurd length");
                    }
                    bodies.push((b, n, segment, bits.take(width)? as usize));
                    block.segments[segment].passes += count;
                    block.passes += count;
                    left -= count;
                }
            }
        }
    }
    bits.align();
    let mut at = bits.at;
    if settings.end_marks && data.get(at..at + 2) == Some(&[0xFF, 0x92]) {
        at += 2;
    }
    for (b, n, segment, length) in bodies {
        let Some(body) = at.checked_add(length).and_then(|end| data.get(at..end)) else {
            return damaged("a JPEG 2000 packet cut off");
        };
        resolution.bands[b].cells[precinct].blocks[n].segments[segment].data.extend_from_slice(body);
        at += length;
    }
    Ok(at)
}

/// How many passes a block gets: short codes for few.
fn read_passes(bits: &mut Bits) -> Parsed<u32> {
    if bits.bit()? == 0 {
        return Ok(1);
    }
    if bits.bit()? == 0 {
        return Ok(2);
    }
    let two = bits.take(2)?;
    if two < 3 {
        return Ok(3 + two);
    }
    let five = bits.take(5)?;
    if five < 31 {
        return Ok(6 + five);
    }
    Ok(37 + bits.take(7)?)
}

impl CodeBlock {
    /// The segment that the next pass belongs to, and how many passes it has room for.
    fn segment(&mut self, style: Style) -> (usize, u32) {
        let most = |number: usize| match (style.apart, style.bypass, number) {
            (true, ..) => 1,
            (_, false, _) => u32::MAX,
            // Ten passes are coded; then come two of bits and a coded one by turns.
            (_, _, 0) => 10,
            (_, _, n) => 1 + (n % 2) as u32,
        };
        let last = self.segments.len().wrapping_sub(1);
        if self.segments.last().is_none_or(|s| s.passes >= most(last)) {
            self.segments.push(Segment::default());
        }
        let last = self.segments.len() - 1;
        (last, most(last) - self.segments[last].passes)
    }
}

/// Blocks into bands, bands into the picture.
fn compose<W: Wavelet>(
    resolutions: &[Resolution],
    style: Style,
    value: impl Fn(i64, f32) -> W::Value,
) -> Vec<W::Value> {
    let band_values = |r: usize, number: usize| -> Vec<W::Value> {
        let band = &resolutions[r].bands[number];
        let (area, width) = (band.area, band.area.width());
        let mut out = vec![W::Value::default(); width * area.height()];
        for b in band.cells.iter().flat_map(|c| &c.blocks).filter(|b| b.passes > 0) {
            let (w, h) = (b.x[1] - b.x[0], b.y[1] - b.y[0]);
            let planes = band.planes.saturating_sub(b.zero_planes);
            let values = block::decode(&b.segments, band.band, w, h, planes, style);
            for (row, line) in values.chunks_exact(w).enumerate() {
                let to = (b.y[0] - area.y[0] + row) * width + b.x[0] - area.x[0];
                out[to..to + w].iter_mut().zip(line).for_each(|(to, &v)| *to = value(v, band.step));
            }
        }
        out
    };
    let mut low = band_values(0, 0);
    for r in 1..resolutions.len() {
        let bands = [low, band_values(r, 0), band_values(r, 1), band_values(r, 2)];
        low = join::<W>(&bands, Area { x: resolutions[r].x, y: resolutions[r].y });
    }
    low
}
