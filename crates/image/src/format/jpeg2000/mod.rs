//! JPEG 2000 (ISO/IEC 15444-1) as in DICOM and TIFF files: both wavelets (`wavelet`), tiles, layers, precincts and all five
//! packet orders (`packet`), every style of code blocks (`block`), components and tiles with their own coding (`header`),
//! sub-sampled components. Rare features that are not supported are refused by name.
//!
//! Written here although crates exist: see "Crates that were tried" in ARCHITECTURE.md.

mod block;
mod header;
mod packet;
mod wavelet;

use crate::dtype::Order;
use crate::error::{Parsed, damaged};
use header::{Header, Settings};
use packet::Values;

/// A decoded picture: one plane of values a component, all of the same size.
pub(crate) struct Picture {
    pub width: usize,
    pub height: usize,
    /// Of the component with the most.
    pub bits: u32,
    pub planes: Vec<Vec<i32>>,
}

/// A range along each axis of the grid that all components refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Area {
    x: [usize; 2],
    y: [usize; 2],
}

impl Area {
    fn width(&self) -> usize {
        self.x[1].saturating_sub(self.x[0])
    }

    fn height(&self) -> usize {
        self.y[1].saturating_sub(self.y[0])
    }

    /// The samples of a component that has one for every `step` points of the grid.
    fn every(&self, step: [usize; 2]) -> Area {
        Area { x: self.x.map(|v| v.div_ceil(step[0])), y: self.y.map(|v| v.div_ceil(step[1])) }
    }
}

/// A tile: its settings and its packets.
struct Tile {
    settings: Settings,
    data: Vec<u8>,
}

/// Decodes a codestream, whatever boxes there are around it, of at most `limit` pixels.
pub(crate) fn decode(data: &[u8], limit: usize) -> Parsed<Picture> {
    let Some(start) = data.windows(4).position(|w| w == [0xFF, 0x4F, 0xFF, 0x51]) else {
        return damaged("no JPEG 2000 codestream");
    };
    let stream = &data[start..];
    let (header, settings, at) = header::read(stream, limit)?;
    let tiles = read_tiles(stream, at, &header, &settings)?;
    let whole = header.area.every(header.step);
    let (width, height) = (whole.width(), whole.height());
    let mut planes = vec![vec![0; width * height]; header.components.len()];
    for (number, tile) in tiles.into_iter().enumerate() {
        let Some(tile) = tile else { return damaged(format!("JPEG 2000 tile {number} is missing")) };
        let area = header.tile(number);
        let mut values = packet::decode_tile(&header, &tile.settings, area, &tile.data)?;
        if tile.settings.transform {
            undo_colours(&mut values);
        }
        // Pixels of the tile, in the picture's own coordinates.
        let here = area.every(header.step);
        for ((plane, values), component) in planes.iter_mut().zip(&values).zip(&header.components) {
            let (low, high) = component.range();
            let values: Vec<i32> = match values {
                Values::Whole(v) => v.iter().map(|v| v.saturating_add(component.shift())).collect(),
                Values::Real(v) => {
                    v.iter().map(|v| (v.round_ties_even() as i32).saturating_add(component.shift())).collect()
                }
            };
            let samples = area.every(component.step);
            if values.is_empty() {
                continue;
            }
            let ratio = [component.step[0] / header.step[0], component.step[1] / header.step[1]];
            // The sample that a pixel lies behind; the first one where none does.
            let from = |at: usize, ratio: usize, range: [usize; 2]| {
                (at / ratio).clamp(range[0], range[1] - 1) - range[0]
            };
            for y in here.y[0]..here.y[1] {
                let line = &values[from(y, ratio[1], samples.y) * samples.width()..][..samples.width()];
                let to = &mut plane[(y - whole.y[0]) * width + here.x[0] - whole.x[0]..][..here.width()];
                for (x, to) in (here.x[0]..).zip(to) {
                    *to = line[from(x, ratio[0], samples.x)].clamp(low, high);
                }
            }
        }
    }
    let bits = header.components.iter().map(|c| c.bits).max().unwrap_or(0);
    Ok(Picture { width, height, bits, planes })
}

/// The parts of every tile, put together.
fn read_tiles(stream: &[u8], at: usize, header: &Header, settings: &Settings) -> Parsed<Vec<Option<Tile>>> {
    let be = Order::Big;
    let mut tiles: Vec<Option<Tile>> = (0..header.tiles()).map(|_| None).collect();
    let mut at = at;
    while let Some(head) = stream.get(at..at + 12) {
        if be.u16(head) != 0xFF90 {
            break;
        }
        let (number, length) = (usize::from(be.u16(&head[4..])), be.u32(&head[6..]) as usize);
        let end = if length == 0 { stream.len().saturating_sub(2) } else { at.saturating_add(length) };
        let Some(part) = stream.get(at + 12..end) else { return damaged("a JPEG 2000 tile cut off") };
        let Some(tile) = tiles.get_mut(number) else { return damaged(format!("JPEG 2000 tile {number}")) };
        let tile = tile.get_or_insert_with(|| Tile { settings: settings.clone(), data: Vec::new() });
        tile.data.extend_from_slice(header::read_tile(part, header, &mut tile.settings)?);
        at = end;
    }
    Ok(tiles)
}

/// The colour transform of the first three components, backwards: reversible or not, as their wavelet is.
fn undo_colours(values: &mut [Values]) {
    match values {
        [Values::Whole(a), Values::Whole(b), Values::Whole(c), ..] => {
            for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
                let (y, u, v) = (*a, *b, *c);
                let green = y.wrapping_sub(u.wrapping_add(v) >> 2);
                (*a, *b, *c) = (v.wrapping_add(green), green, u.wrapping_add(green));
            }
        }
        [Values::Real(a), Values::Real(b), Values::Real(c), ..] => {
            for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
                let (y, u, v) = (*a, *b, *c);
                (*a, *b, *c) = (y + 1.402 * v, y - 0.344_136 * u - 0.714_136 * v, y + 1.772 * u);
            }
        }
        _ => {}
    }
}
