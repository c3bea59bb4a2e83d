//! Sessions: compiled graphs with their memory.

use crate::device::Device;
use crate::memory::{Planned, available_bytes, peak_bytes};
use crate::precision::{Arithmetic, Precision, on_cpu};
use crate::traced::{Copy, Traced};
use clearshot_cpu::TARGET as CPU_TARGET;
use clearshot_cpu::exec::{CpuBackend, Executor as CpuExecutor, MemoryError, ValueError};
use clearshot_cpu::lower::Machine;
use clearshot_cuda::{
    Ceilings, Communicator, Cost, CudaBackend, CudaError, Executor as CudaExecutor, TARGET as CUDA_TARGET,
};
use clearshot_graph::exchange::Exchange;
use clearshot_graph::passes::delay::delay;
use clearshot_graph::passes::eighths::{self, Eighth};
use clearshot_graph::passes::recompute::{BudgetError, recompute, spare};
use clearshot_graph::passes::{Target, optimise, precision};
use clearshot_graph::plan::{Backend, Plan, human};
use clearshot_graph::{Graph, Op, VerifyError};
use clearshot_tensor::{DType, Tensor};
use clearshot_timeline::{Phase, span};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Run the passes; without them every node is a kernel of its own.
    pub optimise: bool,
    /// The most bytes that a run may take; what does not fit is recomputed.
    pub budget: Option<usize>,
    /// The type of stored images and of products.
    pub precision: Precision,
}

impl Default for Options {
    fn default() -> Options {
        Options { optimise: true, budget: None, precision: Precision::Auto }
    }
}

/// Why a graph cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    #[error(transparent)]
    Graph(#[from] VerifyError),
    #[error(transparent)]
    Budget(#[from] BudgetError),
    #[error("{device} computes on f32 and i32, not on {dtype}: {node}")]
    Type { device: &'static str, dtype: DType, node: String },
    #[error(
        "{device}'s kernels have no {what}: {node}; give the parts as nodes of their own, passes fuse what can be"
    )]
    Form { device: &'static str, what: &'static str, node: String },
    #[error("the CPU computes in fp32 and bf16; {0} needs a GPU")]
    Precision(Precision),
    #[error(
        "this processor has no products of bf16 (AVX512_BF16); compute in fp32, which is the default, or with a model in 8 bits"
    )]
    NoBf16,
    #[error(
        "{asked} needs a GPU of compute capability 9.0 (H100, H200, GH200), and {name} has {}.{}; compute in bf16",
        have.0,
        have.1
    )]
    NoEighths { asked: Precision, name: String, have: (i32, i32) },
    #[error("{0} is for inference; train in bf16")]
    EighthTrains(Precision),
    #[error(
        "int8 needs a quantised model, and this one is not: quantise it, or compute in another precision"
    )]
    NotQuantised,
    #[error("{0} needs a GPU")]
    NotOnCpu(&'static str),
    #[error("the CPU trains in fp32; training in bf16 needs a GPU")]
    TrainsInF32,
    #[error("running takes {} and {} are free; take a smaller batch or size, or set a budget", human(*needed), human(*free))]
    NoRoom {
        needed: usize,
        free: usize,
        /// The part of the memory that does not grow with the batch, if known.
        fixed: usize,
    },
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Cuda(CudaError),
}

impl From<CudaError> for CompileError {
    fn from(e: CudaError) -> CompileError {
        match e {
            CudaError::NoRoom { needed, free } => CompileError::NoRoom { needed, free, fixed: 0 },
            other => CompileError::Cuda(other),
        }
    }
}

/// The share of a run's work that a GPU may do again to spare its memory, where no budget is given.
const SPARED: f64 = 0.02;

/// What a device's plans are made with.
enum Compiler {
    Cpu(CpuBackend, Arithmetic),
    Cuda(CudaBackend, Arithmetic),
}

impl Compiler {
    fn new(graph: &Graph, device: &Device, options: &Options) -> Result<Compiler, CompileError> {
        match *device {
            Device::Cpu { threads, level } => {
                let (arithmetic, bf16) = on_cpu(options.precision, graph, level)?;
                let machine = Machine { bf16, ..Machine::new(level, threads.max(1)) };
                Ok(Compiler::Cpu(CpuBackend::new(machine), arithmetic))
            }
            Device::Cuda { ordinal } => {
                let gpus = clearshot_cuda::gpus().map_err(CudaError::from)?;
                let count = gpus.len();
                let gpu = gpus.into_iter().find(|g| g.ordinal == ordinal);
                let missing = clearshot_cuda::Unavailable::NoSuchDevice { asked: ordinal, count };
                let gpu = gpu.ok_or(CudaError::from(missing))?;
                let arithmetic = options.precision.choose(graph, &gpu)?;
                Ok(Compiler::Cuda(CudaBackend::new(ordinal, arithmetic.math)?, arithmetic))
            }
        }
    }

    fn backend(&self) -> &dyn Backend {
        match self {
            Compiler::Cpu(b, _) => b,
            Compiler::Cuda(b, _) => b,
        }
    }

    fn cost(&self) -> Cost {
        match self {
            Compiler::Cpu(..) => Cost::default(),
            Compiler::Cuda(b, _) => b.cost(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Compiler::Cpu(..) => "the CPU",
            Compiler::Cuda(..) => "the GPU",
        }
    }

    /// `must_fit`: whether a graph that is far too large for the device is refused before anything is measured.
    fn plan(&self, graph: Graph, options: &Options, must_fit: bool) -> Result<Plan, CompileError> {
        graph.verify("as given")?;
        self.check_types(&graph)?;
        let target = match self {
            Compiler::Cpu(..) => &CPU_TARGET,
            Compiler::Cuda(_, arithmetic) => {
                &Target { whole: arithmetic.eighth == Some(Eighth::Whole), ..CUDA_TARGET }
            }
        };
        let mut graph = if options.optimise { optimise(graph, target)? } else { graph.tidy() };
        for (i, node) in graph.nodes.iter().enumerate() {
            if let Some(what) = target.lacks(&node.op) {
                return Err(CompileError::Form { device: self.name(), what, node: graph.line(i) });
            }
        }
        if let Compiler::Cuda(_, Arithmetic { narrow: Some(dtype), eighth, .. }) = self {
            graph = precision::narrow(graph, *dtype);
            graph.verify("precision")?;
            if let Some(eighth) = eighth {
                graph = eighths::shortcuts(eighths::convolutions(graph, *eighth));
                graph.verify("8 bits")?;
            }
        }
        // The CPU's arrangements of memory gain nothing from another order.
        let spares = options.optimise && matches!(self, Compiler::Cuda(..));
        if let Compiler::Cuda(backend, _) = self {
            if must_fit && options.budget.is_none() {
                check_room(&graph, backend)?;
            }
            backend.begin(&graph)?;
        }
        if spares {
            graph = delay(graph, self.backend());
            graph.verify("delay")?;
        }
        let plan = match options.budget {
            Some(budget) => self.fit(graph, budget),
            None => {
                // Running forward only holds little, and is over too soon to do anything twice.
                if spares && !graph.updates.is_empty() {
                    graph = spare(graph, SPARED, self.backend());
                    graph.verify("spare")?;
                }
                Ok(Plan::new(graph, self.backend()))
            }
        };
        if let Compiler::Cuda(backend, _) = self {
            backend.check()?;
        }
        plan
    }

    /// What graphs hold before precision is chosen.
    fn check_types(&self, graph: &Graph) -> Result<(), CompileError> {
        for (i, node) in graph.nodes.iter().enumerate() {
            if let Some(t) = node.outs.iter().find(|t| !matches!(t.dtype, DType::F32 | DType::I32)) {
                return Err(CompileError::Type { device: self.name(), dtype: t.dtype, node: graph.line(i) });
            }
        }
        Ok(())
    }

    /// Recomputes until the arranged plan fits, not only the sum of what is alive: a goal that the
    /// arrangement exceeds is lowered by as much.
    fn fit(&self, graph: Graph, budget: usize) -> Result<Plan, CompileError> {
        let (mut graph, mut goal) = (graph, budget);
        loop {
            graph = recompute(graph, goal, self.backend()).map_err(|e| BudgetError { budget, ..e })?;
            let plan = Plan::new(graph, self.backend());
            if plan.bytes() <= budget {
                plan.graph.verify("recompute")?;
                return Ok(plan);
            }
            goal = goal.saturating_sub((plan.bytes() - budget).max(budget / 100));
            graph = plan.graph;
        }
    }
}

/// A backend whose kernels need no scratch, which is not known before they are chosen.
struct WithoutScratch<'a>(&'a CudaBackend);

impl Backend for WithoutScratch<'_> {
    fn workspace(&self, _: &Graph, _: usize) -> usize {
        0
    }

    fn prepared(&self, _: &Graph, _: usize) -> usize {
        0
    }

    fn norm_gradient_in_place(&self) -> bool {
        self.0.norm_gradient_in_place()
    }

    fn keeps_states_on_host(&self) -> bool {
        self.0.keeps_states_on_host()
    }
}

/// Refuses a graph that no order and no cheap recomputation would make fit. Choosing kernels for images of that size would
/// take minutes.
fn check_room(graph: &Graph, backend: &CudaBackend) -> Result<(), CompileError> {
    let (plan, free) = (Plan::new(graph.clone(), &WithoutScratch(backend)), backend.free_bytes()?);
    let needed = plan.bytes();
    // They win less than a third.
    if needed / 3 * 2 > free {
        return Err(CompileError::NoRoom { needed, free, fixed: fixed_bytes(&plan) });
    }
    Ok(())
}

/// The part that does not grow with the batch.
fn fixed_bytes(plan: &Plan) -> usize {
    plan.states + plan.state_copies + plan.constants + plan.packed
}

/// A plan for a device, without taking the memory that it counts.
///
/// # Errors
/// If the graph is not sound or not for this device, or the budget cannot be met.
pub fn plan(graph: Graph, device: &Device, options: &Options) -> Result<Plan, CompileError> {
    Compiler::new(&graph, device, options)?.plan(graph, options, false)
}

/// Compiles a graph for a device.
///
/// # Errors
/// As [`plan`], or if the device has not the memory.
pub fn compile(graph: Graph, device: &Device, options: &Options) -> Result<Session, CompileError> {
    let _span = span(Phase::Compiling);
    let mut clock = Instant::now();
    let mut lap = || std::mem::replace(&mut clock, Instant::now()).elapsed();
    let compiler = Compiler::new(&graph, device, options)?;
    let (start, before) = (lap(), compiler.cost());
    let plan = compiler.plan(graph, options, true)?;
    let fixed = fixed_bytes(&plan);
    let counted = matches!(device, Device::Cpu { .. }).then(|| Planned::new(plan.bytes()));
    let (planned, planning) = (lap(), compiler.cost().since(&before));
    let engine = match &compiler {
        Compiler::Cpu(backend, arithmetic) => {
            // The system promises more than it has and ends who takes it at its word; the plan knows better.
            let (needed, free) = (plan.bytes(), available_bytes().unwrap_or(usize::MAX));
            if needed > free {
                return Err(CompileError::NoRoom { needed, free, fixed });
            }
            Engine::Cpu(Box::new(CpuExecutor::new(plan, backend)?), *arithmetic)
        }
        Compiler::Cuda(backend, arithmetic) => {
            let made = CudaExecutor::new(plan, backend).map_err(|e| match CompileError::from(e) {
                CompileError::NoRoom { needed, free, .. } => CompileError::NoRoom { needed, free, fixed },
                other => other,
            })?;
            let is_scaled = |op: &Op| matches!(op, Op::Conv(c) if c.scaled);
            let has_some = made.plan().graph.nodes.iter().any(|n| is_scaled(&n.op));
            let eighth = arithmetic.eighth.filter(|_| has_some);
            Engine::Cuda(Box::new(made), Arithmetic { eighth, ..*arithmetic })
        }
    };
    let cost = compiler.cost().since(&before);
    let set_up = SetUp {
        start,
        plan: planned.saturating_sub(planning.waited + planning.measuring),
        compile: cost.waited,
        measure: cost.measuring,
        memory: lap().saturating_sub(cost.since(&planning).waited),
        compiled: cost.compiled,
        measured: cost.measured,
    };
    Ok(Session { device: *device, engine, set_up, traced: Traced::default(), _counted: counted })
}

/// What making a session took, by phases. On a GPU, sessions that are made at the same time share the
/// compiler, and each counts what the others wait for too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetUp {
    /// Finding the device and its libraries.
    pub start: Duration,
    /// The passes over the graph, the kernels for its nodes and the places in memory.
    pub plan: Duration,
    /// Waiting for kernels to be compiled.
    pub compile: Duration,
    /// Measuring which way of computing is the fastest.
    pub measure: Duration,
    /// Taking the memory and filling in constants.
    pub memory: Duration,
    /// Programs that were compiled and choices that were measured; the rest lay in the cache.
    pub compiled: usize,
    pub measured: usize,
}

/// The time that one node took, summed over runs.
#[derive(Clone, Copy, Debug)]
pub struct NodeTime {
    pub node: usize,
    pub nanoseconds: u64,
}

pub(crate) enum Engine {
    Cpu(Box<CpuExecutor>, Arithmetic),
    Cuda(Box<CudaExecutor>, Arithmetic),
}

fn bytes_of(value: &Tensor) -> usize {
    value.shape().len() * value.dtype().bytes()
}

/// A compiled graph with its memory.
pub struct Session {
    device: Device,
    pub(crate) engine: Engine,
    set_up: SetUp,
    /// The description of its nodes for a timeline.
    pub(crate) traced: Traced,
    _counted: Option<Planned>,
}

/// Calls a method that the executors of all devices have.
macro_rules! either {
    ($session:ident, $e:ident => $call:expr) => {
        match &$session.engine {
            Engine::Cpu($e, _) => $call,
            Engine::Cuda($e, _) => $call,
        }
    };
    (mut $session:ident, $e:ident => $call:expr) => {
        match &mut $session.engine {
            Engine::Cpu($e, _) => $call,
            Engine::Cuda($e, _) => $call,
        }
    };
}

impl Session {
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The time of making it.
    pub fn set_up(&self) -> &SetUp {
        &self.set_up
    }

    pub fn plan(&self) -> &Plan {
        either!(self, e => e.plan())
    }

    /// How it computes: the precision that was asked for, or chosen.
    pub fn arithmetic(&self) -> Arithmetic {
        match &self.engine {
            Engine::Cpu(_, arithmetic) | Engine::Cuda(_, arithmetic) => *arithmetic,
        }
    }

    /// Sets an input or state by name.
    ///
    /// # Errors
    /// If there is none of that name, or its type or shape is another.
    pub fn set(&mut self, name: &str, value: &Tensor) -> Result<(), ValueError> {
        let _copy = Copy::begin(name, bytes_of(value));
        either!(mut self, e => e.set(name, value))
    }

    /// A copy of an output or state by name. Waits for a run that is under way.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn get(&self, name: &str) -> Result<Tensor, ValueError> {
        let copy = Copy::begin(name, 0);
        let value = either!(self, e => e.get(name))?;
        copy.ended(bytes_of(&value));
        Ok(value)
    }

    /// Does what a first run does besides running: checks that all is set, packs weights.
    ///
    /// # Errors
    /// If an input or parameter has not been set.
    pub fn prepare(&mut self) -> Result<(), ValueError> {
        either!(mut self, e => e.prepare())
    }

    /// Runs the graph once; on a GPU it starts the run, and [`Session::wait`] or [`Session::get`] wait for
    /// it. Allocates nothing, unless weights were set since the last run.
    ///
    /// # Errors
    /// If an input or parameter has not been set.
    pub fn run(&mut self) -> Result<(), ValueError> {
        match clearshot_timeline::is_active() {
            true => self.run_traced(),
            false => either!(mut self, e => e.run()),
        }
    }

    /// Waits until every run is done.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn wait(&self) -> Result<(), ValueError> {
        match &self.engine {
            Engine::Cpu(..) => Ok(()),
            Engine::Cuda(e, _) => e.wait(),
        }
    }

    /// The most memory taken: by the process on the CPU, where the system tells it; by this session, with
    /// what the libraries took when it was made, on a GPU.
    pub fn peak_bytes(&self) -> Option<usize> {
        match &self.engine {
            Engine::Cpu(..) => peak_bytes(),
            Engine::Cuda(e, _) => Some(e.taken_bytes()),
        }
    }

    /// The measured peak of the device; `None` on the CPU.
    ///
    /// # Errors
    /// If a GPU has not the memory to measure.
    pub fn ceilings(&self) -> Result<Option<Ceilings>, CompileError> {
        match (&self.engine, self.device) {
            (Engine::Cuda(_, a), Device::Cuda { ordinal }) => {
                let dtype = a.narrow.unwrap_or(DType::F32);
                Ok(Some(clearshot_cuda::ceilings(ordinal, dtype, a.math)?))
            }
            _ => Ok(None),
        }
    }

    /// Uses this for all-reduces between ranks, through host memory; without it there is one rank.
    ///
    /// # Errors
    /// If there is no memory that a GPU could copy to by itself.
    pub fn set_exchange(&mut self, exchange: Arc<dyn Exchange>) -> Result<(), CompileError> {
        match &mut self.engine {
            Engine::Cpu(e, _) => e.set_exchange(exchange),
            Engine::Cuda(e, _) => e.set_exchange(exchange)?,
        }
        Ok(())
    }

    /// Lets a GPU's all-reduces go over NCCL, those of gradients in `dtype`; with `overlaps` beside what computes.
    ///
    /// # Errors
    /// If the GPU has not the memory, or the session is the CPU's.
    pub fn set_communicator(
        &mut self,
        communicator: Arc<Communicator>,
        dtype: DType,
        overlaps: bool,
    ) -> Result<(), CompileError> {
        match &mut self.engine {
            Engine::Cuda(e, _) => Ok(e.set_communicator(communicator, dtype, overlaps)?),
            Engine::Cpu(..) => Err(CompileError::NotOnCpu("NCCL")),
        }
    }

    /// Whether a GPU's gradients travel in the next runs, as they do by default. On the CPU the exchange decides.
    pub fn set_gradients_travel(&mut self, travel: bool) {
        if let Engine::Cuda(e, _) = &mut self.engine {
            e.set_gradients_travel(travel);
        }
    }

    /// Whether a GPU replays runs as one launch by now: the first is never recorded.
    pub fn is_recorded(&self) -> bool {
        matches!(&self.engine, Engine::Cuda(e, _) if e.is_recorded())
    }

    /// Whether runs on a GPU are replayed as one launch, as they are by default; results are the same.
    pub fn set_replay(&mut self, replay: bool) {
        if let Engine::Cuda(e, _) = &mut self.engine {
            e.set_replay(replay);
        }
    }

    /// Runs the graph `runs` times with a clock on every node; slowest first.
    ///
    /// # Errors
    /// If an input or parameter has not been set.
    pub fn profile(&mut self, runs: usize) -> Result<Vec<NodeTime>, ValueError> {
        let mut clock = vec![0; self.plan().graph.nodes.len()];
        for _ in 0..runs {
            either!(mut self, e => e.run_timed(&mut clock))?;
        }
        let mut times: Vec<NodeTime> =
            clock.into_iter().enumerate().map(|(node, nanoseconds)| NodeTime { node, nanoseconds }).collect();
        times.sort_by_key(|t| std::cmp::Reverse(t.nanoseconds));
        times.retain(|t| t.nanoseconds > 0);
        Ok(times)
    }
}
