//! The contents of a run's folder: configuration and settings, checkpoints, the best model, and the lock against other
//! processes.

use super::applied::Applied;
use super::init::init_model;
use super::{BEST, CONFIG, Run, SETTINGS};
use crate::checkpoint;
use crate::config::RunConfig;
use crate::data::familiar;
use crate::error::{Result, TrainError, advised, io};
use crate::errors;
use crate::presets;
use crate::records::RECORDS;
use crate::task;
use clearshot_model::{About, Familiar, Model};
use clearshot_tensor::DType;
use clearshot_timeline::{Phase, span};
use serde_json::{Value as Json, json};
use std::fs::File;
use std::path::Path;
use std::time::Instant;

/// Images of each kind that a model's idea of its training images comes from.
const KNOWN_OF_A_KIND: usize = 100;

impl Run<'_> {
    /// The averaged weights with all that a model says of itself.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn model(&self) -> Result<Model> {
        let work = self.working();
        let p = &self.progress;
        let mut keys = work.keys.clone();
        if self.is_growing() && self.alpha() >= 1.0 {
            // The way from and to the stage below is out of use.
            keys.insert("blend".into(), false.into());
        }
        let text = format!("{:#}", Json::from(keys));
        let task = task::about(&self.config.task);
        let weights = work.engine.weights(&*work.network)?;
        if let Some(about) = self.known_but_for_the_error()? {
            return Ok(Model::new(about, text, weights)?);
        }
        let about = About {
            training: json!({
                "iterations": p.iteration, "images": p.images, "seconds": p.seconds, "seed": self.config.seed,
                "files": p.files, "config": self.config,
            }),
            scores: json!({ (format!("validation_{}", self.task.kind.score().name())): p.score }),
            familiar: self.familiar()?,
            inputs: Some(work.inputs).filter(|n| *n != work.channels),
            names: work.names.clone(),
            conditioning: self.task.conditioned.as_ref().map(|c| c.about.clone()),
            ..About::new(&self.config.name, task, work.signal.clone(), work.channels, &work.size)
        };
        Ok(Model::new(about, text, weights)?)
    }

    /// Where the error alone is learned, what the model that the run began from says of itself, with what was learned since.
    fn known_but_for_the_error(&self) -> Result<Option<About>> {
        if !errors::is_all(&self.config.model.only) {
            return Ok(None);
        }
        let Some(Model { mut about, .. }) = init_model(&self.config)? else { return Ok(None) };
        let p = &self.progress;
        let own = json!({
            "iterations": p.iteration, "images": p.images, "seconds": p.seconds, "seed": self.config.seed,
            "config": self.config,
        });
        match &mut about.training {
            Json::Object(training) => _ = training.insert("error".into(), own),
            training => *training = json!({ "error": own }),
        }
        Ok(Some(about))
    }

    /// Statistics of the training images, at the size of the last stage.
    pub(super) fn familiar(&self) -> Result<Option<Familiar>> {
        if let Some(known) = self.familiar.get() {
            return Ok(known.clone());
        }
        let size = self.size(self.config.trainer.crop);
        // A model that is fitted to noisy images still knows what it knew: restoring goes by the most light that it was trained on.
        let known = match self.task.kind.is_of_noise() {
            true => init_model(&self.config)?.and_then(|model| model.about.familiar),
            false => None,
        };
        let found = match known {
            Some(known) => Some(known),
            None => familiar(&self.data, &size, KNOWN_OF_A_KIND)?,
        };
        Ok(self.familiar.get_or_init(|| found).clone())
    }

    /// Writes a checkpoint, if there is none of this iteration, and removes those that need not be kept.
    pub(super) fn save(&mut self) -> Result<()> {
        let _saving = span(Phase::Saving);
        let i = self.progress.iteration;
        if self.saved_at == Some(i) {
            return Ok(());
        }
        let start = Instant::now();
        // The best model comes first: a run killed between the two resumes from before it and writes it again.
        let is_best = self.progress.score.is_some() && self.progress.score == self.progress.best;
        if is_best && self.ranks.is_first() {
            let best = self.out.join(BEST);
            self.model()?.save_file(&best, DType::F32).map_err(|e| advised(&best, e.into()))?;
        }
        self.write_checkpoint()?;
        self.costs.checkpoint = self.clocked(start)?;
        if self.ranks.is_first() { checkpoint::prune(&self.out, &self.config.checkpoint) } else { Ok(()) }
    }

    pub(super) fn write_checkpoint(&mut self) -> Result<()> {
        let states = self.working().engine.states()?;
        self.saved_at = Some(self.progress.iteration);
        if !self.ranks.is_first() {
            return Ok(());
        }
        let model = self.model()?;
        checkpoint::write(&self.out, &self.config, &self.progress, &states, |to| Ok(model.save_folder(to)?))?;
        Ok(())
    }
}

/// The run's own lock, which ends with the process however it ends.
pub(super) fn lock(out: &Path) -> Result<File> {
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

/// Refuses a folder where a run was begun that came to no checkpoint: its records are not written over.
pub(super) fn refuse_begun(out: &Path) -> Result<()> {
    match [RECORDS, CONFIG].map(|name| out.join(name)).into_iter().find(|path| path.exists()) {
        Some(path) => {
            let reason =
                "a run was started here already; choose another --out, or move the file away".to_string();
            Err(TrainError::Checkpoint { path, reason })
        }
        None => Ok(()),
    }
}

/// The configuration as it was resolved.
pub(super) fn write_config(config: &RunConfig, out: &Path) -> Result<()> {
    let path = out.join(CONFIG);
    clearshot_tensor::store::write_whole(&path, presets::yaml(config).as_bytes()).map_err(io(&path))
}

/// The settings in effect.
pub(super) fn write_settings(out: &Path, settings: &[Applied]) -> Result<()> {
    let path = out.join(SETTINGS);
    let text = format!("{:#}\n", serde_json::to_value(settings).unwrap_or_default());
    clearshot_tensor::store::write_whole(&path, text.as_bytes()).map_err(io(&path))
}
