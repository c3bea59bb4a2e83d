//! Gradients of convolutions' inputs.

use super::library::Kind;
use super::{
    Candidate, Channels, End, Sizes, Way, doubled, few_out, phases, resizing, volume, warpgroup, ways,
};
use crate::error::CudaError;
use crate::lower::matmul::{Epilogue, Extras, Product, Ready, alignment};
use crate::lower::{Io, Kernel, Node, fastest};
use clearshot_graph::ops::ConvInputGrad;
use clearshot_graph::ops::conv::spatial;

pub(in crate::lower) fn input_grad(n: &Node<'_>, a: &ConvInputGrad) -> Result<Kernel, CudaError> {
    let (bias_at, residual_at, _) = a.operands();
    let w = n.x[1].shape;
    let unfit =
        |e: clearshot_graph::OpError| CudaError::Unsupported { op: "conv".into(), reason: e.to_string() };
    let kernel = spatial("w", w).map_err(unfit)?;
    let dx = n.y[0];
    let seen = if a.upsample { doubled(dx).shape } else { dx.shape };
    let whole_c = w.channels() * a.geometry.groups;
    let [first, len] = a.channels;
    let whole = seen.with(seen.rank() - 1, whole_c);
    let sizes = Sizes::new(whole, n.x[0].shape, kernel, a.geometry, n.x[0].dtype)?;
    // The pass that upsamples inside gives no epilogue and no part of the channels.
    let own = warpgroup::Call {
        parts: 1,
        weight: 1,
        scales: None,
        offsets: None,
        bias: bias_at,
        residual: residual_at,
        side: None,
        by_sample: false,
        act: a.act,
        transposed: true,
        first,
        channels: len,
        upsample: a.upsample,
    };
    let is_own = bias_at.is_none() && sizes.kernel[1] == 3 && own.is_taken(n);
    let mut ways = ways(n, &sizes, is_own.then_some(&own));
    let end = End { weight: 1, bias: bias_at, residual: residual_at, act: a.act };
    if !a.upsample && a.is_whole(w) && end.suits(n) {
        ways.extend(volume::transposed_tiles(n, &sizes).into_iter().map(Candidate::Volume));
        if sizes.geometry.stride[2] == 2 && few_out::takes(&sizes, true) {
            ways.push(Candidate::FewOut);
        }
    }
    let measured = |library: &dyn Fn() -> Result<Kernel, CudaError>| {
        fastest(n, &format!("{a:?} {:?}", n.math), &ways, |way| match way {
            Candidate::Warpgroups(tile) => warpgroup::forward(n, &sizes, own, tile),
            Candidate::Volume(tile) => volume::transposed(n, &sizes, end, tile),
            Candidate::FewOut => few_out::forward(n, &sizes, true, end),
            _ => library(),
        })
    };
    if a.upsample {
        return measured(&|| match phases::input_grad(n, &sizes)? {
            Some(kernel) => Ok(kernel),
            None => summed_input_grad(n, &sizes),
        });
    }
    if sizes.is_product() && a.act.is_none() && bias_at.is_none() {
        let product = Product {
            row_b: sizes.c,
            output: n.y[0].dtype,
            add: a.residual,
            align: alignment(first * sizes.dtype.bytes()),
            ..Product::dense([sizes.rows(), len, sizes.k], [false, false], sizes.dtype)
        };
        let ready = Ready::new(n.cx, &product, n.math)?;
        let offset = (first * sizes.dtype.bytes()) as u64;
        return Ok(Kernel::new(ready.scratch, move |cx, io| {
            let y = io.outputs[0];
            let c = residual_at.map_or(y, |r| io.inputs[r]);
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { ready.launch(cx, io.inputs[0], io.inputs[1] + offset, 0, c, y, io.workspace) }
        }));
    }
    measured(&|| library_input_grad(n, a, &sizes))
}

fn library_input_grad(n: &Node<'_>, a: &ConvInputGrad, sizes: &Sizes) -> Result<Kernel, CudaError> {
    let ((bias_at, residual_at, _), sizes) = (a.operands(), *sizes);
    let (w, [first, len], whole_c) = (n.x[1].shape, a.channels, sizes.c);
    let count = n.y[0].shape.len();
    let plain_end = bias_at.is_none() && a.act.is_none() && residual_at.is_none();
    let bias_type = bias_at.map(|i| (n.x[i].dtype, false));
    let epilogue = Epilogue::new(n.cx, n.y[0].dtype, len, 1, a.act, bias_type)?;
    let extras = move |io: &Io<'_>| Extras {
        bias: bias_at.map(|i| io.inputs[i]),
        residual: residual_at.map(|i| io.inputs[i]),
    };
    // The channels asked for are a smaller convolution with a part of the weights.
    let part = Sizes { c: len, ..sizes };
    let several = !a.is_whole(w);
    let cut = if several { Some(Channels::new(n.cx, sizes.dtype, &[first, len, whole_c])?) } else { None };
    let cut_bytes = if several { part.bytes(part.weight_len()) } else { 0 };
    let taps_rows = sizes.k * sizes.kernel.iter().product::<usize>();
    let aside = if residual_at.is_some() { part.bytes(count) } else { 0 };
    let way = Way::new(n, &part, Kind::InputGrad)?;
    let scratch = cut_bytes + aside;
    Ok(Kernel::new(scratch + way.scratch(), move |cx, io| {
        let mut w = io.inputs[1];
        if let Some(cut) = &cut {
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { cut.launch(cx, (w, io.workspace), taps_rows, len, (whole_c, first), (len, 0)) }?;
            w = io.workspace;
        }
        let y = io.outputs[0];
        let to = if aside > 0 { io.workspace + cut_bytes as u64 } else { y };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { way.launch(cx, io.inputs[0], w, to, io.workspace + scratch as u64) }?;
        // SAFETY: the promise of `Kernel::launch`.
        if plain_end { Ok(()) } else { unsafe { epilogue.launch(cx, to, y, extras(io), count) } }
    }))
}

/// The gradient of the large image, then sums over repeated pixels.
fn summed_input_grad(n: &Node<'_>, sizes: &Sizes) -> Result<Kernel, CudaError> {
    let way = Way::new(n, sizes, Kind::InputGrad)?;
    let sum = resizing(n, n.y[0], true)?;
    let aside = sizes.bytes(sizes.in_rows() * sizes.c);
    Ok(Kernel::new(aside + way.scratch(), move |cx, io| {
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { way.launch(cx, io.inputs[0], io.inputs[1], io.workspace, io.workspace + aside as u64) }?;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { sum.launch(cx, &Io { inputs: &[io.workspace], outputs: io.outputs, workspace: 0 }) }
    }))
}
