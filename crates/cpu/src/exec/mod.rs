//! The executor: memory as the plan lays it out, and the plan's nodes run one after another.
//!
//! Everything is resolved when the executor is made: kernels, pointers, packed weights' places. A run
//! only calls kernels; it allocates nothing.

mod memory;

use crate::Cpu;
use crate::kernels::Prepared;
use crate::lower::{Machine, is_constant, lower};
pub use clearshot_graph::ValueError;
use clearshot_graph::exchange::Exchange;
use clearshot_graph::plan::{Backend, DEVICE_REGIONS, Place, Plan};
use clearshot_graph::{Graph, KernelKey, Op, StateInit, Type, Value};
use clearshot_tensor::{DType, Data, Tensor};
use memory::Memory;
pub use memory::MemoryError;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// What plans ask of the CPU, and the kernels that answer. Every kind of node is lowered once: plans ask for its bytes, many times
/// where they recompute, and the executor runs the same kernel.
pub struct CpuBackend {
    machine: Machine,
    known: RefCell<HashMap<KernelKey, Option<Lowered>>>,
}

/// A kernel and what it needs.
#[derive(Clone)]
struct Lowered {
    kernel: Arc<dyn Prepared>,
    /// In bytes, as [`Lowered::packed`].
    workspace: usize,
    packed: usize,
}

impl CpuBackend {
    pub fn new(machine: Machine) -> CpuBackend {
        CpuBackend { machine, known: RefCell::default() }
    }

    /// Nothing for nodes that do not run.
    fn lowered(&self, graph: &Graph, node: usize) -> Option<Lowered> {
        let n = &graph.nodes[node];
        if matches!(n.op, Op::Input(_) | Op::State(_) | Op::Const(_)) || n.op.is_view() {
            return None;
        }
        let fixed: Vec<bool> = n.inputs.iter().map(|v| is_constant(graph, *v)).collect();
        let mut known = self.known.borrow_mut();
        let made = known.entry(KernelKey::of(graph, node).with(&fixed)).or_insert_with(|| {
            let kernel: Arc<dyn Prepared> = lower(graph, node, self.machine)?.into();
            let bytes = |len: usize| len * size_of::<f32>();
            let (workspace, packed) =
                (bytes(kernel.workspace_len(self.machine.threads)), bytes(kernel.packed_len()));
            Some(Lowered { kernel, workspace, packed })
        });
        made.clone()
    }
}

impl Backend for CpuBackend {
    fn workspace(&self, graph: &Graph, node: usize) -> usize {
        self.lowered(graph, node).map_or(0, |k| k.workspace)
    }

    fn prepared(&self, graph: &Graph, node: usize) -> usize {
        self.lowered(graph, node).map_or(0, |k| k.packed)
    }
}

struct Instr {
    node: usize,
    kernel: Arc<dyn Prepared>,
    inputs: Vec<*const f32>,
    outputs: Vec<*mut f32>,
    workspace: *mut f32,
}

// SAFETY: the pointers go into the executor's own memory.
unsafe impl Send for Instr {}

/// A copy of a computed value into a state, for updates that are not in place.
struct WriteBack {
    from: *const u8,
    to: *mut u8,
    bytes: usize,
}

// SAFETY: as for `Instr`.
unsafe impl Send for WriteBack {}

/// Kernels take for granted that operands lie where the plan says and are as large as their types: what safe code could have changed
/// in a plan is looked at once, before anything runs.
///
/// # Panics
/// If it does not hold.
fn checked(plan: &Plan) {
    if let Err(e) = plan.graph.verify("as planned") {
        panic!("{e}");
    }
    let nodes = &plan.graph.nodes;
    let lists = [plan.places.len(), plan.workspaces.len(), plan.prepared.len()];
    assert!(lists.iter().all(|n| *n == nodes.len()), "a plan of another graph");
    for (i, (node, places)) in nodes.iter().zip(&plan.places).enumerate() {
        let fits = |(ty, place): (&Type, &Place)| {
            place.bytes == ty.bytes() && place.offset.is_multiple_of(align_of::<f32>())
        };
        let all = places.len() == node.outs.len() && node.outs.iter().zip(places).all(fits);
        assert!(all, "a place of another size: {}", plan.graph.line(i));
    }
    for (v, to) in &plan.copies {
        let known = nodes.get(v.at()).is_some_and(|n| v.port() < n.outs.len());
        assert!(known && to.bytes <= plan.place(*v).bytes, "a copy of more than there is");
    }
}

/// Memory and kernels of one plan.
pub struct Executor {
    cpu: Cpu,
    plan: Plan,
    regions: [Memory; DEVICE_REGIONS],
    instrs: Vec<Instr>,
    write_backs: Vec<WriteBack>,
    /// Inputs and states by name: where they are, and whether they have been set.
    settable: HashMap<String, (Value, bool)>,
    /// Weights changed since they were last packed.
    stale: bool,
    ready: bool,
    /// Outputs hold what a run computed.
    ran: bool,
}

impl Executor {
    /// Takes the memory that the plan counts, for the kernels of the backend that it was made with.
    ///
    /// # Errors
    /// If the system has not that much.
    ///
    /// # Panics
    /// If the plan was not made with this backend, or was changed since.
    pub fn new(plan: Plan, backend: &CpuBackend) -> Result<Executor, MemoryError> {
        checked(&plan);
        let cpu = Cpu::with_level(backend.machine.threads, backend.machine.level);
        let [arena, states, inputs, constants, packed, copies] = plan.region_bytes().map(Memory::new);
        let regions = [arena?, states?, inputs?, constants?, packed?, copies?];
        let at = |place: Place| regions[place.region.index()].at(place.offset, place.bytes);
        let instr = |node: usize, lowered: Lowered| {
            let n = &plan.graph.nodes[node];
            let Lowered { kernel, workspace, packed } = lowered;
            assert!(
                plan.workspaces[node].bytes >= workspace && plan.prepared[node].bytes >= packed,
                "the plan was made for another machine: {}",
                plan.graph.line(node)
            );
            let mut inputs: Vec<*const f32> =
                n.inputs.iter().map(|v| at(plan.place(*v)).cast_const().cast()).collect();
            if kernel.packed_len() > 0 {
                inputs.push(at(plan.prepared[node]).cast_const().cast());
            }
            let outputs = (0..n.outs.len()).map(|p| at(plan.places[node][p]).cast()).collect();
            Instr { node, kernel, inputs, outputs, workspace: at(plan.workspaces[node]).cast() }
        };
        let instrs = (0..plan.graph.nodes.len())
            .filter_map(|i| Some(instr(i, backend.lowered(&plan.graph, i)?)))
            .collect();
        let write_backs = plan
            .copies
            .iter()
            .map(|(v, to)| WriteBack { from: at(plan.place(*v)), to: at(*to), bytes: to.bytes })
            .collect();
        let inputs = plan.graph.inputs().map(|(name, v)| (name.to_string(), (v, false)));
        let states = plan
            .graph
            .states()
            .map(|(name, init, v)| (name.to_string(), (v, matches!(init, StateInit::Constant(_)))));
        let settable = inputs.chain(states).collect();
        let mut made = Executor {
            instrs,
            write_backs,
            settable,
            regions,
            cpu,
            plan,
            stale: true,
            ready: false,
            ran: false,
        };
        made.fill_constants();
        Ok(made)
    }

    fn fill_constants(&mut self) {
        for (i, node) in self.plan.graph.nodes.iter().enumerate() {
            let place = self.plan.places[i][0];
            match &node.op {
                Op::Const(c) => self.store(place, c.0.data()),
                Op::State(s) => {
                    if let StateInit::Constant(x) = s.init {
                        match node.outs[0].dtype {
                            DType::I32 => self.store(place, &Data::I32(vec![x as i32; place.bytes / 4])),
                            _ if x == 0.0 => {}
                            _ => self.floats(place).fill(x),
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn bytes(&self, place: Place) -> *mut u8 {
        self.regions[place.region.index()].at(place.offset, place.bytes)
    }

    #[allow(clippy::mut_from_ref)]
    fn floats(&self, place: Place) -> &mut [f32] {
        // SAFETY: regions are page-aligned and offsets multiples of the plan's ALIGN; only `&mut self` methods and
        // constructors write.
        unsafe { std::slice::from_raw_parts_mut(self.bytes(place).cast(), place.bytes / 4) }
    }

    fn store(&self, place: Place, data: &Data) {
        match data {
            Data::F32(v) => self.floats(place).copy_from_slice(v),
            Data::I32(v) => {
                // SAFETY: as `floats`, for a type of the same size and alignment.
                let to = unsafe {
                    std::slice::from_raw_parts_mut(self.bytes(place).cast::<i32>(), place.bytes / 4)
                };
                to.copy_from_slice(v);
            }
            other => unreachable!("graphs hold f32 and i32 on this device, not {}", other.dtype()),
        }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Lets all-reduces go over this; without it there is one rank.
    pub fn set_exchange(&mut self, exchange: Arc<dyn Exchange>) {
        self.cpu.exchange = Some(exchange);
    }

    /// Sets an input or a state.
    ///
    /// # Errors
    /// If there is none of that name, or its type or shape is another.
    pub fn set(&mut self, name: &str, tensor: &Tensor) -> Result<(), ValueError> {
        let Some(&(v, _)) = self.settable.get(name) else {
            return Err(ValueError::unknown("input or state", name, self.settable.keys()));
        };
        let ty = self.plan.graph.ty(v);
        if tensor.dtype() != ty.dtype || tensor.shape() != ty.shape {
            let got = format!("{}{}", tensor.dtype(), tensor.shape());
            return Err(ValueError::Type { name: name.into(), expected: ty.to_string(), got });
        }
        self.store(self.plan.place(v), tensor.data());
        self.settable.insert(name.into(), (v, true));
        if matches!(self.plan.graph.op(v), Op::State(_)) {
            self.stale = true;
        }
        self.ready = false;
        Ok(())
    }

    /// A copy of an output, state or input.
    ///
    /// # Errors
    /// If there is none of that name, or it is an output and nothing has run yet.
    pub fn get(&self, name: &str) -> Result<Tensor, ValueError> {
        let computed = self.plan.graph.output(name);
        if computed.is_some() && !self.ran {
            return Err(ValueError::NotRun(name.into()));
        }
        let v = computed.or_else(|| self.settable.get(name).map(|s| s.0));
        let Some(v) = v else {
            let outputs = self.plan.graph.outputs.iter().map(|o| &o.name);
            return Err(ValueError::unknown("output or state", name, outputs.chain(self.settable.keys())));
        };
        let (ty, place) = (self.plan.graph.ty(v), self.plan.place(v));
        Ok(match ty.dtype {
            DType::I32 => {
                // SAFETY: as in `store`.
                let from =
                    unsafe { std::slice::from_raw_parts(self.bytes(place).cast::<i32>(), place.bytes / 4) };
                Tensor::i32(ty.shape, from.to_vec())
            }
            _ => Tensor::f32(ty.shape, self.floats(place).to_vec()),
        })
    }

    /// Checks that everything is set and packs weights that changed; [`Executor::run`] does it when need
    /// be, and callers who time runs do it before.
    ///
    /// # Errors
    /// If an input or parameter has not been set.
    pub fn prepare(&mut self) -> Result<(), ValueError> {
        if !self.ready {
            let missing = self.settable.iter().filter(|(_, (_, set))| !set).map(|(name, _)| name).min();
            if let Some(name) = missing {
                return Err(ValueError::NotSet(name.clone()));
            }
            self.ready = true;
        }
        if std::mem::replace(&mut self.stale, false) {
            for i in self.instrs.iter().filter(|i| i.kernel.packed_len() > 0) {
                let place = self.plan.prepared[i.node];
                // SAFETY: the node's own part of the prepared region.
                unsafe { i.kernel.pack(&self.cpu, &i.inputs, self.floats(place)) };
            }
        }
        Ok(())
    }

    /// Runs every node once.
    ///
    /// # Errors
    /// If an input or parameter has not been set.
    pub fn run(&mut self) -> Result<(), ValueError> {
        self.prepare()?;
        for i in &self.instrs {
            // SAFETY: the pointers are the node's operands as the plan placed them.
            unsafe { i.kernel.run(&self.cpu, &i.inputs, &i.outputs, i.workspace) };
        }
        self.write_back();
        Ok(())
    }

    /// As [`Executor::run`], adding each node's nanoseconds to its entry of `clock`, by node index.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn run_timed(&mut self, clock: &mut [u64]) -> Result<(), ValueError> {
        self.prepare()?;
        for i in &self.instrs {
            let start = Instant::now();
            // SAFETY: as in `run`.
            unsafe { i.kernel.run(&self.cpu, &i.inputs, &i.outputs, i.workspace) };
            clock[i.node] += start.elapsed().as_nanos() as u64;
        }
        self.write_back();
        Ok(())
    }

    fn write_back(&mut self) {
        self.ran = true;
        for w in &self.write_backs {
            // SAFETY: a value and a state of the same size, which do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(w.from, w.to, w.bytes) }
        }
    }
}
