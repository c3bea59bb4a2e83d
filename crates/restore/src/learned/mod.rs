//! Restoring with trained networks, whole images at a time.

pub mod choose;
pub mod correct;
pub mod field;
pub mod layout;
pub mod moments;
pub mod tiles;
pub mod walk;

use clearshot_graph::plan::human;
use std::path::PathBuf;

/// Why there is no restored image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{bytes} bytes of working space in {}: {source}; make room there, or name another folder", folder.display())]
    Scratch { folder: PathBuf, bytes: usize, source: std::io::Error },
    #[error("the model has no weights called `{name}`")]
    NoWeight { name: String },
    #[error(
        "the network made {value} at noise level {sigma} in tile {tile:?}; the model is damaged, or the image is nothing like what it was trained on"
    )]
    NonFinite { value: f32, tile: Vec<usize>, sigma: f64 },
    #[error("the sampler needs a learned variance, which is not used when restoring; choose another sampler")]
    LearnedVariance,
    #[error("the network takes no tiles of {size:?} pixels: {reason}")]
    TileSize { size: Vec<usize>, reason: String },
    #[error(
        "the smallest tile takes {} and {} may be used; allow more memory, or use a smaller model",
        human(*needed), human(*limit)
    )]
    NoRoom { needed: usize, limit: usize },
    #[error("the law `through` differentiates the network, which tiles cannot; choose another law, such as proximal")]
    Through,
    #[error("the correction by the measurement made {value} at noise level {sigma}; choose another law, such as proximal")]
    Diverged { value: f32, sigma: f64 },
    #[error("the device gave {what}")]
    Answer { what: String },
    #[error(transparent)]
    Diffusion(#[from] clearshot_diffusion::Error),
}
