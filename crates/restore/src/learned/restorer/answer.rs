//! Restores images with the compiled network: the direct estimate, posterior samples, and combinations of both.

use super::cascade::{self, Coarse};
use super::prepare::Ready;
use super::{NORMAL_REACH, Place, Restored, Restorer};
use crate::learned::correct::WholeGuide;
use crate::learned::field::Field;
use crate::learned::measured::Measured;
use crate::learned::moments::{CHI2_REACH, Moments};
use crate::learned::question::ImageScale;
use crate::learned::resident::Resident;
use crate::learned::settings::Output;
use crate::learned::tiles::{Frame, Tiles};
use crate::learned::{Error, walk};
use clearshot_diffusion::Level;
use clearshot_diffusion::sampler::Program;
use clearshot_model::{Photons, Task};
use clearshot_nn::models::LEAST_ERROR;
use clearshot_tensor::noise::Key;
use rayon::prelude::*;
use std::ops::Range;

/// Is told of every run of the graph, and may stop.
type Ran<'r> = dyn FnMut() -> Result<(), Error> + 'r;

/// Images of one size on their way, with their places in a series.
#[derive(Clone, Copy)]
struct Batch<'a> {
    images: &'a [Measured],
    numbers: &'a [u64],
    scales: &'a [ImageScale],
    /// What a coarse stage says of each, where there was one.
    coarse: &'a [Coarse],
    /// The seed of the settings.
    seed: u64,
}

/// What the network says of an image at once.
struct Direct {
    estimate: Field,
    /// How much of the measurement is mixed in, where it has more light than the model knows.
    share: Option<Field>,
    /// The standard deviation of its error, where the network says that.
    deviation: Option<Field>,
}

/// What samples say of images.
struct Drawn {
    /// Of each image, from two samples on.
    moments: Vec<Moments>,
    /// Samples of each image, where they are asked for or there is one alone.
    kept: Vec<Vec<Field>>,
    guides: Vec<WholeGuide>,
}

/// Boxes with what is looked at around their pixels after the network.
fn around(boxes: &[Place], size: &[usize]) -> Vec<Place> {
    let wide =
        |(r, &n): (&Range<usize>, &usize)| r.start.saturating_sub(CHI2_REACH)..(r.end + CHI2_REACH).min(n);
    boxes.iter().map(|place| place.iter().zip(size).map(wide).collect()).collect()
}

/// A measurement on the network's scale.
fn normalised(image: &Measured, scale: &ImageScale) -> Vec<f32> {
    let [zero, unit] = scale.file;
    image.values.iter().map(|&v| ((f64::from(v) - zero) / unit) as f32).collect()
}

/// The standard deviation of normal errors of which as many lie below it as below what the network says, in the network's unit.
fn deviation(mut said: Field, estimate: &Field, photons: Option<Photons>) -> Field {
    said.par_iter_mut().zip(estimate.par_iter()).for_each(|(v, &x)| {
        let noise = photons.map_or(1.0, |p| p.noise(f64::from(x)));
        *v = (noise * (f64::from(*v).exp() - LEAST_ERROR).max(0.0) / NORMAL_REACH) as f32;
    });
    said
}

impl Batch<'_> {
    /// The seed of a sample's noise; 0 is the network's answer at once.
    fn seed(&self, image: usize, sample: usize) -> u64 {
        let number = self.numbers.get(image).copied().unwrap_or(image as u64);
        let words = Key { seed: self.seed, step: sample as u32, stream: 0x5A3E }.block(number);
        u64::from(words[0]) | u64::from(words[1]) << 32
    }

    fn pixels(&self) -> usize {
        self.images[0].size.iter().product()
    }
}

impl Restorer {
    /// Restores images of one size, of which there is one at least.
    pub(super) fn answer(
        &self,
        ready: &mut Ready,
        images: &[Measured],
        numbers: &[u64],
        scales: &[ImageScale],
        coarse: &[Coarse],
        ran: &mut Ran<'_>,
    ) -> Result<Vec<Restored>, Error> {
        let batch = Batch { images, numbers, scales, coarse, seed: self.settings.seed };
        let mut direct = match self.output {
            Output::Direct => self.direct(&mut ready.tiles, batch, ran)?.into_iter().map(Some).collect(),
            Output::Samples => Vec::new(),
        };
        direct.resize_with(images.len(), || None);
        let kept = images.iter().map(|_| Vec::new()).collect();
        let mut drawn = Drawn { moments: Vec::new(), kept, guides: Vec::new() };
        if let Some(program) = &self.program {
            self.draw(ready, program, batch, &mut drawn, ran)?;
        }
        let Drawn { moments, kept, mut guides } = drawn;
        let mut moments = moments.into_iter();
        let mut all = Vec::new();
        for (i, (direct, samples)) in direct.into_iter().zip(kept).enumerate() {
            let mut restored = self.gather(&images[i], &scales[i], direct, moments.next(), samples)?;
            restored.guided = guides.get_mut(i).map(|g| std::mem::take(&mut g.steps)).unwrap_or_default();
            all.push(restored);
        }
        Ok(all)
    }

    /// What the network says of images at once.
    fn direct(&self, tiles: &mut Tiles, batch: Batch<'_>, ran: &mut Ran<'_>) -> Result<Vec<Direct>, Error> {
        let Batch { images, scales, .. } = batch;
        let (guided, teller) = (self.guidance.is_some(), self.teller());
        let channels = self.model.about.channels;
        let level = self.first_level()?;
        let (mut xs, mut estimates, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..images.len() {
            // A network that makes the image at once is asked about no x.
            let x = match self.model.about.task != Task::Regression {
                true => Some(walk::start(
                    &level,
                    &images[0].size,
                    channels,
                    batch.seed(i, 0),
                    &self.scratch,
                    None,
                )?),
                false => None,
            };
            xs.push(x);
            estimates.push(self.scratch.field(batch.pixels() * channels)?);
            errors.push(self.error.then(|| self.scratch.field(batch.pixels() * channels)).transpose()?);
        }
        let mut frames: Vec<Frame<'_>> = xs
            .iter()
            .zip(estimates.iter_mut().zip(&mut errors))
            .map(|(x, (estimate, error))| Frame {
                x: x.as_deref().unwrap_or(&[]),
                estimate,
                unclipped: None,
                error: error.as_mut(),
            })
            .collect();
        let beside = |frame: usize, name: &str, pixels: &[usize], out: &mut [f32]| {
            teller.fill(&images[frame], &scales[frame], name, pixels, out);
        };
        let wanted = self.wanted().map(|all| around(all, &images[0].size));
        tiles.ask(&level, &mut frames, wanted.as_deref(), &beside, ran)?;
        drop(frames);
        let mut all = Vec::new();
        for (i, (estimate, error)) in estimates.into_iter().zip(errors).enumerate() {
            let share = match !guided && scales[i].weighed {
                true => {
                    let x = xs[i].as_deref().unwrap_or(&[]);
                    Some(self.share(tiles, &level, &images[i], &scales[i], x, &estimate, batch.seed(i, 0))?)
                }
                false => None,
            };
            let deviation = error.map(|said| deviation(said, &estimate, scales[i].seen.map(|(_, p)| p)));
            all.push(Direct { estimate, share, deviation });
        }
        Ok(all)
    }

    /// How much of a bright image's measurement is mixed into the answer, told by the answer to the image with a little noise.
    fn share(
        &self,
        tiles: &mut Tiles,
        level: &Level,
        image: &Measured,
        scale: &ImageScale,
        x: &[f32],
        estimate: &Field,
        seed: u64,
    ) -> Result<Field, Error> {
        let teller = self.teller();
        let shaken = self.shaken(image, scale, seed)?;
        let mut answer = self.scratch.field(estimate.len())?;
        let beside = |_: usize, name: &str, pixels: &[usize], out: &mut [f32]| {
            teller.fill(&shaken, scale, name, pixels, out);
        };
        let mut frame = [Frame { x, estimate: &mut answer, unclipped: None, error: None }];
        // It is not part of the forecast, and progress is not told of it.
        let wanted = self.wanted().map(|all| around(all, &image.size));
        tiles.ask(level, &mut frame, wanted.as_deref(), &beside, &mut || Ok(()))?;
        self.shares(image, scale, estimate, &answer, seed)
    }

    /// Draws the samples that the settings ask for, as many at once as memory holds.
    fn draw(
        &self,
        ready: &mut Ready,
        program: &Program,
        batch: Batch<'_>,
        drawn: &mut Drawn,
        ran: &mut Ran<'_>,
    ) -> Result<(), Error> {
        let Batch { images, scales, .. } = batch;
        let Ready { tiles, resident, .. } = ready;
        let (guided, teller) = (self.guidance.is_some(), self.teller());
        let (count, channels) = (images.len(), self.model.about.channels);
        if self.settings.samples > 1 {
            for _ in 0..count {
                drawn.moments.push(Moments::new(batch.pixels() * channels, &self.scratch)?);
            }
        }
        drawn.guides = self.guides(images, scales)?;
        let guides = &mut drawn.guides;
        let through = self.guidance.is_some_and(|g| g.law.goes_through());
        let limit = self.memory_limit();
        let mut walks: Vec<Resident> = Vec::new();
        if self.settings.inpaint && images.iter().all(|image| image.valid.is_none()) {
            return Err(Error::NothingToInpaint);
        }
        let together = self.together(batch.pixels(), count);
        let mut done = 0;
        while done < self.settings.samples {
            let now = together.min(self.settings.samples - done);
            // All samples of one image, then those of the next.
            let of = |frame: usize| (frame / now, done + frame % now);
            let seeds: Vec<u64> = (0..count * now).map(|f| batch.seed(of(f).0, 1 + of(f).1)).collect();
            let beside = |frame: usize, name: &str, pixels: &[usize], out: &mut [f32]| {
                let image = of(frame).0;
                teller.fill(&images[image], &scales[image], name, pixels, out);
            };
            // What each frame is to have as the means of its blocks.
            let means = |frame: usize| {
                let (image, sample) = of(frame);
                let coarse = batch.coarse.get(image)?.get(sample)?;
                Some(cascade::on_scale(coarse, &images[image], &scales[image]))
            };
            let wanted: Vec<_> = (0..count * now).map(means).collect();
            let mut correct = |frame: usize, level: &Level, estimate: &mut [f32]| {
                let (image, sample) = of(frame);
                if guided {
                    guides[image].correct(sample, level, estimate)?;
                }
                if let Some((blocks, means)) = &wanted[frame] {
                    blocks.project(estimate, means);
                }
                Ok(())
            };
            let corrects = guided || !batch.coarse.is_empty();
            let correct: Option<&mut walk::Correct<'_>> =
                if corrects && !through { Some(&mut correct) } else { None };
            let on_scale = |frame: usize| match &wanted[frame] {
                Some((blocks, means)) => blocks.spread(means),
                None => normalised(&images[of(frame).0], &scales[of(frame).0]),
            };
            let kept = |frame: usize| (on_scale(frame), images[of(frame).0].valid_values());
            let begin: &dyn Fn(usize) -> Vec<f32> = &on_scale;
            let kept: &dyn Fn(usize) -> (Vec<f32>, Vec<bool>) = &kept;
            let known = walk::Known {
                begin: self.settings.begin.map(|_| begin),
                kept: self.settings.inpaint.then_some(kept),
            };
            let made = match resident {
                _ if through => {
                    let mut made = Vec::new();
                    for (frame, seed) in seeds.iter().enumerate() {
                        let image = of(frame).0;
                        if walks.len() <= image {
                            let (image, scale) = (&images[image], &scales[image]);
                            walks.push(self.guided_walk(program, tiles.layout(), limit, image, scale)?);
                        }
                        let own = |_: usize, name: &str, pixels: &[usize], out: &mut [f32]| {
                            beside(frame, name, pixels, out);
                        };
                        let one = [*seed];
                        let walk = &mut walks[image];
                        made.extend(walk.walk(program, tiles.layout(), &one, &self.scratch, &own, ran)?);
                    }
                    made
                }
                Some(resident) => {
                    resident.walk(program, tiles.layout(), &seeds, &self.scratch, &beside, ran)?
                }
                None => walk::walk(
                    program,
                    tiles,
                    channels,
                    &seeds,
                    &self.scratch,
                    &beside,
                    &known,
                    correct,
                    ran,
                )?,
            };
            for (frame, sample) in made.into_iter().enumerate() {
                let image = of(frame).0;
                if let Some(moments) = drawn.moments.get_mut(image) {
                    moments.add(&sample);
                }
                if self.settings.keep_samples || self.settings.samples == 1 {
                    drawn.kept[image].push(sample);
                }
            }
            done += now;
        }
        Ok(())
    }

    /// One image from what the network said at once and what samples say.
    fn gather(
        &self,
        image: &Measured,
        scale: &ImageScale,
        direct: Option<Direct>,
        moments: Option<Moments>,
        mut samples: Vec<Field>,
    ) -> Result<Restored, Error> {
        let (direct, share, said) =
            direct.map_or((None, None, None), |d| (Some(d.estimate), d.share, d.deviation));
        let (mean, deviation) = match (moments, &direct) {
            (Some(moments), Some(direct)) => (None, Some(moments.finish_about(direct))),
            (Some(moments), None) => {
                let (mean, deviation) = moments.finish();
                (Some(mean), Some(deviation))
            }
            (None, _) if said.is_some() => (None, said),
            (None, _) if self.settings.keep_samples => (None, None),
            (None, _) => (samples.pop(), None),
        };
        let estimate = match (direct, mean) {
            (Some(direct), _) => direct,
            (None, Some(mean)) => mean,
            (None, None) => {
                let first = samples.first().ok_or(Error::Stopped)?;
                let mut copy = self.scratch.field(first.len())?;
                copy.copy_from_slice(first);
                copy
            }
        };
        self.finish(image, scale, estimate, deviation, samples, share.as_ref())
    }

    /// The level at which one evaluation is asked for.
    pub(super) fn first_level(&self) -> Result<Level, Error> {
        match &self.model.about.task {
            Task::Diffusion { process, .. } => Ok(process.noisiest()?),
            _ => Ok(Level::CLEAN),
        }
    }
}
