//! One file: opened, each of its images looked at, restored and written; what a run before has made of it already.

use super::Voice;
use super::camera::{Given, Look};
use super::image::Work;
use super::parts::{Apart, Parts};
use super::report::Report;
use super::trace::Trace;
use super::written::{as_float, beside, beside_paths};
use crate::items::{self, Spot};
use crate::mask::{Validity, mask_path};
use crate::point_spread::PointSpread;
use anyhow::{Result, bail};
use clearshot_image::address::{exists, same_place, try_out};
use clearshot_image::collection::{self, Collection};
use clearshot_image::{Axis, DType, Description, Image, WriteOptions, fingerprint};
use clearshot_model::Signal;
use clearshot_restore::learned::{Camera, Candidate, Restorer};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

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

/// Shares of saturated pixels to tell of, and to refuse.
const WARN_SATURATED: f64 = 0.001;
const MOST_SATURATED: f64 = 0.5;
/// A model of fixed limits should see at least this share of its range.
const LEAST_USED: f64 = 0.02;

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

    /// What an image is written as by a model that may make other channels of it, in floats if those are wanted.
    pub fn written(&self, d: &Description, restorer: &Restorer) -> Result<Description> {
        let about = &restorer.model().about;
        let mut written = if self.float { as_float(d) } else { d.clone() };
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
        if let Some(method) =
            self.method.filter(|m| *m != Candidate::Model && about.input_channels() != about.channels)
        {
            bail!(
                "the model makes other channels than the image has, which --method {} cannot; leave it out",
                method.name()
            );
        }
        let look = Look::at(image, &parts)?;
        // What is there of a file with several images is known already.
        let standing = match spot.is_shared {
            true => Standing::Missing,
            false => self.standing(&spot.output, std::slice::from_ref(&spot.base), hash, restorer)?,
        };
        if standing == Standing::Done {
            return self.skipped(&spot.shown, &spot.output);
        }
        let found = look.saturation(d);
        let apart = Apart {
            saturation: self.validity.saturation.or(found.map(|(_, limit)| limit)),
            is_given: self.validity.saturation.is_some(),
            mask: self.validity.mask_of(image)?,
        };
        self.warn(&spot.shown, d, &parts, &look, &restorer.model().about.signal)?;
        let camera = self.camera(image, spot, &look, &apart, restorer)?;
        drop(look);
        if let Some(text) = self.psf {
            let (psf, said) = PointSpread::parse(text, parts.size.len())?.of(d, &parts.size)?;
            if let Some(said) = said {
                self.voice.note(&spot.shown, &said);
            }
            restorer.set_psf(psf)?;
        }
        let work = Work { job: self, image, spot, parts: &parts, apart: &apart, camera, hash };
        work.run(restorer, standing == Standing::InPart, report, trace)?;
        if self.validity.save_mask {
            let options = WriteOptions { replace: true, provenance: None };
            self.validity.save(image, apart.saturation, &mask_path(&spot.base), &options)?;
        }
        Ok(Outcome::Done)
    }

    /// The camera, told of where it was estimated. The blur and the measurement itself can do without.
    fn camera(
        &self,
        image: &Image,
        spot: &Spot,
        look: &Look,
        apart: &Apart,
        restorer: &Restorer,
    ) -> Result<Option<Camera>> {
        let found = match self.method {
            Some(Candidate::Gaussian(_) | Candidate::Raw) => look.camera(image, self.given, apart).ok(),
            Some(Candidate::Bm3d) => Some(look.camera(image, self.given, apart)?),
            _ if restorer.needs_camera() => Some(look.camera(image, self.given, apart)?),
            _ => self.given.gain.map(|_| look.camera(image, self.given, apart)).transpose()?,
        };
        let Some((camera, said)) = found else { return Ok(None) };
        said.iter().for_each(|said| self.voice.note(&spot.shown, said));
        look.contradicts(&camera).iter().for_each(|said| self.voice.note(&spot.shown, said));
        Ok(Some(camera))
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
            for base in bases {
                for (suffix, _) in beside(self.std, restorer) {
                    let [path, fallback] = beside_paths(base, &suffix);
                    all = all && (exists(&path)? || fallback.exists());
                }
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

    /// Says what to know of an image before it is restored, and refuses one that is saturated in most places.
    fn warn(&self, shown: &Path, d: &Description, parts: &Parts, look: &Look, signal: &Signal) -> Result<()> {
        let note = |text: &str| self.voice.note(shown, text);
        if let Some((share, limit)) = look.saturation(d) {
            let percent = 100.0 * share;
            if share > MOST_SATURATED {
                bail!(
                    "{percent:.0} % of the pixels are saturated (they have the greatest value, {limit}): what they held is lost and cannot be restored; take the image again with a shorter exposure"
                );
            }
            if share > WARN_SATURATED {
                note(&format!(
                    "{percent:.1} % of the pixels are saturated (value {limit}): they are estimated from their neighbours and from being at the limit"
                ));
            }
        }
        if let Signal::Fixed { input, .. } = signal
            && look.greatest() < input.low + LEAST_USED * (input.high - input.low)
        {
            note(&format!(
                "its numbers reach {}, and the model was made for numbers from {} to {}: it will see next to nothing; convert the image first",
                look.greatest(),
                input.low,
                input.high
            ));
        }
        d.warnings.iter().for_each(|warning| note(warning));
        let colour = d.dim(Axis::S).is_some_and(|s| s.len >= 3);
        if colour && d.dtype == DType::U8 {
            note(
                "an 8-bit colour picture: its numbers were processed for looking at and are not photon counts, so take the result with care; colours are restored one by one",
            );
        }
        if !parts.copied.is_empty() {
            note("transparency is copied as it is");
        }
        Ok(())
    }
}
