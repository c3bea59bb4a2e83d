//! The Radon transform of a square image, as measured by a scanner with parallel beams: sums along lines, by angle and
//! detector column.
//!
//! It is scikit-image's `radon` with `circle=True`: the image is rotated about the pixel `side / 2` with linear
//! interpolation, with zeros outside, and its columns are summed. Sinograms here have a row for each angle. The adjoint
//! distributes every value over the pixels of its sum, with the same weights, so the two always match.

use crate::error::{PhysicsError, require, require_length};

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Radon {
    side: usize,
    /// Degrees.
    angles: Vec<f64>,
}

impl Radon {
    /// # Errors
    /// If there are no pixels or no angles, or an angle is not finite.
    pub fn new(side: usize, angles: &[f64]) -> Result<Radon, PhysicsError> {
        require(side > 0, "the side of an image", side as f64, "at least one pixel")?;
        require(!angles.is_empty(), "the number of angles", 0.0, "at least one")?;
        angles.iter().try_for_each(|a| require(a.is_finite(), "an angle", *a, "a finite number"))?;
        Ok(Radon { side, angles: angles.to_vec() })
    }

    /// This number of angles, evenly distributed over half a turn.
    ///
    /// # Errors
    /// As [`Radon::new`].
    pub fn over_half_a_turn(side: usize, views: usize) -> Result<Radon, PhysicsError> {
        let angles: Vec<f64> = (0..views).map(|i| 180.0 * i as f64 / views as f64).collect();
        Radon::new(side, &angles)
    }

    pub fn angles(&self) -> &[f64] {
        &self.angles
    }

    /// Pixels along each side, and columns of the detector.
    pub fn side(&self) -> usize {
        self.side
    }

    /// The sinogram of an image: a row for each angle.
    ///
    /// # Errors
    /// If the image does not have `side` x `side` pixels.
    pub fn apply(&self, image: &[f64]) -> Result<Vec<f64>, PhysicsError> {
        require_length("the image of a Radon transform", image.len(), self.side * self.side)?;
        let mut sinogram = vec![0.0; self.angles.len() * self.side];
        self.each(|ray, pixel, weight| sinogram[ray] += weight * image[pixel]);
        Ok(sinogram)
    }

    /// The adjoint (transpose), which is backprojection without a filter.
    ///
    /// # Errors
    /// If the sinogram does not have a row for each angle.
    pub fn adjoint(&self, sinogram: &[f64]) -> Result<Vec<f64>, PhysicsError> {
        require_length("a sinogram", sinogram.len(), self.angles.len() * self.side)?;
        let mut image = vec![0.0; self.side * self.side];
        self.each(|ray, pixel, weight| image[pixel] += weight * sinogram[ray]);
        Ok(image)
    }

    /// Calls with every value of a sinogram, a pixel that it is summed from, and the pixel's weight.
    fn each(&self, mut f: impl FnMut(usize, usize, f64)) {
        let n = self.side as isize;
        let centre = (self.side / 2) as f64;
        for (row, angle) in self.angles.iter().enumerate() {
            let (sin, cos) = (libm::sin(angle.to_radians()), libm::cos(angle.to_radians()));
            for y in 0..self.side {
                for x in 0..self.side {
                    let (dx, dy) = (x as f64 - centre, y as f64 - centre);
                    let (from_x, from_y) = (cos * dx + sin * dy + centre, cos * dy - sin * dx + centre);
                    let (left, top) = (from_x.floor(), from_y.floor());
                    let (part_x, part_y) = (from_x - left, from_y - top);
                    for (step_y, weight_y) in [(0, 1.0 - part_y), (1, part_y)] {
                        for (step_x, weight_x) in [(0, 1.0 - part_x), (1, part_x)] {
                            let (px, py) = (left as isize + step_x, top as isize + step_y);
                            if (0..n).contains(&px) && (0..n).contains(&py) {
                                f(row * self.side + x, (py * n + px) as usize, weight_x * weight_y);
                            }
                        }
                    }
                }
            }
        }
    }
}
