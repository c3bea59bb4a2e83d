//! Which input pixels an output pixel reads, for any kernel, stride, dilation and padding.
//!
//! A convolution is one [`Phase`]: output pixel `q` reads input `q * pace + offset` for each tap. The
//! gradient with respect to the input, which scatters, is turned around into phases: the pixels
//! of the same remainder by the stride all read the same taps at offsets of their own, so each
//! phase is a dense convolution that gathers. No atomics, no order of sums that could change.

use super::ConvDims;
use super::epilogue::Row;
use super::source::{Source, copy};
use crate::simd::{Kernel, Level, Simd};

/// A position of the kernel and where it reads relative to a row's first pixel.
#[derive(Clone, Debug)]
pub(super) struct Tap {
    /// Flat index into the kernel `[kz, ky, kx]`.
    pub weight: usize,
    pub offset: [i32; 3],
    /// Taps from this one on, itself included, that read pixels one after the other along x.
    pub run: usize,
}

/// The output pixels that read the same taps: a grid of `count` pixels from `first` in steps of
/// `step`.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    pub n: usize,
    pub count: [usize; 3],
    first: [usize; 3],
    step: [usize; 3],
    pace: [usize; 3],
    /// Z, Y, X of the tensors that are read and written.
    pub input: [usize; 3],
    pub output: [usize; 3],
    pub taps: Vec<Tap>,
}

struct Axis {
    count: usize,
    first: usize,
    step: usize,
    pace: usize,
    /// Kernel index and input offset.
    taps: Vec<(usize, i32)>,
}

impl Phase {
    /// The one phase of a forward convolution.
    pub fn forward(dims: &ConvDims) -> Phase {
        let axes: [Axis; 3] = std::array::from_fn(|d| Axis {
            count: dims.output[d],
            first: 0,
            step: 1,
            pace: dims.stride[d],
            taps: (0..dims.kernel[d])
                .map(|t| (t, (t * dims.dilation[d]) as i32 - dims.pad[d] as i32))
                .collect(),
        });
        Phase::from_axes(dims, dims.input, dims.output, axes.each_ref())
    }

    /// The phases of the gradient with respect to the input; some may have no taps.
    pub fn input_grad(dims: &ConvDims) -> Vec<Phase> {
        let axes: [Vec<Axis>; 3] = std::array::from_fn(|d| {
            (0..dims.stride[d].min(dims.input[d])).map(|first| backward_axis(dims, d, first)).collect()
        });
        let mut phases = Vec::new();
        for z in &axes[0] {
            for y in &axes[1] {
                for x in &axes[2] {
                    phases.push(Phase::from_axes(dims, dims.output, dims.input, [z, y, x]));
                }
            }
        }
        phases
    }

    fn from_axes(dims: &ConvDims, input: [usize; 3], output: [usize; 3], axes: [&Axis; 3]) -> Phase {
        let [_, ky, kx] = dims.kernel;
        let mut taps = Vec::new();
        for &(tz, oz) in &axes[0].taps {
            for &(ty, oy) in &axes[1].taps {
                for &(tx, ox) in &axes[2].taps {
                    taps.push(Tap { weight: (tz * ky + ty) * kx + tx, offset: [oz, oy, ox], run: 1 });
                }
            }
        }
        for i in (0..taps.len().saturating_sub(1)).rev() {
            let [z, y, x] = taps[i].offset;
            if taps[i + 1].offset == [z, y, x + 1] {
                taps[i].run = taps[i + 1].run + 1;
            }
        }
        Phase {
            n: dims.n,
            count: axes.map(|a| a.count),
            first: axes.map(|a| a.first),
            step: axes.map(|a| a.step),
            pace: axes.map(|a| a.pace),
            input,
            output,
            taps,
        }
    }

    /// Output pixels over all samples.
    pub fn rows(&self) -> usize {
        self.n * self.count.iter().product::<usize>()
    }

    /// Row `i` is output pixel `i`, and reads input pixel `i` and no other.
    pub fn is_plain(&self) -> bool {
        self.taps.len() == 1
            && self.taps[0].offset == [0; 3]
            && self.input == self.output
            && self.count == self.output
    }

    /// Fills in where the rows from `start` write and read.
    pub fn locate(&self, start: usize, rows: &mut [Row]) {
        let [cz, cy, cx] = self.count;
        let (mut x, rest) = (start % cx, start / cx);
        let (mut y, rest) = (rest % cy, rest / cy);
        let (mut z, mut n) = (rest % cz, rest / cz);
        for row in rows {
            let q = [z, y, x];
            let at: [usize; 3] = std::array::from_fn(|d| self.first[d] + q[d] * self.step[d]);
            let pixel = ((n * self.output[0] + at[0]) * self.output[1] + at[1]) * self.output[2] + at[2];
            *row = Row {
                sample: n as u32,
                pixel: pixel as u32,
                at: std::array::from_fn(|d| (q[d] * self.pace[d]) as i32),
            };
            x += 1;
            if x == cx {
                (x, y) = (0, y + 1);
            }
            if y == cy {
                (y, z) = (0, z + 1);
            }
            if z == cz {
                (z, n) = (0, n + 1);
            }
        }
    }
}

/// Input pixels `first, first + stride, ...` of one axis, and the taps whose output position is
/// whole there: `o = (i + pad - t dilation) / stride`.
fn backward_axis(dims: &ConvDims, d: usize, first: usize) -> Axis {
    let stride = dims.stride[d] as i32;
    let taps = (0..dims.kernel[d])
        .filter_map(|t| {
            let o = first as i32 + dims.pad[d] as i32 - (t * dims.dilation[d]) as i32;
            (o.rem_euclid(stride) == 0).then_some((t, o.div_euclid(stride)))
        })
        .collect();
    Axis {
        count: (dims.input[d] - first).div_ceil(dims.stride[d]),
        first,
        step: dims.stride[d],
        pace: 1,
        taps,
    }
}

/// Copies the left side of a product into scratch: for each row the values `start .. end` of its
/// reduction, which counts taps, and within a tap `depth` channels from `channel`.
pub(super) struct Gather<'a> {
    pub phase: &'a Phase,
    pub source: &'a Source,
    pub rows: &'a [Row],
    pub channel: usize,
    pub depth: usize,
    pub start: usize,
    pub end: usize,
    pub dst: *mut f32,
    pub dst_row: usize,
}

impl Gather<'_> {
    /// # Safety
    /// The source holds the image and `dst` the rows.
    pub unsafe fn run(self, level: Level) {
        level.dispatch(self);
    }

    #[inline(always)]
    fn pixel(&self, row: &Row, offset: [i32; 3]) -> Option<usize> {
        let [z, y, x] = std::array::from_fn(|d| row.at[d] + offset[d]);
        let [iz, iy, ix] = self.phase.input;
        let inside = (z as u32 as usize) < iz && (y as u32 as usize) < iy && (x as u32 as usize) < ix;
        inside.then(|| ((row.sample as usize * iz + z as usize) * iy + y as usize) * ix + x as usize)
    }

    #[inline(always)]
    unsafe fn tap<S: Simd>(&self, s: S, row: &Row, tap: &Tap, low: usize, high: usize, dst: *mut f32) {
        // SAFETY: the promise of `Gather::run`.
        unsafe {
            match self.pixel(row, tap.offset) {
                Some(pixel) => {
                    self.source.read(s, row.sample as usize, pixel, self.channel + low, high - low, dst)
                }
                None => zero(s, dst, high - low),
            }
        }
    }

    /// Taps along x in one copy: pixels and taps both lie one after the other.
    #[inline(always)]
    unsafe fn runs<S: Simd>(&self, s: S, data: *const f32) {
        for (i, row) in self.rows.iter().enumerate() {
            let mut t = 0;
            while t < self.phase.taps.len() {
                let tap = &self.phase.taps[t];
                let [z, y, x] = tap.offset;
                // SAFETY: the promise of `Gather::run`; the run is copied whole only if both its
                // ends are in the image.
                unsafe {
                    let dst = self.dst.add(i * self.dst_row + t * self.depth);
                    match (self.pixel(row, tap.offset), self.pixel(row, [z, y, x + tap.run as i32 - 1])) {
                        (Some(pixel), Some(_)) => {
                            copy(s, data.add(pixel * self.depth), dst, tap.run * self.depth);
                        }
                        _ => {
                            for r in 0..tap.run {
                                let tap = &self.phase.taps[t + r];
                                self.tap(s, row, tap, 0, self.depth, dst.add(r * self.depth));
                            }
                        }
                    }
                }
                t += tap.run;
            }
        }
    }
}

impl Kernel for Gather<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let whole = self.start == 0 && self.end == self.phase.taps.len() * self.depth;
        if let Some(data) = self.source.contiguous()
            && whole
            && self.source.channels() == self.depth
        {
            // SAFETY: the promise of `Gather::run`.
            return unsafe { self.runs(s, data) };
        }
        let mut at = self.start;
        while at < self.end {
            let (t, low) = (at / self.depth, at % self.depth);
            let high = self.depth.min(low + self.end - at);
            for (i, row) in self.rows.iter().enumerate() {
                // SAFETY: the promise of `Gather::run`.
                unsafe {
                    let dst = self.dst.add(i * self.dst_row + at - self.start);
                    self.tap(s, row, &self.phase.taps[t], low, high, dst);
                }
            }
            at += high - low;
        }
    }
}

#[inline(always)]
unsafe fn zero<S: Simd>(s: S, dst: *mut f32, len: usize) {
    for j in (0..len).step_by(S::LANES) {
        // SAFETY: the caller's promise of `len` values.
        unsafe { s.store_first(dst.add(j), s.splat(0.0), S::LANES.min(len - j)) }
    }
}
