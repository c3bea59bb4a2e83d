//! Nearest upsampling to twice the size, inside the convolution that reads it, and inside both its gradients.
//! A backend can then convolve the small image: four (in 3-D eight) small convolutions do the work of one
//! large one with fewer products, and the large image is never made.

use super::super::Target;
use super::Uses;
use crate::graph::{Graph, Value};
use crate::ops::conv::{Geometry, seen_size, spatial};
use crate::ops::{Op, ResizeMode};
use clearshot_tensor::Shape;

pub(in super::super) fn into_convolution(mut graph: Graph, target: &Target) -> Graph {
    if !target.upsample && !target.int8 {
        return graph;
    }
    let uses = Uses::of(&graph);
    for i in 0..graph.nodes.len() {
        match graph.nodes[i].op {
            Op::Resize(r) if r.mode == ResizeMode::Nearest => forward(&mut graph, &uses, i, target),
            Op::ResizeGrad(r) if r.mode == ResizeMode::Nearest && target.upsample => {
                backward(&mut graph, &uses, i);
            }
            _ => {}
        }
    }
    graph.tidy()
}

/// Whether `large` is an image of twice the size of `small`.
fn is_double(small: Shape, large: Shape) -> bool {
    match (spatial("small", small), spatial("large", large)) {
        (Ok(s), Ok(l)) => small.rank() == 4 && seen_size(s, small.rank(), true) == l,
        _ => false,
    }
}

/// Three taps along each axis of a plane, one pixel of padding, nothing else.
fn is_simple(g: &Geometry, kernel: [usize; 3]) -> bool {
    *g == Geometry::new(2, 1, 1) && kernel == [1, 3, 3]
}

/// The readers of an upsampled image read the small one.
fn forward(graph: &mut Graph, uses: &Uses, i: usize, target: &Target) {
    let (small, large) = (graph.nodes[i].inputs[0], Value::new(i, 0));
    if !is_double(graph.shape(small), graph.shape(large)) {
        return;
    }
    let Some(readers) = uses.readers(graph, large) else { return };
    let suits = |r: usize| {
        let node = &graph.nodes[r];
        if node.inputs[0] != large || node.inputs[1..].contains(&large) {
            return false;
        }
        match &node.op {
            Op::Conv(c) => {
                let kernel = spatial("w", graph.shape(node.inputs[c.operands().weight]));
                let plain = c.parts == 1 && c.prologue.is_none() && target.upsamples(c);
                plain && kernel.is_ok_and(|k| is_simple(&c.geometry, k))
            }
            Op::ConvWeightGrad(c) => {
                let plain = c.parts == 1 && c.prologue.is_none() && target.upsample;
                plain && is_simple(&c.geometry, c.kernel)
            }
            _ => false,
        }
    };
    if readers.is_empty() || !readers.iter().all(|&r| suits(r)) {
        return;
    }
    for r in readers {
        graph.nodes[r].inputs[0] = small;
        match &mut graph.nodes[r].op {
            Op::Conv(c) => c.upsample = true,
            Op::ConvWeightGrad(c) => c.upsample = true,
            _ => {}
        }
    }
}

/// The gradient of an upsampled image is summed by who makes it.
fn backward(graph: &mut Graph, uses: &Uses, i: usize) {
    let large = graph.nodes[i].inputs[0];
    let Op::ConvInputGrad(mut op) = *graph.op(large) else { return };
    let w = graph.shape(graph.nodes[large.at()].inputs[1]);
    let simple = spatial("w", w).is_ok_and(|k| is_simple(&op.geometry, k));
    let plain = op.act.is_none() && !op.residual && !op.bias && op.is_whole(w);
    if simple && plain && uses.once(large) && is_double(graph.nodes[i].outs[0].shape, graph.shape(large)) {
        op.upsample = true;
        graph.nodes[i].op = Op::ConvInputGrad(op);
        graph.nodes[i].inputs = graph.nodes[large.at()].inputs.clone();
        graph.nodes[i].scope = graph.nodes[large.at()].scope.clone();
    }
}
