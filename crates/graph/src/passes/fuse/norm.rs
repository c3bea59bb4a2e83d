//! Norms: with the activation behind them, inside the convolution that reads them, and gradients that
//! add what is to be added.

use super::super::Target;
use super::Uses;
use crate::graph::{Graph, Value};
use crate::ops::{Bias, Binary, Norm, Op, ReduceKind, Unary};
use std::collections::BTreeMap;

/// Activations that norms know.
pub fn is_activation(f: Unary) -> bool {
    matches!(
        f,
        Unary::Silu
            | Unary::Relu
            | Unary::LeakyRelu(_)
            | Unary::Gelu
            | Unary::GeluTanh
            | Unary::Sigmoid
            | Unary::Tanh
            | Unary::Softplus
    )
}

/// `act(norm(x))` is one node, in the gradient too.
pub(in super::super) fn activate(mut graph: Graph, _: &Target) -> Graph {
    let uses = Uses::of(&graph);
    let mut map = BTreeMap::new();
    for i in 0..graph.nodes.len() {
        let Op::Norm(norm) = graph.nodes[i].op else { continue };
        if let Some(found) = activation_of(&graph, &uses, i, &norm) {
            graph.nodes[i].op = Op::Norm(Norm { act: Some(found.act), ..norm });
            found.values.into_iter().for_each(|v| {
                map.insert(v, Value::new(i, 0));
            });
            for (gradient, dy) in found.gradients {
                let Op::NormGrad(mut op) = graph.nodes[gradient].op else { continue };
                op.norm.act = Some(found.act);
                let at = op.dy();
                graph.nodes[gradient].op = Op::NormGrad(op);
                graph.nodes[gradient].inputs[at] = dy;
            }
        }
    }
    graph.redirect(&map);
    graph.tidy()
}

struct Activation {
    act: Unary,
    /// What the activated norm replaces.
    values: Vec<Value>,
    /// Norm gradients and the gradients of the activated value that they shall read.
    gradients: Vec<(usize, Value)>,
}

/// The activation that every reader of norm `i` applies, where there is one.
fn activation_of(graph: &Graph, uses: &Uses, i: usize, norm: &Norm) -> Option<Activation> {
    if norm.act.is_some() {
        return None;
    }
    let y = Value::new(i, 0);
    let readers = uses.readers(graph, y)?;
    let act = readers.iter().find_map(|&r| match graph.nodes[r].op {
        Op::Unary(f) if is_activation(f) => Some(f),
        _ => None,
    })?;
    let mut found = Activation { act, values: vec![], gradients: vec![] };
    for r in readers {
        match graph.nodes[r].op {
            Op::Unary(f) if f == act => found.values.push(Value::new(r, 0)),
            Op::UnaryGrad(f)
                if f == act && graph.nodes[r].inputs[0] == y && graph.nodes[r].inputs[1] != y =>
            {
                let gradient = single_norm_grad(graph, uses, Value::new(r, 0), i)?;
                // A norm gradient reads one dy: the gradient must not have been summed from several.
                found.gradients.push((gradient, graph.nodes[r].inputs[1]));
            }
            _ => return None,
        }
    }
    Some(found)
}

/// The gradient node of norm `norm` that alone reads `dy` as its upstream gradient.
fn single_norm_grad(graph: &Graph, uses: &Uses, dy: Value, norm: usize) -> Option<usize> {
    let readers = uses.readers(graph, dy)?;
    let [only] = readers[..] else { return None };
    let Op::NormGrad(op) = graph.nodes[only].op else { return None };
    let stats = graph.nodes[only].inputs[op.norm.parts];
    (graph.nodes[only].inputs[op.dy()] == dy && stats == Value::new(norm, 1)).then_some(only)
}

/// Convolutions normalise what they read; of the norm only the statistics stay.
pub(in super::super) fn into_convolution(mut graph: Graph, target: &Target) -> Graph {
    if !target.conv_prologue {
        return graph;
    }
    let uses = Uses::of(&graph);
    for i in 0..graph.nodes.len() {
        let Op::Norm(norm) = graph.nodes[i].op else { continue };
        let y = Value::new(i, 0);
        let Some(readers) = uses.readers(&graph, y) else { continue };
        if readers.is_empty() || !readers.iter().all(|&r| reads_as_image(&graph, r, y)) {
            continue;
        }
        let inputs = graph.nodes[i].inputs.clone();
        let (parts, affine) = inputs.split_at(norm.parts);
        for r in readers {
            let mut operands = parts.to_vec();
            operands.push(Value::new(i, 1));
            operands.extend(affine);
            operands.extend(&graph.nodes[r].inputs[1..]);
            graph.nodes[r].inputs = operands;
            match &mut graph.nodes[r].op {
                Op::Conv(c) => (c.parts, c.prologue) = (norm.parts, Some(norm.prologue())),
                Op::ConvWeightGrad(c) => (c.parts, c.prologue) = (norm.parts, Some(norm.prologue())),
                _ => {}
            }
        }
        keep_statistics(&mut graph, i, norm);
    }
    graph.tidy()
}

/// Whether node `r` is a convolution that reads `y` as its whole image and nowhere else.
fn reads_as_image(graph: &Graph, r: usize, y: Value) -> bool {
    let node = &graph.nodes[r];
    let plain = match &node.op {
        Op::Conv(c) => c.parts == 1 && c.prologue.is_none() && c.geometry.groups == 1,
        Op::ConvWeightGrad(c) => c.parts == 1 && c.prologue.is_none() && c.geometry.groups == 1,
        _ => false,
    };
    plain && node.inputs[0] == y && !node.inputs[1..].contains(&y)
}

/// Turns a norm whose result nobody reads into its statistics.
fn keep_statistics(graph: &mut Graph, i: usize, norm: Norm) {
    let stats = graph.nodes[i].outs[1];
    graph.nodes[i].inputs.truncate(norm.parts);
    graph.nodes[i].op = Op::NormStats(norm);
    graph.nodes[i].outs = vec![stats];
    let moved = BTreeMap::from([(Value::new(i, 1), Value::new(i, 0))]);
    graph.redirect(&moved);
}

/// A norm's gradient adds the other gradient of its input itself.
pub(in super::super) fn add_into_gradient(mut graph: Graph, target: &Target) -> Graph {
    if !target.norm_addend {
        return graph;
    }
    let uses = Uses::of(&graph);
    let mut map = BTreeMap::new();
    for i in 0..graph.nodes.len() {
        if !matches!(graph.nodes[i].op, Op::Binary(Binary::Add)) {
            continue;
        }
        let (a, b) = (graph.nodes[i].inputs[0], graph.nodes[i].inputs[1]);
        let joined = [(a, b), (b, a)].into_iter().find(|&(g, other)| accepts(&graph, &uses, g, other));
        let Some((gradient, other)) = joined else { continue };
        // The addend may itself have been absorbed just now.
        let other = map.get(&other).copied().unwrap_or(other);
        let node = &mut graph.nodes[gradient.at()];
        let Op::NormGrad(op) = &mut node.op else { continue };
        op.addends |= 1 << gradient.port;
        let at = op.addend(gradient.port()).expect("just set");
        node.inputs.insert(at, other);
        map.insert(Value::new(i, 0), gradient);
    }
    graph.redirect(&map);
    graph.tidy()
}

fn accepts(graph: &Graph, uses: &Uses, gradient: Value, other: Value) -> bool {
    let Op::NormGrad(op) = graph.op(gradient) else { return false };
    let part = gradient.port();
    // An addend from before the gradient cannot depend on it.
    part < op.norm.parts
        && op.addend(part).is_none()
        && uses.once(gradient)
        && graph.shape(gradient) == graph.shape(other)
        && other.at() < gradient.at()
}

/// A bias of each sample that a convolution would add is added by the norm that alone reads it, and the
/// bias's gradient is what the norm's gradient sums up on its way.
pub(in super::super) fn take_bias(mut graph: Graph, target: &Target) -> Graph {
    if !target.norm_bias {
        return graph;
    }
    let uses = Uses::of(&graph);
    for i in 0..graph.nodes.len() {
        let Op::Conv(mut conv) = graph.nodes[i].op else { continue };
        let at = conv.operands();
        let (Bias::Sample, Some(bias_at), None, false) = (conv.bias, at.bias, conv.act, conv.residual) else {
            continue;
        };
        let y = Value::new(i, 0);
        let Some(readers) = uses.readers(&graph, y) else { continue };
        if readers.is_empty() || !readers.iter().all(|&r| normalises(&graph, r, y)) {
            continue;
        }
        let bias = graph.nodes[i].inputs.remove(bias_at);
        conv.bias = Bias::None;
        graph.nodes[i].op = Op::Conv(conv);
        for r in readers {
            graph.nodes[r].inputs.push(bias);
            match &mut graph.nodes[r].op {
                Op::Norm(n) | Op::NormStats(n) => n.bias = true,
                Op::NormGrad(n) => n.norm.bias = true,
                _ => {}
            }
            if matches!(graph.nodes[r].op, Op::NormGrad(_)) {
                let ty = graph.ty(bias);
                graph.nodes[r].outs.push(ty);
                let port = graph.nodes[r].outs.len() - 1;
                sums_of_gradient(&mut graph, &uses, r, Value::new(r, port));
            }
        }
    }
    graph.tidy()
}

/// Whether a node reads `y` as the one image that it normalises.
fn normalises(graph: &Graph, r: usize, y: Value) -> bool {
    let node = &graph.nodes[r];
    let norm = match &node.op {
        Op::Norm(n) | Op::NormStats(n) => n,
        Op::NormGrad(n) => &n.norm,
        _ => return false,
    };
    norm.parts == 1 && !norm.bias && node.inputs[0] == y && !node.inputs[1..].contains(&y)
}

/// Sums over the pixels of a norm's dx are its bias's gradient.
fn sums_of_gradient(graph: &mut Graph, uses: &Uses, r: usize, dbias: Value) {
    let Op::NormGrad(op) = graph.nodes[r].op else { return };
    if op.addends != 0 {
        return;
    }
    let x = graph.nodes[r].outs[0].shape;
    let pixels = ((1u16 << (x.rank() - 1)) - 2) as u8;
    let sums: Vec<usize> = uses.users[r]
        .iter()
        .copied()
        .filter(|&u| graph.nodes[u].inputs.first() == Some(&Value::new(r, 0)))
        .filter(
            |&u| matches!(graph.nodes[u].op, Op::Reduce(a) if a.kind == ReduceKind::Sum && a.axes == pixels),
        )
        .collect();
    for u in sums {
        // The sum becomes a view of the gradient.
        graph.nodes[u].op = Op::Reshape(graph.nodes[u].outs[0].shape);
        graph.nodes[u].inputs = vec![dbias];
    }
}
