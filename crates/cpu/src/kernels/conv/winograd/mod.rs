//! Convolutions of 3x3 taps and stride 1 by Winograd's transforms.
//!
//! A task takes a block of output tiles: it transforms their input to points, multiplies each point's
//! `[tile, channel]` matrix with its weights, one panel of output channels at a time, and transforms the
//! sums back, through the epilogue, to pixels. Taps along z, if any, lengthen the reduction. The
//! gradient with respect to the input is the same with the kernel turned around.
//!
//! Where the weights are large and the tiles few, the deep layers of a network, reading the weights
//! is what takes time. There the input of all tiles is transformed first, and a task is one
//! panel of output channels for many tiles, so that the weights are read once.

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
use crate::gemm::{BlockProduct, MAX_TILE_ROWS, Panels, Segment, Start};
use crate::pool::Shares;
use crate::simd::Level;
use scheme::Scheme;
use std::marker::PhantomData;
use tiles::{Grid, Planes};
use transform::{Input, Output, patch_len};

/// The transformed input of a block and the sums of one panel share this many values of the
/// second-level cache.
const BLOCK_VALUES: usize = 160 * 1024;
/// Weights above this many values are read panel by panel, if the transformed input of all tiles
/// has no more than this many.
const LARGE_WEIGHTS: usize = 512 * 1024;
const SHARED_VALUES: usize = 2 << 20;
/// Tiles of a block if so.
const SHARED_TILES: usize = 64;
/// Blocks of channels that one task transforms if so.
const SHARED_CHANNELS: usize = 4;

pub(super) struct Winograd<W> {
    direction: Direction,
    level: Level,
    grid: Grid,
    panels: Panels,
    /// Channels of the reduction, over all taps along z, each padded to whole vectors.
    depth: usize,
    /// The input of all tiles is transformed before anything is multiplied.
    shared: bool,
    /// The reduction of a tile: one block of channels after the other.
    segments: Vec<Segment>,
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

/// What a run reads and writes.
struct Tensors<'a> {
    source: &'a Source,
    packed: *const f32,
    epilogue: &'a Epilogue,
    out: *mut f32,
    out_stride: usize,
}

// SAFETY: tasks write parts of the output that no other touches.
unsafe impl Sync for Tensors<'_> {}

fn is_shared<W: Scheme>(planes: &Planes, panels: &Panels, depth: usize) -> bool {
    let tiles: usize =
        planes.n * planes.output[0] * planes.output[1].div_ceil(W::OUT) * planes.output[2].div_ceil(W::OUT);
    let (weights, input) = (W::POINTS * depth * panels.padded(), W::POINTS * depth * tiles);
    panels.count() > 1 && weights > LARGE_WEIGHTS && input <= SHARED_VALUES
}

impl<W: Scheme> Winograd<W> {
    /// `None` where the transforms do not apply.
    pub fn new(dims: &ConvDims, direction: Direction, level: Level) -> Option<Winograd<W>> {
        let planes = planes(dims, direction)?;
        let panels = Panels::new(planes.k, level);
        let depth = planes.taps * planes.c.next_multiple_of(level.lanes());
        let most = BLOCK_VALUES / (W::POINTS * (depth + panels.width(0)));
        let shared = is_shared::<W>(&planes, &panels, depth);
        let grid = Grid::new::<W>(planes, if shared { SHARED_TILES } else { most.max(8) });
        let mut plan = Winograd {
            direction,
            level,
            grid,
            panels,
            depth,
            shared,
            segments: Vec::new(),
            scheme: PhantomData,
        };
        let (len, step) = (level.lanes(), plan.rows() * level.lanes());
        plan.segments = (0..depth / len).map(|i| Segment { offset: i * step, len }).collect();
        Some(plan)
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

    /// The transformed input of a block.
    fn input_len(&self) -> usize {
        W::POINTS * self.input_step()
    }

    /// The transformed input of all blocks, if shared.
    fn shared_len(&self) -> usize {
        if self.shared { self.grid.blocks() * self.input_len() } else { 0 }
    }

    /// What a thread needs: the sums of a panel, a patch, and its block's input if not shared.
    fn scratch_len(&self) -> usize {
        let input = if self.shared { 0 } else { self.input_len() };
        let patch = patch_len::<W>(&self.grid, self.level);
        (W::POINTS * self.sums_step() + input + patch).next_multiple_of(16)
    }

    pub fn workspace_len(&self, threads: usize) -> usize {
        self.shared_len() + threads * self.scratch_len()
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
        let tensors = &Tensors { source, packed, epilogue, out, out_stride };
        let (count, blocks) = (self.panels.count(), self.grid.blocks());
        let channels = self.grid.planes.c.div_ceil(self.level.lanes());
        let sums_len = W::POINTS * self.sums_step();
        // SAFETY: the workspace is cut as `workspace_len` counts. Transforms write their channels of their
        // block, other tasks the pixels of their block and panel; each worker has its scratch.
        unsafe {
            let input = Shares(workspace);
            let scratch = Shares(workspace.add(self.shared_len()));
            if !self.shared {
                cpu.pool.run(blocks, |worker, block| {
                    let sums = scratch.at(worker * self.scratch_len());
                    let input = sums.add(sums_len);
                    self.transform(block, 0..channels, tensors, input, input.add(self.input_len()));
                    (0..count).for_each(|panel| self.panel(block, panel, tensors, input, sums));
                });
                return;
            }
            let pieces = channels.div_ceil(SHARED_CHANNELS);
            cpu.pool.run(blocks * pieces, |worker, task| {
                let (block, first) = (task / pieces, task % pieces * SHARED_CHANNELS);
                let range = first..channels.min(first + SHARED_CHANNELS);
                let patch = scratch.at(worker * self.scratch_len() + sums_len);
                self.transform(block, range, tensors, input.at(block * self.input_len()), patch);
            });
            cpu.pool.run(count * blocks, |worker, task| {
                let (panel, block) = (task / blocks, task % blocks);
                let sums = scratch.at(worker * self.scratch_len());
                self.panel(block, panel, tensors, input.at(block * self.input_len()), sums);
            });
        }
    }

    unsafe fn transform(
        &self,
        block: usize,
        channels: std::ops::Range<usize>,
        tensors: &Tensors<'_>,
        dst: *mut f32,
        patch: *mut f32,
    ) {
        let lanes = self.level.lanes();
        // SAFETY: the promise of `run`.
        unsafe {
            Input {
                grid: &self.grid,
                block,
                source: tensors.source,
                channels,
                dst,
                point_step: self.input_step(),
                channel_step: self.rows() * lanes,
                tile_step: lanes,
                patch,
                scheme: PhantomData::<W>,
            }
            .run(self.level);
        }
    }

    /// Multiplies one panel of a block and finishes it.
    unsafe fn panel(
        &self,
        block: usize,
        panel: usize,
        tensors: &Tensors<'_>,
        input: *const f32,
        sums: *mut f32,
    ) {
        // SAFETY: the promise of `run`.
        unsafe {
            let packed = tensors.packed.add(self.panels.offset(panel, W::POINTS * self.depth));
            self.multiply(self.grid.tiles(block), panel, input, packed, sums);
            Output {
                grid: &self.grid,
                block,
                sums,
                point_step: self.sums_step(),
                width: self.panels.width(panel),
                channel: self.panels.start(panel),
                columns: self.panels.columns(panel),
                out: tensors.out,
                out_stride: tensors.out_stride,
                epilogue: tensors.epilogue,
                scheme: PhantomData::<W>,
            }
            .run(self.level);
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
                    segments: &self.segments,
                    vectors: self.panels.vectors(panel),
                    a: input.add(point * self.input_step()),
                    a_row: self.level.lanes(),
                    b,
                    b_row: width,
                    c: sums.add(point * self.sums_step()),
                    c_row: width,
                    start: Start::Zero,
                    next: b.wrapping_add(self.depth * width),
                }
                .run(self.level);
            }
        }
    }
}
