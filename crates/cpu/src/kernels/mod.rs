//! One file per family of operations, named as in the graph crate.

pub mod all_reduce;
pub mod attention;
pub mod conv;
pub mod fourier;
pub mod gather;
pub mod matmul;
pub mod movement;
pub mod noise;
pub mod norm;
pub mod pointwise;
pub mod pool;
pub mod prepared;
pub mod reduce;
pub mod resize;
mod span;
pub mod update;

#[cfg(test)]
mod check;

pub use prepared::{Prepared, prepare};
