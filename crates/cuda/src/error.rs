//! What can go wrong on the way to a GPU and on it.

use clearshot_graph::ValueError;
use clearshot_graph::plan::human;
use cudarc::driver::DriverError;

/// Why there is no GPU to run on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("no NVIDIA driver: none of {} is in the system's library folders or LD_LIBRARY_PATH", looked.join(", "))]
    NoDriver { looked: Vec<String> },
    #[error("the NVIDIA driver supports CUDA {}.{}, and {}.{} is the oldest that is used here: update the driver", have / 1000, have % 1000 / 10, want / 1000, want % 1000 / 10)]
    OldDriver { have: i32, want: i32 },
    #[error("the NVIDIA driver finds no GPU ({0})")]
    NoDevice(String),
    #[error("there are {count} GPUs, numbered from 0, and number {asked} was asked for")]
    NoSuchDevice { asked: usize, count: usize },
    #[error("{name} has compute capability {}.{}, and {}.{} is the least that is used here", have.0, have.1, want.0, want.1)]
    OldCard { name: String, have: (i32, i32), want: (i32, i32) },
    #[error("the library {library} ({what}) could not be loaded; looked for {} in the system's library folders and LD_LIBRARY_PATH", looked.join(", "))]
    NoLibrary { library: &'static str, what: &'static str, looked: Vec<String> },
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum CudaError {
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    #[error("{what}: {detail}")]
    Call { what: String, detail: String },
    #[error("kernel {kernel} of {file}.cu does not compile for {arch} with {options}:\n{log}")]
    Compile { kernel: String, file: String, arch: String, options: String, log: String },
    #[error("{op} on the GPU: {reason}")]
    Unsupported { op: String, reason: String },
    #[error("no NCCL library that can be used: {0}")]
    Nccl(String),
    /// The communicator was aborted: what was computed since is not to be used.
    #[error("{0}")]
    Ended(String),
    #[error("running takes {} on the GPU and {} are free there", human(*needed), human(*free))]
    NoRoom { needed: usize, free: usize },
}

impl From<DriverError> for CudaError {
    fn from(e: DriverError) -> CudaError {
        CudaError::Call { what: "the CUDA driver".into(), detail: e.to_string() }
    }
}

/// Names the call that a library refused.
pub(crate) fn refused(what: &str, status: impl std::fmt::Debug) -> CudaError {
    CudaError::Call { what: what.into(), detail: format!("{status:?}") }
}

impl From<CudaError> for ValueError {
    fn from(e: CudaError) -> ValueError {
        ValueError::Device(e.to_string())
    }
}
