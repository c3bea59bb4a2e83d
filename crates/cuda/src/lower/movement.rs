//! Ops that move values.

use super::pointwise::{Walk, strided_copy};
use super::{Kernel, Node, blocks, type_name};
use crate::context::{Params, Source};
use crate::error::CudaError;
use clearshot_graph::ops::{Concat, Pad, PadMode, Slice, Transpose};
use clearshot_tensor::{MAX_RANK, Shape};

pub(super) fn transpose(n: &Node<'_>, a: &Transpose) -> Result<Kernel, CudaError> {
    let strides = n.x[0].shape.strides();
    let from = Walk { dtype: n.x[0].dtype, strides: a.order().map(|o| strides[o]).collect(), start: 0 };
    strided_copy(n.cx, &n.y[0].shape, from, Walk::dense(n.y[0].dtype, n.y[0].shape))
}

pub(super) fn slice(n: &Node<'_>, a: &Slice) -> Result<Kernel, CudaError> {
    let strides = n.x[0].shape.strides();
    let from = Walk { dtype: n.x[0].dtype, strides: strides.to_vec(), start: a.start * strides[a.axis] };
    strided_copy(n.cx, &n.y[0].shape, from, Walk::dense(n.y[0].dtype, n.y[0].shape))
}

/// One copy for each operand.
pub(super) fn concat(n: &Node<'_>, a: &Concat) -> Result<Kernel, CudaError> {
    let strides = n.y[0].shape.strides();
    let mut start = 0;
    let mut copies = vec![];
    for t in &n.x {
        let to = Walk { dtype: n.y[0].dtype, strides: strides.to_vec(), start: start * strides[a.axis] };
        copies.push(strided_copy(n.cx, &t.shape, Walk::dense(t.dtype, t.shape), to)?);
        start += t.shape[a.axis];
    }
    Ok(Kernel::new(0, move |cx, io| {
        for (i, copy) in copies.iter().enumerate() {
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { copy.launch(cx, &super::Io { inputs: &io.inputs[i..=i], ..*io }) }?;
        }
        Ok(())
    }))
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PadParams {
    x: u64,
    y: u64,
    size: [i64; 6],
    padded: [i64; 6],
    before: [i64; 6],
    count: i64,
    mode: i32,
}

const SOURCE: &str = include_str!("../kernels/movement.cu");

/// Six axes, with axes of one pixel in front.
fn six(shape: Shape) -> [i64; 6] {
    let padded = shape.padded_to(MAX_RANK);
    std::array::from_fn(|a| padded[a] as i64)
}

fn padding(n: &Node<'_>, a: &Pad, small: Shape, large: Shape, name: &str) -> Result<Kernel, CudaError> {
    let source = Source::new("movement", SOURCE).define("T", type_name(n.x[0].dtype)?);
    let f = n.cx.function(&source, name)?;
    let skipped = MAX_RANK - small.rank();
    let before = std::array::from_fn(|i| if i < skipped { 0 } else { a.pad[i - skipped][0] as i64 });
    let mode = match a.mode {
        PadMode::Zero => 0,
        PadMode::Reflect => 1,
        PadMode::Edge => 2,
        PadMode::Wrap => 3,
    };
    let count = n.y[0].shape.len();
    let p = PadParams { x: 0, y: 0, size: six(small), padded: six(large), before, count: count as i64, mode };
    Ok(Kernel::new(0, move |cx, io| {
        let p = PadParams { x: io.inputs[0], y: io.outputs[0], ..p };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, blocks(cx, count), 256, 0, &Params::new().with(p)) }
    }))
}

pub(super) fn pad(n: &Node<'_>, a: &Pad) -> Result<Kernel, CudaError> {
    padding(n, a, n.x[0].shape, n.y[0].shape, "pad")
}

pub(super) fn pad_grad(n: &Node<'_>, a: &Pad) -> Result<Kernel, CudaError> {
    padding(n, a, n.y[0].shape, n.x[0].shape, "pad_grad")
}
