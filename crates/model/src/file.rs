//! Reading and writing models: one file, or a folder.
//!
//! A file `NAME.clearshot` is a safetensors file whose metadata contain `about` and `config`, both JSON; weights may have
//! 16 bits, and those of convolutions 8 ([`crate::int8`]). A folder contains the same as `model.json`, `config.json` and
//! `diffusion_pytorch_model.safetensors` (or PyTorch's `.bin`); without a `model.json` it is treated as a folder of
//! diffusers, with its `scheduler/scheduler_config.json` if there is one. A file with only weights, of PyTorch or
//! safetensors, is a model together with the `config.json` beside it.

use crate::about::{About, FORMAT, Task};
use crate::conditioning::{ConditionInput, InputKind};
use crate::denoiser::{ModelDenoiser, at_once, check};
use crate::diffusers;
use crate::error::ModelError;
use crate::int8;
use crate::signal::Signal;
use clearshot_diffusion::{Condition, Levels};
use clearshot_graph::{Builder, Value};
use clearshot_nn::models::{self, Answer, Network, Quantised};
use clearshot_nn::weights::{self, CONFIG_FILE, Weights, weights_file};
use clearshot_tensor::store::{Store, StoreError, write_whole};
use clearshot_tensor::{DType, Tensor};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The best model of a training run, in its folder.
const BEST_FILE: &str = "best.clearshot";
const ABOUT_FILE: &str = "model.json";
const SCHEDULER_FILE: &str = "scheduler/scheduler_config.json";
const BUILTIN: &[u8] = include_bytes!("../default.clearshot");
/// The size of the file of the model that comes with the program.
pub const DEFAULT_BYTES: usize = BUILTIN.len();
/// The model for stacks, if one comes with the program: models/volume.clearshot.
const VOLUMES: Option<&[u8]> = None;

/// The name of the built-in model wherever a model is named.
pub const DEFAULT: &str = "default";

/// See the crate.
#[derive(Debug)]
pub struct Model {
    pub about: About,
    pub network: Box<dyn Network>,
    /// The network's `config.json`.
    pub config: String,
    pub weights: Weights,
}

impl Model {
    /// # Errors
    /// If the configuration is not a network, or the description or the weights do not match it.
    pub fn new(about: About, config: String, weights: Weights) -> Result<Model, ModelError> {
        let path = PathBuf::from(&about.name);
        let network =
            models::read(&config).map_err(|source| ModelError::Network { path: path.clone(), source })?;
        Model::checked(about, network, config, weights, &path)
    }

    /// The model that comes with the program.
    ///
    /// # Errors
    /// Never, as far as the tests of this crate go.
    pub fn builtin() -> Result<Model, ModelError> {
        Model::of_bytes(BUILTIN, "the built-in model")
    }

    /// The model for stacks that comes with the program, if one does.
    ///
    /// # Errors
    /// As [`Model::builtin`].
    pub fn volumes() -> Result<Option<Model>, ModelError> {
        VOLUMES.map(|bytes| Model::of_bytes(bytes, "the built-in model for stacks")).transpose()
    }

    fn of_bytes(bytes: &[u8], name: &str) -> Result<Model, ModelError> {
        let path = Path::new(name);
        let store = Store::parse(bytes, path).map_err(|e| damaged(path, e.to_string()))?;
        Model::of_store(store, path)
    }

    /// Whether a path is the name of the model that comes with the program ([`DEFAULT`]). A file of that name goes before it.
    pub fn is_default(path: &Path) -> bool {
        path.as_os_str() == DEFAULT && !path.exists()
    }

    /// Reads a file or a folder (see the module), or takes the built-in model by its name.
    ///
    /// # Errors
    /// If there is none, it is damaged, or its parts do not fit.
    pub fn load(path: &Path) -> Result<Model, ModelError> {
        if Model::is_default(path) {
            return Model::builtin();
        }
        if path.is_dir() { Model::of_folder(path) } else { Model::of_file(path) }
    }

    fn of_file(path: &Path) -> Result<Model, ModelError> {
        if !path.exists() {
            return Err(ModelError::Missing { path: path.into() });
        }
        let store = read_store(path)?;
        if store.metadata.contains_key("about") {
            return Model::of_store(store, path);
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        if !folder.join(CONFIG_FILE).is_file() {
            let reason =
                format!("weights without `about`: the network's {CONFIG_FILE} is needed beside them");
            return Err(damaged(path, reason));
        }
        Model::of_parts(folder, &folder.join(SCHEDULER_FILE), path, store)
    }

    fn of_store(store: Store, path: &Path) -> Result<Model, ModelError> {
        let part = |name: &str| {
            let text = store.metadata.get(name).cloned();
            text.ok_or_else(|| damaged(path, format!("a safetensors file without `{name}` in its metadata")))
        };
        let (about, config) = (read_about(&part("about")?, path)?, part("config")?);
        let network = |source| ModelError::Network { path: path.into(), source };
        let mut tensors = store.tensors;
        let table = int8::take(&mut tensors).map_err(|reason| damaged(path, reason))?;
        let mut read = models::read(&config).map_err(network)?;
        if !table.is_empty() {
            read = Box::new(Quantised::new(read, table).map_err(network)?);
        }
        Model::with_tensors(about, read, config, tensors, path)
    }

    fn of_folder(folder: &Path) -> Result<Model, ModelError> {
        if !folder.join(CONFIG_FILE).is_file() {
            // A pipeline of diffusers has its network in a folder of its own.
            let inner = folder.join("unet");
            if inner.join(CONFIG_FILE).is_file() {
                let weights = weights_file(&inner);
                return Model::of_parts(
                    &inner,
                    &folder.join(SCHEDULER_FILE),
                    &weights,
                    read_store(&weights)?,
                );
            }
            // A training run keeps its best model under this name.
            let best = folder.join(BEST_FILE);
            return match best.is_file() {
                true => Model::of_file(&best),
                false => Err(ModelError::Missing { path: folder.into() }),
            };
        }
        let weights = weights_file(folder);
        Model::of_parts(folder, &folder.join(SCHEDULER_FILE), &weights, read_store(&weights)?)
    }

    /// A model whose parts are files: what it is and its network in a folder, and its weights.
    fn of_parts(folder: &Path, scheduler: &Path, file: &Path, store: Store) -> Result<Model, ModelError> {
        let config = read_text(&folder.join(CONFIG_FILE))?;
        let network =
            models::read(&config).map_err(|source| ModelError::Network { path: folder.into(), source })?;
        let about = match folder.join(ABOUT_FILE) {
            about if about.is_file() => read_about(&read_text(&about)?, folder)?,
            _ => of_scheduler(folder, scheduler, &*network)?,
        };
        Model::with_tensors(about, network, config, store.tensors, file)
    }

    fn with_tensors(
        about: About,
        network: Box<dyn Network>,
        config: String,
        tensors: BTreeMap<String, Tensor>,
        path: &Path,
    ) -> Result<Model, ModelError> {
        let wrong = |source| ModelError::Network { path: path.into(), source };
        let params = network.parameters().map_err(wrong)?;
        let weights = weights::from_torch(tensors, &params).map_err(wrong)?;
        Model::checked(about, network, config, weights, path)
    }

    fn checked(
        about: About,
        network: Box<dyn Network>,
        config: String,
        weights: Weights,
        path: &Path,
    ) -> Result<Model, ModelError> {
        let contradiction = |reason| ModelError::Contradiction { path: path.into(), reason };
        check(&about, &*network).map_err(contradiction)?;
        check_conditions(&about, &*network, &config).map_err(contradiction)?;
        if about.crop.len() != about.dims {
            return Err(contradiction(format!("crops of {:?} for {} axes", about.crop, about.dims)));
        }
        Ok(Model { about, network, config, weights })
    }

    /// Writes one file, its weights in the given float type but for those of convolutions in 8 bits.
    ///
    /// # Errors
    /// If the type is not a float, or the file cannot be written; an existing file is then untouched.
    pub fn save_file(&self, path: &Path, dtype: DType) -> Result<(), ModelError> {
        let mut tensors = BTreeMap::new();
        for (name, weight) in &self.weights {
            let torch = weight.channels_second();
            let narrow = match dtype {
                // An 8-bit model should be small: values that 16 bits represent exactly take 16 bits.
                DType::F32 if self.network.int8().is_some() => Some(halved(torch)),
                DType::F32 => Some(torch),
                DType::F16 => Some(torch.to_f16()),
                _ => None,
            };
            let must = "f32 or f16";
            let narrow = narrow.ok_or_else(|| ModelError::Setting {
                what: "the type of a file's weights",
                got: dtype.to_string(),
                must,
            })?;
            tensors.insert(name.clone(), narrow);
        }
        for (name, rounding) in self.network.int8().into_iter().flatten() {
            int8::put(&mut tensors, name, &self.weights[name], rounding);
        }
        let metadata = BTreeMap::from([
            ("about".to_string(), self.about_text(path)?),
            ("config".to_string(), self.config.clone()),
        ]);
        Store { tensors, metadata }.write(path).map_err(|e| match e {
            StoreError::Io { path, source } => ModelError::Io { path, source },
            other => damaged(path, other.to_string()),
        })
    }

    /// Writes a folder, which diffusers can load where the network is one of its.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn save_folder(&self, folder: &Path) -> Result<(), ModelError> {
        weights::save_network(folder, &self.config, &self.weights)
            .map_err(|source| ModelError::Network { path: folder.into(), source })?;
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            made.and_then(|()| write_whole(&path, text.as_bytes()))
                .map_err(|source| ModelError::Io { path, source })
        };
        if let Some(text) = diffusers::scheduler(&self.about.task) {
            write(SCHEDULER_FILE, &text)?;
        }
        write(ABOUT_FILE, &self.about_text(folder)?)
    }

    fn about_text(&self, path: &Path) -> Result<String, ModelError> {
        serde_json::to_string_pretty(&self.about).map_err(|e| damaged(path, e.to_string()))
    }

    /// The network's inputs that are about an image as a whole: its class, how it was taken, a context.
    pub fn condition_inputs(&self) -> Vec<ConditionInput> {
        condition_inputs(&self.about, &*self.network, &self.config)
    }

    /// Adds the network that makes the clean image of a measurement at once, for models of regression.
    pub fn regress(&self, b: &mut Builder, measured: Value, given: &Condition) -> Answer {
        at_once(&*self.network, b, measured, given)
    }

    /// The network as a denoiser.
    ///
    /// # Errors
    /// If it is not a diffusion model.
    pub fn denoiser(&self) -> Result<ModelDenoiser<'_>, ModelError> {
        ModelDenoiser::new(&self.about, &*self.network)
    }

    /// The levels of `steps` sampling steps.
    ///
    /// # Errors
    /// If it is not a diffusion model, or there are no such levels.
    pub fn levels(&self, steps: usize) -> Result<Levels, ModelError> {
        self.levels_by(None, steps)
    }

    /// The same, by how they are spaced; see [`Process::levels_by`].
    ///
    /// # Errors
    /// As [`Model::levels`].
    pub fn levels_by(&self, spacing: Option<&str>, steps: usize) -> Result<Levels, ModelError> {
        match &self.about.task {
            Task::Diffusion { process, .. } => process.levels_by(spacing, steps),
            other => Err(ModelError::OtherTask { is: other.name(), needed: "diffusion" }),
        }
    }

    /// A number of what is computed with, in hexadecimal: the network and its weights, what they are for, how files' numbers
    /// become theirs, and the images that they are for.
    pub fn hash(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.config.as_bytes());
        let About { task, signal, familiar, .. } = &self.about;
        hash.update(serde_json::json!([task, signal, familiar]).to_string());
        if let Some(table) = self.network.int8() {
            hash.update(format!("{table:?}"));
        }
        if let Some(conditioning) = &self.about.conditioning {
            hash.update(serde_json::json!(conditioning).to_string());
        }
        for (name, weight) in &self.weights {
            hash.update(name.as_bytes());
            for value in weight.to_f64() {
                hash.update((value as f32).to_le_bytes());
            }
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn condition_inputs(about: &About, network: &dyn Network, config: &str) -> Vec<ConditionInput> {
    let config: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
    let rows = config["num_class_embeds"].as_u64().map(|n| n as usize);
    ConditionInput::of(network, rows, about.conditioning.as_ref())
}

/// Whether what a model says of its conditions fits its network.
fn check_conditions(about: &About, network: &dyn Network, config: &str) -> Result<(), String> {
    let Some(conditioning) = &about.conditioning else { return Ok(()) };
    if !(0.0..1.0).contains(&conditioning.dropped) {
        return Err(format!("a share of {} of dropped classes", conditioning.dropped));
    }
    let (named, mut vectors) = (conditioning.classes.len(), 0);
    for input in condition_inputs(about, network, config) {
        if let InputKind::Vector(code) = input.kind {
            vectors += 1;
            if code.camera && about.signal != Signal::Photons {
                return Err("a vector of the camera for images that are not in electrons".into());
            }
            let sizes: Vec<usize> =
                [1].into_iter().chain(network.example_size()).chain([network.in_channels()]).collect();
            let ports = network.ports(clearshot_tensor::Shape::new(&sizes));
            let width = ports.iter().find(|p| p.name == input.port).map_or(0, |p| p.ty.shape.len());
            if width != code.width() {
                return Err(format!("a vector of {} numbers, the network takes {width}", code.width()));
            }
        } else if let Some(classes) = input.classes().filter(|n| named > 0 && *n != named && *n != usize::MAX)
        {
            return Err(format!("{named} classes, the network knows {classes}"));
        }
    }
    match vectors == 0 && !conditioning.vector.is_empty() {
        true => Err("a vector, and the network takes none".into()),
        false => Ok(()),
    }
}

/// In 16 bits where that changes nothing.
fn halved(weight: Tensor) -> Tensor {
    let half = weight.to_f16();
    if half.to_f64() == weight.to_f64() { half } else { weight }
}

fn damaged(path: &Path, reason: String) -> ModelError {
    ModelError::Format { path: path.into(), reason }
}

fn read_text(path: &Path) -> Result<String, ModelError> {
    std::fs::read_to_string(path).map_err(|source| ModelError::Io { path: path.into(), source })
}

fn read_about(text: &str, path: &Path) -> Result<About, ModelError> {
    let about: About = serde_json::from_str(text).map_err(|e| damaged(path, e.to_string()))?;
    about.spread.as_ref().map_or(Ok(()), |f| f.check()).map_err(|reason| damaged(path, reason))?;
    if about.familiar.as_ref().is_some_and(|f| !f.is_whole()) {
        return Err(damaged(path, "what it says of its training images is not whole".into()));
    }
    match about.format {
        FORMAT => Ok(about),
        other => Err(damaged(path, format!("a model of format {other}; this program reads {FORMAT}"))),
    }
}

/// What a network of diffusers does, by the configuration of its scheduler.
fn of_scheduler(folder: &Path, scheduler: &Path, network: &dyn Network) -> Result<About, ModelError> {
    let scheduler = match scheduler.is_file() {
        true => {
            serde_json::from_str(&read_text(scheduler)?).map_err(|e| damaged(scheduler, e.to_string()))?
        }
        false => serde_json::Map::new(),
    };
    let name = folder.file_name().map_or("model".into(), |n| n.to_string_lossy().into_owned());
    diffusers::about(&name, network, &scheduler).map_err(|reason| damaged(folder, reason))
}

fn read_store(path: &Path) -> Result<Store, ModelError> {
    Store::read(path).map_err(|e| damaged(path, e.to_string()))
}
