//! One file: looked at, restored part after part, and written with a record of what was done.

use super::Voice;
use super::camera::{Given, Look};
use super::kept::Kept;
use super::movie::Movie;
use super::parts::{Apart, Form, Parts};
use super::report::{Report, Shown};
use super::trace::Trace;
use crate::items::{self, Spot};
use crate::mask::{Validity, mask_path, may_be_none};
use crate::point_spread::PointSpread;
use crate::progress::Line;
use anyhow::{Context, Result, bail};
use clearshot_image::address::{exists, is_address, same_place, try_out};
use clearshot_image::collection::{self, Collection};
use clearshot_image::dataset::list::stem;
use clearshot_image::{
    Axis, DType, Description, Error as ImageError, Image, Provenance, WriteOptions, Writer, fingerprint,
};
use clearshot_model::Signal;
use clearshot_physics::units::Regime;
use clearshot_restore::learned::field::Field;
use clearshot_restore::learned::{Camera, Candidate, Choice, Forecast, Measured, Restored, Restorer, choice};
use clearshot_runtime::Device;
use clearshot_train::records::console::duration;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub struct Job<'a> {
    pub input: &'a Path,
    pub output: &'a Path,
    /// What the progress line calls it.
    pub label: String,
    /// The settings as the record has them.
    pub asked: &'a Value,
    pub given: &'a Given,
    pub validity: &'a Validity,
    /// The only image to restore of several.
    pub item: Option<&'a str>,
    pub psf: Option<&'a str>,
    /// What restores, or nothing where the image's own data decide.
    pub method: Option<Candidate>,
    /// Frames of movies without their neighbours.
    pub frames_alone: bool,
    pub std: bool,
    pub float: bool,
    pub force: bool,
    pub voice: &'a Voice,
}

/// What is there before a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Missing,
    /// Made of the same by the same, with all that goes beside it.
    Done,
    /// Something that may be replaced.
    InPart,
}

pub enum Outcome {
    Done,
    /// The output is there already, made of the same input with the same settings.
    Skipped,
}

/// Shares of saturated pixels to warn of, and to refuse.
const WARN_SATURATED: f64 = 0.001;
const MOST_SATURATED: f64 = 0.5;
/// A model of fixed limits should see at least this share of its range.
const LEAST_USED: f64 = 0.02;
/// chi2 outside of these says that the camera's numbers do not fit the image; of so few pixels it says nothing.
const EXPLAINED: std::ops::Range<f64> = 0.4..2.0;
const FEW: usize = 256;
/// Bytes of restored values that are held until all are known, so that the file's record can count what was clipped.
const HELD: usize = 4 << 30;
/// Pixels of small parts that are restored at once.
const TOGETHER_CPU: usize = 1 << 18;
const TOGETHER_GPU: usize = 1 << 24;

impl Job<'_> {
    pub fn run(
        &self,
        restorer: &mut Restorer,
        mut report: Option<&mut Report>,
        mut trace: Option<&mut Trace>,
    ) -> Result<Outcome> {
        if same_place(self.input, self.output) {
            bail!("the output would replace its own input; choose another name or folder");
        }
        let first = items::open(self.input, self.item)?;
        let d = &first.description;
        let hash = fingerprint(self.input)?;
        let written = self.written(d, restorer)?;
        let together = Collection::is_one_file(d, &written, self.output);
        if d.items.len() == 1 || self.item.is_some() {
            if Collection::brings_others(&written, self.output) {
                self.voice.note(self.input, "one image is restored; the others are copied as they are");
            }
            return self.image(&first, &Spot::alone(self.input, self.output), &hash, restorer, report, trace);
        }
        let bases: Vec<PathBuf> =
            items::light(d).0.iter().map(|&n| collection::apart(self.output, &d.items, n)).collect();
        let standing =
            if together { self.standing(self.output, &bases, &hash, restorer)? } else { Standing::Missing };
        if standing == Standing::Done {
            return self.skipped(self.input, self.output);
        }
        let mut done = false;
        let say = |text: &str| self.voice.note(self.input, text);
        let replace = standing == Standing::InPart;
        items::each(self.input, self.output, d, &written, replace, &say, |image, spot| {
            let outcome =
                self.image(image, spot, &hash, restorer, report.as_deref_mut(), trace.as_deref_mut())?;
            done = done || matches!(outcome, Outcome::Done);
            Ok(())
        })?;
        Ok(if done { Outcome::Done } else { Outcome::Skipped })
    }

    /// What an image is written as by a model that may make other channels of it.
    fn written(&self, d: &Description, restorer: &Restorer) -> Result<Description> {
        let about = &restorer.model().about;
        let mut written = self.described(d);
        if about.input_channels() != about.channels {
            let parts = Parts::of(d, about.dims, about.input_channels())?;
            parts.set_channels(&mut written, about.channels, &about.names)?;
        }
        Ok(written)
    }

    fn skipped(&self, shown: &Path, output: &Path) -> Result<Outcome> {
        let record =
            json!({"event": "file", "input": self.input, "output": output, "status": "already done"});
        self.voice.say(&format!("{} -> {} (already done)", shown.display(), output.display()), record)?;
        Ok(Outcome::Skipped)
    }

    /// Restores one image of the file.
    fn image(
        &self,
        image: &Image,
        spot: &Spot,
        hash: &str,
        restorer: &mut Restorer,
        report: Option<&mut Report>,
        trace: Option<&mut Trace>,
    ) -> Result<Outcome> {
        let d = &image.description;
        let about = &restorer.model().about;
        let parts = Parts::of(d, about.dims, about.input_channels())?;
        let look = Look::at(image, &parts)?;
        // What is there of a file with several images is known already.
        let standing = match spot.is_shared {
            true => Standing::Missing,
            false => self.standing(&spot.output, std::slice::from_ref(&spot.base), hash, restorer)?,
        };
        if standing == Standing::Done {
            return self.skipped(&spot.shown, &spot.output);
        }
        let apart = Apart { saturation: self.validity.saturation, mask: self.validity.mask_of(image)? };
        self.warn(&spot.shown, d, &parts, &look, &restorer.model().about.signal)?;
        let camera = match restorer.needs_camera() {
            false => self.given.gain.map(|_| look.camera(image, self.given, &apart)).transpose()?,
            true => Some(look.camera(image, self.given, &apart)?),
        };
        if let Some((camera, said)) = &camera {
            said.iter().for_each(|said| self.voice.note(&spot.shown, said));
            look.contradicts(camera).iter().for_each(|said| self.voice.note(&spot.shown, said));
        }
        let (share, top) = look.saturated(d);
        let saturation = (share > 0.0).then_some(top as f32);
        drop(look);
        let camera = camera.map(|(camera, _)| camera);
        if let Some(text) = self.psf {
            let (psf, said) = PointSpread::parse(text, parts.size.len())?.of(d, &parts.size)?;
            if let Some(said) = said {
                self.voice.note(&spot.shown, &said);
            }
            restorer.set_psf(psf)?;
        }
        let replace = standing == Standing::InPart;
        self.restore(restorer, image, spot, &parts, &apart, camera, hash, replace, report, trace)?;
        if self.validity.save_mask {
            let options = WriteOptions { replace: true, provenance: None };
            self.validity.save(image, saturation, &mask_path(&spot.base), &options)?;
        }
        Ok(Outcome::Done)
    }

    /// What is there of what this run would make: the output, and what goes beside it for each of its images.
    fn standing(
        &self,
        output: &Path,
        bases: &[PathBuf],
        hash: &str,
        restorer: &Restorer,
    ) -> Result<Standing> {
        if self.force {
            try_out(output, true)?;
            return Ok(Standing::InPart);
        }
        let masks: Vec<PathBuf> =
            bases.iter().filter(|_| self.validity.save_mask).map(|base| mask_path(base)).collect();
        if !exists(output)? {
            for path in &masks {
                if exists(path)? {
                    bail!("{}: exists already; --force replaces it", path.display());
                }
            }
            try_out(output, false)?;
            return Ok(Standing::Missing);
        }
        let earlier = Image::open(output).ok().and_then(|i| i.description.provenance);
        let of = |key: &str| earlier.as_ref().and_then(|p| p["parameters"].get(key));
        if of("settings") == Some(self.asked) && of("input").and_then(Value::as_str) == Some(hash) {
            let mut all = true;
            for (base, (suffix, _)) in
                bases.iter().flat_map(|b| self.beside(restorer).into_iter().map(move |s| (b, s)))
            {
                let [path, fallback] = beside_paths(base, &suffix);
                all = all && (exists(&path)? || fallback.exists());
            }
            for path in &masks {
                all = all && exists(path)?;
            }
            return Ok(if all { Standing::Done } else { Standing::InPart });
        }
        bail!(
            "{} exists already, made of something else or with other settings; choose another name, or say --force to replace it",
            output.display()
        )
    }

    fn warn(&self, shown: &Path, d: &Description, parts: &Parts, look: &Look, signal: &Signal) -> Result<()> {
        let (share, value) = look.saturated(d);
        if share > MOST_SATURATED {
            bail!(
                "{:.0} % of the pixels are saturated (they have the greatest value, {value}): what they held is lost and cannot be restored; take the image again with a shorter exposure",
                100.0 * share
            );
        }
        if share > WARN_SATURATED {
            let share = 100.0 * share;
            self.voice.note(
                shown,
                &format!("{share:.1} % of the pixels are saturated (value {value}); what is restored there is a guess from around them"),
            );
        }
        if let Signal::Fixed { input, .. } = signal
            && look.greatest() < input.low + LEAST_USED * (input.high - input.low)
        {
            self.voice.note(
                shown,
                &format!(
                    "its numbers reach {}, and the model was made for numbers from {} to {}: it will see next to nothing; convert the image first",
                    look.greatest(), input.low, input.high
                ),
            );
        }
        for warning in &d.warnings {
            self.voice.note(shown, warning);
        }
        let colour = d.dim(Axis::S).is_some_and(|s| s.len >= 3);
        if colour && d.dtype == DType::U8 {
            self.voice.note(
                shown,
                "an 8-bit colour picture: its numbers were processed for looking at and are no photon counts, so take the result with care; colours are restored one by one",
            );
        }
        if !parts.copied.is_empty() {
            self.voice.note(shown, "transparency is copied as it is");
        }
        Ok(())
    }

    fn restore(
        &self,
        restorer: &mut Restorer,
        image: &Image,
        spot: &Spot,
        parts: &Parts,
        apart: &Apart,
        camera: Option<Camera>,
        hash: &str,
        replace: bool,
        report: Option<&mut Report>,
        mut trace: Option<&mut Trace>,
    ) -> Result<()> {
        let start = Instant::now();
        let about = &restorer.model().about;
        let d = self.written(spot.description(image), restorer)?;
        // Where restored parts go, in the same order: another place only if they have other channels.
        let places = &Parts::of(&d, about.dims, about.channels)?;
        let form = Form::of(&d);
        let busy = if matches!(restorer.device(), Device::Cpu { .. }) { TOGETHER_CPU } else { TOGETHER_GPU };
        let together = (busy / parts.pixels()).clamp(1, 16).min(parts.all.len());
        let groups: Vec<&[Vec<usize>]> = parts.all.chunks(together).collect();
        let middle = parts.all.len() / 2;
        let choice = self.choice(restorer, image, spot, parts, apart, camera.as_ref())?;
        let forecast = restorer.prepare(&parts.size, together)?;
        self.voice.plan(&spot.shown, &forecast, groups.len(), &restorer.device().to_string())?;
        let mut line = Line::new(self.label.clone());
        let mut runs = 0;
        // Runs of the graph for a group that is not yet prepared: the last one may have fewer images.
        let expected = |group: &[Vec<usize>]| (forecast.runs * group.len()).div_ceil(together);
        let holds = parts.all.len() * parts.pixels() * places.channels * size_of::<f32>() <= HELD;
        let pixels = parts.all.len() * parts.pixels();
        let light = camera.map(|_| Light::default());
        let movie = Movie::of(&image.description, parts, restorer, camera).filter(|_| !self.frames_alone);
        let mut record = Record {
            pixels,
            clipped: 0,
            filled: 0,
            chi2: Vec::new(),
            strange: None,
            light,
            choice,
            exposures: Vec::new(),
        };
        let mut outputs = match holds {
            true => None,
            false => Some(self.outputs(
                spot,
                &d,
                restorer,
                replace,
                self.provenance(image, hash, camera, &forecast, None),
            )?),
        };
        let mut held: Vec<Restored> = Vec::new();
        let run = json!({"settings": self.asked, "input": hash, "camera": camera, "together": together});
        let kept = (groups.len() > 1).then(|| Kept::open(&spot.base, &run)).transpose()?;
        let mut found_parts = 0;
        let mut shown = None;
        for (g, group) in groups.iter().enumerate() {
            let mut measured = Vec::new();
            for part in *group {
                measured.push(Measured::read(&parts.source(image, part, apart), restorer.scratch())?);
            }
            let filled: usize = measured.iter().map(|m| m.filled).sum();
            record.filled += filled;
            if record.strange.is_none() {
                record.strange = self.strange(&spot.shown, restorer, &measured, camera.as_ref())?;
            }
            let numbers: Vec<u64> = (0..group.len()).map(|i| (g * together + i) as u64).collect();
            let found = kept.as_ref().and_then(|k| k.all(&numbers, restorer.scratch()));
            let made = match found {
                Some(found) => {
                    found_parts += found.len();
                    runs += expected(group);
                    found
                }
                None => {
                    let own = restorer.prepare(&parts.size, group.len())?.runs;
                    let total = runs + own + groups[g + 1..].iter().map(|g| expected(g)).sum::<usize>();
                    let made = restorer.restore(&measured, &numbers, camera.as_ref(), &mut || {
                        runs += 1;
                        if !self.voice.quiet {
                            line.show(runs, total);
                        }
                        Ok(())
                    })?;
                    if let Some(kept) = &kept {
                        numbers.iter().zip(&made).try_for_each(|(&n, part)| kept.put(n as usize, part))?;
                    }
                    made
                }
            };
            let file = (image, parts, apart);
            let help = |m: &Movie| m.help(restorer, file, group, &measured, &numbers, record.choice.as_ref());
            let helped = movie.as_ref().map(help).transpose()?;
            for (i, mut restored) in made.into_iter().enumerate() {
                let number = g * together + i;
                if let (Some(choice), Some(camera)) = (&record.choice, camera.as_ref()) {
                    choice.apply(&measured[i], camera, &mut restored)?;
                }
                record.exposures.extend(helped.as_ref().map(|h| h.finish(i, &mut restored)));
                if measured[i].filled > 0 && may_be_none(&d) {
                    parts.give_back(image, &parts.all[number], &mut restored.image)?;
                }
                record.chi2.extend(restored.mean_chi2);
                if let (Some(light), Some(camera)) = (&mut record.light, camera.as_ref()) {
                    light.see(restored.image.iter().map(|&v| camera.electrons(v)));
                }
                if let Some(trace) = trace.as_deref_mut() {
                    trace.add(&spot.shown, number, &restored.guided)?;
                }
                if number == middle && report.is_some() {
                    shown = Some(Shown::of(&spot.shown, image, parts, &measured[i], &restored, camera)?);
                }
                match &mut outputs {
                    Some(outputs) => record.clipped += outputs.write(places, number, &restored, &form)?,
                    None => {
                        record.clipped += places.clipped(&places.all[number], &restored.image, &form);
                        held.push(restored);
                    }
                }
            }
        }
        line.end();
        let mut outputs = match outputs {
            Some(outputs) => outputs,
            None => {
                let mut outputs = self.outputs(
                    spot,
                    &d,
                    restorer,
                    replace,
                    self.provenance(image, hash, camera, &forecast, Some(&record)),
                )?;
                for (number, restored) in held.iter().enumerate() {
                    outputs.write(places, number, restored, &form)?;
                }
                outputs
            }
        };
        drop(held);
        outputs.copy(image, parts, &form)?;
        let paths = outputs.finish()?;
        if let Some(kept) = kept {
            kept.clear();
        }
        if found_parts > 0 {
            self.voice.note(
                &spot.shown,
                &format!("{found_parts} of {} planes were restored by a run before", parts.all.len()),
            );
        }
        let reach = restorer.spread().filter(|_| self.std).map(|s| s.reach());
        self.tell(
            spot,
            image.description.item,
            &record,
            &form,
            &paths,
            start.elapsed().as_secs_f64(),
            camera,
            reach,
        )?;
        if let (Some(report), Some(shown)) = (report, shown) {
            let words = record.choice.as_ref().map(Choice::in_words).into_iter().chain(record.movie());
            let trusted = Some(words.collect::<Vec<_>>().join("; ")).filter(|w| !w.is_empty());
            report.add(
                &shown,
                camera,
                trusted,
                record.mean_chi2(),
                &forecast,
                start.elapsed().as_secs_f64(),
            )?;
        }
        Ok(())
    }

    /// What to trust: as asked for, or as the data of the middle part say.
    fn choice(
        &self,
        restorer: &mut Restorer,
        image: &Image,
        spot: &Spot,
        parts: &Parts,
        apart: &Apart,
        camera: Option<&Camera>,
    ) -> Result<Option<Choice>> {
        let Some(camera) = camera else { return Ok(None) };
        if let Some(only) = self.method {
            return Ok(Some(Choice::only(only)));
        }
        let part = &parts.all[parts.all.len() / 2];
        let measured = Measured::read(&parts.source(image, part, apart), restorer.scratch())?;
        let choice = choice::choose(restorer, &measured, camera, &mut || Ok(()))?;
        if choice.risk.is_some() {
            let (text, record) =
                (choice.in_words(), json!({"event": "choice", "input": spot.shown, "choice": choice}));
            self.voice.say(&format!("restored by: {text}"), record)?;
        }
        Ok(Some(choice))
    }

    /// Says once of a file that it is unlike what the model was trained on, and returns why.
    fn strange(
        &self,
        shown: &Path,
        restorer: &Restorer,
        images: &[Measured],
        camera: Option<&Camera>,
    ) -> Result<Option<String>> {
        for image in images {
            let Some(distance) = restorer.distance(image, camera)?.filter(|d| d.is_strange()) else {
                continue;
            };
            let than = if distance.high { "higher" } else { "lower" };
            let why = format!(
                "{} is {than} than in its images of {}, the nearest",
                distance.statistic, distance.kind
            );
            self.voice.note(
                shown,
                &format!(
                    "unlike what the model was trained on: {why}; it may draw what it knows instead of what is there: compare with `clearshot denoise`, look at --chi2 and --std, check --gain and --offset, or train on such images"
                ),
            );
            return Ok(Some(why));
        }
        Ok(None)
    }

    fn tell(
        &self,
        spot: &Spot,
        item: usize,
        record: &Record,
        form: &Form,
        paths: &[PathBuf],
        seconds: f64,
        camera: Option<Camera>,
        reach: Option<f64>,
    ) -> Result<()> {
        if record.filled > 0 {
            let n = record.filled;
            self.voice.note(
                &spot.shown,
                &format!("{n} pixels hold no measurement (not finite, saturated or masked): filled from their neighbours and left out of the measurement"),
            );
        }
        if record.clipped > 0 {
            let (n, name) = (record.clipped, form.dtype.name());
            self.voice.note(
                &spot.shown,
                &format!("{n} restored values did not fit {name} and were clipped; --float keeps them"),
            );
        }
        if let Some(said) = record.movie() {
            self.voice.say(
                &said,
                json!({"event": "movie", "input": spot.shown, "exposures": record.mean_exposures()}),
            )?;
        }
        let chi2 = record.mean_chi2();
        if let Some(chi2) = chi2.filter(|c| record.pixels >= FEW && !EXPLAINED.contains(c)) {
            let why = match chi2 >= EXPLAINED.end {
                true => {
                    "the restored image does not explain what was measured: offset, gain or read noise are not this image's, its noise is not a camera's, or the model does not know what is in it"
                }
                false => {
                    "there is less noise than the camera's numbers say: they are not this image's, or it was smoothed or averaged before"
                }
            };
            self.voice.note(
                &spot.shown,
                &format!("chi2 is {chi2:.2}, where about 1 is right: {why}; do not trust the result before that is mended"),
            );
        }
        let mut text =
            format!("{} -> {} ({}", spot.shown.display(), spot.output.display(), duration(seconds));
        if let Some(chi2) = chi2 {
            text += &format!(", chi2 {chi2:.2}");
        }
        if let Some(reach) = reach {
            text += &format!(", 90 % intervals are {reach:.2} times OUT_std to either side");
        }
        text += ")";
        self.voice.say(
            &text,
            json!({
                "event": "file", "input": self.input, "item": item, "output": spot.output, "status": "restored", "written": paths,
                "seconds": seconds, "clipped": record.clipped, "filled": record.filled, "chi2": chi2, "camera": camera,
                "strange": record.strange, "interval_90": reach, "regime": record.light.as_ref().map(Light::value),
            }),
        )
    }

    /// What the output is: the input, or the same in floats.
    fn described(&self, d: &Description) -> Description {
        if self.float { as_float(d) } else { d.clone() }
    }

    fn provenance(
        &self,
        image: &Image,
        hash: &str,
        camera: Option<Camera>,
        forecast: &Forecast,
        record: Option<&Record>,
    ) -> Value {
        let parameters = json!({
            "settings": self.asked,
            "input": hash,
            "camera": camera,
            "plan": {"tile": forecast.tile, "halo": forecast.halo, "tiles": forecast.tiles, "batch": forecast.batch},
            "clipped": record.map(|r| r.clipped),
            "filled": record.map(|r| r.filled),
            "chi2": record.and_then(Record::mean_chi2),
            "choice": record.and_then(|r| r.choice.as_ref()),
            "exposures": record.and_then(Record::mean_exposures),
        });
        Provenance::new("restore", &image.description, parameters).value()
    }

    /// What is written beside the image, by the ends of names.
    fn beside(&self, restorer: &Restorer) -> Vec<(String, Beside)> {
        let settings = restorer.settings();
        let deviation = self.std.then_some(("std".to_string(), Beside::Deviation));
        let chi2 = settings.chi2.then_some(("chi2".to_string(), Beside::Chi2));
        let samples = if settings.keep_samples { settings.samples } else { 0 };
        let samples = (0..samples).map(|k| (format!("sample{}", k + 1), Beside::Sample(k)));
        deviation.into_iter().chain(chi2).chain(samples).collect()
    }

    fn outputs(
        &self,
        spot: &Spot,
        d: &Description,
        restorer: &Restorer,
        replace: bool,
        provenance: Value,
    ) -> Result<Outputs> {
        let mut float = as_float(d);
        if spot.is_shared {
            // A map is of one image, so that its file has no place for the others.
            float.native = None;
        }
        let options = WriteOptions { replace, provenance: Some(provenance) };
        let mut beside = Vec::new();
        for (suffix, what) in self.beside(restorer) {
            if beside_paths(&spot.base, &suffix).iter().any(|path| same_place(self.input, path)) {
                bail!("OUT_{suffix} would replace the input; choose another name or folder");
            }
            let (path, writer) = writer_beside(&spot.base, &suffix, &float, &options)?;
            beside.push((what, path, writer));
        }
        let main = Writer::create(&spot.write, d, &options)?;
        Ok(Outputs { main, path: spot.output.clone(), float: Form::of(&float), beside })
    }
}

fn as_float(d: &Description) -> Description {
    let mut d = d.clone();
    if d.dtype != DType::F32 {
        d.dtype = DType::F32;
        d.bits = 32;
        d.rescale = None;
    } else if d.rescale.is_some() {
        d.rescale = None;
        d.native = None;
    }
    d
}

/// What is known when all parts are restored.
struct Record {
    pixels: usize,
    clipped: usize,
    filled: usize,
    chi2: Vec<f64>,
    /// Why the model is not made for it.
    strange: Option<String>,
    /// How much light there is, where the camera is known.
    light: Option<Light>,
    /// What was trusted.
    choice: Option<Choice>,
    /// Of each frame of a movie, how many exposures a pixel was restored from, in the mean.
    exposures: Vec<f64>,
}

/// Pixels of restored parts, and those of them with fewer than 1, 3 and 10 electrons.
#[derive(Default)]
struct Light {
    pixels: usize,
    below: [usize; 3],
}

impl Light {
    fn see(&mut self, electrons: impl Iterator<Item = f32>) {
        for e in electrons.filter(|e| e.is_finite()) {
            self.pixels += 1;
            self.below.iter_mut().zip([1.0, 3.0, 10.0]).for_each(|(n, limit)| *n += usize::from(e < limit));
        }
    }

    /// The shares, and whether shot noise is as good as Gaussian.
    fn value(&self) -> Value {
        let [below_1, below_3, below_10] = self.below.map(|n| n as f64 / self.pixels.max(1) as f64);
        let regime = Regime { below_1, below_3, below_10 };
        json!({ "below_1": below_1, "below_3": below_3, "below_10": below_10, "gaussian": regime.is_gaussian() })
    }
}

impl Record {
    fn mean_exposures(&self) -> Option<f64> {
        let n = self.exposures.len() as f64;
        (n > 0.0).then(|| self.exposures.iter().sum::<f64>() / n)
    }

    /// For people: how much neighbouring frames helped.
    fn movie(&self) -> Option<String> {
        let text = |mean| {
            format!(
                "a movie: a pixel was restored from {mean:.1} frames in the mean, where nothing moves; --frames-alone takes one"
            )
        };
        self.mean_exposures().map(text)
    }

    fn mean_chi2(&self) -> Option<f64> {
        (!self.chi2.is_empty()).then(|| self.chi2.iter().sum::<f64>() / self.chi2.len() as f64)
    }
}

#[derive(Clone, Copy)]
enum Beside {
    Deviation,
    Chi2,
    Sample(usize),
}

/// The files that are being written. The main one gets its name last, so that it is there only when all are.
struct Outputs {
    main: Writer,
    path: PathBuf,
    float: Form,
    beside: Vec<(Beside, PathBuf, Writer)>,
}

impl Outputs {
    fn write(&mut self, parts: &Parts, number: usize, restored: &Restored, form: &Form) -> Result<usize> {
        let part = &parts.all[number];
        for (what, _, writer) in &mut self.beside {
            let field: Option<&Field> = match *what {
                Beside::Deviation => restored.deviation.as_ref(),
                Beside::Chi2 => restored.chi2.as_ref(),
                Beside::Sample(k) => restored.samples.get(k),
            };
            let field = field.context("a map that was asked for was not made")?;
            parts.write(part, field, &self.float, writer)?;
        }
        parts.write(part, &restored.image, form, &mut self.main)
    }

    fn copy(&mut self, image: &Image, parts: &Parts, form: &Form) -> Result<()> {
        for (.., writer) in &mut self.beside {
            parts.copy(image, &self.float, writer)?;
        }
        parts.copy(image, form, &mut self.main)
    }

    fn finish(self) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for (_, path, writer) in self.beside {
            writer.finish()?;
            paths.push(path);
        }
        self.main.finish()?;
        paths.insert(0, self.path);
        Ok(paths)
    }
}

/// The names that OUT_suffix may have: in the output's format, or as a TIFF.
fn beside_paths(output: &Path, suffix: &str) -> [PathBuf; 2] {
    let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = stem(output);
    let ending = &name[stem.len()..];
    [ending, ".tif"].map(|ending| output.with_file_name(format!("{stem}_{suffix}{ending}")))
}

/// A writer for OUT_suffix, as a TIFF where the output's format holds no floats. One that an interrupted run of this
/// verb left is replaced.
fn writer_beside(
    output: &Path,
    suffix: &str,
    d: &Description,
    options: &WriteOptions,
) -> Result<(PathBuf, Writer)> {
    let [path, fallback] = beside_paths(output, suffix);
    let ours = |path: &Path| {
        let earlier = Image::open(path).ok().and_then(|i| i.description.provenance);
        earlier.is_some_and(|p| p["operation"] == "restore")
    };
    let create = |path: &Path, d: &Description| {
        let replace = options.replace || (exists(path)? && ours(path));
        Writer::create(path, d, &WriteOptions { replace, ..options.clone() })
    };
    match create(&path, d) {
        Ok(writer) => Ok((path, writer)),
        Err(
            e @ (ImageError::Exists { .. }
            | ImageError::Io { .. }
            | ImageError::DiskFull { .. }
            | ImageError::ReadOnly { .. }
            | ImageError::Remote { .. }),
        ) => Err(e.into()),
        Err(e) if is_address(output) => Err(e.into()),
        Err(_) => {
            let writer = create(&fallback, d)?;
            Ok((fallback, writer))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Light;
    use clearshot_physics::Electrons;
    use clearshot_physics::units::Regime;

    /// Part by part the shares are those of all pixels together.
    #[test]
    fn the_light_of_parts_is_that_of_the_whole() {
        let all: Vec<f32> = (0..400).map(|i| (i * 7 % 83) as f32 * 0.3 - 1.0).collect();
        let mut light = Light::default();
        all.chunks(130).for_each(|part| light.see(part.iter().copied().chain([f32::NAN])));
        let whole = Regime::of(Electrons(&all.iter().map(|&v| v.into()).collect::<Vec<f64>>()));
        let said = light.value();
        assert_eq!(said["below_1"], whole.below_1);
        assert_eq!(said["below_3"], whole.below_3);
        assert_eq!(said["below_10"], whole.below_10);
        assert_eq!(said["gaussian"], whole.is_gaussian());
    }
}
