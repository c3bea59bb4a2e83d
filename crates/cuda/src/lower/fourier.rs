//! Cyclic convolution, as the plain sum: see `kernels/fourier.cu`.

use super::{Kernel, Node, blocks, type_name};
use crate::context::{Params, Source};
use crate::error::CudaError;
use clearshot_graph::ops::CyclicConv;
use clearshot_graph::ops::conv::spatial;
use clearshot_graph::ops::fourier::full_kernel;

#[repr(C)]
#[derive(Clone, Copy)]
struct CyclicParams {
    x: u64,
    kernel: u64,
    y: u64,
    n: i32,
    c: i32,
    size: [i32; 3],
    pad: i32,
    steps: [i64; 3],
    adjoint: i32,
    pad2: i32,
    count: i64,
}

pub(super) fn cyclic(n: &Node<'_>, a: &CyclicConv) -> Result<Kernel, CudaError> {
    let shape = n.x[0].shape;
    let unfit = |e: clearshot_graph::OpError| CudaError::Unsupported {
        op: "cyclic_conv".into(),
        reason: e.to_string(),
    };
    let kernel = full_kernel(shape, n.x[1].shape).map_err(unfit)?;
    let size = spatial("x", shape).map_err(unfit)?;
    let source = Source::new("fourier", include_str!("../kernels/fourier.cu"))
        .define("T", type_name(n.x[0].dtype)?)
        .define("O", type_name(n.y[0].dtype)?);
    let f = n.cx.function(&source, "cyclic")?;
    let (kn, kc) = (kernel[0], kernel.channels());
    let pixels: usize = size.iter().product();
    let steps = [if kn == 1 { 0 } else { pixels * kc }, kc, usize::from(kc != 1)].map(|s| s as i64);
    let count = shape.len();
    let p = CyclicParams {
        x: 0,
        kernel: 0,
        y: 0,
        n: shape[0] as i32,
        c: shape.channels() as i32,
        size: size.map(|s| s as i32),
        pad: 0,
        steps,
        adjoint: i32::from(a.adjoint),
        pad2: 0,
        count: count as i64,
    };
    Ok(Kernel::new(0, move |cx, io| {
        let p = CyclicParams { x: io.inputs[0], kernel: io.inputs[1], y: io.outputs[0], ..p };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, blocks(cx, count), 256, 0, &Params::new().with(p)) }
    }))
}
