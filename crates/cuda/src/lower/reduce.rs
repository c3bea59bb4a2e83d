//! Sums over axes, and softmax.

use super::{Kernel, Node, type_name, vector};
use crate::context::{Params, Source};
use crate::error::CudaError;
use clearshot_graph::ops::{Reduce, ReduceKind};

const SOURCE: &str = include_str!("../kernels/reduce.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct ReduceParams {
    x: u64,
    y: u64,
    partial: u64,
    a: i64,
    r: i64,
    b: i64,
    chunks: i32,
    pad: i32,
    rows: i64,
    scale: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct StridedParams {
    x: u64,
    y: u64,
    kept: [i64; 6],
    kept_stride: [i64; 6],
    summed: [i64; 6],
    summed_stride: [i64; 6],
    results: i64,
    count: i64,
    scale: f32,
}

/// Axes joined into runs that are summed over or kept: (size, summed).
fn runs(n: &Node<'_>, a: &Reduce) -> Vec<(usize, bool)> {
    let mut runs: Vec<(usize, bool)> = vec![];
    for (axis, &size) in n.x[0].shape.iter().enumerate().filter(|(_, s)| **s != 1) {
        match runs.last_mut() {
            Some((joined, summed)) if *summed == a.has(axis) => *joined *= size,
            _ => runs.push((size, a.has(axis))),
        }
    }
    runs
}

pub(super) fn reduce(n: &Node<'_>, a: &Reduce) -> Result<Kernel, CudaError> {
    let results = n.y[0].shape.len();
    let summed = n.x[0].shape.len() / results.max(1);
    let scale = if a.kind == ReduceKind::Mean { 1.0 / summed as f32 } else { 1.0 };
    let map = if a.kind == ReduceKind::SumSquares { "(x) * (x)" } else { "(x)" };
    let source = Source::new("reduce", SOURCE)
        .define("T", type_name(n.x[0].dtype)?)
        .define("O", type_name(n.y[0].dtype)?)
        .define("MAP(x)", map);
    let runs = runs(n, a);
    match runs[..] {
        [] => dense(n, source, [1, 1, 1], scale),
        [(r, true)] => dense(n, source, [1, r, 1], scale),
        [(k, false)] => dense(n, source, [k, 1, 1], scale),
        [(r, true), (b, false)] => dense(n, source, [1, r, b], scale),
        [(a, false), (r, true)] => dense(n, source, [a, r, 1], scale),
        [(a, false), (r, true), (b, false)] => dense(n, source, [a, r, b], scale),
        _ => strided(n, source, &runs, results, summed, scale),
    }
}

/// x as `[A, R, B]`, summed over R.
fn dense(n: &Node<'_>, source: Source, [a, r, b]: [usize; 3], scale: f32) -> Result<Kernel, CudaError> {
    let v = if b > 1 { vector(n.x[0].dtype, &[b]) } else { 1 };
    let source = source.define("V", v);
    // As many blocks as fill the GPU, if each has enough to sum.
    let busy = n.cx.gpu.multiprocessors * 8;
    let (across, name) = if b > 1 { ((b / v).min(256), "reduce_columns") } else { (1, "reduce_rows") };
    let least_rows = if b > 1 { (256 / across).max(1) * 8 } else { 4096 };
    let columns = if b > 1 { (b / v).div_ceil(256).min(64) } else { 1 };
    let chunks = busy.div_ceil(a * columns).clamp(1, r.div_ceil(least_rows).max(1));
    let rows = r.div_ceil(chunks).max(1);
    let chunks = r.div_ceil(rows).max(1);
    let first = n.cx.function(&source, name)?;
    let finish = if chunks > 1 { Some(n.cx.function(&source, "reduce_finish")?) } else { None };
    let workspace = finish.map_or(0, |_| a * chunks * b * size_of::<f32>());
    let p = ReduceParams {
        x: 0,
        y: 0,
        partial: 0,
        a: a as i64,
        r: r as i64,
        b: b as i64,
        chunks: chunks as i32,
        pad: 0,
        rows: rows as i64,
        scale,
    };
    Ok(Kernel::new(workspace, move |cx, io| {
        let p = Params::new().with(ReduceParams {
            x: io.inputs[0],
            y: io.outputs[0],
            partial: io.workspace,
            ..p
        });
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(first, [a * chunks, columns], 256, 0, &p) }?;
        // SAFETY: the promise of `Kernel::launch`.
        finish.map_or(Ok(()), |f| unsafe { cx.launch(f, [(a * b).div_ceil(32), 1], 1024, 0, &p) })
    }))
}

/// Runs that alternate more often.
fn strided(
    n: &Node<'_>,
    source: Source,
    runs: &[(usize, bool)],
    results: usize,
    count: usize,
    scale: f32,
) -> Result<Kernel, CudaError> {
    let f = n.cx.function(&source.define("V", 1), "reduce_strided")?;
    let mut p = StridedParams {
        x: 0,
        y: 0,
        kept: [1; 6],
        kept_stride: [0; 6],
        summed: [1; 6],
        summed_stride: [0; 6],
        results: results as i64,
        count: count as i64,
        scale,
    };
    let mut stride = 1;
    let (mut kept, mut summed) = (6, 6);
    for &(size, sum) in runs.iter().rev() {
        if sum {
            summed -= 1;
            (p.summed[summed], p.summed_stride[summed]) = (size as i64, stride);
        } else {
            kept -= 1;
            (p.kept[kept], p.kept_stride[kept]) = (size as i64, stride);
        }
        stride *= size as i64;
    }
    Ok(Kernel::new(0, move |cx, io| {
        let p = StridedParams { x: io.inputs[0], y: io.outputs[0], ..p };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [results, 1], 128, 0, &Params::new().with(p)) }
    }))
}

pub(super) fn softmax(n: &Node<'_>) -> Result<Kernel, CudaError> {
    let source = Source::new("softmax", include_str!("../kernels/softmax.cu"))
        .define("T", type_name(n.x[0].dtype)?)
        .define("O", type_name(n.y[0].dtype)?);
    let f = n.cx.function(&source, "softmax_rows")?;
    let c = n.x[0].shape.channels();
    let rows = n.x[0].shape.len() / c.max(1);
    Ok(Kernel::new(0, move |cx, io| {
        let p = Params::new().with(io.inputs[0]).with(io.outputs[0]).with(c as i64);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [rows, 1], 256, 0, &p) }
    }))
}
