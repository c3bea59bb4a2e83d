//! A validated image: its shape is filled and every pixel is finite.

use crate::RestoreError;
use crate::error::require;

/// Pixels and sizes Z, Y, X; a plane has Z = 1.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub values: &'a [f32],
    pub size: [usize; 3],
}

/// The largest value that an image may have.
pub(crate) const LARGEST: f32 = 1e15;

impl<'a> Frame<'a> {
    /// # Errors
    /// If the shape is not that of a plane or a volume, is not filled, or a pixel is not finite or beyond 1e15.
    pub fn new(values: &'a [f32], shape: &[usize]) -> Result<Frame<'a>, RestoreError> {
        let size = match *shape {
            [y, x] => [1, y, x],
            [z, y, x] => [z, y, x],
            _ => return Err(RestoreError::Shape { shape: shape.to_vec() }),
        };
        let pixels = size.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
        let Some(needed) = pixels.filter(|&n| n > 0) else {
            return Err(RestoreError::Shape { shape: shape.to_vec() });
        };
        if needed != values.len() {
            return Err(RestoreError::Length { shape: shape.to_vec(), got: values.len(), needed });
        }
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            return Err(RestoreError::Pixel { index, got: values[index] });
        }
        let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let needed = "at most 1e15 (scale the image)";
        require(largest <= LARGEST, "the largest value", largest.into(), needed)?;
        Ok(Frame { values, size })
    }

    /// One plane of a volume.
    pub fn plane(&self, z: usize) -> &'a [f32] {
        let n = self.size[1] * self.size[2];
        &self.values[z * n..(z + 1) * n]
    }

    /// The image with `reach` more pixels on both sides of every axis longer than one, mirrored at the outer edges
    /// of the pixels, and its sizes.
    pub fn mirrored(&self, reach: [usize; 3]) -> (Vec<f32>, [usize; 3]) {
        let reach = [0, 1, 2].map(|a| if self.size[a] > 1 { reach[a] } else { 0 });
        let size = [0, 1, 2].map(|a| self.size[a] + 2 * reach[a]);
        let places = [0, 1, 2].map(|a| {
            (0..size[a]).map(|p| mirror(p as isize - reach[a] as isize, self.size[a])).collect::<Vec<_>>()
        });
        let mut out = Vec::with_capacity(size.iter().product());
        for &z in &places[0] {
            for &y in &places[1] {
                let row = &self.values[(z * self.size[1] + y) * self.size[2]..][..self.size[2]];
                out.extend(places[2].iter().map(|&x| row[x]));
            }
        }
        (out, size)
    }
}

/// The pixel that half-sample reflection shows at position `p` of `n`.
pub(crate) fn mirror(p: isize, n: usize) -> usize {
    let q = p.rem_euclid(2 * n as isize) as usize;
    if q < n { q } else { 2 * n - 1 - q }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_input_is_named() {
        let x = [1.0, 2.0, f32::NAN, 4.0];
        let said = |v: &[f32], shape: &[usize]| Frame::new(v, shape).map(|_| ()).unwrap_err().to_string();
        assert_eq!(
            said(&x, &[2, 2]),
            "the image is NaN at pixel 2; mask or fill pixels that are not finite before restoring"
        );
        assert_eq!(said(&x, &[3, 2]), "4 values for an image of shape [3, 2], which has 6 pixels");
        let no_image = "a plane [y, x] or a volume [z, y, x] with pixels is needed";
        for shape in [&[4][..], &[0, 4], &[1, 1, 2, 2], &[usize::MAX, 2]] {
            assert_eq!(said(&x, shape), format!("an image of shape {shape:?}: {no_image}"));
        }
    }

    #[test]
    fn mirrors_repeat_the_edge() {
        let x = [1.0, 2.0, 3.0];
        let (out, size) = Frame::new(&x, &[1, 3]).unwrap().mirrored([2; 3]);
        assert_eq!((out, size), (vec![2.0, 1.0, 1.0, 2.0, 3.0, 3.0, 2.0], [1, 1, 7]));
        assert_eq!([-5, -4, 0, 6, 7].map(|p| mirror(p, 2)), [0, 0, 0, 1, 0]);
    }
}
