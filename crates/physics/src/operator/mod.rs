//! Linear operators of imaging, each with its adjoint, on the host and as nodes of a graph.
//!
//! On the host an operator maps one plane or volume (row-major, one channel) in f32 or f64. In a graph it maps `[N,
//! (Z,) Y, X, C]`, in the same way for each sample and channel; its adjoint there is computed by
//! [`clearshot_graph::grad`], so the two always match.

mod blur;
mod boundary;
mod down;
pub(crate) mod fourier;
mod kspace;
mod radon;
mod whitening;

pub use blur::Blur;
pub use boundary::Boundary;
pub use down::{BoxDown, Pooling};
pub use fourier::Real;
pub use kspace::{KSpace, random_rows};
pub use radon::Radon;
pub use rustfft::num_complex::Complex;
pub use whitening::Whitening;

use crate::error::{PhysicsError, require_length};
use crate::grid;
use crate::map::Map;
use crate::psf::Psf;
use clearshot_graph::grad::{GradError, grad};
use clearshot_graph::{Builder, Value};
use clearshot_tensor::{Shape, Tensor};
use std::sync::Arc;

/// A linear map from images of [`Operator::domain`] to images of [`Operator::range`].
#[derive(Clone, Debug)]
pub enum Operator {
    Identity(Shape),
    /// Convolution with a PSF.
    Blur(Arc<Blur>),
    /// Sums or means over boxes of pixels.
    Down(BoxDown),
    /// A factor for each pixel: masks, flat fields, vignetting.
    Diagonal {
        shape: Shape,
        factors: Arc<Vec<f64>>,
    },
    /// A sequence of operators, in order of application.
    Chain(Vec<Operator>),
}

impl Operator {
    /// # Errors
    /// If there are not 2 or 3 positive sizes.
    pub fn identity(shape: impl Into<Shape>) -> Result<Operator, PhysicsError> {
        let shape = shape.into();
        grid::check("an image", shape).map(|()| Operator::Identity(shape))
    }

    /// # Errors
    /// If the PSF is larger than the image or has another number of axes.
    pub fn blur(image: impl Into<Shape>, psf: &Psf, boundary: Boundary) -> Result<Operator, PhysicsError> {
        Blur::new(image.into(), psf, boundary).map(|b| Operator::Blur(Arc::new(b)))
    }

    /// # Errors
    /// If a factor is zero or does not divide its size.
    pub fn down(
        image: impl Into<Shape>,
        factors: &[usize],
        pooling: Pooling,
    ) -> Result<Operator, PhysicsError> {
        BoxDown::new(image.into(), factors, pooling).map(Operator::Down)
    }

    /// Keeps the pixels marked in `seen` and sets the others to zero.
    ///
    /// # Errors
    /// If the mask does not have one value per pixel.
    pub fn mask(image: impl Into<Shape>, seen: &[bool]) -> Result<Operator, PhysicsError> {
        Operator::diagonal(image, seen.iter().map(|&s| f64::from(u8::from(s))).collect())
    }

    /// Multiplies each pixel by its factor.
    ///
    /// # Errors
    /// If there is not one finite factor per pixel.
    pub fn diagonal(image: impl Into<Shape>, factors: Vec<f64>) -> Result<Operator, PhysicsError> {
        let shape = image.into();
        grid::check("an image", shape)?;
        let factors = Map::Pixels(factors);
        factors.check("the factor of a diagonal operator", shape.len(), |_| true, "a finite number")?;
        Ok(Operator::Diagonal { shape, factors: Arc::new(factors.expanded(shape.len())) })
    }

    /// `self`, then `next`.
    ///
    /// # Errors
    /// If the domain of `next` is not the range of `self`.
    pub fn then(self, next: Operator) -> Result<Operator, PhysicsError> {
        let (gives, takes) = (self.range(), next.domain());
        if gives != takes {
            return Err(PhysicsError::Chain { gives, takes });
        }
        Ok(match (self, next) {
            (Operator::Identity(_), b) => b,
            (a, Operator::Identity(_)) => a,
            (Operator::Chain(mut a), Operator::Chain(b)) => {
                a.extend(b);
                Operator::Chain(a)
            }
            (Operator::Chain(mut a), b) => {
                a.push(b);
                Operator::Chain(a)
            }
            (a, Operator::Chain(mut b)) => {
                b.insert(0, a);
                Operator::Chain(b)
            }
            (a, b) => Operator::Chain(vec![a, b]),
        })
    }

    /// The sizes (Z,) Y, X of its input.
    pub fn domain(&self) -> Shape {
        match self {
            Operator::Identity(shape) | Operator::Diagonal { shape, .. } => *shape,
            Operator::Blur(b) => b.image(),
            Operator::Down(d) => d.domain(),
            Operator::Chain(all) => all[0].domain(),
        }
    }

    /// The sizes (Z,) Y, X of its output.
    pub fn range(&self) -> Shape {
        match self {
            Operator::Identity(shape) | Operator::Diagonal { shape, .. } => *shape,
            Operator::Blur(b) => b.image(),
            Operator::Down(d) => d.range(),
            Operator::Chain(all) => all[all.len() - 1].range(),
        }
    }

    /// Whether a pixel of the result depends only on the same pixel of the image.
    pub fn is_diagonal(&self) -> bool {
        match self {
            Operator::Identity(_) | Operator::Diagonal { .. } => true,
            Operator::Blur(_) | Operator::Down(_) => false,
            Operator::Chain(all) => all.iter().all(Operator::is_diagonal),
        }
    }

    /// # Errors
    /// If the image does not have the domain's number of pixels.
    pub fn apply<T: Real>(&self, x: &[T]) -> Result<Vec<T>, PhysicsError> {
        require_length("the image of an operator", x.len(), self.domain().len())?;
        Ok(match self {
            Operator::Identity(_) => x.to_vec(),
            Operator::Blur(b) => b.apply(x),
            Operator::Down(d) => d.apply(x),
            Operator::Diagonal { factors, .. } => multiplied(x, factors),
            Operator::Chain(all) => all.iter().try_fold(x.to_vec(), |v, o| o.apply(&v))?,
        })
    }

    /// The adjoint (transpose): `<A x, y> = <x, A' y>`.
    ///
    /// # Errors
    /// If the image does not have the range's number of pixels.
    pub fn adjoint<T: Real>(&self, y: &[T]) -> Result<Vec<T>, PhysicsError> {
        require_length("the image of an adjoint", y.len(), self.range().len())?;
        Ok(match self {
            Operator::Identity(_) => y.to_vec(),
            Operator::Blur(b) => b.adjoint(y),
            Operator::Down(d) => d.adjoint(y),
            Operator::Diagonal { factors, .. } => multiplied(y, factors),
            Operator::Chain(all) => all.iter().rev().try_fold(y.to_vec(), |v, o| o.adjoint(&v))?,
        })
    }

    /// Adds `A x` to a graph; x is `[N, (Z,) Y, X, C]`.
    #[track_caller]
    pub fn build(&self, b: &mut Builder, x: Value) -> Value {
        let shape = b.shape(x);
        let spatial = shape.rank().checked_sub(2).map(|end| Shape::new(&shape[1..end + 1]));
        if spatial != Some(self.domain()) {
            return b.refuse(
                "operator",
                format!("an image of {shape} where {} pixels are needed", self.domain()),
            );
        }
        match self {
            Operator::Identity(_) => x,
            Operator::Blur(blur) => blur.build(b, x),
            Operator::Down(down) => down.build(b, x),
            Operator::Diagonal { shape, factors } => {
                let values = factors.iter().map(|&f| f as f32).collect();
                let mut sizes = shape.to_vec();
                sizes.push(1);
                let factors = b.constant(Tensor::f32(Shape::new(&sizes), values));
                b.mul(x, factors)
            }
            Operator::Chain(all) => all.iter().fold(x, |v, o| o.build(b, v)),
        }
    }

    /// Adds `A' y` to a graph; y is `[N, (Z,) Y, X, C]` of the range.
    ///
    /// # Errors
    /// If y has another shape.
    #[track_caller]
    pub fn build_adjoint(&self, b: &mut Builder, y: Value) -> Result<Value, GradError> {
        if let Operator::Identity(_) = self {
            return Ok(y);
        }
        let shape = b.shape(y);
        let mut sizes = vec![shape.first().copied().unwrap_or(1)];
        sizes.extend(self.domain().iter());
        sizes.push(shape.channels());
        // Only the walk back is used; the forward nodes fall away when the graph is tidied.
        let zero = b.scalar(0.0);
        let x = b.broadcast(zero, Shape::new(&sizes));
        let forward = self.build(b, x);
        Ok(grad(b, forward, Some(y), &[x])?[0])
    }
}

fn multiplied<T: Real>(x: &[T], factors: &[f64]) -> Vec<T> {
    x.iter().zip(factors).map(|(&v, &f)| v * T::of(f)).collect()
}
