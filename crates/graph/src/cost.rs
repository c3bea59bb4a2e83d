//! What a node costs: floating-point operations, and bytes that must move.
//!
//! Operations are those of the plain algorithm (a fast one may do fewer): a multiply-add counts two,
//! an elementwise step one. Graphs too large for any machine can be planned, so counts stop at the largest number.

use crate::graph::Graph;
use crate::ops::conv::spatial;
use crate::ops::{MatMul, Op};

/// A product of counts.
fn times(factors: impl IntoIterator<Item = usize>) -> u64 {
    factors.into_iter().fold(1, |product: u64, factor| product.saturating_mul(factor as u64))
}

/// Operations of one node.
pub fn flops(graph: &Graph, node: usize) -> u64 {
    let n = &graph.nodes[node];
    let len = |i: usize| graph.shape(n.inputs[i]).len();
    let out = n.outs.first().map_or(0, |t| t.shape.len());
    match &n.op {
        Op::Conv(c) => {
            let w = graph.shape(n.inputs[c.operands().weight]);
            let beside = c.operands().side.map_or(0, |s| graph.shape(n.inputs[s.weight]).channels());
            times([2, out, w.len() / w[0].max(1) + beside])
        }
        Op::ConvInputGrad(c) => {
            // Each weight of the channels asked for meets each output pixel once; with groups all are asked for.
            let w = graph.shape(n.inputs[1]);
            let taps = w.len() / (w[0] * w.channels()).max(1);
            times([2, len(0), taps, c.channels[1] / c.geometry.groups.max(1)])
        }
        Op::ConvWeightGrad(c) => {
            let dy = graph.shape(n.inputs[c.dy()]);
            times([2, dy.len() / dy.channels().max(1), out])
        }
        Op::MatMul(m) => matmul_flops(m, graph, node),
        Op::Attention(a) | Op::AttentionGrad(a) => {
            let shapes = [0, 1, 2].map(|i| graph.shape(n.inputs[i]));
            let Ok(s) = a.sizes(shapes[0], shapes[1], shapes[2]) else { return 0 };
            let each = if matches!(n.op, Op::Attention(_)) { s.d + s.dv } else { 3 * s.d + 2 * s.dv };
            times([2, s.batch, a.heads, s.queries, s.keys, each])
        }
        Op::CyclicConv(_) => {
            let size = spatial("x", graph.shape(n.inputs[0])).map_or(1, |s| s.iter().product::<usize>());
            times([15, out, (size.max(2) as f64).log2() as usize])
        }
        Op::Norm(_) | Op::NormStats(_) => times([6, len(0)]),
        Op::NormGrad(_) => times([12, len(0)]),
        Op::Pointwise(p) => times([p.steps.len(), out]),
        Op::Unary(_) | Op::UnaryGrad(_) | Op::Binary(_) | Op::Softmax | Op::Dropout(_) | Op::Noise(_) => {
            out as u64
        }
        Op::Reduce(_) | Op::Pool(_) | Op::PoolGrad(_) => len(0) as u64,
        Op::Resize(_) | Op::ResizeGrad(_) => out.max(len(0)) as u64,
        Op::Adam(_) => times([12, out]),
        Op::Sgd(_) | Op::Ema => times([4, out]),
        Op::Input(_)
        | Op::State(_)
        | Op::Const(_)
        | Op::Cast(_)
        | Op::Float8(_)
        | Op::Whole(_)
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
        | Op::CountStep
        | Op::AllReduceBegin(_)
        | Op::AllReduceEnd(_) => 0,
    }
}

fn matmul_flops(m: &MatMul, graph: &Graph, node: usize) -> u64 {
    let inputs = &graph.nodes[node].inputs;
    m.sizes(graph.shape(inputs[0]), graph.shape(inputs[1])).map_or(0, |s| times([2, s.batch, s.m, s.n, s.k]))
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
    (0..graph.nodes.len()).map(|i| flops(graph, i)).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Geometry;
    use crate::{Builder, Type};

    /// A convolution and the two gradients of it do the same products.
    #[test]
    fn gradients_cost_what_the_convolution_does() {
        for (groups, pixels) in [(1, 64), (2, 64), (4, 64)] {
            let mut b = Builder::new();
            let x = b.input("x", Type::f32([1, 8, 8, 8]));
            let w = b.param("w", [12, 3, 3, 8 / groups]);
            let geometry = Geometry::new(2, 1, 1).with_groups(groups);
            let y = b.conv(x, w, None, geometry);
            let (like_x, like_w) = (b.shape(x), b.shape(w));
            let dx = b.conv_input_grad(y, w, geometry, like_x);
            let dw = b.conv_weight_grad(x, y, geometry, like_w);
            ["y", "dx", "dw"].into_iter().zip([y, dx, dw]).for_each(|(name, v)| b.output(name, v));
            let graph = b.finish().unwrap();
            let wanted = 2 * pixels * 12 * 9 * (8 / groups as u64);
            assert_eq!([y, dx, dw].map(|v| flops(&graph, v.at())), [wanted; 3], "{groups} groups");
        }
    }

    #[test]
    fn what_no_machine_can_do_is_counted_without_overflow() {
        let mut b = Builder::new();
        let q = b.input("q", Type::f32([1, 1 << 30, 64]));
        let o = b.attention(q, q, q, 1, None);
        let o = b.attention(o, q, q, 1, None);
        b.output("o", o);
        let graph = b.finish().unwrap();
        assert_eq!((flops(&graph, o.at()), total_flops(&graph)), (u64::MAX, u64::MAX));
    }
}
