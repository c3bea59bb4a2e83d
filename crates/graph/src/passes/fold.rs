//! Constant folding: what depends on constants alone is computed now, where the result is small.

use super::Target;
use crate::array::Array;
use crate::graph::Graph;
use crate::ops::{Constant, Op};
use std::sync::Arc;

/// A result larger than its operands is kept as a computation unless it has at most this many bytes.
const SMALL: usize = 4096;

pub(super) fn fold(mut graph: Graph, _: &Target) -> Graph {
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        if node.inputs.is_empty() || node.outs.len() != 1 || node.op.is_update() || node.op.is_all_reduce() {
            continue;
        }
        let constants: Option<Vec<Array>> = node
            .inputs
            .iter()
            .map(|v| match graph.op(*v) {
                Op::Const(c) => Some(Array::from_tensor(&c.0)),
                _ => None,
            })
            .collect();
        let Some(constants) = constants else { continue };
        let given: usize = node.inputs.iter().map(|v| graph.ty(*v).bytes()).sum();
        if node.outs[0].bytes() > given.max(SMALL) {
            continue;
        }
        let value = node.op.eval(&constants.iter().collect::<Vec<_>>()).remove(0);
        let tensor = value.to_tensor(node.outs[0].dtype);
        graph.nodes[i].op = Op::Const(Constant(Arc::new(tensor)));
        graph.nodes[i].inputs.clear();
    }
    graph.tidy()
}
