//! The record of the iterations since the last one.

use super::Run;
use super::iterate::base_rate;
use crate::error::{Result, TrainError};
use crate::gan;
use crate::schedule::rate;
use crate::watch::Status;

impl Run<'_> {
    /// Writes down what the iterations since the last record were like.
    pub(super) fn record(&mut self) -> Result<()> {
        let _recording = clearshot_timeline::span(clearshot_timeline::Phase::Recording);
        let (place, total, schedule) = (self.place(), self.total(), self.schedule());
        let work = self.work.as_mut().expect("a run has a stage from its beginning on");
        let p = &mut self.progress;
        let count = (p.iteration - p.recorded).max(1) * self.config.trainer.accumulate as u64;
        let number = |name: &str| Ok::<_, TrainError>(work.engine.number(name)?.unwrap_or(f64::NAN));
        let loss = number("record.loss")? / count as f64;
        let good = number("train.step")?;
        let norm = number("grad_norm")?;
        let terms = work.engine.terms()?;
        let of_rival = work.engine.number(&format!("{}grad_norm", gan::PREFIX))?;
        let skipped = (p.iteration as f64 - good).max(0.0) as u64;
        let refused = number("guard.refused")?;
        let fresh = skipped - p.skipped.min(skipped);
        p.skipped_in_a_row = number("record.skips")? as u64;
        p.skipped = skipped;
        let waited = self.waited + work.feed.waited.as_secs_f64();
        let seconds = p.seconds - self.since.1;
        let iterations = p.iteration - self.since.0;
        let per_second = (p.iteration - self.since.0) as f64 / seconds.max(1e-9);
        let waiting = ((waited - self.since.2) / seconds.max(1e-9)).min(1.0);
        self.since = (p.iteration, p.seconds, waited);
        let rate = base_rate(&self.config, p) * rate(&schedule, &self.config.trainer.growth, &place);
        let mut values = vec![
            ("loss".to_string(), loss),
            ("rate".to_string(), rate),
            ("grad_norm".to_string(), norm),
            ("images".to_string(), p.images as f64),
            ("seconds".to_string(), p.seconds),
            ("images_per_second".to_string(), per_second * work.images as f64),
            ("waiting".to_string(), waiting),
            ("skipped".to_string(), skipped as f64),
        ];
        let over_ranks = self.over_ranks(seconds, iterations)?;
        values.extend(over_ranks);
        let work = self.work.as_mut().expect("a run has a stage from its beginning on");
        let p = &mut self.progress;
        // Of those that were skipped, the ones with finite gradients.
        values.extend((!refused.is_nan()).then(|| ("refused".to_string(), refused)));
        values.extend(terms);
        values.extend(of_rival.map(|norm| ("discriminator_grad_norm".to_string(), norm)));
        p.recorded = p.iteration;
        work.engine.clear_loss()?;
        self.records.put("train", p.iteration, &values)?;
        p.records = self.records.position();
        let stage = match self.stages.len() {
            1 => String::new(),
            n => format!("stage {} of {n}, ", p.stage + 1),
        };
        self.records.watch.status(&Status {
            name: self.config.name.clone(),
            iteration: p.iteration,
            total,
            loss,
            rate,
            images_per_second: per_second * work.images as f64,
            seconds_left: total.map(|t| (t - p.iteration.min(t)) as f64 / per_second.max(1e-9)),
            waiting,
            stage,
            score: p.stage_best.and(self.last_full),
            best: p.best,
            score_kind: self.task.kind.score(),
            skipped,
        });
        if fresh > 0 {
            let text = format!(
                "{fresh} iterations were skipped: gradients were not finite, or far from what they had been"
            );
            self.records.watch.note(&text);
        }
        Ok(())
    }
}
