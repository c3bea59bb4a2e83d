//! A run: from a configuration to a folder with a model, iteration after iteration.
//!
//! What changes on the way is [`Progress`] and the engine's states, both of which a checkpoint holds. Everything that
//! is decided (the next samples, the rate, when a stage ends, what is kept) follows from them and the configuration.

mod applied;
mod begin;
mod calibrate;
mod clock;
mod gain;
mod init;
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

use crate::checkpoint::{self, Progress};
use crate::conditioning::Conditioned;
use crate::config::{RunConfig, ScoreKind};
use crate::data::draws::Draws;
use crate::data::feed::Feed;
use crate::data::{Batch, Data};
use crate::distributed::{Ranks, Travelled};
use crate::engine::{Engine, Numbers, digest};
use crate::error::{Result, TrainError};
use crate::records::Records;
use crate::schedule::{Place, Stage, ema_decay, momentum, rate, stages};
use crate::task::Task;
use crate::watch::Watch;
pub use applied::Applied;
use clearshot_graph::plan::human;
use clearshot_image::address::is_address;
use clearshot_image::lengths;
use clearshot_model::{Familiar, Signal};
use clearshot_nn::models::Network;
use clearshot_runtime::{Device, Session};
use clearshot_timeline::{ITERATION, Report, group};
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
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
    /// What scores are.
    pub score_kind: ScoreKind,
    /// The score of the model that the run began from.
    pub start: Option<f64>,
    /// What the best model gains over that one, where errors are estimated.
    pub gain: Option<Gain>,
    /// Of all states: equal for equal bits.
    pub digest: u64,
    /// Of this process.
    pub iterations_per_second: f64,
    /// The share of the time that was spent waiting for samples.
    pub waiting: f64,
    /// The newest checkpoint's folder.
    pub checkpoint: PathBuf,
    /// What exchanging gradients came to, where several ranks trained.
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
    /// Which checkpoints are not gone on from, and why.
    damaged: Vec<String>,
    /// What whoever trains should know of the data and the checkpoints.
    warnings: Vec<String>,
    /// What was found out about the data.
    notes: Vec<String>,
    /// What the training images are like, once it was asked for.
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
    /// What the last validation and the last checkpoint took, in seconds.
    costs: clock::Costs,
    /// The iteration and the second from which on iterations are timed.
    timed: Option<(u64, f64)>,
}

impl<'w> Run<'w> {
    /// Begins a run in a folder, or resumes the one that is there. `watch` hears of it: a `Show` for a terminal, or a [`Watch`] in a box.
    ///
    /// # Errors
    /// If the configuration cannot be meant, the folder cannot be written to, holds a run that is not to be gone on
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
        begin::check_ranks(ranks, &config, &device)?;
        if is_address(out) {
            let reason = "a run's folder lies on this machine; images may lie at addresses".to_string();
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
        if states.is_some() && before != ranks.size() {
            ranks.notes.push(format!(
                "the run was trained by {before} ranks and goes on with {}: from here on an iteration has as many times the images of a rank; samples go on where they were",
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

    /// What runs the present stage's iterations.
    pub fn session(&self) -> &Session {
        self.working().engine.session()
    }

    /// Bytes that a run of the present stage's graph takes.
    pub fn planned_bytes(&self) -> usize {
        self.session().plan().bytes()
    }

    /// What is about to run, in words.
    pub fn plan(&self) -> String {
        let work = self.working();
        let session = work.engine.session();
        let parameters: usize =
            work.network.parameters().map_or(0, |all| all.iter().map(|p| p.shape.len()).sum());
        format!(
            "{}{}: {parameters} parameters, {} images of {} pixels an iteration, {}, {}, {} threads make samples",
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

    /// What whoever trains should know of the data: files that are left out, or that are both trained on and scored.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What was found out about the data: the camera of the files, how targets are scaled, what is held in memory.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Of all states: equal for equal bits.
    ///
    /// # Errors
    /// What went wrong on the device.
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

    fn train_to_end(&mut self, stop: &AtomicBool, stop_at: Option<u64>) -> Result<Summary> {
        let began = self.progress.iteration;
        let _attached = self.profiler.as_ref().and_then(profile::Profiler::attach);
        if began == 0 {
            self.judge_start()?;
        }
        let clock = Instant::now();
        let before = self.progress.seconds;
        self.since = (self.progress.iteration, self.progress.seconds, 0.0);
        let ending = loop {
            let p = &self.progress;
            if p.total.is_some_and(|t| p.iteration >= t) {
                break Ending::Finished;
            }
            if self.config.trainer.early_stop > 0 && p.stale >= self.config.trainer.early_stop {
                break Ending::EarlyStop;
            }
            let (done, total) = (p.iteration, self.total());
            let stopped = self.records.watch.progress(done, total).is_break() || stop.load(Ordering::Relaxed);
            let stopped = self.ranks.decided(stopped)?;
            if stopped || stop_at.is_some_and(|n| done >= n) {
                break Ending::Interrupted;
            }
            if self.stage_is_over() {
                self.next_stage()?;
            }
            let quarter = self.quarter();
            self.begin_profiled()?;
            let _iteration = group(ITERATION);
            self.step()?;
            self.progress.seconds = before + self.clocked(clock)?;
            self.time(began);
            self.end_in_time(before, clock)?;
            let i = self.progress.iteration;
            if i.is_multiple_of(self.config.records.every) || self.progress.total == Some(i) {
                self.record()?;
                if self.progress.skipped_in_a_row >= self.config.trainer.skips {
                    self.turn_back()?;
                    continue;
                }
            }
            let last = self.progress.total == Some(i);
            let every = self.config.validation.every;
            if last || (every > 0 && i.is_multiple_of(every)) || self.quarter() > quarter {
                self.validate()?;
            }
            let every = self.config.checkpoint.every;
            if last || (every > 0 && i.is_multiple_of(every)) {
                self.save()?;
            }
            self.progress.seconds = before + self.clocked(clock)?;
        };
        self.end_profile()?;
        self.working().engine.session().wait()?;
        let seconds = self.clocked(clock)?;
        let travelled = self.working().engine.exchanger().map(|e| e.travelled());
        self.progress.seconds = before + seconds;
        self.save()?;
        let ended = Instant::now();
        if ending != Ending::Interrupted && self.ranks.is_first() {
            self.calibrate(stop)?;
        }
        // A run that turned back may be before where it began.
        let done = self.progress.iteration.saturating_sub(began);
        let found = checkpoint::list(&self.out)?;
        Ok(Summary {
            ending,
            iteration: self.progress.iteration,
            images: self.progress.images,
            seconds: self.progress.seconds,
            calibration: ended.elapsed().as_secs_f64(),
            score: self.last_full,
            best: self.progress.best,
            score_kind: self.task.kind.score(),
            start: self.progress.start,
            gain: Gain::of(&self.progress.judged_at_start, &self.progress.judged_at_best, self.distinct()),
            digest: self.digest()?,
            iterations_per_second: done as f64 / seconds.max(1e-9),
            waiting: (self.waited + self.working().feed.waited.as_secs_f64()) / seconds.max(1e-9),
            checkpoint: found.last().map(|f| f.path.clone()).unwrap_or_default(),
            ranks: travelled.map(|t| OverRanks::of(&self.ranks, &t, done, seconds)),
            profile: self.profile.take(),
        })
    }

    /// Scores the model that the run begins from, the first that may be the best, if there is one and it was not done.
    fn judge_start(&mut self) -> Result<()> {
        if self.progress.start.is_some() || self.config.model.init.is_none() {
            return Ok(());
        }
        let begun = Instant::now();
        self.validate()?;
        self.progress.start = self.progress.score;
        self.progress.judged_at_start = self.progress.judged_at_best.clone();
        self.progress.seconds += self.clocked(begun)?;
        Ok(())
    }

    /// What the noise of the images is like that errors are estimated on, as the model that the run begins from leaves it; nothing where they
    /// are not estimated.
    ///
    /// # Errors
    /// If the images cannot be had, or what went wrong on the device.
    pub fn noise_law(&mut self) -> Result<Option<NoiseLaw>> {
        self.judge_start()?;
        Ok(NoiseLaw::of(&self.progress.judged_at_start, self.distinct()))
    }

    /// How many validation crops there are that share no pixel.
    fn distinct(&self) -> Option<f64> {
        self.working().judge.as_ref().and_then(|judged| judged.distinct)
    }

    /// Where the run is on its way.
    fn place(&self) -> Place {
        let p = &self.progress;
        let since_switch = (p.stage > 0).then(|| p.iteration - p.stage_began);
        Place { iteration: p.iteration, total: self.total(), since_switch }
    }

    /// How far the last stage of a growing network is blended in.
    fn alpha(&self) -> f64 {
        let (p, growth) = (&self.progress, &self.config.trainer.growth);
        let (Some(total), true) = (self.total(), p.stage > 0) else { return 1.0 };
        let share = self.stages[p.stage].end - self.stages[p.stage - 1].end;
        let over = total as f64 * share * growth.blend;
        if over < 1.0 { 1.0 } else { ((p.iteration - p.stage_began) as f64 / over).min(1.0) }
    }

    fn step(&mut self) -> Result<()> {
        let (place, schedule) = (self.place(), self.schedule());
        let alpha = self.alpha();
        let p = &mut self.progress;
        let work = self.work.as_mut().expect("a run has a stage from its beginning on");
        let numbers = Numbers {
            rate: base_rate(&self.config, p) * rate(&schedule, &self.config.trainer.growth, &place),
            ema_decay: match self.task.kind.has_teacher() {
                true => momentum(self.config.task.momentum, &place),
                false => ema_decay(self.config.trainer.ema_half_life, work.images, p.iteration),
            },
            alpha,
            iteration: p.iteration,
            first: p.images,
        };
        let feed = &mut work.feed;
        work.engine.step(|| feed.take(), &numbers)?;
        p.iteration += 1;
        p.images += work.images as u64;
        p.score = None;
        self.follow_losses()
    }

    /// At the end of a period whose losses are followed: says how later draws are shared.
    fn follow_losses(&mut self) -> Result<()> {
        let (p, work) =
            (&mut self.progress, self.work.as_mut().expect("a run has a stage from its beginning on"));
        let Some(draws) = work.draws.as_ref().filter(|d| d.is_due(p.iteration)) else { return Ok(()) };
        let losses = work.engine.take_domain_losses()?;
        draws.follow(p.iteration, &losses, &mut p.shares)?;
        let shares = p.shares.last().into_iter().flatten();
        let each = work.domains.iter().zip(shares.zip(&losses));
        let values: Vec<(String, f64)> = each
            .flat_map(|(name, (share, loss))| {
                [(format!("share.{name}"), *share), (format!("loss.{name}"), *loss)]
            })
            .collect();
        self.records.put("balance", p.iteration, &values)?;
        p.records = self.records.position();
        Ok(())
    }

    fn stage_is_over(&self) -> bool {
        let (p, growth) = (&self.progress, &self.config.trainer.growth);
        if p.stage + 1 >= self.stages.len() {
            return false;
        }
        let ended =
            self.total().is_some_and(|t| p.iteration >= (t as f64 * self.stages[p.stage].end).round() as u64);
        ended || (growth.adaptive && p.stage_stale >= growth.patience)
    }

    fn next_stage(&mut self) -> Result<()> {
        let mut states = self.working().engine.states()?;
        states.retain(|name, _| !name.starts_with(begin::GUARD));
        self.waited += self.working().feed.waited.as_secs_f64();
        let growing = self.is_growing();
        let p = &mut self.progress;
        p.stage += 1;
        p.stage_began = p.iteration;
        (p.stage_best, p.stage_stale) = (None, 0);
        if growing {
            // Scores at another resolution are no measure.
            (p.best, p.stale) = (None, 0);
        }
        self.enter(states)?;
        let side = self.stages[self.progress.stage].size;
        let images = self.working().images;
        let values = [("size", side), ("batch", images)].map(|(n, v)| (n.to_string(), v as f64));
        self.records.put("stage", self.progress.iteration, &values)?;
        self.progress.records = self.records.position();
        self.records.watch.note(&format!("crops of {side} pixels, {images} at once"));
        Ok(())
    }
}

/// The rate that the schedule takes its share of.
fn base_rate(config: &RunConfig, progress: &Progress) -> f64 {
    config.optimizer.rate * 0.5f64.powi(progress.returns as i32)
}

/// A flag that somebody may set to end a run.
pub fn never() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(false))
}
