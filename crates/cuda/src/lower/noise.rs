//! Noise and dropout from keys.

use super::{Kernel, Node, blocks, type_name};
use crate::context::{Params, Source};
use crate::error::CudaError;
use clearshot_graph::Type;
use clearshot_graph::ops::{Dropout, Noise, NoiseKind};

fn source(x: Type, y: Type) -> Result<Source, CudaError> {
    Ok(Source::new("noise", include_str!("../kernels/noise.cu"))
        .define("T", type_name(x.dtype)?)
        .define("O", type_name(y.dtype)?)
        .option("--fmad=false"))
}

/// Elements for each key.
fn each(key: Type, count: usize) -> usize {
    let keys = (key.shape.len() / 4).max(1);
    (count / keys).max(1)
}

pub(super) fn noise(n: &Node<'_>, a: &Noise) -> Result<Kernel, CudaError> {
    let f = n.cx.function(&source(n.y[0], n.y[0])?, "noise")?;
    let count = a.shape.len();
    let each = each(n.x[0], count);
    let normal = i32::from(a.kind == NoiseKind::Normal);
    Ok(Kernel::new(0, move |cx, io| {
        let p = Params::new().with(io.inputs[0]).with(io.outputs[0]);
        let p = p.with(each as i64).with(count as i64).with(normal);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, blocks(cx, count.div_ceil(4)), 256, 0, &p) }
    }))
}

pub(super) fn dropout(n: &Node<'_>, a: &Dropout) -> Result<Kernel, CudaError> {
    let f = n.cx.function(&source(n.x[0], n.y[0])?, "dropout")?;
    let count = n.x[0].shape.len();
    let each = each(n.x[1], count);
    let (rate, kept) = (a.threshold(), (1.0 / (1.0 - a.rate)) as f32);
    Ok(Kernel::new(0, move |cx, io| {
        let p = Params::new().with(io.inputs[0]).with(io.inputs[1]).with(io.outputs[0]);
        let p = p.with(each as i64).with(count as i64).with(rate).with(kept);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, blocks(cx, count.div_ceil(4)), 256, 0, &p) }
    }))
}
