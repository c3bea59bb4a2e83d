//! Steps that concern one image as a whole: its moments, its coefficients, sums over its groups.

use super::{Affine, NormDims, Part};
use crate::simd::Simd;

/// Writes (mean, rstd) of each group of an image of few pixels to `to`, in two passes over it.
///
/// # Safety
/// The parts were checked; `to` has 2 values for each group.
#[inline(always)]
pub unsafe fn moments<S: Simd>(s: S, dims: &NormDims, parts: &[Part], image: usize, eps: f32, to: *mut f32) {
    let share = 1.0 / (dims.s * dims.width()) as f64;
    for g in 0..dims.groups {
        // SAFETY: the caller's promise.
        unsafe {
            let mean = (over_group(s, dims, parts, image, g, 0.0).0 * share) as f32;
            // The first sum corrects for the rounding of the mean.
            let (rest, squares) = over_group(s, dims, parts, image, g, mean);
            let variance = (squares - rest * rest * share).max(0.0) * share;
            *to.add(2 * g) = (mean as f64 + rest * share) as f32;
            *to.add(2 * g + 1) = 1.0 / (variance as f32 + eps).sqrt();
        }
    }
}

/// The sums of x - shift and of its square over a group of an image.
#[inline(always)]
unsafe fn over_group<S: Simd>(
    s: S,
    dims: &NormDims,
    parts: &[Part],
    image: usize,
    g: usize,
    shift: f32,
) -> (f64, f64) {
    let (start, end) = (g * dims.width(), (g + 1) * dims.width());
    let mut total = (0.0, 0.0);
    let mut first = 0;
    for part in parts {
        let (low, high) = (start.max(first), end.min(first + part.channels));
        if low < high {
            for pixel in 0..dims.s {
                // SAFETY: channels low..high of the part lie in its pixel.
                unsafe {
                    let p = part.data.as_ptr().add((image * dims.s + pixel) * part.stride + low - first);
                    let (one, two) = over_values(s, p, high - low, shift);
                    total = (total.0 + one as f64, total.1 + two as f64);
                }
            }
        }
        first += part.channels;
    }
    total
}

#[inline(always)]
unsafe fn over_values<S: Simd>(s: S, p: *const f32, len: usize, shift: f32) -> (f32, f32) {
    let (zero, away) = (s.splat(0.0), s.splat(shift));
    let (mut one, mut two) = ([zero; 4], [zero; 4]);
    let mut i = 0;
    // SAFETY: values below len.
    unsafe {
        while i + 4 * S::LANES <= len {
            for j in 0..4 {
                let d = s.sub(s.load(p.add(i + j * S::LANES)), away);
                one[j] = s.add(one[j], d);
                two[j] = s.fma(d, d, two[j]);
            }
            i += 4 * S::LANES;
        }
        while i + S::LANES <= len {
            let d = s.sub(s.load(p.add(i)), away);
            one[0] = s.add(one[0], d);
            two[0] = s.fma(d, d, two[0]);
            i += S::LANES;
        }
        let mut rest = (0.0, 0.0);
        while i < len {
            let d = *p.add(i) - shift;
            rest = (rest.0 + d, rest.1 + d * d);
            i += 1;
        }
        let one = s.add(s.add(one[0], one[1]), s.add(one[2], one[3]));
        let two = s.add(s.add(two[0], two[1]), s.add(two[2], two[3]));
        (s.sum(one) + rest.0, s.sum(two) + rest.1)
    }
}

/// Writes the mean and rstd of each channel's group.
///
/// # Safety
/// `stats` has 2 values for each group, `mean` and `rstd` one for each channel.
#[inline(always)]
pub unsafe fn spread(dims: &NormDims, stats: *const f32, mean: *mut f32, rstd: *mut f32) {
    let width = dims.width();
    for g in 0..dims.groups {
        // SAFETY: the caller's promise.
        unsafe {
            let (m, r) = (*stats.add(2 * g), *stats.add(2 * g + 1));
            for c in g * width..(g + 1) * width {
                *mean.add(c) = m;
                *rstd.add(c) = r;
            }
        }
    }
}

/// The vectors a and b of an image, from the mean in `mean` and the rstd in `a`; `b` may be `mean`.
///
/// # Safety
/// All have a value for each channel; the affine map was checked.
#[inline(always)]
pub unsafe fn coefficients<S: Simd>(
    s: S,
    dims: &NormDims,
    affine: &Affine,
    image: usize,
    mean: *const f32,
    a: *mut f32,
    b: *mut f32,
) {
    let one = s.splat(1.0);
    for c in (0..dims.c).step_by(S::LANES) {
        let n = S::LANES.min(dims.c - c);
        // SAFETY: n values from channel c on.
        unsafe {
            let mut w = s.load_first(a.add(c), n);
            let mut t = s.splat(0.0);
            if let Some(gamma) = affine.gamma {
                w = s.mul(w, s.load_first(gamma.as_ptr().add(c), n));
            }
            if let Some(beta) = affine.beta {
                t = s.load_first(beta.as_ptr().add(c), n);
            }
            if let Some((scale, shift)) = affine.film {
                let at = image * dims.c + c;
                let factor = s.add(one, s.load_first(scale.as_ptr().add(at), n));
                w = s.mul(w, factor);
                t = s.fma(t, factor, s.load_first(shift.as_ptr().add(at), n));
            }
            let m = s.load_first(mean.add(c), n);
            s.store_first(a.add(c), w, n);
            s.store_first(b.add(c), s.fnma(m, w, t), n);
        }
    }
}

/// The sum of `len` values times those of `factor`.
///
/// # Safety
/// Both have `len` values.
#[inline(always)]
pub unsafe fn dot<S: Simd>(s: S, p: *const f32, factor: *const f32, len: usize) -> f64 {
    // SAFETY: values below len.
    unsafe {
        let mut total = 0.0;
        let mut i = 0;
        if len >= S::LANES {
            let mut sum = s.splat(0.0);
            while i + S::LANES <= len {
                sum = s.fma(s.load(p.add(i)), s.load(factor.add(i)), sum);
                i += S::LANES;
            }
            total = s.sum(sum) as f64;
        }
        while i < len {
            total += *p.add(i) as f64 * *factor.add(i) as f64;
            i += 1;
        }
        total
    }
}

/// The sum of `len` values.
///
/// # Safety
/// `len` values can be read.
#[inline(always)]
pub unsafe fn total<S: Simd>(s: S, p: *const f32, len: usize) -> f64 {
    // SAFETY: values below len.
    unsafe {
        let mut total = 0.0;
        let mut i = 0;
        if len >= S::LANES {
            let mut sum = s.splat(0.0);
            while i + S::LANES <= len {
                sum = s.add(s.load(p.add(i)), sum);
                i += S::LANES;
            }
            total = s.sum(sum) as f64;
        }
        while i < len {
            total += *p.add(i) as f64;
            i += 1;
        }
        total
    }
}

/// Repeats the first `c` values until there are `width`.
///
/// # Safety
/// `width` values lie at p.
#[inline(always)]
pub unsafe fn repeat(p: *mut f32, c: usize, width: usize) {
    for i in c..width {
        // SAFETY: i < width.
        unsafe { *p.add(i) = *p.add(i - c) };
    }
}

/// Adds the later repeats of `c` values to the first.
///
/// # Safety
/// `width` values lie at p.
#[inline(always)]
pub unsafe fn fold(p: *mut f32, c: usize, width: usize) {
    for i in c..width {
        // SAFETY: i < width.
        unsafe { *p.add(i % c) += *p.add(i) };
    }
}
