//! From a convolution's source to the padded image of bytes, a row at a time.

use super::super::Source;
use super::Int8Plan;
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

    #[inline(always)]
    unsafe fn pixel<B: Bytes>(&self, b: B, pixel: usize, to: *mut u8) {
        let (r, s) = (&self.reader, b.floats());
        let (plan, lanes) = (r.plan, B::F::LANES);
        let numbers = plan.numbers();
        for c in (0..plan.dims.c).step_by(lanes) {
            let len = lanes.min(plan.dims.c - c);
            // SAFETY: a pixel and channels of the source; the numbers are there for whole vectors.
            unsafe {
                let x = r.source.normalised(s, r.n, pixel, c, len);
                let inverse = s.load(self.numbers.add(numbers.inverse() + c));
                let zero = s.load(self.numbers.add(numbers.zeros() + c));
                // As `Grid::round` has it, in the same order.
                let x = s.add(s.mul(x, inverse), zero);
                let x = s.min(s.max(x, s.splat(0.0)), s.splat(255.0));
                if c + lanes <= plan.depth {
                    b.store_bytes(to.add(c), x);
                } else {
                    let mut last = [0u8; 16];
                    b.store_bytes(last.as_mut_ptr(), x);
                    std::ptr::copy_nonoverlapping(last.as_ptr(), to.add(c), plan.depth - c);
                }
            }
        }
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
            for i in low..high {
                let (to, source) = (self.to.add(i * depth), i - low);
                if source % each == 0 {
                    self.pixel(b, pixel + source / each, to);
                } else {
                    std::ptr::copy_nonoverlapping(to.sub(depth), to, depth);
                }
            }
        }
    }
}
