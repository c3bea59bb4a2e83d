//! `clearshot quantize`: converts a model to 8-bit convolutions, if it is nearly as good.

use crate::progress::Line;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use clearshot_model::{DEFAULT_BYTES, Model};
use clearshot_runtime::DeviceName;
use clearshot_tensor::DType;
use clearshot_train::calibration::data_of;
use clearshot_train::config::DataKind;
use clearshot_train::data::Data;
use clearshot_train::quantise::ranges::By;
use clearshot_train::quantise::tuning::Tuning;
use clearshot_train::quantise::{Images, Limits, Mode, Outcome, Settings, clear, quantise};
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    Static,
    Dynamic,
    Qat,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum RangeName {
    Error,
    Percentile,
}

#[derive(Args)]
pub struct Quantize {
    /// Quantize this model: a file NAME.clearshot, a folder, or `default`, the built-in model.
    model: PathBuf,
    /// Write the model here.
    #[arg(short, long, alias = "out", value_name = "FILE")]
    output: PathBuf,
    /// Determine the ranges of activations once (static), for each image in every run (dynamic: slower, and tiles are blended), or once and
    /// then train the weights further with them, with the loss of the model's training (qat).
    #[arg(long, value_enum, default_value = "static")]
    mode: ModeName,
    /// Calibrate on these noisy images: files, a folder or a pattern. Default: scenes like those
    /// of the model's training.
    #[arg(long, value_name = "IMAGES")]
    calibration: Option<String>,
    /// Calibrate on this many crops, and score as many others; with scenes twice as many, half of them almost without noise.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(4..=4096))]
    samples: u16,
    /// Choose ranges by the smallest rounding error, or by a percentile of the values.
    #[arg(long, value_enum, default_value = "error")]
    ranges: RangeName,
    /// Set the percentile at which ranges end, with --ranges percentile.
    #[arg(long, default_value_t = 99.99, value_parser = percentile)]
    percentile: f64,
    /// Train for this many iterations with --mode qat.
    #[arg(long, value_name = "N", default_value_t = Tuning::default().iterations as u32, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    qat_iterations: u32,
    /// Set the batch size of --mode qat, in crops.
    #[arg(long, value_name = "N", default_value_t = Tuning::default().batch as u16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    qat_batch: u16,
    /// Set the initial learning rate of --mode qat.
    #[arg(long, value_name = "RATE", default_value_t = Tuning::default().rate)]
    qat_rate: f64,
    /// Refuse a model whose mean PSNR against the truth falls by more than this, in dB.
    #[arg(long, default_value_t = Limits::default().loss)]
    loss: f64,
    /// Refuse a model whose PSNR against the truth falls by more than this on any image, in dB.
    #[arg(long, default_value_t = Limits::default().worst)]
    worst_loss: f64,
    /// Write the model even if it is refused.
    #[arg(long)]
    force: bool,
    /// Use this many CPU threads. Default: one for each core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print one JSON object. Default: tables.
    #[arg(long)]
    json: bool,
}

fn percentile(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(p) if (90.0..=100.0).contains(&p) => Ok(p),
        _ => Err("a number from 90 to 100 is needed".into()),
    }
}

impl Quantize {
    pub fn run(self) -> Result<()> {
        if self.output.exists() {
            bail!("{} exists; name another file", self.output.display());
        }
        if !(self.qat_rate.is_finite() && self.qat_rate > 0.0) {
            bail!("--qat-rate {}: a number above zero is needed", self.qat_rate);
        }
        let model = Model::load(&self.model)?;
        // What takes minutes is not begun where its result could not be kept.
        let aside = self.output.with_extension(format!("{}.part", std::process::id()));
        let kept = std::fs::File::create_new(&aside).and_then(|_| std::fs::remove_file(&aside));
        kept.with_context(|| format!("{}: cannot be written", self.output.display()))?;
        let config = data_of(&model)?;
        let scenes = Data::new(&config)?;
        let mut of_files = config.clone();
        let files = match &self.calibration {
            Some(inputs) => {
                of_files.data.kind = DataKind::Noisy;
                of_files.data.inputs = Some(inputs.clone());
                of_files.model.init = Some(self.model.clone());
                Some(Data::new(&of_files)?)
            }
            None => None,
        };
        let clear = clear(&config).map(|c| Data::new(&c)).transpose()?;
        let images =
            Images { calibration: files.as_ref().unwrap_or(&scenes), gate: &scenes, clear: clear.as_ref() };
        let how = Settings {
            mode: match self.mode {
                ModeName::Static => Mode::Static,
                ModeName::Dynamic => Mode::Dynamic,
                ModeName::Qat => Mode::Qat(Tuning {
                    iterations: self.qat_iterations as usize,
                    batch: usize::from(self.qat_batch),
                    rate: self.qat_rate,
                }),
            },
            by: match self.ranges {
                RangeName::Error => By::Error,
                RangeName::Percentile => By::Percentile(self.percentile),
            },
            samples: usize::from(self.samples),
            limits: Limits { loss: self.loss, worst: self.worst_loss, ..Limits::default() },
        };
        // A GPU has no products in 8 bits yet.
        let device = DeviceName::Cpu.device(self.threads.map(usize::from))?;
        let mut line: Option<(String, Line)> = None;
        let mut told = |what: &str, done: usize, of: usize| {
            if line.as_ref().is_none_or(|(said, _)| said != what) {
                line.iter().for_each(|(_, l)| l.end());
                line = Some((what.into(), Line::new(what.into())));
            }
            line.iter_mut().for_each(|(_, l)| l.show(done, of));
            Ok(())
        };
        let outcome = quantise(model, &config, &images, &how, device, &mut told)?;
        line.iter().for_each(|(_, l)| l.end());
        let missed = how.limits.missed(&outcome.scores);
        let written = missed.is_empty() || self.force;
        if written {
            outcome.model.save_file(&self.output, DType::F32)?;
        }
        let before =
            if Model::is_default(&self.model) { Some(DEFAULT_BYTES as u64) } else { bytes(&self.model) };
        self.say(&outcome, &missed, before)?;
        if !written {
            bail!(
                "{} was not written: {}; try --mode qat or static, more --samples, images like yours with --calibration, or --force",
                self.output.display(),
                missed.join("; ")
            );
        }
        Ok(())
    }

    fn say(&self, outcome: &Outcome, missed: &[String], before: Option<u64>) -> Result<()> {
        let (s, of) = (&outcome.scores, outcome.model.about.quantised.as_ref());
        let rounded = of.map_or(0, |q| q.convolutions);
        if self.json {
            let layers: Vec<_> = outcome
                .layers
                .iter()
                .map(|l| serde_json::json!({ "name": l.name, "relative_error": l.error, "kept": l.kept }))
                .collect();
            let record = serde_json::json!({
                "model": self.output, "bytes": bytes(&self.output), "before": before, "about": of, "layers": layers,
                "scores": s.record(), "missed": missed,
            });
            println!("{record}");
            return Ok(());
        }
        println!("{:<44} {:>14}", "convolution, in 8 bits alone", "relative error");
        for l in &outcome.layers {
            println!("{:<44} {:>14.5}{}", l.name, l.error, if l.kept { "  stays in fp32" } else { "" });
        }
        println!(
            "{rounded} of {} convolutions in 8 bits; on {} other images: relative error {:.4}, cosine {:.5}, PSNR to fp32 {:.1} dB",
            outcome.layers.len(),
            s.images,
            s.error,
            s.cosine,
            s.psnr(),
        );
        if let Some([wide, narrow]) = s.truth() {
            println!("PSNR against the truth: {wide:.3} dB in fp32, {narrow:.3} dB in 8 bits");
        }
        if let Some((worst, [wide, narrow])) = s.worst().and_then(|c| Some((c, c.truth?))) {
            println!("worst image ({}): {wide:.3} dB in fp32, {narrow:.3} dB in 8 bits", worst.name);
        }
        if let Some(size) = bytes(&self.output) {
            let share = before
                .map_or(String::new(), |b| format!(", {:.3} of the original size", size as f64 / b as f64));
            println!("{}: {:.2} MB{share}", self.output.display(), size as f64 / 1e6);
        }
        Ok(())
    }
}

fn bytes(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().filter(|m| m.is_file()).map(|m| m.len())
}
