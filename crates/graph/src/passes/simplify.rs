//! Algebra: operations that do nothing, or that another one does anyway.

use super::Target;
use crate::graph::{Graph, Type, Value};
use crate::ops::{Op, Unary};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn simplify(mut graph: Graph, _: &Target) -> Graph {
    let mut map: BTreeMap<Value, Value> = BTreeMap::new();
    // A copy of a state that is given out stays: the state itself may be overwritten before it is read.
    let roots: BTreeSet<Value> = graph.roots().map(|v| graph.behind_views(v)).collect();
    for i in 0..graph.nodes.len() {
        let mut inputs = std::mem::take(&mut graph.nodes[i].inputs);
        for v in &mut inputs {
            *v = map.get(v).copied().unwrap_or(*v);
        }
        graph.nodes[i].inputs = inputs;
        if let Some(same) = same_as(&graph, i)
            && !(roots.contains(&Value::new(i, 0)) && is_state(&graph, same))
        {
            map.insert(Value::new(i, 0), same);
            continue;
        }
        match graph.nodes[i].op {
            Op::Reshape(_) => skip_reshape(&mut graph, i),
            Op::Unary(_) | Op::UnaryGrad(_) | Op::Binary(_) => skip_broadcasts(&mut graph, i),
            _ => {}
        }
    }
    graph.redirect(&map);
    graph.tidy()
}

fn is_state(graph: &Graph, v: Value) -> bool {
    matches!(graph.op(graph.behind_views(v)), Op::State(_))
}

/// The value that node `i` merely repeats.
fn same_as(graph: &Graph, i: usize) -> Option<Value> {
    let node = &graph.nodes[i];
    let x = *node.inputs.first()?;
    let same = match &node.op {
        Op::Reshape(shape) | Op::Broadcast(shape) => *shape == graph.shape(x),
        Op::Unary(Unary::MulScalar(c)) => *c == 1.0,
        Op::Unary(Unary::AddScalar(c)) => *c == 0.0,
        Op::Cast(dtype) => *dtype == graph.ty(x).dtype,
        Op::Transpose(t) => t.order().enumerate().all(|(i, a)| i == a),
        Op::Slice(s) => s.len == graph.shape(x)[s.axis],
        Op::Concat(_) => node.inputs.len() == 1,
        Op::Dropout(d) => d.rate == 0.0,
        // Gradients have been taken by now.
        Op::StopGradient => true,
        _ => false,
    };
    same.then_some(x)
}

/// Of two reshapes in a row the first does nothing.
fn skip_reshape(graph: &mut Graph, i: usize) {
    let x = graph.nodes[i].inputs[0];
    if matches!(graph.op(x), Op::Reshape(_)) {
        graph.nodes[i].inputs[0] = graph.nodes[x.at()].inputs[0];
    }
}

/// Elementwise operations broadcast by themselves.
fn skip_broadcasts(graph: &mut Graph, i: usize) {
    for operand in 0..graph.nodes[i].inputs.len() {
        let v = graph.nodes[i].inputs[operand];
        if !matches!(graph.op(v), Op::Broadcast(_)) {
            continue;
        }
        let mut inputs = graph.nodes[i].inputs.clone();
        inputs[operand] = graph.nodes[v.at()].inputs[0];
        let types: Vec<Type> = inputs.iter().map(|v| graph.ty(*v)).collect();
        if graph.nodes[i].op.infer(&types).is_ok_and(|outs| outs == graph.nodes[i].outs) {
            graph.nodes[i].inputs = inputs;
        }
    }
}
