//! How a run goes: the optimiser and its rate, how long and on what, what is scored, kept and recorded on the way.

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
    pub kind: OptimizerKind,
    /// The learning rate that the schedule is a share of.
    pub rate: f64,
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
    /// The rate is that of weights whose results sum over so many values, or fewer; of wider ones Adam's is smaller by as much. 0 for one
    /// rate. Default: 288 for networks without norms (local), else one rate.
    pub base_fan_in: Option<usize>,
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
            base_fan_in: None,
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
    /// The share of all iterations; of adaptive growth, the most.
    pub share: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerConfig {
    /// cpu, cuda, cuda:N, or auto.
    pub device: String,
    pub iterations: Option<u64>,
    /// In place of iterations: as many as fit into this time, validations included. The learning rate then follows the clock.
    pub seconds: Option<f64>,
    /// In place of both, for files: from their number and how different they are.
    pub epochs: Option<Complexity>,
    /// Processes of a machine that train together, each on a device or a share of the processor; `clearshot train --devices N` starts them. 0 for as many
    /// as were started.
    pub devices: usize,
    /// Machines that train together, each with `devices` processes, which torchrun, srun or mpiexec starts.
    pub nodes: usize,
    /// Side length of crops.
    pub crop: usize,
    /// Depth of crops, for networks in three dimensions.
    pub depth: Option<usize>,
    /// Images of an iteration, or `auto`: as many as fit into performance.memory. Where several processes train together, those of each.
    pub batch: Count,
    /// Runs that an iteration's images are divided into.
    pub accumulate: usize,
    pub growth: GrowthConfig,
    /// Half-life in images of the average of the weights, which is what becomes the model; 0 for no average.
    pub ema_half_life: f64,
    /// Skip iterations whose loss exceeds its recent geometric mean by more than this factor and by more than four standard deviations of its
    /// logarithm; the norm of a clipped gradient may exceed its mean by the square of this factor. Iterations without a finite gradient are always skipped. 0 for no such bound.
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

/// What carries gradients between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// NCCL, where it is found and each process has a GPU of its own; else the host.
    #[default]
    Auto,
    /// From GPU to GPU; refused where that cannot be.
    Nccl,
    /// By way of the host's memory: over MPI under mpiexec, else over TCP.
    #[serde(alias = "mpi")]
    Host,
}

/// Training by several processes that average their gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DistributedConfig {
    /// What carries gradients: NCCL from GPU to GPU, or the host (MPI under mpiexec, else TCP). By default NCCL, where it is found and each process has a GPU of its own.
    pub backend: Backend,
    /// How gradients travel.
    pub compression: Compression,
    /// The rank of PowerSGD's matrices.
    pub rank: usize,
    /// Iterations whose gradients travel as they are before PowerSGD begins.
    pub start: u64,
    /// Gradients that travel together, at least, as 4MiB. Default: 1MiB between processors, 25MiB between GPUs.
    pub bucket: Option<String>,
    /// Whether gradients travel while others are computed; results are the same.
    pub overlap: bool,
    /// Seconds that processes wait for each other at the start; under mpiexec, MPI decides.
    pub wait: u64,
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
            wait: 300,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PerformanceConfig {
    /// fp32, tf32, bf16, fp16 or auto.
    pub precision: String,
    /// The most memory that an iteration may take, as 4GiB; what does not fit is recomputed.
    pub budget: Option<String>,
    /// The memory that `trainer.batch: auto` fills, as 4GiB. Default: nine tenths of the device's.
    pub memory: Option<String>,
    /// Threads of the CPU that compute; 0 for all.
    pub threads: usize,
    /// Threads that make training images; 0 for as many as suit the device.
    pub workers: usize,
    /// Batches that are made ahead; 0 for two for each worker.
    pub ahead: usize,
    /// Side of the tiles that `restore --performance` computes by; training has none. Default: by memory.
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

/// What is written down of a run while it goes on.
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
    /// Iterations that pass first.
    pub wait: u64,
    /// Iterations that are timed and forgotten.
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
    /// Iterations from one to the next; 0 for none but the last. With `trainer.seconds`, also at every quarter of the time.
    pub every: u64,
    /// Images of a validation, the same ones every time; fewer where `trainer.seconds` leaves no time for them.
    pub images: usize,
    /// Side length of the crops; 0 for that of training.
    pub crop: usize,
    /// The noise level at which a prior is scored; conditional models are at `task.sigma_max`.
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
    /// Validation images that are restored for it, fewer where that would take longer than training did; 0 for none: the spread is then shown as it is.
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
