//! One image at work: what restores it is chosen, its parts are restored group after group, and what came out is written.

use super::file::Job;
use super::kept::Kept;
use super::movie::Movie;
use super::parts::{Apart, Form, Parts};
use super::record::{Light, Record};
use super::report::{Report, Shown};
use super::trace::Trace;
use super::written::{Outputs, beside};
use crate::items::Spot;
use crate::mask::may_be_none;
use crate::progress::Line;
use anyhow::Result;
use clearshot_image::{Description, Image};
use clearshot_restore::learned::precision::Settled;
use clearshot_restore::learned::residual::LeftOver;
use clearshot_restore::learned::{
    Camera, Candidate, Choice, Error, Forecast, Measured, Restored, Restorer, choice,
};
use clearshot_restore::saturated::NoiseLevel;
use clearshot_runtime::Device;
use serde_json::json;
use std::time::Instant;

/// Bytes of restored values that are held until all are known, so that the file's record can count what was clipped.
const HELD: usize = 4 << 30;
/// Pixels of small parts that are restored at once.
const TOGETHER_CPU: usize = 1 << 18;
const TOGETHER_GPU: usize = 1 << 24;

/// See the module.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    pub job: &'a Job<'a>,
    pub image: &'a Image,
    pub spot: &'a Spot,
    pub parts: &'a Parts,
    pub apart: &'a Apart,
    pub camera: Option<Camera>,
    pub hash: &'a str,
}

/// How far things are.
struct Progress {
    line: Line,
    quiet: bool,
    /// Runs of the network so far, and in all.
    runs: usize,
    total: usize,
}

impl Progress {
    fn ran(&mut self) -> Result<(), Error> {
        self.runs += 1;
        if !self.quiet {
            self.line.show(self.runs, self.total);
        }
        Ok(())
    }
}

/// Where restored parts go: into files at once, or held until all are known.
struct Places<'a> {
    /// The parts of the output, which have other channels where the model makes others.
    parts: Parts,
    description: &'a Description,
    form: Form,
    outputs: Option<Outputs>,
    held: Vec<Restored>,
}

impl Work<'_> {
    pub fn run(
        self,
        restorer: &mut Restorer,
        replace: bool,
        report: Option<&mut Report>,
        mut trace: Option<&mut Trace>,
    ) -> Result<()> {
        let start = Instant::now();
        let about = &restorer.model().about;
        let d = self.job.written(self.spot.description(self.image), restorer)?;
        let parts = Parts::of(&d, about.dims, about.channels)?;
        let together = self.together(restorer);
        let groups: Vec<&[Vec<usize>]> = self.parts.all.chunks(together).collect();
        let mut progress = Progress {
            line: Line::new(self.job.label.clone()),
            quiet: self.job.voice.quiet,
            runs: 0,
            total: 0,
        };
        let precision = self.precision(restorer)?;
        let forecast = self.plan(restorer, together, groups.len(), &mut progress)?;
        let choice = self.choice(restorer, &mut progress)?;
        let chosen = progress.runs;
        let maps = beside(self.job.std, restorer);
        let pixels = self.parts.all.len() * self.parts.pixels();
        let mut record = Record::new(pixels, self.camera.is_some(), choice);
        record.precision = precision;
        let mut movie = Movie::of(&self, restorer).filter(|_| self.uses_model());
        let outputs = match pixels * parts.channels * size_of::<f32>() <= HELD {
            true => None,
            false => {
                let provenance = self.provenance(forecast.as_ref(), None);
                Some(Outputs::create(self.job.input, self.spot, &d, maps.clone(), replace, provenance)?)
            }
        };
        let mut places = Places { parts, description: &d, form: Form::of(&d), outputs, held: Vec::new() };
        let run = json!({"settings": self.job.asked, "input": self.hash, "camera": self.camera, "together": together});
        let kept = (groups.len() > 1).then(|| Kept::open(&self.spot.base, &run)).transpose()?;
        let (mut found_parts, mut shown) = (0, None);
        for (g, group) in groups.iter().enumerate() {
            let measured = group.iter().map(|p| self.measured(p, restorer)).collect::<Result<Vec<_>>>()?;
            if record.strange.is_none() && self.uses_model() {
                record.strange = self.strange(restorer, &measured)?;
            }
            let numbers: Vec<u64> = (0..group.len()).map(|i| (g * together + i) as u64).collect();
            let found = kept.as_ref().and_then(|k| k.all(&numbers, restorer.scratch()));
            found_parts += found.as_ref().map_or(0, Vec::len);
            let made = match found {
                Some(found) => found,
                None => {
                    let made = self.made(restorer, &measured, &numbers, &record, &mut progress)?;
                    if let Some(kept) = &kept {
                        numbers.iter().zip(&made).try_for_each(|(&n, part)| kept.put(n as usize, part))?;
                    }
                    made
                }
            };
            let helped = match &mut movie {
                Some(movie) => {
                    Some(movie.help(&self, restorer, group, &measured, &numbers, record.choice.as_ref())?)
                }
                None => None,
            };
            // The last group may have fewer images, and what was found took no run.
            progress.runs = chosen + (progress.total - chosen) * (g + 1) / groups.len();
            for (i, mut restored) in made.into_iter().enumerate() {
                let number = g * together + i;
                record.exposures.extend(helped.as_ref().map(|h| h.finish(i, &mut restored)));
                if let Some(trace) = trace.as_deref_mut() {
                    trace.add(&self.spot.shown, number, &restored.guided)?;
                }
                let middle = number == self.parts.all.len() / 2;
                let part = self.put(restorer, number, &measured[i], restored, &mut record, &mut places)?;
                if middle && report.is_some() {
                    let (image, parts) = (self.image, self.parts);
                    let restored = part.as_ref().or(places.held.last());
                    shown = restored
                        .map(|r| Shown::of(&self.spot.shown, image, parts, &measured[i], r, self.camera))
                        .transpose()?;
                }
            }
        }
        progress.line.end();
        record.pooled = movie.map(Movie::chosen).unwrap_or_default();
        let Places { parts, form, outputs, held, .. } = places;
        let outputs = match outputs {
            Some(outputs) => outputs,
            None => {
                let provenance = self.provenance(forecast.as_ref(), Some(&record));
                let mut outputs = Outputs::create(self.job.input, self.spot, &d, maps, replace, provenance)?;
                for (number, restored) in held.iter().enumerate() {
                    outputs.write(&parts, number, restored, &form)?;
                }
                outputs
            }
        };
        drop(held);
        let paths = outputs.finish(self.image, self.parts, &form)?;
        if let Some(kept) = kept {
            kept.clear();
        }
        if found_parts > 0 {
            let all = self.parts.all.len();
            let text = format!("{found_parts} of {all} planes were restored by a run before");
            self.job.voice.note(&self.spot.shown, &text);
        }
        let seconds = start.elapsed().as_secs_f64();
        let reach = restorer.spread().filter(|_| self.job.std).map(|s| s.reach());
        self.tell(&record, &form, &paths, seconds, reach)?;
        if let (Some(report), Some(shown)) = (report, shown) {
            report.add(&shown, self.camera, &record, forecast.as_ref(), seconds)?;
        }
        Ok(())
    }

    /// Parts that are restored at once.
    fn together(&self, restorer: &Restorer) -> usize {
        let busy = if matches!(restorer.device(), Device::Cpu { .. }) { TOGETHER_CPU } else { TOGETHER_GPU };
        (busy / self.parts.pixels()).clamp(1, 16).min(self.parts.all.len())
    }

    /// What the network will take, said before it runs; nothing where another method is asked for.
    fn plan(
        &self,
        restorer: &mut Restorer,
        together: usize,
        groups: usize,
        progress: &mut Progress,
    ) -> Result<Option<Forecast>> {
        let (voice, shown) = (self.job.voice, &self.spot.shown);
        if let Some(other) = self.job.method.filter(|m| *m != Candidate::Model) {
            voice.plan_without(shown, &other)?;
            return Ok(None);
        }
        let choosing = match (self.job.method, self.camera) {
            (None, Some(_)) => choice::runs(restorer, &self.parts.size)?,
            _ => 0,
        };
        let forecast = restorer.prepare(&self.parts.size, together)?;
        voice.plan(shown, &forecast, groups, choosing, &restorer.device().to_string())?;
        progress.total = choosing + forecast.runs * groups;
        Ok(Some(forecast))
    }

    /// The arithmetic of a GPU, where it is left open, as the middle part says; it is told of.
    fn precision(&self, restorer: &mut Restorer) -> Result<Option<Settled>> {
        if !self.uses_model() || matches!(restorer.device(), Device::Cpu { .. }) {
            return Ok(None);
        }
        let measured = self.measured(&self.parts.all[self.parts.all.len() / 2], restorer)?;
        let settled = restorer.settle_precision(&measured, self.camera.as_ref())?;
        if let Some(settled) = &settled {
            let record = json!({"event": "precision", "input": self.spot.shown, "precision": settled});
            self.job.voice.say(&format!("precision: {}", settled.in_words()), record)?;
        }
        Ok(settled)
    }

    /// What to trust: as asked for, or as the data of the middle part say.
    fn choice(&self, restorer: &mut Restorer, progress: &mut Progress) -> Result<Option<Choice>> {
        if let Some(only) = self.job.method {
            return Ok(Some(Choice::only(only)));
        }
        let Some(camera) = &self.camera else { return Ok(None) };
        let measured = self.measured(&self.parts.all[self.parts.all.len() / 2], restorer)?;
        let choice = choice::choose(restorer, &measured, camera, None, &mut || progress.ran())?;
        if choice.risk.is_some() {
            let record = json!({"event": "choice", "input": self.spot.shown, "choice": choice});
            self.job.voice.say(&format!("restored by: {}", choice.in_words()), record)?;
        }
        Ok(Some(choice))
    }

    /// A part of the file as it is restored from.
    pub fn measured(&self, part: &[usize], restorer: &Restorer) -> Result<Measured> {
        let source = self.parts.source(self.image, part, self.apart);
        let mut measured = Measured::read(&source, restorer.scratch())?;
        if let Some(limit) = self.apart.saturation {
            measured.saturate(limit, self.camera.as_ref().map_or(NoiseLevel::Unknown, NoiseLevel::of));
        }
        Ok(measured)
    }

    /// Whether the network runs: unless another method is asked for. Where the image's own data give it no weight it is run all the same,
    /// for chi2 of its answer tells whether the camera's numbers are this image's.
    fn uses_model(&self) -> bool {
        self.job.method.is_none_or(|m| m == Candidate::Model)
    }

    fn made(
        &self,
        restorer: &mut Restorer,
        measured: &[Measured],
        numbers: &[u64],
        record: &Record,
        progress: &mut Progress,
    ) -> Result<Vec<Restored>> {
        let camera = self.camera.as_ref();
        match &record.choice {
            Some(choice) if !self.uses_model() => {
                let one = |m: &Measured| restorer.restore_without(m, choice, camera);
                Ok(measured.iter().map(one).collect::<Result<_, _>>()?)
            }
            choice => {
                let mut made = restorer.restore(measured, numbers, camera, &mut || progress.ran())?;
                if let (Some(choice), Some(camera)) = (choice, camera) {
                    for (measured, restored) in measured.iter().zip(&mut made) {
                        choice.apply(measured, camera, restored)?;
                    }
                }
                Ok(made)
            }
        }
    }

    /// Takes a restored part into the record and writes it, or holds it back; gives it back if it is written.
    fn put(
        &self,
        restorer: &Restorer,
        number: usize,
        measured: &Measured,
        mut restored: Restored,
        record: &mut Record,
        places: &mut Places<'_>,
    ) -> Result<Option<Restored>> {
        record.filled += measured.filled;
        record.saturated += measured.saturated;
        record.chi2.extend(restored.mean_chi2);
        if let Some(camera) = &self.camera {
            let light = record.light.get_or_insert_with(Light::default);
            light.see(restored.image.iter().map(|&v| camera.electrons(v)));
            let is_mean = restorer.settings().psf.is_none() && restored.mean_chi2.is_some();
            if number == self.parts.all.len() / 2 && is_mean {
                record.left_over = LeftOver::of(measured, &restored.image, camera);
            }
        }
        if measured.filled > 0 && may_be_none(places.description) {
            self.parts.give_back(self.image, &self.parts.all[number], &mut restored.image)?;
        }
        let Places { parts, form, outputs, held, .. } = places;
        match outputs {
            Some(outputs) => {
                record.clipped += outputs.write(parts, number, &restored, form)?;
                Ok(Some(restored))
            }
            None => {
                record.clipped += parts.clipped(&parts.all[number], &restored.image, form);
                held.push(restored);
                Ok(None)
            }
        }
    }

    /// Says once of a file that it is unlike what the model was trained on, and returns why.
    fn strange(&self, restorer: &Restorer, images: &[Measured]) -> Result<Option<String>> {
        for image in images {
            let distance = restorer.distance(image, self.camera.as_ref())?;
            let Some(distance) = distance.filter(|d| d.is_strange()) else { continue };
            let than = if distance.high { "higher" } else { "lower" };
            let why = format!(
                "{} is {than} than in its images of {}, the nearest",
                distance.statistic, distance.kind
            );
            self.job.voice.note(
                &self.spot.shown,
                &format!(
                    "unlike what the model was trained on: {why}; it may draw what it knows instead of what is there: compare with `clearshot denoise`, look at --chi2 and --std, check --gain and --offset, or train on such images"
                ),
            );
            return Ok(Some(why));
        }
        Ok(None)
    }
}
