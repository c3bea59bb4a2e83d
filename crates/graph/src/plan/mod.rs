//! Memory plans: where every value lies, before anything runs.
//!
//! A value's storage is a state, an input, a constant, or a stretch of one arena. Views share storage;
//! elementwise results and updates take over an operand's where they may; the rest of the arena's
//! buffers get offsets so that two that are alive at the same time never overlap. Kernels' workspaces
//! are buffers like any other, alive for one node.

mod arena;
mod storage;

use crate::graph::{Graph, Value};
use arena::{largest_live, place_buffers};
use std::fmt;
use storage::{Maker, Storage};

/// Offsets and sizes are multiples of this: whole cache lines, and what the libraries of GPUs ask for.
pub const ALIGN: usize = 256;

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// What a plan must know of the backend that will run it.
pub trait Backend {
    /// Bytes of scratch that a node's kernel needs while it runs.
    fn workspace(&self, graph: &Graph, node: usize) -> usize;
    /// Bytes that a node's kernel keeps from run to run: weights packed once.
    fn prepared(&self, graph: &Graph, node: usize) -> usize;
    /// Whether a norm's gradient may be written over the gradient that it reads or adds.
    fn norm_gradient_in_place(&self) -> bool {
        false
    }
    /// Whether a state that kernels read only through a narrower copy stays with the host, and the copy alone is
    /// on the device.
    fn keeps_states_on_host(&self) -> bool {
        false
    }
    /// Operations that take as long as moving a byte.
    fn operations_per_byte(&self) -> u64 {
        8
    }
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
    /// Narrower copies of states.
    Copies,
    /// Memory of the host: states whose copies are all that is read.
    Host,
}

/// Regions that are memory of the device.
pub const DEVICE_REGIONS: usize = 6;

impl Region {
    /// Which of the device's regions it is.
    ///
    /// # Panics
    /// For what the host keeps.
    pub fn index(self) -> usize {
        match self {
            Region::Arena => 0,
            Region::States => 1,
            Region::Inputs => 2,
            Region::Constants => 3,
            Region::Prepared => 4,
            Region::Copies => 5,
            Region::Host => panic!("the host keeps it"),
        }
    }
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
    pub state_copies: usize,
    /// Bytes of states that the host keeps; not among [`Plan::bytes`].
    pub on_host: usize,
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
    /// `scratch` is each node's workspace in bytes on the backend.
    pub fn of(graph: &Graph, scratch: &[usize], backend: &dyn Backend) -> Need {
        let mut maker = Maker::new(graph, backend);
        maker.sources();
        maker.values();
        for (i, &bytes) in scratch.iter().enumerate() {
            maker.workspace(i, bytes);
        }
        let (alive, peak) = largest_live(&maker.buffers);
        let fixed = maker.states + maker.inputs + maker.constants + maker.state_copies;
        Need { bytes: alive + fixed, peak }
    }
}

impl Plan {
    /// Plans a graph for a backend.
    pub fn new(graph: Graph, backend: &dyn Backend) -> Plan {
        let mut maker = Maker::new(&graph, backend);
        maker.sources();
        maker.values();
        let workspace_ids: Vec<Option<usize>> =
            (0..graph.nodes.len()).map(|i| maker.workspace(i, backend.workspace(&graph, i))).collect();
        let Maker { storage, mut buffers, copies, states, inputs, constants, state_copies, on_host, .. } =
            maker;
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
            state_copies,
            on_host,
            graph,
        }
    }

    pub fn place(&self, v: Value) -> Place {
        self.places[v.at()][v.port()]
    }

    /// The bytes of each of the device's regions, by [`Region::index`].
    pub fn region_bytes(&self) -> [usize; DEVICE_REGIONS] {
        [self.arena, self.states, self.inputs, self.constants, self.packed, self.state_copies]
    }

    /// All the memory of the device that running takes.
    pub fn bytes(&self) -> usize {
        self.region_bytes().iter().sum()
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
                    Region::Copies => "copies",
                    Region::Host => "host",
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
            "arena {} (largest live {}), states {}, inputs {}, constants {}, packed weights {}, copies of states {}, total {}",
            human(self.arena),
            human(self.largest_live()),
            human(self.states),
            human(self.inputs),
            human(self.constants),
            human(self.packed),
            human(self.state_copies),
            human(self.bytes())
        )
    }
}
