//! Observers of a run, which can also stop it.

use crate::config::ScoreKind;
use serde_json::Value;
use std::ops::ControlFlow;

/// Hears of a run. `()` hears nothing; `records::console::Console` shows it on a terminal.
pub trait Watch {
    /// So many iterations (or, at the end, images of the calibration) are done, of so many as far as that is known. `Break` ends the run as an interruption
    /// does: with a checkpoint from which it can be resumed.
    fn progress(&mut self, done: u64, total: Option<u64>) -> ControlFlow<()> {
        let _ = (done, total);
        ControlFlow::Continue(())
    }

    /// How training goes, at every record of it.
    fn status(&mut self, status: &Status) {
        let _ = status;
    }

    /// Something that happens once, in words.
    fn note(&mut self, text: &str) {
        let _ = text;
    }

    /// A warning about the data or the checkpoints.
    fn warning(&mut self, text: &str) {
        let _ = text;
    }

    /// A line of the records, as it was written.
    fn record(&mut self, record: &Value) {
        let _ = record;
    }
}

impl Watch for () {}

/// How training goes.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The run's name.
    pub name: String,
    /// Iterations that are done.
    pub iteration: u64,
    /// Iterations in total, if known.
    pub total: Option<u64>,
    /// The mean loss since the last record.
    pub loss: f64,
    /// The learning rate.
    pub rate: f64,
    /// Images trained on per second.
    pub images_per_second: f64,
    /// Seconds until the end, as far as the total is known.
    pub seconds_left: Option<f64>,
    /// The share of the time that was spent waiting for samples.
    pub waiting: f64,
    /// Which stage of growing crops it is in, in words; empty where there is one.
    pub stage: String,
    /// Score of the last whole validation.
    pub score: Option<f64>,
    /// Score of the best validation.
    pub best: Option<f64>,
    /// The kind of score.
    pub score_kind: ScoreKind,
    /// Iterations that changed nothing.
    pub skipped: u64,
}
