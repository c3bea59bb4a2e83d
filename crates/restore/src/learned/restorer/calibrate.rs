//! Calibrates the spread of a model's samples on images whose truth is known.

use super::Restorer;
use crate::learned::measured::{Camera, Measured};
use crate::learned::{Error, moments};
use clearshot_model::spread::Known;
use clearshot_model::{Context, SpreadFactor};

/// A measurement with its truth, both in the unit of the file, channels last.
pub struct Example {
    pub measured: Measured,
    pub truth: Vec<f32>,
    pub camera: Option<Camera>,
    /// For models that are conditioned on them.
    pub class: Option<usize>,
    pub context: Option<Context>,
}

/// The result of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibrated {
    pub factor: SpreadFactor,
    /// The coverage of 90 % intervals of the uncalibrated spread, as a mean over images.
    pub before: f64,
    /// The same with a factor that was fitted on the other half of the images.
    pub after: f64,
}

impl Restorer {
    /// Restores images whose truth is known and fits the factor with which 90 % intervals contain the truth 90 % of the
    /// time. An existing calibration of the model is ignored. `told` receives the number of finished images after every
    /// run of the graph. `None` if there is no spread or no image.
    ///
    /// # Errors
    /// As [`Restorer::restore`], or the error of `told`.
    pub fn calibrate(
        &mut self,
        examples: &[Example],
        told: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Option<Calibrated>, Error> {
        let Some(spread) = self.spread() else { return Ok(None) };
        let said = self.model.about.spread.take();
        let known = self.known(examples, told);
        self.model.about.spread = said;
        let (known, reach) = (known?, spread.reach());
        let inside = |p: &Known, factor: Option<&SpreadFactor>| {
            p.error <= reach * p.spread * factor.map_or(1.0, |f| f.at(p.spread, p.light))
        };
        let held = |image: &Vec<Known>, factor: Option<&SpreadFactor>| {
            image.iter().filter(|p| inside(p, factor)).count() as f64 / image.len().max(1) as f64
        };
        let Some(factor) = SpreadFactor::of(&known, reach) else { return Ok(None) };
        let of_half =
            |odd: usize| -> Vec<Vec<Known>> { known.iter().skip(odd).step_by(2).cloned().collect() };
        let halves = [1, 0].map(|odd| SpreadFactor::of(&of_half(odd), reach));
        let mean = |of: &dyn Fn(usize) -> f64| (0..known.len()).map(of).sum::<f64>() / known.len() as f64;
        let before = mean(&|i| held(&known[i], None));
        let after = mean(&|i| held(&known[i], halves[i % 2].as_ref()));
        Ok(Some(Calibrated { factor, before, after }))
    }

    /// The pixels of images with what they came to.
    fn known(
        &mut self,
        examples: &[Example],
        told: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Vec<Vec<Known>>, Error> {
        let mut all = Vec::new();
        for (i, Example { measured, truth, camera, class, context }) in examples.iter().enumerate() {
            if !self.conditions.is_empty() {
                self.tell(*class, context.clone());
            }
            let image = std::slice::from_ref(measured);
            let made = self.restore(image, &[i as u64], camera.as_ref(), &mut || told(i))?;
            let scale = self.scale(measured, camera.as_ref())?;
            for restored in made {
                let Some(mut deviation) = restored.deviation else { continue };
                if scale.photons.is_some() {
                    let mut pooled = self.scratch.field(deviation.len())?;
                    moments::pooled(&deviation, &measured.size, measured.channels, &mut pooled);
                    deviation = pooled;
                }
                let pixels = truth.iter().zip(restored.image.iter()).zip(deviation.iter());
                let pixel = |((&truth, &mean), &spread): ((&f32, &f32), &f32)| Known {
                    spread: f64::from(spread),
                    light: scale.light(mean),
                    error: f64::from((truth - mean).abs()),
                };
                all.push(pixels.map(pixel).collect());
            }
            told(i + 1)?;
        }
        Ok(all)
    }
}
