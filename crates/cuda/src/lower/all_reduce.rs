//! Copies of one value into a bucket and back, in the type that the bucket travels in.

use super::Kernel;
use super::pointwise::{Walk, strided_copy};
use crate::context::Context;
use crate::error::CudaError;
use clearshot_tensor::DType;
use std::sync::Arc;

fn part(dtype: DType, start: usize) -> Walk {
    Walk { dtype, strides: vec![1], start }
}

/// From a value of `len` elements to a bucket's elements from `at` on.
pub(crate) fn pack(cx: &Arc<Context>, len: usize, at: usize, dtype: DType) -> Result<Kernel, CudaError> {
    strided_copy(cx, &[len], part(DType::F32, 0), part(dtype, at))
}

/// From a bucket's elements from `at` on to a value of `len` elements.
pub(crate) fn unpack(cx: &Arc<Context>, len: usize, at: usize, dtype: DType) -> Result<Kernel, CudaError> {
    strided_copy(cx, &[len], part(dtype, at), part(DType::F32, 0))
}
