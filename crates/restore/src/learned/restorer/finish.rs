//! Converts the network's output to file values, with standard deviation and chi2.

use super::Restorer;
use super::beyond::{is_bright, weigh};
use crate::learned::choice::{Candidate, Choice};
use crate::learned::correct::GuideStep;
use crate::learned::field::Field;
use crate::learned::measured::{Camera, Measured};
use crate::learned::question::ImageScale;
use crate::learned::{Error, moments};
use clearshot_model::spread::Light;
use clearshot_model::{Familiar, Photons, Signal, SpreadFactor};
use clearshot_physics::{Boundary, Operator};
use rayon::prelude::*;

/// A restored image, in the unit of its file, channels last.
pub struct Restored {
    pub image: Field,
    /// The standard deviation of the posterior about the image, if the network predicts it or there are two samples or
    /// more; see [`Restorer::spread`].
    pub deviation: Option<Field>,
    /// The local mean of squared normalised residuals.
    pub chi2: Option<Field>,
    /// Its mean over the image, if there is a camera.
    pub mean_chi2: Option<f64>,
    pub samples: Vec<Field>,
    /// The scale of the image for the network.
    pub photons: Option<Photons>,
    /// The guidance corrections, if [`Settings::trace`] is set.
    pub guided: Vec<GuideStep>,
}

impl ImageScale {
    /// What the camera has where an image in the file's unit is so bright; not known without one.
    pub(in crate::learned) fn light(&self, value: f32) -> Option<Light> {
        let (camera, photons) = (self.camera.as_ref()?, self.photons.as_ref()?);
        let electrons = f64::from(camera.electrons(value));
        let noise = f64::from(moments::noise(electrons as f32, camera.read_noise as f32));
        Some(Light { signal: (electrons - photons.background) / camera.gain, noise: noise / camera.gain })
    }
}

impl Restorer {
    /// From the network's numbers to the file's, with what the residuals say.
    pub(super) fn finish(
        &self,
        measured: &Measured,
        scale: &ImageScale,
        mut image: Field,
        mut deviation: Option<Field>,
        mut samples: Vec<Field>,
        share: Option<&Field>,
    ) -> Result<Restored, Error> {
        let [at_zero, per_unit] = scale.file;
        for field in [&mut image].into_iter().chain(&mut samples) {
            field.iter_mut().for_each(|v| *v = (at_zero + per_unit * f64::from(*v)) as f32);
        }
        if let Some(field) = &mut deviation {
            // It was found without guidance, under which samples are others.
            let factor = self.model.about.spread.as_ref().filter(|_| self.guidance.is_none() && !self.error);
            if factor.is_some_and(SpreadFactor::is_of_pooled) {
                let mut pooled = self.scratch.field(field.len())?;
                moments::pooled(field, &measured.size, self.model.about.channels, &mut pooled);
                *field = pooled;
            }
            field.par_iter_mut().zip(image.par_iter()).for_each(|(v, &mean)| {
                let spread = per_unit.abs() * f64::from(*v);
                *v = (spread * factor.map_or(1.0, |f| f.at(spread, scale.light(mean)))) as f32;
            });
        }
        if let Some(share) = share {
            weigh(measured, scale, share, &mut image, deviation.as_mut(), &mut samples);
        }
        // Behind a blur a saturated pixel may have its light from its neighbours.
        if self.settings.psf.is_none() && measured.channels == self.model.about.channels {
            measured.raise(&mut image);
        }
        let camera = scale.camera.as_ref();
        let (chi2, mean_chi2) = self.residuals(measured, camera, &image, deviation.as_ref())?;
        let (photons, guided) = (scale.photons, Vec::new());
        Ok(Restored { image, deviation, chi2, mean_chi2, samples, photons, guided })
    }

    /// An image that is restored without the network, according to a choice, with its residual statistics.
    ///
    /// # Errors
    /// If a restorer fails, or there is not enough memory or disk space.
    pub fn restore_without(
        &self,
        measured: &Measured,
        choice: &Choice,
        camera: Option<&Camera>,
    ) -> Result<Restored, Error> {
        let mut image = self.scratch.field(measured.values.len())?;
        image.copy_from_slice(&measured.values);
        let (samples, guided) = (Vec::new(), Vec::new());
        let mut made =
            Restored { image, deviation: None, chi2: None, mean_chi2: None, samples, photons: None, guided };
        choice.apply_at(measured, &camera.copied().unwrap_or_default(), &mut made, self.wanted.as_deref())?;
        // The measurement itself leaves nothing over, and a share of it takes that share of what the rest leaves.
        let left = 1.0 - choice.weight(Candidate::Raw.name());
        if left > 0.0 {
            (made.chi2, made.mean_chi2) = self.residuals(measured, camera, &made.image, None)?;
            made.mean_chi2 = made.mean_chi2.map(|c| c / (left * left));
        }
        Ok(made)
    }

    /// Computes chi2 of an image that was restored by other means, in place of what it has.
    ///
    /// # Errors
    /// If there is not enough memory or disk space.
    pub fn set_residuals(
        &self,
        measured: &Measured,
        camera: Option<&Camera>,
        restored: &mut Restored,
    ) -> Result<(), Error> {
        (restored.chi2, restored.mean_chi2) =
            self.residuals(measured, camera, &restored.image, restored.deviation.as_ref())?;
        Ok(())
    }

    /// The map and the mean of squared normalised residuals, where the settings and the camera allow.
    fn residuals(
        &self,
        measured: &Measured,
        camera: Option<&Camera>,
        image: &Field,
        deviation: Option<&Field>,
    ) -> Result<(Option<Field>, Option<f64>), Error> {
        let (mut map, mut mean_chi2) = (None, None);
        if let (true, Some(camera)) = (self.settings.chi2, camera) {
            let mut mean = self.scratch.field(image.len())?;
            mean.iter_mut().zip(image.iter()).for_each(|(m, &v)| *m = camera.electrons(v));
            if let Some(psf) = &self.settings.psf {
                let operator = Operator::blur(&measured.size[..], psf, Boundary::Reflect)?;
                for c in 0..measured.channels {
                    let plane: Vec<f32> = mean.iter().skip(c).step_by(measured.channels).copied().collect();
                    let seen = operator.apply(&plane)?;
                    mean.iter_mut().skip(c).step_by(measured.channels).zip(seen).for_each(|(m, v)| *m = v);
                }
            }
            let mut y = self.scratch.field(image.len())?;
            y.iter_mut().zip(measured.values.iter()).for_each(|(y, &v)| *y = camera.electrons(v));
            // What a blur leaves of a pixel's deviation is not known.
            let spread = deviation.filter(|_| self.settings.psf.is_none());
            let spread: Option<Vec<f32>> = spread.map(|d| d.iter().map(|v| v * camera.gain as f32).collect());
            let (field, all) = moments::chi2(
                &y,
                &mean,
                spread.as_deref(),
                measured.valid.as_deref(),
                camera.read_noise as f32,
                &measured.size,
                measured.channels,
                &self.scratch,
            )?;
            (map, mean_chi2) = (Some(field), all);
        } else if let (None, Some(camera)) = (&self.settings.psf, camera)
            && measured.channels == self.model.about.channels
        {
            mean_chi2 = moments::mean_chi2(measured, image, deviation.map(|d| &d[..]), camera);
        }
        Ok((map, mean_chi2))
    }

    pub(super) fn scale(&self, image: &Measured, camera: Option<&Camera>) -> Result<ImageScale, Error> {
        match (&self.model.about.signal, camera) {
            (Signal::Photons, None) => Err(Error::NoCamera { what: "this model" }),
            (Signal::Photons, Some(camera)) => {
                let photons = image.photons(camera)?;
                let counts = |x: f64| photons.electrons(x) / camera.gain + camera.offset;
                let file = [counts(0.0), counts(1.0) - counts(0.0)];
                let seen = Some(self.within_range(camera, &photons)?);
                let weighed = is_bright(image, camera, &photons, self.brightest());
                Ok(ImageScale { camera: Some(*camera), photons: Some(photons), seen, weighed, file })
            }
            (Signal::Fixed { input, target }, camera) => {
                let of = target.as_ref().unwrap_or(input);
                let file = [0.5 * (of.low + of.high), 0.5 * (of.high - of.low)];
                Ok(ImageScale { camera: camera.copied(), photons: None, seen: None, weighed: false, file })
            }
        }
    }

    /// The most light that the model was trained on, at an image's bright end; infinite where it does not say.
    fn brightest(&self) -> f64 {
        self.model.about.familiar.as_ref().map_or(f64::INFINITY, Familiar::brightest)
    }

    /// The camera and scale under which the network sees an image. One with more light than it was trained on is shown as if
    /// it had the most of that: with more noise than there is, rather than with light that the network knows nothing of.
    fn within_range(&self, camera: &Camera, photons: &Photons) -> Result<(Camera, Photons), Error> {
        let share = (self.brightest() / photons.peak).min(1.0);
        let seen = Camera { gain: share * camera.gain, read_noise: share * camera.read_noise, ..*camera };
        let Photons { background, read_noise, peak, correlation } = *photons;
        let scaled = Photons::new(share * background, share * read_noise, share * peak)?;
        Ok((seen, scaled.with_correlation(correlation)))
    }
}
