//! Pooling.

use super::{Kernel, Node, blocks, index_name, type_name, vector};
use crate::context::{Params, Source};
use crate::error::CudaError;
use clearshot_graph::ops::conv::spatial;
use clearshot_graph::ops::{Pool, PoolGrad, PoolKind};
use clearshot_tensor::Shape;

#[repr(C)]
#[derive(Clone, Copy)]
struct PoolParams {
    x: u64,
    dy: u64,
    y: u64,
    n: i32,
    c: i32,
    sizes: [[i32; 3]; 5],
    maximum: i32,
    count: i64,
}

fn launch(n: &Node<'_>, a: &Pool, small: Shape, large: Shape, name: &str) -> Result<Kernel, CudaError> {
    let v = if name == "pool" { vector(n.x[0].dtype, &[large.channels()]) } else { 1 };
    let count = n.y[0].shape.len();
    let source = Source::new("pool", include_str!("../kernels/pool.cu"))
        .define("T", type_name(n.x[0].dtype)?)
        .define("V", v)
        .define("INDEX", index_name(count));
    let f = n.cx.function(&source, name)?;
    let unfit =
        |e: clearshot_graph::OpError| CudaError::Unsupported { op: "pool".into(), reason: e.to_string() };
    let [input, output] = [large, small].map(|s| spatial("pool", s));
    let g = &a.geometry;
    let sizes = [
        input.map_err(unfit)?,
        output.map_err(unfit)?,
        a.kernel,
        g.stride,
        [g.pad[0][0], g.pad[1][0], g.pad[2][0]],
    ];
    let p = PoolParams {
        x: 0,
        dy: 0,
        y: 0,
        n: large[0] as i32,
        c: large.channels() as i32,
        sizes: sizes.map(|s| s.map(|v| v as i32)),
        maximum: i32::from(a.kind == PoolKind::Max),
        count: count as i64,
    };
    Ok(Kernel::new(0, move |cx, io| {
        let dy = *io.inputs.last().expect("pooling has an operand");
        let p = PoolParams { x: io.inputs[0], dy, y: io.outputs[0], ..p };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, blocks(cx, count / v), 256, 0, &Params::new().with(p)) }
    }))
}

pub(super) fn pool(n: &Node<'_>, a: &Pool) -> Result<Kernel, CudaError> {
    launch(n, a, n.y[0].shape, n.x[0].shape, "pool")
}

pub(super) fn pool_grad(n: &Node<'_>, a: &PoolGrad) -> Result<Kernel, CudaError> {
    launch(n, &a.pool, n.x[n.x.len() - 1].shape, n.y[0].shape, "pool_grad")
}
