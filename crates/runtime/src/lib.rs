//! Devices and sessions: the only place that knows what there is to run on.
//!
//! [`compile`] takes a graph through its stages: passes, a plan, a [`Session`] that owns the memory. A
//! session is set up by name, run, and asked by name:
//!
//! ```
//! use clearshot_graph::{Builder, Type};
//! use clearshot_runtime::{Device, Options, compile};
//! use clearshot_tensor::Tensor;
//!
//! let mut b = Builder::new();
//! let x = b.input("x", Type::f32([3]));
//! let y = b.silu(x);
//! b.output("y", y);
//! let mut session = compile(b.finish()?, &Device::cpu(None), &Options::default())?;
//! session.set("x", &Tensor::f32([3], vec![0.0, 1.0, -1.0]))?;
//! session.run()?;
//! assert_eq!(session.get("y")?.as_f32()?[0], 0.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod bytes;
mod device;
mod memory;
mod precision;
mod session;
mod traced;

pub use clearshot_cpu::exec::{MemoryError, ValueError};
pub use clearshot_cpu::simd::Level;
pub use clearshot_cuda::{
    Ceilings, Communicator, CudaError, Gpu, ID_BYTES, NCCL_VARIABLE, NcclId, Unavailable, cache_folder, gpus,
    nccl_version,
};
pub use clearshot_graph::exchange::Exchange;
pub use device::{Device, DeviceName};
pub use memory::{MemoryChange, MemoryScope, available_bytes, memory_in_use, peak_bytes};
pub use precision::{Arithmetic, Precision};
pub use session::{CompileError, NodeTime, Options, Session, SetUp, compile, plan};
pub use traced::node_infos;
