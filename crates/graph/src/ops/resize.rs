//! Nearest and linear resizing of the spatial axes.

use super::conv::{image, spatial};
use super::{GradNode, Grads, Op, OpError, floats, operands, want};
use crate::array::Array;
use crate::builder::Builder;
use crate::graph::Type;
use clearshot_tensor::Shape;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResizeMode {
    /// The pixel at floor(position), as PyTorch's `nearest`.
    Nearest,
    /// Between two pixels of each axis; corners are pixel corners.
    Linear,
    /// Between two pixels of each axis; corners are pixel centres.
    LinearAligned,
}

/// To the spatial sizes Z, Y, X (Z is 1 for a plane).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resize {
    pub mode: ResizeMode,
    pub size: [usize; 3],
}

/// The gradient of [`Resize`]: dy -> dx of spatial sizes `input`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResizeGrad {
    pub mode: ResizeMode,
    pub input: [usize; 3],
}

impl ResizeMode {
    /// The two source pixels of target pixel `i` and the second one's weight, for `from` -> `to` pixels.
    pub fn taps(self, i: usize, from: usize, to: usize) -> (usize, usize, f64) {
        let position = match self {
            ResizeMode::Nearest => {
                let at = (i * from / to).min(from - 1);
                return (at, at, 0.0);
            }
            ResizeMode::Linear => ((i as f64 + 0.5) * from as f64 / to as f64 - 0.5).max(0.0),
            ResizeMode::LinearAligned if to > 1 => i as f64 * (from - 1) as f64 / (to - 1) as f64,
            ResizeMode::LinearAligned => 0.0,
        };
        let low = (position as usize).min(from - 1);
        let high = (low + 1).min(from - 1);
        (low, high, if high == low { 0.0 } else { position - low as f64 })
    }
}

/// Calls `f(source pixel, target pixel, weight)` for one plane or volume.
fn for_each(mode: ResizeMode, from: [usize; 3], to: [usize; 3], mut f: impl FnMut(usize, usize, f64)) {
    let taps = |axis: usize, i: usize| mode.taps(i, from[axis], to[axis]);
    let both = |(low, high, w): (usize, usize, f64)| [(low, 1.0 - w), (high, w)];
    for z in 0..to[0] {
        for y in 0..to[1] {
            for x in 0..to[2] {
                for (sz, wz) in both(taps(0, z)) {
                    for (sy, wy) in both(taps(1, y)) {
                        for (sx, wx) in both(taps(2, x)) {
                            let weight = wz * wy * wx;
                            if weight != 0.0 {
                                f((sz * from[1] + sy) * from[2] + sx, (z * to[1] + y) * to[2] + x, weight);
                            }
                        }
                    }
                }
            }
        }
    }
}

fn resized(x: Shape, size: [usize; 3]) -> Result<Shape, OpError> {
    let from = spatial("input of resize", x)?;
    if size.contains(&0) || from.contains(&0) || (x.rank() == 4 && size[0] != 1) {
        return Err(OpError::Attribute(format!("cannot resize {x} to {size:?}")));
    }
    Ok(image(x.rank(), x[0], size, x.channels()))
}

impl Resize {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 1)?;
        floats(x)?;
        Ok(vec![Type { dtype: x[0].dtype, shape: resized(x[0].shape, self.size)? }])
    }

    pub(super) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        let input = spatial("x", b.shape(n.inputs[0])).ok()?;
        Some(vec![Some(b.push_one(Op::ResizeGrad(ResizeGrad { mode: self.mode, input }), vec![n.dy()]))])
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let from = spatial("x", x[0].shape).unwrap();
        let mut y = Array::zeros(resized(x[0].shape, self.size).unwrap());
        let (c, ns) = (x[0].shape.channels(), x[0].shape[0]);
        let (a, b) = (from.iter().product::<usize>(), self.size.iter().product::<usize>());
        for n in 0..ns {
            for_each(self.mode, from, self.size, |s, t, w| {
                for k in 0..c {
                    y.data[(n * b + t) * c + k] += w * x[0].data[(n * a + s) * c + k];
                }
            });
        }
        vec![y]
    }
}

impl ResizeGrad {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 1)?;
        floats(x)?;
        let shape = resized(x[0].shape, self.input)?;
        want("gradient of the resized", x[0], resized(shape, spatial("gradient", x[0].shape)?)?)?;
        Ok(vec![Type { dtype: x[0].dtype, shape }])
    }

    pub(super) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        let size = spatial("dy", b.shape(n.inputs[0])).ok()?;
        Some(vec![Some(b.push_one(Op::Resize(Resize { mode: self.mode, size }), vec![n.dy()]))])
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let size = spatial("dy", x[0].shape).unwrap();
        let mut dx = Array::zeros(resized(x[0].shape, self.input).unwrap());
        let (c, ns) = (x[0].shape.channels(), x[0].shape[0]);
        let (a, b) = (self.input.iter().product::<usize>(), size.iter().product::<usize>());
        for n in 0..ns {
            for_each(self.mode, self.input, size, |s, t, w| {
                for k in 0..c {
                    dx.data[(n * a + s) * c + k] += w * x[0].data[(n * b + t) * c + k];
                }
            });
        }
        vec![dx]
    }
}
