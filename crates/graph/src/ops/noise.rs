//! Random values from keys. A key is a tensor of four whole numbers (seed, seed, step, stream: see
//! [`clearshot_tensor::noise::Key`]), so it changes from run to run without a new graph.
//!
//! With a key of shape `[4]` element `i` of the result is element `i` of the stream. With `[N, 4]`
//! each sample has its own key and counts its elements from 0: a sample's noise is then the same alone
//! and in any batch.

use super::{OpError, floats, operands};
use crate::array::Array;
use crate::graph::Type;
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Shape};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoiseKind {
    Normal,
    Uniform,
}

/// Operand: key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Noise {
    pub kind: NoiseKind,
    pub shape: Shape,
}

/// Zeroes each element with probability `rate` and multiplies the rest by `1 / (1 - rate)`. Operands:
/// x, key. Its own gradient, with the same key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    pub rate: f64,
}

hash_by_bits!(Dropout {} rate);

fn check_key(key: Type, shape: Shape) -> Result<(), OpError> {
    if key.dtype != DType::I32 {
        return Err(OpError::Kind { what: "key", expected: DType::I32, got: key.dtype });
    }
    let each = shape.rank() > 0 && key.shape == Shape::from([shape[0], 4]);
    if each || key.shape == Shape::from([4]) {
        Ok(())
    } else {
        Err(OpError::Shape { what: "key", expected: Shape::from([4]), got: key.shape })
    }
}

/// The keys and the number of elements that each serves.
fn keys(key: &Array, len: usize) -> (Vec<Key>, usize) {
    let keys: Vec<Key> =
        key.data.chunks(4).map(|w| Key::from_words(std::array::from_fn(|i| w[i] as i32))).collect();
    let each = len / keys.len().max(1);
    (keys, each.max(1))
}

impl Noise {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 1)?;
        check_key(x[0], self.shape)?;
        Ok(vec![Type::f32(self.shape)])
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let (keys, each) = keys(x[0], self.shape.len());
        let value = |i: usize| {
            let (key, at) = (keys[i / each], (i % each) as u64);
            f64::from(match self.kind {
                NoiseKind::Normal => key.normal(at),
                NoiseKind::Uniform => key.uniform(at),
            })
        };
        vec![Array::new(self.shape, (0..self.shape.len()).map(value).collect())]
    }
}

impl Dropout {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 2)?;
        floats(&x[..1])?;
        check_key(x[1], x[0].shape)?;
        if !(0.0..1.0).contains(&self.rate) {
            return Err(OpError::Attribute(format!("a rate of {}, it must lie in [0, 1)", self.rate)));
        }
        Ok(vec![x[0]])
    }

    /// The uniform values below which an element is dropped.
    pub fn threshold(&self) -> f32 {
        self.rate as f32
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let (keys, each) = keys(x[1], x[0].data.len());
        let kept = 1.0 / (1.0 - self.rate);
        let value = |(i, v): (usize, &f64)| {
            let drop = keys[i / each].uniform((i % each) as u64) < self.threshold();
            if drop { 0.0 } else { v * kept }
        };
        vec![Array::new(x[0].shape, x[0].data.iter().enumerate().map(value).collect())]
    }
}
