//! Networks as graph builders: layers, models, and reading and writing of weights in the formats of other projects.
//!
//! A model is a configuration (the user's `config.json`), which resolves to a checked description, which adds its nodes to
//! a [`clearshot_graph::Builder`]. Parameters are graph states whose names are the contract with those files. Nothing is
//! computed here: a backend runs the graph.

pub mod acquisition;
mod error;
pub mod init;
pub mod layers;
pub mod models;
pub mod precondition;
pub mod weights;

pub use error::{Error, Misfit};
pub use init::{Init, Law, Param};
pub use precondition::Precondition;
pub use weights::Weights;
