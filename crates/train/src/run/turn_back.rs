//! Returning to an earlier checkpoint when training has diverged, to continue at half the learning rate.
//!
//! The guard has kept the weights from before the first refused iteration, but the cause is earlier. A run therefore
//! returns to an earlier checkpoint, or to its start, and repeats the same samples. Only checkpoints of regular iterations
//! count, so that interruptions of the run do not matter, and the chosen checkpoint is in place before the later ones are
//! removed.

use super::Run;
use super::iterate::base_rate;
use crate::checkpoint::{self, Progress, Saved};
use crate::error::{Result, TrainError};
use clearshot_nn::Weights;

impl Run<'_> {
    /// # Errors
    /// If it has gone back as often as it may, or a checkpoint cannot be read or removed.
    pub(super) fn turn_back(&mut self) -> Result<()> {
        let p = self.progress.clone();
        if p.returns >= self.config.trainer.returns {
            return Err(TrainError::Diverged {
                iteration: p.iteration,
                count: p.skipped_in_a_row,
                returns: p.returns,
                rate: base_rate(&self.config, &p),
            });
        }
        let found = if self.ranks.is_first() { self.last_sound() } else { Ok(None) };
        let sound = self.ranks.clone().share_saved(found)?;
        let (before, states) = match sound {
            Some(saved) => (saved.progress, Some(saved.states)),
            None => (Progress::default(), None),
        };
        self.waited += self.working().feed.waited.as_secs_f64();
        self.progress = Progress {
            total: p.total,
            batch: p.batch,
            ranks: p.ranks,
            // The best model is in its file whatever became of the run since.
            best: before.best.into_iter().chain(p.best).reduce(f64::max),
            seconds: p.seconds,
            returns: p.returns + 1,
            returned_to: Some(before.iteration),
            judged: p.judged,
            start: p.start,
            judged_at_start: p.judged_at_start.clone(),
            judged_at_best: if p.best > before.best {
                p.judged_at_best.clone()
            } else {
                before.judged_at_best.clone()
            },
            ..before
        };
        let rate = base_rate(&self.config, &self.progress);
        let values = [("from", p.iteration as f64), ("rate", rate)].map(|(n, v)| (n.to_string(), v));
        self.records.put("return", self.progress.iteration, &values)?;
        self.progress.records = self.records.position();
        self.begin(states)?;
        self.write_checkpoint()?;
        if self.ranks.is_first() {
            checkpoint::remove_after(&self.out, self.progress.iteration)?;
        }
        self.since = (self.progress.iteration, self.progress.seconds, self.waited);
        self.records.watch.note(&format!(
            "training had diverged at iteration {}: it restarts from iteration {} at half the rate, {rate:.1e}",
            p.iteration, self.progress.iteration
        ));
        Ok(())
    }

    /// The last timely checkpoint whose own iteration was not skipped. Where the run came from that one already and has got
    /// to none since, it was ruined itself, and the one before it is taken.
    fn last_sound(&mut self) -> Result<Option<Saved>> {
        let found = checkpoint::list(&self.out)?;
        for f in found.iter().rev().filter(|f| checkpoint::is_timely(&f.progress, &self.config.checkpoint)) {
            if self.progress.returned_to == Some(f.progress.iteration) {
                continue;
            }
            match checkpoint::read(&f.path) {
                Ok(saved) if skips(&saved.states) == 0.0 => return Ok(Some(saved)),
                Ok(_) => {}
                Err(e) => self.records.watch.note(&format!("a damaged checkpoint is ignored: {e}")),
            }
        }
        Ok(None)
    }
}

/// The iterations in a row, up to the checkpoint's, that were skipped.
fn skips(states: &Weights) -> f64 {
    states.get("record.skips").and_then(|t| t.to_f64().first().copied()).unwrap_or(0.0)
}
