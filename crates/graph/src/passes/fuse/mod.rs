//! Fusion: what one pass over memory can do is one node.
//!
//! A fused node always stands where the last of the nodes that it replaces stood, so everything that
//! it reads has been computed by then.

pub(super) mod chain;
pub(super) mod concat;
pub(super) mod epilogue;
pub(super) mod norm;
pub(super) mod reduce;
pub(super) mod upsample;

use crate::graph::{Graph, Value};

/// Readers of values, for pattern matching.
struct Uses {
    counts: Vec<Vec<u32>>,
    users: Vec<Vec<usize>>,
}

impl Uses {
    fn of(graph: &Graph) -> Uses {
        Uses { counts: graph.use_counts(), users: graph.users() }
    }

    /// Whether exactly one operand, output or update reads it.
    fn once(&self, v: Value) -> bool {
        self.counts[v.at()][v.port()] == 1
    }

    /// The nodes that read this value; nothing where it is also an output or a state's new value.
    fn readers(&self, graph: &Graph, v: Value) -> Option<Vec<usize>> {
        let readers: Vec<usize> =
            self.users[v.at()].iter().copied().filter(|&u| graph.nodes[u].inputs.contains(&v)).collect();
        let reads: usize =
            readers.iter().map(|&u| graph.nodes[u].inputs.iter().filter(|i| **i == v).count()).sum();
        (reads == self.counts[v.at()][v.port()] as usize).then_some(readers)
    }
}
