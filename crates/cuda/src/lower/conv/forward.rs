//! Convolutions themselves.

use super::library::Kind;
use super::{
    Candidate, End, Gathered, Sizes, Way, direct, few, few_out, narrow, one_in, phases, seen_shape, volume,
    warpgroup, ways,
};
use crate::error::CudaError;
use crate::lower::matmul::{Epilogue, Extras, Product, Ready, alignment};
use crate::lower::{Io, Kernel, Node, fastest};
use clearshot_graph::ops::conv::spatial;
use clearshot_graph::ops::{Bias, Conv};

/// Products of a pixel and a tap that are few enough to be tried without tensor cores.
const MOST_PLAIN: usize = 64;

pub(in crate::lower) fn forward(n: &Node<'_>, a: &Conv) -> Result<Kernel, CudaError> {
    if a.prologue.is_some() {
        return Err(CudaError::Unsupported { op: "conv".into(), reason: "a norm inside".into() });
    }
    let at = a.operands();
    let parts = a.parts;
    let kernel = spatial("w", n.x[at.weight].shape)
        .map_err(|e| CudaError::Unsupported { op: "conv".into(), reason: e.to_string() })?;
    let seen = seen_shape(&n.x[..parts], a.upsample);
    let sizes = Sizes::new(seen, n.y[0].shape, kernel, a.geometry, n.x[0].dtype)?;
    let is_product = sizes.is_product() && a.act.is_none() && a.bias != Bias::Sample;
    let own = warpgroup::Call {
        parts,
        weight: at.weight,
        scales: at.scales,
        offsets: at.offsets,
        bias: at.bias,
        residual: at.residual,
        side: at.side.map(|s| warpgroup::Side::new(n, s)),
        by_sample: a.bias == Bias::Sample,
        act: a.act,
        transposed: false,
        first: 0,
        channels: sizes.k,
        upsample: a.upsample,
    };
    // The products of one image by itself are the library's best.
    let is_own = own.is_taken(n) && !(is_product && parts == 1);
    let bare = parts == 1 && !a.upsample && !a.residual && a.act.is_none() && a.bias != Bias::Sample;
    let same_types = n.y[0].dtype == sizes.dtype && at.bias.is_none_or(|i| n.x[i].dtype == sizes.dtype);
    let mut ways = ways(n, &sizes, is_own.then_some(&own));
    if bare && same_types && few::takes(&sizes) {
        ways.push(Candidate::Few);
    }
    if bare && same_types && narrow::takes(&sizes) {
        ways.push(Candidate::Narrow);
    }
    let end = End { weight: at.weight, bias: at.bias, residual: at.residual, act: a.act };
    let widths: Vec<usize> = n.x[..parts].iter().map(|t| t.shape.channels()).collect();
    if !a.upsample && !a.scaled && a.side.is_none() && a.bias != Bias::Sample && end.suits(n) {
        ways.extend(volume::tiles(n, &sizes, &widths).into_iter().map(Candidate::Volume));
        if parts == 1 && one_in::takes(n, &sizes) {
            ways.push(Candidate::OneIn);
        }
        // As many channels are made by products.
        if parts == 1 && sizes.k * sizes.c <= MOST_PLAIN && few_out::takes(&sizes, false) {
            ways.push(Candidate::FewOut);
        }
    }
    let plain = direct::Call {
        weight: at.weight,
        bias: at.bias,
        residual: at.residual,
        by_sample: a.bias == Bias::Sample,
        act: a.act,
        upsample: a.upsample,
    };
    if parts == 1 && n.y[0].dtype == sizes.dtype && direct::takes(n.cx, &sizes) {
        ways.push(Candidate::Direct);
    }
    if ways.is_empty() || a.scaled != warpgroup::is_eighth(sizes.dtype) || (a.side.is_some() && !a.scaled) {
        let reason = format!("no kernel for {} channels of {} by {}", sizes.c, sizes.dtype, sizes.k);
        return Err(CudaError::Unsupported { op: "conv".into(), reason });
    }
    fastest(n, &format!("{a:?} {:?}", n.math), &ways, |way| match way {
        Candidate::Direct => direct::forward(n, &sizes, plain),
        Candidate::Warpgroups(tile) => warpgroup::forward(n, &sizes, own, tile),
        Candidate::Volume(tile) => volume::forward(n, &sizes, &widths, end, tile),
        Candidate::OneIn => one_in::forward(n, &sizes, end),
        Candidate::FewOut => few_out::forward(n, &sizes, false, end),
        Candidate::Few => few::forward(n, &sizes, at.weight, at.bias),
        Candidate::Narrow => narrow::forward(n, &sizes, at.weight, at.bias),
        Candidate::Library if is_product => product_forward(n, a, &sizes),
        Candidate::Library => library_forward(n, a, &sizes),
    })
}

/// A convolution by the library, with what it does not do itself behind it.
fn library_forward(n: &Node<'_>, a: &Conv, sizes: &Sizes) -> Result<Kernel, CudaError> {
    let (at, parts, sizes) = (a.operands(), a.parts, *sizes);
    let count = n.y[0].shape.len();
    let pixels = sizes.output.iter().product();
    let bias_type = at.bias.map(|i| (n.x[i].dtype, a.bias == Bias::Sample));
    let epilogue = Epilogue::new(n.cx, n.y[0].dtype, sizes.k, pixels, a.act, bias_type)?;
    let extras = move |io: &Io<'_>| Extras {
        bias: at.bias.map(|i| io.inputs[i]),
        residual: at.residual.map(|i| io.inputs[i]),
    };
    if a.upsample
        && a.act.is_none()
        && !a.residual
        && a.bias != Bias::Sample
        && let Some(kernel) = phases::forward(n, &sizes, at.weight, at.bias)?
    {
        return Ok(kernel);
    }
    let gathered = Gathered::new(n, &n.x[..parts], a.upsample)?;
    // The library adds a bias of each channel and a residual itself; the rest takes a kernel behind it.
    let fusable = a.act.is_none() && a.bias == Bias::Channel && bias_type.is_none_or(|b| b.0 == sizes.dtype);
    let plain_end = a.bias == Bias::None && a.act.is_none() && !a.residual;
    let wanted = if fusable { Kind::Fused { residual: a.residual } } else { Kind::Forward };
    let gathered_bytes = gathered.bytes;
    let way = Way::new(n, &sizes, wanted)?;
    // A residual may lie where the result goes.
    let aside = if !way.is_fused() && a.residual { sizes.bytes(count) } else { 0 };
    let scratch = gathered_bytes + aside;
    Ok(Kernel::new(scratch + way.scratch(), move |cx, io| {
        // SAFETY: the promise of `Kernel::launch`.
        let x = unsafe { gathered.launch(cx, &io.inputs[..parts], io.workspace) }?;
        let (w, y, own) = (io.inputs[at.weight], io.outputs[0], io.workspace + scratch as u64);
        let extras = extras(io);
        if way.is_fused() {
            // SAFETY: the promise of `Kernel::launch`.
            return unsafe { way.launch_fused(cx, (x, w), extras, y, own) };
        }
        let to = if aside > 0 { io.workspace + gathered_bytes as u64 } else { y };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { way.launch(cx, x, w, to, own) }?;
        // SAFETY: the promise of `Kernel::launch`.
        if plain_end { Ok(()) } else { unsafe { epilogue.launch(cx, to, y, extras, count) } }
    }))
}

/// One product for each part, each adding to the one before.
fn product_forward(n: &Node<'_>, a: &Conv, sizes: &Sizes) -> Result<Kernel, CudaError> {
    let at = a.operands();
    let mut products = vec![];
    let mut first = 0;
    for (i, part) in n.x[..a.parts].iter().enumerate() {
        let c = part.shape.channels();
        let product = Product {
            row_b: sizes.c,
            output: n.y[0].dtype,
            bias: a.bias == Bias::Channel && i == 0,
            add: a.residual || i > 0,
            align: alignment(first * sizes.dtype.bytes()),
            ..Product::dense([sizes.rows(), sizes.k, c], [false, true], sizes.dtype)
        };
        products.push((Ready::new(n.cx, &product, n.math)?, (first * sizes.dtype.bytes()) as u64));
        first += c;
    }
    let scratch = products.iter().map(|p| p.0.scratch).max().unwrap_or(0);
    Ok(Kernel::new(scratch, move |cx, io| {
        let y = io.outputs[0];
        for (i, (product, offset)) in products.iter().enumerate() {
            let bias = at.bias.map_or(0, |i| io.inputs[i]);
            let c = if i == 0 { at.residual.map_or(y, |r| io.inputs[r]) } else { y };
            // SAFETY: the promise of `Kernel::launch`.
            unsafe {
                product.launch(cx, io.inputs[i], io.inputs[at.weight] + offset, bias, c, y, io.workspace)
            }?;
        }
        Ok(())
    }))
}
