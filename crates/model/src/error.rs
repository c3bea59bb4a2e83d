//! Errors of models and their files.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{}: there is no model; needed is a file NAME.clearshot, a folder with a config.json, a training run's folder that has best.clearshot already, or the name `default`", path.display())]
    Missing { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: not a model, or a damaged one: {reason}", path.display())]
    Format { path: PathBuf, reason: String },
    #[error("{}: {source}", path.display())]
    Network { path: PathBuf, source: clearshot_nn::Error },
    #[error("{}: what the model says of itself does not fit its network: {reason}", path.display())]
    Contradiction { path: PathBuf, reason: String },
    #[error("{}: not a context: {reason}", path.display())]
    Context { path: PathBuf, reason: String },
    #[error("a model for {is}, where one for {needed} is needed")]
    OtherTask { is: &'static str, needed: &'static str },
    #[error(transparent)]
    Diffusion(#[from] clearshot_diffusion::Error),
    #[error("{what} is {got}; it must be {must}")]
    Setting { what: &'static str, got: String, must: &'static str },
}
