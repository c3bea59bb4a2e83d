//! Concatenation along channels without a copy: who reads it reads its parts.
//!
//! Norms and convolutions take their input in parts. In training the gradient comes back whole and is
//! sliced; so slices move up through sums to the nodes that can make the parts one by one: the norm's
//! gradient and the convolution's.

use super::super::Target;
use super::Uses;
use crate::graph::{Graph, Node, Value};
use crate::ops::{Binary, Op, Slice};
use std::collections::BTreeMap;

pub(in super::super) fn split(graph: Graph, target: &Target) -> Graph {
    if target.parts < 2 {
        return graph;
    }
    let graph = slices_through_sums(graph);
    let graph = slices_of_convolutions(graph);
    parts_to_readers(graph, target.parts)
}

fn channel_slice(graph: &Graph, i: usize) -> Option<Slice> {
    match graph.nodes[i].op {
        Op::Slice(s) if s.axis + 1 == graph.nodes[i].outs[0].shape.rank() => Some(s),
        _ => None,
    }
}

/// All readers of `v`, if every one is a slice of channels.
fn sliced_only(graph: &Graph, uses: &Uses, v: Value) -> Option<Vec<usize>> {
    let readers = uses.readers(graph, v)?;
    (!readers.is_empty() && readers.iter().all(|&r| channel_slice(graph, r).is_some())).then_some(readers)
}

/// `slice(a + b)` is `slice(a) + slice(b)`, where the sum is only ever sliced.
fn slices_through_sums(mut graph: Graph) -> Graph {
    loop {
        let uses = Uses::of(&graph);
        let sum = (0..graph.nodes.len()).rev().find_map(|i| {
            let node = &graph.nodes[i];
            let whole = matches!(node.op, Op::Binary(Binary::Add))
                && node.inputs.iter().all(|v| graph.shape(*v) == node.outs[0].shape);
            if whole {
                sliced_only(&graph, &uses, Value::new(i, 0)).map(|readers| (i, readers))
            } else {
                None
            }
        });
        let Some((i, readers)) = sum else { return graph };
        let operands = graph.nodes[i].inputs.clone();
        let mut priority: Vec<f64> = (0..graph.nodes.len()).map(|i| i as f64).collect();
        for r in readers {
            let slice = graph.nodes[r].clone();
            let halves = operands.iter().map(|&v| {
                graph.nodes.push(Node { inputs: vec![v], ..slice.clone() });
                // Right behind the operand: the whole gradient can be freed early.
                priority.push(v.at() as f64 + 0.5);
                Value::new(graph.nodes.len() - 1, 0)
            });
            let halves = halves.collect();
            graph.nodes[r].op = Op::Binary(Binary::Add);
            graph.nodes[r].inputs = halves;
        }
        graph = graph.tidy_by(&priority);
    }
}

/// A slice of a convolution's input gradient is that gradient for fewer channels.
fn slices_of_convolutions(mut graph: Graph) -> Graph {
    let uses = Uses::of(&graph);
    for i in 0..graph.nodes.len() {
        let Op::ConvInputGrad(c) = graph.nodes[i].op else { continue };
        if c.geometry.groups != 1 || c.bias || c.residual || c.act.is_some() || c.upsample {
            continue;
        }
        let Some(readers) = sliced_only(&graph, &uses, Value::new(i, 0)) else { continue };
        for r in readers {
            let slice = channel_slice(&graph, r).expect("all readers are slices");
            let mut part = c;
            part.channels = [c.channels[0] + slice.start, slice.len];
            graph.nodes[r].op = Op::ConvInputGrad(part);
            graph.nodes[r].inputs = graph.nodes[i].inputs.clone();
        }
    }
    graph.tidy()
}

fn parts_to_readers(mut graph: Graph, most: usize) -> Graph {
    let uses = Uses::of(&graph);
    let mut map = BTreeMap::new();
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        let Op::Concat(c) = node.op else { continue };
        if c.axis + 1 != node.outs[0].shape.rank() || node.inputs.len() > most {
            continue;
        }
        let whole = Value::new(i, 0);
        let Some(readers) = uses.readers(&graph, whole) else { continue };
        let parts = node.inputs.clone();
        if readers.is_empty() || !readers.iter().all(|&r| takes_parts(&graph, &uses, r, whole, &parts)) {
            continue;
        }
        readers.into_iter().for_each(|r| give_parts(&mut graph, &uses, r, &parts, &mut map));
    }
    graph.redirect(&map);
    graph.tidy()
}

fn takes_parts(graph: &Graph, uses: &Uses, r: usize, whole: Value, parts: &[Value]) -> bool {
    let node = &graph.nodes[r];
    if node.inputs[0] != whole || node.inputs[1..].contains(&whole) {
        return false;
    }
    match &node.op {
        Op::Norm(n) | Op::NormStats(n) => n.parts == 1,
        Op::Conv(c) => c.parts == 1 && c.geometry.groups == 1 && !c.upsample,
        Op::ConvWeightGrad(c) => c.parts == 1 && c.geometry.groups == 1 && !c.upsample,
        Op::NormGrad(n) => {
            n.norm.parts == 1 && n.addends == 0 && slices_by_part(graph, uses, r, parts).is_some()
        }
        _ => false,
    }
}

/// The slices that read a norm gradient's dx, each with its part, if they are all the parts' own.
fn slices_by_part(graph: &Graph, uses: &Uses, r: usize, parts: &[Value]) -> Option<Vec<(usize, usize)>> {
    let dx = Value::new(r, 0);
    if uses.counts[r][0] == 0 {
        return Some(vec![]);
    }
    let mut starts = vec![];
    let mut start = 0;
    for p in parts {
        starts.push((start, graph.shape(*p).channels()));
        start += graph.shape(*p).channels();
    }
    sliced_only(graph, uses, dx)?
        .into_iter()
        .map(|s| {
            let slice = channel_slice(graph, s)?;
            let part = starts.iter().position(|&at| at == (slice.start, slice.len))?;
            Some((s, part))
        })
        .collect()
}

fn give_parts(graph: &mut Graph, uses: &Uses, r: usize, parts: &[Value], map: &mut BTreeMap<Value, Value>) {
    let count = parts.len();
    if let Op::NormGrad(_) = graph.nodes[r].op {
        for (slice, part) in slices_by_part(graph, uses, r, parts).expect("checked before") {
            map.insert(Value::new(slice, 0), Value::new(r, part));
        }
        // The other outputs move up behind the parts' gradients.
        let outs = graph.nodes[r].outs.clone();
        let moved = (1..outs.len()).map(|p| (Value::new(r, p), Value::new(r, p + count - 1))).collect();
        redirect_once(graph, &moved);
        let types = parts.iter().map(|p| graph.ty(*p)).chain(outs[1..].iter().copied()).collect();
        graph.nodes[r].outs = types;
    }
    graph.nodes[r].inputs.splice(0..1, parts.iter().copied());
    match &mut graph.nodes[r].op {
        Op::Norm(n) | Op::NormStats(n) => n.parts = count,
        Op::NormGrad(n) => n.norm.parts = count,
        Op::Conv(c) => c.parts = count,
        Op::ConvWeightGrad(c) => c.parts = count,
        _ => {}
    }
}

/// Like [`Graph::redirect`], for maps whose values may be keys again.
fn redirect_once(graph: &mut Graph, map: &BTreeMap<Value, Value>) {
    let to = |v: Value| map.get(&v).copied().unwrap_or(v);
    graph.nodes.iter_mut().flat_map(|n| &mut n.inputs).for_each(|v| *v = to(*v));
    graph.outputs.iter_mut().for_each(|o| o.value = to(o.value));
    graph.updates.iter_mut().for_each(|u| u.value = to(u.value));
}
