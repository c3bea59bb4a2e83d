//! A run: from a configuration to a folder with a model.
//!
//! All that changes is [`Progress`] and the states of the engine, both of which a checkpoint contains. Every decision (the
//! next samples, the learning rate, the end of a stage, which checkpoints to keep) follows from them and the configuration.

mod applied;
mod begin;
mod calibrate;
mod clock;
mod gain;
mod init;
mod iterate;
mod judgement;
mod noise_law;
mod over_ranks;
mod profile;
mod record;
mod resume;
mod save;
mod tune;
mod turn_back;
mod validate;

use crate::checkpoint::Progress;
use crate::conditioning::Conditioned;
use crate::config::{RunConfig, ScoreKind};
use crate::data::draws::Draws;
use crate::data::feed::Feed;
use crate::data::{Batch, Data};
use crate::distributed::{Ranks, Travelled};
use crate::engine::{Engine, digest};
use crate::error::{Result, TrainError};
use crate::records::Records;
use crate::schedule::{Stage, stages};
use crate::task::Task;
use crate::watch::Watch;
pub use applied::Applied;
use clearshot_graph::plan::human;
use clearshot_image::address::is_address;
use clearshot_image::lengths;
use clearshot_model::{Familiar, Signal};
use clearshot_nn::models::Network;
use clearshot_runtime::{Device, Session};
use clearshot_timeline::Report;
pub use gain::Gain;
pub(crate) use init::{adopt, init_model};
pub use judgement::Judgement;
pub use noise_law::NoiseLaw;
pub use over_ranks::OverRanks;
pub use profile::PROFILE;
use save::write_config;
use serde_json::{Map, Value as Json};
use std::cell::OnceCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
pub use tune::{Trial, TuneLimits, Tuned, Tuning, tune};
use validate::Judged;
pub(crate) use validate::psnr;

/// The resolved configuration in a run's folder.
pub const CONFIG: &str = "config.yaml";
/// What a run really runs with, in its folder.
pub const SETTINGS: &str = "settings.json";
/// The model of the best validation so far, in a run's folder.
pub const BEST: &str = "best.clearshot";

/// How a run came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All iterations are done, or the time is over.
    Finished,
    /// Validations no longer improved.
    EarlyStop,
    /// Somebody asked for it; it can be resumed.
    Interrupted,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Why it ended.
    pub ending: Ending,
    /// Iterations that are done.
    pub iteration: u64,
    /// Images that were trained on.
    pub images: u64,
    /// Seconds that it took, in all of its parts.
    pub seconds: f64,
    /// Seconds that the calibration after it took.
    pub calibration: f64,
    /// Of the whole validation set, at the end.
    pub score: Option<f64>,
    /// Of the best validation.
    pub best: Option<f64>,
    /// The kind of score.
    pub score_kind: ScoreKind,
    /// The score of the model that the run began from.
    pub start: Option<f64>,
    /// The gain of the best model over that one, if errors are estimated.
    pub gain: Option<Gain>,
    /// Of all states: equal for equal bits.
    pub digest: u64,
    /// Of this process.
    pub iterations_per_second: f64,
    /// The share of the time that was spent waiting for samples.
    pub waiting: f64,
    /// The newest checkpoint's folder.
    pub checkpoint: PathBuf,
    /// The cost of exchanging gradients, if several ranks trained.
    pub ranks: Option<OverRanks>,
    /// Where time went, where that was asked for (`debug.profile`).
    pub profile: Option<Report>,
}

/// One stage's network and what runs it.
struct Working {
    network: Box<dyn Network>,
    /// The keys of the network's `config.json`.
    keys: Map<String, Json>,
    signal: Signal,
    size: Vec<usize>,
    /// Of what is measured, and of what is clean.
    inputs: usize,
    channels: usize,
    names: Vec<String>,
    domains: Vec<String>,
    /// Where domains are balanced.
    draws: Option<Arc<Draws>>,
    engine: Engine,
    feed: Feed<Batch>,
    /// Images of an iteration.
    images: usize,
    judge: Option<Judged>,
}

/// See the module.
pub struct Run<'w> {
    config: RunConfig,
    out: PathBuf,
    device: Device,
    data: Data,
    task: Task,
    stages: Vec<Stage>,
    progress: Progress,
    work: Option<Working>,
    records: Records<'w>,
    ranks: Ranks,
    /// Held as long as the run lives, so that no other writes into its folder; by the rank that writes.
    _lock: Option<File>,
    /// Checkpoints that are not resumed from, and why.
    damaged: Vec<String>,
    /// Warnings about the data and the checkpoints.
    warnings: Vec<String>,
    /// Properties of the data.
    notes: Vec<String>,
    /// Statistics of the training images, computed on request.
    familiar: OnceCell<Option<Familiar>>,
    saved_at: Option<u64>,
    last_full: Option<f64>,
    waited: f64,
    /// Iterations and seconds since the last record, for its rates.
    since: (u64, f64, f64),
    /// What was exchanged up to the last record, and the ranks that were named as slow.
    travelled: Travelled,
    slow: Vec<usize>,
    /// Where time goes, where that is asked for.
    profiler: Option<profile::Profiler>,
    profile: Option<Report>,
    /// The time of the last validation and the last checkpoint, in seconds.
    costs: clock::Costs,
    /// The iteration and the second from which on iterations are timed.
    timed: Option<(u64, f64)>,
}

impl<'w> Run<'w> {
    /// Begins a run in a folder, or resumes the one that is there. `watch` hears of it: a `Show` for a terminal, or a [`Watch`] in a box.
    ///
    /// # Errors
    /// If the configuration is invalid, the folder cannot be written to, contains a run that is not to be resumed
    /// with, or none that could; or the device has not the memory.
    pub fn open(
        config: RunConfig,
        out: &Path,
        resume: bool,
        watch: impl Into<Box<dyn Watch + 'w>>,
    ) -> Result<Run<'w>> {
        Run::open_among(&Ranks::alone(), config, out, resume, watch)
    }

    /// As [`Run::open`], as one of several ranks, of which the first alone writes and is heard of. An error of one rank ends all.
    ///
    /// # Errors
    /// As [`Run::open`], or if another rank is gone or ended all.
    pub fn open_among(
        ranks: &Ranks,
        config: RunConfig,
        out: &Path,
        resume: bool,
        watch: impl Into<Box<dyn Watch + 'w>>,
    ) -> Result<Run<'w>> {
        let records = match ranks.is_first() {
            true => Records::new(out, watch.into()),
            false => Records::silent(),
        };
        ranks.end_on_error(Run::prepare(ranks, config, out, resume, records))
    }

    fn prepare(
        ranks: &Ranks,
        mut config: RunConfig,
        out: &Path,
        resume: bool,
        records: Records<'w>,
    ) -> Result<Run<'w>> {
        config.check()?;
        init::adopt(&mut config)?;
        init::adopt_encoder(&mut config)?;
        let mut task = Task::new(&config.task)?;
        let data = Data::new(&config)?;
        begin::fill_channels(&mut config, &task, &data)?;
        task.conditioned = Conditioned::of(&mut config, &data)?;
        let device = ranks.share_of(config.device()?, &config);
        begin::check_ranks(ranks, &config)?;
        if is_address(out) {
            let reason = "the folder of a run must be local; images may be at addresses".to_string();
            return Err(TrainError::Checkpoint { path: out.into(), reason });
        }
        let mut begun = None;
        let found = match ranks.is_first() {
            true => begin::found(out, resume, &mut begun),
            false => Ok(None),
        };
        let saved = ranks.share_saved(found)?;
        let (lock, damaged) = begun.unzip();
        let damaged = damaged.unwrap_or_default();
        let (mut progress, states) = match saved {
            Some(saved) => (resume::continued(saved.progress, &saved.config, &config)?, Some(saved.states)),
            None => (Progress { total: config.trainer.iterations, ..Progress::default() }, None),
        };
        let before = std::mem::replace(&mut progress.ranks, ranks.size());
        let mut ranks = ranks.clone();
        ranks.connect(&config, &device)?;
        if states.is_some() && before != ranks.size() {
            ranks.notes.push(format!(
                "the run was trained by {before} ranks and resumes with {}: an iteration now has that many times the images of one rank; samples continue where they stopped",
                ranks.size()
            ));
        }
        let saved_at = states.is_some().then_some(progress.iteration);
        let profiler = profile::Profiler::of(&config.debug, out, ranks.rank());
        let _attached = profiler.as_ref().and_then(profile::Profiler::attach);
        let mut run = Run {
            data,
            stages: stages(&config.trainer),
            out: out.to_owned(),
            config,
            device,
            task,
            progress,
            work: None,
            records,
            ranks,
            _lock: lock,
            damaged,
            warnings: vec![],
            notes: vec![],
            familiar: OnceCell::new(),
            saved_at,
            last_full: None,
            waited: 0.0,
            since: (0, 0.0, 0.0),
            travelled: Travelled::default(),
            slow: vec![],
            profiler,
            profile: None,
            costs: clock::Costs::default(),
            timed: None,
        };
        run.begin(states)?;
        // What is there is changed only by a run that can be.
        let (p, tensorboard) = (&run.progress, run.config.records.tensorboard);
        run.records.open(p.records, p.iteration, tensorboard)?;
        if run.ranks.is_first() {
            write_config(&run.config, out)?;
            run.write_applied()?;
        }
        Ok(run)
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// The engine of the current stage.
    pub fn session(&self) -> &Session {
        self.working().engine.session()
    }

    /// Bytes that a run of the present stage's graph takes.
    pub fn planned_bytes(&self) -> usize {
        self.session().plan().bytes()
    }

    /// The next run, as text.
    pub fn plan(&self) -> String {
        let work = self.working();
        let session = work.engine.session();
        let parameters: usize =
            work.network.parameters().map_or(0, |all| all.iter().map(|p| p.shape.len()).sum());
        format!(
            "{}{}: {parameters} parameters, {} images of {} pixels per iteration, {}, {}, loader threads: {}",
            if self.ranks.size() > 1 {
                format!("{} ranks, each on ", self.ranks.size())
            } else {
                String::new()
            },
            session.device(),
            work.images,
            lengths(&work.size),
            session.arithmetic(),
            human(self.planned_bytes()),
            self.workers()[0],
        )
    }

    /// Tells who hears of the run what is about to run, what was found out about the data, and warnings.
    pub fn introduce(&mut self) {
        let plan = format!("{}\n{}\n{}", self.out.display(), self.plan(), self.applied_in_words());
        let watch = &mut self.records.watch;
        watch.note(&plan);
        self.notes.iter().for_each(|note| watch.note(note));
        self.warnings.iter().for_each(|warning| watch.warning(warning));
    }

    /// Warnings about the data: files that are left out, or that are used for both training and scoring.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Properties of the data: the camera of the files, how targets are scaled, what is held in memory.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Of all states: equal for equal bits.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn digest(&self) -> Result<u64> {
        Ok(digest(&self.working().engine.states()?))
    }

    fn working(&self) -> &Working {
        self.work.as_ref().expect("a run has a stage from its beginning on")
    }

    fn is_growing(&self) -> bool {
        self.config.model.network.get("_class_name").and_then(Json::as_str) == Some("Growing")
    }

    /// (Z,) Y, X of crops with this side length.
    fn size(&self, side: usize) -> Vec<usize> {
        self.config.trainer.depth.into_iter().chain([side, side]).collect()
    }

    /// Trains until the end, `stop_at` iterations, or until `stop` is set.
    ///
    /// # Errors
    /// If a checkpoint or record cannot be written, samples cannot be had, or training has diverged.
    pub fn train(&mut self, stop: &AtomicBool, stop_at: Option<u64>) -> Result<Summary> {
        let ranks = self.ranks.clone();
        ranks.end_on_error(self.train_to_end(stop, stop_at))
    }
}

/// A flag that somebody may set to end a run.
pub fn never() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(false))
}
