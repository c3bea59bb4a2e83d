//! Recomputation under a memory budget: gradient checkpointing as a pass.
//!
//! At the moment of the largest memory, much of what is alive lies idle: the forward part made it and
//! its gradient comes later. Such a value can be dropped and made again just before it is next needed,
//! from values that are alive: its node is cloned, with whatever else it takes that is gone by then, and
//! the late readers read the clone. The pass does this at the present peak, cheapest operations per byte
//! first, and goes on at the next peak until the budget is met. Clones run the same kernels on the same
//! values, so results are equal to the last bit.

use crate::cost;
use crate::graph::{Graph, Value};
use crate::ops::Op;
use crate::plan::{Backend, Need};
use std::collections::{BTreeMap, BTreeSet};

/// No graph that fits was found.
#[derive(Debug, thiserror::Error)]
#[error(
    "a budget of {budget} bytes cannot be met: {most} bytes are needed without recomputing, {least} with all that helps"
)]
pub struct BudgetError {
    pub budget: usize,
    pub least: usize,
    pub most: usize,
}

/// Values that need more nodes than this to be made again are kept.
const LONGEST_CHAIN: usize = 24;
/// Values dropped before the peak is looked for again.
const AT_ONCE: usize = 4;

/// The graph with as little recomputation as makes it fit `budget` bytes on the backend: states, inputs,
/// workspaces and all.
///
/// # Errors
/// If no amount of recomputation that was tried suffices.
pub fn recompute(graph: Graph, budget: usize, backend: &dyn Backend) -> Result<Graph, BudgetError> {
    let scratch: Vec<usize> = (0..graph.nodes.len()).map(|i| backend.workspace(&graph, i)).collect();
    let packed: usize = (0..graph.nodes.len()).map(|i| backend.prepared(&graph, i)).sum();
    let mut work = Work { graph, scratch, backend };
    let mut need = work.need();
    let most = need.bytes + packed;
    let (mut least, mut stuck) = (most, 0);
    while need.bytes + packed > budget {
        let Some((next, _)) = work.drop_at(need.peak, need.bytes + packed - budget) else {
            return Err(BudgetError { budget, least, most });
        };
        work = next;
        need = work.need();
        stuck = if need.bytes + packed < least { 0 } else { stuck + 1 };
        least = least.min(need.bytes + packed);
        // Dropping at one peak may raise another a little; for long it may not.
        if stuck > 32 {
            return Err(BudgetError { budget, least, most });
        }
    }
    Ok(work.graph)
}

/// The part of the memory that must be won for [`spare`] to change anything, and the part with which it is content.
const WORTH: f64 = 0.04;
const ENOUGH: f64 = 0.13;

/// The graph with what takes less memory for next to no time: values are recomputed at the peaks for as long as
/// the operations that this adds are below `share` of all and not enough is won. As it was, where that wins next to no
/// memory.
pub fn spare(graph: Graph, share: f64, backend: &dyn Backend) -> Graph {
    let scratch: Vec<usize> = (0..graph.nodes.len()).map(|i| backend.workspace(&graph, i)).collect();
    let mut work = Work { graph, scratch, backend };
    let mut left = share * (0..work.graph.nodes.len()).map(|i| work.cost(i) as f64).sum::<f64>();
    let mut need = work.need();
    let whole = need.bytes;
    let untouched = work.graph.clone();
    let mut best = (whole, untouched.clone());
    // Where several peaks are as high, all must come down before the whole does.
    let mut stuck = 0;
    while best.0 as f64 > (1.0 - ENOUGH) * whole as f64
        && let Some((next, cost)) = work.drop_at(need.peak, 1)
        && cost <= left
        && stuck < 8
    {
        left -= cost;
        work = next;
        need = work.need();
        stuck += 1;
        if need.bytes < best.0 {
            best = (need.bytes, work.graph.clone());
            stuck = 0;
        }
    }
    if best.0 as f64 <= (1.0 - WORTH) * whole as f64 { best.1 } else { untouched }
}

/// A graph on its way, with each node's workspace.
struct Work<'a> {
    graph: Graph,
    scratch: Vec<usize>,
    backend: &'a dyn Backend,
}

impl<'a> Work<'a> {
    fn need(&self) -> Need {
        Need::of(&self.graph, &self.scratch, self.backend)
    }

    /// What a node costs, in operations.
    fn cost(&self, node: usize) -> u64 {
        let moved = self.backend.operations_per_byte().saturating_mul(cost::traffic(&self.graph, node));
        cost::flops(&self.graph, node).saturating_add(moved)
    }

    /// Drops values that lie idle at `peak`, about `excess` bytes of them. Also gives what that costs.
    fn drop_at(&self, peak: usize, excess: usize) -> Option<(Work<'a>, f64)> {
        let uses = uses(&self.graph);
        let mut candidates: Vec<(f64, usize, usize, f64)> = (0..peak)
            .filter(|&i| can_run_again(&self.graph.nodes[i].op) && !self.graph.is_state_copy(i))
            .filter_map(|i| {
                let late = *uses[i].iter().find(|&&u| u > peak)?;
                let idle = !uses[i].contains(&peak) && late < self.graph.nodes.len();
                let gain: usize = self.graph.nodes[i].outs.iter().map(|t| t.bytes()).sum();
                let cost = if idle { self.chain_cost(i, peak, &uses)? } else { return None };
                Some((cost / gain.max(1) as f64, i, gain, cost))
            })
            .collect();
        candidates.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut dropped = BTreeSet::new();
        let (mut gained, mut spent) = (0, 0.0);
        for (_, i, gain, cost) in candidates {
            if gained >= excess || dropped.len() == AT_ONCE {
                break;
            }
            dropped.insert(i);
            gained += gain;
            spent += cost;
        }
        (!dropped.is_empty()).then(|| (self.without(&dropped, peak, &uses), spent))
    }

    /// The operations of making node `i` again behind the peak; nothing where that is impossible.
    fn chain_cost(&self, i: usize, peak: usize, uses: &[Vec<usize>]) -> Option<f64> {
        let mut chain = BTreeSet::from([i]);
        let mut open = vec![i];
        let mut cost = 0;
        while let Some(at) = open.pop() {
            cost = self.cost(at).saturating_add(cost);
            for v in &self.graph.nodes[at].inputs {
                let root = self.graph.behind_views(*v).at();
                if self.is_there(root, peak, uses) || !chain.insert(root) {
                    continue;
                }
                if chain.len() > LONGEST_CHAIN || !can_run_again(&self.graph.nodes[root].op) {
                    return None;
                }
                open.push(root);
            }
        }
        Some(cost as f64)
    }

    /// Whether a node's outputs are alive behind the peak anyway.
    fn is_there(&self, node: usize, peak: usize, uses: &[Vec<usize>]) -> bool {
        self.graph.nodes[node].inputs.is_empty()
            || self.graph.is_state_copy(node)
            || uses[node].last().is_some_and(|&u| u > peak)
    }

    /// The graph in which readers behind the peak read clones of what is dropped.
    fn without(&self, dropped: &BTreeSet<usize>, peak: usize, uses: &[Vec<usize>]) -> Work<'a> {
        let priority = (0..self.graph.nodes.len()).map(|i| i as f64).collect();
        let mut cloning = Cloning {
            work: self,
            uses,
            dropped,
            peak,
            next: Work { graph: self.graph.clone(), scratch: self.scratch.clone(), backend: self.backend },
            priority,
            clones: BTreeMap::new(),
        };
        // Readers in order, so that a clone stands before the first of them.
        for reader in peak + 1..self.graph.nodes.len() {
            for slot in 0..self.graph.nodes[reader].inputs.len() {
                let v = self.graph.nodes[reader].inputs[slot];
                if dropped.contains(&self.graph.behind_views(v).at()) {
                    cloning.next.graph.nodes[reader].inputs[slot] = cloning.again(v, reader as f64 - 0.5);
                }
            }
        }
        let Cloning { next, priority, .. } = cloning;
        let (graph, order) = next.graph.tidied(&priority);
        Work { scratch: order.iter().map(|&i| next.scratch[i]).collect(), graph, backend: self.backend }
    }
}

/// The readers of each node, views followed, in order; outputs and updates read behind the last node.
pub(super) fn uses(graph: &Graph) -> Vec<Vec<usize>> {
    let n = graph.nodes.len();
    let mut uses = vec![vec![]; n];
    for (i, node) in graph.nodes.iter().enumerate().filter(|(_, node)| !node.op.is_view()) {
        for v in &node.inputs {
            uses[graph.behind_views(*v).at()].push(i);
        }
    }
    graph.roots().for_each(|v| uses[graph.behind_views(v).at()].push(n));
    uses
}

pub(super) fn can_run_again(op: &Op) -> bool {
    !matches!(op, Op::Input(_) | Op::State(_) | Op::Const(_))
        && !op.is_update()
        && !op.is_all_reduce()
        && !op.is_view()
}

struct Cloning<'a> {
    work: &'a Work<'a>,
    uses: &'a [Vec<usize>],
    dropped: &'a BTreeSet<usize>,
    peak: usize,
    next: Work<'a>,
    priority: Vec<f64>,
    clones: BTreeMap<usize, usize>,
}

impl Cloning<'_> {
    /// The clone of a value, made with all that it takes.
    fn again(&mut self, v: Value, before: f64) -> Value {
        let clone = match self.clones.get(&v.at()) {
            Some(&clone) => clone,
            None => {
                let mut node = self.work.graph.nodes[v.at()].clone();
                node.inputs = node.inputs.iter().map(|i| self.input(*i, before)).collect();
                self.next.graph.nodes.push(node);
                self.next.scratch.push(self.work.scratch[v.at()]);
                self.priority.push(before);
                let clone = self.next.graph.nodes.len() - 1;
                self.clones.insert(v.at(), clone);
                clone
            }
        };
        Value { node: clone as u32, port: v.port }
    }

    /// What a clone reads in place of `v`.
    fn input(&mut self, v: Value, before: f64) -> Value {
        let root = self.work.graph.behind_views(v).at();
        let there = self.work.is_there(root, self.peak, self.uses) && !self.dropped.contains(&root);
        if there { v } else { self.again(v, before) }
    }
}
