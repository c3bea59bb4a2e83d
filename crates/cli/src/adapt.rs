//! `clearshot adapt`: a model fitted to the user's own noisy images, kept only where it helps. `restore --adapt` does the same first.
//!
//! It is a training run from that model, by splitting the electrons of the images (`experiment=adapt`). What it gains is estimated on
//! images, or parts of images, that it was not trained on (`train::run::Gain`), which holds for noise of a camera that counts electrons: where the noise is not of that
//! kind (`train::run::NoiseLaw`) nothing is trained, and a model whose gain is not clear is not kept.

use crate::camera::CameraArgs;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_model::Model;
use clearshot_runtime::Device;
use clearshot_tensor::DType;
use clearshot_train::calibration::{Within, calibrate_within, data_of};
use clearshot_train::config::CalibrationConfig;
use clearshot_train::data::Data;
use clearshot_train::records::console::{Show, duration};
use clearshot_train::run::{BEST, Gain};
use clearshot_train::{Run, presets};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Seconds on the CPU where nobody says how many; on a GPU, what the experiment has.
const ON_THE_CPU: f64 = 300.0;
/// The share of the time that the spread of posterior samples may be calibrated in, beyond it.
const CALIBRATION: f64 = 0.2;

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
    /// Train and write the model even where its gain is not clear or cannot be told. Default: it is not written then.
    #[arg(long)]
    keep: bool,
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
        let start = match &self.model {
            Some(path) => Model::load(path)?,
            None => Model::builtin()?,
        };
        let camera = self.camera.read()?;
        let numbers = [
            ("gain", self.gain.or(camera.map(|c| c.gain))),
            ("offset", self.offset.or(camera.map(|c| c.offset))),
            ("read_noise", self.read_noise.or(camera.map(|c| c.read_noise))),
        ];
        let camera = numbers.into_iter().filter_map(|(key, value)| Some(format!("data.{key}={}", value?)));
        let fit = Fit {
            images: format!("data.inputs={}", quoted(&self.images)),
            changes: camera.chain(self.changes.iter().cloned()).collect(),
            seconds: self.seconds.map(f64::from),
            device: &self.device,
            anyway: self.keep,
            quiet: self.quiet || self.json,
        };
        let stop = crate::interrupt::finishing("finishing the iteration");
        let fitted = fit.run(start, folder, &stop)?;
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
        match written {
            true => println!("model {}", self.output.display()),
            false => println!("no model is written: restore with the one that you have"),
        }
        Ok(())
    }
}

/// A text as a value of YAML.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// What is fitted to what.
pub struct Fit<'a> {
    /// The key of the images and its value.
    pub images: String,
    pub changes: Vec<String>,
    pub seconds: Option<f64>,
    pub device: &'a str,
    /// Trains even where the gain cannot be told.
    pub anyway: bool,
    pub quiet: bool,
}

/// A model fitted to files that are about to be restored, in a folder that passes.
///
/// # Errors
/// As [`Fit::run`].
pub fn for_files(
    model: Model,
    files: &[PathBuf],
    changes: Vec<String>,
    seconds: u32,
    device: &str,
    quiet: bool,
) -> Result<Fitted> {
    let folder = std::env::temp_dir().join(format!("clearshot-adapt-{}", std::process::id()));
    let fit = || {
        let images = Fit::to_files(files, &folder)?;
        let fit = Fit { images, changes, seconds: Some(seconds.into()), device, anyway: false, quiet };
        fit.run(model, &folder, &clearshot_train::run::never())
    };
    let made = fit();
    if folder.is_dir() {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    made
}

/// What came of it.
pub struct Fitted {
    pub start: Model,
    /// The best model of the run; none where that is the one that it began from.
    pub adapted: Option<Model>,
    pub gain: Option<Gain>,
    /// Whether it surely helps.
    pub kept: bool,
    /// Why no gain can be told.
    pub refused: Option<String>,
    iterations: u64,
    seconds: f64,
}

impl Fit<'_> {
    /// To files by name.
    ///
    /// # Errors
    /// If the list of them cannot be written into the folder.
    pub fn to_files(files: &[PathBuf], folder: &Path) -> Result<String> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let mut text = "input\n".to_string();
        for file in files {
            let whole = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            let name = if clearshot_image::address::is_address(file) { file } else { &whole };
            let name = name.to_str().with_context(|| format!("{}: not a name in UTF-8", file.display()))?;
            text += &format!("\"{}\"\n", name.replace('"', "\"\""));
        }
        let list = folder.join("images.csv");
        std::fs::write(&list, text).with_context(|| list.display().to_string())?;
        Ok(format!("data.manifest={}", quoted(&list.display().to_string())))
    }

    /// Trains in a folder.
    ///
    /// # Errors
    /// If the images cannot be trained on, or the run fails.
    pub fn run(&self, start: Model, folder: &Path, stop: &AtomicBool) -> Result<Fitted> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let first = folder.join("first.clearshot");
        start.save_file(&first, DType::F32)?;
        let mut settings = vec!["experiment=adapt".to_string(), self.images.clone()];
        settings.push(format!("model.init={}", quoted(&first.display().to_string())));
        settings.push(format!("trainer.device={}", self.device));
        settings.extend(self.changes.iter().cloned());
        let mut config = presets::read(None, &settings)?;
        let device = config.device()?;
        let is_set = self.changes.iter().any(|c| c.starts_with("trainer.seconds="));
        match (config.trainer.iterations, device) {
            // A number of iterations takes the place of the time.
            (Some(_), _) => config.trainer.seconds = None,
            (None, _) if self.seconds.is_some() => config.trainer.seconds = self.seconds,
            (None, Device::Cpu { .. }) if !is_set => config.trainer.seconds = Some(ON_THE_CPU),
            _ => {}
        }
        let show = if self.quiet { Show::Quiet } else { Show::for_terminal() };
        let mut run = Run::open(config, &folder.join("run"), false, show)?;
        if !self.quiet {
            run.notes().iter().for_each(|note| eprintln!("{note}"));
            run.warnings().iter().for_each(|warning| eprintln!("clearshot: {warning}"));
        }
        let refused = run.noise_law()?.and_then(|law| law.refusal());
        if refused.is_some() && !self.anyway {
            let seconds = run.progress().seconds;
            return Ok(Fitted {
                start,
                adapted: None,
                gain: None,
                kept: false,
                refused,
                iterations: 0,
                seconds,
            });
        }
        let summary = run.train(stop, None)?;
        drop(run);
        let best = folder.join("run").join(BEST);
        let changed = best.is_file() && summary.best > summary.start;
        let gain = summary.gain.filter(|_| changed);
        let kept = refused.is_none() && gain.is_some_and(|gain| gain.is_sure());
        let most = if kept { CALIBRATION * summary.seconds } else { 0.0 };
        let adapted = changed.then(|| self.with_spread(&start, &best, device, most, stop)).transpose()?;
        let (iterations, seconds) = (summary.iteration, summary.seconds);
        Ok(Fitted { start, adapted, gain, kept, refused, iterations, seconds })
    }

    /// The adapted model with a calibrated spread: found on images as the first model was trained on, where there is time, else that of the first
    /// model.
    fn with_spread(
        &self,
        start: &Model,
        best: &Path,
        device: Device,
        most: f64,
        stop: &AtomicBool,
    ) -> Result<Model> {
        let load = || Ok(Model::load(best)?);
        let say = |text: &str| {
            if !self.quiet {
                eprintln!("{text}");
            }
        };
        let mut model = Model::load(best)?;
        model.about.spread = start.about.spread.clone();
        let (Some(_), Ok(config), true) = (&start.about.spread, data_of(start), most > 0.0) else {
            return Ok(model);
        };
        let data = Data::new(&config)?;
        let how = CalibrationConfig::default();
        let size = &start.about.crop;
        match calibrate_within(most, &load, &data, size, &how, device, stop, &mut |text| say(text))? {
            Within::Made(calibrated, found) => {
                say(&format!("90 % intervals of its samples hold {:.1} % of truths", 100.0 * found.after));
                model.about.spread = calibrated.about.spread;
            }
            _ => say(
                "the calibration of its samples' spread is that of the model it began from: there is no time for one of its own",
            ),
        }
        Ok(model)
    }
}

impl Fitted {
    /// The model to restore with.
    pub fn into_model(self) -> Model {
        match self.adapted {
            Some(adapted) if self.kept => adapted,
            _ => self.start,
        }
    }

    pub fn record(&self) -> Value {
        json!({
            "kept": self.kept, "refused": self.refused, "gain_db": self.gain.map(|g| g.db), "gain_error_db": self.gain.map(|g| g.error),
            "gain_doubt_db": self.gain.map(|g| g.doubt), "crops": self.gain.map(|g| g.images),
            "seconds": self.seconds, "iterations": self.iterations,
        })
    }

    pub fn in_words(&self) -> String {
        let what = match (self.gain, self.kept) {
            _ if self.iterations == 0 => {
                return format!("not adapted: {}", self.refused.as_deref().unwrap_or("it was stopped"));
            }
            (Some(gain), true) => gain.in_words(),
            (Some(gain), false) => match &self.refused {
                Some(why) => format!("{}; that cannot be relied on: {why}", gain.in_words()),
                None => format!("its gain is not clear: {}", gain.in_words()),
            },
            (None, _) => {
                "it does not help: no state of it was better than the model that it began from".into()
            }
        };
        format!("adapted in {} iterations, {}: {what}", self.iterations, duration(self.seconds))
    }
}
