//! Checks that the values of an image can be represented as 32-bit floats, in which everything is computed: integers of 32
//! bits and more, and values with a slope, may be too large, too small, or too close together relative to their size (noise
//! of a few counts on an offset of 1e9). The loss would look like saturation or an empty image, so such images are refused
//! with the reason.

use crate::dtype::DType;
use crate::error::{Result, request};
use crate::image::{Axis, Image};
use std::ops::Range;

/// Planes that are looked at, and the most values of each along an axis.
const PLANES: usize = 4;
const SIDE: usize = 512;
/// Rounding may be so large beside the differences of neighbours, as root mean squares.
const MOST_ROUNDED: f64 = 0.1;

impl Image {
    /// Reads some pixels, the first time that it is asked of an image.
    ///
    /// # Errors
    /// If the image cannot be read, or if 32-bit floats cannot hold what its values say.
    pub fn check_single(&self) -> Result<()> {
        use DType::{F32, F64, I32, I64, U32, U64};
        if self.is_single.get().is_some() {
            return Ok(());
        }
        if !matches!(self.dtype(), F32 | F64 | I32 | I64 | U32 | U64) && self.description.rescale.is_none() {
            return Ok(());
        }
        let mut seen = Seen::default();
        for region in self.some_planes() {
            seen.add(&self.read_f64(&region)?);
        }
        if let Some(why) = seen.refusal() {
            return request(format!("{}: {why}", self.description.path.display()));
        }
        self.is_single.get_or_init(|| ());
        Ok(())
    }

    /// The middles of some planes along Y and X, or along the last two axes where these have no such names.
    fn some_planes(&self) -> Vec<Vec<Range<usize>>> {
        let (shape, d) = (self.shape(), &self.description);
        let inner = match (d.position(Axis::Y), d.position(Axis::X)) {
            (Some(y), Some(x)) => [y, x],
            _ => [2, 1].map(|before| shape.len().saturating_sub(before)),
        };
        let mut planes: Vec<Vec<Range<usize>>> = (0..PLANES)
            .map(|p| {
                let cut = |(axis, &n): (usize, &usize)| match n.min(SIDE) {
                    part if inner.contains(&axis) => (n - part) / 2..(n - part) / 2 + part,
                    _ => {
                        let at = (2 * p + 1) * n / (2 * PLANES);
                        at..at + 1
                    }
                };
                shape.iter().enumerate().map(cut).collect()
            })
            .collect();
        planes.dedup();
        planes
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
    use crate::grid::Grid;
    use crate::image::{Description, Dim, Source};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts in planes of their own, each of which says when it is read.
    struct Planes {
        grid: Grid,
        read: Arc<AtomicUsize>,
    }

    impl Source for Planes {
        fn grid(&self, _: usize) -> &Grid {
            &self.grid
        }

        fn chunk(&self, _: usize, index: &[usize]) -> Result<Vec<u8>> {
            self.read.fetch_add(1, Ordering::Relaxed);
            let pixels = self.grid.chunk.iter().product::<usize>();
            let count = |i: usize| ((i * 7 + index[0]) % 31) as f32;
            Ok((0..pixels).flat_map(|i| count(i).to_ne_bytes()).collect())
        }
    }

    #[test]
    fn few_planes_of_a_stack_are_read_and_only_once() {
        for (axes, shape) in [
            ([Axis::Z, Axis::Y, Axis::X], [64, 64, 64]),
            ([Axis::T, Axis::Y, Axis::X], [300, 40, 64]),
            ([Axis::Other(0), Axis::Y, Axis::X], [2, 9, 9]),
        ] {
            let dims = axes.iter().zip(shape).map(|(&a, n)| Dim::new(a, n)).collect();
            let description = Description::new("", Path::new("stack.tif"), dims, DType::F32);
            let read = Arc::new(AtomicUsize::new(0));
            let grid = Grid::new(shape.to_vec(), vec![1, shape[1], shape[2]]);
            let image = Image::new(description, Box::new(Planes { grid, read: read.clone() }));
            image.check_single().unwrap();
            assert_eq!(read.load(Ordering::Relaxed), PLANES.min(shape[0]), "{shape:?}");
            image.check_single().unwrap();
            assert_eq!(read.load(Ordering::Relaxed), PLANES.min(shape[0]), "{shape:?}");
        }
    }

    fn refused(values: impl Iterator<Item = f64>) -> String {
        let mut seen = Seen::default();
        seen.add(&values.collect::<Vec<_>>());
        seen.refusal().unwrap_or_default()
    }

    #[test]
    fn values_beyond_32_bit_floats_are_refused() {
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
