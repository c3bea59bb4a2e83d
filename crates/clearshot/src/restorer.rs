//! Restorers: a Clearshot model (for restoration or segmentation), a network of another project (an ONNX file or a
//! package), or a classical method.

use crate::array::{Array, Restored};
use crate::classical::{Classical, Deconvolution};
use crate::error::{Error, Result};
use crate::foreign::Foreign;
use crate::learned::image::Finished;
use crate::learned::{Learned, Map};
use crate::observer::{Ear, Event, Observer};
use crate::outlet::Outlet;
use crate::predictor::Predictor;
use crate::segments::Segments;
use crate::settings::Settings;
use crate::target::{Destination, Made};
use crate::validity::{Mask, Validity};
use clearshot_image::{Description, Image};
use clearshot_model::{Model, ModelError};
use clearshot_restore::classical::Method;
use clearshot_runtime::Device;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Restores images with a trained model or a classical method. One restorer can be used for any number of images and
/// from several threads, one image at a time; a model stays compiled as long as size and settings stay the same.
///
/// It is a closed set and not a trait: restoring a file needs to know whether whole planes or tiles with a halo are
/// processed, what the record contains, and which additional outputs there are. To use another method, see
/// [`clearshot_restore::stream`], which takes any function of a tile.
pub struct Restorer {
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    Learned(Box<Learned>),
    Foreign(Box<Foreign>),
    Predictor(Box<Predictor>),
    Classical(Classical),
}

impl Restorer {
    /// The built-in model, on the fastest device.
    ///
    /// # Errors
    /// If the network cannot be made ready.
    pub fn builtin() -> Result<Restorer> {
        Restorer::builtin_on(Device::best())
    }

    /// The built-in model, on a device.
    ///
    /// # Errors
    /// As [`Restorer::builtin`].
    pub fn builtin_on(device: Device) -> Result<Restorer> {
        let _loading = clearshot_timeline::span(clearshot_timeline::Phase::Loading);
        Restorer::learned(Model::builtin()?, device, true)
    }

    /// A model from a file NAME.clearshot, a folder (of diffusers too), an ONNX file or a package of the BioImage Model Zoo, or the built-in one by
    /// its name `default`, on the fastest device.
    ///
    /// # Errors
    /// As [`Restorer::load_on`].
    pub fn load(path: impl AsRef<Path>) -> Result<Restorer> {
        Restorer::load_on(path, Device::best())
    }

    /// The same on a device. The test of a package is run first.
    ///
    /// # Errors
    /// If it cannot be read, or the test of a package fails.
    pub fn load_on(path: impl AsRef<Path>, device: Device) -> Result<Restorer> {
        let _loading = clearshot_timeline::span(clearshot_timeline::Phase::Loading);
        let path = path.as_ref();
        if Model::is_default(path) {
            return Restorer::builtin_on(device);
        }
        if !Foreign::is_one(path) {
            return Restorer::from_model(Model::load(path).map_err(|e| unknown(path, e))?, device);
        }
        let foreign = Foreign::open(path, device)?;
        foreign.test()?;
        Ok(Restorer { kind: Kind::Foreign(Box::new(foreign)) })
    }

    /// A model that is already loaded.
    ///
    /// # Errors
    /// If the network cannot be made ready.
    pub fn from_model(model: Model, device: Device) -> Result<Restorer> {
        if model.about.task.is_pretraining() {
            return Err(Error::Unsuited(format!(
                "{} is {}: it was trained without labels and gives no images. `clearshot predict IMAGES -o NAME.csv --model M` writes its embeddings, and \
                 `clearshot train experiment=segmentation model=vit_segmentation model.encoder=M` begins with its encoder",
                model.about.name,
                model.about.task.name()
            )));
        }
        if model.about.task.knows_no_camera() {
            return Ok(Restorer { kind: Kind::Predictor(Box::new(Predictor::new(model, device)?)) });
        }
        Restorer::learned(model, device, false)
    }

    fn learned(model: Model, device: Device, is_builtin: bool) -> Result<Restorer> {
        Ok(Restorer { kind: Kind::Learned(Box::new(Learned::new(model, device, is_builtin)?)) })
    }

    /// A classical denoiser, for example `Method::by_name("bm3d")`.
    pub fn denoiser(method: Method) -> Restorer {
        Restorer { kind: Kind::Classical(Classical::Denoise(method)) }
    }

    /// Richardson-Lucy deconvolution with the PSF of the settings.
    pub fn richardson_lucy(steps: Deconvolution) -> Restorer {
        Restorer { kind: Kind::Classical(Classical::RichardsonLucy(steps)) }
    }

    /// Wiener deconvolution with the PSF of the settings; `balance` is the ratio of noise power to image power.
    pub fn wiener(balance: f32) -> Restorer {
        Restorer { kind: Kind::Classical(Classical::Wiener(balance)) }
    }

    /// The signal above the offset divided by a ratio of exposures, as a baseline for comparing short with long
    /// exposures.
    pub fn exposure(ratio: f32) -> Restorer {
        Restorer { kind: Kind::Classical(Classical::Exposure(ratio)) }
    }

    /// Unchanged pixels, for comparison.
    pub fn raw() -> Restorer {
        Restorer { kind: Kind::Classical(Classical::Raw) }
    }

    /// The same on another device; classical restorers always run on the CPU.
    ///
    /// # Errors
    /// If the network cannot be made ready.
    pub fn on(self, device: Device) -> Result<Restorer> {
        Ok(match self.kind {
            Kind::Learned(learned) => Restorer { kind: Kind::Learned(Box::new(learned.on(device)?)) },
            Kind::Foreign(foreign) => Restorer { kind: Kind::Foreign(Box::new(foreign.on(device))) },
            Kind::Predictor(s) => Restorer { kind: Kind::Predictor(Box::new(s.on(device))) },
            classical => Restorer { kind: classical },
        })
    }

    /// Sets the origin of the model (for example that it was fitted to the user's images), for the record in outputs.
    pub fn with_origin(mut self, origin: Option<Value>) -> Restorer {
        if let Kind::Learned(learned) = &mut self.kind {
            learned.origin = origin;
        }
        self
    }

    /// Sets the output of a segmentation model.
    ///
    /// # Errors
    /// If the restorer is not a segmentation model.
    pub fn giving(mut self, segments: Segments) -> Result<Restorer> {
        match &mut self.kind {
            Kind::Predictor(predictor) if predictor.with_model(|m| m.about.task.segments()) => {
                predictor.segments = segments;
            }
            _ => {
                let why = format!("{} gives images and does not segment them; leave it out", self.name());
                return Err(Error::setting("segments", why));
            }
        }
        Ok(self)
    }

    /// Whether it segments images.
    pub fn is_segmenter(&self) -> bool {
        matches!(&self.kind, Kind::Predictor(s) if s.with_model(|m| m.about.task.segments()))
    }

    /// The name of the model or of the method.
    pub fn name(&self) -> String {
        match &self.kind {
            Kind::Learned(learned) => learned.name(),
            Kind::Foreign(foreign) => foreign.name(),
            Kind::Predictor(predictor) => predictor.name(),
            Kind::Classical(Classical::Denoise(method)) => method.name().into(),
            Kind::Classical(Classical::RichardsonLucy(_)) => "richardson-lucy".into(),
            Kind::Classical(Classical::Wiener(_)) => "wiener".into(),
            Kind::Classical(Classical::Exposure(_)) => "exposure".into(),
            Kind::Classical(Classical::Raw) => "raw".into(),
        }
    }

    /// Refuses settings that it does not support, before any image is read.
    ///
    /// # Errors
    /// Names the setting.
    pub fn check(&self, settings: &Settings) -> Result<()> {
        match &self.kind {
            Kind::Learned(learned) => learned.check(settings),
            Kind::Foreign(foreign) => foreign.check(settings),
            Kind::Predictor(predictor) => predictor.check(settings),
            Kind::Classical(classical) => classical.check(settings),
        }
    }

    /// The settings in the form of the record in outputs; null for restorers other than models, whose record is made
    /// for each image.
    ///
    /// # Errors
    /// As [`Restorer::check`].
    pub fn record(&self, settings: &Settings) -> Result<Value> {
        match &self.kind {
            Kind::Learned(learned) => learned.record(settings),
            Kind::Predictor(predictor) => Ok(predictor.record(settings)),
            Kind::Foreign(_) | Kind::Classical(_) => Ok(Value::Null),
        }
    }

    /// A text that identifies what this restorer does with these settings, equal in all jobs that do the same (see
    /// [`crate::SharedRun`]).
    ///
    /// # Errors
    /// As [`Restorer::check`].
    pub fn work(&self, settings: &Settings) -> Result<String> {
        // What does not change results, or is a machine's.
        let settings =
            Settings { replace: false, batch: None, memory: None, scratch: None, ..settings.clone() };
        let restorer = match &self.kind {
            Kind::Learned(learned) => learned.record(&settings)?.to_string(),
            Kind::Foreign(foreign) => foreign.name(),
            Kind::Predictor(predictor) => predictor.record(&settings).to_string(),
            Kind::Classical(classical) => format!("{classical:?}"),
        };
        Ok(format!("{restorer} {settings:?}"))
    }

    /// Restores an image in memory.
    ///
    /// # Errors
    /// If the restorer does not support the settings or the image, or the observer stops it.
    pub fn restore(
        &self,
        array: &Array,
        settings: &Settings,
        observer: &mut dyn Observer,
    ) -> Result<Restored> {
        self.restore_into(array, settings, &(), observer)
    }

    /// The same, into destinations of the caller; maps with such a destination are empty in the result.
    ///
    /// # Errors
    /// As [`Restorer::restore`], or if a destination fails.
    pub fn restore_into(
        &self,
        array: &Array,
        settings: &Settings,
        outlet: &dyn Outlet,
        observer: &mut dyn Observer,
    ) -> Result<Restored> {
        self.check(settings)?;
        if settings.allow_binning {
            return Err(Error::setting(
                "allow_binning",
                "is for files: an array keeps its shape; leave it out",
            ));
        }
        let (image, d) = (&array.image, &array.image.description);
        let mask = match &array.mask {
            Some(mask) => {
                let bytes = mask.read(&mask.whole())?;
                Some(Mask::new(Image::in_memory(mask.description.clone(), bytes)?, d)?)
            }
            None => settings.mask.as_deref().map(|path| Mask::open(path, d)).transpose()?,
        };
        let saturation = settings.saturation();
        let validity = Validity { saturation, is_given: saturation.is_some(), mask };
        let mut ear = Ear { observer, shown: PathBuf::from("array") };
        let to = Destination::Caller(outlet);
        let (finished, _) = match &self.kind {
            Kind::Learned(learned) => learned
                .session(settings, d, String::new(), &mut ear)?
                .restore(image, 1, validity, to, &mut ear)?,
            Kind::Foreign(foreign) => foreign.run(settings, image, validity, to, &mut ear)?,
            Kind::Predictor(predictor) => predictor.run(settings, "", image, validity, to, &mut ear)?,
            Kind::Classical(classical) => classical.run(settings, image, validity, to, &mut ear)?,
        };
        let restored = gathered(finished, image);
        ear.event(&Event::Done(&restored.report))?;
        Ok(restored)
    }
}

/// The maps of a restored array by what they are.
fn gathered(finished: Finished, image: &Image) -> Restored {
    let Finished { mut report, made, description } = finished;
    report.bytes = bytes_of(image);
    let d: &Description = &description;
    let (image, std, chi2, samples) = (Vec::new(), None, None, Vec::new());
    let mut restored = Restored { image, std, chi2, samples, shape: d.shape(), axes: d.axes(), report };
    for (map, made) in made {
        let Made::Values(values) = made else { continue };
        match map {
            Map::Image => restored.image = values,
            Map::Deviation => restored.std = Some(values),
            Map::Chi2 => restored.chi2 = Some(values),
            Map::Sample(_) => restored.samples.push(values),
        }
    }
    restored
}

/// Bytes of an image's pixels.
pub(crate) fn bytes_of(image: &Image) -> usize {
    image.shape().iter().product::<usize>() * image.dtype().bytes()
}

/// Endings of files with weights, which say best themselves what is wrong with them.
const WEIGHTS: [&str; 6] = ["clearshot", "safetensors", "pt", "pth", "ckpt", "bin"];

/// The error for a file that is neither a model nor a network of another project.
fn unknown(path: &Path, error: ModelError) -> Error {
    let ending = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
    match error {
        ModelError::Format { .. } if path.is_file() && !WEIGHTS.contains(&ending.as_str()) => {
            Error::Unsuited(format!(
                "{}: not a model (a file NAME.clearshot or a folder with a config.json), not an ONNX file (NAME.onnx) and not a package of the BioImage Model Zoo (a folder or zip with an rdf.yaml)",
                path.display()
            ))
        }
        other => other.into(),
    }
}
