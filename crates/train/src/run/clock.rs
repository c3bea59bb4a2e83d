//! Runs limited by time: the expected number of iterations, and the end.
//!
//! The number of iterations is extrapolated from the time so far, so the learning rate follows the time under any load of
//! the machine. The last validation and the last checkpoint are part of the time: as much as they took before is reserved
//! for them.

use super::Run;
use crate::config::ScheduleConfig;
use crate::error::Result;
use std::time::Instant;

/// The share of the time that is kept back for what has not been measured yet, and in which the device is waited for.
const KEPT_BACK: f64 = 0.02;
const NEAR_THE_END: f64 = 0.05;

/// Iterations of a process that are not timed.
const UNTIMED: u64 = 5;

/// Seconds that were last measured; none so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Costs {
    pub validation: f64,
    pub checkpoint: f64,
}

impl Run<'_> {
    /// The time that iterations may take in all, where the clock says how long to train.
    fn for_iterations(&self) -> Option<f64> {
        let seconds = self.config.trainer.seconds?;
        let measured = self.costs.validation + self.costs.checkpoint;
        let kept = if self.costs.validation > 0.0 { measured } else { measured + KEPT_BACK * seconds };
        Some((seconds - kept).max(0.5 * seconds))
    }

    /// Iterations in total, if known: as given, or extrapolated from the time so far.
    pub(super) fn total(&self) -> Option<u64> {
        let p = &self.progress;
        if p.total.is_some() || p.iteration == 0 || p.seconds <= 0.0 {
            return p.total;
        }
        let limit = self.for_iterations()?;
        let left = match self.pace() {
            Some(each) => (limit - p.seconds).max(0.0) / each,
            None => p.iteration as f64 * (limit / p.seconds - 1.0).max(0.0),
        };
        Some(p.iteration + (left.round() as u64).max(1))
    }

    /// Seconds of an iteration, validations and all, once some were timed.
    fn pace(&self) -> Option<f64> {
        let ((from, since), p) = (self.timed?, &self.progress);
        (p.iteration > from && p.seconds > since).then(|| (p.seconds - since) / (p.iteration - from) as f64)
    }

    /// Seconds by a clock: where the time decides how long to train, by that of the first rank.
    pub(super) fn clocked(&self, since: Instant) -> Result<f64> {
        let own = since.elapsed().as_secs_f64();
        if self.config.trainer.seconds.is_some() { self.ranks.timed(own) } else { Ok(own) }
    }

    /// Begins to time iterations after the first ones of this process, which set up what the others use.
    pub(super) fn time(&mut self, began: u64) {
        if self.timed.is_none() && self.progress.iteration >= began + UNTIMED {
            self.timed = Some((self.progress.iteration, self.progress.seconds));
        }
    }

    /// The schedule of the rate. A run that the clock ends may be too short for its warming up, which then is a tenth of it.
    pub(super) fn schedule(&self) -> ScheduleConfig {
        let mut schedule = self.config.schedule.clone();
        if let (Some(_), Some(_), Some(total)) = (self.config.trainer.seconds, self.pace(), self.total()) {
            schedule.warm_up = schedule.warm_up.min((total / 10).max(UNTIMED));
        }
        schedule
    }

    /// Quarters of the time that are over; none where iterations are counted, a validation takes too much of the time, or the gain is estimated on the same
    /// images, which the best of several states would exceed by chance.
    pub(super) fn quarter(&self) -> u64 {
        let takes_long = |s: f64| self.costs.validation > KEPT_BACK * 2.0 * s;
        if self.data.errors_from().is_some() || self.config.trainer.seconds.is_some_and(takes_long) {
            return 0;
        }
        self.config.trainer.seconds.map_or(0, |s| (4.0 * self.progress.seconds / s) as u64).min(3)
    }

    /// Makes this iteration the last if there is no time for another.
    pub(super) fn end_in_time(&mut self, before: f64, clock: Instant) -> Result<()> {
        let (None, Some(limit)) = (self.progress.total, self.for_iterations()) else { return Ok(()) };
        if self.progress.seconds < (1.0 - NEAR_THE_END) * limit {
            return Ok(());
        }
        // A device runs asynchronously.
        self.working().engine.session().wait()?;
        let seconds = before + self.clocked(clock)?;
        let p = &mut self.progress;
        p.seconds = seconds;
        let each = self.pace().unwrap_or(seconds / self.progress.iteration.max(1) as f64);
        if seconds + 0.5 * each >= limit {
            self.progress.total = Some(self.progress.iteration);
        }
        Ok(())
    }
}
