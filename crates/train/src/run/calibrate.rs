//! The end of a run of conditional diffusion: the uncertainty of the best model is calibrated.

use super::{BEST, Run};
use crate::calibration::{LEAST_IMAGES, Within, calibrate_within, needless};
use crate::error::{Result, advised};
use crate::records::console::duration;
use clearshot_model::Model;
use clearshot_tensor::DType;
use std::sync::atomic::AtomicBool;

/// Seconds that a calibration may take however short the training was: to set up what restores.
const ALWAYS: f64 = 5.0;

impl Run<'_> {
    /// Calibrates the best model, unless it is already, the task has no spread, no images are to be spent on it, or it would take longer than
    /// training did.
    pub(super) fn calibrate(&mut self, stop: &AtomicBool) -> Result<()> {
        let most = self.progress.seconds.max(ALWAYS);
        let (best, config) = (self.out.join(BEST), self.config.calibration.clone());
        if let Some(why) = needless(&self.config) {
            self.records.watch.note(&format!("no uncertainty is calibrated: {why}"));
            return Ok(());
        }
        if config.images == 0 {
            self.records.watch.note("the uncertainty of samples is not calibrated: calibration.images is 0");
            return Ok(());
        }
        if !best.is_file() || Model::load(&best)?.about.spread.is_some() {
            return Ok(());
        }
        let size = self.size(self.config.trainer.crop);
        let load = || Ok(Model::load(&best)?);
        let watch = &mut *self.records.watch;
        let (model, found) = match calibrate_within(
            most,
            &load,
            &self.data,
            &size,
            &config,
            self.device,
            stop,
            watch,
        )? {
            Within::Made(model, found) => (model, found),
            Within::Nothing => return Ok(()),
            Within::Interrupted => {
                watch.note("interrupted: the uncertainty is not calibrated; --resume does it");
                return Ok(());
            }
            Within::TooLong(seconds) => {
                watch.note(&format!(
                    "the uncertainty of samples is not calibrated: {LEAST_IMAGES} images would take {} or more, longer than training did; \
                         `clearshot calibrate {}` does it",
                    duration(seconds),
                    best.display(),
                ));
                return Ok(());
            }
        };
        model.save_file(&best, DType::F32).map_err(|e| advised(&best, e.into()))?;
        let values =
            [("before", found.before), ("after", found.after)].map(|(name, share)| (name.to_string(), share));
        self.records.put("calibration", self.progress.iteration, &values)?;
        self.records.watch.note(&format!(
            "90 % intervals of its samples contained the truth {:.1} % of the time before calibration and {:.1} % after it (fitted on one half of the \
             images, measured on the other)",
            100.0 * found.before,
            100.0 * found.after,
        ));
        Ok(())
    }
}
