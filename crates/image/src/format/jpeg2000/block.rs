//! Code blocks of JPEG 2000: bit planes of wavelet coefficients behind an arithmetic coder with contexts
//! (annexes C and D of the standard).

use super::header::Style;

/// Passes that are coded together, and their bytes.
#[derive(Default)]
pub struct Segment {
    pub passes: u32,
    pub data: Vec<u8>,
}

/// Probability, next state after the likely and the unlikely symbol, and whether the likely one changes.
const STATES: [(u32, u8, u8, bool); 47] = [
    (0x5601, 1, 1, true),
    (0x3401, 2, 6, false),
    (0x1801, 3, 9, false),
    (0x0AC1, 4, 12, false),
    (0x0521, 5, 29, false),
    (0x0221, 38, 33, false),
    (0x5601, 7, 6, true),
    (0x5401, 8, 14, false),
    (0x4801, 9, 14, false),
    (0x3801, 10, 14, false),
    (0x3001, 11, 17, false),
    (0x2401, 12, 18, false),
    (0x1C01, 13, 20, false),
    (0x1601, 29, 21, false),
    (0x5601, 15, 14, true),
    (0x5401, 16, 14, false),
    (0x5101, 17, 15, false),
    (0x4801, 18, 16, false),
    (0x3801, 19, 17, false),
    (0x3401, 20, 18, false),
    (0x3001, 21, 19, false),
    (0x2801, 22, 19, false),
    (0x2401, 23, 20, false),
    (0x2201, 24, 21, false),
    (0x1C01, 25, 22, false),
    (0x1801, 26, 23, false),
    (0x1601, 27, 24, false),
    (0x1401, 28, 25, false),
    (0x1201, 29, 26, false),
    (0x1101, 30, 27, false),
    (0x0AC1, 31, 28, false),
    (0x09C1, 32, 29, false),
    (0x08A1, 33, 30, false),
    (0x0521, 34, 31, false),
    (0x0441, 35, 32, false),
    (0x02A1, 36, 33, false),
    (0x0221, 37, 34, false),
    (0x0141, 38, 35, false),
    (0x0111, 39, 36, false),
    (0x0085, 40, 37, false),
    (0x0049, 41, 38, false),
    (0x0025, 42, 39, false),
    (0x0015, 43, 40, false),
    (0x0009, 44, 41, false),
    (0x0005, 45, 42, false),
    (0x0001, 45, 43, false),
    (0x5601, 46, 46, false),
];

const RUN: usize = 17;
const UNIFORM: usize = 18;

/// State and likely symbol of each context.
type Contexts = [(u8, u8); 19];

fn fresh_contexts() -> Contexts {
    let mut contexts = [(0, 0); 19];
    contexts[0].0 = 4;
    contexts[RUN].0 = 3;
    contexts[UNIFORM].0 = 46;
    contexts
}

struct Arithmetic<'a> {
    data: &'a [u8],
    at: usize,
    c: u32,
    a: u32,
    count: u32,
    contexts: Contexts,
}

impl<'a> Arithmetic<'a> {
    fn new(data: &'a [u8], contexts: Contexts) -> Arithmetic<'a> {
        let mut mq = Arithmetic { data, at: 0, c: 0, a: 0x8000, count: 0, contexts };
        mq.c = mq.byte(0) << 16;
        mq.next_byte();
        mq.c <<= 7;
        mq.count -= 7;
        mq
    }

    /// Behind the end there are ones without end.
    fn byte(&self, at: usize) -> u32 {
        self.data.get(at).map_or(0xFF, |&b| u32::from(b))
    }

    fn next_byte(&mut self) {
        if self.byte(self.at) == 0xFF {
            let next = self.byte(self.at + 1);
            if next > 0x8F {
                self.c += 0xFF00;
                self.count = 8;
            } else {
                self.at += 1;
                self.c += next << 9;
                self.count = 7;
            }
        } else {
            self.at += 1;
            self.c += self.byte(self.at) << 8;
            self.count = 8;
        }
    }

    fn decode(&mut self, context: usize) -> u8 {
        let (state, likely) = self.contexts[context];
        let (q, after_likely, after_other, switch) = STATES[usize::from(state)];
        self.a -= q;
        let below = self.c >> 16 < q;
        if !below {
            self.c -= q << 16;
            if self.a & 0x8000 != 0 {
                return likely;
            }
        }
        // The smaller interval belongs to the unlikely symbol, whichever that is.
        let is_likely = (self.a < q) == below;
        if below {
            self.a = q;
        }
        let symbol = if is_likely { likely } else { 1 - likely };
        self.contexts[context] = if is_likely {
            (after_likely, likely)
        } else {
            (after_other, if switch { 1 - likely } else { likely })
        };
        while self.a & 0x8000 == 0 {
            if self.count == 0 {
                self.next_byte();
            }
            self.a <<= 1;
            self.c <<= 1;
            self.count -= 1;
        }
        symbol
    }
}

/// Which filters made a band: low or high along X, and along Y.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Band {
    LowLow,
    HighLow,
    LowHigh,
    HighHigh,
}

/// Raw bits; a byte after 0xFF has seven. After the end there are ones.
struct Raw<'a> {
    data: &'a [u8],
    at: usize,
    held: u8,
    count: u32,
}

impl Raw<'_> {
    fn bit(&mut self) -> u8 {
        if self.count == 0 {
            self.count = if self.held == 0xFF { 7 } else { 8 };
            self.held = self.data.get(self.at).copied().unwrap_or(0xFF);
            self.at += 1;
        }
        self.count -= 1;
        self.held >> self.count & 1
    }
}

struct Block<'a> {
    mq: Arithmetic<'a>,
    /// Where the bits of this pass come from, if they are not coded.
    raw: Option<Raw<'a>>,
    /// Contexts do not see the stripe below.
    causal: bool,
    band: Band,
    width: usize,
    height: usize,
    /// With a frame of one pixel around: 0 not significant, 1 positive, -1 negative.
    signs: Vec<i8>,
    magnitude: Vec<u32>,
    refined: Vec<bool>,
    visited: Vec<bool>,
    /// The lowest plane that each coefficient is known to.
    lowest: Vec<u8>,
}

/// Decodes a block of which the `planes` lowest bit planes are coded; twice its values, so that the middle of what the passes that were
/// left out could have said is a whole number.
pub fn decode(
    segments: &[Segment],
    band: Band,
    width: usize,
    height: usize,
    planes: u32,
    style: Style,
) -> Vec<i64> {
    let framed = (width + 2) * (height + 2);
    let mut block = Block {
        mq: Arithmetic::new(&[], fresh_contexts()),
        raw: None,
        causal: style.causal,
        band,
        width,
        height,
        signs: vec![0; framed],
        magnitude: vec![0; framed],
        refined: vec![false; framed],
        visited: vec![false; framed],
        lowest: vec![0; framed],
    };
    let (mut plane, mut pass) = (planes, 0);
    'all: for segment in segments {
        // The first plane has one pass only, its last kind.
        let is_raw = style.bypass && pass >= 10 && (pass + 2) % 3 != 2;
        block.raw = is_raw.then_some(Raw { data: &segment.data, at: 0, held: 0, count: 0 });
        if !is_raw {
            block.mq = Arithmetic::new(&segment.data, block.mq.contexts);
        }
        for _ in 0..segment.passes {
            let kind = (pass + 2) % 3;
            if kind == 0 || pass == 0 {
                if plane == 0 {
                    break 'all;
                }
                plane -= 1;
            }
            match kind {
                0 => block.significance(plane),
                1 => block.refinement(plane),
                _ => {
                    block.cleanup(plane);
                    if style.marked {
                        (0..4).for_each(|_| {
                            block.mq.decode(UNIFORM);
                        });
                    }
                }
            }
            if style.fresh {
                block.mq.contexts = fresh_contexts();
            }
            pass += 1;
        }
    }
    let mut out = Vec::with_capacity(width * height);
    for y in 0..height {
        for x in 0..width {
            let at = block.place(y, x);
            let known = i64::from(block.magnitude[at]);
            let value = if known == 0 { 0 } else { 2 * known + (1 << block.lowest[at]) };
            out.push(if block.signs[at] < 0 { -value } else { value });
        }
    }
    out
}

impl Block<'_> {
    fn place(&self, y: usize, x: usize) -> usize {
        (y + 1) * (self.width + 2) + x + 1
    }

    /// Whether contexts see the row below a place.
    fn sees_below(&self, at: usize) -> bool {
        // Rows count from 1 within the frame, and stripes have four.
        !(self.causal && (at / (self.width + 2)).is_multiple_of(4))
    }

    /// How many neighbours beside, above and below, and at the corners are significant.
    fn neighbours(&self, at: usize) -> (u32, u32, u32) {
        let row = self.width + 2;
        let set = |i: usize| u32::from(self.signs[i] != 0);
        let mut counts = (set(at - 1) + set(at + 1), set(at - row), set(at - row - 1) + set(at - row + 1));
        if self.sees_below(at) {
            counts.1 += set(at + row);
            counts.2 += set(at + row - 1) + set(at + row + 1);
        }
        counts
    }

    fn zero_context(&self, at: usize) -> usize {
        let (h, v, d) = self.neighbours(at);
        if self.band == Band::HighHigh {
            return match (d, h + v) {
                (3.., _) => 8,
                (2, 1..) => 7,
                (2, 0) => 6,
                (1, 2..) => 5,
                (1, 1) => 4,
                (1, 0) => 3,
                (0, 2..) => 2,
                (0, n) => n as usize,
            };
        }
        let (h, v) = if self.band == Band::HighLow { (v, h) } else { (h, v) };
        match (h, v, d) {
            (2.., _, _) => 8,
            (1, 1.., _) => 7,
            (1, 0, 1..) => 6,
            (1, 0, 0) => 5,
            (0, 2.., _) => 4,
            (0, 1, _) => 3,
            (0, 0, 2..) => 2,
            (0, 0, n) => n as usize,
        }
    }

    /// A bit of this pass.
    fn bit(&mut self, context: usize) -> u8 {
        match &mut self.raw {
            Some(raw) => raw.bit(),
            None => self.mq.decode(context),
        }
    }

    fn decode_sign(&mut self, at: usize) -> i8 {
        if let Some(raw) = &mut self.raw {
            return if raw.bit() == 1 { -1 } else { 1 };
        }
        let row = self.width + 2;
        let below = if self.sees_below(at) { self.signs[at + row] } else { 0 };
        let h = (self.signs[at - 1] + self.signs[at + 1]).clamp(-1, 1);
        let v = (self.signs[at - row] + below).clamp(-1, 1);
        let (context, turn) = match (h, v) {
            (1, 1) => (13, 0),
            (1, 0) => (12, 0),
            (1, _) => (11, 0),
            (0, 1) => (10, 0),
            (0, 0) => (9, 0),
            (0, _) => (10, 1),
            (_, 1) => (11, 1),
            (_, 0) => (12, 1),
            _ => (13, 1),
        };
        if self.mq.decode(context) ^ turn == 1 { -1 } else { 1 }
    }

    fn become_significant(&mut self, at: usize, plane: u32) {
        self.signs[at] = self.decode_sign(at);
        self.magnitude[at] |= 1 << plane;
        self.lowest[at] = plane as u8;
    }

    /// Calls `visit` for every coefficient: stripes of four rows, column by column.
    fn each(&mut self, mut visit: impl FnMut(&mut Self, usize)) {
        for top in (0..self.height).step_by(4) {
            for x in 0..self.width {
                for y in top..(top + 4).min(self.height) {
                    let at = self.place(y, x);
                    visit(self, at);
                }
            }
        }
    }

    fn significance(&mut self, plane: u32) {
        self.each(|b, at| {
            let context = b.zero_context(at);
            if b.signs[at] == 0 && context != 0 {
                if b.bit(context) == 1 {
                    b.become_significant(at, plane);
                }
                b.visited[at] = true;
            }
        });
    }

    fn refinement(&mut self, plane: u32) {
        self.each(|b, at| {
            if b.signs[at] == 0 || b.visited[at] {
                return;
            }
            let context = match (b.refined[at], b.neighbours(at)) {
                (true, _) => 16,
                (false, (0, 0, 0)) => 14,
                (false, _) => 15,
            };
            let bit = b.bit(context);
            b.magnitude[at] |= u32::from(bit) << plane;
            b.refined[at] = true;
            b.lowest[at] = plane as u8;
        });
    }

    fn cleanup(&mut self, plane: u32) {
        for top in (0..self.height).step_by(4) {
            for x in 0..self.width {
                let rows = (self.height - top).min(4);
                let quiet = |b: &Self, y: usize| {
                    let at = b.place(y, x);
                    b.signs[at] == 0 && !b.visited[at] && b.zero_context(at) == 0
                };
                let mut y = top;
                if rows == 4 && (top..top + 4).all(|y| quiet(self, y)) {
                    if self.mq.decode(RUN) == 0 {
                        continue;
                    }
                    let skip = self.mq.decode(UNIFORM) << 1 | self.mq.decode(UNIFORM);
                    y += usize::from(skip);
                    let at = self.place(y, x);
                    self.become_significant(at, plane);
                    y += 1;
                }
                for y in y..top + rows {
                    let at = self.place(y, x);
                    if self.signs[at] == 0 && !self.visited[at] {
                        let context = self.zero_context(at);
                        if self.mq.decode(context) == 1 {
                            self.become_significant(at, plane);
                        }
                    }
                }
            }
        }
        self.visited.fill(false);
    }
}
