//! What plans ask of a GPU: the scratch of each node's kernel. Kernels are made ready on the way, and the
//! same op on the same types is made ready once.

use crate::context::Context;
use crate::error::CudaError;
use crate::lower::{Kernel, Math, lower};
use clearshot_graph::plan::Backend;
use clearshot_graph::{Graph, Op};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

pub struct CudaBackend {
    pub(crate) cx: Arc<Context>,
    pub(crate) math: Math,
    known: RefCell<HashMap<String, Arc<Kernel>>>,
    failed: RefCell<Option<CudaError>>,
}

/// Ops that the executor launches for many nodes together.
pub(crate) fn is_joint(op: &Op) -> bool {
    matches!(op, Op::Adam(_) | Op::Sgd(_) | Op::Ema | Op::Clip(_))
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
            failed: RefCell::default(),
        })
    }

    /// The node made ready; nothing for nodes that launch nothing by themselves. The caller holds the turn.
    pub(crate) fn kernel(&self, graph: &Graph, node: usize) -> Result<Option<Arc<Kernel>>, CudaError> {
        let n = &graph.nodes[node];
        let silent = matches!(n.op, Op::Input(_) | Op::State(_) | Op::Const(_))
            || n.op.is_view()
            || is_joint(&n.op)
            || graph.is_state_copy(node);
        if silent {
            return Ok(None);
        }
        let types: Vec<_> = n.inputs.iter().map(|v| graph.ty(*v)).collect();
        let key = format!("{:?} {types:?} {:?}", n.op, n.outs);
        if let Some(known) = self.known.borrow().get(&key) {
            return Ok(Some(known.clone()));
        }
        let made = Arc::new(lower(&self.cx, graph, node, self.math)?);
        self.known.borrow_mut().insert(key, made.clone());
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

    /// Tensor cores' rate over that of memory.
    fn operations_per_byte(&self) -> u64 {
        190
    }
}
