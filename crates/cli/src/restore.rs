//! `clearshot restore`: removes noise and blur from image files with a trained model.

mod report;
mod trace;

pub use report::{Report, Shown};
pub use trace::Trace;

use crate::camera::KnownCameraArgs;
use crate::conditions::ConditionArgs;
use crate::electrons::{self, Background};
use crate::failure::worded;
use crate::outputs::{is_one_file, listed, prepare, result_in};
use crate::part::PartArgs;
use crate::training::Trainer;
use crate::validity::ValidityArgs;
use crate::voice::{Style, Voice};
use anyhow::{Result, bail};
use clap::Args;
use clearshot::{
    AdaptSettings, Candidate, DeviceName, FileStanding, KnownCamera, Model, Output, PointSpread, Precision,
    Restorer, Settings, Stacks, adapt, restore_file, restore_part,
};
use clearshot_restore::classical::gaussian::Gaussian;
use clearshot_runtime::bytes;
use clearshot_train::presets::{self, tuned_file};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::PathBuf;

/// Headings of the help.
const CAMERA: &str = "Camera";
const CONDITIONS: &str = "Conditions of the model";
const INVALID: &str = "Pixels without a measurement";
const SAMPLING: &str = "Sampling and guidance";
const SPEED: &str = "Speed and memory";
const UNCERTAINTY: &str = "Uncertainty";

#[derive(Args)]
pub struct Restore {
    /// Restore these files, folders, glob patterns or Zarr addresses (s3://, https://).
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<String>,
    /// Write to this file, whose extension sets the format, or to s3://BUCKET/NAME.zarr; for several inputs, to this folder.
    #[arg(short, long, alias = "out", value_name = "OUT")]
    output: PathBuf,
    /// Use this model: a file NAME.clearshot, a folder (of a training run, or saved by diffusers), an ONNX file, or a BioImage Model Zoo package as folder or zip.
    /// Default: the built-in model.
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Fine-tune the model on these images for this many seconds first, as `clearshot adapt` does. Refused if the noise is not that of counted
    /// electrons, and used only if its estimated gain is clear (experimental: no gain on a real image has been shown). Default: off.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    adapt: Option<u32>,
    /// Draw this many posterior samples; two or more give a standard deviation. Default: 0; 8 with --save-samples, and with --std if the model does not
    /// state its own error.
    #[arg(help_heading = UNCERTAINTY, long, value_name = "K")]
    samples: Option<u32>,
    /// Restore with this method: `auto` mixes the model, BM3D, a Gaussian blur and the measurement, weighted by their errors, which are estimated
    /// from the image itself; model, bm3d, gaussian or raw use only one of them.
    #[arg(long, default_value = "auto", value_name = "METHOD", value_parser = ["auto", "model", "bm3d", "gaussian", "raw"])]
    method: String,
    /// Restore each plane of a stack separately. Default: planes are averaged with their neighbours along Z where these show the same.
    #[arg(long)]
    planes: bool,
    /// Restore each frame of a movie separately. Default: files with a T axis use neighbouring frames where nothing moves.
    #[arg(long)]
    frames_alone: bool,
    /// Restore red, green and blue of colour images separately. Default: they are restored together.
    #[arg(long)]
    colours_alone: bool,
    /// Write the model's direct estimate (`direct`) or the mean of the posterior samples (`samples`). Default: direct.
    #[arg(help_heading = UNCERTAINTY, long, value_name = "WHAT", value_parser = ["direct", "samples"])]
    estimate: Option<String>,
    /// Write the posterior samples too, as OUT_sample1 and so on.
    #[arg(help_heading = UNCERTAINTY, long)]
    save_samples: bool,
    /// Write the standard deviation of every pixel's error, as OUT_std: as the model states it, or of the posterior samples if --samples asks for some.
    #[arg(help_heading = UNCERTAINTY, long)]
    std: bool,
    /// Write a map of chi2, as OUT_chi2: near 1 where the restored image explains the measurement up to its noise.
    #[arg(help_heading = UNCERTAINTY, long)]
    chi2: bool,
    /// Draw samples with this sampler: ddpm, ddim, dpmpp, dpmpp-2m, dpmpp-3m, dpmpp-2m-sde, euler or heun, with settings as in ddim:eta=0.5,
    /// ddpm:large=1, heun:churn=40,from=0.05,to=50,noise=1.003.
    #[arg(help_heading = SAMPLING, long, default_value = "dpmpp-2m", value_name = "NAME")]
    sampler: String,
    /// Draw each sample in this many steps.
    #[arg(help_heading = SAMPLING, long, default_value_t = 25, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Space the noise levels of the steps by this rule: karras, with settings as in karras:rho=5,max=20; for models trained on timesteps also
    /// trailing, leading:offset=1, linspace or quadratic. Default: karras; trailing for models trained on timesteps.
    #[arg(help_heading = SAMPLING, long, value_name = "RULE")]
    levels: Option<String>,
    /// Start samples from the measurement with this much noise added, in units in which the model's range is 2. Default: start from pure noise.
    #[arg(help_heading = SAMPLING, long, value_name = "NOISE")]
    begin: Option<f64>,
    /// Draw samples from coarse to fine in this many stages: with 2, first samples of means over 2 x 2 pixels, then samples of the image, which start
    /// from them (with the noise of --begin) and keep these means.
    #[arg(help_heading = SAMPLING, long, value_name = "STAGES", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=6))]
    cascade: u8,
    /// Keep measured pixels as they are, and draw only masked, saturated and NaN pixels. Default: all pixels are restored.
    #[arg(help_heading = INVALID, long)]
    inpaint: bool,
    /// Set the weight of classifier-free guidance, by the measurement for models trained with task.drop, by class and context for models trained with
    /// task.drop_class; 1 is the network's own answer.
    #[arg(help_heading = SAMPLING, long, value_name = "WEIGHT", default_value_t = 1.0)]
    classifier_free: f64,
    /// Set the background: mean electrons, or a file with frames without an object, in counts, whose mean over all planes is the background of each
    /// pixel; its uneven part is subtracted from the result. Default: estimated from the darkest places.
    #[arg(help_heading = CAMERA, long, value_name = "ELECTRONS|FILE", value_parser = electrons::background, allow_negative_numbers = true)]
    background: Option<Background>,
    /// Restore this image of files that contain several, by name or number. Default: all images.
    #[arg(long, value_name = "NAME")]
    item: Option<String>,
    /// Set what the axes of the files are, one letter each in the file's order: TYX for a movie, ZYX for a stack. Written files keep the axis names
    /// of the input. Default: as stated in the file.
    #[arg(long, value_name = "LETTERS")]
    axes: Option<String>,
    /// Deconvolve with this point-spread function: a file, gaussian:1.5px, or airy:na=1.4,em=520nm (add pixel=65nm, and z=200nm for stacks, if the
    /// file does not state them). Default: none.
    #[arg(long, value_name = "PSF")]
    psf: Option<String>,
    /// Guide samples by this likelihood of the measurement: poisson-gaussian, shifted-poisson, gaussian, ... Default: none.
    #[arg(help_heading = SAMPLING, long, value_name = "NAME")]
    guidance: Option<String>,
    /// Weight guidance by this law: proximal, sigma-squared, ..., with parameters as in proximal:strength=0.8; `through` and `covariance`
    /// differentiate the network and need an image that fits into one tile. Default: proximal.
    #[arg(help_heading = SAMPLING, long, value_name = "LAW")]
    law: Option<String>,
    /// Limit each guidance correction to this root mean square, in units in which the model's range is 2. Default: no limit.
    #[arg(help_heading = SAMPLING, long, value_name = "SIZE")]
    clip: Option<f64>,
    /// Guide only while the noise of a sample, relative to the signal, is between these two numbers, as in 0,5. Default: always.
    #[arg(help_heading = SAMPLING, long, value_name = "LOW,HIGH", value_delimiter = ',', num_args = 1)]
    gate: Vec<f64>,
    /// Write a record of every guidance correction: one JSON line for each image, sample and step.
    #[arg(help_heading = SAMPLING, long, value_name = "FILE.jsonl")]
    trace: Option<PathBuf>,
    /// Set the side of a tile in pixels; `auto` chooses by memory. The result does not depend on it.
    #[arg(help_heading = SPEED, long, default_value = "auto", value_parser = tile)]
    tile: Tile,
    /// Run this many tiles at once. Default: enough to keep the device busy.
    #[arg(help_heading = SPEED, long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Option<u32>,
    /// Limit the memory of the network on the device, for example to 2GiB. Default: 512 MiB on a CPU, half of a GPU's memory.
    #[arg(help_heading = SPEED, long, value_parser = bytes::parse, value_name = "BYTES")]
    memory: Option<usize>,
    /// Limit the time of the network on an image: fewer steps than --steps are taken if needed, and one run is timed first. Default: no limit.
    #[arg(help_heading = SPEED, long, value_name = "SECONDS")]
    max_seconds: Option<f64>,
    /// Restore means over 2 x 2, 4 x 4 or 8 x 8 pixels if --max-seconds is too short for every pixel even with the fewest steps; the result has fewer
    /// and larger pixels, as 32-bit floats, and says so. Default: such a limit is refused.
    #[arg(help_heading = SPEED, long)]
    allow_binning: bool,
    /// Limit the memory of network and image together, for example to 1GiB: without --memory half of it is for the network, and what does not fit
    /// goes to temporary files. Default: 512 MiB for the network on a CPU, 768 MiB for the image.
    #[arg(help_heading = SPEED, long, value_parser = bytes::parse, value_name = "BYTES")]
    max_memory: Option<usize>,
    /// Use this folder for temporary files of images that are larger than memory. Default: the system's folder for temporary files.
    #[arg(help_heading = SPEED, long, value_name = "FOLDER")]
    scratch: Option<PathBuf>,
    /// Run on cpu, cuda (the first GPU), cuda:N, or auto (a GPU if there is one).
    #[arg(help_heading = SPEED, long, default_value = "auto")]
    device: DeviceName,
    /// Compute in fp32, tf32, bf16, fp16, fp8 (bf16, with e4m3 for convolutions that read norms, of which the default model has none; GPUs of compute capability 9.0), or int8 (the same with the 8 bits of a quantised model; on the CPU, where quantised models use them in any precision, as auto). On a GPU, auto takes the fastest but fp8 and int8 whose difference from fp32, measured on a crop of the image, is below 2
    /// % of the noise; on the CPU it is fp32. Only fp32 gives the same bits on every device.
    #[arg(help_heading = SPEED, long, default_value = "auto")]
    precision: Precision,
    /// Use this many CPU threads. Default: one for each core.
    #[arg(help_heading = SPEED, long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Read tile, batch, threads and precision from a file written by `tune`, unless they are given here; `auto_tuned` is
    /// configs/performance/auto_tuned.yaml. Default: each option's own default.
    #[arg(help_heading = SPEED, long, value_name = "FILE.yaml|auto_tuned")]
    performance: Option<String>,
    /// Seed the noise of samples; the same seed gives the same bits.
    #[arg(help_heading = UNCERTAINTY, long, default_value_t = 0)]
    seed: u64,
    /// Write 32-bit floats instead of the input's pixel type.
    #[arg(long)]
    float: bool,
    /// Write an HTML report with pictures and numbers of every file. With --part, the last run, without --part, writes it. Default: none.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    #[command(flatten)]
    part: PartArgs,
    /// Print JSON, one line for the plan, for each file and for the summary. Default: text.
    #[arg(long)]
    json: bool,
    /// Print errors only.
    #[arg(long, short)]
    quiet: bool,
    /// Replace existing files.
    #[arg(long)]
    force: bool,
    #[command(flatten, next_help_heading = CONDITIONS)]
    conditions: ConditionArgs,
    #[command(flatten, next_help_heading = CAMERA)]
    camera: KnownCameraArgs,
    #[command(flatten, next_help_heading = INVALID)]
    validity: ValidityArgs,
}

#[derive(Clone, Copy)]
struct Tile(Option<usize>);

fn tile(text: &str) -> Result<Tile, String> {
    match (text, text.parse::<usize>()) {
        ("auto", _) => Ok(Tile(None)),
        (_, Ok(n)) if (8..=1 << 16).contains(&n) => Ok(Tile(Some(n))),
        _ => Err("write auto, or a number of pixels from 8 to 65536".into()),
    }
}

/// An input and why it was not restored.
type Failure = (String, String);

/// The result for an input. Errors of files begin with the file's name, which is printed once.
fn failure(input: String, error: &anyhow::Error) -> Failure {
    let why = worded(error);
    let why = why.strip_prefix(&format!("{input}: ")).unwrap_or(&why).to_string();
    (input, why)
}

impl Restore {
    /// Whether it prints JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Takes from a file of `tune` what is not given.
    fn tune(&mut self) -> Result<()> {
        let Some(name) = &self.performance else { return Ok(()) };
        let file = if name == "auto_tuned" { tuned_file(None) } else { PathBuf::from(name) };
        let texts = [file.display().to_string(), "trainer.iterations=1".into()];
        let tuned = presets::read(None, &texts)?.performance;
        self.tile = Tile(self.tile.0.or(tuned.tile));
        self.batch = self.batch.or(tuned.tiles.and_then(|n| u32::try_from(n).ok()));
        self.threads = self.threads.or(u16::try_from(tuned.threads).ok().filter(|n| *n > 0));
        if self.precision == Precision::Auto {
            self.precision = tuned.precision.parse().map_err(anyhow::Error::msg)?;
        }
        Ok(())
    }

    pub fn run(mut self) -> Result<()> {
        self.tune()?;
        let camera = self.camera.read()?;
        let level = self.background.as_ref().and_then(Background::level);
        let camera = KnownCamera { background: level.or(camera.background), ..camera };
        let (inputs, mut failed) = self.inputs()?;
        let named = is_one_file(&self.output, inputs.len())?;
        self.part.refuse("--adapt", self.adapt.is_some())?;
        self.part.refuse("--trace", self.trace.is_some())?;
        let mut voice = Voice::new(Style::Restored, self.json, self.quiet);
        let settings = self.settings(camera)?;
        let restorer = self.restorer(&inputs, &camera, &voice)?;
        prepare(&self.output)?;
        restorer.check(&settings)?;
        voice.report = self.report.as_deref().map(|path| Report::new(path, self.force)).transpose()?;
        voice.trace = self.trace.as_deref().map(|path| Trace::new(path, self.force)).transpose()?;
        let output = |input: &PathBuf| match named {
            true => self.output.clone(),
            false => result_in(&self.output, input),
        };
        let pairs: Vec<(PathBuf, PathBuf)> = inputs.iter().map(|i| (i.clone(), output(i))).collect();
        let mut taken = HashSet::new();
        let doubled: Vec<bool> = pairs.iter().map(|(_, output)| !taken.insert(output)).collect();
        let jobs = self.part.open(&pairs, &self.output, &restorer.work(&settings)?)?;
        jobs.refuse_cut("--report", self.report.is_some())?;
        if let Some((text, record)) = jobs.heading()? {
            voice.say(&text, record)?;
        }
        let (mut done, mut skipped) = (0, 0);
        let own = jobs.own(pairs.len());
        let total = own.len();
        for (at, &number) in own.iter().enumerate() {
            let (input, output) = &pairs[number];
            let name = input.display().to_string();
            voice.begin(format!("{}/{total} {name}", at + 1), input);
            let mut turn = || -> Result<bool> {
                if doubled[number] {
                    bail!(
                        "another input is written to {} already; name a folder, or rename one of the inputs",
                        output.display()
                    );
                }
                let standing = jobs.begin(number, self.force)?;
                if let FileStanding::Done(section) = &standing {
                    voice.report.iter_mut().for_each(|report| report.repeat(section));
                    return Ok(false);
                }
                let replace = self.force || standing == FileStanding::Begun;
                let settings = Settings { replace, ..settings.clone() };
                let outcome = match jobs.cut() {
                    Some(run) => restore_part(input, output, &restorer, &settings, run, &mut voice),
                    None => restore_file(input, output, &restorer, &settings, &mut voice),
                };
                let report = voice.end(outcome)?;
                let section = voice.report.as_mut().map_or(Value::Null, Report::latest);
                jobs.done(number, &section)?;
                Ok(!report.is_already_done())
            };
            match turn() {
                Ok(false) => skipped += 1,
                Ok(true) => done += 1,
                Err(e) => {
                    let failure = failure(name, &e);
                    if total > 1 {
                        eprintln!("clearshot: {}: {}", failure.0, failure.1);
                    }
                    failed.push(failure);
                }
            }
        }
        if let Some(report) = voice.report.take().filter(|_| !self.part.is_given()) {
            let path = report.finish(&restorer.record(&settings)?, &failed)?;
            voice.say(&format!("report: {}", path.display()), json!({"event": "report", "path": path}))?;
        }
        if let Some(trace) = voice.trace.take() {
            trace.finish()?;
        }
        self.summary(&voice, done, skipped, &failed)?;
        jobs.finish()
    }

    /// The model on its device, fitted to the files where that is asked for and helps.
    fn restorer(&self, files: &[PathBuf], camera: &KnownCamera, voice: &Voice) -> Result<Restorer> {
        let threads = self.threads.map(usize::from);
        let Some(seconds) = self.adapt else {
            let device = self.device.device(threads)?;
            return Ok(match &self.model {
                Some(path) => Restorer::load_on(path, device)?,
                None => Restorer::builtin_on(device)?,
            });
        };
        let model = match &self.model {
            Some(path) => Model::load(path)?,
            None => Model::builtin()?,
        };
        let settings = AdaptSettings {
            seconds: Some(seconds.into()),
            camera: *camera,
            device: self.device,
            ..AdaptSettings::default()
        };
        let mut trainer = Trainer::for_people(self.quiet || self.json, None);
        let fitted = adapt(files, model, &settings, &mut trainer)?;
        let mut said = fitted.record();
        said["event"] = json!("adapt");
        voice.say(&fitted.in_words(), said)?;
        // A model that is not kept leaves no trace in results, which are the same as without it.
        let origin = match fitted.kept {
            true => fitted.record(),
            false => json!({"kept": false}),
        };
        let restorer = Restorer::from_model(fitted.into_model(), self.device.device(threads)?)?;
        Ok(restorer.with_origin(Some(origin)))
    }

    fn settings(&self, camera: KnownCamera) -> Result<Settings> {
        let samples = self.samples.map_or(if self.save_samples { 8 } else { 0 }, |k| k as usize);
        let only = match self.method.as_str() {
            "model" => Some(Candidate::Model),
            "bm3d" => Some(Candidate::Bm3d),
            "gaussian" => Some(Candidate::Gaussian(Gaussian::USUAL.sigma)),
            "raw" => Some(Candidate::Raw),
            _ => None,
        };
        let gate = match self.gate[..] {
            [] => None,
            [low, high] => Some([low, high]),
            _ => bail!("--gate: two numbers are needed, such as 0,5"),
        };
        let estimate = self.estimate.as_deref().map(|e| match e {
            "direct" => Output::Direct,
            _ => Output::Samples,
        });
        let mut settings = Settings {
            camera,
            background: self.background.as_ref().and_then(Background::file),
            item: self.item.clone(),
            axes: self.axes.clone(),
            stacks: if self.planes { Stacks::Planes } else { Stacks::Auto },
            psf: self.psf.as_deref().map(str::parse::<PointSpread>).transpose()?,
            tile: self.tile.0,
            only,
            frames_alone: self.frames_alone,
            colours_alone: self.colours_alone,
            samples,
            estimate,
            std: self.std,
            chi2: self.chi2,
            save_samples: self.save_samples,
            sampler: self.sampler.clone(),
            steps: self.steps as usize,
            levels: self.levels.clone(),
            begin: self.begin,
            cascade: self.cascade.into(),
            inpaint: self.inpaint,
            classifier_free: self.classifier_free,
            class: self.conditions.class.clone(),
            context: self.conditions.context()?,
            taken_by: self.conditions.taken_by()?,
            seed: self.seed,
            guidance: self.guidance.clone(),
            law: self.law.clone(),
            clip: self.clip,
            gate,
            trace: self.trace.is_some(),
            batch: self.batch.map(|b| b as usize),
            memory: self.memory,
            max_seconds: self.max_seconds,
            allow_binning: self.allow_binning,
            max_memory: self.max_memory,
            precision: self.precision,
            scratch: self.scratch.clone(),
            float: self.float,
            replace: self.force,
            ..Settings::default()
        };
        self.validity.set(&mut settings);
        Ok(settings)
    }

    fn summary(&self, voice: &Voice, done: usize, skipped: usize, failed: &[Failure]) -> Result<()> {
        let list: Vec<_> = failed.iter().map(|(input, why)| json!({"input": input, "error": why})).collect();
        let record = json!({"event": "summary", "restored": done, "already_done": skipped, "failed": list});
        if done + skipped + failed.len() > 1 || self.json {
            let mut text = format!("{done} restored");
            if skipped > 0 {
                text += &format!(", {skipped} already done");
            }
            if !failed.is_empty() {
                text += &format!(", {} failed", failed.len());
            }
            voice.say(&text, record)?;
        }
        match failed {
            [] => Ok(()),
            [(input, why)] => bail!("{input}: {why}"),
            many => {
                let lines: Vec<String> =
                    many.iter().map(|(input, why)| format!("\n  {input}: {why}")).collect();
                bail!("{} files could not be restored:{}", many.len(), lines.concat())
            }
        }
    }

    /// The files, and the inputs that name none.
    fn inputs(&self) -> Result<(Vec<PathBuf>, Vec<Failure>)> {
        let (mut found, mut failed) = (Vec::new(), Vec::new());
        for source in &self.inputs {
            match listed(source) {
                Ok(files) => found.extend(files),
                Err(e) if self.inputs.len() == 1 => return Err(e),
                Err(e) => failed.push(failure(source.clone(), &e)),
            }
        }
        if found.is_empty() {
            let why: Vec<String> = failed.iter().map(|(input, why)| format!("{input}: {why}")).collect();
            bail!("nothing to restore: {}", why.join("; "));
        }
        Ok((found, failed))
    }
}
