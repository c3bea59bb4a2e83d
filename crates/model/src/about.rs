//! The description of a model: `model.json`, or the metadata of a model file.

use crate::conditioning::Conditioning;
use crate::error::ModelError;
use crate::familiar::Familiar;
use crate::signal::Signal;
use crate::spread::SpreadFactor;
use clearshot_diffusion::precondition::Prediction;
use clearshot_diffusion::schedule::{BetaLaw, End, Rounding, Schedule};
use clearshot_diffusion::written::{self, Setting};
use clearshot_diffusion::{Level, Levels, Spacing};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// How Karras et al. space levels, for timesteps as for EDM.
const RHO: f64 = 7.0;
const OFFSET: Setting = Setting { name: "offset", about: "the first timestep", default: 0.0, whole: true };

/// The version of this description.
pub const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    pub format: u32,
    pub name: String,
    pub task: Task,
    pub signal: Signal,
    /// Channels of the images that come out.
    pub channels: usize,
    /// Of those that go in, where they are others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<usize>,
    /// What those that come out are called, where its training files said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Spatial axes: 2 or 3.
    pub dims: usize,
    /// The spatial size that it was trained at.
    pub crop: Vec<usize>,
    /// How it was trained: iterations, data, seed, configuration.
    #[serde(default)]
    pub training: Json,
    /// Its score, and the data of that score.
    #[serde(default)]
    pub scores: Json,
    /// Where it fails.
    #[serde(default)]
    pub limits: String,
    /// What the spread of its samples is to be multiplied by to be that of its errors, on images that it was not trained on;
    /// Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<SpreadFactor>,
    /// Statistics of its training images; not every model has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub familiar: Option<Familiar>,
    /// The conditions of the network other than image and measurement: classes, a vector, a context. `None` for most models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditioning: Option<Conditioning>,
    /// Which convolutions are in 8 bits, and what that costs; nothing for a model in floating point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantised: Option<Quantisation>,
}

/// How a model came to have convolutions in 8 bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantisation {
    /// `static` or `dynamic`.
    pub mode: String,
    /// How the ranges of inputs were found: `error` or `percentile`, and on how many images.
    pub calibration: String,
    pub images: usize,
    /// How many convolutions are in 8 bits, and which are not though they could be: those that cost most accuracy.
    pub convolutions: usize,
    pub kept: Vec<String>,
    /// Beside the model in f32, on images that were not calibrated on.
    pub scores: Json,
}

impl About {
    /// A model of which nothing is known beside what it does: how it was trained and what it reached are left open.
    pub fn new(name: &str, task: Task, signal: Signal, channels: usize, crop: &[usize]) -> About {
        About {
            format: FORMAT,
            name: name.into(),
            task,
            signal,
            channels,
            inputs: None,
            names: Vec::new(),
            dims: crop.len(),
            crop: crop.to_vec(),
            training: Json::Null,
            scores: Json::Null,
            limits: String::new(),
            spread: None,
            familiar: None,
            conditioning: None,
            quantised: None,
        }
    }

    /// The standard deviation of the images that the model was trained on, on the network's scale: what its preconditioning
    /// says, and 0.5, as EDM has it, of models that do not say.
    pub fn sigma_data(&self) -> f64 {
        match &self.task {
            Task::Diffusion { prediction: PredictionKind::Edm { sigma_data }, .. } => *sigma_data,
            _ => 0.5,
        }
    }

    /// Channels of the images that go in.
    pub fn input_channels(&self) -> usize {
        self.inputs.unwrap_or(self.channels)
    }
}

/// The task that the network was trained for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Task {
    /// From a measurement to the clean image at once.
    Regression,
    /// From an image, between its own dark and bright end ([`crate::OwnRange`]), to the probabilities of classes: of the foreground alone where
    /// there is one class, else of as many that exclude each other, the first of which is the background.
    Segmentation { classes: usize },
    /// From such an image to one on a grid that is so many times finer along each axis, in the same units; the network is given the image with every pixel repeated.
    Enlarging { factor: usize },
    /// From such an image to what tells objects that touch apart; see [`crate::instances`].
    Instances,
    /// From some patches of an image, between its own dark and bright end, to the others: what is of use is the encoder.
    MaskedAutoencoder,
    /// From an image, between its own dark and bright end, to the embeddings of its patches.
    JointEmbedding,
    /// From an image with noise of a known level to the clean one.
    Diffusion { prediction: PredictionKind, process: Process, condition: ConditionKind },
}

impl Task {
    /// Whether it says what pixels are part of, and gives no image.
    pub fn segments(&self) -> bool {
        matches!(self, Task::Segmentation { .. } | Task::Instances)
    }

    /// Whether it sees images between their own dark and bright end ([`crate::OwnRange`]), whatever the camera.
    pub fn knows_no_camera(&self) -> bool {
        self.segments() || self.is_pretraining() || matches!(self, Task::Enlarging { .. })
    }

    /// Whether it was trained without labels, for its encoder.
    pub fn is_pretraining(&self) -> bool {
        matches!(self, Task::MaskedAutoencoder | Task::JointEmbedding)
    }

    pub fn name(&self) -> &'static str {
        match self {
            Task::Regression => "regression",
            Task::Segmentation { .. } => "segmentation",
            Task::Instances => "instance segmentation",
            Task::Enlarging { .. } => "super-resolution",
            Task::MaskedAutoencoder => "a masked autoencoder",
            Task::JointEmbedding => "a joint embedding",
            Task::Diffusion { condition: ConditionKind::None, .. } => "an unconditional prior",
            Task::Diffusion { .. } => "conditional diffusion",
        }
    }
}

/// The quantity that the network predicts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PredictionKind {
    Epsilon,
    Sample,
    VPrediction,
    Edm {
        sigma_data: f64,
    },
    /// The network takes a noise level `sigma` and is itself the denoiser.
    Denoiser,
}

impl PredictionKind {
    /// None for a network that is itself the denoiser.
    pub fn prediction(self) -> Option<Prediction> {
        Some(match self {
            PredictionKind::Epsilon => Prediction::Noise,
            PredictionKind::Sample => Prediction::Sample,
            PredictionKind::VPrediction => Prediction::Velocity,
            PredictionKind::Edm { sigma_data } => Prediction::Edm { sigma_data },
            PredictionKind::Denoiser => return None,
        })
    }
}

/// The noise that it was trained with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Process {
    /// alpha is 1 and sigma anything in a range; the network gets ln(sigma) / 4.
    Edm { sigma_min: f64, sigma_max: f64, rho: f64 },
    /// The timesteps of a schedule, by this project's names of the laws.
    Timesteps {
        law: String,
        first: f64,
        last: f64,
        steps: usize,
        /// How many times finer images are than those that the law was made for ([`Schedule::for_resolution`]).
        #[serde(default = "as_made", skip_serializing_if = "is_as_made")]
        finer: f64,
    },
    /// The timesteps of a schedule whose betas are a table of one's own.
    Betas {
        betas: Vec<f64>,
        #[serde(default = "as_made", skip_serializing_if = "is_as_made")]
        finer: f64,
    },
}

impl Process {
    /// How many timesteps there are; none for a range of sigma.
    pub fn timesteps(&self) -> Option<usize> {
        match self {
            Process::Edm { .. } => None,
            Process::Timesteps { steps, .. } => Some(*steps),
            Process::Betas { betas, .. } => Some(betas.len()),
        }
    }

    /// The levels of `steps` sampling steps, from the most noise to none.
    ///
    /// # Errors
    /// If there are no such levels.
    pub fn levels(&self, steps: usize) -> Result<Levels, ModelError> {
        self.levels_by(None, steps)
    }

    /// The same, by how they are spaced: `karras[:rho=7,min=0.002,max=80]` for every process, and `trailing`, `leading[:offset=0]`, `linspace` and `quadratic`
    /// for timesteps. By default karras with the process' own numbers, or trailing.
    ///
    /// # Errors
    /// If there are no such levels, or the process has no timesteps.
    pub fn levels_by(&self, spacing: Option<&str>, steps: usize) -> Result<Levels, ModelError> {
        let usual = if matches!(self, Process::Edm { .. }) { "karras" } else { "trailing" };
        let (name, given) = written::parse(spacing.unwrap_or(usual))?;
        if name == "karras" {
            return self.karras(&given, steps);
        }
        let spacings = [
            ("trailing", Spacing::Trailing),
            ("leading", Spacing::Leading { offset: 0 }),
            ("linspace", Spacing::Linspace),
            ("quadratic", Spacing::Quadratic),
        ];
        let Some((_, found)) = spacings.iter().find(|(n, _)| *n == name) else {
            let known = "karras[:rho=7], and for timesteps trailing, leading[:offset=0], linspace, quadratic";
            let (kind, name) = ("spacing of levels", name.into());
            return Err(clearshot_diffusion::Error::Unknown { kind, name, known: known.into() }.into());
        };
        let found = match found {
            Spacing::Leading { .. } => {
                let offset = written::values(&[OFFSET], &given, "setting of leading")?[0] as usize;
                Spacing::Leading { offset }
            }
            other => {
                written::values(&[], &given, "setting of this spacing")?;
                *other
            }
        };
        Ok(self.schedule()?.levels(found, steps, End::Clean)?)
    }

    /// Karras' levels, in the process' own range where none is given.
    fn karras(&self, given: &[(&str, f64)], steps: usize) -> Result<Levels, ModelError> {
        let schedule = self.timesteps().map(|_| self.schedule()).transpose()?;
        let (range, rho) = match (self, &schedule) {
            (Process::Edm { sigma_min, sigma_max, rho }, _) => ([*sigma_min, *sigma_max], *rho),
            (_, Some(schedule)) => (schedule.range(), RHO),
            _ => ([0.0; 2], RHO),
        };
        let own = |name: &'static str, default: f64| Setting { name, about: "", default, whole: false };
        let settings = [own("rho", rho), own("min", range[0]), own("max", range[1])];
        let values = written::values(&settings, given, "setting of karras")?;
        let (rho, asked) = (values[0], [values[1], values[2]]);
        // Beyond what the network was trained on it would be asked about levels that it does not know.
        if asked[0] < range[0] || asked[1] > range[1] {
            let got = format!("{} to {}", asked[0], asked[1]);
            let must = "within the levels that the model was trained at";
            return Err(ModelError::Setting { what: "the range of sigma", got, must });
        }
        Ok(match schedule {
            None => Levels::karras(asked, rho, steps)?,
            Some(schedule) => schedule.karras_levels(asked, rho, steps, Rounding::None, End::Clean)?,
        })
    }

    /// The level with the most noise.
    ///
    /// # Errors
    /// As [`Process::levels`].
    pub fn noisiest(&self) -> Result<Level, ModelError> {
        Ok(self.levels(1)?.start())
    }

    /// The schedule whose timesteps these are.
    ///
    /// # Errors
    /// If it is a range of sigma, or there is no such schedule.
    pub fn schedule(&self) -> Result<Schedule, ModelError> {
        let (schedule, finer) = match self {
            Process::Timesteps { law, first, last, steps, finer } => {
                (Schedule::new(BetaLaw::named(law)?, [*first, *last], *steps)?, finer)
            }
            Process::Betas { betas, finer } => (Schedule::of_betas(betas)?, finer),
            Process::Edm { .. } => {
                let (got, must) = ("a range of sigma".into(), "the timesteps of a schedule");
                return Err(ModelError::Setting { what: "the process", got, must });
            }
        };
        Ok(if is_as_made(finer) { schedule } else { schedule.for_resolution(*finer, 1.0)? })
    }
}

fn as_made() -> f64 {
    1.0
}

fn is_as_made(finer: &f64) -> bool {
    *finer == as_made()
}

/// The channels next to x.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ConditionKind {
    /// Nothing: a prior, which a measurement can guide.
    None,
    /// The channels that the signal makes of a measurement.
    Measurement,
}
