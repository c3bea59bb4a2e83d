//! Runs that are recorded on a timeline: when each node ran, its phase of a training iteration, and the memory in use.
//!
//! On the CPU nodes run one after the other and each is timed. A GPU replays a run as one launch, which timing each node
//! would change; its nodes are timed once, separately from the run and with all states restored afterwards, and the time of
//! every run is divided among them in proportion.

use crate::session::{Engine, Session};
use clearshot_cpu::exec::ValueError;
use clearshot_graph::plan::Plan;
use clearshot_tensor::Tensor;
use clearshot_timeline::{Guard, NodeInfo, Phase, Timeline, current, group, is_active, span};
use std::sync::Arc;
use std::time::Instant;

/// The group of spans that a run of a compiled graph is.
const RUN: &str = "network";
/// The layer of the nodes behind the gradients, and the output that gradients are of.
const UPDATE: &str = "update";
const LOSS: &str = "loss";

/// What is found out about a session's nodes once it is traced.
#[derive(Default)]
pub(crate) struct Traced {
    nodes: Option<Arc<Vec<NodeInfo>>>,
    /// Of a GPU.
    apart: Option<Vec<u64>>,
}

/// The nodes of a plan as timelines show them.
pub fn node_infos(plan: &Plan) -> Vec<NodeInfo> {
    let graph = &plan.graph;
    let mut before_loss = vec![false; graph.nodes.len()];
    if let Some(loss) = graph.output(LOSS) {
        before_loss[loss.at()] = true;
        for node in (0..graph.nodes.len()).rev().filter(|n| *n <= loss.at()) {
            if before_loss[node] {
                graph.nodes[node].inputs.iter().for_each(|v| before_loss[v.at()] = true);
            }
        }
    }
    // What begins and ends at each node.
    let mut change = vec![0i64; graph.nodes.len() + 1];
    for b in &plan.buffers {
        change[b.first.min(graph.nodes.len())] += b.bytes as i64;
        change[(b.last + 1).min(graph.nodes.len())] -= b.bytes as i64;
    }
    let fixed = plan.bytes() - plan.arena;
    let mut reach = vec![0; graph.nodes.len()];
    for b in &plan.buffers {
        for at in reach.iter_mut().take(b.last + 1).skip(b.first) {
            *at = (b.offset + b.bytes).max(*at);
        }
    }
    let mut live = fixed as i64;
    let info = |(i, node): (usize, &clearshot_graph::Node)| {
        live += change[i];
        let phase = match () {
            () if graph.updates.is_empty() || before_loss[i] => Phase::Forward,
            () if &*node.scope == UPDATE => Phase::Optimiser,
            () => Phase::Backward,
        };
        NodeInfo {
            op: node.op.name(),
            scope: Arc::clone(&node.scope),
            line: graph.line(i),
            phase,
            bytes: live as usize,
            reach: fixed + reach[i],
        }
    };
    graph.nodes.iter().enumerate().map(info).collect()
}

impl Session {
    /// As [`Session::run`], and waits for it.
    pub(crate) fn run_traced(&mut self) -> Result<(), ValueError> {
        let Some(timeline) = current() else { return Ok(()) };
        let _run = group(RUN);
        if self.traced.nodes.is_none() {
            self.traced.nodes = Some(Arc::new(node_infos(self.plan())));
        }
        let mut clock = vec![0; self.plan().graph.nodes.len()];
        // Packs weights that changed.
        let packing = span(Phase::Compiling);
        self.prepare()?;
        drop(packing);
        if matches!(self.engine, Engine::Cuda(..)) && self.traced.apart.is_none() {
            self.traced.apart = Some(self.timed_apart()?);
        }
        let start = Instant::now();
        match &mut self.engine {
            Engine::Cpu(e, _) => e.run_timed(&mut clock)?,
            Engine::Cuda(e, _) => {
                e.run()?;
                e.wait()?;
                let took = start.elapsed().as_nanos() as f64;
                let apart = self.traced.apart.as_deref().unwrap_or_default();
                let whole = apart.iter().sum::<u64>().max(1) as f64;
                clock.iter_mut().zip(apart).for_each(|(to, ns)| *to = (*ns as f64 / whole * took) as u64);
            }
        }
        if let Some(nodes) = &self.traced.nodes {
            timeline.ran(nodes, start, &clock);
        }
        Ok(())
    }

    /// Each node's nanoseconds by itself. States are afterwards as they were before.
    fn timed_apart(&mut self) -> Result<Vec<u64>, ValueError> {
        let names: Vec<String> = self.plan().graph.states().map(|(name, ..)| name.to_string()).collect();
        let kept = names.iter().map(|n| self.get(n)).collect::<Result<Vec<Tensor>, _>>()?;
        let times = self.profile(1)?;
        let mut clock = vec![0; self.plan().graph.nodes.len()];
        times.iter().for_each(|t| clock[t.node] = t.nanoseconds);
        for (name, value) in names.iter().zip(&kept) {
            self.set(name, value)?;
        }
        self.prepare()?;
        Ok(clock)
    }
}

/// A value on its way to the device or back.
pub(crate) struct Copy<'n> {
    traced: Option<(Timeline, Guard, Instant)>,
    name: &'n str,
    bytes: usize,
}

impl<'n> Copy<'n> {
    pub fn begin(name: &'n str, bytes: usize) -> Copy<'n> {
        let traced = || Some((current()?, span(Phase::Copying), Instant::now()));
        Copy { traced: if is_active() { traced() } else { None }, name, bytes }
    }

    /// Ends it, of so many bytes.
    pub fn ended(mut self, bytes: usize) {
        self.bytes = bytes;
    }
}

impl Drop for Copy<'_> {
    fn drop(&mut self) {
        if let Some((timeline, _, start)) = &self.traced {
            timeline.copied(self.name, self.bytes, *start);
        }
    }
}
