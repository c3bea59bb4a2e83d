//! `clearshot eval`: evaluates a method, compared with the raw input and the best classical method.

use crate::evaluating::Settings;
use anyhow::Result;
use clap::Args;

#[derive(Args)]
pub struct Eval {
    /// Score these methods: raw, gaussian, median, wiener, nlm, tv or bm3d, each alone or with the prefix `gat+` (with the Anscombe transform);
    /// best-gaussian (an oracle: its width is chosen with the truth); rl (with --psf-sigma); `default` for the built-in model, or the file or folder
    /// of a model; `auto` for what `restore` does by default, `auto:MODEL` for the same with another model.
    #[arg(default_value = "default")]
    methods: Vec<String>,
    #[command(flatten)]
    settings: Settings,
}

/// What every table has, to compare with.
const ROWS: [&str; 2] = ["raw", "gat+bm3d"];

impl Eval {
    pub fn run(self) -> Result<()> {
        let mut names: Vec<String> = ROWS.iter().map(|s| s.to_string()).collect();
        names.extend(self.methods.into_iter().filter(|m| !ROWS.contains(&m.as_str())));
        self.settings.evaluate("Evaluation", &names)
    }
}
