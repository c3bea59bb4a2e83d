//! Memory plans: where every value lies, before anything runs.
//!
//! A value's storage is a state, an input, a constant, or a stretch of one arena. Views share storage;
//! elementwise results and updates take over an operand's where they may; the rest of the arena's
//! buffers get offsets so that two that are alive at the same time never overlap. Kernels' workspaces
//! are buffers like any other, alive for one node.

use crate::graph::{Graph, Value};
use crate::ops::Op;
use std::fmt;

/// Offsets and sizes are multiples of this, a cache line.
pub const ALIGN: usize = 64;

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// What a plan must know of the backend that will run it.
pub trait Backend {
    /// Bytes of scratch that a node's kernel needs while it runs.
    fn workspace(&self, graph: &Graph, node: usize) -> usize;
    /// Bytes that a node's kernel keeps from run to run: weights packed once.
    fn prepared(&self, graph: &Graph, node: usize) -> usize;
}

/// A backend whose kernels need nothing; for tests and for graphs that are only looked at.
pub struct NoBackend;

impl Backend for NoBackend {
    fn workspace(&self, _: &Graph, _: usize) -> usize {
        0
    }
    fn prepared(&self, _: &Graph, _: usize) -> usize {
        0
    }
}

/// A part of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    Arena,
    States,
    Inputs,
    Constants,
    /// Weights as kernels want them.
    Prepared,
}

/// Where something lies: `bytes` at `offset` of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub region: Region,
    pub offset: usize,
    pub bytes: usize,
}

/// A stretch of the arena and the nodes from whose start to whose end it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub offset: usize,
    pub bytes: usize,
    pub first: usize,
    pub last: usize,
    /// The node that it was made for.
    pub node: usize,
    pub workspace: bool,
}

/// A plan: the graph in running order, and a place for every value.
#[derive(Clone, Debug)]
pub struct Plan {
    pub graph: Graph,
    /// By node and port.
    pub places: Vec<Vec<Place>>,
    /// Each node's scratch.
    pub workspaces: Vec<Place>,
    /// Each node's share of the prepared region.
    pub prepared: Vec<Place>,
    /// Values that are copied into states when all nodes have run: those not updated in place.
    pub copies: Vec<(Value, Place)>,
    pub buffers: Vec<Buffer>,
    pub arena: usize,
    pub states: usize,
    pub inputs: usize,
    pub constants: usize,
    pub packed: usize,
}

/// When each node's outputs are last read. Views count as reading what they view.
struct Lifetimes {
    last: Vec<usize>,
}

impl Lifetimes {
    fn of(graph: &Graph) -> Lifetimes {
        let n = graph.nodes.len();
        let mut last: Vec<usize> = (0..n).collect();
        graph.roots().for_each(|v| last[v.at()] = n);
        for i in (0..n).rev() {
            // Readers of a view read what it views; readers come later, so theirs is known.
            let reach = if graph.nodes[i].op.is_view() { last[i] } else { i };
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

/// What a graph needs at the least, without packed weights: no arrangement of the arena needs less, and
/// arrangements are nearly always as good.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub bytes: usize,
    /// The node during which the most is alive.
    pub peak: usize,
}

impl Need {
    /// `scratch` is each node's workspace in bytes.
    pub fn of(graph: &Graph, scratch: &[usize]) -> Need {
        let mut maker = Maker::new(graph);
        maker.sources();
        maker.values();
        for (i, &bytes) in scratch.iter().enumerate() {
            maker.workspace(i, bytes);
        }
        let (alive, peak) = largest_live(&maker.buffers);
        Need { bytes: alive + maker.states + maker.inputs + maker.constants, peak }
    }
}

/// Storage while it is being worked out: a fixed place, or a future buffer of the arena.
#[derive(Clone, Copy, PartialEq)]
enum Storage {
    Fixed(Place),
    Arena(usize),
}

impl Plan {
    /// Plans a graph for a backend.
    pub fn new(graph: Graph, backend: &dyn Backend) -> Plan {
        let mut maker = Maker::new(&graph);
        maker.sources();
        maker.values();
        let workspace_ids: Vec<Option<usize>> =
            (0..graph.nodes.len()).map(|i| maker.workspace(i, backend.workspace(&graph, i))).collect();
        let Maker { storage, mut buffers, copies, states, inputs, constants, .. } = maker;
        let arena = place_buffers(&mut buffers);
        let at = |s: Storage, bytes: usize| match s {
            Storage::Fixed(place) => Place { bytes, ..place },
            Storage::Arena(b) => Place { region: Region::Arena, offset: buffers[b].offset, bytes },
        };
        let places: Vec<Vec<Place>> = graph
            .nodes
            .iter()
            .zip(&storage)
            .map(|(n, s)| n.outs.iter().zip(s).map(|(t, s)| at(*s, t.bytes())).collect())
            .collect();
        let none = Place { region: Region::Arena, offset: 0, bytes: 0 };
        let workspaces = workspace_ids
            .iter()
            .map(|id| id.map_or(none, |b| at(Storage::Arena(b), buffers[b].bytes)))
            .collect();
        let mut packed = 0;
        let prepared = (0..graph.nodes.len())
            .map(|i| {
                let bytes = backend.prepared(&graph, i);
                let place = Place { region: Region::Prepared, offset: packed, bytes };
                packed += aligned(bytes);
                place
            })
            .collect();
        let copies = copies.into_iter().map(|(value, state)| (value, places[state as usize][0])).collect();
        Plan {
            places,
            workspaces,
            prepared,
            copies,
            buffers,
            arena,
            states,
            inputs,
            constants,
            packed,
            graph,
        }
    }

    pub fn place(&self, v: Value) -> Place {
        self.places[v.at()][v.port()]
    }

    /// All the memory that running takes.
    pub fn bytes(&self) -> usize {
        self.arena + self.states + self.inputs + self.constants + self.packed
    }

    /// The largest sum of buffers alive at one time: no arrangement needs less.
    pub fn largest_live(&self) -> usize {
        largest_live(&self.buffers).0
    }

    /// Buffers by size, largest first.
    pub fn largest_buffers(&self) -> Vec<Buffer> {
        let mut buffers = self.buffers.clone();
        buffers.sort_by_key(|b| (std::cmp::Reverse(b.bytes), b.first));
        buffers
    }

    /// Two buffers that are alive at one time and overlap; there must be none.
    pub fn overlap(&self) -> Option<(Buffer, Buffer)> {
        for (i, a) in self.buffers.iter().enumerate() {
            for b in &self.buffers[..i] {
                let time = a.first <= b.last && b.first <= a.last;
                let space = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
                if time && space && a.bytes > 0 && b.bytes > 0 {
                    return Some((*a, *b));
                }
            }
        }
        None
    }
}

/// The sum of the buffers that are alive at each node.
fn alive(buffers: &[Buffer]) -> Vec<usize> {
    let end = buffers.iter().map(|b| b.last).max().unwrap_or(0);
    let mut change = vec![0i64; end + 2];
    for b in buffers {
        change[b.first] += b.bytes as i64;
        change[b.last + 1] -= b.bytes as i64;
    }
    let mut sum = 0;
    let running = change.iter().map(|c| {
        sum += c;
        sum as usize
    });
    running.collect()
}

/// The largest sum of buffers alive at one time, and the node at which it is first reached.
fn largest_live(buffers: &[Buffer]) -> (usize, usize) {
    let mut most = (0, 0);
    for (i, sum) in alive(buffers).into_iter().enumerate() {
        if sum > most.0 {
            most = (sum, i);
        }
    }
    most
}

struct Maker<'a> {
    graph: &'a Graph,
    lifetimes: Lifetimes,
    storage: Vec<Vec<Storage>>,
    buffers: Vec<Buffer>,
    copies: Vec<(Value, u32)>,
    states: usize,
    inputs: usize,
    constants: usize,
}

impl<'a> Maker<'a> {
    fn new(graph: &'a Graph) -> Maker<'a> {
        Maker {
            graph,
            lifetimes: Lifetimes::of(graph),
            storage: vec![vec![]; graph.nodes.len()],
            buffers: vec![],
            copies: vec![],
            states: 0,
            inputs: 0,
            constants: 0,
        }
    }

    fn sources(&mut self) {
        for (i, node) in self.graph.nodes.iter().enumerate() {
            let (region, total) = match node.op {
                Op::Input(_) => (Region::Inputs, &mut self.inputs),
                Op::State(_) => (Region::States, &mut self.states),
                Op::Const(_) => (Region::Constants, &mut self.constants),
                _ => continue,
            };
            let bytes = node.outs[0].bytes();
            self.storage[i] = vec![Storage::Fixed(Place { region, offset: *total, bytes })];
            *total += aligned(bytes);
        }
    }

    fn values(&mut self) {
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
            for (port, input) in take_overs(&node.op) {
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
            Storage::Arena(b) if self.buffers[b].last == i && self.sole(b, v) => {
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

    /// Whether no other operand of the last node reads the same buffer through another value. Reading
    /// the same value twice is fine: elementwise kernels read before they write.
    fn sole(&self, buffer: usize, v: Value) -> bool {
        let i = self.buffers[buffer].last;
        let Some(node) = self.graph.nodes.get(i) else { return false };
        node.inputs.iter().all(|o| *o == v || self.storage[o.at()][o.port()] != Storage::Arena(buffer))
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

    fn workspace(&mut self, i: usize, bytes: usize) -> Option<usize> {
        if bytes == 0 {
            return None;
        }
        let bytes = aligned(bytes);
        self.buffers.push(Buffer { offset: 0, bytes, first: i, last: i, node: i, workspace: true });
        Some(self.buffers.len() - 1)
    }
}

fn same_start(a: Storage, b: Storage) -> bool {
    match (a, b) {
        (Storage::Fixed(a), Storage::Fixed(b)) => (a.region, a.offset) == (b.region, b.offset),
        _ => false,
    }
}

/// Outputs and the operands whose storage they may take over, best first.
fn take_overs(op: &Op) -> Vec<(usize, usize)> {
    match op {
        Op::Unary(_) | Op::Softmax | Op::Dropout(_) => vec![(0, 0)],
        Op::UnaryGrad(_) | Op::Binary(_) => vec![(0, 0), (0, 1)],
        Op::Pointwise(p) => (0..p.operands).map(|i| (0, i)).collect(),
        Op::Conv(c) => c.operands().residual.map(|r| (0, r)).into_iter().collect(),
        Op::ConvInputGrad(c) => c.operands().1.map(|r| (0, r)).into_iter().collect(),
        Op::MatMul(m) => m.operands().1.map(|r| (0, r)).into_iter().collect(),
        Op::Adam(_) => vec![(0, 0), (1, 2), (2, 3)],
        Op::Sgd(_) => vec![(0, 0), (1, 2)],
        Op::Ema | Op::CountStep => vec![(0, 0)],
        Op::LossScale(_) => vec![(0, 0), (1, 1)],
        _ => vec![],
    }
}

/// Arrangements tried for each first order, where none is tight at once.
const ATTEMPTS: usize = 40;

/// Gives every buffer an offset; the size of the arena.
///
/// Buffers are placed one by one, and the order makes the arrangement: by size, and by size times
/// lifetime. Where neither comes within 1 % of what is alive at one time, the buffers that lie too high
/// gain weight and all are placed again, some times over ("squeaky wheels").
fn place_buffers(buffers: &mut [Buffer]) -> usize {
    let enough = largest_live(buffers).0 / 100 * 101;
    let size = |b: &Buffer| b.bytes as f64;
    let area = |b: &Buffer| b.bytes as f64 * (b.last - b.first + 1) as f64;
    let mut best = (usize::MAX, vec![0; buffers.len()]);
    let mut weights: [Vec<f64>; 2] = [buffers.iter().map(size).collect(), buffers.iter().map(area).collect()];
    for _ in 0..ATTEMPTS {
        for weights in &mut weights {
            let mut order: Vec<usize> = (0..buffers.len()).collect();
            order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
            let (total, offsets) = first_fit(buffers, &order);
            for (i, b) in buffers.iter().enumerate() {
                if offsets[i] + b.bytes > enough {
                    weights[i] *= 1.5;
                }
            }
            if total < best.0 {
                best = (total, offsets);
            }
            if best.0 <= enough {
                break;
            }
        }
        if best.0 <= enough {
            break;
        }
    }
    buffers.iter_mut().zip(&best.1).for_each(|(b, o)| b.offset = *o);
    best.0
}

/// Each buffer in turn at the tightest gap among those placed that are alive with it.
fn first_fit(buffers: &[Buffer], order: &[usize]) -> (usize, Vec<usize>) {
    let mut offsets = vec![0; buffers.len()];
    // Placed buffers, kept in order of offset.
    let mut placed: Vec<usize> = Vec::with_capacity(order.len());
    let mut total = 0;
    for &i in order {
        let b = &buffers[i];
        let mut at = 0;
        let mut gap = usize::MAX;
        let mut chosen = None;
        for &p in &placed {
            let other = &buffers[p];
            if other.first > b.last || b.first > other.last {
                continue;
            }
            if offsets[p] >= at + b.bytes && offsets[p] - at < gap {
                gap = offsets[p] - at;
                chosen = Some(at);
            }
            at = at.max(offsets[p] + other.bytes);
        }
        offsets[i] = chosen.unwrap_or(at);
        total = total.max(offsets[i] + b.bytes);
        let slot = placed.partition_point(|&p| offsets[p] < offsets[i]);
        placed.insert(slot, i);
    }
    (total, offsets)
}

/// Bytes as people read them.
pub fn human(bytes: usize) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut x = bytes as f64;
    let mut unit = 0;
    while x >= 1024.0 && unit + 1 < units.len() {
        x /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{x:.2} {}", units[unit]) }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, node) in self.graph.nodes.iter().enumerate() {
            write!(f, "{}", self.graph.line(i))?;
            for place in &self.places[i] {
                let region = match place.region {
                    Region::Arena => "arena",
                    Region::States => "states",
                    Region::Inputs => "inputs",
                    Region::Constants => "constants",
                    Region::Prepared => "prepared",
                };
                write!(f, "  @{region}+{} {}", place.offset, human(place.bytes))?;
            }
            let scratch = self.workspaces[i];
            if scratch.bytes > 0 && !node.outs.is_empty() {
                write!(f, "  workspace @{} {}", scratch.offset, human(scratch.bytes))?;
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "arena {} (largest live {}), states {}, inputs {}, constants {}, packed weights {}, total {}",
            human(self.arena),
            human(self.largest_live()),
            human(self.states),
            human(self.inputs),
            human(self.constants),
            human(self.packed),
            human(self.bytes())
        )
    }
}
