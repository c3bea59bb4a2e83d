//! Attention for heads that the tiled kernels do not take.

use crate::context::{Params, Source};
use crate::error::CudaError;
use crate::lower::{Kernel, Node, type_name};
use clearshot_graph::ops::Attention;
use clearshot_graph::ops::attention::AttentionSizes;

/// The largest head that the plain kernels take.
const LARGEST_HEAD: usize = 1024;

#[repr(C)]
#[derive(Clone, Copy)]
struct PlainParams {
    q: u64,
    k: u64,
    v: u64,
    o: u64,
    lse: u64,
    dout: u64,
    out: u64,
    lse_out: u64,
    dq: u64,
    dk: u64,
    dv: u64,
    sizes: [i32; 5],
    scale: f32,
}

fn check(s: &AttentionSizes) -> Result<(), CudaError> {
    if s.d.max(s.dv) > LARGEST_HEAD {
        let reason = format!("heads of {}, {LARGEST_HEAD} at most", s.d.max(s.dv));
        return Err(CudaError::Unsupported { op: "attention".into(), reason });
    }
    Ok(())
}

fn plain(n: &Node<'_>) -> Result<Source, CudaError> {
    Ok(Source::new("attention/plain", include_str!("../../kernels/attention/plain.cu"))
        .define("T", type_name(n.x[0].dtype)?))
}

fn plain_params(a: &Attention, s: &AttentionSizes, inputs: &[u64]) -> PlainParams {
    PlainParams {
        q: inputs[0],
        k: inputs[1],
        v: inputs[2],
        o: 0,
        lse: 0,
        dout: 0,
        out: 0,
        lse_out: 0,
        dq: 0,
        dk: 0,
        dv: 0,
        sizes: [a.heads, s.queries, s.keys, s.d, s.dv].map(|v| v as i32),
        scale: a.scale as f32,
    }
}

pub(super) fn forward(n: &Node<'_>, a: &Attention, s: AttentionSizes) -> Result<Kernel, CudaError> {
    check(&s)?;
    let a = *a;
    let f = n.cx.function(&plain(n)?, "attention_plain")?;
    Ok(Kernel::new(0, move |cx, io| {
        let p = plain_params(&a, &s, io.inputs);
        let p = PlainParams { out: io.outputs[0], lse_out: io.outputs[1], ..p };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [s.batch * a.heads * s.queries, 1], 128, 0, &Params::new().with(p)) }
    }))
}

pub(super) fn backward(n: &Node<'_>, a: &Attention, s: AttentionSizes) -> Result<Kernel, CudaError> {
    check(&s)?;
    let a = *a;
    let source = plain(n)?;
    let queries = n.cx.function(&source, "attention_plain_queries")?;
    let keys = n.cx.function(&source, "attention_plain_keys")?;
    Ok(Kernel::new(0, move |cx, io| {
        let p = plain_params(&a, &s, io.inputs);
        let p = PlainParams { o: io.inputs[3], lse: io.inputs[4], dout: io.inputs[5], ..p };
        let p = PlainParams { dq: io.outputs[0], dk: io.outputs[1], dv: io.outputs[2], ..p };
        let p = Params::new().with(p);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(queries, [s.batch * a.heads * s.queries, 1], 128, 0, &p) }?;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(keys, [s.batch * a.heads * s.keys, 1], 128, 0, &p) }
    }))
}
