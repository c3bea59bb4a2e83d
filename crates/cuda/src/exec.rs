//! The executor: a plan's memory on the GPU, its launches, and their replay as one CUDA graph.
//!
//! The first run launches kernel by kernel, so that libraries load what they need; the second is recorded,
//! and from then on a run is one launch. In the recording a step waits for those whose memory it shares and
//! for no others ([`branches`]), so weight gradients run beside the chain of the others. Inputs are copied by a stream of their own into a place beside the
//! one that kernels read, so the next batch travels while the last one computes; a run begins with moving
//! what was set into place.

use crate::backend::CudaBackend;
use crate::branches::{self, Access};
use crate::context::Context;
use crate::error::CudaError;
use crate::lower::update::{Clipping, Entry, Joint, Rule, Scalars, Squares, type_number};
use crate::lower::{Io, Kernel};
use crate::memory::{self, Buffer, Pinned};
use clearshot_graph::ops::{Reduce, ReduceKind};
use clearshot_graph::plan::{Place, Plan, Region};
use clearshot_graph::{Graph, Op, StateInit, Value, ValueError};
use clearshot_tensor::{DType, Data, Tensor};
use cudarc::driver::sys::{CUevent, CUgraph, CUgraphExec, CUgraphNode};
use cudarc::driver::{result, sys};
use std::collections::HashMap;
use std::sync::Arc;

/// The driver's CUDA version that lets a recording say what comes behind what.
const BRANCHES_SINCE: i32 = 12_030;

/// What is launched for one node, or for several at once.
enum Work {
    Node { kernel: Arc<Kernel>, inputs: Vec<u64>, outputs: Vec<u64>, workspace: u64 },
    Joint(Joint),
    Squares(Squares),
    Clip(Clipping),
    Copy { from: u64, to: u64, bytes: usize },
}

struct Step {
    /// The node that it is counted for.
    node: usize,
    work: Work,
    access: Access,
}

impl Step {
    fn launch(&self, cx: &Context) -> Result<(), CudaError> {
        match &self.work {
            Work::Node { kernel, inputs, outputs, workspace } => {
                kernel.launch(cx, &Io { inputs, outputs, workspace: *workspace })
            }
            Work::Joint(j) => j.launch(cx),
            Work::Squares(s) => s.launch(cx),
            Work::Clip(c) => c.launch(cx),
            Work::Copy { from, to, bytes } => {
                // SAFETY: a value and a state of the same size.
                Ok(unsafe { result::memcpy_dtod_async(*to, *from, *bytes, cx.stream) }?)
            }
        }
    }
}

/// An input on its way to the GPU.
struct Arrival {
    pinned: Pinned,
    staged: Buffer,
    /// The copy to the GPU is done.
    arrived: Event,
    /// The staged value has been moved into place.
    taken: Event,
    waiting: bool,
}

impl Arrival {
    /// Starts the copy to the GPU.
    fn send(&mut self, cx: &Context, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: events and streams of our own; the pinned memory is written when the last copy is done.
        unsafe {
            result::event::synchronize(self.arrived.0)?;
            let pinned = &mut self.pinned.slice()[..bytes.len()];
            pinned.copy_from_slice(bytes);
            let wait = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(cx.copies, self.taken.0, wait)?;
            result::memcpy_htod_async(self.staged.start(), pinned, cx.copies)?;
            result::event::record(self.arrived.0, cx.copies)?;
        }
        Ok(())
    }

    /// Moves the value into its place, when it has arrived.
    fn take(&mut self, cx: &Context, to: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: a staged value and its place.
        unsafe {
            let wait = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(cx.stream, self.arrived.0, wait)?;
            result::memcpy_dtod_async(to, self.staged.start(), bytes, cx.stream)?;
            result::event::record(self.taken.0, cx.stream)?;
        }
        Ok(())
    }
}

struct Event(CUevent);

// SAFETY: events belong to the process's context.
unsafe impl Send for Event {}

impl Event {
    fn new() -> Result<Event, CudaError> {
        Ok(Event(result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new`.
        unsafe {
            let _ = result::event::destroy(self.0);
        }
    }
}

/// A recorded run.
struct Replay {
    graph: CUgraph,
    exec: CUgraphExec,
}

// SAFETY: as for events.
unsafe impl Send for Replay {}

impl Replay {
    fn launch(&self, cx: &Context) -> Result<(), CudaError> {
        // SAFETY: recorded on this context, on memory of the executor that owns it.
        Ok(unsafe { result::graph::launch(self.exec, cx.stream) }?)
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // SAFETY: made by `record`.
        unsafe {
            let _ = result::graph::exec_destroy(self.exec);
            let _ = result::graph::destroy(self.graph);
        }
    }
}

/// Memory and launches of one plan.
pub struct Executor {
    cx: Arc<Context>,
    plan: Plan,
    regions: [Buffer; 6],
    /// Copies of states that change without an optimiser, at the start of every run.
    refresh: Option<Joint>,
    /// All copies of states, for when a caller sets one.
    narrow: Option<Joint>,
    steps: Vec<Step>,
    arrivals: HashMap<usize, Arrival>,
    settable: HashMap<String, (Value, bool)>,
    replay: Option<Replay>,
    use_replay: bool,
    runs: usize,
    stale: bool,
    ready: bool,
    free_before: usize,
}

impl Drop for Executor {
    fn drop(&mut self) {
        let _turn = self.cx.turn();
        let _ = self.cx.bind();
        let _ = self.cx.synchronize();
    }
}

fn region_index(region: Region) -> usize {
    match region {
        Region::Arena => 0,
        Region::States => 1,
        Region::Inputs => 2,
        Region::Constants => 3,
        Region::Prepared => 4,
        Region::Copies => 5,
    }
}

/// Addresses of a plan's values.
struct Addresses<'a> {
    plan: &'a Plan,
    regions: &'a [Buffer; 6],
}

impl Addresses<'_> {
    fn at(&self, place: Place) -> u64 {
        self.regions[region_index(place.region)].at(place.offset, place.bytes)
    }

    fn of(&self, v: Value) -> u64 {
        self.at(self.plan.place(v))
    }

    fn inputs(&self, node: usize) -> Vec<u64> {
        self.plan.graph.nodes[node].inputs.iter().map(|v| self.of(*v)).collect()
    }

    fn outputs(&self, node: usize) -> Vec<u64> {
        self.plan.places[node].iter().map(|p| self.at(*p)).collect()
    }

    /// The copy of the state that node `update` updates, for the update to write to; nothing where the copy is
    /// read behind it.
    fn copy_of(&self, state: Value, update: usize) -> Option<(u64, DType)> {
        let graph = &self.plan.graph;
        let found =
            (0..graph.nodes.len()).find(|&i| graph.is_state_copy(i) && graph.nodes[i].inputs[0] == state)?;
        let copy = Value::new(found, 0);
        let late =
            graph.nodes[update..].iter().any(|n| n.inputs.iter().any(|v| graph.behind_views(*v) == copy));
        (!late).then(|| (self.of(copy), graph.nodes[found].outs[0].dtype))
    }
}

impl Executor {
    /// Takes the memory that the plan counts and makes every launch ready.
    ///
    /// # Errors
    /// If the GPU has not the memory, or a kernel cannot be had.
    pub fn new(plan: Plan, backend: &CudaBackend) -> Result<Executor, CudaError> {
        let cx = backend.cx.clone();
        let held = cx.clone();
        let _turn = held.turn();
        cx.bind()?;
        // Inputs have a place to arrive at beside the one that kernels read.
        let (needed, free) = (plan.bytes() + plan.inputs, cx.free_bytes()?);
        if needed > free {
            return Err(CudaError::NoRoom { needed, free });
        }
        let sizes = [plan.arena, plan.states, plan.inputs, plan.constants, plan.packed, plan.state_copies];
        let mut regions = vec![];
        for bytes in sizes {
            regions.push(Buffer::new(&cx, bytes)?);
        }
        let regions: [Buffer; 6] = regions.try_into().unwrap_or_else(|_| unreachable!("six sizes"));
        let at = Addresses { plan: &plan, regions: &regions };
        let steps = Builder { cx: &cx, backend, at: &at }.steps()?;
        let (refresh, narrow) = copies_of_states(&cx, &at)?;
        let mut arrivals = HashMap::new();
        for (_, v) in plan.graph.inputs() {
            let bytes = plan.place(v).bytes;
            let arrival = Arrival {
                pinned: Pinned::new(bytes)?,
                staged: Buffer::new(&cx, bytes)?,
                arrived: Event::new()?,
                taken: Event::new()?,
                waiting: false,
            };
            arrivals.insert(v.at(), arrival);
        }
        let inputs = plan.graph.inputs().map(|(name, v)| (name.to_string(), (v, false)));
        let given = |init| matches!(init, StateInit::Constant(_));
        let states = plan.graph.states().map(|(name, init, v)| (name.to_string(), (v, given(init))));
        let settable = inputs.chain(states).collect();
        cx.synchronize()?;
        fill_constants(&at)?;
        Ok(Executor {
            refresh,
            narrow,
            steps,
            arrivals,
            settable,
            replay: None,
            use_replay: true,
            runs: 0,
            stale: true,
            ready: false,
            free_before: free,
            regions,
            plan,
            cx,
        })
    }

    /// Bytes that are gone from the GPU since this session began to be made.
    pub fn taken_bytes(&self) -> usize {
        let _ = self.cx.bind();
        self.free_before.saturating_sub(self.cx.free_bytes().unwrap_or(self.free_before))
    }

    /// Whether runs are replayed as one launch; results are the same.
    pub fn set_replay(&mut self, replay: bool) {
        self.use_replay = replay;
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    fn address(&self, place: Place) -> u64 {
        self.regions[region_index(place.region)].at(place.offset, place.bytes)
    }

    /// Sets an input or a state. An input's copy runs beside what computes.
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
        let cx = self.cx.clone();
        let _turn = cx.turn();
        cx.bind()?;
        let bytes = bytes_of(tensor.data());
        if let Some(arrival) = self.arrivals.get_mut(&v.at()) {
            arrival.send(&self.cx, &bytes)?;
            arrival.waiting = true;
        } else {
            self.cx.synchronize()?;
            memory::write(self.address(self.plan.place(v)), &bytes)?;
            self.stale = true;
        }
        self.settable.insert(name.into(), (v, true));
        self.ready = false;
        Ok(())
    }

    /// A copy of an output, state or input; waits for what runs.
    ///
    /// # Errors
    /// If there is none of that name, or it is an output and nothing has run yet.
    pub fn get(&self, name: &str) -> Result<Tensor, ValueError> {
        let computed = self.plan.graph.output(name);
        if computed.is_some() && self.runs == 0 {
            return Err(ValueError::NotRun(name.into()));
        }
        let v = computed.or_else(|| self.settable.get(name).map(|s| s.0));
        let Some(v) = v else {
            let outputs = self.plan.graph.outputs.iter().map(|o| &o.name);
            return Err(ValueError::unknown("output or state", name, outputs.chain(self.settable.keys())));
        };
        let _turn = self.cx.turn();
        self.cx.bind()?;
        self.cx.synchronize()?;
        let place = self.plan.place(v);
        let from = match self.arrivals.get(&v.at()) {
            Some(arrival) if arrival.waiting => arrival.staged.start(),
            _ => self.address(place),
        };
        let mut bytes = vec![0; place.bytes];
        memory::read(from, &mut bytes)?;
        let ty = self.plan.graph.ty(v);
        let words = bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
        Ok(match ty.dtype {
            DType::I32 => Tensor::i32(ty.shape, words.map(i32::from_le_bytes).collect()),
            _ => Tensor::f32(ty.shape, words.map(f32::from_le_bytes).collect()),
        })
    }

    /// Checks that everything is set and refreshes 16-bit copies of what was.
    ///
    /// # Errors
    /// If an input or parameter has not been set.
    pub fn prepare(&mut self) -> Result<(), ValueError> {
        let cx = self.cx.clone();
        let _turn = cx.turn();
        self.make_ready()
    }

    fn make_ready(&mut self) -> Result<(), ValueError> {
        if !self.ready {
            let missing = self.settable.iter().filter(|(_, (_, set))| !set).map(|(name, _)| name).min();
            if let Some(name) = missing {
                return Err(ValueError::NotSet(name.clone()));
            }
            self.ready = true;
        }
        if std::mem::replace(&mut self.stale, false)
            && let Some(narrow) = &self.narrow
        {
            self.cx.bind()?;
            narrow.launch(&self.cx)?;
        }
        Ok(())
    }

    /// Starts a run; [`Executor::get`] and [`Executor::wait`] wait for it.
    ///
    /// # Errors
    /// If an input or parameter has not been set, or a launch fails.
    pub fn run(&mut self) -> Result<(), ValueError> {
        let cx = self.cx.clone();
        let _turn = cx.turn();
        self.begin()?;
        self.runs += 1;
        if !self.use_replay || self.runs == 1 {
            return Ok(self.launch_all()?);
        }
        if self.replay.is_none() {
            self.replay = self.record_run();
            self.use_replay = self.replay.is_some();
        }
        match &self.replay {
            Some(replay) => Ok(replay.launch(&self.cx)?),
            None => Ok(self.launch_all()?),
        }
    }

    /// A run recorded: in branches, or one launch behind the other where the driver cannot do that; nothing
    /// where a library cannot be recorded.
    fn record_run(&self) -> Option<Replay> {
        let branches = self.cx.gpu.driver >= BRANCHES_SINCE;
        let recorded = if branches { self.record(|| self.launch_branches()).ok() } else { None };
        recorded.or_else(|| self.record(|| self.launch_all()).ok())
    }

    /// Waits until everything that was started is done.
    ///
    /// # Errors
    /// What went wrong on the GPU.
    pub fn wait(&self) -> Result<(), ValueError> {
        let _turn = self.cx.turn();
        self.cx.bind()?;
        Ok(self.cx.synchronize()?)
    }

    /// As [`Executor::run`], adding each node's nanoseconds to its entry of `clock`. Each step is recorded a
    /// few times in a row and replayed, so that what is measured is the GPU and not the host; states are then
    /// not what a run would have made them.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn run_timed(&mut self, clock: &mut [u64]) -> Result<(), ValueError> {
        const TIMES: usize = 4;
        let cx = self.cx.clone();
        let _turn = cx.turn();
        self.begin()?;
        self.runs += 1;
        self.launch_all()?;
        for step in &self.steps {
            let replay = self.record(|| (0..TIMES).try_for_each(|_| step.launch(&self.cx)))?;
            let ms = self.cx.time(&mut || replay.launch(&self.cx))?;
            clock[step.node] += (f64::from(ms) * 1e6) as u64 / TIMES as u64;
        }
        Ok(())
    }

    /// Moves what was set into place.
    fn begin(&mut self) -> Result<(), ValueError> {
        self.make_ready()?;
        self.cx.bind()?;
        for (node, arrival) in self.arrivals.iter_mut().filter(|(_, a)| a.waiting) {
            let place = self.plan.places[*node][0];
            let to = self.regions[region_index(place.region)].at(place.offset, place.bytes);
            arrival.take(&self.cx, to, place.bytes)?;
            arrival.waiting = false;
        }
        Ok(())
    }

    fn launch_all(&self) -> Result<(), CudaError> {
        if let Some(refresh) = &self.refresh {
            refresh.launch(&self.cx)?;
        }
        self.steps.iter().try_for_each(|s| s.launch(&self.cx))
    }

    /// As [`Executor::launch_all`] while a recording is made: each step is put behind those that it must wait
    /// for, not behind the one before it.
    fn launch_branches(&self) -> Result<(), CudaError> {
        if let Some(refresh) = &self.refresh {
            refresh.launch(&self.cx)?;
        }
        let start = self.recorded()?;
        let accesses: Vec<Access> = self.steps.iter().map(|s| s.access.clone()).collect();
        let mut is_last = vec![true; self.steps.len()];
        let mut ends: Vec<Vec<CUgraphNode>> = Vec::with_capacity(self.steps.len());
        for (i, waits) in branches::waits(&accesses).into_iter().enumerate() {
            let mut behind = if waits.is_empty() { start.clone() } else { vec![] };
            for w in waits {
                is_last[w] = false;
                behind.extend(ends[w].iter().filter(|n| !behind.contains(n)).copied().collect::<Vec<_>>());
            }
            self.record_behind(&mut behind)?;
            self.steps[i].launch(&self.cx)?;
            ends.push(self.recorded()?);
        }
        let mut last: Vec<CUgraphNode> = vec![];
        for end in ends.iter().zip(&is_last).filter(|e| *e.1).flat_map(|e| e.0) {
            if !last.contains(end) {
                last.push(*end);
            }
        }
        self.record_behind(&mut last)
    }

    /// The launches that the next one would be recorded behind.
    fn recorded(&self) -> Result<Vec<CUgraphNode>, CudaError> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut nodes, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
        // SAFETY: our own stream, and results that are copied before the next call.
        unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.cx.stream,
                &mut status,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                &mut nodes,
                &mut edges,
                &mut count,
            )
            .result()?;
            Ok(if count == 0 { vec![] } else { std::slice::from_raw_parts(nodes, count).to_vec() })
        }
    }

    /// What is recorded next comes behind these launches and no others.
    fn record_behind(&self, nodes: &mut [CUgraphNode]) -> Result<(), CudaError> {
        let set = sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES;
        // SAFETY: nodes of the recording that our own stream makes.
        unsafe {
            let count = nodes.len();
            sys::cuStreamUpdateCaptureDependencies_v2(
                self.cx.stream,
                nodes.as_mut_ptr(),
                std::ptr::null(),
                count,
                set as u32,
            )
            .result()?;
        }
        Ok(())
    }

    fn record(&self, launch: impl FnOnce() -> Result<(), CudaError>) -> Result<Replay, CudaError> {
        // SAFETY: capture on our own stream; nothing else launches on it meanwhile.
        unsafe {
            let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            result::stream::begin_capture(self.cx.stream, mode)?;
            let launched = launch();
            let graph = result::stream::end_capture(self.cx.stream)?;
            let mut exec = std::ptr::null_mut();
            let made =
                launched.and_then(|()| Ok(sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0).result()?));
            if let Err(e) = made {
                let _ = result::graph::destroy(graph);
                return Err(e);
            }
            Ok(Replay { graph, exec })
        }
    }
}

/// Puts constants and states that begin with one value into their places.
fn fill_constants(at: &Addresses<'_>) -> Result<(), CudaError> {
    for (i, node) in at.plan.graph.nodes.iter().enumerate() {
        let Some(place) = at.plan.places[i].first().copied() else { continue };
        match &node.op {
            Op::Const(c) => memory::write(at.at(place), &bytes_of(c.0.data()))?,
            Op::State(s) => {
                if let StateInit::Constant(x) = s.init
                    && x != 0.0
                {
                    let count = place.bytes / node.outs[0].dtype.bytes();
                    let data = match node.outs[0].dtype {
                        DType::I32 => Data::I32(vec![x as i32; count]),
                        _ => Data::F32(vec![x; count]),
                    };
                    memory::write(at.at(place), &bytes_of(&data))?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Little-endian bytes of a tensor.
fn bytes_of(data: &Data) -> Vec<u8> {
    match data {
        Data::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::BF16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::F16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        other => unreachable!("graphs on the GPU hold no {}", other.dtype()),
    }
}

/// Launches of copies of states: those to refresh every run, and all.
fn copies_of_states(
    cx: &Arc<Context>,
    at: &Addresses<'_>,
) -> Result<(Option<Joint>, Option<Joint>), CudaError> {
    let graph = &at.plan.graph;
    let (mut changing, mut all) = (vec![], vec![]);
    for i in (0..graph.nodes.len()).filter(|&i| graph.is_state_copy(i)) {
        let (state, ty) = (graph.nodes[i].inputs[0], graph.nodes[i].outs[0]);
        let entry = Entry {
            param_in: at.of(state),
            narrow: at.of(Value::new(i, 0)),
            narrow_type: type_number(ty.dtype),
            count: ty.shape.len() as i64,
            ..Entry::default()
        };
        all.push(entry);
        let update = graph.updates.iter().find(|u| u.state == state.node);
        // An optimiser that updates this very state writes the copy too.
        let optimised = |v: Value| {
            matches!(graph.op(v), Op::Adam(_) | Op::Sgd(_))
                && graph.nodes[v.at()].inputs[0] == state
                && v.port() == 0
                && at.copy_of(state, v.at()).is_some()
        };
        if update.is_some_and(|u| !optimised(u.value)) {
            changing.push(entry);
        }
    }
    let none = Scalars { rate: 0, step: 0, factor: 0, decay: 0 };
    let joint = |entries: &[Entry]| {
        if entries.is_empty() { Ok(None) } else { Joint::new(cx, Rule::Narrow, entries, none).map(Some) }
    };
    Ok((joint(&changing)?, joint(&all)?))
}

/// Launches over tables touch what the tables list.
fn alone() -> Access {
    Access { alone: true, ..Access::default() }
}

/// Makes the launches of a plan.
struct Builder<'a> {
    cx: &'a Arc<Context>,
    backend: &'a CudaBackend,
    at: &'a Addresses<'a>,
}

impl Builder<'_> {
    fn graph(&self) -> &Graph {
        &self.at.plan.graph
    }

    fn steps(&self) -> Result<Vec<Step>, CudaError> {
        let mut steps = vec![];
        let nodes = self.graph().nodes.len();
        let mut i = 0;
        while i < nodes {
            let end = self.run_of(i);
            if end > i {
                self.joint(i, end, &mut steps)?;
                i = end;
                continue;
            }
            if let Op::Clip(rule) = self.graph().nodes[i].op {
                let outputs = self.at.outputs(i);
                let clip = Clipping::new(self.cx, rule, &self.at.inputs(i), [outputs[0], outputs[1]])?;
                steps.push(Step { node: i, work: Work::Clip(clip), access: alone() });
            } else if let Some(kernel) = self.backend.kernel(self.graph(), i)? {
                let place = self.at.plan.workspaces[i];
                assert!(place.bytes >= kernel.workspace, "the plan was made for another GPU");
                let work = Work::Node {
                    kernel,
                    inputs: self.at.inputs(i),
                    outputs: self.at.outputs(i),
                    workspace: self.at.at(place),
                };
                steps.push(Step { node: i, work, access: self.access(i) });
            }
            i += 1;
        }
        for (v, to) in &self.at.plan.copies {
            let work = Work::Copy { from: self.at.of(*v), to: self.at.at(*to), bytes: to.bytes };
            steps.push(Step { node: v.at(), work, access: alone() });
        }
        Ok(steps)
    }

    /// What a node's kernel reads and writes.
    fn access(&self, i: usize) -> Access {
        let range = |p: Place| {
            let start = self.at.at(p);
            start..start + p.bytes as u64
        };
        let plan = self.at.plan;
        let mut writes: Vec<_> = plan.places[i].iter().copied().map(range).collect();
        writes.extend(Some(plan.workspaces[i]).filter(|w| w.bytes > 0).map(range));
        let reads = self.graph().nodes[i].inputs.iter().map(|v| range(plan.place(*v))).collect();
        Access { reads, writes, alone: false }
    }

    /// What kind of joint launch a node belongs to.
    fn kind(&self, i: usize) -> Option<u8> {
        let n = &self.graph().nodes[i];
        match n.op {
            Op::Adam(_) | Op::Sgd(_) | Op::Ema => Some(0),
            Op::Reduce(Reduce { kind: ReduceKind::SumSquares, .. }) if n.outs[0].shape.len() == 1 => Some(1),
            _ => None,
        }
    }

    /// The end of the longest run of nodes from `i` that are launched together; sources and views between
    /// them launch nothing.
    fn run_of(&self, i: usize) -> usize {
        let Some(kind) = self.kind(i) else { return i };
        let mut end = i + 1;
        let mut last = i + 1;
        while end < self.graph().nodes.len() {
            if self.kind(end) == Some(kind) {
                last = end + 1;
            } else if !self.is_silent(end) {
                break;
            }
            end += 1;
        }
        last
    }

    fn is_silent(&self, i: usize) -> bool {
        let op = &self.graph().nodes[i].op;
        op.is_view()
            || self.graph().is_state_copy(i)
            || matches!(op, Op::Input(_) | Op::State(_) | Op::Const(_))
    }

    fn joint(&self, from: usize, to: usize, steps: &mut Vec<Step>) -> Result<(), CudaError> {
        let members: Vec<usize> = (from..to).filter(|&i| self.kind(i).is_some()).collect();
        if self.kind(from) == Some(1) {
            let entries: Vec<Entry> = members.iter().map(|&i| self.squares(i)).collect();
            let work = Work::Squares(Squares::new(self.cx, &entries)?);
            steps.push(Step { node: from, work, access: alone() });
            return Ok(());
        }
        // One launch for each rule and set of scalars: an optimiser, with the averages that follow it.
        let mut groups: Vec<(Rule, Scalars, Vec<Entry>, usize)> = vec![];
        let mut by_output: HashMap<Value, (usize, usize)> = HashMap::new();
        for &i in &members {
            let (rule, scalars, entry) = self.update(i);
            let averaged = self.graph().nodes[i].inputs.get(1).and_then(|v| by_output.get(v)).copied();
            if let (Rule::Ema, Some((group, at))) = (rule, averaged) {
                let (_, s, entries, _) = &mut groups[group];
                let free = entries[at].average == 0;
                if free && (s.decay == 0 || s.decay == scalars.decay) && s.factor == scalars.factor {
                    s.decay = scalars.decay;
                    entries[at].average = entry.average;
                    entries[at].average_in = entry.average_in;
                    continue;
                }
            }
            // An optimiser's decay is that of the averages that joined it.
            let same = |g: &(Rule, Scalars, Vec<Entry>, usize)| {
                let decay = if rule == Rule::Ema { g.1.decay } else { scalars.decay };
                g.0 == rule && Scalars { decay, ..g.1 } == scalars
            };
            let group = groups.iter().position(same).unwrap_or_else(|| {
                groups.push((rule, scalars, vec![], i));
                groups.len() - 1
            });
            if rule != Rule::Ema {
                by_output.insert(Value::new(i, 0), (group, groups[group].2.len()));
            }
            groups[group].2.push(entry);
        }
        // Averages that joined no optimiser read what the optimisers wrote.
        groups.sort_by_key(|g| g.0 == Rule::Ema);
        for (rule, scalars, entries, node) in groups {
            let work = Work::Joint(Joint::new(self.cx, rule, &entries, scalars)?);
            steps.push(Step { node, work, access: alone() });
        }
        Ok(())
    }

    fn squares(&self, i: usize) -> Entry {
        let v = self.graph().nodes[i].inputs[0];
        let ty = self.graph().ty(v);
        Entry {
            param: self.at.outputs(i)[0],
            grad: self.at.of(v),
            grad_type: type_number(ty.dtype),
            count: ty.shape.len() as i64,
            ..Entry::default()
        }
    }

    fn update(&self, i: usize) -> (Rule, Scalars, Entry) {
        let node = &self.graph().nodes[i];
        let (x, y) = (self.at.inputs(i), self.at.outputs(i));
        let count = node.outs[0].shape.len() as i64;
        let (narrow, narrow_type) = self
            .at
            .copy_of(node.inputs[0], i)
            .map_or((0, 0), |(address, dtype)| (address, type_number(dtype)));
        let grad_type = type_number(self.graph().ty(node.inputs[1]).dtype);
        match node.op {
            Op::Adam(rule) => (
                Rule::Adam(rule),
                Scalars { rate: x[4], step: x[5], factor: x[6], decay: 0 },
                Entry {
                    param: y[0],
                    param_in: x[0],
                    grad: x[1],
                    first: y[1],
                    first_in: x[2],
                    second: y[2],
                    second_in: x[3],
                    narrow,
                    narrow_type,
                    grad_type,
                    count,
                    ..Entry::default()
                },
            ),
            Op::Sgd(rule) => (
                Rule::Sgd(rule),
                Scalars { rate: x[3], step: 0, factor: x[4], decay: 0 },
                Entry {
                    param: y[0],
                    param_in: x[0],
                    grad: x[1],
                    first: y[1],
                    first_in: x[2],
                    narrow,
                    narrow_type,
                    grad_type,
                    count,
                    ..Entry::default()
                },
            ),
            _ => (
                Rule::Ema,
                Scalars { rate: 0, step: 0, factor: x[3], decay: x[2] },
                Entry { average: y[0], average_in: x[0], param_in: x[1], count, ..Entry::default() },
            ),
        }
    }
}
