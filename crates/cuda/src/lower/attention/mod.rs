//! Attention, forward and backward: tiled kernels for heads up to 128 wide, plain ones for the rest.
//!
//! Tiled kernels come in several ways (sizes of tiles, and products by warps or by warpgroups); the fastest for the
//! shape is kept.

mod plain;
#[cfg(test)]
mod tests;
mod tiled;
mod warpgroup;

use super::{Kernel, Node, fastest};
use crate::context::Context;
use crate::error::CudaError;
use clearshot_graph::ops::Attention;
use clearshot_graph::ops::attention::AttentionSizes;
use clearshot_tensor::DType;
use std::sync::Arc;

/// One attention's sizes and types.
#[derive(Clone, Copy, Debug)]
struct Problem {
    s: AttentionSizes,
    heads: usize,
    scale: f32,
    dtype: DType,
    /// Whether fp32 is multiplied by matrix units.
    tf32: bool,
    /// The head that kernels are made for, the sizes' or the next larger one.
    head: usize,
}

impl Problem {
    fn new(n: &Node<'_>, a: &Attention, s: AttentionSizes) -> Problem {
        let head = [8, 16, 32, 64, 128].into_iter().find(|h| *h >= s.d).unwrap_or(128);
        let dtype = n.x[0].dtype;
        let tf32 = dtype == DType::F32 && n.math.tf32 && n.cx.gpu.capability >= (8, 0);
        Problem { s, heads: a.heads, scale: a.scale as f32, dtype, tf32, head }
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
    fastest(n, &format!("attention forward {p:?}"), &forward_ways(cx, &p), |way| forward_kernel(cx, p, way))
}

pub(super) fn backward(n: &Node<'_>, a: &Attention) -> Result<Kernel, CudaError> {
    let s = sizes(n, a)?;
    if !tiles_take(&s) {
        return plain::backward(n, a, s);
    }
    let (cx, p) = (n.cx, Problem::new(n, a, s));
    fastest(n, &format!("attention backward {p:?}"), &backward_ways(cx, &p), |way| {
        backward_kernel(cx, p, way)
    })
}
