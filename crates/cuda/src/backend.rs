//! What plans ask of a GPU: the scratch of each node's kernel. Kernels are made ready on the way, and the
//! same op on the same types is made ready once.
//!
//! Before that, [`CudaBackend::begin`] goes through a graph and has every program that its nodes may need
//! compiled in the background; measuring, which must wait for programs, then finds most of them there.

use crate::context::{Context, Function};
use crate::error::CudaError;
use crate::lower::{Kernel, Math, lower, update};
use crate::program::stop_compiling;
use clearshot_graph::plan::Backend;
use clearshot_graph::{Graph, KernelKey, Op};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// What it has cost to make nodes ready on a GPU, since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Programs that were compiled, as they did not lie in the cache.
    pub compiled: usize,
    /// What compiling them took, of all threads together.
    pub compiling: Duration,
    /// The part of it that was waited for.
    pub waited: Duration,
    /// Choices that were measured, as they did not lie in the cache.
    pub measured: usize,
    pub measuring: Duration,
}

impl Cost {
    /// What was added since an earlier look.
    pub fn since(&self, earlier: &Cost) -> Cost {
        Cost {
            compiled: self.compiled - earlier.compiled,
            compiling: self.compiling - earlier.compiling,
            waited: self.waited - earlier.waited,
            measured: self.measured - earlier.measured,
            measuring: self.measuring - earlier.measuring,
        }
    }
}

pub struct CudaBackend {
    pub(crate) cx: Arc<Context>,
    pub(crate) math: Math,
    known: RefCell<HashMap<KernelKey, Arc<Kernel>>>,
    /// Kernels of those nodes, not all of them loaded yet.
    functions: RefCell<Vec<Function>>,
    failed: RefCell<Option<CudaError>>,
}

/// Ops that the executor launches for many nodes together.
pub(crate) fn is_joint(op: &Op) -> bool {
    matches!(op, Op::Adam(_) | Op::Sgd(_) | Op::Ema | Op::Clip(_))
}

/// Whether a node launches something by itself.
fn is_launched(graph: &Graph, node: usize) -> bool {
    let op = &graph.nodes[node].op;
    let source = matches!(op, Op::Input(_) | Op::State(_) | Op::Const(_));
    let silent = source || op.is_view() || is_joint(op) || op.is_all_reduce();
    !silent && !graph.is_state_copy(node)
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        stop_compiling();
    }
}

impl CudaBackend {
    /// For the GPU of that number.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn new(ordinal: usize, math: Math) -> Result<CudaBackend, CudaError> {
        Ok(CudaBackend {
            cx: Context::get(ordinal)?,
            math,
            known: RefCell::default(),
            functions: RefCell::default(),
            failed: RefCell::default(),
        })
    }

    /// Bytes that are free on the GPU.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn free_bytes(&self) -> Result<usize, CudaError> {
        let _turn = self.cx.turn();
        self.cx.bind()?;
        self.cx.free_bytes()
    }

    pub fn cost(&self) -> Cost {
        let (clocks, measured) = (self.cx.programs.clocks, &self.cx.tuning.measured);
        Cost {
            compiled: clocks.compiled.times(),
            compiling: clocks.compiled.time(),
            waited: clocks.waited.time(),
            measured: measured.times(),
            measuring: measured.time(),
        }
    }

    /// Has the programs that the graph's nodes may need compiled in the background. What fails here fails
    /// again, and is told, when the node is made ready.
    ///
    /// # Errors
    /// If the GPU cannot be used from this thread.
    pub fn begin(&self, graph: &Graph) -> Result<(), CudaError> {
        let _turn = self.cx.turn();
        self.cx.bind()?;
        if graph.nodes.iter().any(|n| is_joint(&n.op)) {
            update::begin(&self.cx)?;
        }
        self.cx.tuning.take();
        self.cx.tuning.go_ahead(true);
        let mut seen = HashSet::new();
        for node in 0..graph.nodes.len() {
            if is_launched(graph, node) && seen.insert(KernelKey::of(graph, node)) {
                let _ = self.kernel(graph, node);
            }
        }
        self.cx.tuning.go_ahead(false);
        Ok(())
    }

    /// Waits for the programs of nodes and steps that were made ready, and loads them. The caller holds the
    /// turn.
    pub(crate) fn load(&self) -> Result<(), CudaError> {
        self.functions.borrow_mut().extend(self.cx.tuning.take().into_iter().flatten());
        self.functions.borrow_mut().drain(..).try_for_each(|f| f.handle().map(|_| ()))
    }

    /// The node made ready; nothing for nodes that launch nothing by themselves. The caller holds the turn.
    pub(crate) fn kernel(&self, graph: &Graph, node: usize) -> Result<Option<Arc<Kernel>>, CudaError> {
        if !is_launched(graph, node) {
            return Ok(None);
        }
        let key = KernelKey::of(graph, node);
        if let Some(known) = self.known.borrow().get(&key) {
            return Ok(Some(known.clone()));
        }
        let lowered = lower(&self.cx, graph, node, self.math);
        let asked = self.cx.tuning.take();
        let made = Arc::new(lowered?);
        if let Some(asked) = asked {
            self.functions.borrow_mut().extend(asked);
            self.known.borrow_mut().insert(key, made.clone());
        }
        Ok(Some(made))
    }

    /// The first failure while a plan asked for scratch.
    ///
    /// # Errors
    /// That failure.
    pub fn check(&self) -> Result<(), CudaError> {
        self.failed.borrow_mut().take().map_or(Ok(()), Err)
    }
}

impl Backend for CudaBackend {
    fn workspace(&self, graph: &Graph, node: usize) -> usize {
        let _turn = self.cx.turn();
        match self.cx.bind().and_then(|()| self.kernel(graph, node)) {
            Ok(kernel) => kernel.map_or(0, |k| k.workspace),
            Err(e) => {
                self.failed.borrow_mut().get_or_insert(e);
                0
            }
        }
    }

    fn prepared(&self, _: &Graph, _: usize) -> usize {
        0
    }

    fn norm_gradient_in_place(&self) -> bool {
        true
    }

    fn keeps_states_on_host(&self) -> bool {
        true
    }

    /// Tensor cores' rate over that of memory.
    fn operations_per_byte(&self) -> u64 {
        190
    }
}
