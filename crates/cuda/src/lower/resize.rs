//! Nearest and linear resizing.

use super::{Kernel, Node, blocks, index_name, type_name, vector};
use crate::context::{Params, Source};
use crate::error::CudaError;
use clearshot_graph::ops::{Resize, ResizeGrad, ResizeMode};
use clearshot_tensor::Shape;

#[repr(C)]
#[derive(Clone, Copy)]
struct ResizeParams {
    x: u64,
    y: u64,
    n: i32,
    c: i32,
    from: [i32; 3],
    to: [i32; 3],
    mode: i32,
    pad: i32,
    count: i64,
}

fn sizes(shape: Shape) -> [i32; 3] {
    let r = shape.rank();
    [if r == 5 { shape[1] } else { 1 }, shape[r - 3], shape[r - 2]].map(|s| s as i32)
}

fn launch(n: &Node<'_>, mode: ResizeMode, from: Shape, to: Shape, name: &str) -> Result<Kernel, CudaError> {
    let c = n.y[0].shape.channels();
    let v = vector(n.x[0].dtype, &[c]);
    let count = n.y[0].shape.len() / v;
    let mode = match mode {
        ResizeMode::Nearest => 0,
        ResizeMode::Linear => 1,
        ResizeMode::LinearAligned => 2,
    };
    let (from, to) = (sizes(from), sizes(to));
    let widest = (0..3).map(|a| from[a] as usize * to[a] as usize).fold(count, usize::max);
    let source = Source::new("resize", include_str!("../kernels/resize.cu"))
        .define("T", type_name(n.x[0].dtype)?)
        .define("V", v)
        .define("MODE", mode)
        .define("INDEX", index_name(widest));
    let f = n.cx.function(&source, name)?;
    let p = ResizeParams {
        x: 0,
        y: 0,
        n: n.y[0].shape[0] as i32,
        c: c as i32,
        from,
        to,
        mode,
        pad: 0,
        count: count as i64,
    };
    Ok(Kernel::new(0, move |cx, io| {
        let p = ResizeParams { x: io.inputs[0], y: io.outputs[0], ..p };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, blocks(cx, count), 256, 0, &Params::new().with(p)) }
    }))
}

pub(super) fn resize(n: &Node<'_>, a: &Resize) -> Result<Kernel, CudaError> {
    launch(n, a.mode, n.x[0].shape, n.y[0].shape, "resize")
}

pub(super) fn resize_grad(n: &Node<'_>, a: &ResizeGrad) -> Result<Kernel, CudaError> {
    launch(n, a.mode, n.y[0].shape, n.x[0].shape, "resize_grad")
}
