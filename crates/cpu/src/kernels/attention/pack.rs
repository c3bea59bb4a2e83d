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

/// A 4 x 4 block, transposed and multiplied.
#[inline(always)]
unsafe fn quad(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize, factor: f32) {
    // SAFETY: the caller's promise; arrays have the alignment of f32.
    unsafe {
        let mut r = [[0.0; 4]; 4];
        for i in 0..4 {
            r[i] = from.add(i * from_stride).cast::<[f32; 4]>().read();
        }
        for c in 0..4 {
            let column = [r[0][c] * factor, r[1][c] * factor, r[2][c] * factor, r[3][c] * factor];
            to.add(c * to_stride).cast::<[f32; 4]>().write(column);
        }
    }
}

/// Rows of `channels` values, copied to rows of `padded` values with zeros at their ends.
///
/// # Safety
/// Both blocks lie in their buffers and do not overlap; `padded - channels < LANES`.
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
                let v = s.load_first(from.add(c), (channels - c).min(S::LANES));
                s.store_first(to.add(c), v, (padded - c).min(S::LANES));
                c += S::LANES;
            }
        }
    }
}
