//! The two inverse wavelets of JPEG 2000 (annex F of the standard): the reversible 5/3 of integers and the 9/7 of real
//! numbers. Both use lifting: low-pass samples are corrected by their high-pass neighbours, then these by their low-pass
//! neighbours, and so on.

use super::Area;

/// A wavelet.
pub trait Wavelet {
    type Value: Copy + Default;
    /// How often samples of a kind are corrected; the low kind first.
    const STEPS: usize;
    /// Preprocessing of a sample.
    fn scale(value: Self::Value, high: bool) -> Self::Value;
    /// A line of one sample, of the high kind.
    fn alone(value: Self::Value) -> Self::Value;
    /// A sample corrected by its neighbours.
    fn correct(step: usize, value: Self::Value, left: Self::Value, right: Self::Value) -> Self::Value;
}

/// 5/3.
pub struct Reversible;

impl Wavelet for Reversible {
    type Value = i32;
    const STEPS: usize = 2;

    fn scale(value: i32, _: bool) -> i32 {
        value
    }

    fn alone(value: i32) -> i32 {
        value >> 1
    }

    #[inline(always)]
    fn correct(step: usize, value: i32, left: i32, right: i32) -> i32 {
        let sum = left.wrapping_add(right);
        if step == 0 { value.wrapping_sub(sum.wrapping_add(2) >> 2) } else { value.wrapping_add(sum >> 1) }
    }
}

/// 9/7.
pub struct Irreversible;

impl Wavelet for Irreversible {
    type Value = f32;
    const STEPS: usize = 4;

    #[inline(always)]
    fn scale(value: f32, high: bool) -> f32 {
        const K: f32 = 1.230_174_1;
        value * if high { 1.0 / K } else { K }
    }

    fn alone(value: f32) -> f32 {
        value * 0.5
    }

    #[inline(always)]
    fn correct(step: usize, value: f32, left: f32, right: f32) -> f32 {
        const FACTORS: [f32; 4] = [0.443_506_85, 0.882_911_1, -0.052_980_12, -1.586_134_3];
        value - FACTORS[step] * (left + right)
    }
}

/// Undoes one level: `bands` are low, high along X, high along Y, high along both. Bounds are absolute, for whether a sample is of the low
/// or the high kind depends on its place in the whole picture.
pub fn join<W: Wavelet>(bands: &[Vec<W::Value>; 4], area: Area) -> Vec<W::Value> {
    let (width, height) = (area.width(), area.height());
    let mut out = vec![W::Value::default(); width * height];
    if out.is_empty() {
        return out;
    }
    let odd = [area.x[0] % 2, area.y[0] % 2];
    // Samples of the low kind in a line that begins with one of the high kind, or not.
    let low_count = |length: usize, odd: usize| (length + 1 - odd) / 2;
    let low_columns = low_count(width, odd[0]);
    for (y, row) in out.chunks_exact_mut(width).enumerate() {
        let high = (y + odd[1]) % 2;
        for (kind, columns) in [(0, low_columns), (1, width - low_columns)] {
            let line = &bands[kind + 2 * high][y / 2 * columns..][..columns];
            let places = row.iter_mut().skip((kind + odd[0]) % 2).step_by(2);
            places.zip(line).for_each(|(to, &v)| *to = v);
        }
        lift_row::<W>(row, odd[0]);
    }
    lift_columns::<W>(&mut out, width, odd[1]);
    out
}

/// One line of interleaved samples, of which the first is of the high kind if `odd`.
fn lift_row<W: Wavelet>(line: &mut [W::Value], odd: usize) {
    let n = line.len();
    if n == 1 {
        if odd == 1 {
            line[0] = W::alone(line[0]);
        }
        return;
    }
    for (i, v) in line.iter_mut().enumerate() {
        *v = W::scale(*v, (i + odd) % 2 == 1);
    }
    for step in 0..W::STEPS {
        // Neighbours beyond the ends are reflected.
        for i in ((odd + step) % 2..n).step_by(2) {
            let left = line[if i == 0 { 1 } else { i - 1 }];
            let right = line[if i + 1 == n { n - 2 } else { i + 1 }];
            line[i] = W::correct(step, line[i], left, right);
        }
    }
}

/// All columns at once, row by row.
fn lift_columns<W: Wavelet>(out: &mut [W::Value], width: usize, odd: usize) {
    let n = out.len() / width;
    if n == 1 {
        if odd == 1 {
            out.iter_mut().for_each(|v| *v = W::alone(*v));
        }
        return;
    }
    for (i, row) in out.chunks_exact_mut(width).enumerate() {
        row.iter_mut().for_each(|v| *v = W::scale(*v, (i + odd) % 2 == 1));
    }
    for step in 0..W::STEPS {
        for i in ((odd + step) % 2..n).step_by(2) {
            let (before, rest) = out.split_at_mut(i * width);
            let (row, after) = rest.split_at_mut(width);
            let above = if i == 0 { &after[..width] } else { &before[(i - 1) * width..] };
            let below = if i + 1 == n { above } else { &after[..width] };
            for ((v, &a), &b) in row.iter_mut().zip(above).zip(below) {
                *v = W::correct(step, *v, a, b);
            }
        }
    }
}
