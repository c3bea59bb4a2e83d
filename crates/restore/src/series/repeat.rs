//! Tests whether a second image is a repeat of a first: another exposure of the same field, with independent noise.
//!
//! From repeats a network learns the mean of the second image given the first, so the two may only differ by noise.
//! Determined in this order: the shift in whole pixels (the peak of a partly whitened cross-correlation); gain and
//! offset (from the covariance of two halves of the pixels, because a regression line through two noisy images is too
//! flat); the subpixel shift (from gradients); whether it is a copy (with the same noise, which a network would learn
//! to keep); and the share of the image where more than noise has changed.

use super::agree::Plane;
use super::squares::means;
use crate::learned::Camera;
use rustfft::FftPlanner;
use rustfft::num_complex::Complex;

/// The largest allowed subpixel shift in pixels: a larger one would blur the result of learning.
pub const MOST_SHIFT: f64 = 0.25;
/// The largest allowed share of the image that has changed by more than noise.
pub const MOST_CHANGED: f64 = 0.05;
/// The share of an image's sides that it may be shifted by.
const FARTHEST: f64 = 0.25;
/// How often a whole shift is corrected by what is found to be left of it.
const TRIES: usize = 3;
/// Frequencies that whole shifts are found by, in cycles a pixel: from where light varies over the whole field to where there is more noise than structure.
const BAND: [f64; 2] = [0.01, 0.2];
/// By how much the correlation of two images must be larger for a shift than without.
const BETTER: f64 = 0.02;
/// The sides of blocks for brightness and for correlations, of the squares whose means have gradients, and of those that a difference varies over for other reasons.
const BLOCK: usize = 8;
const SMALL: usize = 4;
const FINE: usize = 5;
const SLOW: usize = 51;
/// How much of the noise two images may share: what is left of their difference, over what noise makes.
const SHARED_NOISE: f64 = 0.2;
/// Correlations of fewer standard deviations than this are none.
const SURE: f64 = 5.0;
/// The least correlation of the structure in two images of one field.
const ALIKE: f64 = 0.5;
/// Blocks of like brightness, which have the same noise; standard deviations of a block's mean, and times the usual variance within a block, that are more than noise.
const LIKE: usize = 48;
const DEVIATIONS: f64 = 5.0;
const SCATTER: f64 = 3.5;
/// The median of a normal number's amount.
const NORMAL_MEDIAN: f64 = 0.6745;
/// Gains between two images that are believed.
const GAINS: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// The relation of the second image to the first: `first(p) = gain * second(p + shift) + offset`, up to noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeat {
    /// Whole pixels along Y and X.
    pub shift: [isize; 2],
    /// The subpixel shift, in pixels.
    pub rest: [f64; 2],
    /// The factor that scales the second image to the brightness of the first.
    pub gain: f64,
    pub offset: f64,
    /// The share of the image where more than noise has changed.
    pub changed: f64,
}

/// Why a second image is not a repeat that can be learned from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unlike {
    /// The same noise again.
    Copy,
    /// Another field.
    Elsewhere,
    /// Shifted by a fraction of a pixel: the total shift.
    Shifted([f64; 2]),
    /// Brighter or darker by this factor.
    Brightness(f64),
    /// Something moved, appeared or changed in this share of the image.
    Changed(f64),
}

impl std::fmt::Display for Unlike {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unlike::Copy => write!(f, "a copy, with the same noise"),
            Unlike::Elsewhere => write!(f, "shows another field"),
            Unlike::Shifted([y, x]) => write!(
                f,
                "shifted by {y:.2} pixels along Y and {x:.2} along X; at most {MOST_SHIFT} beside whole pixels"
            ),
            Unlike::Brightness(gain) => {
                write!(f, "{:.2} times as bright; 0.5 to 2 times at most", 1.0 / gain)
            }
            Unlike::Changed(share) => {
                write!(f, "{:.0} % of the image has changed by more than noise", 100.0 * share)
            }
        }
    }
}

impl Repeat {
    /// The relation of the first image to the second.
    pub fn reversed(&self) -> Repeat {
        Repeat {
            shift: self.shift.map(|s| -s),
            rest: self.rest.map(|s| -s),
            gain: 1.0 / self.gain,
            offset: -self.offset / self.gain,
            changed: self.changed,
        }
    }
}

/// Compares two planes of the same size.
///
/// # Errors
/// The reason why the second is not a repeat of the first.
pub fn compare(first: &[f32], second: &[f32], size: [usize; 2], camera: &Camera) -> Result<Repeat, Unlike> {
    let mut shift = whole_shift(first, second, size);
    let mut tries = 0;
    loop {
        let (a, b, size) = common(first, second, size, shift);
        if left_of_line(&a, &b) < SHARED_NOISE * mean_variance(&Plane::new(&a, size, camera)) {
            return Err(Unlike::Copy);
        }
        let Some([gain, offset]) = brightness(&a, &b, size) else { return Err(Unlike::Elsewhere) };
        if !GAINS.contains(&gain) {
            return Err(Unlike::Brightness(gain));
        }
        let b: Vec<f32> = b.iter().map(|v| (gain * f64::from(*v) + offset) as f32).collect();
        let (rest, error) = rest_of_shift(&a, &b, size);
        let far = |i: usize| rest[i].abs() > MOST_SHIFT && rest[i].abs() > 2.0 * error[i];
        if (far(0) || far(1)) && shifts_as_one(&a, &b, size, rest) {
            // The peak of a correlation may lie a pixel beside.
            let better = [0, 1].map(|i| shift[i] + rest[i].clamp(-2.0, 2.0).round() as isize);
            tries += 1;
            if better == shift || tries == TRIES || !is_near(better, [size[0], size[1]]) {
                return Err(Unlike::Shifted([0, 1].map(|i| shift[i] as f64 + rest[i])));
            }
            shift = better;
            continue;
        }
        let changed = changed(&a, &b, size, camera);
        return match changed > MOST_CHANGED {
            true => Err(Unlike::Changed(changed)),
            false => Ok(Repeat { shift, rest, gain, offset, changed }),
        };
    }
}

/// Whether most of two images shows the same after a shift.
fn is_near(shift: [isize; 2], size: [usize; 2]) -> bool {
    (0..2).all(|i| shift[i].unsigned_abs() as f64 <= FARTHEST * size[i] as f64)
}

/// The part of both images that shows the same, where `first(p)` goes with `second(p + shift)`.
fn common(
    first: &[f32],
    second: &[f32],
    [height, width]: [usize; 2],
    shift: [isize; 2],
) -> (Vec<f32>, Vec<f32>, [usize; 2]) {
    let begin = |s: isize| (-s).max(0) as usize;
    let size = [height - shift[0].unsigned_abs(), width - shift[1].unsigned_abs()];
    let cut = |values: &[f32], y: usize, x: usize| -> Vec<f32> {
        (0..size[0]).flat_map(|j| &values[(y + j) * width + x..][..size[1]]).copied().collect()
    };
    let of_first = cut(first, begin(shift[0]), begin(shift[1]));
    let of_second = cut(second, begin(-shift[0]), begin(-shift[1]));
    (of_first, of_second, size)
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

fn mean_variance(plane: &Plane<'_>) -> f64 {
    mean(plane.variance.iter().map(|v| f64::from(*v)))
}

/// The mean square that the line through the pixels of both leaves of the first.
fn left_of_line(a: &[f32], b: &[f32]) -> f64 {
    let [x, y] = [b, a].map(|v| mean(v.iter().map(|v| f64::from(*v))));
    let each = || a.iter().zip(b).map(|(a, b)| (f64::from(*a) - y, f64::from(*b) - x));
    let (variance, covariance) = (mean(each().map(|(_, b)| b * b)), mean(each().map(|(a, b)| a * b)));
    let gain = if variance > 0.0 { covariance / variance } else { 0.0 };
    mean(each().map(|(a, b)| (a - gain * b).powi(2)))
}

/// Whole pixels that the second is shifted by: the peak of a cross-correlation, where that is better than no shift.
fn whole_shift(first: &[f32], second: &[f32], size: [usize; 2]) -> [isize; 2] {
    let [height, width] = size;
    let spectra = [first, second].map(|values| spectrum(values, size));
    let mut product: Vec<Complex<f64>> = spectra[0]
        .iter()
        .zip(&spectra[1])
        .enumerate()
        .map(|(i, (a, b))| {
            let signed =
                |k: usize, n: usize| if 2 * k < n { k as f64 } else { k as f64 - n as f64 } / n as f64;
            let squared = signed(i / width, height).powi(2) + signed(i % width, width).powi(2);
            let [slow, fast] = BAND.map(|f| (-squared / (2.0 * f * f)).exp());
            // Half whitened: what is strong counts more, as it has less noise, but not by its whole power.
            let p = a.conj() * b;
            p / p.norm().sqrt().max(1e-300) * ((1.0 - slow) * fast)
        })
        .collect();
    transform(&mut product, size, true);
    let signed = |k: usize, n: usize| if 2 * k < n { k as isize } else { k as isize - n as isize };
    let mut best = ([0, 0], f64::NEG_INFINITY);
    for (i, p) in product.iter().enumerate() {
        let at = [signed(i / width, height), signed(i % width, width)];
        if p.re > best.1 && is_near(at, size) {
            best = (at, p.re);
        }
    }
    let alike = |shift: [isize; 2]| {
        let (a, b, size) = common(first, second, size, shift);
        correlation(&blocks(&a, size, SMALL).0, &blocks(&b, size, SMALL).0)
    };
    // Of many shifts of noise, some are better by chance.
    let by_chance = SURE * SMALL as f64 / ((height * width) as f64).sqrt();
    if best.0 != [0, 0] && alike(best.0) > alike([0, 0]) + BETTER.max(by_chance) { best.0 } else { [0, 0] }
}

/// Of an image without its mean that fades to its edges.
fn spectrum(values: &[f32], [height, width]: [usize; 2]) -> Vec<Complex<f64>> {
    let level = mean(values.iter().map(|v| f64::from(*v)));
    let fade = |i: usize, n: usize| (std::f64::consts::PI * (i as f64 + 0.5) / n as f64).sin();
    let at =
        |(i, v): (usize, &f32)| (f64::from(*v) - level) * fade(i / width, height) * fade(i % width, width);
    let mut spectrum: Vec<Complex<f64>> =
        values.iter().enumerate().map(|v| Complex::new(at(v), 0.0)).collect();
    transform(&mut spectrum, [height, width], false);
    spectrum
}

fn transform(values: &mut [Complex<f64>], [height, width]: [usize; 2], back: bool) {
    let mut planner = FftPlanner::new();
    let mut plan = |n| if back { planner.plan_fft_inverse(n) } else { planner.plan_fft_forward(n) };
    let (rows, columns) = (plan(width), plan(height));
    rows.process(values);
    let mut line = vec![Complex::default(); height];
    for x in 0..width {
        (0..height).for_each(|y| line[y] = values[y * width + x]);
        columns.process(&mut line);
        (0..height).for_each(|y| values[y * width + x] = line[y]);
    }
}

/// Means of blocks, and how many there are along Y and X.
fn blocks(values: &[f32], [height, width]: [usize; 2], side: usize) -> (Vec<f64>, [usize; 2]) {
    let size = [height / side, width / side];
    let block = |i: usize| {
        let (y, x) = (i / size[1] * side, i % size[1] * side);
        let row = |j: usize| values[(y + j) * width + x..][..side].iter().map(|v| f64::from(*v)).sum::<f64>();
        (0..side).map(row).sum::<f64>() / (side * side) as f64
    };
    ((0..size[0] * size[1]).map(block).collect(), size)
}

fn covariance(a: &[f64], b: &[f64]) -> f64 {
    let [x, y] = [a, b].map(|v| mean(v.iter().copied()));
    mean(a.iter().zip(b).map(|(a, b)| (a - x) * (b - y)))
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    covariance(a, b) / (covariance(a, a) * covariance(b, b)).sqrt().max(1e-300)
}

/// Gain and offset that make the second as bright as the first; none where the two do not show the same. The two halves of each block, pixel by pixel in turn, have the same light
/// and noise of their own: what they vary by together is the structure, and the gain is that of the one image over that of the other.
fn brightness(a: &[f32], b: &[f32], size: [usize; 2]) -> Option<[f64; 2]> {
    let halves = |values: &[f32]| [0, 1].map(|which| half_blocks(values, size, which));
    let ([a, other_a], [b, other_b]) = (halves(a), halves(b));
    let [level, other] = [[&a, &other_a], [&b, &other_b]]
        .map(|[v, w]| 0.5 * (mean(v.iter().copied()) + mean(w.iter().copied())));
    let within = correlation(&a, &other_a).min(correlation(&b, &other_b));
    // An image without structure tells its offset alone.
    if within < SURE / (a.len().max(1) as f64).sqrt() {
        return Some([1.0, level - other]);
    }
    let (ours, theirs) = (covariance(&a, &other_a), covariance(&b, &other_b));
    let across = 0.5 * (covariance(&a, &other_b) + covariance(&other_a, &b));
    if across < ALIKE * (ours * theirs).sqrt() {
        return None;
    }
    let gain = (ours / theirs).sqrt();
    Some([gain, level - gain * other])
}

/// Means over every second pixel of small blocks, as on a chessboard.
fn half_blocks(values: &[f32], [height, width]: [usize; 2], which: usize) -> Vec<f64> {
    let columns = width / SMALL;
    let block = |i: usize| {
        let (y, x) = (i / columns * SMALL, i % columns * SMALL);
        let pixels = (0..SMALL * SMALL).map(|k| (y + k / SMALL, x + k % SMALL));
        let sum: f64 =
            pixels.filter(|(y, x)| (y + x) % 2 == which).map(|(y, x)| f64::from(values[y * width + x])).sum();
        2.0 * sum / (SMALL * SMALL) as f64
    };
    (0..height / SMALL * columns).map(block).collect()
}

/// The share of blocks where the two differ by more than their noise, in the mean or in the scatter. How much noise there is follows from the difference itself, block by block
/// of like brightness, so that nothing is assumed of its law; the camera says only how far neighbours may share it.
fn changed(a: &[f32], b: &[f32], size: [usize; 2], camera: &Camera) -> f64 {
    let off: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let squares: Vec<f32> = off.iter().map(|v| v * v).collect();
    let sums: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
    let [off, squares, level] = [&off, &squares, &sums].map(|v| blocks(v, size, BLOCK).0);
    let variance: Vec<f64> = squares.iter().zip(&off).map(|(s, m)| (s - m * m).max(0.0)).collect();
    let mut order: Vec<usize> = (0..off.len()).collect();
    order.sort_by(|i, j| level[*i].total_cmp(&level[*j]));
    let usual = usual_along(&order, &variance);
    let mut deviations: Vec<f64> =
        (0..off.len()).map(|i| off[i].abs() * BLOCK as f64 / usual[i].sqrt().max(1e-30)).collect();
    let shared = camera.correlation.of_squares(BLOCK, 0, 0) * (BLOCK * BLOCK) as f64;
    let scale = (median(&deviations) / NORMAL_MEDIAN).clamp(1.0, 1.5 * shared.max(1.0).sqrt());
    deviations.iter_mut().for_each(|z| *z /= scale);
    let differs = |i: &usize| deviations[*i] > DEVIATIONS || variance[*i] > SCATTER * usual[*i];
    (0..off.len()).filter(differs).count() as f64 / off.len().max(1) as f64
}

/// Of each entry, the median of values around it in an order.
fn usual_along(order: &[usize], values: &[f64]) -> Vec<f64> {
    let mut usual = vec![0.0; values.len()];
    for begin in (0..order.len()).step_by(LIKE) {
        // The last ones, fewer, go with those before.
        let around = begin.min(order.len().saturating_sub(LIKE))..(begin + LIKE).min(order.len());
        let of: Vec<f64> = order[around].iter().map(|i| values[*i]).collect();
        let middle = median(&of);
        order[begin..(begin + LIKE).min(order.len())].iter().for_each(|i| usual[*i] = middle);
    }
    usual
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// What is left of the shift along Y and X, with standard errors: where the second image is shifted a little, the difference goes with the gradient, both of
/// means over a few pixels. Gradients of the two are multiplied with each other, so that the noise of neither has a part in it.
fn rest_of_shift(a: &[f32], b: &[f32], size: [usize; 2]) -> ([f64; 2], [f64; 2]) {
    let [height, width] = size;
    if height < 3 || width < 3 {
        return ([0.0; 2], [f64::INFINITY; 2]);
    }
    let (a, b) = (means(a, size, FINE), means(b, size, FINE));
    let off: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
    let slow = means(&off, size, SLOW);
    let slope = |v: &[f32], i: usize, by: usize| 0.5 * f64::from(v[i + by] - v[i - by]);
    let (mut matrix, mut right, mut power) = ([[0.0; 2]; 2], [0.0; 2], [0.0; 2]);
    let (mut noise, mut count) = (0.0, 0.0);
    for i in (1..height - 1).flat_map(|y| y * width + 1..(y + 1) * width - 1) {
        let off = f64::from(off[i] - slow[i]);
        let [of_a, of_b] = [&a, &b].map(|v| [width, 1].map(|by| slope(v, i, by)));
        for j in 0..2 {
            for k in 0..2 {
                matrix[j][k] += 0.5 * (of_a[j] * of_b[k] + of_a[k] * of_b[j]);
            }
            let both = 0.5 * (of_a[j] + of_b[j]);
            right[j] += off * both;
            power[j] += both * both;
        }
        noise += off * off;
        count += 1.0;
    }
    let determinant = matrix[0][0] * matrix[1][1] - matrix[0][1] * matrix[1][0];
    if !(matrix[0][0] > 0.0 && matrix[1][1] > 0.0 && determinant > 1e-6 * matrix[0][0] * matrix[1][1]) {
        return ([0.0; 2], [f64::INFINITY; 2]);
    }
    let inverse = [[matrix[1][1], -matrix[0][1]], [-matrix[1][0], matrix[0][0]]]
        .map(|row| row.map(|v| v / determinant));
    let rest = [0, 1].map(|j| inverse[j][0] * right[0] + inverse[j][1] * right[1]);
    // Neighbouring means share their noise.
    let of_off = noise / count * (FINE * FINE) as f64;
    let error = [0, 1].map(|j| inverse[j][j] * (of_off * power[j]).sqrt());
    (rest, error)
}

/// Whether the four quarters of the image are shifted alike.
fn shifts_as_one(a: &[f32], b: &[f32], [height, width]: [usize; 2], whole: [f64; 2]) -> bool {
    let half = [height / 2, width / 2];
    let quarter = |values: &[f32], y: usize, x: usize| -> Vec<f32> {
        (0..half[0]).flat_map(|j| &values[(y + j) * width + x..][..half[1]]).copied().collect()
    };
    [(0, 0), (0, half[1]), (half[0], 0), (half[0], half[1])].into_iter().all(|(y, x)| {
        let (rest, error) = rest_of_shift(&quarter(a, y, x), &quarter(b, y, x), half);
        (0..2).all(|i| (rest[i] - whole[i]).abs() < MOST_SHIFT.max(3.0 * error[i]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    const SIDE: usize = 128;
    const SIZE: [usize; 2] = [SIDE, SIDE];

    fn camera() -> Camera {
        Camera { gain: 1.0, offset: 100.0, read_noise: 3.0, ..Camera::default() }
    }

    /// Spots of a few pixels on a background, at any place.
    fn light(y: f64, x: f64) -> f64 {
        let key = Key { seed: 9, step: 0, stream: 4 };
        let draw = |spot: u64, slot: u64| f64::from(key.uniform(4 * spot + slot));
        let spot = |i: u64| {
            let [dy, dx] = [y, x].map(|v| v + 20.0);
            let far = (dy - 170.0 * draw(i, 0)).powi(2) + (dx - 170.0 * draw(i, 1)).powi(2);
            let width = 2.0 + 2.0 * draw(i, 2);
            (80.0 + 240.0 * draw(i, 3)) * (-far / (2.0 * width * width)).exp()
        };
        80.0 + (0..100).map(spot).sum::<f64>()
    }

    fn exposed(light: impl Fn(f64, f64) -> f64, seed: u64) -> Vec<f32> {
        let key = Key { seed, step: 0, stream: 0 };
        (0..SIDE * SIDE)
            .map(|i| {
                let mean = light((i / SIDE) as f64, (i % SIDE) as f64);
                (100.0 + mean + (mean + 9.0).sqrt() * f64::from(key.normal(i as u64))) as f32
            })
            .collect()
    }

    fn compared(second: impl Fn(f64, f64) -> f64) -> Result<Repeat, Unlike> {
        compare(&exposed(light, 1), &exposed(second, 2), SIZE, &camera())
    }

    #[test]
    fn a_second_exposure_is_a_repeat() {
        let found = compared(light).unwrap();
        assert_eq!(found.shift, [0, 0]);
        assert!(found.rest.iter().all(|s| s.abs() < 0.05), "{found:?}");
        assert!((found.gain - 1.0).abs() < 0.02 && found.changed < 0.05, "{found:?}");
    }

    #[test]
    fn brightness_is_found_without_the_bias_of_noise() {
        let found = compared(|y, x| 0.9 * light(y, x)).unwrap();
        assert!((found.gain - 1.0 / 0.9).abs() < 0.015, "{found:?}");
        assert!((found.gain * 280.0 + found.offset - 300.0).abs() < 3.0, "{found:?}");
        let back = found.reversed();
        assert!((back.gain - 0.9).abs() < 0.015, "{back:?}");
        assert!((back.gain * (found.gain * 150.0 + found.offset) + back.offset - 150.0).abs() < 1e-9);
        let dim = compared(|y, x| 0.3 * light(y, x));
        assert!(matches!(dim, Err(Unlike::Brightness(gain)) if (gain - 3.3).abs() < 0.4), "{dim:?}");
    }

    #[test]
    fn whole_shifts_are_found_and_parts_of_pixels_named() {
        for shift in [[3.0, -7.0], [-12.0, 0.0], [0.1, -0.1], [5.1, 2.0]] {
            let found = compared(|y, x| light(y - shift[0], x - shift[1])).unwrap();
            for i in 0..2 {
                assert_eq!(found.shift[i] as f64, shift[i].round(), "{shift:?} {found:?}");
                assert!(
                    (found.shift[i] as f64 + found.rest[i] - shift[i]).abs() < 0.06,
                    "{shift:?} {found:?}"
                );
            }
        }
        for shift in [[0.5, 0.0], [0.0, -0.4], [4.4, -3.0]] {
            let Err(Unlike::Shifted(found)) = compared(|y, x| light(y - shift[0], x - shift[1])) else {
                panic!("{shift:?}: {:?}", compared(|y, x| light(y - shift[0], x - shift[1])))
            };
            assert!((0..2).all(|i| (found[i] - shift[i]).abs() < 0.12), "{shift:?} {found:?}");
        }
    }

    #[test]
    fn copies_have_the_same_noise() {
        let first = exposed(light, 1);
        let brighter: Vec<f32> = first.iter().map(|v| 1.2 * v + 7.0).collect();
        let rounded: Vec<f32> = first.iter().map(|v| (v / 4.0).round()).collect();
        let moved: Vec<f32> = (0..first.len()).map(|i| first[(i + 5 * SIDE) % first.len()]).collect();
        for copy in [&first, &brighter, &rounded, &moved] {
            assert_eq!(compare(&first, copy, SIZE, &camera()), Err(Unlike::Copy));
        }
    }

    #[test]
    fn what_moves_and_other_fields_are_told() {
        let moved = compared(|y, x| if x < 50.0 { light(y + 4.0, x) } else { light(y, x) });
        assert!(matches!(moved, Err(Unlike::Changed(share)) if share > 0.1 && share < 0.7), "{moved:?}");
        let other = compared(|y, x| light(2.0 * x + 40.0, 1.7 * y - 31.0));
        assert!(other.is_err(), "{other:?}");
        // Nothing to see: nothing says that it is not a repeat.
        let dark = compare(&exposed(|_, _| 5.0, 1), &exposed(|_, _| 5.0, 2), SIZE, &camera()).unwrap();
        assert!(dark.shift == [0, 0] && dark.gain == 1.0, "{dark:?}");
    }
}
