//! Corrects bleaching: frames become dimmer with time, without a change of the object.
//!
//! A factor and an offset are estimated from block means above the dark blocks, in one frame and the other. They are
//! used only if they explain the image better than no bleaching.

use super::agree::Plane;
use crate::learned::Camera;

/// The side of the blocks that bleaching is found from, and the share of them that is dark.
const BLOCK: usize = 8;
const DARK: f64 = 0.1;
/// Standard deviations of a block by which an image's mean is above its dark, at least, and the share of blocks that bleaching explains.
const STRUCTURE: f64 = 3.0;
const EXPLAINED: f64 = 0.75;
/// Factors of bleaching that are believed.
const BLEACHED: std::ops::Range<f64> = 0.5..2.0;

/// The factor and shift that bring a neighbour to the frame's brightness, if that explains more of the image than none does.
pub(super) fn bleaching(own: &Plane<'_>, other: &[f32], camera: &Camera) -> [f64; 2] {
    let [height, width] = own.size;
    let side = BLOCK.min(height).min(width);
    let rows = height / side;
    let columns = width / side;
    let block = |values: &[f32], b: usize| -> f64 {
        let (y, x) = (b / columns * side, b % columns * side);
        let row = |j: usize| values[(y + j) * width + x..][..side].iter().map(|&v| f64::from(v)).sum::<f64>();
        (0..side).map(row).sum::<f64>() / (side * side) as f64
    };
    let all = |values: &[f32]| (0..rows * columns).map(|b| block(values, b)).collect::<Vec<f64>>();
    let (a, b, variance) = (all(own.values), all(other), all(&own.variance));
    let ends = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let dark = sorted[(DARK * sorted.len() as f64) as usize];
        (values.iter().sum::<f64>() / values.len() as f64, dark)
    };
    let ((mean, dark), (other_mean, other_dark)) = (ends(&a), ends(&b));
    let gain = (mean - dark) / (other_mean - other_dark);
    let noise = camera.correlation.of_squares(side, 0, 0);
    let of_block = (noise * variance.iter().sum::<f64>() / variance.len() as f64).sqrt();
    // Of an image with nothing in it, noise would say how much it has bleached.
    if !BLEACHED.contains(&gain) || mean - dark < STRUCTURE * of_block {
        return [1.0, 0.0];
    }
    let fitted = [gain, mean - gain * other_mean];
    let explained = |[gain, shift]: [f64; 2]| {
        let fits = |i: &usize| {
            let d = a[*i] - gain * b[*i] - shift;
            d * d < 6.0 * variance[*i] * noise * (1.0 + gain * gain)
        };
        (0..a.len()).filter(fits).count() as f64
    };
    // What lies between two frames that differ explains some of both.
    let most = (1.02 * explained([1.0, 0.0])).max(EXPLAINED * a.len() as f64);
    if explained(fitted) > most { fitted } else { [1.0, 0.0] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::agree::tests::{camera, noisy};

    #[test]
    fn bleaching_is_taken_off() {
        let scene =
            |i: usize| 40.0 + 100.0 * (((i / 128) as f32 / 9.0).sin() * ((i % 128) as f32 / 7.0).cos()).abs();
        let own = noisy(scene, 5);
        let other = noisy(|i| 40.0 + 0.85 * (scene(i) - 40.0), 6);
        let plane = Plane::new(&own, [128; 2], &camera());
        let [gain, shift] = bleaching(&plane, &other, &camera());
        assert!(
            (gain - 1.0 / 0.85).abs() < 0.02 && (40.0 * gain + shift - 40.0).abs() < 1.5,
            "{gain} {shift}"
        );
        assert_eq!(bleaching(&plane, &noisy(scene, 7), &camera()), [1.0, 0.0]);
    }
}
