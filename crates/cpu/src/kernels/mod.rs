//! One file per family of operations, named as in the graph crate.

pub mod attention;
pub mod conv;
pub mod matmul;
pub mod norm;
