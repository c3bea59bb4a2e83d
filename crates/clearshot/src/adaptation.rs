//! Fits a model to noisy images without ground truth, and keeps it only if it helps.
//!
//! This is a training run that starts from the model (`experiment=adapt`): on repeats of the same fields if there are
//! any ([`crate::repeats`]), otherwise by splitting the electrons of the images. The gain is estimated on images, or
//! parts of images, that were not used for training ([`Gain`]). With repeats the estimate is valid for any noise that
//! is independent between exposures. With splits it is valid for noise of a camera that counts electrons; for other
//! noise nothing is trained. A model whose gain is not clear is not kept.

use crate::camera::KnownCamera;
use crate::error::{Error, Result};
use crate::observer::{Event, Observer};
use crate::repeats::{self, Found};
use crate::training::{Heard, open};
use clearshot_model::Model;
use clearshot_runtime::{Device, DeviceName};
use clearshot_tensor::DType;
use clearshot_train::calibration::{Within, calibrate_within, data_of};
use clearshot_train::config::{CalibrationConfig, RunConfig};
use clearshot_train::data::Data;
use clearshot_train::presets;
use clearshot_train::records::console::duration;
use clearshot_train::run::{BEST, CONFIG, Ending, Gain};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Default number of seconds on the CPU; on a GPU, that of the experiment.
const ON_THE_CPU: f64 = 300.0;
/// The share of the time that the spread of posterior samples may be calibrated in, beyond it.
const CALIBRATION: f64 = 0.2;

/// What the model learns from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdaptFrom {
    /// Repeats if most of the images are repeats, otherwise noise alone.
    #[default]
    Auto,
    /// Several exposures of the same fields: frames along T, the files of a folder, or files whose names differ in their last number.
    Repeats,
    /// Single images, by splitting their electrons.
    Noise,
}

/// How a model is fitted to images.
#[derive(Clone, Debug)]
pub struct AdaptSettings {
    /// Seconds of training. By default 60 on a GPU and 300 on the CPU.
    pub seconds: Option<f64>,
    /// Known camera parameters; gain, offset and read noise are estimated from each file if unknown.
    pub camera: KnownCamera,
    /// What to run on.
    pub device: DeviceName,
    /// Configuration overrides for training, as [`crate::TrainSettings::overrides`].
    pub overrides: Vec<String>,
    /// Keeps the run's folder here. By default it is in the system's folder for temporary files, and removed at the end.
    pub folder: Option<PathBuf>,
    /// Resumes the run in `folder`, on the same images and with the same initial model.
    pub resume: bool,
    /// Trains even where the gain cannot be estimated.
    pub anyway: bool,
    /// What to learn from.
    pub from: AdaptFrom,
}

impl Default for AdaptSettings {
    fn default() -> AdaptSettings {
        AdaptSettings {
            seconds: None,
            camera: KnownCamera::default(),
            device: DeviceName::Auto,
            overrides: vec![],
            folder: None,
            resume: false,
            anyway: false,
            from: AdaptFrom::Auto,
        }
    }
}

/// A model that was fitted to images, and the initial model.
pub struct Adapted {
    /// The initial model.
    pub start: Model,
    /// The best model of the run. `None` if this is the initial model.
    pub adapted: Option<Model>,
    /// Whether it was fitted with repeats of the same fields, or with noise alone.
    pub from_repeats: bool,
    /// The gain, if it could be estimated.
    pub gain: Option<Gain>,
    /// Whether the gain is clear, so that the model is kept.
    pub kept: bool,
    /// Why the gain cannot be estimated.
    pub refused: Option<String>,
    /// Iterations that were trained.
    pub iterations: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Whether the observer stopped the run before its end.
    pub interrupted: bool,
}

/// Fits a model to noisy images: files, or one folder or glob pattern. If the observer returns `Break`, the run ends
/// with its current result. If its folder is kept ([`AdaptSettings::folder`]) it can be resumed, with bit-identical
/// results if its length is set in iterations and not in seconds.
///
/// # Errors
/// If the images are not suitable for training, the run fails, its folder exists, or the folder has no run on these
/// images to resume.
pub fn adapt(
    images: &[PathBuf],
    model: Model,
    settings: &AdaptSettings,
    observer: &mut dyn Observer,
) -> Result<Adapted> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let passing = settings.folder.is_none();
    if settings.resume && passing {
        return Err(Error::setting("resume", "the folder of the run is needed: folder"));
    }
    let folder = settings.folder.clone().unwrap_or_else(|| {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        std::env::temp_dir().join(format!("clearshot-adapt-{}-{number}", std::process::id()))
    });
    let folder = std::path::absolute(&folder).map_err(io(&folder))?;
    let made = fit(images, model, settings, &folder, observer);
    if passing && folder.is_dir() {
        std::fs::remove_dir_all(&folder).map_err(io(&folder))?;
    }
    made
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_path_buf();
    |source| Error::Io { path, source }
}

/// A text as a value of YAML.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The key of the images and its value: a single name, or a list file in the folder for several.
fn images_key(images: &[PathBuf], folder: &Path) -> Result<String> {
    let named = |path: &Path| {
        let text = path.to_str().map(str::to_string);
        text.ok_or_else(|| Error::Refused(format!("{}: not a name in UTF-8", path.display())))
    };
    if let [one] = images {
        return Ok(format!("data.inputs={}", quoted(&named(one)?)));
    }
    let mut text = "input\n".to_string();
    for file in whole(images) {
        text += &format!("\"{}\"\n", named(&file)?.replace('"', "\"\""));
    }
    let list = folder.join("images.csv");
    std::fs::write(&list, text).map_err(io(&list))?;
    Ok(format!("data.manifest={}", quoted(&named(&list)?)))
}

/// What a run of `adapt` is known by when it is resumed: a file in its folder, written before the first iteration.
#[derive(Serialize, Deserialize)]
struct Begun {
    /// The images as they were named, from the root of the file system.
    images: Vec<PathBuf>,
    from_repeats: bool,
    /// Why the gain cannot be estimated.
    refused: Option<String>,
}

impl Begun {
    fn path(folder: &Path) -> PathBuf {
        folder.join("adapt.json")
    }

    fn write(&self, folder: &Path) -> Result<()> {
        let path = Begun::path(folder);
        let text = serde_json::to_string_pretty(self).map_err(|e| io(&path)(e.into()))?;
        std::fs::write(&path, text).map_err(io(&path))
    }

    /// What there is to resume in a folder, on these images.
    fn read(folder: &Path, images: &[PathBuf]) -> Result<Begun> {
        let path = Begun::path(folder);
        let none = |why: &dyn std::fmt::Display| {
            Error::Refused(format!("{}: no run to resume: {why}", folder.display()))
        };
        let text = std::fs::read_to_string(&path).map_err(|e| none(&e))?;
        let begun: Begun = serde_json::from_str(&text).map_err(|e| none(&e))?;
        if begun.images != whole(images) {
            let names: Vec<String> = begun.images.iter().map(|path| path.display().to_string()).collect();
            return Err(none(&format!("it was started with other images: {}", names.join(", "))));
        }
        Ok(begun)
    }
}

/// Names that hold wherever the program is started.
fn whole(images: &[PathBuf]) -> Vec<PathBuf> {
    let whole = |path: &PathBuf| match clearshot_image::address::is_address(path) {
        true => path.clone(),
        false => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
    };
    images.iter().map(whole).collect()
}

fn fit(
    images: &[PathBuf],
    start: Model,
    settings: &AdaptSettings,
    folder: &Path,
    observer: &mut dyn Observer,
) -> Result<Adapted> {
    let out = folder.join("run");
    let first = folder.join("first.clearshot");
    let earlier = settings.resume.then(|| Begun::read(folder, images)).transpose()?;
    let start = if earlier.is_some() { Model::load(&first)? } else { start };
    let (mut config, from_repeats) = match &earlier {
        Some(begun) => (presets::read_again(&out.join(CONFIG), &settings.overrides)?, begun.from_repeats),
        None => {
            std::fs::create_dir_all(folder).map_err(io(folder))?;
            start.save_file(&first, DType::F32)?;
            new_run(images, &first, settings, folder, observer)?
        }
    };
    let device = config.device()?;
    let is_set = settings.overrides.iter().any(|c| c.starts_with("trainer.seconds="));
    match (config.trainer.iterations, device) {
        // A number of iterations takes the place of the time.
        (Some(_), _) => config.trainer.seconds = None,
        (None, _) if settings.seconds.is_some() => config.trainer.seconds = settings.seconds,
        (None, Device::Cpu { .. }) if !is_set && earlier.is_none() => {
            config.trainer.seconds = Some(ON_THE_CPU);
        }
        _ => {}
    }
    let mut heard = Heard { observer, folder: out.clone(), stopped: false };
    let mut run = open(config, &out, earlier.is_some(), &mut heard)?;
    let refused = match earlier {
        Some(begun) => begun.refused,
        None => {
            let refused = run.noise_law()?.and_then(|law| law.refusal());
            Begun { images: whole(images), from_repeats, refused: refused.clone() }.write(folder)?;
            refused
        }
    };
    if refused.is_some() && !settings.anyway {
        let seconds = run.progress().seconds;
        return Ok(Adapted {
            start,
            adapted: None,
            from_repeats,
            gain: None,
            kept: false,
            refused,
            iterations: 0,
            seconds,
            interrupted: false,
        });
    }
    let summary = run.train(&AtomicBool::new(false), None)?;
    drop(run);
    let best = out.join(BEST);
    let changed = best.is_file() && summary.best > summary.start;
    let gain = summary.gain.filter(|_| changed);
    let kept = refused.is_none() && gain.is_some_and(|gain| gain.is_sure());
    let most = if kept { CALIBRATION * summary.seconds } else { 0.0 };
    let adapted = changed.then(|| with_spread(&start, &best, device, most, &mut heard)).transpose()?;
    let (iterations, seconds) = (summary.iteration, summary.seconds);
    let interrupted = summary.ending == Ending::Interrupted;
    Ok(Adapted { start, adapted, from_repeats, gain, kept, refused, iterations, seconds, interrupted })
}

/// The configuration of a new run from the model in a file, and whether it learns from repeats.
fn new_run(
    images: &[PathBuf],
    first: &Path,
    settings: &AdaptSettings,
    folder: &Path,
    observer: &mut dyn Observer,
) -> Result<(RunConfig, bool)> {
    let mut overrides = vec!["experiment=adapt".to_string()];
    let repeats = repeats_of(images, settings, folder, observer)?;
    match &repeats {
        Some(pairs) => {
            let list = pairs.manifest.display().to_string();
            overrides.extend(["task=noise2noise".to_string(), "data=pairs".to_string()]);
            overrides.push(format!("data.manifest={}", quoted(&list)));
            overrides.push(format!("data.averaged={}", pairs.averaged));
            overrides.push(format!("data.invalid={}", pairs.gaps));
        }
        None => overrides.push(images_key(images, folder)?),
    }
    overrides.push(format!("model.init={}", quoted(&first.display().to_string())));
    overrides.push(format!("trainer.device={}", settings.device));
    let KnownCamera { gain, offset, read_noise, .. } = settings.camera;
    for (key, value) in [("gain", gain), ("offset", offset), ("read_noise", read_noise)] {
        overrides.extend(value.map(|value| format!("data.{key}={value}")));
    }
    overrides.extend(settings.overrides.iter().cloned());
    Ok((presets::read(None, &overrides)?, repeats.is_some()))
}

/// Repeats among the images, where they are to be learned from.
fn repeats_of(
    images: &[PathBuf],
    settings: &AdaptSettings,
    folder: &Path,
    observer: &mut dyn Observer,
) -> Result<Option<repeats::Pairs>> {
    if settings.from == AdaptFrom::Noise {
        return Ok(None);
    }
    let place = folder.join("repeats");
    std::fs::create_dir_all(&place).map_err(io(&place))?;
    let note = match repeats::find(images, &settings.camera, &place, observer)? {
        Found::Pairs(pairs) => {
            let _ = observer.event(folder, &Event::Note(&pairs.note));
            return Ok(Some(pairs));
        }
        Found::Few(why) => why,
    };
    if settings.from == AdaptFrom::Repeats {
        let unnamed = "no images of one field: repeats are frames along T, the files of a folder, or files whose names differ in their last number";
        return Err(Error::Refused(note.unwrap_or_else(|| unnamed.into())));
    }
    if let Some(why) = note {
        let _ = observer.event(folder, &Event::Note(&format!("{why}; each image is used separately")));
    }
    Ok(None)
}

/// The adapted model with a calibrated spread: found on images as the first model was trained on, where there is time, else that of the first
/// model.
fn with_spread(
    start: &Model,
    best: &Path,
    device: Device,
    most: f64,
    mut heard: &mut Heard<'_>,
) -> Result<Model> {
    let load = || Ok(Model::load(best)?);
    let mut model = Model::load(best)?;
    model.about.spread = start.about.spread.clone();
    let (Some(_), Ok(config), true) = (&start.about.spread, data_of(start), most > 0.0) else {
        return Ok(model);
    };
    let data = Data::new(&config)?;
    let (how, size) = (CalibrationConfig::default(), &start.about.crop);
    let stop = AtomicBool::new(false);
    let text = match calibrate_within(most, &load, &data, size, &how, device, &stop, &mut heard)? {
        Within::Made(calibrated, found) => {
            model.about.spread = calibrated.about.spread;
            format!("90 % intervals of its samples contain {:.1} % of the truths", 100.0 * found.after)
        }
        _ => {
            "there was no time to calibrate its samples; they use the calibration of the initial model".into()
        }
    };
    let _ = heard.observer.event(&heard.folder, &Event::Note(&text));
    Ok(model)
}

impl Adapted {
    /// The model to restore with.
    pub fn into_model(self) -> Model {
        match self.adapted {
            Some(adapted) if self.kept => adapted,
            _ => self.start,
        }
    }

    /// The result as JSON, for records.
    pub fn record(&self) -> Value {
        json!({
            "kept": self.kept, "from": if self.from_repeats { "repeats" } else { "noise" }, "refused": self.refused, "gain_db": self.gain.map(|g| g.db), "gain_error_db": self.gain.map(|g| g.error),
            "gain_doubt_db": self.gain.map(|g| g.doubt), "crops": self.gain.map(|g| g.images),
            "seconds": self.seconds, "iterations": self.iterations, "interrupted": self.interrupted,
        })
    }

    /// The result as a sentence.
    pub fn in_words(&self) -> String {
        let what = match (self.gain, self.kept) {
            _ if self.iterations == 0 => {
                return format!("not adapted: {}", self.refused.as_deref().unwrap_or("it was stopped"));
            }
            (Some(gain), true) => gain.in_words(),
            (Some(gain), false) => match &self.refused {
                Some(why) => format!("{}; that cannot be relied on: {why}", gain.in_words()),
                None => format!("its gain is not clear: {}", gain.in_words()),
            },
            (None, _) => "it does not help: no checkpoint was better than the initial model".into(),
        };
        let by = if self.from_repeats { "repeats" } else { "noise alone" };
        format!("adapted from {by} in {} iterations, {}: {what}", self.iterations, duration(self.seconds))
    }
}
