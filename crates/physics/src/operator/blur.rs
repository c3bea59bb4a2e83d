//! Convolution with a PSF, for each boundary condition.
//!
//! A periodic image is convolved on its own grid. Otherwise the image is padded by the radius of the PSF, and further
//! to a size that is fast for FFTs. The convolution is cyclic on that grid, and the pixels without wrap-around are the
//! result. The adjoint reverses these steps and adds the value of each padded pixel to the pixel that it copies.

use super::Boundary;
use super::fourier::{Kernel, Real, fast_size};
use crate::error::PhysicsError;
use crate::grid::{self, zyx};
use crate::psf::Psf;
use clearshot_graph::{Builder, Value};
use clearshot_tensor::{MAX_RANK, Shape, Tensor};
use std::fmt;

/// See the module.
pub struct Blur {
    image: Shape,
    boundary: Boundary,
    psf: Shape,
    /// The cyclic grid.
    grid: Shape,
    /// The PSF on that grid, as convolution wants it: its origin first if the image is periodic, else its
    /// first pixel first.
    values: Vec<f64>,
    kernel: Kernel,
    /// For each axis Z, Y, X, the pixel that each padded position shows.
    sources: [Vec<Option<usize>>; 3],
}

impl fmt::Debug for Blur {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blur of {} by {} pixels, {:?}", self.image, self.psf, self.boundary)
    }
}

impl Blur {
    /// # Errors
    /// If the PSF is larger than the image, or of another number of axes.
    pub fn new(image: Shape, psf: &Psf, boundary: Boundary) -> Result<Blur, PhysicsError> {
        grid::check("an image", image)?;
        let size = psf.shape();
        if size.rank() != image.rank() {
            let needed = format!("a PSF of {} axes, as the image {image} has", image.rank());
            return Err(PhysicsError::Shape { what: "the PSF", got: size, needed });
        }
        if (0..size.rank()).any(|a| size[a] > image[a]) {
            return Err(PhysicsError::PsfTooLarge { psf: size, image });
        }
        let periodic = boundary == Boundary::Periodic;
        let padded = |a: usize| image[a] + size[a] - 1;
        let grid = (0..image.rank())
            .fold(image, |s, a| s.with(a, if periodic { image[a] } else { fast_size(padded(a)) }));
        let mut values = vec![0.0; grid.len()];
        let (strides, origin) = (grid.strides(), psf.origin());
        let mut light = psf.values().iter();
        grid::for_each(size, |q| {
            let at = |a: usize| if periodic { (q[a] + grid[a] - origin[a]) % grid[a] } else { q[a] };
            values[(0..q.len()).map(|a| at(a) * strides[a]).sum::<usize>()] =
                *light.next().expect("a value each");
        });
        let (k, n) = (zyx(size), zyx(image));
        let sources = std::array::from_fn(|a| {
            let (length, before) = if periodic { (n[a], 0) } else { (n[a] + k[a] - 1, k[a] - 1 - k[a] / 2) };
            (0..length).map(|p| boundary.source(p as isize - before as isize, n[a])).collect()
        });
        let kernel = Kernel::new(zyx(grid), &values);
        Ok(Blur { image, boundary, psf: size, grid, values, kernel, sources })
    }

    pub fn image(&self) -> Shape {
        self.image
    }

    pub fn boundary(&self) -> Boundary {
        self.boundary
    }

    /// The index of the first result on the grid, along Z, Y, X.
    fn first(&self) -> [usize; 3] {
        if self.boundary == Boundary::Periodic { [0; 3] } else { zyx(self.psf).map(|k| k - 1) }
    }

    pub(super) fn apply<T: Real>(&self, x: &[T]) -> Vec<T> {
        let mut field = vec![T::zero(); self.grid.len()];
        self.for_each_padded(|from, to| field[to] = x[from]);
        let blurred = self.kernel.convolve(&field, false);
        let mut y = vec![T::zero(); x.len()];
        self.for_each_result(|pixel, at| y[pixel] = blurred[at]);
        y
    }

    pub(super) fn adjoint<T: Real>(&self, y: &[T]) -> Vec<T> {
        let mut field = vec![T::zero(); self.grid.len()];
        self.for_each_result(|pixel, at| field[at] = y[pixel]);
        let spread = self.kernel.convolve(&field, true);
        let mut x = vec![T::zero(); y.len()];
        self.for_each_padded(|from, to| x[from] = x[from] + spread[to]);
        x
    }

    /// Calls `f(pixel of the image, place on the grid)` for every padded place that shows a pixel.
    fn for_each_padded(&self, mut f: impl FnMut(usize, usize)) {
        let ([_, height, width], [_, rows, columns]) = (zyx(self.image), zyx(self.grid));
        for (pz, z) in self.sources[0].iter().enumerate() {
            for (py, y) in self.sources[1].iter().enumerate() {
                let (Some(z), Some(y)) = (z, y) else { continue };
                for (px, x) in self.sources[2].iter().enumerate() {
                    if let Some(x) = x {
                        f((z * height + y) * width + x, (pz * rows + py) * columns + px);
                    }
                }
            }
        }
    }

    /// Calls `f(pixel of the image, place on the grid)` for every result.
    fn for_each_result(&self, mut f: impl FnMut(usize, usize)) {
        let ([depth, height, width], [_, rows, columns]) = (zyx(self.image), zyx(self.grid));
        let first = self.first();
        for z in 0..depth {
            for y in 0..height {
                let row = ((z + first[0]) * rows + y + first[1]) * columns + first[2];
                (0..width).for_each(|x| f((z * height + y) * width + x, row + x));
            }
        }
    }

    #[track_caller]
    pub(super) fn build(&self, b: &mut Builder, x: Value) -> Value {
        let values = self.values.iter().map(|&v| v as f32).collect();
        let kernel = b.constant(Tensor::f32(self.grid, values));
        if self.boundary == Boundary::Periodic {
            return b.cyclic_conv(x, kernel, false);
        }
        let axes = self.image.rank();
        let before: Vec<usize> = (0..axes).map(|a| self.psf[a] - 1 - self.psf[a] / 2).collect();
        let after: Vec<usize> = (0..axes).map(|a| self.psf[a] / 2).collect();
        let padded = self.boundary.pad(b, x, &before, &after);
        let mut rest = [[0; 2]; MAX_RANK];
        for a in 0..axes {
            rest[a + 1][1] = self.grid[a] - (self.image[a] + self.psf[a] - 1);
        }
        let padded = b.pad(padded, rest, clearshot_graph::ops::PadMode::Zero);
        let blurred = b.cyclic_conv(padded, kernel, false);
        (0..axes).fold(blurred, |v, a| b.slice(v, a + 1, self.psf[a] - 1, self.image[a]))
    }
}
