//! Between images and points: input tiles to points, points to finished outputs.

use super::super::epilogue::{Epilogue, Place};
use super::super::source::{Patch, Source};
use super::scheme::{Scheme, both_axes};
use super::tiles::{Grid, Run};
use crate::gemm::store_len;
use crate::simd::{Kernel, Level, Simd};
use std::marker::PhantomData;
use std::ops::Range;

/// Transforms the input of one block of tiles.
///
/// Value `(point, z tap, channel, tile)` goes to `dst + point * point_step + (z tap * channel blocks +
/// channel / LANES) * channel_step + tile * tile_step + channel % LANES`. Lanes past the last channel
/// are zero, or what the activation makes of zero.
pub(super) struct Input<'a, W> {
    pub grid: &'a Grid,
    pub block: usize,
    pub source: &'a Source,
    /// The blocks of `LANES` channels to transform.
    pub channels: Range<usize>,
    pub dst: *mut f32,
    pub point_step: usize,
    pub channel_step: usize,
    pub tile_step: usize,
    /// Scratch of [`patch_len`] values.
    pub patch: *mut f32,
    pub scheme: PhantomData<W>,
}

/// Scratch for the pixels of a block, one vector of channels at a time.
pub(super) fn patch_len<W: Scheme>(grid: &Grid, level: Level) -> usize {
    (grid.block_rows * W::OUT + 2) * (grid.block_columns * W::OUT + 2) * level.lanes()
}

impl<W: Scheme> Input<'_, W> {
    /// # Safety
    /// The source holds the image, the other pointers what the type says.
    pub unsafe fn run(self, level: Level) {
        // SAFETY: the caller's promise.
        unsafe { level.dispatch(self) };
    }

    #[inline(always)]
    unsafe fn tiles<S: Simd>(&self, s: S, run: &Run, columns: usize, dst: *mut f32) {
        for row in 0..run.rows {
            for column in 0..run.columns {
                // SAFETY: the promise of `run`; the patch covers the tiles of the run.
                unsafe {
                    let src = self.patch.add((row * W::OUT * columns + column * W::OUT) * S::LANES);
                    let dst = dst.add((run.first + row * run.columns + column) * self.tile_step);
                    both_axes!(
                        s, 6 to 6, W::IN, W::IN, W::input,
                        load |y, x| s.load(src.add((y * columns + x) * S::LANES)),
                        store |y, x, v| s.store(dst.add((y * W::IN + x) * self.point_step), v)
                    );
                }
            }
        }
    }
}

impl<W: Scheme> Kernel for Input<'_, W> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let p = &self.grid.planes;
        let size = [p.input[1], p.input[2]];
        for run in self.grid.runs(self.block) {
            for tap in 0..p.taps {
                let z = (run.z + tap * p.dilation).wrapping_sub(p.pad[0]);
                let patch = Patch {
                    source: self.source,
                    channels: p.c,
                    n: run.n,
                    plane: (z < p.input[0]).then(|| (run.n * p.input[0] + z) * size[0] * size[1]),
                    size,
                    y: (run.row * W::OUT) as isize - p.pad[1] as isize,
                    x: (run.column * W::OUT) as isize - p.pad[2] as isize,
                    rows: run.rows * W::OUT + 2,
                    columns: run.columns * W::OUT + 2,
                };
                let blocks = p.c.div_ceil(S::LANES);
                for block in self.channels.clone() {
                    // SAFETY: the promise of `Input::run`.
                    unsafe {
                        patch.fill(s, block * S::LANES, self.patch);
                        let dst = self.dst.add((tap * blocks + block) * self.channel_step);
                        self.tiles(s, &run, patch.columns, dst);
                    }
                }
            }
        }
    }
}

/// Transforms the sums of one block and one panel of channels, `[point][tile][width]`, to outputs.
pub(super) struct Output<'a, W> {
    pub grid: &'a Grid,
    pub block: usize,
    pub sums: *const f32,
    pub point_step: usize,
    pub width: usize,
    /// The output channels `channel .. channel + columns` are finished.
    pub channel: usize,
    pub columns: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    pub epilogue: &'a Epilogue,
    pub scheme: PhantomData<W>,
}

impl<W: Scheme> Output<'_, W> {
    /// # Safety
    /// The pointers hold what the type says, and nobody else writes these pixels and channels.
    pub unsafe fn run(self, level: Level) {
        // SAFETY: the caller's promise.
        unsafe { level.dispatch(self) };
    }

    /// One vector of a tile at output row `y`, column `x` of a plane, whose first pixel is `plane`.
    #[inline(always)]
    unsafe fn vector<S: Simd>(
        &self,
        s: S,
        n: usize,
        plane: usize,
        y: usize,
        x: usize,
        sums: *const f32,
        j: usize,
    ) {
        let [_, height, width] = self.grid.planes.output;
        let len = S::LANES.min(self.columns - j);
        let mut tile = [[s.splat(0.0); 4]; 4];
        // SAFETY: the promise of `run`.
        unsafe {
            both_axes!(
                s, 6 to 4, W::IN, W::OUT, W::output,
                load |row, column| s.load(sums.add((row * W::IN + column) * self.point_step + j)),
                store |row, column, v| tile[row][column] = v
            );
            for dy in 0..W::OUT.min(height - y) {
                for dx in 0..W::OUT.min(width - x) {
                    let pixel = plane + (y + dy) * width + x + dx;
                    let at = Place { sample: n, pixel, channels: self.grid.planes.k };
                    let out = self.out.add(pixel * self.out_stride + self.channel + j);
                    let v = self.epilogue.end(s, tile[dy][dx], &at, self.channel + j, len);
                    store_len(s, out, v, len);
                }
            }
        }
    }
}

impl<W: Scheme> Kernel for Output<'_, W> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let [depth, height, width] = self.grid.planes.output;
        for run in self.grid.runs(self.block) {
            let plane = (run.n * depth + run.z) * height * width;
            for row in 0..run.rows {
                for column in 0..run.columns {
                    let tile = run.first + row * run.columns + column;
                    let (y, x) = ((run.row + row) * W::OUT, (run.column + column) * W::OUT);
                    for j in (0..self.columns).step_by(S::LANES) {
                        // SAFETY: the promise of `Output::run`.
                        unsafe { self.vector(s, run.n, plane, y, x, self.sums.add(tile * self.width), j) }
                    }
                }
            }
        }
    }
}
