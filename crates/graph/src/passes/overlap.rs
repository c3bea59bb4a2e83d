//! All-reduces begin as soon as their values are there, so that they travel while the backward goes on.
//!
//! The end of an iteration is built behind its backward, and with it the nodes that hand gradients over; where several runs make an iteration, the sums
//! over runs are fused into the products that make gradients, which stand there too then. Here all of these move to where the last of their operands is made.

use super::Target;
use crate::graph::Graph;
use crate::ops::Op;

pub(super) fn overlap(graph: Graph, _: &Target) -> Graph {
    let begins = |op: &Op| matches!(op, Op::AllReduceBegin(_));
    if !graph.nodes.iter().any(|n| begins(&n.op)) {
        return graph;
    }
    let is_source = |op: &Op| matches!(op, Op::Input(_) | Op::State(_) | Op::Const(_));
    let feeds = |wanted: &[bool]| -> Vec<bool> {
        let mut found = vec![false; graph.nodes.len()];
        for (_, node) in graph.nodes.iter().enumerate().filter(|(i, _)| wanted[*i]) {
            node.inputs.iter().for_each(|v| found[graph.behind_views(*v).at()] = true);
        }
        found
    };
    let handed: Vec<bool> = graph.nodes.iter().map(|n| begins(&n.op)).collect();
    let made = feeds(&handed);
    // What is left of a sum over runs: a state and a number.
    let scaled = feeds(&made);
    let scaled = |i: usize| {
        let node = &graph.nodes[i];
        scaled[i] && !node.inputs.is_empty() && node.inputs.iter().all(|v| is_source(graph.op(*v)))
    };
    let mut ready: Vec<f64> = Vec::with_capacity(graph.nodes.len());
    for (i, node) in graph.nodes.iter().enumerate() {
        let latest = node.inputs.iter().map(|v| ready[v.at()]).fold(0.0, f64::max);
        let moves = handed[i] || made[i] || node.op.is_view();
        ready.push(match () {
            _ if is_source(&node.op) || scaled(i) => 0.0,
            _ if moves => latest + 0.25,
            _ => i as f64,
        });
    }
    let mut priority = ready.clone();
    for (i, node) in graph.nodes.iter().enumerate().filter(|(i, _)| made[*i]) {
        for v in node.inputs.iter().filter(|v| scaled(v.at())) {
            // Just before it is read, for it takes memory.
            priority[v.at()] = priority[v.at()].max(ready[i] - 0.125);
        }
    }
    graph.tidy_by(&priority)
}

#[cfg(test)]
mod tests {
    use crate::ops::{Op, ReduceKind};
    use crate::passes::{Target, optimise};
    use crate::train::{Training, finish_iteration};
    use crate::{Builder, Type};

    /// A chain of products: the gradients of the last weights are there first, and are handed over before the first product's.
    #[test]
    fn buckets_are_handed_over_while_the_backward_goes_on() {
        for runs in [1, 2] {
            let mut b = Builder::new();
            let mut x = b.input("x", Type::f32([8, 8]));
            let mut params = vec![];
            for i in 0..4 {
                let w = b.param(&format!("w{i}"), [8, 8]);
                params.push(w);
                x = b.linear(x, w, None);
                x = b.silu(x);
            }
            let loss = b.reduce_all(ReduceKind::Mean, x);
            let training = Training { bucket: Some(300), runs, ..Training::default() };
            finish_iteration(&mut b, loss, &params, &training).unwrap();
            let graph = optimise(b.finish().unwrap(), &Target::ALL).unwrap();
            let at = |wanted: &dyn Fn(&Op) -> bool| -> Vec<usize> {
                let all = graph.nodes.iter().enumerate();
                all.filter(|(_, n)| wanted(&n.op)).map(|(i, _)| i).collect()
            };
            let begins = at(&|op| matches!(op, Op::AllReduceBegin(_)));
            let ends = at(&|op| matches!(op, Op::AllReduceEnd(_)));
            // The loss, and buckets of two weights each: 300 bytes are more than one of 256.
            assert_eq!((begins.len(), ends.len()), (3, 5), "{graph}");
            let last = *at(&|op| matches!(op, Op::MatMul(_))).last().unwrap();
            assert_eq!(begins.iter().filter(|b| **b < last).count(), 2, "{graph}");
            assert!(ends.iter().all(|e| *e > last), "{graph}");
        }
    }
}
