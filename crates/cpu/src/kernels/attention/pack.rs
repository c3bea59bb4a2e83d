//! Moving blocks between the rows of a tensor and the scratch of a task.

use crate::simd::Simd;

/// `to[c * width + i] = factor * from[i * stride + c]` for `rows` rows of `channels` values;
/// columns from `rows` to `width` are zero.
///
/// # Safety
/// Both blocks lie in their buffers and do not overlap.
#[inline(always)]
pub unsafe fn transpose_in(
    from: *const f32,
    stride: usize,
    rows: usize,
    channels: usize,
    to: *mut f32,
    width: usize,
    factor: f32,
) {
    let (quads, whole) = (rows / 4 * 4, channels / 4 * 4);
    // SAFETY: all indices lie below rows, channels and width.
    unsafe {
        for i in (0..quads).step_by(4) {
            for c in (0..whole).step_by(4) {
                quad(from.add(i * stride + c), stride, to.add(c * width + i), width, factor);
            }
            for c in whole..channels {
                for k in i..i + 4 {
                    *to.add(c * width + k) = *from.add(k * stride + c) * factor;
                }
            }
        }
        for c in 0..channels {
            for i in quads..rows {
                *to.add(c * width + i) = *from.add(i * stride + c) * factor;
            }
            for i in rows..width {
                *to.add(c * width + i) = 0.0;
            }
        }
    }
}

/// `to[i * stride + c] = factor * from[c * width + i]` for `rows` rows of `channels` values.
///
/// # Safety
/// Both blocks lie in their buffers and do not overlap.
#[inline(always)]
pub unsafe fn transpose_out(
    from: *const f32,
    width: usize,
    rows: usize,
    channels: usize,
    to: *mut f32,
    stride: usize,
    factor: f32,
) {
    let (quads, whole) = (rows / 4 * 4, channels / 4 * 4);
    // SAFETY: all indices lie below rows, channels and width.
    unsafe {
        for i in (0..quads).step_by(4) {
            for c in (0..whole).step_by(4) {
                quad(from.add(c * width + i), width, to.add(i * stride + c), stride, factor);
            }
        }
        for i in 0..rows {
            let start = if i < quads { whole } else { 0 };
            for c in start..channels {
                *to.add(i * stride + c) = *from.add(c * width + i) * factor;
            }
        }
    }
}

/// A 4 x 4 block, transposed and multiplied. Left to itself the compiler moves value by value.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn quad(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize, factor: f32) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise; SSE is part of every x86-64.
    unsafe {
        let f = _mm_set1_ps(factor);
        let mut r = [f; 4];
        for i in 0..4 {
            r[i] = _mm_mul_ps(_mm_loadu_ps(from.add(i * from_stride)), f);
        }
        let [mut a, mut b, mut c, mut d] = r;
        _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
        for (i, column) in [a, b, c, d].into_iter().enumerate() {
            _mm_storeu_ps(to.add(i * to_stride), column);
        }
    }
}

/// A 4 x 4 block, transposed and multiplied.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn quad(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize, factor: f32) {
    for i in 0..4 {
        for c in 0..4 {
            // SAFETY: the caller's promise.
            unsafe { *to.add(c * to_stride + i) = *from.add(i * from_stride + c) * factor };
        }
    }
}

/// Rows of `channels` values, copied to rows of `padded` values with zeros at their ends.
///
/// # Safety
/// Both blocks lie in their buffers and do not overlap.
#[inline(always)]
pub unsafe fn copy_rows<S: Simd>(
    s: S,
    from: *const f32,
    stride: usize,
    rows: usize,
    channels: usize,
    to: *mut f32,
    padded: usize,
) {
    // SAFETY: the last vector of a row is cut to what the row has on both sides.
    unsafe {
        for i in 0..rows {
            let (from, to) = (from.add(i * stride), to.add(i * padded));
            let mut c = 0;
            while c < padded {
                let left = channels.saturating_sub(c).min(S::LANES);
                let v = s.load_first(from.add(c.min(channels)), left);
                s.store_first(to.add(c), v, (padded - c).min(S::LANES));
                c += S::LANES;
            }
        }
    }
}
