//! The end of a run of conditional diffusion: the best model learns what the spread of its samples is worth.

use super::{BEST, Run};
use crate::calibration::{calibrate, needless};
use crate::config::CalibrationConfig;
use crate::error::{Result, TrainError, advised};
use crate::records::console::duration;
use clearshot_model::Model;
use clearshot_restore::learned;
use clearshot_tensor::DType;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Seconds that a calibration may take however short the training was.
const ALWAYS: f64 = 60.0;
/// Images that a calibration needs, and seconds from one word about its progress to the next.
const LEAST_IMAGES: usize = 8;
const SAID_EVERY: f64 = 5.0;

impl Run {
    /// Calibrates the best model, unless it is already, the task has no spread, no images are to be spent on it, or it would take longer than
    /// training did and more than a minute.
    pub(super) fn calibrate(&mut self, stop: &AtomicBool) -> Result<()> {
        let most = self.progress.seconds.max(ALWAYS);
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
        let size = self.size(self.config.trainer.crop);
        let mut images = config.images;
        let (model, found) = loop {
            self.records.console.say(&format!("calibrating the spread of samples on {images} images"));
            let config = CalibrationConfig { images, ..config.clone() };
            let (begun, mut each, mut said) = (Instant::now(), 0.0, 0.0);
            let console = &mut self.records.console;
            let mut told = |done: usize| {
                let spent = begun.elapsed().as_secs_f64();
                each = spent / done.max(1) as f64;
                if done > 0 && spent > said + SAID_EVERY {
                    said = spent;
                    let left = each * (images - done) as f64;
                    console.say(&format!("calibrating: {done} of {images} images, {} left", duration(left)));
                }
                // What the first image takes says whether there is time for all.
                let too_long = match done {
                    0 => each * LEAST_IMAGES as f64 > most,
                    1 => each * images as f64 > most && images > LEAST_IMAGES,
                    _ => false,
                };
                match stop.load(Ordering::Relaxed) || too_long {
                    true => Err(learned::Error::Stopped),
                    false => Ok(()),
                }
            };
            let model = Model::load(&best)?;
            let made =
                calibrate(model, &self.data, std::slice::from_ref(&size), &config, self.device, &mut told);
            match made {
                Err(TrainError::Restore(learned::Error::Stopped)) if stop.load(Ordering::Relaxed) => {
                    self.records.console.say("interrupted: the spread is not calibrated; --resume does it");
                    return Ok(());
                }
                Err(TrainError::Restore(learned::Error::Stopped)) => {
                    images = (most / each) as usize / 2 * 2;
                    if images < LEAST_IMAGES {
                        self.records.console.say(&format!(
                            "the spread of samples is not calibrated: {LEAST_IMAGES} images would take {} or more, longer than training did and than a minute; \
                             `clearshot calibrate {}` does it",
                            duration(each * LEAST_IMAGES as f64),
                            best.display(),
                        ));
                        return Ok(());
                    }
                }
                made => break made?,
            }
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
