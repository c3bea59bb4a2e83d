//! Attention, forward and backward: tiled kernels for heads up to 128 wide, plain ones for the rest.
//!
//! Tiled kernels come in several ways (sizes of tiles, and products by warps or by warpgroups); the fastest for the
//! shape is kept.

mod plain;
#[cfg(test)]
mod tests;
mod tiled;
mod warpgroup;

use super::{Io, Kernel, Node};
use crate::context::Context;
use crate::error::CudaError;
use crate::memory::Buffer;
use crate::tune;
use clearshot_graph::ops::Attention;
use clearshot_graph::ops::attention::AttentionSizes;
use clearshot_tensor::DType;
use std::fmt::Debug;
use std::sync::Arc;

/// One attention's sizes and types.
#[derive(Clone, Copy, Debug)]
struct Problem {
    s: AttentionSizes,
    heads: usize,
    scale: f32,
    dtype: DType,
    /// The head that kernels are made for, the sizes' or the next larger one.
    head: usize,
}

impl Problem {
    fn new(n: &Node<'_>, a: &Attention, s: AttentionSizes) -> Problem {
        let head = [8, 16, 32, 64, 128].into_iter().find(|h| *h >= s.d).unwrap_or(128);
        Problem { s, heads: a.heads, scale: a.scale as f32, dtype: n.x[0].dtype, head }
    }

    fn single(&self) -> bool {
        self.dtype == DType::F32
    }

    fn pairs(&self) -> usize {
        self.s.batch * self.heads
    }

    fn row(&self) -> i32 {
        (self.heads * self.s.d) as i32
    }
}

#[derive(Clone, Copy, Debug)]
enum ForwardWay {
    Tile(tiled::Tile),
    Warpgroups(warpgroup::ForwardTile),
}

#[derive(Clone, Copy, Debug)]
enum BackwardWay {
    Tiles(tiled::Tile, tiled::Tile),
    Warpgroups,
}

fn forward_ways(cx: &Context, p: &Problem) -> Vec<ForwardWay> {
    let groups = warpgroup::forward_tiles(cx, p).into_iter().map(ForwardWay::Warpgroups);
    tiled::forward_tiles(p).into_iter().map(ForwardWay::Tile).chain(groups).collect()
}

fn backward_ways(cx: &Context, p: &Problem) -> Vec<BackwardWay> {
    let groups = warpgroup::takes_backward(cx, p).then_some(BackwardWay::Warpgroups);
    tiled::backward_tiles(p).into_iter().map(|(kv, q)| BackwardWay::Tiles(kv, q)).chain(groups).collect()
}

fn forward_kernel(cx: &Arc<Context>, p: Problem, way: ForwardWay) -> Result<Kernel, CudaError> {
    match way {
        ForwardWay::Tile(t) => tiled::forward(cx, p, t),
        ForwardWay::Warpgroups(t) => warpgroup::forward(cx, p, t),
    }
}

fn backward_kernel(cx: &Arc<Context>, p: Problem, way: BackwardWay) -> Result<Kernel, CudaError> {
    match way {
        BackwardWay::Tiles(kv, q) => tiled::backward(cx, p, (kv, q)),
        BackwardWay::Warpgroups => warpgroup::backward(cx, p),
    }
}

/// Milliseconds of a kernel on tensors of its own; `lse` says where among its operands that lies.
fn measure(
    cx: &Arc<Context>,
    p: &Problem,
    kernel: &Kernel,
    inputs: usize,
    outputs: usize,
    lse: usize,
) -> Result<f32, CudaError> {
    let rows = p.s.batch * p.s.queries.max(p.s.keys);
    let (image, statistics) =
        (rows * p.heads * p.s.d * p.dtype.bytes(), p.pairs() * p.s.queries * size_of::<f32>());
    let operands: Vec<Buffer> = (0..inputs + outputs)
        .map(|i| if i == lse { Buffer::new(cx, statistics) } else { tune::sample(cx, image) })
        .collect::<Result<_, _>>()?;
    let work = Buffer::new(cx, kernel.workspace)?;
    let x: Vec<u64> = operands.iter().map(Buffer::start).collect();
    let io = Io { inputs: &x[..inputs], outputs: &x[inputs..], workspace: work.start() };
    cx.time(&mut || kernel.launch(cx, &io))
}

/// The fastest way, measured once for the problem.
fn fastest<W: Copy + Debug>(
    cx: &Arc<Context>,
    key: &str,
    ways: &[W],
    mut time: impl FnMut(W) -> Result<f32, CudaError>,
) -> Result<W, CudaError> {
    if ways.len() == 1 {
        return Ok(ways[0]);
    }
    let text = tune::choice(cx, &format!("{key} {ways:?}"), || {
        let mut best = (f32::INFINITY, 0);
        for (i, way) in ways.iter().enumerate() {
            // One that needs more shared memory than the card has is no candidate.
            if let Ok(t) = time(*way)
                && t < best.0
            {
                best = (t, i);
            }
        }
        Ok(best.0.is_finite().then(|| best.1.to_string()))
    })?;
    Ok(ways[text.parse().ok().filter(|i| *i < ways.len()).unwrap_or(0)])
}

fn sizes(n: &Node<'_>, a: &Attention) -> Result<AttentionSizes, CudaError> {
    let unfit = |reason: String| CudaError::Unsupported { op: "attention".into(), reason };
    a.sizes(n.x[0].shape, n.x[1].shape, n.x[2].shape).map_err(|e| unfit(e.to_string()))
}

/// Whether tiled kernels take such heads.
fn tiles_take(s: &AttentionSizes) -> bool {
    s.d == s.dv && s.d <= 128
}

pub(super) fn forward(n: &Node<'_>, a: &Attention) -> Result<Kernel, CudaError> {
    let s = sizes(n, a)?;
    if !tiles_take(&s) {
        return plain::forward(n, a, s);
    }
    let (cx, p) = (n.cx, Problem::new(n, a, s));
    let way = fastest(cx, &format!("attention forward {p:?}"), &forward_ways(cx, &p), |way| {
        measure(cx, &p, &forward_kernel(cx, p, way)?, 3, 2, 4)
    })?;
    forward_kernel(cx, p, way)
}

pub(super) fn backward(n: &Node<'_>, a: &Attention) -> Result<Kernel, CudaError> {
    let s = sizes(n, a)?;
    if !tiles_take(&s) {
        return plain::backward(n, a, s);
    }
    let (cx, p) = (n.cx, Problem::new(n, a, s));
    let way = fastest(cx, &format!("attention backward {p:?}"), &backward_ways(cx, &p), |way| {
        measure(cx, &p, &backward_kernel(cx, p, way)?, 6, 3, 4)
    })?;
    backward_kernel(cx, p, way)
}
