//! `clearshot compare`: compares methods. Default: all common ones.

use crate::evaluating::Settings;
use anyhow::Result;
use clap::Args;

#[derive(Args)]
pub struct Compare {
    /// Score these methods: raw, gaussian, median, wiener, nlm, tv or bm3d, each alone or with the prefix `gat+` (with the Anscombe transform);
    /// best-gaussian (an oracle: its width is chosen with the truth); rl (with --psf-sigma); `default` for the built-in model, or the file or folder
    /// of a model; `auto` for what `restore` does by default, `auto:MODEL` for the same with another model.
    #[arg(default_values_t = USUAL.map(String::from))]
    methods: Vec<String>,
    #[command(flatten)]
    settings: Settings,
}

const USUAL: [&str; 11] = [
    "raw",
    "gaussian",
    "best-gaussian",
    "gat+median",
    "gat+wiener",
    "gat+nlm",
    "gat+tv",
    "bm3d",
    "gat+bm3d",
    "default",
    "auto",
];

impl Compare {
    pub fn run(self) -> Result<()> {
        self.settings.evaluate("Comparison", &self.methods)
    }
}
