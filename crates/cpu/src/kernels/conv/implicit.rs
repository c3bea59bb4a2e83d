//! Convolutions as packed products: any kernel, stride, dilation, groups and number of axes.
//!
//! A task takes a block of output pixels, copies what they read into scratch (never the whole
//! image at once), multiplies it with the packed weights panel by panel and finishes the sums.
//! Weights are packed as `[phase][group][panel][tap][channel][width]`.

use super::epilogue::{Epilogue, Finish, Row};
use super::geometry::{Gather, Phase};
use super::source::{Materialise, Source};
use super::{ConvDims, Direction};
use crate::Cpu;
use crate::gemm::{BlockProduct, MAX_TILE_ROWS, Panels, micro, pack};
use crate::pool::Shares;
use crate::simd::Level;

/// Output pixels of a task at most, and values of the reduction that are multiplied at once: the
/// block of the left side that these make stays in the second-level cache.
const MAX_ROWS: usize = 96;
const MAX_DEPTH: usize = 512;
/// Tasks that there should be, so that threads finish together.
const FEW_TASKS: usize = 12;

pub(super) struct Implicit {
    dims: ConvDims,
    direction: Direction,
    level: Level,
    phases: Vec<Cut>,
    /// Channels that a group reads and writes.
    depth: usize,
    width: usize,
    panels: Panels,
    /// Panels of one task.
    together: usize,
    /// Whether the source is written out, normalised, before it is gathered.
    materialised: bool,
    scratch: usize,
}

/// A phase and how it is cut into tasks.
struct Cut {
    phase: Phase,
    rows_per_block: usize,
    blocks: usize,
    packed_at: usize,
}

/// One block of output pixels and some panels of a group.
struct Task<'a> {
    cut: &'a Cut,
    group: usize,
    block: usize,
    panels: std::ops::Range<usize>,
}

impl Implicit {
    pub fn new(dims: &ConvDims, direction: Direction, pre: bool, level: Level) -> Implicit {
        let (c, k) = (dims.c / dims.groups, dims.k / dims.groups);
        let (phases, depth, width) = match direction {
            Direction::Forward => (vec![Phase::forward(dims)], c, k),
            Direction::InputGrad => (Phase::input_grad(dims), k, c),
        };
        let panels = Panels::new(width, level);
        let mut packed_at = 0;
        let phases: Vec<Cut> = phases
            .into_iter()
            .map(|phase| {
                let taps = phase.taps.len();
                let cut = Cut::new(phase, micro::tile_rows(level, panels.vectors(0)), packed_at);
                packed_at += dims.groups * taps * depth * panels.padded();
                cut
            })
            .collect();
        let row_tasks: usize = phases.iter().map(|p| p.blocks).sum::<usize>() * dims.groups;
        let splits = FEW_TASKS.div_ceil(row_tasks.max(1)).min(panels.count());
        let together = panels.count().div_ceil(splits);
        let rows = phases.iter().map(|p| p.rows_per_block).max().unwrap_or(0) + MAX_TILE_ROWS;
        let most = phases.iter().map(|p| p.phase.taps.len() * depth).max().unwrap_or(0);
        let scratch = rows * (chunk(most) + together * panels.full());
        let materialised = pre && dims.kernel.iter().product::<usize>() > 1;
        Implicit {
            dims: *dims,
            direction,
            level,
            phases,
            depth,
            width,
            panels,
            together,
            materialised,
            scratch: scratch.next_multiple_of(16),
        }
    }

    pub fn packed_len(&self) -> usize {
        let taps: usize = self.phases.iter().map(|p| p.phase.taps.len()).sum();
        self.dims.groups * taps * self.depth * self.panels.padded()
    }

    /// Values of scratch that all tasks share.
    fn shared_len(&self) -> usize {
        let input: usize = self.phases[0].phase.input.iter().product();
        if self.materialised { self.dims.n * input * self.depth * self.dims.groups } else { 0 }
    }

    pub fn workspace_len(&self, threads: usize) -> usize {
        self.shared_len().next_multiple_of(16) + threads * self.scratch
    }

    /// # Safety
    /// `weights` holds `[K, kz, ky, kx, C / groups]` and `packed` has `packed_len` values.
    pub unsafe fn pack(&self, cpu: &Cpu, weights: *const f32, packed: *mut f32) {
        let (weights, packed) = (Shares(weights.cast_mut()), Shares(packed));
        for cut in &self.phases {
            let taps = cut.phase.taps.len();
            let per_group = self.panels.count() * taps;
            cpu.pool.run(self.dims.groups * per_group, |_, task| {
                let (group, panel, tap) = (task / per_group, task % per_group / taps, task % taps);
                // SAFETY: each task writes the rows of its group, panel and tap.
                unsafe { self.pack_tap(cut, group, panel, tap, weights.at(0), packed.at(0)) }
            });
        }
    }

    unsafe fn pack_tap(
        &self,
        cut: &Cut,
        group: usize,
        panel: usize,
        tap: usize,
        weights: *const f32,
        packed: *mut f32,
    ) {
        let depth = cut.phase.taps.len() * self.depth;
        let (columns, width) = (self.panels.columns(panel), self.panels.width(panel));
        let kernel: usize = self.dims.kernel.iter().product();
        let weight = cut.phase.taps[tap].weight;
        // SAFETY: the promise of `pack`.
        unsafe {
            let dst = packed
                .add(cut.packed_at + group * depth * self.panels.padded() + self.panels.offset(panel, depth))
                .add(tap * self.depth * width);
            match self.direction {
                Direction::Forward => {
                    let k = group * self.width + self.panels.start(panel);
                    let src = weights.add((k * kernel + weight) * self.depth);
                    pack::transpose_columns(
                        self.level,
                        src,
                        kernel * self.depth,
                        self.depth,
                        columns,
                        dst,
                        width,
                    );
                }
                Direction::InputGrad => {
                    let src = weights.add((group * self.depth * kernel + weight) * self.width);
                    let src = src.add(self.panels.start(panel));
                    pack::copy_rows(self.level, src, kernel * self.width, self.depth, columns, dst, width);
                }
            }
        }
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
        let mut source = *source;
        if self.materialised {
            let channels = source.channels();
            // SAFETY: the workspace starts with room for the whole source.
            unsafe { materialise(cpu, self.level, &source, &self.phases[0].phase, workspace) };
            source = Source::plain(workspace, channels);
        }
        // SAFETY: the workspace has the shared part and then a scratch for each thread.
        let scratch = Shares(unsafe { workspace.add(self.shared_len().next_multiple_of(16)) });
        let (packed, out) = (Shares(packed.cast_mut()), Shares(out));
        let blocks: usize = self.phases.iter().map(|p| p.blocks).sum();
        let splits = self.panels.count().div_ceil(self.together);
        cpu.pool.run(self.dims.groups * blocks * splits, |worker, task| {
            let task = self.task(task, blocks, splits);
            // SAFETY: each task writes its own pixels and channels, and its worker's scratch.
            unsafe {
                let scratch = scratch.at(worker * self.scratch);
                self.block(&task, &source, packed.at(0), epilogue, out.at(0), out_stride, scratch);
            }
        });
    }

    fn task(&self, task: usize, blocks: usize, splits: usize) -> Task<'_> {
        let (group, mut block, split) = (task / (blocks * splits), task / splits % blocks, task % splits);
        let mut cuts = self.phases.iter();
        let mut cut = cuts.next().expect("a convolution has a phase");
        while block >= cut.blocks {
            block -= cut.blocks;
            cut = cuts.next().expect("a block of some phase");
        }
        let first = split * self.together;
        Task { cut, group, block, panels: first..(first + self.together).min(self.panels.count()) }
    }

    unsafe fn block(
        &self,
        task: &Task<'_>,
        source: &Source,
        packed: *const f32,
        epilogue: &Epilogue,
        out: *mut f32,
        out_stride: usize,
        scratch: *mut f32,
    ) {
        let phase = &task.cut.phase;
        let start = task.block * task.cut.rows_per_block;
        let mut rows = [Row::default(); MAX_ROWS];
        let rows = &mut rows[..task.cut.rows_per_block.min(phase.rows() - start)];
        phase.locate(start, rows);
        let depth = phase.taps.len() * self.depth;
        let padded_rows = task.cut.rows_per_block + MAX_TILE_ROWS;
        // SAFETY: the promise of `run`; the scratch holds the sums of all panels, then the left side.
        unsafe {
            let sums = scratch;
            let left = scratch.add(padded_rows * self.together * self.panels.full());
            let packed = packed.add(task.cut.packed_at + task.group * depth * self.panels.padded());
            if depth == 0 {
                std::slice::from_raw_parts_mut(sums, padded_rows * self.together * self.panels.full())
                    .fill(0.0);
            }
            let step = chunk(depth).max(1);
            for low in (0..depth).step_by(step) {
                let high = depth.min(low + step);
                let (a, a_row) = self.left(task, source, rows, start, low..high, left);
                for (i, panel) in task.panels.clone().enumerate() {
                    let width = self.panels.width(panel);
                    BlockProduct {
                        m: rows.len(),
                        k: high - low,
                        vectors: self.panels.vectors(panel),
                        a,
                        a_row,
                        a_block: self.level.lanes(),
                        b: packed.add(self.panels.offset(panel, depth) + low * width),
                        b_row: width,
                        c: sums.add(i * padded_rows * self.panels.full()),
                        c_row: width,
                        accumulate: low > 0,
                        next: std::ptr::null(),
                    }
                    .run(self.level);
                }
            }
            for (i, panel) in task.panels.clone().enumerate() {
                Finish {
                    rows,
                    sums: sums.add(i * padded_rows * self.panels.full()),
                    sums_row: self.panels.width(panel),
                    channel: task.group * self.width + self.panels.start(panel),
                    columns: self.panels.columns(panel),
                    channels: self.width * self.dims.groups,
                    out,
                    out_stride,
                    epilogue,
                }
                .run(self.level);
            }
        }
    }

    /// The left side of a block: the source itself where its rows already are that, else a copy.
    unsafe fn left(
        &self,
        task: &Task<'_>,
        source: &Source,
        rows: &[Row],
        start: usize,
        range: std::ops::Range<usize>,
        scratch: *mut f32,
    ) -> (*const f32, usize) {
        let phase = &task.cut.phase;
        let channel = task.group * self.depth;
        // SAFETY: the promise of `run`.
        unsafe {
            if let Some(part) = source.direct()
                && phase.is_plain()
                && start + rows.len() + MAX_TILE_ROWS <= phase.rows()
            {
                return (part.data.add(start * part.stride + channel + range.start), part.stride);
            }
            let dst_row = range.len().next_multiple_of(self.level.lanes());
            Gather {
                phase,
                source,
                rows,
                channel,
                depth: self.depth,
                start: range.start,
                end: range.end,
                dst: scratch,
                dst_row,
            }
            .run(self.level);
            (scratch, dst_row)
        }
    }
}

impl Cut {
    fn new(phase: Phase, tile_rows: usize, packed_at: usize) -> Cut {
        let rows = phase.rows();
        let blocks = rows.div_ceil(MAX_ROWS).max(FEW_TASKS.min(rows.div_ceil(2 * MAX_TILE_ROWS))).max(1);
        let rows_per_block = rows.div_ceil(blocks).max(1).next_multiple_of(tile_rows).min(MAX_ROWS);
        Cut { blocks: rows.div_ceil(rows_per_block), phase, rows_per_block, packed_at }
    }
}

/// The reduction in equal pieces of whole vectors, none above `MAX_DEPTH`.
fn chunk(depth: usize) -> usize {
    depth.div_ceil(depth.div_ceil(MAX_DEPTH).max(1)).next_multiple_of(16)
}

/// Writes the normalised source out, in parallel.
///
/// # Safety
/// `dst` has room for the source's image.
pub(super) unsafe fn materialise(cpu: &Cpu, level: Level, source: &Source, phase: &Phase, dst: *mut f32) {
    let pixels: usize = phase.input.iter().product();
    let (total, step) = (phase.n * pixels, 512);
    let dst = Shares(dst);
    cpu.pool.run(total.div_ceil(step), |_, task| {
        let start = task * step;
        let end = total.min(start + step);
        // SAFETY: each task writes its own pixels.
        unsafe { Materialise { source, pixels, start, end, dst: dst.at(0) }.run(level) }
    });
}
