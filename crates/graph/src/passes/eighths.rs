//! Products of 8 bits for inference on a GPU: which convolutions multiply floats (e4m3) or whole numbers.
//!
//! A convolution of 3 x 3 pixels that reads a norm does. The norm writes 8 bits, which is also less to write and to read; its
//! statistics, and the convolution's bias and residual stay in fp32, and its result is of 16 bits as before. The weight is split into
//! values and a scale for each output channel, made once when the parameter is set.
//!
//! Floats are for any network: a norm's output is of the order of 1 whatever its input, so it needs no scale, and e4m3 reaches 448, beyond which
//! it saturates ([`crate::ops::float8`]). First and last convolutions, those that halve or upsample the image, products and attention keep 16 bits:
//! nothing bounds what they read. Whole numbers are for convolutions whose input has known ranges ([`crate::ops::int8`]), those of a quantised
//! model; its other convolutions multiply the same weights in 16 bits.

use super::int8;
use crate::graph::{Graph, Node, StateInit, Type, Value};
use crate::ops::{Bias, Constant, Conv, Float8, Geometry, Int8, Op, Side, Unary, Whole};
use clearshot_tensor::{DType, Shape, Tensor};
use std::sync::Arc;

/// What is multiplied in 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eighth {
    /// e4m3.
    Float,
    /// Whole numbers.
    Whole,
}

/// What copies into shared memory come in, 16 bytes: channels that are read, and channels of 16 bits that are written.
const READ: usize = 16;
const WRITTEN: usize = 8;

/// The graph with those convolutions in 8 bits. Runs after [`super::precision::narrow`].
pub fn convolutions(graph: Graph, of: Eighth) -> Graph {
    let norms = norms(&graph, of);
    let mut next = Graph::default();
    let mut moved: Vec<usize> = Vec::with_capacity(graph.nodes.len());
    let to = |v: Value, moved: &[usize]| Value::new(moved[v.at()], v.port());
    for (i, node) in graph.nodes.iter().enumerate() {
        let mut node = node.clone();
        node.inputs.iter_mut().for_each(|v| *v = to(*v, &moved));
        if let Some(reader) = norms[i] {
            match (of, &mut node.op) {
                (Eighth::Whole, Op::Norm(norm)) => {
                    let grid = grid(&graph.nodes[reader], &graph);
                    next.nodes.push(grid);
                    norm.rounded = true;
                    let at = norm.parts + norm.affine();
                    node.inputs.insert(at, Value::new(next.nodes.len() - 1, 0));
                    node.outs[0].dtype = DType::U8;
                }
                _ => node.outs[0].dtype = DType::F8,
            }
        }
        if let (Op::Conv(conv), Some(weight)) = (&mut node.op, read_by(&graph, &norms, i, of)) {
            let state = to(weight, &moved);
            let steps = conv.operands().steps.map(|at| node.inputs.remove(at));
            if steps.is_some() {
                conv.int8 = Some(Int8::Whole);
            }
            conv.scaled = true;
            let at = conv.operands().weight;
            let parts = parts(&mut next, state, steps, &node.scope);
            node.inputs.splice(at..=at, parts);
        }
        next.nodes.push(node);
        moved.push(next.nodes.len() - 1);
    }
    let next = ended(next, graph, &moved);
    match of {
        Eighth::Float => next,
        Eighth::Whole => int8::drop(next),
    }
}

/// What a norm's result is multiplied by and the zeros that are added, for the steps that a convolution reads.
fn grid(conv: &Node, graph: &Graph) -> Node {
    let (steps, zeros) = steps_of(graph, conv).unwrap_or_default();
    let data: Vec<f32> = steps.iter().map(|s| 1.0 / s).chain(zeros).collect();
    let tensor = Tensor::f32([2, steps.len()], data);
    let outs = vec![Type::f32(tensor.shape())];
    Node { op: Op::Const(Constant(Arc::new(tensor))), inputs: vec![], outs, scope: conv.scope.clone() }
}

/// The steps and the zeros of what a convolution rounds, where they are known.
fn steps_of(graph: &Graph, node: &Node) -> Option<(Vec<f32>, Vec<f32>)> {
    let Op::Conv(conv) = &node.op else { return None };
    let Op::Const(steps) = graph.op(node.inputs[conv.operands().steps?]) else { return None };
    let steps = steps.0.as_f32().ok()?;
    let (steps, zeros) = steps.split_at(steps.len() / 2);
    Some((steps.to_vec(), zeros.to_vec()))
}

/// The graph that took the nodes of another, with its outputs and updates; `moved` says where each node went.
fn ended(mut next: Graph, old: Graph, moved: &[usize]) -> Graph {
    let to = |v: Value| Value::new(moved[v.at()], v.port());
    next.outputs = old.outputs;
    next.outputs.iter_mut().for_each(|o| o.value = to(o.value));
    next.updates = old.updates;
    for update in &mut next.updates {
        (update.state, update.value) = (moved[update.state as usize] as u32, to(update.value));
    }
    next.tidy()
}

/// The 1 x 1 shortcut of a residual block is computed by the block's last convolution, if that is in 8 bits, and added to its
/// sums, so the result of the shortcut is neither written nor read. Its products stay in 16 bits, because its input is not bounded.
pub fn shortcuts(graph: Graph) -> Graph {
    let counts = graph.use_counts();
    let mut next = Graph::default();
    let mut moved: Vec<usize> = Vec::with_capacity(graph.nodes.len());
    for (i, node) in graph.nodes.iter().enumerate() {
        let mut node = node.clone();
        let to = |v: Value| Value::new(moved[v.at()], v.port());
        node.inputs.iter_mut().for_each(|v| *v = to(*v));
        if let Op::Conv(shortcut) = node.op.clone()
            && let Some(last) = last_of_block(&graph, &counts, i).map(|at| &graph.nodes[at])
            && let Op::Conv(conv) = &last.op
        {
            let of_shortcut = shortcut.operands();
            let mut inputs: Vec<Value> = last.inputs.iter().map(|v| to(*v)).collect();
            // Its operands are the images, the weight, the bias and the residual that this is.
            inputs.extend(&node.inputs[..of_shortcut.residual.unwrap_or(0)]);
            let side = Side { parts: shortcut.parts, bias: of_shortcut.bias.is_some() };
            node.op = Op::Conv(Conv { side: Some(side), ..*conv });
            (node.inputs, node.scope) = (inputs, last.scope.clone());
        }
        next.nodes.push(node);
        moved.push(next.nodes.len() - 1);
    }
    ended(next, graph, &moved)
}

/// The convolution in 8 bits that nothing reads but node `i`, a convolution of one pixel, as its residual.
fn last_of_block(graph: &Graph, counts: &[Vec<u32>], i: usize) -> Option<usize> {
    let node = &graph.nodes[i];
    let Op::Conv(shortcut) = &node.op else { return None };
    let at = shortcut.operands();
    let residual = node.inputs[at.residual?];
    let last = &graph.nodes[residual.at()];
    let Op::Conv(conv) = &last.op else { return None };
    let plain = Conv::plain(Geometry::new(2, 1, 0), shortcut.bias == Bias::Channel);
    let end = node.outs[0].dtype;
    let suits = conv.scaled
        && conv.side.is_none()
        && conv.act.is_none()
        && !conv.residual
        && conv.bias != Bias::Sample
        && *shortcut == Conv { parts: shortcut.parts, residual: true, ..plain }
        && (1..=2).contains(&shortcut.parts)
        && graph.shape(node.inputs[at.weight])[1..3] == [1, 1]
        && counts[residual.at()][residual.port()] == 1
        && last.outs[0].dtype == end;
    let images =
        || node.inputs[..shortcut.parts].iter().chain([&node.inputs[at.weight]]).map(|v| graph.ty(*v));
    let halves = images().all(|t| t.dtype == end && t.shape.channels().is_multiple_of(WRITTEN));
    (suits && halves).then_some(residual.at())
}

/// The values, scales and offsets of a weight, as nodes; those that are there already where another convolution reads it too.
fn parts(graph: &mut Graph, weight: Value, steps: Option<Value>, scope: &Arc<str>) -> Vec<Value> {
    let inputs: Vec<Value> = [weight].into_iter().chain(steps).collect();
    let ops = match steps {
        None => [Float8::Values, Float8::Scales].map(Op::Float8).to_vec(),
        Some(_) => [Whole::Values, Whole::Scales, Whole::Offsets].map(Op::Whole).to_vec(),
    };
    let types: Vec<Type> = inputs.iter().map(|v| graph.ty(*v)).collect();
    let part = |op: Op| {
        let same = |n: &Node| match (&n.op, &op) {
            (Op::Float8(a), Op::Float8(b)) => a == b && n.inputs == inputs,
            (Op::Whole(a), Op::Whole(b)) => a == b && n.inputs == inputs,
            _ => false,
        };
        let at = graph.nodes.iter().position(same).unwrap_or(graph.nodes.len());
        if at == graph.nodes.len() {
            // A convolution of such a weight was found to be suited.
            let outs = op.infer(&types).unwrap_or_default();
            graph.nodes.push(Node { op, inputs: inputs.clone(), outs, scope: scope.clone() });
        }
        Value::new(at, 0)
    };
    ops.into_iter().map(part).collect()
}

/// The parameter that convolution `i` multiplies in 8 bits, where it reads one of these norms.
fn read_by(graph: &Graph, norms: &[Option<usize>], i: usize, of: Eighth) -> Option<Value> {
    let x = *graph.nodes[i].inputs.first()?;
    (norms[x.at()].is_some() && x.port() == 0).then(|| weight_of(graph, i, of)).flatten()
}

/// The norms that nothing reads but such convolutions, all on one grid: for each a convolution that reads it.
fn norms(graph: &Graph, of: Eighth) -> Vec<Option<usize>> {
    let mut found: Vec<bool> = graph.nodes.iter().map(|n| matches!(n.op, Op::Norm(_))).collect();
    let mut readers: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    let grid = |i: usize| steps_of(graph, &graph.nodes[i]);
    for (i, node) in graph.nodes.iter().enumerate() {
        for (slot, v) in node.inputs.iter().enumerate().filter(|(_, v)| v.port() == 0) {
            let first = *readers[v.at()].get_or_insert(i);
            found[v.at()] &=
                slot == 0 && weight_of(graph, i, of).is_some() && (first == i || grid(first) == grid(i));
        }
    }
    graph.roots().filter(|v| v.port() == 0).for_each(|v| found[v.at()] = false);
    readers.into_iter().zip(found).map(|(reader, is)| reader.filter(|_| is)).collect()
}

/// The parameter, where node `i` is a convolution that can be in 8 bits.
fn weight_of(graph: &Graph, i: usize, of: Eighth) -> Option<Value> {
    let node = &graph.nodes[i];
    let Op::Conv(conv) = &node.op else { return None };
    let known = match of {
        Eighth::Float => conv.int8.is_none(),
        Eighth::Whole => conv.int8 == Some(Int8::Static) && steps_of(graph, node).is_some(),
    };
    if !known {
        return None;
    }
    let weight = behind_casts(graph, node.inputs[conv.operands().weight]);
    let Op::State(state) = graph.op(weight) else { return None };
    // A backend then holds no more of it than these copies, and makes them where it is set.
    let only_copied = |(at, n): (usize, &Node)| !n.inputs.contains(&weight) || graph.is_state_copy(at);
    let constant = state.init == StateInit::Given
        && graph.updates.iter().all(|u| u.state != weight.node)
        && graph.nodes.iter().enumerate().all(only_copied)
        && graph.roots().all(|v| v != weight);
    let is_half = matches!(node.outs[0].dtype, DType::BF16 | DType::F16);
    (constant && is_half && is_suited(conv, graph.shape(weight), node.outs[0].shape)).then_some(weight)
}

fn behind_casts(graph: &Graph, mut v: Value) -> Value {
    while let Op::Cast(_) = graph.op(v) {
        v = graph.nodes[v.at()].inputs[0];
    }
    v
}

fn is_suited(conv: &Conv, weight: Shape, result: Shape) -> bool {
    let plain = conv.parts == 1 && conv.prologue.is_none() && !conv.upsample;
    plain
        && !conv.scaled
        && conv.geometry == Geometry::new(2, 1, 1)
        && matches!(conv.act, None | Some(Unary::Silu))
        && weight.rank() == 4
        && weight[1..3] == [3, 3]
        && weight.channels().is_multiple_of(READ)
        && weight[0].is_multiple_of(WRITTEN)
        && result.len() / result.channels() * weight.channels().max(weight[0]) <= i32::MAX as usize
}
