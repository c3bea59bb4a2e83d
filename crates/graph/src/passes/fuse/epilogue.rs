//! What follows a convolution or product and can be done while its result is still in registers:
//! the time embedding's addition, the residual's, the activation.

use super::super::Target;
use super::Uses;
use super::norm::is_activation;
use crate::graph::{Graph, Node, Type, Value};
use crate::ops::{Bias, Binary, Op, Unary};
use clearshot_tensor::Shape;

pub(in super::super) fn absorb(mut graph: Graph, target: &Target) -> Graph {
    if !target.epilogue {
        return graph;
    }
    // Each absorption leaves its result at the index of the node that it replaces, so one walk sees
    // chains (bias, then activation, then residual) in their order.
    let mut uses = Uses::of(&graph);
    let mut priority: Vec<f64> = (0..graph.nodes.len()).map(|i| i as f64).collect();
    for i in 0..graph.nodes.len() {
        let changed = match graph.nodes[i].op {
            Op::Binary(Binary::Add) => {
                embedding(&mut graph, &uses, i, &mut priority)
                    || residual(&mut graph, &uses, i, &mut priority)
            }
            Op::Unary(f) if is_activation(f) || matches!(f, Unary::Snap(..)) => {
                activation(&mut graph, &uses, i, f)
            }
            _ => false,
        };
        if changed {
            uses = Uses::of(&graph);
        }
    }
    graph.tidy_by(&priority)
}

/// `conv + e` with e `[N, 1, 1, K]`: a bias of each sample.
fn embedding(graph: &mut Graph, uses: &Uses, i: usize, priority: &mut Vec<f64>) -> bool {
    let [a, b] = [graph.nodes[i].inputs[0], graph.nodes[i].inputs[1]];
    let y = graph.nodes[i].outs[0].shape;
    if y.rank() < 2 {
        return false;
    }
    let (n, k) = (y[0], y.channels());
    let fits = |conv: Value, e: Value| {
        let Op::Conv(c) = graph.op(conv) else { return false };
        let s = graph.shape(e);
        let flat = s.rank() == y.rank() && s[0] == n && s.channels() == k && s.len() == n * k;
        flat && s != y
            && graph.shape(conv) == y
            && uses.once(conv)
            && c.bias != Bias::Sample
            && c.act.is_none()
            && !c.residual
    };
    let Some((conv, e)) = [(a, b), (b, a)].into_iter().find(|&(c, e)| fits(c, e)) else { return false };
    let Op::Conv(mut op) = *graph.op(conv) else { return false };
    let at = op.operands();
    let mut operands = graph.nodes[conv.at()].inputs.clone();
    let ty = Type { shape: Shape::from([n, k]), ..graph.ty(e) };
    let mut bias = append(graph, priority, i, Op::Reshape(ty.shape), vec![e], ty);
    if let Some(b) = at.bias {
        bias = append(graph, priority, i, Op::Binary(Binary::Add), vec![bias, operands[b]], ty);
        operands[b] = bias;
    } else {
        operands.insert(at.weight + 1, bias);
    }
    op.bias = Bias::Sample;
    graph.nodes[i].op = Op::Conv(op);
    graph.nodes[i].inputs = operands;
    true
}

/// Adds a small node that runs just before node `i`.
fn append(
    graph: &mut Graph,
    priority: &mut Vec<f64>,
    i: usize,
    op: Op,
    inputs: Vec<Value>,
    ty: Type,
) -> Value {
    let scope = graph.nodes[i].scope.clone();
    graph.nodes.push(Node { op, inputs, outs: vec![ty], scope });
    priority.push(priority[i] - 0.5);
    Value::new(graph.nodes.len() - 1, 0)
}

/// Whether the node that makes `v` can add a residual of its own shape.
fn takes_residual(graph: &Graph, v: Value) -> bool {
    match graph.op(v) {
        Op::Conv(c) => !c.residual,
        Op::ConvInputGrad(c) => !c.residual && !c.upsample,
        Op::MatMul(m) => !m.residual,
        _ => false,
    }
}

fn set_residual(op: &mut Op) {
    match op {
        Op::Conv(c) => c.residual = true,
        Op::ConvInputGrad(c) => c.residual = true,
        Op::MatMul(m) => m.residual = true,
        _ => {}
    }
}

/// `product + r` of the same shape, also where the product is reshaped first.
fn residual(graph: &mut Graph, uses: &Uses, i: usize, priority: &mut Vec<f64>) -> bool {
    let y = graph.nodes[i].outs[0];
    let [a, b] = [graph.nodes[i].inputs[0], graph.nodes[i].inputs[1]];
    if graph.ty(a) != y || graph.ty(b) != y || a == b {
        return false;
    }
    // The later operand first: the earlier one is then already there to be added.
    let pairs = if a.at() > b.at() { [(a, b), (b, a)] } else { [(b, a), (a, b)] };
    for (product, other) in pairs {
        if !uses.once(product) {
            continue;
        }
        if takes_residual(graph, product) {
            let node = graph.nodes[product.at()].clone();
            graph.nodes[i].op = node.op;
            set_residual(&mut graph.nodes[i].op);
            graph.nodes[i].inputs = node.inputs;
            graph.nodes[i].inputs.push(other);
            graph.nodes[i].scope = node.scope;
            return true;
        }
        let inner = graph.nodes[product.at()].inputs.first().copied();
        if let (Op::Reshape(_), Some(inner)) = (graph.op(product), inner)
            && uses.once(inner)
            && takes_residual(graph, inner)
        {
            let flat = graph.ty(inner);
            let other = append(graph, priority, i, Op::Reshape(flat.shape), vec![other], flat);
            let mut node = graph.nodes[inner.at()].clone();
            set_residual(&mut node.op);
            node.inputs.push(other);
            let sum = append(graph, priority, i, node.op, node.inputs, flat);
            graph.nodes[i].op = Op::Reshape(y.shape);
            graph.nodes[i].inputs = vec![sum];
            return true;
        }
    }
    false
}

/// `f(product)`.
fn activation(graph: &mut Graph, uses: &Uses, i: usize, f: Unary) -> bool {
    let x = graph.nodes[i].inputs[0];
    if !uses.once(x) {
        return false;
    }
    let mut op = graph.op(x).clone();
    match &mut op {
        Op::Conv(c) if c.act.is_none() && !c.residual => c.act = Some(f),
        Op::ConvInputGrad(c) if c.act.is_none() && !c.residual && !c.upsample => c.act = Some(f),
        Op::MatMul(m) if m.act.is_none() && !m.residual => m.act = Some(f),
        _ => return false,
    }
    graph.nodes[i].op = op;
    graph.nodes[i].inputs = graph.nodes[x.at()].inputs.clone();
    true
}
