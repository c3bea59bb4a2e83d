//! What a node costs: floating-point operations, and bytes that must move.
//!
//! Operations are those of the plain algorithm (a fast one may do fewer): a multiply-add counts two,
//! an elementwise step one.

use crate::graph::Graph;
use crate::ops::conv::spatial;
use crate::ops::{MatMul, Op};

/// Operations of one node.
pub fn flops(graph: &Graph, node: usize) -> u64 {
    let n = &graph.nodes[node];
    let len = |i: usize| graph.shape(n.inputs[i]).len() as u64;
    let out = n.outs.first().map_or(0, |t| t.shape.len() as u64);
    match &n.op {
        Op::Conv(c) => {
            let w = graph.shape(n.inputs[c.operands().weight]);
            2 * out * (w.len() / w[0].max(1)) as u64
        }
        Op::ConvInputGrad(c) => {
            // Each weight of the channels asked for meets each output pixel once.
            let w = graph.shape(n.inputs[1]);
            let part = c.channels[1] as u64;
            let whole = (w.channels() * c.geometry.groups) as u64;
            2 * len(0) * (w.len() / w[0].max(1)) as u64 * part / whole.max(1)
        }
        Op::ConvWeightGrad(c) => {
            let dy = graph.shape(n.inputs[c.dy()]);
            2 * (dy.len() / dy.channels().max(1)) as u64 * out
        }
        Op::MatMul(m) => matmul_flops(m, graph, node),
        Op::Attention(a) | Op::AttentionGrad(a) => {
            let shapes = [0, 1, 2].map(|i| graph.shape(n.inputs[i]));
            let Ok(s) = a.sizes(shapes[0], shapes[1], shapes[2]) else { return 0 };
            let products = 2 * (s.batch * a.heads * s.queries * s.keys) as u64;
            let (d, dv) = (s.d as u64, s.dv as u64);
            if matches!(n.op, Op::Attention(_)) { products * (d + dv) } else { products * (3 * d + 2 * dv) }
        }
        Op::CyclicConv(_) => {
            let size = spatial("x", graph.shape(n.inputs[0])).map_or(1, |s| s.iter().product::<usize>());
            15 * out * (size.max(2) as f64).log2() as u64
        }
        Op::Norm(_) | Op::NormStats(_) => 6 * len(0),
        Op::NormGrad(_) => 12 * len(0),
        Op::Pointwise(p) => p.steps.len() as u64 * out,
        Op::Unary(_) | Op::UnaryGrad(_) | Op::Binary(_) | Op::Softmax | Op::Dropout(_) | Op::Noise(_) => out,
        Op::Reduce(_) | Op::Pool(_) | Op::PoolGrad(_) => len(0),
        Op::Resize(_) | Op::ResizeGrad(_) => out.max(len(0)),
        Op::Adam(_) => 12 * out,
        Op::Sgd(_) | Op::Ema => 4 * out,
        Op::Input(_)
        | Op::State(_)
        | Op::Const(_)
        | Op::Cast(_)
        | Op::Reshape(_)
        | Op::StopGradient
        | Op::Transpose(_)
        | Op::Broadcast(_)
        | Op::Concat(_)
        | Op::Slice(_)
        | Op::Pad(_)
        | Op::PadGrad(_)
        | Op::Gather
        | Op::GatherGrad(_)
        | Op::Clip(_)
        | Op::LossScale(_)
        | Op::CountStep => 0,
    }
}

fn matmul_flops(m: &MatMul, graph: &Graph, node: usize) -> u64 {
    let inputs = &graph.nodes[node].inputs;
    m.sizes(graph.shape(inputs[0]), graph.shape(inputs[1]))
        .map_or(0, |s| 2 * (s.batch * s.m * s.n) as u64 * s.k as u64)
}

/// Bytes that a node reads and writes if each operand is read once.
pub fn traffic(graph: &Graph, node: usize) -> u64 {
    let n = &graph.nodes[node];
    if matches!(n.op, Op::Input(_) | Op::State(_) | Op::Const(_)) || n.op.is_view() {
        return 0;
    }
    let read: usize = n.inputs.iter().map(|v| graph.ty(*v).bytes()).sum();
    let written: usize = n.outs.iter().map(|t| t.bytes()).sum();
    (read + written) as u64
}

/// Operations of the whole graph.
pub fn total_flops(graph: &Graph) -> u64 {
    (0..graph.nodes.len()).map(|i| flops(graph, i)).sum()
}
