//! `clearshot adapt`: a model fitted to the user's own noisy images, kept only where it helps.
//!
//! It is a training run from that model, by splitting the electrons of the images (`experiment=adapt`). What it gains is scored on splits of
//! images, or of parts of images, that it was not trained on, before and after, and a model that gains nothing is not written.

use crate::camera::CameraArgs;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_model::Model;
use clearshot_tensor::DType;
use clearshot_train::records::console::{Show, duration};
use clearshot_train::run::BEST;
use clearshot_train::{Run, presets};
use std::path::{Path, PathBuf};

/// What a model must gain on held-out splits to be kept, in dB.
const LEAST_GAIN: f64 = 0.01;

#[derive(Args)]
pub struct Adapt {
    /// Take these noisy images: a folder, a glob pattern or a file.
    #[arg(value_name = "IMAGES")]
    images: String,
    /// Write the model to this file.
    #[arg(short, long, value_name = "NAME.clearshot")]
    output: PathBuf,
    /// Begin from this model. Default: the one that comes with the program.
    #[arg(long, value_name = "NAME.clearshot")]
    model: Option<PathBuf>,
    /// Train for so many seconds. Default: 60 on a GPU, 300 on the CPU.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    #[command(flatten)]
    camera: CameraArgs,
    /// Say how many electrons a count is. Default: estimated from each file.
    #[arg(long)]
    gain: Option<f64>,
    /// Say the counts without light. Default: estimated from each file.
    #[arg(long)]
    offset: Option<f64>,
    /// Say the standard deviation of the read noise in electrons. Default: estimated from each file.
    #[arg(long)]
    read_noise: Option<f64>,
    /// Run on cpu, cuda (the first GPU), cuda:N, or auto (a GPU if there is one). Default: auto.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Change keys of the training, as `clearshot train` takes them. Default: none.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Keep the folder of the run here. Default: it is removed at the end.
    #[arg(long, value_name = "FOLDER")]
    run: Option<PathBuf>,
    /// Show nothing while training.
    #[arg(long)]
    quiet: bool,
    /// Print one JSON object instead of sentences.
    #[arg(long)]
    json: bool,
}

impl Adapt {
    pub fn run(self) -> Result<()> {
        if self.output.extension().is_none_or(|e| e != "clearshot") {
            bail!("{}: a model's file is called NAME.clearshot", self.output.display());
        }
        if self.output.exists() {
            bail!("{} is there already; choose another name", self.output.display());
        }
        let passing = self.run.is_none();
        let folder = self.run.clone().unwrap_or_else(|| self.output.with_extension("run"));
        if passing && folder.exists() {
            bail!(
                "{} is in the way of the run's own folder; move it away, or name another by --run",
                folder.display()
            );
        }
        let made = self.adapt(&folder);
        if passing && folder.is_dir() {
            std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        made
    }

    fn adapt(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let model = match &self.model {
            Some(path) => Model::load(path)?,
            None => Model::builtin()?,
        };
        let first = folder.join("first.clearshot");
        model.save_file(&first, DType::F32)?;
        let mut config = presets::read(None, &self.settings(&first)?)?;
        // On the CPU a minute is not enough.
        let device = config.device()?;
        if self.seconds.is_none() && matches!(device, clearshot_runtime::Device::Cpu { .. }) {
            config.trainer.seconds = Some(300.0);
        }
        let show = if self.quiet || self.json { Show::Quiet } else { Show::for_terminal() };
        let mut run = Run::open(config, &folder.join("run"), false, show)?;
        if show != Show::Quiet {
            run.notes().iter().for_each(|note| eprintln!("{note}"));
            run.warnings().iter().for_each(|warning| eprintln!("clearshot: {warning}"));
        }
        let interrupted = crate::interrupt::finishing("finishing the iteration");
        let summary = run.train(&interrupted, None)?;
        let (Some(start), Some(best)) = (summary.start, summary.best) else {
            bail!("nothing was scored: the images gave no validation");
        };
        let (gain, kept) = (best - start, best > start + LEAST_GAIN);
        if kept {
            let mut adapted = Model::load(&folder.join("run").join(BEST))?;
            // Samples of other levels were not trained: what is known of their spread no longer holds.
            adapted.about.spread = None;
            adapted.save_file(&self.output, DType::F32)?;
        }
        if self.json {
            let record = serde_json::json!({
                "kept": kept, "gain_db": gain, "before_db": start, "after_db": best, "seconds": summary.seconds,
                "iterations": summary.iteration, "model": kept.then_some(&self.output),
            });
            println!("{record}");
            return Ok(());
        }
        println!(
            "{} iterations in {}: {start:.3} dB became {best:.3} dB on held-out splits of the images",
            summary.iteration,
            duration(summary.seconds)
        );
        match kept {
            true => println!("model {}", self.output.display()),
            false => println!(
                "it does not help on these images: no model is written, restore with the one that you have"
            ),
        }
        Ok(())
    }

    fn settings(&self, first: &Path) -> Result<Vec<String>> {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let mut all = vec![
            "experiment=adapt".to_string(),
            format!("data.inputs={}", quoted(&self.images)),
            format!("model.init={}", quoted(&first.display().to_string())),
            format!("trainer.device={}", self.device),
        ];
        all.extend(self.seconds.map(|s| format!("trainer.seconds={s}")));
        let camera = self.camera.read()?;
        let numbers = [
            ("gain", self.gain.or(camera.map(|c| c.gain))),
            ("offset", self.offset.or(camera.map(|c| c.offset))),
            ("read_noise", self.read_noise.or(camera.map(|c| c.read_noise))),
        ];
        all.extend(numbers.into_iter().filter_map(|(key, value)| Some(format!("data.{key}={}", value?))));
        all.extend(self.changes.iter().cloned());
        Ok(all)
    }
}
