//! Views of images, and pairs of them prepared for comparison.
//!
//! A [`Pair`] applies rounding, crop and mask once for all metrics that read it. It borrows the caller's pixels unless
//! rounding or cropping changes them.

use crate::MetricError;
use std::borrow::Cow;

/// A row-major array of 2 or 3 axes, `[Z,] Y, X`, with at least one pixel.
#[derive(Clone, Copy, Debug)]
pub struct ImageRef<'a> {
    data: &'a [f64],
    shape: &'a [usize],
}

impl<'a> ImageRef<'a> {
    /// # Errors
    /// If the shape has not 2 or 3 axes, has no pixels, or is not filled by the data.
    pub fn new(data: &'a [f64], shape: &'a [usize]) -> Result<ImageRef<'a>, MetricError> {
        if !(2..=3).contains(&shape.len()) {
            return Err(MetricError::Rank { shape: shape.to_vec() });
        }
        if shape.contains(&0) {
            return Err(MetricError::Empty { shape: shape.to_vec() });
        }
        let len = shape.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
        if len != Some(data.len()) {
            return Err(MetricError::Length { shape: shape.to_vec(), got: data.len() });
        }
        Ok(ImageRef { data, shape })
    }

    pub fn data(&self) -> &'a [f64] {
        self.data
    }

    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// Height and width.
    ///
    /// # Errors
    /// If the image has three axes.
    pub fn plane(&self) -> Result<[usize; 2], MetricError> {
        match *self.shape {
            [h, w] => Ok([h, w]),
            _ => Err(MetricError::NotPlane { shape: self.shape.to_vec() }),
        }
    }

    pub(crate) fn same_shape(&self, what: &'static str, other: ImageRef<'_>) -> Result<(), MetricError> {
        if self.shape == other.shape {
            return Ok(());
        }
        Err(MetricError::Shape { what, expected: self.shape.to_vec(), got: other.shape.to_vec() })
    }

    pub(crate) fn check_mask(&self, mask: Option<&[bool]>) -> Result<(), MetricError> {
        check_mask(mask, self.shape)
    }
}

/// Preparation of the values of both images before they are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rounding {
    /// Values are compared without rounding.
    Keep,
    /// To the nearest whole number, halves to even, as numpy's `round`.
    Whole,
    /// To whole numbers and into an interval, as writing to an integer file does.
    WholeWithin { low: f64, high: f64 },
}

impl Rounding {
    fn apply(self, x: f64) -> f64 {
        match self {
            Rounding::Keep => x,
            Rounding::Whole => x.round_ties_even(),
            Rounding::WholeWithin { low, high } => x.round_ties_even().max(low).min(high),
        }
    }
}

/// How many pixels are cut from both ends of each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crop {
    Nothing,
    /// The same number on every axis.
    Border(usize),
    /// Of a plane: along y and x.
    Plane([usize; 2]),
    /// Of a volume: along z, y and x.
    Volume([usize; 3]),
}

impl Crop {
    fn of(self, shape: &[usize]) -> Result<Vec<usize>, MetricError> {
        let crop = match self {
            Crop::Nothing => vec![0; shape.len()],
            Crop::Border(n) => vec![n; shape.len()],
            Crop::Plane(c) => c.to_vec(),
            Crop::Volume(c) => c.to_vec(),
        };
        let fits = crop.len() == shape.len()
            && crop.iter().zip(shape).all(|(&c, &s)| c.checked_mul(2).is_some_and(|both| both < s));
        if fits { Ok(crop) } else { Err(MetricError::Crop { shape: shape.to_vec(), crop }) }
    }
}

/// A true and a restored image of one shape, with the pixels that count.
#[derive(Clone, Debug)]
pub struct Pair<'a> {
    truth: Cow<'a, [f64]>,
    image: Cow<'a, [f64]>,
    mask: Option<Cow<'a, [bool]>>,
    shape: Vec<usize>,
}

impl<'a> Pair<'a> {
    /// Crops and rounds. In the mask, which has the images' shape before the crop, true counts.
    ///
    /// # Errors
    /// If the shapes differ, the crop leaves nothing, or no pixel counts.
    pub fn new(
        truth: ImageRef<'a>,
        image: ImageRef<'a>,
        mask: Option<&'a [bool]>,
        rounding: Rounding,
        crop: Crop,
    ) -> Result<Pair<'a>, MetricError> {
        truth.same_shape("restored image", image)?;
        check_mask(mask, truth.shape)?;
        let crop = crop.of(truth.shape)?;
        let shape: Vec<usize> = truth.shape.iter().zip(&crop).map(|(s, c)| s - 2 * c).collect();
        let mask = mask.map(|m| cropped(m, truth.shape, &crop));
        if mask.as_ref().is_some_and(|m| !m.contains(&true)) {
            return Err(MetricError::NothingCounts { shape });
        }
        let ready = |data| rounded(cropped(data, truth.shape, &crop), rounding);
        Ok(Pair { truth: ready(truth.data), image: ready(image.data), mask, shape })
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn truth(&self) -> &[f64] {
        &self.truth
    }

    pub fn image(&self) -> &[f64] {
        &self.image
    }

    pub fn mask(&self) -> Option<&[bool]> {
        self.mask.as_deref()
    }

    /// (truth, image) of every pixel that counts.
    pub fn values(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let counts = |i: usize| self.mask.as_ref().is_none_or(|m| m[i]);
        let pixels = self.truth.iter().zip(self.image.iter()).enumerate();
        pixels.filter(move |&(i, _)| counts(i)).map(|(_, (&t, &x))| (t, x))
    }

    /// The mean of a function of (truth, image) over the pixels that count.
    pub fn mean(&self, f: impl Fn(f64, f64) -> f64) -> f64 {
        let (sum, n) = self.values().fold((0.0, 0usize), |(sum, n), (t, x)| (sum + f(t, x), n + 1));
        sum / n as f64
    }
}

fn check_mask(mask: Option<&[bool]>, shape: &[usize]) -> Result<(), MetricError> {
    let Some(mask) = mask else { return Ok(()) };
    if mask.len() != shape.iter().product::<usize>() {
        return Err(MetricError::Pixels { what: "mask", shape: shape.to_vec(), got: mask.len() });
    }
    if !mask.contains(&true) {
        return Err(MetricError::NothingCounts { shape: shape.to_vec() });
    }
    Ok(())
}

fn rounded(data: Cow<'_, [f64]>, rounding: Rounding) -> Cow<'_, [f64]> {
    if rounding == Rounding::Keep {
        return data;
    }
    data.iter().map(|&x| rounding.apply(x)).collect()
}

/// The inside of an array, `crop` elements away from both ends of each axis.
pub(crate) fn cropped<'a, T: Copy>(data: &'a [T], shape: &[usize], crop: &[usize]) -> Cow<'a, [T]> {
    if crop.iter().all(|&c| c == 0) {
        return Cow::Borrowed(data);
    }
    let (width, side) = (shape[shape.len() - 1], crop[crop.len() - 1]);
    let kept = |row: usize| {
        let mut rest = row;
        (0..shape.len() - 1).rev().all(|axis| {
            let i = rest % shape[axis];
            rest /= shape[axis];
            (crop[axis]..shape[axis] - crop[axis]).contains(&i)
        })
    };
    let rows = data.chunks_exact(width).enumerate().filter(|&(row, _)| kept(row));
    Cow::Owned(rows.flat_map(|(_, row)| row[side..width - side].iter().copied()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(n: usize) -> Vec<f64> {
        (0..n).map(|i| i as f64).collect()
    }

    #[test]
    fn crops_keep_the_inside() {
        let x = ramp(20);
        assert_eq!(*cropped(&x, &[4, 5], &[1, 2]), [7.0, 12.0]);
        assert_eq!(*cropped(&ramp(27), &[3, 3, 3], &[1, 1, 1]), [13.0]);
        assert_eq!(*cropped(&ramp(27), &[3, 3, 3], &[1, 0, 1]), [10.0, 13.0, 16.0]);
    }

    #[test]
    fn odd_input_is_named() {
        let x = ramp(6);
        let shape = |shape: &[usize]| ImageRef::new(&x, shape).map(|_| ()).unwrap_err();
        assert_eq!(shape(&[6]), MetricError::Rank { shape: vec![6] });
        assert_eq!(shape(&[0, 6]), MetricError::Empty { shape: vec![0, 6] });
        assert_eq!(shape(&[2, 2]), MetricError::Length { shape: vec![2, 2], got: 6 });
        assert_eq!(shape(&[usize::MAX, 2]), MetricError::Length { shape: vec![usize::MAX, 2], got: 6 });
        let (a, b) = (ImageRef::new(&x, &[2, 3]).unwrap(), ImageRef::new(&x, &[3, 2]).unwrap());
        let pair = |b, mask, crop| Pair::new(a, b, mask, Rounding::Keep, crop).map(|_| ()).unwrap_err();
        let said = pair(b, None, Crop::Nothing).to_string();
        assert_eq!(said, "the restored image has shape [3, 2], and shape [2, 3] is needed");
        assert!(matches!(pair(a, Some(&[true; 5]), Crop::Nothing), MetricError::Pixels { got: 5, .. }));
        assert!(matches!(pair(a, Some(&[false; 6]), Crop::Nothing), MetricError::NothingCounts { .. }));
        for crop in [Crop::Border(1), Crop::Border(usize::MAX), Crop::Volume([0; 3])] {
            assert!(matches!(pair(a, None, crop), MetricError::Crop { .. }));
        }
    }

    #[test]
    fn the_mask_is_cropped_too() {
        let at = |places: &[usize]| (0..20).map(|i| places.contains(&i)).collect::<Vec<bool>>();
        let (x, both, corner) = (ramp(20), at(&[0, 8]), at(&[0]));
        let a = ImageRef::new(&x, &[4, 5]).unwrap();
        let pair = |mask, crop| Pair::new(a, a, Some(mask), Rounding::Keep, crop);
        let inner = pair(&both, Crop::Plane([1, 0])).unwrap();
        assert_eq!(inner.shape(), [2, 5]);
        assert_eq!(inner.values().collect::<Vec<_>>(), [(8.0, 8.0)]);
        assert!(matches!(pair(&corner, Crop::Border(1)), Err(MetricError::NothingCounts { .. })));
    }

    #[test]
    fn rounding_is_that_of_an_integer_file() {
        let x = [-3.0, 0.5, 1.5, 300.0];
        let a = ImageRef::new(&x, &[2, 2]).unwrap();
        let values = |r| Pair::new(a, a, None, r, Crop::Nothing).unwrap().image().to_vec();
        assert_eq!(values(Rounding::Whole), [-3.0, 0.0, 2.0, 300.0]);
        assert_eq!(values(Rounding::WholeWithin { low: 0.0, high: 255.0 }), [0.0, 0.0, 2.0, 255.0]);
    }
}
