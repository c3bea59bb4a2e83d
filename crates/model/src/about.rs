//! What a model says of itself: `model.json`, or the metadata of a model's file.

use crate::error::ModelError;
use crate::familiar::Familiar;
use crate::signal::Signal;
use crate::spread::SpreadFactor;
use clearshot_diffusion::precondition::Prediction;
use clearshot_diffusion::schedule::{BetaLaw, End, Schedule};
use clearshot_diffusion::{Level, Levels, Spacing};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

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
    /// What it reached, and on what.
    #[serde(default)]
    pub scores: Json,
    /// Where it fails.
    #[serde(default)]
    pub limits: String,
    /// What the spread of its samples is to be multiplied by to be that of its errors, on images that it was not trained on;
    /// 1 unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<SpreadFactor>,
    /// What its training images are like; not known of every model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub familiar: Option<Familiar>,
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

/// What the network was trained to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Task {
    /// From a measurement to the clean image at once.
    Regression,
    /// From an image with noise of a known level to the clean one.
    Diffusion { prediction: PredictionKind, process: Process, condition: ConditionKind },
}

impl Task {
    pub fn name(&self) -> &'static str {
        match self {
            Task::Regression => "regression",
            Task::Diffusion { condition: ConditionKind::None, .. } => "an unconditional prior",
            Task::Diffusion { .. } => "conditional diffusion",
        }
    }
}

/// What the network predicts.
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
    /// alpha is 1 and sigma anything in a range; the network is told ln(sigma) / 4.
    Edm { sigma_min: f64, sigma_max: f64, rho: f64 },
    /// The timesteps of a schedule, by this project's names of the laws.
    Timesteps { law: String, first: f64, last: f64, steps: usize },
}

impl Process {
    /// The levels of `steps` sampling steps, from the most noise to none.
    ///
    /// # Errors
    /// If there are no such levels.
    pub fn levels(&self, steps: usize) -> Result<Levels, ModelError> {
        Ok(match self {
            Process::Edm { sigma_min, sigma_max, rho } => {
                Levels::karras([*sigma_min, *sigma_max], *rho, steps)?
            }
            Process::Timesteps { .. } => self.schedule()?.levels(Spacing::Trailing, steps, End::Clean)?,
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
        let Process::Timesteps { law, first, last, steps } = self else {
            let (got, must) = ("a range of sigma".into(), "the timesteps of a schedule");
            return Err(ModelError::Setting { what: "the process", got, must });
        };
        Ok(Schedule::new(BetaLaw::named(law)?, [*first, *last], *steps)?)
    }
}

/// What stands beside x.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ConditionKind {
    /// Nothing: a prior, which a measurement can guide.
    None,
    /// The channels that the signal makes of a measurement.
    Measurement,
}
