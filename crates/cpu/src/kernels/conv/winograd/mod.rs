//! Convolutions of 3x3 taps and stride 1 by Winograd's transforms.
//!
//! A task takes a block of output tiles: it transforms their input to points, multiplies each point's
//! `[tile, channel]` matrix with its weights, one panel of output channels at a time, and transforms the
//! sums back, through the epilogue, to pixels. Taps along z, if any, lengthen the reduction. The
//! gradient with respect to the input is the same with the kernel turned around.

mod pack;
pub(super) mod scheme;
mod tiles;
mod transform;
mod weight_grad;

pub(super) use weight_grad::WinogradGrad;

use super::epilogue::Epilogue;
use super::source::Source;
use super::{ConvDims, Direction};
use crate::Cpu;
use crate::gemm::{BlockProduct, MAX_TILE_ROWS, Panels};
use crate::pool::Shares;
use crate::simd::Level;
use scheme::Scheme;
use std::marker::PhantomData;
use tiles::{Grid, Planes};
use transform::{Input, Output, patch_len};

/// The transformed input of a block and the sums of one panel share this many values of the
/// second-level cache.
const BLOCK_VALUES: usize = 160 * 1024;

pub(super) struct Winograd<W> {
    direction: Direction,
    level: Level,
    grid: Grid,
    panels: Panels,
    /// Channels of the reduction, over all taps along z, each padded to whole vectors.
    depth: usize,
    scheme: PhantomData<W>,
}

/// The shapes as a convolution, if the transforms apply.
fn planes(dims: &ConvDims, direction: Direction) -> Option<Planes> {
    let [taps, ky, kx] = dims.kernel;
    let plain =
        (ky, kx) == (3, 3) && dims.stride == [1; 3] && dims.dilation[1..] == [1, 1] && dims.groups == 1;
    let reach = [(taps - 1) * dims.dilation[0], 2, 2];
    let forward = Planes {
        n: dims.n,
        input: dims.input,
        output: dims.output,
        c: dims.c,
        k: dims.k,
        taps,
        dilation: dims.dilation[0],
        pad: dims.pad,
    };
    match direction {
        _ if !plain => None,
        Direction::Forward => Some(forward),
        Direction::InputGrad => (0..3).all(|d| dims.pad[d] <= reach[d]).then(|| Planes {
            input: dims.output,
            output: dims.input,
            c: dims.k,
            k: dims.c,
            pad: std::array::from_fn(|d| reach[d] - dims.pad[d]),
            ..forward
        }),
    }
}

impl<W: Scheme> Winograd<W> {
    /// `None` where the transforms do not apply.
    pub fn new(dims: &ConvDims, direction: Direction, level: Level) -> Option<Winograd<W>> {
        let planes = planes(dims, direction)?;
        let panels = Panels::new(planes.k, level);
        let depth = planes.taps * planes.c.next_multiple_of(level.lanes());
        let most = BLOCK_VALUES / (W::POINTS * (depth + panels.width(0)));
        let grid = Grid::new::<W>(planes, most.max(8));
        Some(Winograd { direction, level, grid, panels, depth, scheme: PhantomData })
    }

    pub fn packed_len(&self) -> usize {
        W::POINTS * self.depth * self.panels.padded()
    }

    /// Rows of scratch for the tiles of a block.
    fn rows(&self) -> usize {
        self.grid.block_tiles() + MAX_TILE_ROWS
    }

    /// From point to point of the transformed input. One vector more than needed keeps points out
    /// of each other's way in the cache.
    fn input_step(&self) -> usize {
        self.rows() * self.depth + 16
    }

    fn sums_step(&self) -> usize {
        self.rows() * self.panels.width(0) + 16
    }

    fn scratch_len(&self) -> usize {
        let patch = patch_len::<W>(&self.grid, self.level);
        (W::POINTS * (self.input_step() + self.sums_step()) + patch).next_multiple_of(16)
    }

    pub fn workspace_len(&self, threads: usize) -> usize {
        threads * self.scratch_len()
    }

    /// # Safety
    /// `weights` holds `[K, kz, 3, 3, C]` and `packed` has `packed_len` values.
    pub unsafe fn pack(&self, cpu: &Cpu, weights: *const f32, packed: *mut f32) {
        let (level, direction, planes) = (self.level, self.direction, &self.grid.planes);
        // SAFETY: the caller's promise.
        unsafe { pack::weights::<W>(cpu, level, direction, planes, &self.panels, weights, packed) }
    }

    /// # Safety
    /// All tensors have the shapes of the plan, `workspace` has `workspace_len` values.
    pub unsafe fn run(
        &self,
        cpu: &Cpu,
        source: &Source,
        packed: *const f32,
        epilogue: &Epilogue,
        out: *mut f32,
        out_stride: usize,
        workspace: *mut f32,
    ) {
        let (packed, out, workspace) = (Shares(packed.cast_mut()), Shares(out), Shares(workspace));
        cpu.pool.run(self.grid.blocks(), |worker, block| {
            // SAFETY: each task writes the pixels of its block, and its worker's scratch.
            unsafe {
                let scratch = workspace.at(worker * self.scratch_len());
                self.block(block, source, packed.at(0), epilogue, out.at(0), out_stride, scratch);
            }
        });
    }

    unsafe fn block(
        &self,
        block: usize,
        source: &Source,
        packed: *const f32,
        epilogue: &Epilogue,
        out: *mut f32,
        out_stride: usize,
        scratch: *mut f32,
    ) {
        let (level, scheme) = (self.level, PhantomData::<W>);
        let (rows, lanes) = (self.rows(), level.lanes());
        // SAFETY: the promise of `run`; the scratch is cut as `scratch_len` counts.
        unsafe {
            let sums = scratch.add(W::POINTS * self.input_step());
            Input {
                grid: &self.grid,
                block,
                source,
                dst: scratch,
                point_step: self.input_step(),
                channel_step: rows * lanes,
                tile_step: lanes,
                patch: sums.add(W::POINTS * self.sums_step()),
                scheme,
            }
            .run(level);
            for panel in 0..self.panels.count() {
                let packed = packed.add(self.panels.offset(panel, W::POINTS * self.depth));
                self.multiply(self.grid.tiles(block), panel, scratch, packed, sums);
                Output {
                    grid: &self.grid,
                    block,
                    sums,
                    point_step: self.sums_step(),
                    width: self.panels.width(panel),
                    channel: self.panels.start(panel),
                    columns: self.panels.columns(panel),
                    out,
                    out_stride,
                    epilogue,
                    scheme,
                }
                .run(level);
            }
        }
    }

    /// All points of one panel.
    unsafe fn multiply(
        &self,
        tiles: usize,
        panel: usize,
        input: *const f32,
        packed: *const f32,
        sums: *mut f32,
    ) {
        let width = self.panels.width(panel);
        for point in 0..W::POINTS {
            // SAFETY: the promise of `run`.
            unsafe {
                let b = packed.add(point * self.depth * width);
                BlockProduct {
                    m: tiles,
                    k: self.depth,
                    vectors: self.panels.vectors(panel),
                    a: input.add(point * self.input_step()),
                    a_row: self.level.lanes(),
                    a_block: self.rows() * self.level.lanes(),
                    b,
                    b_row: width,
                    c: sums.add(point * self.sums_step()),
                    c_row: width,
                    accumulate: false,
                    next: b.wrapping_add(self.depth * width),
                }
                .run(self.level);
            }
        }
    }
}
