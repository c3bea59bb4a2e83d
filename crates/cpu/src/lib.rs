//! Fast kernels for the CPU, and the executor that runs a plan with them.

pub mod gemm;
pub mod kernels;
pub mod pool;
pub mod simd;
pub mod vmath;

use pool::Pool;
use simd::Level;

/// What a kernel needs to run: threads and an instruction set.
pub struct Cpu {
    pub pool: Pool,
    pub level: Level,
}

impl Cpu {
    /// A context with `threads` threads and the widest instruction set of this machine.
    pub fn new(threads: usize) -> Cpu {
        Cpu { pool: Pool::new(threads), level: Level::detect() }
    }
}
