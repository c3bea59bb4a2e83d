//! The settings of restoring, and their record in the output files.

use crate::camera::KnownCamera;
use crate::error::{Error, Result};
use crate::psf::PointSpread;
use clearshot_image::{Image, fingerprint};
use clearshot_model::{Context, Model};
use clearshot_physics::Psf;
use clearshot_restore::learned::{self, Candidate, Guidance, Output, TakenByGiven, law};
use clearshot_runtime::Precision;
use serde_json::{Value, json};
use std::path::PathBuf;

/// See the module. The defaults are suitable for most images; fields that are `None` are chosen for the image, the
/// model or the device.
///
/// Fields from `only` to `scratch` apply to models: a classical restorer ignores how samples are drawn, and refuses
/// outputs that it does not support (`samples`, `std`, `chi2`).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Known camera parameters. A model estimates the others. A classical restorer with a given gain sets the others to
    /// zero; without a gain it estimates all of them. Default: nothing is known.
    pub camera: KnownCamera,
    /// The standard deviation of uniform noise, in the unit of the image, for classical denoisers. Default: camera
    /// noise.
    pub noise: Option<f32>,
    /// Frames of an empty field with the same camera and exposure, in counts; their mean is the background of each
    /// pixel. With models its uneven part is subtracted from the result, with Richardson-Lucy all of it. Default: the
    /// background of `camera`.
    pub background: Option<PathBuf>,
    /// Pixels at or above this value are saturated. Default: as set in `camera`, or the value at which pixels pile up
    /// at the top of the range.
    pub saturation: Option<f32>,
    /// An image of the same Y and X whose nonzero values mark invalid pixels (dead, hot). Default: none.
    pub mask: Option<PathBuf>,
    /// Restore this image of a multi-image file, by name or number. Default: all images.
    pub item: Option<String>,
    /// The axes of the file, one letter each in its order (`TYX` for a movie, `ZYX` for a stack), if they are missing
    /// or wrong in its metadata. The output has the axis names of the input. Default: the axes in the file.
    pub axes: Option<String>,
    /// Whether stacks are restored as volumes. Default: depends on the restorer.
    pub stacks: Stacks,
    /// The PSF of the blur to remove. Default: none.
    pub psf: Option<PointSpread>,
    /// The size of tiles in pixels. Default: chosen by memory.
    pub tile: Option<usize>,

    /// Restore with this method only. Default: model, BM3D, Gaussian blur and measurement are mixed by their errors,
    /// which are estimated from the image itself.
    pub only: Option<Candidate>,
    /// Restore each frame of a movie without its neighbours. Default: false.
    pub frames_alone: bool,
    /// Restore the red, green and blue samples of colour images separately. Default: false.
    pub colours_alone: bool,
    /// The number of posterior samples; two or more give a standard deviation. Default: 0, for the model's direct
    /// estimate; or 8 for `std` of models that do not predict it.
    pub samples: usize,
    /// How the restored image is computed. Default: the direct estimate, if the model has one.
    pub estimate: Option<Output>,
    /// Return the standard deviation of the posterior: as predicted by the model, or that of `samples` if these are
    /// requested. Default: false.
    pub std: bool,
    /// Return the map of chi2: about 1 where only noise was removed. Default: false.
    pub chi2: bool,
    /// Return the samples themselves. Default: false.
    pub save_samples: bool,
    /// How samples are drawn: ddpm, ddim, dpmpp, dpmpp-2m, dpmpp-3m, dpmpp-2m-sde, euler or heun, with settings as in `ddim:eta=0.5` and
    /// `heun:churn=40,noise=1.003`. Default: dpmpp-2m.
    pub sampler: String,
    /// Steps of the sampler. Default: 25.
    pub steps: usize,
    /// How the noise levels of the steps are spaced: `karras`, `karras:rho=5,max=20`, and for models with timesteps
    /// `trailing`, `leading:offset=1`, `linspace` and `quadratic`. Default: as intended for the model.
    pub levels: Option<String>,
    /// Start samples from the measurement with this much noise added, relative to the signal, where the model's range
    /// is 2. Default: from pure noise.
    pub begin: Option<f64>,
    /// Stages from coarse to fine: with 2, samples of the 2 x 2 binned image are drawn first; the samples of the full
    /// image start from them and keep them as their 2 x 2 means. With 3, the 4 x 4 binned image comes before that.
    /// Default: 1, the full image only.
    pub cascade: usize,
    /// Keep measured pixels as they are, and fill in only masked, saturated, NaN and infinite pixels. Default: false.
    pub inpaint: bool,
    /// The weight of classifier-free guidance, for models whose training sometimes dropped the measurement
    /// (`task.drop`) or the class (`task.drop_class`): 1 is the conditional prediction, larger values increase the
    /// weight of the dropped condition. Default: 1.
    pub classifier_free: f64,
    /// The class of the images, by its name or number, for models that are conditioned on it. Default: none, which is
    /// possible for models whose training dropped classes.
    pub class: Option<String>,
    /// The context for cross-attention, for example [`Context::read`] from a `.npy` file. Default: none, as for
    /// `class`.
    pub context: Option<Context>,
    /// Camera parameters for the conditioning vector of a model, instead of those of the image. Default: those of the
    /// image.
    pub taken_by: TakenByGiven,
    /// The seed of the samples. Default: 0.
    pub seed: u64,
    /// Guide the samples with this likelihood of the measurement: poisson-gaussian, shifted-poisson, gaussian, ...
    /// Default: none; with a PSF, shifted-poisson.
    pub guidance: Option<String>,
    /// The weight law of guidance: `proximal`, `proximal:strength=0.8`, `sigma-squared`, ... Default: proximal.
    pub law: Option<String>,
    /// The largest guidance correction of an image, as a root mean square where the model's range is 2. Default: none.
    pub clip: Option<f64>,
    /// Guide only while the noise of a sample, relative to the signal, is between these values. Default: always.
    pub gate: Option<[f64; 2]>,
    /// Report every guidance correction to the observer. Default: false.
    pub trace: bool,
    /// The number of tiles run at once. Default: as many as keep the device busy.
    pub batch: Option<usize>,
    /// Memory limit of the network on the device, in bytes. Default: chosen for the device.
    pub memory: Option<usize>,
    /// Take fewer steps than `steps` if restoring an image would take more seconds than this, by the measured time of
    /// the network. Results then depend on the machine. Default: no limit.
    pub max_seconds: Option<f64>,
    /// Bin the image 2 x 2, 4 x 4 or 8 x 8 if `max_seconds` is too short even with the fewest steps. The output has
    /// fewer and larger pixels, as 32-bit floats, and records this. Default: false, such a limit is refused.
    pub allow_binning: bool,
    /// Memory limit of network and image states together, in bytes: half of it is for the network unless `memory` is
    /// set; states that do not fit are in temporary files. Default: 512 MiB for the network on a CPU and 768 MiB for
    /// states.
    pub max_memory: Option<usize>,
    /// The precision of the network. Default: auto, which on a GPU is the fastest whose difference from fp32 is below 2
    /// % of the noise, and fp32 on the CPU.
    pub precision: Precision,
    /// A folder for temporary files, for images larger than memory. Default: the system's folder for temporary files.
    pub scratch: Option<PathBuf>,

    /// Write 32-bit floats instead of the type of the input. Default: false.
    pub float: bool,
    /// Replace existing files. Default: false.
    pub replace: bool,
    /// Write OUT_mask beside each output: 0 valid, 1 NaN or infinite, 2 saturated, 3 masked. Default: false.
    pub save_mask: bool,
    /// Write OUT.png beside each output: the middle plane before and after. Default: false.
    pub picture: bool,
}

/// Stages of a cascade at most.
const MOST_STAGES: usize = 6;

/// Whether stacks are restored as volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stacks {
    /// Plane by plane for classical restorers; as trained for models. Models for planes average a plane with its
    /// neighbours along Z where they agree; the built-in one restores volumes if there is a built-in model for them.
    #[default]
    Auto,
    /// Plane by plane, each restored alone.
    Planes,
    /// Along Z, Y and X together, for classical restorers.
    Volumes,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            camera: KnownCamera::default(),
            noise: None,
            background: None,
            saturation: None,
            mask: None,
            item: None,
            axes: None,
            stacks: Stacks::Auto,
            psf: None,
            tile: None,
            only: None,
            frames_alone: false,
            colours_alone: false,
            samples: 0,
            estimate: None,
            std: false,
            chi2: false,
            save_samples: false,
            sampler: "dpmpp-2m".into(),
            steps: 25,
            levels: None,
            begin: None,
            cascade: 1,
            inpaint: false,
            classifier_free: 1.0,
            class: None,
            context: None,
            taken_by: TakenByGiven::default(),
            seed: 0,
            guidance: None,
            law: None,
            clip: None,
            gate: None,
            trace: false,
            batch: None,
            memory: None,
            max_seconds: None,
            allow_binning: false,
            max_memory: None,
            precision: Precision::Auto,
            scratch: None,
            float: false,
            replace: false,
            save_mask: false,
            picture: false,
        }
    }
}

impl Settings {
    /// Refuses what no image could be restored with.
    ///
    /// # Errors
    /// Names the field.
    pub(crate) fn check(&self) -> Result<()> {
        self.camera.check()?;
        if let Some(limit) = self.clip.filter(|c| c.is_nan() || *c <= 0.0) {
            return Err(Error::setting(
                "clip",
                format!("is {limit}; the largest correction must be above zero"),
            ));
        }
        let guided = self.guidance.is_some() || self.law.is_some() || self.psf.is_some();
        if let Some([low, high]) = self.gate.filter(|[low, high]| !(*low >= 0.0 && high > low)) {
            return Err(Error::setting(
                "gate",
                format!("is {low} to {high}; two rising numbers of 0 or more are needed"),
            ));
        }
        if let Some(noise) = self.begin.filter(|b| !(b.is_finite() && *b > 0.0)) {
            return Err(Error::setting("begin", format!("is {noise}; a number above zero is needed")));
        }
        if !(self.classifier_free.is_finite() && self.classifier_free >= 0.0) {
            let why = format!("is {}; a number of 0 or more is needed", self.classifier_free);
            return Err(Error::setting("classifier_free", why));
        }
        if !(1..=MOST_STAGES).contains(&self.cascade) {
            let why = format!("is {}; stages from 1 to {MOST_STAGES} are needed", self.cascade);
            return Err(Error::setting("cascade", why));
        }
        if self.allow_binning {
            if self.max_seconds.is_none() {
                return Err(Error::setting(
                    "allow_binning",
                    "is about a budget of time: give max_seconds too",
                ));
            }
            let given = [
                ("mask", self.mask.is_some()),
                ("psf", self.psf.is_some()),
                ("background", self.background.is_some()),
            ];
            if let Some((other, _)) = given.iter().find(|(_, given)| *given) {
                let why = format!(
                    "does not go with {other}, which is about the file's own pixels; leave one of them out"
                );
                return Err(Error::setting("allow_binning", why));
            }
        }
        if let Some(seconds) = self.max_seconds.filter(|s| !(s.is_finite() && *s > 0.0)) {
            return Err(Error::setting(
                "max_seconds",
                format!("is {seconds}; a number above zero is needed"),
            ));
        }
        if let (Some(memory), Some(most)) = (self.memory, self.max_memory)
            && memory >= most
        {
            let why = format!(
                "is {most} bytes, and `memory` gives the network {memory} of them; nothing is left for the image"
            );
            return Err(Error::setting("max_memory", why));
        }
        let given = [("clip", self.clip.is_some()), ("gate", self.gate.is_some()), ("trace", self.trace)];
        for (key, given) in given {
            if given && !guided {
                return Err(Error::setting(
                    key,
                    "is about guidance by the measurement: give guidance, law or psf too",
                ));
            }
        }
        Ok(())
    }

    /// Names an image's axes as they are given.
    pub(crate) fn name_axes(&self, image: &mut Image) -> Result<()> {
        let Some(letters) = &self.axes else { return Ok(()) };
        image.description.name_axes(letters).map_err(|why| Error::value("axes", letters, why))
    }

    /// The smallest saturated value: as given, or from the camera file.
    pub(crate) fn saturation(&self) -> Option<f32> {
        self.saturation.or(self.camera.saturation.map(|v| v as f32))
    }

    /// The first field that is set although it only applies to Clearshot models and classical restorers, and not to
    /// networks of other projects.
    pub(crate) fn asks_for_more_than_a_network(&self) -> Option<&'static str> {
        let asked = [
            ("psf", self.psf.is_some()),
            ("noise", self.noise.is_some()),
            ("background", self.background.is_some()),
        ];
        let asked = asked.into_iter().find(|(_, given)| *given).map(|(key, _)| key);
        self.asks_for_a_model().or(asked)
    }

    /// The first field that requests an output that only a diffusion model has.
    pub(crate) fn asks_for_a_model(&self) -> Option<&'static str> {
        let asked = [
            ("samples", self.samples > 0),
            ("std", self.std),
            ("chi2", self.chi2),
            ("save_samples", self.save_samples),
            ("guidance", self.guidance.is_some()),
            ("law", self.law.is_some()),
            ("class", self.class.is_some()),
            ("context", self.context.is_some()),
            ("cascade", self.cascade > 1),
            ("allow_binning", self.allow_binning),
            ("only", self.only.is_some()),
        ];
        asked.into_iter().find(|(_, given)| *given).map(|(key, _)| key)
    }

    /// The settings of the engine, for a model.
    ///
    /// # Errors
    /// If a name is unknown, or an output that needs a model is requested without one.
    pub(crate) fn learned(&self, model: &Model) -> Result<learned::Settings> {
        let sd = model.about.sigma_data();
        let guidance = match (&self.guidance, &self.law) {
            (None, None) if self.clip.is_none() && self.gate.is_none() => None,
            (likelihood, chosen) => {
                let usual = Guidance::usual(sd);
                let likelihood = likelihood.as_deref().map(Guidance::likelihood).transpose()?;
                let chosen = chosen.as_deref().map(|text| law(text, sd)).transpose()?;
                Some(Guidance {
                    likelihood: likelihood.unwrap_or(usual.likelihood),
                    law: chosen.unwrap_or(usual.law),
                    clip: self.clip,
                    gate: self.gate,
                })
            }
        };
        // The PSF of each file follows from its pixel size; until then, one that blurs nothing.
        let psf = self.psf.as_ref().map(|_| Psf::delta(model.about.dims)).transpose()?;
        let device_memory = self.memory.or(self.max_memory.map(|most| most / 2));
        let host_memory = match (self.max_memory, device_memory) {
            (Some(most), Some(network)) => most - network,
            _ => learned::Settings::default().host_memory,
        };
        let (class, context) = self.conditions(model)?;
        let settings = learned::Settings {
            output: self.estimate,
            samples: self.samples,
            keep_samples: self.save_samples,
            deviation: self.std,
            sampler: self.sampler.clone(),
            steps: self.steps,
            levels: self.levels.clone(),
            begin: self.begin,
            inpaint: self.inpaint,
            cascade: self.cascade,
            classifier_free: self.classifier_free,
            class,
            context,
            taken_by: self.taken_by,
            chi2: self.chi2,
            seed: self.seed,
            psf,
            guidance,
            trace: self.trace,
            tile: self.tile,
            batch: self.batch,
            device_memory,
            host_memory,
            scratch: self.scratch.clone(),
            precision: self.precision,
        };
        self.check_only(&settings)?;
        Ok(settings)
    }

    /// Refuses settings that need the model if another method is selected.
    fn check_only(&self, settings: &learned::Settings) -> Result<()> {
        let Some(only) = self.only.filter(|m| *m != Candidate::Model) else { return Ok(()) };
        let options = [
            ("samples, std and save_samples", settings.samples > 0 || settings.deviation),
            ("estimate", settings.output == Some(Output::Samples)),
            ("levels, begin, cascade, inpaint and classifier_free", self.shapes_samples()),
            ("psf", settings.psf.is_some()),
            ("guidance, law and clip", settings.guidance.is_some()),
        ];
        match options.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(Error::setting(
                "only",
                format!(
                    "{option} need the model, and {} is asked for; leave them out, or restore by the model",
                    only.name()
                ),
            )),
            None => Ok(()),
        }
    }

    /// The settings in the form of the record in an output, from which a later run recognises finished work.
    ///
    /// # Errors
    /// If the PSF or the mask is a file that cannot be read.
    pub(crate) fn record(
        &self,
        restorer: &learned::Restorer,
        model_hash: &str,
        origin: Option<&Value>,
    ) -> Result<Value> {
        let model = restorer.model();
        let KnownCamera { gain, offset, read_noise, background, .. } = self.camera;
        let estimate = match restorer.output() {
            Output::Direct => "direct",
            Output::Samples => "samples",
        };
        // Another PSF or mask may come under the same name.
        let psf_file = self.psf.as_ref().map(PointSpread::fingerprint).transpose()?.flatten();
        let mask = self.mask.as_deref().map(fingerprint).transpose()?;
        let mut record = json!({
            "model": model.about.name, "model_hash": model_hash, "samples": restorer.settings().samples, "estimate": estimate,
            "sampler": self.sampler, "steps": self.steps, "seed": self.seed, "gain": gain, "offset": offset,
            "read_noise": read_noise, "background": background, "psf": self.psf.as_ref().map(ToString::to_string),
            "psf_file": psf_file, "guidance": self.guidance,
            "method": self.only.map_or("auto", |only| only.name()), "law": self.law, "clip": self.clip, "tile": self.tile,
            "precision": self.precision.to_string(), "float": self.float,
            "std": self.std, "spread": model.about.spread.as_ref().filter(|_| self.std),
            "chi2": self.chi2, "save_samples": self.save_samples, "saturation": self.saturation(), "mask": mask,
            "save_mask": self.save_mask, "item": self.item, "adapt": origin,
            "frames_alone": self.frames_alone, "quantised": model.about.quantised.as_ref().map(|q| &q.mode),
        });
        if let Some(seconds) = self.max_seconds {
            record["max_seconds"] = seconds.into();
        }
        if self.allow_binning {
            record["allow_binning"] = true.into();
        }
        if self.cascade > 1 {
            record["cascade"] = self.cascade.into();
        }
        if let Some(told) = self.conditions_record(restorer) {
            record["conditions"] = told;
        }
        if self.colours_alone {
            record["colours_alone"] = true.into();
        }
        if let Some(axes) = &self.axes {
            record["axes"] = axes.as_str().into();
        }
        if let Some(path) = &self.background {
            record["background_file"] = fingerprint(path)?.into();
        }
        // What is rarely asked for is left out otherwise, so that records of earlier versions stay the same.
        if self.shapes_samples() || self.gate.is_some() {
            let Settings { levels, begin, inpaint, classifier_free, gate, .. } = self;
            record["sampling"] = json!({
                "levels": levels, "begin": begin, "inpaint": inpaint, "classifier_free": classifier_free, "gate": gate,
            });
        }
        Ok(record)
    }

    /// Whether something is asked for of how samples are drawn, beside sampler, steps and guidance.
    fn shapes_samples(&self) -> bool {
        let drawn = self.begin.is_some() || self.inpaint || self.cascade > 1;
        self.levels.is_some() || drawn || self.classifier_free != 1.0
    }
}
