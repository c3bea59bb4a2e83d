//! Resampling of PSFs: rescaled, shifted, broadened.
//!
//! A PSF is interpolated with the Catmull-Rom cubic, which preserves second moments: the PSF becomes neither wider nor
//! narrower. For larger pixels the cubic is stretched to their size, so that no light is lost between them.

use super::Psf;
use crate::error::{PhysicsError, require, require_positive};
use crate::grid::for_each;
use clearshot_tensor::Shape;

/// Pixels of standard deviation below which samples miss light.
const NARROW: f64 = 0.5;

impl Psf {
    /// The PSF for pixels of size `to`, given that it was sampled with pixels of size `from`, along every
    /// axis. Its extent is kept, rounded up to an odd number of pixels.
    ///
    /// # Errors
    /// If there is not one positive size for each axis.
    pub fn rescaled(&self, from: &[f64], to: &[f64]) -> Result<Psf, PhysicsError> {
        let axes = self.shape.rank();
        require(
            from.len() == axes && to.len() == axes,
            "the number of pixel sizes",
            from.len().min(to.len()) as f64,
            "one for each axis of the PSF",
        )?;
        from.iter().chain(to).try_for_each(|&p| require_positive("the pixel size of a PSF", p))?;
        let (mut it, spread) = (self.clone(), self.spread());
        for axis in 0..axes {
            let ratio = to[axis] / from[axis];
            let n = self.shape[axis];
            // As far to both sides as the farther end, plus what the cubic adds.
            let reach = (((n / 2).max(n - 1 - n / 2) as f64 + 1.0) / ratio).ceil() as usize;
            let place = |i: usize| (n / 2) as f64 + (i as f64 - reach as f64) * ratio;
            let narrow = spread[axis] < NARROW * ratio;
            it = it.along(axis, 2 * reach + 1, if narrow { ratio.max(1.0) } else { 1.0 }, place)?;
        }
        Ok(it)
    }

    /// Shifted by a number of pixels along each axis, including fractions; light that leaves the array is lost.
    ///
    /// # Errors
    /// If there is not a finite number for each axis, or no light is left.
    pub fn shifted(&self, by: &[f64]) -> Result<Psf, PhysicsError> {
        require(
            by.len() == self.shape.rank() && by.iter().all(|s| s.is_finite()),
            "the number of shifts",
            by.len() as f64,
            "a finite one for each axis of the PSF",
        )?;
        let mut it = self.clone();
        for (axis, &s) in by.iter().enumerate() {
            it = it.along(axis, self.shape[axis], 1.0, |i| i as f64 - s)?;
        }
        Ok(it)
    }

    /// With the centre of its light at its origin.
    ///
    /// # Errors
    /// If no light is left.
    pub fn centred(&self) -> Result<Psf, PhysicsError> {
        let mut it = self.clone();
        // The array's ends cut light off, so the first shift may leave a rest.
        for _ in 0..4 {
            let back: Vec<f64> = it.centroid().iter().map(|c| -c).collect();
            if back.iter().all(|c| c.abs() < 1e-4) {
                break;
            }
            it = it.shifted(&back)?;
        }
        Ok(it)
    }

    /// Convolved with a Gaussian of these standard deviations in pixels, for example to simulate a PSF with an error.
    /// The array grows by the radius of the Gaussian.
    ///
    /// # Errors
    /// As [`Psf::gaussian`].
    pub fn broadened(&self, sigmas: &[f64]) -> Result<Psf, PhysicsError> {
        let other = Psf::gaussian(sigmas)?;
        require(
            sigmas.len() == self.shape.rank(),
            "the number of sigmas",
            sigmas.len() as f64,
            "one for each axis of the PSF",
        )?;
        // Origins are at half the size; the sum of two is at half of the whole size where the second is odd.
        let shape =
            (0..self.shape.rank()).fold(self.shape, |s, a| s.with(a, self.shape[a] + other.shape[a] - 1));
        super::check_size(shape)?;
        let strides = shape.strides();
        let mut values = vec![0.0; shape.len()];
        let mut mine = self.values.iter();
        for_each(self.shape, |i| {
            let (v, mut theirs) = (mine.next().expect("a value for each index"), other.values.iter());
            for_each(other.shape, |j| {
                let at: usize = (0..i.len()).map(|a| (i[a] + j[a]) * strides[a]).sum();
                values[at] += v * theirs.next().expect("a value for each index");
            });
        });
        Psf::new(shape, values)
    }

    /// Resampled along one axis: the value at the place of each new pixel, by a cubic stretched by `stretch`. What
    /// the cubic makes negative becomes zero.
    fn along(
        &self,
        axis: usize,
        size: usize,
        stretch: f64,
        place: impl Fn(usize) -> f64,
    ) -> Result<Psf, PhysicsError> {
        super::check_size(self.shape.with(axis, size))?;
        let (n, stride) = (self.shape[axis], self.shape.strides()[axis]);
        let taps: Vec<Vec<(usize, f64)>> = (0..size).map(|i| cubic_taps(place(i), stretch, n)).collect();
        let shape: Shape = self.shape.with(axis, size);
        let mut values = Vec::with_capacity(shape.len());
        for_each(shape, |i| {
            let strides = self.shape.strides();
            let line: usize = (0..i.len()).filter(|&a| a != axis).map(|a| i[a] * strides[a]).sum();
            let v: f64 = taps[i[axis]].iter().map(|(p, w)| w * self.values[line + p * stride]).sum();
            values.push(v.max(0.0));
        });
        Psf::new(shape, values)
    }
}

/// The pixels and weights whose sum is the stretched cubic's value at `place`; outside is dark.
fn cubic_taps(place: f64, stretch: f64, n: usize) -> Vec<(usize, f64)> {
    let first = (place - 2.0 * stretch).floor();
    let count = (4.0 * stretch).ceil() as usize + 2;
    let weights: Vec<f64> = (0..count).map(|j| catmull_rom((first + j as f64 - place) / stretch)).collect();
    let sum: f64 = weights.iter().sum();
    let inside = |j: usize| Some(first + j as f64).filter(|at| *at >= 0.0 && *at < n as f64);
    (0..count).filter_map(|j| inside(j).map(|at| (at as usize, weights[j] / sum))).collect()
}

/// The interpolating cubic that reproduces parabolas.
fn catmull_rom(t: f64) -> f64 {
    let t = t.abs();
    if t < 1.0 {
        1.0 + t * t * (-2.5 + 1.5 * t)
    } else if t < 2.0 {
        2.0 + t * (-4.0 + t * (2.5 - 0.5 * t))
    } else {
        0.0
    }
}
