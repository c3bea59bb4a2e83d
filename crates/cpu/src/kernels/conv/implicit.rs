//! Convolutions as packed products: any kernel, stride, dilation, groups and number of axes.
//!
//! A task takes a block of output pixels, copies the patch of input that they read into scratch,
//! multiplies it with the packed weights panel by panel and finishes the sums. Weights are packed
//! as `[phase][group][panel][tap][channel][width]`, or as plain rows where there are so few output
//! channels that dot products are faster.

use super::epilogue::{Epilogue, Finish};
use super::geometry::Phase;
use super::region::{Block, Region};
use super::source::Source;
use super::{ConvDims, Direction};
use crate::Cpu;
use crate::gemm::dots::{self, DotProduct};
use crate::gemm::{BlockProduct, Panels, Start, micro, pack};
use crate::pool::Shares;
use crate::simd::Level;
use std::ops::Range;

/// Values of the reduction that are multiplied at once: their part of a panel stays in the
/// second-level cache.
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
    /// So few columns that they are dot products.
    narrow: bool,
    scratch: usize,
}

struct Cut {
    region: Region,
    packed_at: usize,
    /// Segments that are multiplied at once, and where their reduction starts.
    chunks: Vec<(Range<usize>, usize)>,
}

/// One block of output pixels and some panels of a group.
struct Task<'a> {
    cut: &'a Cut,
    group: usize,
    block: Block,
    panels: Range<usize>,
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

impl Implicit {
    pub fn new(dims: &ConvDims, direction: Direction, level: Level) -> Implicit {
        let (c, k) = (dims.c / dims.groups, dims.k / dims.groups);
        let (phases, depth, width) = match direction {
            Direction::Forward => (vec![Phase::forward(dims)], c, k),
            Direction::InputGrad => (Phase::input_grad(dims), k, c),
        };
        let panels = Panels::new(width, level);
        let narrow = width <= dots::MAX_COLUMNS && depth >= 2 * level.lanes();
        let tile = micro::tile_rows(level, panels.vectors(0));
        let mut packed_at = 0;
        let phases: Vec<Cut> = phases
            .into_iter()
            .map(|phase| {
                let region = Region::new(phase, depth, panels.padded(), panels.count(), tile);
                let cut = Cut::new(region, packed_at);
                packed_at += dims.groups * cut.region.reduction() * panels.padded();
                cut
            })
            .collect();
        let row_tasks: usize = phases.iter().map(|p| p.region.blocks()).sum::<usize>() * dims.groups;
        let splits = FEW_TASKS.div_ceil(row_tasks.max(1)).min(panels.count());
        let together = panels.count().div_ceil(splits);
        let mut plan = Implicit {
            dims: *dims,
            direction,
            level,
            phases,
            depth,
            width,
            panels,
            together,
            narrow,
            scratch: 0,
        };
        let need = |cut: &Cut| plan.sums_len(&cut.region) + cut.region.patch_len();
        plan.scratch = plan.phases.iter().map(need).max().unwrap_or(0).next_multiple_of(16);
        plan
    }

    /// The sums of one panel.
    fn panel_len(&self, region: &Region) -> usize {
        region.rows * region.columns * self.panels.full()
    }

    fn sums_len(&self, region: &Region) -> usize {
        self.together * self.panel_len(region)
    }

    pub fn packed_len(&self) -> usize {
        let reduction: usize = self.phases.iter().map(|p| p.region.reduction()).sum();
        self.dims.groups * reduction * self.panels.padded()
    }

    pub fn workspace_len(&self, threads: usize) -> usize {
        threads * self.scratch
    }

    /// # Safety
    /// `weights` holds `[K, kz, ky, kx, C / groups]` and `packed` has `packed_len` values.
    pub unsafe fn pack(&self, cpu: &Cpu, weights: *const f32, packed: *mut f32) {
        let (weights, packed) = (Shares(weights.cast_mut()), Shares(packed));
        for cut in &self.phases {
            let taps = cut.region.phase.taps();
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
        let reduction = cut.region.reduction();
        let (columns, width) = (self.panels.columns(panel), self.panels.width(panel));
        let kernel: usize = self.dims.kernel.iter().product();
        let weight = cut.region.phase.weight(tap, self.dims.kernel);
        let (depth, level) = (self.depth, self.level);
        // SAFETY: the promise of `pack`.
        unsafe {
            let dst = packed.add(cut.packed_at + group * reduction * self.panels.padded());
            // From output channel to output channel, and from channel to channel of the reduction.
            let (src, column_step, row_step) = match self.direction {
                Direction::Forward => {
                    let k = group * self.width + self.panels.start(panel);
                    (weights.add((k * kernel + weight) * depth), kernel * depth, 1)
                }
                Direction::InputGrad => {
                    let src = weights.add((group * depth * kernel + weight) * self.width);
                    (src.add(self.panels.start(panel)), 1, kernel * self.width)
                }
            };
            if self.narrow {
                for j in 0..columns {
                    for i in 0..depth {
                        *dst.add(j * reduction + tap * depth + i) = *src.add(j * column_step + i * row_step);
                    }
                }
                return;
            }
            let dst = dst.add(self.panels.offset(panel, reduction) + tap * depth * width);
            match self.direction {
                Direction::Forward => {
                    pack::transpose_columns(level, src, column_step, depth, columns, dst, width);
                }
                Direction::InputGrad => pack::copy_rows(level, src, row_step, depth, columns, dst, width),
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
        let tensors = Tensors { source, packed, epilogue, out, out_stride };
        let tensors = &tensors;
        let scratch = Shares(workspace);
        let blocks: usize = self.phases.iter().map(|p| p.region.blocks()).sum();
        let splits = self.panels.count().div_ceil(self.together);
        cpu.pool.run(self.dims.groups * blocks * splits, |worker, task| {
            let task = self.task(task, blocks, splits);
            // SAFETY: each task writes its own pixels and channels, and its worker's scratch.
            unsafe { self.block(&task, tensors, scratch.at(worker * self.scratch)) }
        });
    }

    fn task(&self, task: usize, blocks: usize, splits: usize) -> Task<'_> {
        let (group, mut block, split) = (task / (blocks * splits), task / splits % blocks, task % splits);
        let mut cuts = self.phases.iter();
        let mut cut = cuts.next().expect("a convolution has a phase");
        while block >= cut.region.blocks() {
            block -= cut.region.blocks();
            cut = cuts.next().expect("a block of some phase");
        }
        let first = split * self.together;
        let panels = first..(first + self.together).min(self.panels.count());
        Task { cut, group, block: cut.region.block(block), panels }
    }

    unsafe fn block(&self, task: &Task<'_>, tensors: &Tensors<'_>, scratch: *mut f32) {
        let region = &task.cut.region;
        let channel = task.group * self.depth;
        // SAFETY: the promise of `run`; the scratch holds the sums of all panels, then the patch.
        unsafe {
            let (mut left, mut step) =
                (scratch.add(self.sums_len(region)).cast_const(), region.column_step());
            match region.direct(tensors.source, channel, &task.block) {
                Some(direct) => (left, step) = direct,
                None => region.fill(self.level, tensors.source, channel, &task.block, left.cast_mut()),
            }
            if region.reduction() == 0 {
                std::slice::from_raw_parts_mut(scratch, self.sums_len(region)).fill(0.0);
            }
            let packed = tensors
                .packed
                .add(task.cut.packed_at + task.group * region.reduction() * self.panels.padded());
            if self.narrow {
                self.dots(task, left, step, packed, scratch);
                return self.finish(task, 0..1, tensors, scratch);
            }
            for (i, panel) in task.panels.clone().enumerate() {
                let sums = scratch.add(i * self.panel_len(region));
                if !self.panel_to_output(task, panel, left, step, packed, tensors) {
                    self.panel(task, panel, left, step, packed, Start::Zero, |row| {
                        (
                            sums.wrapping_add(row * region.columns * self.panels.width(panel)),
                            self.panels.width(panel),
                        )
                    });
                    self.finish(task, panel..panel + 1, tensors, sums);
                }
            }
        }
    }

    unsafe fn dots(&self, task: &Task<'_>, left: *const f32, a_row: usize, b: *const f32, sums: *mut f32) {
        let region = &task.cut.region;
        let (n, m, c_row) = (self.width, task.block.columns, self.panels.width(0));
        let (segments, b_row) = (&region.segments[..], region.reduction());
        for row in 0..task.block.rows {
            // SAFETY: the promise of `run`.
            unsafe {
                let a = left.add(row * region.row_step());
                let c = sums.add(row * region.columns * c_row);
                DotProduct { m, n, segments, a, a_row, b, b_row, c, c_row }.run(self.level);
            }
        }
    }

    /// Where the epilogue leaves nothing to do but a bias, sums go straight to the output. False if not.
    unsafe fn panel_to_output(
        &self,
        task: &Task<'_>,
        panel: usize,
        left: *const f32,
        a_row: usize,
        packed: *const f32,
        tensors: &Tensors<'_>,
    ) -> bool {
        let region = &task.cut.region;
        let channels = self.width * self.dims.groups;
        let channel = task.group * self.width + self.panels.start(panel);
        let whole = self.panels.columns(panel) == self.panels.width(panel) && region.reduction() > 0;
        let Some(start) = tensors.epilogue.as_start(task.block.n, channels, channel).filter(|_| whole) else {
            return false;
        };
        // SAFETY: the promise of `run`.
        unsafe {
            self.panel(task, panel, left, a_row, packed, start, |row| {
                let (pixel, step) = region.output(&task.block, row);
                let at = pixel * tensors.out_stride + channel;
                (tensors.out.wrapping_add(at), step * tensors.out_stride)
            });
        }
        true
    }

    /// The sums of one panel; `to` says where those of a row of pixels go, and from pixel to pixel.
    unsafe fn panel(
        &self,
        task: &Task<'_>,
        panel: usize,
        left: *const f32,
        a_row: usize,
        packed: *const f32,
        start: Start,
        to: impl Fn(usize) -> (*mut f32, usize),
    ) {
        let region = &task.cut.region;
        let width = self.panels.width(panel);
        for (segments, at) in &task.cut.chunks {
            for row in 0..task.block.rows {
                let (c, c_row) = to(row);
                // SAFETY: the promise of `run`.
                unsafe {
                    BlockProduct {
                        m: task.block.columns,
                        segments: &region.segments[segments.clone()],
                        vectors: self.panels.vectors(panel),
                        a: left.add(row * region.row_step()),
                        a_row,
                        b: packed.add(self.panels.offset(panel, region.reduction()) + at * width),
                        b_row: width,
                        c,
                        c_row,
                        start: if *at > 0 { Start::Sums } else { start },
                        next: std::ptr::null(),
                    }
                    .run(self.level);
                }
            }
        }
    }

    unsafe fn finish(&self, task: &Task<'_>, panels: Range<usize>, tensors: &Tensors<'_>, sums: *const f32) {
        let region = &task.cut.region;
        for panel in panels {
            let width = self.panels.width(panel);
            for row in 0..task.block.rows {
                let (pixel, pixel_step) = region.output(&task.block, row);
                // SAFETY: the promise of `run`.
                unsafe {
                    Finish {
                        rows: task.block.columns,
                        sample: task.block.n,
                        pixel,
                        pixel_step,
                        sums: sums.add(row * region.columns * width),
                        sums_row: width,
                        channel: task.group * self.width + self.panels.start(panel),
                        columns: self.panels.columns(panel),
                        channels: self.width * self.dims.groups,
                        out: tensors.out,
                        out_stride: tensors.out_stride,
                        epilogue: tensors.epilogue,
                    }
                    .run(self.level);
                }
            }
        }
    }
}

impl Cut {
    fn new(region: Region, packed_at: usize) -> Cut {
        let mut chunks: Vec<(Range<usize>, usize)> = Vec::new();
        let (mut start, mut len) = (0, usize::MAX / 2);
        for (i, segment) in region.segments.iter().enumerate() {
            if len + segment.len > MAX_DEPTH {
                chunks.push((i..i, start));
                len = 0;
            }
            len += segment.len;
            start += segment.len;
            if let Some((range, _)) = chunks.last_mut() {
                range.end = i + 1;
            }
        }
        Cut { region, packed_at, chunks }
    }
}
