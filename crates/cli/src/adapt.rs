//! `clearshot adapt`: fits a model to the user's noisy images, and keeps it only if it helps. `restore --adapt` does
//! the same before restoring.

use crate::camera::KnownCameraArgs;
use crate::training::Trainer;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use clearshot::{AdaptFrom, AdaptSettings, DeviceName, Model, adapt};
use clearshot_tensor::DType;
use serde_json::json;
use std::path::PathBuf;

/// What to learn from.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum From {
    /// Repeats of the same fields where most of the images are, else noise.
    Auto,
    /// Several exposures of the same fields: frames along T, the files of a folder, or files whose names differ in their last number.
    Repeats,
    /// Single images.
    Noise,
}

#[derive(Args)]
pub struct Adapt {
    /// Learn from these noisy images: a folder, glob pattern or file.
    #[arg(value_name = "IMAGES")]
    images: String,
    /// Write the model to this file.
    #[arg(short, long, alias = "out", value_name = "NAME.clearshot")]
    output: PathBuf,
    /// Start from this model. Default: the built-in model.
    #[arg(long, value_name = "NAME.clearshot")]
    model: Option<PathBuf>,
    /// Train for this many seconds. Default: 60 on a GPU, 300 on the CPU.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Learn from repeats of the same fields (repeats) or from the noise of single images (noise); auto chooses by the files. Default: auto.
    #[arg(long, value_enum, default_value = "auto", hide_default_value = true)]
    from: From,
    #[command(flatten)]
    camera: KnownCameraArgs,
    /// Run on cpu, cuda (the first GPU), cuda:N, or auto (a GPU if there is one). Default: auto.
    #[arg(long, default_value = "auto")]
    device: DeviceName,
    /// Change keys of the training configuration, as in `clearshot train`. Default: none.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Keep the run in this folder. Default: it is deleted at the end.
    #[arg(long, value_name = "FOLDER")]
    run: Option<PathBuf>,
    /// Resume the run in --run, with the same images and options. Default: start a new run.
    #[arg(long, requires = "run", conflicts_with_all = ["model", "from"])]
    resume: bool,
    /// Refused: one model is trained on all images in a single run. `restore --part` shares the files to restore between jobs, and `train --devices`
    /// trains in several processes. Default: none.
    #[arg(long, value_name = "I/N")]
    part: Option<String>,
    /// Train and write the model even if its gain is unclear or cannot be estimated. Default: such a model is not written.
    #[arg(long)]
    keep: bool,
    /// Print nothing while training. Default: progress and scores.
    #[arg(long)]
    quiet: bool,
    /// Print one JSON object. Default: text.
    #[arg(long)]
    json: bool,
}

impl Adapt {
    pub fn run(self) -> Result<()> {
        if self.part.is_some() {
            bail!(
                "--part: one model is trained on all images in a single run, which jobs cannot share; leave --part out, and use `restore --part` to share the files that the model then restores"
            );
        }
        if self.output.extension().is_none_or(|e| e != "clearshot") {
            bail!("{}: not the name of a model file; write NAME.clearshot", self.output.display());
        }
        if self.output.exists() {
            bail!("{} exists already; choose another name", self.output.display());
        }
        let start = match &self.model {
            Some(path) => Model::load(path)?,
            None => Model::builtin()?,
        };
        let settings = AdaptSettings {
            seconds: self.seconds.map(f64::from),
            camera: self.camera.read()?,
            device: self.device,
            overrides: self.changes,
            folder: self.run.clone(),
            resume: self.resume,
            anyway: self.keep,
            from: match self.from {
                From::Auto => AdaptFrom::Auto,
                From::Repeats => AdaptFrom::Repeats,
                From::Noise => AdaptFrom::Noise,
            },
        };
        let stop = crate::interrupt::finishing("finishing the iteration");
        let mut trainer = Trainer::for_people(self.quiet || self.json, Some(stop));
        let fitted = adapt(&[PathBuf::from(&self.images)], start, &settings, &mut trainer)?;
        let written = fitted.kept || self.keep;
        if written {
            let model = fitted.adapted.as_ref().context("the run made no model")?;
            model.save_file(&self.output, DType::F32)?;
        }
        if self.json {
            let mut record = fitted.record();
            record["model"] = json!(written.then_some(&self.output));
            println!("{record}");
            return Ok(());
        }
        println!("{}", fitted.in_words());
        if let (true, Some(folder)) = (fitted.interrupted, &self.run) {
            println!("interrupted; the same command with --resume resumes {}", folder.display());
        }
        match written {
            true => println!("model {}", self.output.display()),
            false => println!("no model was written; restore with the one that you have"),
        }
        Ok(())
    }
}
