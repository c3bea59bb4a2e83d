//! From a graph to something that runs.

use crate::device::{Device, available_bytes};
use clearshot_cpu::exec::{CpuBackend, Executor, MemoryError, ValueError};
use clearshot_cpu::{Cpu, TARGET};
use clearshot_graph::passes::optimise;
use clearshot_graph::passes::recompute::{BudgetError, recompute};
use clearshot_graph::plan::{Plan, human};
use clearshot_graph::{Graph, VerifyError};
use clearshot_tensor::{DType, Tensor};

/// How to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Run the passes; without them every node is a kernel of its own.
    pub optimise: bool,
    /// The most bytes that a run may take; what does not fit is recomputed.
    pub budget: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options { optimise: true, budget: None }
    }
}

/// Why a graph cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    #[error(transparent)]
    Graph(#[from] VerifyError),
    #[error(transparent)]
    Budget(#[from] BudgetError),
    #[error("the CPU computes on f32 and i32, not on {dtype}: {node}")]
    Type { dtype: DType, node: String },
    #[error("running takes {} and {} are free; take a smaller batch or size, or set a budget", human(*needed), human(*free))]
    NoRoom { needed: usize, free: usize },
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A plan for a device, without taking any memory.
///
/// # Errors
/// If the graph is not sound or not for this device, or the budget cannot be met.
pub fn plan(graph: Graph, device: &Device, options: &Options) -> Result<Plan, CompileError> {
    graph.verify("as given")?;
    check_types(&graph)?;
    let backend = CpuBackend::new(device.machine());
    let graph = if options.optimise { optimise(graph, &TARGET)? } else { graph.tidy() };
    match options.budget {
        Some(budget) => fit(graph, budget, &backend),
        None => Ok(Plan::new(graph, &backend)),
    }
}

/// What the CPU's kernels compute on.
fn check_types(graph: &Graph) -> Result<(), CompileError> {
    for (i, node) in graph.nodes.iter().enumerate() {
        if let Some(t) = node.outs.iter().find(|t| !matches!(t.dtype, DType::F32 | DType::I32)) {
            return Err(CompileError::Type { dtype: t.dtype, node: graph.line(i) });
        }
    }
    Ok(())
}

/// Recomputes until the arranged plan fits, not only the sum of what is alive: a goal that the
/// arrangement exceeds is lowered by as much.
fn fit(graph: Graph, budget: usize, backend: &CpuBackend) -> Result<Plan, CompileError> {
    let (mut graph, mut goal) = (graph, budget);
    loop {
        graph = recompute(graph, goal, backend).map_err(|e| BudgetError { budget, ..e })?;
        let plan = Plan::new(graph, backend);
        if plan.bytes() <= budget {
            plan.graph.verify("recompute")?;
            return Ok(plan);
        }
        goal = goal.saturating_sub((plan.bytes() - budget).max(budget / 100));
        graph = plan.graph;
    }
}

/// Compiles a graph for a device.
///
/// # Errors
/// As [`plan`], or if the machine has not the memory.
pub fn compile(graph: Graph, device: &Device, options: &Options) -> Result<Session, CompileError> {
    let plan = plan(graph, device, options)?;
    // The system promises more than it has and ends who takes it at its word; the plan knows better.
    let (needed, free) = (plan.bytes(), available_bytes().unwrap_or(usize::MAX));
    if needed > free {
        return Err(CompileError::NoRoom { needed, free });
    }
    let machine = device.machine();
    let cpu = Cpu::with_level(machine.threads, machine.level);
    Ok(Session { device: *device, executor: Executor::new(plan, cpu)? })
}

/// The time that one node took, summed over runs.
#[derive(Clone, Copy, Debug)]
pub struct NodeTime {
    pub node: usize,
    pub nanoseconds: u64,
}

/// A compiled graph with its memory.
pub struct Session {
    device: Device,
    executor: Executor,
}

impl Session {
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn plan(&self) -> &Plan {
        self.executor.plan()
    }

    /// Sets an input or state by name.
    ///
    /// # Errors
    /// If there is none of that name, or its type or shape is another.
    pub fn set(&mut self, name: &str, value: &Tensor) -> Result<(), ValueError> {
        self.executor.set(name, value)
    }

    /// A copy of an output or state by name.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn get(&self, name: &str) -> Result<Tensor, ValueError> {
        self.executor.get(name)
    }

    /// Does what a first run does besides running: checks that all is set, packs weights.
    ///
    /// # Errors
    /// If an input or parameter has not been set.
    pub fn prepare(&mut self) -> Result<(), ValueError> {
        self.executor.prepare()
    }

    /// Runs the graph once. Allocates nothing, unless weights were set since the last run.
    ///
    /// # Errors
    /// If an input or parameter has not been set.
    pub fn run(&mut self) -> Result<(), ValueError> {
        self.executor.run()
    }

    /// Runs the graph `runs` times with a clock on every node; slowest first.
    ///
    /// # Errors
    /// If an input or parameter has not been set.
    pub fn profile(&mut self, runs: usize) -> Result<Vec<NodeTime>, ValueError> {
        let mut clock = vec![0; self.plan().graph.nodes.len()];
        for _ in 0..runs {
            self.executor.run_timed(&mut clock)?;
        }
        let mut times: Vec<NodeTime> =
            clock.into_iter().enumerate().map(|(node, nanoseconds)| NodeTime { node, nanoseconds }).collect();
        times.sort_by_key(|t| std::cmp::Reverse(t.nanoseconds));
        times.retain(|t| t.nanoseconds > 0);
        Ok(times)
    }
}
