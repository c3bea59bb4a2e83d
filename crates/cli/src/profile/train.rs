//! `clearshot profile train`: profiles a few iterations of a training run, with its data, loader and device, in a
//! temporary folder.

use super::{ProfileArgs, copied};
use crate::training::Trainer;
use anyhow::{Context, Result};
use clap::Args;
use clearshot::{TrainSettings, train};
use clearshot_train::records::console::Show;
use clearshot_train::run::PROFILE;
use std::io::Write;
use std::path::PathBuf;

#[derive(Args)]
pub struct TrainProfile {
    /// Take these files of configuration and changes to it, as `train` does: experiment=NAME, GROUP=OPTION, KEY=VALUE, or FILE.yaml.
    #[arg(value_name = "FILE.yaml|KEY=VALUE", required = true)]
    changes: Vec<String>,
    /// Look for configuration groups in this folder before the built-in ones. Default: none.
    #[arg(long, value_name = "FOLDER")]
    configs: Option<PathBuf>,
    /// Let so many iterations pass first.
    #[arg(long, default_value_t = 1)]
    wait: u64,
    /// Time so many more and forget them.
    #[arg(long, default_value_t = 1)]
    warm_up: u64,
    /// Write down so many then.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    active: u64,
    /// Do all this so many times.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    #[command(flatten)]
    profile: ProfileArgs,
    /// Print one JSON object. Default: tables.
    #[arg(long)]
    json: bool,
}

impl TrainProfile {
    pub fn run(self) -> Result<()> {
        self.profile.check()?;
        let folder = tempfile::tempdir().context("a folder for the run")?;
        let what = if self.profile.profile_memory { "memory" } else { "time" };
        let asked = [
            format!("debug.profile={what}"),
            format!("debug.wait={}", self.wait),
            format!("debug.warm_up={}", self.warm_up),
            format!("debug.active={}", self.active),
            format!("debug.repeat={}", self.repeat),
        ];
        let iterations = (self.wait + self.warm_up + self.active) * self.repeat;
        let settings = TrainSettings {
            overrides: self.changes.iter().cloned().chain(asked).collect(),
            out: Some(folder.path().join("run")),
            configs: self.configs.clone(),
            stop_at: Some(iterations),
            ..TrainSettings::default()
        };
        if !self.json {
            eprintln!("{iterations} iterations are trained");
        }
        let stop = crate::interrupt::finishing("finishing the iteration; what was measured is shown");
        let report = train(&settings, &mut Trainer::new(Show::Quiet, Some(stop)))?;
        let profile = report.summary.profile.context("nothing was measured: no iteration was reached")?;
        if let Some(to) = &self.profile.profile {
            copied(&report.folder.join(PROFILE), to).with_context(|| to.display().to_string())?;
        }
        let mut out = std::io::stdout().lock();
        match self.json {
            true => writeln!(out, "{}", serde_json::to_string(&profile)?)?,
            false => writeln!(out, "{}\n{}", profile.in_words(self.profile.top), self.profile.place())?,
        }
        Ok(())
    }
}
