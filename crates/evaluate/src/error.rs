//! Errors of evaluation.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    #[error("there is no method '{name}'{meant}")]
    Method { name: String, meant: String },
    #[error("{name} is {got}, and {needed} is needed")]
    Setting { name: &'static str, got: String, needed: &'static str },
    #[error("{}: {why}", path.display())]
    File { path: PathBuf, why: String },
    #[error("{truth} and {noisy}: the shapes are {truth_shape:?} and {noisy_shape:?}")]
    Shapes { truth: String, noisy: String, truth_shape: Vec<usize>, noisy_shape: Vec<usize> },
    #[error("{what}: the truth has no light above its background; there is nothing to score by")]
    Dark { what: String },
    #[error("{0} has no record in common with {1}; evaluate both on the same scenes and light levels")]
    NothingCommon(String, String),
    /// Whoever asked for it said to stop; records that were made are kept.
    #[error("stopped")]
    Stopped,
    #[error(transparent)]
    Image(#[from] clearshot_image::Error),
    #[error(transparent)]
    Metric(#[from] clearshot_metrics::MetricError),
    #[error(transparent)]
    Physics(#[from] clearshot_physics::PhysicsError),
    #[error(transparent)]
    Restore(#[from] clearshot_restore::RestoreError),
    #[error(transparent)]
    Model(#[from] clearshot_model::ModelError),
    #[error(transparent)]
    Learned(#[from] clearshot_restore::learned::Error),
    #[error(transparent)]
    Scene(#[from] clearshot_scenes::SceneError),
}
