//! Trains models: from a configuration, given as overrides or as a file, to a folder with a model.

use crate::error::{Error, Result};
use crate::observer::{Event, Observer};
use clearshot_train::distributed::Ranks;
use clearshot_train::elsewhere::understand;
use clearshot_train::run::{BEST, CONFIG};
use clearshot_train::{Ending, Run, RunConfig, Status, Summary, Watch, presets};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Settings of a training run.
///
/// ```
/// use clearshot::TrainSettings;
/// let settings = TrainSettings {
///     overrides: vec!["experiment=supervised".into(), "trainer.seconds=300".into()],
///     out: Some("runs/nuclei".into()),
///     ..TrainSettings::default()
/// };
/// assert!(settings.config().is_ok());
/// ```
#[derive(Clone, Debug, Default)]
pub struct TrainSettings {
    /// The configuration: `experiment=NAME`, `GROUP=OPTION`, `KEY=VALUE` or the path of a YAML file, one after another;
    /// later ones take precedence.
    pub overrides: Vec<String>,
    /// The folder of the run. Default: the name of the model in `runs`.
    pub out: Option<PathBuf>,
    /// Resumes the run in `out` with its own configuration and the overrides.
    pub resume: bool,
    /// A folder of configuration groups that take precedence over the built-in ones.
    pub configs: Option<PathBuf>,
    /// Stops after this many iterations in total; the run can be resumed later.
    pub stop_at: Option<u64>,
}

/// The result of a training run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TrainReport {
    /// The run's folder: configuration, checkpoints, records.
    pub folder: PathBuf,
    /// The model with the best validation score, if there was a validation.
    pub model: Option<PathBuf>,
    /// Iterations, times and scores.
    pub summary: Summary,
}

impl TrainReport {
    /// Whether it ended early, because the observer stopped it or `stop_at` was reached.
    pub fn is_interrupted(&self) -> bool {
        self.summary.ending == Ending::Interrupted
    }
}

impl TrainSettings {
    /// The configuration with every default filled in.
    ///
    /// # Errors
    /// Names the invalid key or file.
    pub fn config(&self) -> Result<RunConfig> {
        if self.resume {
            let Some(out) = &self.out else {
                return Err(Error::setting("resume", "the folder of the run is needed: out"));
            };
            let file = out.join(CONFIG);
            if !file.is_file() {
                let why = format!("no run to resume: there is no {CONFIG} in it");
                return Err(Error::Refused(format!("{}: {why}", out.display())));
            }
            return Ok(presets::read_again(&file, &self.overrides)?);
        }
        if self.overrides.is_empty() {
            let known = presets::groups(None)?.options("experiment").join(", ");
            return Err(Error::Refused(format!(
                "no experiment is given; choose one with experiment=NAME: {known}"
            )));
        }
        Ok(presets::read(self.configs.as_deref(), &self.overrides)?)
    }
}

/// Trains a model, or resumes a run; as one of several processes, if torchrun, srun or mpiexec started this one. The observer
/// receives every iteration ([`Observer::progress`]; the total is 0 while it is unknown) and [`Event::Training`],
/// [`Event::Note`], [`Event::Warning`] and [`Event::Record`]. If it returns `Break`, a checkpoint is written and the
/// report is marked as interrupted.
///
/// # Errors
/// If the configuration is invalid, the folder cannot be written to or contains another run, samples cannot be made, or
/// training diverges.
pub fn train(settings: &TrainSettings, observer: &mut dyn Observer) -> Result<TrainReport> {
    let config = settings.config()?;
    let out = settings.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(&config.name));
    let mut heard = Heard { observer, folder: out.clone(), stopped: false };
    for note in understand(&settings.overrides)?.notes {
        heard.event(&Event::Note(&note));
    }
    let ranks = Ranks::join(&config)?;
    let mut run = open_among(&ranks, config, &out, settings.resume, &mut heard)?;
    let summary = run.train(&AtomicBool::new(false), settings.stop_at)?;
    drop(run);
    ranks.finish()?;
    Ok(TrainReport { model: Some(out.join(BEST)).filter(|p| p.exists()), folder: out, summary })
}

/// A run that says what it found before it begins.
pub(crate) fn open<'w>(
    config: RunConfig,
    out: &Path,
    resume: bool,
    heard: &'w mut Heard<'_>,
) -> Result<Run<'w>> {
    open_among(&Ranks::alone(), config, out, resume, heard)
}

fn open_among<'w>(
    ranks: &Ranks,
    config: RunConfig,
    out: &Path,
    resume: bool,
    heard: &'w mut Heard<'_>,
) -> Result<Run<'w>> {
    let watch: Box<dyn Watch + 'w> = Box::new(heard);
    let mut run = Run::open_among(ranks, config, out, resume, watch)?;
    run.introduce();
    Ok(run)
}

/// An observer as a run's [`Watch`].
pub(crate) struct Heard<'o> {
    pub observer: &'o mut dyn Observer,
    pub folder: PathBuf,
    /// Whether the observer requested a stop where a run cannot stop; it stops at its next iteration.
    pub stopped: bool,
}

impl Heard<'_> {
    fn event(&mut self, event: &Event<'_>) {
        self.stopped |= self.observer.event(&self.folder, event).is_break();
    }
}

impl Watch for &mut Heard<'_> {
    fn progress(&mut self, done: u64, total: Option<u64>) -> ControlFlow<()> {
        let flow = self.observer.progress(done as usize, total.unwrap_or(0) as usize);
        if self.stopped { ControlFlow::Break(()) } else { flow }
    }

    fn status(&mut self, status: &Status) {
        self.event(&Event::Training(status));
    }

    fn note(&mut self, text: &str) {
        self.event(&Event::Note(text));
    }

    fn warning(&mut self, text: &str) {
        self.event(&Event::Warning(text));
    }

    fn record(&mut self, record: &Value) {
        self.event(&Event::Record(record));
    }
}
