//! Convolutions in 8 bits.
//!
//! Two passes. The first rounds the source to bytes, normalised, activated and padded on the way, into a padded image of its own
//! in the workspace: `[sample][plane][row][pixel][channels to a multiple of 4]`. The second multiplies: the taps of an output pixel are runs of
//! that image, whatever the stride, so nothing is copied again; a tile of sums stays in registers over the whole reduction and
//! goes through the epilogue to memory. What is rounded to what stands in `graph::ops::int8`; sums are exact, so all
//! instruction sets agree.

mod pack;
mod product;
mod read;
#[cfg(test)]
mod tests;

use super::{ConvDims, Epilogue, Source};
use crate::Cpu;
use crate::gemm::Panels;
use crate::pool::Shares;
use crate::simd::Level;
use crate::simd::bytes::Products;
use pack::Numbers;
use product::{Strip, tile_rows};
use read::{Range, Read};

/// Output pixels that a task multiplies with a panel, and tasks that there should be, so that threads finish together.
const TASK_PIXELS: usize = 256;
const FEW_TASKS: usize = 12;
/// Bytes that the padded image is read over its end.
const SLACK: usize = 64;

/// A run of bytes of the padded image that an output pixel reads, from where its first tap lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    offset: usize,
    /// A multiple of 4.
    len: usize,
}

/// How the source is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Each sample has a grid of its own, from its range.
    pub dynamic: bool,
    /// Each pixel stands for two along Y and two along X: the source is half as large as the dimensions say.
    pub upsample: bool,
}

/// A convolution in 8 bits, ready to run.
pub struct Int8Plan {
    dims: ConvDims,
    products: Products,
    how: Reading,
    /// Bytes of a pixel.
    depth: usize,
    /// The padded image: planes, rows, pixels.
    padded: [usize; 3],
    runs: Vec<Run>,
    panels: Panels,
    /// Output pixels of a strip, strips of a row and strips of a task.
    columns: usize,
    across: usize,
    together: usize,
    /// Values of workspace that [`Int8Plan::run`] needs.
    pub workspace_len: usize,
    /// Values of packed weights that [`Int8Plan::pack`] writes.
    pub packed_len: usize,
}

impl Int8Plan {
    /// # Panics
    /// If a dimension is 0, there are groups, or what is upsampled has odd sizes.
    pub fn new(dims: &ConvDims, how: Reading, level: Level) -> Int8Plan {
        Int8Plan::with(dims, how, level, Products::of(level))
    }

    fn with(dims: &ConvDims, how: Reading, level: Level, products: Products) -> Int8Plan {
        dims.check();
        assert_eq!(dims.groups, 1, "no convolutions in 8 bits with groups");
        assert!(!how.upsample || dims.input[1..].iter().all(|n| n % 2 == 0), "odd sizes: {dims:?}");
        let dims = if how.upsample { *dims } else { flat(dims) };
        let depth = dims.c.next_multiple_of(4);
        let reach = |d: usize| (dims.kernel[d] - 1) * dims.dilation[d] + 1;
        let padded: [usize; 3] = std::array::from_fn(|d| (dims.output[d] - 1) * dims.stride[d] + reach(d));
        let panels = Panels::new(dims.k, level);
        let tile = tile_rows(level, panels.vectors(0));
        let [_, _, x] = dims.output;
        let across = x.div_ceil(TASK_PIXELS);
        let columns = x.div_ceil(across).next_multiple_of(tile).min(x);
        let strips = dims.n * dims.output[0] * dims.output[1] * across;
        let most = (strips * panels.count() / FEW_TASKS).max(1);
        let together = (TASK_PIXELS / columns).clamp(1, most);
        let numbers = Numbers { depth, k: panels.padded() };
        let mut plan = Int8Plan {
            dims,
            products,
            how,
            depth,
            padded,
            runs: runs(&dims, depth, padded),
            panels,
            columns,
            across,
            together,
            workspace_len: 0,
            packed_len: numbers.len() + panels.padded() * dims.kernel.iter().product::<usize>() * depth / 4,
        };
        plan.workspace_len =
            plan.ranges_at() + if how.dynamic { 2 * dims.n * plan.source_rows()[0] } else { 0 };
        plan
    }

    fn numbers(&self) -> Numbers {
        Numbers { depth: self.depth, k: self.panels.padded() }
    }

    /// Rows of the padded images of all samples.
    fn rows(&self) -> usize {
        self.dims.n * self.padded[0] * self.padded[1]
    }

    fn row_bytes(&self) -> usize {
        self.padded[2] * self.depth
    }

    /// The workspace: the image, the numbers of each sample, the range of each row.
    fn numbers_at(&self) -> usize {
        let over = SLACK + crate::gemm::MAX_TILE_ROWS * self.dims.stride[2] * self.depth;
        (self.rows() * self.row_bytes() + over).div_ceil(64) * 16
    }

    fn ranges_at(&self) -> usize {
        self.numbers_at() + if self.how.dynamic { self.dims.n * self.numbers().len() } else { 0 }
    }

    /// Reads `source`, writes pixels of `out` that are K values apart.
    ///
    /// # Safety
    /// As for `ConvPlan::run`; `packed` was written by [`Int8Plan::pack`].
    ///
    /// # Panics
    /// If `packed` or `workspace` is too short.
    pub unsafe fn run(
        &self,
        cpu: &Cpu,
        source: &Source,
        packed: &[f32],
        epilogue: &Epilogue,
        out: *mut f32,
        workspace: &mut [f32],
    ) {
        assert!(packed.len() >= self.packed_len, "packed weights need {} values", self.packed_len);
        assert!(workspace.len() >= self.workspace_len, "the workspace needs {} values", self.workspace_len);
        let workspace = workspace.as_mut_ptr();
        // SAFETY: the caller's promise and the checks above.
        unsafe {
            let mut numbers = packed.as_ptr();
            if self.how.dynamic {
                let ranges = workspace.add(self.ranges_at());
                self.measure(cpu, source, ranges);
                let made = workspace.add(self.numbers_at());
                self.numbers_of_ranges(packed.as_ptr(), ranges, made);
                numbers = made;
            }
            let image = workspace.cast::<u8>();
            self.round(cpu, source, numbers, image);
            self.multiply(cpu, image, packed.as_ptr().add(self.numbers().len()), numbers, epilogue, out);
        }
    }

    /// The numbers of one sample: every sample's are the same where they are static.
    unsafe fn numbers_of(&self, numbers: *const f32, n: usize) -> *const f32 {
        // SAFETY: the caller's promise.
        if self.how.dynamic { unsafe { numbers.add(n * self.numbers().len()) } } else { numbers }
    }

    fn reader<'a>(&'a self, source: &'a Source, row: usize) -> Read<'a> {
        let [planes, rows, _] = self.padded;
        Read { plan: self, source, n: row / (planes * rows), z: row / rows % planes, y: row % rows }
    }

    /// Rows of a sample of the source, and pixels of each.
    fn source_rows(&self) -> [usize; 2] {
        let each = if self.how.upsample { 2 } else { 1 };
        let [z, y, x] = self.dims.input;
        [z * (y / each), x / each]
    }

    unsafe fn measure(&self, cpu: &Cpu, source: &Source, ranges: *mut f32) {
        let ranges = Shares(ranges);
        let [rows, pixels] = self.source_rows();
        cpu.pool.run(self.dims.n * rows, |_, row| {
            let range = Range { source, n: row / rows, pixel: row * pixels, pixels };
            // SAFETY: the caller's promise, and each task writes a part of its own.
            let range = unsafe { self.products.dispatch(range) };
            // SAFETY: each task writes its own row's.
            unsafe { ranges.slice(2 * row, 2).copy_from_slice(&range) }
        });
    }

    unsafe fn round(&self, cpu: &Cpu, source: &Source, numbers: *const f32, image: *mut u8) {
        let (numbers, image) = (Shares(numbers.cast_mut()), Shares(image));
        cpu.pool.run(self.rows(), |_, row| {
            let reader = self.reader(source, row);
            // SAFETY: each task writes its own row.
            unsafe {
                let numbers = self.numbers_of(numbers.at(0), reader.n);
                let row = read::Round { reader, numbers, to: image.at(row * self.row_bytes()) };
                self.products.dispatch(row);
            }
        });
    }

    unsafe fn multiply(
        &self,
        cpu: &Cpu,
        image: *const u8,
        weights: *const f32,
        numbers: *const f32,
        epilogue: &Epilogue,
        out: *mut f32,
    ) {
        let [oz, oy, ox] = self.dims.output;
        let strips = self.dims.n * oz * oy * self.across;
        let blocks = strips.div_ceil(self.together);
        let reduction: usize = self.dims.kernel.iter().product::<usize>() * self.depth / 4;
        let shared =
            (Shares(image.cast_mut()), Shares(weights.cast_mut()), Shares(numbers.cast_mut()), Shares(out));
        let shared = &shared;
        // Tasks of one panel follow each other: its weights stay near.
        cpu.pool.run(self.panels.count() * blocks, |_, task| {
            let (panel, block) = (task / blocks, task % blocks);
            for strip in block * self.together..((block + 1) * self.together).min(strips) {
                let (x, row) = (strip % self.across * self.columns, strip / self.across);
                let (y, z, n) = (row % oy, row / oy % oz, row / oy / oz);
                let [sz, sy, sx] = self.dims.stride;
                let first = ((n * self.padded[0] + z * sz) * self.padded[1] + y * sy) * self.row_bytes();
                // SAFETY: each task writes its own pixels and channels; the rest is read.
                unsafe {
                    let (image, weights, numbers, out) =
                        (shared.0.at(0), shared.1.at(0), shared.2.at(0), shared.3.at(0));
                    let strip = Strip {
                        pixels: self.columns.min(ox.saturating_sub(x)),
                        runs: &self.runs,
                        vectors: self.panels.vectors(panel),
                        left: image.add(first + x * sx * self.depth),
                        left_step: sx * self.depth,
                        weights: weights.add(self.panels.offset(panel, reduction)).cast(),
                        numbers: self
                            .numbers()
                            .of_columns(self.numbers_of(numbers, n), self.panels.start(panel)),
                        sample: n,
                        pixel: row * ox + x,
                        channel: self.panels.start(panel),
                        columns: self.panels.columns(panel),
                        channels: self.dims.k,
                        out,
                        epilogue,
                    };
                    self.products.dispatch(strip);
                }
            }
        });
    }
}

/// Where each pixel reads only itself, all pixels of a sample are one row.
fn flat(dims: &ConvDims) -> ConvDims {
    let plain =
        dims.kernel == [1; 3] && dims.stride == [1; 3] && dims.pad == [0; 3] && dims.input == dims.output;
    let row = [1, 1, dims.input.iter().product()];
    if plain { ConvDims { input: row, output: row, ..*dims } } else { *dims }
}

/// The taps of a pixel as runs; those along x lie side by side unless they are dilated.
fn runs(dims: &ConvDims, depth: usize, padded: [usize; 3]) -> Vec<Run> {
    let mut runs: Vec<Run> = vec![];
    let [kz, ky, kx] = dims.kernel;
    let [dz, dy, dx] = dims.dilation;
    for tap in 0..kz * ky * kx {
        let (z, y, x) = (tap / (kx * ky) * dz, tap / kx % ky * dy, tap % kx * dx);
        let offset = ((z * padded[1] + y) * padded[2] + x) * depth;
        match runs.last_mut() {
            Some(run) if run.offset + run.len == offset => run.len += depth,
            _ => runs.push(Run { offset, len: depth }),
        }
    }
    runs
}
