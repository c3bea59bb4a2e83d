//! Sums over axes, and softmax.

use super::{GradNode, Grads, OpError, floats, operands};
use crate::array::{Array, for_each_index};
use crate::builder::Builder;
use crate::graph::Type;
use crate::ops::Binary;
use clearshot_tensor::{MAX_RANK, Shape};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceKind {
    Sum,
    Mean,
    SumSquares,
}

/// Over the axes whose bits are set. The result keeps them with size 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reduce {
    pub kind: ReduceKind,
    pub axes: u8,
}

impl Reduce {
    pub fn new(kind: ReduceKind, axes: &[usize]) -> Reduce {
        // Axes that no tensor has share the last bit, which the shape rule refuses.
        Reduce { kind, axes: axes.iter().fold(0, |bits, &a| bits | 1 << a.min(7)) }
    }

    /// Over every axis of a tensor of this rank.
    pub fn all(kind: ReduceKind, rank: usize) -> Reduce {
        Reduce { kind, axes: ((1u16 << rank) - 1) as u8 }
    }

    pub fn has(&self, axis: usize) -> bool {
        self.axes & 1 << axis != 0
    }

    /// The result's shape.
    pub fn shape(&self, x: Shape) -> Shape {
        (0..x.rank()).filter(|&a| self.has(a)).fold(x, |s, a| s.with(a, 1))
    }

    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 1)?;
        floats(x)?;
        let shape = x[0].shape;
        if u32::from(self.axes) >> shape.rank() != 0 {
            return Err(OpError::Attribute(format!("axes {:06b} of shape {shape}", self.axes)));
        }
        Ok(vec![Type { dtype: x[0].dtype, shape: self.shape(shape) }])
    }

    pub(super) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        let (x, dy) = (n.inputs[0], n.dy());
        let shape = b.shape(x);
        let count = shape.len() / self.shape(shape).len().max(1);
        Some(vec![Some(match self.kind {
            ReduceKind::Sum => b.broadcast(dy, shape),
            ReduceKind::Mean => {
                let part = b.mul_scalar(dy, 1.0 / count as f64);
                b.broadcast(part, shape)
            }
            ReduceKind::SumSquares => {
                let twice = b.mul_scalar(dy, 2.0);
                b.binary(Binary::Mul, x, twice)
            }
        })])
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let mut y = Array::zeros(self.shape(x[0].shape));
        let strides = y.shape.strides();
        let mut from = 0;
        for_each_index(x[0].shape, |i| {
            let to: usize =
                i.iter().enumerate().map(|(a, &i)| if self.has(a) { 0 } else { i * strides[a] }).sum();
            let v = x[0].data[from];
            y.data[to] += if self.kind == ReduceKind::SumSquares { v * v } else { v };
            from += 1;
        });
        if self.kind == ReduceKind::Mean {
            let count = (x[0].data.len() / y.data.len().max(1)) as f64;
            y.data.iter_mut().for_each(|v| *v /= count);
        }
        vec![y]
    }
}

/// The axes over which a value of `shape` was broadcast to `to`, as a mask of `to`'s axes.
pub(crate) fn broadcast_axes(shape: Shape, to: Shape) -> u8 {
    debug_assert!(to.rank() <= MAX_RANK);
    let padded = shape.padded_to(to.rank());
    (0..to.rank()).filter(|&a| padded[a] == 1 && to[a] != 1).fold(0, |bits, a| bits | 1 << a)
}

pub(super) fn infer_softmax(x: &[Type]) -> Result<Vec<Type>, OpError> {
    operands(x, 1)?;
    floats(x)?;
    if x[0].shape.rank() == 0 {
        return Err(OpError::Rank { what: "input of softmax", expected: "1 or more", got: x[0].shape });
    }
    Ok(vec![x[0]])
}

pub(super) fn grad_softmax(b: &mut Builder, n: &GradNode<'_>) -> Grads {
    let (y, dy) = (n.outs[0], n.dy());
    let product = b.mul(dy, y);
    let axis = b.shape(y).rank().saturating_sub(1);
    let sum = b.sum(product, &[axis]);
    let centred = b.sub(dy, sum);
    Some(vec![Some(b.mul(y, centred))])
}

pub(super) fn eval_softmax(x: &[&Array]) -> Vec<Array> {
    let mut y = x[0].clone();
    for row in y.data.chunks_mut(x[0].shape.channels().max(1)) {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.iter_mut().for_each(|v| *v = (*v - top).exp());
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|v| *v /= sum);
    }
    vec![y]
}
