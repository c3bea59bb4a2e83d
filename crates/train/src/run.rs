//! A run: from a configuration to a folder with a model, iteration after iteration.
//!
//! What changes on the way is [`Progress`] and the engine's states, both of which a checkpoint holds. Everything that
//! is decided (the next samples, the rate, when a stage ends, what is kept) follows from them and the configuration.

use crate::checkpoint::{self, Progress};
use crate::config::{DataKind, RunConfig, TaskKind, epochs};
use crate::data::feed::Feed;
use crate::data::{Batch, Data, Part, batch};
use crate::engine::{Engine, Judge, Numbers, digest};
use crate::error::{Result, TrainError, advised, io, setting};
use crate::iteration::{self, Shapes};
use crate::presets;
use crate::records::Records;
use crate::records::console::{Console, Look, Show};
use crate::records::event_file::Png;
use crate::records::picture::Picture;
use crate::schedule::{Place, Stage, asked_batch, batch_of, ema_decay, rate, stages};
use crate::task::{self, Task};
use clearshot_graph::plan::human;
use clearshot_model::{About, Model, Signal};
use clearshot_nn::models::{self, Network};
use clearshot_nn::{Param, Weights};
use clearshot_runtime::{Device, available_bytes, gpus, plan};
use clearshot_tensor::DType;
use serde_json::{Value as Json, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Images of a validation that run at once, at most.
const JUDGED_AT_ONCE: usize = 16;
/// Iterations that are not timed: the first compile kernels and make scenes.
const UNTIMED: u64 = 5;
/// The share of `trainer.seconds` after which the number of iterations is fixed.
const TIMED: f64 = 0.05;
/// The share of what is left that iterations may take; validations and checkpoints take the rest.
const FOR_ITERATIONS: f64 = 0.95;

/// The version of what models say of themselves.
const FORMAT: u32 = 1;
/// The resolved configuration in a run's folder.
pub const CONFIG: &str = "config.yaml";
/// The model of the best validation so far, in a run's folder.
pub const BEST: &str = "best.clearshot";

/// How a run came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Finished,
    /// Validations no longer improved.
    EarlyStop,
    /// Somebody asked for it; it can be gone on with.
    Interrupted,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Summary {
    pub ending: Ending,
    pub iteration: u64,
    pub images: u64,
    pub seconds: f64,
    /// Of the whole validation set, at the end.
    pub score: Option<f64>,
    pub best: Option<f64>,
    /// Of all states: equal for equal bits.
    pub digest: u64,
    pub iterations_per_second: f64,
    /// The share of the time that was spent waiting for samples.
    pub waiting: f64,
    pub checkpoint: PathBuf,
}

/// One stage's network and what runs it.
struct Working {
    network: Box<dyn Network>,
    /// The network's `config.json`.
    text: String,
    signal: Signal,
    size: Vec<usize>,
    channels: usize,
    engine: Engine,
    feed: Feed<Batch>,
    /// Images of an iteration.
    images: usize,
    judge: Option<Judged>,
}

/// The validation set with what scores it.
struct Judged {
    judge: Judge,
    batches: Vec<Batch>,
    domains: Vec<String>,
    size: Vec<usize>,
    at_once: usize,
}

/// See the module.
pub struct Run {
    config: RunConfig,
    out: PathBuf,
    device: Device,
    data: Data,
    task: Task,
    stages: Vec<Stage>,
    progress: Progress,
    work: Option<Working>,
    records: Records,
    /// Held as long as the run lives, so that no other writes into its folder.
    _lock: File,
    saved_at: Option<u64>,
    last_full: Option<f64>,
    waited: f64,
    /// Iterations and seconds since the last record, for its rates.
    since: (u64, f64, f64),
}

impl Run {
    /// Begins a run in a folder, or goes on with the one that is there.
    ///
    /// # Errors
    /// If the configuration cannot be meant, the folder cannot be written to, holds a run that is not to be gone on
    /// with, or none that could; or the device has not the memory.
    pub fn open(config: RunConfig, out: &Path, resume: bool, show: Show) -> Result<Run> {
        config.check()?;
        let task = Task::new(&config.task)?;
        let device = config.device()?;
        std::fs::create_dir_all(out).map_err(io(out))?;
        let lock = lock(out)?;
        checkpoint::tidy(out)?;
        let found = checkpoint::list(out)?;
        let saved = match (found.last(), resume) {
            (Some(last), true) => Some(checkpoint::read(&last.path)?),
            (None, true) => {
                let reason = "no checkpoint to go on from; train without --resume".to_string();
                return Err(TrainError::Checkpoint { path: out.into(), reason });
            }
            (Some(_), false) => {
                let reason =
                    "there is a run already; go on with it by --resume, or choose another --out".to_string();
                return Err(TrainError::Checkpoint { path: out.into(), reason });
            }
            (None, false) => None,
        };
        let (mut progress, states) = match saved {
            Some(saved) => (saved.progress, Some(saved.states)),
            None => (Progress::default(), None),
        };
        let console = Console::new(show);
        let records =
            Records::open(out, progress.records, progress.iteration, config.records.tensorboard, console)?;
        progress.total = config.trainer.iterations.or(progress.total);
        let saved_at = states.is_some().then_some(progress.iteration);
        let mut run = Run {
            data: Data::new(&config)?,
            stages: stages(&config.trainer),
            out: out.to_owned(),
            config,
            device,
            task,
            progress,
            work: None,
            records,
            _lock: lock,
            saved_at,
            last_full: None,
            waited: 0.0,
            since: (0, 0.0, 0.0),
        };
        run.begin(states)?;
        write_config(&run.config, out)?;
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

    /// Bytes that a run of the present stage's graph takes.
    pub fn planned_bytes(&self) -> usize {
        self.working().engine.session().plan().bytes()
    }

    /// What is about to run, in words.
    pub fn plan(&self) -> String {
        let work = self.working();
        let session = work.engine.session();
        let parameters: usize =
            work.network.parameters().map_or(0, |all| all.iter().map(|p| p.shape.len()).sum());
        format!(
            "{}: {parameters} parameters, {} images of {:?} an iteration, {}, {}, {} threads make samples",
            session.device(),
            work.images,
            work.size,
            session.arithmetic(),
            human(self.planned_bytes()),
            self.workers()[0],
        )
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

    /// The network of a stage and its `config.json`.
    fn network(&self, stage: usize) -> Result<(Box<dyn Network>, String)> {
        let mut map = self.config.model.network.clone();
        if map.is_empty() {
            let needed = "a network: _class_name and its keys; model=... chooses one of the groups";
            return setting("model.network", "nothing", needed);
        }
        if self.is_growing() {
            let sizes: Vec<usize> = self.stages.iter().map(|s| s.size).collect();
            map.insert("resolutions".into(), sizes.into());
            map.insert("resolution".into(), self.stages[stage].size.into());
            map.insert("blend".into(), (stage > 0).into());
        }
        let text = serde_json::to_string_pretty(&map).unwrap_or_default();
        Ok((models::read(&text)?, text))
    }

    /// The first stage, or that of a checkpoint.
    fn begin(&mut self, states: Option<Weights>) -> Result<()> {
        if self.progress.batch == 0 {
            self.progress.batch = match asked_batch(&self.config.trainer) {
                Some(batch) => batch,
                None => self.largest_batch()?,
            };
        }
        let (network, _) = self.network(self.progress.stage)?;
        let states = match states {
            Some(states) => states,
            None => self.initial(&*network)?,
        };
        self.enter(states)?;
        if let (None, Some(complexity)) = (self.progress.total, self.config.trainer.epochs) {
            let source = self.data.source(Part::Training, &self.size(self.config.trainer.crop), None)?;
            let images = source.images().unwrap_or(1);
            let each = images.div_ceil(self.progress.batch).max(1) as u64;
            self.progress.total = Some(epochs(images, complexity) * each);
        }
        Ok(())
    }

    /// Weights to start from.
    fn initial(&self, network: &dyn Network) -> Result<Weights> {
        let params = network.parameters()?;
        let Some(path) = &self.config.model.init else {
            return Ok(clearshot_nn::weights::initial(&params, self.config.seed));
        };
        let inside = path.join(checkpoint::MODEL);
        let model = Model::load(if inside.is_dir() { &inside } else { path })?;
        let fits = |p: &&Param| model.weights.get(&p.name).is_some_and(|w| w.shape() == p.shape);
        if params.iter().filter(fits).count() * 2 < params.len() {
            let needed = "a model of the network in model.network: fewer than half of its weights fit";
            return setting("model.init", path.display(), needed);
        }
        Ok(models::growing::grow(&model.weights, &params, self.config.seed))
    }

    /// Compiles the present stage and sets its states.
    fn enter(&mut self, states: Weights) -> Result<()> {
        // The memory of the stage before is given back first.
        self.work = None;
        let (network, text) = self.network(self.progress.stage)?;
        let states = models::growing::grow(&states, &network.parameters()?, self.config.seed)
            .into_iter()
            .chain(states.into_iter().filter(|(name, _)| is_kept(name)))
            .collect();
        let side = self.stages[self.progress.stage].size;
        let size = self.size(side);
        let whole = self.size(self.config.trainer.crop);
        let from = self.is_growing().then_some(&whole[..]);
        let source = self.data.source(Part::Training, &size, from)?;
        let images = batch_of(self.progress.batch, &self.config.trainer, side);
        let each = images / self.config.trainer.accumulate;
        let shapes = Shapes {
            batch: each,
            size: &size,
            channels: source.channels(),
            photons: self.config.data.kind != DataKind::Pairs,
        };
        check_channels(&*network, &self.task, &shapes)?;
        let mut engine = Engine::new(&*network, &self.task, &shapes, &self.config, &self.device)?;
        engine.load(&states)?;
        let first = self.progress.images;
        let (signal, [_, channels], kept) = (source.signal(), source.channels(), size.clone());
        let (task, seed) = (self.task.clone(), self.config.seed);
        let [workers, ahead] = self.workers();
        let feed = Feed::new(0, workers, ahead, move |i| {
            batch(&*source, first + i * each as u64, each, &size, |n| task.drops(seed, n))
        });
        self.work =
            Some(Working { network, text, signal, size: kept, channels, engine, feed, images, judge: None });
        Ok(())
    }

    /// Threads that make samples, and batches made ahead.
    fn workers(&self) -> [usize; 2] {
        let p = &self.config.performance;
        let all = std::thread::available_parallelism().map_or(1, |n| n.get());
        let suited = match self.device {
            Device::Cpu { .. } => all.div_ceil(4),
            Device::Cuda { .. } => all.saturating_sub(1).max(1),
        };
        let workers = if p.workers > 0 { p.workers } else { suited };
        [workers, if p.ahead > 0 { p.ahead } else { 2 * workers }]
    }

    /// As many images as fit into the memory, by the plan.
    fn largest_batch(&self) -> Result<usize> {
        let asked = self.config.memory()?;
        let memory = match (asked, self.device) {
            (Some(bytes), _) => bytes,
            (None, Device::Cpu { .. }) => available_bytes().unwrap_or(1 << 30) / 10 * 9,
            (None, Device::Cuda { ordinal }) => {
                let found = gpus()?.into_iter().find(|g| g.ordinal == ordinal);
                found.map_or(1 << 30, |g| g.memory / 10 * 9)
            }
        };
        let (network, _) = self.network(self.stages.len() - 1)?;
        let size = self.size(self.config.trainer.crop);
        let channels = self.data.source(Part::Training, &size, None)?.channels();
        let photons = self.config.data.kind != DataKind::Pairs;
        let (training, options) = (crate::engine::training_of(&self.config), self.config.options()?);
        let bytes = |batch: usize| -> Result<usize> {
            let shapes = Shapes { batch, size: &size, channels, photons };
            check_channels(&*network, &self.task, &shapes)?;
            let built = iteration::training(&*network, &self.task, &shapes, &training)?;
            Ok(plan(built.graph, &self.device, &options)?.bytes())
        };
        let needed = bytes(1)?;
        if needed > memory {
            let least = format!("one image of {size:?} pixels takes {needed} bytes");
            return setting("performance.memory", format!("{memory} bytes"), least);
        }
        let (mut fits, mut too_many) = (1, 2);
        while too_many <= 4096 && bytes(too_many)? <= memory {
            (fits, too_many) = (too_many, 2 * too_many);
        }
        while too_many - fits > 1 {
            let middle = fits.midpoint(too_many);
            if bytes(middle)? <= memory { fits = middle } else { too_many = middle }
        }
        Ok(fits * self.config.trainer.accumulate)
    }

    /// Trains until the end, `stop_at` iterations, or until `stop` is set.
    ///
    /// # Errors
    /// If a checkpoint or record cannot be written, samples cannot be had, or training has diverged.
    pub fn train(&mut self, stop: &AtomicBool, stop_at: Option<u64>) -> Result<Summary> {
        let mut clock = Instant::now();
        let before = self.progress.seconds;
        self.since = (self.progress.iteration, self.progress.seconds, 0.0);
        let began = self.progress.iteration;
        let mut timed = None;
        let ending = loop {
            let p = &self.progress;
            if p.total.is_some_and(|t| p.iteration >= t) {
                break Ending::Finished;
            }
            if self.config.trainer.early_stop > 0 && p.stale >= self.config.trainer.early_stop {
                break Ending::EarlyStop;
            }
            if stop.load(Ordering::Relaxed) || stop_at.is_some_and(|n| p.iteration >= n) {
                break Ending::Interrupted;
            }
            if self.stage_is_over() {
                self.next_stage()?;
            }
            self.step()?;
            self.progress.seconds = before + clock.elapsed().as_secs_f64();
            let i = self.progress.iteration;
            let warm =
                self.config.trainer.seconds.is_none_or(|s| clock.elapsed().as_secs_f64() > 0.5 * TIMED * s);
            if timed.is_none() && warm && i >= began + UNTIMED && self.progress.total.is_none() {
                self.working().engine.session().wait()?;
                timed = Some((i, Instant::now()));
            }
            self.fix_total(timed, &mut clock)?;
            if i.is_multiple_of(self.config.records.every) || self.progress.total == Some(i) {
                self.record()?;
            }
            let last = self.progress.total == Some(i);
            let every = self.config.validation.every;
            if last || (every > 0 && i.is_multiple_of(every)) {
                self.validate(last)?;
            }
            let every = self.config.checkpoint.every;
            if last || (every > 0 && i.is_multiple_of(every)) {
                self.save()?;
            }
        };
        self.working().engine.session().wait()?;
        let seconds = clock.elapsed().as_secs_f64();
        self.progress.seconds = before + seconds;
        self.save()?;
        let done = self.progress.iteration - began;
        let found = checkpoint::list(&self.out)?;
        Ok(Summary {
            ending,
            iteration: self.progress.iteration,
            images: self.progress.images,
            seconds: self.progress.seconds,
            score: self.last_full,
            best: self.progress.best,
            digest: self.digest()?,
            iterations_per_second: done as f64 / seconds.max(1e-9),
            waiting: (self.waited + self.working().feed.waited.as_secs_f64()) / seconds.max(1e-9),
            checkpoint: found.last().map(|f| f.path.clone()).unwrap_or_default(),
        })
    }

    /// Where the run is on its way.
    fn place(&self) -> Place {
        let p = &self.progress;
        let since_switch = (p.stage > 0).then(|| p.iteration - p.stage_began);
        Place { iteration: p.iteration, total: p.total, since_switch }
    }

    /// How far the last stage of a growing network is blended in.
    fn alpha(&self) -> f64 {
        let (p, growth) = (&self.progress, &self.config.trainer.growth);
        let (Some(total), true) = (p.total, p.stage > 0) else { return 1.0 };
        let share = self.stages[p.stage].end - self.stages[p.stage - 1].end;
        let over = total as f64 * share * growth.blend;
        if over < 1.0 { 1.0 } else { ((p.iteration - p.stage_began) as f64 / over).min(1.0) }
    }

    fn step(&mut self) -> Result<()> {
        let place = self.place();
        let alpha = self.alpha();
        let p = &mut self.progress;
        let work = self.work.as_mut().expect("a run has a stage from its beginning on");
        let numbers = Numbers {
            rate: self.config.optimizer.rate
                * rate(&self.config.schedule, &self.config.trainer.growth, &place),
            ema_decay: ema_decay(self.config.trainer.ema_half_life, work.images, p.iteration),
            alpha,
            iteration: p.iteration,
            first: p.images,
        };
        let feed = &mut work.feed;
        work.engine.step(|| feed.take(), &numbers)?;
        p.iteration += 1;
        p.images += work.images as u64;
        p.score = None;
        Ok(())
    }

    /// Once the first iterations were timed, says how many there will be.
    fn fix_total(&mut self, timed: Option<(u64, Instant)>, clock: &mut Instant) -> Result<()> {
        let (None, Some(seconds), Some((from, since))) =
            (self.progress.total, self.config.trainer.seconds, timed)
        else {
            return Ok(());
        };
        let i = self.progress.iteration;
        let spent = clock.elapsed().as_secs_f64();
        if spent < TIMED * seconds || i <= from {
            return Ok(());
        }
        self.working().engine.session().wait()?;
        let each = since.elapsed().as_secs_f64() / (i - from) as f64;
        let left = (seconds - spent).max(0.0) * FOR_ITERATIONS / each;
        self.progress.total = Some(i + left as u64);
        let text = format!("{:.1} iterations a second: {} iterations", 1.0 / each, i + left as u64);
        self.records.console.say(&text);
        Ok(())
    }

    fn stage_is_over(&self) -> bool {
        let (p, growth) = (&self.progress, &self.config.trainer.growth);
        if p.stage + 1 >= self.stages.len() {
            return false;
        }
        let ended =
            p.total.is_some_and(|t| p.iteration >= (t as f64 * self.stages[p.stage].end).round() as u64);
        ended || (growth.adaptive && p.stage_stale >= growth.patience)
    }

    fn next_stage(&mut self) -> Result<()> {
        let states = self.working().engine.states()?;
        self.waited += self.working().feed.waited.as_secs_f64();
        let p = &mut self.progress;
        p.stage += 1;
        p.stage_began = p.iteration;
        (p.stage_best, p.stage_stale) = (None, 0);
        if self.config.model.network.get("_class_name").and_then(Json::as_str) == Some("Growing") {
            // Scores at another resolution are no measure.
            (p.best, p.stale) = (None, 0);
        }
        self.enter(states)?;
        let side = self.stages[self.progress.stage].size;
        let images = self.working().images;
        let values = [("size", side), ("batch", images)].map(|(n, v)| (n.to_string(), v as f64));
        self.records.put("stage", self.progress.iteration, &values)?;
        self.progress.records = self.records.position();
        self.records.console.say(&format!("crops of {side} pixels, {images} at once"));
        Ok(())
    }

    /// Writes down what the iterations since the last record were like.
    fn record(&mut self) -> Result<()> {
        let place = self.place();
        let work = self.work.as_mut().expect("a run has a stage from its beginning on");
        let p = &mut self.progress;
        let count = (p.iteration - p.recorded).max(1) * self.config.trainer.accumulate as u64;
        let number = |name: &str| Ok::<_, TrainError>(work.engine.number(name)?.unwrap_or(f64::NAN));
        let loss = number("record.loss")? / count as f64;
        let good = number("train.step")?;
        let norm = number("grad_norm")?;
        let terms: Vec<(String, f64)> = ["main", "intensity", "gradient"]
            .iter()
            .filter_map(|name| {
                let value = work.engine.number(&format!("term.{name}")).ok()??;
                Some((format!("term.{name}"), value))
            })
            .collect();
        let skipped = (p.iteration as f64 - good).max(0.0) as u64;
        let fresh = skipped - p.skipped.min(skipped);
        p.skipped_in_a_row =
            if fresh >= p.iteration - p.recorded { p.skipped_in_a_row + fresh } else { fresh };
        p.skipped = skipped;
        let waited = self.waited + work.feed.waited.as_secs_f64();
        let seconds = p.seconds - self.since.1;
        let per_second = (p.iteration - self.since.0) as f64 / seconds.max(1e-9);
        let waiting = ((waited - self.since.2) / seconds.max(1e-9)).min(1.0);
        self.since = (p.iteration, p.seconds, waited);
        let share = rate(&self.config.schedule, &self.config.trainer.growth, &place);
        let mut values = vec![
            ("loss".to_string(), loss),
            ("rate".to_string(), self.config.optimizer.rate * share),
            ("grad_norm".to_string(), norm),
            ("images".to_string(), p.images as f64),
            ("seconds".to_string(), p.seconds),
            ("images_per_second".to_string(), per_second * work.images as f64),
            ("waiting".to_string(), waiting),
            ("skipped".to_string(), skipped as f64),
        ];
        values.extend(terms);
        p.recorded = p.iteration;
        work.engine.clear_loss()?;
        if fresh > 0 {
            work.engine.clear_sums()?;
        }
        self.records.put("train", p.iteration, &values)?;
        p.records = self.records.position();
        let stage = match self.stages.len() {
            1 => String::new(),
            n => format!("stage {} of {n}, ", p.stage + 1),
        };
        self.records.console.look(&Look {
            name: self.config.name.clone(),
            iteration: p.iteration,
            total: p.total,
            loss,
            rate: self.config.optimizer.rate * share,
            images_per_second: per_second * work.images as f64,
            seconds_left: p.total.map(|t| (t - p.iteration.min(t)) as f64 / per_second.max(1e-9)),
            waiting,
            stage,
            score: p.stage_best.and(self.last_full),
            best: p.best,
        });
        if fresh > 0 {
            let text = format!("{fresh} iterations were skipped: a gradient was not finite");
            self.records.console.say(&text);
        }
        if p.skipped_in_a_row >= self.config.trainer.skips {
            return Err(TrainError::Diverged { iteration: p.iteration, count: p.skipped_in_a_row });
        }
        Ok(())
    }

    fn judged(&self) -> Result<Judged> {
        let v = &self.config.validation;
        let side = match (self.is_growing(), v.crop) {
            (true, _) => self.stages[self.progress.stage].size,
            (false, 0) => self.config.trainer.crop,
            (false, crop) => crop,
        };
        let size = self.size(side);
        let whole = self.size(self.config.trainer.crop);
        let from = self.is_growing().then_some(&whole[..]);
        let source = self.data.source(Part::Validation, &size, from)?;
        let at_once = v.images.min(JUDGED_AT_ONCE);
        let photons = self.config.data.kind != DataKind::Pairs;
        let shapes = Shapes { batch: at_once, size: &size, channels: source.channels(), photons };
        let judge = Judge::new(&*self.working().network, &self.task, &shapes, &self.config, &self.device)?;
        let batches = (0..v.images.div_ceil(at_once))
            .map(|i| batch(&*source, (i * at_once) as u64, at_once, &size, |_| false))
            .collect::<Result<_>>()?;
        Ok(Judged { judge, batches, domains: source.domains(), size, at_once })
    }

    /// Scores the averaged weights: a subset of the validation images, or all of them now and then.
    fn validate(&mut self, last: bool) -> Result<()> {
        if self.working().judge.is_none() {
            let judged = self.judged()?;
            if let Some(work) = &mut self.work {
                work.judge = Some(judged);
            }
        }
        let v = self.config.validation.clone();
        let full = last || (self.progress.validations + 1).is_multiple_of(v.full_every);
        let subset = ((v.images as f64 * v.subset).ceil() as usize).clamp(1, v.images);
        let count = if full { v.images } else { subset };
        let level = self.task.diffusion.as_ref().map(|d| match self.task.kind {
            TaskKind::Prior => d.level_at(v.sigma),
            _ => d.last_level(),
        });
        let (alpha, seed) = (self.alpha(), self.config.seed);
        let photons = self.config.data.kind != DataKind::Pairs;
        let work = self.work.as_mut().expect("a run has a stage from its beginning on");
        let weights = work.engine.weights(&*work.network)?;
        let judged = work.judge.as_mut().expect("it was made above");
        judged.judge.load(&weights, alpha)?;
        let (mut scores, mut noisy): (Vec<(usize, f64)>, Vec<f64>) = (vec![], vec![]);
        let mut rows: Vec<Vec<Vec<f32>>> = vec![];
        let [.., height, width] = judged.size[..] else { return Ok(()) };
        for (i, batch) in judged.batches.iter().enumerate().take(count.div_ceil(judged.at_once)) {
            let first = (i * judged.at_once) as u64;
            let estimate = judged.judge.estimate(batch, level.as_ref(), seed, first)?;
            let (estimates, truths) = (estimate.as_f32()?, batch.clean.as_f32()?);
            let each = truths.len() / judged.at_once;
            for k in 0..judged.at_once {
                let part = k * each..(k + 1) * each;
                scores.push((
                    batch.domains[k],
                    psnr(&estimates[part.clone()], &truths[part.clone()], batch.scales[k]),
                ));
                let [seen, made, truth] = panels(batch, k, &estimates[part], photons, height * width)?;
                noisy.push(psnr(&seen, &truth, batch.scales[k]));
                if full && rows.len() < self.config.records.pictures {
                    rows.push(vec![seen, made, truth]);
                }
            }
        }
        scores.truncate(count);
        let mean = |scores: &[(usize, f64)]| scores.iter().map(|s| s.1).sum::<f64>() / scores.len() as f64;
        // Validations are compared by the images that all of them score.
        let compared = mean(&scores[..subset]);
        let mut values = vec![("psnr".to_string(), mean(&scores)), ("images".to_string(), count as f64)];
        if photons {
            // What there is to gain: the first plane as it was measured.
            values.push(("measured_psnr".to_string(), noisy[..count].iter().sum::<f64>() / count as f64));
        }
        for (d, domain) in judged.domains.iter().enumerate().filter(|_| judged.domains.len() > 1) {
            let of: Vec<(usize, f64)> = scores.iter().copied().filter(|s| s.0 == d).collect();
            if !of.is_empty() {
                values.push((format!("psnr.{domain}"), mean(&of)));
            }
        }
        self.last_full = Some(mean(&scores));
        self.progress.validations += 1;
        self.progress.score = compared.is_finite().then_some(compared);
        let growth = self.config.trainer.growth.threshold;
        let p = &mut self.progress;
        improve(&mut p.best, &mut p.stale, compared, 0.0);
        improve(&mut p.stage_best, &mut p.stage_stale, compared, growth);
        let iteration = p.iteration;
        self.records.put("validation", iteration, &values)?;
        self.progress.records = self.records.position();
        if !rows.is_empty() {
            let picture = Picture::of(&rows, height, width);
            let bytes =
                picture.write(&self.out.join("pictures").join(format!("iteration-{iteration:09}.png")))?;
            self.records
                .picture(iteration, &Png { bytes: &bytes, width: picture.width, height: picture.height })?;
        }
        let found = checkpoint::list(&self.out)?;
        if checkpoint::is_among_best(&found, &self.config.checkpoint, self.progress.stage, compared) {
            self.save()?;
        }
        Ok(())
    }

    /// The averaged weights with all that a model says of itself.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn model(&self) -> Result<Model> {
        let work = self.working();
        let p = &self.progress;
        let mut text = work.text.clone();
        if self.is_growing() && self.alpha() >= 1.0 {
            // The way from and to the stage below is out of use.
            text = text.replace("\"blend\": true", "\"blend\": false");
        }
        let about = About {
            format: FORMAT,
            name: self.config.name.clone(),
            task: task::about(&self.config.task),
            signal: work.signal.clone(),
            channels: work.channels,
            dims: work.network.dims(),
            crop: work.size.clone(),
            training: json!({
                "iterations": p.iteration, "images": p.images, "seconds": p.seconds, "seed": self.config.seed,
                "config": self.config,
            }),
            scores: json!({ "validation_psnr": p.score }),
            limits: String::new(),
        };
        Ok(Model::new(about, text, work.engine.weights(&*work.network)?)?)
    }

    /// Writes a checkpoint, if there is none of this iteration, and removes those that need not be kept.
    fn save(&mut self) -> Result<()> {
        let i = self.progress.iteration;
        if self.saved_at == Some(i) {
            return Ok(());
        }
        let work = self.working();
        let states = work.engine.states()?;
        let model = self.model()?;
        checkpoint::write(&self.out, &self.config, &self.progress, &states, |to| Ok(model.save_folder(to)?))?;
        if self.progress.score.is_some() && self.progress.score == self.progress.best {
            let best = self.out.join(BEST);
            model.save_file(&best, DType::F32).map_err(|e| advised(&best, e.into()))?;
        }
        checkpoint::prune(&self.out, &self.config.checkpoint)?;
        self.saved_at = Some(i);
        Ok(())
    }
}

/// States beside parameters that a later stage goes on with.
fn is_kept(name: &str) -> bool {
    ["adam.", "ema.", "sgd.", "train.", "record."].iter().any(|prefix| name.starts_with(prefix))
}

fn improve(best: &mut Option<f64>, stale: &mut usize, score: f64, by: f64) {
    if best.is_none_or(|b| score > b + by) {
        (*best, *stale) = (Some(score), 0);
    } else {
        *stale += 1;
    }
}

/// PSNR in dB for a range of 1, in the units of scenes, where the network's -1 is 0 and `scale` above it 1; the estimate is
/// clipped to [0, 1.5].
fn psnr(estimate: &[f32], truth: &[f32], scale: f32) -> f64 {
    let of = |x: f32| (f64::from(x) + 1.0) / f64::from(scale);
    let square = |(&e, &t): (&f32, &f32)| (of(e).clamp(0.0, 1.5) - of(t)).powi(2);
    let mse = estimate.iter().zip(truth).map(square).sum::<f64>() / truth.len() as f64;
    -10.0 * mse.max(1e-12).log10()
}

/// What was measured, what was estimated and the truth, of the first channel (and plane).
fn panels(batch: &Batch, k: usize, estimate: &[f32], photons: bool, pixels: usize) -> Result<[Vec<f32>; 3]> {
    let (measured, clean) = (batch.measured.as_f32()?, batch.clean.as_f32()?);
    let count = batch.domains.len();
    let each = |values: &[f32]| values.len() / count;
    let part = |values: &[f32]| {
        let each = each(values);
        values[k * each..(k + 1) * each].to_vec()
    };
    let first = |values: Vec<f32>, channels: usize| -> Vec<f32> {
        values.iter().step_by(channels).take(pixels).copied().collect()
    };
    let [from, to] = [batch.measured.shape().channels(), batch.clean.shape().channels()];
    let mut seen = first(part(measured), from);
    if photons {
        let numbers = part(batch.numbers.as_f32()?);
        seen.iter_mut().for_each(|v| *v = numbers[0] * *v + numbers[1]);
    }
    Ok([seen, first(estimate.to_vec(), to), first(part(clean), to)])
}

/// Refuses a network for other channels than the task's.
fn check_channels(network: &dyn Network, task: &Task, shapes: &Shapes<'_>) -> Result<()> {
    let (wants, gets) = (network.in_channels(), shapes.network_inputs(task));
    if wants != gets {
        let needed = format!("this task and these data give a network {gets} channels");
        return setting("model.network.in_channels", wants, needed);
    }
    if network.out_channels() != shapes.channels[1] {
        let needed = format!("the clean images have {} channels", shapes.channels[1]);
        return setting("model.network.out_channels", network.out_channels(), needed);
    }
    if network.dims() != shapes.size.len() {
        let needed = format!("crops have {} axes; trainer.depth is the third", shapes.size.len());
        return setting("model.network", format!("a network in {} dimensions", network.dims()), needed);
    }
    match network.check_size(shapes.size) {
        Ok(()) => Ok(()),
        Err(why) => setting("trainer.crop", format!("{:?}", shapes.size), why),
    }
}

/// The run's own lock, which ends with the process however it ends.
fn lock(out: &Path) -> Result<File> {
    let path = out.join(".lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(io(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            let reason = "another process is training in this folder".to_string();
            Err(TrainError::Checkpoint { path: out.into(), reason })
        }
        Err(std::fs::TryLockError::Error(error)) => Err(TrainError::Io { path, error }),
    }
}

/// The configuration as it was resolved.
fn write_config(config: &RunConfig, out: &Path) -> Result<()> {
    let path = out.join(CONFIG);
    clearshot_tensor::store::write_whole(&path, presets::yaml(config).as_bytes()).map_err(io(&path))
}

/// A flag that somebody may set to end a run.
pub fn never() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(false))
}
