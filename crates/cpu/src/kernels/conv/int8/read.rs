//! From a convolution's source to the padded image of bytes, a row at a time.

use super::super::Source;
use super::Int8Plan;
use crate::act::Act;
use crate::simd::Simd;
use crate::simd::bytes::{ByteKernel, Bytes};

/// One row of the padded image and where it comes from.
#[derive(Clone, Copy)]
pub(super) struct Read<'a> {
    pub plan: &'a Int8Plan,
    pub source: &'a Source,
    pub n: usize,
    pub z: usize,
    pub y: usize,
}

impl Read<'_> {
    /// The first source pixel of the row, and the pixels of the padded row that have one; nothing for a row outside of the image.
    #[inline(always)]
    fn inside(&self) -> Option<(usize, usize, usize)> {
        let d = &self.plan.dims;
        let at = |place: usize, axis: usize| place.checked_sub(d.pad[axis]).filter(|p| *p < d.input[axis]);
        let (z, y) = (at(self.z, 0)?, at(self.y, 1)?);
        let low = d.pad[2].min(self.plan.padded[2]);
        let high = (d.pad[2] + d.input[2]).min(self.plan.padded[2]);
        let each = self.repeats();
        let row = (self.n * d.input[0] + z) * (d.input[1] / each) + y / each;
        (low < high).then_some((row * (d.input[2] / each), low, high))
    }

    /// Pixels along an axis that one of the source stands for.
    #[inline(always)]
    fn repeats(&self) -> usize {
        if self.plan.how.upsample { 2 } else { 1 }
    }
}

/// The least and the largest value of some of the source's pixels, and 0.
pub(super) struct Range<'a> {
    pub source: &'a Source,
    pub n: usize,
    pub pixel: usize,
    pub pixels: usize,
}

impl ByteKernel for Range<'_> {
    type Output = [f32; 2];
    #[inline(always)]
    unsafe fn run<B: Bytes>(self, b: B) -> [f32; 2] {
        let (s, channels) = (b.floats(), self.source.channels());
        let (mut low, mut high) = (s.splat(0.0), s.splat(0.0));
        for pixel in self.pixel..self.pixel + self.pixels {
            for c in (0..channels).step_by(B::F::LANES) {
                // SAFETY: a pixel and channels of the source.
                let x = unsafe { self.source.normalised(s, self.n, pixel, c, B::F::LANES.min(channels - c)) };
                (low, high) = (s.min(x, low), s.max(x, high));
            }
        }
        [-s.largest(s.sub(s.splat(0.0), low)), s.largest(high)]
    }
}

/// Rounds a row; what lies outside of the image is zero.
pub(super) struct Round<'a> {
    pub reader: Read<'a>,
    pub numbers: *const f32,
    pub to: *mut u8,
}

impl Round<'_> {
    /// Pixels `low .. high` that lie outside.
    #[inline(always)]
    unsafe fn clear(&self, low: usize, high: usize) {
        let (depth, zeros) = (self.reader.plan.depth, self.reader.plan.numbers().bytes());
        for i in low..high {
            // SAFETY: the row has the pixels, the numbers a byte of each channel.
            unsafe {
                std::ptr::copy_nonoverlapping(self.numbers.add(zeros).cast(), self.to.add(i * depth), depth);
            }
        }
    }

    /// The channels from `c` of `count` pixels of the source from `pixel` on, `step` bytes from one to the next.
    #[inline(always)]
    unsafe fn channels<B: Bytes>(
        &self,
        b: B,
        c: usize,
        pixel: usize,
        count: usize,
        to: *mut u8,
        step: usize,
    ) {
        let (r, s) = (&self.reader, b.floats());
        let (plan, lanes) = (r.plan, B::F::LANES);
        let (numbers, len) = (plan.numbers(), lanes.min(plan.dims.c - c));
        // SAFETY: pixels and channels of the source; the numbers are there for whole vectors.
        unsafe {
            let grid = Rounding {
                inverse: s.load(self.numbers.add(numbers.inverse() + c)),
                zero: s.load(self.numbers.add(numbers.zeros() + c)),
            };
            let whole = c + lanes <= plan.depth;
            // Where one part has the whole vector, what stays the same from pixel to pixel is found once.
            if let (Some(line), true) = (r.source.line(s, r.n, pixel, c, len), whole) {
                match line.pre {
                    None => {
                        for i in 0..count {
                            grid.store(b, line.load(s, i), to.add(i * step));
                        }
                    }
                    Some((a, shift, Act::Silu)) => {
                        for i in 0..count {
                            let x = Act::Silu.apply(s, s.fma(line.load(s, i), a, shift));
                            grid.store(b, x, to.add(i * step));
                        }
                    }
                    Some((a, shift, act)) => {
                        for i in 0..count {
                            let x = act.apply(s, s.fma(line.load(s, i), a, shift));
                            grid.store(b, x, to.add(i * step));
                        }
                    }
                }
                return;
            }
            for i in 0..count {
                let x = r.source.normalised(s, r.n, pixel + i, c, len);
                if whole {
                    grid.store(b, x, to.add(i * step));
                } else {
                    let mut last = [0u8; 16];
                    grid.store(b, x, last.as_mut_ptr());
                    std::ptr::copy_nonoverlapping(last.as_ptr(), to.add(i * step), plan.depth - c);
                }
            }
        }
    }
}

/// The grids of a vector of channels.
#[derive(Clone, Copy)]
struct Rounding<V> {
    inverse: V,
    zero: V,
}

impl<V: Copy> Rounding<V> {
    /// As `Grid::round` has it, in the same order.
    #[inline(always)]
    unsafe fn store<B: Bytes>(self, b: B, x: V, to: *mut u8)
    where
        B::F: Simd<V = V>,
    {
        let s = b.floats();
        let x = s.add(s.mul(x, self.inverse), self.zero);
        let x = s.min(s.max(x, s.splat(0.0)), s.splat(255.0));
        // SAFETY: the caller's promise of a vector's bytes.
        unsafe { b.store_bytes(to, x) }
    }
}

impl ByteKernel for Round<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<B: Bytes>(self, b: B) {
        let (width, depth) = (self.reader.plan.padded[2], self.reader.plan.depth);
        // SAFETY: the row is this task's.
        unsafe {
            let Some((pixel, low, high)) = self.reader.inside() else { return self.clear(0, width) };
            self.clear(0, low);
            self.clear(high, width);
            let each = self.reader.repeats();
            let count = (high - low).div_ceil(each);
            let to = self.to.add(low * depth);
            for c in (0..self.reader.plan.dims.c).step_by(B::F::LANES) {
                self.channels(b, c, pixel, count, to.add(c), each * depth);
            }
            if each > 1 {
                for i in (1..high - low).step_by(each) {
                    std::ptr::copy_nonoverlapping(to.add((i - 1) * depth), to.add(i * depth), depth);
                }
            }
        }
    }
}
