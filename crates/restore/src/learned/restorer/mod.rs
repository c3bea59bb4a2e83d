//! A model at work on images of one size after another.

mod beyond;
mod calibrate;
mod finish;
mod prepare;
mod resolve;

pub use calibrate::{Calibrated, Example};
pub use finish::Restored;
pub use prepare::Forecast;

use super::choose::Cut;
use super::correct::WholeGuide;
use super::field::{Field, Scratch};
use super::measured::{Camera, Measured};
use super::moments::Moments;
use super::precision::Settled;
use super::question::{ImageScale, condition, cut};
use super::settings::{Guidance, Output, Settings};
use super::tiles::Frame;
use super::{Error, familiar, walk};
use clearshot_diffusion::guide::{Measurement, Proximal};
use clearshot_diffusion::sampler::Program;
use clearshot_diffusion::{Guide, Law, Level};
use clearshot_metrics::law::student_quantile;
use clearshot_model::familiar::Distance;
use clearshot_model::{Model, Signal, Task};
use clearshot_physics::{Boundary, Electrons, Forward, Map, Operator, Psf, Scale};
use clearshot_runtime::{Device, Options, Precision};
use clearshot_tensor::noise::Key;
use prepare::Ready;
use resolve::Resolved;

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
    output: Output,
    ready: Vec<Ready>,
    /// The precision is to be settled by what is measured on images, and what was.
    open: bool,
    settled: Option<Settled>,
}

/// Conjugate gradients of a correction in noise that neighbours share, at least.
const SHARED_ITERATIONS: usize = 24;

/// What standard deviations tell of the truth: it lies about the image by `factor` times them, by Student's law of so many
/// degrees of freedom, for a few samples tell a deviation only roughly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub freedom: f64,
    pub factor: f64,
}

impl Spread {
    /// Deviations to either side that hold the truth nine times in ten.
    pub fn reach(&self) -> f64 {
        self.factor * student_quantile(0.1, self.freedom)
    }
}

impl Restorer {
    /// # Errors
    /// If the model is not one that can do what the settings ask, or there is no such sampler.
    pub fn new(model: Model, settings: Settings, device: Device) -> Result<Restorer, Error> {
        let Resolved { settings, output, guidance, program, open } = Resolved::of(&model, settings)?;
        let cut = cut(&model)?;
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
            output,
            ready,
            open,
            settled,
        })
    }

    /// Goes by other settings from now on; what was compiled is made anew.
    ///
    /// # Errors
    /// As [`Restorer::new`]; nothing is changed then.
    pub fn set(&mut self, settings: Settings) -> Result<(), Error> {
        let Resolved { settings, output, guidance, program, open } = Resolved::of(&self.model, settings)?;
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

    /// Restores under another PSF from now on; for restorers that were made with one.
    ///
    /// # Errors
    /// If it was made without, or for another number of axes.
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

    /// What [`Restored::deviation`] is; none where there are fewer than two samples.
    pub fn spread(&self) -> Option<Spread> {
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

    /// Restores images of one size; `numbers` tells their places in a series, which noise belongs to with the seed:
    /// an image restored alone is the same as among others. `ran` is told of every run of the graph.
    ///
    /// # Errors
    /// If sizes or channels differ, a camera is needed and none is there, the device fails, or `ran` says to stop.
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
        self.prepare(&first.size, images.len())?;
        let scales = images.iter().map(|i| self.scale(i, camera)).collect::<Result<Vec<_>, _>>()?;
        let mut ready = self.ready.pop().ok_or(Error::Stopped)?;
        let made = self.restore_ready(&mut ready, images, numbers, &scales, ran);
        self.ready.push(ready);
        made
    }

    fn restore_ready(
        &self,
        ready: &mut Ready,
        images: &[Measured],
        numbers: &[u64],
        scales: &[ImageScale],
        ran: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<Restored>, Error> {
        let Ready { tiles, resident, .. } = ready;
        let channels = self.model.about.channels;
        let (signal, guided) = (&self.model.about.signal, self.guidance.is_some());
        let (count, len) = (images.len(), images[0].size.iter().product::<usize>() * channels);
        let seed = |image: usize, sample: usize| {
            let number = numbers.get(image).copied().unwrap_or(image as u64);
            let words = Key { seed: self.settings.seed, step: sample as u32, stream: 0x5A3E }.block(number);
            u64::from(words[0]) | u64::from(words[1]) << 32
        };
        let mut direct = Vec::new();
        let mut shares: Vec<Option<Field>> = images.iter().map(|_| None).collect();
        if self.output == Output::Direct {
            let level = self.first_level()?;
            let mut xs = Vec::new();
            for i in 0..count {
                // A network that makes the image at once is asked about no x.
                let size = &images[0].size;
                let reads_x = self.model.about.task != Task::Regression;
                let x = match reads_x {
                    true => Some(walk::start(&level, size, channels, seed(i, 0), &self.scratch)?),
                    false => None,
                };
                xs.push(x);
                direct.push(self.scratch.field(len)?);
            }
            let mut frames: Vec<Frame<'_>> = xs
                .iter()
                .zip(&mut direct)
                .map(|(x, estimate)| Frame { x: x.as_deref().unwrap_or(&[]), estimate, unclipped: None })
                .collect();
            let beside = |frame: usize, _: &str, pixels: &[usize], out: &mut [f32]| {
                condition(signal, guided, &images[frame], &scales[frame], pixels, out);
            };
            tiles.ask(&level, &mut frames, &beside, ran)?;
            for i in (0..count).filter(|i| !guided && scales[*i].weighed) {
                let shaken = [self.shaken(&images[i], &scales[i], seed(i, 0))?];
                let mut answer = self.scratch.field(len)?;
                let x = xs[i].as_deref().unwrap_or(&[]);
                let beside = |_: usize, _: &str, pixels: &[usize], out: &mut [f32]| {
                    condition(signal, guided, &shaken[0], &scales[i], pixels, out);
                };
                let mut frame = [Frame { x, estimate: &mut answer, unclipped: None }];
                // It is no part of the forecast, and progress is not told of it.
                tiles.ask(&level, &mut frame, &beside, &mut || Ok(()))?;
                shares[i] = Some(self.shares(&images[i], &scales[i], &direct[i], &answer, seed(i, 0))?);
            }
        }
        let mut guides: Vec<WholeGuide> = Vec::new();
        let mut moments: Vec<Moments> = Vec::new();
        let mut kept: Vec<Vec<Field>> = images.iter().map(|_| Vec::new()).collect();
        if let Some(program) = &self.program {
            if self.settings.samples > 1 {
                for _ in 0..count {
                    moments.push(Moments::new(len, &self.scratch)?);
                }
            }
            guides = self.guides(images, scales)?;
            let together = self.together(len / channels, count);
            let mut done = 0;
            while done < self.settings.samples {
                let now = together.min(self.settings.samples - done);
                // All samples of one image, then those of the next.
                let of = |frame: usize| (frame / now, done + frame % now);
                let seeds: Vec<u64> = (0..count * now).map(|f| seed(of(f).0, 1 + of(f).1)).collect();
                let beside = |frame: usize, _: &str, pixels: &[usize], out: &mut [f32]| {
                    let image = of(frame).0;
                    condition(signal, guided, &images[image], &scales[image], pixels, out);
                };
                let mut correct = |frame: usize, level: &Level, estimate: &mut [f32]| {
                    let (image, sample) = of(frame);
                    guides[image].correct(sample, level, estimate)
                };
                let correct: Option<&mut walk::Correct<'_>> =
                    if self.guidance.is_some() { Some(&mut correct) } else { None };
                let made = match resident {
                    Some(resident) => {
                        resident.walk(program, tiles.layout(), &seeds, &self.scratch, &beside, ran)?
                    }
                    None => {
                        walk::walk(program, tiles, channels, &seeds, &self.scratch, &beside, correct, ran)?
                    }
                };
                for (frame, sample) in made.into_iter().enumerate() {
                    let image = of(frame).0;
                    if let Some(moments) = moments.get_mut(image) {
                        moments.add(&sample);
                    }
                    if self.settings.keep_samples || self.settings.samples == 1 {
                        kept[image].push(sample);
                    }
                }
                done += now;
            }
        }
        let mut direct = direct.into_iter();
        let mut moments = moments.into_iter();
        let mut all = Vec::new();
        for (i, (image, scale)) in images.iter().zip(scales).enumerate() {
            let mut samples = std::mem::take(&mut kept[i]);
            let direct = direct.next();
            let (mean, deviation) = match (moments.next(), &direct) {
                (Some(moments), Some(direct)) => (None, Some(moments.finish_about(direct))),
                (Some(moments), None) => {
                    let (mean, deviation) = moments.finish();
                    (Some(mean), Some(deviation))
                }
                (None, _) if self.settings.keep_samples => (None, None),
                (None, _) => (samples.pop(), None),
            };
            let estimate = match (direct, mean) {
                (Some(direct), _) => direct,
                (None, Some(mean)) => mean,
                (None, None) => {
                    let mut copy = self.scratch.field(len)?;
                    copy.copy_from_slice(samples.first().ok_or(Error::Stopped)?);
                    copy
                }
            };
            let mut restored = self.finish(image, scale, estimate, deviation, samples, shares[i].as_ref())?;
            restored.guided = guides.get_mut(i).map(|g| std::mem::take(&mut g.steps)).unwrap_or_default();
            all.push(restored);
        }
        Ok(all)
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
        let (program, settings) = (self.program.take(), self.settings.clone());
        (self.settings.samples, self.settings.chi2, self.margin) = (0, false, margin);
        if margin.is_some() {
            (self.settings.tile, self.settings.batch) = (None, None);
        }
        let made = f(self);
        (self.program, self.settings, self.margin) = (program, settings, None);
        made
    }

    /// How far an image is from what the model was trained on, where the model knows that and there is a camera.
    ///
    /// # Errors
    /// If a number of the camera is impossible.
    pub fn distance(&self, image: &Measured, camera: Option<&Camera>) -> Result<Option<Distance>, Error> {
        let (Some(familiar), Some(camera)) = (&self.model.about.familiar, camera) else { return Ok(None) };
        Ok(familiar::distance(familiar, image, camera, &image.photons(camera)?))
    }

    /// The corrections by each image's measurement.
    fn guides(&self, images: &[Measured], scales: &[ImageScale]) -> Result<Vec<WholeGuide>, Error> {
        let Some(guidance) = self.guidance else { return Ok(vec![]) };
        let options = Options { precision: Precision::F32, ..Options::default() };
        let mut all = Vec::new();
        for (image, scale) in images.iter().zip(scales) {
            let camera = scale.camera.ok_or(Error::NoCamera { what: "guidance" })?;
            let law = match guidance.law {
                // Noise that neighbours share takes more to solve for.
                Law::Proximal(p) if !camera.correlation.is_white() => {
                    Law::Proximal(Proximal { iterations: p.iterations.max(SHARED_ITERATIONS), ..p })
                }
                law => law,
            };
            let operator = match &self.settings.psf {
                Some(psf) => Operator::blur(&image.size[..], psf, Boundary::Reflect)?,
                None => Operator::identity(&image.size[..])?,
            };
            let electrons = |x: f64| (scale.file[0] + scale.file[1] * x - camera.offset) * camera.gain;
            let background = scale.photons.map_or(0.0, |p| p.background);
            let forward = Forward {
                operator,
                scale: Scale::symmetric(
                    Electrons(electrons(-1.0) - background),
                    Electrons(electrons(1.0) - background),
                )?,
                exposure: 1.0,
                background: Map::Uniform(background),
                read_noise: Map::Uniform(camera.read_noise),
                correlation: camera.correlation,
                likelihood: guidance.likelihood,
            };
            let mut guide = Guide::new(forward, law)?;
            if let Some(limit) = guidance.clip {
                guide = guide.clipped(limit)?;
            }
            if self.settings.trace {
                guide = guide.with_diagnostics();
            }
            let c = image.channels;
            let planes: Vec<Vec<f64>> = (0..c)
                .map(|ch| {
                    let values = image.values.iter().skip(ch).step_by(c);
                    values.map(|&v| f64::from(camera.electrons(v))).collect()
                })
                .collect();
            let measured: Vec<Measurement<'_>> = planes
                .iter()
                .map(|y| Measurement { y: Electrons(&y[..]), valid: image.valid.as_deref() })
                .collect();
            all.push(WholeGuide::compile(guide, &measured, &self.device, &options)?);
        }
        Ok(all)
    }

    /// The level at which one evaluation is asked for.
    fn first_level(&self) -> Result<Level, Error> {
        match &self.model.about.task {
            Task::Diffusion { process, .. } => Ok(process.noisiest()?),
            Task::Regression => Ok(Level::CLEAN),
        }
    }
}
