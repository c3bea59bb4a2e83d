//! Distance between two masks: the Hausdorff distance and its percentiles.
//!
//! Distances are exact and Euclidean, in the unit of the pixel spacing, from each pixel of a mask to the nearest pixel of
//! the other ([`Nearest`]).

use crate::MetricError;
use crate::distance::Nearest;
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
                let far = Nearest::of(to, shape, spacing).squared;
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

#[cfg(test)]
mod tests {
    use super::*;

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
