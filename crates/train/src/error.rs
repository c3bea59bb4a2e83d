//! Errors of a run, which name the key, file or iteration.

use std::borrow::Cow;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A key of the configuration whose value cannot be meant.
    #[error("{key}: {got}; {needed}")]
    Setting { key: Cow<'static, str>, got: String, needed: String },
    /// A key whose value cannot change when a run resumes.
    #[error(
        "{key}: {got}; a run resumes with the value that it began with, {began}; for another begin a new run, from its \
         weights by model.init=CHECKPOINT if you like"
    )]
    Changed { key: String, got: String, began: String },
    #[error("{}: {error}{}", path.display(), advice(error))]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{}: {reason}", path.display())]
    Checkpoint { path: PathBuf, reason: String },
    #[error(
        "training has diverged: {count} of the iterations up to {iteration} were skipped because gradients were not \
         finite or far from what they had been, and going back {returns} times at half the rate did not help; \
         lower optimizer.rate (it came down to {rate:.1e}), lengthen schedule.warm_up, and look at the training images"
    )]
    Diverged { iteration: u64, count: u64, returns: u64, rate: f64 },
    #[error("the worker that makes training images stopped: {0}")]
    Worker(String),
    #[error("input `{name}` of the training graph: {why}")]
    Input { name: String, why: &'static str },
    #[error("what the model `{model}` was trained on is not known: {why}")]
    Unknown { model: String, why: String },
    #[error(transparent)]
    Ranks(#[from] clearshot_collectives::CollectiveError),
    /// The error that ended another rank, and with it this one.
    #[error("{rank}: {why}")]
    Elsewhere { rank: String, why: String },
    #[error(transparent)]
    Restore(#[from] clearshot_restore::learned::Error),
    #[error(transparent)]
    Model(#[from] clearshot_model::ModelError),
    #[error(transparent)]
    Network(#[from] clearshot_nn::Error),
    #[error(transparent)]
    Diffusion(#[from] clearshot_diffusion::Error),
    #[error(transparent)]
    Build(#[from] clearshot_graph::BuildError),
    #[error(transparent)]
    Grad(#[from] clearshot_graph::grad::GradError),
    #[error(transparent)]
    Compile(#[from] clearshot_runtime::CompileError),
    #[error(transparent)]
    Device(#[from] clearshot_runtime::Unavailable),
    #[error(transparent)]
    Value(#[from] clearshot_runtime::ValueError),
    #[error(transparent)]
    Scene(#[from] clearshot_scenes::SceneError),
    #[error(transparent)]
    Metric(#[from] clearshot_metrics::MetricError),
    #[error(transparent)]
    Image(#[from] clearshot_image::Error),
    #[error(transparent)]
    Store(#[from] clearshot_tensor::store::StoreError),
    #[error(transparent)]
    Tensor(#[from] clearshot_tensor::TensorError),
}

pub type Result<T> = std::result::Result<T, TrainError>;

/// Advice for errors of the file system that users meet.
fn advice(e: &std::io::Error) -> &'static str {
    match e.kind() {
        std::io::ErrorKind::StorageFull => {
            " (the disk is full; complete checkpoints are intact; make room and use --resume)"
        }
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            " (choose a folder that can be written to with --out)"
        }
        _ => "",
    }
}

pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> TrainError {
    let path = path.into();
    |error| TrainError::Io { path, error }
}

/// The same error, with advice where the file system is behind it.
pub(crate) fn advised(path: &std::path::Path, e: TrainError) -> TrainError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&e);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            let code = io.raw_os_error();
            let error = code.map_or_else(|| io.kind().into(), std::io::Error::from_raw_os_error);
            return TrainError::Io { path: path.into(), error };
        }
        cause = error.source();
    }
    e
}

pub(crate) fn setting<T>(
    key: impl Into<Cow<'static, str>>,
    got: impl ToString,
    needed: impl ToString,
) -> Result<T> {
    Err(TrainError::Setting { key: key.into(), got: got.to_string(), needed: needed.to_string() })
}

/// Refuses unless it holds.
pub(crate) fn require(
    holds: bool,
    key: impl Into<Cow<'static, str>>,
    got: impl std::fmt::Debug,
    needed: &str,
) -> Result<()> {
    if holds { Ok(()) } else { setting(key, format!("{got:?}"), needed) }
}
