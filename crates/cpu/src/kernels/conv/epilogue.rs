//! What happens to a result on its way to memory: `y = act(x + bias) + residual`.

use crate::act::Act;
use crate::gemm::{Start, load_len, store_len};
use crate::simd::{Kernel, Level, Simd};

/// The end of a convolution or product, applied while the result is still in the cache.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue {
    pub bias: Option<*const f32>,
    /// The bias is `[N, K]` rather than `[K]`.
    pub bias_per_sample: bool,
    /// A contiguous tensor of the shape of the output. It may be the output.
    pub residual: Option<*const f32>,
    pub act: Act,
}

// SAFETY: the pointers are only read, and the caller of a kernel keeps them valid.
unsafe impl Sync for Epilogue {}

impl Epilogue {
    /// The result as it is.
    pub const NONE: Epilogue =
        Epilogue { bias: None, bias_per_sample: false, residual: None, act: Act::Identity };

    /// What sums can start from so that nothing is left to do at their end, for the channels from
    /// `channel` of a sample; `None` if something is.
    pub(crate) fn as_start(&self, sample: usize, channels: usize, channel: usize) -> Option<Start> {
        let row = if self.bias_per_sample { sample * channels } else { 0 };
        let start = self.bias.map_or(Start::Zero, |bias| Start::Row(bias.wrapping_add(row + channel)));
        (self.act == Act::Identity && self.residual.is_none()).then_some(start)
    }

    /// The end of one vector of `len` channels from `channel`, at an output pixel.
    #[inline(always)]
    pub(crate) unsafe fn end<S: Simd>(&self, s: S, x: S::V, at: &Place, channel: usize, len: usize) -> S::V {
        // SAFETY: the caller's tensors have the shapes that the type says.
        unsafe {
            let line = self.line(s, at.sample, at.channels, channel, len);
            line.end(s, x, at.pixel * at.channels + channel, len)
        }
    }

    /// What stays the same over the pixels of a sample, for `len` channels from `channel` of so many.
    #[inline(always)]
    pub(crate) unsafe fn line<S: Simd>(
        &self,
        s: S,
        sample: usize,
        channels: usize,
        channel: usize,
        len: usize,
    ) -> Line<S::V> {
        let row = if self.bias_per_sample { sample * channels } else { 0 };
        let mut line = Line { bias: None, residual: self.residual, act: self.act };
        if let Some(bias) = self.bias {
            // SAFETY: the caller's tensors have the shapes that the type says.
            line.bias = Some(unsafe { load_len(s, bias.add(row + channel), len) });
        }
        line
    }
}

/// The end of a vector of channels, pixel after pixel.
#[derive(Clone, Copy)]
pub(crate) struct Line<V> {
    bias: Option<V>,
    residual: Option<*const f32>,
    act: Act,
}

impl<V: Copy> Line<V> {
    /// The end of the vector whose first value is number `at` of the output.
    #[inline(always)]
    pub unsafe fn end<S: Simd<V = V>>(&self, s: S, x: V, at: usize, len: usize) -> V {
        let act = |x| if matches!(self.act, Act::Identity) { x } else { self.act.apply(s, x) };
        // SAFETY: the caller's promise.
        unsafe { self.end_by(s, x, at, len, act) }
    }

    /// The same for an activation that was told from the others before: kernels choose it once for many pixels.
    #[inline(always)]
    pub unsafe fn end_by<S: Simd<V = V>>(
        &self,
        s: S,
        x: V,
        at: usize,
        len: usize,
        act: impl Fn(V) -> V,
    ) -> V {
        let x = act(self.bias.map_or(x, |bias| s.add(x, bias)));
        if let Some(residual) = self.residual {
            // SAFETY: the residual has the shape of the output.
            return s.add(x, unsafe { load_len(s, residual.add(at), len) });
        }
        x
    }
}

/// Where a vector of the result goes.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub sample: usize,
    /// The output pixel, counted over all samples.
    pub pixel: usize,
    /// The channels of the whole output.
    pub channels: usize,
}

/// Finishes rows of sums: a block of scratch goes through the epilogue to its output pixels.
pub(crate) struct Finish<'a> {
    /// Rows go to output pixels `pixel`, `pixel + pixel_step`, ... of one sample.
    pub rows: usize,
    pub sample: usize,
    pub pixel: usize,
    pub pixel_step: usize,
    pub sums: *const f32,
    pub sums_row: usize,
    /// The output channels `channel .. channel + columns` are finished.
    pub channel: usize,
    pub columns: usize,
    /// The channels of the whole output.
    pub channels: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    pub epilogue: &'a Epilogue,
}

impl Finish<'_> {
    /// # Safety
    /// The scratch holds the rows, the output and the epilogue's tensors all of their pixels, and
    /// nobody else writes these.
    pub unsafe fn run(self, level: Level) {
        // SAFETY: the caller's promise.
        unsafe { level.dispatch(self) };
    }
}

impl Kernel for Finish<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        for i in 0..self.rows {
            let pixel = self.pixel + i * self.pixel_step;
            let at = Place { sample: self.sample, pixel, channels: self.channels };
            // SAFETY: the promise of `Finish::run`.
            unsafe {
                let sums = self.sums.add(i * self.sums_row);
                let out = self.out.add(at.pixel * self.out_stride + self.channel);
                for j in (0..self.columns).step_by(S::LANES) {
                    let len = S::LANES.min(self.columns - j);
                    let x = load_len(s, sums.add(j), len);
                    store_len(s, out.add(j), self.epilogue.end(s, x, &at, self.channel + j, len), len);
                }
            }
        }
    }
}
