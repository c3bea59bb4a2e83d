//! Which values share storage, and how long each stretch of it is needed.
//!
//! Views show what they view; elementwise results, residual sums and updates take over an operand that
//! nobody reads afterwards; every other value gets a buffer of the arena for its lifetime.

use super::{Backend, Buffer, Place, Region, aligned};
use crate::graph::{Graph, StateInit, Value};
use crate::ops::Op;

/// When each node's outputs are last read. Who reads a view or a state's copy reads what it shows.
struct Lifetimes {
    last: Vec<usize>,
}

impl Lifetimes {
    fn of(graph: &Graph) -> Lifetimes {
        let n = graph.nodes.len();
        let mut last: Vec<usize> = (0..n).collect();
        graph.roots().for_each(|v| last[v.at()] = n);
        for i in (0..n).rev() {
            // Readers come later, so theirs is known.
            let shows = graph.nodes[i].op.is_view() || graph.is_state_copy(i);
            let reach = if shows { last[i] } else { i };
            for v in &graph.nodes[i].inputs {
                last[v.at()] = last[v.at()].max(reach);
            }
        }
        Lifetimes { last }
    }

    /// The last node that reads this node's outputs; the number of nodes for what must outlive the run.
    fn last_use(&self, node: usize) -> usize {
        self.last[node]
    }
}

/// Storage while it is being worked out: a fixed place, or a future buffer of the arena.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Storage {
    Fixed(Place),
    Arena(usize),
}

pub(super) struct Maker<'a> {
    graph: &'a Graph,
    backend: &'a dyn Backend,
    lifetimes: Lifetimes,
    pub(super) storage: Vec<Vec<Storage>>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) copies: Vec<(Value, u32)>,
    pub(super) states: usize,
    pub(super) inputs: usize,
    pub(super) constants: usize,
    pub(super) state_copies: usize,
    pub(super) on_host: usize,
}

impl<'a> Maker<'a> {
    pub(super) fn new(graph: &'a Graph, backend: &'a dyn Backend) -> Maker<'a> {
        Maker {
            graph,
            backend,
            lifetimes: Lifetimes::of(graph),
            storage: vec![vec![]; graph.nodes.len()],
            buffers: vec![],
            copies: vec![],
            states: 0,
            inputs: 0,
            constants: 0,
            state_copies: 0,
            on_host: 0,
        }
    }

    pub(super) fn sources(&mut self) {
        let on_host = if self.backend.keeps_states_on_host() { only_copied(self.graph) } else { vec![] };
        for (i, node) in self.graph.nodes.iter().enumerate() {
            let (region, total) = match node.op {
                Op::State(_) if on_host.get(i).is_some_and(|h| *h) => (Region::Host, &mut self.on_host),
                Op::Input(_) => (Region::Inputs, &mut self.inputs),
                Op::State(_) => (Region::States, &mut self.states),
                Op::Const(_) => (Region::Constants, &mut self.constants),
                _ if self.graph.is_state_copy(i) => (Region::Copies, &mut self.state_copies),
                _ => continue,
            };
            let bytes = node.outs[0].bytes();
            self.storage[i] = vec![Storage::Fixed(Place { region, offset: *total, bytes })];
            *total += aligned(bytes);
        }
    }

    pub(super) fn values(&mut self) {
        let mut in_place: Vec<Option<Storage>> = vec![];
        for i in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[i];
            if !self.storage[i].is_empty() {
                continue;
            }
            if node.op.is_view() {
                let v = node.inputs[0];
                self.storage[i] = vec![self.storage[v.at()][v.port()]];
                continue;
            }
            in_place.clear();
            in_place.resize(node.outs.len(), None);
            for (port, input) in take_overs(&node.op, self.backend) {
                if in_place.iter().flatten().next().is_none() || node.op.is_update() {
                    in_place[port] = self.taken_over(i, port, input);
                }
            }
            self.storage[i] = in_place
                .iter()
                .enumerate()
                .map(|(port, s)| s.unwrap_or_else(|| self.fresh(i, port)))
                .collect();
        }
        for u in &self.graph.updates {
            let state = self.storage[u.state as usize][0];
            let value = self.storage[u.value.at()][u.value.port()];
            if !same_start(state, value) {
                self.copies.push((u.value, u.state));
            }
        }
    }

    /// The storage of operand `input`, if output `port` of node `i` may overwrite it.
    fn taken_over(&mut self, i: usize, port: usize, input: usize) -> Option<Storage> {
        let node = &self.graph.nodes[i];
        let v = *node.inputs.get(input)?;
        if self.graph.ty(v).bytes() != node.outs[port].bytes() || self.graph.shape(v) != node.outs[port].shape
        {
            return None;
        }
        match self.storage[v.at()][v.port()] {
            Storage::Arena(b) if self.buffers[b].last == i && self.sole(i, input, b) => {
                self.buffers[b].last = self.end(i, port);
                Some(Storage::Arena(b))
            }
            // A state that this very output becomes, and that nobody reads afterwards.
            s @ Storage::Fixed(Place { region: Region::States, .. })
                if node.op.is_update()
                    && self
                        .graph
                        .updates
                        .iter()
                        .any(|u| u.state == v.node && u.value == Value::new(i, port))
                    && self.lifetimes.last_use(v.at()) <= i =>
            {
                Some(s)
            }
            _ => None,
        }
    }

    /// Whether overwriting operand `input` of node `i`, which lies in `buffer`, spoils no other operand.
    /// Elementwise kernels read each element before they write it, so there the same value may be read
    /// twice; convolutions and products read all of an image while they write, so there it may not.
    fn sole(&self, i: usize, input: usize, buffer: usize) -> bool {
        let node = &self.graph.nodes[i];
        let elementwise = !matches!(node.op, Op::Conv(_) | Op::ConvInputGrad(_) | Op::MatMul(_));
        let v = node.inputs[input];
        node.inputs.iter().enumerate().all(|(slot, o)| {
            slot == input
                || (elementwise && *o == v)
                || self.storage[o.at()][o.port()] != Storage::Arena(buffer)
        })
    }

    /// The last node that reads one output.
    fn end(&self, i: usize, port: usize) -> usize {
        if self.graph.nodes[i].outs.len() == 1 {
            return self.lifetimes.last_use(i);
        }
        // Several outputs: each lives as long as its own readers, views followed.
        let n = self.graph.nodes.len();
        let v = Value::new(i, port);
        if self.graph.roots().any(|r| r == v) {
            return n;
        }
        let readers = (i + 1..n).filter(|&r| self.graph.nodes[r].inputs.contains(&v));
        readers
            .map(|r| if self.graph.nodes[r].op.is_view() { self.lifetimes.last_use(r) } else { r })
            .max()
            .unwrap_or(i)
    }

    fn fresh(&mut self, i: usize, port: usize) -> Storage {
        let bytes = aligned(self.graph.nodes[i].outs[port].bytes());
        let last = self.end(i, port);
        self.buffers.push(Buffer { offset: 0, bytes, first: i, last, node: i, workspace: false });
        Storage::Arena(self.buffers.len() - 1)
    }

    pub(super) fn workspace(&mut self, i: usize, bytes: usize) -> Option<usize> {
        if bytes == 0 {
            return None;
        }
        let bytes = aligned(bytes);
        self.buffers.push(Buffer { offset: 0, bytes, first: i, last: i, node: i, workspace: true });
        Some(self.buffers.len() - 1)
    }
}

/// Which nodes are states that never change, and that nothing reads but copies in fewer bits.
fn only_copied(graph: &Graph) -> Vec<bool> {
    // A state that begins with one value would have to be copied before anybody sets it.
    let given = |op: &Op| matches!(op, Op::State(s) if !matches!(s.init, StateInit::Constant(_)));
    let mut found: Vec<bool> = graph.nodes.iter().map(|n| given(&n.op)).collect();
    for (_, node) in graph.nodes.iter().enumerate().filter(|(i, _)| !graph.is_state_copy(*i)) {
        node.inputs.iter().for_each(|v| found[v.at()] = false);
    }
    graph.roots().for_each(|v| found[v.at()] = false);
    graph.updates.iter().for_each(|u| found[u.state as usize] = false);
    found
}

fn same_start(a: Storage, b: Storage) -> bool {
    match (a, b) {
        (Storage::Fixed(a), Storage::Fixed(b)) => (a.region, a.offset) == (b.region, b.offset),
        _ => false,
    }
}

/// Outputs and the operands whose storage they may take over, best first.
fn take_overs(op: &Op, backend: &dyn Backend) -> Vec<(usize, usize)> {
    match op {
        Op::Unary(_) | Op::Softmax | Op::Dropout(_) => vec![(0, 0)],
        Op::UnaryGrad(_) | Op::Binary(_) => vec![(0, 0), (0, 1)],
        Op::Pointwise(p) => (0..p.operands).map(|i| (0, i)).collect(),
        Op::Conv(c) => c.operands().residual.map(|r| (0, r)).into_iter().collect(),
        Op::ConvInputGrad(c) => c.operands().1.map(|r| (0, r)).into_iter().collect(),
        Op::MatMul(m) => m.operands().1.map(|r| (0, r)).into_iter().collect(),
        Op::NormGrad(n) if backend.norm_gradient_in_place() => {
            let whole = (n.norm.parts == 1).then(|| (0, n.dy()));
            (0..n.norm.parts).filter_map(|i| Some((i, n.addend(i)?))).chain(whole).collect()
        }
        Op::Adam(_) => vec![(0, 0), (1, 2), (2, 3)],
        Op::Sgd(_) => vec![(0, 0), (1, 2)],
        Op::Ema | Op::CountStep => vec![(0, 0)],
        Op::LossScale(_) => vec![(0, 0), (1, 1)],
        Op::AllReduceEnd(_) => vec![(0, 1)],
        _ => vec![],
    }
}
