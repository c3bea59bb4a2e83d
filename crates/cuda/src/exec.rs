//! The executor: a plan's memory on the GPU, and runs of its launches.
//!
//! The first run launches kernel by kernel, so that libraries load what they need; the second is recorded,
//! and from then on a run is one launch ([`replay`]). [`steps`] makes the launches, [`arrival`] brings inputs;
//! a run begins with moving what was set into place.

mod arrival;
mod exchange;
pub(crate) mod replay;
mod squares;
mod steps;

use crate::backend::CudaBackend;
use crate::context::Context;
use crate::error::CudaError;
use crate::lower::update::Joint;
use crate::memory::{self, Buffer};
use crate::nccl::Communicator;
use arrival::Arrival;
use clearshot_graph::exchange::Exchange;
use clearshot_graph::ops::int8::WholeWeight;
use clearshot_graph::ops::{Float8, Whole, float8};
use clearshot_graph::plan::{DEVICE_REGIONS, Place, Plan, Region};
use clearshot_graph::{Op, StateInit, Value, ValueError};
use clearshot_tensor::{DType, Data, Tensor};
use exchange::Buckets;
use half::{bf16, f16};
use replay::{Replay, record, record_run};
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};
use steps::{Addresses, Builder, Launches, copies_of_states};

/// Memory and launches of one plan.
pub struct Executor {
    cx: Arc<Context>,
    plan: Plan,
    regions: [Buffer; DEVICE_REGIONS],
    /// All copies of states, for when a caller sets one.
    narrow: Option<Joint>,
    launches: Launches,
    arrivals: HashMap<usize, Arrival>,
    /// States that the device has only copies of, by node.
    on_host: HashMap<usize, Tensor>,
    settable: HashMap<String, (Value, bool)>,
    /// The run, without gradients that travel and with them, and which of the two has been launched step by step.
    replays: [Option<Replay>; 2],
    launched: [bool; 2],
    use_replay: bool,
    /// Behind what records its kernels: an aborted communicator goes when the recordings are gone.
    buckets: Buckets,
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
        // Kernels that cannot be compiled are told here, and their code is not counted as this session's memory.
        backend.load()?;
        // Inputs have a place to arrive at beside the one that kernels read.
        let (needed, free) = (plan.bytes() + plan.inputs, cx.free_bytes()?);
        if needed > free {
            return Err(CudaError::NoRoom { needed, free });
        }
        let mut regions = vec![];
        for bytes in plan.region_bytes() {
            regions.push(Buffer::new(&cx, bytes)?);
        }
        let regions: [Buffer; DEVICE_REGIONS] =
            regions.try_into().unwrap_or_else(|_| unreachable!("as many as sizes"));
        let at = Addresses { plan: &plan, regions: &regions };
        let buckets = Buckets::of(&at);
        let steps = Builder { cx: &cx, backend, at: &at, buckets: &buckets }.steps()?;
        let (refresh, narrow) = copies_of_states(&cx, &at)?;
        backend.load()?;
        let mut arrivals = HashMap::new();
        for (_, v) in plan.graph.inputs() {
            let bytes = plan.place(v).bytes;
            arrivals.insert(v.at(), Arrival::new(&cx, bytes)?);
        }
        let inputs = plan.graph.inputs().map(|(name, v)| (name.to_string(), (v, false)));
        let given = |init| matches!(init, StateInit::Constant(_));
        let states = plan.graph.states().map(|(name, init, v)| (name.to_string(), (v, given(init))));
        let settable = inputs.chain(states).collect();
        cx.synchronize()?;
        fill_constants(&at)?;
        Ok(Executor {
            narrow,
            launches: Launches::new(refresh, steps),
            arrivals,
            on_host: HashMap::new(),
            settable,
            replays: [None, None],
            launched: [false; 2],
            use_replay: true,
            buckets,
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

    /// Lets all-reduces go by way of the host; runs are then launched step by step. Without a carrier there is one rank.
    ///
    /// # Errors
    /// If the host has not the memory.
    pub fn set_exchange(&mut self, exchange: Arc<dyn Exchange>) -> Result<(), CudaError> {
        let cx = self.cx.clone();
        let _turn = cx.turn();
        cx.bind()?;
        cx.synchronize()?;
        self.forget_runs();
        self.buckets.over_host(exchange)
    }

    /// Lets all-reduces go over NCCL, gradients in `dtype`; with `overlaps` beside what computes. Recorded runs have them too.
    ///
    /// # Errors
    /// If the GPU has not the memory, or a kernel cannot be had.
    pub fn set_communicator(
        &mut self,
        communicator: Arc<Communicator>,
        dtype: DType,
        overlaps: bool,
    ) -> Result<(), CudaError> {
        let cx = self.cx.clone();
        let _turn = cx.turn();
        cx.bind()?;
        cx.synchronize()?;
        self.forget_runs();
        self.buckets.over_nccl(&cx, communicator, dtype, overlaps)
    }

    fn forget_runs(&mut self) {
        self.replays = [None, None];
        self.launched = [false; 2];
    }

    /// Whether gradients travel in the next runs, as they do by default; other values of all-reduces do in any.
    pub fn set_gradients_travel(&mut self, travel: bool) {
        self.buckets.gradients = travel;
    }

    /// Whether runs are replayed by now: not before the second, and not by way of the host.
    pub fn is_recorded(&self) -> bool {
        self.replays.iter().any(Option::is_some)
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    fn address(&self, place: Place) -> u64 {
        self.regions[place.region.index()].at(place.offset, place.bytes)
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
            arrival.send(&self.cx, bytes)?;
        } else if self.plan.place(v).region == Region::Host {
            self.cx.synchronize()?;
            self.write_copies(v, tensor)?;
            self.on_host.insert(v.at(), tensor.clone());
        } else {
            self.cx.synchronize()?;
            // SAFETY: the place of a value as large, in memory of this executor.
            unsafe { memory::write(self.address(self.plan.place(v)), bytes) }?;
            self.stale = true;
        }
        self.settable.insert(name.into(), (v, true));
        self.ready = false;
        Ok(())
    }

    /// Fills the copies that the device has of a state of the host's.
    fn write_copies(&self, state: Value, tensor: &Tensor) -> Result<(), CudaError> {
        let graph = &self.plan.graph;
        for i in (0..graph.nodes.len()).filter(|&i| graph.is_state_copy(i)) {
            if graph.nodes[i].inputs[0] == state {
                let with = graph.nodes[i].inputs.get(1).map(|v| graph.op(*v));
                let narrow = narrowed(tensor, &graph.nodes[i].op, with);
                // SAFETY: the place of a value as large, in memory of this executor.
                unsafe { memory::write(self.address(self.plan.places[i][0]), bytes_of(&narrow)) }?;
            }
        }
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
        let place = self.plan.place(v);
        if place.region == Region::Host {
            return self.on_host.get(&v.at()).cloned().ok_or_else(|| ValueError::NotSet(name.into()));
        }
        let _turn = self.cx.turn();
        self.cx.bind()?;
        self.cx.synchronize()?;
        self.buckets.check()?;
        let from = match self.arrivals.get(&v.at()) {
            Some(arrival) if arrival.waiting => arrival.staged(),
            _ => self.address(place),
        };
        let mut bytes = vec![0; place.bytes];
        // SAFETY: the place of a value as large, in memory of this executor.
        unsafe { memory::read(from, &mut bytes) }?;
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
            // SAFETY: a table of states and their copies, in memory of this executor.
            unsafe { narrow.launch(&self.cx) }?;
        }
        Ok(())
    }

    /// Starts a run; [`Executor::get`] and [`Executor::wait`] wait for it.
    ///
    /// # Errors
    /// If an input or parameter has not been set, or a launch fails.
    pub fn run(&mut self) -> Result<(), ValueError> {
        let cx = self.cx.clone();
        let turn = cx.turn();
        self.begin()?;
        self.runs += 1;
        let kind = usize::from(self.buckets.gradients);
        let is_first = !std::mem::replace(&mut self.launched[kind], true);
        if !self.use_replay || is_first || self.buckets.are_by_host() {
            return self.launch(&cx, turn).map(|_| ());
        }
        if self.replays[kind].is_none() {
            self.replays[kind] = record_run(&cx, &self.launches, &self.buckets);
            self.use_replay = self.replays[kind].is_some();
        }
        match &self.replays[kind] {
            Some(replay) => {
                let _calls = self.buckets.calls()?;
                Ok(replay.launch(&cx)?)
            }
            None => self.launch(&cx, turn).map(|_| ()),
        }
    }

    /// Launches step by step. What travels by way of the host is waited for in between, and the turn given to others meanwhile.
    fn launch<'t>(
        &self,
        cx: &'t Context,
        mut turn: MutexGuard<'t, ()>,
    ) -> Result<MutexGuard<'t, ()>, ValueError> {
        self.buckets.check()?;
        if !self.buckets.are_by_host() {
            self.launches.launch(cx, &self.buckets)?;
            return Ok(turn);
        }
        self.launches.refresh(cx)?;
        for step in &self.launches.steps {
            if let Some(bucket) = step.awaited().filter(|b| self.buckets.must_be_fetched(*b)) {
                drop(turn);
                self.buckets.fetch(bucket)?;
                turn = cx.turn();
            }
            step.launch(cx, &self.buckets)?;
        }
        Ok(turn)
    }

    /// Waits until everything that was started is done.
    ///
    /// # Errors
    /// What went wrong on the GPU.
    pub fn wait(&self) -> Result<(), ValueError> {
        let _turn = self.cx.turn();
        self.cx.bind()?;
        self.cx.synchronize()?;
        Ok(self.buckets.check()?)
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
        let turn = cx.turn();
        self.begin()?;
        self.runs += 1;
        // A run that does not count leaves nothing behind in whoever carries gradients.
        let travel = std::mem::replace(&mut self.buckets.gradients, false);
        let launched = self.launch(&cx, turn);
        self.buckets.gradients = travel;
        let _turn = launched?;
        // Exchanges take their time from other ranks, which would have to do the same.
        for step in self.launches.steps.iter().filter(|s| !s.is_exchange()) {
            let replay =
                record(&self.cx, || (0..TIMES).try_for_each(|_| step.launch(&self.cx, &self.buckets)))?;
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
            let to = self.regions[place.region.index()].at(place.offset, place.bytes);
            // SAFETY: `at` checks that the place is inside the region.
            unsafe { arrival.take(&self.cx, to, place.bytes) }?;
        }
        Ok(())
    }
}

/// Puts constants and states that begin with one value into their places.
fn fill_constants(at: &Addresses<'_>) -> Result<(), CudaError> {
    for (i, node) in at.plan.graph.nodes.iter().enumerate() {
        let Some(place) = at.plan.places[i].first().copied() else { continue };
        match &node.op {
            // SAFETY: the place of a value as large, in memory of this executor.
            Op::Const(c) => unsafe { memory::write(at.at(place), bytes_of(c.0.data())) }?,
            Op::State(s) => {
                if let StateInit::Constant(x) = s.init
                    && x != 0.0
                {
                    let count = place.bytes / node.outs[0].dtype.bytes();
                    let data = match node.outs[0].dtype {
                        DType::I32 => Data::I32(vec![x as i32; count]),
                        _ => Data::F32(vec![x; count]),
                    };
                    // SAFETY: the place of a value as large, in memory of this executor.
                    unsafe { memory::write(at.at(place), bytes_of(&data)) }?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// A copy of a state, rounded as the GPU rounds; `with` is the constant that it depends on too.
fn narrowed(tensor: &Tensor, copy: &Op, with: Option<&Op>) -> Data {
    match (tensor.data(), copy) {
        (Data::F32(v), Op::Cast(DType::BF16)) => Data::BF16(v.iter().map(|x| bf16::from_f32(*x)).collect()),
        (Data::F32(v), Op::Cast(DType::F16)) => Data::F16(v.iter().map(|x| f16::from_f32(*x)).collect()),
        (Data::F32(v), Op::Float8(part)) => {
            let scales = float8::scales(v, tensor.shape()[0]);
            match part {
                Float8::Values => Data::F8(float8::values(v, &scales)),
                Float8::Scales => Data::F32(scales),
            }
        }
        (Data::F32(v), Op::Whole(part)) => {
            let steps = match with {
                Some(Op::Const(c)) => c.0.data(),
                other => unreachable!("a copy that depends on {other:?}"),
            };
            let Data::F32(steps) = steps else { unreachable!("steps of {}", steps.dtype()) };
            let made = WholeWeight::new(v, tensor.shape()[0], steps);
            match part {
                Whole::Values => Data::I8(made.values),
                Whole::Scales => Data::F32(made.scales),
                Whole::Offsets => Data::I32(made.offsets),
            }
        }
        (data, _) => unreachable!("a state of {} with a copy by {}", data.dtype(), copy.name()),
    }
}

/// A tensor's bytes: hosts of these GPUs keep the lowest first, as the GPUs do.
fn bytes_of(data: &Data) -> &[u8] {
    fn plain<T: Copy>(items: &[T]) -> &[u8] {
        // SAFETY: numbers without padding, read as bytes.
        unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), size_of_val(items)) }
    }
    match data {
        Data::F32(v) => plain(v),
        Data::I32(v) => plain(v),
        Data::BF16(v) => plain(v),
        Data::F16(v) => plain(v),
        Data::F8(v) => plain(v),
        Data::I8(v) => plain(v),
        other => unreachable!("graphs on the GPU hold no {}", other.dtype()),
    }
}
