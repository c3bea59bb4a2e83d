//! Gradients of convolutions' weights.

use super::library::Kind;
use super::split::Split;
use super::{Gathered, Sizes, Way, phases, seen_shape, warpgroup};
use crate::error::CudaError;
use crate::lower::matmul::{Product, Ready, alignment};
use crate::lower::{Kernel, Node, fastest};
use clearshot_graph::ops::ConvWeightGrad;

pub(in crate::lower) fn weight_grad(n: &Node<'_>, a: &ConvWeightGrad) -> Result<Kernel, CudaError> {
    if a.prologue.is_some() {
        return Err(CudaError::Unsupported { op: "conv_weight_grad".into(), reason: "a norm inside".into() });
    }
    let parts = a.parts;
    let dy = n.x[a.dy()];
    let seen = seen_shape(&n.x[..parts], a.upsample);
    let sizes = Sizes::new(seen, dy.shape, a.kernel, a.geometry, n.x[0].dtype)?;
    let dy_at = a.dy();
    if sizes.is_product() {
        let mut products = vec![];
        let mut first = 0;
        for part in &n.x[..parts] {
            let c = part.shape.channels();
            let product = Product {
                row_d: sizes.c,
                output: n.y[0].dtype,
                align: alignment(first * n.y[0].dtype.bytes()),
                ..Product::dense([sizes.k, c, sizes.rows()], [true, false], sizes.dtype)
            };
            products.push((Ready::new(n.cx, &product, n.math)?, (first * n.y[0].dtype.bytes()) as u64));
            first += c;
        }
        let scratch = products.iter().map(|p| p.0.scratch).max().unwrap_or(0);
        return Ok(Kernel::new(scratch, move |cx, io| {
            for (i, (product, offset)) in products.iter().enumerate() {
                let d = io.outputs[0] + offset;
                // SAFETY: the promise of `Kernel::launch`.
                unsafe { product.launch(cx, io.inputs[dy_at], io.inputs[i], 0, d, d, io.workspace) }?;
            }
            Ok(())
        }));
    }
    // Our own kernels, or the library's.
    let is_own = parts == 1 && warpgroup::takes_weight_grad(n, &sizes);
    let ways: &[bool] = match (is_own, sizes.is_huge()) {
        (true, true) => &[true],
        (true, false) => &[false, true],
        (false, _) => &[false],
    };
    fastest(n, &format!("{a:?} {:?}", n.math), ways, |own| {
        if own {
            warpgroup::weight_grad(n, &sizes, dy_at, a.upsample)
        } else {
            library_weight_grad(n, a, &sizes)
        }
    })
}

fn library_weight_grad(n: &Node<'_>, a: &ConvWeightGrad, sizes: &Sizes) -> Result<Kernel, CudaError> {
    let (parts, dy_at, sizes) = (a.parts, a.dy(), *sizes);
    if a.upsample
        && let Some(kernel) = phases::weight_grad(n, &sizes, dy_at)?
    {
        return Ok(kernel);
    }
    let gathered = Gathered::new(n, &n.x[..parts], a.upsample)?;
    let gathered_bytes = gathered.bytes;
    if let Some(split) = Split::new(n, &sizes)? {
        return Ok(Kernel::new(gathered_bytes + split.scratch, move |cx, io| {
            // SAFETY: the promise of `Kernel::launch`.
            let x = unsafe { gathered.launch(cx, &io.inputs[..parts], io.workspace) }?;
            // SAFETY: the promise of `Kernel::launch`.
            unsafe {
                split.launch(cx, x, io.inputs[dy_at], io.outputs[0], io.workspace + gathered_bytes as u64)
            }
        }));
    }
    let way = Way::new(n, &sizes, Kind::WeightGrad)?;
    Ok(Kernel::new(gathered_bytes + way.scratch(), move |cx, io| {
        // SAFETY: the promise of `Kernel::launch`.
        let x = unsafe { gathered.launch(cx, &io.inputs[..parts], io.workspace) }?;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { way.launch(cx, x, io.inputs[dy_at], io.outputs[0], io.workspace + gathered_bytes as u64) }
    }))
}
