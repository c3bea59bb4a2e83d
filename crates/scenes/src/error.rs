//! Errors of generating scenes, with the requested sizes and names.

use clearshot_physics::PhysicsError;

/// Errors of scenes and their images.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SceneError {
    #[error("a scene of shape {shape:?}: a plane [y, x] or a volume [z, y, x] is needed")]
    Rank { shape: Vec<usize> },
    #[error(
        "a scene of shape {shape:?}: each size must be from {least} to {most}, and at most {pixels} pixels together"
    )]
    Size { shape: Vec<usize>, least: usize, most: usize, pixels: usize },
    #[error("a section of shape {shape:?}: scanners look at squares [y, x]")]
    Section { shape: Vec<usize> },
    #[error("no scene is called '{name}'; there are {known}")]
    Name { name: String, known: String },
    #[error("{name}: which object a pixel belongs to is known for {known} only")]
    Labels { name: &'static str, known: String },
    #[error("a mosaic of {kinds} kinds of shape {shape:?}: one kind or more and a plane [y, x] are needed")]
    Mosaic { kinds: usize, shape: Vec<usize> },
    #[error("{name} is {got}, and {needed} is needed")]
    Parameter { name: &'static str, got: f64, needed: &'static str },
    #[error(transparent)]
    Physics(#[from] PhysicsError),
}
