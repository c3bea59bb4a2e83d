//! Tests where two frames agree: their difference is no more than noise.
//!
//! The difference of two frames has a known variance, pixel by pixel, and the variance of its mean over a square is
//! that of [`Correlation::of_squares`](clearshot_physics::Correlation::of_squares). Single pixels detect bright
//! changes, large squares dim and wide ones. All sides from 1 to 65 pixels are therefore tested, small ones first, and
//! pixels found by a small square are left out of larger ones, because otherwise a bright spot would affect its
//! surroundings. Fine detail that moves a little has differences of both signs with large squares: their mean over a
//! few pixels is tested, too. The weight of a pixel falls from 1 to 0 between two quantiles of a squared normal
//! variable.
//!
//! Dim structures may move without failing any single test. They are detected in two ways: much around them has
//! changed, or the tests around them are together larger than expected from noise.

use super::bleaching::bleaching;
use super::squares::{self, counts, means, widest};
use crate::learned::Camera;
use clearshot_physics::Correlation;

/// Sides of squares.
const SIDES: [usize; 7] = [1, 3, 5, 9, 17, 33, 65];
/// The side of the squares whose mean square is tried.
const ENERGY: usize = 7;
/// Squares of standard deviations: below the first all is noise, above the second none is.
const LIMITS: [f32; 2] = [9.0, 16.0];
/// The side of the squares whose share of changed pixels tells of the others, and the share that noise alone has.
const AROUND: usize = 33;
const BY_CHANCE: f32 = 0.02;
/// How fast weights fall with that share.
const CROWD: f32 = 10.0;
/// The side of the squares, and the standard deviations of noise, by which something shows; shares of it that change from which on
/// the rest counts less, and not at all.
const SEEN: usize = 5;
const SEEN_DEVIATIONS: f32 = 3.0;
const MOVING: [f32; 2] = [0.1, 0.4];
/// Sides of the squares whose tests are looked at together, and the limits for what they say.
const TOGETHER: [usize; 3] = [3, 5, 9];
const TOGETHER_LIMITS: [f32; 2] = [3.0, 7.0];
/// Pixels around one that has changed that are taken to have changed, too.
const RIM: usize = 2;
/// The median of a normal number's square.
const MEDIAN: f32 = 0.4549;
/// A frame to compare others with.
pub struct Plane<'a> {
    pub values: &'a [f32],
    pub(super) size: [usize; 2],
    /// The variance of a pixel's noise, by the mean of the nine around it.
    pub(super) variance: Vec<f32>,
}

impl<'a> Plane<'a> {
    pub fn new(values: &'a [f32], size: [usize; 2], camera: &Camera) -> Plane<'a> {
        let smooth = means(values, size, 3);
        let one = |v: &f32| camera.deviation(f64::from(*v)).powi(2) as f32;
        let mut variance: Vec<f32> = smooth.iter().map(one).collect();
        // A camera without read noise has some in the dark all the same.
        let mean = variance.iter().map(|&v| f64::from(v)).sum::<f64>() / variance.len().max(1) as f64;
        let least = (0.05 * mean).max(1e-12) as f32;
        variance.iter_mut().for_each(|v| *v = v.max(least));
        Plane { values, size, variance }
    }
}

/// A neighbour scaled to the brightness of the frame, with the weight of each of its pixels.
pub struct Agreement {
    pub values: Vec<f32>,
    pub weight: Vec<f32>,
    /// The factor applied to the neighbour.
    pub gain: f64,
}

impl Agreement {
    pub fn between(own: &Plane<'_>, other: &[f32], camera: &Camera) -> Agreement {
        let [gain, shift] = bleaching(own, other, camera);
        let values: Vec<f32> = other.iter().map(|&v| (gain * f64::from(v) + shift) as f32).collect();
        let share = vec![(gain * gain) as f32; values.len()];
        let weight = weights(own, &values, &share, camera);
        Agreement { values, weight, gain }
    }
}

/// The weight of each pixel of `other`, whose noise has `share` times the variance of the frame; zero if `share` is
/// negative.
pub fn weights(own: &Plane<'_>, other: &[f32], share: &[f32], camera: &Camera) -> Vec<f32> {
    let size = own.size;
    let n = own.values.len();
    let mut left: Vec<f32> = share.iter().map(|&s| f32::from(s >= 0.0)).collect();
    let difference: Vec<f32> = (0..n).map(|i| own.values[i] - other[i]).collect();
    let variance: Vec<f32> = (0..n).map(|i| own.variance[i] * (1.0 + share[i].max(0.0))).collect();
    let mut weight = left.clone();
    let mut judge = |tested: Vec<f32>, left: &mut Vec<f32>| {
        let tested = widest(&calibrated(tested, left), size, RIM);
        for i in 0..n {
            let w = falling(tested[i], LIMITS);
            weight[i] = weight[i].min(w);
            left[i] *= w;
        }
    };
    for side in SIDES.into_iter().filter(|s| *s == 1 || 2 * s <= size[0].min(size[1])) {
        let tested = of_means(&difference, &variance, &left, size, side, &camera.correlation);
        judge(tested, &mut left);
        if side == 3 {
            judge(of_squares(&difference, &variance, &left, size, &camera.correlation), &mut left);
        }
    }
    crowded(&mut weight, size);
    moving(&mut weight, &visible(own, other), size);
    for side in TOGETHER.into_iter().filter(|_| size[0].min(size[1]) > AROUND) {
        let tested = of_means(&difference, &variance, &left, size, side, &camera.correlation);
        let seen = together(&calibrated(tested, &left), &left, size, side, &camera.correlation);
        weight.iter_mut().zip(seen).for_each(|(w, t)| *w *= falling(t, TOGETHER_LIMITS));
    }
    weight
}

/// 1 below the first limit, 0 above the second.
fn falling(tested: f32, [low, high]: [f32; 2]) -> f32 {
    ((high - tested) / (high - low)).clamp(0.0, 1.0)
}

/// Changes that are too small to be seen one by one, seen together: by how many standard deviations the mean of tests over a wide square
/// is too large, squared. Pixels that are known to have changed do not count.
fn together(
    tested: &[f32],
    left: &[f32],
    size: [usize; 2],
    side: usize,
    correlation: &Correlation,
) -> Vec<f32> {
    let counts: Vec<f32> = left.iter().map(|&l| f32::from(l >= 1.0)).collect();
    let excess: Vec<f32> = tested.iter().zip(&counts).map(|(t, c)| c * (t - 1.0)).collect();
    // Means over squares that overlap by a part d share 1 - d, and tests its square; correlated noise makes squares wider.
    let wide = (correlation.of_squares(side, 0, 0) * (side * side) as f64).sqrt() * side as f64;
    let shared = (2.0 / 3.0 * wide + 1.0 / (3.0 * wide)).powi(2) as f32;
    let inside = squares::counts(size, AROUND);
    let (sums, of) = (means(&excess, size, AROUND), means(&counts, size, AROUND));
    (0..left.len())
        .map(|i| {
            if of[i] > 0.0 {
                (sums[i] / of[i]).max(0.0).powi(2) * of[i] * inside(i) / (2.0 * shared)
            } else {
                0.0
            }
        })
        .collect()
}

/// What moves seldom moves alone: where much has changed around a pixel, the rest has changed, too, and does not show it.
fn crowded(weight: &mut [f32], size: [usize; 2]) {
    let changed: Vec<f32> = weight.iter().map(|&w| f32::from(w == 0.0)).collect();
    for (w, share) in weight.iter_mut().zip(means(&changed, size, AROUND)) {
        *w *= (1.0 - CROWD * (share - BY_CHANCE)).clamp(0.0, 1.0);
    }
}

/// Pixels that show something in one of the frames: means over a few pixels are above the middle of all by more than noise makes
/// them.
fn visible(own: &Plane<'_>, other: &[f32]) -> Vec<f32> {
    let smooth = [own.values, other].map(|values| means(values, own.size, SEEN));
    let mut sorted = smooth[0].clone();
    sorted.sort_unstable_by(f32::total_cmp);
    let middle = sorted[sorted.len() / 2];
    let limit = |i: usize| middle + SEEN_DEVIATIONS * own.variance[i].sqrt() / SEEN as f32;
    (0..other.len()).map(|i| f32::from(smooth[0][i].max(smooth[1][i]) > limit(i))).collect()
}

/// Of what shows in a sparse picture little covers many pixels: where a good part of it has changed, the rest has, too.
fn moving(weight: &mut [f32], visible: &[f32], size: [usize; 2]) {
    let changed: Vec<f32> = weight.iter().zip(visible).map(|(&w, v)| v * f32::from(w == 0.0)).collect();
    let (changed, all) = (means(&changed, size, AROUND), means(visible, size, AROUND));
    for (i, w) in weight.iter_mut().enumerate().filter(|(i, _)| all[*i] > BY_CHANCE) {
        *w *= falling(changed[i] / all[i], MOVING);
    }
}

/// The squares of normal numbers: means of differences over squares of `side` pixels, of pixels that are left.
fn of_means(
    difference: &[f32],
    variance: &[f32],
    left: &[f32],
    size: [usize; 2],
    side: usize,
    correlation: &Correlation,
) -> Vec<f32> {
    let factor = (correlation.of_squares(side, 0, 0) * (side * side) as f64) as f32;
    let taken = |i: usize| (difference[i] * left[i], variance[i] * left[i] * left[i]);
    let sums = means(&(0..left.len()).map(|i| taken(i).0).collect::<Vec<_>>(), size, side);
    let noise = means(&(0..left.len()).map(|i| taken(i).1).collect::<Vec<_>>(), size, side);
    let inside = counts(size, side);
    (0..left.len())
        .map(|i| if noise[i] > 0.0 { sums[i] * sums[i] * inside(i) / (noise[i] * factor) } else { 0.0 })
        .collect()
}

/// The same of the mean square over a few pixels, where it is too large.
fn of_squares(
    difference: &[f32],
    variance: &[f32],
    left: &[f32],
    size: [usize; 2],
    correlation: &Correlation,
) -> Vec<f32> {
    let excess: Vec<f32> =
        (0..left.len()).map(|i| left[i] * (difference[i] * difference[i] / variance[i] - 1.0)).collect();
    // Squares of normal numbers share the square of what the numbers share.
    let squared = Correlation::from_lags(|y, x| correlation.at(y, x).powi(2));
    let factor = 2.0 * (squared.of_squares(ENERGY, 0, 0) * (ENERGY * ENERGY) as f64) as f32;
    let inside = counts(size, ENERGY);
    let sums = means(&excess, size, ENERGY);
    sums.iter().enumerate().map(|(i, &s)| s.max(0.0).powi(2) * inside(i) / factor).collect()
}

/// Where the noise is less than the camera's numbers say, changes would go unseen: tests are brought to what their median says.
/// Where it is more, they stay: that may be change.
fn calibrated(mut tested: Vec<f32>, left: &[f32]) -> Vec<f32> {
    let mut some: Vec<f32> =
        tested.iter().zip(left).step_by(3).filter(|(t, l)| **l > 0.0 && **t > 0.0).map(|(t, _)| *t).collect();
    if some.len() > 1000 {
        let at = some.len() / 2;
        let (_, median, _) = some.select_nth_unstable_by(at, f32::total_cmp);
        let scale = (MEDIAN / median.max(1e-6)).clamp(1.0, 4.0);
        // A tenth is within what the median of a large image may be off.
        if scale > 1.1 {
            tested.iter_mut().for_each(|t| *t *= scale);
        }
    }
    tested
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    pub(in crate::series) fn noisy(mean: impl Fn(usize) -> f32, seed: u64) -> Vec<f32> {
        let mut noise = vec![0f32; 128 * 128];
        Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut noise);
        noise.iter().enumerate().map(|(i, n)| mean(i) + 10.0 * n).collect()
    }

    pub(in crate::series) fn camera() -> Camera {
        Camera { gain: 1.0, offset: 0.0, read_noise: 10.0, ..Camera::default() }
    }

    /// Noise alone agrees nearly everywhere, a spot that is there once does not, and its surroundings do.
    #[test]
    fn noise_agrees_and_change_does_not() {
        let spot =
            |i: usize| if (i / 128).abs_diff(60) < 4 && (i % 128).abs_diff(40) < 4 { 30.0 } else { 0.0 };
        let (own, same, other) = (noisy(|_| 0.0, 1), noisy(|_| 0.0, 2), noisy(spot, 3));
        let plane = Plane::new(&own, [128; 2], &camera());
        let agreed = |other: &[f32]| Agreement::between(&plane, other, &camera()).weight;
        let mean = |w: &[f32]| w.iter().sum::<f32>() / w.len() as f32;
        let rest = agreed(&same);
        assert!(mean(&rest) > 0.8, "{}", mean(&rest));
        let moved = agreed(&other);
        let inside: Vec<f32> = (0..128 * 128).filter(|&i| spot(i) > 0.0).map(|i| moved[i]).collect();
        assert!(mean(&inside) < 0.05, "{}", mean(&inside));
        let far: Vec<f32> = (0..128 * 128).filter(|i| i % 128 > 70).map(|i| moved[i]).collect();
        assert!(mean(&far) > 0.8, "{}", mean(&far));
        // A fifth of a standard deviation over a wide area.
        let wide = agreed(&noisy(|i| if i % 128 < 64 { 3.0 } else { 0.0 }, 4));
        let half: Vec<f32> = (0..128 * 128).filter(|i| i % 128 < 50).map(|i| wide[i]).collect();
        assert!(mean(&half) < 0.5, "{}", mean(&half));
    }
}
