//! Floats of 8 bits (e4m3) for inference: which convolutions multiply them.
//!
//! A convolution of 3 x 3 pixels that reads a norm does: the norm's output is of the order of 1 whatever its input, so it needs no
//! scale, and e4m3 reaches 448, beyond which it saturates. The norm writes 8 bits, which is also less to write and to read; its
//! statistics, the convolution's sums, bias and residual stay in fp32, and its result is of 16 bits as before. The weight is split into
//! e4m3 values and a scale for each output channel ([`crate::ops::float8`]), made once when the parameter is set. First and last
//! convolutions, those that halve or upsample the image, products and attention keep 16 bits: nothing bounds what they read.

use crate::graph::{Graph, Node, StateInit, Type, Value};
use crate::ops::{Bias, Conv, Float8, Geometry, Op, Side, Unary};
use clearshot_tensor::{DType, Shape};

/// What copies into shared memory come in, 16 bytes: channels that are read, and channels of 16 bits that are written.
const READ: usize = 16;
const WRITTEN: usize = 8;

/// The graph with those convolutions in 8 bits. Runs after [`super::precision::narrow`].
pub fn convolutions(graph: Graph) -> Graph {
    let norms = norms(&graph);
    let mut next = Graph::default();
    let mut moved: Vec<usize> = Vec::with_capacity(graph.nodes.len());
    let to = |v: Value, moved: &[usize]| Value::new(moved[v.at()], v.port());
    for (i, node) in graph.nodes.iter().enumerate() {
        let mut node = node.clone();
        node.inputs.iter_mut().for_each(|v| *v = to(*v, &moved));
        if norms[i] {
            node.outs[0].dtype = DType::F8;
        }
        if let (Op::Conv(conv), Some(weight)) = (&mut node.op, read_by(&graph, &norms, i)) {
            let state = to(weight, &moved);
            let at = conv.operands().weight;
            conv.scaled = true;
            let [values, scales] = parts(&mut next, state, &node.scope);
            node.inputs[at] = values;
            node.inputs.insert(at + 1, scales);
        }
        next.nodes.push(node);
        moved.push(next.nodes.len() - 1);
    }
    ended(next, graph, &moved)
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
            let (of_shortcut, at) = (shortcut.operands(), conv.operands());
            let mut inputs: Vec<Value> = last.inputs.iter().map(|v| to(*v)).collect();
            inputs.truncate(at.weight + 2 + usize::from(at.bias.is_some()));
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

/// The values and scales of a weight, as nodes; those that are there already where another convolution reads it too.
fn parts(graph: &mut Graph, weight: Value, scope: &std::sync::Arc<str>) -> [Value; 2] {
    let shape = graph.shape(weight);
    [Float8::Values, Float8::Scales].map(|part| {
        let out = match part {
            Float8::Values => Type { dtype: DType::F8, shape },
            Float8::Scales => Type::f32(Shape::from([shape[0]])),
        };
        let is_it = |n: &Node| matches!(n.op, Op::Float8(p) if p == part) && n.inputs[0] == weight;
        let at = graph.nodes.iter().position(is_it).unwrap_or(graph.nodes.len());
        if at == graph.nodes.len() {
            let node =
                Node { op: Op::Float8(part), inputs: vec![weight], outs: vec![out], scope: scope.clone() };
            graph.nodes.push(node);
        }
        Value::new(at, 0)
    })
}

/// The parameter that convolution `i` multiplies in 8 bits, where it reads one of these norms.
fn read_by(graph: &Graph, norms: &[bool], i: usize) -> Option<Value> {
    let x = *graph.nodes[i].inputs.first()?;
    (norms[x.at()] && x.port() == 0).then(|| weight_of(graph, i)).flatten()
}

/// Which norms nothing reads but such convolutions.
fn norms(graph: &Graph) -> Vec<bool> {
    let mut found: Vec<bool> = graph.nodes.iter().map(|n| matches!(n.op, Op::Norm(_))).collect();
    let mut is_read = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        for (slot, v) in node.inputs.iter().enumerate().filter(|(_, v)| v.port() == 0) {
            is_read[v.at()] = true;
            found[v.at()] &= slot == 0 && weight_of(graph, i).is_some();
        }
    }
    graph.roots().filter(|v| v.port() == 0).for_each(|v| found[v.at()] = false);
    found.iter().zip(is_read).map(|(norm, read)| *norm && read).collect()
}

/// The parameter, where node `i` is a convolution that can be in 8 bits.
fn weight_of(graph: &Graph, i: usize) -> Option<Value> {
    let node = &graph.nodes[i];
    let Op::Conv(conv) = &node.op else { return None };
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
    let plain = conv.parts == 1 && conv.prologue.is_none() && !conv.upsample && conv.int8.is_none();
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
