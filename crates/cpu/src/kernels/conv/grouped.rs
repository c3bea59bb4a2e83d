//! Convolutions of many small groups: depthwise ones, and groups that write fewer channels than a vector
//! has lanes, where a matrix product for each group would be mostly padding.
//!
//! Lanes are output channels. A task takes some of their vectors and a strip of output rows. The input rows
//! that an output row reads stand in a ring in the first-level cache, copied there once, padded,
//! concatenated and normalised on the way; each value stands in the lanes of all outputs that read it, so
//! a depthwise convolution's rows are as they were, and a group of four channels has four vectors a pixel.
//! A tile of pixels along x then sums over taps in registers. Sums of one output are in the order of the taps,
//! whatever the cut into tasks.

use super::epilogue::{Epilogue, Place};
use super::geometry::Phase;
use super::source::{Patch, Source};
use super::{ConvDims, Direction};
use crate::Cpu;
use crate::gemm::store_len;
use crate::pool::Shares;
use crate::simd::{Kernel, Level, Simd};

/// Pixels along x that are summed at once, and that a strip is wide at most.
const TILE: usize = 8;
const MAX_COLUMNS: usize = 128;
/// Rows of input that an output pixel reads at most: taps along z times taps along y.
const MAX_LINES: usize = 64;
/// Vectors of channels of a task: so many lie side by side in memory.
const TOGETHER: usize = 4;
/// Tasks that there should be, so that threads finish together, and rows that a strip keeps for that.
const FEW_TASKS: usize = 12;
const FEW_ROWS: usize = 4;

pub(super) struct Grouped {
    dims: ConvDims,
    direction: Direction,
    level: Level,
    /// Channels that a group reads and writes.
    depth: usize,
    width: usize,
    strips: Vec<Strips>,
    scratch: usize,
}

/// A phase cut into strips, and its weights.
struct Strips {
    phase: Phase,
    rows: usize,
    columns: usize,
    down: usize,
    across: usize,
    /// Vectors of channels of a task, and tasks that share the channels.
    together: usize,
    parts: usize,
    /// Input rows of the ring for each tap along z, and pixels of a row.
    ring: usize,
    line: usize,
    packed_at: usize,
}

impl Strips {
    fn new(phase: Phase, vectors: usize, packed_at: usize) -> Strips {
        let [z, y, x] = phase.axes.each_ref();
        let columns = x.count.div_ceil(x.count.div_ceil(MAX_COLUMNS));
        let across = x.count.div_ceil(columns);
        let mut together = TOGETHER.min(vectors);
        let tasks = |together: usize| phase.n * z.count * across * vectors.div_ceil(together);
        if tasks(together) * y.count.div_ceil(FEW_ROWS) < FEW_TASKS {
            together = 1;
        }
        let down = FEW_TASKS.div_ceil(tasks(together)).min(y.count.div_ceil(FEW_ROWS));
        let rows = y.count.div_ceil(down);
        let (ring, line) = (y.span(), (columns - 1) * x.pace + x.span());
        let (down, parts) = (y.count.div_ceil(rows), vectors.div_ceil(together));
        Strips { rows, columns, down, across, together, parts, ring, line, packed_at, phase }
    }

    fn tasks(&self) -> usize {
        self.phase.n * self.phase.axes[0].count * self.down * self.across * self.parts
    }
}

impl Grouped {
    /// Whether groups are so small that this is the way; `width` channels are written by each.
    pub fn suits(dims: &ConvDims, width: usize, level: Level) -> bool {
        dims.groups > 1 && 2 * width <= level.lanes() && dims.kernel[0] * dims.kernel[1] <= MAX_LINES
    }

    pub fn new(dims: &ConvDims, direction: Direction, level: Level) -> Option<Grouped> {
        let (c, k) = (dims.c / dims.groups, dims.k / dims.groups);
        let (phases, depth, width) = match direction {
            Direction::Forward => (vec![Phase::forward(dims)], c, k),
            Direction::InputGrad => (Phase::input_grad(dims), k, c),
        };
        if !Grouped::suits(dims, width, level) {
            return None;
        }
        let lanes = level.lanes();
        let vectors = (width * dims.groups).div_ceil(lanes);
        let mut packed_at = 0;
        let strips: Vec<Strips> = phases
            .into_iter()
            .map(|phase| {
                let at = packed_at;
                packed_at += vectors * phase.taps() * depth * lanes;
                Strips::new(phase, vectors, at)
            })
            .collect();
        let mut plan = Grouped { dims: *dims, direction, level, depth, width, strips, scratch: 0 };
        let need = |s: &Strips| plan.ring_len(s) + plan.windows() * s.line * lanes;
        plan.scratch = plan.strips.iter().map(need).max().unwrap_or(0).next_multiple_of(16);
        Some(plan)
    }

    fn channels(&self) -> usize {
        self.width * self.dims.groups
    }

    fn vectors(&self) -> usize {
        self.channels().div_ceil(self.level.lanes())
    }

    /// One channel in, one channel out: rows are copied as they are.
    fn is_depthwise(&self) -> bool {
        self.depth == 1 && self.width == 1
    }

    /// Vectors of input channels that the lanes of one vector of outputs read, at most.
    fn windows(&self) -> usize {
        let lanes = self.level.lanes();
        let groups = (lanes - 1).div_ceil(self.width) + 1;
        if self.is_depthwise() { 0 } else { (groups * self.depth).div_ceil(lanes) }
    }

    fn ring_len(&self, strips: &Strips) -> usize {
        let rows = strips.phase.axes[0].taps.len() * strips.ring;
        rows * strips.line * self.depth * self.level.lanes()
    }

    pub fn packed_len(&self) -> usize {
        let taps: usize = self.strips.iter().map(|s| s.phase.taps()).sum();
        self.vectors() * taps * self.depth * self.level.lanes()
    }

    pub fn workspace_len(&self, threads: usize) -> usize {
        threads * self.scratch
    }

    /// `[phase][vector][tap][channel of the group][lane]`; lanes behind the last channel are zero.
    ///
    /// # Safety
    /// `weights` holds `[K, kz, ky, kx, C / groups]` and `packed` has `packed_len` values.
    pub unsafe fn pack(&self, cpu: &Cpu, weights: *const f32, packed: *mut f32) {
        let lanes = self.level.lanes();
        let kernel: usize = self.dims.kernel.iter().product();
        let (weights, packed) = (Shares(weights.cast_mut()), Shares(packed));
        for strips in &self.strips {
            let taps = strips.phase.taps();
            let len = taps * self.depth * lanes;
            cpu.pool.run(self.vectors(), |_, vector| {
                // SAFETY: each task writes the weights of its vector, and reads those that there are.
                let to = unsafe { packed.slice(strips.packed_at + vector * len, len) };
                for (i, to) in to.iter_mut().enumerate() {
                    let (lane, j, tap) = (i % lanes, i / lanes % self.depth, i / lanes / self.depth);
                    let channel = vector * lanes + lane;
                    let tap = strips.phase.weight(tap, self.dims.kernel);
                    let at = match self.direction {
                        Direction::Forward => (channel * kernel + tap) * self.depth + j,
                        Direction::InputGrad => {
                            let k = channel / self.width * self.depth + j;
                            (k * kernel + tap) * self.width + channel % self.width
                        }
                    };
                    // SAFETY: a weight of a channel that there is.
                    *to = if channel < self.channels() { unsafe { *weights.at(at) } } else { 0.0 };
                }
            });
        }
    }

    /// # Safety
    /// As [`super::ConvPlan::run`], with `workspace_len` values of workspace.
    #[allow(clippy::too_many_arguments)]
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
        for strips in &self.strips {
            cpu.pool.run(strips.tasks(), |worker, task| {
                // SAFETY: a worker has scratch of its own; a task writes pixels and channels of its own.
                let (packed, out, scratch) =
                    unsafe { (packed.at(strips.packed_at), out.at(0), workspace.at(worker * self.scratch)) };
                let strip = strips.strip(task);
                let run = Strip {
                    plan: self,
                    strips,
                    at: strip,
                    source,
                    packed,
                    epilogue,
                    out,
                    out_stride,
                    scratch,
                };
                // SAFETY: the caller's promise, and each task writes a part of its own.
                unsafe { self.level.dispatch(run) };
            });
        }
    }
}

/// Where a task's strip begins, in the phase's numbering, and its extent.
#[derive(Clone, Copy)]
struct At {
    n: usize,
    z: usize,
    y: usize,
    x: usize,
    rows: usize,
    columns: usize,
    part: usize,
}

impl Strips {
    fn strip(&self, task: usize) -> At {
        let [az, ay, ax] = self.phase.axes.each_ref();
        let (part, rest) = (task % self.parts, task / self.parts);
        let (x, rest) = (rest % self.across * self.columns, rest / self.across);
        let (y, rest) = (rest % self.down * self.rows, rest / self.down);
        let (rows, columns) = (self.rows.min(ay.count - y), self.columns.min(ax.count - x));
        At { n: rest / az.count, z: rest % az.count, y, x, rows, columns, part }
    }
}

/// A task on its way through its vectors of channels.
struct Strip<'a> {
    plan: &'a Grouped,
    strips: &'a Strips,
    at: At,
    source: &'a Source,
    packed: *const f32,
    epilogue: &'a Epilogue,
    out: *mut f32,
    out_stride: usize,
    scratch: *mut f32,
}

impl Kernel for Strip<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let (first, all) = (self.at.part * self.strips.together, self.plan.vectors());
        for vector in first..(first + self.strips.together).min(all) {
            // SAFETY: the promise of `Grouped::run`.
            unsafe { self.vector(s, vector) }
        }
    }
}

impl Strip<'_> {
    /// All pixels of one vector of channels.
    #[inline(always)]
    unsafe fn vector<S: Simd>(&self, s: S, vector: usize) {
        let (strips, at) = (self.strips, self.at);
        let [z, y, x] = strips.phase.axes.each_ref();
        let taps = strips.phase.taps();
        let pixel = self.plan.depth * S::LANES;
        let mut lines = [std::ptr::null(); MAX_LINES];
        let count = if taps == 0 { 0 } else { z.taps.len() * y.taps.len() };
        let mut filled = 0;
        for row in 0..at.rows {
            // SAFETY: the promise of `Grouped::run`; the ring holds the rows that an output row reads.
            unsafe {
                let low = row * y.pace;
                for input in filled.max(low)..if taps == 0 { 0 } else { low + strips.ring } {
                    for tap in 0..z.taps.len() {
                        self.fill(s, vector, tap, input);
                    }
                }
                filled = low + strips.ring;
                for (i, line) in lines[..count].iter_mut().enumerate() {
                    let (tap, ty) = (i / y.taps.len(), &y.taps[i % y.taps.len()]);
                    *line = self.line(tap, low + (ty.offset - y.low()) as usize, pixel);
                }
                let weights = self.packed.add(vector * taps * pixel);
                let tiles = at.columns.div_ceil(TILE);
                for tile in 0..tiles {
                    let (start, end) = (tile * at.columns / tiles, (tile + 1) * at.columns / tiles);
                    let run = Sums { lines: &lines[..count], weights, pixel, step: x.pace * pixel, start };
                    let phase = &strips.phase;
                    let mut sums = [s.splat(0.0); TILE];
                    match end - start {
                        1 => run.add::<S, 1>(s, phase, &mut sums),
                        2 => run.add::<S, 2>(s, phase, &mut sums),
                        3 => run.add::<S, 3>(s, phase, &mut sums),
                        4 => run.add::<S, 4>(s, phase, &mut sums),
                        5 => run.add::<S, 5>(s, phase, &mut sums),
                        6 => run.add::<S, 6>(s, phase, &mut sums),
                        7 => run.add::<S, 7>(s, phase, &mut sums),
                        _ => run.add::<S, TILE>(s, phase, &mut sums),
                    }
                    self.finish(s, vector, row, start, &sums[..end - start]);
                }
            }
        }
    }

    /// Where an input row, counted from the first that the strip reads, stands in the ring.
    #[inline(always)]
    fn line(&self, tap: usize, row: usize, pixel: usize) -> *mut f32 {
        let slot = tap * self.strips.ring + row % self.strips.ring;
        self.scratch.wrapping_add(slot * self.strips.line * pixel)
    }

    /// Copies one input row of the plane of a tap along z into the ring.
    #[inline(always)]
    unsafe fn fill<S: Simd>(&self, s: S, vector: usize, tap: usize, row: usize) {
        let (plan, strips, at) = (self.plan, self.strips, self.at);
        let [az, ay, ax] = strips.phase.axes.each_ref();
        let z = (at.z * az.pace) as isize + az.taps[tap].offset as isize;
        let inside = (0..az.input as isize).contains(&z);
        let patch = Patch {
            source: self.source,
            channels: self.source.channels(),
            n: at.n,
            plane: inside.then(|| (at.n * az.input + z as usize) * ay.input * ax.input),
            size: [ay.input, ax.input],
            y: (at.y * ay.pace + row) as isize + ay.low() as isize,
            x: (at.x * ax.pace) as isize + ax.low() as isize,
            rows: 1,
            columns: strips.line,
        };
        // SAFETY: the promise of `Grouped::run`; the windows stand behind the ring.
        unsafe {
            let line = self.line(tap, row, plan.depth * S::LANES);
            if plan.is_depthwise() {
                return patch.fill(s, vector * S::LANES, line);
            }
            let windows = self.scratch.add(plan.ring_len(strips));
            let first = vector * S::LANES / plan.width;
            for window in 0..plan.windows() {
                let channel = first * plan.depth + window * S::LANES;
                if channel < patch.channels {
                    patch.fill(s, channel, windows.add(window * strips.line * S::LANES));
                }
            }
            self.spread(vector, first, windows, S::LANES, line);
        }
    }

    /// Brings the channels of groups from `first` on to the lanes of the outputs that read them.
    #[inline(always)]
    unsafe fn spread(&self, vector: usize, first: usize, windows: *const f32, lanes: usize, line: *mut f32) {
        let (plan, columns) = (self.plan, self.strips.line);
        for lane in 0..lanes {
            let group = ((vector * lanes + lane) / plan.width).min(plan.dims.groups - 1);
            for j in 0..plan.depth {
                let channel = (group - first) * plan.depth + j;
                // SAFETY: the windows hold the channels of all groups that the lanes belong to.
                unsafe {
                    let from = windows.add(channel / lanes * columns * lanes + channel % lanes);
                    let to = line.add(j * lanes + lane);
                    for x in 0..columns {
                        *to.add(x * plan.depth * lanes) = *from.add(x * lanes);
                    }
                }
            }
        }
    }

    /// Neighbouring output pixels of a row from `start` on: the end of their sums.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, s: S, vector: usize, row: usize, start: usize, sums: &[S::V]) {
        let [z, y, x] = self.strips.phase.axes.each_ref();
        let (at, channels) = (self.at, self.plan.channels());
        let channel = vector * S::LANES;
        let len = S::LANES.min(channels - channel);
        let oz = z.first + at.z * z.step;
        let oy = y.first + (at.y + row) * y.step;
        let ox = x.first + (at.x + start) * x.step;
        let pixel = ((at.n * z.output + oz) * y.output + oy) * x.output + ox;
        for (t, sum) in sums.iter().enumerate() {
            let place = Place { sample: at.n, pixel: pixel + t * x.step, channels };
            // SAFETY: the promise of `Grouped::run`.
            unsafe {
                let to = self.out.add(place.pixel * self.out_stride + channel);
                store_len(s, to, self.epilogue.end(s, *sum, &place, channel, len), len);
            }
        }
    }
}

/// The sums of a tile over all taps.
struct Sums<'a> {
    /// The input rows that the taps along z and y read.
    lines: &'a [*const f32],
    weights: *const f32,
    /// Values of an input pixel, and from output pixel to output pixel.
    pixel: usize,
    step: usize,
    /// The tile's first pixel in the strip.
    start: usize,
}

impl Sums<'_> {
    /// Sums of the tile's `T` pixels.
    #[inline(always)]
    unsafe fn add<S: Simd, const T: usize>(&self, s: S, phase: &Phase, to: &mut [S::V; TILE]) {
        let x = &phase.axes[2];
        let mut sums = [s.splat(0.0); T];
        let mut weights = self.weights;
        for line in self.lines {
            for tap in &x.taps {
                // SAFETY: the ring's rows hold every pixel that a tile of the strip reads.
                unsafe {
                    let at = (tap.offset - x.low()) as usize * self.pixel + self.start * self.step;
                    for j in (0..self.pixel).step_by(S::LANES) {
                        let from = line.add(at + j);
                        let weight = s.load(weights);
                        weights = weights.add(S::LANES);
                        for (t, sum) in sums.iter_mut().enumerate() {
                            *sum = s.fma(s.load(from.add(t * self.step)), weight, *sum);
                        }
                    }
                }
            }
        }
        to[..T].copy_from_slice(&sums);
    }
}
