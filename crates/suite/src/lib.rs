//! Parity with the peers: cases that PyTorch and diffusers computed, run through our graphs.
//!
//! A case is data (a file that says what was computed and what came out); this crate turns it into a
//! graph, hands the graph to an [`engine::Engine`], and writes every comparison into a
//! [`report::Report`]. Engines multiply cases: a new backend is one more engine and no new case.
//! Nothing here is used by the product.

pub mod bench_data;
pub mod case;
pub mod engine;
pub mod objective;
pub mod op;
pub mod report;
pub mod sampler;
pub mod schedule;
pub mod train;
pub mod unet2d;

/// Anything that stops a case; it is printed with the case's name.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
