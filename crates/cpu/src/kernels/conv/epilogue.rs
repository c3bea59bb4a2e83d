//! What happens to a result on its way to memory: `y = act(x + bias) + residual`.

use super::act::Act;
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

    /// The end of one vector of `len` channels from `channel`, at an output pixel.
    #[inline(always)]
    pub(crate) unsafe fn end<S: Simd>(&self, s: S, x: S::V, at: &Place, channel: usize, len: usize) -> S::V {
        let mut x = x;
        // SAFETY: the caller's tensors have the shapes that the type says.
        unsafe {
            if let Some(bias) = self.bias {
                let row = if self.bias_per_sample { at.sample * at.channels } else { 0 };
                x = s.add(x, s.load_first(bias.add(row + channel), len));
            }
            if self.act != Act::Identity {
                x = self.act.apply(s, x);
            }
            if let Some(residual) = self.residual {
                x = s.add(x, s.load_first(residual.add(at.pixel * at.channels + channel), len));
            }
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

/// One row of a product: its output pixel and the input pixel that its first tap would read.
#[derive(Clone, Copy, Default)]
pub(crate) struct Row {
    pub sample: u32,
    pub pixel: u32,
    /// Z, Y, X of the input before a tap's offset is added.
    pub at: [i32; 3],
}

/// Finishes rows of sums: a block of scratch goes through the epilogue to its output pixels.
pub(crate) struct Finish<'a> {
    pub rows: &'a [Row],
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
        level.dispatch(self);
    }
}

impl Kernel for Finish<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (i, row) in self.rows.iter().enumerate() {
            let at =
                Place { sample: row.sample as usize, pixel: row.pixel as usize, channels: self.channels };
            // SAFETY: the promise of `Finish::run`.
            unsafe {
                let sums = self.sums.add(i * self.sums_row);
                let out = self.out.add(at.pixel * self.out_stride + self.channel);
                for j in (0..self.columns).step_by(S::LANES) {
                    let len = S::LANES.min(self.columns - j);
                    let x = s.load_first(sums.add(j), len);
                    s.store_first(out.add(j), self.epilogue.end(s, x, &at, self.channel + j, len), len);
                }
            }
        }
    }
}
