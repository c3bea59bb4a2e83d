//! Downsampling by boxes, like binning on the camera.

use super::Real;
use crate::error::{PhysicsError, require};
use crate::grid::{self, zyx};
use clearshot_graph::ops::{Geometry, PoolKind};
use clearshot_graph::{Builder, Value};
use clearshot_tensor::Shape;
use serde::{Deserialize, Serialize};

/// How the pixels of a box are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// Electrons of binned pixels add.
    Sum,
    /// Intensities average.
    Mean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxDown {
    domain: Shape,
    factors: Shape,
    pooling: Pooling,
}

impl BoxDown {
    /// # Errors
    /// If the number of factors differs from that of axes, or one is zero or does not divide its size.
    pub fn new(domain: Shape, factors: &[usize], pooling: Pooling) -> Result<BoxDown, PhysicsError> {
        grid::check("an image", domain)?;
        require(
            factors.len() == domain.rank(),
            "the number of factors of a down-sampling",
            factors.len() as f64,
            "one for each axis of the image",
        )?;
        for (a, &f) in factors.iter().enumerate() {
            if f == 0 || !domain[a].is_multiple_of(f) {
                let needed = format!("sizes that the factors {factors:?} divide; crop or pad the image");
                return Err(PhysicsError::Shape { what: "the image to down-sample", got: domain, needed });
            }
        }
        Ok(BoxDown { domain, factors: Shape::new(factors), pooling })
    }

    pub fn domain(&self) -> Shape {
        self.domain
    }

    pub fn range(&self) -> Shape {
        (0..self.domain.rank()).fold(self.domain, |s, a| s.with(a, self.domain[a] / self.factors[a]))
    }

    fn weight(&self) -> f64 {
        match self.pooling {
            Pooling::Sum => 1.0,
            Pooling::Mean => 1.0 / self.factors.len() as f64,
        }
    }

    /// Calls `f(pixel of the image, pixel of the result)`.
    fn for_each(&self, mut f: impl FnMut(usize, usize)) {
        let (size, factors) = (zyx(self.domain), zyx(self.factors));
        let [_, rows, columns] = zyx(self.range());
        let mut from = 0;
        for z in 0..size[0] {
            for y in 0..size[1] {
                let row = (z / factors[0] * rows + y / factors[1]) * columns;
                for x in 0..size[2] {
                    f(from, row + x / factors[2]);
                    from += 1;
                }
            }
        }
    }

    pub(super) fn apply<T: Real>(&self, x: &[T]) -> Vec<T> {
        let mut y = vec![T::zero(); self.range().len()];
        self.for_each(|from, to| y[to] = y[to] + x[from]);
        let weight = T::of(self.weight());
        y.into_iter().map(|v| v * weight).collect()
    }

    pub(super) fn adjoint<T: Real>(&self, y: &[T]) -> Vec<T> {
        let mut x = vec![T::zero(); self.domain.len()];
        let weight = T::of(self.weight());
        self.for_each(|from, to| x[from] = y[to] * weight);
        x
    }

    #[track_caller]
    pub(super) fn build(&self, b: &mut Builder, x: Value) -> Value {
        let kernel = zyx(self.factors);
        let geometry = Geometry { stride: kernel, ..Geometry::new(3, 1, 0) };
        let mean = b.pool(x, PoolKind::Average, kernel, geometry);
        match self.pooling {
            Pooling::Mean => mean,
            Pooling::Sum => b.mul_scalar(mean, self.factors.len() as f64),
        }
    }
}
