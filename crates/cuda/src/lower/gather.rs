//! Rows of a table.

use super::{Kernel, Node, blocks, type_name};
use crate::context::{Params, Source};
use crate::error::CudaError;
use clearshot_graph::ops::GatherGrad;

fn source(n: &Node<'_>, operand: usize) -> Result<Source, CudaError> {
    Ok(Source::new("gather", include_str!("../kernels/gather.cu"))
        .define("T", type_name(n.x[operand].dtype)?)
        .define("O", type_name(n.y[0].dtype)?))
}

pub(super) fn gather(n: &Node<'_>) -> Result<Kernel, CudaError> {
    let f = n.cx.function(&source(n, 0)?, "gather")?;
    let [rows, d] = [n.x[0].shape[0], n.x[0].shape[1]];
    let count = n.x[1].shape.len();
    Ok(Kernel::new(0, move |cx, io| {
        let p = Params::new().with(io.inputs[0]).with(io.inputs[1]).with(io.outputs[0]);
        let p = p.with(rows as i64).with(d as i64).with(count as i64);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, blocks(cx, count * d), 256, 0, &p) }
    }))
}

pub(super) fn gather_grad(n: &Node<'_>, a: &GatherGrad) -> Result<Kernel, CudaError> {
    let f = n.cx.function(&source(n, 1)?, "gather_grad")?;
    let (rows, d, count) = (a.rows, n.y[0].shape[1], n.x[0].shape.len());
    Ok(Kernel::new(0, move |cx, io| {
        let p = Params::new().with(io.inputs[0]).with(io.inputs[1]).with(io.outputs[0]);
        let p = p.with(rows as i64).with(d as i64).with(count as i64);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, blocks(cx, rows * d), 256, 0, &p) }
    }))
}
