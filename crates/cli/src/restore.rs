//! `clearshot restore`: image files without their noise, and without their blur, by a trained model.

mod camera;
mod engine;
mod file;
mod image;
mod kept;
mod movie;
mod parts;
mod record;
mod report;
mod trace;
mod written;

pub use camera::shared;

use crate::adapt;
use crate::electrons;
use crate::failure::worded;
use crate::mask::Validity;
use crate::network::DeviceName;
use crate::outputs::{listed, prepared, result_in};
use anyhow::{Result, bail};
use camera::Given;
use clap::Args;
use clearshot_graph::plan::human;
use clearshot_image::address::exists;
use clearshot_image::{fingerprint, lengths};
use clearshot_model::Model;
use clearshot_physics::Psf;
use clearshot_restore::classical::gaussian::Gaussian;
use clearshot_restore::learned::{Candidate, Forecast, Guidance, Output, Restorer, Settings, law};
use clearshot_runtime::Precision;
use clearshot_train::records::console::duration;
use engine::{Engine, Engines};
use file::{Job, Outcome};
use report::Report;
use serde_json::json;
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use trace::Trace;

#[derive(Args)]
pub struct Restore {
    /// Files, folders, glob patterns or addresses of Zarr (s3://, https://).
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<String>,
    /// A file whose ending names the format, or s3://BUCKET/NAME.zarr; for several inputs a folder.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// A model: a file NAME.clearshot, or a folder (of diffusers too). Unless told, the one that comes with the program.
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Fit the model to these images for so many seconds before they are restored, by splitting their light; it is kept only where its estimated gain
    /// is clear. In the trials on real images so far that estimate was wrong: compare with the model as it is before you rely on it.
    /// Default: the model is taken as it is.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    adapt: Option<u32>,
    /// Samples of what the object may have been; with two or more their spread is known. Unless told none, and 8
    /// with --std or --save-samples: the image is then what the model says at once.
    #[arg(long, value_name = "K")]
    samples: Option<u32>,
    /// Restore by this: `auto` mixes the model, BM3D, a Gaussian blur and the measurement by their errors, which are estimated
    /// from the image itself; model, bm3d, gaussian or raw take one of them. Default: auto.
    #[arg(long, default_value = "auto", value_name = "METHOD", value_parser = ["auto", "model", "bm3d", "gaussian", "raw"])]
    method: String,
    /// Restore stacks plane by plane. Default: files with at least 4 planes along Z are restored as volumes, if the program comes
    /// with a model for them and no other model, PSF, guidance or method is asked for; this version comes with none.
    #[arg(long)]
    planes: bool,
    /// Restore each frame of a movie by itself. Default: files with a T axis use neighbouring frames where nothing moves.
    #[arg(long)]
    frames_alone: bool,
    /// What is written: `direct`, the model's estimate at once, or `samples`, the mean of the samples.
    #[arg(long, value_name = "WHAT", value_parser = ["direct", "samples"])]
    estimate: Option<String>,
    /// Write the samples too, as OUT_sample1 and so on.
    #[arg(long)]
    save_samples: bool,
    /// Write the standard deviation beside the image, as OUT_std.
    #[arg(long)]
    std: bool,
    /// Write how well the image explains the measurement, as OUT_chi2: about 1 where only noise is left over.
    #[arg(long)]
    chi2: bool,
    /// How samples are drawn: ddpm, ddim, dpmpp, dpmpp-2m, dpmpp-3m, dpmpp-2m-sde, euler or heun.
    #[arg(long, default_value = "dpmpp-2m", value_name = "NAME")]
    sampler: String,
    #[arg(long, default_value_t = 25, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Electrons per count. What is not given of the camera is estimated from the image.
    #[arg(long, value_parser = electrons::gain::<f64>, allow_negative_numbers = true)]
    gain: Option<f64>,
    /// Counts without light.
    #[arg(long, value_parser = electrons::counts::<f64>, allow_negative_numbers = true)]
    offset: Option<f64>,
    /// The standard deviation of the read noise in electrons.
    #[arg(long, value_parser = electrons::amount::<f64>, allow_negative_numbers = true)]
    read_noise: Option<f64>,
    /// A file with the camera: {"gain": 0.46, "offset": 100, "read_noise": 1.6}.
    #[arg(long, value_name = "FILE")]
    camera: Option<PathBuf>,
    /// Mean electrons where there is no object; unless told, what the darkest places have.
    #[arg(long, value_name = "ELECTRONS", value_parser = electrons::amount::<f64>, allow_negative_numbers = true)]
    background: Option<f64>,
    #[command(flatten)]
    validity: Validity,
    /// Restore this image of files that have several, by name or number. Default: all images.
    #[arg(long, value_name = "NAME")]
    item: Option<String>,
    /// The blur to take off: a file, gaussian:1.5px, or airy:na=1.4,em=520nm.
    #[arg(long, value_name = "PSF")]
    psf: Option<String>,
    /// Let the measurement guide the samples, by a likelihood: poisson-gaussian, shifted-poisson, gaussian, ...
    #[arg(long, value_name = "NAME")]
    guidance: Option<String>,
    /// How measurement and model are weighed: proximal, sigma-squared, ..., with numbers as in proximal:strength=0.8.
    #[arg(long, value_name = "LAW")]
    law: Option<String>,
    /// The largest correction of an image by its measurement, as a root mean square where the model's range is 2.
    #[arg(long, value_name = "SIZE")]
    clip: Option<f64>,
    /// Write what every correction by the measurement was like: one JSON line for each image, sample and step.
    #[arg(long, value_name = "FILE.jsonl")]
    trace: Option<PathBuf>,
    /// Pixels along a side of a tile; `auto` chooses by memory. The result does not depend on it.
    #[arg(long, default_value = "auto", value_parser = tile)]
    tile: Tile,
    /// Tiles at once; unless told, as many as keep the device busy.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Option<u32>,
    /// The most memory that the network may take on the device, for example 2GiB.
    #[arg(long, value_parser = crate::size::parse, value_name = "BYTES")]
    memory: Option<usize>,
    /// A folder for temporary files, where images are larger than memory.
    #[arg(long, value_name = "FOLDER")]
    scratch: Option<PathBuf>,
    /// What to run on: cpu, cuda (the first GPU), cuda:N, or auto (a GPU if there is one).
    #[arg(long, default_value = "auto")]
    device: DeviceName,
    /// Compute in fp32, tf32, bf16 or fp16; auto takes, on a GPU, the fastest whose difference from fp32, measured on a crop of the
    /// image, is below 2 % of the noise, and fp32 on the CPU. Only fp32 gives the same bits on every device. Default: auto.
    #[arg(long, default_value = "auto")]
    precision: Precision,
    /// Threads of the CPU.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write 32-bit numbers instead of the input's type.
    #[arg(long)]
    float: bool,
    /// An HTML page with pictures and numbers of every file.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// One JSON line for the plan, for each file and for the summary.
    #[arg(long)]
    json: bool,
    /// Say nothing but what failed.
    #[arg(long, short)]
    quiet: bool,
    /// Replace files that are there already.
    #[arg(long)]
    force: bool,
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

/// What the program says while it works, as the user wants it.
pub struct Voice {
    json: bool,
    quiet: bool,
}

impl Voice {
    /// A line for people, and the same as JSON.
    fn say(&self, text: &str, record: serde_json::Value) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match (self.json, self.quiet) {
            (true, _) => writeln!(out, "{record}")?,
            (false, false) => writeln!(out, "{text}")?,
            (false, true) => {}
        }
        Ok(())
    }

    /// Something to know about a file.
    fn note(&self, input: &Path, text: &str) {
        if !self.quiet {
            eprintln!("clearshot: {}: {text}", input.display());
        }
    }

    /// What restoring without the model is.
    fn plan_without(&self, input: &Path, by: &Candidate) -> Result<()> {
        let record =
            json!({"event": "plan", "input": input, "device": "cpu", "method": by.name(), "runs": 0});
        self.say(&format!("plan: {} on the CPU, without the model", by.name()), record)
    }

    /// What restoring will take: `choosing` runs of the network for what to trust, and those of the forecast for each of
    /// the groups.
    fn plan(
        &self,
        input: &Path,
        forecast: &Forecast,
        groups: usize,
        choosing: usize,
        device: &str,
    ) -> Result<()> {
        let runs = forecast.runs * groups + choosing;
        let seconds = forecast.seconds_a_run.map(|s| s * runs as f64);
        let record = json!({
            "event": "plan", "input": input, "device": device, "tile": forecast.tile, "halo": forecast.halo,
            "tiles": forecast.tiles, "batch": forecast.batch, "blended": forecast.blends,
            "device_bytes": forecast.device_bytes, "host_bytes": forecast.host_bytes,
            "runs": runs, "runs_choosing": choosing, "seconds": seconds,
        });
        let beside = match forecast.blends {
            true => "overlapping by a quarter".to_string(),
            false => format!("with {} pixels around each", lengths(&forecast.halo)),
        };
        let text = format!(
            "plan: {} {} of {} pixels {beside}, {} at once on {device}; {} there and {} for the image{}",
            forecast.tiles,
            if forecast.tiles == 1 { "tile" } else { "tiles" },
            lengths(&forecast.tile),
            forecast.batch,
            human(forecast.device_bytes),
            human(forecast.host_bytes),
            seconds.map_or(String::new(), |s| format!("; about {}", duration(s))),
        );
        self.say(&text, record)?;
        if forecast.blends {
            self.note(
                input,
                "the model's network looks at whole tiles, so the result depends on --tile; models made by `clearshot train` do not",
            );
        }
        Ok(())
    }
}

impl Restore {
    pub fn run(self) -> Result<()> {
        let given = Given {
            gain: self.gain,
            offset: self.offset,
            read_noise: self.read_noise,
            background: self.background,
            correlation: None,
        }
        .with_file(self.camera.as_deref())?;
        given.check()?;
        let (inputs, mut failed) = self.inputs()?;
        let named = clearshot_image::format::has_known_extension(&self.output);
        if named && inputs.len() > 1 {
            bail!("{} files into the one file {}: name a folder", inputs.len(), self.output.display());
        }
        let model = match &self.model {
            Some(path) => Model::load(path)?,
            None => Model::builtin()?,
        };
        let voice = Voice { json: self.json, quiet: self.quiet };
        let (model, adapted) = self.adapted(model, &inputs, &given, &voice)?;
        let device = self.device.device(self.threads.map(usize::from))?;
        prepared(&self.output)?;
        // Another PSF may come under the same name.
        let psf_file = match self.psf.as_deref().map(Path::new) {
            Some(path) if exists(path)? => Some(fingerprint(path)?),
            _ => None,
        };
        let mask_hash = self.validity.mask.as_deref().map(fingerprint).transpose()?;
        let start = |model: Model| -> Result<Engine> {
            let (name, hash) = (model.about.name.clone(), model.hash());
            let settings = self.settings(&model)?;
            self.check_method(&settings)?;
            let samples = settings.samples;
            let restorer = Restorer::new(model, settings, device)?;
            if self.std && restorer.settings().samples < 2 {
                bail!("--std needs samples to tell a spread from; say --samples 8, say");
            }
            let asked = json!({
                "model": name, "model_hash": hash, "samples": samples, "estimate": match restorer.output() {
                    Output::Direct => "direct",
                    Output::Samples => "samples",
                },
                "sampler": self.sampler, "steps": self.steps, "seed": self.seed, "gain": given.gain, "offset": given.offset,
                "read_noise": given.read_noise, "background": given.background, "psf": self.psf, "psf_file": psf_file, "guidance": self.guidance,
                "method": self.method, "law": self.law, "clip": self.clip, "tile": self.tile.0, "precision": self.precision.to_string(), "float": self.float,
                "std": self.std, "spread": restorer.model().about.spread.as_ref().filter(|_| self.std),
                "chi2": self.chi2, "save_samples": self.save_samples, "saturation": self.validity.saturation, "mask": mask_hash,
                "save_mask": self.validity.save_mask, "item": self.item, "adapt": adapted,
                "frames_alone": self.frames_alone,
            });
            Ok(Engine { restorer, asked })
        };
        let mut engines = Engines::new(start(model)?);
        let mut report = self.report.as_deref().map(|path| Report::new(path, self.force)).transpose()?;
        let mut trace = self.trace.as_deref().map(|path| Trace::new(path, self.force)).transpose()?;
        let (mut done, mut skipped) = (0, 0);
        let mut taken = HashSet::new();
        let total = inputs.len();
        for (number, input) in inputs.iter().enumerate() {
            let output = match named {
                true => self.output.clone(),
                false => result_in(&self.output, input),
            };
            let job = |asked| Job {
                input,
                output: &output,
                label: format!("{}/{total} {}", number + 1, input.display()),
                asked,
                given: &given,
                validity: &self.validity,
                item: self.item.as_deref(),
                psf: self.psf.as_deref(),
                method: self.method(),
                frames_alone: self.frames_alone,
                std: self.std,
                float: self.float,
                force: self.force,
                voice: &voice,
            };
            let outcome = match taken.insert(output.clone()) {
                true => engines.of(input, &self, &voice, start).and_then(|engine| {
                    job(&engine.asked).run(&mut engine.restorer, report.as_mut(), trace.as_mut())
                }),
                false => Err(anyhow::anyhow!("another input has become {}", output.display())),
            };
            match outcome {
                Ok(Outcome::Done) => done += 1,
                Ok(Outcome::Skipped) => skipped += 1,
                Err(e) => {
                    // Errors of files begin with the file's name already.
                    let (name, text) = (input.display().to_string(), worded(&e));
                    let text = text.strip_prefix(&format!("{name}: ")).unwrap_or(&text).to_string();
                    if total > 1 {
                        eprintln!("clearshot: {name}: {text}");
                    }
                    failed.push((name, text));
                }
            }
        }
        if let Some(report) = report {
            let path = report.finish(&engines.usual.asked, &failed)?;
            voice.say(&format!("report: {}", path.display()), json!({"event": "report", "path": path}))?;
        }
        if let Some(trace) = trace {
            trace.finish()?;
        }
        self.summary(&voice, done, skipped, &failed)
    }

    /// The model, fitted to the files where that is asked for and helps, and what the record says of it.
    fn adapted(
        &self,
        model: Model,
        files: &[PathBuf],
        given: &Given,
        voice: &Voice,
    ) -> Result<(Model, Option<serde_json::Value>)> {
        let Some(seconds) = self.adapt else { return Ok((model, None)) };
        let known = [("gain", given.gain), ("offset", given.offset), ("read_noise", given.read_noise)];
        let changes = known.into_iter().filter_map(|(key, value)| Some(format!("data.{key}={}", value?)));
        let quiet = self.quiet || self.json;
        let device = self.device.to_string();
        let fitted = adapt::for_files(model, files, changes.collect(), seconds, &device, quiet)?;
        let mut said = fitted.record();
        said["event"] = json!("adapt");
        voice.say(&fitted.in_words(), said)?;
        // A model that is not kept leaves no trace in results, which are the same as without it.
        let record = match fitted.kept {
            true => fitted.record(),
            false => json!({"kept": false}),
        };
        Ok((fitted.into_model(), Some(record)))
    }

    /// Whether stacks may go to the model for them.
    fn takes_stacks(&self) -> bool {
        let own = self.model.is_some()
            || self.adapt.is_some()
            || self.psf.is_some()
            || self.guidance.is_some()
            || self.law.is_some();
        !self.planes && !own && ["auto", "model"].contains(&self.method.as_str())
    }

    fn method(&self) -> Option<Candidate> {
        match self.method.as_str() {
            "model" => Some(Candidate::Model),
            "bm3d" => Some(Candidate::Bm3d),
            "gaussian" => Some(Candidate::Gaussian(Gaussian::USUAL.sigma)),
            "raw" => Some(Candidate::Raw),
            _ => None,
        }
    }

    /// Refuses what only the model can do where it is not to be used.
    fn check_method(&self, settings: &Settings) -> Result<()> {
        let Some(method) = self.method().filter(|m| *m != Candidate::Model) else { return Ok(()) };
        let options = [
            ("--samples, --std and --save-samples", settings.samples > 0),
            ("--estimate samples", settings.output == Some(Output::Samples)),
            ("--psf", settings.psf.is_some()),
            ("--guidance, --law and --clip", settings.guidance.is_some()),
        ];
        match options.iter().find(|(_, given)| *given) {
            Some((option, _)) => bail!(
                "--method {}: {option} need the model; leave them out, or say --method model",
                method.name()
            ),
            None => Ok(()),
        }
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

    /// The files, and the inputs that are none.
    fn inputs(&self) -> Result<(Vec<PathBuf>, Vec<Failure>)> {
        let (mut found, mut failed) = (Vec::new(), Vec::new());
        for source in &self.inputs {
            match listed(source) {
                Ok(files) => found.extend(files),
                Err(e) if self.inputs.len() == 1 => return Err(e),
                Err(e) => failed.push((source.clone(), e.to_string())),
            }
        }
        if found.is_empty() {
            let why: Vec<String> = failed.into_iter().map(|(_, why)| why).collect();
            bail!("nothing to restore: {}", why.join("; "));
        }
        Ok((found, failed))
    }

    fn settings(&self, model: &Model) -> Result<Settings> {
        let sd = 0.5;
        if let Some(limit) = self.clip.filter(|c| c.is_nan() || *c <= 0.0) {
            bail!("--clip {limit}: the largest correction must be above zero");
        }
        if self.guidance.is_none() && self.law.is_none() && self.psf.is_none() {
            for (name, given) in [("--clip", self.clip.is_some()), ("--trace", self.trace.is_some())] {
                if given {
                    bail!("{name} is about the measurement's guidance: say --guidance, --law or --psf too");
                }
            }
        }
        let guidance = match (&self.guidance, &self.law) {
            (None, None) if self.clip.is_none() => None,
            (likelihood, law_text) => {
                let usual = Guidance::usual(sd);
                let likelihood = likelihood.as_deref().map(Guidance::likelihood).transpose()?;
                let chosen = law_text.as_deref().map(|text| law(text, sd)).transpose()?;
                Some(Guidance {
                    likelihood: likelihood.unwrap_or(usual.likelihood),
                    law: chosen.unwrap_or(usual.law),
                    clip: self.clip,
                })
            }
        };
        // The PSF of each file follows from its pixel size; until then, one that blurs nothing.
        let psf = self.psf.as_ref().map(|_| Psf::delta(model.about.dims)).transpose()?;
        let samples = self.samples.map_or(if self.std || self.save_samples { 8 } else { 0 }, |k| k as usize);
        Ok(Settings {
            output: self
                .estimate
                .as_deref()
                .map(|e| if e == "direct" { Output::Direct } else { Output::Samples }),
            samples,
            keep_samples: self.save_samples,
            sampler: self.sampler.clone(),
            steps: self.steps as usize,
            chi2: self.chi2,
            seed: self.seed,
            psf,
            guidance,
            trace: self.trace.is_some(),
            tile: self.tile.0,
            batch: self.batch.map(|b| b as usize),
            device_memory: self.memory,
            scratch: self.scratch.clone(),
            precision: self.precision,
            ..Settings::default()
        })
    }
}
