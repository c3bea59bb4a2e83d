//! Means over the ranks of a data-parallel training: every rank runs the same graph on samples of its own.
//!
//! An all-reduce is two nodes, so that other nodes run while values travel. `AllReduceBegin` hands a bucket of values to
//! whoever carries them and gives a token; `AllReduceEnd` waits for the bucket and gives one of its values, averaged over ranks.
//! The meaning here is that of one rank: every value is its own mean. What carries them is set on the session; without it both nodes
//! are copies. No pass may run them twice or compute them ahead: see [`Op::is_all_reduce`](super::Op::is_all_reduce).
//!
//! The loss is the mean over ranks of each rank's, and gradients of parameters are averaged over ranks. What a value on one rank does to the sum of all losses by way of a
//! mean is then the mean of what each rank's loss makes of it: the gradient of an all-reduce is an all-reduce.

use super::{GradNode, Grads, OpError, floats, operands, want};
use crate::array::Array;
use crate::builder::Builder;
use crate::graph::Type;
use crate::train::mean_of_layer;
use clearshot_tensor::Shape;

/// Operands: any number of values. Output: a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllReduceBegin {
    /// The bucket's number, which is its own in a graph.
    pub bucket: u32,
}

impl AllReduceBegin {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        floats(x)?;
        Ok(vec![Type::f32(Shape::SCALAR)])
    }
}

/// Operands: the token, and the value as this rank has it. Output: its mean over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllReduceEnd {
    pub bucket: u32,
    /// Elements of the bucket before this value's.
    pub at: usize,
}

impl AllReduceEnd {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 2)?;
        floats(x)?;
        want("token", x[0], Shape::SCALAR)?;
        Ok(vec![x[1]])
    }

    pub(super) fn grad(b: &mut Builder, n: &GradNode<'_>) -> Grads {
        let dy = n.dy();
        Some(vec![None, Some(mean_of_layer(b, dy))])
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        vec![x[1].clone()]
    }
}

pub(super) fn eval_begin() -> Vec<Array> {
    vec![Array::scalar(0.0)]
}
