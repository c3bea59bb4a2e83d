//! The inverse of the noise correlation, as a whitening filter.
//!
//! Correlated noise z of variance 1 has a stationary covariance R; the likelihood of an image needs z' R^-1 z. On a
//! periodic grid R is a cyclic convolution, and so is its inverse square root W with the spectrum 1 / sqrt(S): W z is
//! white, and R^-1 = W W. Within a few pixels of the image border this is an approximation. Planes of a volume are
//! independent of each other.

use super::fourier::{Kernel, Real};
use crate::correlation::Correlation;
use crate::grid::zyx;
use clearshot_graph::{Builder, Value};
use clearshot_tensor::{Shape, Tensor};
use std::fmt;

/// See the module.
pub struct Whitening {
    image: Shape,
    /// The filter on the image's grid, its origin first.
    values: Vec<f64>,
    kernel: Kernel,
}

impl fmt::Debug for Whitening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Whitening of {} pixels", self.image)
    }
}

impl Whitening {
    /// For images of (Z,) Y, X pixels; `None` if the noise is already white.
    pub fn new(correlation: &Correlation, image: Shape) -> Option<Whitening> {
        if correlation.is_white() {
            return None;
        }
        let [depth, height, width] = zyx(image);
        let mut values = correlation.whitening([height, width]);
        values.resize(depth * height * width, 0.0);
        let kernel = Kernel::new([depth, height, width], &values);
        Some(Whitening { image, values, kernel })
    }

    /// W x.
    pub fn apply<T: Real>(&self, x: &[T]) -> Vec<T> {
        self.kernel.convolve(x, false)
    }

    /// R^-1 x.
    pub fn apply_twice<T: Real>(&self, x: &[T]) -> Vec<T> {
        self.apply(&self.apply(x))
    }

    /// A diagonal element of R^-1, which are all equal.
    pub fn precision(&self) -> f64 {
        self.values.iter().map(|v| v * v).sum()
    }

    /// Adds W x to a graph; x is `[N, (Z,) Y, X, C]`.
    #[track_caller]
    pub fn build(&self, b: &mut Builder, x: Value) -> Value {
        let values = self.values.iter().map(|&v| v as f32).collect();
        let kernel = b.constant(Tensor::f32(self.image, values));
        b.cyclic_conv(x, kernel, false)
    }

    /// Adds R^-1 x to a graph.
    #[track_caller]
    pub fn build_twice(&self, b: &mut Builder, x: Value) -> Value {
        let once = self.build(b, x);
        self.build(b, once)
    }
}
