//! Finds settings for a machine by measuring: how a run is compiled and fed, with its own network, data and loader.
//!
//! One setting after another is tried on the run itself, and a new value is kept only if it is faster by more than the
//! variation of measurements. Every trial runs real iterations, including the loader threads. A batch is tried only if the
//! plan says that it fits. When time is over or the user stops it, the best settings so far are kept.

use super::Run;
use crate::config::{CompileMode, Count, RunConfig};
use crate::error::Result;
use crate::watch::Watch;
use clearshot_nn::Weights;
use clearshot_runtime::{Device, Precision};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// How much faster another value must be to be taken: kernels and precisions change results in their last bits.
const FASTER: f64 = 1.05;
const FASTER_KERNELS: f64 = 1.10;
/// Iterations of a trial that do not count, and the least that do.
const UNTIMED: u64 = 2;
const LEAST: u64 = 3;
/// The largest batch that is tried, in times of the one that was asked for.
const MOST_BATCH: usize = 4;

/// The choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuning {
    pub batch: usize,
    pub precision: String,
    pub threads: usize,
    pub workers: usize,
    pub ahead: usize,
    pub compile_mode: CompileMode,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// Its subject.
    pub tried: &'static str,
    #[serde(flatten)]
    pub tuning: Tuning,
    /// None where it does not run here; `why` says it.
    pub images_per_second: Option<f64>,
    /// The share of the time that was spent waiting for samples.
    pub waiting: f64,
    pub planned_bytes: usize,
    pub taken: bool,
    pub why: String,
}

/// The result of tuning.
#[derive(Clone, Debug, Serialize)]
pub struct Tuned {
    pub device: String,
    pub best: Tuning,
    pub images_per_second: f64,
    /// Of the settings that it began with.
    pub began_with: f64,
    /// By the plan, in the memory that may be used.
    pub largest_batch: usize,
    pub trials: Vec<Trial>,
    /// Whether time or a person ended it before everything was tried.
    pub cut_short: bool,
    pub seconds: f64,
}

/// How long, and how thoroughly.
#[derive(Clone, Copy, Debug)]
pub struct TuneLimits {
    pub seconds: f64,
    /// Every combination of the values, in place of one setting after another.
    pub exhaustive: bool,
}

impl Tuned {
    /// As a configuration that `train` takes after any experiment.
    pub fn yaml(&self) -> String {
        let t = &self.best;
        let mode = serde_json::to_value(t.compile_mode).unwrap_or_default();
        format!(
            "performance:\n  precision: {}\n  threads: {}\n  workers: {}\n  ahead: {}\ntrainer:\n  batch: {}\nmodel:\n  compile_mode: {}\n",
            t.precision,
            t.threads,
            t.workers,
            t.ahead,
            t.batch,
            mode.as_str().unwrap_or("max-autotune")
        )
    }
}

/// Doubling numbers up to a last one.
fn doubling(most: usize) -> Vec<usize> {
    let mut all: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| *n < most).collect();
    all.push(most.max(1));
    all
}

/// A value of one setting, as what it does to all of them.
type Value = Box<dyn Fn(&mut Tuning)>;

/// The search: what it has measured, and until when it may.
struct Search<'r, 'w> {
    run: &'r mut Run<'w>,
    states: Weights,
    trials: Vec<Trial>,
    stop: &'r AtomicBool,
    begun: Instant,
    limits: TuneLimits,
    slice: f64,
}

/// Tunes a training run. The folder is temporary. `watch` is called for every trial.
///
/// # Errors
/// If the configuration cannot be meant, or samples cannot be had.
pub fn tune<'w>(
    config: RunConfig,
    folder: &Path,
    limits: TuneLimits,
    stop: &AtomicBool,
    watch: impl Into<Box<dyn Watch + 'w>>,
) -> Result<Tuned> {
    let mut run = Run::open(config, folder, false, watch)?;
    let largest = run.largest_batch()?;
    let states = run.working().engine.states()?;
    // A first look takes a tenth, and there are a dozen or two of trials.
    let slice = (limits.seconds / 24.0).max(0.2);
    let begun = Instant::now();
    let mut search = Search { run: &mut run, states, trials: vec![], stop, begun, limits, slice };
    let first = search.present();
    // Scenes are drawn and files decoded before anything is compared.
    search.warm(limits.seconds * 0.1)?;
    let began_with = search.measure("initial", &first)?.unwrap_or(0.0);
    search.mark_taken();
    let (best, rate) = match limits.exhaustive {
        true => search.every(&first, largest)?,
        false => search.one_by_one(&first, began_with, largest)?,
    };
    let cut_short = search.is_over();
    let trials = std::mem::take(&mut search.trials);
    let seconds = search.begun.elapsed().as_secs_f64();
    Ok(Tuned {
        device: run.device.to_string(),
        best,
        images_per_second: rate,
        began_with,
        largest_batch: largest,
        trials,
        cut_short,
        seconds,
    })
}

impl Search<'_, '_> {
    /// The settings that the run has.
    fn present(&self) -> Tuning {
        let [workers, ahead] = self.run.workers();
        Tuning {
            batch: self.run.working().images,
            precision: self.run.session().arithmetic().name().to_string(),
            threads: match self.run.device {
                Device::Cpu { threads, .. } => threads,
                Device::Cuda { .. } => 0,
            },
            workers,
            ahead,
            compile_mode: self.run.config.model.compile_mode,
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.begun.elapsed().as_secs_f64() >= self.limits.seconds
    }

    /// Iterations until everything is there that later ones find ready.
    fn warm(&mut self, seconds: f64) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed().as_secs_f64() < seconds && !self.is_over() {
            self.run.step()?;
        }
        self.run.session().wait().map_err(Into::into)
    }

    /// Compiles the run again with these settings.
    fn set(&mut self, t: &Tuning) -> Result<()> {
        let run = &mut *self.run;
        let c = &mut run.config;
        c.trainer.batch = Count::Number(t.batch);
        c.performance.precision = t.precision.clone();
        (c.performance.threads, c.performance.workers, c.performance.ahead) = (t.threads, t.workers, t.ahead);
        c.model.compile_mode = t.compile_mode;
        run.device = run.config.device()?;
        run.progress.batch = t.batch;
        run.enter(self.states.clone())
    }

    /// Images a second with these settings; none where they do not run here, which is a row all the same.
    fn measure(&mut self, tried: &'static str, tuning: &Tuning) -> Result<Option<f64>> {
        let mut trial = Trial {
            tried,
            tuning: tuning.clone(),
            images_per_second: None,
            waiting: 0.0,
            planned_bytes: 0,
            taken: false,
            why: String::new(),
        };
        let outcome = match self.set(tuning) {
            Ok(()) => self.timed().map(Some),
            Err(e) => {
                trial.why = e.to_string();
                Ok(None)
            }
        }?;
        if let Some((rate, waiting)) = outcome {
            (trial.images_per_second, trial.waiting) = (Some(rate), waiting);
            trial.planned_bytes = self.run.planned_bytes();
        }
        let rate = trial.images_per_second;
        self.run.records.watch.note(&trial.in_words());
        self.trials.push(trial);
        Ok(rate)
    }

    /// Images a second over a slice of time, and the share of it that was spent waiting.
    fn timed(&mut self) -> Result<(f64, f64)> {
        for _ in 0..UNTIMED {
            if !self.is_over() {
                self.run.step()?;
            }
        }
        self.run.session().wait()?;
        let (begun, waited) = (Instant::now(), self.run.working().feed.waited);
        let (slice, mut iterations) = (self.slice, 0);
        // Where time is over, one has to do.
        let is_short = |done: u64| done < LEAST || begun.elapsed().as_secs_f64() < slice;
        while iterations == 0 || (!self.is_over() && is_short(iterations)) {
            self.run.step()?;
            iterations += 1;
        }
        self.run.session().wait()?;
        let seconds = begun.elapsed().as_secs_f64().max(1e-9);
        let work = self.run.working();
        let waiting = (work.feed.waited - waited).as_secs_f64() / seconds;
        Ok(((iterations * work.images as u64) as f64 / seconds, waiting))
    }

    fn mark_taken(&mut self) {
        if let Some(last) = self.trials.last_mut() {
            last.taken = true;
        }
    }

    /// One setting after another, each from the best so far.
    fn one_by_one(&mut self, first: &Tuning, began_with: f64, largest: usize) -> Result<(Tuning, f64)> {
        let (mut best, mut rate) = (first.clone(), began_with);
        for (setting, values) in self.values(first, largest) {
            let needed = if setting == "kernels" { FASTER_KERNELS } else { FASTER };
            for value in values {
                let mut next = best.clone();
                value(&mut next);
                if next == best || self.is_over() {
                    continue;
                }
                if let Some(found) = self.measure(setting, &next)?.filter(|found| *found > needed * rate) {
                    (best, rate) = (next, found);
                    self.mark_taken();
                }
            }
        }
        Ok((best, rate))
    }

    /// Every combination.
    fn every(&mut self, first: &Tuning, largest: usize) -> Result<(Tuning, f64)> {
        let mut all = vec![first.clone()];
        for (_, values) in self.values(first, largest) {
            let mut more: Vec<Tuning> = vec![];
            for tuning in &all {
                for value in &values {
                    let mut next = tuning.clone();
                    value(&mut next);
                    if !more.contains(&next) {
                        more.push(next);
                    }
                }
            }
            all = more;
        }
        self.slice = (self.limits.seconds / (2 * all.len()) as f64).max(0.2);
        let (mut best, mut rate) = (first.clone(), 0.0);
        for tuning in all {
            if self.is_over() {
                break;
            }
            if let Some(found) = self.measure("every combination", &tuning)?.filter(|found| *found > rate) {
                (best, rate) = (tuning, found);
                self.mark_taken();
            }
        }
        Ok((best, rate))
    }

    /// The values of each setting that are tried.
    fn values(&self, first: &Tuning, largest: usize) -> Vec<(&'static str, Vec<Value>)> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let is_gpu = matches!(self.run.device, Device::Cuda { .. });
        let modes: Vec<CompileMode> = match is_gpu {
            true => vec![CompileMode::None, CompileMode::Default, CompileMode::MaxAutotune],
            false => vec![CompileMode::None, CompileMode::MaxAutotune],
        };
        let kernels = modes.into_iter().map(|m| Box::new(move |t: &mut Tuning| t.compile_mode = m) as Value);
        let precisions: &[Precision] = match is_gpu {
            true => &[Precision::F32, Precision::Tf32, Precision::Bf16, Precision::F16],
            false => &[Precision::F32],
        };
        let precision = precisions.iter().map(|p| {
            let name = p.to_string();
            Box::new(move |t: &mut Tuning| t.precision = name.clone()) as Value
        });
        let threads = if is_gpu { vec![0] } else { doubling(cores) };
        let threads = threads.into_iter().map(|n| Box::new(move |t: &mut Tuning| t.threads = n) as Value);
        // A loader with another number of threads is ahead by as many batches for each.
        let workers = doubling(cores)
            .into_iter()
            .map(|n| Box::new(move |t: &mut Tuning| (t.workers, t.ahead) = (n, 2 * n)) as Value);
        let most = largest.min(MOST_BATCH * first.batch);
        let runs = self.run.config.trainer.accumulate;
        let batches = doubling(most).into_iter().filter(move |n| n.is_multiple_of(runs));
        let batch = batches.map(|n| Box::new(move |t: &mut Tuning| t.batch = n) as Value);
        let ahead =
            [2, 8].into_iter().map(|n| Box::new(move |t: &mut Tuning| t.ahead = n * t.workers) as Value);
        vec![
            ("kernels", kernels.collect()),
            ("precision", precision.collect()),
            ("threads", threads.collect()),
            ("workers", workers.collect()),
            ("batch", batch.collect()),
            ("ahead", ahead.collect()),
        ]
    }
}

impl Trial {
    /// As a line of a table.
    pub fn in_words(&self) -> String {
        let t = &self.tuning;
        let rate = match self.images_per_second {
            Some(rate) => format!("{rate:.1} images/s, waiting {:.0} %", 100.0 * self.waiting),
            None => self.why.clone(),
        };
        format!(
            "{:<18} batch {:>4}, {}, {} threads, {} workers, {} ahead, {:?}: {rate}",
            self.tried, t.batch, t.precision, t.threads, t.workers, t.ahead, t.compile_mode
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_double_up_to_the_last() {
        assert_eq!(doubling(1), [1]);
        assert_eq!(doubling(2), [1, 2]);
        assert_eq!(doubling(6), [1, 2, 4, 6]);
        assert_eq!(doubling(8), [1, 2, 4, 8]);
    }
}
