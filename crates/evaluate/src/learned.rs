//! Trained models as methods.

use crate::EvaluateError;
use crate::method::{Method, Restored, View};
use clearshot_model::{DEFAULT, Model, Signal};
use clearshot_restore::learned::{Camera, Measured, Restorer, Settings, Values, choice};
use clearshot_restore::saturated::NoiseLevel;
use clearshot_runtime::Device;
use std::cell::RefCell;
use std::path::PathBuf;

/// The built-in model, mixed with classical restorers as the image's own data decide.
pub const AUTO: &str = "auto";

/// A model with how it is asked: by one evaluation, and by samples where intervals are wanted.
pub struct Learned {
    name: String,
    identity: String,
    path: PathBuf,
    settings: Settings,
    device: Device,
    /// Whether it is mixed with others by what the data say.
    mixed: bool,
    /// Compiled for the PSF of the last view.
    restorer: RefCell<Restorer>,
}

impl Learned {
    /// A model from a file or folder, or by the name [`DEFAULT`], asked as usual.
    ///
    /// # Errors
    /// If there is none, or it cannot do what the settings ask.
    pub fn open(name: &str, settings: Settings, device: Device) -> Result<Learned, EvaluateError> {
        Learned::asked(name, device, |_| Ok(settings))
    }

    /// As [`Learned::open`], asked by settings that depend on the model.
    ///
    /// # Errors
    /// As [`Learned::open`], or what `settings` refuses.
    pub fn asked<E: From<EvaluateError>>(
        name: &str,
        device: Device,
        settings: impl FnOnce(&Model) -> Result<Settings, E>,
    ) -> Result<Learned, E> {
        let (mixed, named) = match name.strip_prefix(AUTO) {
            Some("") => (true, DEFAULT),
            Some(rest) if rest.starts_with(':') => (true, &rest[1..]),
            _ => (false, name),
        };
        let path = PathBuf::from(named);
        let model = Model::load(&path).map_err(EvaluateError::from)?;
        let settings = settings(&model)?;
        // Without samples the intervals are those of a network that says its error.
        let deviation = settings.samples == 0 && model.network.says_error();
        let settings = Settings { deviation, ..settings };
        let mut identity = format!(
            "model {} spread {:?} samples {} sampler {} steps {} seed {} output {:?}",
            model.hash(),
            model.about.spread,
            settings.samples,
            settings.sampler,
            settings.steps,
            settings.seed,
            settings.output
        );
        // What is as usual is not said, so that records from before it could be otherwise hold.
        let usual = Settings::default();
        for (name, is, usually) in [
            ("guidance", format!("{:?}", settings.guidance), format!("{:?}", usual.guidance)),
            ("tile", format!("{:?}", settings.tile), format!("{:?}", usual.tile)),
            ("precision", settings.precision.to_string(), usual.precision.to_string()),
        ] {
            if is != usually {
                identity += &format!(" {name} {is}");
            }
        }
        if let Some(class) = settings.class {
            identity += &format!(" class {class}");
        }
        if let Some(context) = &settings.context {
            identity += &format!(" context {:016x}", context.fingerprint());
        }
        if settings.taken_by != usual.taken_by {
            identity += &format!(" taken by {:?}", settings.taken_by);
        }
        if mixed {
            identity += " mixed 2";
        }
        let restorer = Restorer::new(model, settings.clone(), device).map_err(EvaluateError::from)?;
        let restorer = RefCell::new(restorer);
        Ok(Learned { name: name.into(), identity, path, settings, device, mixed, restorer })
    }
}

impl Learned {
    /// The same under another name in tables, for a model that is there with several settings.
    pub fn called(self, name: String) -> Learned {
        Learned { name, ..self }
    }
}

impl Method for Learned {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn is_learned(&self) -> bool {
        true
    }

    fn restore(&self, view: &View) -> Result<Restored, String> {
        let words = |e: &dyn std::fmt::Display| e.to_string();
        let mut restorer = self.restorer.borrow_mut();
        if restorer.settings().psf != view.psf {
            let model = Model::load(&self.path).map_err(|e| words(&e))?;
            let settings = Settings { psf: view.psf.clone(), ..self.settings.clone() };
            *restorer = Restorer::new(model, settings, self.device).map_err(|e| words(&e))?;
        }
        // A model of fixed limits was trained on the counts of files; to the others electrons are as good as counts.
        let (gain, offset) = match restorer.model().about.signal {
            Signal::Fixed { .. } => (view.gain, view.offset),
            Signal::Photons => (1.0, 0.0),
        };
        let (read_noise, background) = (view.read_noise, Some(view.background));
        let camera = Camera { gain, offset, read_noise, background, correlation: view.correlation };
        let counts: Vec<f32> = view.electrons.iter().map(|&e| camera.counts(e)).collect();
        let source = Values { values: &counts, size: &view.shape, channels: 1 };
        let mut measured = Measured::read(&source, restorer.scratch()).map_err(|e| words(&e))?;
        if let Some(full) = view.saturation {
            measured.saturate(camera.counts(full), NoiseLevel::of(&camera));
        }
        let measured = [measured];
        let choice = match self.mixed && view.psf.is_none() {
            true => Some(
                choice::choose(&mut restorer, &measured[0], &camera, None, &mut || Ok(()))
                    .map_err(|e| words(&e))?,
            ),
            false => None,
        };
        let made = restorer
            .restore(&measured, &[view.seed], Some(&camera), &mut || Ok(()))
            .map_err(|e| words(&e))?;
        let mut image = made.into_iter().next().ok_or("nothing came back")?;
        if let Some(choice) = choice {
            choice.apply(&measured[0], &camera, &mut image).map_err(|e| words(&e))?;
        }
        let reach = restorer.spread().map(|s| s.reach());
        let mean = image.image.iter().map(|&v| camera.electrons(v)).collect();
        let std = image.deviation.map(|d| d.iter().map(|&v| (f64::from(v) * gain) as f32).collect());
        Ok(Restored { mean, std, reach })
    }
}
