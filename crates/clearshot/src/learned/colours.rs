//! Colour images with a model: the three samples of a pixel are restored together, as brightness and two colour
//! differences (`restore/learned/colours`), each with a camera and a choice of the method of its own.

use super::decide::Progress;
use super::image::Work;
use super::series::Series;
use crate::error::{Error, Result};
use crate::notice::Notice;
use crate::observer::{Ear, Event};
use crate::report::ColourPart;
use clearshot_image::Axis;
use clearshot_model::Signal;
use clearshot_restore::learned::colours::{Colours, SAMPLES};
use clearshot_restore::learned::{
    Camera, Candidate, Choice, Error as EngineError, Measured, Restored, Restorer, choice,
};

/// The names of the combinations in records.
const NAMES: [&str; SAMPLES] = ["brightness", "red-blue", "green-magenta"];

/// The combinations of an image's samples, and what restores each.
pub struct Joint {
    colours: Colours,
    choices: [Option<Choice>; SAMPLES],
}

impl Work<'_> {
    /// The number of parts that are restored together: the samples of a colour image, if the result is one evaluation
    /// of the model or BM3D, otherwise 1. Movies and stacks whose frames are averaged are restored sample by sample.
    ///
    /// # Errors
    /// If such an image is divided among jobs.
    pub fn joint(&self, restorer: &Restorer) -> Result<usize> {
        let (settings, about) = (restorer.settings(), &restorer.model().about);
        let is_colour = self.image.description.dim(Axis::S).is_some_and(|s| matches!(s.len, 3 | 4));
        let single = self.parts.channels == 1 && about.channels == 1 && about.input_channels() == 1;
        let suits = single && about.signal == Signal::Photons && self.background.is_none();
        let by = matches!(self.settings.only, None | Some(Candidate::Model | Candidate::Bm3d));
        let at_once = settings.samples == 0 && settings.psf.is_none() && restorer.guidance().is_none();
        let wanted = !self.settings.colours_alone && self.camera.is_some_and(|c| c.background.is_none());
        if !(is_colour && suits && by && at_once && wanted) || Series::of(self, restorer).is_some() {
            return Ok(1);
        }
        match self.to.run() {
            None => Ok(SAMPLES),
            Some(_) => Err(Error::Refused(
                "the colours of a pixel are restored together, which jobs with a part of the image cannot; restore each separately (--colours-alone), or leave --part out".into(),
            )),
        }
    }

    /// The combinations of the middle samples, with the choice of the method for each; `None` if their noise cannot be
    /// estimated, so that each sample is restored by itself.
    pub(super) fn colours(
        &self,
        restorer: &mut Restorer,
        progress: &mut Progress,
        ear: &mut Ear<'_>,
    ) -> Result<Option<Joint>> {
        let Some(noise) = self.sample_noise else { return Ok(None) };
        let middle = self.parts.all.len() / SAMPLES / 2 * SAMPLES;
        let read = |i: usize| self.measured(&self.parts.all[middle + i], restorer);
        let measured = [read(0)?, read(1)?, read(2)?];
        let scratch = restorer.scratch();
        let Some(colours) = Colours::of(measured.each_ref(), noise, scratch)? else { return Ok(None) };
        let combined = colours.combine(measured.each_ref(), scratch)?;
        drop(measured);
        let mut choices = [const { None }; SAMPLES];
        for ((choice, image), camera) in choices.iter_mut().zip(&combined).zip(&colours.cameras) {
            let _choosing = clearshot_timeline::span(clearshot_timeline::Phase::Choosing);
            *choice = Some(match self.settings.only {
                Some(only) => Choice::only(only),
                None => choice::choose(restorer, image, camera, None, &mut || progress.ran(ear))?,
            });
        }
        ear.notice(Notice::Colours)?;
        let joint = Joint { colours, choices };
        if let Some(choice) = joint.brightness().filter(|c| c.risk.is_some()) {
            ear.event(&Event::Choice { exposures: None, choice })?;
        }
        Ok(Some(joint))
    }
}

impl Joint {
    /// The choice for brightness.
    pub fn brightness(&self) -> Option<&Choice> {
        self.choices[0].as_ref()
    }

    /// The cameras and choices, for the record.
    pub fn parts(&self) -> Vec<ColourPart> {
        let of = |k: usize| {
            let (name, camera, choice) = (NAMES[k], self.colours.cameras[k], self.choices[k].clone());
            ColourPart { name, camera, choice }
        };
        (0..SAMPLES).map(of).collect()
    }

    /// Restores some pixels' samples, which follow one another in `measured`; with `by_model` the network runs.
    /// chi2 is that of the samples, with the camera of the file.
    ///
    /// # Errors
    /// If there is not enough memory or disk space, the device fails, or the observer stops it.
    pub fn restore(
        &self,
        restorer: &mut Restorer,
        measured: &[Measured],
        numbers: &[u64],
        camera: Option<&Camera>,
        by_model: bool,
        ran: &mut dyn FnMut() -> Result<(), EngineError>,
    ) -> Result<Vec<Restored>> {
        let pixels: Vec<[&Measured; SAMPLES]> =
            measured.chunks_exact(SAMPLES).map(|s| [&s[0], &s[1], &s[2]]).collect();
        let mut combined: [Vec<Measured>; SAMPLES] = Default::default();
        for samples in &pixels {
            let made = self.colours.combine(*samples, restorer.scratch())?;
            combined.iter_mut().zip(made).for_each(|(all, one)| all.push(one));
        }
        let mut restored: [Vec<Restored>; SAMPLES] = Default::default();
        for (k, (images, to)) in combined.into_iter().zip(&mut restored).enumerate() {
            let (camera, choice) = (&self.colours.cameras[k], self.choices[k].as_ref());
            match choice {
                Some(choice) if !by_model => {
                    for image in &images {
                        to.push(restorer.restore_without(image, choice, Some(camera))?);
                    }
                }
                _ => {
                    *to = restorer.restore(&images, &numbers[..images.len()], Some(camera), ran)?;
                    let _choosing = clearshot_timeline::span(clearshot_timeline::Phase::Choosing);
                    for (image, made) in images.iter().zip(to) {
                        choice.map_or(Ok(()), |c| c.apply_at(image, camera, made, restorer.wanted()))?;
                    }
                }
            }
        }
        let [brightness, difference, green] = restored;
        let mut made = Vec::new();
        for (((a, b), c), samples) in brightness.into_iter().zip(difference).zip(green).zip(&pixels) {
            let separate = self.colours.separate([a, b, c], *samples);
            for (mut one, sample) in separate.into_iter().zip(samples) {
                restorer.set_residuals(sample, camera, &mut one)?;
                made.push(one);
            }
        }
        Ok(made)
    }
}
