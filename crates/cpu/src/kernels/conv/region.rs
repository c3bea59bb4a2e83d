//! Blocks of output pixels and the patch of input that each reads.
//!
//! A task copies its patch into scratch once, rows of pixels with all their channels, padded,
//! concatenated and normalised on the way. The products then read the patch where it lies: the taps
//! along x of one pixel are a single run of memory, so nothing is repeated for overlapping taps.

use super::geometry::Phase;
use super::source::{Source, copy};
use crate::gemm::{MAX_TILE_ROWS, Segment, store_len};
use crate::simd::{Kernel, Level, Simd};

/// Values that a block writes at most, pixels along x, and values of its patch.
const SUMS: usize = 32 * 1024;
const MAX_COLUMNS: usize = 128;
const PATCH_VALUES: usize = 64 * 1024;
/// Blocks that there should be, so that threads finish together.
const FEW_BLOCKS: usize = 12;
/// A segment is not longer, so that the reduction can be cut between segments.
const MAX_SEGMENT: usize = 512;

/// A phase cut into blocks.
pub(super) struct Region {
    pub phase: Phase,
    /// Channels of a pixel of the patch.
    pub depth: usize,
    /// Rows and columns of a block of output pixels.
    pub rows: usize,
    pub columns: usize,
    down: usize,
    across: usize,
    /// Rows and columns of input in the patch; it has a plane for each tap along z.
    patch_rows: usize,
    patch_columns: usize,
    /// The reduction of a pixel, from where its first tap reads.
    pub segments: Vec<Segment>,
}

/// A rectangle of output pixels, in the phase's numbering.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub n: usize,
    z: usize,
    y: usize,
    x: usize,
    pub rows: usize,
    pub columns: usize,
}

impl Region {
    /// A block reads `depth` channels a pixel and writes `width`, which `shares` tasks may share: blocks need not be many then, and each
    /// reads all weights. Where a row is cut, it is into whole tiles of `tile` pixels.
    pub fn new(phase: Phase, depth: usize, width: usize, shares: usize, tile: usize) -> Region {
        let [z, y, x] = phase.axes.each_ref();
        let (planes, high) = (z.taps.len(), y.span());
        let wide = |columns: usize| (columns - 1) * x.pace + x.span();
        let mut columns = x.count;
        if columns > MAX_COLUMNS {
            columns = columns.div_ceil(columns.div_ceil(MAX_COLUMNS)).next_multiple_of(tile);
        }
        while columns > 16 && planes * high * wide(columns) * depth > PATCH_VALUES {
            columns = columns.div_ceil(2);
        }
        let across = x.count.div_ceil(columns);
        let tall = |rows: usize| (rows - 1) * y.pace + high;
        let fits = |rows: usize| {
            let blocks = phase.n * z.count * across * y.count.div_ceil(rows);
            rows * columns * width <= SUMS
                && planes * tall(rows) * wide(columns) * depth <= PATCH_VALUES
                && blocks * shares >= FEW_BLOCKS
        };
        let rows = (1..=y.count).take_while(|&r| r == 1 || fits(r)).last().unwrap_or(1);
        let rows = y.count.div_ceil(y.count.div_ceil(rows));
        let (patch_rows, patch_columns) = (tall(rows), wide(columns));
        let down = y.count.div_ceil(rows);
        let segments = segments(&phase, depth, patch_rows, patch_columns);
        Region { phase, depth, rows, columns, down, across, patch_rows, patch_columns, segments }
    }

    /// Values of the whole reduction.
    pub fn reduction(&self) -> usize {
        self.phase.taps() * self.depth
    }

    pub fn blocks(&self) -> usize {
        self.phase.n * self.phase.axes[0].count * self.down * self.across
    }

    pub fn block(&self, i: usize) -> Block {
        let (x, rest) = (i % self.across * self.columns, i / self.across);
        let (y, rest) = (rest % self.down * self.rows, rest / self.down);
        let [az, ay, ax] = self.phase.axes.each_ref();
        Block {
            n: rest / az.count,
            z: rest % az.count,
            y,
            x,
            rows: self.rows.min(ay.count - y),
            columns: self.columns.min(ax.count - x),
        }
    }

    /// From output pixel to output pixel along x, and down a row, in the patch.
    pub fn column_step(&self) -> usize {
        self.phase.axes[2].pace * self.depth
    }

    pub fn row_step(&self) -> usize {
        self.phase.axes[1].pace * self.patch_columns * self.depth
    }

    /// Scratch for a patch, with room to read over its end by a tile and a few vectors.
    pub fn patch_len(&self) -> usize {
        let planes = self.phase.axes[0].taps.len();
        let pixels = planes * self.patch_rows * self.patch_columns;
        (pixels * self.depth + MAX_TILE_ROWS * self.column_step() + 64).next_multiple_of(16)
    }

    /// The first output pixel of row `row` of a block, and the step to the next.
    pub fn output(&self, block: &Block, row: usize) -> (usize, usize) {
        let [z, y, x] = self.phase.axes.each_ref();
        let oz = z.first + block.z * z.step;
        let oy = y.first + (block.y + row) * y.step;
        let ox = x.first + block.x * x.step;
        (((block.n * z.output + oz) * y.output + oy) * x.output + ox, x.step)
    }

    /// The source itself as the patch of a block, with the step from pixel to pixel: where each
    /// pixel reads only itself and a tile over the end stays in the tensor.
    pub fn direct(&self, source: &Source, channel: usize, block: &Block) -> Option<(*const f32, usize)> {
        let part = source.direct().filter(|_| self.phase.is_plain())?;
        let pixels = self.phase.axes[2].count;
        let first = block.n * pixels + block.x;
        let fits = first + block.columns + MAX_TILE_ROWS <= self.phase.n * pixels;
        fits.then(|| (part.data.wrapping_add(first * part.stride + channel), part.stride))
    }

    /// Copies the patch of a block, for the channels from `channel`.
    ///
    /// # Safety
    /// The source holds the image, `dst` has `patch_len` values.
    pub unsafe fn fill(&self, level: Level, source: &Source, channel: usize, block: &Block, dst: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { level.dispatch(Fill { region: self, source, channel, block, dst }) };
    }
}

/// Runs of taps that lie side by side in the patch, cut where they are long.
fn segments(phase: &Phase, depth: usize, rows: usize, columns: usize) -> Vec<Segment> {
    let [z, y, x] = phase.axes.each_ref();
    let mut runs: Vec<Segment> = Vec::new();
    for plane in 0..z.taps.len() {
        for ty in &y.taps {
            for (i, tx) in x.taps.iter().enumerate() {
                let row = plane * rows + (ty.offset - y.low()) as usize;
                let offset = (row * columns + (tx.offset - x.low()) as usize) * depth;
                match runs.last_mut() {
                    Some(run) if i > 0 && run.offset + run.len == offset => run.len += depth,
                    _ => runs.push(Segment { offset, len: depth }),
                }
            }
        }
    }
    let cut = |run: Segment| {
        let len = run.len.div_ceil(run.len.div_ceil(MAX_SEGMENT)).next_multiple_of(16);
        (0..run.len)
            .step_by(len)
            .map(move |at| Segment { offset: run.offset + at, len: len.min(run.len - at) })
    };
    runs.into_iter().flat_map(cut).collect()
}

struct Fill<'a> {
    region: &'a Region,
    source: &'a Source,
    channel: usize,
    block: &'a Block,
    dst: *mut f32,
}

impl Fill<'_> {
    /// One row of the patch, of which columns `low .. high` are in the image, from `pixel` on.
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, s: S, pixel: usize, low: usize, high: usize, dst: *mut f32) {
        let depth = self.region.depth;
        // SAFETY: the promise of `Region::fill`.
        unsafe {
            zero(s, dst, low * depth);
            zero(s, dst.add(high * depth), (self.region.patch_columns - high) * depth);
            let dst = dst.add(low * depth);
            if let Some(data) = self.source.contiguous()
                && self.source.channels() == depth
            {
                return copy(s, data.add(pixel * depth), dst, (high - low) * depth);
            }
            for i in 0..high - low {
                self.source.read(s, self.block.n, pixel + i, self.channel, depth, dst.add(i * depth));
            }
        }
    }
}

impl Kernel for Fill<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let (r, b) = (self.region, self.block);
        let [az, ay, ax] = r.phase.axes.each_ref();
        let x = (b.x * ax.pace) as isize + ax.low() as isize;
        let low = (-x).clamp(0, r.patch_columns as isize) as usize;
        let high = (ax.input as isize - x).clamp(low as isize, r.patch_columns as isize) as usize;
        let rows = (b.rows - 1) * ay.pace + ay.span();
        for (plane, tap) in az.taps.iter().enumerate() {
            let z = (b.z * az.pace) as isize + tap.offset as isize;
            for row in 0..rows {
                let y = (b.y * ay.pace + row) as isize + ay.low() as isize;
                let inside = (0..az.input as isize).contains(&z) && (0..ay.input as isize).contains(&y);
                // SAFETY: the promise of `Region::fill`; only pixels in the image are read.
                unsafe {
                    let dst = self.dst.add((plane * r.patch_rows + row) * r.patch_columns * r.depth);
                    if !inside || low == high {
                        zero(s, dst, r.patch_columns * r.depth);
                        continue;
                    }
                    let line = ((b.n * az.input + z as usize) * ay.input + y as usize) * ax.input;
                    self.row(s, line + (x + low as isize) as usize, low, high, dst);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn zero<S: Simd>(s: S, dst: *mut f32, len: usize) {
    for j in (0..len).step_by(S::LANES) {
        // SAFETY: the caller's promise of `len` values.
        unsafe { store_len(s, dst.add(j), s.splat(0.0), S::LANES.min(len - j)) }
    }
}
