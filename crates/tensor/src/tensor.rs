//! A tensor on the host: shape and values.

use crate::{DType, F8, Shape};
use half::{bf16, f16};

/// The values of a [`Tensor`], row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    F64(Vec<f64>),
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    F8(Vec<F8>),
    I64(Vec<i64>),
    I32(Vec<i32>),
    I8(Vec<i8>),
    U8(Vec<u8>),
}

/// Errors of a tensor's parts.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum TensorError {
    #[error("{got} values do not fill shape {shape}, which has {} elements", count(shape))]
    Length { shape: Shape, got: usize },
    #[error("a tensor of {got} was given where {expected} is needed")]
    Kind { expected: &'static str, got: DType },
}

/// The number of a shape's elements, for a message.
fn count(shape: &Shape) -> String {
    shape.checked_len().map_or_else(|| "more than 2^64".into(), |n| n.to_string())
}

/// Values with a shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    shape: Shape,
    data: Data,
}

macro_rules! each {
    ($data:expr, $v:ident => $body:expr) => {
        match $data {
            Data::F64($v) => $body,
            Data::F32($v) => $body,
            Data::F16($v) => $body,
            Data::BF16($v) => $body,
            Data::F8($v) => $body,
            Data::I64($v) => $body,
            Data::I32($v) => $body,
            Data::I8($v) => $body,
            Data::U8($v) => $body,
        }
    };
}

impl Data {
    pub fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn dtype(&self) -> DType {
        match self {
            Data::F64(_) => DType::F64,
            Data::F32(_) => DType::F32,
            Data::F16(_) => DType::F16,
            Data::BF16(_) => DType::BF16,
            Data::F8(_) => DType::F8,
            Data::I64(_) => DType::I64,
            Data::I32(_) => DType::I32,
            Data::I8(_) => DType::I8,
            Data::U8(_) => DType::U8,
        }
    }
}

impl Tensor {
    /// # Errors
    /// If the number of values is not the shape's.
    pub fn new(shape: impl Into<Shape>, data: Data) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        if shape.checked_len() != Some(data.len()) {
            return Err(TensorError::Length { shape, got: data.len() });
        }
        Ok(Tensor { shape, data })
    }

    /// A tensor of `f32`.
    ///
    /// # Panics
    /// If the number of values is not the shape's.
    #[track_caller]
    pub fn f32(shape: impl Into<Shape>, values: Vec<f32>) -> Tensor {
        Tensor::new(shape, Data::F32(values)).unwrap_or_else(|e| panic!("{e}"))
    }

    /// A tensor of `i32`.
    ///
    /// # Panics
    /// If the number of values is not the shape's.
    #[track_caller]
    pub fn i32(shape: impl Into<Shape>, values: Vec<i32>) -> Tensor {
        Tensor::new(shape, Data::I32(values)).unwrap_or_else(|e| panic!("{e}"))
    }

    /// A single `f32`.
    pub fn scalar(x: f32) -> Tensor {
        Tensor::f32(Shape::SCALAR, vec![x])
    }

    pub fn full(shape: impl Into<Shape>, x: f32) -> Tensor {
        let shape = shape.into();
        Tensor { shape, data: Data::F32(vec![x; shape.len()]) }
    }

    pub fn zeros(shape: impl Into<Shape>) -> Tensor {
        Tensor::full(shape, 0.0)
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    pub fn data(&self) -> &Data {
        &self.data
    }

    pub fn into_data(self) -> Data {
        self.data
    }

    /// The values, where they are `f32`.
    ///
    /// # Errors
    /// If they are of another type; [`Tensor::to_f32`] converts.
    pub fn as_f32(&self) -> Result<&[f32], TensorError> {
        match &self.data {
            Data::F32(v) => Ok(v),
            other => Err(TensorError::Kind { expected: "f32", got: other.dtype() }),
        }
    }

    /// The values as `f64`, converted where need be.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::F64(v) => v.clone(),
            Data::F32(v) => v.iter().map(|&x| x.into()).collect(),
            Data::F16(v) => v.iter().map(|&x| x.into()).collect(),
            Data::BF16(v) => v.iter().map(|&x| x.into()).collect(),
            Data::F8(v) => v.iter().map(|x| x.to_f32().into()).collect(),
            Data::I64(v) => v.iter().map(|&x| x as f64).collect(),
            Data::I32(v) => v.iter().map(|&x| x.into()).collect(),
            Data::I8(v) => v.iter().map(|&x| x.into()).collect(),
            Data::U8(v) => v.iter().map(|&x| x.into()).collect(),
        }
    }

    /// The same with elements of 16 bits (5 of them exponent), rounded to the nearest.
    pub fn to_f16(&self) -> Tensor {
        let values = self.to_f64().into_iter().map(half::f16::from_f64).collect();
        Tensor { shape: self.shape, data: Data::F16(values) }
    }

    /// The same values as `f32`.
    pub fn to_f32(&self) -> Tensor {
        let values = match &self.data {
            Data::F32(v) => v.clone(),
            _ => self.to_f64().into_iter().map(|x| x as f32).collect(),
        };
        Tensor { shape: self.shape, data: Data::F32(values) }
    }

    /// The same values under another shape of as many elements.
    ///
    /// # Errors
    /// If the number of elements differs.
    pub fn reshaped(self, shape: impl Into<Shape>) -> Result<Tensor, TensorError> {
        Tensor::new(shape, self.data)
    }

    /// The tensor whose axis `i` is this one's axis `order[i]`.
    ///
    /// # Panics
    /// If `order` is not a permutation of the axes.
    pub fn permuted(&self, order: &[usize]) -> Tensor {
        let rank = self.shape.rank();
        assert!(
            order.len() == rank && (0..rank).all(|a| order.contains(&a)),
            "{order:?} permutes {rank} axes"
        );
        let strides = self.shape.strides();
        let shape = Shape::new(&order.iter().map(|&a| self.shape[a]).collect::<Vec<_>>());
        let steps: Vec<usize> = order.iter().map(|&a| strides[a]).collect();
        let from = source_indices(shape, &steps);
        fn take<T: Copy>(v: &[T], from: &[usize]) -> Vec<T> {
            from.iter().map(|&i| v[i]).collect()
        }
        let data = match &self.data {
            Data::F64(v) => Data::F64(take(v, &from)),
            Data::F32(v) => Data::F32(take(v, &from)),
            Data::F16(v) => Data::F16(take(v, &from)),
            Data::BF16(v) => Data::BF16(take(v, &from)),
            Data::F8(v) => Data::F8(take(v, &from)),
            Data::I64(v) => Data::I64(take(v, &from)),
            Data::I32(v) => Data::I32(take(v, &from)),
            Data::I8(v) => Data::I8(take(v, &from)),
            Data::U8(v) => Data::U8(take(v, &from)),
        };
        Tensor { shape, data }
    }

    /// From PyTorch's channels-second layout (N, C, [Z,] Y, X) to ours (N, [Z,] Y, X, C).
    /// Also turns a convolution weight O, I, [kz,] ky, kx into O, [kz,] ky, kx, I.
    pub fn channels_last(&self) -> Tensor {
        let rank = self.shape.rank();
        if rank < 3 {
            return self.clone();
        }
        let order: Vec<usize> = std::iter::once(0).chain(2..rank).chain([1]).collect();
        self.permuted(&order)
    }

    /// The inverse of [`Tensor::channels_last`].
    pub fn channels_second(&self) -> Tensor {
        let rank = self.shape.rank();
        if rank < 3 {
            return self.clone();
        }
        let order: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        self.permuted(&order)
    }
}

fn source_indices(shape: Shape, steps: &[usize]) -> Vec<usize> {
    let mut out = Vec::with_capacity(shape.len());
    let mut at = vec![0usize; shape.rank()];
    let mut index = 0;
    for _ in 0..shape.len() {
        out.push(index);
        for axis in (0..shape.rank()).rev() {
            at[axis] += 1;
            index += steps[axis];
            if at[axis] < shape[axis] {
                break;
            }
            index -= steps[axis] * shape[axis];
            at[axis] = 0;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_inverse() {
        let t = Tensor::f32([2, 3, 2, 2], (0..24).map(|i| i as f32).collect());
        let last = t.channels_last();
        assert_eq!(last.shape(), Shape::new(&[2, 2, 2, 3]));
        assert_eq!(&last.as_f32().unwrap()[..3], &[0.0, 4.0, 8.0]);
        assert_eq!(last.channels_second(), t);
    }

    #[test]
    fn a_wrong_length_is_named() {
        let e = Tensor::new([2, 2], Data::F32(vec![0.0; 3])).unwrap_err();
        assert_eq!(e.to_string(), "3 values do not fill shape [2,2], which has 4 elements");
        let e = Tensor::new([1 << 40, 1 << 40], Data::F32(vec![])).unwrap_err();
        assert!(e.to_string().contains("more than 2^64"), "{e}");
    }
}
