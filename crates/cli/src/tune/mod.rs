//! `clearshot tune`: measures the fastest settings for a training run and for restoring on this machine, and writes
//! them to a file that `train` (`performance=auto_tuned`) and `restore` (`--performance`) take.

mod restoring;

use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot::TrainSettings;
use clearshot_train::Watch;
use clearshot_train::presets::tuned_file;
use clearshot_train::run::{TuneLimits, Tuned, tune};
use restoring::{RestoreTuned, RestoreTuning};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[derive(Args)]
pub struct Tune {
    /// Tune the training run of these configuration files and changes, as for `train`: experiment=NAME, GROUP=OPTION, KEY=VALUE, or
    /// FILE.yaml. Default: only restoring is tuned.
    #[arg(value_name = "FILE.yaml|KEY=VALUE")]
    changes: Vec<String>,
    /// Look for configuration groups in this folder before the built-in ones, and write below it. Default: `configs` is written to.
    #[arg(long, value_name = "FOLDER")]
    configs: Option<PathBuf>,
    /// Write to this file. Default: performance/auto_tuned.yaml in --configs.
    #[arg(long, short, alias = "out", value_name = "FILE.yaml")]
    output: Option<PathBuf>,
    /// Tune restoring too if a training run is given: tiles, how many at once, and threads. Default: only without a training run.
    #[arg(long)]
    restore: bool,
    /// Restore with this model while tuning. Default: the built-in model.
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Restore an image with this side length in pixels while tuning.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..=8192))]
    size: u32,
    /// Spend this many seconds on each, training and restoring; the best settings by then are written.
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS", value_parser = seconds)]
    seconds: f64,
    /// Try every combination of the values instead of one setting after another, to see what the shorter search misses.
    #[arg(long)]
    exhaustive: bool,
    /// Print one JSON object with every trial.
    #[arg(long)]
    json: bool,
    /// Replace an existing file. Default: an existing file is an error.
    #[arg(long)]
    force: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if s.is_finite() && s > 0.0 => Ok(s),
        _ => Err("write a number of seconds above 0".into()),
    }
}

/// Tells of trials as they end.
struct Told {
    quiet: bool,
}

impl Watch for Told {
    fn note(&mut self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }
}

impl Tune {
    pub fn run(self) -> Result<()> {
        let file = self.output.clone().unwrap_or_else(|| tuned_file(self.configs.as_deref()));
        if file.exists() && !self.force {
            bail!(
                "{} exists already; use --force to replace it, or --output to name another file",
                file.display()
            );
        }
        let stop = crate::interrupt::finishing("finishing the trial; what was found is written");
        let training = if self.changes.is_empty() { None } else { Some(self.training(&stop)?) };
        let restoring = match self.restore || self.changes.is_empty() {
            true => {
                let search = RestoreTuning {
                    model: self.model.as_deref(),
                    side: self.size as usize,
                    seconds: self.seconds,
                    quiet: self.json,
                };
                Some(search.run(&stop)?)
            }
            false => None,
        };
        let text = self.yaml(training.as_ref(), restoring.as_ref());
        if let Some(folder) = file.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        let record = json!({"file": file, "training": training, "restoring": restoring});
        let table = file.with_extension("json");
        for (path, text) in [(&file, &text), (&table, &format!("{record:#}\n"))] {
            clearshot_tensor::store::write_whole(path, text.as_bytes())
                .with_context(|| path.display().to_string())?;
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{record}")?;
            return Ok(());
        }
        if let Some(t) = &training {
            write!(out, "{}", told(t))?;
        }
        if let Some(r) = &restoring {
            write!(out, "{}", r.table())?;
        }
        writeln!(out, "{}:\n{text}", file.display())?;
        writeln!(
            out,
            "`clearshot train ... performance=auto_tuned` and `clearshot restore ... --performance auto_tuned` take it; {} has every trial",
            table.display()
        )?;
        Ok(())
    }

    fn training(&self, stop: &Arc<AtomicBool>) -> Result<Tuned> {
        let settings = TrainSettings {
            overrides: self.changes.clone(),
            configs: self.configs.clone(),
            ..TrainSettings::default()
        };
        let folder = tempfile::tempdir().context("a folder to work in")?;
        let limits = TuneLimits { seconds: self.seconds, exhaustive: self.exhaustive };
        let watch: Box<dyn Watch> = Box::new(Told { quiet: self.json });
        Ok(tune(settings.config()?, &folder.path().join("run"), limits, stop, watch)?)
    }

    /// What is written.
    fn yaml(&self, training: Option<&Tuned>, restoring: Option<&RestoreTuned>) -> String {
        let asked =
            if self.changes.is_empty() { String::new() } else { format!(" {}", self.changes.join(" ")) };
        let mut text = format!("# Found by `clearshot tune{asked}` on this machine.\n");
        if let Some(t) = training {
            text += &format!(
                "# Training on {}: {:.1} images/s, {:.1} before tuning; batches of up to {} fit.\n",
                t.device, t.images_per_second, t.began_with, t.largest_batch
            );
        }
        if let Some(r) = restoring {
            text += &format!(
                "# Restoring on {}: {:.2} megapixels/s, {:.2} before tuning.\n",
                r.device, r.megapixels_per_second, r.began_with
            );
        }
        let mut keys = training.map(Tuned::yaml).unwrap_or_else(|| "performance:\n".into());
        if let Some(r) = restoring {
            // Threads are those of training where that was tuned.
            let own =
                if training.is_none() { format!("  threads: {}\n", r.best.threads) } else { String::new() };
            let tile = r.best.tile.map(|n| format!("  tile: {n}\n")).unwrap_or_default();
            let tiles = r.best.tiles.map(|n| format!("  tiles: {n}\n")).unwrap_or_default();
            if !(own.is_empty() && tile.is_empty() && tiles.is_empty()) {
                keys = keys.replacen("performance:\n", &format!("performance:\n{own}{tile}{tiles}"), 1);
            }
        }
        text + &keys
    }
}

/// The trials of a training run, as a table.
fn told(t: &Tuned) -> String {
    let mut text = format!(
        "training on {}, batches of up to {} fit; {} trials in {:.0} s{}\n",
        t.device,
        t.largest_batch,
        t.trials.len(),
        t.seconds,
        if t.cut_short { ", cut short" } else { "" }
    );
    text += &format!(
        "  {:<18} {:>6} {:>9} {:>8} {:>8} {:>6} {:>14} {:>10} {:>8}\n",
        "tried", "batch", "precision", "threads", "workers", "ahead", "kernels", "images/s", "waiting"
    );
    for trial in &t.trials {
        let s = &trial.tuning;
        let mark = if trial.taken { "*" } else { " " };
        let rate = trial.images_per_second.map_or_else(|| "-".to_string(), |r| format!("{r:.1}"));
        text += &format!(
            "{mark} {:<18} {:>6} {:>9} {:>8} {:>8} {:>6} {:>14} {rate:>10} {:>7.1}%\n",
            trial.tried,
            s.batch,
            s.precision,
            s.threads,
            s.workers,
            s.ahead,
            format!("{:?}", s.compile_mode),
            100.0 * trial.waiting
        );
    }
    text
}
