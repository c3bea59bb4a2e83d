//! The end of a run of conditional diffusion: the best model learns what the spread of its samples is worth.

use super::{BEST, Run};
use crate::calibration::{calibrate, needless};
use crate::error::{Result, TrainError, advised};
use clearshot_model::Model;
use clearshot_restore::learned;
use clearshot_tensor::DType;
use std::sync::atomic::{AtomicBool, Ordering};

impl Run {
    /// Calibrates the best model, unless it is already, the task has no spread, or no images are to be spent on it.
    pub(super) fn calibrate(&mut self, stop: &AtomicBool) -> Result<()> {
        let (best, config) = (self.out.join(BEST), self.config.calibration.clone());
        if let Some(why) = needless(&self.config) {
            self.records.console.say(&format!("no spread is calibrated: {why}"));
            return Ok(());
        }
        if config.images == 0 {
            self.records.console.say("the spread of samples is not calibrated: calibration.images is 0");
            return Ok(());
        }
        if !best.is_file() {
            return Ok(());
        }
        let model = Model::load(&best)?;
        if model.about.spread.is_some() {
            return Ok(());
        }
        self.records.console.say(&format!("calibrating the spread of samples on {} images", config.images));
        let size = self.size(self.config.trainer.crop);
        let mut told = |_| match stop.load(Ordering::Relaxed) {
            true => Err(learned::Error::Stopped),
            false => Ok(()),
        };
        let (model, found) = match calibrate(model, &self.data, &[size], &config, self.device, &mut told) {
            Err(TrainError::Restore(learned::Error::Stopped)) => {
                self.records.console.say("interrupted: the spread is not calibrated; --resume does it");
                return Ok(());
            }
            made => made?,
        };
        let Some(found) = found else { return Ok(()) };
        model.save_file(&best, DType::F32).map_err(|e| advised(&best, e.into()))?;
        let values =
            [("before", found.before), ("after", found.after)].map(|(name, share)| (name.to_string(), share));
        self.records.put("calibration", self.progress.iteration, &values)?;
        self.records.console.say(&format!(
            "90 % intervals of its samples held {:.1} % of truths, and hold {:.1} % now (found on one half of the images, \
             counted on the other)",
            100.0 * found.before,
            100.0 * found.after,
        ));
        Ok(())
    }
}
