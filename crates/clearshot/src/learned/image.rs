//! Restores one image: chooses the method, restores the parts group by group, and writes the result.

use super::colours::Joint;
use super::decide::Progress;
use super::kept::Kept;
use super::outputs::{Cut, Map, Outputs, beside};
use super::parts::{Form, Parts};
use super::record::{Light, Record};
use super::series::Series;
use crate::background::BackgroundMap;
use crate::error::Result;
use crate::notice::Notice;
use crate::observer::{Ear, Event, Middle};
use crate::report::ImageReport;
use crate::settings::Settings;
use crate::target::{Destination, Made, as_float};
use crate::validity::{Validity, may_be_none};
use clearshot_image::{Description, Image};
use clearshot_model::About;
use clearshot_restore::learned::colours::SampleNoise;
use clearshot_restore::learned::residual::LeftOver;
use clearshot_restore::learned::{Camera, Forecast, Measured, Restored, Restorer};
use clearshot_restore::saturated::NoiseLevel;
use clearshot_runtime::Device;
use serde_json::{Value, json};
use std::time::Instant;

/// Bytes of restored values that are held until all are known, so that the file's record can count what was clipped.
const HELD: usize = 4 << 30;
/// Pixels of small parts that are restored at once.
const TOGETHER_CPU: usize = 1 << 18;
const TOGETHER_GPU: usize = 1 << 24;

/// See the module.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    pub settings: &'a Settings,
    /// The settings in the form of the record.
    pub asked: &'a Value,
    pub image: &'a Image,
    /// The binning factor of the image: 1 for the pixels of the file.
    pub side: usize,
    pub to: Destination<'a>,
    pub parts: &'a Parts,
    pub validity: &'a Validity,
    pub background: Option<&'a BackgroundMap>,
    pub camera: Option<Camera>,
    /// What is known about the noise of colour samples, if there is a camera.
    pub sample_noise: Option<SampleNoise>,
    /// The fingerprint of the file.
    pub hash: &'a str,
}

/// A finished image.
pub struct Finished {
    pub report: ImageReport,
    pub made: Vec<(Map, Made)>,
    /// The description of the output.
    pub description: Description,
}

/// The description of the output of a model that may change the channels, in floats on request.
///
/// # Errors
/// If the image does not have the axes or channels that the model needs.
pub fn written(d: &Description, about: &About, float: bool) -> Result<Description> {
    let mut written = if float { as_float(d) } else { d.clone() };
    if about.input_channels() != about.channels {
        let parts = Parts::of(d, about.dims, about.input_channels())?;
        parts.set_channels(&mut written, about.channels, &about.names)?;
    }
    Ok(written)
}

/// Where restored parts go: into the outputs at once, or held until all are known.
struct Places {
    /// The parts of the output, which have other channels where the model makes others.
    parts: Parts,
    description: Description,
    form: Form,
    outputs: Option<Outputs>,
    held: Vec<Restored>,
}

/// What a walk over the groups carries along.
struct Walk<'w, 'o> {
    restorer: &'w mut Restorer,
    ear: &'w mut Ear<'o>,
    progress: Progress,
    record: Record,
    places: Places,
    series: Option<Series>,
    colours: Option<Joint>,
    kept: Option<Kept>,
    /// Parts that a run before had restored.
    found: usize,
}

/// The number of parts restored at once.
pub fn together(restorer: &Restorer, parts: &Parts) -> usize {
    let busy = if matches!(restorer.device(), Device::Cpu { .. }) { TOGETHER_CPU } else { TOGETHER_GPU };
    (busy / parts.pixels()).clamp(1, 16).min(parts.all.len())
}

impl Work<'_> {
    /// # Errors
    /// If the image cannot be read or restored, the outputs cannot be written, or the observer stops it.
    pub fn run(self, restorer: &mut Restorer, ear: &mut Ear<'_>) -> Result<Finished> {
        let start = Instant::now();
        // A run before may have failed in the middle.
        restorer.want(None);
        let joint = self.joint(restorer)?;
        let at_once = together(restorer, self.parts).div_ceil(joint);
        let together = at_once * joint;
        let groups: Vec<&[Vec<usize>]> = self.parts.all.chunks(together).collect();
        let mut progress = Progress::default();
        let precision = self.precision(restorer, ear)?;
        let forecast = self.plan(restorer, at_once, [groups.len(), joint], &mut progress, ear)?;
        let colours = match joint {
            1 => None,
            _ => self.colours(restorer, &mut progress, ear)?,
        };
        let choice = match &colours {
            Some(colours) => colours.brightness().cloned(),
            None => self.choice(restorer, &mut progress, ear)?,
        };
        let chosen = progress.runs;
        let maps = beside(self.settings, restorer);
        let pixels = self.parts.all.len() * self.parts.pixels();
        let light = self.camera.map(|_| Light::default());
        let mut record = Record { pixels, light, choice, precision, ..Record::default() };
        record.colours = colours.as_ref().map(Joint::parts).unwrap_or_default();
        let series = Series::of(&self, restorer).filter(|_| self.uses_model());
        record.along = series.as_ref().map(|s| s.along);
        if let (Some(_), Some(series), None) = (self.to.run(), &series, self.settings.only) {
            return Err(series.refuse_cut());
        }
        let places = self.places(restorer, forecast.as_ref(), &maps, &record)?;
        let kept = self.kept(together, groups.len())?;
        let mut walk = Walk { restorer, ear, progress, record, places, series, colours, kept, found: 0 };
        for (g, group) in groups.iter().enumerate() {
            if self.is_wanted(&mut walk, group.len(), g * together) {
                self.group(&mut walk, group, g * together)?;
            }
            // The last group may have fewer images, and what was found took no run.
            walk.progress.runs = chosen + (walk.progress.total - chosen) * (g + 1) / groups.len();
        }
        walk.restorer.want(None);
        let Walk { restorer, ear, mut record, places, series, kept, found, .. } = walk;
        record.pooled = series.map(Series::chosen).unwrap_or_default();
        let Places { parts, description, form, outputs, held } = places;
        let outputs = match outputs {
            Some(outputs) => outputs,
            None => {
                let provenance = self.provenance(forecast.as_ref(), &record, true);
                let mut outputs = Outputs::create(self.to, &description, maps, provenance, None)?;
                for (number, restored) in held.iter().enumerate() {
                    outputs.write(&parts, number, restored, &form)?;
                }
                outputs
            }
        };
        drop(held);
        let made = outputs.finish(self.image, self.parts, &form)?;
        kept.into_iter().for_each(Kept::clear);
        if found > 0 {
            ear.notice(Notice::Resumed { found, all: self.parts.all.len() })?;
        }
        for notice in record.notices(form.dtype.name(), self.settings.inpaint) {
            ear.notice(notice)?;
        }
        let interval_90 = restorer.spread().filter(|_| self.settings.std).map(|s| s.reach());
        let (camera, pieces) = (self.camera, self.parts.all.len());
        let mut report = ImageReport { camera, pieces, interval_90, forecast, ..ImageReport::default() };
        record.report(&mut report);
        report.binning = Some(self.side).filter(|side| *side > 1);
        report.seconds = start.elapsed().as_secs_f64();
        Ok(Finished { report, made, description })
    }

    /// Where parts will go. Few values are held, so that a file's record can count what became of them; others have no record, nor
    /// have those that several jobs make.
    fn places(
        &self,
        restorer: &Restorer,
        forecast: Option<&Forecast>,
        maps: &[(String, Map)],
        record: &Record,
    ) -> Result<Places> {
        let about = &restorer.model().about;
        let is_file = matches!(self.to, Destination::File { .. });
        let d = self.to.description(&self.image.description);
        let description = written(d, about, self.settings.float || !is_file)?;
        let parts = Parts::of(&description, about.dims, about.channels)?;
        let bytes = self.parts.all.len() * self.parts.pixels() * parts.channels * size_of::<f32>();
        let outputs = match bytes > HELD || !is_file || self.to.run().is_some() {
            true => {
                let provenance = self.provenance(forecast, record, false);
                let cut = self.to.run().map(|run| Cut {
                    run,
                    together: parts.axes(self.uses_model() && !restorer.can_be_cut()),
                    decided: json!({
                        "settings": self.asked, "input": self.hash, "camera": self.camera,
                        "saturation": self.validity.saturation, "choice": record.choice, "precision": record.precision,
                    }),
                });
                Some(Outputs::create(self.to, &description, maps.to_vec(), provenance, cut)?)
            }
            false => None,
        };
        let form = Form::of(&description);
        Ok(Places { parts, description, form, outputs, held: Vec::new() })
    }

    /// The parts that a run of the same has left beside a file, where there are several groups of them.
    fn kept(&self, together: usize, groups: usize) -> Result<Option<Kept>> {
        // Of an image that several jobs make the chunks are kept.
        let alone = self.to.run().is_none();
        let Some(spot) = self.to.spot().filter(|_| groups > 1 && alone) else { return Ok(None) };
        let run = json!({"settings": self.asked, "input": self.hash, "camera": self.camera, "together": together, "binning": self.side});
        Ok(Some(Kept::open(&spot.base, &run)?))
    }

    /// Whether any part of a group is made here; if it is not all of them, the restorer gets the list.
    fn is_wanted(&self, walk: &mut Walk<'_, '_>, count: usize, first: usize) -> bool {
        let Places { parts, form, outputs: Some(outputs), .. } = &walk.places else { return true };
        let mut all = Vec::new();
        for number in first..first + count {
            match outputs.wanted(parts, number, form) {
                Some(boxes) => all.extend(boxes),
                None => all.push(self.parts.size.iter().map(|&n| 0..n).collect()),
            }
        }
        let is_wanted = !all.is_empty();
        walk.restorer.want(self.to.run().map(|_| all));
        is_wanted
    }

    /// Restores a group of parts, of which the first has this number.
    fn group(&self, walk: &mut Walk<'_, '_>, group: &[Vec<usize>], first: usize) -> Result<()> {
        let measured = group.iter().map(|p| self.measured(p, walk.restorer)).collect::<Result<Vec<_>>>()?;
        if walk.record.unfamiliar.is_none() && self.uses_model() {
            walk.record.unfamiliar = self.unfamiliar(walk.restorer, &measured, walk.ear)?;
        }
        let numbers: Vec<u64> = (0..group.len()).map(|i| (first + i) as u64).collect();
        let found = walk.kept.as_ref().and_then(|k| k.all(&numbers, walk.restorer.scratch()));
        walk.found += found.as_ref().map_or(0, Vec::len);
        let made = match found {
            Some(found) => found,
            None => {
                let made = self.made(walk, &measured, &numbers)?;
                if let Some(kept) = &walk.kept {
                    numbers.iter().zip(&made).try_for_each(|(&n, part)| kept.put(n as usize, part))?;
                }
                made
            }
        };
        let helped = match &mut walk.series {
            Some(series) => {
                let alone = walk.record.choice.as_ref();
                Some(series.help(self, walk.restorer, group, &measured, &numbers, alone, walk.ear)?)
            }
            None => None,
        };
        for (i, mut restored) in made.into_iter().enumerate() {
            walk.record.exposures.extend(helped.as_ref().map(|h| h.finish(i, &mut restored)));
            if !restored.guided.is_empty() {
                walk.ear.event(&Event::Guided { number: first + i, steps: &restored.guided })?;
            }
            self.put(walk, first + i, &measured[i], restored)?;
        }
        Ok(())
    }

    /// Reads the measurement of a part of the file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn measured(&self, part: &[usize], restorer: &Restorer) -> Result<Measured> {
        let source = self.parts.source(self.image, part, self.validity);
        let mut measured = Measured::read(&source, restorer.scratch())?;
        if let Some(limit) = self.validity.saturation {
            measured.saturate(limit, self.camera.as_ref().map_or(NoiseLevel::Unknown, NoiseLevel::of));
        }
        Ok(measured)
    }

    fn made(&self, walk: &mut Walk<'_, '_>, measured: &[Measured], numbers: &[u64]) -> Result<Vec<Restored>> {
        let (camera, Walk { restorer, ear, progress, record, colours, .. }) = (self.camera.as_ref(), walk);
        if let Some(colours) = colours {
            let by_model = self.uses_model();
            return colours.restore(restorer, measured, numbers, camera, by_model, &mut || progress.ran(ear));
        }
        match &record.choice {
            Some(choice) if !self.uses_model() => {
                let one = |m: &Measured| restorer.restore_without(m, choice, camera);
                Ok(measured.iter().map(one).collect::<Result<_, _>>()?)
            }
            choice => {
                let mut made = restorer.restore(measured, numbers, camera, &mut || progress.ran(ear))?;
                if let (Some(choice), Some(camera)) = (choice, camera) {
                    let _choosing = clearshot_timeline::span(clearshot_timeline::Phase::Choosing);
                    for (measured, restored) in measured.iter().zip(&mut made) {
                        choice.apply_at(measured, camera, restored, restorer.wanted())?;
                    }
                }
                Ok(made)
            }
        }
    }

    /// Takes a restored part into the record and writes it, or holds it back.
    fn put(
        &self,
        walk: &mut Walk<'_, '_>,
        number: usize,
        measured: &Measured,
        mut restored: Restored,
    ) -> Result<()> {
        let Walk { restorer, ear, record, places, .. } = walk;
        let is_middle = number == self.parts.all.len() / 2;
        record.filled += measured.filled;
        record.saturated += measured.saturated;
        // No statement about the whole image from a part of it.
        let is_whole = self.to.run().is_none();
        record.chi2.extend(restored.mean_chi2.filter(|_| is_whole));
        if let Some(camera) = self.camera.as_ref().filter(|_| is_whole) {
            let light = record.light.get_or_insert_with(Light::default);
            light.see(restored.image.iter().map(|&v| camera.electrons(v)));
            let is_mean = restorer.settings().psf.is_none() && restored.mean_chi2.is_some();
            if is_middle && is_mean {
                record.left_over = LeftOver::of(measured, &restored.image, camera);
            }
        }
        if let Some(map) = self.background {
            let channels = self.parts.channels;
            map.level(&mut restored.image, channels);
            restored.samples.iter_mut().for_each(|sample| map.level(sample, channels));
        }
        let is_drawn = restorer.settings().inpaint;
        if measured.filled > 0 && !is_drawn && may_be_none(&places.description) {
            self.parts.give_back(self.image, &self.parts.all[number], &mut restored.image)?;
        }
        if is_middle && is_whole {
            let (image, parts, camera) = (self.image, self.parts, self.camera);
            ear.event(&Event::Middle(&Middle { image, parts, measured, restored: &restored, camera }))?;
        }
        let Places { parts, form, outputs, held, .. } = places;
        match outputs {
            Some(outputs) => record.clipped += outputs.write(parts, number, &restored, form)?,
            None => {
                record.clipped += parts.clipped(&parts.all[number], &restored.image, form);
                held.push(restored);
            }
        }
        Ok(())
    }
}
