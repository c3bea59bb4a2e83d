//! Where a convolution reads: tensors side by side along the channels, normalised and activated
//! while they are read.
//!
//! Concatenation and normalisation are not passes of their own: a kernel that copies its input into
//! scratch anyway reads each channel from the tensor that has it and applies `act(x a + b)` once.
//! Padding is of the result, so it is zero whatever the normalisation does to a zero.

use crate::act::Act;
use crate::simd::Simd;

/// Channels of one tensor `[N, Z, Y, X, channels]`.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub data: *const f32,
    pub channels: usize,
    /// Values from pixel to pixel, at least `channels`.
    pub stride: usize,
}

/// A normalisation applied while reading: `act(x * a + b)`.
#[derive(Clone, Copy, Debug)]
pub struct Pre {
    /// `[N][2][C]`: for each sample all `a`, then all `b`, over the channels of all parts.
    pub coef: *const f32,
    pub act: Act,
}

/// No more tensors are concatenated than this.
pub const MAX_PARTS: usize = 4;

/// The input of a convolution: up to [`MAX_PARTS`] tensors concatenated along the channels.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    parts: [Part; MAX_PARTS],
    count: usize,
    pub pre: Option<Pre>,
}

// SAFETY: the pointers are only read, and the caller of a kernel keeps them valid.
unsafe impl Sync for Source {}

impl Source {
    /// The concatenation of `parts`.
    ///
    /// # Panics
    /// If there are none or more than [`MAX_PARTS`], or one has fewer values a pixel than channels.
    pub fn new(parts: &[Part], pre: Option<Pre>) -> Source {
        assert!((1..=MAX_PARTS).contains(&parts.len()), "a source has 1 to {MAX_PARTS} parts");
        assert!(parts.iter().all(|p| p.stride >= p.channels), "a pixel is at least its channels");
        let mut all = [Part { data: std::ptr::null(), channels: 0, stride: 0 }; MAX_PARTS];
        all[..parts.len()].copy_from_slice(parts);
        Source { parts: all, count: parts.len(), pre }
    }

    /// One contiguous tensor.
    pub fn plain(data: *const f32, channels: usize) -> Source {
        Source::new(&[Part { data, channels, stride: channels }], None)
    }

    pub fn parts(&self) -> &[Part] {
        &self.parts[..self.count]
    }

    pub fn channels(&self) -> usize {
        self.parts().iter().map(|p| p.channels).sum()
    }

    /// The only part, if pixels lie one after the other in it and nothing is applied.
    pub(crate) fn contiguous(&self) -> Option<*const f32> {
        let part = &self.parts[0];
        (self.count == 1 && self.pre.is_none() && part.stride == part.channels).then_some(part.data)
    }

    /// The only part, if nothing is applied to it.
    pub(crate) fn direct(&self) -> Option<Part> {
        (self.count == 1 && self.pre.is_none()).then_some(self.parts[0])
    }

    /// The part that has all of the channels `first .. first + len`, with `first` counted in it.
    #[inline(always)]
    fn part_of(&self, mut first: usize, len: usize) -> Option<(&Part, usize)> {
        for part in self.parts() {
            if first < part.channels {
                return (first + len <= part.channels).then_some((part, first));
            }
            first -= part.channels;
        }
        None
    }

    #[inline(always)]
    unsafe fn value(&self, pixel: usize, channel: usize) -> f32 {
        let (part, c) = self.part_of(channel, 1).expect("a channel of the source");
        // SAFETY: the caller names a pixel and a channel of the source.
        unsafe { *part.data.add(pixel * part.stride + c) }
    }

    /// The `len <= LANES` channels from `first` of a pixel, before the normalisation.
    #[inline(always)]
    pub(super) unsafe fn load<S: Simd>(&self, s: S, pixel: usize, first: usize, len: usize) -> S::V {
        // SAFETY: the caller names a pixel and channels of the source.
        unsafe {
            match self.part_of(first, len) {
                Some((part, c)) => s.load_first(part.data.add(pixel * part.stride + c), len),
                None => {
                    let mut lanes = [0.0; 16];
                    for (i, lane) in lanes.iter_mut().enumerate().take(len) {
                        *lane = self.value(pixel, first + i);
                    }
                    s.load(lanes.as_ptr())
                }
            }
        }
    }

    /// Pixels of sample `n` one after the other from `pixel` on, of which one part has the channels from `first`: a whole vector.
    #[inline(always)]
    pub(super) unsafe fn line<S: Simd>(
        &self,
        s: S,
        n: usize,
        pixel: usize,
        first: usize,
        len: usize,
    ) -> Option<Line<S::V>> {
        let (part, channel) = self.part_of(first, len).filter(|_| len == S::LANES)?;
        let mut line = Line {
            data: part.data.wrapping_add(pixel * part.stride + channel),
            stride: part.stride,
            pre: None,
        };
        if let Some(pre) = self.pre {
            // SAFETY: the caller names a sample and channels of the source.
            let (a, b) = unsafe { pre.coefficients(s, self.channels(), n, first, len) };
            line.pre = Some((a, b, pre.act));
        }
        Some(line)
    }

    /// Copies channels `first .. first + len` of a pixel of sample `n` to `dst`, normalised.
    /// Nothing behind `dst + len` is touched.
    #[inline(always)]
    pub(super) unsafe fn read<S: Simd>(
        &self,
        s: S,
        n: usize,
        pixel: usize,
        first: usize,
        len: usize,
        dst: *mut f32,
    ) {
        // SAFETY: the caller names a pixel and channels of the source, and `dst` has room.
        unsafe {
            if let (None, Some((part, c))) = (self.pre, self.part_of(first, len)) {
                return copy(s, part.data.add(pixel * part.stride + c), dst, len);
            }
            for j in (0..len).step_by(S::LANES) {
                let lanes = S::LANES.min(len - j);
                s.store_first(dst.add(j), self.normalised(s, n, pixel, first + j, lanes), lanes);
            }
        }
    }

    /// The `len <= LANES` channels from `first` of a pixel of sample `n`, normalised.
    #[inline(always)]
    pub(super) unsafe fn normalised<S: Simd>(
        &self,
        s: S,
        n: usize,
        pixel: usize,
        first: usize,
        len: usize,
    ) -> S::V {
        // SAFETY: the caller names a pixel and channels of the source.
        unsafe {
            let v = self.load(s, pixel, first, len);
            match self.pre {
                None => v,
                Some(pre) => {
                    let (a, b) = pre.coefficients(s, self.channels(), n, first, len);
                    pre.act.apply(s, s.fma(v, a, b))
                }
            }
        }
    }
}

/// A vector of channels of pixels side by side, and the normalisation that is applied to it: `act(x * a + b)`.
#[derive(Clone, Copy)]
pub(super) struct Line<V> {
    data: *const f32,
    stride: usize,
    pub pre: Option<(V, V, Act)>,
}

impl<V: Copy> Line<V> {
    /// Pixel `i`, before the normalisation.
    #[inline(always)]
    pub unsafe fn load<S: Simd<V = V>>(&self, s: S, i: usize) -> V {
        // SAFETY: the caller names a pixel of the source.
        unsafe { s.load(self.data.add(i * self.stride)) }
    }
}

impl Pre {
    #[inline(always)]
    unsafe fn coefficients<S: Simd>(
        &self,
        s: S,
        channels: usize,
        n: usize,
        first: usize,
        len: usize,
    ) -> (S::V, S::V) {
        // SAFETY: the coefficients are there for each sample and channel.
        unsafe {
            let at = self.coef.add(2 * n * channels + first);
            (s.load_first(at, len), s.load_first(at.add(channels), len))
        }
    }
}

/// Copies `len` values by vectors.
#[inline(always)]
pub(super) unsafe fn copy<S: Simd>(s: S, src: *const f32, dst: *mut f32, len: usize) {
    // SAFETY: the caller's promise of `len` values on both sides.
    unsafe {
        let whole = len / S::LANES * S::LANES;
        for j in (0..whole).step_by(S::LANES) {
            s.store(dst.add(j), s.load(src.add(j)));
        }
        if whole < len {
            s.store_first(dst.add(whole), s.load_first(src.add(whole), len - whole), len - whole);
        }
    }
}

/// A rectangle of one image plane for one block of `LANES` channels, `[rows][columns][LANES]`; what
/// lies outside of the image is zero, as are lanes past the last channel.
#[derive(Clone, Copy)]
pub(super) struct Patch<'a> {
    pub source: &'a Source,
    pub channels: usize,
    pub n: usize,
    /// The first pixel of the plane; `None` for a plane outside of the volume.
    pub plane: Option<usize>,
    /// Y, X of the plane.
    pub size: [usize; 2],
    pub y: isize,
    pub x: isize,
    pub rows: usize,
    pub columns: usize,
}

impl Patch<'_> {
    /// Writes the patch for the channels from `first`.
    #[inline(always)]
    pub unsafe fn fill<S: Simd>(&self, s: S, first: usize, dst: *mut f32) {
        let [height, width] = self.size;
        let len = S::LANES.min(self.channels - first);
        // The columns of the patch that lie in the image.
        let low = (-self.x).clamp(0, self.columns as isize) as usize;
        let high = (width as isize - self.x).clamp(low as isize, self.columns as isize) as usize;
        for row in 0..self.rows {
            let y = self.y + row as isize;
            // SAFETY: the caller's promise that `dst` holds the patch and the source the image; pixels
            // are read between `low` and `high` of rows that exist.
            unsafe {
                let line = dst.add(row * self.columns * S::LANES);
                match self.plane.filter(|_| (0..height as isize).contains(&y)) {
                    None => clear(s, line, 0, self.columns),
                    Some(plane) => {
                        clear(s, line, 0, low);
                        clear(s, line, high, self.columns);
                        let pixel = plane + y as usize * width + (self.x + low as isize) as usize;
                        self.fill_line(s, first, len, pixel, high - low, line.add(low * S::LANES));
                    }
                }
            }
        }
    }

    /// `count` pixels of one image row.
    #[inline(always)]
    unsafe fn fill_line<S: Simd>(
        &self,
        s: S,
        first: usize,
        len: usize,
        pixel: usize,
        count: usize,
        line: *mut f32,
    ) {
        // SAFETY: the promise of `fill`.
        unsafe {
            match self.source.part_of(first, len) {
                Some((part, channel)) if len == S::LANES => {
                    let from = part.data.add(pixel * part.stride + channel);
                    for c in 0..count {
                        s.store(line.add(c * S::LANES), s.load(from.add(c * part.stride)));
                    }
                }
                _ => {
                    for c in 0..count {
                        s.store(line.add(c * S::LANES), self.source.load(s, pixel + c, first, len));
                    }
                }
            }
            if let Some(pre) = self.source.pre {
                let (a, b) = pre.coefficients(s, self.channels, self.n, first, len);
                for c in 0..count {
                    let at = line.add(c * S::LANES);
                    s.store(at, pre.act.apply(s, s.fma(s.load(at), a, b)));
                }
            }
        }
    }
}

/// Zeroes the vectors `low .. high` of a line.
#[inline(always)]
unsafe fn clear<S: Simd>(s: S, line: *mut f32, low: usize, high: usize) {
    for c in low..high {
        // SAFETY: the caller's promise that the line has them.
        unsafe { s.store(line.add(c * S::LANES), s.splat(0.0)) }
    }
}
