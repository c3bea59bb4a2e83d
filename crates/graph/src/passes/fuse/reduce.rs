//! A sum over many axes is a sum of the sum over some of them.
//!
//! A convolution's bias wants its gradient summed over samples and pixels, a time embedding the same
//! gradient summed over pixels: the first is the second summed over samples.

use super::super::Target;
use crate::graph::{Graph, Value};
use crate::ops::{Op, ReduceKind};
use std::collections::BTreeMap;

pub(in super::super) fn share(mut graph: Graph, _: &Target) -> Graph {
    let mut sums: BTreeMap<Value, Vec<usize>> = BTreeMap::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        if let Op::Reduce(r) = node.op
            && r.kind == ReduceKind::Sum
        {
            sums.entry(node.inputs[0]).or_default().push(i);
        }
    }
    let axes = |graph: &Graph, i: usize| match graph.nodes[i].op {
        Op::Reduce(r) => r.axes,
        _ => 0,
    };
    for mut group in sums.into_values().filter(|g| g.len() > 1) {
        group.sort_by_key(|&i| axes(&graph, i).count_ones());
        for large in 1..group.len() {
            let (to, to_axes) = (group[large], axes(&graph, group[large]));
            let inside = |&from: &usize| {
                let a = axes(&graph, from);
                a != to_axes && a & to_axes == a
            };
            // The axes that are summed already have size 1 and may be summed again.
            if let Some(from) = group[..large].iter().copied().rfind(inside) {
                graph.nodes[to].inputs[0] = Value::new(from, 0);
            }
        }
    }
    graph.tidy()
}
