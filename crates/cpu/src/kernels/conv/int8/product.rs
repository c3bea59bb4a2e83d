//! Tiles of output pixels and channels whose sums stay in registers.

use super::super::epilogue::Epilogue;
use super::Run;
use super::pack::ColumnNumbers;
use crate::act::{self, Act, Activation};
use crate::gemm::store_len;
use crate::simd::bytes::{ByteKernel, Bytes};
use crate::simd::{Level, Simd};
use std::mem::MaybeUninit;

/// The rows of the largest tile for a panel of so many vectors.
pub(super) fn tile_rows(level: Level, vectors: usize) -> usize {
    match (level, vectors) {
        (Level::Avx512(_), 4) => 6,
        (Level::Avx512(_), 3) => 8,
        (Level::Avx512(_), _) => 12,
        (_, 2) => 6,
        _ => 12,
    }
}

/// Sums of the largest tile.
const MOST_SUMS: usize = 24 * 16;

/// Output pixels side by side, and one panel.
pub(super) struct Strip<'a> {
    pub pixels: usize,
    pub runs: &'a [Run],
    pub vectors: usize,
    /// Where the first tap of the first pixel lies, and bytes from pixel to pixel.
    pub left: *const u8,
    pub left_step: usize,
    /// Of the panel, and their numbers.
    pub weights: *const i32,
    pub numbers: ColumnNumbers,
    pub sample: usize,
    /// The first output pixel, over all samples.
    pub pixel: usize,
    /// The first channel of the panel, its channels, and those of the whole output.
    pub channel: usize,
    pub columns: usize,
    pub channels: usize,
    pub out: *mut f32,
    pub epilogue: &'a Epilogue,
}

impl ByteKernel for Strip<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<B: Bytes>(self, b: B) {
        // SAFETY: who makes a strip promises its memory, with room to read a tile over its end.
        unsafe {
            match (B::F::LANES, self.vectors) {
                (16, 4) => tiles::<B, 6, 4, 2, 4>(b, &self),
                (16, 3) => tiles::<B, 8, 3, 2, 4>(b, &self),
                (16, 2) => tiles::<B, 12, 2, 4, 8>(b, &self),
                (16, 1) => tiles::<B, 12, 1, 4, 8>(b, &self),
                (8, 2) => tiles::<B, 6, 2, 2, 4>(b, &self),
                (8, 1) => tiles::<B, 12, 1, 4, 8>(b, &self),
                (lanes, vectors) => unreachable!("no tile of {vectors} vectors of {lanes}"),
            }
        }
    }
}

#[inline(always)]
unsafe fn tiles<B: Bytes, const MR: usize, const NV: usize, const TAIL: usize, const HALF: usize>(
    b: B,
    strip: &Strip<'_>,
) {
    for first in (0..strip.pixels).step_by(MR) {
        let rows = strip.pixels - first;
        // SAFETY: the caller's promise.
        unsafe {
            if rows <= TAIL {
                tile::<B, TAIL, NV>(b, strip, first, rows);
            } else if rows <= HALF {
                tile::<B, HALF, NV>(b, strip, first, rows);
            } else {
                tile::<B, MR, NV>(b, strip, first, rows.min(MR));
            }
        }
    }
}

#[inline(always)]
unsafe fn tile<B: Bytes, const MR: usize, const NV: usize>(
    b: B,
    strip: &Strip<'_>,
    first: usize,
    rows: usize,
) {
    let lanes = B::F::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[b.load(strip.numbers.starts); NV]; MR];
        for v in 1..NV {
            let start = b.load(strip.numbers.starts.add(v * lanes));
            for row in &mut sums {
                row[v] = start;
            }
        }
        let left = strip.left.add(first * strip.left_step);
        let mut right = strip.weights;
        for run in strip.runs {
            let mut left = left.add(run.offset);
            for _ in 0..run.len / 4 {
                let mut weights = [b.load(right); NV];
                for v in 1..NV {
                    weights[v] = b.load(right.add(v * lanes));
                }
                for i in 0..MR {
                    let values = b.splat4(left.add(i * strip.left_step));
                    for v in 0..NV {
                        sums[i][v] = b.dot(sums[i][v], values, weights[v]);
                    }
                }
                left = left.add(4);
                right = right.add(NV * lanes);
            }
        }
        // Through memory, so that sums are only ever indexed by constants: otherwise none of them is kept in a register.
        let mut finished = MaybeUninit::<[i32; MOST_SUMS]>::uninit();
        let at = finished.as_mut_ptr().cast::<i32>();
        for i in 0..MR {
            for v in 0..NV {
                b.store(at.add((i * NV + v) * lanes), sums[i][v]);
            }
        }
        strip.finish(b, at, NV, first, rows);
    }
}

impl Strip<'_> {
    /// Sums to results: scaled, and through the epilogue to memory. What ends most convolutions in 8 bits is told apart once.
    #[inline(always)]
    unsafe fn finish<B: Bytes>(&self, b: B, sums: *const i32, vectors: usize, first: usize, rows: usize) {
        let (s, act) = (b.floats(), self.epilogue.act);
        // SAFETY: the caller's promise.
        unsafe {
            match act {
                Act::Identity => self.finish_by(b, sums, [vectors, first, rows], |x| x),
                Act::Snap(grid) => {
                    self.finish_by(b, sums, [vectors, first, rows], |x| act::Snap(grid).value(s, x));
                }
                _ => self.finish_by(b, sums, [vectors, first, rows], |x| act.apply(s, x)),
            }
        }
    }

    #[inline(always)]
    unsafe fn finish_by<B: Bytes>(
        &self,
        b: B,
        sums: *const i32,
        [vectors, first, rows]: [usize; 3],
        act: impl Fn(<B::F as Simd>::V) -> <B::F as Simd>::V,
    ) {
        let (s, lanes) = (b.floats(), B::F::LANES);
        let pixel = self.pixel + first;
        for v in 0..vectors {
            let column = v * lanes;
            let (channel, len) = (self.channel + column, lanes.min(self.columns - column));
            // SAFETY: the promise of who makes a strip; the sums are those of a tile.
            unsafe {
                let worth = s.load(self.numbers.worth.add(column));
                let line = self.epilogue.line(s, self.sample, self.channels, channel, len);
                let out = self.out.add(pixel * self.channels + channel);
                for i in 0..rows {
                    let x = b.to_floats(b.load(sums.add((i * vectors + v) * lanes)));
                    let at = (pixel + i) * self.channels + channel;
                    let x = line.end_by(s, s.mul(x, worth), at, len, &act);
                    store_len(s, out.add(i * self.channels), x, len);
                }
            }
        }
    }
}
