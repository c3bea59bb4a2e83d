//! What a run is: every key that a configuration file may hold, with its default.
//!
//! The structs are plain: unknown keys are refused, and [`RunConfig::check`] refuses values that cannot be meant
//! before anything is computed. The files under `configs` are groups of these keys.

mod check;
mod resolve;

pub use resolve::epochs;

use clearshot_image::dataset::Range;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// What the model will be called.
    pub name: String,
    /// Of the weights, the data and the noise.
    pub seed: u64,
    pub data: DataConfig,
    pub model: ModelConfig,
    pub task: TaskConfig,
    pub optimizer: OptimizerConfig,
    pub schedule: ScheduleConfig,
    pub trainer: TrainerConfig,
    pub performance: PerformanceConfig,
    pub validation: ValidationConfig,
    pub calibration: CalibrationConfig,
    pub checkpoint: CheckpointConfig,
    pub records: RecordsConfig,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataKind {
    /// Generated scenes before a simulated camera.
    #[default]
    Scenes,
    /// Files without noise before a simulated camera.
    Clean,
    /// Files in pairs: inputs and their targets.
    Pairs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BalanceKind {
    #[default]
    Files,
    Domains,
}

/// What is trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    pub kind: DataKind,
    /// Kinds of scenes and how often each is drawn; every batch has its share of each.
    pub scenes: BTreeMap<String, f64>,
    /// Side lengths of the scenes that crops are cut from, taken in turn.
    pub sizes: Vec<usize>,
    /// Scenes of each kind that crops are cut from at any time.
    pub pool: usize,
    /// New scenes of each kind per thousand crops; they take the place of the oldest.
    pub refresh: f64,
    /// A folder, a glob pattern or a file: images, or the inputs of pairs.
    pub inputs: Option<String>,
    /// The same for the targets of pairs, which have the names of their inputs.
    pub targets: Option<String>,
    /// A CSV file with the columns input, target, scene, domain, split, in place of the two.
    pub manifest: Option<PathBuf>,
    /// The share of scenes that is kept for validation.
    pub validation: f64,
    pub balance: BalanceKind,
    /// Limits of values that become -1 and 1, for inputs and targets each.
    pub normalise: Range,
    /// Turns and flips.
    pub augment: bool,
    pub camera: CameraConfig,
}

impl Default for DataConfig {
    fn default() -> DataConfig {
        DataConfig {
            kind: DataKind::Scenes,
            scenes: clearshot_scenes::SCENES.iter().map(|k| (k.name.to_string(), 1.0)).collect(),
            sizes: vec![128],
            pool: 128,
            refresh: 0.0,
            inputs: None,
            targets: None,
            manifest: None,
            validation: 0.1,
            balance: BalanceKind::Files,
            normalise: Range::Percentiles { low: 0.1, high: 99.9 },
            augment: true,
            camera: CameraConfig::default(),
        }
    }
}

/// The cameras that look at clean images. Ranges are drawn from log-uniformly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CameraConfig {
    /// Electrons of the brightest value.
    pub peak: [f64; 2],
    /// Electrons without light; unless told, what usually goes with the peak, times or divided by up to `spread`.
    pub background: Option<[f64; 2]>,
    /// Standard deviation of the read noise in electrons; the same.
    pub read_noise: Option<[f64; 2]>,
    pub spread: f64,
    /// The peak that a network is told is off by up to this factor less one.
    pub peak_error: f64,
    /// How much of what noise adds to the peak that is found in an image a network is told, at the most.
    pub peak_noise: f64,
    /// The share of crops that are blurred before the camera, target and all.
    pub blur: f64,
    /// Of a Gaussian's standard deviation in pixels.
    pub blur_sigma: [f64; 2],
}

impl Default for CameraConfig {
    fn default() -> CameraConfig {
        CameraConfig {
            peak: [20.0, 20.0],
            background: None,
            read_noise: None,
            spread: 1.0,
            peak_error: 0.0,
            peak_noise: 0.0,
            blur: 0.0,
            blur_sigma: [0.5, 2.5],
        }
    }
}

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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    #[default]
    Adamw,
    Adam,
    Sgd,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerConfig {
    pub kind: OptimizerKind,
    /// The learning rate that the schedule is a share of.
    pub rate: f64,
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
    /// Of gradient descent.
    pub momentum: f64,
    /// The largest norm of all gradients together; 0 for no limit.
    pub clip: f64,
}

impl Default for OptimizerConfig {
    fn default() -> OptimizerConfig {
        OptimizerConfig {
            kind: OptimizerKind::Adamw,
            rate: 3e-4,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 1e-2,
            momentum: 0.9,
            clip: 1.0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RateShape {
    Constant,
    #[default]
    Cosine,
    /// Cosine, again and again.
    Restarts,
}

/// How the learning rate runs: warm-up, main, refinement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Iterations over which the rate rises from nothing.
    pub warm_up: u64,
    pub shape: RateShape,
    /// The share of the rate that a cosine ends at.
    pub floor: f64,
    /// Cosines of `restarts`, one after another.
    pub cycles: u64,
    /// The share of all iterations, at the end, that refine.
    pub refinement: f64,
    /// The share of the rate while refining.
    pub refinement_rate: f64,
}

impl Default for ScheduleConfig {
    fn default() -> ScheduleConfig {
        ScheduleConfig {
            warm_up: 100,
            shape: RateShape::Cosine,
            floor: 0.01,
            cycles: 4,
            refinement: 0.0,
            refinement_rate: 0.1,
        }
    }
}

/// A number, or `auto`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Count {
    Number(usize),
    Word(String),
}

/// How different the images of a data set are, which decides how often each is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Complexity {
    Simple,
    Medium,
    Complex,
}

/// One resolution of several that training goes through.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// Side length of crops.
    pub size: usize,
    /// The share of all iterations; of adaptive growth, the most.
    pub share: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrowthConfig {
    /// Resolutions, from the smallest; none for `crop` alone.
    pub stages: Vec<StageConfig>,
    /// Batches of smaller crops are larger by their area, up to this many images.
    pub most: usize,
    /// Iterations over which the rate rises again after a switch.
    pub warm_up: u64,
    /// The share of a stage over which a growing network's new layers are blended in.
    pub blend: f64,
    /// Whether a stage also ends when validations no longer improve.
    pub adaptive: bool,
    /// So many validations without improvement.
    pub patience: usize,
    /// What counts as one, in dB.
    pub threshold: f64,
}

impl Default for GrowthConfig {
    fn default() -> GrowthConfig {
        GrowthConfig {
            stages: vec![],
            most: 128,
            warm_up: 20,
            blend: 0.5,
            adaptive: false,
            patience: 5,
            threshold: 0.01,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerConfig {
    /// cpu, cuda, cuda:N, or auto.
    pub device: String,
    pub iterations: Option<u64>,
    /// In place of iterations: as many as the first ones say will fit into this time.
    pub seconds: Option<f64>,
    /// In place of both, for files: from their number and how different they are.
    pub epochs: Option<Complexity>,
    /// Side length of crops.
    pub crop: usize,
    /// Depth of crops, for networks in three dimensions.
    pub depth: Option<usize>,
    /// Images of an iteration, or `auto`: as many as fit into performance.memory.
    pub batch: Count,
    /// Runs that an iteration's images are divided into.
    pub accumulate: usize,
    pub growth: GrowthConfig,
    /// Half-life in images of the average of the weights, which is what becomes the model; 0 for no average.
    pub ema_half_life: f64,
    /// How many times its mean of lately a loss or a gradient's norm may be; iterations above it, and above four standard
    /// deviations, are skipped, as those without a finite gradient are. 0 for no such bound.
    pub guard: f64,
    /// Iterations that were skipped, less a quarter for each good one since, upon which the run goes back to its last checkpoint.
    pub skips: u64,
    /// How often it goes back, each time to go on at half the rate, before it ends.
    pub returns: u64,
    /// Validations without improvement that end the run; 0 for never.
    pub early_stop: usize,
}

impl Default for TrainerConfig {
    fn default() -> TrainerConfig {
        TrainerConfig {
            device: "auto".into(),
            iterations: None,
            seconds: None,
            epochs: None,
            crop: 64,
            depth: None,
            batch: Count::Number(16),
            accumulate: 1,
            growth: GrowthConfig::default(),
            ema_half_life: 2000.0,
            guard: 10.0,
            skips: 10,
            returns: 5,
            early_stop: 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PerformanceConfig {
    /// fp32, tf32, bf16, fp16 or auto.
    pub precision: String,
    /// The most memory that an iteration may take, as 4GiB; what does not fit is recomputed.
    pub budget: Option<String>,
    /// The memory that `trainer.batch: auto` fills, as 4GiB; unless told, nine tenths of the device's.
    pub memory: Option<String>,
    /// Threads of the CPU that compute; 0 for all.
    pub threads: usize,
    /// Threads that make training images; 0 for as many as suit the device.
    pub workers: usize,
    /// Batches that are made ahead; 0 for two for each worker.
    pub ahead: usize,
}

impl Default for PerformanceConfig {
    fn default() -> PerformanceConfig {
        PerformanceConfig {
            precision: "auto".into(),
            budget: None,
            memory: None,
            threads: 0,
            workers: 0,
            ahead: 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValidationConfig {
    /// Iterations from one to the next; 0 for none but the last.
    pub every: u64,
    /// Images of a full validation.
    pub images: usize,
    /// The share of them that usually does.
    pub subset: f64,
    /// Every so many validations is full, and so is the last.
    pub full_every: u64,
    /// Side length of the crops; 0 for that of training.
    pub crop: usize,
    /// The noise level at which a prior is scored; conditional models are at `task.sigma_max`.
    pub sigma: f64,
}

impl Default for ValidationConfig {
    fn default() -> ValidationConfig {
        ValidationConfig { every: 500, images: 64, subset: 0.25, full_every: 5, crop: 0, sigma: 0.2 }
    }
}

/// How the best model of conditional diffusion learns, when training has ended, what the spread of its samples is worth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CalibrationConfig {
    /// Validation images that are restored for it; 0 for none: the spread is then shown as it is.
    pub images: usize,
    /// Samples of each.
    pub samples: usize,
    /// Sampling steps.
    pub steps: usize,
}

impl Default for CalibrationConfig {
    fn default() -> CalibrationConfig {
        CalibrationConfig { images: 40, samples: 8, steps: 12 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Iterations from one to the next; 0 for the last alone.
    pub every: u64,
    /// The best that are kept.
    pub top: usize,
    /// Iterations between those that are kept for good; 0 for none.
    pub keep_every: u64,
}

impl Default for CheckpointConfig {
    fn default() -> CheckpointConfig {
        CheckpointConfig { every: 500, top: 3, keep_every: 0 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecordsConfig {
    /// Iterations from one record to the next.
    pub every: u64,
    pub tensorboard: bool,
    /// Pictures of validation images: input, estimate, truth.
    pub pictures: usize,
}

impl Default for RecordsConfig {
    fn default() -> RecordsConfig {
        RecordsConfig { every: 50, tensorboard: true, pictures: 4 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use serde_json::json;

    fn read(value: Json) -> Result<RunConfig> {
        let config: RunConfig = serde_json::from_value(value).unwrap();
        config.check()?;
        Ok(config)
    }

    #[test]
    fn what_cannot_be_meant_names_its_key() {
        for (value, key) in [
            (json!({}), "trainer.iterations"),
            (json!({"trainer": {"iterations": 5, "seconds": 3.0}}), "trainer.iterations"),
            (json!({"trainer": {"iterations": 5, "batch": "most"}}), "trainer.batch"),
            (json!({"trainer": {"iterations": 5, "batch": 6, "accumulate": 4}}), "trainer.batch"),
            (
                json!({"trainer": {"iterations": 5}, "performance": {"budget": "4 giga"}}),
                "performance.budget",
            ),
            (json!({"trainer": {"iterations": 5}, "data": {"kind": "pairs"}}), "data.inputs"),
            (json!({"trainer": {"epochs": "simple"}}), "trainer.epochs"),
            (
                json!({"trainer": {"iterations": 5, "growth": {"stages": [{"size": 32, "share": 1.0}]}}}),
                "trainer.growth",
            ),
            (json!({"trainer": {"iterations": 5}, "task": {"sigma_max": 0.001}}), "task.sigma_max"),
        ] {
            let text = read(value.clone()).unwrap_err().to_string();
            assert!(text.starts_with(key), "{value}: {text}");
        }
        assert!(read(json!({"trainer": {"iterations": 5}})).is_ok());
        let unknown = serde_json::from_value::<RunConfig>(json!({"trainer": {"iteration": 5}}));
        assert!(unknown.unwrap_err().to_string().contains("iteration"));
    }
}
