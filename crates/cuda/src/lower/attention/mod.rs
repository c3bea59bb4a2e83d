//! Attention, forward and backward: tiled kernels for heads up to 128 wide, plain ones for the rest.

mod plain;
mod tiled;

use super::{Kernel, Node};
use crate::error::CudaError;
use clearshot_graph::ops::Attention;
use clearshot_graph::ops::attention::AttentionSizes;

fn sizes(n: &Node<'_>, a: &Attention) -> Result<AttentionSizes, CudaError> {
    let unfit = |reason: String| CudaError::Unsupported { op: "attention".into(), reason };
    a.sizes(n.x[0].shape, n.x[1].shape, n.x[2].shape).map_err(|e| unfit(e.to_string()))
}

pub(super) fn forward(n: &Node<'_>, a: &Attention) -> Result<Kernel, CudaError> {
    let s = sizes(n, a)?;
    if tiled::takes(&s) { tiled::forward(n, a, s) } else { plain::forward(n, a, s) }
}

pub(super) fn backward(n: &Node<'_>, a: &Attention) -> Result<Kernel, CudaError> {
    let s = sizes(n, a)?;
    if tiled::takes(&s) { tiled::backward(n, a, s) } else { plain::backward(n, a, s) }
}
