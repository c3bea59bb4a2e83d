//! `clearshot compare`: methods side by side. Default: every usual one.

use crate::evaluating::Settings;
use anyhow::Result;
use clap::Args;

#[derive(Args)]
pub struct Compare {
    /// Methods as for `eval`.
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
