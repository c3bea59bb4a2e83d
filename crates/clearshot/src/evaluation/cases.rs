//! The images and methods of an evaluation, with every combination of the swept values.

use super::settings::{EvaluateFiles, EvaluateSettings};
use crate::error::{Error, Result};
use crate::observer::{Event, Observer, go_on};
use crate::settings::Settings;
use clearshot_evaluate::files::{Pairs, Terms};
use clearshot_evaluate::{AUTO, Assumed, Bench, Case, DEFAULT, EvaluateError, Learned, Method, method};
use clearshot_model::{InputKind, Model};
use clearshot_physics::calibration::blind::Known;
use clearshot_physics::calibration::check_exposure;
use clearshot_restore::learned::{self, TakenByGiven};
use std::path::Path;

const MODELS: [&str; 3] = ["samples", "steps", "sampler"];
const CAMERAS: [&str; 5] = ["gain", "background", "read_noise", "psf", "shift"];

/// The images of a run: generated from a seed, or from files.
pub enum Cases {
    Scenes(Bench),
    Files(Box<Pairs>),
}

impl Cases {
    pub fn len(&self) -> usize {
        match self {
            Cases::Scenes(bench) => bench.len(),
            Cases::Files(pairs) => pairs.len(),
        }
    }

    pub fn name(&self, number: usize) -> Result<String, EvaluateError> {
        match self {
            Cases::Scenes(bench) => Ok(bench.name(number)),
            Cases::Files(pairs) => pairs.name(number),
        }
    }

    pub fn case(&self, number: usize) -> Result<Case, EvaluateError> {
        match self {
            Cases::Scenes(bench) => bench.case(number),
            Cases::Files(pairs) => pairs.case(number),
        }
    }

    pub fn assumed(&self) -> Assumed {
        match self {
            Cases::Scenes(bench) => bench.assumed,
            Cases::Files(_) => Assumed::default(),
        }
    }
}

/// Whether a name is that of a model, alone or mixed with classical methods (`auto`, `auto:FILE`).
fn is_model(name: &str) -> bool {
    let alone = name.strip_prefix(AUTO).map_or(name, |rest| rest.strip_prefix(':').unwrap_or(DEFAULT));
    alone == DEFAULT || Path::new(alone).exists()
}

fn wrong(setting: &str, why: &str) -> Error {
    Error::value("sweep", setting, why)
}

impl EvaluateSettings {
    /// Methods by their names: those that need no training, `default`, and the paths of models, with every combination of
    /// the models' settings that are swept.
    pub(super) fn methods(&self, names: &[impl AsRef<str>]) -> Result<Vec<Box<dyn Method>>> {
        let usual = learned::Settings {
            samples: self.samples,
            sampler: self.sampler.clone(),
            steps: self.steps,
            seed: self.seed,
            ..Default::default()
        };
        let mut out: Vec<Box<dyn Method>> = Vec::new();
        let mut asked = learned::Settings::default();
        for name in names.iter().map(|n| n.as_ref().trim()) {
            // A method's name means the method, also where a folder is called the same.
            match method::by_name(name) {
                Ok(found) => {
                    out.push(found);
                    continue;
                }
                Err(e) if !is_model(name) => return Err(e.into()),
                Err(_) => {}
            }
            for combination in clearshot_config::sweep(&self.swept(true)?)? {
                let mut settings = usual.clone();
                for setting in &combination {
                    let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
                    let number = || value.trim().parse().map_err(|_| wrong(setting, "a number is needed"));
                    match key {
                        "samples" => settings.samples = number()?,
                        "steps" => settings.steps = number()?,
                        _ => settings.sampler = value.trim().into(),
                    }
                }
                let device = self.device.device(self.threads)?;
                let opened = Learned::asked(name, device, |model| {
                    let settings = self.conditioned(settings, model)?;
                    asked.class = asked.class.or(settings.class);
                    asked.context = asked.context.take().or_else(|| settings.context.clone());
                    Ok(settings)
                });
                let model = opened.map_err(|e: Error| e.at(format!("model {name}")))?;
                out.push(Box::new(match combination.is_empty() {
                    true => model,
                    false => model.called(format!("{name} ({})", combination.join(", "))),
                }));
            }
        }
        let unused = [
            ("class", self.class.is_some() && asked.class.is_none()),
            ("context", self.context.is_some() && asked.context.is_none()),
        ];
        match unused.into_iter().find(|(_, unused)| *unused) {
            Some((key, _)) => Err(Error::setting(
                key,
                "none of the methods is a model that is conditioned on one; leave it out",
            )),
            None => Ok(out),
        }
    }

    /// Settings with what this model is conditioned on, of what is given: other models are compared without it.
    fn conditioned(&self, settings: learned::Settings, model: &Model) -> Result<learned::Settings> {
        let inputs = model.condition_inputs();
        let has = |kind: fn(&InputKind) -> bool| inputs.iter().any(|i| kind(&i.kind));
        let is_classified = inputs.iter().any(|i| i.classes().is_some());
        let takes_camera = has(|kind| matches!(kind, InputKind::Vector(code) if code.camera));
        let own = Settings {
            class: self.class.clone().filter(|_| is_classified),
            context: self.context.clone().filter(|_| has(|kind| matches!(kind, InputKind::Context { .. }))),
            taken_by: if takes_camera { self.taken_by } else { TakenByGiven::default() },
            ..Settings::default()
        };
        let (class, context) = own.conditions(model)?;
        Ok(learned::Settings { class, context, taken_by: own.taken_by, ..settings })
    }

    /// Swept settings of models, or of the camera that methods are given.
    fn swept(&self, of_models: bool) -> Result<Vec<String>> {
        let mut out = Vec::new();
        for text in &self.sweep {
            let key = text.split('=').next().unwrap_or("").trim();
            let is_model = MODELS.contains(&key);
            if !is_model && !CAMERAS.contains(&key) {
                let known = format!("there are {} and {}", CAMERAS.join(", "), MODELS.join(", "));
                return Err(wrong(key, &known));
            }
            if is_model == of_models {
                out.push(text.clone());
            }
        }
        Ok(out)
    }

    /// The number of the camera that is swept, if it is one alone and at one size.
    pub(super) fn swept_alone(&self) -> Result<Option<String>> {
        let swept = self.swept(false)?;
        let key = swept.first().and_then(|text| text.split('=').next()).map(|k| k.trim().to_string());
        Ok(key.filter(|_| swept.len() == 1 && self.sizes.len() == 1))
    }

    /// Every combination of sizes and of what is swept, with what distinguishes it.
    pub(super) fn runs(&self, observer: &mut dyn Observer) -> Result<Vec<(String, Cases)>> {
        if let Some(files) = &self.files {
            if let Some(sweep) = self.swept(false)?.first() {
                let why = "the camera is swept over generated scenes only; leave it out with files, and give the camera's numbers";
                return Err(wrong(sweep, why));
            }
            let pairs = files.pairs()?;
            for text in &pairs.unpaired {
                go_on(observer.event(Path::new(&files.noisy), &Event::Warning(text)))?;
            }
            if let Some(text) = files.doubt_of_exposure(&pairs)? {
                go_on(observer.event(Path::new(&files.noisy), &Event::Warning(&text)))?;
            }
            return Ok(vec![(String::new(), Cases::Files(Box::new(pairs)))]);
        }
        let mut out = Vec::new();
        for &size in &self.sizes {
            for combination in clearshot_config::sweep(&self.swept(false)?)? {
                let bench = self.bench(size, &combination)?;
                let mut label: Vec<String> = combination;
                if self.sizes.len() > 1 {
                    label.insert(0, format!("{size} px"));
                }
                let label = if label.is_empty() { String::new() } else { format!(" ({})", label.join(", ")) };
                out.push((label, Cases::Scenes(bench)));
            }
        }
        Ok(out)
    }

    fn bench(&self, size: usize, combination: &[String]) -> Result<Bench> {
        let mut assumed = Assumed::default();
        for setting in combination {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            let place = match key.trim() {
                "gain" => &mut assumed.gain,
                "background" => &mut assumed.background,
                "read_noise" => &mut assumed.read_noise,
                "psf" => &mut assumed.psf,
                _ => &mut assumed.shift,
            };
            *place = value.trim().parse().map_err(|_| wrong(setting, "a factor is needed"))?;
        }
        let (scenes, peaks, count) = (self.scenes.clone(), self.peaks.clone(), self.count);
        let bench = Bench { scenes, peaks, count, size, seed: self.seed, psf_sigma: self.psf_sigma, assumed };
        bench.check()?;
        Ok(bench)
    }
}

impl EvaluateFiles {
    /// What there is to say of a ratio of exposures that was given, where the files show another: refused beyond 20 %, said beyond 10.
    fn doubt_of_exposure(&self, pairs: &Pairs) -> Result<Option<String>> {
        if self.exposure == 1.0 {
            return Ok(None);
        }
        let measured = pairs.measured_exposure(0)?;
        let close = check_exposure(self.exposure, measured)
            .map_err(|e| Error::value("exposure", self.exposure, e.to_string()))?;
        Ok((!close).then(|| {
            format!(
                "exposure {}: the files show a ratio of {measured:.3}; scores hold for the one given",
                self.exposure
            )
        }))
    }

    fn pairs(&self) -> Result<Pairs> {
        let known = Known {
            gain: self.camera.gain,
            offset: self.camera.offset,
            read_noise: self.camera.read_noise,
            correlation: self.camera.correlation,
            ..Known::default()
        };
        let terms = Terms { known, exposure: self.exposure, range: self.range, fit: self.fit };
        Ok(Pairs::new(&self.truth, &self.noisy, terms)?)
    }
}
