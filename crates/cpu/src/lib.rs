//! Fast kernels for the CPU, and the executor that runs a plan with them.
//!
//! [`kernels`] compute on plain memory and know nothing of graphs, [`lower`] joins a graph's nodes with
//! them, [`exec`] owns a plan's memory and runs it. Nothing here knows what a network is.

pub mod act;
pub mod exec;
pub mod gemm;
pub mod kernels;
pub mod lower;
pub mod pool;
pub mod simd;
pub mod vmath;

use clearshot_graph::exchange::Exchange;
use clearshot_graph::passes::Target;
use lower::Machine;
use pool::Pool;
use simd::Level;
use std::sync::Arc;

/// What these kernels take on when graphs are fused.
pub const TARGET: Target = Target {
    parts: kernels::conv::MAX_PARTS,
    conv_prologue: true,
    epilogue: true,
    norm_addend: true,
    norm_bias: false,
    upsample: false,
    int8: true,
    fp8: false,
    whole: false,
};

/// What a kernel needs to run: threads, an instruction set and, where there are several ranks, what carries values between them.
pub struct Cpu {
    pub(crate) pool: Pool,
    pub(crate) level: Level,
    pub(crate) exchange: Option<Arc<dyn Exchange>>,
}

impl Cpu {
    /// A context with `threads` threads and the widest instruction set of this machine.
    pub fn new(threads: usize) -> Cpu {
        Cpu::with_level(threads, Level::detect())
    }

    pub fn with_level(threads: usize, level: Level) -> Cpu {
        Cpu { pool: Pool::new(threads), level, exchange: None }
    }

    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    pub fn level(&self) -> Level {
        self.level
    }

    /// What kernels for this context are prepared for.
    pub fn machine(&self) -> Machine {
        Machine::new(self.level, self.pool.threads())
    }
}
