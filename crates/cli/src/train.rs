//! `clearshot train`: trains a model from a configuration; runs can be stopped and resumed.

use crate::ranks;
use crate::training::Trainer;
use anyhow::{Result, bail};
use clap::Args;
use clearshot::{RunConfig, TrainEnding, TrainReport, TrainSettings, train};
use clearshot_train::data::pace::pace;
use clearshot_train::records::console::{Show, duration};
use std::path::PathBuf;

/// Threads that make samples, of `--time-data`; 0 for the one that takes them.
const THREADS: [usize; 6] = [0, 1, 2, 4, 8, 15];

/// What shells expect of a program that was interrupted.
const INTERRUPTED: u8 = 130;

#[derive(Args)]
pub struct Train {
    /// Set the configuration from left to right: experiment=NAME, GROUP=OPTION, KEY=VALUE, or FILE.yaml.
    #[arg(value_name = "FILE.yaml|KEY=VALUE")]
    changes: Vec<String>,
    /// Write the run to this folder. Default: runs/NAME, with the name of the model.
    #[arg(long, short, alias = "output")]
    out: Option<PathBuf>,
    /// Resume the run in the folder, with its own configuration and the changes given here. Default: start a new run.
    #[arg(long)]
    resume: bool,
    /// Look for configuration groups in this folder before the built-in ones. Default: none.
    #[arg(long, value_name = "FOLDER")]
    configs: Option<PathBuf>,
    /// Train in this many processes on this machine, which average their gradients; needs MPICH. Default: trainer.devices, or one process.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    devices: Option<u32>,
    /// Stop after this many iterations in total, to be resumed later. Default: the end of the schedule.
    #[arg(long, value_name = "ITERATIONS")]
    stop_at: Option<u64>,
    /// Measure how many images per second are loaded with 0, 1, 2, 4, 8 and 15 threads, for this many seconds each, without training. Default: train.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["resume", "stop_at"], value_parser = clap::value_parser!(u32).range(1..))]
    time_data: Option<u32>,
    /// Print nothing while training. Default: progress and scores.
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    /// Print every record as a line of JSON, and the summary last. Default: text.
    #[arg(long)]
    json: bool,
}

impl Train {
    pub fn run(self) -> Result<u8> {
        if self.resume && self.out.is_none() {
            bail!("--resume needs --out, the folder of the run");
        }
        let settings = TrainSettings {
            overrides: self.overrides(),
            out: self.out.clone(),
            resume: self.resume,
            configs: self.configs.clone(),
            stop_at: self.stop_at,
        };
        if let Some(seconds) = self.time_data {
            return self.time_data(&settings.config()?, f64::from(seconds));
        }
        let trainer = settings.config()?.trainer;
        if trainer.devices > 1 && trainer.nodes == 1 && !ranks::is_started()? {
            return ranks::start(trainer.devices);
        }
        let silent = ranks::is_silent();
        let show = match (self.quiet || silent, self.json) {
            (true, _) => Show::Quiet,
            (_, true) => Show::Json,
            _ => Show::for_terminal(),
        };
        let stop = crate::interrupt::finishing("finishing the iteration and writing a checkpoint");
        let report = match train(&settings, &mut Trainer::new(show, Some(stop))) {
            Ok(report) => report,
            Err(e) => return ranks::told(e.into()),
        };
        if !silent {
            self.report(&report);
        }
        let reached = self.stop_at.is_some_and(|n| report.summary.iteration >= n);
        Ok(match report.is_interrupted() && !reached {
            true => INTERRUPTED,
            false => crate::SUCCESS,
        })
    }

    /// The changes, and what options say of the same keys.
    fn overrides(&self) -> Vec<String> {
        let devices = self.devices.map(|n| format!("trainer.devices={n}"));
        self.changes.iter().cloned().chain(devices).collect()
    }

    /// A table of images a second.
    fn time_data(&self, config: &RunConfig, seconds: f64) -> Result<u8> {
        for threads in THREADS {
            let images = pace(config, threads, seconds)?;
            match self.json {
                true => println!("{}", serde_json::json!({"threads": threads, "images_per_second": images})),
                false => println!("{threads:2} threads: {images:.0} images/s"),
            }
        }
        Ok(crate::SUCCESS)
    }

    fn report(&self, report: &TrainReport) {
        let (s, model) = (&report.summary, &report.model);
        if self.json {
            let ending = match s.ending {
                TrainEnding::Finished => "finished",
                TrainEnding::EarlyStop => "early stop",
                TrainEnding::Interrupted => "interrupted",
            };
            let record = serde_json::json!({
                "kind": "summary", "ending": ending, "iteration": s.iteration, "images": s.images,
                "seconds": s.seconds, "iterations_per_second": s.iterations_per_second, "waiting": s.waiting, "calibration_seconds": s.calibration,
                (s.score_kind.name()): s.score, "best": s.best, "digest": format!("{:016x}", s.digest),
                "checkpoint": s.checkpoint, "model": model,
                "ranks": s.ranks.map(|r| serde_json::json!({
                    "size": r.size, "backend": r.backend, "efficiency": r.efficiency, "bytes_per_iteration": r.bytes, "compression": r.compression,
                })),
            });
            println!("{record}");
            return;
        }
        let ended = match s.ending {
            TrainEnding::Finished => "done",
            TrainEnding::EarlyStop => "stopped: validations no longer improve",
            TrainEnding::Interrupted => "interrupted; resume it with --resume",
        };
        println!(
            "{ended}: {} iterations, {} images, {}, {:.2} iterations/s, {:.1} % of the time waiting for data",
            s.iteration,
            s.images,
            duration(s.seconds),
            s.iterations_per_second,
            100.0 * s.waiting,
        );
        if let Some(r) = s.ranks {
            let compressed = match r.compression > 1.005 {
                true => format!(", gradients compressed {:.1} times", r.compression),
                false => String::new(),
            };
            let efficiency = match r.efficiency {
                Some(share) => format!(
                    "scaling efficiency {:.1} % (the rest of the time was spent waiting for gradients)",
                    100.0 * share
                ),
                None => "gradients over NCCL".into(),
            };
            println!(
                "{} ranks: {efficiency}, {:.3} MB sent by each rank in an iteration{compressed}",
                r.size,
                r.bytes / 1e6,
            );
        }
        if let Some(score) = s.score {
            println!("validation {}", s.score_kind.in_words(score));
        }
        if let Some(gain) = s.gain {
            println!("best model compared with the initial one: {}", gain.in_words());
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
