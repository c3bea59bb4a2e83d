//! Configuration of the run: optimiser and schedule, length and device, validation, checkpoints and records.

use schemars::JsonSchema;
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt::Formatter;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    #[default]
    Adamw,
    Adam,
    Sgd,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerConfig {
    /// Optimiser.
    pub kind: OptimizerKind,
    /// The largest learning rate; the schedule multiplies it.
    pub rate: f64,
    /// Decay of the averages of gradients and squared gradients of Adam.
    pub betas: [f64; 2],
    /// Number that Adam adds to the denominator.
    pub eps: f64,
    /// Weight decay: decoupled with adamw, added to gradients with adam and sgd.
    pub weight_decay: f64,
    /// Fan-in up to which the learning rate applies; Adam's rate of weights with a larger fan-in is lower in proportion. 0 for a single rate.
    /// Default: 288 for networks without norms (local), otherwise a single rate.
    pub base_fan_in: Option<usize>,
    /// Learning rate of the encoder relative to that of all other weights, for networks with an encoder (model=vit_segmentation).
    pub encoder_rate: f64,
    /// Learning rate of each layer of an encoder relative to that of the next layer (layer-wise decay), for pretrained encoders; 0.65 to 0.75
    /// is usual. 1 for a single rate.
    pub layer_decay: f64,
    /// Momentum of gradient descent.
    pub momentum: f64,
    /// Largest norm of the gradient of all parameters; larger gradients are scaled down. 0 for no limit.
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
            base_fan_in: None,
            encoder_rate: 1.0,
            layer_decay: 1.0,
            momentum: 0.9,
            clip: 1.0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RateShape {
    Constant,
    #[default]
    Cosine,
    /// Cosine, again and again.
    Restarts,
}

/// How the learning rate runs: warm-up, main, refinement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Iterations over which the rate rises from zero.
    pub warm_up: u64,
    /// Shape of the learning rate over the iterations.
    pub shape: RateShape,
    /// Share of the rate at the end of a cosine.
    pub floor: f64,
    /// Number of cosines of shape=restarts.
    pub cycles: u64,
    /// Share of all iterations, at the end, with a lower rate (refinement).
    pub refinement: f64,
    /// Share of the rate during refinement.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Count {
    Number(usize),
    Word(String),
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Count, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Count;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("a whole number, or auto,")
            }

            fn visit_u64<E: Error>(self, n: u64) -> Result<Count, E> {
                usize::try_from(n)
                    .map(Count::Number)
                    .map_err(|_| E::invalid_value(Unexpected::Unsigned(n), &self))
            }

            fn visit_i64<E: Error>(self, n: i64) -> Result<Count, E> {
                usize::try_from(n)
                    .map(Count::Number)
                    .map_err(|_| E::invalid_value(Unexpected::Signed(n), &self))
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Count, E> {
                Ok(Count::Word(word.into()))
            }
        }
        from.deserialize_any(Either)
    }
}

/// How different the images of a data set are, which decides how often each is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Complexity {
    Simple,
    Medium,
    Complex,
}

/// One resolution of several that training goes through.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// Side length of crops.
    pub size: usize,
    /// Share of all iterations; with adaptive growth, the largest share.
    pub share: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GrowthConfig {
    /// Resolutions, from the smallest; empty for `crop` only.
    pub stages: Vec<StageConfig>,
    /// Largest batch of small crops, whose batches are larger in proportion to their area.
    pub most: usize,
    /// Iterations over which the rate rises again after a change of resolution.
    pub warm_up: u64,
    /// Share of a stage over which the new layers of a growing network are blended in.
    pub blend: f64,
    /// Whether a stage also ends when validations no longer improve.
    pub adaptive: bool,
    /// Number of validations without improvement after which an adaptive stage ends.
    pub patience: usize,
    /// Smallest improvement that counts, in dB.
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerConfig {
    /// cpu, cuda, cuda:N, or auto.
    pub device: String,
    /// Number of iterations.
    pub iterations: Option<u64>,
    /// Train for this time instead of a number of iterations, validations included; the learning rate follows the clock.
    pub seconds: Option<f64>,
    /// Choose the number of iterations by the number of files and how different they are, instead of iterations or seconds.
    pub epochs: Option<Complexity>,
    /// Number of processes on a machine that train together, each on a device or a share of the CPU; `clearshot train --devices N` starts them. 0 for as many
    /// as were started.
    pub devices: usize,
    /// Number of machines that train together, each with `devices` processes, which mpiexec or srun starts.
    pub nodes: usize,
    /// Side length of crops.
    pub crop: usize,
    /// Depth of crops, for networks in three dimensions.
    pub depth: Option<usize>,
    /// Images of an iteration, or `auto` for as many as fit into performance.memory; if several processes train together, the images of each.
    pub batch: Count,
    /// Number of passes into which the images of an iteration are divided (gradient accumulation).
    pub accumulate: usize,
    pub growth: GrowthConfig,
    /// Half-life, in images, of the exponential moving average of the weights, which is saved as the model; 0 for no average.
    pub ema_half_life: f64,
    /// Skip iterations whose loss or gradient norm exceeds its recent geometric mean by more than this factor (for the norm, by the square of
    /// this factor if gradients are clipped) and by more than four standard deviations of its logarithm. Iterations without a finite
    /// gradient are always skipped. 0 for no such limit.
    pub guard: f64,
    /// Number of skipped iterations, minus a quarter for each good one since, at which the run returns to its last checkpoint.
    pub skips: u64,
    /// How often the run returns to a checkpoint, each time at half the rate, before it ends.
    pub returns: u64,
    /// Number of validations without improvement after which the run ends; 0 for never.
    pub early_stop: usize,
}

impl Default for TrainerConfig {
    fn default() -> TrainerConfig {
        TrainerConfig {
            device: "auto".into(),
            iterations: None,
            seconds: None,
            epochs: None,
            devices: 0,
            nodes: 1,
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

/// How gradients travel between the processes of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// In 16 bits, with the range of 32.
    Bf16,
    /// In 16 bits; gradients above 65504 make the iteration one that is skipped.
    Fp16,
    /// As matrices of low rank; what is lost is added to the next gradient.
    Powersgd,
}

/// The exchange of gradients between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// NCCL, where it is found and each process has a GPU of its own; else MPI.
    #[default]
    Auto,
    /// From GPU to GPU; refused where that cannot be.
    Nccl,
    /// By way of the host.
    Mpi,
}

/// Training by several processes that average their gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DistributedConfig {
    /// Library that exchanges gradients: NCCL between GPUs, or MPI through host memory. With auto, NCCL if it is found and each process has its own GPU.
    pub backend: Backend,
    /// Compression of the exchanged gradients.
    pub compression: Compression,
    /// The rank of PowerSGD's matrices.
    pub rank: usize,
    /// Iterations with uncompressed gradients before PowerSGD starts.
    pub start: u64,
    /// Smallest size of a group of gradients that is exchanged at once, for example 4MiB. Default: 1MiB between processors, 25MiB between GPUs.
    pub bucket: Option<String>,
    /// Whether gradients are exchanged while others are computed; results are the same.
    pub overlap: bool,
}

impl Default for DistributedConfig {
    fn default() -> DistributedConfig {
        DistributedConfig {
            backend: Backend::Auto,
            compression: Compression::None,
            rank: 2,
            start: 10,
            bucket: None,
            overlap: true,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PerformanceConfig {
    /// fp32, tf32, bf16, fp16 or auto.
    pub precision: String,
    /// Largest memory of an iteration, for example 4GiB; what does not fit is recomputed. Default: no limit.
    pub budget: Option<String>,
    /// Memory that `trainer.batch: auto` fills, for example 4GiB. Default: 90 % of the device's memory.
    pub memory: Option<String>,
    /// CPU threads for computing; 0 for all.
    pub threads: usize,
    /// Threads that load or generate training images; 0 chooses by the device.
    pub workers: usize,
    /// Batches that are prepared in advance; 0 for two per worker.
    pub ahead: usize,
    /// Side of the tiles of `restore --performance`; not used in training. Default: chosen by memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile: Option<usize>,
    /// Tiles that `restore --performance` runs at once. Default: as many as keep the device busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiles: Option<usize>,
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
            tile: None,
            tiles: None,
        }
    }
}

/// The records of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Profiling {
    #[default]
    None,
    /// Where time goes.
    Time,
    /// And memory, phase by phase.
    Memory,
}

/// A look at where time and memory go, written to `profile` in the run's folder: after `wait` iterations and `warm_up` more, `active` ones, and that `repeat` times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DebugConfig {
    /// none, time or memory.
    pub profile: Profiling,
    /// Iterations before the warm-up.
    pub wait: u64,
    /// Iterations that are timed but not counted.
    pub warm_up: u64,
    /// Iterations that count.
    pub active: u64,
    /// How often all of these follow each other.
    pub repeat: u64,
}

impl Default for DebugConfig {
    fn default() -> DebugConfig {
        DebugConfig { profile: Profiling::None, wait: 1, warm_up: 1, active: 3, repeat: 2 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ValidationConfig {
    /// Iterations between validations; 0 for only one, at the end. With `trainer.seconds`, also at every quarter of the time.
    pub every: u64,
    /// Images of a validation, the same every time; fewer if `trainer.seconds` is too short for them.
    pub images: usize,
    /// Side length of the crops; 0 for the same as in training.
    pub crop: usize,
    /// Noise level at which a prior is scored; conditional models are scored at `task.sigma_max`.
    pub sigma: f64,
}

impl Default for ValidationConfig {
    fn default() -> ValidationConfig {
        ValidationConfig { every: 500, images: 32, crop: 0, sigma: 0.2 }
    }
}

/// How the uncertainty of the best model of conditional diffusion is calibrated when training has ended: 90 % intervals are to contain the truth 90 % of the time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CalibrationConfig {
    /// Validation images that are restored to calibrate the uncertainty; fewer if that would take longer than the training. 0 for no calibration.
    pub images: usize,
    /// Samples of each image.
    pub samples: usize,
    /// Sampling steps.
    pub steps: usize,
}

impl Default for CalibrationConfig {
    fn default() -> CalibrationConfig {
        CalibrationConfig { images: 40, samples: 8, steps: 12 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Iterations between checkpoints; 0 for only one, at the end.
    pub every: u64,
    /// Number of best checkpoints that are kept.
    pub top: usize,
    /// Iterations between checkpoints that are never deleted; 0 for none.
    pub keep_every: u64,
}

impl Default for CheckpointConfig {
    fn default() -> CheckpointConfig {
        CheckpointConfig { every: 500, top: 3, keep_every: 0 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RecordsConfig {
    /// Iterations between records.
    pub every: u64,
    /// Whether records are also written for TensorBoard.
    pub tensorboard: bool,
    /// Number of pictures of validation images: input, estimate, truth.
    pub pictures: usize,
}

impl Default for RecordsConfig {
    fn default() -> RecordsConfig {
        RecordsConfig { every: 50, tensorboard: true, pictures: 4 }
    }
}
