//! What is learned: the network, the task and its loss.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::path::PathBuf;

/// How a graph becomes a program, in PyTorch's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompileMode {
    /// Every node by itself.
    None,
    /// Fused, launched kernel by kernel.
    Default,
    /// Fused, replayed as one launch.
    ReduceOverhead,
    /// The same: kernels are always chosen by measuring.
    #[default]
    MaxAutotune,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// A network's `config.json`: `_class_name` and its keys. 0 `in_channels` or `out_channels` are as many as the task and the data
    /// give.
    pub network: Map<String, Json>,
    /// A model to start from: a `.clearshot` file, a folder, or a checkpoint.
    pub init: Option<PathBuf>,
    pub compile_mode: CompileMode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// A diffusion model that is given the measurement.
    #[default]
    Conditional,
    /// A diffusion model of clean images alone.
    Prior,
    /// From the measurement to the clean image at once.
    Supervised,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictionKind {
    #[default]
    Edm,
    Epsilon,
    Sample,
    VPrediction,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightKind {
    #[default]
    Uniform,
    Snr,
    MinSnr,
    Edm,
    Bound,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DistanceKind {
    L1,
    #[default]
    L2,
    Huber,
    SmoothL1,
}

/// A further term of the loss, whose weight rises linearly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TermConfig {
    /// Its weight in full; 0 for none.
    pub weight: f64,
    /// The share of it at first.
    pub from: f64,
    /// The iteration at which it is full.
    pub over: u64,
}

/// What is learned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskConfig {
    pub kind: TaskKind,
    /// What a diffusion network predicts. `edm` goes with noise levels drawn log-normally, the others with the
    /// timesteps of a schedule.
    pub prediction: PredictionKind,
    /// The spread of clean images that EDM's preconditioning assumes.
    pub sigma_data: f64,
    pub sigma_min: f64,
    pub sigma_max: f64,
    /// Of ln sigma.
    pub mean: f64,
    pub deviation: f64,
    /// The share of images that are trained at `sigma_max`, where only the condition tells anything.
    pub at_most: f64,
    /// ddpm_linear, scaled_linear, cosine, sigmoid ...
    pub schedule: String,
    pub betas: [f64; 2],
    pub timesteps: usize,
    /// How images count by their level, beside what the prediction itself gives.
    pub weight: WeightKind,
    pub min_snr: f64,
    pub distance: DistanceKind,
    /// Where Huber's and the smooth L1 distance bend.
    pub bend: f64,
    /// The share of images whose condition is dropped.
    pub drop: f64,
    /// How far images with little noise count more, because their errors are small: 0 counts squares, 1 counts
    /// decibels.
    pub balance: f64,
    /// Intensities of the estimate, bright ones counting more.
    pub intensity: TermConfig,
    /// Edges of the estimate.
    pub gradient: TermConfig,
    /// Frequencies of the estimate, by the sizes of Fourier coefficients.
    pub frequency: TermConfig,
    /// Details of the estimate at three scales, by the sizes of Haar's wavelets.
    pub wavelet: TermConfig,
}

impl Default for TaskConfig {
    fn default() -> TaskConfig {
        TaskConfig {
            kind: TaskKind::Conditional,
            prediction: PredictionKind::Edm,
            sigma_data: 0.5,
            sigma_min: 0.002,
            sigma_max: 80.0,
            mean: -1.2,
            deviation: 1.2,
            at_most: 0.0,
            schedule: "ddpm_linear".into(),
            betas: [1e-4, 0.02],
            timesteps: 1000,
            weight: WeightKind::Uniform,
            min_snr: 5.0,
            distance: DistanceKind::L2,
            bend: 0.1,
            drop: 0.0,
            balance: 0.0,
            intensity: TermConfig::default(),
            gradient: TermConfig::default(),
            frequency: TermConfig::default(),
            wavelet: TermConfig::default(),
        }
    }
}
