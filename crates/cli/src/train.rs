//! `clearshot train`: from a configuration to a model, stopped and gone on with at will.

use anyhow::{Result, bail};
use clap::Args;
use clearshot_train::data::pace::pace;
use clearshot_train::records::console::{Show, duration};
use clearshot_train::run::{BEST, CONFIG};
use clearshot_train::{Ending, Run, RunConfig, Summary, presets};
use std::path::PathBuf;
use std::process::ExitCode;

/// Threads that make samples, of `--time-data`; 0 for the one that takes them.
const THREADS: [usize; 6] = [0, 1, 2, 4, 8, 15];

/// What shells expect of a program that was interrupted.
const INTERRUPTED: u8 = 130;

#[derive(Args)]
pub struct Train {
    /// Files of configuration and changes to it, one after another: experiment=NAME, GROUP=OPTION, KEY=VALUE, or FILE.yaml.
    #[arg(value_name = "FILE.yaml|KEY=VALUE")]
    changes: Vec<String>,
    /// The run's folder; by default `runs` and the model's name.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Go on with the run in the folder, by its own configuration and the changes.
    #[arg(long)]
    resume: bool,
    /// A folder of configuration in front of what is built in.
    #[arg(long, value_name = "FOLDER")]
    configs: Option<PathBuf>,
    /// Stop after so many iterations in all, to go on later.
    #[arg(long, value_name = "ITERATIONS")]
    stop_at: Option<u64>,
    /// Measure how many images a second the data give with 0, 1, 2, 4, 8 and 15 threads, so many seconds each, and train nothing.
    /// Default: it is trained.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["resume", "stop_at"], value_parser = clap::value_parser!(u32).range(1..))]
    time_data: Option<u32>,
    /// Show nothing while training.
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    /// Every record as a JSON line, and the summary as the last.
    #[arg(long)]
    json: bool,
}

impl Train {
    pub fn run(self) -> Result<ExitCode> {
        let config = if self.resume {
            let Some(out) = &self.out else { bail!("--resume needs --out, the folder of the run") };
            presets::read_again(&out.join(CONFIG), &self.changes)?
        } else {
            if self.changes.is_empty() {
                let known = presets::groups(None)?.options("experiment").join(", ");
                bail!("nothing says what to train; experiment=NAME chooses one of {known}");
            }
            presets::read(self.configs.as_deref(), &self.changes)?
        };
        if let Some(seconds) = self.time_data {
            return self.time_data(&config, f64::from(seconds));
        }
        let out = self.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(&config.name));
        let show = match (self.quiet, self.json) {
            (true, _) => Show::Quiet,
            (_, true) => Show::Json,
            _ => Show::for_terminal(),
        };
        let mut run = Run::open(config, &out, self.resume, show)?;
        if !self.quiet && !self.json {
            eprintln!("{}\n{}", out.display(), run.plan());
            run.notes().iter().for_each(|note| eprintln!("{note}"));
        }
        for warning in run.warnings().iter().filter(|_| !self.quiet) {
            eprintln!("clearshot: {warning}");
        }
        let interrupted = crate::interrupt::finishing("finishing the iteration and writing a checkpoint");
        let summary = run.train(&interrupted, self.stop_at)?;
        self.report(&summary, &out);
        Ok(match summary.ending {
            Ending::Finished | Ending::EarlyStop => ExitCode::SUCCESS,
            Ending::Interrupted if self.stop_at.is_some_and(|n| summary.iteration >= n) => ExitCode::SUCCESS,
            Ending::Interrupted => ExitCode::from(INTERRUPTED),
        })
    }

    /// A table of images a second.
    fn time_data(&self, config: &RunConfig, seconds: f64) -> Result<ExitCode> {
        for threads in THREADS {
            let images = pace(config, threads, seconds)?;
            match self.json {
                true => println!("{}", serde_json::json!({"threads": threads, "images_per_second": images})),
                false => println!("{threads:2} threads: {images:.0} images/s"),
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn report(&self, s: &Summary, out: &std::path::Path) {
        let model = Some(out.join(BEST)).filter(|p| p.exists());
        if self.json {
            let ending = match s.ending {
                Ending::Finished => "finished",
                Ending::EarlyStop => "early stop",
                Ending::Interrupted => "interrupted",
            };
            let record = serde_json::json!({
                "kind": "summary", "ending": ending, "iteration": s.iteration, "images": s.images,
                "seconds": s.seconds, "iterations_per_second": s.iterations_per_second, "waiting": s.waiting, "calibration_seconds": s.calibration,
                "psnr": s.score, "best": s.best, "digest": format!("{:016x}", s.digest),
                "checkpoint": s.checkpoint, "model": model,
            });
            println!("{record}");
            return;
        }
        let ended = match s.ending {
            Ending::Finished => "done",
            Ending::EarlyStop => "stopped: validations no longer improve",
            Ending::Interrupted => "interrupted; --resume goes on",
        };
        println!(
            "{ended}: {} iterations, {} images, {}, {:.2} iterations/s, {:.1} % of the time waiting for data",
            s.iteration,
            s.images,
            duration(s.seconds),
            s.iterations_per_second,
            100.0 * s.waiting,
        );
        if let Some(score) = s.score {
            println!("validation {score:.2} dB");
        }
        if let Some(gain) = s.gain {
            println!("best model beside the one that it began from: {}", gain.in_words());
        }
        if s.calibration > 1.0 {
            println!("calibration took {} more", duration(s.calibration));
        }
        println!("checkpoint {}, states {:016x}", s.checkpoint.display(), s.digest);
        if let Some(model) = model {
            println!("best model {}", model.display());
        }
    }
}
