//! The loop over iterations: inputs, records, validations, checkpoints, and the transition to the next stage.

use super::{BEST, Ending, Gain, NoiseLaw, OverRanks, Run, Summary, begin, profile};
use crate::checkpoint::{self, Progress};
use crate::config::RunConfig;
use crate::engine::Numbers;
use crate::error::Result;
use crate::schedule::{Place, ema_decay, momentum, rate};
use clearshot_image::lengths;
use clearshot_model::Model;
use clearshot_timeline::{ITERATION, group};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

impl Run<'_> {
    pub(super) fn train_to_end(&mut self, stop: &AtomicBool, stop_at: Option<u64>) -> Result<Summary> {
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
        let travelled = self.working().engine.carrier().map(|c| c.travelled());
        self.progress.seconds = before + seconds;
        self.save()?;
        let ended = Instant::now();
        if ending != Ending::Interrupted && self.ranks.is_first() {
            self.warn_of_smaller_best()?;
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

    /// Says so where the best model is of an earlier stage, for none of the last one was validated with its layers blended in.
    fn warn_of_smaller_best(&mut self) -> Result<()> {
        let best = self.out.join(BEST);
        if !self.is_growing() || !best.is_file() {
            return Ok(());
        }
        let last = self.size(self.stages[self.progress.stage].size);
        let kept = Model::load(&best)?.about.crop;
        if kept.iter().product::<usize>() < last.iter().product() {
            self.records.watch.warning(&format!(
                "{} is of an earlier stage, with crops of {} pixels: in the last one, of {}, no validation came after its layers were blended in; train longer, \
                 validate more often (validation.every) or blend faster (trainer.growth.blend)",
                best.display(),
                lengths(&kept),
                lengths(&last)
            ));
        }
        Ok(())
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
    pub(super) fn place(&self) -> Place {
        let p = &self.progress;
        let since_switch = (p.stage > 0).then(|| p.iteration - p.stage_began);
        Place { iteration: p.iteration, total: self.total(), since_switch }
    }

    /// How far the last stage of a growing network is blended in.
    pub(super) fn alpha(&self) -> f64 {
        let (p, growth) = (&self.progress, &self.config.trainer.growth);
        let (Some(total), true) = (self.total(), p.stage > 0) else { return 1.0 };
        let share = self.stages[p.stage].end - self.stages[p.stage - 1].end;
        let over = total as f64 * share * growth.blend;
        if over < 1.0 { 1.0 } else { ((p.iteration - p.stage_began) as f64 / over).min(1.0) }
    }

    pub(super) fn step(&mut self) -> Result<()> {
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
            // Scores at another resolution are not comparable.
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
pub(super) fn base_rate(config: &RunConfig, progress: &Progress) -> f64 {
    config.optimizer.rate * 0.5f64.powi(progress.returns as i32)
}
