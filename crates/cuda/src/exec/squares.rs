//! When sums of squares are launched.
//!
//! Clipping takes the sum of squares of every gradient. Gradients may be made late, between the sums of others,
//! and a launch for each sum would hold up everything around it; so sums wait for each other, until one is read or
//! the memory that it reads may be taken.

use clearshot_graph::ops::{Reduce, ReduceKind};
use clearshot_graph::{Graph, Op, Value};
use std::collections::HashMap;

/// Whether a node sums the squares of a whole tensor.
pub(super) fn is_sum_of_squares(graph: &Graph, node: usize) -> bool {
    let n = &graph.nodes[node];
    matches!(n.op, Op::Reduce(Reduce { kind: ReduceKind::SumSquares, .. })) && n.outs[0].shape.len() == 1
}

/// Whether a node launches nothing.
pub(super) fn is_silent(graph: &Graph, node: usize) -> bool {
    let op = &graph.nodes[node].op;
    op.is_view() || graph.is_state_copy(node) || matches!(op, Op::Input(_) | Op::State(_) | Op::Const(_))
}

/// The sums that are launched together, by the node that they are launched before: those at the number of nodes come
/// behind all.
pub(super) fn joined(graph: &Graph) -> HashMap<usize, Vec<usize>> {
    let kept = usize::MAX;
    let mut last_use: HashMap<Value, usize> = HashMap::new();
    for (i, n) in graph.nodes.iter().enumerate().filter(|(_, n)| !n.op.is_view()) {
        last_use.extend(n.inputs.iter().map(|v| (graph.behind_views(*v), i)));
    }
    let results = graph.outputs.iter().map(|o| o.value).chain(graph.updates.iter().map(|u| u.value));
    last_use.extend(results.map(|v| (graph.behind_views(v), kept)));
    let mut joined: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut waiting: Vec<usize> = vec![];
    for i in (0..graph.nodes.len()).filter(|&i| !is_silent(graph, i)) {
        if is_sum_of_squares(graph, i) {
            waiting.push(i);
            continue;
        }
        let reads = |v: Value| graph.nodes[i].inputs.iter().any(|input| graph.behind_views(*input) == v);
        let due = |&sum: &usize| {
            let summed = graph.behind_views(graph.nodes[sum].inputs[0]);
            // The last reader may write its result there.
            reads(Value::new(sum, 0)) || last_use[&summed] <= i
        };
        if waiting.iter().any(due) {
            joined.insert(i, std::mem::take(&mut waiting));
        }
    }
    if !waiting.is_empty() {
        joined.insert(graph.nodes.len(), waiting);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::joined;
    use clearshot_graph::ops::ReduceKind;
    use clearshot_graph::{Builder, Graph, Type};

    /// Which sums go together, by their number among the sums, and the op that they are launched before.
    fn groups(graph: &Graph) -> Vec<(String, usize)> {
        let mut all: Vec<_> = joined(graph).into_iter().collect();
        all.sort();
        let name = |i: usize| graph.nodes.get(i).map_or("end".to_string(), |n| n.op.name().to_string());
        all.into_iter().map(|(i, sums)| (name(i), sums.len())).collect()
    }

    #[test]
    fn sums_wait_for_each_other_past_other_work() {
        let mut b = Builder::new();
        let x = b.input("x", Type::f32([8, 8]));
        let first = b.silu(x);
        let a = b.reduce_all(ReduceKind::SumSquares, first);
        // Made late, between the sums.
        let second = b.matmul(first, x, false, false);
        let c = b.reduce_all(ReduceKind::SumSquares, second);
        let total = b.add(a, c);
        let scaled = b.mul(first, total);
        let both = b.add(scaled, second);
        b.output("y", both);
        assert_eq!(groups(&b.finish().unwrap()), [("binary".to_string(), 2)]);
    }

    #[test]
    fn a_sum_does_not_outwait_what_it_sums() {
        let mut b = Builder::new();
        let x = b.input("x", Type::f32([8, 8]));
        let first = b.silu(x);
        let a = b.reduce_all(ReduceKind::SumSquares, first);
        // The last to read what was summed: its result may take the place.
        let second = b.matmul(first, x, false, false);
        let c = b.reduce_all(ReduceKind::SumSquares, second);
        let total = b.add(a, c);
        b.output("y", total);
        assert_eq!(groups(&b.finish().unwrap()), [("matmul".to_string(), 1), ("binary".to_string(), 1)]);
    }

    #[test]
    fn sums_that_nobody_reads_come_last() {
        let mut b = Builder::new();
        let x = b.input("x", Type::f32([8, 8]));
        let y = b.silu(x);
        let a = b.reduce_all(ReduceKind::SumSquares, y);
        let z = b.mul_scalar(x, 3.0);
        b.output("a", a);
        b.output("y", y);
        b.output("z", z);
        assert_eq!(groups(&b.finish().unwrap()), [("end".to_string(), 1)]);
    }
}
