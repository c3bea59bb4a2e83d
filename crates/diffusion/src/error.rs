//! Errors of levels, schedules, settings and runs.

use clearshot_graph::BuildError;
use clearshot_physics::PhysicsError;
use clearshot_runtime::{CompileError, ValueError};
use clearshot_tensor::Shape;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what} is {got}; it must be {must}")]
    Setting { what: &'static str, got: String, must: String },
    #[error(
        "levels must decrease: step {step} goes from sigma/alpha {from} to {to}{}",
        if *between { ", where the next step begins" } else { "" }
    )]
    NotDecreasing { step: usize, from: f64, to: f64, between: bool },
    #[error(
        "level {index} has alpha {alpha} and sigma {sigma}; alpha must be positive, sigma not negative, both finite"
    )]
    Level { index: usize, alpha: f64, sigma: f64 },
    #[error("no {kind} is called `{name}`; there are: {known}")]
    Unknown { kind: &'static str, name: String, known: String },
    #[error("`{name}` has shape {got}, expected {expected}")]
    Shape { name: &'static str, expected: Shape, got: Shape },
    #[error("step {step} of {steps} made values that are not finite in image {image}: {origin}")]
    NonFinite { step: usize, steps: usize, image: usize, origin: String },
    #[error(transparent)]
    Build(Box<BuildError>),
    #[error(transparent)]
    Compile(Box<CompileError>),
    /// From sessions that are not the runtime's.
    #[error("{0}")]
    Session(String),
    #[error(transparent)]
    Value(#[from] ValueError),
    #[error(transparent)]
    Physics(#[from] PhysicsError),
}

impl From<BuildError> for Error {
    fn from(e: BuildError) -> Error {
        Error::Build(Box::new(e))
    }
}

impl From<CompileError> for Error {
    fn from(e: CompileError) -> Error {
        Error::Compile(Box::new(e))
    }
}
