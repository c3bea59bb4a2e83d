//! Headers of JPEG 2000 (annex A of the standard): the sizes, and how components are coded, in the whole stream and in single tiles.

use super::Area;
use crate::bytes::check_expansion;
use crate::dtype::Order;
use crate::error::{Parsed, damaged, unsupported};

/// The sizes of the main header.
#[derive(Debug)]
pub struct Header {
    pub area: Area,
    tile: [usize; 2],
    tile_origin: [usize; 2],
    pub components: Vec<Component>,
    /// Points of the grid for a pixel, along X and Y: the least of the components'.
    pub step: [usize; 2],
}

#[derive(Clone, Copy, Debug)]
pub struct Component {
    pub bits: u32,
    signed: bool,
    /// Points of the grid for a sample, along X and Y.
    pub step: [usize; 2],
}

impl Component {
    /// The offset of unsigned values.
    pub fn shift(&self) -> i32 {
        if self.signed { 0 } else { 1 << (self.bits - 1) }
    }

    pub fn range(&self) -> (i32, i32) {
        let low = self.shift() - (1 << (self.bits - 1));
        (low, low + ((1 << self.bits) - 1))
    }
}

/// How a tile is coded.
#[derive(Clone, Debug)]
pub struct Settings {
    pub order: u8,
    pub layers: usize,
    /// The first three components are luminance and colour differences.
    pub transform: bool,
    pub start_marks: bool,
    pub end_marks: bool,
    /// One a component.
    pub coding: Vec<Coding>,
    pub quant: Vec<Quant>,
}

/// How a component is coded.
#[derive(Clone, Debug)]
pub struct Coding {
    pub levels: usize,
    /// Logarithms of a block's width and height.
    pub block: [u32; 2],
    pub style: Style,
    pub reversible: bool,
    /// Logarithms of the precincts' width and height, one pair a resolution.
    pub precincts: Vec<[u32; 2]>,
}

/// The style of code blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Lower planes are stored as bits.
    pub bypass: bool,
    /// Every pass begins with fresh contexts.
    pub fresh: bool,
    /// Every pass has a segment of its own.
    pub apart: bool,
    /// Contexts do not see the stripe below.
    pub causal: bool,
    /// A symbol ends each plane.
    pub marked: bool,
}

/// How a component is quantised: exponent and mantissa of each band, the lowest first.
#[derive(Clone, Debug)]
pub struct Quant {
    pub guard: u32,
    derived: bool,
    steps: Vec<(u32, u32)>,
}

impl Quant {
    /// Exponent and mantissa of a band of a resolution.
    pub fn step(&self, resolution: usize, band: usize) -> Parsed<(u32, u32)> {
        if self.derived {
            let &(exponent, mantissa) = self.steps.first().unwrap_or(&(0, 0));
            return Ok((exponent.saturating_sub(resolution.saturating_sub(1) as u32), mantissa));
        }
        let which = if resolution == 0 { 0 } else { 3 * (resolution - 1) + 1 + band };
        match self.steps.get(which) {
            Some(&step) => Ok(step),
            None => damaged("JPEG 2000 bands without an exponent"),
        }
    }
}

impl Header {
    fn across(&self) -> usize {
        (self.area.x[1] - self.tile_origin[0]).div_ceil(self.tile[0])
    }

    pub fn tiles(&self) -> usize {
        self.across() * (self.area.y[1] - self.tile_origin[1]).div_ceil(self.tile[1])
    }

    /// The area of a tile.
    pub fn tile(&self, number: usize) -> Area {
        let bound = |i: usize, axis: usize, range: [usize; 2]| {
            let start = self.tile_origin[axis] + i * self.tile[axis];
            [start.max(range[0]), (start + self.tile[axis]).min(range[1])]
        };
        let (x, y) = (number % self.across(), number / self.across());
        Area { x: bound(x, 0, self.area.x), y: bound(y, 1, self.area.y) }
    }
}

type Marker<'a> = (u16, &'a [u8]);

/// The markers from `at` on up to `last`, and where that is.
fn markers(stream: &[u8], at: usize, last: u16) -> Parsed<(Vec<Marker<'_>>, usize)> {
    let (mut at, mut list) = (at, Vec::new());
    loop {
        let Some(marker) = stream.get(at..at + 2).map(|b| Order::Big.u16(b)) else {
            return damaged("a JPEG 2000 header cut off");
        };
        if marker == last {
            return Ok((list, at));
        }
        let length = stream.get(at + 2..at + 4).map_or(2, |b| usize::from(Order::Big.u16(b)).max(2));
        let Some(body) = stream.get(at + 4..at + 2 + length) else {
            return damaged("a JPEG 2000 header cut off");
        };
        match marker {
            0xFF5E => return unsupported("JPEG 2000 with regions of interest"),
            0xFF5F => return unsupported("JPEG 2000 with changes of order"),
            0xFF60 | 0xFF61 => return unsupported("JPEG 2000 with packed packet headers"),
            0xFF50 if body.get(..4).is_some_and(|b| b[1] & 2 != 0) => {
                return unsupported("High-Throughput JPEG 2000");
            }
            _ => list.push((marker, body)),
        }
        at += 2 + length;
    }
}

/// The main header, the settings of tiles that have none of their own, and where the first tile is.
pub fn read(stream: &[u8], limit: usize) -> Parsed<(Header, Settings, usize)> {
    let (list, at) = markers(stream, 2, 0xFF90)?;
    let of = |kind: u16| list.iter().find(|(marker, _)| *marker == kind).map(|(_, body)| *body);
    let (Some(sizes), Some(coding), Some(quant)) = (of(0xFF51), of(0xFF52), of(0xFF5C)) else {
        return damaged("a JPEG 2000 header without sizes, coding or quantisation");
    };
    let header = read_sizes(sizes, limit)?;
    let count = header.components.len();
    check_expansion(
        stream.len() as u64,
        header.area.width() as u64 * header.area.height() as u64 * 4 * count as u64,
    )?;
    let mut settings = Settings {
        order: 0,
        layers: 0,
        transform: false,
        start_marks: false,
        end_marks: false,
        coding: vec![read_coding(coding.get(5..).unwrap_or_default(), false)?; count],
        quant: vec![read_quant(quant)?; count],
    };
    apply(&list, &header, &mut settings)?;
    Ok((header, settings, at))
}

/// What follows a tile part's own header, which may change the tile's settings.
pub fn read_tile<'a>(part: &'a [u8], header: &Header, settings: &mut Settings) -> Parsed<&'a [u8]> {
    let (list, at) = markers(part, 0, 0xFF93)?;
    apply(&list, header, settings)?;
    Ok(&part[at + 2..])
}

/// Takes settings for all components first, then those for single ones, which go before them.
fn apply(list: &[Marker], header: &Header, settings: &mut Settings) -> Parsed<()> {
    for (marker, body) in list {
        match marker {
            0xFF52 => {
                let Some((common, rest)) = body.split_at_checked(5) else {
                    return damaged("a JPEG 2000 header cut off");
                };
                if common[1] > 4 {
                    return damaged(format!("JPEG 2000 with packets in order {}", common[1]));
                }
                settings.order = common[1];
                settings.layers = usize::from(Order::Big.u16(&common[2..]));
                settings.transform = common[4] == 1;
                settings.start_marks = common[0] & 2 != 0;
                settings.end_marks = common[0] & 4 != 0;
                settings.coding.fill(read_coding(rest, common[0] & 1 == 1)?);
            }
            0xFF5C => settings.quant.fill(read_quant(body)?),
            _ => {}
        }
    }
    for (marker, body) in list {
        let (Some(&component), true) = (body.first(), matches!(marker, 0xFF53 | 0xFF5D)) else { continue };
        let component = usize::from(component);
        if component >= header.components.len() {
            return damaged(format!("JPEG 2000 component {component} is not there"));
        }
        match (marker, &body[1..]) {
            (0xFF53, [flags, rest @ ..]) => settings.coding[component] = read_coding(rest, flags & 1 == 1)?,
            (0xFF5D, rest) => settings.quant[component] = read_quant(rest)?,
            _ => return damaged("a JPEG 2000 header cut off"),
        }
    }
    let alike = settings.coding.windows(2).take(2).all(|w| w[0].reversible == w[1].reversible);
    let steps = header.components.windows(2).take(2).all(|w| w[0].step == w[1].step);
    if settings.transform && !(header.components.len() >= 3 && alike && steps) {
        return damaged("JPEG 2000 colours of components that differ");
    }
    Ok(())
}

fn read_sizes(s: &[u8], limit: usize) -> Parsed<Header> {
    let be = Order::Big;
    if s.len() < 36 {
        return damaged("a JPEG 2000 header cut off");
    }
    let long = |n: usize| be.u32(&s[2 + 4 * n..]) as usize;
    let count = usize::from(be.u16(&s[34..]));
    let area = Area { x: [long(2), long(0)], y: [long(3), long(1)] };
    let (tile, tile_origin) = ([long(4), long(5)], [long(6), long(7)]);
    let sensible = area.x[0] < area.x[1]
        && area.y[0] < area.y[1]
        && tile[0] > 0
        && tile[1] > 0
        && tile_origin[0] <= area.x[0]
        && tile_origin[1] <= area.y[0]
        && tile_origin[0] + tile[0] > area.x[0]
        && tile_origin[1] + tile[1] > area.y[0]
        && (1..=16).contains(&count)
        && area.x[1] < 1 << 24
        && area.y[1] < 1 << 24
        && s.len() >= 36 + 3 * count;
    if !sensible {
        return damaged("JPEG 2000 sizes that make no sense");
    }
    let mut components = Vec::new();
    for c in s[36..36 + 3 * count].chunks_exact(3) {
        let bits = u32::from(c[0] & 0x7F) + 1;
        if bits > 24 {
            return unsupported(format!("JPEG 2000 with {bits} bits"));
        }
        let step = [usize::from(c[1]), usize::from(c[2])];
        components.push(Component { bits, signed: c[0] & 0x80 != 0, step });
    }
    let least = |axis: usize| components.iter().map(|c| c.step[axis]).min().unwrap_or(1);
    let step = [least(0), least(1)];
    if step.contains(&0) {
        return damaged("JPEG 2000 components without a size");
    }
    if components.iter().any(|c| c.step[0] % step[0] != 0 || c.step[1] % step[1] != 0) {
        return unsupported("JPEG 2000 components sampled by factors that do not divide each other");
    }
    let header = Header { area, tile, tile_origin, components, step };
    let whole = header.area.every(step);
    if whole.width() * whole.height() > limit || whole.width() * whole.height() == 0 {
        return damaged(format!("a JPEG 2000 picture of {} x {} pixels", whole.width(), whole.height()));
    }
    if header.tiles() > 65_535 {
        return damaged(format!("{} JPEG 2000 tiles", header.tiles()));
    }
    Ok(header)
}

/// What the markers for all components and for one have in common.
fn read_coding(body: &[u8], has_precincts: bool) -> Parsed<Coding> {
    let Some((head, sizes)) = body.split_at_checked(5) else { return damaged("a JPEG 2000 header cut off") };
    let levels = usize::from(head[0]);
    let block = [u32::from(head[1] & 15) + 2, u32::from(head[2] & 15) + 2];
    if levels > 32 || block[0] > 10 || block[1] > 10 || block[0] + block[1] > 12 || head[4] > 1 {
        return damaged("a JPEG 2000 coding style that makes no sense");
    }
    if head[3] & 0xC0 != 0 {
        return unsupported(format!("JPEG 2000 code blocks of style {}", head[3]));
    }
    let bit = |n: u8| head[3] >> n & 1 == 1;
    let style = Style { bypass: bit(0), fresh: bit(1), apart: bit(2), causal: bit(3), marked: bit(5) };
    let mut precincts = vec![[15, 15]; levels + 1];
    if has_precincts {
        let Some(sizes) = sizes.get(..levels + 1) else { return damaged("JPEG 2000 precincts cut off") };
        precincts = sizes.iter().map(|&p| [u32::from(p & 15), u32::from(p >> 4)]).collect();
        if precincts[1..].iter().any(|p| p[0] == 0 || p[1] == 0) {
            return damaged("JPEG 2000 precincts without a size");
        }
    }
    Ok(Coding { levels, block, style, reversible: head[4] == 1, precincts })
}

fn read_quant(body: &[u8]) -> Parsed<Quant> {
    let Some((&style, sizes)) = body.split_first() else { return damaged("a JPEG 2000 header cut off") };
    let steps = match style & 31 {
        0 => sizes.iter().map(|&e| (u32::from(e >> 3), 0)).collect(),
        1 | 2 => {
            let step = |b: &[u8]| (u32::from(b[0] >> 3), u32::from(Order::Big.u16(b)) & 0x7FF);
            sizes.chunks_exact(2).map(step).collect()
        }
        other => return damaged(format!("JPEG 2000 quantisation of style {other}")),
    };
    Ok(Quant { guard: u32::from(style >> 5), derived: style & 31 == 1, steps })
}
