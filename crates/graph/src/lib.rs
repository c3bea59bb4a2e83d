//! The graph language: what a computation is, before anyone decides how to run it.
//!
//! A [`Graph`] is a list of [`Node`]s in an order in which they can run; each node is an [`Op`] with
//! its inputs and the types of its outputs. [`Builder`] makes graphs, [`grad`] differentiates them by
//! adding ordinary nodes, [`passes`] rewrite them, and [`plan`] gives every value a place in memory.
//! [`reference`] is the meaning: slow, plain, in f64, and what every kernel is tested against.

pub mod array;
mod builder;
pub mod cost;
pub mod exchange;
pub mod grad;
mod graph;
mod key;
pub mod losses;
pub mod ops;
pub mod passes;
pub mod plan;
mod print;
pub mod reach;
pub mod reference;
pub mod train;
mod value_error;
mod verify;

pub use array::Array;
pub use builder::{BuildError, Builder};
pub use graph::{Graph, Node, Output, StateInit, Type, Update, Value};
pub use key::KernelKey;
pub use ops::{Op, OpError};
pub use value_error::ValueError;
pub use verify::VerifyError;
