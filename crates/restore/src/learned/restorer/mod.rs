//! A model that restores images of one size after another.

mod answer;
mod beyond;
mod calibrate;
mod cascade;
mod conditions;
mod finish;
mod guides;
mod prepare;
mod resolve;

pub use calibrate::{Calibrated, Example};
pub use finish::Restored;
pub use prepare::Forecast;

use super::choose::Cut;
use super::field::Scratch;
use super::measured::{Camera, Measured};
use super::precision::Settled;
use super::question::cut;
use super::settings::{Guidance, Output, Settings};
use super::{Error, familiar};
use clearshot_diffusion::sampler::Program;
use clearshot_metrics::law::student_quantile;
use clearshot_model::familiar::Distance;
use clearshot_model::{ConditionInput, Model, Signal};
use clearshot_physics::Psf;
use clearshot_runtime::{Device, Precision};
use prepare::Ready;
use resolve::Resolved;
use std::ops::Range;

/// See the module.
pub struct Restorer {
    model: Model,
    settings: Settings,
    device: Device,
    scratch: Scratch,
    cut: Cut,
    /// What tiles see of their surroundings at most; as much as the network looks at where there is none.
    margin: Option<usize>,
    guidance: Option<Guidance>,
    program: Option<Program>,
    /// That of the first stage of a cascade, which begins at noise alone.
    first_program: Option<Program>,
    output: Output,
    /// What the network is conditioned on, of images as a whole.
    conditions: Vec<ConditionInput>,
    ready: Vec<Ready>,
    /// The network is asked for the error.
    error: bool,
    /// The precision is to be settled by what is measured on images, and what was.
    open: bool,
    settled: Option<Settled>,
    /// What of images is wanted, where it is not all.
    wanted: Option<Vec<Place>>,
}

/// A box of an image along (Z,) Y and X.
pub type Place = Vec<Range<usize>>;

/// The half-width of a 90 % interval of the normal distribution, in standard deviations.
pub const NORMAL_REACH: f64 = 1.644_853_626_951_472_2;

/// The distribution of the truth about the image: Student's distribution, with `factor` times the standard deviations
/// as its scale. The degrees of freedom account for a small number of samples; they are infinite if the network
/// predicts the error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub freedom: f64,
    pub factor: f64,
}

impl Spread {
    /// The half-width of a 90 % interval, in standard deviations.
    pub fn reach(&self) -> f64 {
        let certain = !self.freedom.is_finite();
        self.factor * if certain { NORMAL_REACH } else { student_quantile(0.1, self.freedom) }
    }
}

impl Restorer {
    /// # Errors
    /// If the model does not support the settings, or the sampler is unknown.
    pub fn new(model: Model, settings: Settings, device: Device) -> Result<Restorer, Error> {
        let Resolved { settings, output, guidance, program, first_program, error, open } =
            Resolved::of(&model, settings, &device)?;
        let cut = cut(&model, error)?;
        let conditions = model.condition_inputs();
        let scratch = Scratch::new(settings.host_memory, settings.scratch.clone());
        let (margin, ready, settled) = (None, Vec::new(), None);
        Ok(Restorer {
            model,
            settings,
            device,
            scratch,
            cut,
            margin,
            guidance,
            program,
            first_program,
            output,
            conditions,
            ready,
            error,
            open,
            settled,
            wanted: None,
        })
    }

    /// Changes the settings; compiled graphs are compiled again.
    ///
    /// # Errors
    /// As [`Restorer::new`]; the settings are then unchanged.
    pub fn set(&mut self, settings: Settings) -> Result<(), Error> {
        let Resolved { settings, output, guidance, program, first_program, error, open } =
            Resolved::of(&self.model, settings, &self.device)?;
        if error != self.error {
            (self.cut, self.error) = (cut(&self.model, error)?, error);
        }
        self.first_program = first_program;
        self.scratch = Scratch::new(settings.host_memory, settings.scratch.clone());
        (self.settings, self.output, self.guidance, self.program) = (settings, output, guidance, program);
        (self.margin, self.open, self.settled) = (None, open, None);
        self.ready.clear();
        Ok(())
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn into_model(self) -> Model {
        self.model
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn output(&self) -> Output {
        self.output
    }

    /// Whether results depend on the tiling, because the network has a global receptive field.
    pub fn depends_on_tiles(&self) -> bool {
        matches!(self.cut, Cut::Whole { .. })
    }

    /// Whether a part of an image can be restored without the rest: for one evaluation of a local network, but not for
    /// samples, whose tiles all have to be at the same step.
    pub fn can_be_cut(&self) -> bool {
        self.answers_at_once() && self.settings.samples == 0 && !self.depends_on_tiles()
    }

    /// From now on restores only these boxes of images, or with `None` all. Values outside are unspecified, and so are
    /// statistics of the whole image. If parts cannot be restored separately ([`Restorer::can_be_cut`]), everything is
    /// restored.
    pub fn want(&mut self, wanted: Option<Vec<Place>>) {
        self.wanted = wanted;
    }

    /// What of images is wanted, where it is not all.
    pub fn wanted(&self) -> Option<&[Place]> {
        self.wanted.as_deref().filter(|_| self.can_be_cut())
    }

    /// Sets another PSF, for restorers that were made with one.
    ///
    /// # Errors
    /// If it was made without a PSF, or for another number of axes.
    pub fn set_psf(&mut self, psf: Psf) -> Result<(), Error> {
        let axes = self.settings.psf.as_ref().map(|p| p.shape().rank());
        if axes != Some(psf.shape().rank()) {
            return Err(Error::Psf { got: psf.shape().rank() });
        }
        self.settings.psf = Some(psf);
        Ok(())
    }

    /// Whether the precision is left to what is measured ([`Restorer::settle_precision`]).
    pub(in crate::learned) fn is_precision_open(&self) -> bool {
        self.open
    }

    pub(in crate::learned) fn settled(&self) -> Option<Settled> {
        self.settled
    }

    pub(in crate::learned) fn keep_settled(&mut self, settled: Settled) {
        self.settled = Some(settled);
    }

    pub(in crate::learned) fn set_precision(&mut self, precision: Precision) {
        if self.settings.precision != precision {
            self.ready.clear();
            self.settings.precision = precision;
        }
    }

    pub fn guidance(&self) -> Option<Guidance> {
        self.guidance
    }

    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Whether the network predicts its error.
    pub fn says_error(&self) -> bool {
        self.error
    }

    /// The meaning of [`Restored::deviation`]; `None` if the network does not predict it and there are fewer than two
    /// samples.
    pub fn spread(&self) -> Option<Spread> {
        if self.error {
            return Some(Spread { freedom: f64::INFINITY, factor: 1.0 });
        }
        let samples = self.settings.samples as f64;
        (samples > 1.0).then(|| match self.output {
            Output::Direct => Spread { freedom: samples, factor: 1.0 },
            // The mean of a few samples is uncertain itself.
            Output::Samples => Spread { freedom: samples - 1.0, factor: (1.0 + 1.0 / samples).sqrt() },
        })
    }

    /// Whether electrons are needed: by the model, by guidance, or for chi2.
    pub fn needs_camera(&self) -> bool {
        self.model.about.signal == Signal::Photons || self.guidance.is_some() || self.settings.chi2
    }

    /// Restores images of one size. `numbers` are their positions in a series, which determine the noise together with
    /// the seed: an image restored alone is the same as among others. `ran` is called after every run of the graph.
    ///
    /// # Errors
    /// If sizes or channels differ, a required camera is missing, the device fails, or `ran` requests a stop.
    pub fn restore(
        &mut self,
        images: &[Measured],
        numbers: &[u64],
        camera: Option<&Camera>,
        ran: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<Restored>, Error> {
        let Some(first) = images.first() else { return Ok(vec![]) };
        for image in images {
            if image.size != first.size {
                return Err(Error::Mixed { first: first.size.clone(), other: image.size.clone() });
            }
            let needed = self.model.about.input_channels();
            if image.channels != needed {
                return Err(Error::Channels { needed, got: image.channels });
            }
        }
        if let Some(camera) = camera {
            camera.check()?;
        } else if self.needs_camera() {
            return Err(Error::NoCamera { what: "this model, or what is asked of it," });
        }
        self.check_conditions()?;
        let coarse = match self.settings.cascade > 1 {
            true => self.coarse(images, numbers, camera, ran)?,
            false => Vec::new(),
        };
        self.prepare(&first.size, images.len())?;
        let scales = images.iter().map(|i| self.scale(i, camera)).collect::<Result<Vec<_>, _>>()?;
        let mut ready = self.ready.pop().ok_or(Error::Stopped)?;
        let made = self.answer(&mut ready, images, numbers, &scales, &coarse, ran);
        self.ready.push(ready);
        made
    }

    /// Whether the image is what the network says at once, without guidance.
    pub(in crate::learned) fn answers_at_once(&self) -> bool {
        self.output == Output::Direct && self.guidance.is_none()
    }

    /// What the network says at once of some images, in the unit of their files, whatever samples the settings ask for. With a
    /// `margin` it sees no more than so many pixels around each.
    pub(in crate::learned) fn estimate(
        &mut self,
        images: &[Measured],
        camera: &Camera,
        margin: Option<usize>,
        ran: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let numbers = vec![0; images.len()];
        let made = self.at_once(margin, |it| it.restore(images, &numbers, Some(camera), ran))?;
        Ok(made.into_iter().map(|r| r.image.to_vec()).collect())
    }

    /// What [`Restorer::estimate`] of so many images of a size will take.
    pub(in crate::learned) fn estimate_forecast(
        &mut self,
        size: &[usize],
        images: usize,
        margin: Option<usize>,
    ) -> Result<Forecast, Error> {
        self.at_once(margin, |it| it.prepare(size, images))
    }

    /// Does something without samples and maps, whatever the settings ask for; with a margin in tiles of any size.
    fn at_once<T>(&mut self, margin: Option<usize>, f: impl FnOnce(&mut Restorer) -> T) -> T {
        let (program, settings, wanted) = (self.program.take(), self.settings.clone(), self.wanted.take());
        let error = std::mem::take(&mut self.error);
        (self.settings.samples, self.settings.chi2, self.margin) = (0, false, margin);
        self.settings.cascade = 1;
        if margin.is_some() {
            (self.settings.tile, self.settings.batch) = (None, None);
        }
        let made = f(self);
        (self.program, self.settings, self.margin, self.wanted) = (program, settings, None, wanted);
        self.error = error;
        made
    }

    /// The distance of an image from the training images, if the model has their statistics and there is a camera.
    ///
    /// # Errors
    /// If a number of the camera is impossible.
    pub fn distance(&self, image: &Measured, camera: Option<&Camera>) -> Result<Option<Distance>, Error> {
        let (Some(familiar), Some(camera)) = (&self.model.about.familiar, camera) else { return Ok(None) };
        Ok(familiar::distance(familiar, image, camera, &image.photons(camera)?))
    }
}
