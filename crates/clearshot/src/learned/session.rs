//! A model on the images of one file or array: existing outputs, checks of each image before it is restored, and its
//! camera.

use super::binning::{Binned, within_budget};
use super::budget::fitted;
use super::engine::Engine;
use super::image::{Finished, Work, written};
use super::outputs::{beside, beside_paths};
use super::parts::Parts;
use crate::background::BackgroundMap;
use crate::conditions::classes_left_out;
use crate::error::{Error, Result};
use crate::items::Spot;
use crate::look::Look;
use crate::notice::Notice;
use crate::observer::{Ear, Event};
use crate::settings::{Settings, Stacks};
use crate::target::Destination;
use crate::validity::{Validity, mask_path};
use clearshot_image::address::{exists, try_out};
use clearshot_image::{Axis, DType, Description, Dim, Image};
use clearshot_model::{Model, Signal};
use clearshot_restore::learned::colours::SampleNoise;
use clearshot_restore::learned::{Camera, Candidate, Restorer};
use clearshot_runtime::Device;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Shares of saturated pixels to tell of, and to refuse.
const WARN_SATURATED: f64 = 0.001;
const MOST_SATURATED: f64 = 0.5;
/// A model of fixed limits should see at least this share of its range.
const LEAST_USED: f64 = 0.02;
/// Planes from which on a stack is restored as a volume.
const LEAST_PLANES: usize = 4;

/// A model. For the built-in one also the model for volumes, which is loaded when a stack first needs it.
pub struct Learned {
    usual: Mutex<Engine>,
    volumes: Option<OnceLock<Option<Mutex<Engine>>>>,
    /// The origin of the model, for the record.
    pub origin: Option<Value>,
}

/// See the module.
pub struct Session<'s> {
    engine: MutexGuard<'s, Engine>,
    settings: &'s Settings,
    /// The settings as the record has them.
    asked: Value,
    /// The fingerprint of the file.
    hash: String,
}

/// The state of the outputs before a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Missing,
    /// Complete: the same model, input and settings, with all additional outputs.
    Done,
    /// Incomplete, or may be replaced.
    InPart,
}

/// A thread that panicked while it restored leaves nothing half done in an engine that the next image would see.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Learned {
    pub fn new(model: Model, device: Device, is_builtin: bool) -> Result<Learned> {
        let volumes = is_builtin.then(OnceLock::new);
        Ok(Learned { usual: Mutex::new(Engine::new(model, device)?), volumes, origin: None })
    }

    /// The same on another device.
    pub fn on(self, device: Device) -> Result<Learned> {
        let model = self.usual.into_inner().unwrap_or_else(PoisonError::into_inner).into_model();
        Ok(Learned { origin: self.origin, ..Learned::new(model, device, self.volumes.is_some())? })
    }

    /// The name of the model.
    pub fn name(&self) -> String {
        self.with_model(|model| model.about.name.clone())
    }

    /// Calls a function with the model.
    pub fn with_model<T>(&self, look: impl FnOnce(&Model) -> T) -> T {
        look(lock(&self.usual).model())
    }

    /// Refuses settings that the model does not support.
    pub fn check(&self, settings: &Settings) -> Result<()> {
        settings.check()?;
        lock(&self.usual).ready(settings)?;
        Ok(())
    }

    /// The settings in the form of the record in outputs.
    pub fn record(&self, settings: &Settings) -> Result<Value> {
        let mut engine = lock(&self.usual);
        self.asked(&mut engine, settings)
    }

    fn asked(&self, engine: &mut Engine, settings: &Settings) -> Result<Value> {
        let hash = engine.hash();
        settings.record(engine.ready(settings)?, &hash, self.origin.as_ref())
    }

    /// The model, compiled for the settings; `hash` is the fingerprint of its file.
    ///
    /// # Errors
    /// If the model cannot do what the settings ask.
    pub fn session<'s>(
        &'s self,
        settings: &'s Settings,
        first: &Description,
        hash: String,
        ear: &mut Ear<'_>,
    ) -> Result<Session<'s>> {
        let mut engine = match self.for_volumes(settings, first, ear)? {
            Some(engine) => engine,
            None => lock(&self.usual),
        };
        let asked = self.asked(&mut engine, settings)?;
        Ok(Session { engine, settings, asked, hash })
    }

    /// The built-in model for volumes, if there is one and the image is a stack that it may take.
    fn for_volumes(
        &self,
        settings: &Settings,
        first: &Description,
        ear: &mut Ear<'_>,
    ) -> Result<Option<MutexGuard<'_, Engine>>> {
        let by_model = settings.only.is_none_or(|only| only == Candidate::Model);
        let own = settings.psf.is_some() || settings.guidance.is_some() || settings.law.is_some();
        let planes = first.dim(Axis::Z).map_or(1, |z| z.len);
        if settings.stacks == Stacks::Planes || own || !by_model || planes < LEAST_PLANES {
            return Ok(None);
        }
        let Some(engine) = self.volumes()?.map(lock) else { return Ok(None) };
        ear.event(&Event::Volume { model: &engine.model().about.name, planes })?;
        Ok(Some(engine))
    }

    fn volumes(&self) -> Result<Option<&Mutex<Engine>>> {
        let Some(slot) = &self.volumes else { return Ok(None) };
        if slot.get().is_none() {
            let device = *lock(&self.usual).device();
            let made =
                Model::volumes()?.map(|model| Engine::new(model, device).map(Mutex::new)).transpose()?;
            // Another thread may have been faster, with the same.
            let _ = slot.set(made);
        }
        Ok(slot.get().and_then(Option::as_ref))
    }
}

impl Session<'_> {
    /// The description of the output for an image.
    pub fn written(&self, d: &Description) -> Result<Description> {
        written(d, &self.engine.model().about, self.settings.float)
    }

    /// Checks which outputs of this run already exist: the output, and the additional outputs of each of its images.
    ///
    /// # Errors
    /// If another file exists there and may not be replaced.
    pub fn standing(&mut self, output: &Path, bases: &[PathBuf]) -> Result<Standing> {
        if self.settings.replace {
            try_out(output, true)?;
            return Ok(Standing::InPart);
        }
        let save_mask = self.settings.save_mask;
        let masks: Vec<PathBuf> = bases.iter().filter(|_| save_mask).map(|base| mask_path(base)).collect();
        if !exists(output)? {
            for path in masks {
                if exists(&path)? {
                    return Err(clearshot_image::Error::Exists { path }.into());
                }
            }
            try_out(output, false)?;
            return Ok(Standing::Missing);
        }
        let earlier = Image::open(output).ok().and_then(|i| i.description.provenance);
        let of = |key: &str| earlier.as_ref().and_then(|p| p["parameters"].get(key));
        let restorer = self.engine.ready(self.settings)?;
        // A result does not depend on tiles, but for networks that look at all of one.
        let essential = |settings: &Value| {
            let mut settings = settings.clone();
            if let Some(all) = settings.as_object_mut().filter(|_| !restorer.depends_on_tiles()) {
                all.remove("tile");
            }
            settings
        };
        let same = of("settings").is_some_and(|s| essential(s) == essential(&self.asked));
        if !same || of("input").and_then(Value::as_str) != Some(&self.hash) {
            return Err(Error::Other { path: output.to_path_buf() });
        }
        let maps = beside(self.settings, restorer);
        let mut all = true;
        for base in bases {
            for (suffix, _) in &maps {
                let [path, fallback] = beside_paths(base, suffix);
                all = all && (exists(&path)? || fallback.exists());
            }
        }
        for path in &masks {
            all = all && exists(path)?;
        }
        Ok(if all { Standing::Done } else { Standing::InPart })
    }

    /// The binned image, if the time limit requires it and binning is allowed; saturated pixels are detected before.
    ///
    /// # Errors
    /// If it cannot be read, or binned.
    pub fn binned(
        &mut self,
        image: &Image,
        spot: &Spot,
        given: &mut Validity,
        ear: &mut Ear<'_>,
    ) -> Result<Option<Binned>> {
        if !self.settings.allow_binning {
            return Ok(None);
        }
        let (d, about) = (&image.description, &self.engine.model().about);
        let parts = Parts::of(d, about.dims, about.input_channels())?;
        let found = Look::at(image, &parts)?.saturation(d).map(|(_, limit)| limit);
        given.saturation = given.saturation.or(found);
        within_budget(&mut self.engine, self.settings, image, spot, given.saturation, ear)
    }

    /// Restores one image with this binning factor.
    ///
    /// # Errors
    /// If it cannot be read, restored or written, or the observer stops it.
    pub fn restore(
        &mut self,
        image: &Image,
        side: usize,
        given: Validity,
        to: Destination<'_>,
        ear: &mut Ear<'_>,
    ) -> Result<(Finished, Validity)> {
        let d = &image.description;
        let of_means = (side > 1).then(|| self.settings.binned(side));
        let settings = of_means.as_ref().unwrap_or(self.settings);
        let fewer = fitted(&mut self.engine, settings, d, ear)?;
        let settings = fewer.as_ref().unwrap_or(settings);
        let restorer = self.engine.ready(settings)?;
        let about = &restorer.model().about;
        let parts = Parts::of(d, about.dims, about.input_channels())?;
        let makes_others = about.input_channels() != about.channels;
        if let Some(only) = settings.only.filter(|only| makes_others && *only != Candidate::Model) {
            let why = format!(
                "the model makes other channels than the image has, which {} cannot; leave it out",
                only.name()
            );
            return Err(Error::setting("only", why));
        }
        if makes_others && settings.background.is_some() {
            let why = "the model makes other channels than the image has; leave the background out";
            return Err(Error::setting("background", why));
        }
        if let Some(classes) =
            classes_left_out(restorer).filter(|_| settings.only.is_none_or(|o| o == Candidate::Model))
        {
            ear.notice(Notice::WithoutClass(classes))?;
        }
        let look = Look::at(image, &parts)?;
        warn(d, &parts, &look, &about.signal, ear)?;
        let found = look.saturation(d).map(|(_, limit)| limit);
        let validity = Validity { saturation: given.saturation.or(found), ..given };
        let (camera, sample_noise) = camera(settings, image, &look, &validity, restorer, ear)?.unzip();
        drop(look);
        let map = settings.background.as_deref().map(|path| BackgroundMap::open(path, d)).transpose()?;
        let mean = |c: &Camera| map.as_ref().map(|map| (c.gain * (map.mean() - c.offset)).max(0.0));
        let camera = camera.map(|c| Camera { background: mean(&c).or(c.background), ..c });
        if let Some(psf) = &settings.psf {
            let (psf, notice) = psf.fit(d, &parts.size)?;
            notice.map_or(Ok(()), |notice| ear.notice(notice))?;
            restorer.set_psf(psf)?;
        }
        let (asked, parts, hash) = (&self.asked, &parts, &self.hash[..]);
        let background = map.as_ref();
        let validity_of = &validity;
        let work = Work {
            settings,
            asked,
            image,
            side,
            to,
            parts,
            validity: validity_of,
            background,
            camera,
            sample_noise,
            hash,
        };
        let finished = work.run(restorer, ear)?;
        Ok((finished, validity))
    }
}

/// The camera and its noise, with a notice if they were estimated. The Gaussian blur and the raw measurement need none.
fn camera(
    settings: &Settings,
    image: &Image,
    look: &Look,
    validity: &Validity,
    restorer: &Restorer,
    ear: &mut Ear<'_>,
) -> Result<Option<(Camera, SampleNoise)>> {
    let of = || settings.camera.of(image, validity);
    let found = match settings.only {
        Some(Candidate::Gaussian(_) | Candidate::Raw) => of().ok(),
        Some(Candidate::Bm3d) => Some(of()?),
        _ if restorer.needs_camera() || settings.camera.gain.is_some() => Some(of()?),
        _ => None,
    };
    let Some((camera, estimated)) = found else { return Ok(None) };
    let noise = match &estimated {
        None => SampleNoise::Given(camera),
        Some(e) if e.sees_gain() => SampleNoise::Growing(camera),
        Some(_) => SampleNoise::Uniform,
    };
    estimated.map_or(Ok(()), |e| ear.notice(Notice::Estimated(Box::new(e))))?;
    look.contradicts(&camera).map_or(Ok(()), |notice| ear.notice(notice))?;
    Ok(Some((camera, noise)))
}

/// Says what to know of an image before it is restored, and refuses one that is saturated in most places.
fn warn(d: &Description, parts: &Parts, look: &Look, signal: &Signal, ear: &mut Ear<'_>) -> Result<()> {
    if let Some((share, limit)) = look.saturation(d) {
        if share > MOST_SATURATED {
            return Err(Error::Unsuited(format!(
                "{:.0} % of the pixels are saturated (they have the greatest value, {limit}): what they held is lost and cannot be restored; take the image again with a shorter exposure",
                100.0 * share
            )));
        }
        if share > WARN_SATURATED {
            ear.notice(Notice::Saturated { share, limit })?;
        }
    }
    if let Signal::Fixed { input, .. } = signal
        && look.greatest() < input.low + LEAST_USED * (input.high - input.low)
    {
        let (greatest, range) = (look.greatest(), [input.low, input.high]);
        ear.notice(Notice::FaintForModel { greatest, range })?;
    }
    for warning in &d.warnings {
        ear.notice(Notice::File(warning.clone()))?;
    }
    if d.dim(Axis::S).is_some_and(|s| s.len >= 3) && d.dtype == DType::U8 {
        ear.notice(Notice::ProcessedColours)?;
    }
    // Frames and planes can help each other, if they are known to be such.
    let unnamed: Vec<&Dim> =
        d.dims.iter().filter(|a| matches!(a.axis, Axis::Other(_)) && a.len > 1).collect();
    if let ([dim], None, None) = (&unnamed[..], d.dim(Axis::T), d.dim(Axis::Z))
        && signal == &Signal::Photons
    {
        ear.notice(Notice::UnnamedAxis { letter: dim.axis.letter(), planes: dim.len, axes: d.axes() })?;
    }
    match parts.copied.is_empty() {
        true => Ok(()),
        false => ear.notice(Notice::TransparencyCopied),
    }
}
