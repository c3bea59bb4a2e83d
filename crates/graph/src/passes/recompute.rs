//! Recomputation under a memory budget: gradient checkpointing as a pass.
//!
//! At the moment of the largest memory, most of what is alive was made by the forward part and waits
//! for its gradient. Such a value can be dropped and made again just before it is needed, from values
//! that are kept: its node is cloned, and the late readers read the clone. Values are dropped in the
//! order of operations per byte, cheapest first; first only those whose operands are all kept, then, if
//! that does not suffice, chains too. Clones run the same kernels on the same values, so gradients are
//! equal to the last bit.

use crate::cost;
use crate::graph::{Graph, Value};
use crate::ops::Op;
use crate::plan::Lifetimes;
use std::collections::{BTreeMap, BTreeSet};

/// Why no graph fits.
#[derive(Debug, thiserror::Error)]
#[error(
    "a budget of {budget} bytes cannot be met: with everything recomputed the graph needs {least}, without {most}"
)]
pub struct BudgetError {
    pub budget: usize,
    pub least: usize,
    pub most: usize,
}

/// The graph with as little recomputation as makes `bytes(graph) <= budget`. `bytes` is asked for the
/// need of a whole graph, states and workspaces included.
///
/// # Errors
/// If recomputing everything does not suffice.
pub fn recompute(graph: Graph, budget: usize, bytes: &dyn Fn(&Graph) -> usize) -> Result<Graph, BudgetError> {
    let most = bytes(&graph);
    if most <= budget {
        return Ok(graph);
    }
    let mut least = most;
    for chains in [false, true] {
        let candidates = candidates(&graph, chains);
        // Dropping more does not always need less, but nearly; the search needs no more than that.
        let (mut low, mut high) = (0, candidates.len());
        let mut best = None;
        let attempt = |count: usize| {
            let rewritten = drop_values(&graph, &candidates[..count]);
            let need = bytes(&rewritten);
            (rewritten, need)
        };
        let (whole, need) = attempt(high);
        least = least.min(need);
        if need <= budget {
            best = Some(whole);
        }
        while low < high && best.is_some() {
            let middle = (low + high) / 2;
            let (rewritten, need) = attempt(middle);
            if need <= budget {
                best = Some(rewritten);
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        if let Some(best) = best {
            return Ok(best);
        }
    }
    Err(BudgetError { budget, least, most })
}

/// Values alive at the peak and made by nodes that can run again, in the order in which to drop them.
fn candidates(graph: &Graph, chains: bool) -> Vec<usize> {
    let lifetimes = Lifetimes::of(graph);
    let peak = lifetimes.peak(graph);
    let mut found: Vec<(f64, usize)> = (0..peak)
        .filter(|&i| can_run_again(&graph.nodes[i].op) && lifetimes.last_use(i) > peak)
        .map(|i| {
            let held: usize = graph.nodes[i].outs.iter().map(|t| t.bytes()).sum();
            ((cost::flops(graph, i) + cost::traffic(graph, i) * 8) as f64 / held.max(1) as f64, i)
        })
        .collect();
    found.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let order = found.into_iter().map(|(_, i)| i);
    if chains { order.collect() } else { independent(graph, order, &lifetimes, peak) }
}

/// Keeps of `order` what can be made again from values that are neither dropped nor dead by then.
fn independent(
    graph: &Graph,
    order: impl Iterator<Item = usize>,
    lifetimes: &Lifetimes,
    peak: usize,
) -> Vec<usize> {
    let mut dropped = BTreeSet::new();
    let mut pinned = BTreeSet::new();
    let mut kept = vec![];
    for i in order {
        let roots: Vec<usize> = graph.nodes[i].inputs.iter().map(|v| graph.behind_views(*v).at()).collect();
        let available = |&r: &usize| {
            let source = graph.nodes[r].inputs.is_empty();
            !dropped.contains(&r) && (source || lifetimes.last_use(r) > peak)
        };
        if !pinned.contains(&i) && roots.iter().all(available) {
            dropped.insert(i);
            pinned.extend(roots);
            kept.push(i);
        }
    }
    kept
}

fn can_run_again(op: &Op) -> bool {
    !matches!(op, Op::Input(_) | Op::State(_) | Op::Const(_)) && !op.is_update() && !op.is_view()
}

/// Clones the nodes of `dropped` for their readers behind the peak.
fn drop_values(graph: &Graph, dropped: &[usize]) -> Graph {
    let lifetimes = Lifetimes::of(graph);
    let peak = lifetimes.peak(graph);
    let dropped: BTreeSet<usize> = dropped.iter().copied().collect();
    let mut next = graph.clone();
    let mut priority: Vec<f64> = (0..graph.nodes.len()).map(|i| i as f64).collect();
    let mut clones: BTreeMap<usize, usize> = BTreeMap::new();
    // Late readers in order, so that a clone stands before the first of them.
    for reader in peak + 1..graph.nodes.len() {
        for slot in 0..graph.nodes[reader].inputs.len() {
            let v = graph.nodes[reader].inputs[slot];
            let mut make = Cloning { graph, next: &mut next, priority: &mut priority, clones: &mut clones };
            let v = make.value(v, &dropped, reader as f64 - 0.5);
            next.nodes[reader].inputs[slot] = v;
        }
    }
    next.tidy_by(&priority)
}

struct Cloning<'a> {
    graph: &'a Graph,
    next: &'a mut Graph,
    priority: &'a mut Vec<f64>,
    clones: &'a mut BTreeMap<usize, usize>,
}

impl Cloning<'_> {
    /// The value that a late reader reads in place of `v`.
    fn value(&mut self, v: Value, dropped: &BTreeSet<usize>, before: f64) -> Value {
        if !self.is_remade(v.at(), dropped) {
            return v;
        }
        if let Some(&clone) = self.clones.get(&v.at()) {
            return Value { node: clone as u32, port: v.port };
        }
        let mut node = self.graph.nodes[v.at()].clone();
        node.inputs = node.inputs.iter().map(|i| self.value(*i, dropped, before)).collect();
        self.next.nodes.push(node);
        self.priority.push(before);
        let clone = self.next.nodes.len() - 1;
        self.clones.insert(v.at(), clone);
        Value { node: clone as u32, port: v.port }
    }

    /// Dropped values, and views of them.
    fn is_remade(&self, at: usize, dropped: &BTreeSet<usize>) -> bool {
        dropped.contains(&at)
            || (self.graph.nodes[at].op.is_view()
                && self.is_remade(self.graph.nodes[at].inputs[0].at(), dropped))
    }
}
