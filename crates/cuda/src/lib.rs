//! Kernels for NVIDIA GPUs, and the executor that runs a plan with them.
//!
//! Everything of CUDA is found when it is asked for: [`gpus`] says what there is, or why there is nothing.
//! Convolutions are cuDNN's and matrix products cuBLASLt's, by the algorithm that measured fastest; what
//! lies between them are kernels of our own (`kernels/*.cu`), compiled for the card when first needed and
//! kept on disk. `lower` joins a graph's nodes with them, [`Executor`] owns a plan's memory and replays it as
//! one CUDA graph. Means over the ranks of a training are NCCL's, or made by way of the host.

mod backend;
mod branches;
mod cache;
mod ceilings;
mod context;
mod device;
mod error;
mod exec;
mod lower;
mod memory;
mod nccl;
mod program;
mod tune;

pub use backend::{Cost, CudaBackend};
pub use cache::folder as cache_folder;
pub use ceilings::{Ceilings, ceilings};
pub use device::{Gpu, gpus};
pub use error::{CudaError, Unavailable};
pub use exec::Executor;
pub use lower::Math;
pub use nccl::{Communicator, ID_BYTES, NcclId, VARIABLE as NCCL_VARIABLE, nccl_version};

use clearshot_graph::passes::Target;

/// What these kernels take on when graphs are fused.
pub const TARGET: Target = Target {
    parts: 4,
    conv_prologue: false,
    epilogue: true,
    norm_addend: true,
    norm_bias: true,
    upsample: true,
    int8: false,
    // Where the card has them, as the runtime knows.
    fp8: false,
    whole: false,
};
