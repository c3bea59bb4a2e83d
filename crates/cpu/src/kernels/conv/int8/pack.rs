//! Weights as bytes, and the numbers that go with them.
//!
//! A panel holds, for every four values of the reduction, four bytes of each of its columns: what one product of bytes takes.

use super::Int8Plan;
use crate::Cpu;
use crate::pool::Shares;
use clearshot_graph::ops::int8::{Grid, round_weight, scale_of};

/// Numbers of a sample, one after the other: for each channel of the input the inverse of its step, its zero and its zero as
/// a byte; for each output channel what its sum starts from and what a unit of the sum is worth.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    /// Bytes of a pixel.
    pub depth: usize,
    /// Columns of all panels.
    pub k: usize,
}

/// Where the numbers of some output channels lie.
#[derive(Clone, Copy)]
pub(super) struct ColumnNumbers {
    pub starts: *const i32,
    pub worth: *const f32,
}

impl Numbers {
    /// Room for the channels of whole vectors.
    fn c(&self) -> usize {
        self.depth.next_multiple_of(16)
    }

    pub fn len(&self) -> usize {
        3 * self.c() + 2 * self.k
    }

    pub fn inverse(&self) -> usize {
        0
    }

    pub fn zeros(&self) -> usize {
        self.c()
    }

    pub fn bytes(&self) -> usize {
        2 * self.c()
    }

    fn starts(&self) -> usize {
        3 * self.c()
    }

    fn worth(&self) -> usize {
        3 * self.c() + self.k
    }

    /// # Safety
    /// `numbers` are of this form.
    pub unsafe fn of_columns(&self, numbers: *const f32, column: usize) -> ColumnNumbers {
        // SAFETY: the caller's promise.
        unsafe {
            ColumnNumbers {
                starts: numbers.add(self.starts() + column).cast(),
                worth: numbers.add(self.worth() + column),
            }
        }
    }

    /// # Safety
    /// There is room at `numbers`.
    unsafe fn set_channel(&self, numbers: *mut f32, channel: usize, grid: Grid) {
        // SAFETY: the caller's promise.
        unsafe {
            *numbers.add(self.inverse() + channel) = 1.0 / grid.step;
            *numbers.add(self.zeros() + channel) = f32::from(grid.zero);
            *numbers.add(self.bytes()).cast::<u8>().add(channel) = grid.zero;
        }
    }

    /// # Safety
    /// There is room at `numbers`.
    unsafe fn set_column(&self, numbers: *mut f32, column: usize, start: i32, worth: f32) {
        // SAFETY: the caller's promise.
        unsafe {
            *numbers.add(self.starts() + column).cast::<i32>() = start;
            *numbers.add(self.worth() + column) = worth;
        }
    }
}

/// The grids of the input's channels: as given, or of a zero of 1 where each run has its own.
struct Grids {
    steps: Option<Shares<f32>>,
    c: usize,
}

impl Grids {
    /// # Safety
    /// The steps are there, and the channel is one of theirs.
    unsafe fn of(&self, channel: usize) -> Grid {
        match &self.steps {
            // SAFETY: the caller's promise.
            Some(s) => unsafe { Grid { step: *s.at(channel), zero: *s.at(self.c + channel) as u8 } },
            None => Grid { step: 1.0, zero: 1 },
        }
    }
}

impl Int8Plan {
    /// Rounds weights into the order that [`Int8Plan::run`] reads.
    ///
    /// # Safety
    /// `weights` points to `[K, kz, ky, kx, C]`, `steps` to `[2, C]` where the rounding is static.
    ///
    /// # Panics
    /// If `packed` is too short, or the steps are missing.
    pub unsafe fn pack(&self, cpu: &Cpu, weights: *const f32, steps: Option<*const f32>, packed: &mut [f32]) {
        assert!(packed.len() >= self.packed_len, "packed weights need {} values", self.packed_len);
        assert_eq!(steps.is_none(), self.how.dynamic, "a static rounding has steps");
        let (c, numbers) = (self.dims.c, self.numbers());
        packed[..self.packed_len].fill(0.0);
        let grids = Grids { steps: steps.map(|s| Shares(s.cast_mut())), c };
        for channel in 0..c {
            // SAFETY: the caller's steps; the numbers come first in what is packed.
            unsafe { numbers.set_channel(packed.as_mut_ptr(), channel, grids.of(channel)) }
        }
        let (weights, packed, grids) = (Shares(weights.cast_mut()), Shares(packed.as_mut_ptr()), &grids);
        cpu.pool.run(self.dims.k, |_, column| {
            // SAFETY: each task writes the bytes and numbers of its column.
            unsafe { self.pack_column(weights.at(0), grids, column, packed.at(0)) }
        });
    }

    unsafe fn pack_column(&self, weights: *const f32, grids: &Grids, column: usize, packed: *mut f32) {
        let (c, taps) = (self.dims.c, self.dims.kernel.iter().product::<usize>());
        let panel = column / self.panels.full();
        let width = self.panels.width(panel);
        // SAFETY: the promise of `pack`.
        unsafe {
            let from = std::slice::from_raw_parts(weights.add(column * taps * c), taps * c);
            let scaled = |i: usize| from[i] * grids.of(i % c).step;
            let scale = scale_of((0..from.len()).fold(0.0, |most: f32, i| most.max(scaled(i).abs())));
            let reduction = taps * self.depth / 4;
            let at = self.numbers().len() + self.panels.offset(panel, reduction) + column
                - self.panels.start(panel);
            let to = packed.add(at).cast::<i8>();
            let mut start = 0i32;
            for (i, _) in from.iter().enumerate() {
                let (tap, channel) = (i / c, i % c);
                let p = round_weight(scaled(i), scale);
                let byte = tap * self.depth + channel;
                *to.add(byte / 4 * width * 4 + byte % 4) = p;
                start = start.wrapping_sub(i32::from(p) * i32::from(grids.of(channel).zero));
            }
            self.numbers().set_column(packed, column, start, scale);
        }
    }

    /// The numbers of each sample, from the ranges of its rows. What is packed has the starts of a zero of 1.
    pub(super) unsafe fn numbers_of_ranges(&self, packed: *const f32, ranges: *const f32, made: *mut f32) {
        let (numbers, [rows, _]) = (self.numbers(), self.source_rows());
        for n in 0..self.dims.n {
            // SAFETY: the caller's promise of all ranges and of room for the numbers.
            unsafe {
                let ranges = std::slice::from_raw_parts(ranges.add(2 * n * rows), 2 * rows);
                let low = ranges.iter().step_by(2).fold(0.0, |a: f32, b| a.min(*b));
                let high = ranges[1..].iter().step_by(2).fold(0.0, |a: f32, b| a.max(*b));
                let (grid, to) = (Grid::between(low, high), made.add(n * numbers.len()));
                (0..self.dims.c).for_each(|channel| numbers.set_channel(to, channel, grid));
                let of = numbers.of_columns(packed, 0);
                for column in 0..self.dims.k {
                    let start = (*of.starts.add(column)).wrapping_mul(i32::from(grid.zero));
                    numbers.set_column(to, column, start, *of.worth.add(column) * grid.step);
                }
            }
        }
    }
}
