//! The common parts of `eval`, `compare` and `validate`: options, and printing of evaluations.

use crate::camera::KnownCameraArgs;
use crate::conditions::ConditionArgs;
use crate::electrons;
use crate::part;
use crate::progress::Line;
use anyhow::{Result, bail};
use clap::Args;
use clearshot::{
    DeviceName, EvaluateFiles, EvaluateLimits, EvaluateSettings, Evaluation, Event, Observer, evaluate,
};
use clearshot_evaluate::Bench;
use clearshot_scenes::SCENES;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Settings {
    /// Choose kinds of scenes, separated by commas; `benchmark` for the five of the published tables, `all` for every kind that
    /// `clearshot synth` generates. Default: benchmark.
    #[arg(long, default_value = "benchmark", conflicts_with = "truth")]
    scenes: String,
    /// Set the mean electrons of the brightest value; several, separated by commas.
    #[arg(long, default_value = "5,20,100", value_delimiter = ',', conflicts_with = "truth")]
    peaks: Vec<f64>,
    /// Score this many images of each kind at each peak.
    #[arg(long, default_value_t = 8, conflicts_with = "truth")]
    count: u32,
    /// Set the side of a scene in pixels; several, separated by commas, are tried one after another.
    #[arg(long, default_value = "128", value_delimiter = ',', conflicts_with = "truth")]
    size: Vec<usize>,
    /// Seed the scenes, their noise and the samples of models.
    #[arg(long, default_value_t = Bench::default().seed)]
    seed: u64,
    /// Blur the scenes with a Gaussian of this standard deviation in pixels. Default: no blur.
    #[arg(long, conflicts_with = "truth")]
    psf_sigma: Option<f64>,
    /// Score with these clean images instead of scenes: a file, folder or glob pattern. Default: scenes.
    #[arg(long, requires = "noisy")]
    truth: Option<String>,
    /// Use these noisy images of the same fields as --truth, paired by name; needed with --truth. Default: scenes.
    #[arg(long, requires = "truth")]
    noisy: Option<String>,
    #[command(flatten)]
    camera: KnownCameraArgs,
    /// Fit gain and offset of each result to its clean file by least squares before scoring, for pairs whose scales differ.
    /// Default: nothing is fitted.
    #[arg(long, requires = "truth")]
    fit: bool,
    /// Compute PSNR and SSIM of files for this range of values. Default: 255 for clean files of 8 bits, otherwise the maximum minus the minimum of
    /// each clean image.
    #[arg(long, value_name = "R", value_parser = electrons::ratio::<f64>, allow_negative_numbers = true, requires = "truth")]
    range: Option<f64>,
    /// Group files into rows of the table with a regular expression on their names without extension: files whose first group matches the same text
    /// form a row. `all` makes a single group. Default: the name up to the last _ or - that only digits follow.
    #[arg(long, value_name = "PATTERN", requires = "truth")]
    group: Option<String>,
    /// Set the exposure of the noisy files relative to the clean ones (0.1: a tenth). Clean files are scaled to that exposure before scoring, so that
    /// `raw` is the short exposure scaled up and nothing else.
    #[arg(long, default_value_t = 1.0, value_parser = electrons::ratio::<f64>, allow_negative_numbers = true, requires = "truth")]
    exposure: f64,
    /// Try several values: KEY=A,B,... The keys samples, steps and sampler are settings of models; gain, background, read_noise and psf (its width)
    /// give methods a wrong camera, by factors of the true one, and shift moves the PSF by pixels. Several keys make every combination; a single key
    /// makes a curve, and its values must include the truth (1, or 0 for a shift).
    #[arg(long, value_name = "KEY=VALUES")]
    sweep: Vec<String>,
    /// Draw this many posterior samples for the intervals of models; 0 for none.
    #[arg(long, default_value_t = 0)]
    samples: usize,
    /// Draw samples with this sampler.
    #[arg(long, default_value = "dpmpp-2m")]
    sampler: String,
    /// Draw each sample in this many steps.
    #[arg(long, default_value_t = 25)]
    steps: usize,
    #[command(flatten)]
    conditions: ConditionArgs,
    /// Run models on cpu, cuda (the first GPU), cuda:N, or auto (a GPU if there is one).
    #[arg(long, default_value = "auto")]
    device: DeviceName,
    /// Use this many CPU threads. Default: one for each core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Also test what methods invent in empty images and how much of faint lines they miss. Default: off.
    #[arg(long, conflicts_with = "truth")]
    stress: bool,
    /// Recommend a size that needs no more memory than this. Default: no recommendation.
    #[arg(long, value_parser = clearshot_runtime::bytes::parse, conflicts_with = "truth")]
    max_memory: Option<usize>,
    /// Recommend a size that needs no more seconds per megapixel than this. Default: no recommendation.
    #[arg(long, conflicts_with = "truth")]
    max_seconds: Option<f64>,
    /// Recommend a size that reaches at least this PSNR in dB. Default: no recommendation.
    #[arg(long, conflicts_with = "truth")]
    min_psnr: Option<f64>,
    /// Write report.md, report.html, summary.json, records.csv and the records to this folder; a second run with the same folder computes only what
    /// is missing. Default: nothing is written.
    #[arg(long, short, alias = "output")]
    out: Option<PathBuf>,
    /// Score one part of the images, so that several jobs share them: 3/8 is the third of eight parts. `auto` takes part and count from a Slurm or
    /// AWS Batch job array, auto/8 only the part. Run the same command without --part at the end: it scores what is missing and writes the report.
    /// Default: all images.
    #[arg(long, value_name = "I/N", requires = "out", conflicts_with = "stress")]
    part: Option<String>,
    /// Print the summary as JSON. Default: Markdown.
    #[arg(long)]
    json: bool,
    /// Print errors only.
    #[arg(long)]
    quiet: bool,
}

/// What is thought of an evaluation.
pub struct Judgement {
    /// For programs.
    pub record: serde_json::Value,
    /// For people.
    pub text: String,
    /// Why it is refused, if it is.
    pub refusal: Option<String>,
}

/// Progress and warnings on standard error.
struct Teller {
    line: Line,
    quiet: bool,
}

impl Observer for Teller {
    fn progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        if !self.quiet {
            self.line.show(done, total);
        }
        ControlFlow::Continue(())
    }

    fn event(&mut self, _: &Path, event: &Event<'_>) -> ControlFlow<()> {
        if let Event::Warning(text) = event {
            eprintln!("clearshot: {text}");
        }
        ControlFlow::Continue(())
    }
}

impl Settings {
    /// Refuses what would put several settings of one method beside each other.
    pub fn check_one_setting(&self) -> Result<()> {
        if self.part.is_some() {
            bail!(
                "--part: two models are compared on all images; write the records with `eval --part` and --out, then compare without --part"
            );
        }
        if let Some(sweep) = self.sweep.first() {
            bail!("--sweep {sweep}: two models are compared under one setting; leave it out, or use eval");
        }
        if self.size.len() > 1 {
            let sizes: Vec<String> = self.size.iter().map(|s| s.to_string()).collect();
            bail!("--size {}: two models are compared at one size; name one, or use eval", sizes.join(","));
        }
        Ok(())
    }

    fn library(&self, title: &str) -> Result<EvaluateSettings> {
        let scenes = match self.scenes.as_str() {
            "benchmark" => Bench::default().scenes,
            "all" => SCENES.iter().map(|k| k.name.to_string()).collect(),
            list => list.split(',').map(|s| s.trim().to_string()).collect(),
        };
        let files = match (&self.truth, &self.noisy) {
            (Some(truth), Some(noisy)) => Some(EvaluateFiles {
                camera: self.camera.read()?,
                fit: self.fit,
                range: self.range,
                group: self.group.clone(),
                exposure: self.exposure,
                ..EvaluateFiles::new(truth, noisy)
            }),
            _ => None,
        };
        if let Some(option) = self.camera.given().filter(|_| files.is_none()) {
            bail!(
                "{option}: for files only, because generated scenes have their own camera; name files with --truth and --noisy"
            );
        }
        Ok(EvaluateSettings {
            title: title.into(),
            scenes,
            peaks: self.peaks.clone(),
            count: self.count,
            sizes: self.size.clone(),
            seed: self.seed,
            psf_sigma: self.psf_sigma,
            files,
            sweep: self.sweep.clone(),
            samples: self.samples,
            sampler: self.sampler.clone(),
            steps: self.steps,
            class: self.conditions.class.clone(),
            context: self.conditions.context()?,
            taken_by: self.conditions.taken_by()?,
            device: self.device,
            threads: self.threads.map(usize::from),
            stress: self.stress,
            limits: EvaluateLimits { bytes: self.max_memory, seconds: self.max_seconds, psnr: self.min_psnr },
            out: self.out.clone(),
            part: self.part.as_deref().map(part::read).transpose()?,
        })
    }

    /// Makes the records and the reports, and prints the summary. `title` heads them.
    pub fn evaluate(&self, title: &str, methods: &[String]) -> Result<()> {
        self.evaluated(title, methods, &|_| Ok(None))
    }

    /// The same; `judge` may refuse the evaluation, which is reported all the same.
    pub fn evaluated(
        &self,
        title: &str,
        methods: &[String],
        judge: &dyn Fn(&Evaluation) -> Result<Option<Judgement>>,
    ) -> Result<()> {
        let mut teller = Teller { line: Line::new("evaluating".into()), quiet: self.quiet };
        let made = evaluate(methods, &self.library(title)?, &mut teller);
        teller.line.end();
        let made = made?;
        if made.found > 0 && !self.quiet {
            eprintln!("clearshot: {} of {} records existed already", made.found, made.records.len());
        }
        self.verdict(&made, judge(&made)?)
    }

    /// Prints the summary with what is thought of it.
    ///
    /// # Errors
    /// If it is refused, or restorations failed.
    fn verdict(&self, made: &Evaluation, judgement: Option<Judgement>) -> Result<()> {
        // Where some restorations failed, nothing is judged good.
        let failures = made.summary.failures.len();
        let judgement = judgement.filter(|j| failures == 0 || j.refusal.is_some());
        let mut out = std::io::stdout().lock();
        if self.json {
            let mut record: serde_json::Value = serde_json::from_str(&made.json())?;
            if let Some(judgement) = &judgement {
                record["judgement"] = judgement.record.clone();
            }
            writeln!(out, "{record:#}")?;
        } else if !self.quiet {
            write!(out, "{}{}", made.markdown, judgement.as_ref().map_or("", |j| &j.text))?;
        }
        out.flush()?;
        if let Some(why) = judgement.and_then(|j| j.refusal) {
            bail!(why);
        }
        if failures > 0 {
            bail!("{failures} of {} restorations failed; the report lists them", made.records.len());
        }
        Ok(())
    }
}
