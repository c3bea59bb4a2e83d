//! How far apart two masks are: Hausdorff's distance, and its percentile.
//!
//! Distances are exact and Euclidean, in the unit of the pixel spacing, from each pixel of a mask to
//! the nearest of the other: squared distances by the lower envelope of parabolas, one axis after the
//! other (Felzenszwalb and Huttenlocher, 2012), in time linear in the number of pixels.

use crate::MetricError;
use crate::error::{require, require_positive};
use crate::segment::check_shape;

/// The greater of the two directed distances: the `percentile` (100: the largest) of the distances
/// from the pixels of one mask to the other, interpolated linearly as numpy does. Zero if both masks
/// are empty, infinite if one is.
///
/// # Errors
/// If shape, masks and spacing do not fit together or the percentile is not 0 to 100.
pub fn hausdorff(
    a: &[bool],
    b: &[bool],
    shape: &[usize],
    spacing: &[f64],
    percentile: f64,
) -> Result<f64, MetricError> {
    require((0.0..=100.0).contains(&percentile), "the percentile", percentile, "0 to 100")?;
    check_shape(a.len(), shape)?;
    check_shape(b.len(), shape)?;
    if spacing.len() != shape.len() {
        let got = spacing.len();
        return Err(MetricError::Count { what: "the pixel spacing", got, needed: "one an axis" });
    }
    spacing.iter().try_for_each(|&s| require_positive("the pixel spacing", s))?;
    match (a.contains(&true), b.contains(&true)) {
        (false, false) => Ok(0.0),
        (true, true) => {
            let directed = |from: &[bool], to: &[bool]| {
                let far = squared_distances(to, shape, spacing);
                let own = from.iter().zip(far).filter(|&(&inside, _)| inside);
                percentile_of(own.map(|(_, d)| d.sqrt()).collect(), percentile)
            };
            Ok(directed(a, b).max(directed(b, a)))
        }
        _ => Ok(f64::INFINITY),
    }
}

/// A percentile of one or more values.
fn percentile_of(mut values: Vec<f64>, percentile: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = percentile / 100.0 * (values.len() - 1) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    values[low] + (place - low as f64) * (values[high] - values[low])
}

/// From each pixel to the nearest of a mask that is not empty.
fn squared_distances(mask: &[bool], shape: &[usize], spacing: &[f64]) -> Vec<f64> {
    let mut far: Vec<f64> = mask.iter().map(|&m| if m { 0.0 } else { f64::INFINITY }).collect();
    for axis in 0..shape.len() {
        let n = shape[axis];
        let stride: usize = shape[axis + 1..].iter().product();
        let (mut line, mut out) = (vec![0.0; n], vec![0.0; n]);
        for block in far.chunks_exact_mut(n * stride) {
            for start in 0..stride {
                line.iter_mut().enumerate().for_each(|(i, d)| *d = block[start + i * stride]);
                lower_envelope(&line, spacing[axis], &mut out);
                out.iter().enumerate().for_each(|(i, &d)| block[start + i * stride] = d);
            }
        }
    }
    far
}

/// out[i] = min over j of line[j] + (spacing (i - j))^2.
fn lower_envelope(line: &[f64], spacing: f64, out: &mut [f64]) {
    let x = |i: usize| i as f64 * spacing;
    // Where parabola j becomes lower than an earlier parabola i.
    let crossing = |i: usize, j: usize| 0.5 * ((line[j] - line[i]) / (x(j) - x(i)) + x(j) + x(i));
    // Parabolas of the envelope, each with where it begins.
    let mut hull: Vec<(usize, f64)> = vec![];
    for j in (0..line.len()).filter(|&j| line[j].is_finite()) {
        let mut begin = f64::NEG_INFINITY;
        while let Some(&(i, from)) = hull.last() {
            begin = crossing(i, j);
            if begin > from {
                break;
            }
            hull.pop();
            begin = f64::NEG_INFINITY;
        }
        hull.push((j, begin));
    }
    if hull.is_empty() {
        return out.fill(f64::INFINITY);
    }
    let mut at = 0;
    for (i, d) in out.iter_mut().enumerate() {
        while at + 1 < hull.len() && hull[at + 1].1 <= x(i) {
            at += 1;
        }
        let (j, _) = hull[at];
        *d = line[j] + (x(i) - x(j)).powi(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    fn random(n: usize, share: f32, stream: u32) -> Vec<bool> {
        let key = Key { seed: 4, step: 0, stream };
        (0..n as u64).map(|i| key.uniform(i) < share).collect()
    }

    fn brute(mask: &[bool], shape: &[usize], spacing: &[f64]) -> Vec<f64> {
        let places = |i: usize| {
            let mut at = vec![0; shape.len()];
            crate::fourier::unravel(i, shape, &mut at);
            at.iter().zip(spacing).map(|(&k, s)| k as f64 * s).collect::<Vec<_>>()
        };
        let between =
            |i: usize, j: usize| places(i).iter().zip(places(j)).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        let nearest =
            |i| (0..mask.len()).filter(|&j| mask[j]).map(|j| between(i, j)).fold(f64::INFINITY, f64::min);
        (0..mask.len()).map(nearest).collect()
    }

    #[test]
    fn distances_are_exact() {
        let cases: [(&[usize], &[f64]); 3] =
            [(&[13, 9], &[1.0, 1.0]), (&[11, 14], &[0.3, 1.7]), (&[5, 6, 7], &[2.0, 1.0, 0.5])];
        for (shape, spacing) in cases {
            for share in [0.01, 0.1, 0.6] {
                let mut mask = random(shape.iter().product(), share, 1);
                mask[7] = true;
                let (fast, slow) = (squared_distances(&mask, shape, spacing), brute(&mask, shape, spacing));
                assert!(fast.iter().zip(&slow).all(|(a, b)| (a - b).abs() < 1e-12));
            }
        }
    }

    #[test]
    fn corners_by_hand() {
        let at = |places: &[usize]| (0..20).map(|i| places.contains(&i)).collect::<Vec<bool>>();
        let h = |a: &[usize], b: &[usize], p| hausdorff(&at(a), &at(b), &[4, 5], &[1.0, 1.0], p).unwrap();
        assert_eq!(h(&[0], &[18], 100.0), 18f64.sqrt());
        // From the first mask 0, 0, 4; from the second 0, 0: the median of three is 0.
        assert_eq!(h(&[0, 1, 14], &[0, 1], 100.0), 13f64.sqrt());
        assert_eq!(h(&[0, 1], &[0, 1, 14], 100.0), 13f64.sqrt());
        assert_eq!(h(&[0, 1, 14], &[0, 1], 50.0), 0.0);
        assert!((h(&[0, 1, 14], &[0, 1], 95.0) - 0.9 * 13f64.sqrt()).abs() < 1e-14);
        assert_eq!((h(&[], &[], 95.0), h(&[3], &[], 95.0)), (0.0, f64::INFINITY));
    }

    #[test]
    fn odd_input_is_refused() {
        let m = [true; 4];
        assert!(hausdorff(&m, &m[..3], &[2, 2], &[1.0; 2], 100.0).is_err());
        assert!(hausdorff(&m, &m, &[2, 2], &[1.0], 100.0).is_err());
        assert!(hausdorff(&m, &m, &[2, 2], &[1.0, f64::NAN], 100.0).is_err());
        assert!(hausdorff(&m, &m, &[2, 2], &[1.0; 2], 101.0).is_err());
        assert!(hausdorff(&[], &[], &[0, 2], &[1.0; 2], 100.0).is_err());
    }
}
