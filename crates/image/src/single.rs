//! Whether an image's values survive as 32-bit floats, in which everything is computed: numbers of 32 bits and more, and those
//! with a slope, may be too large, too small, or too near to each other beside their size (noise of a few counts on an
//! offset of 1e9). What is lost then looks like saturation or an empty image, so it is refused by its name.

use crate::dtype::DType;
use crate::error::{Result, request};
use crate::image::Image;
use std::ops::Range;

/// Planes that are looked at, and the most values of each along an axis.
const PLANES: usize = 4;
const SIDE: usize = 512;
/// Rounding may be so large beside the differences of neighbours, as root mean squares.
const MOST_ROUNDED: f64 = 0.1;

impl Image {
    /// # Errors
    /// If the image cannot be read, or if 32-bit floats cannot hold what its values say.
    pub fn check_single(&self) -> Result<()> {
        use DType::{F32, F64, I32, I64, U32, U64};
        if !matches!(self.dtype(), F32 | F64 | I32 | I64 | U32 | U64) && self.description.rescale.is_none() {
            return Ok(());
        }
        let mut seen = Seen::default();
        for region in self.some_planes() {
            seen.add(&self.read_f64(&region)?);
        }
        let path = self.description.path.display();
        seen.refusal().map_or(Ok(()), |why| request(format!("{path}: {why}")))
    }

    /// The middles of some planes: of the last axis, the longest before it, and some places along the others.
    fn some_planes(&self) -> Vec<Vec<Range<usize>>> {
        let shape = self.shape();
        let last = shape.len().saturating_sub(1);
        let next = (0..last).rev().max_by_key(|&a| shape[a]).unwrap_or(0);
        (0..PLANES)
            .map(|p| {
                let cut = |(axis, &n): (usize, &usize)| match n.min(SIDE) {
                    part if axis == last || axis == next => (n - part) / 2..(n - part) / 2 + part,
                    _ => {
                        let at = (2 * p + 1) * n / (2 * PLANES);
                        at..at + 1
                    }
                };
                shape.iter().enumerate().map(cut).collect()
            })
            .collect()
    }
}

/// What was seen of the values.
#[derive(Default)]
struct Seen {
    greatest: f64,
    /// Sums of squares: of what rounding takes off, and of differences of neighbours.
    rounded: f64,
    differences: f64,
}

impl Seen {
    fn add(&mut self, values: &[f64]) {
        let mut before = f64::NAN;
        for &value in values.iter().filter(|v| v.is_finite()) {
            self.greatest = self.greatest.max(value.abs());
            self.rounded += (f64::from(value as f32) - value).powi(2);
            if before.is_finite() {
                self.differences += (value - before).powi(2);
            }
            before = value;
        }
    }

    fn refusal(&self) -> Option<String> {
        let Seen { greatest, rounded, differences } = *self;
        if greatest > f64::from(f32::MAX) {
            Some(format!("{greatest:e} is larger than 32-bit numbers can be; scale the image"))
        } else if greatest > 0.0 && greatest < f64::from(f32::MIN_POSITIVE) {
            Some(format!(
                "no value is larger than {greatest:e}, which 32-bit numbers do not hold; scale the image"
            ))
        } else if rounded > MOST_ROUNDED.powi(2) * differences && differences > 0.0 {
            let step = (greatest as f32).next_up() - greatest as f32;
            Some(format!(
                "its values, up to {greatest}, differ by less than 32-bit numbers can tell there (steps of {step}); take a constant off the image first"
            ))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(values: impl Iterator<Item = f64>) -> String {
        let mut seen = Seen::default();
        seen.add(&values.collect::<Vec<_>>());
        seen.refusal().unwrap_or_default()
    }

    #[test]
    fn what_32_bits_do_not_hold_is_named() {
        let counts = || (0..200).map(|i| f64::from(i * 7 % 31));
        assert_eq!(refused(counts()), "");
        assert_eq!(refused(counts().map(|v| v * 1e-20)), "");
        assert_eq!(refused(counts().map(|v| v + 1e6)), "");
        // A constant that is rounded loses nothing that differs.
        assert_eq!(refused(std::iter::repeat_n(0.1, 50)), "");
        assert!(refused(counts().map(|v| v + 1e9)).contains("up to 1000000030, differ by less"));
        assert!(refused(counts().map(|v| v * 1e300)).contains("3e301 is larger"));
        assert!(refused(counts().map(|v| v * 1e-300)).contains("3e-299, which"));
    }
}
