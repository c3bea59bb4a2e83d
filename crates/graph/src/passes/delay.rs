//! Orders of nodes that need less memory: what is made long before it is read is made just before.
//!
//! A gradient that waits for another to be added to it is the usual case: it lies idle while the deepest part
//! of the other's chain runs, where memory is scarce. Moving it behind that keeps its operands alive for longer
//! instead, so a move is kept only if the whole graph then needs less. Values do not change.

use crate::graph::Graph;
use crate::passes::recompute::{can_run_again, uses};
use crate::plan::{Backend, Need};
use std::collections::BTreeMap;

/// Orders that are tried at the most.
const TRIES: usize = 64;

/// The graph in an order that needs no more memory on the backend than the given one.
pub fn delay(graph: Graph, backend: &dyn Backend) -> Graph {
    let scratch: Vec<usize> = (0..graph.nodes.len()).map(|i| backend.workspace(&graph, i)).collect();
    let need = Need::of(&graph, &scratch, backend);
    let mut best = (graph, scratch, need);
    let mut tries = 0;
    while let Some(better) = improved(&best, backend, &mut tries) {
        best = better;
    }
    best.0
}

type Ordered = (Graph, Vec<usize>, Need);

/// The first order that needs less, of those in which values that lie idle at the peak are made later.
fn improved((graph, scratch, need): &Ordered, backend: &dyn Backend, tries: &mut usize) -> Option<Ordered> {
    let uses = uses(graph);
    // What waits for the same reader moves together: operands that they share are kept only once.
    let mut waiting: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for i in (0..need.peak).filter(|&i| can_run_again(&graph.nodes[i].op) && !graph.is_state_copy(i)) {
        if let Some(&reader) = uses[i].first().filter(|&&u| u > need.peak && u < graph.nodes.len()) {
            waiting.entry(reader).or_default().push(i);
        }
    }
    for (reader, nodes) in waiting {
        *tries += 1;
        if *tries > TRIES {
            return None;
        }
        let mut priority: Vec<f64> = (0..graph.nodes.len()).map(|i| i as f64).collect();
        nodes.iter().for_each(|&i| priority[i] = reader as f64 - 0.5);
        let (moved, order) = graph.clone().tidied(&priority);
        let scratch: Vec<usize> = order.iter().map(|&i| scratch[i]).collect();
        let now = Need::of(&moved, &scratch, backend);
        if now.bytes < need.bytes {
            return Some((moved, scratch, now));
        }
    }
    None
}
